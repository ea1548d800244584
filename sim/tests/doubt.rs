//! Zones of which nobody can tell where they ended: they are offline and untouched, everything else works,
//! and their data is there again when the member is that can tell.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use engine::{
    array::{Array, Drive, MemberState},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, ZonedDevice, Zones},
    format::record::{Header, Origin, Record},
    raid::policy::Policy,
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use sim::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use std::{cell::Cell, rc::Rc};
use support::{
    array::{check, geometry, options, run, submit, wp, write, write_command},
    rig::{Act, Rig},
};

const CHUNK: u64 = 4;
const MEMBERS: usize = 4;
/// Zones of a drive before those of the array.
const META: u32 = 2;

struct World {
    runtime: Runtime,
    rig: Rc<Rig>,
    drives: Vec<Drive>,
}

impl World {
    fn new(policy: Policy) -> (World, Array) {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let drives: Vec<_> = (0..MEMBERS).map(|_| rig.drive(&geometry(8, 240, 8))).collect();
        let options = engine::array::CreateOptions { policy: Some(policy), ..options(CHUNK) };
        let array = run(&runtime, Array::create(&runtime, options, drives.clone())).unwrap();
        (World { runtime, rig, drives }, array)
    }

    /// Ends the process that runs the array.
    fn end(&self, array: Array) {
        drop(array);
        self.runtime.clear();
    }

    fn without(&self, absent: &[usize]) -> Array {
        let there = (0..MEMBERS).filter(|m| !absent.contains(m)).map(|m| self.drives[m].clone());
        run(&self.runtime, Array::assemble(&self.runtime, there.collect())).unwrap()
    }

    /// Puts a new drive in the place of `member`; nothing is rebuilt yet.
    fn replace(&mut self, array: &Array, member: usize) {
        run(&self.runtime, array.fail(member)).unwrap();
        self.drives[member] = self.rig.drive(&geometry(8, 240, 8));
        run(&self.runtime, array.attach(member, self.drives[member].clone())).unwrap();
    }

    fn state(&self, array: &Array, zone: u32) -> ZoneState {
        wp(&self.runtime, array, zone).0
    }

    fn check(&self, array: &Array, zone: u32, tail: u64) {
        assert_eq!(wp(&self.runtime, array, zone).1, tail, "zone {zone}");
        check(&self.runtime, array, zone, tail);
    }

    fn write(&self, array: &Array, zone: u32, at: u64, blocks: u64) {
        write(&self.runtime, array, zone, at, blocks, true);
    }

    fn refused(&self, array: &Array, command: Command) -> bool {
        run(&self.runtime, array.submit(command)).result.is_err()
    }
}

#[test]
fn what_was_acknowledged_waits_for_the_member_that_holds_it() {
    for policy in Policy::ALL {
        for blocks in [1, 2, 4, 8, 13, 50, 720] {
            let (mut world, array) = World::new(policy);
            for at in (0..blocks).step_by(90) {
                world.write(&array, 0, at, 90.min(blocks - at));
            }
            world.replace(&array, 1);
            world.end(array);
            // Member 1 lacks zone 0, and member 0 does not come back.
            let array = world.without(&[0]);
            let what = format!("{policy:?} {blocks}");
            assert_eq!(world.state(&array, 0), ZoneState::Offline, "{what}");
            let status = array.status();
            assert_eq!(status.offline.len(), 1, "{what}: {:?}", status.offline);
            assert_eq!((status.offline[0].zone, &status.offline[0].waits_for[..]), (ZoneIndex(0), &[0][..]));
            let zone = Zones::One(ZoneIndex(0));
            for command in [
                Command::read(Lba(0), Buf::zeroed(BLOCK)),
                write_command(&array, 0, 0, 1, true),
                Command::Reset { zones: zone },
                Command::Finish { zones: zone },
                Command::Open { zones: zone, zrwa: false },
            ] {
                assert!(world.refused(&array, command.clone()), "{what}: {command:?}");
            }
            // Everything else works, also resets and finishes of all zones, and a rebuild gets through.
            world.write(&array, 1, 0, 7);
            submit(&world.runtime, &array, Command::Finish { zones: Zones::All });
            assert_eq!(world.state(&array, 1), ZoneState::Full, "{what}");
            check(&world.runtime, &array, 1, 7);
            submit(&world.runtime, &array, Command::Reset { zones: Zones::All });
            world.write(&array, 1, 0, 30);
            world.write(&array, 2, 0, 9);
            run(&world.runtime, array.rebuild(&|_| ())).unwrap();
            world.end(array);
            // Once more without it, and then it is back.
            let array = world.without(&[0]);
            assert_eq!(world.state(&array, 0), ZoneState::Offline, "{what}");
            world.write(&array, 2, 9, 20);
            world.end(array);
            let array = world.without(&[]);
            assert!(array.status().offline.is_empty(), "{what}");
            world.check(&array, 0, blocks);
            world.check(&array, 1, 30);
            world.check(&array, 2, 29);
            assert_eq!(array.status().members[0].state, MemberState::Rebuilding, "{what}");
            let more = 40.min(720 - blocks);
            if more > 0 {
                world.write(&array, 0, blocks, more);
            }
            run(&world.runtime, array.rebuild(&|_| ())).unwrap();
            assert!(array.status().members.iter().all(|m| m.state == MemberState::Active), "{what}");
            world.end(array);
            // Whoever was away is stale afterwards, so that only one can be looked without.
            let array = world.without(&[blocks as usize % MEMBERS]);
            world.check(&array, 0, blocks + more);
            world.check(&array, 1, 30);
            world.check(&array, 2, 29);
            world.end(array);
        }
    }
}

/// A member that comes back for a zone that waits for it is as stale as ever in all others, also after the
/// zone has been decided.
#[test]
fn who_was_waited_for_is_stale_again_when_it_has_been_away_again() {
    for policy in Policy::ALL {
        let (mut world, array) = World::new(policy);
        world.write(&array, 0, 0, 8);
        world.replace(&array, 1);
        world.end(array);
        world.end(world.without(&[0]));
        let array = world.without(&[]);
        world.check(&array, 0, 8);
        run(&world.runtime, array.rebuild(&|_| ())).unwrap();
        world.end(array);
        let array = world.without(&[0]);
        world.write(&array, 0, 8, 30);
        world.end(array);
        let array = world.without(&[]);
        assert_eq!(array.status().members[0].state, MemberState::Out, "{policy:?}");
        world.check(&array, 0, 38);
        world.end(array);
    }
}

/// A full zone is as little use without two parts as any other: it waits too.
#[test]
fn a_full_zone_waits_for_the_member_that_holds_it() {
    for policy in Policy::ALL {
        for finished in [false, true] {
            let (mut world, array) = World::new(policy);
            let blocks = if finished { 50 } else { 720 };
            for at in (0..blocks).step_by(30) {
                world.write(&array, 0, at, 30.min(blocks - at));
            }
            if finished {
                submit(&world.runtime, &array, Command::Finish { zones: Zones::One(ZoneIndex(0)) });
            }
            world.replace(&array, 1);
            world.end(array);
            for _ in 0..2 {
                let array = world.without(&[0]);
                // It cannot be rebuilt either.
                run(&world.runtime, array.rebuild(&|_| ())).unwrap();
                world.write(&array, 1, wp(&world.runtime, &array, 1).1, 7);
                world.end(array);
            }
            let array = world.without(&[]);
            check(&world.runtime, &array, 0, blocks);
            world.check(&array, 1, 14);
            run(&world.runtime, array.rebuild(&|_| ())).unwrap();
            assert!(array.status().members.iter().all(|m| m.state == MemberState::Active), "{policy:?}");
            world.end(array);
            let array = world.without(&[2]);
            check(&world.runtime, &array, 0, blocks);
            world.end(array);
        }
    }
}

/// Whoever was waited for may fail before the assembly has ended.
#[test]
fn a_member_that_comes_back_and_fails_at_once_is_waited_for_again() {
    for policy in Policy::ALL {
        for steps in 0.. {
            let (mut world, array) = World::new(policy);
            world.write(&array, 0, 0, 50);
            world.replace(&array, 1);
            world.end(array);
            world.end(world.without(&[0]));
            let (left, decided) = (Rc::new(Cell::new(steps)), Rc::new(Cell::new(false)));
            let (counted, seen) = (left.clone(), decided.clone());
            world.rig.rule(move |drive, command| {
                let record = match command {
                    Command::Write { data, .. } => Header::read(data).map(|header| (header.origin, data)),
                    _ => None,
                };
                let record = record.and_then(|(origin, data)| Record::read(data, origin).ok());
                seen.set(seen.get() || matches!(record, Some((Record::Decided { .. }, _, _))));
                match command {
                    Command::Read { .. } | Command::Report { .. } => Act::Pass,
                    _ if drive > 0 || seen.get() => Act::Pass,
                    _ if counted.get() == 0 => Act::Fail,
                    _ => {
                        counted.set(counted.get() - 1);
                        Act::Pass
                    }
                }
            });
            let array = world.without(&[]);
            let tried = decided.get();
            world.end(array);
            world.rig.rule(|_, _| Act::Pass);
            let array = world.without(&[]);
            assert_eq!(world.state(&array, 0), ZoneState::Closed, "{policy:?} {steps} {:?}", array.status());
            world.check(&array, 0, 50);
            world.end(array);
            if tried {
                break;
            }
        }
    }
}

/// What a member that comes back holds of zones that ended without it takes its resources.
#[test]
fn a_member_that_comes_back_gives_up_the_zones_that_it_lacks() {
    for policy in Policy::ALL {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let shape = geometry(16, 240, 8);
        let drives: Vec<_> = (0..MEMBERS).map(|_| rig.drive(&shape)).collect();
        let options = engine::array::CreateOptions { policy: Some(policy), ..options(CHUNK) };
        let array = run(&runtime, Array::create(&runtime, options, drives.clone())).unwrap();
        let mut world = World { runtime, rig, drives };
        world.write(&array, 0, 0, 50);
        run(&world.runtime, array.fail(1)).unwrap();
        world.drives[1] = world.rig.drive(&shape);
        run(&world.runtime, array.attach(1, world.drives[1].clone())).unwrap();
        (1..6).for_each(|zone| world.write(&array, zone, 0, 50));
        world.end(array);
        let array = world.without(&[0]);
        assert_eq!(array.status().offline.len(), 1);
        submit(&world.runtime, &array, Command::Finish { zones: Zones::All });
        for zone in 6..11 {
            world.write(&array, zone, 0, 50);
            submit(&world.runtime, &array, Command::Finish { zones: Zones::One(ZoneIndex(zone)) });
        }
        world.end(array);
        let array = world.without(&[]);
        assert!(array.status().offline.is_empty());
        for zone in 6..11 {
            submit(&world.runtime, &array, Command::Reset { zones: Zones::One(ZoneIndex(zone)) });
            world.write(&array, zone, 0, 20);
        }
        assert_eq!(
            array.status().members[0].state,
            MemberState::Rebuilding,
            "{policy:?} {:?}",
            array.status()
        );
        world.check(&array, 0, 50);
        world.end(array);
    }
}

#[test]
fn a_member_whose_zones_cannot_be_listed_is_done_without() {
    for policy in Policy::ALL {
        let (world, array) = World::new(policy);
        world.write(&array, 0, 0, 20);
        world.end(array);
        world.rig.rule(|drive, command| match command {
            Command::Report { count, .. } if drive == 1 && *count > 1 => Act::Fail,
            _ => Act::Pass,
        });
        let array = world.without(&[]);
        let member = &array.status().members[1];
        assert_eq!(member.state, MemberState::Out);
        assert!(member.note.contains("cannot be listed"), "{}", member.note);
        world.check(&array, 0, 20);
        world.write(&array, 0, 20, 20);
        world.end(array);
    }
}

/// Someone resets or finishes a zone of one member behind the array's back.
#[test]
fn a_zone_that_somebody_else_has_changed_is_done_without_and_rebuilt() {
    for policy in Policy::ALL {
        for (finish, end) in [(false, 49), (false, 100), (true, 100), (false, 720), (true, 31), (false, 150)]
        {
            let (world, array) = World::new(policy);
            for at in (0..end).step_by(30) {
                world.write(&array, 0, at, 30.min(end - at));
            }
            world.write(&array, 1, 0, 50);
            world.end(array);
            for victim in 0..MEMBERS {
                let what = format!("{policy:?}, finish {finish}, {end} blocks, member {victim}");
                let zones = Zones::One(ZoneIndex(META));
                let change = if finish { Command::Finish { zones } } else { Command::Reset { zones } };
                let done = run(&world.runtime, world.drives[victim].device.submit(change));
                assert_eq!(done.result, Ok(()), "{what}");
                let array = world.without(&[]);
                world.check(&array, 1, 50);
                if world.state(&array, 0) == ZoneState::Offline {
                    panic!("{what}: {:?}", array.status().offline);
                }
                let (state, tail) = wp(&world.runtime, &array, 0);
                assert_eq!(tail, end, "{what}: {state:?}");
                check(&world.runtime, &array, 0, end);
                run(&world.runtime, array.rebuild(&|_| ())).unwrap();
                world.end(array);
            }
        }
    }
}

/// Flips a byte in each tail record that `chosen` takes, by drive; gives how many there were.
fn flip_tail_records(world: &World, chosen: impl Fn(usize) -> bool) -> usize {
    let mut flipped = 0;
    let g = geometry(8, 240, 8);
    for (number, drive) in world.drives.iter().enumerate().filter(|(number, _)| chosen(*number)) {
        for lba in 0..g.zones as u64 * g.zone_size_blocks {
            let done = run(&world.runtime, drive.device.submit(Command::read(Lba(lba), Buf::zeroed(BLOCK))));
            let Some(header) = Header::read(&done.data).filter(|h| h.origin.lba == lba) else { continue };
            let origin = Origin { lba, ..header.origin };
            if matches!(Record::read(&done.data, origin), Ok((Record::Tail(_), _, _))) {
                world.rig.damage(number, Fault::Corrupt { lba: Lba(lba), bit: 8 * 70 });
                flipped += 1;
            }
        }
        // Faults strike with the next command.
        run(&world.runtime, drive.device.submit(Command::Flush));
    }
    flipped
}

#[test]
fn a_damaged_tail_record_is_no_missing_one() {
    for policy in [Policy::Zrwa, Policy::InPlace] {
        for (blocks, absent) in [1u64, 6, 50, 75].into_iter().flat_map(|b| (0..=MEMBERS).map(move |m| (b, m)))
        {
            let (world, array) = World::new(policy);
            world.write(&array, 1, 0, 24);
            world.write(&array, 0, 0, blocks);
            world.end(array);
            assert!(flip_tail_records(&world, |_| true) > 0);
            // Whoever is missing: no tail is shorter, and no zone is reset; which cannot be told is offline.
            let absent: Vec<usize> = Some(absent).filter(|m| *m < MEMBERS).into_iter().collect();
            let array = world.without(&absent);
            for (zone, blocks) in [(0, blocks), (1, 24)] {
                let what = format!("{policy:?}, {blocks} blocks, without {absent:?}");
                match wp(&world.runtime, &array, zone) {
                    (ZoneState::Offline, _) => {}
                    (_, tail) => assert_eq!(tail, blocks, "{what}"),
                }
            }
            world.end(array);
        }
        // One of two copies is enough.
        for victim in 0..MEMBERS {
            let (world, array) = World::new(policy);
            world.write(&array, 0, 0, 6);
            world.end(array);
            flip_tail_records(&world, |number| number == victim);
            let array = world.without(&[]);
            world.check(&array, 0, 6);
            world.end(array);
        }
    }
}

/// A drive whose zones cannot be listed is one member less, whichever comes first.
#[test]
fn a_second_member_that_is_lost_before_anything_is_written_is_a_refusal() {
    for missing in [0, 3] {
        let (world, array) = World::new(Policy::Zrwa);
        world.write(&array, 0, 0, 20);
        world.end(array);
        world.rig.rule(|drive, command| match command {
            Command::Report { count, .. } if drive == 1 && *count > 1 => Act::Fail,
            _ => Act::Pass,
        });
        let there = (0..MEMBERS).filter(|m| *m != missing).map(|m| world.drives[m].clone()).collect();
        let refusal = run(&world.runtime, Array::assemble(&world.runtime, there)).err().unwrap();
        assert!(refusal.0.contains("drive1"), "{refusal}");
        world.runtime.clear();
        world.rig.rule(|_, _| Act::Pass);
        let array = world.without(&[]);
        assert!(array.status().members.iter().all(|member| member.state == MemberState::Active));
        world.check(&array, 0, 20);
        world.end(array);
    }
}

/// One that has ended, too: the part of a member that is not there now is right as long as nothing is done.
#[test]
fn a_full_zone_that_lacks_two_parts_waits_for_the_one_that_may_come_back() {
    for policy in [Policy::Zrwa, Policy::Log, Policy::InPlace] {
        let (mut world, array) = World::new(policy);
        let full = array.geometry().zone_capacity_blocks;
        let mut at = 0;
        while at < full {
            let blocks = (full - at).min(60);
            world.write(&array, 0, at, blocks);
            at += blocks;
        }
        world.replace(&array, 0);
        world.end(array);
        let array = world.without(&[2]);
        assert_eq!(world.state(&array, 0), ZoneState::Offline, "{policy:?}");
        assert_eq!(array.status().offline[0].waits_for, [2], "{policy:?}");
        world.end(array);
        let array = world.without(&[]);
        check(&world.runtime, &array, 0, full);
        world.end(array);
    }
}

/// A cut between a record and the flush that makes it safe leaves no gap in front of it, whatever a write
/// with FUA would have made safe.
#[test]
fn a_record_that_is_flushed_never_comes_before_those_in_front_of_it() {
    for seed in 0..40 {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let shape = Geometry { volatile_cache: true, ..geometry(8, 240, 8) };
        let drives: Vec<_> = (0..MEMBERS).map(|_| rig.drive(&shape)).collect();
        rig.let_fua_stand_alone();
        let options = engine::array::CreateOptions { policy: Some(Policy::Log), ..options(CHUNK) };
        let array = run(&runtime, Array::create(&runtime, options, drives.clone())).unwrap();
        write(&runtime, &array, 1, 0, 8, true);
        for at in 0..6 {
            write(&runtime, &array, 0, at, 1, false);
        }
        rig.rule(|_, command| if matches!(command, Command::Flush) { Act::Hold } else { Act::Pass });
        let reset = array.submit(Command::Reset { zones: Zones::One(ZoneIndex(1)) });
        runtime.run();
        drop((reset, array));
        runtime.clear();
        rig.cut_power(&mut Rng::new(seed), |_| Cut { cache_lost: true, zrwa_lost: false });
        for missing in 0..MEMBERS {
            let there = (0..MEMBERS).filter(|m| *m != missing).map(|m| drives[m].clone()).collect();
            let found = run(&runtime, Array::inspect(&runtime, there, None)).unwrap();
            assert_eq!(found.status.offline, [], "seed {seed} without member {missing}");
            runtime.clear();
        }
    }
}

/// Of the member that a zone waits for there is a copy from before the last changes of membership.
#[test]
fn a_copy_of_a_member_is_not_taken_for_the_one_that_a_zone_waits_for() {
    for policy in Policy::ALL {
        let (mut world, array) = World::new(policy);
        world.write(&array, 0, 0, 8);
        let copy = world.rig.copy(0);
        world.write(&array, 0, 8, 30);
        world.replace(&array, 1);
        world.end(array);
        world.end(world.without(&[0]));
        let own = std::mem::replace(&mut world.drives[0], copy);
        let array = world.without(&[]);
        assert_eq!(array.status().members[0].state, MemberState::Out, "{policy:?}");
        assert_eq!(world.state(&array, 0), ZoneState::Offline, "{policy:?}");
        world.end(array);
        world.drives[0] = own;
        let array = world.without(&[]);
        world.check(&array, 0, 38);
        world.end(array);
    }
}

/// A zone is in doubt since its log cannot be read; a member lacks it, and that is no help.
#[test]
fn a_zone_in_doubt_does_not_wait_for_a_member_that_lacks_it() {
    let (mut world, array) = World::new(Policy::Zrwa);
    world.write(&array, 0, 0, 3);
    world.replace(&array, 2);
    world.end(array);
    let g = geometry(8, 240, 8);
    let log = META as u64 * g.zone_size_blocks + 16..META as u64 * g.zone_size_blocks + 18;
    world.rig.rule(move |_, command| match command {
        Command::Read { lba, data, .. } if lba.0 < log.end && log.start < lba.0 + data.blocks() => {
            Act::Unreadable
        }
        _ => Act::Pass,
    });
    for absent in [&[][..], &[2]] {
        let array = world.without(absent);
        let status = array.status();
        assert_eq!(status.offline.len(), 1, "{absent:?}");
        assert!(status.offline[0].waits_for.is_empty(), "{absent:?}");
        world.end(array);
    }
}

/// What zones in doubt hold of the drives is not given to others.
#[test]
fn zones_in_doubt_count_as_active() {
    for policy in Policy::ALL {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let shape = geometry(10, 240, 4);
        let drives: Vec<_> = (0..MEMBERS).map(|_| rig.drive(&shape)).collect();
        let options = engine::array::CreateOptions { policy: Some(policy), ..options(CHUNK) };
        let array = run(&runtime, Array::create(&runtime, options, drives.clone())).unwrap();
        assert_eq!(array.geometry().max_active, 2);
        let mut world = World { runtime, rig, drives };
        (0..2).for_each(|zone| world.write(&array, zone, 0, 50));
        run(&world.runtime, array.fail(1)).unwrap();
        world.drives[1] = world.rig.drive(&shape);
        run(&world.runtime, array.attach(1, world.drives[1].clone())).unwrap();
        world.end(array);
        let array = world.without(&[0]);
        assert_eq!(array.status().offline.len(), 2, "{policy:?}");
        assert!(world.refused(&array, write_command(&array, 2, 0, 20, true)), "{policy:?}");
        world.end(array);
    }
}

/// Zone 1 goes on without a member that is waited for because of zone 0; what that one had logged of zone 1
/// is of writes that came to nothing.
#[test]
fn of_a_member_that_comes_back_only_the_log_of_what_waits_counts() {
    let (mut world, array) = World::new(Policy::Zrwa);
    world.write(&array, 0, 0, 8);
    world.replace(&array, 1);
    // So near the end that tails go to the metadata logs: of stripe 57 to those of members 1 and 0.
    let begun = 57 * 12;
    for at in (0..begun).step_by(36) {
        world.write(&array, 1, at, 36);
    }
    world.write(&array, 1, begun, 1);
    let data = META as u64 * geometry(8, 240, 8).zone_size_blocks;
    // The drive in the place of member 1.
    world.rig.rule(move |drive, command| match command {
        Command::Write { lba, .. } if drive == 4 && lba.0 < data => Act::Hold,
        _ => Act::Pass,
    });
    drop(array.submit(write_command(&array, 1, begun + 1, 2, true)));
    world.runtime.run();
    world.rig.cut_power(&mut Rng::new(1), |_| Cut::default());
    world.end(array);
    let array = world.without(&[0]);
    assert_eq!(world.state(&array, 0), ZoneState::Offline);
    let tail = wp(&world.runtime, &array, 1).1;
    assert_eq!(tail, begun + 1);
    world.end(array);
    let array = world.without(&[]);
    world.check(&array, 0, 8);
    world.check(&array, 1, tail);
    world.end(array);
}
