//! Arrays with two parities: the loss of any two members, at any moment, one after the other or at once.

use crate::support::{
    array::{check, drives, geometry, options, pattern, records, run, submit, wp, write, write_command},
    rig::{Act, Rig},
    scene::{META, finish, part, reset},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use engine::{
    array::{Array, ArrayOptions, CreateOptions, Drive, LostBlocks, MemberState, ReplaceOutcome, Tails},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, Status, ZonedDevice, Zones, Zrwa},
    format::record::Record,
    owner::Change,
    raid::policy::Policy,
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
};

const CHUNK: u64 = 4;
/// One zone for each kind of tail.
const ZONES: u32 = 7;
const FULL: u32 = 4;
const FINISHED: u32 = 5;

fn two_parities(policy: Policy) -> CreateOptions {
    CreateOptions { policy: Some(policy), parities: 2, ..options(CHUNK) }
}

struct Scene {
    runtime: Runtime,
    rig: Rc<Rig>,
    drives: Vec<Drive>,
    array: Array,
    shape: Geometry,
    /// Tail of each zone.
    tails: Vec<u64>,
    /// Zones that are full or finished.
    ended: BTreeSet<u32>,
}

impl Drop for Scene {
    /// Tasks hold the array, and the array its drives.
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

impl Scene {
    fn new(policy: Policy, members: usize) -> Scene {
        Scene::shaped(policy, members, geometry(ZONES + META, 240, 8))
    }

    fn shaped(policy: Policy, members: usize, shape: Geometry) -> Scene {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let drives: Vec<_> = (0..members).map(|_| rig.drive(&shape)).collect();
        let array = run(&runtime, Array::create(&runtime, two_parities(policy), drives.clone())).unwrap();
        let tails = vec![0; array.geometry().zones as usize];
        Scene { runtime, rig, drives, array, shape, tails, ended: BTreeSet::new() }
    }

    /// An array with data in every zone, with tails: inside the first chunk, at its end, inside the second stripe, one
    /// block before the end of a stripe, full, finished, and near the end of the zone, where slots and logs have no
    /// rows.
    fn filled(policy: Policy, members: usize) -> Scene {
        let mut scene = Scene::new(policy, members);
        scene.fill();
        scene
    }

    fn fill(&mut self) {
        let (stripe, capacity) = (self.stripe(), self.array.geometry().zone_capacity_blocks);
        self.write_to(FULL, capacity);
        self.write_to(FINISHED, stripe + 3);
        submit(&self.runtime, &self.array, finish(FINISHED));
        self.ended.extend([FULL, FINISHED]);
        let last = capacity - 2 * stripe + CHUNK + 1;
        let tails = [(0, 1), (1, CHUNK), (2, stripe + CHUNK + 1), (3, 3 * stripe - 1), (6, last)];
        tails.into_iter().for_each(|(zone, tail)| self.write_to(zone, tail));
    }

    /// Data blocks of a stripe.
    fn stripe(&self) -> u64 {
        self.array.layout().stripe_blocks()
    }

    /// Writes a zone up to `tail` in writes of many sizes; the last one is durable.
    fn write_to(&mut self, zone: u32, tail: u64) {
        let stripe = self.stripe();
        let mut at = self.tails[zone as usize];
        while at < tail {
            let blocks = if at + 4 * stripe < tail { stripe } else { at % 5 + 1 }.min(tail - at);
            write(&self.runtime, &self.array, zone, at, blocks, at + blocks == tail);
            at += blocks;
        }
        self.tails[zone as usize] = tail;
    }

    /// Writes up to `blocks` more to every zone that has been begun.
    fn write_on(&mut self, blocks: u64) {
        let capacity = self.array.geometry().zone_capacity_blocks;
        for zone in 0..self.tails.len() {
            let zone = zone as u32;
            if self.tails[zone as usize] > 0 && !self.ended.contains(&zone) {
                self.write_to(zone, (self.tails[zone as usize] + blocks).min(capacity));
                if self.tails[zone as usize] == capacity {
                    self.ended.insert(zone);
                }
            }
        }
    }

    /// Checks that every zone ends at its tail and reads as written.
    fn check(&self, what: &str) {
        for (zone, tail) in (0..).zip(&self.tails) {
            let found = wp(&self.runtime, &self.array, zone);
            let right = match self.ended.contains(&zone) {
                true => found.0 == ZoneState::Full,
                false => found.1 == *tail,
            };
            assert!(right, "{what}: zone {zone} is {found:?} instead of at {tail}");
            check(&self.runtime, &self.array, zone, *tail);
        }
    }

    fn states(&self) -> Vec<MemberState> {
        self.array.status().members.iter().map(|member| member.state).collect()
    }

    fn assert_out(&self, lost: &[usize]) {
        let states = self.states();
        let out: Vec<_> = (0..states.len()).filter(|member| states[*member] == MemberState::Out).collect();
        let mut lost = lost.to_vec();
        lost.sort();
        assert_eq!(out, lost);
    }

    fn without(&self, missing: &[usize]) -> Vec<Drive> {
        let there = self.drives.iter().enumerate().filter(|(member, _)| !missing.contains(member));
        there.map(|(_, drive)| drive.clone()).collect()
    }

    /// Cuts the power and assembles without the `missing` members.
    fn cut(&mut self, missing: &[usize]) {
        self.cut_power();
        self.array = run(&self.runtime, Array::assemble(&self.runtime, self.without(missing))).unwrap();
    }

    fn cut_power(&self) {
        self.runtime.clear();
        self.rig.cut_power(&mut Rng::new(1), |_| Cut { cache_lost: true, zrwa_lost: false });
    }

    /// Makes the drives of these members vanish.
    fn vanish(&self, members: &[usize]) {
        members.iter().for_each(|member| self.rig.damage(self.number(*member), Fault::Vanish));
    }

    /// Rig number of a member's drive.
    fn number(&self, member: usize) -> usize {
        self.drives[member].name.strip_prefix("drive").unwrap().parse().unwrap()
    }

    /// Attaches a blank drive as `member`, without a rebuild.
    fn attach(&mut self, member: usize) {
        self.drives[member] = self.rig.drive(&self.shape);
        run(&self.runtime, self.array.attach(member, self.drives[member].clone())).unwrap();
    }

    /// Rebuilds all lacking parts; returns the lost blocks, by zone and block.
    fn rebuild(&self) -> Vec<(u32, u64)> {
        let rebuilt = run(&self.runtime, self.array.rebuild(&|_| ())).unwrap();
        assert_eq!(rebuilt.left_out, []);
        let blocks = |lost: &LostBlocks| {
            let zone = lost.zone;
            (lost.from..lost.from + lost.blocks).map(move |at| (zone, at))
        };
        rebuilt.lost.iter().flat_map(blocks).collect()
    }

    fn repair(&mut self, member: usize) {
        self.attach(member);
        assert_eq!(self.rebuild(), []);
        let status = self.array.status();
        assert_eq!(status.members[member].state, MemberState::Active);
    }

    fn try_read(&self, zone: u32, at: u64) -> Result<(), Status> {
        let lba = self.array.geometry().start(ZoneIndex(zone)).0 + at;
        let done = run(&self.runtime, self.array.submit(Command::read(Lba(lba), Buf::zeroed(BLOCK))));
        assert!(done.result.is_err() || done.data[..] == pattern(lba, 1), "zone {zone} block {at}");
        done.result.map_err(|error| Status::ALL.iter().copied().find(|s| error == (*s).into()).unwrap())
    }

    /// Unreadable blocks of a zone.
    fn unreadable(&self, zone: u32) -> BTreeSet<(u32, u64)> {
        let bad = (0..self.tails[zone as usize]).filter(|at| self.try_read(zone, *at).is_err());
        bad.map(|at| (zone, at)).collect()
    }
}

fn pairs(members: usize) -> impl Iterator<Item = [usize; 2]> {
    (0..members).flat_map(move |a| (a + 1..members).map(move |b| [a, b]))
}

/// The next member behind `not[0]` that is not in `not`.
fn other_than(members: usize, not: &[usize]) -> usize {
    (1..members).map(|n| (not[0] + n) % members).find(|member| !not.contains(member)).unwrap()
}

#[test]
fn raid6_keeps_promised_data_without_any_two_members() {
    for (policy, members) in Policy::ALL.into_iter().flat_map(|policy| [4, 5, 6].map(|n| (policy, n))) {
        for lost in pairs(members) {
            let what = format!("{policy:?}, {members} members without {lost:?}");
            let mut scene = Scene::filled(policy, members);
            scene.cut(&lost);
            scene.assert_out(&lost);
            scene.check(&what);
            scene.write_on(scene.stripe() + 1);
            scene.check(&what);
            // Without the same members, after writes without them.
            scene.cut(&lost);
            scene.check(&what);
            let [first, second] = lost;
            scene.repair(first);
            scene.check(&what);
            // One more member may be lost now: the rebuilt one has to make up for it.
            let third = other_than(members, &lost);
            scene.cut(&[second, third]);
            scene.assert_out(&[second, third]);
            scene.check(&format!("{what}, then {third}"));
            scene.write_on(3);
            scene.repair(third);
            scene.repair(second);
            scene.cut(&[]);
            scene.assert_out(&[]);
            let last = [first, other_than(members, &[first, second])];
            scene.cut(&last);
            scene.check(&format!("{what}, all whole again, then {last:?}"));
        }
    }
}

#[test]
fn raid6_survives_two_members_lost_at_runtime() {
    for (policy, members) in Policy::ALL.into_iter().flat_map(|policy| [4, 6].map(|n| (policy, n))) {
        for lost in pairs(members) {
            let at_once = (lost[0] + lost[1]) % 2 == 0;
            let what = format!("{policy:?}, {members} members, {lost:?} vanish, at once: {at_once}");
            let mut scene = Scene::filled(policy, members);
            match at_once {
                true => scene.vanish(&lost),
                false => scene.vanish(&lost[1..]),
            }
            scene.check(&what);
            scene.write_on(CHUNK + 1);
            scene.check(&what);
            scene.vanish(&lost);
            scene.write_on(scene.stripe() + 3);
            scene.assert_out(&lost);
            scene.check(&what);
            submit(&scene.runtime, &scene.array, reset(2));
            scene.tails[2] = 0;
            scene.write_to(2, 2 * scene.stripe() + 1);
            let vanished = lost.map(|member| scene.number(member));
            // Returning members are stale.
            for back in [&lost[..], &[]] {
                scene.cut_power();
                vanished.into_iter().for_each(|drive| scene.rig.damage(drive, Fault::Return));
                scene.cut(back);
                scene.assert_out(&lost);
                scene.check(&what);
            }
            // Both members at once.
            lost.into_iter().for_each(|member| scene.attach(member));
            assert_eq!(scene.rebuild(), [], "{what}");
            scene.check(&what);
            let others = [other_than(members, &lost), lost[0]];
            scene.cut(&others);
            scene.check(&format!("{what}, rebuilt, then {others:?}"));
        }
    }
}

#[test]
fn raid6_maximum_members_and_aggregates_survive_two_losses() {
    let small = |granularity| Geometry {
        zrwa: Some(Zrwa { size_blocks: 8, granularity_blocks: granularity, max_zones: 64 }),
        max_open: 64,
        max_active: 64,
        ..geometry(4 * (ZONES + META), 120, 64)
    };
    let plain = geometry(ZONES + META, 240, 8);
    let mut kinds = vec![(Policy::Zrwa, 5, small(1)), (Policy::Zrwa, 4, small(2))];
    kinds.extend(Policy::ALL.map(|policy| (policy, 32, plain.clone())));
    for (policy, members, shape) in kinds {
        let what = format!("{policy:?}, {members} members");
        let mut scene = Scene::shaped(policy, members, shape);
        let lost = [members - 1, 1];
        scene.fill();
        scene.cut(&lost);
        scene.check(&what);
        scene.write_on(scene.stripe() + 1);
        scene.repair(1);
        scene.cut(&[0, members - 1]);
        scene.check(&what);
        scene.repair(0);
        scene.repair(members - 1);
        scene.cut(&[1, 2]);
        scene.check(&what);
    }
}

/// Without FUA or flush, and before any write pointer has moved.
#[test]
fn raid6_take_over_keeps_acknowledged_data_without_two() {
    for (policy, members) in Policy::ALL.into_iter().flat_map(|policy| [(policy, 4), (policy, 5)]) {
        for missing in pairs(members) {
            let zrwa = Some(Zrwa { size_blocks: 12 * CHUNK, granularity_blocks: 2, max_zones: 8 });
            let shape = Geometry { zrwa, ..geometry(ZONES + META, 240, 8) };
            let mut scene = Scene::shaped(policy, members, shape);
            scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::FlushZrwa { .. })));
            let stripe = scene.stripe();
            let sizes =
                [&[1][..], &[3, 2], &[5, 6, 1], &[stripe, stripe, 2], &[stripe - 1, 2 * stripe - 3, 5]];
            let mut tails =
                Tails { assembly: scene.array.assembly(), blocks: vec![0; scene.tails.len()], power: vec![] };
            for (zone, sizes) in sizes.into_iter().enumerate() {
                for blocks in sizes {
                    write(&scene.runtime, &scene.array, zone as u32, tails.blocks[zone], *blocks, false);
                    tails.blocks[zone] += blocks;
                }
            }
            scene.runtime.clear();
            scene.rig.drop_held();
            scene.rig.rule(|_, _| Act::Pass);
            let there = scene.without(&missing);
            scene.array = run(&scene.runtime, Array::take_over(&scene.runtime, there, &tails)).unwrap();
            scene.tails = tails.blocks;
            let what = format!("{policy:?}, {members} members without {missing:?}");
            for (zone, tail) in (0..).zip(&scene.tails) {
                let found = wp(&scene.runtime, &scene.array, zone);
                assert_eq!(found.1, *tail, "{what}: zone {zone}");
                check(&scene.runtime, &scene.array, zone, *tail);
            }
            // The tails are durable now, and writes continue from there.
            write(&scene.runtime, &scene.array, 1, 5, 2, true);
            scene.tails[1] += 2;
            scene.cut(&missing);
            (0..).zip(&scene.tails).for_each(|(zone, tail)| {
                assert_eq!(wp(&scene.runtime, &scene.array, zone).1, *tail, "{what}: zone {zone}");
                check(&scene.runtime, &scene.array, zone, *tail);
            });
        }
    }
}

/// After the shutdown, zones without a moved write pointer are empty on some members or on all.
#[test]
fn raid6_shutdown_keeps_durable_data_without_two_members() {
    for (policy, members) in Policy::ALL.into_iter().flat_map(|policy| [(policy, 4), (policy, 5)]) {
        for missing in pairs(members) {
            let mut scene = Scene::new(policy, members);
            let ends = [1, 3, 4, 6, scene.stripe() + 2];
            (0..).zip(ends).for_each(|(zone, tail)| scene.write_to(zone, tail));
            for round in 0..3 {
                scene.runtime.clear();
                scene.rig.shut_down();
                let there = scene.without(&missing);
                scene.array = run(&scene.runtime, Array::assemble(&scene.runtime, there)).unwrap();
                let what = format!("{policy:?}, {members} members without {missing:?}, round {round}");
                for (zone, tail) in (0..).zip(scene.tails.clone()) {
                    assert_eq!(wp(&scene.runtime, &scene.array, zone).1, tail, "{what}: zone {zone}");
                    check(&scene.runtime, &scene.array, zone, tail);
                }
                (0..).zip(ends).for_each(|(zone, _)| scene.write_to(zone, scene.tails[zone as usize] + 5));
            }
        }
    }
}

/// Rebuilds; returns the parts in the order in which their rebuild begins, as rig number and zone.
fn observed_rebuild(scene: &Scene) -> Vec<(usize, u32)> {
    let begun = Rc::new(RefCell::new(Vec::new()));
    let told = begun.clone();
    scene.rig.rule(move |drive, command| {
        if let Command::Reset { zones: Zones::One(ZoneIndex(zone @ META..)) } = command {
            told.borrow_mut().push((drive, zone - META));
        }
        Act::Pass
    });
    assert_eq!(scene.rebuild(), []);
    scene.rig.rule(|_, _| Act::Pass);
    begun.take()
}

#[test]
fn raid6_rebuild_restores_one_redundancy_level_everywhere_first() {
    for policy in Policy::ALL {
        let mut scene = Scene::filled(policy, 5);
        scene.cut(&[1, 3]);
        [3, 1].into_iter().for_each(|member| scene.attach(member));
        let begun = observed_rebuild(&scene);
        let zones = |half: &[(usize, u32)]| half.iter().map(|(_, zone)| *zone).collect::<BTreeSet<u32>>();
        let all: BTreeSet<u32> = (0..ZONES).collect();
        let (first, second) = begun.split_at(begun.len() / 2);
        assert_eq!(
            (begun.len(), zones(first), zones(second)),
            (2 * all.len(), all.clone(), all),
            "{begun:?}"
        );
        scene.check("rebuilt");
    }
}

#[test]
fn raid6_rebuild_prefers_zones_lacking_two_parts() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy, 5);
        (0..5).for_each(|zone| scene.write_to(zone, 30));
        for (member, zone) in [(0, 0), (1, 1), (2, 3), (4, 3), (2, 2)] {
            scene.rig.damage(member, Fault::WriteFault(part(zone)));
        }
        scene.write_on(3 * scene.stripe());
        let lacking: Vec<u32> = scene.array.status().members.iter().map(|m| m.zones_to_rebuild).collect();
        assert_eq!(lacking, [1, 1, 2, 0, 1], "{policy:?}");
        let begun = observed_rebuild(&scene);
        // All five parts are reset first, and each one again when its rebuild begins.
        assert_eq!((begun.len(), begun[5].1), (10, 3), "{policy:?} {begun:?}");
        scene.cut(&[1, 2]);
        scene.check("rebuilt");
    }
}

#[test]
fn raid6_rebuild_survives_loss_of_second_member() {
    for (policy, writes) in Policy::ALL.into_iter().flat_map(|policy| [1, 4, 10].map(|n| (policy, n))) {
        for second in [1, 2, 4] {
            let what = format!("{policy:?}, {second} after {writes} writes");
            let mut scene = Scene::filled(policy, 5);
            scene.cut(&[0]);
            scene.attach(0);
            let (new, gone) = (scene.number(0), scene.number(second));
            let (rig, left) = (Rc::downgrade(&scene.rig), Cell::new(writes));
            scene.rig.rule(move |drive, command| {
                if drive == new && matches!(command, Command::Write { .. }) && left.get() > 0 {
                    left.set(left.get() - 1);
                    if left.get() == 0 {
                        rig.upgrade().unwrap().damage(gone, Fault::Vanish);
                    }
                }
                Act::Pass
            });
            assert_eq!(scene.rebuild(), [], "{what}");
            scene.write_on(1);
            scene.assert_out(&[second]);
            assert_eq!(scene.states()[0], MemberState::Active, "{what}");
            scene.check(&what);
            let third = other_than(5, &[0, second]);
            scene.cut(&[second, third]);
            scene.check(&what);
        }
    }
}

#[test]
fn raid6_interrupted_rebuild_resumes_and_keeps_filled_parts() {
    for policy in Policy::ALL {
        for (cuts, steps) in (0..).step_by(9).enumerate() {
            let what = format!("{policy:?}, cut after {steps}");
            let mut scene = Scene::filled(policy, 5);
            scene.cut(&[1, 2]);
            scene.repair(1);
            scene.attach(2);
            let held = scene.rig.hold_after(steps);
            let (array, done) = (scene.array.clone(), Rc::new(Cell::new(false)));
            let told = done.clone();
            scene.runtime.spawn(async move { told.set(array.rebuild(&|_| ()).await.is_ok()) });
            scene.runtime.run();
            assert_eq!(done.get(), !held.get(), "{what}");
            if !held.get() {
                assert!(cuts > 5, "{policy:?}: {cuts}");
                break;
            }
            // Member 2 is partly rebuilt, and another member is lost.
            let third = [0, 1, 3, 4][steps % 4];
            scene.cut(&[third]);
            scene.check(&what);
            scene.write_on(CHUNK + 1);
            scene.attach(third);
            assert_eq!(scene.rebuild(), [], "{what}");
            scene.check(&what);
            let others = [2, other_than(5, &[2, third])];
            scene.cut(&others);
            scene.check(&format!("{what}, rebuilt, then {others:?}"));
        }
    }
}

#[test]
fn raid6_unreadable_block_is_lost_without_two_members() {
    for (policy, lost) in Policy::ALL.into_iter().flat_map(|policy| [(policy, &[1][..]), (policy, &[1, 4])]) {
        let mut scene = Scene::new(policy, 5);
        scene.write_to(0, 6 * scene.stripe());
        scene.cut(lost);
        // Each in another row, except for two in the same one.
        let bad = [(2, 1), (0, 2 * CHUNK), (2, 2 * CHUNK + 1), (3, 5 * CHUNK + 3)];
        for (member, block) in bad {
            let lba = Lba(scene.shape.start(part(0)).0 + block);
            scene.rig.damage(scene.number(member), Fault::Unreadable(lba));
        }
        // Two missing blocks of a column are decoded; of three none is.
        let expect = |lacking: &[usize]| {
            let mut expected = BTreeSet::new();
            for (member, block) in bad {
                let members: BTreeSet<usize> = lacking.iter().copied().chain([member]).collect();
                let (row, offset) = (block / CHUNK, block % CHUNK);
                for member in members.iter().filter(|_| members.len() > 2) {
                    let index = (*member as u64 + 5 - row % 5) % 5;
                    if index < 3 {
                        expected.insert((0, row * 3 * CHUNK + index * CHUNK + offset));
                    }
                }
            }
            expected
        };
        let expected = expect(lost);
        let what = format!("{policy:?} without {lost:?}");
        assert_eq!(scene.unreadable(0), expected, "{what}");
        lost.iter().for_each(|member| scene.attach(*member));
        assert_eq!(scene.rebuild().into_iter().collect::<BTreeSet<_>>(), expected, "{what}");
        assert_eq!(scene.unreadable(0), expected, "{what}");
        assert_eq!(scene.array.status().lost_blocks > 0, lost.len() > 1, "{what}");
        scene.cut(&[]);
        assert_eq!(scene.unreadable(0), expected, "{what}");
        // Blocks that could not be rebuilt are still lacking when another member is lost.
        scene.write_to(0, 8 * scene.stripe() + 1);
        scene.cut(&[0]);
        let bad_blocks = if expected.is_empty() { &[] } else { lost };
        assert_eq!(scene.unreadable(0), expect(&[bad_blocks, &[0]].concat()), "{what}");
    }
}

#[test]
fn raid6_replacement_works_while_another_member_is_out() {
    for policy in Policy::ALL {
        let mut scene = Scene::filled(policy, 5);
        scene.cut(&[3]);
        scene.write_on(5);
        let new = scene.rig.drive(&scene.shape);
        let replaced = run(&scene.runtime, scene.array.replace(1, new.clone(), &|_| ())).unwrap();
        assert!(matches!(replaced, ReplaceOutcome::Copied { .. }), "{policy:?}: {replaced:?}");
        scene.drives[1] = new;
        assert_eq!(scene.rebuild(), []);
        scene.write_on(5);
        scene.check("replaced");
        for other in [0, 2, 4] {
            // The copied drive is needed to decode two members.
            let copies: Vec<Drive> = [0, 1, 2, 4]
                .into_iter()
                .filter(|member| *member != other)
                .map(|member| scene.drives[member].clone())
                .collect();
            let looked = Array::assemble_read_only(&scene.runtime, copies, None, ArrayOptions::default());
            let array = std::mem::replace(&mut scene.array, run(&scene.runtime, looked).unwrap());
            scene.check(&format!("{policy:?}, replaced, then without {other}"));
            scene.array = array;
        }
        scene.cut(&[3, 0]);
        scene.check("replaced, then without two");
        scene.repair(0);
        scene.repair(3);
        scene.cut(&[1, 2]);
        scene.check("whole again");
    }
}

#[test]
fn raid6_zone_survives_two_dead_parts_not_three() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy, 5);
        (0..4).for_each(|zone| scene.write_to(zone, 30));
        for member in [1, 2] {
            scene.rig.damage(member, Fault::ReadOnly(part(0)));
            scene.write_on(2 * scene.stripe());
            scene.check("a part is lost");
        }
        let lacking = |scene: &Scene| {
            assert!(!scene.array.status().failed);
            scene.array.status().members.iter().map(|m| m.zones_to_rebuild).collect::<Vec<_>>()
        };
        assert_eq!(lacking(&scene), [0, 1, 1, 0, 0], "{policy:?}");
        scene.cut(&[]);
        assert_eq!(lacking(&scene), [0, 1, 1, 0, 0], "{policy:?}");
        scene.check("two parts are lost");
        // The other members hold the blocks that these lack: none of them can be taken out.
        for member in [0, 3, 4] {
            assert!(run(&scene.runtime, scene.array.fail(member)).is_err());
        }
        scene.rig.damage(3, Fault::ReadOnly(part(0)));
        let tail = scene.tails[0];
        for (at, blocks) in [(tail, scene.stripe()), (tail + scene.stripe(), 1)] {
            let command = write_command(&scene.array, 0, at, blocks, true);
            assert!(run(&scene.runtime, scene.array.submit(command)).result.is_err(), "{policy:?}");
        }
        assert_eq!(wp(&scene.runtime, &scene.array, 0).0, ZoneState::ReadOnly);
        for zone in 1..4 {
            scene.write_to(zone, scene.tails[zone as usize] + 20);
            check(&scene.runtime, &scene.array, zone, scene.tails[zone as usize]);
        }
        // The third member is not taken out of the zone: its blocks are still needed.
        assert_eq!(lacking(&scene), [0, 1, 1, 0, 0], "{policy:?}");
        // In zones with all parts two members may still be lost.
        scene.vanish(&[4]);
        scene.write_to(1, scene.tails[1] + 1);
        check(&scene.runtime, &scene.array, 1, scene.tails[1]);
    }
}

/// A member that has already finished its part has no slots any more, but the blocks in their places can still be read.
/// If recovery cannot finish the zone either, nothing is decoded with these blocks.
#[test]
fn raid6_interrupted_unfinishable_finish_invents_no_data() {
    let mut lost = 0;
    for tail in [2, 5, 10, 15] {
        for [a, b] in pairs(5) {
            let third = other_than(5, &[a, b]);
            for steps in 0.. {
                let mut scene = Scene::new(Policy::Zrwa, 5);
                scene.rig.drop_at_finish();
                scene.write_to(0, tail);
                let held = scene.rig.hold_after(steps);
                drop(scene.array.submit(finish(0)));
                scene.runtime.run();
                scene.cut_power();
                let data = META as u64 * scene.shape.zone_size_blocks;
                scene.rig.rule(move |drive, command| match command {
                    Command::Finish { .. } if drive == third => Act::Refuse,
                    Command::Write { lba, .. } if drive == third && lba.0 >= data => Act::Refuse,
                    _ => Act::Pass,
                });
                scene.array =
                    run(&scene.runtime, Array::assemble(&scene.runtime, scene.without(&[a, b]))).unwrap();
                // Readable blocks are right.
                lost += (0..tail).filter(|at| scene.try_read(0, *at).is_err()).count();
                if !held.get() {
                    break;
                }
            }
        }
    }
    assert!(lost > 0);
}

#[test]
fn raid6_refuses_three_missing_members_without_writing() {
    for policy in Policy::ALL {
        let mut scene = Scene::filled(policy, 6);
        scene.cut_power();
        let missing = [0, 2, 5];
        let refused = run(&scene.runtime, Array::assemble(&scene.runtime, scene.without(&missing)));
        let why = refused.map(|_| ()).unwrap_err().to_string();
        assert!(why.contains("only 3 of 6 members"), "{why}");
        // No member is stale.
        scene.cut(&[]);
        scene.assert_out(&[]);
        scene.check("all are there again");
    }
}

#[test]
fn raid6_losing_third_member_fails_without_wrong_data() {
    for policy in Policy::ALL {
        let scene = Scene::filled(policy, 6);
        scene.vanish(&[0, 2, 5]);
        let plain = write_command(&scene.array, 2, scene.tails[2], 3 * CHUNK, true);
        assert!(run(&scene.runtime, scene.array.submit(plain)).result.is_err());
        for (zone, tail) in (0..).zip(&scene.tails) {
            // Readable blocks are right.
            (0..*tail).for_each(|at| _ = scene.try_read(zone, at));
        }
        assert!(scene.array.status().failed);
    }
}

/// P is the sum of the chunks, and Q the sum of the chunks times powers of 2, as in Linux.
#[test]
fn raid6_parities_have_documented_content_and_place() {
    fn times(mut by: u32, mut byte: u8) -> u8 {
        while by > 0 {
            byte = (byte << 1) ^ if byte & 0x80 > 0 { 0x1d } else { 0 };
            by -= 1;
        }
        byte
    }
    for (policy, members) in Policy::ALL.into_iter().flat_map(|policy| [4, 7].map(|n| (policy, n))) {
        let mut scene = Scene::new(policy, members);
        scene.write_to(0, 9 * scene.stripe());
        scene.cut(&[]);
        let read = |member: usize, row: u64| {
            let lba = Lba(scene.shape.start(part(0)).0 + row * CHUNK);
            let command = Command::read(lba, Buf::zeroed(CHUNK as usize * BLOCK));
            run(&scene.runtime, scene.drives[member].device.submit(command)).data.to_vec()
        };
        let k = members - 2;
        for row in 0..9 {
            let chunks: Vec<Vec<u8>> = (0..k).map(|i| read((row + i) % members, row as u64)).collect();
            let start = scene.array.geometry().start(ZoneIndex(0)).0 + row as u64 * scene.stripe();
            assert!(chunks.concat() == pattern(start, scene.stripe()), "{policy:?} row {row}");
            let sum = |power: u32| -> Vec<u8> {
                let of_byte = |at: usize| {
                    (0..).zip(&chunks).fold(0, |sum, (i, chunk)| sum ^ times(i * power, chunk[at]))
                };
                (0..CHUNK as usize * BLOCK).map(of_byte).collect()
            };
            assert!(read((row + k) % members, row as u64) == sum(0), "{policy:?} P of row {row}");
            assert!(read((row + k + 1) % members, row as u64) == sum(1), "{policy:?} Q of row {row}");
        }
    }
}

#[test]
fn raid6_create_refuses_impossible_arrays() {
    let runtime = Runtime::new();
    let shape = geometry(ZONES + META, 240, 8);
    let refused = |members: usize, shape: &Geometry, options: CreateOptions| {
        let drives = drives(members, shape);
        run(&runtime, Array::create(&runtime, options, drives)).map(|_| ()).unwrap_err().to_string()
    };
    for policy in Policy::ALL {
        for members in [2, 3, 33] {
            let why = refused(members, &shape, two_parities(policy));
            assert!(why.contains(&format!("RAID-6 takes 4 to 32 drives, not {members}")), "{why}");
        }
        let why = refused(6, &shape, CreateOptions { parities: 3, ..two_parities(policy) });
        assert!(why.contains("parities"), "{why}");
    }
    // A ZRWA of two chunks is enough for one parity, and for two with the policies `inplace` and `log`.
    let zrwa = Some(Zrwa { size_blocks: 2 * CHUNK, granularity_blocks: 1, max_zones: 8 });
    let tight = Geometry { zrwa, ..shape };
    let aggregate = |zones: u32, options: CreateOptions| {
        let drives = drives(5, &Geometry { zones, ..tight.clone() });
        let array = run(&runtime, Array::create(&runtime, options, drives));
        array.map(|array| array.status().aggregate).map_err(|error| error.to_string())
    };
    for options in [options(CHUNK), two_parities(Policy::InPlace), two_parities(Policy::Log)] {
        assert_eq!(aggregate(9, options), Ok(1));
    }
    // Several such zones in aggregation hold three chunks, if there are enough of them and the chunk is not too large
    // for any aggregation.
    let unlimited = |zones: u32, chunk_blocks: u64| {
        let zrwa = tight.zrwa.map(|zrwa| Zrwa { max_zones: zones, ..zrwa });
        let shape = Geometry { zones, max_open: 0, max_active: 0, zrwa, ..tight.clone() };
        let options = CreateOptions { chunk_blocks, ..two_parities(Policy::Zrwa) };
        let array = run(&runtime, Array::create(&runtime, options, drives(5, &shape)));
        array.map(|array| array.status().aggregate).map_err(|error| error.to_string())
    };
    assert_eq!(unlimited(36, CHUNK), Ok(4));
    assert!(unlimited(9, CHUNK).unwrap_err().contains("the drives need zones of at least"));
    let why = unlimited(36, 8 * CHUNK).unwrap_err();
    assert!(why.contains("a chunk of 128 KiB is too large for the drives' ZRWA: 10 KiB at most"), "{why}");
    let zrwa = Some(Zrwa { size_blocks: 3 * CHUNK, granularity_blocks: 1, max_zones: 8 });
    let wider = drives(5, &Geometry { zrwa, ..tight.clone() });
    let array = run(&runtime, Array::create(&runtime, two_parities(Policy::Zrwa), wider)).unwrap();
    assert_eq!((array.layout().distance, array.status().parities), (1, 2));
    // A drive with a smaller ZRWA is refused as a replacement, too.
    run(&runtime, array.fail(0)).unwrap();
    let why = run(&runtime, array.attach(0, drives(1, &tight).remove(0))).unwrap_err().to_string();
    assert!(why.contains("its ZRWA has 32 KiB, 48 KiB are needed"), "{why}");
}

/// A deferred-write assembly makes no member stale; the drives return one after the other.
#[test]
fn raid6_provisional_array_commits_when_complete_or_written() {
    for policy in Policy::ALL {
        for back in [0, 1, 2] {
            let mut scene = Scene::filled(policy, 5);
            scene.cut_power();
            let missing = [1, 4];
            let there = scene.without(&missing);
            let held = Array::assemble_deferred(&scene.runtime, there, None, ArrayOptions::default());
            scene.array = run(&scene.runtime, held).unwrap();
            assert!(scene.array.is_deferred());
            scene.assert_out(&missing);
            scene.check("held back");
            for member in &missing[..back] {
                let drive = scene.drives[*member].clone();
                run(&scene.runtime, scene.array.complete(drive)).unwrap();
                scene.check("one is back");
            }
            assert_eq!(scene.array.is_deferred(), back < 2, "{policy:?}");
            scene.write_on(5);
            assert!(!scene.array.is_deferred());
            scene.assert_out(&missing[back..]);
            scene.check("begun");
            // Members that did not return are stale.
            let others = [0, 1].map(|other| *missing[back..].get(other).unwrap_or(&other));
            scene.cut(&[]);
            scene.assert_out(&missing[back..]);
            scene.cut(&others);
            scene.check("begun, then without two");
        }
    }
}

/// A member that is missing during a rename has missed no data, even if another one returns for a zone that waits for
/// it.
#[test]
fn raid6_rename_makes_no_member_stale() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy, 5);
        scene.write_to(0, CHUNK + 1);
        for member in [1, 2] {
            run(&scene.runtime, scene.array.fail(member)).unwrap();
            scene.attach(member);
        }
        // Zone 0 waits for member 4, which is out.
        scene.cut(&[4]);
        scene.assert_out(&[4]);
        assert_eq!(wp(&scene.runtime, &scene.array, 0).0, ZoneState::Offline, "{policy:?}");
        scene.write_to(1, CHUNK + 1);
        scene.cut_power();
        for (missing, name) in [(&[3, 4][..], "one"), (&[3], "two")] {
            let change = Change::Name(name.into());
            run(&scene.runtime, Array::change(&scene.runtime, scene.without(missing), &change)).unwrap();
        }
        scene.cut(&[]);
        let status = scene.array.status();
        assert_eq!(
            (status.name.as_str(), status.members[3].state),
            ("two", MemberState::Active),
            "{policy:?}"
        );
        scene.check(&format!("{policy:?}, all are back"));
    }
}

#[test]
fn raid6_operator_can_take_out_two_members_only() {
    for policy in Policy::ALL {
        let mut scene = Scene::filled(policy, 5);
        for (nth, member) in [2, 0].into_iter().enumerate() {
            run(&scene.runtime, scene.array.fail(member)).unwrap();
            scene.write_on(CHUNK + 2);
            scene.check(&format!("{policy:?}, {nth} before {member}"));
        }
        for member in [1, 3, 4] {
            assert!(run(&scene.runtime, scene.array.fail(member)).is_err(), "{policy:?}");
        }
        scene.assert_out(&[0, 2]);
        scene.repair(0);
        // Another member may be taken out again.
        run(&scene.runtime, scene.array.fail(4)).unwrap();
        scene.check(&format!("{policy:?}, one after the other"));
    }
}

#[test]
fn raid6_assemble_omits_two_members_with_failing_report() {
    for policy in Policy::ALL {
        let mut scene = Scene::filled(policy, 5);
        scene.cut_power();
        scene.rig.rule(|drive, command| match command {
            Command::Report { count, .. } if drive < 2 && *count > 1 => Act::Fail,
            _ => Act::Pass,
        });
        scene.array = run(&scene.runtime, Array::assemble(&scene.runtime, scene.without(&[]))).unwrap();
        scene.assert_out(&[0, 1]);
        scene.check(&format!("{policy:?}"));
        scene.write_on(5);
        scene.check(&format!("{policy:?}, gone on with"));
    }
}

/// The parts of a zone on two members are reset by another program.
#[test]
fn raid6_decodes_zone_externally_reset_on_two_members() {
    for policy in Policy::ALL {
        for pair in pairs(5) {
            let mut scene = Scene::new(policy, 5);
            let tail = 10 * scene.stripe();
            scene.write_to(0, tail);
            scene.cut_power();
            for member in pair {
                let command = Command::Reset { zones: Zones::One(part(0)) };
                assert_eq!(run(&scene.runtime, scene.drives[member].device.submit(command)).result, Ok(()));
            }
            scene.array = run(&scene.runtime, Array::assemble(&scene.runtime, scene.without(&[]))).unwrap();
            scene.check(&format!("{policy:?} {pair:?}"));
        }
    }
}

/// Some or all of the written blocks are still in the ZRWAs.
#[test]
fn raid6_survives_zrwa_loss_of_two_members() {
    for tail in 1..Scene::new(Policy::Zrwa, 5).stripe() + 2 {
        for pair in pairs(5) {
            let mut scene = Scene::new(Policy::Zrwa, 5);
            scene.write_to(0, tail);
            scene.runtime.clear();
            let lost = |drive| Cut { cache_lost: false, zrwa_lost: pair.contains(&drive) };
            scene.rig.cut_power(&mut Rng::new(1), lost);
            scene.array = run(&scene.runtime, Array::assemble(&scene.runtime, scene.without(&[]))).unwrap();
            scene.check(&format!("{tail} without the ZRWAs of {pair:?}"));
        }
    }
}

/// A checkpoint in a small log holds the slots of both parities of every zone that may be active.
#[test]
fn raid6_active_zones_fit_slots_into_log() {
    let shape = geometry(24, 128, 14);
    for policy in [Policy::Zrwa, Policy::Log] {
        let scene = Scene::shaped(policy, 5, shape.clone());
        let (most, distance) = (scene.array.geometry().max_active as u64, scene.array.layout().distance);
        let slots = most * 2 * distance * (CHUNK + 1);
        assert!(most > 1 && slots < shape.zone_capacity_blocks, "{policy:?}: {most} zones, {slots} blocks");
    }
}

/// The members of both chunks of a partial stripe are missing, and one of the two slots is unreadable.
#[test]
fn raid6_two_chunks_with_single_slot_are_offline() {
    for which in 0..2 {
        let mut scene = Scene::new(Policy::Log, 6);
        let stripe = scene.stripe();
        scene.write_to(0, stripe);
        write(&scene.runtime, &scene.array, 0, stripe, 2 * CHUNK, true);
        let layout = scene.array.layout();
        let (holder, data) = (layout.slot(1, 1, which).0, META as u64 * scene.shape.zone_size_blocks);
        let logged = records(&scene.runtime, &scene.drives[holder], data).into_iter();
        let slot =
            logged.filter(|(record, _)| matches!(record, Record::Parity(parity) if parity.stripe == 1));
        let slot: BTreeSet<u64> = slot.flat_map(|(_, blocks)| blocks).collect();
        assert!(!slot.is_empty());
        scene.cut_power();
        scene.rig.hide(vec![(holder, slot)]);
        let there = scene.without(&[layout.member(1, 0), layout.member(1, 1)]);
        scene.array = run(&scene.runtime, Array::assemble(&scene.runtime, there)).unwrap();
        assert_eq!(wp(&scene.runtime, &scene.array, 0).0, ZoneState::Offline, "slot {which}");
    }
}

/// A member with relocated blocks, in the place of those burned by an interrupted write, is replaced while a rebuild
/// reads from it: the burned blocks are not the data.
#[test]
fn raid6_rebuild_ignores_reads_from_replaced_drive() {
    for index in 1..5 {
        let mut scene = Scene::new(Policy::Log, 5);
        let layout = scene.array.layout();
        let (filled, replaced) = (layout.member(2, 0), layout.member(2, index));
        let (stripe, data) = (scene.stripe(), META as u64 * scene.shape.zone_size_blocks);
        scene.write_to(0, 2 * stripe);
        scene.rig.rule(move |drive, command| {
            Act::hold_if(drive != replaced && matches!(command, Command::Write { lba, .. } if lba.0 >= data))
        });
        let lost = Buf::copy_of(&vec![0xee; stripe as usize * BLOCK]);
        drop(scene.array.submit(Command::write(Lba(2 * stripe), lost, true)));
        scene.runtime.run();
        scene.cut(&[]);
        scene.write_to(0, 6 * stripe);
        run(&scene.runtime, scene.array.fail(filled)).unwrap();
        scene.attach(filled);
        scene.rig.rule(move |drive, command| {
            Act::hold_if(drive == replaced && matches!(command, Command::Read { lba, .. } if lba.0 >= data))
        });
        let array = scene.array.clone();
        scene.runtime.spawn(async move { _ = array.rebuild(&|_| ()).await });
        scene.runtime.run();
        assert!(scene.rig.held() > 0);
        run(&scene.runtime, scene.array.fail(replaced)).unwrap();
        scene.attach(replaced);
        scene.rig.rule(|_, _| Act::Pass);
        scene.rig.release(|_, _| true);
        scene.runtime.run();
        assert!(scene.states().iter().all(|state| *state == MemberState::Active), "{replaced}");
        scene.check(&format!("{replaced} was replaced"));
    }
}

/// The member is attached again, and so reset, while a rebuild reads the stripe of the tail from it: no data is left on
/// it.
#[test]
fn raid6_rebuild_ignores_reads_from_wiped_drive() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy, 5);
        let layout = scene.array.layout();
        let (filled, wiped) = (layout.member(1, 0), layout.member(1, 1));
        let (stripe, data) = (scene.stripe(), META as u64 * scene.shape.zone_size_blocks);
        scene.write_to(0, stripe + 2 * CHUNK);
        run(&scene.runtime, scene.array.fail(filled)).unwrap();
        scene.attach(filled);
        scene.rig.rule(move |drive, command| {
            let row = |lba: &Lba| (data + CHUNK..data + 2 * CHUNK).contains(&lba.0);
            Act::hold_if(drive == wiped && matches!(command, Command::Read { lba, .. } if row(lba)))
        });
        let array = scene.array.clone();
        scene.runtime.spawn(async move { _ = array.rebuild(&|_| ()).await });
        scene.runtime.run();
        assert_eq!(scene.rig.held(), 1, "{policy:?}");
        run(&scene.runtime, scene.array.fail(wiped)).unwrap();
        run(&scene.runtime, scene.array.attach(wiped, scene.drives[wiped].clone())).unwrap();
        scene.rig.rule(|_, _| Act::Pass);
        scene.rig.release(|_, _| true);
        scene.runtime.run();
        assert_eq!(scene.rebuild(), []);
        scene.check(&format!("{policy:?}"));
    }
}
