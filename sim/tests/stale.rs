//! A copy of a member from before the last changes of membership is never taken for the member.
//!
//! The copy's superblock lists it as active, and no other superblock contradicts that: only the floor of the newest one
//! proves that the member must have newer events. The drives are images, so that they can be copied while the array
//! runs; each copy is only inspected.

use crate::support::array::{geometry, options, run, write};
use emu::ssd::{EmulatedDrive, Model};
use engine::{
    array::{Array, Drive, MemberState},
    runtime::Runtime,
};
use std::{fs, path::Path, rc::Rc};

const MEMBERS: usize = 4;
/// The copied member.
const COPIED: usize = 1;

fn blank(dir: &Path, name: &str) -> Drive {
    let model = Model { name: "test".into(), geometry: geometry(6, 96, 5) };
    let device = EmulatedDrive::create_image(&dir.join(name), &model, [name.len() as u8; 16]).unwrap();
    Drive { name: name.into(), device: Rc::new(device) }
}

fn open(path: &Path) -> Drive {
    let name = path.file_name().unwrap().to_str().unwrap().to_string();
    Drive { name, device: Rc::new(EmulatedDrive::open_image(path).unwrap()) }
}

/// Changes of membership, or of the superblocks.
#[derive(Clone, Copy, Debug)]
enum Change {
    Assembly,
    Fail(usize),
    Replace(usize),
}

/// The note of member `COPIED` in an inspection with `copy` in its place.
fn verdict(dir: &Path, names: &[String], copy: &str) -> String {
    let shown = dir.join("shown");
    fs::remove_dir_all(&shown).ok();
    fs::create_dir(&shown).unwrap();
    let place = |role: usize| if role == COPIED { copy } else { &names[role] };
    let drives = (0..names.len()).map(|role| {
        let path = shown.join(place(role));
        fs::copy(dir.join(place(role)), &path).unwrap();
        open(&path)
    });
    let runtime = Runtime::new();
    let found = run(&runtime, Array::inspect(&runtime, drives.collect(), None));
    runtime.clear();
    match found {
        Ok(found) => {
            let member = &found.status.members[COPIED];
            assert_eq!(member.state == MemberState::Active, member.note.is_empty());
            member.note.to_string()
        }
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn member_copy_older_than_last_change_is_stale() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut runtime = Runtime::new();
    let mut names: Vec<String> = (0..MEMBERS).map(|member| format!("drive{member}")).collect();
    let drives: Vec<Drive> = names.iter().map(|name| blank(dir, name)).collect();
    let mut array = run(&runtime, Array::create(&runtime, options(4), drives)).unwrap();
    let mut written = 0;
    let changes = [
        Change::Assembly,
        Change::Fail(3),
        Change::Replace(3),
        Change::Fail(2),
        Change::Replace(2),
        Change::Assembly,
    ];
    for (step, change) in changes.into_iter().enumerate() {
        write(&runtime, &array, 0, written, 5, true);
        written += 5;
        fs::copy(dir.join(&names[COPIED]), dir.join(format!("copy{step}"))).unwrap();
        match change {
            Change::Assembly => {
                drop(array);
                runtime.clear();
                runtime = Runtime::new();
                let drives = names.iter().map(|name| open(&dir.join(name))).collect();
                array = run(&runtime, Array::assemble(&runtime, drives)).unwrap();
            }
            Change::Fail(member) => run(&runtime, array.fail(member)).unwrap(),
            Change::Replace(member) => {
                names[member] = format!("new{step}");
                run(&runtime, array.attach(member, blank(dir, &names[member]))).unwrap();
                run(&runtime, array.rebuild(&|_| ())).unwrap();
            }
        }
        assert!(!verdict(dir, &names, &names[COPIED]).contains("is stale"), "after {change:?}");
        // The copy from just before a change may have the event of the floor itself; an assembly makes two changes.
        let stale = if matches!(change, Change::Assembly) { step + 1 } else { step };
        for copy in 0..stale {
            let said = verdict(dir, &names, &format!("copy{copy}"));
            assert!(said.contains("is stale"), "copy {copy} after {change:?}, step {step}: {said}");
        }
    }
}
