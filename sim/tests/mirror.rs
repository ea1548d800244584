//! Replacement of drives at runtime: with any failure and any power cut, no member is reported out that was not lost,
//! and only one of the two drives remains a member.

use crate::support::{
    self,
    array::{check, geometry, options, records, run, submit, wp, write, write_command},
    rig::{Act, Rig},
    scene::{is_metadata, part, reset},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use engine::{
    array::{Array, ArrayError, CreateOptions, Drive, MemberState, Progress, ReplaceOutcome, UnfinishedCopy},
    buf::{BLOCK, Buf},
    device::{Command, Completion, Geometry, ZonedDevice, Zones},
    format::record::Record,
    owner::cancel_copy,
    raid::policy::Policy,
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
};

/// A policy, and the blocks of a group if zones are written by appends.
type Kind = (Policy, u32);

const POLICIES: [Kind; 4] = [(Policy::Zrwa, 0), (Policy::InPlace, 0), (Policy::Log, 0), (Policy::Log, 4)];
const CHUNK: u64 = 4;
const MEMBERS: usize = 4;
/// The member that is replaced, and the number of the new drive.
const OLD: usize = 1;
const NEW: usize = MEMBERS;
const META: u32 = 2;
/// First block of data on a drive.
const DATA: u64 = META as u64 * 512;
/// Capacity of a zone in blocks: 12 rows of three data chunks.
const CAPACITY: u64 = 12 * 3 * CHUNK;
/// Blocks written to each zone: a full one; one that is finished early; tails inside a chunk, at the end of a stripe
/// and near the end of the zone; an empty one.
const TAILS: [u64; 6] = [CAPACITY, 30, 17, 48, CAPACITY - 7, 0];
/// The zone that is finished early.
const FINISHED: u32 = 1;

fn shape() -> Geometry {
    geometry(TAILS.len() as u32 + META, 500, 8)
}

type Outcome = Rc<RefCell<Option<Result<ReplaceOutcome, ArrayError>>>>;

struct Scene {
    runtime: Runtime,
    rig: Rc<Rig>,
    drives: Vec<Drive>,
    /// The rig's drive numbers.
    numbers: Vec<usize>,
    array: Array,
}

impl Drop for Scene {
    /// Tasks hold the array, and the array its drives.
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

impl Scene {
    /// Four members, and a blank drive.
    fn new(policy: Kind, volatile: bool) -> Scene {
        let shape = Geometry { volatile_cache: volatile, ..shape() };
        Scene::shaped(policy, &shape, &shape, Some(CAPACITY))
    }

    /// With zones of `zone_size_blocks`, or of the largest possible size.
    fn shaped(
        (policy, group_blocks): Kind,
        shape: &Geometry,
        new: &Geometry,
        zone_size_blocks: Option<u64>,
    ) -> Scene {
        let (runtime, rig) = (Runtime::new(), Rig::new());
        let mut drives: Vec<_> = (0..MEMBERS).map(|_| rig.drive(shape)).collect();
        drives.push(rig.drive(new));
        let policy = Some(policy);
        let options = CreateOptions { policy, group_blocks, zone_size_blocks, ..options(CHUNK) };
        let array = run(&runtime, Array::create(&runtime, options, drives[..MEMBERS].to_vec())).unwrap();
        let numbers = (0..drives.len()).collect();
        let scene = Scene { runtime, rig, drives, numbers, array };
        for (zone, tail) in (0..).zip(TAILS) {
            for at in (0..tail).step_by(48) {
                write(&scene.runtime, &scene.array, zone, at, (tail - at).min(48), true);
            }
        }
        let zones = Zones::One(ZoneIndex(FINISHED));
        submit(&scene.runtime, &scene.array, Command::Finish { zones });
        scene
    }

    fn start(&self) -> Outcome {
        let (array, new) = (self.array.clone(), self.drives[NEW].clone());
        let outcome = Outcome::default();
        let told = outcome.clone();
        self.runtime.spawn(async move {
            let result = array.replace(OLD, new, &|_| ()).await;
            *told.borrow_mut() = Some(result);
        });
        outcome
    }

    fn replace(&self) -> Result<ReplaceOutcome, ArrayError> {
        let outcome = self.start();
        self.runtime.run();
        outcome.take().expect("it ends")
    }

    /// Submits a command and leaves it in flight.
    fn submit(&self, command: Command) -> Completion {
        let pending = self.array.submit(command);
        self.runtime.run();
        pending
    }

    fn submit_write(&self, zone: u32, at: u64, blocks: u64) -> Completion {
        self.submit(write_command(&self.array, zone, at, blocks, true))
    }

    /// Executes all held commands and those that follow from them.
    fn release(&self) {
        self.rig.rule(|_, _| Act::Pass);
        self.runtime.run();
        while self.rig.release(|_, _| true) > 0 {
            self.runtime.run();
        }
    }

    /// Starts the replacement and stops it at the last zone with data by holding back its reads.
    fn start_all_but_one(&self) -> Outcome {
        self.rig.rule(|drive, command| {
            let last = 4 * shape().zone_size_blocks + DATA..5 * shape().zone_size_blocks + DATA;
            let reads = matches!(command, Command::Read { lba, .. } if last.contains(&lba.0));
            Act::hold_if(drive == OLD && reads)
        });
        let outcome = self.start();
        self.runtime.run();
        assert!(self.rig.held() > 0 && outcome.borrow().is_none());
        outcome
    }

    fn check(&self, tails: &[u64]) {
        let tails: Vec<u64> = tails.to_vec();
        for (zone, tail) in (0..).zip(tails) {
            check(&self.runtime, &self.array, zone, tail);
            let (state, found) = wp(&self.runtime, &self.array, zone);
            assert!(state == ZoneState::Full || found >= tail, "zone {zone} ends at {found}, not {tail}");
        }
    }

    fn states(&self) -> Vec<(MemberState, String)> {
        self.array.status().members.into_iter().map(|m| (m.state, m.drive)).collect()
    }

    fn check_active(&self) {
        let active = |(state, _): &(MemberState, String)| *state == MemberState::Active;
        assert!(self.states().iter().all(active), "{:?}", self.states());
    }

    fn name(&self) -> String {
        self.states()[OLD].1.clone()
    }

    /// Assembles copies of all drives except those in `without`; the originals are not used afterwards.
    fn copy_without(&self, without: &[usize]) -> Scene {
        self.runtime.clear();
        let (runtime, mut drives, mut numbers) = (Runtime::new(), Vec::new(), Vec::new());
        for (drive, number) in self.drives.iter().zip(&self.numbers) {
            let copy = self.rig.copy(*number);
            numbers.push(copy.name.trim_start_matches("drive").parse().unwrap());
            drives.push(Drive { name: drive.name.clone(), ..copy });
        }
        let there = (0..drives.len()).filter(|number| !without.contains(number));
        let array = run(&runtime, Array::assemble(&runtime, there.map(|n| drives[n].clone()).collect()));
        let array = array.unwrap_or_else(|error| panic!("without {without:?}: {error}"));
        Scene { runtime, rig: self.rig.clone(), drives, numbers, array }
    }

    fn cut_power(&self, cache_lost: bool) {
        self.runtime.clear();
        self.rig.cut_power(&mut Rng::new(5), |_| Cut { cache_lost, zrwa_lost: false });
    }
}

/// Assembles the drives as a power cut has left them, with all and without each single one, and checks the contents.
fn judge(scene: &Scene) {
    let all = scene.copy_without(&[]);
    all.check_active();
    all.check(&TAILS);
    for without in [0, OLD, 2, 3, NEW] {
        let found = scene.copy_without(&[without]);
        found.check(&TAILS);
        for (member, (state, _)) in found.states().into_iter().enumerate() {
            // The lost drive's member may be out: also `OLD`, if the lost drive is its present one.
            let lost = without == member || member == OLD && all.name() == format!("drive{without}");
            assert!(lost || state == MemberState::Active, "without {without}: {:?}", found.states());
        }
    }
}

/// As [`judge`], after the array was written with all drives, or without one of the two of member `OLD`.
fn judge_what_goes_on(scene: &Scene) {
    for without in [None, Some(OLD), Some(NEW)] {
        let without: Vec<usize> = without.into_iter().collect();
        let first = scene.copy_without(&without);
        write(&first.runtime, &first.array, 2, TAILS[2], 20, true);
        let (taken, state) = (first.name(), first.states()[OLD].0);
        let mut tails = TAILS;
        tails[2] += 20;
        // The drives that were missing or not used are present again.
        let mut lost = vec![None, Some(OLD), Some(NEW)];
        lost.extend((state == MemberState::Active).then_some(Some(3)));
        for lost in lost {
            let lost: Vec<usize> = lost.into_iter().collect();
            let again = first.copy_without(&lost);
            again.check(&tails);
            let (state, name) = again.states()[OLD].clone();
            assert!(state == MemberState::Out || name == taken, "{name} after {taken}, without {lost:?}");
        }
    }
}

/// Number of commands of a whole replacement that change drives, and of those up to the last one to the new drive.
fn commands(policy: Kind, volatile: bool) -> (usize, usize) {
    let scene = Scene::new(policy, volatile);
    let (all, copied) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (counted, before) = (all.clone(), copied.clone());
    scene.rig.rule(move |drive, command| {
        let changes = !matches!(command, Command::Read { .. } | Command::Report { .. });
        counted.set(counted.get() + changes as usize);
        if drive == NEW && !matches!(command, Command::Flush) {
            before.set(counted.get());
        }
        Act::Pass
    });
    scene.replace().unwrap();
    (all.get(), copied.get())
}

#[test]
fn replacement_survives_power_cut_at_any_command() {
    for (policy, volatile) in POLICIES.into_iter().zip([false, false, true, false]) {
        let (all, last_of_new) = commands(policy, volatile);
        // Each one while the new drive takes over, and some of those before.
        let first_close = last_of_new.saturating_sub(40);
        for cut in (0..first_close).step_by(23).chain(first_close..=all) {
            let scene = Scene::new(policy, volatile);
            let held = scene.rig.hold_after(cut);
            let outcome = scene.start();
            scene.runtime.run();
            assert_eq!(held.get(), cut < all, "{policy:?}: {cut} of {all}");
            assert_eq!(outcome.borrow().is_some(), cut == all);
            scene.cut_power(volatile);
            judge(&scene);
            if cut >= first_close {
                judge_what_goes_on(&scene);
            }
        }
    }
}

#[test]
fn replacement_abandons_failing_new_drive() {
    for policy in POLICIES {
        let (mut fail_at, mut ended) = (0, false);
        while !ended {
            let scene = Scene::new(policy, false);
            let count = Cell::new(0);
            let struck = Rc::new(Cell::new(false));
            let told = struck.clone();
            scene.rig.rule(move |drive, _| {
                count.set(count.get() + (drive == NEW) as usize);
                told.set(told.get() || drive == NEW && count.get() > fail_at);
                if drive == NEW && count.get() > fail_at { Act::Fail } else { Act::Pass }
            });
            let result = scene.replace();
            scene.rig.rule(|_, _| Act::Pass);
            ended = !struck.get();
            assert_eq!(result.is_ok(), ended, "{policy:?} {fail_at}: {result:?}");
            scene.check_active();
            assert_eq!(scene.name(), format!("drive{}", if ended { NEW } else { OLD }));
            write(&scene.runtime, &scene.array, 2, TAILS[2], 9, true);
            let mut tails = TAILS;
            tails[2] += 9;
            scene.check(&tails);
            scene.cut_power(false);
            // The new drive is present again, and is no member.
            let found = scene.copy_without(&[3]);
            assert_eq!(found.states()[OLD], (MemberState::Active, scene.name()), "{policy:?} {fail_at}");
            found.check(&tails);
            fail_at += if fail_at < 40 { 7 } else { 1 };
        }
    }
}

#[test]
fn replacement_rebuilds_when_old_drive_fails() {
    for policy in POLICIES {
        let (mut fail_at, mut ended) = (0, false);
        while !ended {
            let scene = Scene::new(policy, false);
            let count = Cell::new(0);
            let struck = Rc::new(Cell::new(false));
            let told = struck.clone();
            scene.rig.rule(move |drive, command| {
                let gone = drive == OLD && count.get() >= fail_at;
                count.set(count.get() + (drive == OLD && matches!(command, Command::Read { .. })) as usize);
                told.set(told.get() || gone);
                if gone { Act::Late } else { Act::Pass }
            });
            let result = scene.replace().unwrap_or_else(|error| panic!("{policy:?} {fail_at}: {error}"));
            scene.rig.rule(|_, _| Act::Pass);
            ended = !struck.get();
            assert_eq!(result == ReplaceOutcome::Attached, !ended, "{policy:?} {fail_at}: {result:?}");
            run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
            scene.check_active();
            scene.check(&TAILS);
            scene.cut_power(false);
            let found = scene.copy_without(&[0]);
            assert_eq!(found.states()[OLD], (MemberState::Active, format!("drive{NEW}")));
            found.check(&TAILS);
            fail_at += 1;
        }
    }
}

/// Blocks unreadable on the old drive are decoded, and stripes with an unreadable block on another member are copied: a
/// rebuild would lose both.
#[test]
fn replacement_decodes_unreadable_blocks_of_old_drive() {
    for policy in POLICIES {
        let scene = Scene::new(policy, false);
        let start = scene.drives[OLD].device.geometry().zone_size_blocks * META as u64;
        for (drive, block) in [(OLD, 1), (OLD, 18), (0, 2), (3, 25)] {
            scene.rig.damage(drive, Fault::Unreadable(Lba(start + block)));
        }
        assert!(matches!(scene.replace(), Ok(ReplaceOutcome::Copied { .. })));
        let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
        assert_eq!((rebuilt.bytes, &rebuilt.lost[..]), (0, &[][..]), "{policy:?}");
        scene.check_active();
        scene.check(&TAILS);
    }
}

/// A zone with blocks that can be neither read nor decoded is left out and rebuilt, unless another member lacks it.
#[test]
fn replacement_leaves_uncopyable_zone_to_rebuild() {
    for policy in POLICIES {
        for degraded in [false, true] {
            let scene = Scene::new(policy, false);
            let size = scene.drives[OLD].device.geometry().zone_size_blocks;
            // A data chunk of the incomplete stripe in the zone with a tail of 17 blocks.
            let stripe = TAILS[2] / (3 * CHUNK);
            let row = size * (META as u64 + 2) + stripe * CHUNK;
            (0..CHUNK).for_each(|b| scene.rig.damage(OLD, Fault::Unreadable(Lba(row + b))));
            if degraded {
                run(&scene.runtime, scene.array.fail(3)).unwrap();
            }
            let result = scene.replace();
            if degraded {
                let why = result.unwrap_err().to_string();
                assert!(
                    why.contains("zone 2 could not be copied")
                        && why.contains("another member lacks its part"),
                    "{why}"
                );
                assert_eq!(scene.name(), format!("drive{OLD}"));
                continue;
            }
            assert!(matches!(result, Ok(ReplaceOutcome::Copied { .. })), "{result:?}");
            assert_eq!(scene.array.status().members[OLD].zones_to_rebuild, 1, "{policy:?}");
            let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
            assert_eq!((&rebuilt.left_out[..], &rebuilt.lost[..]), (&[][..], &[][..]));
            scene.check_active();
            scene.check(&TAILS);
            scene.cut_power(false);
            scene.copy_without(&[0]).check(&TAILS);
        }
    }
}

#[test]
fn replacement_mirrors_concurrent_writes_and_resets() {
    for policy in POLICIES {
        for held in [10, 30, 50, 70, 90, 110] {
            let scene = Scene::new(policy, false);
            scene.rig.hold_after(held);
            let outcome = scene.start();
            scene.runtime.run();
            scene.rig.rule(|_, _| Act::Pass);
            // The new drive follows some of these zones, others it does not yet, and one is being copied.
            let mut tails = TAILS;
            let mut writes = Vec::new();
            for zone in [2u32, 3, 5] {
                let at = tails[zone as usize];
                writes.push(scene.array.submit(write_command(&scene.array, zone, at, 21, true)));
                tails[zone as usize] += 21;
            }
            let zones = Zones::One(ZoneIndex(0));
            let reset = scene.array.submit(Command::Reset { zones });
            tails[0] = 0;
            scene.rig.release(|_, _| true);
            for write in writes {
                assert_eq!(run(&scene.runtime, write).result, Ok(()));
            }
            assert_eq!(run(&scene.runtime, reset).result, Ok(()));
            scene.runtime.run();
            assert!(matches!(outcome.take(), Some(Ok(ReplaceOutcome::Copied { .. }))), "{policy:?} {held}");
            scene.check_active();
            scene.check(&tails);
            scene.cut_power(false);
            for lost in [0, 2, 3] {
                let found = scene.copy_without(&[lost, OLD]);
                assert_eq!(found.states()[OLD].0, MemberState::Active);
                found.check(&tails);
            }
        }
    }
}

#[test]
fn replacement_refuses_unfit_drives_without_changes() {
    let scene = Scene::new(POLICIES[0], false);
    let shape = scene.drives[OLD].device.geometry().clone();
    let far = scene.rig.drive(&Geometry { zone_size_blocks: 2 * shape.zone_size_blocks, ..shape });
    let replace = |member, drive: &Drive| {
        run(&scene.runtime, scene.array.replace(member, drive.clone(), &|_| ())).unwrap_err().to_string()
    };
    assert!(replace(OLD, &far).contains("not as far apart"));
    assert!(
        scene.array.can_copy(OLD, &far).is_err() && scene.array.can_copy(OLD, &scene.drives[NEW]).is_ok()
    );
    assert!(replace(OLD, &scene.drives[0]).contains("a member of this array already"));
    assert!(replace(7, &scene.drives[NEW]).contains("no member 7"));
    scene.check_active();
    run(&scene.runtime, scene.array.fail(2)).unwrap();
    assert!(replace(2, &scene.drives[NEW]).contains("out"));
    scene.check(&TAILS);
}

/// A new drive that has missed one command is not identical to the old one, even if it completes all later commands.
#[test]
fn replacement_abandons_new_drive_after_one_missed_command() {
    for policy in POLICIES {
        let scene = Scene::new(policy, false);
        let outcome = scene.start_all_but_one();
        let missed = Rc::new(Cell::new(false));
        let told = missed.clone();
        scene.rig.rule(move |drive, command| {
            match drive == NEW && written_zone(command).is_some() && !told.replace(true) {
                true => Act::Fail,
                false => Act::Pass,
            }
        });
        assert_eq!(run(&scene.runtime, scene.submit_write(5, 0, 21)).result, Ok(()));
        assert!(missed.get());
        scene.release();
        assert!(outcome.take().expect("it ends").is_err(), "{policy:?}");
        scene.check_active();
        assert_eq!(scene.name(), format!("drive{OLD}"));
        let mut tails = TAILS;
        tails[5] = 21;
        scene.check(&tails);
    }
}

/// The drive takes over only when all earlier commands have completed; before that no superblock names it.
#[test]
fn replacement_takes_over_only_after_pending_commands() {
    for policy in POLICIES {
        for what in ["write", "reset", "flush"] {
            let scene = Scene::new(policy, what == "flush");
            let outcome = scene.start_all_but_one();
            let seated = Rc::new(Cell::new(false));
            let told = seated.clone();
            scene.rig.rule(move |drive, command| {
                told.set(told.get() || drive == NEW && is_metadata(command, DATA));
                let held = match command {
                    Command::Reset { .. } | Command::Flush => true,
                    _ => written_zone(command) >= Some(META),
                };
                Act::hold_if(drive == 0 && held)
            });
            let mut tails = TAILS;
            let pending = match what {
                "write" => {
                    tails[3] += 21;
                    scene.submit_write(3, TAILS[3], 21)
                }
                "reset" => {
                    tails[3] = 0;
                    scene.submit(reset(3))
                }
                _ => scene.submit(Command::Flush),
            };
            while scene.rig.release(|_, command| matches!(command, Command::Read { .. })) > 0 {
                scene.runtime.run();
            }
            assert!(scene.rig.held() > 0 && outcome.borrow().is_none(), "{policy:?}, {what}");
            assert!(!seated.get(), "{policy:?}: a drive takes over while a {what} is on its way");
            scene.release();
            assert_eq!(run(&scene.runtime, pending).result, Ok(()));
            assert!(matches!(outcome.take(), Some(Ok(ReplaceOutcome::Copied { .. }))), "{policy:?}, {what}");
            scene.cut_power(false);
            scene.copy_without(&[0]).check(&tails);
        }
    }
}

/// A partly lost cache may keep the drive's superblock, and lose the copied data.
#[test]
fn replacement_flushes_copied_data_before_taking_over() {
    for policy in POLICIES {
        for seed in 0..12 {
            let scene = Scene::new(policy, true);
            let seated = Cell::new(false);
            scene.rig.rule(move |drive, command| {
                // The checkpoint; the label is in the second zone.
                let is_checkpoint = is_metadata(command, shape().zone_size_blocks);
                seated.set(seated.get() || drive == NEW && is_checkpoint);
                Act::hold_if(drive == NEW && seated.get() && matches!(command, Command::Flush))
            });
            let outcome = scene.start();
            scene.runtime.run();
            assert!(scene.rig.held() > 0 && outcome.borrow().is_none());
            scene.runtime.clear();
            let lost = |drive| Cut { cache_lost: drive == NEW, zrwa_lost: false };
            scene.rig.cut_power(&mut Rng::new(seed), lost);
            judge(&scene);
        }
    }
}

/// Writes covered by a failed flush may be lost, even if later flushes succeed.
#[test]
fn replacement_abandons_new_drive_after_failed_flush() {
    for policy in POLICIES {
        for flush in 0.. {
            let scene = Scene::new(policy, true);
            let seen = Rc::new(Cell::new(0));
            let flushes = seen.clone();
            scene.rig.rule(move |drive, command| {
                let is_flush = drive == NEW && matches!(command, Command::Flush);
                let fails = is_flush && flushes.get() == flush;
                flushes.set(flushes.get() + i32::from(is_flush));
                if fails { Act::Fail } else { Act::Pass }
            });
            let result = scene.replace();
            if seen.get() <= flush {
                assert!(result.is_ok() && flush > 5, "{policy:?}: {result:?} after {flush}");
                break;
            }
            assert!(result.is_err(), "{policy:?}, flush {flush}: {result:?}");
            assert_eq!(scene.array.status().members[OLD].drive, format!("drive{OLD}"));
            scene.check(&TAILS);
        }
    }
}

/// A drive that fails after all zones were left out does not take over.
#[test]
fn replacement_abandons_failing_drive_with_all_zones_omitted() {
    let shape = Geometry { volatile_cache: true, ..geometry(1 + META, 240, 8) };
    for (policy, flush) in POLICIES.into_iter().flat_map(|policy| [(policy, 0), (policy, 1)]) {
        let mut scene = support::scene::Scene::shaped(policy.0, shape.clone());
        scene.write(0, 0, 17);
        // The drive's data chunk of the incomplete stripe.
        let row = scene.data() + CHUNK;
        (0..CHUNK).for_each(|block| scene.damage(OLD, Fault::Unreadable(Lba(row + block))));
        let new = scene.rig.drive(&shape);
        scene.drives.push(new.clone());
        // Either the flush of its label or the one before it takes over.
        let flushes = Cell::new(0);
        scene.rig.rule(move |drive, command| match drive == NEW && matches!(command, Command::Flush) {
            true if flushes.replace(flushes.get() + 1) == flush => Act::Fail,
            _ => Act::Pass,
        });
        let result = run(&scene.runtime, scene.array.replace(OLD, new, &|_| ()));
        assert!(result.is_err(), "{policy:?}, flush {flush}: {result:?}");
        assert_eq!(scene.array.status().members[OLD].drive, format!("drive{OLD}"));
        scene.check(0, 17);
    }
}

/// The old drive lacks a zone that is reset at the last moment: the reset gives it a valid part, and the new drive
/// follows.
#[test]
fn replacement_follows_zone_reset_at_last_moment() {
    for policy in POLICIES {
        let scene = Scene::new(policy, false);
        scene.rig.rule(move |drive, command| {
            match drive == OLD && written_zone(command) == Some(part(3).0) {
                true => Act::Refuse,
                false => Act::Pass,
            }
        });
        write(&scene.runtime, &scene.array, 3, TAILS[3], 21, true);
        assert_eq!(scene.array.status().members[OLD].zones_to_rebuild, 1, "{policy:?}");
        scene.rig.rule(|drive, command| Act::hold_if(drive == 0 && matches!(command, Command::Reset { .. })));
        let pending = scene.submit(reset(3));
        let outcome = scene.start();
        scene.runtime.run();
        assert!(scene.rig.held() > 0 && outcome.borrow().is_none());
        scene.release();
        assert_eq!(run(&scene.runtime, pending).result, Ok(()));
        assert!(matches!(outcome.take(), Some(Ok(ReplaceOutcome::Copied { .. }))), "{policy:?}");
        let lacking: Vec<u32> = scene.array.status().members.iter().map(|m| m.zones_to_rebuild).collect();
        assert_eq!(lacking, [0; MEMBERS], "{policy:?}");
        write(&scene.runtime, &scene.array, 3, 0, 30, true);
        let mut tails = TAILS;
        tails[3] = 30;
        scene.cut_power(false);
        scene.copy_without(&[0]).check(&tails);
    }
}

#[test]
fn replacement_completion_is_in_all_superblocks() {
    for policy in POLICIES {
        let scene = Scene::new(policy, false);
        scene.replace().unwrap();
        for drive in [0, 2, 3, NEW] {
            let said = records(&scene.runtime, &scene.drives[drive], DATA).into_iter();
            let superblocks = said.filter_map(|(record, _)| match record {
                Record::Superblock(superblock) => Some(*superblock),
                Record::Checkpoint(checkpoint) => Some(checkpoint.superblock),
                _ => None,
            });
            let newest = superblocks.max_by_key(|superblock| superblock.event).unwrap();
            assert_eq!(newest.members[OLD].taking_over, None, "{policy:?}, drive {drive}");
        }
    }
}

/// Zones that fill up while the new drive follows them are full on a drive with larger zones, too.
#[test]
fn replacement_finishes_zones_filled_meanwhile_on_larger_drive() {
    for policy in POLICIES {
        let larger = Geometry { zone_capacity_blocks: 510, ..shape() };
        let scene = Scene::shaped(policy, &shape(), &larger, None);
        let outcome = scene.start_all_but_one();
        let capacity = wp_capacity(&scene, 5);
        for at in (0..capacity).step_by(48) {
            assert_eq!(
                run(&scene.runtime, scene.submit_write(5, at, (capacity - at).min(48))).result,
                Ok(())
            );
        }
        scene.release();
        assert!(matches!(outcome.take(), Some(Ok(ReplaceOutcome::Copied { .. }))), "{policy:?}");
        assert_eq!(physical(&scene, NEW, 5).0, ZoneState::Full, "{policy:?}");
    }
}

/// The zone of a drive that a command writes to.
fn written_zone(command: &Command) -> Option<u32> {
    match command {
        Command::Write { lba, .. } => Some((lba.0 / shape().zone_size_blocks) as u32),
        Command::Append { zone, .. } => Some(zone.0),
        _ => None,
    }
}

fn wp_capacity(scene: &Scene, zone: u32) -> u64 {
    let report = Command::Report { first: ZoneIndex(zone), count: 1 };
    submit(&scene.runtime, &scene.array, report).zones[0].capacity_blocks
}

/// State, write pointer and ZRWA of a drive's part of a zone.
fn physical(scene: &Scene, drive: usize, zone: u32) -> (ZoneState, u64, bool) {
    let report = Command::Report { first: part(zone), count: 1 };
    let info = run(&scene.runtime, scene.drives[drive].device.submit(report)).zones[0];
    (info.state, info.wp_blocks, info.zrwa)
}

/// Both drives read the same, also where nothing was written.
#[test]
fn replacement_copied_zones_read_identically_on_both_drives() {
    for policy in POLICIES.into_iter().filter(|(policy, _)| policy.uses_zrwa()) {
        let scene = Scene::new(policy, false);
        scene.rig.fail_unwritten();
        // Stripes with slots on different members.
        write(&scene.runtime, &scene.array, 3, TAILS[3], 5, true);
        write(&scene.runtime, &scene.array, 5, TAILS[5], 29, true);
        scene.replace().unwrap();
        for zone in 2..TAILS.len() as u32 {
            assert_eq!(physical(&scene, OLD, zone), physical(&scene, NEW, zone), "{policy:?}, zone {zone}");
            let start = DATA + zone as u64 * shape().zone_size_blocks;
            for block in start..start + shape().zone_capacity_blocks {
                let read = |drive: usize| {
                    let (data, oob) = (Buf::zeroed(BLOCK), Buf::zeroed(16));
                    let read = Command::Read { lba: Lba(block), data, oob };
                    let done = run(&scene.runtime, scene.drives[drive].device.submit(read));
                    let found = policy.0.uses_marks().then(|| done.oob.to_vec());
                    done.result.map(|()| (done.data.to_vec(), found))
                };
                assert!(read(OLD) == read(NEW), "{policy:?}, zone {zone}: block {block} is another one");
            }
        }
    }
}

/// The new drive alone has the superblock by which it takes over, is lost, and returns: the state that the others
/// reached without it counts.
#[test]
fn replacement_superblock_on_lone_drive_is_superseded() {
    for policy in POLICIES {
        let (all, last_of_new) = commands(policy, false);
        for cut in last_of_new.saturating_sub(12)..all {
            let scene = Scene::new(policy, false);
            let left = Cell::new(cut);
            scene.rig.rule(move |drive, command| match command {
                Command::Read { .. } | Command::Report { .. } => Act::Pass,
                _ if left.get() > 0 => {
                    left.set(left.get() - 1);
                    Act::Pass
                }
                _ => Act::hold_if(drive != NEW),
            });
            scene.start();
            scene.runtime.run();
            scene.cut_power(false);
            judge_what_goes_on(&scene);
        }
    }
}

/// Zones of the new drive that are not empty.
fn used_zones(scene: &Scene) -> Vec<ZoneInfo> {
    let report = Command::Report { first: ZoneIndex(0), count: shape().zones };
    let mut zones = run(&scene.runtime, scene.drives[NEW].device.submit(report)).zones;
    zones.retain(|info| info.state != ZoneState::Empty);
    zones
}

/// The unfinished copies that an assembly of the members would continue.
fn copies(scene: &Scene) -> Vec<UnfinishedCopy> {
    let (members, filled) = (scene.drives[..MEMBERS].to_vec(), &scene.drives[NEW..]);
    run(&scene.runtime, Array::inspect_with(&scene.runtime, members, filled, None)).unwrap().copies
}

/// Assembles the members again, as after a crash of the process or a power cut.
fn crash(scene: &mut Scene, power: bool) {
    scene.runtime.clear();
    scene.rig.drop_held();
    scene.rig.rule(|_, _| Act::Pass);
    if power {
        scene.rig.cut_power(&mut Rng::new(1), |_| Cut { cache_lost: true, zrwa_lost: false });
    }
    let members = scene.drives[..MEMBERS].to_vec();
    scene.array = run(&scene.runtime, Array::assemble(&scene.runtime, members)).unwrap();
}

/// Checks all data without the old drive and another member.
fn check_with_new(scene: &mut Scene, tails: &[u64]) {
    let there = (0..=MEMBERS).filter(|drive| ![OLD, 3].contains(drive));
    let there = there.map(|drive| scene.drives[drive].clone()).collect();
    scene.runtime.clear();
    scene.array = run(&scene.runtime, Array::assemble(&scene.runtime, there)).unwrap();
    for (zone, tail) in (0..).zip(tails) {
        check(&scene.runtime, &scene.array, zone, *tail);
    }
}

/// Zones of the new drive that are written from now on.
fn written_zones(scene: &Scene) -> Rc<RefCell<Vec<u32>>> {
    let written = Rc::new(RefCell::new(Vec::new()));
    let seen = written.clone();
    scene.rig.rule(move |drive, command| {
        seen.borrow_mut().extend(written_zone(command).filter(|_| drive == NEW));
        Act::Pass
    });
    written
}

#[test]
fn replacement_cancelled_leaves_new_drive_blank() {
    for policy in POLICIES {
        let mut scene = Scene::new(policy, false);
        assert!(scene.array.cancel_replacement().is_err());
        let outcome = scene.start_all_but_one();
        // Writes go to both drives.
        let mut tails = TAILS;
        assert_eq!(run(&scene.runtime, scene.submit_write(3, tails[3], 5)).result, Ok(()));
        tails[3] += 5;
        assert_eq!(scene.array.cancel_replacement(), Ok(()));
        scene.release();
        assert!(outcome.take().is_some_and(|result| result.is_err()), "{policy:?}");
        assert_eq!(used_zones(&scene), [], "{policy:?}");
        assert!(scene.array.cancel_replacement().is_err());
        // The old drive is still the member, and another replacement can be started.
        scene.check_active();
        assert!(matches!(scene.replace(), Ok(ReplaceOutcome::Copied { .. })), "{policy:?}");
        check_with_new(&mut scene, &tails);
    }
}

#[test]
fn copy_is_cancelled_while_new_drive_is_emptied() {
    let scene = Scene::new(POLICIES[0], false);
    scene.rig.rule(|drive, command| Act::hold_if(drive == NEW && matches!(command, Command::Reset { .. })));
    let outcome = scene.start();
    scene.runtime.run();
    assert!(scene.rig.held() > 0);
    assert_eq!([scene.array.cancel_replacement(), scene.array.cancel_replacement()], [Ok(()), Ok(())]);
    scene.release();
    let said = outcome.take().unwrap().unwrap_err().to_string();
    assert!(said.contains("cancelled"), "{said}");
    assert_eq!(used_zones(&scene), []);
    scene.check_active();
}

#[test]
fn rebuild_is_not_cancelled_as_copy() {
    let scene = Scene::new(POLICIES[0], false);
    run(&scene.runtime, scene.array.fail(OLD)).unwrap();
    run(&scene.runtime, scene.array.attach(OLD, scene.drives[NEW].clone())).unwrap();
    scene.rig.rule(|drive, command| Act::hold_if(drive == NEW && matches!(command, Command::Write { .. })));
    let array = scene.array.clone();
    scene.runtime.spawn(async move { _ = array.rebuild(&|_| ()).await });
    scene.runtime.run();
    assert!(scene.rig.held() > 0 && scene.array.cancel_replacement().is_err());
    scene.release();
    scene.check_active();
}

/// The new drive is blank, or the copy is still unfinished and continues.
#[test]
fn cancellation_may_be_cut_at_any_reset() {
    for policy in POLICIES {
        for cut in 0.. {
            let mut scene = Scene::new(policy, false);
            let outcome = scene.start_all_but_one();
            assert_eq!(scene.array.cancel_replacement(), Ok(()));
            let resets = Rc::new(Cell::new(0));
            let count = resets.clone();
            scene.rig.rule(move |drive, command| {
                let resets = drive == NEW && matches!(command, Command::Reset { .. });
                count.set(count.get() + u64::from(resets));
                Act::hold_if(resets)
            });
            scene.runtime.run();
            scene.rig.release(|_, command| !matches!(command, Command::Reset { .. }));
            scene.runtime.run();
            let mut done = 0;
            while done < cut && scene.rig.held() > 0 {
                scene.rig.release(|position, _| position == 0);
                scene.runtime.run();
                done += 1;
            }
            let ended = outcome.borrow().is_some();
            assert!(scene.rig.held() > 0 || ended, "{policy:?} {cut}");
            crash(&mut scene, true);
            let (used, unfinished) = (used_zones(&scene), copies(&scene));
            assert_eq!(unfinished.is_empty(), used.is_empty(), "{policy:?} {cut}: {used:?}");
            assert!(!ended || used.is_empty());
            scene.check_active();
            if cut % 3 == 0 || ended {
                assert!(matches!(scene.replace(), Ok(ReplaceOutcome::Copied { .. })), "{policy:?} {cut}");
                check_with_new(&mut scene, &TAILS);
            }
            if ended {
                break;
            }
        }
    }
}

/// A drive that is being filled is made blank without an array, its label last.
#[test]
fn unfinished_copy_is_cancelled_without_assembly() {
    for policy in POLICIES {
        let mut scene = Scene::new(policy, false);
        scene.start_all_but_one();
        crash(&mut scene, true);
        let [found] = &copies(&scene)[..] else { panic!("{policy:?}: {:?}", copies(&scene)) };
        assert_eq!((found.member, &found.drive), (OLD, &scene.drives[NEW].name));
        let cancel = |drive: &Drive| run(&scene.runtime, cancel_copy(&scene.runtime, drive));
        assert_eq!(cancel(&scene.drives[0]), Ok(false));
        assert_eq!(cancel(&scene.drives[NEW]), Ok(true), "{policy:?}");
        assert_eq!((used_zones(&scene), copies(&scene)), (vec![], vec![]));
        assert_eq!(cancel(&scene.drives[NEW]), Ok(false), "{policy:?}");
    }
}

/// The label of a drive names the drive that is copied: when another one has taken its place, it does not count.
#[test]
fn copy_of_former_member_does_not_continue() {
    for policy in POLICIES {
        let mut scene = Scene::new(policy, false);
        scene.start_all_but_one();
        crash(&mut scene, false);
        let other = scene.rig.drive(&shape());
        assert!(run(&scene.runtime, scene.array.replace(OLD, other.clone(), &|_| ())).is_ok());
        assert_eq!(run(&scene.runtime, scene.array.copy_to(&scene.drives[NEW])), None, "{policy:?}");
        let written = written_zones(&scene);
        assert!(matches!(scene.replace(), Ok(ReplaceOutcome::Copied { .. })), "{policy:?}");
        assert!(written.borrow().contains(&part(0).0));
        check_with_new(&mut scene, &TAILS);
    }
}

/// A zone that an interrupted copy has completed is reset before the copy that continues reaches it.
#[test]
fn replacement_resumed_copies_kept_zone_reset_meanwhile() {
    for policy in POLICIES {
        let mut scene = Scene::new(policy, false);
        scene.start_all_but_one();
        crash(&mut scene, false);
        scene
            .rig
            .rule(|drive, command| Act::hold_if(drive == NEW && matches!(command, Command::Reset { .. })));
        let outcome = scene.start();
        scene.runtime.run();
        assert!(scene.rig.held() > 0, "{policy:?}");
        submit(&scene.runtime, &scene.array, reset(0));
        scene.rig.rule(|_, _| Act::Pass);
        while scene.rig.release(|_, _| true) > 0 {
            scene.runtime.run();
        }
        write(&scene.runtime, &scene.array, 0, 0, 9, true);
        scene.runtime.run();
        let ended = outcome.take().expect("it ends");
        assert!(matches!(ended, Ok(ReplaceOutcome::Copied { .. })), "{policy:?}: {ended:?}");
        check_with_new(&mut scene, &[9]);
    }
}

/// Full zones that were copied before the cut are not copied again, unless their content has changed.
#[test]
fn replacement_resumes_with_copied_zones_after_interruption() {
    for policy in POLICIES {
        for (volatile, power) in [(false, false), (false, true), (true, true)] {
            let mut scene = Scene::new(policy, volatile);
            let outcome = scene.start_all_but_one();
            assert!(outcome.borrow().is_none());
            crash(&mut scene, power);
            // One of the zones is rewritten in between.
            submit(&scene.runtime, &scene.array, reset(FINISHED));
            write(&scene.runtime, &scene.array, FINISHED, 0, 30, true);
            submit(&scene.runtime, &scene.array, Command::Finish { zones: Zones::One(ZoneIndex(FINISHED)) });
            let unfinished = run(&scene.runtime, scene.array.copy_to(&scene.drives[NEW])).unwrap();
            let Progress { done_bytes, total_bytes, kept_bytes } = unfinished.progress;
            let zone_bytes = 12 * CHUNK * BLOCK as u64;
            assert_eq!((done_bytes, kept_bytes), (zone_bytes, zone_bytes), "{policy:?}");
            assert!((2 * zone_bytes..3 * zone_bytes).contains(&total_bytes), "{total_bytes}");
            let written = written_zones(&scene);
            let shown = Rc::new(RefCell::new(Vec::new()));
            let (array, new, told) = (scene.array.clone(), scene.drives[NEW].clone(), shown.clone());
            let progress = move |progress: Progress| told.borrow_mut().push(progress);
            let replaced = run(&scene.runtime, array.replace(OLD, new, &progress));
            drop(array);
            assert!(matches!(replaced, Ok(ReplaceOutcome::Copied { .. })), "{policy:?}");
            let zones = written.take();
            assert!(!zones.contains(&part(0).0), "{policy:?} {volatile} {power}: {zones:?}");
            assert!(zones.contains(&part(FINISHED).0), "{policy:?}");
            // The zone that was kept counts from the start.
            let (first, last) = (shown.borrow()[0], *shown.borrow().last().unwrap());
            assert_eq!((first.done_bytes, first.kept_bytes), (zone_bytes, zone_bytes));
            assert_eq!((last.done_bytes, last.total_bytes), (total_bytes, total_bytes));
            check_with_new(&mut scene, &TAILS);
        }
    }
}

/// The bad block of a full zone is filled before the copy continues.
#[test]
fn resumed_replacement_copies_part_that_had_bad_block() {
    let mut scene = Scene::new(POLICIES[2], false);
    run(&scene.runtime, scene.array.fail(OLD)).unwrap();
    run(&scene.runtime, scene.array.attach(OLD, scene.drives[OLD].clone())).unwrap();
    scene.rig.hide(vec![(0, BTreeSet::from([DATA + 1]))]);
    run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
    assert_eq!(scene.array.status().lost_blocks, 1);
    scene.start_all_but_one();
    crash(&mut scene, false);
    run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
    assert_eq!(scene.array.status().lost_blocks, 0);
    assert!(matches!(scene.replace(), Ok(ReplaceOutcome::Copied { .. })));
    check_with_new(&mut scene, &TAILS);
}
