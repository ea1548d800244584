//! Drives that lose power or are reset without a crash of the host: lost blocks are never returned as data.

use crate::support::{
    array::{geometry, options, pattern, run, wp, write, write_command},
    rig::Act,
    scene::{ACTIVE, CHUNK, Scene, finish, part},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use engine::{
    array::{Array, CreateOptions, MemberState, Tails},
    buf::{BLOCK, Buf},
    device::{Command, Completion, Geometry, ZonedDevice},
    raid::policy::Policy,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{cell::Cell, collections::BTreeSet, ops::Range, rc::Rc};

const ZRWA_LOST: Cut = Cut { cache_lost: false, zrwa_lost: true };
const CACHE_LOST: Cut = Cut { cache_lost: true, zrwa_lost: false };
/// Policies with a ZRWA, and numbers of parities.
const WITH_ZRWA: [(Policy, usize); 4] =
    [(Policy::Zrwa, 1), (Policy::Zrwa, 2), (Policy::InPlace, 1), (Policy::InPlace, 2)];

/// An array with three data members, for any number of parities.
fn scene_of(policy: Policy, parities: usize, shape: &Geometry) -> Scene {
    let options = CreateOptions { policy: Some(policy), parities, ..options(CHUNK) };
    Scene::with_members(3 + parities, options, shape.clone())
}

fn try_write(scene: &Scene, at: u64, blocks: u64) -> bool {
    !scene.refused(write_command(&scene.array, 0, at, blocks, true))
}

/// Reads blocks of the first zone one by one and compares those that can be read with the pattern. Returns the
/// unreadable ones.
fn read_each(scene: &Scene, blocks: Range<u64>, what: &str) -> Vec<u64> {
    let mut unreadable = Vec::new();
    for at in blocks {
        let done = run(&scene.runtime, scene.array.submit(Command::read(Lba(at), Buf::zeroed(BLOCK))));
        match done.result {
            Ok(()) => {
                assert!(done.data[..] == pattern(at, 1), "{what}: block {at} is not what was written")
            }
            Err(_) => unreadable.push(at),
        }
    }
    unreadable
}

fn tails_of(scene: &Scene, tail: u64) -> Tails {
    let mut blocks = vec![0; scene.array.geometry().zones as usize];
    blocks[0] = tail;
    Tails { assembly: scene.array.assembly(), blocks, power: scene.array.power_marks() }
}

fn assemble(scene: &mut Scene, missing: Option<usize>, tails: Option<&Tails>) -> Result<(), String> {
    scene.runtime.clear();
    let assembly = Array::assemble_with(&scene.runtime, scene.without(missing), tails, Default::default());
    scene.array = run(&scene.runtime, assembly).map_err(|error| error.to_string())?;
    Ok(())
}

fn is_whole(scene: &Scene) -> bool {
    scene.states().iter().all(|state| *state == ACTIVE)
}

fn rebuild(scene: &Scene) {
    scene.rebuild();
    assert!(is_whole(scene));
}

/// The process dies, then all drives lose power and their volatile caches: the recorded tails are ignored, and the
/// array holds the flushed data.
#[test]
fn take_over_after_common_power_loss_ignores_tails() {
    let shape = Geometry { volatile_cache: true, ..geometry(8, 240, 8) };
    for (policy, parities) in [(Policy::Log, 1), (Policy::Log, 2)].into_iter().chain(WITH_ZRWA) {
        for blocks in 1..60 {
            let mut scene = scene_of(policy, parities, &shape);
            write(&scene.runtime, &scene.array, 0, 0, blocks, true);
            write(&scene.runtime, &scene.array, 0, blocks, 13, false);
            let tails = tails_of(&scene, blocks + 13);
            scene.rig.cut_power(&mut Rng::new(blocks), |_| CACHE_LOST);
            assemble(&mut scene, None, Some(&tails)).unwrap();
            let tail = wp(&scene.runtime, &scene.array, 0).1;
            assert!(tail >= blocks, "{policy:?}: {blocks} were flushed, {tail} are there");
            assert!(read_each(&scene, 0..tail, "all").is_empty());
        }
    }
}

/// One drive loses power after the process died: no answered write is lost, and its part is rebuilt.
#[test]
fn take_over_after_single_power_loss_keeps_tails() {
    let shape = Geometry { volatile_cache: true, ..geometry(8, 240, 8) };
    for (policy, parities) in [(Policy::Log, 1), (Policy::Log, 2)].into_iter().chain(WITH_ZRWA) {
        for blocks in (1..60).step_by(3) {
            for lost in 0..3 + parities {
                let mut scene = scene_of(policy, parities, &shape);
                write(&scene.runtime, &scene.array, 0, 0, blocks, true);
                write(&scene.runtime, &scene.array, 0, blocks, 13, false);
                let tails = tails_of(&scene, blocks + 13);
                let what = format!("{policy:?} {parities} {blocks} without the cache of {lost}");
                scene.rig.cut_power_of(lost, CACHE_LOST);
                assemble(&mut scene, None, Some(&tails)).unwrap();
                assert_eq!(wp(&scene.runtime, &scene.array, 0).1, blocks + 13, "{what}");
                assert!(read_each(&scene, 0..blocks + 13, &what).is_empty());
                rebuild(&scene);
                scene.rig.cut_power(&mut Rng::new(1), |_| Cut::default());
                assemble(&mut scene, Some((lost + 1) % 3), None).unwrap();
                assert_eq!(wp(&scene.runtime, &scene.array, 0).1, blocks + 13, "{what}");
                assert!(read_each(&scene, 0..blocks + 13, &what).is_empty());
            }
        }
    }
}

/// Drives have lost power at different times. Each one is compared with its own epoch: a drive that has kept power
/// since then lacks nothing, and one that has lost power is detected.
#[test]
fn take_over_compares_drives_with_own_power_epochs() {
    let shape = Geometry { volatile_cache: true, ..geometry(8, 240, 8) };
    for (policy, parities) in [(Policy::Log, 1), (Policy::Log, 2)].into_iter().chain(WITH_ZRWA) {
        for odd in 0..3 + parities {
            let mut scene = scene_of(policy, parities, &shape);
            scene.rig.cut_power_of(odd, Cut::default());
            assemble(&mut scene, None, None).unwrap();
            let drives: BTreeSet<u64> = scene.array.power_marks().iter().map(|mark| mark.drive).collect();
            assert_eq!(drives.len(), 3 + parities, "{policy:?} {parities}");
            write(&scene.runtime, &scene.array, 0, 0, 17, false);
            let tails = tails_of(&scene, 17);
            assemble(&mut scene, None, Some(&tails)).unwrap();
            assert!(is_whole(&scene), "{policy:?} {parities}: {:?}", scene.array.status().members);
            let tails = tails_of(&scene, 17);
            let lost = (odd + 1) % 3;
            scene.rig.cut_power_of(lost, CACHE_LOST);
            assemble(&mut scene, None, Some(&tails)).unwrap();
            assert_eq!(wp(&scene.runtime, &scene.array, 0).1, 17, "{policy:?} {parities}");
            let lacking = scene.array.status().members.into_iter().map(|member| member.zones_to_rebuild > 0);
            assert!(lacking.enumerate().all(|(member, lacks)| lacks == (member == lost)), "{policy:?}");
            assert!(read_each(&scene, 0..17, "all").is_empty());
        }
    }
}

/// A second drive loses power while the first one is asked for its zones: reads of both complete.
#[test]
fn power_loss_during_check_of_another_drive_is_checked() {
    for policy in [Policy::Zrwa, Policy::InPlace] {
        let scene = scene_of(policy, 2, &geometry(8, 240, 8));
        write(&scene.runtime, &scene.array, 0, 0, 12, true);
        let holds = |drive: usize| {
            scene.rig.rule(move |of, command| {
                Act::hold_if(of == drive && matches!(command, Command::Report { count: 2.., .. }))
            });
        };
        let read = |at: u64| scene.start(Command::read(Lba(at), Buf::zeroed(BLOCK)));
        scene.rig.cut_power_of(0, ZRWA_LOST);
        holds(0);
        let first = read(0);
        assert_eq!(scene.rig.held(), 1, "{policy:?}");
        scene.rig.cut_power_of(1, ZRWA_LOST);
        let second = read(CHUNK);
        scene.release();
        for (read, at) in [(first, 0), (second, CHUNK)] {
            let done = scene.runtime.block_on(read, || false).expect("the read does not complete");
            assert!(done.result.is_ok() && done.data[..] == pattern(at, 1), "{policy:?} {at}");
        }
    }
}

fn volatile() -> Geometry {
    Geometry { volatile_cache: true, ..geometry(8, 240, 8) }
}

/// Two drives are reset, and a zone that was being opened is open only after the report of one of them: no part of it
/// counts as lost, although this report shows it empty.
#[test]
fn zone_opened_during_power_check_keeps_parts() {
    for (policy, parities) in WITH_ZRWA {
        let scene = scene_of(policy, parities, &geometry(8, 240, 8));
        scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::Open { .. })));
        let written = scene.start_write(1, 0, 12);
        let what = format!("{policy:?} {parities}");
        assert_eq!(scene.rig.held(), 3 + parities, "{what}");
        (0..2).for_each(|drive| scene.rig.cut_power_of(drive, ZRWA_LOST));
        let is_report = |command: &Command| matches!(command, Command::Report { count: 2.., .. });
        scene.rig.rule(move |of, command| Act::hold_if(of == 1 && is_report(command)));
        let array = scene.array.clone();
        scene.runtime.spawn(async move { array.check_power().await });
        scene.runtime.run();
        assert_eq!(scene.rig.held(), 4 + parities, "{what}");
        scene.rig.release(|_, command| !is_report(command));
        scene.runtime.run();
        scene.release();
        let done = scene.runtime.block_on(written, || false).expect("the write does not complete");
        assert_eq!(done.result, Ok(()), "{what}");
        assert!(is_whole(&scene), "{what}: {:?}", scene.states());
        scene.check(1, 12);
    }
}

/// A zone is opened after two drives have lost power, and before that is noticed: it has lost nothing.
#[test]
fn zone_opened_after_unnoticed_power_loss_keeps_parts() {
    for (policy, parities) in [Policy::Log, Policy::Zrwa].into_iter().flat_map(|p| [(p, 1), (p, 2)]) {
        let scene = scene_of(policy, parities, &volatile());
        (0..2 + parities).for_each(|drive| scene.rig.cut_power_of(drive, CACHE_LOST));
        scene.write(1, 0, 12);
        assert!(is_whole(&scene), "{policy:?} {parities}: {:?}", scene.states());
        scene.check(1, 12);
    }
}

/// A zone becomes full while a rebuild resets the remains of a lost part of it.
#[test]
fn zone_filled_while_leftover_is_cleared_keeps_its_data() {
    for (policy, parities) in WITH_ZRWA {
        let scene = scene_of(policy, parities, &geometry(8, 240, 8));
        let capacity = scene.array.geometry().zone_capacity_blocks;
        write(&scene.runtime, &scene.array, 0, 0, 120, true);
        scene.rig.cut_power_of(1, ZRWA_LOST);
        run(&scene.runtime, scene.array.check_power());
        scene.rig.rule(|of, command| Act::hold_if(of == 1 && matches!(command, Command::Reset { .. })));
        let rebuilt = scene.start_rebuild();
        let what = format!("{policy:?} {parities}");
        assert_eq!(scene.rig.held(), 1, "{what}: {:?}", scene.states());
        let starts = (120..capacity).step_by(24);
        let writes: Vec<_> = starts.map(|at| scene.start_write(0, at, (capacity - at).min(24))).collect();
        scene.release();
        for written in writes {
            let done = scene.runtime.block_on(written, || false).expect("a write does not complete");
            assert_eq!(done.result, Ok(()), "{what}");
        }
        assert_eq!(rebuilt.get(), Some(true), "{what}");
        assert!(is_whole(&scene), "{what}: {:?}", scene.states());
        scene.check(0, capacity);
    }
}

#[test]
fn power_marks_name_drive_and_settled_epoch() {
    let scene = scene_of(Policy::Zrwa, 1, &geometry(8, 240, 8));
    let marks = scene.array.power_marks();
    assert_eq!(marks.len(), 4);
    run(&scene.runtime, scene.array.fail(2)).unwrap();
    assert_eq!(scene.array.power_marks(), [marks[0], marks[1], marks[3]]);
    run(&scene.runtime, scene.array.attach(2, scene.rig.drive(&geometry(8, 240, 8)))).unwrap();
    let later = scene.array.power_marks();
    assert_ne!(later[2].drive, marks[2].drive);
    assert_eq!([later[0], later[1], later[3]], [marks[0], marks[1], marks[3]]);
    scene.rig.cut_power_of(0, Cut::default());
    // Not before the logs name the lost parts.
    assert_eq!(scene.array.power_marks(), later);
    run(&scene.runtime, scene.array.check_power());
    assert_eq!(scene.array.power_marks()[0].epoch, later[0].epoch + 1);
    assert_eq!(scene.array.status().members[0].zones_to_rebuild, 0);
    scene.rig.hide_power_epochs();
    let mut blind = scene;
    assemble(&mut blind, None, None).unwrap();
    assert_eq!(blind.array.power_marks(), []);
}

/// A part is rebuilt after the first promise of its zone: with it, enough parts have their write pointers at the start
/// to make the zone look empty after all ZRWAs are lost.
#[test]
fn common_zrwa_loss_after_rebuild_takes_promised_zone_offline() {
    for (policy, parities) in WITH_ZRWA {
        let members = 3 + parities;
        for (blocks, replaced) in (1..16).flat_map(|blocks| (0..members).map(move |member| (blocks, member)))
        {
            let mut scene = scene_of(policy, parities, &geometry(8, 240, 8));
            run(&scene.runtime, scene.array.fail(replaced)).unwrap();
            write(&scene.runtime, &scene.array, 0, 0, blocks, true);
            scene.replace(replaced);
            rebuild(&scene);
            scene.rig.cut_power(&mut Rng::new(1), |_| ZRWA_LOST);
            for missing in [None].into_iter().chain((0..members).map(Some)) {
                let what = format!("{policy:?} {parities} {blocks}, {replaced} rebuilt, {missing:?} missing");
                if assemble(&mut scene, missing, None).is_err() {
                    continue;
                }
                let (state, end) = wp(&scene.runtime, &scene.array, 0);
                assert!(state == ZoneState::Offline || end >= blocks, "{what}: {state:?} {end}");
            }
        }
    }
}

/// All ZRWAs are lost while a zone without a promise is being finished: the zone is never full of zeros.
#[test]
fn finish_cut_with_zrwa_loss_never_yields_zeros() {
    for (policy, parities) in WITH_ZRWA {
        for blocks in [1, 3, 4, 5, 12, 13, 24] {
            for commands in 0.. {
                let what = format!("{policy:?} {parities} {blocks}, cut after {commands} commands");
                let mut scene = scene_of(policy, parities, &geometry(8, 240, 8));
                write(&scene.runtime, &scene.array, 0, 0, blocks, false);
                let cut = scene.rig.hold_after(commands);
                drop(scene.start(finish(0)));
                scene.stop();
                scene.rig.cut_power(&mut Rng::new(blocks), |_| ZRWA_LOST);
                assemble(&mut scene, None, None).unwrap();
                if wp(&scene.runtime, &scene.array, 0).0 != ZoneState::Offline {
                    let end = wp(&scene.runtime, &scene.array, 0).1.min(blocks);
                    assert!(read_each(&scene, 0..end, &what).is_empty(), "{what}");
                }
                if !cut.get() {
                    break;
                }
            }
        }
    }
}

/// One drive loses its ZRWA while the array runs: the next read returns the data written, and so do reads after more
/// writes, a rebuild and the loss of another drive.
#[test]
fn read_after_zrwa_loss_decodes_and_rebuild_restores() {
    for (policy, parities) in WITH_ZRWA {
        for blocks in 1..60 {
            for drive in 0..3 + parities {
                let what = format!("{policy:?} {parities} {blocks} without the ZRWA of {drive}");
                let mut scene = scene_of(policy, parities, &geometry(8, 240, 8));
                write(&scene.runtime, &scene.array, 0, 0, blocks, true);
                scene.rig.cut_power_of(drive, ZRWA_LOST);
                assert!(read_each(&scene, 0..blocks, &what).is_empty(), "{what}");
                let mut tail = blocks;
                for more in [1, 3, 9, 20] {
                    write(&scene.runtime, &scene.array, 0, tail, more, true);
                    tail += more;
                }
                assert!(read_each(&scene, 0..tail, &what).is_empty(), "{what}");
                if blocks % 2 == 0 {
                    rebuild(&scene);
                    scene.rig.cut_power(&mut Rng::new(1), |_| Cut::default());
                    assemble(&mut scene, Some((drive + 1) % 4), None).unwrap();
                    assert_eq!(wp(&scene.runtime, &scene.array, 0).1, tail, "{what}");
                    assert!(read_each(&scene, 0..tail, &what).is_empty(), "{what}");
                } else if parities == 1 {
                    scene.rig.cut_power(&mut Rng::new(1), |_| Cut::default());
                    // One loss more than the parity covers: a refusal is right, wrong data is not.
                    if assemble(&mut scene, Some((drive + 1) % 4), None).is_ok() {
                        let (state, end) = wp(&scene.runtime, &scene.array, 0);
                        assert!(state == ZoneState::Offline || end == tail, "{what}: {state:?} {end}");
                        if state != ZoneState::Offline {
                            read_each(&scene, 0..tail, &what);
                        }
                    }
                }
            }
        }
    }
}

/// Without any read, a write or the periodic check marks the part as lost.
#[test]
fn write_or_check_detects_zrwa_loss() {
    for (policy, parities) in WITH_ZRWA {
        for blocks in 1..40 {
            for asks in [false, true] {
                let what = format!("{policy:?} {parities} {blocks} {asks}");
                let scene = scene_of(policy, parities, &geometry(8, 240, 8));
                write(&scene.runtime, &scene.array, 0, 0, blocks, true);
                scene.rig.cut_power_of(1, ZRWA_LOST);
                match asks {
                    true => {
                        // The zones that the drive reports are evidence enough.
                        scene.rig.hide_power_epochs();
                        run(&scene.runtime, scene.array.check_power());
                    }
                    false => write(&scene.runtime, &scene.array, 0, blocks, 1, true),
                }
                let lacking = scene.array.status().members[1].zones_to_rebuild;
                assert_eq!(lacking, 1, "{what}");
                rebuild(&scene);
            }
        }
    }
}

/// A finish commits the blocks that are there, and the drive reports the zone full as if no block were missing.
#[test]
fn finish_after_zrwa_loss_keeps_data() {
    for (policy, parities) in WITH_ZRWA {
        for blocks in 1..40 {
            for drive in 0..3 + parities {
                let what = format!("{policy:?} {parities} {blocks} {drive}");
                let scene = scene_of(policy, parities, &geometry(8, 240, 8));
                write(&scene.runtime, &scene.array, 0, 0, blocks, true);
                scene.rig.cut_power_of(drive, ZRWA_LOST);
                let zones = engine::device::Zones::One(ZoneIndex(0));
                let done = run(&scene.runtime, scene.array.submit(Command::Finish { zones }));
                assert_eq!(done.result, Ok(()), "{what}");
                assert!(read_each(&scene, 0..blocks, &what).is_empty(), "{what}");
            }
        }
    }
}

/// All drives lose their ZRWAs at once: reads return the data written or an error.
#[test]
fn common_zrwa_loss_at_run_time_returns_errors() {
    for (policy, parities) in WITH_ZRWA {
        for blocks in 1..60 {
            let what = format!("{policy:?} {parities} {blocks}");
            let mut scene = scene_of(policy, parities, &geometry(8, 240, 8));
            write(&scene.runtime, &scene.array, 0, 0, blocks, true);
            (0..3 + parities).for_each(|drive| scene.rig.cut_power_of(drive, ZRWA_LOST));
            read_each(&scene, 0..blocks, &what);
            read_each(&scene, 0..blocks, &what);
            let tail = if try_write(&scene, blocks, 5) { blocks + 5 } else { blocks };
            read_each(&scene, 0..tail, &what);
            scene.rig.cut_power(&mut Rng::new(1), |_| Cut::default());
            assemble(&mut scene, None, None).unwrap();
            let (state, end) = wp(&scene.runtime, &scene.array, 0);
            assert!(state == ZoneState::Offline || end >= tail, "{what}: {state:?} {end}");
            if state != ZoneState::Offline {
                read_each(&scene, 0..tail, &what);
            }
        }
    }
}

/// A zone with acknowledged data is never silently empty, also if the data were zeros.
#[test]
fn common_zrwa_loss_takes_promised_zones_offline() {
    for (policy, parities) in WITH_ZRWA {
        for blocks in 1..120 {
            for (step, zeros) in [(5, false), (1, false), (64, false), (5, true)] {
                let what = format!("{policy:?} {parities} {blocks} by {step}, zeros: {zeros}");
                let mut scene = scene_of(policy, parities, &geometry(8, 240, 8));
                for at in (0..blocks).step_by(step) {
                    let count = (blocks - at).min(step as u64);
                    let data = match zeros {
                        true => Buf::zeroed(count as usize * BLOCK),
                        false => Buf::copy_of(&pattern(at, count)),
                    };
                    let done = run(&scene.runtime, scene.array.submit(Command::write(Lba(at), data, true)));
                    assert_eq!(done.result, Ok(()));
                }
                scene.runtime.clear();
                scene.rig.cut_power(&mut Rng::new(1), |_| ZRWA_LOST);
                assemble(&mut scene, None, None).unwrap();
                let (state, end) = wp(&scene.runtime, &scene.array, 0);
                assert!(state == ZoneState::Offline || end >= blocks, "{what}: {state:?} {end}");
            }
        }
    }
}

/// One drive loses its volatile cache while the array runs: blocks that were not flushed are decoded, and rebuilt.
#[test]
fn read_after_cache_loss_decodes_and_rebuild_restores() {
    let shape = Geometry { volatile_cache: true, ..geometry(8, 240, 8) };
    for (policy, parities) in [(Policy::Log, 1), (Policy::Log, 2)].into_iter().chain(WITH_ZRWA) {
        for blocks in (1..60).step_by(2) {
            for (drive, reads) in (0..3 + parities).flat_map(|drive| [(drive, true), (drive, false)]) {
                let what =
                    format!("{policy:?} {parities} {blocks} without the cache of {drive}, reads: {reads}");
                let mut scene = scene_of(policy, parities, &shape);
                write(&scene.runtime, &scene.array, 0, 0, blocks, true);
                write(&scene.runtime, &scene.array, 0, blocks, 17, false);
                scene.rig.cut_power_of(drive, CACHE_LOST);
                if reads {
                    assert!(read_each(&scene, 0..blocks + 17, &what).is_empty(), "{what}");
                }
                let tail = blocks + 17 + 3;
                write(&scene.runtime, &scene.array, 0, blocks + 17, 3, true);
                assert!(read_each(&scene, 0..tail, &what).is_empty(), "{what}");
                if scene.array.status().members[drive].state == MemberState::Out {
                    // Its metadata log has lost records, as with the policy `log`.
                    scene.drives[drive] = scene.rig.drive(&shape);
                    let replacement = scene.drives[drive].clone();
                    run(&scene.runtime, scene.array.attach(drive, replacement)).unwrap();
                }
                rebuild(&scene);
                scene.rig.cut_power(&mut Rng::new(1), |_| CACHE_LOST);
                assemble(&mut scene, Some((drive + 1) % 3), None).unwrap();
                assert_eq!(wp(&scene.runtime, &scene.array, 0).1, tail, "{what}");
                assert!(read_each(&scene, 0..tail, &what).is_empty(), "{what}");
            }
        }
    }
}

/// The drive under repair loses power at any write of the rebuild: the part counts only when all of it is there.
#[test]
fn rebuild_repeats_zone_after_power_loss_of_target() {
    let shape = Geometry { volatile_cache: true, ..geometry(8, 240, 8) };
    // With a damaged block, bad blocks are logged between the last write to the part and its record.
    for (policy, full, damaged) in [
        (Policy::Log, false, false),
        (Policy::Zrwa, false, false),
        (Policy::InPlace, false, false),
        (Policy::Zrwa, true, false),
        (Policy::Log, false, true),
        (Policy::Zrwa, false, true),
        (Policy::InPlace, false, true),
    ] {
        for at in 0..40 {
            let what = format!("{policy:?}, full: {full}, damaged: {damaged}, power loss at write {at}");
            let mut scene = scene_of(policy, 1, &shape);
            let tail = if full { scene.array.layout().capacity_blocks() } else { 50 };
            for from in (0..tail).step_by(50) {
                write(&scene.runtime, &scene.array, 0, from, 50.min(tail - from), true);
            }
            run(&scene.runtime, scene.array.fail(2)).unwrap();
            scene.drives[2] = scene.rig.drive(&shape);
            run(&scene.runtime, scene.array.attach(2, scene.drives[2].clone())).unwrap();
            if damaged {
                scene.damage(0, Fault::Unreadable(Lba(scene.data() + 1)));
            }
            let (rig, left) = (scene.rig.clone(), Cell::new(Some(at)));
            scene.rig.rule(move |drive, command| {
                if drive == 4 && matches!(command, Command::Write { .. }) {
                    match left.get() {
                        Some(0) => {
                            left.set(None);
                            rig.cut_power_of(4, CACHE_LOST);
                        }
                        some => left.set(some.map(|left| left - 1)),
                    }
                }
                Act::Pass
            });
            run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
            run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
            scene.rig.rule(|_, _| Act::Pass);
            assert!(is_whole(&scene), "{what}");
            scene.rig.cut_power(&mut Rng::new(1), |_| CACHE_LOST);
            assemble(&mut scene, Some(0), None).unwrap();
            assert_eq!(wp(&scene.runtime, &scene.array, 0).1, tail, "{what}");
            // The bad block of the part, and the damaged block, which would be needed to decode it.
            let lost = read_each(&scene, 0..tail, &what);
            assert!(lost.len() <= 2 * usize::from(damaged), "{what}: {lost:?}");
        }
    }
}

/// The record of a promise costs one log block on each member, once for each zone, and nothing after writes that move
/// enough write pointers.
#[test]
fn promise_costs_one_log_block_per_part() {
    // With `inplace` the opening of a zone is recorded as well.
    for (policy, opening) in [(Policy::Zrwa, 0), (Policy::InPlace, 4)] {
        let shape = geometry(8, 240, 8);
        let (scene, logged) = (scene_of(policy, 1, &shape), Rc::new(Cell::new(0)));
        let (counted, log_end) = (logged.clone(), 2 * shape.zone_size_blocks);
        scene.rig.rule(move |_, command| {
            if matches!(command, Command::Write { lba, .. } if lba.0 < log_end) {
                counted.set(counted.get() + 1);
            }
            Act::Pass
        });
        let count = |zone: u32, at, blocks| {
            write(&scene.runtime, &scene.array, zone, at, blocks, true);
            logged.replace(0)
        };
        assert_eq!([count(0, 0, 1), count(0, 1, 1), count(0, 2, 40)], [opening + 4, 0, 0], "{policy:?}");
        if policy == Policy::Zrwa {
            assert_eq!(count(1, 0, 36), 0, "three stripes move all write pointers");
        }
    }
}

/// Drive 1 loses its volatile cache while an array is in deferred-write mode, which leaves the cache as it is: the
/// array does without that member, and acknowledged blocks that are gone are neither returned nor promised later.
#[test]
fn power_loss_in_deferred_write_mode_takes_member_out() {
    let shape = Geometry { volatile_cache: true, ..geometry(8, 240, 8) };
    for (policy, parities) in Policy::ALL.into_iter().flat_map(|policy| [(policy, 1), (policy, 2)]) {
        for (blocks, with_tails) in (1..60).flat_map(|blocks| [(blocks, false), (blocks, true)]) {
            let what = format!("{policy:?} {parities}, {blocks} blocks, tails: {with_tails}");
            let scene = scene_of(policy, parities, &shape);
            write(&scene.runtime, &scene.array, 0, 0, blocks, false);
            let tails = tails_of(&scene, blocks);
            scene.stop();
            let mut scene = deferred_with(scene, Some(&tails).filter(|_| with_tails));
            let tail = scene.tail(0);
            scene.rig.cut_power_of(1, CACHE_LOST);
            let unreadable = read_each(&scene, 0..tail, &what);
            assert!(unreadable.is_empty() || parities == 1, "{what}: {unreadable:?}");
            run(&scene.runtime, scene.array.begin()).unwrap();
            // Blocks that were not durable may be gone now.
            let tail = scene.tail(0);
            read_each(&scene, 0..tail, &what);
            scene.replace(0);
            scene.rebuild();
            read_each(&scene, 0..tail, &what);
        }
    }
}

/// Drive 1 loses its ZRWAs while an array is in deferred-write mode, and gives no evidence of it but the state of its
/// zones: its parts are decoded.
#[test]
fn zrwa_loss_in_deferred_write_mode_is_detected() {
    for policy in [Policy::Zrwa, Policy::InPlace] {
        for blocks in 1..60 {
            let what = format!("{policy:?}, {blocks} blocks");
            let scene = scene_of(policy, 2, &geometry(8, 240, 8));
            write(&scene.runtime, &scene.array, 0, 0, blocks, true);
            scene.stop();
            scene.rig.hide_power_epochs();
            let scene = deferred(scene);
            scene.rig.cut_power_of(1, ZRWA_LOST);
            run(&scene.runtime, scene.array.check_power());
            let unreadable = read_each(&scene, 0..scene.tail(0), &what);
            assert!(unreadable.is_empty(), "{what}: {unreadable:?}");
        }
    }
}

/// An array in deferred-write mode without member 0 starts to write, and drive 1 refuses to finish its part of a zone:
/// the part is lost then, but until the array writes it is still read.
#[test]
fn reads_while_array_begins_find_part_lost_meanwhile() {
    // The capacity of a zone is not a multiple of the chunk size.
    let scene = scene_of(Policy::Log, 2, &geometry(8, 242, 8));
    // The zone is full, but not finished on the drives: so the assembly finishes it.
    scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::Finish { .. })));
    let tail = scene.array.geometry().zone_capacity_blocks;
    write(&scene.runtime, &scene.array, 0, 0, tail, true);
    scene.stop();
    let scene = deferred(scene);
    scene.rig.rule(|drive, command| match command {
        Command::Finish { .. } if drive == 1 => Act::Refuse,
        Command::Read { .. } | Command::Report { .. } => Act::Pass,
        _ => Act::Hold,
    });
    let array = scene.array.clone();
    scene.runtime.spawn(async move { array.begin().await.unwrap() });
    scene.runtime.run();
    while scene.rig.release(|place, _| place == 0) > 0 {
        scene.runtime.run();
        assert!(read_each(&scene, 0..tail, "while it begins").is_empty());
    }
    assert!(!scene.array.is_deferred());
    assert_eq!(scene.states()[1], (MemberState::Rebuilding, 1));
    // The remains of the part are reset in the end: they would hold active resources.
    assert_eq!(scene.rig.written(1, part(0)), 0);
}

/// A read in deferred-write mode that a drive carries out after the array has started to write, and a rebuild has reset
/// the part.
#[test]
fn read_in_flight_while_array_begins_does_not_return_reset_part() {
    let shape = Geometry { volatile_cache: true, ..geometry(8, 240, 8) };
    for policy in [Policy::Log, Policy::Zrwa] {
        let scene = scene_of(policy, 2, &shape);
        write(&scene.runtime, &scene.array, 0, 0, 30, true);
        scene.stop();
        let scene = deferred(scene);
        scene.rig.rule(|drive, command| Act::hold_if(drive == 1 && matches!(command, Command::Read { .. })));
        let reads = start_reads(&scene, 30);
        let first = scene.rig.held();
        assert!(first > 5, "{first} reads of drive 1");
        scene.rig.rule(|_, _| Act::Pass);
        write(&scene.runtime, &scene.array, 0, 30, 10, false);
        assert!(!scene.array.is_deferred());
        scene.rig.cut_power_of(1, CACHE_LOST);
        run(&scene.runtime, scene.array.check_power());
        assert!(scene.states()[1].1 > 0, "{policy:?}: no part was lost");
        // The rebuild stops when the part has been reset.
        scene.rig.hold_after(1);
        let rebuilt = scene.start_rebuild();
        assert!(scene.rig.held() > first, "{policy:?}");
        scene.rig.release(|place, _| place < first);
        check_reads(&scene, reads, policy.name());
        scene.release();
        assert_eq!(rebuilt.get(), Some(true), "{policy:?}");
    }
}

/// Starts a read of each of the first `blocks` blocks.
fn start_reads(scene: &Scene, blocks: u64) -> Vec<(u64, Completion)> {
    (0..blocks).map(|at| (at, scene.start(Command::read(Lba(at), Buf::zeroed(BLOCK))))).collect()
}

fn check_reads(scene: &Scene, reads: Vec<(u64, Completion)>, what: &str) {
    for (at, read) in reads {
        let done = run(&scene.runtime, read);
        assert_eq!(done.result, Ok(()), "{what}: block {at}");
        assert!(done.data[..] == pattern(at, 1), "{what}: block {at} is not what was written");
    }
}

/// Assembles an array whose process has ended, without member 0 and in deferred-write mode.
fn deferred(scene: Scene) -> Scene {
    deferred_with(scene, None)
}

/// As [`deferred`], with the tails that the process has left.
fn deferred_with(mut scene: Scene, tails: Option<&Tails>) -> Scene {
    let there = scene.without(Some(0));
    let array = Array::assemble_deferred(&scene.runtime, there, tails, Default::default());
    scene.array = run(&scene.runtime, array).unwrap();
    assert!(scene.array.is_deferred());
    scene
}

/// The finish fills the part, and would hide the missing blocks.
#[test]
fn cache_loss_during_finish_costs_part() {
    let scene = scene_of(Policy::Log, 1, &volatile());
    write(&scene.runtime, &scene.array, 0, 0, CHUNK, false);
    let (rig, is_first) = (scene.rig.clone(), Cell::new(true));
    scene.rig.rule(move |drive, command| {
        if drive == 0 && matches!(command, Command::Flush) && is_first.replace(false) {
            rig.cut_power_of(0, CACHE_LOST);
        }
        Act::Pass
    });
    scene.submit(finish(0));
    scene.rig.rule(|_, _| Act::Pass);
    assert_eq!(scene.states()[0], (MemberState::Rebuilding, 1));
    assert!(read_each(&scene, 0..CHUNK, "finished").is_empty());
}

/// A zone is being opened when a drive loses its cache, and is written before the drive has reported its zones.
#[test]
fn zone_written_during_power_check_keeps_parts() {
    let scene = scene_of(Policy::Log, 1, &volatile());
    scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::Open { .. })));
    let written = scene.start_write(1, 0, 12);
    assert_eq!(scene.rig.held(), 4);
    scene.rig.cut_power_of(1, CACHE_LOST);
    let is_report = |command: &Command| matches!(command, Command::Report { count: 2.., .. });
    scene.rig.rule(move |_, command| Act::hold_if(is_report(command)));
    let array = scene.array.clone();
    scene.runtime.spawn(async move { array.check_power().await });
    scene.runtime.run();
    assert_eq!(scene.rig.held(), 5);
    scene.rig.release(|_, command| !is_report(command));
    scene.runtime.run();
    scene.release();
    let done = scene.runtime.block_on(written, || false).expect("the write does not complete");
    assert_eq!(done.result, Ok(()));
    assert!(is_whole(&scene), "{:?}", scene.states());
    scene.check(1, 12);
}

/// A write pointer has moved, and the zone is so small that its tails and partial parity are in the metadata logs.
#[test]
fn common_zrwa_loss_takes_small_promised_zone_offline() {
    let options =
        CreateOptions { policy: Some(Policy::Zrwa), zone_size_blocks: Some(12 * CHUNK), ..options(CHUNK) };
    let mut scene = Scene::with_members(4, options, geometry(8, 240, 8));
    scene.write(0, 0, CHUNK + 1);
    scene.rig.cut_power(&mut Rng::new(1), |_| ZRWA_LOST);
    assemble(&mut scene, None, None).unwrap();
    assert_eq!(wp(&scene.runtime, &scene.array, 0).0, ZoneState::Offline);
}

/// One write pointer has passed a stripe, and the metadata logs decode only its first chunk.
#[test]
fn common_zrwa_loss_never_cuts_zone_to_logged_blocks() {
    let options =
        CreateOptions { policy: Some(Policy::InPlace), zone_size_blocks: Some(4 * CHUNK), ..options(CHUNK) };
    let mut scene = Scene::with_members(3, options, geometry(8, 240, 8));
    scene.write(0, 0, CHUNK);
    scene.rig.rule(|drive, command| Act::hold_if(drive > 0 && matches!(command, Command::FlushZrwa { .. })));
    scene.write(0, CHUNK, CHUNK);
    scene.runtime.run();
    assert_eq!(scene.rig.held(), 2);
    scene.rig.cut_power(&mut Rng::new(1), |_| ZRWA_LOST);
    assemble(&mut scene, None, None).unwrap();
    assert_eq!(wp(&scene.runtime, &scene.array, 0).0, ZoneState::Offline);
}

/// The finish writes the parity of the last stripe, and hides its loss.
#[test]
fn cache_loss_after_finish_costs_no_parity() {
    for seed in 0..8 {
        let mut scene = Scene::volatile(Policy::Log);
        scene.write(0, 0, 2 * CHUNK);
        scene.submit(finish(0));
        scene.runtime.clear();
        let lost = |drive| Cut { cache_lost: drive == 3, zrwa_lost: false };
        scene.rig.cut_power(&mut Rng::new(seed), lost);
        scene.assemble(Some(0));
        scene.check(0, 2 * CHUNK);
    }
}
