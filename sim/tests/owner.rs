//! Administrative operations on a whole array, cut at every step: creation, renaming and destruction.
//!
//! After an interrupted creation there is no array unless a superblock completes it, and all drives name the array that
//! they were to become. An interrupted rename leaves one of the two names, and makes no member stale, not even a
//! missing one. An interrupted destruction leaves all data, or an array that is refused, with any members present and
//! any returning.

use crate::support::{
    array::{check, geometry, options, run, submit, wp, write},
    rig::{Act, Rig},
};
use emu::{rng::Rng, ssd::Cut};
use engine::{
    array::{Array, ArrayError, ArrayInspection, CreateOptions, Drive, MemberState, examine},
    buf::Buf,
    device::{Command, Geometry, Zones},
    format::superblock::Stage,
    owner::{Change, make_blank},
    raid::policy::Policy,
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{cell::Cell, ops::AddAssign, rc::Rc};

const MEMBERS: usize = 4;
const CHUNK: u64 = 4;
/// Blocks written to the zones of the old array.
const WRITTEN: [u64; 3] = [29, 0, 7];
const OLD: [u8; 16] = [3; 16];
const NEW: [u8; 16] = [9; 16];
const POLICIES: [(Policy, bool); 4] =
    [(Policy::Zrwa, false), (Policy::Log, false), (Policy::Log, true), (Policy::InPlace, false)];

fn shape(volatile: bool) -> Geometry {
    Geometry { volatile_cache: volatile, ..geometry(6, 96, 5) }
}

/// An array called 'test' with data, on drives that are not in use.
fn used(rig: &Rc<Rig>, policy: Policy, volatile: bool) -> Vec<Drive> {
    let drives: Vec<Drive> = (0..MEMBERS).map(|_| rig.drive(&shape(volatile))).collect();
    let runtime = Runtime::new();
    let options = CreateOptions { policy: Some(policy), uuid: OLD, ..options(CHUNK) };
    let array = run(&runtime, Array::create(&runtime, options, drives.clone())).unwrap();
    for (zone, blocks) in (0..).zip(WRITTEN).filter(|(_, blocks)| *blocks > 0) {
        write(&runtime, &array, zone, 0, blocks, true);
    }
    submit(&runtime, &array, Command::Flush);
    runtime.clear();
    drives
}

/// Copies of the drives; the originals stay unchanged.
fn copies(rig: &Rc<Rig>, drives: &[Drive]) -> Vec<Drive> {
    let number = |drive: &Drive| drive.name.trim_start_matches("drive").parse().unwrap();
    drives.iter().map(|drive| rig.copy(number(drive))).collect()
}

/// Checks that the array of [`used`] is there with all its data, and with all members active except `missing`.
fn check_old(rig: &Rc<Rig>, drives: &[Drive], missing: Option<usize>, what: &str) {
    let runtime = Runtime::new();
    let array = run(&runtime, Array::assemble(&runtime, copies(rig, drives)));
    let array = array.unwrap_or_else(|error| panic!("{what}: {error}"));
    for (role, member) in array.status().members.iter().enumerate() {
        let state = if Some(role) == missing { MemberState::Out } else { MemberState::Active };
        assert_eq!(member.state, state, "{what}: member {role}: {}", member.note);
    }
    for (zone, blocks) in (0..).zip(WRITTEN) {
        assert_eq!(wp(&runtime, &array, zone).1, blocks, "{what}: zone {zone}");
        check(&runtime, &array, zone, blocks);
    }
    runtime.clear();
}

/// Inspects the drives with a label of array `uuid`; `None` without any.
fn of_array(drives: &[Drive], uuid: [u8; 16]) -> Option<Result<ArrayInspection, ArrayError>> {
    let runtime = Runtime::new();
    let labelled: Vec<Drive> = labelled(drives, uuid).into_iter().map(|(drive, _)| drive).collect();
    if labelled.is_empty() {
        return None;
    }
    let found = run(&runtime, Array::inspect(&runtime, labelled, None));
    runtime.clear();
    Some(found)
}

/// The drives with a label of array `uuid`, and the stage in it.
fn labelled(drives: &[Drive], uuid: [u8; 16]) -> Vec<(Drive, Stage)> {
    let runtime = Runtime::new();
    let mut labelled = Vec::new();
    for drive in drives {
        if let Ok(found) = run(&runtime, examine(&runtime, drive))
            && found.superblock.array.0 == uuid
        {
            labelled.push((drive.clone(), found.superblock.stage));
        }
    }
    labelled
}

fn is_blank(drive: &Drive) -> bool {
    let count = drive.device.geometry().zones;
    let runtime = Runtime::new();
    let report = run(&runtime, drive.device.submit(Command::Report { first: ZoneIndex(0), count }));
    // A zone that has lost its data in a ZRWA may be empty, and fail to read.
    let reads_as_zeros = |zone: u32| {
        let lba = drive.device.geometry().start(ZoneIndex(zone));
        let read = run(&runtime, drive.device.submit(Command::read(lba, Buf::zeroed(4096))));
        read.result.is_err() || read.data.iter().all(|byte| *byte == 0)
    };
    report.zones.iter().all(|zone| zone.state == ZoneState::Empty) && (0..count).all(reads_as_zeros)
}

/// The drives without `missing`.
fn without(drives: &[Drive], missing: Option<usize>) -> Vec<Drive> {
    let there = drives.iter().enumerate().filter(|(role, _)| Some(*role) != missing);
    there.map(|(_, drive)| drive.clone()).collect()
}

fn anybody() -> impl Iterator<Item = Option<usize>> {
    [None].into_iter().chain((0..MEMBERS).map(Some))
}

/// Runs `task` until `commands` commands have changed a drive, and cuts the power; returns its result if it completed.
fn cut_after<T: 'static>(
    rig: &Rc<Rig>,
    commands: usize,
    lose: bool,
    task: impl FnOnce(Runtime) -> std::pin::Pin<Box<dyn Future<Output = T>>>,
) -> Option<T> {
    cut_on(Runtime::new(), rig, commands, lose, task)
}

/// As [`cut_after`], on a runtime with other tasks.
fn cut_on<T: 'static>(
    runtime: Runtime,
    rig: &Rc<Rig>,
    commands: usize,
    lose: bool,
    task: impl FnOnce(Runtime) -> std::pin::Pin<Box<dyn Future<Output = T>>>,
) -> Option<T> {
    rig.hold_after(commands);
    let result = Rc::new(Cell::new(None));
    let (told, task) = (result.clone(), task(runtime.clone()));
    runtime.spawn(async move { told.set(Some(task.await)) });
    runtime.run();
    runtime.clear();
    rig.cut_power(&mut Rng::new(commands as u64), |_| Cut { cache_lost: lose, zrwa_lost: false });
    result.take()
}

#[test]
fn creation_interrupted_is_reported_and_repeatable() {
    for ((policy, volatile), before) in POLICIES.into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let (mut unfinished, mut finished, mut emptied) = (0, 0, 0);
        for commands in 0.. {
            let rig = Rig::new();
            let drives = match before {
                true => used(&rig, policy, volatile),
                false => (0..MEMBERS).map(|_| rig.drive(&shape(volatile))).collect(),
            };
            let options =
                || CreateOptions { policy: Some(policy), uuid: NEW, name: "new".into(), ..options(CHUNK) };
            let (made, taken) = (options(), drives.clone());
            let done = cut_after(&rig, commands, volatile, |runtime| {
                Box::pin(async move { Array::create(&runtime, made, taken).await.map(|_| ()) })
            });
            let what = format!("{policy:?} {volatile}, {before}, cut after {commands}");
            assert!(done.as_ref().is_none_or(|result| result.is_ok()), "{what}: {done:?}");
            let told = labelled(&drives, NEW);
            let is_there = told.iter().any(|(_, stage)| *stage == Stage::Whole);
            assert!(done.is_none() || is_there, "{what}");
            // All other drives but one are unchanged.
            let others = drives.iter().filter(|drive| !told.iter().any(|(t, _)| t.name == drive.name));
            let as_before = |drive: &Drive| {
                if before { !labelled(std::slice::from_ref(drive), OLD).is_empty() } else { is_blank(drive) }
            };
            let lost = others.filter(|drive| !as_before(drive)).count();
            assert!(lost <= 1, "{what}: {lost} drives are neither");
            emptied += lost;
            for missing in anybody() {
                match of_array(&without(&drives, missing), NEW) {
                    None => assert!(told.len() <= missing.is_some() as usize, "{what} without {missing:?}"),
                    Some(Ok(found)) => {
                        assert!(is_there, "{what} without {missing:?}");
                        let mut states = found.status.members.iter().enumerate();
                        let active = |(role, _): &(usize, _)| Some(*role) != missing;
                        assert!(states.by_ref().filter(active).all(|(_, m)| m.state == MemberState::Active));
                        finished += 1;
                    }
                    Some(Err(error)) => {
                        assert!(done.is_none(), "{what} without {missing:?}: {error}");
                        let said = "the creation of 'new' was interrupted";
                        assert!(error.to_string().contains(said), "{what} without {missing:?}: {error}");
                        unfinished += 1;
                    }
                }
            }
            // Destroy the remains first, or create over them.
            let runtime = Runtime::new();
            if !told.is_empty() && commands % 2 == 0 {
                let told = told.into_iter().map(|(drive, _)| drive).collect::<Vec<_>>();
                run(&runtime, Array::destroy(&runtime, told.clone())).unwrap();
                assert!(told.iter().all(is_blank), "{what}");
                drives.iter().for_each(|drive| run(&runtime, make_blank(drive)).unwrap());
                assert!(drives.iter().all(is_blank), "{what}");
            }
            let again = CreateOptions { uuid: [5; 16], ..options() };
            let array = run(&runtime, Array::create(&runtime, again, drives.clone())).unwrap();
            write(&runtime, &array, 1, 0, 50, true);
            check(&runtime, &array, 1, 50);
            if done.is_some() {
                assert!(commands > MEMBERS * 4, "{what}");
                break;
            }
        }
        assert!(unfinished > 20 && finished > 5, "{policy:?}: {unfinished} unfinished, {finished} finished");
        assert!(!before || emptied > 0, "{policy:?}");
    }
}

#[test]
fn rename_interrupted_is_atomic_without_stale_members() {
    for (policy, volatile) in POLICIES {
        for missing in anybody() {
            let (mut old, mut new) = (0, 0);
            for commands in 0.. {
                let rig = Rig::new();
                let drives = used(&rig, policy, volatile);
                let there = without(&drives, missing);
                let done = cut_after(&rig, commands, volatile, |runtime| {
                    let change = Change::Name("new".into());
                    Box::pin(async move { Array::change(&runtime, there, &change).await })
                });
                let what = format!("{policy:?} {volatile} without {missing:?}, cut after {commands}");
                assert!(done.as_ref().is_none_or(|result| result.is_ok()), "{what}: {done:?}");
                // The missing member is back, and another one is missing, or none.
                for away in anybody() {
                    let what = format!("{what}, then without {away:?}");
                    let found = of_array(&without(&drives, away), OLD).unwrap().unwrap();
                    let name = found.status.name;
                    assert!(name == "new" || done.is_none() && name == "test", "{what}: {name}");
                    if name == "new" { &mut new } else { &mut old }.add_assign(1);
                    check_old(&rig, &without(&drives, away), away, &what);
                }
                if done.is_some() {
                    break;
                }
            }
            assert!(old > 4 && new > 4, "{policy:?} without {missing:?}: {old} old, {new} new");
        }
    }
}

/// The interrupted update of the members.
#[derive(Clone, Copy, Debug)]
enum Saying {
    /// A new name while the array is not running.
    AtRest,
    /// The superblocks of an assembly.
    Assembly,
    /// A new name while the array runs, with different records in the members' logs.
    Running,
}

#[test]
fn rename_outranks_newer_looking_superblock_of_absent_member() {
    let ways = [Saying::AtRest, Saying::Assembly, Saying::Running];
    for ((policy, volatile), saying) in POLICIES.iter().flat_map(|kind| ways.map(|saying| (*kind, saying))) {
        for commands in 0.. {
            let rig = Rig::new();
            let drives = used(&rig, policy, volatile);
            let all = drives.clone();
            let change = Change::Name("first".into());
            let done = match saying {
                Saying::AtRest => cut_after(&rig, commands, volatile, |runtime| {
                    Box::pin(async move { Array::change(&runtime, all, &change).await })
                }),
                Saying::Assembly => cut_after(&rig, commands, volatile, |runtime| {
                    Box::pin(async move { Array::assemble(&runtime, all).await.map(|_| ()) })
                }),
                Saying::Running => {
                    let runtime = Runtime::new();
                    let array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
                    for at in (WRITTEN[0]..WRITTEN[0] + 9).step_by(3) {
                        write(&runtime, &array, 0, at, 3, true);
                    }
                    cut_on(runtime, &rig, commands, volatile, |_| {
                        Box::pin(async move { array.change_running(&change).await })
                    })
                }
            };
            for away in 0..MEMBERS {
                let runtime = Runtime::new();
                let mut drives = copies(&rig, &drives);
                let change = Change::Name("second".into());
                run(&runtime, Array::change(&runtime, without(&drives, Some(away)), &change)).unwrap();
                // The missing member is offered first, and another one may be missing.
                drives.rotate_left(away);
                for missing in [None].into_iter().chain((1..MEMBERS).map(Some)) {
                    let status = of_array(&without(&drives, missing), OLD).unwrap().unwrap().status;
                    let what = format!(
                        "{policy:?} {volatile} {saying:?}, cut after {commands}, {away} and {missing:?} away"
                    );
                    assert_eq!(status.name, "second", "{what}");
                }
            }
            if done.is_some() {
                break;
            }
        }
    }
}

/// A takeover of a drive is recorded on one member alone, an assembly that decides for the new drive is interrupted as
/// well, and then the array is renamed without that member: the rename counts when the member is back.
#[test]
fn rename_outranks_takeover_decision_of_absent_member() {
    for policy in [Policy::Zrwa, Policy::Log] {
        let replaced = |commands: usize| {
            let rig = Rig::new();
            let mut drives = used(&rig, policy, false);
            let (runtime, new) = (Runtime::new(), rig.drive(&shape(false)));
            let array = run(&runtime, Array::assemble(&runtime, drives.clone())).unwrap();
            drives.push(new.clone());
            let done = cut_on(runtime, &rig, commands, false, |_| {
                Box::pin(async move { array.replace(2, new, &|_| ()).await.map(|_| ()) })
            });
            (rig, drives, done.is_some())
        };
        let whole = (0..).find(|commands| replaced(*commands).2).unwrap();
        for commands in whole.saturating_sub(25)..whole {
            for decided in 0..20 {
                let (rig, drives, _) = replaced(commands);
                let all = drives.clone();
                cut_after(&rig, decided, false, |runtime| {
                    Box::pin(async move { Array::assemble(&runtime, all).await.map(|_| ()) })
                });
                for away in [0, 1, 3] {
                    let (runtime, mut drives) = (Runtime::new(), copies(&rig, &drives));
                    let change = Change::Name("second".into());
                    run(&runtime, Array::change(&runtime, without(&drives, Some(away)), &change)).unwrap();
                    drives.rotate_left(away);
                    let status = of_array(&drives, OLD).unwrap().unwrap().status;
                    let what = format!("{policy:?}, cut after {commands} and {decided}, {away} away");
                    assert_eq!(status.name, "second", "{what}");
                }
            }
        }
    }
}

#[test]
fn adopting_running_array_persists_host_and_autostart() {
    for (policy, volatile) in POLICIES {
        for commands in 0.. {
            let rig = Rig::new();
            let drives = used(&rig, policy, volatile);
            let runtime = Runtime::new();
            let array = run(&runtime, Array::assemble(&runtime, drives.clone())).unwrap();
            rig.hold_after(commands);
            let done = Rc::new(Cell::new(None));
            let (told, changed) = (done.clone(), array.clone());
            runtime.spawn(async move {
                let result = async {
                    changed.change_running(&Change::Host([8; 16])).await?;
                    changed.change_running(&Change::Autostart(true)).await
                };
                told.set(Some(result.await));
            });
            runtime.run();
            let done = done.take();
            if done.is_some() {
                assert_eq!((array.status().host, array.status().autostart), ([8; 16], true));
            }
            runtime.clear();
            rig.cut_power(&mut Rng::new(1), |_| Cut { cache_lost: volatile, zrwa_lost: false });
            let what = format!("{policy:?} {volatile}, cut after {commands}");
            assert!(done.as_ref().is_none_or(|result| result.is_ok()), "{what}: {done:?}");
            for away in anybody() {
                let status = of_array(&without(&drives, away), OLD).unwrap().unwrap().status;
                let is = (status.host, status.autostart);
                let known = [([0; 16], false), ([8; 16], false), ([8; 16], true)];
                assert!(is == known[2] || done.is_none() && known.contains(&is), "{what}: {is:?}");
                check_old(&rig, &without(&drives, away), away, &what);
            }
            if done.is_some() {
                break;
            }
        }
    }
}

#[test]
fn destruction_interrupted_leaves_array_whole_or_refused() {
    for (policy, volatile) in POLICIES {
        for missing in anybody() {
            let (mut whole, mut half, mut gone) = (0, 0, 0);
            for commands in 0.. {
                let rig = Rig::new();
                let drives = used(&rig, policy, volatile);
                let there = without(&drives, missing);
                let destroyed = there.clone();
                let done = cut_after(&rig, commands, volatile, |runtime| {
                    Box::pin(async move { Array::destroy(&runtime, destroyed).await })
                });
                let what = format!("{policy:?} {volatile} without {missing:?}, cut after {commands}");
                assert!(done.as_ref().is_none_or(|result| result.is_ok()), "{what}: {done:?}");
                let marked = labelled(&there, OLD).iter().any(|(_, stage)| *stage == Stage::Ending);
                for away in anybody() {
                    let what = format!("{what}, then without {away:?}");
                    let back = without(&drives, away);
                    match of_array(&back, OLD) {
                        None => gone += 1,
                        Some(Ok(_)) => {
                            assert!(done.is_none(), "{what}: it can be assembled");
                            // A drive that is already marked for destruction counts as missing.
                            let ending = |(drive, stage): &(Drive, Stage)| {
                                (*stage == Stage::Ending).then(|| drive.name.clone())
                            };
                            let out: Vec<String> = labelled(&back, OLD).iter().filter_map(ending).collect();
                            assert!(out.is_empty(), "{what}: {out:?} do not count");
                            check_old(&rig, &back, away, &what);
                            whole += 1;
                        }
                        Some(Err(error)) => {
                            let ending = labelled(&back, OLD).iter().any(|(_, s)| *s == Stage::Ending);
                            assert!(marked || done.is_some(), "{what}: {error}");
                            assert_eq!(
                                ending,
                                error.to_string().contains("the destruction of 'test' was interrupted"),
                                "{what}: {error}"
                            );
                            half += 1;
                        }
                    }
                }
                let left: Vec<Drive> = labelled(&there, OLD).into_iter().map(|(drive, _)| drive).collect();
                if done.is_some() {
                    assert!(left.is_empty() && there.iter().all(is_blank), "{what}");
                    break;
                }
                let runtime = Runtime::new();
                if !left.is_empty() {
                    run(&runtime, Array::destroy(&runtime, left)).unwrap_or_else(|e| panic!("{what}: {e}"));
                }
                assert!(there.iter().all(is_blank), "{what}: not all are blank");
            }
            let what = format!("{policy:?} without {missing:?}: {whole} whole, {half} half, {gone} gone");
            assert!(whole > 4 && half > 20, "{what}");
            assert!(missing.is_some() || gone > 0, "{what}");
        }
    }
}

#[test]
fn destruction_leaving_usable_array_is_refused_without_writing() {
    let rig = Rig::new();
    let drives = used(&rig, Policy::Zrwa, false);
    let runtime = Runtime::new();
    let refused = |given: Vec<Drive>| {
        let written = Rc::new(Cell::new(false));
        let told = written.clone();
        rig.rule(move |_, command| {
            told.set(told.get() || !matches!(command, Command::Read { .. } | Command::Report { .. }));
            Act::Pass
        });
        let refusal = run(&runtime, Array::destroy(&runtime, given)).unwrap_err().to_string();
        assert!(!written.get(), "{refusal}");
        refusal
    };
    let only = "only drive2 of 'test' is present, and the other members can run without it: connect the other \
            members to destroy the array, or wipe single drives";
    assert_eq!(refused(vec![drives[2].clone()]), only);
    // A replaced drive is no member, and does not count.
    let array = run(&runtime, Array::assemble(&runtime, drives.clone())).unwrap();
    run(&runtime, array.fail(1)).unwrap();
    let spare = rig.drive(&shape(false));
    rig.rule(|_, _| Act::Pass);
    run(&runtime, array.attach(1, spare.clone())).unwrap();
    run(&runtime, array.rebuild(&|_| ())).unwrap();
    runtime.clear();
    assert_eq!(refused(vec![drives[1].clone(), drives[2].clone()]), only);
    let blank = rig.drive(&shape(false));
    assert_eq!(refused(vec![drives[2].clone(), blank]), "drive5 has no readable superblock of an array");
    let other = {
        let options = CreateOptions { uuid: NEW, ..options(CHUNK) };
        let others: Vec<Drive> = (0..MEMBERS).map(|_| rig.drive(&shape(false))).collect();
        run(&runtime, Array::create(&runtime, options, others.clone())).unwrap();
        runtime.clear();
        others[0].clone()
    };
    assert_eq!(refused(vec![drives[2].clone(), other]), "drive6 belongs to another array");
    // Former members are destroyed as well.
    rig.rule(|_, _| Act::Pass);
    let all: Vec<Drive> = drives.iter().cloned().chain([spare]).collect();
    run(&runtime, Array::destroy(&runtime, all.clone())).unwrap();
    assert!(all.iter().all(is_blank));
}

#[test]
fn drive_marked_for_destruction_is_no_member() {
    let told_alone = |drives: &[Drive]| {
        let told = labelled(drives, OLD).into_iter().filter(|(_, stage)| *stage == Stage::Ending);
        told.map(|(drive, _)| drive.name).collect::<Vec<_>>() == ["drive0"]
    };
    for commands in 0.. {
        let rig = Rig::new();
        let drives = used(&rig, Policy::Zrwa, false);
        let destroyed = drives.clone();
        let done = cut_after(&rig, commands, false, |runtime| {
            Box::pin(async move { Array::destroy(&runtime, destroyed).await })
        });
        assert!(done.is_none());
        if !told_alone(&drives) {
            continue;
        }
        // The others have no record that the drive is out, since a change of the name makes no member stale.
        let runtime = Runtime::new();
        for name in ["one", "two"] {
            let change = Change::Name(name.into());
            run(&runtime, Array::change(&runtime, drives[1..].to_vec(), &change)).unwrap();
        }
        let status = of_array(&drives, OLD).unwrap().unwrap().status;
        assert_eq!((status.name.as_str(), status.members[0].state), ("two", MemberState::Out));
        assert_eq!(
            status.members[0].note.to_string(),
            "drive0 was marked by an interrupted destruction of the array: its data may be lost"
        );
        check_old(&rig, &drives, Some(0), "with one that was told");
        break;
    }
}

#[test]
fn make_blank_empties_member_and_foreign_drives() {
    let (rig, runtime) = (Rig::new(), Runtime::new());
    let drives = used(&rig, Policy::Zrwa, false);
    // A drive with foreign data.
    let foreign = rig.drive(&shape(false));
    for zone in [1, 4] {
        let lba = foreign.device.geometry().start(ZoneIndex(zone));
        let write = Command::write(Lba(lba.0), Buf::copy_of(&[7; 4096]), true);
        assert_eq!(run(&runtime, foreign.device.submit(write)).result, Ok(()));
    }
    let full = Command::Finish { zones: Zones::One(ZoneIndex(3)) };
    assert_eq!(run(&runtime, foreign.device.submit(full)).result, Ok(()));
    for drive in [&drives[0], &foreign] {
        assert!(!is_blank(drive));
        run(&runtime, make_blank(drive)).unwrap();
        assert!(is_blank(drive), "{}", drive.name);
    }
    check_old(&rig, &drives[1..], Some(0), "without the one that was made blank");
}
