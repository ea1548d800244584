//! Zones of single drives that fail while the array is running: the drive and the array stay in service.

use crate::support::{
    array::{check, geometry, options, pattern, run, submit, wp, write, write_command},
    rig::{Act, Rig},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use engine::{
    array::{Array, Drive, LostBlocks, MemberState},
    buf::{BLOCK, Buf},
    device::{Command, Completion, Geometry, Status, ZonedDevice, Zones},
    raid::{error::NoPart, policy::Policy},
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{cell::Cell, collections::BTreeSet, rc::Rc};

const CHUNK: u64 = 4;
/// Blocks of a stripe of four members.
const STRIPE: u64 = 3 * CHUNK;
/// Number of metadata zones of a drive; the data zones follow.
const META: u32 = 2;

struct Scene {
    runtime: Runtime,
    rig: Rc<Rig>,
    drives: Vec<Drive>,
    array: Array,
    shape: Geometry,
}

impl Drop for Scene {
    /// Tasks hold the array, and the array its drives.
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

impl Scene {
    fn new(policy: Policy, zones: u32) -> Scene {
        Scene::shaped(policy, geometry(zones + META, 240, 8))
    }

    /// An array of four zones, on drives with `spare` spare zones.
    fn spared(policy: Policy, spare: u32) -> Scene {
        Scene::with_spares(policy, geometry(4 + META + spare, 240, 8), spare)
    }

    fn shaped(policy: Policy, shape: Geometry) -> Scene {
        Scene::with_spares(policy, shape, 0)
    }

    fn with_spares(policy: Policy, shape: Geometry, spare: u32) -> Scene {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let drives: Vec<_> = (0..4).map(|_| rig.drive(&shape)).collect();
        let mut options = options(CHUNK);
        options.policy = Some(policy);
        options.spare_zones = Some(spare);
        let array = run(&runtime, Array::create(&runtime, options, drives.clone())).unwrap();
        Scene { runtime, rig, drives, array, shape }
    }

    fn write(&self, zone: u32, at: u64, blocks: u64) {
        let most = 96;
        for from in (at..at + blocks).step_by(most) {
            write(&self.runtime, &self.array, zone, from, (at + blocks - from).min(most as u64), true);
        }
    }

    /// The result of a write with FUA.
    fn try_write(&self, zone: u32, at: u64, blocks: u64) -> Result<(), Status> {
        let done = run(&self.runtime, self.array.submit(write_command(&self.array, zone, at, blocks, true)));
        done.result.map_err(|error| Status::ALL.iter().copied().find(|s| error == (*s).into()).unwrap())
    }

    fn try_read(&self, zone: u32, at: u64, blocks: u64) -> Result<(), Status> {
        let lba = self.array.geometry().start(ZoneIndex(zone)).0 + at;
        let read = Command::read(Lba(lba), Buf::zeroed(blocks as usize * BLOCK));
        let done = run(&self.runtime, self.array.submit(read));
        if done.result.is_ok() {
            assert!(done.data[..] == pattern(lba, blocks), "zone {zone} blocks {at} + {blocks}");
        }
        done.result.map_err(|error| Status::ALL.iter().copied().find(|s| error == (*s).into()).unwrap())
    }

    fn check(&self, zone: u32, tail: u64) {
        check(&self.runtime, &self.array, zone, tail);
    }

    /// Reads the first `tail` blocks of a zone one by one; returns the unreadable ones.
    fn unreadable(&self, zone: u32, tail: u64) -> Vec<u64> {
        let result = |at| self.try_read(zone, at, 1);
        let bad = (0..tail).filter(|at| match result(*at) {
            Ok(()) => false,
            Err(status) => {
                assert_eq!(status, Status::UnrecoveredReadError);
                true
            }
        });
        bad.collect()
    }

    /// Rebuilds the lost parts; returns the blocks that could not be restored, by zone and block.
    fn rebuild(&self) -> Vec<(u32, u64)> {
        let rebuilt = run(&self.runtime, self.array.rebuild(&|_| ())).unwrap();
        assert_eq!(rebuilt.left_out, []);
        let blocks = |lost: &LostBlocks| {
            let zone = lost.zone;
            (lost.from..lost.from + lost.blocks).map(move |at| (zone, at))
        };
        rebuilt.lost.iter().flat_map(blocks).collect()
    }

    fn states(&self) -> Vec<(MemberState, u32)> {
        assert!(!self.array.status().failed);
        self.array.status().members.iter().map(|m| (m.state, m.zones_to_rebuild)).collect()
    }

    fn state_of(&self, zone: u32) -> ZoneState {
        wp(&self.runtime, &self.array, zone).0
    }

    fn reset(&self, zone: u32) -> Result<(), Status> {
        let done =
            run(&self.runtime, self.array.submit(Command::Reset { zones: Zones::One(ZoneIndex(zone)) }));
        done.result.map_err(|error| Status::ALL.iter().copied().find(|s| error == (*s).into()).unwrap())
    }

    fn flush(&self) -> Result<(), Status> {
        let done = run(&self.runtime, self.array.submit(Command::Flush));
        done.result.map_err(|error| Status::ALL.iter().copied().find(|s| error == (*s).into()).unwrap())
    }

    /// Cuts the power, and assembles the array without the drives in `missing`.
    fn cut(&mut self, missing: &[usize]) {
        self.runtime.clear();
        self.rig.cut_power(&mut Rng::new(1), |_| Cut { cache_lost: true, zrwa_lost: false });
        let there = self.drives.iter().enumerate().filter(|(m, _)| !missing.contains(m));
        let there = there.map(|(_, drive)| drive.clone()).collect();
        self.array = run(&self.runtime, Array::assemble(&self.runtime, there)).unwrap();
    }

    /// Replaces a member by a blank drive that is not rebuilt yet.
    fn replace(&mut self, member: usize) {
        if self.array.status().members[member].state != MemberState::Out {
            run(&self.runtime, self.array.fail(member)).unwrap();
        }
        let drive = self.rig.drive(&self.shape);
        run(&self.runtime, self.array.attach(member, drive.clone())).unwrap();
        self.drives[member] = drive;
    }

    /// The drive with number `drive` does not answer from now on.
    fn vanish(&self, drive: usize) {
        self.rig.damage(drive, Fault::Vanish);
    }

    /// Submits a write without waiting for it.
    fn start(&self, zone: u32, at: u64, blocks: u64) -> Completion {
        let pending = self.array.submit(write_command(&self.array, zone, at, blocks, true));
        self.runtime.run();
        pending
    }
}

/// The physical zone of a member that holds `zone`.
fn part(zone: u32) -> ZoneIndex {
    ZoneIndex(zone + META)
}

const ACTIVE: (MemberState, u32) = (MemberState::Active, 0);
const LACKS_ONE: (MemberState, u32) = (MemberState::Rebuilding, 1);

#[test]
fn dead_zones_on_two_drives_lose_no_data() {
    for policy in Policy::ALL {
        for fault in [Fault::ReadOnly, Fault::Offline, Fault::WriteFault] {
            let mut scene = Scene::new(policy, 4);
            (0..4).for_each(|zone| scene.write(zone, 0, 30));
            scene.rig.damage(1, fault(part(0)));
            scene.write(0, 30, 40);
            assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE], "{policy:?}");
            scene.rig.damage(2, fault(part(1)));
            scene.write(1, 30, 40);
            assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, LACKS_ONE, ACTIVE], "{policy:?}");
            let tails = [70, 70, 30, 30];
            for _ in 0..2 {
                (0..4).for_each(|zone| scene.check(zone, tails[zone as usize]));
                scene.cut(&[]);
                assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, LACKS_ONE, ACTIVE], "{policy:?}");
            }
            // The other members hold data that these two lack, so none may be taken out.
            for member in 0..4 {
                assert!(run(&scene.runtime, scene.array.fail(member)).is_err());
            }
            // In zones without lost parts a member may still be lost.
            scene.vanish(3);
            scene.write(2, 30, 20);
            assert_eq!(scene.state_of(0), ZoneState::ReadOnly);
            assert_eq!(scene.try_write(0, 70, 1), Err(Status::ZoneIsReadOnly));
            assert_eq!(scene.state_of(2), ZoneState::ImplicitlyOpen);
            scene.check(2, 50);
            scene.check(3, 30);
        }
    }
}

#[test]
fn write_completes_only_after_lost_part_is_recorded() {
    for policy in Policy::ALL {
        for released in [false, true] {
            let mut scene = Scene::new(policy, 4);
            scene.write(0, 0, 30);
            scene.rig.damage(1, Fault::WriteFault(part(0)));
            // Holds back all writes to metadata logs.
            let logged = scene.shape.start(ZoneIndex(META));
            scene.rig.rule(move |_, command| match command {
                Command::Write { lba, .. } if *lba < logged => Act::Hold,
                _ => Act::Pass,
            });
            let mut pending = scene.start(0, 30, STRIPE);
            for _ in 0..20 {
                assert!(pending.take().is_none(), "{policy:?}");
                if !released {
                    break;
                }
                // Releases the held writes, one round at a time.
                scene.rig.release(|_, _| true);
                scene.runtime.run();
                if let Some(done) = pending.take() {
                    assert_eq!(done.result, Ok(()));
                    break;
                }
            }
            scene.cut(&[]);
            let (_, tail) = wp(&scene.runtime, &scene.array, 0);
            assert!(tail >= if released { 30 + STRIPE } else { 30 }, "{policy:?}: {tail}");
            scene.check(0, tail);
            let lacks = if released { LACKS_ONE } else { scene.states()[1] };
            assert_eq!(scene.states(), [ACTIVE, lacks, ACTIVE, ACTIVE]);
        }
    }
}

#[test]
fn part_lost_while_recording_another_is_recorded_too() {
    for (policy, rebuild) in Policy::ALL.into_iter().flat_map(|policy| [(policy, false), (policy, true)]) {
        let mut scene = Scene::new(policy, 4);
        (0..2).for_each(|zone| scene.write(zone, 0, 30));
        scene.rig.damage(1, Fault::WriteFault(part(0)));
        scene.rig.damage(1, Fault::WriteFault(part(1)));
        let logged = scene.shape.start(ZoneIndex(META));
        scene.rig.rule(move |_, command| match command {
            Command::Write { lba, .. } if *lba < logged => Act::Hold,
            _ => Act::Pass,
        });
        let pending = [1, 0].map(|zone| scene.start(zone, 30, STRIPE));
        let rebuilt = Rc::new(Cell::new(false));
        if rebuild {
            let (array, told) = (scene.array.clone(), rebuilt.clone());
            scene.runtime.spawn(async move { told.set(array.rebuild(&|_| ()).await.is_ok()) });
            scene.runtime.run();
        }
        for _ in 0..100 {
            scene.rig.release(|_, _| true);
            scene.runtime.run();
        }
        for completion in pending {
            assert_eq!(run(&scene.runtime, completion).result, Ok(()));
        }
        assert_eq!(rebuilt.get(), rebuild);
        let state = if rebuild { ACTIVE } else { (MemberState::Rebuilding, 2) };
        for _ in 0..2 {
            assert_eq!(scene.states(), [ACTIVE, state, ACTIVE, ACTIVE], "{policy:?}");
            (0..2).for_each(|zone| scene.check(zone, 30 + STRIPE));
            scene.cut(&[]);
        }
    }
}

#[test]
fn power_cut_between_error_and_record_loses_nothing() {
    for policy in Policy::ALL {
        for steps in 0..40 {
            let mut scene = Scene::new(policy, 4);
            scene.write(0, 0, 29);
            scene.rig.damage(1, Fault::WriteFault(part(0)));
            let cut = scene.rig.hold_after(steps);
            let mut pending = scene.start(0, 29, 2 * STRIPE);
            let answered = pending.take().map(|done| done.result);
            let promised = if answered.is_some() { 29 + 2 * STRIPE } else { 29 };
            for missing in [vec![], vec![1]] {
                scene.cut(&missing);
                let (_, tail) = wp(&scene.runtime, &scene.array, 0);
                assert!((promised..=29 + 2 * STRIPE).contains(&tail), "{policy:?} {steps}: {tail}");
                scene.check(0, tail);
            }
            if !cut.get() {
                assert_eq!(answered, Some(Ok(())));
                break;
            }
            assert!(steps < 39, "{policy:?} never ends");
        }
    }
}

#[test]
fn two_dead_parts_fail_only_their_zone() {
    for policy in Policy::ALL {
        let scene = Scene::new(policy, 4);
        (0..3).for_each(|zone| scene.write(zone, 0, 5 * STRIPE));
        scene.rig.damage(1, Fault::ReadOnly(part(0)));
        scene.write(0, 5 * STRIPE, 7);
        scene.rig.damage(2, Fault::ReadOnly(part(0)));
        // Several writes, some of which are queued behind the failing one.
        let pending: Vec<_> = [7, 8, 9, 10].map(|at| scene.start(0, 5 * STRIPE + at, 1)).into();
        for completion in pending {
            assert!(run(&scene.runtime, completion).result.is_err(), "{policy:?}");
        }
        // The second member stays in service: its part of the zone is still needed.
        assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE]);
        assert_eq!(scene.state_of(0), ZoneState::ReadOnly);
        assert_eq!(scene.try_write(0, 5 * STRIPE + 11, 1), Err(Status::ZoneIsReadOnly));
        let finish = Command::Finish { zones: Zones::One(ZoneIndex(0)) };
        assert!(run(&scene.runtime, scene.array.submit(finish)).result.is_err());
        // Data that all write pointers have passed can be read, and no read returns wrong data.
        let read: Vec<bool> = (0..5 * STRIPE).map(|at| scene.try_read(0, at, 1).is_ok()).collect();
        let passed = if policy.uses_zrwa() { 3 * STRIPE as usize } else { 5 * STRIPE as usize };
        let all = read.iter().filter(|ok| **ok).count();
        assert!(all >= passed && read[..passed].iter().all(|ok| *ok), "{policy:?} {read:?}");
        // The other zones can still be written and flushed.
        scene.write(1, 5 * STRIPE, 50);
        let plain = write_command(&scene.array, 2, 5 * STRIPE, 9, false);
        assert_eq!(run(&scene.runtime, scene.array.submit(plain)).result, Ok(()));
        scene.flush().ok();
        assert_eq!(scene.flush(), Ok(()), "{policy:?}");
        scene.check(1, 5 * STRIPE + 50);
        scene.check(2, 5 * STRIPE + 9);
        // A reset tries both parts again.
        assert_eq!(scene.reset(0), Err(Status::InvalidZoneStateTransition));
        assert_eq!(scene.state_of(0), ZoneState::ReadOnly);
    }
}

/// A zone of a member wears out while another member is being rebuilt: the worn part is still readable, and needed.
#[test]
fn rebuild_keeps_worn_part_that_others_need() {
    for policy in Policy::ALL {
        for fault in [Fault::ReadOnly, Fault::WriteFault] {
            let mut scene = Scene::new(policy, 4);
            let full = 240 / CHUNK * STRIPE;
            (0..2).for_each(|zone| scene.write(zone, 0, full));
            scene.write(2, 0, 9 * STRIPE + 5);
            scene.replace(1);
            (0..3).for_each(|zone| scene.rig.damage(2, fault(part(zone))));
            let written: Vec<_> = [STRIPE, 1].map(|blocks| scene.try_write(2, 9 * STRIPE + 5, blocks)).into();
            assert!(written.iter().any(Result::is_err), "{policy:?}");
            let held = |scene: &Scene| {
                (0..2).for_each(|zone| scene.check(zone, full));
                (0..6 * STRIPE)
                    .for_each(|at| assert_eq!(scene.try_read(2, at, 1), Ok(()), "{policy:?} {at}"));
            };
            held(&scene);
            assert_eq!(scene.states()[2], ACTIVE, "{policy:?}");
            // The rebuild reports each part that it left out.
            let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
            let lacking: u32 = scene.states().iter().map(|(_, zones)| zones).sum();
            assert_eq!(rebuilt.left_out.len() as u32, lacking, "{policy:?}: {rebuilt:?}");
            assert!(rebuilt.left_out.iter().all(|out| out.zone == 2), "{policy:?}: {rebuilt:?}");
            held(&scene);
            // From now on another member may be lost in complete zones.
            scene.vanish(3);
            (0..2).for_each(|zone| scene.check(zone, full));
        }
    }
}

/// If only parity has to be copied, one of two lost parts of a zone can be rebuilt. Writes that were queued in the zone
/// were refused, so it has to stay read-only: a later write would leave a gap.
#[test]
fn zone_with_refused_writes_stays_readonly_after_rebuild() {
    // The member with the parity of the first two chunks.
    for (policy, parity) in [(Policy::Zrwa, 2), (Policy::InPlace, 3)] {
        let mut scene = Scene::new(policy, 4);
        scene.write(0, 0, CHUNK);
        for member in [1, parity] {
            scene.rig.damage(member, Fault::WriteFault(part(0)));
        }
        let logged = scene.shape.start(ZoneIndex(META));
        let behind = scene.shape.start(part(1));
        scene.rig.rule(move |drive, command| match command {
            Command::Write { lba, .. } if *lba >= behind => Act::Hold,
            Command::Write { lba, .. } if *lba >= logged && [1, parity].contains(&drive) => Act::Hold,
            _ => Act::Pass,
        });
        // While the members are busy, the second of two writes waits for the first one.
        let elsewhere = scene.start(1, 0, STRIPE);
        let pending = [(CHUNK, 3), (CHUNK + 3, 1)].map(|(at, blocks)| scene.start(0, at, blocks));
        let in_zone =
            |_: usize, command: &Command| matches!(command, Command::Write { lba, .. } if *lba < behind);
        assert_eq!(scene.rig.release(in_zone), 2, "{policy:?}");
        for completion in pending {
            assert_eq!(run(&scene.runtime, completion).result, Err(Status::InternalError.into()));
        }
        scene.rig.rule(|_, _| Act::Pass);
        scene.rig.release(|_, _| true);
        assert_eq!(run(&scene.runtime, elsewhere).result, Ok(()));
        run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
        assert_eq!(wp(&scene.runtime, &scene.array, 0), (ZoneState::ReadOnly, 2 * CHUNK), "{policy:?}");
        assert_eq!(scene.try_write(0, 2 * CHUNK, 1), Err(Status::ZoneIsReadOnly));
        scene.check(0, CHUNK);
        assert_eq!(scene.reset(0), Ok(()));
        scene.write(0, 0, 30);
        scene.cut(&[3]);
        scene.check(0, 30);
    }
}

#[test]
fn flush_reports_lost_completed_writes_once() {
    // With this policy a completed write need not be durable.
    let scene = Scene::new(Policy::Zrwa, 4);
    scene.write(0, 0, 7);
    let plain = write_command(&scene.array, 0, 7, 1, false);
    assert_eq!(run(&scene.runtime, scene.array.submit(plain)).result, Ok(()));
    scene.rig.damage(1, Fault::Offline(part(0)));
    scene.check(0, 8);
    assert_eq!(scene.states()[1], LACKS_ONE);
    scene.rig.damage(2, Fault::Offline(part(0)));
    assert_eq!(scene.try_write(0, 8, 1), Err(Status::InternalError));
    assert_eq!(scene.state_of(0), ZoneState::ReadOnly);
    // All flushes that are submitted before the first one fails report the loss.
    let flushes = [(); 2].map(|()| scene.array.submit(Command::Flush));
    for flush in flushes {
        assert_eq!(run(&scene.runtime, flush).result, Err(Status::InternalError.into()));
    }
    assert_eq!(scene.flush(), Ok(()));
}

#[test]
fn reset_recovers_lost_part_unless_worn() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy, 4);
        scene.write(0, 0, 30);
        scene.rig.damage(1, Fault::WriteFault(part(0)));
        scene.rig.damage(2, Fault::ReadOnly(part(1)));
        scene.write(0, 30, STRIPE);
        scene.write(1, 0, STRIPE);
        assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, LACKS_ONE, ACTIVE]);
        assert_eq!((scene.reset(0), scene.reset(1)), (Ok(()), Ok(())));
        assert_eq!(scene.states(), [ACTIVE, ACTIVE, LACKS_ONE, ACTIVE]);
        scene.write(0, 0, 50);
        scene.write(1, 0, 50);
        scene.cut(&[]);
        assert_eq!(scene.states(), [ACTIVE, ACTIVE, LACKS_ONE, ACTIVE]);
        scene.check(1, 50);
        scene.vanish(3);
        scene.check(0, 50);
    }
}

#[test]
fn rebuild_leaves_out_dead_zones_and_continues() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy, 4);
        (0..4).for_each(|zone| scene.write(zone, 0, 100));
        scene.rig.damage(1, Fault::ReadOnly(part(0)));
        for zone in 1..3 {
            scene.rig.damage(1, Fault::WriteFault(part(zone)));
        }
        (0..3).for_each(|zone| scene.write(zone, 100, STRIPE));
        assert_eq!(scene.states()[1], (MemberState::Rebuilding, 3));
        let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
        let left_out: Vec<_> = rebuilt.left_out.iter().map(|l| (l.zone, l.member)).collect();
        assert_eq!((left_out, rebuilt.bytes > 0), (vec![(0, 1)], true), "{policy:?}");
        let worn = NoPart::Worn(Status::InvalidZoneStateTransition.into());
        assert_eq!(rebuilt.left_out[0].reason, worn, "{policy:?}");
        assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE], "{policy:?}");
        scene.cut(&[]);
        assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE], "{policy:?}");
        scene.check(0, 100 + STRIPE);
        scene.replace(1);
        assert_eq!(run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap().left_out, []);
        assert_eq!(scene.states(), [ACTIVE; 4], "{policy:?}");
        scene.cut(&[2]);
        (0..3).for_each(|zone| scene.check(zone, 100 + STRIPE));
        scene.check(3, 100);
    }
}

#[test]
fn rebuild_waits_for_pending_writes_of_lost_part() {
    for policy in [Policy::Zrwa, Policy::InPlace] {
        let mut scene = Scene::new(policy, 4);
        scene.write(0, 0, STRIPE);
        scene.rig.damage(1, Fault::WriteFault(part(0)));
        let (begin, end) = (scene.shape.start(part(0)), scene.shape.start(part(1)));
        let reset = Rc::new(Cell::new(false));
        let seen = reset.clone();
        scene.rig.rule(move |drive, command| match command {
            Command::Write { lba, .. } if drive == 1 && (begin..end).contains(lba) => Act::Hold,
            Command::Reset { zones } if drive == 1 && *zones == Zones::One(part(0)) => {
                seen.set(true);
                Act::Pass
            }
            _ => Act::Pass,
        });
        // Four chunks on every member.
        let pending = [0, 1, 2, 3].map(|i| scene.start(0, STRIPE + i * STRIPE, STRIPE));
        assert!(scene.rig.held() > 1, "{policy:?}");
        // The first one fails while the others are in flight.
        assert_eq!(scene.rig.release(|position, _| position == 0), 1);
        scene.runtime.run();
        assert_eq!(scene.states()[1], LACKS_ONE);
        let (array, rebuilt) = (scene.array.clone(), Rc::new(Cell::new(false)));
        let told = rebuilt.clone();
        scene
            .runtime
            .spawn(async move { told.set(array.rebuild(&|_| ()).await.unwrap().left_out.is_empty()) });
        scene.runtime.run();
        assert!(!reset.get() && !rebuilt.get(), "{policy:?}");
        for _ in 0..100 {
            scene.rig.release(|_, _| true);
            scene.runtime.run();
        }
        assert!(reset.get() && rebuilt.get(), "{policy:?}");
        for completion in pending {
            assert_eq!(run(&scene.runtime, completion).result, Ok(()));
        }
        assert_eq!(scene.states(), [ACTIVE; 4]);
        scene.cut(&[3]);
        scene.check(0, 5 * STRIPE);
    }
}

/// When a zone ends, a member that lacks its part resets it. If the reset is not answered it may still be executed at
/// any time, so no data can be written to the part any more.
#[test]
fn unanswered_reset_takes_drive_out() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy, 4);
        scene.write(0, 0, 3 * STRIPE + 5);
        scene.replace(1);
        let number = scene.drives.len();
        scene.rig.rule(move |drive, command| match command {
            Command::Reset { .. } if drive == number => Act::Late,
            _ => Act::Pass,
        });
        submit(&scene.runtime, &scene.array, Command::Finish { zones: Zones::One(ZoneIndex(0)) });
        assert_eq!(scene.rig.held(), 1, "{policy:?}");
        scene.rig.rule(|_, _| Act::Pass);
        // If the rebuild counts the part as complete, all data has to be there without another member.
        let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).is_ok();
        scene.rig.release(|_, _| true);
        if rebuilt && scene.states()[1] == ACTIVE {
            scene.cut(&[3]);
            scene.check(0, 3 * STRIPE + 5);
        }
        assert_eq!(scene.states()[1].0, MemberState::Out, "{policy:?}");
        scene.replace(1);
        assert!(scene.rebuild().is_empty());
        scene.cut(&[3]);
        scene.check(0, 3 * STRIPE + 5);
    }
}

#[test]
fn late_read_never_returns_rewritten_part() {
    for policy in Policy::ALL {
        for blocks in [CHUNK, 2 * CHUNK] {
            let scene = Scene::new(policy, 4);
            scene.write(0, 0, 2 * STRIPE);
            let (begin, end) = (scene.shape.start(part(0)), scene.shape.start(part(1)));
            let of_part = move |lba: &Lba| (begin..end).contains(lba);
            scene.rig.rule(move |drive, command| match command {
                Command::Read { lba, .. } if drive == 1 && of_part(lba) => Act::Hold,
                _ => Act::Pass,
            });
            let lba = scene.array.geometry().start(ZoneIndex(0)).0 + CHUNK;
            let read = Command::read(Lba(lba), Buf::zeroed(blocks as usize * BLOCK));
            let pending = scene.array.submit(read);
            scene.runtime.run();
            scene.rig.damage(1, Fault::WriteFault(part(0)));
            scene.write(0, 2 * STRIPE, STRIPE);
            scene.rig.rule(move |drive, command| match command {
                Command::Write { lba, .. } if drive == 1 && of_part(lba) => Act::Hold,
                _ => Act::Pass,
            });
            let array = scene.array.clone();
            scene.runtime.spawn(async move { _ = array.rebuild(&|_| ()).await });
            scene.runtime.run();
            // The part has been reset for the rebuild.
            assert_eq!(scene.rig.release(|_, command| matches!(command, Command::Read { .. })), 1);
            let done = run(&scene.runtime, pending);
            assert_eq!(done.result, Ok(()));
            assert!(done.data[..] == pattern(lba, blocks), "{policy:?}");
        }
    }
}

#[test]
fn drive_losing_many_zones_goes_out_if_redundant() {
    for spared in [true, false] {
        let scene = Scene::new(Policy::Log, 20);
        if !spared {
            scene.rig.damage(2, Fault::WriteFault(part(19)));
            scene.write(19, 0, STRIPE);
        }
        for zone in 0..17 {
            assert_eq!(scene.array.status().members[1].state == MemberState::Active, zone == 0);
            scene.rig.damage(1, Fault::WriteFault(part(zone)));
            scene.write(zone, 0, 720);
        }
        let state = scene.array.status().members[1].state;
        assert_eq!(state, if spared { MemberState::Out } else { MemberState::Rebuilding });
        (0..17).for_each(|zone| scene.check(zone, 720));
    }
}

/// Lost parts that a reset has restored are no reason to take a drive out.
#[test]
fn drive_with_parts_restored_by_resets_stays_active() {
    let scene = Scene::new(Policy::Log, 20);
    for _ in 0..20 {
        scene.rig.damage(1, Fault::WriteFault(part(0)));
        scene.write(0, 0, STRIPE);
        assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE]);
        assert!(!scene.array.status().members[1].note.is_empty());
        assert_eq!(scene.reset(0), Ok(()));
        assert_eq!(scene.states(), [ACTIVE; 4]);
    }
    assert!(scene.array.status().members[1].note.is_empty());
}

/// Unreadable blocks of member 0: zone, and block of its part.
const BAD: [(u32, u64); 5] = [(0, 9), (1, 9), (1, 29), (2, 29), (3, 18)];
/// Tails of the zones: zone 0 is full, zone 1 ends inside a chunk, zone 2 was finished there.
const TAILS: [u64; 4] = [720, 7 * STRIPE + 7, 7 * STRIPE + 7, 100];
/// The blocks that are lost if member 3 is rebuilt then: of row 2 chunks 1 and 2, of row 7 chunks 0 and 1, and of row
/// 4, where member 3 has the parity, chunk 0.
const LOST: [(u32, u64); 9] =
    [(0, 29), (0, 33), (1, 29), (1, 33), (1, 85), (1, 89), (2, 85), (2, 89), (3, 50)];

/// An array with zones filled up to [`TAILS`].
fn filled(policy: Policy) -> Scene {
    let scene = Scene::new(policy, 4);
    scene.fill();
    scene
}

impl Scene {
    /// Fills the zones up to [`TAILS`].
    fn fill(&self) {
        (0..4).for_each(|zone| self.write(zone, 0, TAILS[zone as usize]));
        let finish = Command::Finish { zones: Zones::One(ZoneIndex(2)) };
        assert_eq!(run(&self.runtime, self.array.submit(finish)).result, Ok(()));
    }

    /// Fails reads of the blocks in [`BAD`] until the next power cut.
    fn fail_reads(&self) {
        let shape = self.shape.clone();
        self.rig.rule(move |drive, command| match command {
            Command::Read { lba, data, .. } if drive == 0 => {
                let blocks = lba.0..lba.0 + data.blocks();
                let bad = BAD.iter().any(|(zone, at)| blocks.contains(&(shape.start(part(*zone)).0 + at)));
                if bad { Act::Unreadable } else { Act::Pass }
            }
            _ => Act::Pass,
        });
    }

    /// Checks that the blocks in `lost`, and no others, are unreadable.
    fn check_lost(&self, lost: &[(u32, u64)], what: &str) {
        for zone in 0..4 {
            let own: Vec<_> = lost.iter().filter(|(z, _)| *z == zone).map(|(_, at)| *at).collect();
            assert_eq!(self.unreadable(zone, TAILS[zone as usize]), own, "{what}: zone {zone}");
            // The blocks between them can be read with large reads.
            let mut at = 0;
            for end in own.into_iter().chain([TAILS[zone as usize]]) {
                for from in (at..end).step_by(60) {
                    assert_eq!(self.try_read(zone, from, 60.min(end - from)), Ok(()), "{what}: {from}");
                }
                at = end + 1;
            }
        }
    }
}

#[test]
fn rebuild_passes_unreadable_blocks_losing_no_other() {
    for policy in Policy::ALL {
        let what = &format!("{policy:?}");
        let mut scene = filled(policy);
        for (zone, at) in BAD {
            let lba = scene.shape.start(part(zone)).0 + at;
            scene.rig.damage(0, Fault::Unreadable(Lba(lba)));
        }
        scene.replace(3);
        assert_eq!(scene.rebuild(), LOST, "{what}");
        assert_eq!(scene.states(), [ACTIVE; 4]);
        let mut lost = LOST.to_vec();
        for _ in 0..2 {
            assert_eq!(scene.array.status().lost_blocks, BAD.len() as u64);
            scene.check_lost(&lost, what);
            scene.cut(&[]);
            if policy == Policy::InPlace {
                // The parity version before the last one covers the first chunk only.
                lost.retain(|block| ![(1, 85), (1, 89)].contains(block));
            }
        }
        // The zone can be written further. If another member is lost that the tail does not need, the tail stays the
        // same, and in rows that already have two unreadable blocks the block of that member is lost as well.
        let (other, more, left) = match policy {
            Policy::InPlace => (1, vec![(3, 54)], 3),
            Policy::Zrwa | Policy::Log => (2, vec![(0, 25), (1, 25), (3, 58)], 4),
        };
        scene.write(1, TAILS[1], 1);
        scene.cut(&[other]);
        assert_eq!(wp(&scene.runtime, &scene.array, 1).1, TAILS[1] + 1, "{what}");
        let more: BTreeSet<_> = lost.into_iter().chain(more).collect();
        let more: Vec<_> = more.into_iter().collect();
        scene.check_lost(&more, what);
        let drive = scene.rig.drive(&scene.shape);
        run(&scene.runtime, scene.array.attach(other, drive.clone())).unwrap();
        scene.drives[other] = drive;
        // The member has no block in the last row of zone 1, and in that of zone 2 only if it has the parity there.
        let has = |block: &&(u32, u64)| block.1 < 84 || policy != Policy::InPlace && block.0 == 2;
        assert_eq!(scene.rebuild(), more.iter().filter(has).copied().collect::<Vec<_>>(), "{what}");
        scene.cut(&[]);
        scene.check_lost(&more, what);
        // A reset removes the bad blocks.
        assert_eq!((scene.reset(0), scene.reset(1)), (Ok(()), Ok(())));
        assert_eq!(scene.array.status().lost_blocks, left);
        scene.write(0, 0, TAILS[0]);
        scene.write(1, 0, TAILS[1]);
        for missing in [vec![], vec![0]] {
            scene.cut(&missing);
            assert_eq!(scene.array.status().lost_blocks, left);
            assert_eq!(scene.unreadable(0, TAILS[0]), [0; 0], "{what}");
            assert_eq!(scene.unreadable(1, TAILS[1]), [0; 0], "{what}");
        }
    }
}

#[test]
fn lost_blocks_return_when_their_source_is_readable() {
    for policy in Policy::ALL {
        let what = &format!("{policy:?}");
        let mut scene = filled(policy);
        scene.replace(3);
        scene.fail_reads();
        assert_eq!(scene.rebuild(), LOST, "{what}");
        scene.cut(&[]);
        assert_eq!(scene.array.status().lost_blocks, BAD.len() as u64);
        scene.check_lost(&[], what);
        // Bad blocks are never used for decoding.
        scene.cut(&[0]);
        scene.check_lost(&LOST, what);
        scene.cut(&[]);
        assert_eq!(scene.states()[0].0, MemberState::Out);
        let drive = scene.rig.drive(&scene.shape);
        run(&scene.runtime, scene.array.attach(0, drive.clone())).unwrap();
        scene.drives[0] = drive;
        assert_eq!(scene.rebuild(), LOST, "{what}");

        let mut scene = filled(policy);
        scene.replace(3);
        scene.fail_reads();
        scene.rebuild();
        scene.cut(&[]);
        scene.replace(3);
        assert_eq!(scene.rebuild(), [], "{what}");
        scene.cut(&[1]);
        assert_eq!(scene.array.status().lost_blocks, 0);
        scene.check_lost(&[], what);
    }
}

/// Once the blocks of the other drive are readable again, a rebuild fills the bad blocks, and another member may be
/// lost.
#[test]
fn rebuild_fills_bad_blocks_that_decode_again() {
    for (policy, spare) in Policy::ALL.into_iter().flat_map(|policy| [(policy, 0), (policy, 4)]) {
        let what = &format!("{policy:?} {spare}");
        let refilled = || {
            let mut scene = Scene::spared(policy, spare);
            scene.fill();
            scene.replace(3);
            scene.fail_reads();
            assert_eq!(scene.rebuild(), LOST, "{what}");
            // A rebuild changes nothing while the blocks are unreadable.
            assert_eq!(scene.rebuild(), [], "{what}");
            assert_eq!(scene.array.status().lost_blocks, BAD.len() as u64, "{what}");
            scene.cut(&[]);
            scene
        };
        let mut scene = refilled();
        assert_eq!(scene.rebuild(), [], "{what}");
        assert_eq!(scene.array.status().lost_blocks, 0, "{what}");
        assert_eq!(scene.states(), [ACTIVE; 4], "{what}");
        scene.check_lost(&[], what);
        scene.cut(&[0]);
        assert_eq!(scene.array.status().lost_blocks, 0, "{what}");
        scene.check_lost(&[], what);
        // A power cut at any step of the rebuild loses no data.
        let mut ended = false;
        for steps in (0..).step_by(7).take_while(|steps| *steps < 2000) {
            let mut scene = refilled();
            let cut = scene.rig.hold_after(steps);
            let array = scene.array.clone();
            scene.runtime.spawn(async move { _ = array.rebuild(&|_| ()).await });
            scene.runtime.run();
            if !cut.get() {
                ended = true;
                break;
            }
            scene.cut(&[]);
            scene.check_lost(&[], what);
            assert_eq!(scene.rebuild(), [], "{what} {steps}");
            scene.cut(&[1]);
            scene.check_lost(&[], what);
        }
        assert!(ended, "{what}");
    }
}

/// A part with a bad block that can be filled has another block that became unreadable and cannot be decoded: whenever
/// the filling is interrupted, that block is an error and never zeros.
#[test]
fn filling_of_bad_blocks_never_replaces_unreadable_block_by_zeros() {
    for policy in Policy::ALL {
        let mut ended = false;
        for steps in 0..1000 {
            let mut scene = Scene::spared(policy, 4);
            scene.fill();
            scene.replace(3);
            scene.fail_reads();
            assert_eq!(scene.rebuild(), LOST, "{policy:?}");
            scene.cut(&[]);
            // The block behind the bad block of zone 0, on the drive that is member 3 now and on another one.
            for drive in [4, 0] {
                scene.rig.damage(drive, Fault::Unreadable(Lba(scene.shape.start(part(0)).0 + BAD[0].1 + 1)));
            }
            let cut = scene.rig.hold_after(steps);
            let array = scene.array.clone();
            scene.runtime.spawn(async move { _ = array.rebuild(&|_| ()).await });
            scene.runtime.run();
            ended = !cut.get();
            scene.cut(&[]);
            scene.check_lost(&[(0, 30), (0, 34)], &format!("{policy:?} after {steps} steps"));
            if ended {
                break;
            }
        }
        assert!(ended, "{policy:?} never ends");
    }
}

#[test]
fn rebuild_over_unreadable_blocks_survives_interruption_anywhere() {
    for policy in Policy::ALL {
        // Near the tail this policy cannot recover with an unreadable block and a missing part at once, since it finds
        // the tail by which blocks are written.
        let possible =
            |block: &&(u32, u64)| policy != Policy::InPlace || block.0 != 1 || block.1 < 4 * STRIPE;
        let bad: Vec<_> = BAD.iter().filter(|(z, at)| possible(&&(*z, at * 3))).collect();
        let expected: Vec<_> = LOST.iter().filter(possible).copied().collect();
        let mut ended = false;
        for steps in (0..).step_by(5).take_while(|steps| *steps < 1000) {
            let mut scene = filled(policy);
            for (zone, at) in &bad {
                let lba = scene.shape.start(part(*zone)).0 + at;
                scene.rig.damage(0, Fault::Unreadable(Lba(lba)));
            }
            scene.replace(3);
            let cut = scene.rig.hold_after(steps);
            let array = scene.array.clone();
            scene.runtime.spawn(async move { _ = array.rebuild(&|_| ()).await });
            scene.runtime.run();
            ended = !cut.get();
            scene.cut(&[]);
            let what = &format!("{policy:?} after {steps} steps");
            scene.check_lost(&expected, what);
            let lost = scene.rebuild();
            assert!(lost.iter().all(|block| expected.contains(block)), "{what}");
            assert_eq!(scene.states(), [ACTIVE; 4], "{what}");
            assert_eq!(scene.array.status().lost_blocks, bad.len() as u64, "{what}");
            scene.cut(&[]);
            scene.check_lost(&expected, what);
            if ended {
                break;
            }
        }
        assert!(ended, "{policy:?} never ends");
    }
}

#[test]
fn rebuild_leaves_out_zone_with_too_many_bad_blocks() {
    // A checkpoint takes 95 blocks, which leaves room for 128 bad blocks.
    let mut scene = Scene::shaped(Policy::Zrwa, geometry(4 + META, 100, 8));
    (0..4).for_each(|zone| scene.write(zone, 0, 25 * STRIPE));
    for at in (0..100).step_by(2) {
        for zone in 0..3 {
            scene.rig.damage(1, Fault::Unreadable(Lba(scene.shape.start(part(zone)).0 + at)));
        }
    }
    scene.replace(2);
    let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
    assert!(rebuilt.left_out.len() == 1 && rebuilt.left_out[0].zone == 2, "{:?}", rebuilt.left_out);
    assert_eq!(rebuilt.left_out[0].reason, NoPart::TooManyBadBlocks);
    assert!(rebuilt.lost.iter().all(|lost| lost.zone < 2));
    scene.cut(&[]);
    assert_eq!(scene.states(), [ACTIVE, ACTIVE, LACKS_ONE, ACTIVE]);
    assert_eq!(scene.array.status().lost_blocks, 100);
    scene.check(3, 25 * STRIPE);
}

/// The remedy for a lost part depends on whether its drive can store it again.
#[test]
fn status_names_drive_with_worn_zones() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy, 4);
        (0..3).for_each(|zone| scene.write(zone, 0, 50));
        let worn = |scene: &Scene| scene.array.status().members.iter().map(|m| m.worn).collect::<Vec<_>>();
        // A drive with a single failed write may be sound.
        scene.rig.damage(2, Fault::WriteFault(part(0)));
        scene.write(0, 50, STRIPE);
        assert_eq!((scene.states()[2], &worn(&scene)[..]), (LACKS_ONE, &[false; 4][..]), "{policy:?}");
        assert_eq!(scene.rebuild(), []);
        scene.rig.damage(1, Fault::ReadOnly(part(0)));
        scene.write(0, 50 + STRIPE, STRIPE);
        for _ in 0..2 {
            assert_eq!(scene.states()[1], LACKS_ONE, "{policy:?}");
            assert_eq!(worn(&scene), [false, true, false, false], "{policy:?}");
            scene.cut(&[]);
        }
        scene.replace(1);
        scene.rebuild();
        assert_eq!((scene.states(), worn(&scene)), (vec![ACTIVE; 4], vec![false; 4]), "{policy:?}");
        scene.check(0, 50 + 2 * STRIPE);
    }
}

/// A reset of all zones resets the others although one zone has too many bad parts.
#[test]
fn reset_of_all_zones_skips_failed_ones() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy, 4);
        (0..3).for_each(|zone| scene.write(zone, 0, 50));
        scene.rig.damage(1, Fault::ReadOnly(part(1)));
        scene.rig.damage(2, Fault::Offline(part(1)));
        while scene.try_write(1, wp(&scene.runtime, &scene.array, 1).1, STRIPE).is_ok() {}
        assert_eq!(scene.state_of(1), ZoneState::ReadOnly, "{policy:?}");
        for _ in 0..2 {
            let done = run(&scene.runtime, scene.array.submit(Command::Reset { zones: Zones::All }));
            assert_eq!(done.result, Ok(()), "{policy:?}");
            let others = [0, 2, 3].map(|zone| scene.state_of(zone));
            assert_eq!(others, [ZoneState::Empty; 3], "{policy:?}");
            scene.write(0, 0, 50);
            scene.cut(&[]);
        }
    }
}

/// Two stripes are in zone 0, and member 1 lacks its part of it.
fn lacking_part(policy: Policy) -> Scene {
    let scene = Scene::new(policy, 4);
    scene.write(0, 0, STRIPE);
    scene.rig.damage(1, Fault::WriteFault(part(0)));
    scene.write(0, STRIPE, STRIPE);
    assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE]);
    scene
}

/// Only the zone report tells a part that has lost its ZRWA from a read-only one, where the drive gives no evidence.
#[test]
fn part_without_zrwa_at_flush_is_lost() {
    let scene = lacking_part(Policy::Zrwa);
    scene.rig.hide_power_epochs();
    let rig = scene.rig.clone();
    scene.rig.rule(move |drive, command| {
        if drive == 2 && matches!(command, Command::FlushZrwa { .. }) {
            rig.cut_power_of(2, Cut { cache_lost: false, zrwa_lost: true });
        }
        Act::Pass
    });
    assert!((2..20).any(|row| scene.try_write(0, row * STRIPE, STRIPE).is_err()));
    scene.runtime.run();
    assert_eq!(scene.states()[2], LACKS_ONE);
}

/// A block that cannot be decoded is not looked for in a lost part.
#[test]
fn lost_part_is_never_read() {
    let scene = lacking_part(Policy::Log);
    let (reads, data) = (Rc::new(Cell::new(0)), scene.shape.start(part(0)));
    let counted = reads.clone();
    scene.rig.rule(move |drive, command| match command {
        Command::Read { lba, .. } if drive == 1 && *lba >= data => {
            counted.set(counted.get() + 1);
            Act::Pass
        }
        Command::Read { lba, .. } if drive == 2 && *lba >= data => Act::Unreadable,
        _ => Act::Pass,
    });
    assert!(!scene.unreadable(0, 2 * STRIPE).is_empty());
    assert_eq!(reads.get(), 0);
}

/// Two members cannot finish their parts of a full zone: the second one is spared when the first one is rebuilt.
#[test]
fn part_that_could_not_be_spared_is_rebuilt_after_another() {
    let scene = Scene::shaped(Policy::Log, geometry(4 + META, 242, 8));
    scene.rig.rule(|drive, command| match command {
        Command::Finish { .. } if drive > 1 => Act::Refuse,
        _ => Act::Pass,
    });
    scene.write(0, 0, 60 * STRIPE);
    scene.runtime.run();
    scene.rig.rule(|_, _| Act::Pass);
    assert_eq!(scene.states(), [ACTIVE, ACTIVE, LACKS_ONE, ACTIVE]);
    let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
    assert_eq!((rebuilt.bytes, scene.states()), (2 * 240 * BLOCK as u64, vec![ACTIVE; 4]));
    scene.check(0, 60 * STRIPE);
}

/// A block of the part can be read, and not decoded.
#[test]
fn part_with_bad_block_is_kept_while_others_cannot_read() {
    let mut scene = filled(Policy::Log);
    scene.replace(3);
    scene.fail_reads();
    assert_eq!(scene.rebuild(), LOST);
    scene.cut(&[]);
    scene.rig.damage(0, Fault::Unreadable(Lba(scene.shape.start(part(0)).0 + BAD[0].1 + 1)));
    assert_eq!(scene.rebuild(), []);
    assert_eq!(scene.unreadable(0, TAILS[0]), [0; 0]);
}

#[test]
fn part_is_not_rebuilt_from_too_few_others() {
    let scene = Scene::new(Policy::Log, 4);
    scene.write(0, 0, 5 * STRIPE);
    scene.rig.damage(1, Fault::WriteFault(part(0)));
    scene.write(0, 5 * STRIPE, STRIPE);
    scene.rig.damage(2, Fault::Offline(part(0)));
    assert!(scene.try_write(0, 6 * STRIPE, STRIPE).is_err());
    let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
    let left_out: Vec<_> = rebuilt.left_out.iter().map(|left| (left.zone, left.member)).collect();
    assert_eq!(left_out, [(0, 1), (0, 2)]);
}

/// A part has lost its ZRWA, and is read before its drive has reported that.
#[test]
fn unclear_part_is_not_read_before_report() {
    let scene = lacking_part(Policy::Zrwa);
    scene.rig.hide_power_epochs();
    let rig = scene.rig.clone();
    scene.rig.rule(move |drive, command| match command {
        Command::FlushZrwa { .. } if drive == 2 => {
            rig.cut_power_of(2, Cut { cache_lost: false, zrwa_lost: true });
            Act::Pass
        }
        Command::Report { .. } => Act::hold_if(drive == 2),
        _ => Act::Pass,
    });
    let _written = scene.start(0, 2 * STRIPE, STRIPE);
    assert_eq!(scene.rig.held(), 1);
    // The first chunk of the stripe is on member 2.
    let mut read = scene.array.submit(Command::read(Lba(2 * STRIPE), Buf::zeroed(BLOCK)));
    scene.runtime.run();
    assert!(read.take().is_none());
}

/// One part is lost, another one cannot be written, and a third one has an unreadable block.
#[test]
fn failed_zone_with_unreadable_block_is_not_readable() {
    let scene = Scene::new(Policy::Log, 4);
    scene.write(0, 0, 5 * STRIPE);
    [1, 2].into_iter().for_each(|member| scene.rig.damage(member, Fault::WriteFault(part(0))));
    assert!(scene.try_write(0, 5 * STRIPE, STRIPE).is_err());
    assert!(scene.array.status().unreadable_zones.is_empty());
    scene.rig.damage(0, Fault::Unreadable(Lba(scene.shape.start(part(0)).0 + 1)));
    assert_eq!(scene.unreadable(0, 5 * STRIPE), [1, CHUNK + 1]);
    assert_eq!(scene.array.status().unreadable_zones, [ZoneIndex(0)]);
}
