//! Copies of an array that are written independently, and arrays of drives from both.

use crate::support::{
    array::{check, geometry, options, pattern, run, submit, wp, write, write_command},
    rig::{Act, Rig},
};
use emu::{rng::Rng, ssd::Cut};
use engine::{
    array::{Array, ArrayError, CreateOptions, Drive, Event, MemberState, Tails, examine},
    buf::{BLOCK, Buf},
    device::{Command, Completer, Completion, Geometry, Slots, ZonedDevice, Zones},
    raid::{
        error::{NoArray, Note},
        geometry::{Layout, META_ZONES, ParityPlace},
        policy::Policy,
    },
    runtime::{Host, Pause, Runtime},
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

const MEMBERS: usize = 5;

/// All policies and grouped appends, each with one and with two parities.
fn kinds() -> impl Iterator<Item = CreateOptions> {
    let kinds = Policy::ALL.into_iter().map(|policy| (policy, 0)).chain([(Policy::Log, 16)]);
    kinds.flat_map(|(policy, group_blocks)| {
        [1, 2].map(|parities| CreateOptions { policy: Some(policy), group_blocks, parities, ..options(4) })
    })
}

/// As [`kinds`], for tests that write two zones at a time: with appends, drives this small allow only one.
fn kinds_with_two_zones() -> impl Iterator<Item = CreateOptions> {
    kinds().filter(|options| options.group_blocks == 0)
}

/// Assembles these drives read-only.
fn opened(runtime: &Runtime, drives: Vec<Drive>) -> Array {
    run(runtime, Array::assemble_read_only(runtime, drives, None, Default::default())).unwrap()
}

/// Two copies of an array, with the drives of each.
struct Copies {
    rig: Rc<Rig>,
    sets: [Vec<Drive>; 2],
}

/// Blocks written before the array is copied, and to each copy afterwards.
const BEFORE: u64 = 30;
const LENGTHS: [u64; 2] = [25, 40];

impl Copies {
    fn of(options: &CreateOptions) -> Copies {
        let (rig, one) = rig_of_members();
        let runtime = Runtime::new();
        let array = run(&runtime, Array::create(&runtime, options.clone(), one.clone())).unwrap();
        write(&runtime, &array, 0, 0, BEFORE, true);
        runtime.clear();
        let other = (0..MEMBERS).map(|drive| rig.copy(drive)).collect();
        Copies { rig, sets: [one, other] }
    }

    /// Writes to a copy, in one assembly for each of `lengths`; returns the tail.
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

    /// The drives of the first copy, with members `other` from the second one.
    fn mixed(&self, other: &[usize]) -> Vec<Drive> {
        (0..MEMBERS).map(|role| self.sets[other.contains(&role) as usize][role].clone()).collect()
    }
}

/// Active members, and the notes of the others.
fn used(array: &Array) -> (Vec<usize>, Vec<Note>) {
    let status = array.status();
    let (active, out): (Vec<_>, Vec<_>) =
        status.members.iter().enumerate().partition(|(_, member)| member.state == MemberState::Active);
    (
        active.into_iter().map(|(role, _)| role).collect(),
        out.into_iter().map(|(_, m)| m.note.clone()).collect(),
    )
}

/// A rig and the drives of an array.
fn rig_of_members() -> (Rc<Rig>, Vec<Drive>) {
    let rig = Rig::new();
    let drives = (0..MEMBERS).map(|_| rig.drive(&geometry(8, 240, 8))).collect();
    (rig, drives)
}

/// Assembles `drives`: the one of `role` is not used, and zone 0 holds everything below `tail`.
fn assembles_without(role: usize, drives: Vec<Drive>, tail: u64, policy: Option<Policy>) {
    let runtime = Runtime::new();
    let array = opened(&runtime, drives);
    assert!(!used(&array).0.contains(&role), "{policy:?}, member {role}");
    check(&runtime, &array, 0, tail);
    runtime.clear();
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

/// The foreign drive has a higher event number than the array.
#[test]
fn assemble_omits_newer_drive_of_diverged_copy() {
    for options in kinds() {
        let copies = Copies::of(&options);
        let tail = copies.write(0, &[25]);
        copies.write(1, &[5, 5, 5, 5]);
        for drive in 0..MEMBERS {
            assembles_without(drive, copies.mixed(&[drive]), tail, options.policy);
        }
    }
}

/// Successive assemblies of one copy are interrupted after any number of commands, some with a missing member: no
/// member counts as diverged.
#[test]
fn members_never_diverge_when_assemblies_are_interrupted() {
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
            let array = opened(&runtime, copies.sets[0].clone());
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

/// An array and a copy that was made while it ran both continue: both have the same assembly in their lineages.
#[test]
fn assemble_never_mixes_running_array_with_its_copy() {
    for options in kinds() {
        let (rig, one) = rig_of_members();
        let runtime = Runtime::new();
        let array = run(&runtime, Array::create(&runtime, options.clone(), one.clone())).unwrap();
        write(&runtime, &array, 0, 0, BEFORE, true);
        let copies = Copies { sets: [one, (0..MEMBERS).map(|drive| rig.copy(drive)).collect()], rig };
        write(&runtime, &array, 0, BEFORE, 25, true);
        // The array has more events than the copy.
        run(&runtime, array.fail(4)).unwrap();
        write(&runtime, &array, 0, BEFORE + 25, 25, true);
        runtime.clear();
        let tail = copies.write(1, &[3]);
        assert_eq!(tail, BEFORE + 3);
        for role in 0..MEMBERS {
            let others: Vec<usize> = (0..MEMBERS).filter(|other| *other != role).collect();
            assembles_without(role, copies.mixed(&others), tail, options.policy);
        }
    }
}

/// After its process was killed, an array gets back a member from a copy that was made while it ran: this costs no more
/// than a missing member.
#[test]
fn take_over_survives_stale_copy_of_one_member() {
    for options in kinds_with_two_zones() {
        for (member, before) in (0..MEMBERS).flat_map(|member| [0, 3, 17, 40].map(|before| (member, before)))
        {
            let what = format!("{:?}, {} parities, {member} at {before}", options.policy, options.parities);
            let (rig, drives) = rig_of_members();
            let runtime = Runtime::new();
            let array = run(&runtime, Array::create(&runtime, options.clone(), drives.clone())).unwrap();
            // Zone 0 is written on, and zone 1 is reset and written again.
            if before > 0 {
                write(&runtime, &array, 0, 0, before, true);
                write(&runtime, &array, 1, 0, before, true);
            }
            let copy = rig.copy(member);
            let mut tail = before;
            for length in [1, 2, 5, 1, 9, 3] {
                write(&runtime, &array, 0, tail, length, true);
                tail += length;
            }
            submit(&runtime, &array, Command::Reset { zones: Zones::One(ZoneIndex(1)) });
            write(&runtime, &array, 1, 0, 7, true);
            let blocks = (0..array.geometry().zones).map(|zone| wp(&runtime, &array, zone).1).collect();
            let tails = Tails { assembly: array.assembly(), blocks, power: array.power_marks() };
            runtime.clear();
            let mut mixed = drives;
            mixed[member] = copy;
            let runtime = Runtime::new();
            let array = run(&runtime, Array::take_over(&runtime, mixed, &tails)).unwrap();
            for (zone, tail) in [(0, tail), (1, 7)] {
                assert_eq!(wp(&runtime, &array, zone), (ZoneState::Closed, tail), "{what}, zone {zone}");
                check(&runtime, &array, zone, tail);
            }
            runtime.clear();
        }
    }
}

/// Blocks in which an older `copy` of a member differs from it, and that the parity of the first `tail` blocks of zone
/// 0 covers or contains: stripe, block in the chunk, and block of the zone if it is data.
fn contradicted(
    layout: &Layout,
    (member, drive): (usize, &Drive),
    copy: &Drive,
    tail: u64,
) -> Vec<(u64, u64, Option<u64>)> {
    let start = drive.device.geometry().start(ZoneIndex(META_ZONES)).0;
    let read = |drive: &Drive, at: u64| {
        let read = Command::read(Lba(start + at), Buf::zeroed(BLOCK));
        run(&Runtime::new(), drive.device.submit(read)).data
    };
    let mut found = Vec::new();
    for stripe in 0..tail.div_ceil(layout.stripe_blocks()) {
        let first = stripe * layout.stripe_blocks();
        let covered = (tail - first).min(layout.stripe_blocks());
        for block in 0..layout.chunk_blocks.min(covered) {
            let chunks = (covered - block).div_ceil(layout.chunk_blocks);
            let index = layout.index(member, stripe);
            let place = match index < chunks {
                true => Some((ParityPlace::Row(stripe), Some(first + index * layout.chunk_blocks + block))),
                false => layout.slot_of(member, stripe, chunks - 1).map(|which| {
                    let (_, place) = layout.slot(stripe, chunks - 1, which);
                    (place, None)
                }),
            };
            if let Some((ParityPlace::Row(row), data)) = place {
                let at = row * layout.chunk_blocks + block;
                if read(drive, at)[..] != read(copy, at)[..] {
                    found.push((stripe, block, data));
                }
            }
        }
    }
    found
}

/// Members that the array's events report as lacking something.
fn accused(array: &Array) -> Vec<usize> {
    array.events(0).events.iter().filter_map(Event::accused).collect()
}

/// As before, without a reset: only the contents of zones distinguish the copy from the member. With one parity a
/// single contradicting block may be a flipped bit on any member: no other member is accused, and only that block may
/// be wrong.
#[test]
fn take_over_detects_stale_copy_blocks_by_parity() {
    for options in kinds() {
        for (member, before) in
            (0..MEMBERS).flat_map(|member| [0, 1, 3, 17, 40].map(|before| (member, before)))
        {
            let what = format!("{:?}, {} parities, {member} at {before}", options.policy, options.parities);
            let (rig, drives) = rig_of_members();
            let runtime = Runtime::new();
            let array = run(&runtime, Array::create(&runtime, options.clone(), drives.clone())).unwrap();
            if before > 0 {
                write(&runtime, &array, 0, 0, before, true);
            }
            let copy = rig.copy(member);
            let layout = run(&runtime, examine(&runtime, &copy)).unwrap().superblock.layout();
            let mut tail = before;
            for length in [1, 2, 5, 1, 9, 3, 20] {
                write(&runtime, &array, 0, tail, length, true);
                tail += length;
                let blocks = (0..array.geometry().zones).map(|zone| wp(&runtime, &array, zone).1).collect();
                let tails = Tails { assembly: array.assembly(), blocks, power: array.power_marks() };
                let mut mixed: Vec<Drive> = (0..MEMBERS).map(|drive| rig.copy(drive)).collect();
                mixed[member] = copy.clone();
                let other = Runtime::new();
                let found = Array::assemble_read_only(&other, mixed, Some(&tails), Default::default());
                let array = run(&other, found).unwrap();
                let found = wp(&other, &array, 0);
                let wrong = contradicted(&layout, (member, &drives[member]), &copy, tail);
                let may_be_damage = options.policy == Some(Policy::Zrwa) && options.parities == 1;
                if let (true, [(_, _, data)]) = (may_be_damage, &wrong[..]) {
                    assert_eq!(found, (ZoneState::Closed, tail), "{what}, {tail} blocks");
                    let others: Vec<_> =
                        accused(&array).into_iter().filter(|other| *other != member).collect();
                    assert_eq!(others, [0; 0], "{what}, {tail} blocks");
                    for at in (0..tail).filter(|at| Some(*at) != *data) {
                        let read = Command::read(Lba(at), Buf::zeroed(BLOCK));
                        let read = submit(&other, &array, read).data;
                        assert!(read[..] == pattern(at, 1), "{what}, {tail} blocks: {at}");
                    }
                } else if found.0 != ZoneState::Offline {
                    assert_eq!(found, (ZoneState::Closed, tail), "{what}, {tail} blocks");
                    check(&other, &array, 0, tail);
                } else {
                    println!("{what}, {tail} blocks: offline: {:?}", array.status().offline);
                }
                other.clear();
            }
            runtime.clear();
        }
    }
}

/// After a kill, one bit of a member has flipped ahead of or behind its write pointer: no other member is reported as
/// lacking blocks, since its rebuild would write data decoded with that bit. With any redundancy left the zone
/// stays open.
#[test]
fn flipped_bit_after_kill_accuses_no_other_member() {
    let kinds = kinds().filter(|options| options.policy == Some(Policy::Zrwa));
    let missing = [None].into_iter().chain((0..MEMBERS).map(Some));
    let cases = missing.flat_map(|missing| [5, 9, 16].map(|last| (missing, last)));
    for (options, (missing, last)) in
        kinds.flat_map(|options| cases.clone().map(move |case| (options.clone(), case)))
    {
        let (rig, drives) = rig_of_members();
        let runtime = Runtime::new();
        let array = run(&runtime, Array::create(&runtime, options.clone(), drives.clone())).unwrap();
        let mut tail = 0;
        for length in [17, 3, 1, last] {
            write(&runtime, &array, 0, tail, length, true);
            tail += length;
        }
        let blocks = (0..array.geometry().zones).map(|zone| wp(&runtime, &array, zone).1).collect();
        let tails = Tails { assembly: array.assembly(), blocks, power: array.power_marks() };
        let start = drives[0].device.geometry().start(ZoneIndex(META_ZONES)).0;
        let mut flipped = 0;
        for (member, block) in (0..MEMBERS).flat_map(|member| (start..start + 48).map(move |at| (member, at)))
        {
            let read = Command::read(Lba(block), Buf::zeroed(BLOCK));
            if Some(member) == missing
                || run(&runtime, drives[member].device.submit(read)).data.iter().all(|byte| *byte == 0)
            {
                continue;
            }
            flipped += 1;
            let mut there: Vec<Drive> = (0..MEMBERS).map(|drive| rig.copy(drive)).collect();
            there[member].device = Rc::new(Flipped { drive: there[member].device.clone(), block, bit: 77 });
            missing.map(|missing| there.remove(missing));
            let other = Runtime::new();
            let found = Array::assemble_read_only(&other, there, Some(&tails), Default::default());
            let array = run(&other, found).unwrap();
            let what =
                format!("{} parities without {missing:?} to {tail}, {member} at {block}", options.parities);
            let may_accuse =
                |other: &usize| Some(*other) == missing || *other == member && options.parities == 2;
            let others = accused(&array).into_iter().filter(|other| !may_accuse(other)).collect::<Vec<_>>();
            assert_eq!(others, [0; 0], "{what}");
            if missing.is_none() || options.parities == 2 {
                assert_eq!(wp(&other, &array, 0), (ZoneState::Closed, tail), "{what}");
            }
            other.clear();
        }
        assert!(flipped > 10, "{flipped}");
        runtime.clear();
    }
}

/// A host that has created an array on `drives` and goes on to run it.
fn first_host(options: &CreateOptions, drives: &[Drive]) -> (Runtime, Array) {
    let host = Runtime::new();
    let pause: Pause = Rc::new(|| Box::pin(std::future::ready(())));
    host.set_host(Host { id: [1; 16], pause: Some(pause) });
    let array = run(&host, Array::create(&host, options.clone(), drives.to_vec())).unwrap();
    write(&host, &array, 0, 0, BEFORE, true);
    (host, array)
}

/// Two hosts on the same drives: the second one waits until the first one is fenced before it reads the drives, so that
/// no acknowledged write of the first one is lost.
#[test]
fn fencing_stops_first_host_without_losing_acknowledged_writes() {
    for options in kinds_with_two_zones() {
        let what = format!("{:?}, {} parities", options.policy, options.parities);
        let (rig, drives) = rig_of_members();
        let (one, first) = first_host(&options, &drives);
        let other = Runtime::new();
        let acknowledged = Rc::new(Cell::new([BEFORE, 0]));
        let goes_on = {
            let (one, first, acknowledged) = (one.clone(), first.clone(), acknowledged.clone());
            move || {
                let mut tails = acknowledged.get();
                for zone in [0, 1, 0, 0, 1] {
                    let at = tails[zone as usize];
                    if run(&one, first.submit(write_command(&first, zone, at, 7, true))).result.is_ok() {
                        tails[zone as usize] += 7;
                    }
                }
                acknowledged.set(tails);
            }
        };
        let pause: Pause = {
            let (one, first, goes_on) = (one.clone(), first.clone(), goes_on.clone());
            Rc::new(move || {
                goes_on();
                assert_eq!(run(&one, first.check_fence()), Err(ArrayError::Fenced));
                Box::pin(std::future::ready(()))
            })
        };
        other.set_host(Host { id: [2; 16], pause: Some(pause) });
        let second = run(&other, Array::assemble(&other, drives.clone())).unwrap();
        let told = acknowledged.get();
        let mut tails = [0, 1].map(|zone| wp(&other, &second, zone).1);
        // Writes in flight when the first host was fenced may be there.
        assert!(
            (0..2).all(|zone| (told[zone]..=told[zone] + 35).contains(&tails[zone])),
            "{what}: {told:?}, {tails:?}"
        );
        for round in 0..3 {
            goes_on();
            assert_eq!(acknowledged.get(), told, "{what}: the first host goes on");
            write(&other, &second, round % 2, tails[round as usize % 2], 5, true);
            tails[round as usize % 2] += 5;
        }
        assert_eq!(first.status().problem, Some(ArrayError::Fenced), "{what}");
        assert_eq!(run(&other, second.check_fence()), Ok(()), "{what}");
        assert!(used(&second).1.is_empty(), "{what}: {:?}", used(&second));
        one.clear();
        other.clear();
        rig.cut_power(&mut Rng::new(1), |_| Cut::default());
        let runtime = Runtime::new();
        let array = run(&runtime, Array::assemble(&runtime, drives)).unwrap();
        for zone in 0..2 {
            assert_eq!(wp(&runtime, &array, zone as u32).1, tails[zone], "{what}, zone {zone}");
            check(&runtime, &array, zone as u32, told[zone]);
        }
        runtime.clear();
    }
}

/// The same, where the second host does not wait: the first one stops at the first error or fence check.
#[test]
fn fencing_detects_log_written_by_another_host() {
    for options in kinds() {
        let (_rig, drives) = rig_of_members();
        let (one, other) = (Runtime::new(), Runtime::new());
        let first = run(&one, Array::create(&one, options.clone(), drives.clone())).unwrap();
        write(&one, &first, 0, 0, BEFORE, true);
        assert_eq!(run(&one, first.check_fence()), Ok(()));
        let second = run(&other, Array::assemble(&other, drives.clone())).unwrap();
        // The first host writes a change of membership to the logs of all members.
        assert!(run(&one, first.fail(0)).is_err() || first.status().failed, "{:?}", options.policy);
        assert_eq!(run(&one, first.check_fence()), Err(ArrayError::Fenced), "{:?}", options.policy);
        assert!(first.events(0).events.contains(&Event::Fenced), "{:?}", options.policy);
        write(&other, &second, 0, BEFORE, 9, true);
        assert_eq!(run(&other, second.check_fence()), Ok(()));
        one.clear();
        other.clear();
    }
}

/// A function that is called once.
type Hook = Box<dyn FnOnce()>;
/// A condition on commands.
type CommandTest = Rc<dyn Fn(&Command) -> bool>;

/// A drive that calls a function before the first command that `is_awaited` accepts.
struct Hooked {
    drive: Rc<dyn ZonedDevice>,
    is_awaited: CommandTest,
    hook: Rc<RefCell<Option<Hook>>>,
}

impl ZonedDevice for Hooked {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        if (self.is_awaited)(&command) {
            let hook = self.hook.borrow_mut().take();
            hook.into_iter().for_each(|hook| hook());
        }
        self.drive.submit(command)
    }
}

/// The drives, of which the first one that gets an awaited command calls `hook`. The second result is `None` after
/// that.
fn hooked(
    drives: &[Drive],
    is_awaited: impl Fn(&Command) -> bool + 'static,
    hook: Hook,
) -> (Vec<Drive>, Rc<RefCell<Option<Hook>>>) {
    let is_awaited: CommandTest = Rc::new(is_awaited);
    let hook = Rc::new(RefCell::new(Some(hook)));
    let hooked = |drive: &Drive| {
        let (is_awaited, hook) = (is_awaited.clone(), hook.clone());
        let device = Rc::new(Hooked { drive: drive.device.clone(), is_awaited, hook });
        Drive { device, ..drive.clone() }
    };
    (drives.iter().map(hooked).collect(), hook.clone())
}

/// Whether a command changes a drive.
fn is_change(command: &Command) -> bool {
    !matches!(command, Command::Read { .. } | Command::Report { .. } | Command::Flush)
}

/// The first host writes log records when the second one has read the logs and is about to claim the array.
#[test]
fn fencing_claim_keeps_records_logged_just_before() {
    for options in kinds() {
        let what = format!("{:?}, {} parities", options.policy, options.parities);
        let (_rig, drives) = rig_of_members();
        let (one, first) = first_host(&options, &drives);
        let other = Runtime::new();
        let hook: Hook = {
            let (one, first) = (one.clone(), first.clone());
            Box::new(move || {
                let reset = Command::Reset { zones: Zones::One(ZoneIndex(0)) };
                assert_eq!(run(&one, first.submit(reset)).result, Ok(()));
                write(&one, &first, 0, 0, 21, true);
            })
        };
        let (hooked_drives, hook) = hooked(&drives, is_change, hook);
        let pause: Pause = {
            let (one, first) = (one.clone(), first.clone());
            Rc::new(move || {
                assert_eq!(run(&one, first.check_fence()), Err(ArrayError::Fenced));
                Box::pin(std::future::ready(()))
            })
        };
        other.set_host(Host { id: [2; 16], pause: Some(pause) });
        let second = run(&other, Array::assemble(&other, hooked_drives)).unwrap();
        assert!(hook.borrow().is_none(), "{what}: nothing was claimed");
        assert_eq!(wp(&other, &second, 0).1, 21, "{what}: {:?}", second.status().offline);
        check(&other, &second, 0, 21);
        assert!(used(&second).1.is_empty(), "{what}: {:?}", used(&second));
        one.clear();
        other.clear();
    }
}

/// The first host moves its logs to their other zones when the second one has read them and is about to claim the
/// array: the second host must not continue with the logs that it has read.
#[test]
fn fencing_refuses_claim_after_logs_have_moved() {
    for options in kinds() {
        let what = format!("{:?}, {} parities", options.policy, options.parities);
        let (_rig, drives) = rig_of_members();
        let (one, first) = first_host(&options, &drives);
        let other = Runtime::new();
        let hook: Hook = {
            let (one, first) = (one.clone(), first.clone());
            Box::new(move || {
                for _ in 0..200 {
                    let reset = Command::Reset { zones: Zones::One(ZoneIndex(0)) };
                    assert_eq!(run(&one, first.submit(reset)).result, Ok(()));
                    write(&one, &first, 0, 0, 21, true);
                }
            })
        };
        let (hooked_drives, hook) = hooked(&drives, is_change, hook);
        other.set_host(Host { id: [2; 16], pause: Some(Rc::new(|| Box::pin(std::future::ready(())))) });
        let second = run(&other, Array::assemble(&other, hooked_drives));
        assert!(hook.borrow().is_none(), "{what}: nothing was claimed");
        assert_eq!(second.err(), Some(ArrayError::Fenced), "{what}");
        one.clear();
        other.clear();
        let runtime = Runtime::new();
        let array = run(&runtime, Array::assemble(&runtime, drives)).unwrap();
        assert_eq!(wp(&runtime, &array, 0).1, 21, "{what}: {:?}", array.status().offline);
        check(&runtime, &array, 0, 21);
        runtime.clear();
    }
}

/// A drive that stops answering while `silent` is set.
struct Mute {
    drive: Rc<dyn ZonedDevice>,
    silent: Rc<Cell<bool>>,
    kept: RefCell<Vec<Completer>>,
    slots: Rc<Slots>,
}

impl ZonedDevice for Mute {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        if !self.silent.get() {
            return self.drive.submit(command);
        }
        let (completer, completion) = self.slots.pair();
        self.kept.borrow_mut().push(completer);
        completion
    }
}

/// One drive of the first host hangs: the logs of the other members are enough to fence it.
#[test]
fn fencing_works_while_one_drive_is_silent() {
    for options in kinds_with_two_zones() {
        let (_rig, drives) = rig_of_members();
        let silent = Rc::new(Cell::new(false));
        let mut paths = drives.clone();
        let (drive, slots) = (drives[0].device.clone(), Rc::default());
        paths[0].device = Rc::new(Mute { drive, silent: silent.clone(), kept: RefCell::default(), slots });
        let (one, other) = (Runtime::new(), Runtime::new());
        let first = run(&one, Array::create(&one, options.clone(), paths)).unwrap();
        write(&one, &first, 0, 0, BEFORE, true);
        let second = run(&other, Array::assemble(&other, drives)).unwrap();
        silent.set(true);
        assert_eq!(run(&one, first.check_fence()), Err(ArrayError::Fenced), "{:?}", options.policy);
        assert_eq!(run(&other, second.check_fence()), Ok(()));
        one.clear();
        other.clear();
    }
}

/// A drive that returns a block with one flipped bit.
struct Flipped {
    drive: Rc<dyn ZonedDevice>,
    block: u64,
    bit: usize,
}

impl ZonedDevice for Flipped {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        let Command::Read { lba, ref data, .. } = command else { return self.drive.submit(command) };
        let blocks = lba.0..lba.0 + data.blocks();
        let mut done = self.drive.submit(command).take().unwrap();
        if blocks.contains(&self.block) && done.result.is_ok() {
            let mut bytes = done.data.to_vec();
            bytes[(self.block - blocks.start) as usize * BLOCK + self.bit / 8] ^= 1 << (self.bit % 8);
            done.data = Buf::copy_of(&bytes);
        }
        Completion::ready(done)
    }
}

/// One flipped bit in the metadata log of a member, with as many other members missing as there are parities: the other
/// logs hold the same information.
#[test]
fn flipped_log_bit_never_refuses_degraded_array() {
    for options in kinds_with_two_zones() {
        let (_rig, drives) = rig_of_members();
        let (mut runtime, mut offline) = (Runtime::new(), 0);
        run(&runtime, Array::create(&runtime, options.clone(), drives.clone())).unwrap();
        let tails = [30, 17, 240, 0];
        for zone in 0..3 {
            runtime.clear();
            runtime = Runtime::new();
            let array = run(&runtime, Array::assemble(&runtime, drives.clone())).unwrap();
            write(&runtime, &array, zone, 0, tails[zone as usize], true);
        }
        runtime.clear();
        let log: Vec<u64> = (0..2 * 256)
            .filter(|block| {
                let read = Command::read(Lba(*block), Buf::zeroed(BLOCK));
                run(&runtime, drives[1].device.submit(read)).data.iter().any(|byte| *byte != 0)
            })
            .collect();
        assert!(log.len() > 2, "{log:?}");
        for (block, bit) in log.iter().flat_map(|block| {
            [0, 83, 8 * 20, 8 * 53, 8 * 64, 8 * 100, 8 * 290, 8 * 900].map(|bit| (*block, bit))
        }) {
            let mut there = drives.clone();
            there[1].device = Rc::new(Flipped { drive: drives[1].device.clone(), block, bit });
            there.drain(MEMBERS - options.parities..);
            let runtime = Runtime::new();
            let found = Array::assemble_read_only(&runtime, there, None, Default::default());
            let array = run(&runtime, found)
                .unwrap_or_else(|why| panic!("{:?}, block {block}, bit {bit}: {why}", options.policy));
            for (zone, tail) in (0..).zip(tails) {
                let (state, found) = wp(&runtime, &array, zone);
                match state {
                    ZoneState::Offline => offline += 1,
                    ZoneState::Full => check(&runtime, &array, zone, tail),
                    _ => {
                        assert_eq!(
                            found, tail,
                            "{:?}, block {block}, bit {bit}, zone {zone}",
                            options.policy
                        );
                        check(&runtime, &array, zone, tail);
                    }
                }
            }
            runtime.clear();
        }
        println!("{:?}, {} parities: {offline} zones offline", options.policy, options.parities);
    }
}

/// A record of the first host meets a claim of the second one.
#[test]
fn record_refused_for_claim_accuses_no_drive() {
    for options in kinds() {
        let (_rig, drives) = rig_of_members();
        let (one, first) = first_host(&options, &drives);
        let other = Runtime::new();
        let pause: Pause = {
            let (one, first) = (one.clone(), first.clone());
            Rc::new(move || {
                let reset = Command::Reset { zones: Zones::One(ZoneIndex(0)) };
                assert!(run(&one, first.submit(reset)).result.is_err());
                Box::pin(std::future::ready(()))
            })
        };
        other.set_host(Host { id: [2; 16], pause: Some(pause) });
        let _second = run(&other, Array::assemble(&other, drives.clone())).unwrap();
        let errors: u64 = first.status().members.iter().map(|member| u64::from(member.errors.writes)).sum();
        assert_eq!(errors, 0, "{:?}", options.policy);
        one.clear();
        other.clear();
    }
}

/// The logs that the second host has read are full, and those of the first host go on in their other zones.
#[test]
fn fencing_never_overwrites_log_that_has_just_moved() {
    let options = CreateOptions { policy: Some(Policy::Log), ..options(4) };
    let (rig, drives) = rig_of_members();
    let (one, first) = first_host(&options, &drives);
    let other = Runtime::new();
    let hook: Hook = {
        let (one, first, rig) = (one.clone(), first.clone(), rig.clone());
        Box::new(move || {
            rig.rule(|_, command| {
                let is_of_log = matches!(command, Command::Reset { zones: Zones::One(ZoneIndex(0 | 1)) });
                Act::hold_if(is_of_log)
            });
            while rig.held() < MEMBERS {
                let reset = Command::Reset { zones: Zones::One(ZoneIndex(0)) };
                assert_eq!(run(&one, first.submit(reset)).result, Ok(()));
            }
            write(&one, &first, 0, 0, 21, true);
            rig.rule(|_, _| Act::Pass);
        })
    };
    // The first report of a single zone after one of all data zones is that of a claim.
    let judged = Cell::new(false);
    let is_claim = move |command: &Command| match command {
        Command::Report { first: ZoneIndex(META_ZONES), count: 2.. } => {
            judged.set(true);
            false
        }
        Command::Report { count: 1, .. } => judged.get(),
        _ => false,
    };
    let (hooked_drives, hook) = hooked(&drives, is_claim, hook);
    other.set_host(Host { id: [2; 16], pause: Some(Rc::new(|| Box::pin(std::future::ready(())))) });
    let second = run(&other, Array::assemble(&other, hooked_drives));
    assert!(hook.borrow().is_none(), "nothing was claimed");
    assert_eq!(second.err(), Some(ArrayError::Fenced));
    one.clear();
    other.clear();
    rig.drop_held();
    let runtime = Runtime::new();
    let array = run(&runtime, Array::assemble(&runtime, drives)).unwrap();
    check(&runtime, &array, 0, 21);
    runtime.clear();
}
