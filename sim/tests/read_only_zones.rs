//! Zones that are read-only at the same position on more members than there are parities: the promised data is read, at
//! runtime and after a restart, and no data is invented.

use crate::support::{
    array::{geometry, options, pattern, run, wp, write_command},
    rig::Rig,
};
use emu::{
    rng::Rng,
    ssd::{Cut, EmulatedDrive, Fault},
};
use engine::{
    array::{Array, CreateOptions, Drive, Health, Tails},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, Status, ZonedDevice, Zones},
    raid::policy::Policy,
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
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
/// Stripes whose blocks may be in ZRWAs, at most.
const WINDOW: u64 = 8;

struct Scene {
    what: String,
    runtime: Runtime,
    rig: Rc<Rig>,
    drives: Vec<Drive>,
    shape: Geometry,
    array: Array,
    /// The status may name the worn zone as unreadable: blocks above its tail may have been lost with ZRWAs.
    is_doubtful: bool,
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

    /// An array with promised data up to `tail` in zone [`ZONE`].
    fn with_spares(policy: Policy, parities: usize, tail: u64, spare: u32) -> Scene {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let shape = geometry(ZONES + META + spare, 240, 8);
        let drives: Vec<_> = (0..3 + parities).map(|_| rig.drive(&shape)).collect();
        let created =
            CreateOptions { parities, policy: Some(policy), spare_zones: Some(spare), ..options(CHUNK) };
        let array = run(&runtime, Array::create(&runtime, created, drives.clone())).unwrap();
        let what = format!("{policy:?}, {parities} parities, tail {tail}");
        let scene = Scene { what, runtime, rig, drives, shape, array, is_doubtful: policy == Policy::Zrwa };
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

    /// Blocks below `tail` that cannot be read; checks that all others are right, and that no data is invented above.
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
                // Writes that were submitted and not acknowledged may be there.
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

    /// Checks that all of the zone can be read, that it cannot be written, and that the other zones work.
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
            let is_sure = !self.is_doubtful || status.unreadable_zones != [ZoneIndex(ZONE)];
            assert!(!is_sure || status.unreadable_zones.is_empty(), "{}", self.what);
            assert!(Health::of(&status).remedy.is_some());
            // Above the tail there may have been data.
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

    /// Kills the process, which had acknowledged writes up to `tail`.
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

/// Calls `judge` for each policy and level, with tails inside a stripe, at the end of one, and at the end of the zone.
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
fn parts_read_only_at_rest_are_read_after_restart() {
    all(|policy, parities, tail| {
        for worn in [parities + 1, 3 + parities] {
            let mut scene = Scene::new(policy, parities, tail);
            (0..worn).for_each(|member| scene.wear(member));
            for _ in 0..2 {
                scene.cut(&[]);
                // Only a part that is not worn shows that a zone is full, and may have the only mark of a block.
                if scene.state() != ZoneState::Offline || worn < 3 + parities {
                    scene.check_read_only(tail);
                }
            }
        }
    });
}

#[test]
fn parts_read_only_at_runtime_are_read_at_once() {
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
            // The array notices it when a command for one of these parts fails.
            let mut promised = end;
            for at in 0..STRIPE {
                let fua = at % 2 == 0;
                if !scene.try_write(ZONE, end, 1, fua) {
                    break;
                }
                end += 1;
                promised = if fua { end } else { promised };
            }
            for _ in 0..STRIPE {
                scene.try_write(ZONE, end, 2, true);
            }
            let status = scene.array.status();
            assert!(status.most_missing <= parities, "a readable part is lost: {}", scene.what);
            let unreadable = scene.unreadable(end);
            // The running parities cover blocks that are not on the members, and a ZRWA may be lost until recovery has
            // read it.
            let stripes = if policy.uses_zrwa() { WINDOW } else { 0 };
            let readable = (end / STRIPE).saturating_sub(stripes) * STRIPE;
            assert!(unreadable.iter().all(|at| *at >= readable), "{unreadable:?}: {}", scene.what);
            let is_named = status.unreadable_zones.contains(&ZoneIndex(ZONE));
            assert!(unreadable.is_empty() || is_named, "{unreadable:?}: {}", scene.what);
            let what = scene.what.clone();
            scene.what = format!("{what}, {step} between");
            for _ in 0..2 {
                scene.cut(&[]);
                // With the policy `inplace`, parts with empty ZRWAs may have lost marks.
                if policy != Policy::InPlace || scene.state() != ZoneState::Offline {
                    scene.check_read_only(promised);
                }
            }
        }
    });
}

#[test]
fn acknowledged_data_beside_read_only_parts_survives_kill() {
    all(|policy, parities, tail| {
        let mut scene = Scene::new(policy, parities, tail);
        let more = 5.min(CAPACITY - tail);
        assert!(more == 0 || scene.try_write(ZONE, tail, more, false));
        (0..=parities).for_each(|member| scene.wear(member + 1));
        scene.kill(tail + more);
        scene.check_read_only(tail + more);
        scene.cut(&[]);
        // In the first stripe, a record of the tail would mean that it was lost: no write pointer has moved.
        let first = policy == Policy::Zrwa && tail <= STRIPE;
        scene.check_read_only(if first { tail } else { tail + more });
    });
}

#[test]
fn read_only_part_replaces_missing_members() {
    all(|policy, parities, tail| {
        let mut scene = Scene::new(policy, parities, tail);
        scene.wear(0);
        let missing: Vec<usize> = (1..=parities).collect();
        scene.cut(&missing);
        scene.check_read_only(tail);
        // The zone has not been written without these members.
        scene.cut(&[]);
        scene.check_all(tail);
        assert!(tail == CAPACITY || scene.try_write(ZONE, tail, 1, true), "{}", scene.what);
    });
}

#[test]
fn read_only_parts_offline_later_wait_for_members() {
    all(|policy, parities, tail| {
        let mut scene = Scene::new(policy, parities, tail);
        (0..=parities).for_each(|member| scene.wear(member));
        let missing = [2 + parities];
        scene.cut(&missing);
        // With the policy `inplace`, the missing member may have the only mark of a block above.
        if policy != Policy::InPlace || scene.state() != ZoneState::Offline {
            scene.check_read_only(tail);
        }
        if tail == CAPACITY {
            // The zone has been found full without the missing member, which is stale now.
            return;
        }
        scene.cut(&[]);
        scene.check_read_only(tail);
        // As many parts are lost as parity covers, and the zone needs the missing member.
        let lost = Fault::Offline(ZoneIndex(ZONE + META));
        (0..parities).for_each(|member| scene.rig.damage(member, lost));
        scene.cut(&missing);
        assert_eq!(scene.unreadable(tail).len() as u64, tail, "{}", scene.what);
        scene.check_other();
        scene.cut(&[]);
        // With the policy `inplace`, a part with an empty ZRWA may have lost a mark.
        if policy != Policy::InPlace || scene.state() != ZoneState::Offline {
            scene.check_read_only(tail);
        }
    });
}

#[test]
fn read_only_zone_survives_power_loss_of_drive() {
    all(|policy, parities, tail| {
        for drive in 0..3 + parities {
            let mut scene = Scene::new(policy, parities, tail);
            (0..=parities).for_each(|member| scene.wear(member));
            scene.cut(&[]);
            scene.check_read_only(tail);
            scene.rig.cut_power_of(drive, Cut { cache_lost: true, zrwa_lost: true });
            run(&scene.runtime, scene.array.check_power());
            if drive <= parities || !policy.uses_zrwa() {
                // A read-only part has no ZRWA.
                scene.check_read_only(tail);
                continue;
            }
            let unreadable = scene.unreadable(tail);
            let is_named = scene.array.status().unreadable_zones.contains(&ZoneIndex(ZONE));
            assert!(unreadable.is_empty() || is_named, "{unreadable:?}: {}", scene.what);
        }
    });
}

/// Recovery cannot tell that a zone is full without a part that is not worn.
#[test]
fn status_counts_sound_parts_of_full_zones() {
    for policy in Policy::ALL {
        for (worn, may_be_lost) in [(0, 2), (3, 0)] {
            let mut scene = Scene::new(policy, 2, CAPACITY);
            (0..worn).for_each(|member| scene.wear(member));
            scene.cut(&[]);
            scene.check_all(CAPACITY);
            let status = scene.array.status();
            let health = Health::of(&status);
            let found = (health.may_be_lost, health.unreadable_zones.len());
            assert_eq!(found, (may_be_lost, 0), "{}", scene.what);
            assert_eq!(status.failed_zones.is_empty(), worn == 0, "{}", scene.what);
        }
    }
}

#[test]
fn empty_zone_with_read_only_parts_is_offline() {
    for policy in Policy::ALL {
        for spare in [0, 2] {
            let mut scene = Scene::with_spares(policy, 1, 0, spare);
            (0..2).for_each(|member| scene.wear(member));
            for _ in 0..2 {
                scene.cut(&[]);
                assert_eq!(scene.state(), ZoneState::Offline, "{}", scene.what);
                assert!(!scene.try_write(ZONE, 0, 1, true), "{}", scene.what);
                scene.check_other();
            }
            assert_eq!(scene.reset().is_ok(), spare > 0, "{}", scene.what);
            assert_eq!(scene.try_write(ZONE, 0, 1, true), spare > 0, "{}", scene.what);
        }
    }
}

#[test]
fn lost_zrwas_of_read_only_parts_are_not_read() {
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
                    let passed = (tail / STRIPE).saturating_sub(WINDOW) * STRIPE;
                    let unreadable = scene.unreadable(tail);
                    match scene.state() {
                        // Too many marks or records are lost.
                        ZoneState::Offline => assert!(policy == Policy::InPlace || passed == 0),
                        _ => assert!(
                            unreadable.iter().all(|at| *at >= passed),
                            "{unreadable:?}: {}",
                            scene.what
                        ),
                    }
                    let status = scene.array.status();
                    let is_named = status.unreadable_zones.contains(&ZoneIndex(ZONE))
                        || status.offline.iter().any(|offline| offline.zone == ZoneIndex(ZONE));
                    assert!(unreadable.is_empty() || is_named, "{unreadable:?}: {}", scene.what);
                }
            }
        }
    }
}

#[test]
fn reset_of_read_only_zone_needs_spare_zones() {
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
    use engine::volume::{Volume, VolumeCreateOptions, VolumeOptions};
    let drive = EmulatedDrive::in_memory(&crate::support::volume::geometry());
    let device = || Rc::new(drive.clone()) as Rc<dyn ZonedDevice>;
    let made = VolumeCreateOptions { uuid: [1; 16], ..VolumeCreateOptions::default() };
    run(&Runtime::new(), Volume::create(&Runtime::new(), device(), made)).unwrap();
    let block = |byte: u8| Buf::copy_of(&[byte; BLOCK]);
    for life in 0..4u8 {
        let runtime = Runtime::new();
        let volume = run(&runtime, Volume::open(&runtime, device(), VolumeOptions::default())).unwrap();
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

/// The same zone of a volume's newest root is read-only on two drives of an array with one parity: the volume starts,
/// and continues in its other head zone.
#[test]
fn volume_on_array_starts_from_read_only_head() {
    use engine::volume::{Volume, VolumeCreateOptions, VolumeOptions};
    for policy in Policy::ALL {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let drives: Vec<_> = (0..4).map(|_| rig.drive(&geometry(20 + META, 240, 12))).collect();
        let created = CreateOptions { parities: 1, policy: Some(policy), ..options(CHUNK) };
        let array = run(&runtime, Array::create(&runtime, created, drives.clone())).unwrap();
        let made = VolumeCreateOptions { uuid: [1; 16], ..VolumeCreateOptions::default() };
        run(&runtime, Volume::create(&Runtime::new(), Rc::new(array), made)).unwrap();
        runtime.clear();
        let block = |byte: u8| Buf::copy_of(&[byte; BLOCK]);
        for life in 0..4u8 {
            let runtime = Runtime::new();
            let array = Rc::new(run(&runtime, Array::assemble(&runtime, drives.clone())).unwrap());
            let head = wp(&runtime, &array, 0).0;
            assert_eq!(head == ZoneState::ReadOnly, life > 0, "{policy:?}: {head:?} in life {life}");
            let volume = run(&runtime, Volume::open(&runtime, array, VolumeOptions::default())).unwrap();
            for before in 0..life {
                let read = run(&runtime, volume.read(before as u64, Buf::zeroed(BLOCK))).unwrap();
                assert!(read[..] == block(before + 1)[..], "{policy:?}, life {life}, block {before}");
            }
            run(&runtime, volume.write(life as u64, &block(life + 1), true)).unwrap();
            runtime.clear();
            if life == 0 {
                (0..2).for_each(|drive| rig.damage(drive, Fault::ReadOnly(ZoneIndex(META))));
            }
            rig.cut_power(&mut Rng::new(1), |_| Cut { cache_lost: true, zrwa_lost: false });
        }
    }
}

#[test]
fn power_loss_costs_no_part_of_read_only_zone() {
    let mut scene = Scene::new(Policy::Log, 1, 3 * STRIPE);
    (0..2).for_each(|member| scene.wear(member));
    scene.cut(&[]);
    scene.check_read_only(3 * STRIPE);
    scene.rig.cut_power_of(0, Cut::default());
    run(&scene.runtime, scene.array.check_power());
    let lacking: u32 = scene.array.status().members.iter().map(|member| member.zones_to_rebuild).sum();
    assert_eq!(lacking, 0);
}
