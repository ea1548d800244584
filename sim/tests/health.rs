//! What the status of an array says is compared with what there is, in states that random faults lead to: it is never
//! better than reality, and what it advises helps.

use crate::support::{
    array::{geometry, options, pattern, run, write_command},
    rig::Rig,
};
use engine::{
    array::{Array, Cause, Condition, Drive, Health, MemberState, Remedy},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, ZonedDevice},
    raid::{geometry::subsets, policy::Policy},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use sim::{rng::Rng, ssd::Fault};
use std::rc::Rc;

const CHUNK: u64 = 4;
const ZONES: u32 = 4;
const SPARE: u32 = 2;
/// Metadata zones of a drive.
const META: u32 = 2;

struct Scene {
    runtime: Runtime,
    rig: Rc<Rig>,
    /// Numbers of the drives in the rig, by role.
    bays: Vec<usize>,
    shape: Geometry,
    array: Array,
    /// How much of each zone was written with FUA.
    tails: [u64; ZONES as usize],
}

impl Scene {
    fn new(policy: Policy, parities: usize) -> Scene {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let shape = geometry(ZONES + META + SPARE, 120, 8);
        let bays: Vec<usize> = (0..3 + parities).collect();
        let drives: Vec<Drive> = bays.iter().map(|_| rig.drive(&shape)).collect();
        let options = engine::array::CreateOptions {
            parities,
            policy: Some(policy),
            spare_zones: Some(SPARE),
            ..options(CHUNK)
        };
        let array = run(&runtime, Array::create(&runtime, options, drives)).unwrap();
        Scene { runtime, rig, bays, shape, array, tails: [0; ZONES as usize] }
    }

    fn write(&mut self, rng: &mut Rng) {
        let zone = rng.below(ZONES as u64) as u32;
        let tail = self.tails[zone as usize];
        let blocks = (1 + rng.below(40)).min(self.array.layout().capacity_blocks() - tail);
        if blocks > 0 {
            let command = write_command(&self.array, zone, tail, blocks, true);
            if run(&self.runtime, self.array.submit(command)).result.is_ok() {
                self.tails[zone as usize] += blocks;
            }
        }
    }

    /// Zones of which something that was promised cannot be read.
    fn unreadable(&self, runtime: &Runtime, array: &Array, what: &str) -> Vec<ZoneIndex> {
        let is_unreadable = |zone: &u32| {
            let start = array.geometry().start(ZoneIndex(*zone)).0;
            (0..self.tails[*zone as usize]).any(|at| {
                let done = run(runtime, array.submit(Command::read(Lba(start + at), Buf::zeroed(BLOCK))));
                let is_right = done.result.is_err() || done.data[..] == pattern(start + at, 1);
                assert!(is_right, "{what}: zone {zone}, block {at}");
                done.result.is_err()
            })
        };
        (0..ZONES).filter(is_unreadable).map(ZoneIndex).collect()
    }

    /// Compares what the status says with what there is.
    fn judge(&self, what: &str) {
        let unreadable = self.unreadable(&self.runtime, &self.array, what);
        let status = self.array.status();
        let health = Health::of(&status);
        let what = format!("{what}: {health:?}, {status:?}");
        let offline: Vec<ZoneIndex> = status.offline.iter().map(|zone| zone.zone).collect();
        let has_gaps = status.most_missing > status.parities;
        for zone in &unreadable {
            let is_said = status.unreadable_zones.contains(zone) || offline.contains(zone) || has_gaps;
            assert!(health.condition != Condition::Healthy && is_said, "{zone:?} cannot be read; {what}");
        }
        if health.condition == Condition::Healthy {
            assert_eq!((health.may_be_lost, &health.remedy), (status.parities, &None), "{what}");
        } else {
            assert!(health.remedy.is_some(), "{what}");
        }
        // Whoever is lost of so many, all that could be read can be.
        let all = status.members.iter().enumerate().filter(|(_, member)| member.state != MemberState::Out);
        let there = all.fold(0u32, |all, (member, _)| all | 1 << member);
        for lost in subsets(there, health.may_be_lost as u32).into_iter().filter(|lost| *lost != 0) {
            let left = (0..self.bays.len()).filter(|member| there & !lost & (1 << member) != 0);
            let copies = left.map(|member| self.rig.copy(self.bays[member])).collect();
            let runtime = Runtime::new();
            let array = run(&runtime, Array::assemble(&runtime, copies));
            let array = array.unwrap_or_else(|error| panic!("without {lost:b}: {error}; {what}"));
            let now = self.unreadable(&runtime, &array, &what);
            let is_new = |zone: &ZoneIndex| !unreadable.contains(zone) && !status.failed_zones.contains(zone);
            assert!(!now.iter().any(is_new), "without {lost:b} {now:?} cannot be read; {what}");
            runtime.clear();
        }
    }

    /// Does what the status advises; gives whether there is anything to do, and it can be done here.
    fn help(&mut self) -> bool {
        let health = Health::of(&self.array.status());
        let before = health.clone();
        match health.remedy {
            Some(Remedy::Rebuild) => {
                let rebuilt = run(&self.runtime, self.array.rebuild(&|_| ())).unwrap();
                assert!(rebuilt.left_out.is_empty(), "{before:?}: {rebuilt:?}");
            }
            Some(Remedy::Replace(members)) if health.cause != Some(Cause::ZonesFailed) => {
                let drive = self.rig.drive(&self.shape);
                let bay = drive.name["drive".len()..].parse().unwrap();
                let member = members[0];
                let done = if before.out.contains(&member) {
                    run(&self.runtime, self.array.attach(member, drive))
                } else {
                    run(&self.runtime, self.array.replace(member, drive, &|_| ())).map(|_| ())
                };
                done.unwrap_or_else(|error| panic!("{before:?}: {error}"));
                self.bays[member] = bay;
                run(&self.runtime, self.array.rebuild(&|_| ())).unwrap();
            }
            _ => return false,
        }
        let after = Health::of(&self.array.status());
        let is_better = after.condition < before.condition
            || after.may_be_lost > before.may_be_lost
            || after.out.len() + after.lacking.len() + after.unreadable.len()
                < before.out.len() + before.lacking.len() + before.unreadable.len();
        assert!(is_better, "{before:?} has become {after:?}");
        true
    }
}

#[test]
fn status_is_never_better_than_reality_and_its_advice_helps() {
    let (mut helped, mut degraded, mut failed) = (0, 0, 0);
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let policy = *rng.pick(&Policy::ALL);
        let mut scene = Scene::new(policy, 1 + rng.below(2) as usize);
        (0..6).for_each(|_| scene.write(&mut rng));
        let mut vanished = false;
        for step in 0..6 {
            let what = format!("seed {seed}, step {step}, {policy:?}");
            let (member, zone) =
                (rng.below(scene.bays.len() as u64) as usize, rng.below(ZONES as u64) as u32);
            let (bay, part) = (scene.bays[member], ZoneIndex(zone + META));
            match rng.below(6) {
                0 | 1 => scene.rig.damage(bay, Fault::ReadOnly(part)),
                2 => scene.rig.damage(bay, Fault::WriteFault(part)),
                3 => {
                    let at = part.0 as u64 * scene.shape.zone_size_blocks + rng.below(30);
                    scene.rig.damage(bay, Fault::Unreadable(Lba(at)));
                }
                4 if !vanished => {
                    scene.rig.damage(bay, Fault::Vanish);
                    vanished = true;
                }
                _ => {}
            }
            (0..3).for_each(|_| scene.write(&mut rng));
            scene.judge(&what);
            let health = Health::of(&scene.array.status());
            degraded += (health.condition == Condition::Degraded) as u32;
            failed += (health.cause == Some(Cause::ZonesFailed)) as u32;
            if health.condition == Condition::Unusable {
                break;
            }
            if rng.below(3) == 0 && scene.help() {
                helped += 1;
                scene.judge(&format!("{what}, helped"));
            }
        }
    }
    assert!(
        helped > 20 && degraded > 100 && failed > 5,
        "helped {helped}, degraded {degraded}, failed {failed}"
    );
}
