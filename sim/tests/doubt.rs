//! Zones of which no tail can be proven: they are offline and unchanged, everything else works, and their data is
//! available again when the member that can prove the tail is back.

use crate::support::{
    array::{check, geometry, options, run, submit, wp, write, write_command},
    rig::{Act, Rig},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use engine::{
    array::{Array, Drive, MemberState},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, ZonedDevice, Zones},
    format::{
        Origin,
        record::{Header, Record},
    },
    raid::{error::Note, policy::Policy},
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{cell::Cell, rc::Rc};

const CHUNK: u64 = 4;
const MEMBERS: usize = 4;
/// Metadata zones of a drive, before the data zones.
const META: u32 = 2;

struct World {
    runtime: Runtime,
    rig: Rc<Rig>,
    drives: Vec<Drive>,
    shape: Geometry,
}

impl World {
    fn new(policy: Policy) -> (World, Array) {
        World::shaped(policy, geometry(8, 240, 8))
    }

    fn shaped(policy: Policy, shape: Geometry) -> (World, Array) {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let drives: Vec<_> = (0..MEMBERS).map(|_| rig.drive(&shape)).collect();
        let options = engine::array::CreateOptions { policy: Some(policy), ..options(CHUNK) };
        let array = run(&runtime, Array::create(&runtime, options, drives.clone())).unwrap();
        (World { runtime, rig, drives, shape }, array)
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

    /// Replaces `member` by a new drive without a rebuild.
    fn replace(&mut self, array: &Array, member: usize) {
        run(&self.runtime, array.fail(member)).unwrap();
        self.drives[member] = self.rig.drive(&self.shape);
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
fn offline_zone_waits_for_member_with_acknowledged_data() {
    for policy in Policy::ALL {
        for blocks in [1, 2, 4, 8, 13, 50, 720] {
            let (mut world, array) = World::new(policy);
            for at in (0..blocks).step_by(90) {
                world.write(&array, 0, at, 90.min(blocks - at));
            }
            world.replace(&array, 1);
            world.end(array);
            // Member 1 lacks zone 0, and member 0 is missing.
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
                Command::Finish { zones: zone },
                Command::Open { zones: zone, zrwa: false },
            ] {
                assert!(world.refused(&array, command.clone()), "{what}: {command:?}");
            }
            // Everything else works, also resets and finishes of all zones, and the rebuild of the other zones.
            world.write(&array, 1, 0, 7);
            submit(&world.runtime, &array, Command::Finish { zones: Zones::All });
            assert_eq!(world.state(&array, 1), ZoneState::Full, "{what}");
            check(&world.runtime, &array, 1, 7);
            submit(&world.runtime, &array, Command::Reset { zones: Zones::All });
            world.write(&array, 1, 0, 30);
            world.write(&array, 2, 0, 9);
            run(&world.runtime, array.rebuild(&|_| ())).unwrap();
            world.end(array);
            // Once more without member 0, and then with it.
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
            // A member that was missing is stale afterwards, so the array is assembled without a single one only.
            let array = world.without(&[blocks as usize % MEMBERS]);
            world.check(&array, 0, blocks + more);
            world.check(&array, 1, 30);
            world.check(&array, 2, 29);
            world.end(array);
        }
    }
}

/// A returning member counts only for the zones that wait for it; in all others it is stale, also after these zones
/// have been decided.
#[test]
fn awaited_member_is_stale_after_next_absence() {
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

/// A full zone without two of its parts cannot be read either: it waits too.
#[test]
fn offline_full_zone_waits_for_absent_member() {
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
                // Member 1 cannot be rebuilt in zone 0 either.
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

/// A returning member may fail before the assembly has ended.
#[test]
fn awaited_member_failing_on_return_is_awaited_again() {
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

/// Zones that ended without the returning member, and that are still open on its drive, count against the drive's
/// limits.
#[test]
fn returning_member_releases_zones_ended_meanwhile() {
    for policy in Policy::ALL {
        let (mut world, array) = World::shaped(policy, geometry(16, 240, 8));
        world.write(&array, 0, 0, 50);
        world.replace(&array, 1);
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
fn assemble_omits_member_with_failing_zone_report() {
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
        assert!(matches!(member.note, Note::Unlisted(_)), "{}", member.note);
        world.check(&array, 0, 20);
        world.write(&array, 0, 20, 20);
        world.end(array);
    }
}

/// A zone of one member is reset or finished by another program.
#[test]
fn externally_changed_part_is_decoded_and_rebuilt() {
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

/// The finish is recorded, so the zone's end is known; its data still has to be there.
#[test]
fn externally_reset_part_of_finishing_zone_is_rebuilt() {
    let policies = [Policy::Zrwa, Policy::Log].into_iter();
    for (policy, member) in policies.flat_map(|policy| (0..MEMBERS).map(move |m| (policy, m))) {
        let (world, array) = World::new(policy);
        for at in (0..297).step_by(99) {
            world.write(&array, 0, at, 99);
        }
        world.rig.rule(|_, command| match command {
            Command::Finish { .. } => Act::Hold,
            _ => Act::Pass,
        });
        let finish = array.submit(Command::Finish { zones: Zones::One(ZoneIndex(0)) });
        world.runtime.run();
        drop(finish);
        world.end(array);
        world.rig.cut_power(&mut Rng::new(1), |_| Cut::default());
        world.rig.damage(member, Fault::Reset(ZoneIndex(META)));
        run(&world.runtime, world.drives[member].device.submit(Command::Flush));
        let array = world.without(&[]);
        let what = format!("{policy:?} {member} {:?}", array.status());
        assert_eq!(world.state(&array, 0), ZoneState::Full, "{what}");
        assert_eq!(array.status().members[member].state, MemberState::Rebuilding, "{what}");
        check(&world.runtime, &array, 0, 297);
        run(&world.runtime, array.rebuild(&|_| ())).unwrap();
        world.end(array);
        let array = world.without(&[(member + 1) % MEMBERS]);
        check(&world.runtime, &array, 0, 297);
        world.end(array);
    }
}

/// Flips a bit in each tail record of the drives that are `chosen`; returns the number of records.
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
        // Faults take effect with the next command.
        run(&world.runtime, drive.device.submit(Command::Flush));
    }
    flipped
}

#[test]
fn damaged_tail_record_never_shortens_tail() {
    for policy in [Policy::Zrwa, Policy::InPlace] {
        for (blocks, absent) in [1u64, 6, 50, 75].into_iter().flat_map(|b| (0..=MEMBERS).map(move |m| (b, m)))
        {
            let (world, array) = World::new(policy);
            world.write(&array, 1, 0, 24);
            world.write(&array, 0, 0, blocks);
            world.end(array);
            assert!(flip_tail_records(&world, |_| true) > 0);
            // With any member missing no tail is shorter and no zone is reset; a zone whose tail cannot be proven is
            // offline.
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

/// A drive that cannot list its zones counts as missing, before or after the other missing member.
#[test]
fn assemble_refuses_second_lost_member_without_writing() {
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
        assert!(refusal.to_string().contains("drive1"), "{refusal}");
        world.runtime.clear();
        world.rig.rule(|_, _| Act::Pass);
        let array = world.without(&[]);
        assert!(array.status().members.iter().all(|member| member.state == MemberState::Active));
        world.check(&array, 0, 20);
        world.end(array);
    }
}

/// A full zone, too: the part of the missing member stays valid as long as the zone is not changed.
#[test]
fn full_zone_lacking_two_parts_waits_for_member() {
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

/// A power cut between a record and the flush that makes it durable leaves no gap in front of it, even if FUA covers
/// only the write's own blocks.
#[test]
fn log_flush_makes_preceding_records_durable() {
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

/// With one member missing, a drive that cannot be written makes the assembly fail. This has no consequences, since no
/// superblock records yet that the missing member is out.
#[test]
fn member_missing_from_refused_assembly_stays_active() {
    for policy in Policy::ALL {
        for (worn, missing) in (0..MEMBERS).flat_map(|m| [1, 2, 3].map(|by| (m, (m + by) % MEMBERS))) {
            // Which of the two zones the log goes to next is found by trying.
            let mut refusals = 0;
            for (zone, offline) in [(0, false), (0, true), (1, false), (1, true)] {
                let what = format!("{policy:?}: zone {zone} of {worn} without {missing}, offline {offline}");
                let (world, array) = World::new(policy);
                world.write(&array, 0, 0, 50);
                world.end(array);
                let zone = ZoneIndex(zone);
                let fault = if offline { Fault::Offline(zone) } else { Fault::ReadOnly(zone) };
                world.rig.damage(worn, fault);
                let there = (0..MEMBERS).filter(|m| *m != missing).map(|m| world.drives[m].clone()).collect();
                let assembled = run(&world.runtime, Array::assemble(&world.runtime, there));
                world.runtime.clear();
                if assembled.is_ok() {
                    continue;
                }
                refusals += 1;
                for _ in 0..2 {
                    let array = world.without(&[]);
                    let states: Vec<_> = array.status().members.iter().map(|m| m.state).collect();
                    assert_eq!(states[missing], MemberState::Active, "{what}");
                    assert_eq!(states[worn], MemberState::Out, "{what}");
                    world.check(&array, 0, wp(&world.runtime, &array, 0).1);
                    world.write(&array, 0, wp(&world.runtime, &array, 0).1, 9);
                    world.end(array);
                }
            }
            assert!(refusals > 0, "{policy:?} {worn} {missing}");
        }
    }
}

/// A drive that fails while another member lacks zones holds the only copy of some data: these zones are not written
/// any more, and the drive counts for them when it returns.
#[test]
fn member_failing_during_rebuild_of_another_is_awaited() {
    let cases = Policy::ALL.into_iter().flat_map(|policy| {
        let some = |end, by, rebuild, volatile| (policy, (50, end, by), rebuild, volatile);
        // Many writes, with a cache or without; writes without a rebuild, where the state of the cache matters; one
        // block; and the end of a zone that is larger on the members.
        let last = (policy, (715, 720, 5), false, true);
        [
            some(110, 5, true, false),
            some(110, 5, true, true),
            some(110, 5, false, true),
            some(51, 1, false, true),
            last,
        ]
    });
    for (policy, (from, end, by), rebuild, volatile_cache) in cases {
        let mut waited = 0;
        for steps in 0.. {
            let what = format!("{policy:?}, {from} to {end}, cache {volatile_cache}, after {steps} steps");
            let (mut world, array) =
                World::shaped(policy, Geometry { volatile_cache, ..geometry(8, 242, 8) });
            (0..from).step_by(90).for_each(|at| world.write(&array, 0, at, 90.min(from - at)));
            world.write(&array, 1, 0, 9);
            (0..720).step_by(90).for_each(|at| world.write(&array, 2, at, 90));
            world.replace(&array, 1);
            let (left, failed) = (Rc::new(Cell::new(steps)), Rc::new(Cell::new(false)));
            let seen = failed.clone();
            world.rig.rule(move |drive, _| match left.get() {
                _ if drive > 0 => Act::Pass,
                0 => {
                    seen.set(true);
                    Act::Fail
                }
                more => {
                    left.set(more - 1);
                    Act::Pass
                }
            });
            let pending: Vec<_> = (from..end)
                .step_by(by)
                .map(|at| (at + by as u64, ((at - from) / by as u64).is_multiple_of(2)))
                .map(|(to, fua)| {
                    let at = to - by as u64;
                    (to, fua, array.submit(write_command(&array, 0, at, by as u64, fua)))
                })
                .collect();
            if rebuild {
                let rebuilding = array.clone();
                world.runtime.spawn(async move { _ = rebuilding.rebuild(&|_| ()).await });
            }
            world.runtime.run();
            let flush = array.submit(Command::Flush);
            world.runtime.run();
            let mut promised = from;
            let flushed = run(&world.runtime, flush).result.is_ok();
            for (end, fua, completion) in pending {
                if run(&world.runtime, completion).result.is_ok() && (fua || flushed) {
                    promised = end;
                }
            }
            world.end(array);
            world.rig.cut_power(&mut Rng::new(steps), |_| Cut { cache_lost: true, zrwa_lost: false });
            for absent in [vec![0], vec![], vec![1]] {
                let array = world.without(&absent);
                let status = array.status();
                let is_stale = status.members[0].state == MemberState::Out;
                let offline: Vec<_> = status.offline.iter().map(|zone| zone.zone.0).collect();
                assert!(
                    offline.is_empty() || absent == [0],
                    "{what} without {absent:?}: {:?}",
                    status.offline
                );
                assert!(
                    status.offline.iter().all(|zone| zone.waits_for == [0]),
                    "{what}: {:?}",
                    status.offline
                );
                waited += offline.len();
                for (zone, promised) in [(0, promised), (1, 9), (2, 720)] {
                    if !offline.contains(&zone) {
                        let (_, tail) = wp(&world.runtime, &array, zone);
                        assert!(tail >= promised, "{what} without {absent:?}: zone {zone} ends at {tail}");
                        check(&world.runtime, &array, zone, tail);
                    }
                }
                if absent.is_empty() {
                    run(&world.runtime, array.rebuild(&|_| ())).unwrap();
                }
                world.end(array);
                // No zone has waited for member 0, and it is stale: no other member can be missing.
                if absent.is_empty() && is_stale {
                    break;
                }
            }
            if !failed.get() {
                break;
            }
        }
        assert!(waited > 0, "{policy:?}");
    }
}

/// The same for a failure during the assembly, at any command.
#[test]
fn member_failing_during_degraded_assembly_is_awaited() {
    for policy in Policy::ALL {
        for steps in 0.. {
            let what = format!("{policy:?} after {steps} steps");
            let (mut world, array) = World::new(policy);
            world.write(&array, 0, 0, 50);
            (0..720).step_by(90).for_each(|at| world.write(&array, 1, at, 90));
            world.replace(&array, 1);
            world.end(array);
            let left = Rc::new(Cell::new(steps));
            let counted = left.clone();
            world.rig.rule(move |drive, command| match command {
                Command::Read { .. } | Command::Report { .. } => Act::Pass,
                _ if drive > 0 => Act::Pass,
                _ if counted.get() == 0 => Act::Fail,
                _ => {
                    counted.set(counted.get() - 1);
                    Act::Pass
                }
            });
            world.end(world.without(&[]));
            let failed = left.get() == 0;
            world.rig.rule(|_, _| Act::Pass);
            let array = world.without(&[]);
            assert!(array.status().offline.is_empty(), "{what}: {:?}", array.status());
            world.check(&array, 0, 50);
            check(&world.runtime, &array, 1, 720);
            world.end(array);
            if !failed {
                break;
            }
        }
    }
}

/// Resetting an offline zone discards its contents: members that it waited for are stale there.
#[test]
fn reset_discards_offline_zone_and_frees_resources() {
    for policy in Policy::ALL {
        let (mut world, array) = World::new(policy);
        let begun = array.geometry().max_active;
        (0..begun).for_each(|zone| world.write(&array, zone, 0, 50));
        world.replace(&array, 1);
        world.end(array);
        let array = world.without(&[0]);
        assert_eq!(array.status().offline.len() as u32, begun);
        // A reset of all zones leaves offline zones alone.
        submit(&world.runtime, &array, Command::Reset { zones: Zones::All });
        assert_eq!(array.status().offline.len() as u32, begun);
        submit(&world.runtime, &array, Command::Reset { zones: Zones::One(ZoneIndex(0)) });
        assert_eq!(world.state(&array, 0), ZoneState::Empty);
        assert_eq!(array.status().offline.len() as u32, begun - 1);
        // Its resources are free again.
        world.write(&array, 0, 0, 9);
        world.end(array);
        let array = world.without(&[]);
        assert!(array.status().offline.is_empty(), "{policy:?}");
        world.check(&array, 0, 9);
        (1..begun).for_each(|zone| world.check(&array, zone, 50));
        run(&world.runtime, array.rebuild(&|_| ())).unwrap();
        world.end(array);
        let array = world.without(&[2]);
        world.check(&array, 0, 9);
        (1..begun).for_each(|zone| world.check(&array, zone, 50));
        world.end(array);
    }
}

/// A reset is refused if the zone could not be used afterwards either.
#[test]
fn reset_refuses_offline_zone_that_stays_unusable() {
    for policy in Policy::ALL {
        let (world, array) = World::new(policy);
        world.write(&array, 0, 0, 50);
        world.end(array);
        world.rig.damage(1, Fault::Offline(ZoneIndex(META)));
        let array = world.without(&[0]);
        assert_eq!(world.state(&array, 0), ZoneState::Offline, "{policy:?}");
        assert!(world.refused(&array, Command::Reset { zones: Zones::One(ZoneIndex(0)) }), "{policy:?}");
        assert_eq!(array.status().offline[0].waits_for, [0], "{policy:?}");
        world.end(array);
        let array = world.without(&[]);
        world.check(&array, 0, 50);
        world.end(array);
    }
}

/// A zone waits for a member of which there is a copy from before the last changes of membership.
#[test]
fn stale_copy_is_not_taken_for_awaited_member() {
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

/// The first block and the length in blocks of the last record in each drive's metadata log.
fn last_records(world: &World) -> Vec<(u64, u64)> {
    let last_of = |drive: &Drive| {
        let size = world.shape.zone_size_blocks;
        let read =
            |lba| run(&world.runtime, drive.device.submit(Command::read(Lba(lba), Buf::zeroed(BLOCK)))).data;
        let headers = (0..META as u64 * size).filter_map(|lba| Header::read(&read(lba)));
        let records = headers.filter(|header| header.origin.lba < META as u64 * size);
        let last = records.max_by_key(|header| (header.sequence, header.origin.lba)).unwrap();
        (last.origin.lba, last.blocks())
    };
    world.drives.iter().map(last_of).collect()
}

/// A power cut leaves a prefix of the last record, or all of it: a complete record with a wrong checksum is damaged,
/// and so are contents that are no record.
#[test]
fn damaged_last_log_record_is_not_considered_torn() {
    for (policy, blocks) in [(Policy::Log, 6), (Policy::Log, 13), (Policy::InPlace, 6), (Policy::Zrwa, 6)] {
        let (mut place, mut left, mut offline) = (0, true, 0);
        while std::mem::take(&mut left) {
            for (victim, absent) in (0..MEMBERS).flat_map(|m| [1, 2, 3].map(|by| (m, (m + by) % MEMBERS))) {
                let (world, array) = World::new(policy);
                world.write(&array, 0, 0, blocks);
                world.end(array);
                let (lba, count) = last_records(&world)[victim];
                if place >= count {
                    continue;
                }
                left = true;
                for bit in [3, 8 * 70] {
                    world.rig.damage(victim, Fault::Corrupt { lba: Lba(lba + place), bit });
                    let there =
                        (0..MEMBERS).filter(|m| *m != absent).map(|m| world.drives[m].clone()).collect();
                    let found = run(&world.runtime, Array::inspect(&world.runtime, there, None));
                    world.runtime.clear();
                    let what =
                        format!("{policy:?}: block {place} of {count} of {victim} without {absent}: {bit}");
                    match found {
                        // The damaged record is the only one of its log.
                        Err(refusal) => {
                            assert!(
                                refusal.to_string().contains(&format!("drive{victim}")),
                                "{what}: {refusal}"
                            )
                        }
                        Ok(found) if found.zones[0].state == ZoneState::Offline => offline += 1,
                        Ok(found) => assert_eq!(found.zones[0].wp_blocks, blocks, "{what}"),
                    }
                    // Flips the bit back.
                    world.rig.damage(victim, Fault::Corrupt { lba: Lba(lba + place), bit });
                }
            }
            place += 1;
        }
        assert!(offline > 0 || policy != Policy::Log, "{policy:?}");
    }
}

/// The zone's only chunk is on a missing member, and its parity in an unreadable part of another member's log: empty
/// zones on all other members prove nothing.
#[test]
fn empty_looking_zone_with_unreadable_parity_is_offline() {
    for policy in [Policy::Zrwa, Policy::Log] {
        let (world, array) = World::new(policy);
        world.write(&array, 0, 0, CHUNK);
        world.write(&array, 1, 0, 9);
        world.end(array);
        let slot = &world.drives[1];
        let zone_size_blocks = slot.device.geometry().zone_size_blocks;
        for lba in 0..META as u64 * zone_size_blocks {
            let read = Command::read(Lba(lba), Buf::zeroed(BLOCK));
            let header = Header::read(&run(&world.runtime, slot.device.submit(read)).data);
            if header.is_some_and(|header| header.origin.lba == lba && lba % zone_size_blocks > 0) {
                world.rig.damage(1, Fault::Unreadable(Lba(lba)));
            }
        }
        let array = world.without(&[0]);
        match policy {
            Policy::Log => assert_eq!(world.state(&array, 0), ZoneState::Offline),
            // The parity is in the zone itself.
            _ => world.check(&array, 0, CHUNK),
        }
        world.end(array);
        let array = world.without(&[]);
        world.check(&array, 0, CHUNK);
        world.end(array);
    }
}

/// A zone is offline since its log cannot be read; the member that lacks it is not waited for.
#[test]
fn offline_zone_awaits_no_member_lacking_its_part() {
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

/// Active-zone resources of offline zones are not given to other zones.
#[test]
fn offline_zones_count_as_active() {
    for policy in Policy::ALL {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let shape = geometry(10, 240, 4);
        let drives: Vec<_> = (0..MEMBERS).map(|_| rig.drive(&shape)).collect();
        let options = engine::array::CreateOptions { policy: Some(policy), ..options(CHUNK) };
        let array = run(&runtime, Array::create(&runtime, options, drives.clone())).unwrap();
        assert_eq!(array.geometry().max_active, 2);
        let mut world = World { runtime, rig, drives, shape: shape.clone() };
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

/// Zones that are full to the host keep active-zone resources until their last writes have completed. The resources of
/// offline zones are not given to other zones in that case either.
#[test]
fn zone_opening_waits_for_resources_beside_offline_zones() {
    for policy in Policy::ALL {
        let (mut world, array) = World::shaped(policy, geometry(10, 240, 5));
        assert_eq!(array.geometry().max_active, 3);
        (0..2).for_each(|zone| world.write(&array, zone, 0, 50));
        world.replace(&array, 1);
        world.end(array);
        let array = world.without(&[0]);
        assert_eq!(array.status().offline.len(), 2, "{policy:?}");
        let data = META as u64 * world.shape.zone_size_blocks;
        world.rig.rule(move |drive, command| match command {
            Command::Write { lba, .. } if drive == 2 && lba.0 >= data => Act::Hold,
            _ => Act::Pass,
        });
        let writes = (2..5).flat_map(|zone| (0..720).step_by(90).map(move |at| (zone, at)));
        let pending: Vec<_> =
            writes.map(|(zone, at)| array.submit(write_command(&array, zone, at, 90, true))).collect();
        world.runtime.run();
        assert!(world.rig.held() > 0, "{policy:?}");
        while world.rig.release(|_, _| true) > 0 {
            world.runtime.run();
        }
        pending.into_iter().for_each(|p| assert_eq!(run(&world.runtime, p).result, Ok(()), "{policy:?}"));
        let states: Vec<_> = array.status().members.iter().map(|m| (m.state, m.zones_to_rebuild)).collect();
        assert_eq!(
            states[1..],
            [(MemberState::Rebuilding, 2), (MemberState::Active, 0), (MemberState::Active, 0)]
        );
        world.end(array);
    }
}

/// Zone 1 is written without a member for which zone 0 waits; the member's log records of zone 1 belong to writes that
/// recovery has discarded.
#[test]
fn returning_member_log_counts_only_for_waiting_zones() {
    let (mut world, array) = World::new(Policy::Zrwa);
    world.write(&array, 0, 0, 8);
    world.replace(&array, 1);
    // Near the end of the zone, where tails go to the metadata logs: those of stripe 57 to members 1 and 0.
    let begun = 57 * 12;
    for at in (0..begun).step_by(36) {
        world.write(&array, 1, at, 36);
    }
    world.write(&array, 1, begun, 1);
    let data = META as u64 * geometry(8, 240, 8).zone_size_blocks;
    // Drive 4 is member 1 now.
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
