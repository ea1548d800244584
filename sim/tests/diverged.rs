//! Copies of an array that are written to independently, and whose drives are mixed then.

use crate::support::{
    array::{check, geometry, options, run, wp, write},
    rig::{Act, Rig},
};
use engine::{
    array::{Array, ArrayError, CreateOptions, Drive, MemberState},
    raid::{
        error::{NoArray, Note},
        policy::Policy,
    },
    runtime::Runtime,
    zone::ZoneState,
};
use std::rc::Rc;

const MEMBERS: usize = 5;

/// Policies with groups of appends, for both levels.
fn kinds() -> impl Iterator<Item = CreateOptions> {
    let kinds = Policy::ALL.into_iter().map(|policy| (policy, 0)).chain([(Policy::Log, 16)]);
    kinds.flat_map(|(policy, group_blocks)| {
        [1, 2].map(|parities| CreateOptions { policy: Some(policy), group_blocks, parities, ..options(4) })
    })
}

/// An array and its copy, each with its drives.
struct Copies {
    rig: Rc<Rig>,
    sets: [Vec<Drive>; 2],
}

/// Blocks that the array has before it is copied, and what is written to each copy.
const BEFORE: u64 = 30;
const LENGTHS: [u64; 2] = [25, 40];

impl Copies {
    fn of(options: &CreateOptions) -> Copies {
        let rig = Rig::new();
        let one: Vec<Drive> = (0..MEMBERS).map(|_| rig.drive(&geometry(8, 240, 8))).collect();
        let runtime = Runtime::new();
        let array = run(&runtime, Array::create(&runtime, options.clone(), one.clone())).unwrap();
        write(&runtime, &array, 0, 0, BEFORE, true);
        runtime.clear();
        let other = (0..MEMBERS).map(|drive| rig.copy(drive)).collect();
        Copies { rig, sets: [one, other] }
    }

    /// Writes to a copy, in one assembly for each of `lengths`.
    fn write(&self, set: usize, lengths: &[u64]) -> u64 {
        let mut tail = BEFORE;
        for length in lengths {
            let runtime = Runtime::new();
            let array = run(&runtime, Array::assemble(&runtime, self.sets[set].clone())).unwrap();
            write(&runtime, &array, 0, tail, *length, true);
            tail += length;
            runtime.clear();
        }
        tail
    }

    /// The drives of the first copy, but for those of `other`.
    fn mixed(&self, other: &[usize]) -> Vec<Drive> {
        (0..MEMBERS).map(|role| self.sets[other.contains(&role) as usize][role].clone()).collect()
    }
}

/// Members that are active, and what is said of the others.
fn used(array: &Array) -> (Vec<usize>, Vec<Note>) {
    let status = array.status();
    let (active, out): (Vec<_>, Vec<_>) =
        status.members.iter().enumerate().partition(|(_, member)| member.state == MemberState::Active);
    (
        active.into_iter().map(|(role, _)| role).collect(),
        out.into_iter().map(|(_, m)| m.note.clone()).collect(),
    )
}

#[test]
fn members_of_diverged_copies_are_never_mixed() {
    for options in kinds() {
        let parities = options.parities;
        let copies = Copies::of(&options);
        let tails = [0, 1].map(|set| copies.write(set, &LENGTHS[set..=set]));
        for other in 1..1usize << MEMBERS {
            let other: Vec<usize> = (0..MEMBERS).filter(|role| other >> role & 1 != 0).collect();
            let what = format!("{:?}, {parities} parities, {other:?} of the other copy", options.policy);
            let runtime = Runtime::new();
            let found = run(
                &runtime,
                Array::assemble_read_only(&runtime, copies.mixed(&other), None, Default::default()),
            );
            let enough = MEMBERS - parities;
            match found {
                Ok(array) => {
                    let (active, notes) = used(&array);
                    let is_other = other.len() >= enough;
                    assert_eq!(
                        active.len(),
                        if is_other { other.len() } else { MEMBERS - other.len() },
                        "{what}"
                    );
                    assert!(active.iter().all(|role| other.contains(role) == is_other), "{what}: {active:?}");
                    assert!(
                        notes.iter().all(|note| matches!(note, Note::Diverged { .. })),
                        "{what}: {notes:?}"
                    );
                    assert_eq!(
                        wp(&runtime, &array, 0),
                        (ZoneState::Closed, tails[is_other as usize]),
                        "{what}"
                    );
                    check(&runtime, &array, 0, tails[is_other as usize]);
                }
                Err(ArrayError::Drives(NoArray::TooFew { notes, .. })) => {
                    assert!(other.len() < enough && MEMBERS - other.len() < enough, "{what}");
                    assert!(
                        notes.iter().any(|note| matches!(note, Note::Diverged { .. })),
                        "{what}: {notes:?}"
                    );
                }
                Err(other) => panic!("{what}: {other}"),
            }
            runtime.clear();
        }
    }
}

/// The foreign drive has seen more changes than the array has.
#[test]
fn a_newer_drive_of_another_copy_does_not_take_the_array_down() {
    for options in kinds() {
        let copies = Copies::of(&options);
        let tail = copies.write(0, &[25]);
        copies.write(1, &[5, 5, 5, 5]);
        for drive in 0..MEMBERS {
            let runtime = Runtime::new();
            let found = Array::assemble_read_only(&runtime, copies.mixed(&[drive]), None, Default::default());
            let array = run(&runtime, found).unwrap();
            assert!(!used(&array).0.contains(&drive), "{:?}", options.policy);
            check(&runtime, &array, 0, tail);
            runtime.clear();
        }
    }
}

/// Assemblies of either copy that are cut off after any number of commands, in succession and with a member away:
/// nobody of that copy is stale.
#[test]
fn members_stay_current_when_assemblies_are_cut_off() {
    for options in kinds() {
        for commands in (0..40).step_by(3) {
            let copies = Copies::of(&options);
            for (round, missing) in [None, Some(1), Some(3), None].into_iter().enumerate() {
                let runtime = Runtime::new();
                let held = copies.rig.hold_after(commands / (round + 1));
                let drives = (0..MEMBERS).filter(|role| {
                    Some(*role) != missing && !(round == 2 && *role == 2 && options.parities == 2)
                });
                let drives = drives.map(|role| copies.sets[0][role].clone()).collect();
                let pending = runtime.clone();
                runtime.spawn(async move { _ = Array::assemble(&pending, drives).await });
                runtime.run();
                runtime.clear();
                copies.rig.drop_held();
                copies.rig.rule(|_, _| Act::Pass);
                if !held.get() {
                    break;
                }
            }
            let runtime = Runtime::new();
            let found = Array::assemble_read_only(&runtime, copies.sets[0].clone(), None, Default::default());
            let array = run(&runtime, found).unwrap();
            let (_, notes) = used(&array);
            assert!(
                !notes.iter().any(|note| matches!(note, Note::Diverged { .. })),
                "{:?} after {commands} commands: {notes:?}",
                options.policy
            );
            check(&runtime, &array, 0, BEFORE);
            runtime.clear();
        }
    }
}

/// A copy of a running array goes on, and so does the array: the id of the array is the one that both had.
#[test]
fn a_copy_of_a_running_array_is_not_mixed_with_it() {
    for options in kinds() {
        let rig = Rig::new();
        let one: Vec<Drive> = (0..MEMBERS).map(|_| rig.drive(&geometry(8, 240, 8))).collect();
        let runtime = Runtime::new();
        let array = run(&runtime, Array::create(&runtime, options.clone(), one.clone())).unwrap();
        write(&runtime, &array, 0, 0, BEFORE, true);
        let copies = Copies { sets: [one, (0..MEMBERS).map(|drive| rig.copy(drive)).collect()], rig };
        write(&runtime, &array, 0, BEFORE, 25, true);
        // It sees more changes than the copy does.
        run(&runtime, array.fail(4)).unwrap();
        write(&runtime, &array, 0, BEFORE + 25, 25, true);
        runtime.clear();
        let tail = copies.write(1, &[3]);
        assert_eq!(tail, BEFORE + 3);
        for role in 0..MEMBERS {
            let runtime = Runtime::new();
            let others: Vec<usize> = (0..MEMBERS).filter(|other| *other != role).collect();
            let found = Array::assemble_read_only(&runtime, copies.mixed(&others), None, Default::default());
            let array = run(&runtime, found).unwrap();
            assert!(!used(&array).0.contains(&role), "{:?}, member {role}", options.policy);
            check(&runtime, &array, 0, tail);
            runtime.clear();
        }
    }
}
