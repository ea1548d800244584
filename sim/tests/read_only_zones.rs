//! Zones that members can only read, at the same position on more of them than there are parities: what was promised is
//! read, while the array runs and after a restart, and nothing is made up.

use crate::support::{
    array::{geometry, options, pattern, run, wp, write_command},
    rig::Rig,
};
use engine::{
    array::{Array, CreateOptions, Drive, Health, Tails},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, Status, ZonedDevice, Zones},
    raid::policy::Policy,
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use sim::{
    rng::Rng,
    ssd::{Cut, EmulatedDrive, Fault},
};
use std::rc::Rc;

const CHUNK: u64 = 4;
/// Blocks of a stripe: of three chunks.
const STRIPE: u64 = 3 * CHUNK;
const CAPACITY: u64 = 240 / CHUNK * STRIPE;
const META: u32 = 2;
const ZONES: u32 = 4;
/// The zone that wears out.
const ZONE: u32 = 1;

struct Scene {
    what: String,
    runtime: Runtime,
    rig: Rc<Rig>,
    drives: Vec<Drive>,
    shape: Geometry,
    array: Array,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

impl Scene {
    fn new(policy: Policy, parities: usize, tail: u64) -> Scene {
        Scene::with_spares(policy, parities, tail, 0)
    }

    /// An array whose zone [`ZONE`] ends at `tail`, with everything promised.
    fn with_spares(policy: Policy, parities: usize, tail: u64, spare: u32) -> Scene {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let shape = geometry(ZONES + META + spare, 240, 8);
        let drives: Vec<_> = (0..3 + parities).map(|_| rig.drive(&shape)).collect();
        let created =
            CreateOptions { parities, policy: Some(policy), spare_zones: Some(spare), ..options(CHUNK) };
        let array = run(&runtime, Array::create(&runtime, created, drives.clone())).unwrap();
        let what = format!("{policy:?}, {parities} parities, tail {tail}");
        let scene = Scene { what, runtime, rig, drives, shape, array };
        scene.write(ZONE, 0, tail);
        scene.write(2, 0, STRIPE + 1);
        scene
    }

    fn try_write(&self, zone: u32, at: u64, blocks: u64, fua: bool) -> bool {
        let command = write_command(&self.array, zone, at, blocks, fua);
        run(&self.runtime, self.array.submit(command)).result.is_ok()
    }

    fn write(&self, zone: u32, at: u64, blocks: u64) {
        for from in (at..at + blocks).step_by(23) {
            assert!(self.try_write(zone, from, (at + blocks - from).min(23), true), "{}", self.what);
        }
    }

    fn wear(&self, member: usize) {
        self.rig.damage(member, Fault::ReadOnly(ZoneIndex(ZONE + META)));
    }

    fn state(&self) -> ZoneState {
        wp(&self.runtime, &self.array, ZONE).0
    }

    /// Blocks below `tail` that cannot be read; all others are right, and nothing is invented behind it.
    fn unreadable(&self, tail: u64) -> Vec<u64> {
        let start = self.array.geometry().start(ZoneIndex(ZONE)).0;
        let read = |at: u64| {
            let read = Command::read(Lba(start + at), Buf::zeroed(BLOCK));
            run(&self.runtime, self.array.submit(read))
        };
        let bad = (0..tail).filter(|at| {
            let done = read(*at);
            let right = done.result.is_err() || done.data[..] == pattern(start + at, 1);
            assert!(right, "block {at}: {}", self.what);
            done.result.is_err()
        });
        let bad = bad.collect();
        for at in tail..(tail + 2 * STRIPE).min(CAPACITY) {
            let done = read(at);
            let is_known = || {
                let zeros = done.data.iter().all(|byte| *byte == 0);
                // What was submitted and not answered may be there.
                zeros || done.data[..] == pattern(start + at, 1)
            };
            assert!(done.result.is_err() || is_known(), "block {at}: {}", self.what);
        }
        bad
    }

    #[track_caller]
    fn check_all(&self, tail: u64) {
        let unreadable = self.unreadable(tail);
        assert!(unreadable.is_empty(), "{unreadable:?}: {}", self.what);
    }

    /// The zone can be read, all of it, and not be written; the others work.
    #[track_caller]
    fn check_read_only(&self, tail: u64) {
        let full = if tail == CAPACITY { ZoneState::Full } else { ZoneState::ReadOnly };
        assert_eq!(self.state(), full, "{}", self.what);
        self.check_all(tail);
        assert!(tail == CAPACITY || !self.try_write(ZONE, tail, 1, true), "{}", self.what);
        let status = self.array.status();
        assert_eq!(status.offline, [], "{}", self.what);
        if full == ZoneState::ReadOnly {
            assert_eq!(status.failed_zones, [ZoneIndex(ZONE)], "{}", self.what);
            assert_eq!(status.unreadable_zones, [], "{}", self.what);
            assert!(Health::of(&status).remedy.is_some());
            // There may have been more.
            let lba = Lba(self.array.geometry().start(ZoneIndex(ZONE)).0 + CAPACITY - 1);
            let behind = Command::read(lba, Buf::zeroed(BLOCK));
            let behind = run(&self.runtime, self.array.submit(behind)).result;
            assert_eq!(behind, Err(Status::UnrecoveredReadError.into()), "{}", self.what);
        }
        assert_eq!(run(&self.runtime, self.array.submit(Command::Flush)).result, Ok(()), "{}", self.what);
        self.check_other();
    }

    fn check_other(&self) {
        let start = self.array.geometry().start(ZoneIndex(2)).0;
        let read = Command::read(Lba(start), Buf::zeroed((STRIPE + 1) as usize * BLOCK));
        let done = run(&self.runtime, self.array.submit(read));
        assert!(done.result.is_ok() && done.data[..] == pattern(start, STRIPE + 1), "{}", self.what);
    }

    fn there(&self, missing: &[usize]) -> Vec<Drive> {
        let there = self.drives.iter().enumerate().filter(|(member, _)| !missing.contains(member));
        there.map(|(_, drive)| drive.clone()).collect()
    }

    /// Cuts the power, and assembles the array without the drives in `missing`.
    fn cut(&mut self, missing: &[usize]) {
        self.runtime.clear();
        self.rig.cut_power(&mut Rng::new(1), |_| Cut { cache_lost: true, zrwa_lost: false });
        self.array = run(&self.runtime, Array::assemble(&self.runtime, self.there(missing))).unwrap();
    }

    /// Kills the process, which had answered writes up to `tail`.
    fn kill(&mut self, tail: u64) {
        let mut tails =
            Tails { assembly: self.array.assembly(), blocks: vec![0; ZONES as usize], power: vec![] };
        tails.blocks[ZONE as usize] = tail;
        self.runtime.clear();
        self.array = run(&self.runtime, Array::take_over(&self.runtime, self.there(&[]), &tails)).unwrap();
    }

    fn reset(&self) -> Result<(), Status> {
        let reset = Command::Reset { zones: Zones::One(ZoneIndex(ZONE)) };
        let done = run(&self.runtime, self.array.submit(reset));
        done.result.map_err(|error| Status::ALL.iter().copied().find(|s| error == (*s).into()).unwrap())
    }
}

/// Every policy, both levels, and zones that are open with a partial stripe, at the end of one, or full.
fn all(judge: impl Fn(Policy, usize, u64)) {
    for policy in Policy::ALL {
        for parities in [1, 2] {
            for tail in
                [1, CHUNK + 1, STRIPE, 3 * STRIPE, 9 * STRIPE + CHUNK + 1, 40 * STRIPE + 2 * CHUNK, CAPACITY]
            {
                judge(policy, parities, tail);
            }
        }
    }
}

#[test]
fn parts_that_wear_out_at_rest_are_read_after_a_restart() {
    all(|policy, parities, tail| {
        for worn in [parities + 1, 3 + parities] {
            let mut scene = Scene::new(policy, parities, tail);
            // One that is not worn knows where the zone ends.
            (0..worn).for_each(|member| scene.wear(member));
            for _ in 0..2 {
                scene.cut(&[]);
                if scene.state() != ZoneState::Offline || worn < 3 + parities {
                    scene.check_read_only(tail);
                }
            }
        }
    });
}

#[test]
fn parts_that_wear_out_at_work_are_read_before_and_after_a_restart() {
    all(|policy, parities, tail| {
        if tail + 2 * STRIPE > CAPACITY {
            return;
        }
        for (step, first) in [(0, 0), (1, 1), (STRIPE + 2, 2), (5 * STRIPE, 3)] {
            let mut scene = Scene::new(policy, parities, tail);
            let mut end = tail;
            for lost in 0..parities {
                scene.wear((first + lost) % (3 + parities));
                let more = step.min(CAPACITY - end - STRIPE);
                scene.write(ZONE, end, more);
                end += more;
            }
            scene.wear((first + parities) % (3 + parities));
            // Until one of them is written to, nobody knows.
            for at in 0..STRIPE {
                if !scene.try_write(ZONE, end, 1, at % 2 == 0) {
                    break;
                }
                end += 1;
            }
            for _ in 0..STRIPE {
                scene.try_write(ZONE, end, 2, true);
            }
            if scene.array.status().most_missing > parities {
                // An explicit flush has failed first, of which the error does not say that the zone can be read.
                continue;
            }
            // Of the stripe that was being written, parity is in memory, of more than there is.
            let unreadable = scene.unreadable(end);
            assert!(
                unreadable.iter().all(|at| *at >= end / STRIPE * STRIPE),
                "{unreadable:?}: {}",
                scene.what
            );
            let what = scene.what.clone();
            scene.what = format!("{what}, {step} between");
            for _ in 0..2 {
                scene.cut(&[]);
                scene.check_read_only(end);
            }
        }
    });
}

#[test]
fn what_was_answered_is_read_when_a_process_dies_beside_worn_parts() {
    all(|policy, parities, tail| {
        let mut scene = Scene::new(policy, parities, tail);
        let more = 5.min(CAPACITY - tail);
        assert!(more == 0 || scene.try_write(ZONE, tail, more, false));
        (0..=parities).for_each(|member| scene.wear(member + 1));
        scene.kill(tail + more);
        scene.check_read_only(tail + more);
        scene.cut(&[]);
        // In the first stripe a record of it without write pointers that have moved would say that it is lost.
        let first = policy.uses_zrwa() && tail <= STRIPE;
        scene.check_read_only(if first { tail } else { tail + more });
    });
}

#[test]
fn worn_part_is_read_in_the_place_of_missing_members() {
    all(|policy, parities, tail| {
        let mut scene = Scene::new(policy, parities, tail);
        scene.wear(0);
        let missing: Vec<usize> = (1..=parities).collect();
        scene.cut(&missing);
        scene.check_read_only(tail);
        // Nothing has been written without them.
        scene.cut(&[]);
        scene.check_all(tail);
        assert!(tail == CAPACITY || scene.try_write(ZONE, tail, 1, true), "{}", scene.what);
    });
}

#[test]
fn zone_is_offline_if_worn_parts_are_too_few_and_back_with_the_members() {
    all(|policy, parities, tail| {
        let mut scene = Scene::new(policy, parities, tail);
        (0..=parities).for_each(|member| scene.wear(member));
        let missing = [2 + parities];
        scene.cut(&missing);
        scene.check_read_only(tail);
        if tail == CAPACITY {
            // That it was there without that one is known.
            return;
        }
        scene.cut(&[]);
        scene.check_read_only(tail);
        // Now as many are lost as may be, and nothing of it can be read without the other one.
        let lost = Fault::Offline(ZoneIndex(ZONE + META));
        (0..parities).for_each(|member| scene.rig.damage(member, lost));
        scene.cut(&missing);
        assert_eq!(scene.unreadable(tail).len() as u64, tail, "{}", scene.what);
        scene.check_other();
        scene.cut(&[]);
        scene.check_read_only(tail);
    });
}

#[test]
fn lost_zrwas_of_worn_parts_are_not_read() {
    for policy in [Policy::Zrwa, Policy::InPlace] {
        for parities in [1, 2] {
            for tail in [CHUNK + 1, 3 * STRIPE, 9 * STRIPE + CHUNK + 1, 40 * STRIPE + 2 * CHUNK] {
                let mut scene = Scene::new(policy, parities, tail);
                scene.runtime.clear();
                let cut = |member: usize| Cut { cache_lost: true, zrwa_lost: member <= parities };
                scene.rig.cut_power(&mut Rng::new(1), cut);
                (0..=parities).for_each(|member| scene.wear(member));
                for _ in 0..2 {
                    scene.cut(&[]);
                    let passed = (tail / STRIPE).saturating_sub(8) * STRIPE;
                    let unreadable = scene.unreadable(tail);
                    match scene.state() {
                        // Where too much is gone to find its end by marks.
                        ZoneState::Offline => assert!(policy == Policy::InPlace || passed == 0),
                        _ => assert!(
                            unreadable.iter().all(|at| *at >= passed),
                            "{unreadable:?}: {}",
                            scene.what
                        ),
                    }
                }
            }
        }
    }
}

#[test]
fn reset_of_a_read_only_zone_takes_spare_zones_or_gives_up_nothing() {
    for policy in Policy::ALL {
        for spare in [0, 2] {
            let tail = 5 * STRIPE + 3;
            let mut scene = Scene::with_spares(policy, 1, tail, spare);
            (0..2).for_each(|member| scene.wear(member));
            scene.cut(&[]);
            scene.check_read_only(tail);
            if spare == 0 {
                assert_eq!(scene.reset(), Err(Status::InvalidZoneStateTransition));
                scene.check_read_only(tail);
                scene.cut(&[]);
                scene.check_read_only(tail);
                continue;
            }
            assert_eq!(scene.reset(), Ok(()), "{}", scene.what);
            scene.write(ZONE, 0, tail + 1);
            scene.cut(&[0]);
            scene.check_all(tail + 1);
            assert_eq!(scene.shape.zones, ZONES + META + spare);
        }
    }
}

/// The zone of a volume's newest root can only be read: the volume starts, and goes on in the other one.
#[test]
fn volume_starts_whose_head_can_only_be_read() {
    use engine::volume::{Behaviour, CreateOptions, Volume};
    let drive = EmulatedDrive::in_memory(&crate::support::volume::geometry());
    let device = || Rc::new(drive.clone()) as Rc<dyn ZonedDevice>;
    let made = CreateOptions { uuid: [1; 16], ..CreateOptions::default() };
    run(&Runtime::new(), Volume::create(device(), made)).unwrap();
    let block = |byte: u8| Buf::copy_of(&[byte; BLOCK]);
    for life in 0..4u8 {
        let runtime = Runtime::new();
        let volume = run(&runtime, Volume::open(&runtime, device(), Behaviour::default())).unwrap();
        for before in 0..life {
            let read = run(&runtime, volume.read(before as u64, Buf::zeroed(BLOCK))).unwrap();
            assert!(read[..] == block(before + 1)[..], "life {life}, block {before}");
        }
        run(&runtime, volume.write(life as u64, &block(life + 1), true)).unwrap();
        runtime.clear();
        if life == 0 {
            drive.ssd().borrow_mut().faults().after(0, Fault::ReadOnly(ZoneIndex(0)));
        }
    }
}
