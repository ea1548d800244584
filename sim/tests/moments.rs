//! Tests of single rules of the array: an error, a command or a cut arrives at the moment for which the rule exists.

use crate::support::{
    array::{geometry, options, pattern, run, wp, write, write_command},
    rig::Act,
    scene::{
        ACTIVE, CHUNK, LACKS_ONE, META, STRIPE, Scene, ZONES, finish, is_metadata, part, reset, writes_to,
    },
};
use emu::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use engine::{
    array::{Array, MemberState, ReplaceOutcome, Tails},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, ZonedDevice, Zones},
    format::{
        Origin, Uuid,
        oob::Mark,
        record::{Header, Record, TailRecord},
    },
    raid::{
        Drive,
        create::CreateOptions,
        error::{NoPart, Note},
        policy::Policy,
    },
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::{Context, Waker},
};

/// Whether a command writes a superblock, alone or in a checkpoint.
fn tells_members(command: &Command) -> bool {
    let Command::Write { data, .. } = command else { return false };
    let mut at = 0;
    while let Some(header) = Header::read(&data[at..]) {
        let record = Record::read(&data[at..], header.origin);
        if matches!(record, Ok((Record::Superblock(_) | Record::Checkpoint(_), _, _))) {
            return true;
        }
        at += header.blocks() as usize * BLOCK;
        if at >= data.len() {
            break;
        }
    }
    false
}

/// A command of a member fails, and the superblocks that record the failure are held back.
#[test]
fn failure_is_recorded_in_superblocks_before_acknowledgement() {
    for policy in Policy::ALL {
        let mut struck = 0;
        for (what, act) in (0..3).flat_map(|what| [(what, Act::Fail), (what, Act::Refuse)]) {
            for drive in 0..4 {
                for at in 0.. {
                    let scene = Scene::volatile(policy);
                    scene.write(0, 0, 29);
                    scene.write(1, 0, 5);
                    let answered = Rc::new(Cell::new(false));
                    let (seen, failed, left) = (answered.clone(), Rc::new(Cell::new(false)), Cell::new(at));
                    let told = failed.clone();
                    scene.rig.rule(move |member, command| match command {
                        Command::Read { .. } | Command::Report { .. } => Act::Pass,
                        _ if told.get() && tells_members(command) => Act::Hold,
                        _ if member != drive || told.get() || seen.get() => Act::Pass,
                        _ if left.get() == 0 => {
                            told.set(true);
                            act
                        }
                        _ => {
                            left.set(left.get() - 1);
                            Act::Pass
                        }
                    });
                    let command = match what {
                        0 => write_command(&scene.array, 0, 29, STRIPE + 1, true),
                        1 => reset(1),
                        _ => finish(0),
                    };
                    let (completion, told) = (scene.array.submit(command), answered.clone());
                    scene.runtime.spawn(async move {
                        assert_eq!(completion.await.result, Ok(()));
                        told.set(true);
                    });
                    scene.runtime.run();
                    if !failed.get() {
                        break;
                    }
                    struck += 1;
                    assert!(!answered.get(), "{policy:?}: command {what}, {at} of drive {drive}, {act:?}");
                    scene.release();
                    assert!(answered.get(), "{policy:?}: command {what}, {at} of drive {drive}, {act:?}");
                }
            }
        }
        assert!(struck > 50, "{struck}");
    }
}

#[test]
fn member_failing_metadata_write_is_taken_out() {
    for policy in Policy::ALL {
        let scene = Scene::new(policy);
        scene.write(0, 0, 5);
        let data = scene.data();
        scene.rig.rule(move |drive, command| match drive == 1 && is_metadata(command, data) {
            true => Act::Fail,
            false => Act::Pass,
        });
        scene.submit(reset(0));
        assert_eq!(scene.array.status().members[1].state, MemberState::Out, "{policy:?}");
    }
}

#[test]
fn array_fails_when_two_members_fail() {
    for policy in Policy::ALL {
        let scene = Scene::new(policy);
        scene.write(0, 0, 5);
        scene.rig.rule(|drive, command| match drive < 2 && matches!(command, Command::Write { .. }) {
            true => Act::Fail,
            false => Act::Pass,
        });
        let written = run(&scene.runtime, scene.array.submit(write_command(&scene.array, 0, 5, 19, true)));
        assert!(written.result.is_err() && scene.array.status().failed, "{policy:?}");
    }
}

/// A member's part of one zone is lost, and the member itself fails while superblocks record that.
#[test]
fn member_failing_during_superblock_update_is_recorded() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        (0..2).for_each(|zone| scene.write(zone, 0, 5));
        let (data, size) = (scene.data(), scene.shape.zone_size_blocks);
        scene.rig.rule(move |drive, command| match command {
            command if is_metadata(command, data) => Act::Hold,
            command if drive == 1 && writes_to(command, data..data + size) => Act::Refuse,
            command if drive == 1 && writes_to(command, data + size..data + 2 * size) => Act::Fail,
            _ => Act::Pass,
        });
        let pending = [0, 1].map(|zone| scene.start_write(zone, 5, 2 * STRIPE));
        scene.release();
        for completion in pending {
            assert_eq!(run(&scene.runtime, completion).result, Ok(()));
        }
        scene.cut(|_| false);
        scene.assemble(None);
        assert_eq!(scene.array.status().members[1].state, MemberState::Out, "{policy:?}");
        (0..2).for_each(|zone| scene.check(zone, 5 + 2 * STRIPE));
    }
}

/// A second member fails while the failure of the first one is about to be recorded. The array does not record that too
/// few members are left: with all of them back it assembles.
#[test]
fn failed_array_does_not_record_its_failed_members() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        (0..2).for_each(|zone| scene.write(zone, 0, 5));
        let data = scene.data();
        let fail_writes_of = |failing: usize| {
            scene.rig.rule(move |drive, command| match command {
                // The check for another host before the membership is recorded.
                Command::Read { lba, .. } if lba.0 < data => Act::Hold,
                Command::Write { .. } if drive == failing && !is_metadata(command, data) => Act::Fail,
                _ => Act::Pass,
            });
        };
        let mut pending = Vec::new();
        for (zone, failing) in [(0, 1), (1, 2)] {
            fail_writes_of(failing);
            pending.push(scene.start_write(zone, 5, 2 * STRIPE));
            scene.runtime.run();
        }
        assert!(scene.array.status().failed, "{policy:?}");
        scene.release();
        drop(pending);
        scene.cut(|_| false);
        scene.assemble(None);
        (0..2).for_each(|zone| assert!(scene.tail(zone) >= 5, "{policy:?}: zone {zone}"));
    }
}

/// Takes member 1 out; returns a count of the writes to its drive from then on.
fn take_out(scene: &Scene) -> Rc<Cell<u32>> {
    let written = Rc::new(Cell::new(0));
    let counted = written.clone();
    scene.rig.rule(move |drive, command| {
        let writes = drive == 1 && matches!(command, Command::Write { .. });
        counted.set(counted.get() + writes as u32);
        Act::Pass
    });
    let array = scene.array.clone();
    scene.runtime.spawn(async move { array.fail(1).await.unwrap() });
    scene.runtime.run();
    assert_eq!(scene.array.status().members[1].state, MemberState::Out);
    written
}

/// With the newest superblock the drive would pass for its successor.
#[test]
fn failed_drive_receives_no_further_records() {
    for policy in Policy::ALL {
        let scene = Scene::new(policy);
        (2..4).for_each(|zone| scene.write(zone, 0, 5));
        let data = scene.data();
        scene.rig.rule(move |drive, command| Act::hold_if(drive == 1 && is_metadata(command, data)));
        // One record is in flight, and one is queued.
        let pending = [scene.start(reset(2)), scene.start(reset(3))];
        let written = take_out(&scene);
        while scene.rig.release(|_, _| true) > 0 {
            scene.runtime.run();
        }
        pending.into_iter().for_each(|p| assert_eq!(run(&scene.runtime, p).result, Ok(())));
        assert_eq!(written.get(), 0, "{policy:?}");
    }
}

#[test]
fn failed_drive_receives_no_checkpoint() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        run(&scene.runtime, scene.array.fail(3)).unwrap();
        scene.drives[3] = scene.rig.drive(&scene.shape);
        scene.rig.rule(|drive, command| match command {
            Command::Finish { zones: Zones::One(zone) } if drive == 1 && zone.0 < META => Act::Hold,
            _ => Act::Pass,
        });
        let attached = start_attach(&scene);
        assert_eq!((attached.get(), scene.rig.held()), (None, 1));
        let written = take_out(&scene);
        while scene.rig.release(|_, _| true) > 0 {
            scene.runtime.run();
        }
        assert_eq!((attached.get(), written.get()), (Some(true), 0), "{policy:?}");
    }
}

/// A write to a drive never completes, and the drive is replaced meanwhile.
#[test]
fn late_error_of_replaced_drive_spares_new_drive() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 5);
        let data = scene.data();
        scene.rig.rule(move |drive, command| Act::hold_if(drive == 1 && writes_to(command, data..u64::MAX)));
        let pending = scene.start_write(0, 5, 2 * STRIPE);
        scene.replace(1);
        scene.rig.rule(|_, _| Act::Pass);
        scene.rig.drop_held();
        assert_eq!(run(&scene.runtime, pending).result, Ok(()));
        assert_eq!(scene.states()[1], LACKS_ONE, "{policy:?}");
        scene.rebuild();
        scene.check(0, 5 + 2 * STRIPE);
    }
}

#[test]
fn tail_records_in_zone_alternate_between_blocks() {
    let scene = Scene::new(Policy::Zrwa);
    let places: Rc<RefCell<Vec<Vec<u64>>>> = Rc::new(RefCell::new(vec![Vec::new(); 4]));
    let (seen, data) = (places.clone(), scene.data());
    scene.rig.rule(move |drive, command| {
        if let Command::Write { lba, fua: true, .. } = command
            && lba.0 >= data
        {
            seen.borrow_mut()[drive].push(lba.0 - data);
        }
        Act::Pass
    });
    (0..3).for_each(|at| scene.write(0, at, 1));
    // The tail records of a stripe lie `D` = 4 rows ahead of it.
    let (places, row) = (places.borrow(), 4 * CHUNK);
    for drive in [0, 3] {
        assert_eq!(places[drive], [row + 1, row, row + 1]);
    }
}

#[test]
fn write_buffer_returns_with_exclusive_ownership() {
    for policy in Policy::ALL {
        let scene = Scene::new(policy);
        let capacity = scene.array.geometry().zone_capacity_blocks;
        for at in (0..capacity).step_by(CHUNK as usize) {
            let write = write_command(&scene.array, 0, at, CHUNK, true);
            let mut done = run(&scene.runtime, scene.array.submit(write));
            assert!(done.result.is_ok() && done.data.as_mut().is_some(), "{policy:?} at {at}");
        }
    }
}

/// Nearly full zones of partial stripes: all partial parity together would not fit in a log.
#[test]
fn settled_partial_parity_occupies_no_log_space() {
    let scene = Scene::shaped(Policy::Log, Geometry { zrwa: None, ..geometry(8, 200, 5) });
    assert_eq!(scene.array.geometry().max_active, 3);
    let end = scene.array.geometry().zone_capacity_blocks - STRIPE;
    for at in (0..end).step_by(CHUNK as usize) {
        (0..3).for_each(|zone| scene.write(zone, at, CHUNK));
    }
    assert_eq!(scene.states(), [ACTIVE; 4]);
}

/// Two members cannot write a zone while an explicit flush of its ZRWA on another one is in flight: the flush must not
/// arrive after the reset.
#[test]
fn reset_of_failed_zone_waits_for_pending_commands() {
    let scene = Scene::new(Policy::Zrwa);
    scene.write(0, 0, 5);
    scene.rig.rule(|drive, command| Act::hold_if(drive == 3 && matches!(command, Command::FlushZrwa { .. })));
    let settling = scene.start_write(0, 5, STRIPE);
    assert_eq!(scene.rig.held(), 1);
    (1..3).for_each(|member| scene.rig.damage(member, Fault::WriteFault(part(0))));
    let failing = scene.start_write(0, 5 + STRIPE, 2 * STRIPE);
    // The second member is not taken out of the zone: its blocks are still needed.
    let lacking: u32 = scene.states().iter().map(|(_, zones)| zones).sum();
    assert_eq!((lacking, wp(&scene.runtime, &scene.array, 0).0), (1, ZoneState::ReadOnly));
    let resetting = scene.start(reset(0));
    scene.release();
    assert_eq!(run(&scene.runtime, resetting).result, Ok(()));
    for pending in [settling, failing] {
        assert!(run(&scene.runtime, pending).result.is_err());
    }
    assert_eq!(scene.states(), [ACTIVE; 4]);
}

/// The part is offline, though it was empty.
#[test]
fn member_unable_to_reset_empty_part_lacks_zone() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 5);
        scene.damage(1, Fault::Offline(part(1)));
        scene.cut(|_| false);
        scene.assemble(None);
        assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE], "{policy:?}");
        scene.submit(reset(1));
        assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE], "{policy:?}");
    }
}

/// The reset was promised before the power cut; recovery carries it out.
#[test]
fn recovery_marks_member_refusing_promised_reset_as_lacking() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 5);
        scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::Reset { .. })));
        drop(scene.start(reset(0)));
        scene.cut(|_| false);
        scene.rig.rule(|drive, command| match command {
            Command::Reset { zones: Zones::One(zone) } if drive == 1 && *zone == part(0) => Act::Refuse,
            _ => Act::Pass,
        });
        scene.assemble(None);
        assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE], "{policy:?}");
        assert_eq!(scene.tail(0), 0);
    }
}

#[test]
fn assemble_decodes_part_that_wore_out_unnoticed() {
    for policy in Policy::ALL {
        for fault in [Fault::ReadOnly, Fault::Offline] {
            for tail in [5, 30] {
                let mut scene = Scene::new(policy);
                scene.write(0, 0, tail);
                scene.damage(1, fault(part(0)));
                scene.cut(|_| false);
                scene.assemble(None);
                assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE], "{policy:?}");
                assert_eq!(scene.tail(0), tail);
                scene.write(0, tail, 40);
                scene.check(0, tail + 40);
            }
        }
    }
}

/// The zone was opened and is empty when it is finished: it has to be full also on the member under rebuild.
#[test]
fn rebuild_yields_zone_to_pending_finish() {
    for policy in Policy::ALL {
        let mut scene = Scene::volatile(policy);
        scene.submit(Command::Open { zones: Zones::One(ZoneIndex(1)), zrwa: false });
        scene.replace(2);
        let (blank, first) = (4, Cell::new(true));
        // The flush before the part counts as rebuilt.
        scene.rig.rule(move |drive, command| match command {
            Command::Flush if drive == blank && first.replace(false) => Act::Hold,
            _ => Act::Pass,
        });
        let rebuilt = scene.start_rebuild();
        assert_eq!(scene.rig.held(), 1);
        let finishing = scene.start(finish(1));
        scene.release();
        assert_eq!(run(&scene.runtime, finishing).result, Ok(()));
        assert_eq!((rebuilt.get(), scene.states()), (Some(true), vec![ACTIVE; 4]), "{policy:?}");
        for drive in &scene.drives {
            let done = run(&scene.runtime, drive.device.submit(Command::Report { first: part(1), count: 1 }));
            assert_eq!(done.zones[0].state, ZoneState::Full, "{policy:?}");
        }
    }
}

/// One copy of the tail record arrived, and is unreadable when recovery finds the zone empty.
#[test]
fn rejected_tail_record_is_never_accepted_later() {
    let mut scene = Scene::new(Policy::Zrwa);
    let log = scene.data() + 4 * CHUNK..scene.data() + 4 * CHUNK + 2;
    let (held, bad) = (log.clone(), log);
    scene.rig.rule(move |drive, command| Act::hold_if(drive == 3 && writes_to(command, held.clone())));
    let mut pending = scene.start_write(0, 0, 3);
    assert!(pending.take().is_none() && scene.rig.held() == 1);
    scene.stop();
    scene.rig.shut_down();
    scene.rig.rule(move |drive, command| match command {
        Command::Read { lba, .. } if drive == 0 && bad.contains(&lba.0) => Act::Unreadable,
        _ => Act::Pass,
    });
    for _ in 0..2 {
        scene.assemble(None);
        assert_eq!(wp(&scene.runtime, &scene.array, 0), (ZoneState::Empty, 0));
        scene.stop();
    }
    scene.assemble(None);
    scene.write(0, 0, 20);
    scene.check(0, 20);
}

/// A zone was begun on all members but one, and a shutdown has made it empty again on all.
#[test]
fn empty_zone_lacks_no_parts_after_shutdown() {
    for policy in [Policy::Zrwa, Policy::Log] {
        let mut scene = Scene::new(policy);
        let data = scene.data();
        scene.rig.rule(move |drive, command| match command {
            Command::Open { zones: Zones::One(zone), .. } if drive == 1 && *zone == part(0) => Act::Refuse,
            command if writes_to(command, data..u64::MAX) => Act::Hold,
            _ => Act::Pass,
        });
        drop(scene.start_write(0, 0, 3));
        assert_eq!(scene.states()[1], LACKS_ONE, "{policy:?}");
        scene.stop();
        scene.rig.shut_down();
        scene.assemble(None);
        assert_eq!((scene.states(), scene.tail(0)), (vec![ACTIVE; 4], 0), "{policy:?}");
    }
}

/// Writes a tail record directly into the data zone of zone 0: to log block `block` of `stripe`, on both of its
/// members.
fn write_tail(scene: &Scene, (stripe, block): (u64, u64), tail: TailRecord) {
    let members = [stripe % 4, (stripe + 3) % 4].map(|member| member as usize);
    let place = scene.data() + (stripe + 4) * CHUNK;
    let array = {
        let found = (scene.data() + 4 * CHUNK..scene.data() + 4 * CHUNK + 2).map(|lba| {
            let read = Command::read(Lba(lba), Buf::zeroed(BLOCK));
            Header::read(&run(&scene.runtime, scene.drives[0].device.submit(read)).data)
        });
        found.flatten().next().unwrap().origin.array
    };
    for member in members {
        let lba = place + block;
        let origin = Origin { array, member: member as u32, lba };
        let write = Command::write(Lba(lba), Record::Tail(tail).encode(origin, 9), true);
        assert_eq!(run(&scene.runtime, scene.drives[member].device.submit(write)).result, Ok(()));
    }
}

#[test]
fn tail_record_must_match_zone_epoch_and_stripe() {
    let whole = TailRecord { zone: 0, generation: 0, epoch: 0, tail_blocks: 11 };
    for (stripe, tail, counts) in [
        (0, whole, true),
        (0, TailRecord { epoch: 1, ..whole }, false),
        (0, TailRecord { zone: 1, ..whole }, false),
        (1, whole, false),
    ] {
        let mut scene = Scene::new(Policy::Zrwa);
        scene.write(0, 0, 11);
        scene.stop();
        // Valid tail records of 9 blocks, and then the record under test in place of one of them.
        (0..2).for_each(|block| write_tail(&scene, (0, block), TailRecord { tail_blocks: 9, ..whole }));
        write_tail(&scene, (stripe, 1), tail);
        scene.assemble(None);
        assert_eq!(scene.tail(0), if counts { 11 } else { 9 }, "{stripe} {tail:?}");
        scene.check(0, scene.tail(0));
    }
}

/// Repeated assemblies without member 3 are interrupted, each with a superblock on member 0 only. Then one without
/// member 0 succeeds.
#[test]
fn superblocks_of_aborted_assemblies_are_ignored() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 5);
        scene.stop();
        for _ in 0..40 {
            let data = scene.data();
            scene.rig.rule(move |drive, command| Act::hold_if(drive > 0 && is_metadata(command, data)));
            scene.start_assembly(Some(3));
            scene.stop();
        }
        scene.assemble(Some(0));
        scene.write(0, 5, 30);
        scene.stop();
        scene.assemble(None);
        assert_eq!(scene.array.status().members[0].state, MemberState::Out, "{policy:?}");
        assert_eq!(scene.array.status().members[3].state, MemberState::Active, "{policy:?}");
        scene.check(0, 35);
    }
}

#[test]
fn assemble_omits_removed_or_replaced_drive_with_reason() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 5);
        let old = scene.drives[1].clone();
        run(&scene.runtime, scene.array.fail(1)).unwrap();
        scene.write(0, 5, 30);
        let found = run(&scene.runtime, Array::inspect(&scene.runtime, scene.drives.clone(), None)).unwrap();
        let note = &found.status.members[1].note;
        assert!(matches!(note, Note::WasTakenOut { .. }), "{policy:?}: {note}");
        scene.replace(1);
        scene.rebuild();
        scene.drives[1] = old;
        scene.stop();
        scene.assemble(None);
        let member = &scene.array.status().members[1];
        assert_eq!(member.state, MemberState::Out);
        assert!(matches!(member.note, Note::Replaced { .. }), "{policy:?}: {}", member.note);
        scene.check(0, 35);
    }
}

/// Cut at every command of a finish, on drives that drop the contents of a ZRWA at a finish, with caches lost on one,
/// on all but one or on all.
#[test]
fn finish_interrupted_anywhere_keeps_promised_data() {
    let lost: [fn(usize) -> bool; 4] = [|_| true, |drive| drive == 0, |drive| drive == 3, |drive| drive != 0];
    for policy in Policy::ALL {
        for tail in [5, 18] {
            for (case, missing) in (0..5).flat_map(|case| (0..5).map(move |missing| (case, missing))) {
                for steps in 0.. {
                    let mut scene = if case < 4 { Scene::volatile(policy) } else { Scene::new(policy) };
                    scene.rig.drop_at_finish();
                    if case == 4 {
                        scene.rig.fail_unwritten();
                    }
                    scene.write(0, 0, tail);
                    write(&scene.runtime, &scene.array, 0, tail, 3, false);
                    let (left, ended) = (Cell::new(steps), Rc::new(Cell::new(true)));
                    let told = ended.clone();
                    scene.rig.rule(move |_, _| match left.get() {
                        0 => {
                            told.set(false);
                            Act::Hold
                        }
                        _ => {
                            left.set(left.get() - 1);
                            Act::Pass
                        }
                    });
                    let answered = scene.start(finish(0)).take().is_some();
                    scene.cut(|drive| case < 4 && lost[case](drive));
                    scene.assemble(Some(missing).filter(|missing| *missing < 4));
                    let (state, wp) = wp(&scene.runtime, &scene.array, 0);
                    let what = format!("{policy:?} {tail} {case} without {missing} after {steps}");
                    let found = if state == ZoneState::Full { tail + 3 } else { wp };
                    let kept = state == ZoneState::Full || !answered && (tail..=tail + 3).contains(&wp);
                    assert!(kept, "{what}: {state:?} {wp}");
                    scene.check(0, found);
                    if ended.get() {
                        break;
                    }
                }
            }
        }
    }
}

/// Until a zone is finished on the members, the parities of its last stripe lie elsewhere, and their final blocks may
/// hold slots of an earlier stripe.
#[test]
fn unfinishable_zone_is_read_with_its_old_parity() {
    let mut unfinished = 0;
    for policy in Policy::ALL {
        for (tail, missing) in [2, 18, 29, 40, 53].iter().flat_map(|tail| (0..4).map(move |m| (*tail, m))) {
            for stuck in (0..4).filter(|stuck| *stuck != missing) {
                let mut scene = Scene::shaped(policy, geometry(ZONES + META, 240, 5));
                scene.write(0, 0, tail);
                let data = scene.shape.start(part(0)).0;
                scene.rig.rule(move |_, command| Act::hold_if(!is_metadata(command, data)));
                assert!(scene.start(finish(0)).take().is_none());
                scene.cut(|_| false);
                scene.rig.rule(move |drive, command| match command {
                    Command::Write { .. } if drive == stuck && !is_metadata(command, data) => Act::Unreadable,
                    _ => Act::Pass,
                });
                scene.assemble(Some(missing));
                // An offline zone could not even be continued.
                let (state, _) = wp(&scene.runtime, &scene.array, 0);
                if state != ZoneState::Offline {
                    scene.check(0, tail);
                }
                if state == ZoneState::ReadOnly {
                    unfinished += 1;
                    // The zone counts as active like an open one, so writes to other zones do not fail for lack of
                    // resources.
                    scene.rig.rule(|_, _| Act::Pass);
                    let others = 1..=scene.array.geometry().max_active;
                    let pending: Vec<_> = others.map(|zone| scene.start_write(zone, 0, 3)).collect();
                    assert!(pending.into_iter().all(|mut write| write.take().is_some()), "{policy:?}");
                }
                scene.cut(|_| false);
                scene.assemble(None);
                assert_ne!(wp(&scene.runtime, &scene.array, 0).0, ZoneState::Offline);
                scene.check(0, tail);
            }
        }
    }
    assert!(unfinished > 20, "{unfinished}");
}

/// A rebuild leaves the zone until its reset, and continues with the others.
#[test]
fn rebuild_continues_past_zone_with_failed_finish() {
    for policy in Policy::ALL {
        let scene = Scene::new(policy);
        scene.write(0, 0, STRIPE);
        scene.write(1, 0, STRIPE);
        scene.rig.damage(3, Fault::WriteFault(part(1)));
        scene.write(1, STRIPE, 2 * STRIPE);
        scene.rig.rule(|drive, command| match command {
            Command::Finish { .. } if [1, 2].contains(&drive) => Act::Refuse,
            _ => Act::Pass,
        });
        assert!(scene.refused(finish(0)));
        // The second member is not taken out of the zone: its blocks are still needed.
        assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, LACKS_ONE]);
        assert_eq!(wp(&scene.runtime, &scene.array, 0).0, ZoneState::ReadOnly, "{policy:?}");
        scene.check(0, STRIPE);
        let resets = Cell::new(0);
        scene.rig.rule(move |_, command| {
            resets.set(resets.get() + u32::from(matches!(command, Command::Reset { .. })));
            assert!(resets.get() < 50, "{policy:?}: it is tried for ever");
            Act::Pass
        });
        let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
        let left_out: Vec<_> = rebuilt.left_out.iter().map(|left| (left.zone, left.member)).collect();
        assert_eq!(left_out, [(0, 1)], "{policy:?}");
        assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE]);
        (0..2).for_each(|zone| scene.check(zone, [STRIPE, 3 * STRIPE][zone as usize]));
        scene.submit(reset(0));
        scene.write(0, 0, 30);
        scene.check(0, 30);
    }
}

/// The finish is recorded: the zone stays full and without data, also where members have not finished it.
#[test]
fn zone_with_failed_finish_refuses_writes_until_reset() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.rig.rule(|drive, command| match command {
            Command::Finish { .. } if drive > 0 => Act::Refuse,
            _ => Act::Pass,
        });
        assert!(scene.refused(finish(0)));
        scene.rig.rule(|_, _| Act::Pass);
        scene.rebuild();
        assert!(scene.refused(write_command(&scene.array, 0, 0, 3, true)), "{policy:?}");
        scene.cut(|_| false);
        scene.assemble(None);
        assert_eq!(wp(&scene.runtime, &scene.array, 0).0, ZoneState::Full, "{policy:?}");
        scene.submit(reset(0));
        scene.write(0, 0, 30);
        scene.cut(|_| false);
        scene.assemble(Some(2));
        scene.check(0, 30);
    }
}

/// With any tail: after a rebuild of one member any other one may be lost.
#[test]
fn rebuilt_zone_survives_loss_of_any_other_member() {
    for policy in Policy::ALL {
        for (tail, member) in [1, 3, 4, 6, 8, 9, 12, 13, 16, 17, 20, 24, 31, 50]
            .into_iter()
            .flat_map(|t| (0..4).map(move |m| (t, m)))
        {
            for missing in (0..4).filter(|missing| *missing != member) {
                let mut scene = Scene::volatile(policy);
                scene.write(0, 0, tail);
                scene.replace(member);
                scene.rebuild();
                scene.cut(|_| true);
                scene.assemble(Some(missing));
                let what = format!("{policy:?} {tail} on {member} without {missing}");
                assert_eq!(wp(&scene.runtime, &scene.array, 0), (ZoneState::Closed, tail), "{what}");
                scene.check(0, tail);
                scene.write(0, tail, 30);
                scene.check(0, tail + 30);
            }
        }
    }
}

/// Writes without FUA are not durable when the rebuild begins. The rebuild is cut at every command, and the cache of
/// one member is lost.
#[test]
fn rebuild_interrupted_anywhere_keeps_promised_data() {
    for (policy, tail) in Policy::ALL.into_iter().flat_map(|policy| [5, 9, 50].map(|tail| (policy, tail))) {
        for (member, other) in [(0, 1), (0, 3), (1, 2), (2, 1), (3, 0)] {
            for steps in 0.. {
                let mut scene = Scene::volatile(policy);
                scene.write(0, 0, tail);
                scene.replace(member);
                write(&scene.runtime, &scene.array, 0, tail, 5, false);
                let cut = scene.rig.hold_after(steps);
                let rebuilt = scene.start_rebuild().get() == Some(true);
                // The blank drive is number 4.
                let loses = if steps % 2 == 0 { 4 } else { other };
                scene.cut(|drive| drive == loses);
                if !rebuilt {
                    // Some superblocks may count the member as rebuilt, and others not yet.
                    scene.assemble(None);
                    assert!(scene.tail(0) >= tail, "{policy:?} {tail} on {member} after {steps}");
                    scene.check(0, scene.tail(0));
                    scene.cut(|_| true);
                }
                let whole = rebuilt || scene.states() == [ACTIVE; 4];
                let missing = (0..4).find(|m| ![member, other].contains(m)).filter(|_| whole);
                scene.assemble(missing);
                let what = format!("{policy:?} {tail} on {member} without {missing:?} after {steps}");
                let (state, found) = wp(&scene.runtime, &scene.array, 0);
                assert!((tail..=tail + 5).contains(&found), "{what}: {state:?} {found}");
                scene.check(0, found);
                if !cut.get() {
                    break;
                }
            }
        }
    }
}

/// The power is cut at every command of a write, and the cache of one member is lost.
#[test]
fn interrupted_write_keeps_promised_data_with_member_missing() {
    for policy in Policy::ALL {
        for (loses, missing) in [(0, 1), (1, 3), (2, 0), (3, 2)] {
            for steps in 0.. {
                let mut scene = Scene::volatile(policy);
                scene.write(0, 0, 5);
                let cut = scene.rig.hold_after(steps);
                // One write larger than the window.
                let plain = scene.start(write_command(&scene.array, 0, 5, 62, false));
                let mut promised = scene.start_write(0, 67, 8);
                let promised = if promised.take().is_some() { 75 } else { 5 };
                drop(plain);
                scene.cut(|drive| drive == loses);
                scene.assemble(Some(missing));
                let what = format!("{policy:?}, {loses} loses its cache, without {missing}, after {steps}");
                let (state, found) = wp(&scene.runtime, &scene.array, 0);
                assert!((promised..=75).contains(&found), "{what}: {state:?} {found}");
                scene.check(0, found);
                if !cut.get() {
                    break;
                }
            }
        }
    }
}

/// A process is killed during a write, and the power is cut at every command of the next assembly.
#[test]
fn assembly_interrupted_anywhere_keeps_promised_data() {
    for (policy, late) in Policy::ALL.into_iter().flat_map(|policy| (0..4).map(move |late| (policy, late))) {
        for (loses, missing, at_once) in
            [(0, 1, false), (1, 3, false), (1, 2, true), (2, 0, true), (3, 2, true)]
        {
            for steps in 0.. {
                let mut scene = Scene::volatile(policy);
                scene.write(0, 0, STRIPE + 5);
                let data = scene.data();
                scene.rig.rule(move |drive, command| {
                    Act::hold_if(drive == late && writes_to(command, data..u64::MAX))
                });
                drop(scene.start(write_command(&scene.array, 0, STRIPE + 5, STRIPE, false)));
                scene.stop();
                let cut = scene.rig.hold_after(steps);
                scene.start_assembly(None);
                scene.cut(|drive| drive == loses);
                scene.assemble(Some(missing).filter(|_| at_once));
                let tail = scene.tail(0);
                let what = format!("{policy:?} {late} {loses} without {missing} after {steps}");
                assert!((STRIPE + 5..=2 * STRIPE + 5).contains(&tail), "{what}: {tail}");
                // New writes go over the remains of the cut one, and have to be found again.
                scene.write(0, tail, STRIPE);
                scene.cut(|_| true);
                scene.assemble(Some(missing));
                assert_eq!(scene.tail(0), tail + STRIPE, "{what}");
                scene.check(0, tail + STRIPE);
                if !cut.get() {
                    break;
                }
            }
        }
    }
}

#[test]
fn rebuild_leaves_out_zone_lacking_two_parts() {
    for policy in Policy::ALL {
        let scene = Scene::new(policy);
        (0..2).for_each(|zone| scene.write(zone, 0, 5 * STRIPE));
        (1..3).for_each(|member| scene.rig.damage(member, Fault::Offline(part(0))));
        assert!(scene.refused(write_command(&scene.array, 0, 5 * STRIPE, 2 * STRIPE, true)), "{policy:?}");
        let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
        let left_out: Vec<_> = rebuilt.left_out.iter().map(|left| (left.zone, left.member)).collect();
        assert_eq!(left_out, [(0, 1), (0, 2)], "{policy:?}");
        scene.check(1, 5 * STRIPE);
    }
}

/// Two members can read the zone and not write it: the second one is not taken out of it, and the first one is not
/// rebuilt from it before the end of the zone is known.
#[test]
fn zone_unwritable_on_two_members_keeps_promised_data() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        (0..2).for_each(|zone| scene.write(zone, 0, 5 * STRIPE));
        (1..3).for_each(|member| scene.rig.damage(member, Fault::WriteFault(part(0))));
        assert!(scene.refused(write_command(&scene.array, 0, 5 * STRIPE, 2 * STRIPE, true)), "{policy:?}");
        let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
        let left_out: Vec<_> = rebuilt.left_out.iter().map(|left| (left.zone, left.member)).collect();
        assert_eq!(left_out, [(0, 1)], "{policy:?}");
        assert!(matches!(rebuilt.left_out[0].reason, NoPart::Stuck(2)), "{policy:?}: {rebuilt:?}");
        assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE], "{policy:?}");
        (0..2).for_each(|zone| scene.check(zone, 5 * STRIPE));
        scene.cut(|_| false);
        scene.assemble(None);
        assert!(scene.tail(0) >= 5 * STRIPE, "{policy:?}: {}", scene.tail(0));
        (0..2).for_each(|zone| scene.check(zone, 5 * STRIPE));
    }
}

/// Of two records of a tail, the newer one has to be in the same place on both members.
#[test]
fn rebuild_places_logged_tail_as_on_other_members() {
    for writes in 1..4 {
        let mut scene = Scene::new(Policy::Zrwa);
        (0..writes).for_each(|at| scene.write(0, at, 1));
        scene.replace(3);
        scene.rebuild();
        let place = scene.data() + 4 * CHUNK;
        let logged = |member: usize, block: u64| {
            let read = Command::read(Lba(place + block), Buf::zeroed(BLOCK));
            let data = run(&scene.runtime, scene.drives[member].device.submit(read)).data;
            match Record::read(&data, Header::read(&data)?.origin) {
                Ok((Record::Tail(tail), sequence, _)) => Some((sequence, tail.tail_blocks)),
                _ => None,
            }
        };
        let newest = (0..2).max_by_key(|block| logged(0, *block)).unwrap();
        let tail = |member| logged(member, newest).map(|(_, tail)| tail);
        assert_eq!((tail(0), tail(3)), (Some(writes), Some(writes)));
    }
}

#[test]
fn zone_refuses_commands_during_reset_or_finish() {
    for policy in Policy::ALL {
        for change in [reset(0), finish(0)] {
            let scene = Scene::new(policy);
            scene.write(0, 0, 5);
            scene.rig.rule(|_, command| {
                Act::hold_if(matches!(command, Command::Reset { .. } | Command::Finish { .. }))
            });
            let pending = scene.start(change);
            for other in [reset(0), finish(0), write_command(&scene.array, 0, 5, 3, false)] {
                let mut answer = scene.start(other.clone());
                assert!(answer.take().is_some_and(|done| done.result.is_err()), "{policy:?} {other:?}");
            }
            scene.release();
            assert_eq!(run(&scene.runtime, pending).result, Ok(()));
        }
    }
}

#[test]
fn array_advertises_volatile_cache_of_member_or_policy() {
    for policy in Policy::ALL {
        assert_eq!(Scene::new(policy).array.geometry().volatile_cache, policy == Policy::Zrwa);
        assert!(Scene::volatile(policy).array.geometry().volatile_cache);
    }
}

/// The replaced drive's part of an empty zone was offline; the new drive does not lack it.
#[test]
fn attached_drive_lacks_no_empty_zones() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.damage(1, Fault::Offline(part(1)));
        scene.cut(|_| false);
        scene.assemble(None);
        assert_eq!(scene.states()[1], LACKS_ONE);
        scene.replace(1);
        assert_eq!(scene.states(), [ACTIVE; 4], "{policy:?}");
    }
}

/// Starts to attach drive 3; the result is whether that has succeeded, once it has ended.
fn start_attach(scene: &Scene) -> Rc<Cell<Option<bool>>> {
    let (array, drive, attached) = (scene.array.clone(), scene.drives[3].clone(), Rc::new(Cell::new(None)));
    let told = attached.clone();
    scene.runtime.spawn(async move { told.set(Some(array.attach(3, drive).await.is_ok())) });
    scene.runtime.run();
    attached
}

/// Member 0 fails after the other members' superblocks name the new drive, and before its own does.
#[test]
fn attach_waits_until_other_members_are_recorded() {
    let mut scene = Scene::new(Policy::Zrwa);
    run(&scene.runtime, scene.array.fail(3)).unwrap();
    scene.drives[3] = scene.rig.drive(&scene.shape);
    let (data, failed) = (scene.data(), Cell::new(false));
    scene.rig.rule(move |drive, command| match command {
        command if drive == 0 && is_metadata(command, data) && !failed.replace(true) => Act::Fail,
        // Appended superblocks only, not those in checkpoints.
        Command::Write { lba, .. } if lba.0 % 256 > 0 && tells_members(command) => Act::Hold,
        _ => Act::Pass,
    });
    let attached = start_attach(&scene);
    assert!(scene.rig.held() > 0 && attached.get().is_none());
    scene.release();
    assert_eq!(attached.get(), Some(true));
}

/// The assembly is interrupted before it has ended: the missing member may lack a reset that was carried out.
#[test]
fn member_absent_from_interrupted_assembly_is_out() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 50);
        scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::Reset { .. })));
        drop(scene.start(reset(0)));
        scene.stop();
        // All but the superblock that ends the assembly: the first one records the missing member.
        let appended = [const { Cell::new(0) }; 8];
        scene.rig.rule(move |drive, command| match command {
            Command::Write { lba, .. } if lba.0 % 256 > 0 && tells_members(command) => {
                let before = appended[drive].replace(appended[drive].get() + 1);
                if before > 0 { Act::Hold } else { Act::Pass }
            }
            _ => Act::Pass,
        });
        scene.start_assembly(Some(1));
        assert!(scene.rig.held() > 0);
        scene.stop();
        scene.assemble(None);
        assert_eq!(scene.array.status().members[1].state, MemberState::Out, "{policy:?}");
        assert_eq!(wp(&scene.runtime, &scene.array, 0), (ZoneState::Empty, 0));
    }
}

/// A member refuses to reset its part: that it lacks the zone is recorded before the reset counts as done, with any
/// power cut and torn writes.
#[test]
fn reset_refused_by_member_is_atomic_across_cuts() {
    let cases = Policy::ALL.into_iter().flat_map(|policy| (0..10).map(move |seed| (policy, seed)));
    for (policy, seed) in cases {
        for steps in 0.. {
            let mut scene = Scene::new(policy);
            scene.write(0, 0, 50);
            scene.stop();
            scene.runtime = Runtime::seeded(seed);
            scene.assemble(None);
            let held = scene.rig.hold_after_but(steps, |drive, command| {
                matches!(command, Command::Reset { zones: Zones::One(zone) } if drive == 1 && *zone == part(0))
            });
            drop(scene.start(reset(0)));
            scene.rig.tear(1);
            scene.cut(|_| false);
            scene.assemble(None);
            let found = wp(&scene.runtime, &scene.array, 0);
            let sane = [(ZoneState::Empty, 0), (ZoneState::Closed, 50)].contains(&found);
            assert!(sane, "{policy:?} {seed} {steps}: {found:?}");
            if !held.get() {
                break;
            }
        }
    }
}

/// A member fails in a reset, and the power is cut before this is recorded.
#[test]
fn reset_survives_cut_before_failed_member_is_recorded() {
    for (policy, seed) in Policy::ALL.into_iter().flat_map(|policy| (0..30).map(move |seed| (policy, seed))) {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 50);
        scene.stop();
        scene.runtime = Runtime::seeded(seed);
        scene.assemble(None);
        scene.rig.rule(|drive, command| match command {
            Command::Reset { zones: Zones::One(zone) } if drive == 1 && *zone == part(0) => Act::Fail,
            command if tells_members(command) => Act::Hold,
            _ => Act::Pass,
        });
        drop(scene.start(reset(0)));
        scene.cut(|_| false);
        scene.assemble(None);
        assert_eq!(wp(&scene.runtime, &scene.array, 0), (ZoneState::Empty, 0), "{policy:?} {seed}");
        scene.write(0, 0, 30);
        scene.check(0, 30);
    }
}

/// A reset decided by recovery, of a zone without promised data, may be carried out in part.
#[test]
fn recovery_completes_interrupted_reset_of_earlier_recovery() {
    for (policy, steps) in
        Policy::ALL.into_iter().flat_map(|policy| (0..5u32).map(move |steps| (policy, steps)))
    {
        let mut scene = Scene::new(policy);
        let data = scene.data();
        scene.rig.rule(move |drive, command| {
            Act::hold_if([0, 3].contains(&drive) && writes_to(command, data..u64::MAX))
        });
        drop(scene.start_write(0, 0, 8));
        scene.cut(|_| false);
        let left = Cell::new(steps);
        scene.rig.rule(move |_, command| match command {
            Command::Reset { zones: Zones::One(zone) } if *zone == part(0) => {
                left.set(left.get().saturating_sub(1));
                if left.get() == 0 { Act::Hold } else { Act::Pass }
            }
            _ => Act::Pass,
        });
        scene.start_assembly(None);
        scene.cut(|_| false);
        scene.assemble(None);
        assert_eq!(scene.tail(0), 0, "{policy:?} {steps}: {:?}", scene.array.status().offline);
        assert_eq!(scene.states(), [ACTIVE; 4], "{policy:?} {steps}");
        scene.write(0, 0, 30);
        scene.check(0, 30);
    }
}

/// The array was assembled and written since.
#[test]
fn take_over_ignores_tails_of_earlier_assembly() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 8);
        let mut tails =
            Tails { assembly: scene.array.assembly(), blocks: vec![0; ZONES as usize], power: vec![] };
        tails.blocks[0] = 8;
        scene.stop();
        scene.assemble(None);
        assert_ne!(scene.array.assembly(), tails.assembly, "{policy:?}");
        scene.submit(reset(0));
        scene.write(0, 0, 5);
        scene.stop();
        let taken = Array::take_over(&scene.runtime, scene.drives.clone(), &tails);
        scene.array = run(&scene.runtime, taken).unwrap();
        assert_eq!((scene.tail(0), scene.array.status().offline), (5, vec![]), "{policy:?}");
    }
}

#[test]
fn member_with_lost_zrwa_is_rebuilt() {
    let mut scene = Scene::new(Policy::InPlace);
    scene.write(0, 0, 50);
    scene.runtime.clear();
    scene.rig.cut_power(&mut Rng::new(1), |drive| Cut { cache_lost: false, zrwa_lost: drive == 1 });
    scene.assemble(None);
    assert_eq!(scene.states(), [ACTIVE, LACKS_ONE, ACTIVE, ACTIVE]);
    scene.check(0, 50);
    scene.rebuild();
    scene.write(0, 50, 30);
    scene.check(0, 80);
}

/// Such marks are written behind the tail by hand.
#[test]
fn oob_marks_of_other_zone_epoch_are_ignored() {
    for (epoch, counts) in [(0, true), (1, false)] {
        let mut scene = Scene::new(Policy::InPlace);
        scene.write(0, 0, 3);
        let read = |at| Command::Read {
            lba: Lba(scene.data() + at),
            data: Buf::zeroed(BLOCK),
            oob: Buf::zeroed(16),
        };
        let own = run(&scene.runtime, scene.drives[0].device.submit(read(0)));
        let array = scene.array.status().uuid;
        let origin = |lba| Origin { array: Uuid(array), member: 0, lba };
        let mark = Mark::read(&own.oob, origin(scene.data())).unwrap();
        scene.stop();
        let lba = scene.data() + 3;
        let data = Buf::copy_of(&pattern(3, 1));
        let oob = Buf::copy_of(&Mark { epoch, ..mark }.encode(origin(lba))[..16]);
        let write = Command::Write { lba: Lba(lba), data, oob, fua: false };
        assert_eq!(run(&scene.runtime, scene.drives[0].device.submit(write)).result, Ok(()));
        scene.assemble(None);
        assert_eq!(scene.tail(0), if counts { 4 } else { 3 });
        scene.check(0, scene.tail(0));
    }
}

/// The drive under rebuild is replaced during a write to it.
#[test]
fn rebuild_fails_when_its_drive_is_replaced() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 5 * STRIPE);
        scene.replace(3);
        let data = scene.data();
        scene.rig.rule(move |drive, command| Act::hold_if(drive == 4 && writes_to(command, data..u64::MAX)));
        let rebuilt = scene.start_rebuild();
        assert_eq!((rebuilt.get(), scene.rig.held()), (None, 1));
        scene.replace(3);
        scene.release();
        assert_eq!(rebuilt.get(), Some(false), "{policy:?}");
        scene.rebuild();
        scene.cut(|_| false);
        scene.assemble(Some(0));
        scene.check(0, 5 * STRIPE);
    }
}

/// The rebuild may take hours.
#[test]
fn rebuild_yields_zone_to_pending_reset() {
    // A partly written zone, and a full one.
    let cases = [(Policy::Zrwa, 16), (Policy::InPlace, 16), (Policy::Zrwa, 60), (Policy::Log, 60)];
    for (policy, stripes) in cases {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, stripes * STRIPE);
        scene.replace(3);
        let data = scene.data();
        scene.rig.rule(move |drive, command| Act::hold_if(drive == 4 && writes_to(command, data..u64::MAX)));
        let rebuilt = scene.start_rebuild();
        let mut resetting = scene.start(reset(0));
        assert!(resetting.take().is_none() && scene.rig.held() == 1);
        // Its writes in flight complete, and no more follow.
        scene.rig.release(|_, _| true);
        scene.runtime.run();
        assert!(resetting.take().is_some_and(|done| done.result.is_ok()), "{policy:?}");
        assert_eq!((rebuilt.get(), scene.states()), (Some(true), vec![ACTIVE; 4]));
    }
}

/// The rebuild's first command, a reset of the member's old part, is in flight.
#[test]
fn zone_reset_waits_for_pending_rebuild_reset() {
    for policy in Policy::ALL {
        let scene = Scene::new(policy);
        scene.write(0, 0, 30);
        scene.rig.damage(1, Fault::WriteFault(part(0)));
        scene.write(0, 30, 30);
        assert_eq!(scene.states()[1], LACKS_ONE);
        let first = Cell::new(true);
        scene.rig.rule(move |drive, command| match command {
            Command::Reset { zones: Zones::One(zone) }
                if drive == 1 && *zone == part(0) && first.replace(false) =>
            {
                Act::Hold
            }
            _ => Act::Pass,
        });
        let rebuilt = scene.start_rebuild();
        let mut resetting = scene.start(reset(0));
        assert!(resetting.take().is_none() && scene.rig.held() == 1, "{policy:?}");
        scene.release();
        assert_eq!(run(&scene.runtime, resetting).result, Ok(()));
        assert_eq!((rebuilt.get(), scene.states()), (Some(true), vec![ACTIVE; 4]), "{policy:?}");
        scene.write(0, 0, 30);
        scene.check(0, 30);
    }
}

/// The member with the parity is not rebuilt yet.
#[test]
fn decode_never_uses_lacking_parts() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 2 * STRIPE);
        scene.replace(3);
        scene.rig.rule(|drive, command| match drive == 0 && matches!(command, Command::Read { .. }) {
            true => Act::Unreadable,
            false => Act::Pass,
        });
        assert!(scene.refused(Command::read(Lba(0), Buf::zeroed(BLOCK))), "{policy:?}");
        scene.rig.rule(|_, _| Act::Pass);
        scene.check(0, 2 * STRIPE);
    }
}

/// The last writes to the zone are in flight when all earlier blocks are copied.
#[test]
fn rebuild_finishes_zone_that_fills_meanwhile() {
    for policy in Policy::ALL {
        let mut scene = Scene::shaped(policy, geometry(ZONES + META, 242, 8));
        let end = scene.array.geometry().zone_capacity_blocks;
        (0..end - STRIPE).step_by(STRIPE as usize).for_each(|at| scene.write(0, at, STRIPE));
        scene.replace(3);
        let (data, blank) = (scene.data(), 4);
        let hold_writes_to = |held: usize| {
            let holds = move |drive, command: &Command| drive == held && writes_to(command, data..u64::MAX);
            scene.rig.rule(move |drive, command| Act::hold_if(holds(drive, command)));
        };
        hold_writes_to(blank);
        let rebuilt = scene.start_rebuild();
        assert_eq!(scene.rig.held(), 1, "{policy:?}");
        hold_writes_to(0);
        let last = scene.start_write(0, end - STRIPE, STRIPE);
        assert!(scene.rig.held() > 1, "{policy:?}");
        scene.rig.release(|position, _| position == 0);
        scene.runtime.run();
        assert_eq!(rebuilt.get(), None, "{policy:?}");
        scene.release();
        assert_eq!(run(&scene.runtime, last).result, Ok(()));
        assert_eq!((rebuilt.get(), scene.states()), (Some(true), vec![ACTIVE; 4]), "{policy:?}");
        for drive in &scene.drives {
            let done = run(&scene.runtime, drive.device.submit(Command::Report { first: part(0), count: 1 }));
            assert_eq!(done.zones[0].state, ZoneState::Full, "{policy:?}");
        }
        scene.cut(|_| false);
        scene.assemble(Some(1));
        scene.check(0, end);
    }
}

/// During the rebuild of one part another part of the member is lost, with writes to it in flight.
#[test]
fn part_lost_during_rebuild_waits_for_pending_writes() {
    for policy in [Policy::Zrwa, Policy::InPlace] {
        let mut scene = Scene::new(policy);
        (0..2).for_each(|zone| scene.write(zone, 0, STRIPE));
        scene.rig.damage(1, Fault::WriteFault(part(0)));
        scene.write(0, STRIPE, 2 * STRIPE);
        assert_eq!(scene.states()[1], LACKS_ONE);
        let (data, size) = (scene.data(), scene.shape.zone_size_blocks);
        let (first, second) = (data..data + size, data + size..data + 2 * size);
        let (held, begun) = (second.clone(), Rc::new(Cell::new(false)));
        let (zone, seen) = (first.clone(), begun.clone());
        scene.rig.rule(move |drive, command| {
            let resets = matches!(command, Command::Reset { zones } if *zones == Zones::One(part(1)));
            seen.set(seen.get() || drive == 1 && resets);
            Act::hold_if(drive == 1 && (writes_to(command, zone.clone()) || writes_to(command, held.clone())))
        });
        let rebuilt = scene.start_rebuild();
        assert!(scene.rig.held() > 0, "{policy:?}");
        scene.rig.damage(1, Fault::WriteFault(part(1)));
        let pending = [1, 2, 3, 4].map(|at| scene.start_write(1, at * STRIPE, STRIPE));
        let fails = Cell::new(true);
        scene.rig.release(|_, command| writes_to(command, second.clone()) && fails.replace(false));
        scene.runtime.run();
        assert_eq!(scene.states()[1], (MemberState::Rebuilding, 2), "{policy:?}");
        while scene.rig.release(|_, command| writes_to(command, first.clone())) > 0 {
            scene.runtime.run();
        }
        assert_eq!((scene.states()[1], begun.get()), (LACKS_ONE, false), "{policy:?}");
        assert!(scene.rig.held() > 0, "{policy:?}");
        scene.release();
        pending.into_iter().for_each(|p| assert_eq!(run(&scene.runtime, p).result, Ok(())));
        assert_eq!((rebuilt.get(), scene.states()), (Some(true), vec![ACTIVE; 4]), "{policy:?}");
        scene.cut(|_| false);
        scene.assemble(Some(3));
        scene.check(0, 3 * STRIPE);
        scene.check(1, 5 * STRIPE);
    }
}

/// The part of a full zone is lost while the loss of another part is being recorded.
#[test]
fn part_loss_is_recorded_before_immediate_rebuild() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        let (end, size) = (scene.array.geometry().zone_capacity_blocks, scene.shape.zone_size_blocks);
        for (zone, at) in (0..2).flat_map(|zone| (0..end).step_by(60).map(move |at| (zone, at))) {
            scene.write(zone, at, 60);
        }
        let (data, gone) = (scene.data(), [const { Cell::new(true) }; 2]);
        scene.rig.rule(move |drive, command| match command {
            Command::Read { lba, .. }
                if drive == 1 && lba.0 >= data && gone[((lba.0 - data) / size) as usize].replace(false) =>
            {
                Act::Offline
            }
            _ => Act::hold_if(is_metadata(command, data)),
        });
        [1, 0].iter().for_each(|zone| scene.check(*zone, STRIPE));
        assert_eq!(scene.states()[1], (MemberState::Rebuilding, 2), "{policy:?}");
        let rebuilt = scene.start_rebuild();
        scene.release();
        for _ in 0..2 {
            assert_eq!((rebuilt.get(), scene.states()), (Some(true), vec![ACTIVE; 4]), "{policy:?}");
            scene.cut(|_| false);
            scene.assemble(None);
        }
    }
}

/// The tail found by recovery is in the cache of a member that fails before a flush, while another member lacks the
/// zone.
#[test]
fn unflushed_tail_is_not_taken_for_durable() {
    let mut scene = Scene::volatile(Policy::InPlace);
    scene.write(0, 0, 5);
    scene.replace(1);
    write(&scene.runtime, &scene.array, 0, 5, 4, false);
    scene.stop();
    let failed = Cell::new(false);
    scene.rig.rule(move |drive, command| match command {
        Command::Flush if drive == 3 && !failed.replace(true) => Act::Fail,
        _ => Act::Pass,
    });
    scene.assemble(None);
    assert_eq!(scene.states()[3].0, MemberState::Out);
    scene.cut(|drive| drive == 3);
    scene.assemble(None);
    let (state, tail) = wp(&scene.runtime, &scene.array, 0);
    assert!(state == ZoneState::Closed && (5..=9).contains(&tail), "{state:?} {tail}");
    scene.check(0, tail);
}

/// Members have active-zone resources for one zone under rebuild beside all zones that may be written.
#[test]
fn active_zones_leave_room_for_one_rebuild() {
    for policy in Policy::ALL {
        let mut scene = Scene::shaped(policy, geometry(ZONES + META, 240, 5));
        assert_eq!(scene.array.geometry().max_active, 3);
        let end = scene.array.geometry().zone_capacity_blocks;
        (0..end).step_by(60).for_each(|at| scene.write(0, at, 60));
        scene.replace(1);
        let (data, size, blank, first) = (scene.data(), scene.shape.zone_size_blocks, 4, Cell::new(true));
        scene.rig.rule(move |drive, command| {
            let repairs = drive == blank && writes_to(command, data..data + size) && !first.replace(false);
            Act::hold_if(repairs || drive == 2 && writes_to(command, data..u64::MAX))
        });
        let rebuilt = scene.start_rebuild();
        assert_eq!((rebuilt.get(), scene.rig.held()), (None, 1), "{policy:?}");
        let writes = (1..5).flat_map(|zone| (0..end).step_by(60).map(move |at| (zone, at)));
        let pending: Vec<_> = writes.map(|(zone, at)| scene.start_write(zone, at, 60)).collect();
        scene.release();
        pending.into_iter().for_each(|p| assert_eq!(run(&scene.runtime, p).result, Ok(())));
        assert_eq!((rebuilt.get(), scene.states()), (Some(true), vec![ACTIVE; 4]), "{policy:?}");
    }
}

/// The members' zones are larger than their used part: zones with grouped appends have a reserve.
#[test]
fn fully_appended_zone_is_full_on_every_member() {
    let scene = Scene::appended(16);
    let capacity = scene.array.geometry().zone_capacity_blocks;
    (0..capacity).step_by(20).for_each(|at| scene.write(0, at, 20.min(capacity - at)));
    scene.runtime.run();
    for drive in &scene.drives {
        let report = Command::Report { first: part(0), count: 1 };
        let done = run(&scene.runtime, drive.device.submit(report));
        assert_eq!(done.zones[0].state, ZoneState::Full, "{}", drive.name);
    }
}

/// Member 0 fails when all of the zone has been copied to member 3.
#[test]
fn rebuild_stops_for_zone_awaiting_failed_member() {
    for policy in Policy::ALL {
        let mut scene = Scene::volatile(policy);
        scene.write(0, 0, 5 * STRIPE);
        scene.replace(3);
        let flushed = Rc::new(Cell::new(false));
        let held = flushed.clone();
        scene.rig.rule(move |drive, command| {
            let holds = drive == 4 && matches!(command, Command::Flush);
            held.set(held.get() | holds);
            Act::hold_if(holds)
        });
        scene.start_rebuild();
        assert!(flushed.get(), "{policy:?}");
        scene.rig.damage(0, Fault::Vanish);
        drop(scene.start(Command::read(Lba(0), Buf::zeroed(BLOCK))));
        scene.release();
        let [out, .., lacking] = scene.states()[..] else { panic!() };
        assert_eq!((out.0, lacking), (MemberState::Out, LACKS_ONE), "{policy:?}");
    }
}

/// Takes drive 1 out, and has it come back by `put_back` while a read of it is in flight: it is reset before it counts
/// again, and the read is discarded.
fn stale_read_is_discarded<F: Future<Output = ()> + 'static>(put_back: impl Fn(Array, Drive) -> F) {
    for policy in Policy::ALL {
        let scene = Scene::new(policy);
        scene.write(0, 0, STRIPE);
        let data = scene.data();
        scene.rig.rule(move |drive, command| {
            let read = matches!(command, Command::Read { lba, .. } if lba.0 >= data);
            Act::hold_if(drive == 1 && (read || matches!(command, Command::Reset { .. })))
        });
        let lba = scene.array.geometry().start(ZoneIndex(0)).0 + CHUNK;
        let read = scene.start(Command::read(Lba(lba), Buf::zeroed(BLOCK)));
        run(&scene.runtime, scene.array.fail(1)).unwrap();
        scene.runtime.spawn(put_back(scene.array.clone(), scene.drives[1].clone()));
        scene.runtime.run();
        let of_zone =
            |command: &Command| matches!(command, Command::Reset { zones } if *zones == Zones::One(part(0)));
        while scene.rig.release(|_, command| of_zone(command)) == 0 {
            assert!(scene.rig.release(|_, command| matches!(command, Command::Reset { .. })) > 0);
            scene.runtime.run();
        }
        assert_eq!(scene.rig.release(|_, command| matches!(command, Command::Read { .. })), 1);
        let done = run(&scene.runtime, read);
        assert_eq!(done.result, Ok(()));
        assert!(done.data[..] == pattern(lba, 1), "{policy:?}");
        scene.release();
    }
}

#[test]
fn stale_read_from_reattached_drive_is_discarded() {
    stale_read_is_discarded(|array, drive| async move { array.attach(1, drive).await.unwrap() });
}

/// The drive was another member before, and is out.
#[test]
fn stale_read_from_reassigned_drive_is_discarded() {
    stale_read_is_discarded(|array, drive| async move { _ = array.replace(2, drive, &|_| ()).await });
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum JobKind {
    Attach,
    Rebuild,
    Copy,
}

/// The future that waits for an attachment, a rebuild or a copy is dropped after any number of its commands, and the
/// job begins again while commands are in flight, with the same drive or another one. Then the zones can be written,
/// and any other member lost.
#[test]
fn job_given_up_anywhere_leaves_array_usable() {
    let kinds = [JobKind::Attach, JobKind::Rebuild, JobKind::Copy];
    let kinds = kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]);
    for (policy, (kind, other)) in kinds.flat_map(|kind| Policy::ALL.map(|policy| (policy, kind))) {
        for commands in 0.. {
            let mut scene = Scene::volatile(policy);
            scene.write(0, 0, STRIPE * 3);
            scene.submit(finish(0));
            scene.write(1, 0, 13);
            match kind {
                JobKind::Attach => run(&scene.runtime, scene.array.fail(3)).unwrap(),
                JobKind::Rebuild => scene.replace(3),
                JobKind::Copy => (),
            }
            let what = format!("{policy:?}, {kind:?}, another drive: {other}, after {commands} commands");
            let job = |drive: &Drive| {
                let (array, drive) = (scene.array.clone(), drive.clone());
                async move {
                    match kind {
                        JobKind::Attach => array.attach(3, drive).await,
                        JobKind::Rebuild => array.rebuild(&|_| ()).await.map(|_| ()),
                        JobKind::Copy => array.replace(3, drive, &|_| ()).await.map(|_| ()),
                    }
                }
            };
            let drives = [scene.rig.drive(&scene.shape), scene.rig.drive(&scene.shape)];
            scene.rig.rule(|_, _| Act::Hold);
            let (mut left, rig) = (commands, scene.rig.clone());
            let given_up = scene.runtime.block_on(job(&drives[0]), || {
                left -= usize::from(left > 0);
                left > 0 && rig.release(|position, _| position == 0) > 0
            });
            if commands == 1 && kind == JobKind::Rebuild {
                scene.release();
                assert_ne!(scene.states(), vec![ACTIVE; 4], "{what}: the job went on");
            }
            let (again, done) = (job(&drives[usize::from(other)]), Rc::new(Cell::new(None)));
            let told = done.clone();
            scene.runtime.spawn(async move { told.set(Some(again.await.is_ok())) });
            scene.release();
            // The first one may have come to its end, so that its drive is in use.
            let is_done = done.get().unwrap_or_else(|| panic!("{what}: the second one does not end"));
            assert!(is_done || kind != JobKind::Rebuild && (kind == JobKind::Attach || !other), "{what}");
            if kind != JobKind::Rebuild {
                scene.drives[3] = drives[usize::from(other && is_done)].clone();
                scene.rebuild();
            }
            assert_eq!(scene.states(), vec![ACTIVE; 4], "{what}");
            scene.write(1, 13, 10);
            scene.write(2, 0, 5);
            scene.cut(|_| true);
            scene.assemble(Some(commands % 3));
            scene.check(0, STRIPE * 3);
            scene.check(1, 23);
            scene.check(2, 5);
            if given_up.is_some() {
                assert!(commands > 10, "{what}");
                break;
            }
        }
    }
}

/// A copy ends, and the next one begins before the future that waits for the first one is polled, and dropped.
#[test]
fn dropped_future_of_ended_copy_leaves_next_one_alone() {
    let scene = Scene::new(Policy::Zrwa);
    scene.write(0, 0, 13);
    let (array, new) = (scene.array.clone(), scene.rig.drive(&scene.shape));
    let mut first = Box::pin(async move { array.replace(3, new, &|_| ()).await });
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    scene.runtime.run();
    let (array, new, done) = (scene.array.clone(), scene.rig.drive(&scene.shape), Rc::new(Cell::new(None)));
    let told = done.clone();
    scene.rig.rule(|_, _| Act::Hold);
    scene.runtime.spawn(async move { told.set(Some(array.replace(2, new, &|_| ()).await)) });
    scene.runtime.run();
    assert!(scene.rig.held() > 0);
    drop(first);
    scene.release();
    let ended = done.take();
    assert!(matches!(ended, Some(Ok(ReplaceOutcome::Copied { .. }))), "{ended:?}");
}

/// The tasks are dropped during a rebuild or a copy: the job before the task that waits for it.
#[test]
fn tasks_dropped_during_job_leave_drives_assemblable() {
    for copies in [false, true] {
        let mut scene = Scene::new(Policy::Zrwa);
        scene.write(0, 0, 13);
        if !copies {
            scene.replace(3);
        }
        // Two free places for tasks: the job, which begins later, takes the first one.
        scene.runtime.spawn(async {});
        scene.runtime.spawn(async {});
        scene.runtime.run();
        scene.rig.rule(|_, _| Act::Hold);
        let (array, new) = (scene.array.clone(), scene.rig.drive(&scene.shape));
        scene.runtime.spawn(async move {
            match copies {
                true => _ = array.replace(3, new, &|_| ()).await,
                false => _ = array.rebuild(&|_| ()).await,
            }
        });
        scene.runtime.run();
        assert!(scene.rig.held() > 0);
        scene.stop();
        scene.assemble(None);
        scene.rebuild();
        scene.check(0, 13);
    }
}

/// A drive is attached and used for a copy at the same time: only one of them gets it.
#[test]
fn drive_is_not_attached_and_copied_to_at_once() {
    for attach_first in [true, false] {
        let options = CreateOptions { parities: 2, ..options(CHUNK) };
        let mut scene = Scene::with_members(5, options, geometry(ZONES + META, 240, 8));
        scene.write(0, 0, 13);
        run(&scene.runtime, scene.array.fail(3)).unwrap();
        let new = scene.rig.drive(&scene.shape);
        scene.rig.rule(|_, _| Act::Hold);
        let done = Rc::new(RefCell::new(Vec::new()));
        for attaches in [attach_first, !attach_first] {
            let (array, new, told) = (scene.array.clone(), new.clone(), done.clone());
            scene.runtime.spawn(async move {
                let is_ok = match attaches {
                    true => array.attach(3, new).await.is_ok(),
                    false => array.replace(2, new, &|_| ()).await.is_ok(),
                };
                told.borrow_mut().push((attaches, is_ok));
            });
            scene.runtime.run();
        }
        scene.release();
        let mut ended = done.take();
        ended.sort_unstable();
        assert_eq!(ended, [(false, !attach_first), (true, attach_first)]);
        scene.drives[if attach_first { 3 } else { 2 }] = new;
        if !attach_first {
            scene.replace(3);
        }
        scene.rebuild();
        scene.cut(|_| true);
        scene.assemble(Some(0));
        scene.check(0, 13);
    }
}

/// Member 0 goes out while the new drive gets its checkpoint, the last one.
#[test]
fn attach_waits_until_failure_meanwhile_is_recorded() {
    let mut scene = Scene::new(Policy::Log);
    run(&scene.runtime, scene.array.fail(3)).unwrap();
    scene.drives[3] = scene.rig.drive(&scene.shape);
    let data = scene.data();
    scene.rig.rule(move |drive, command| Act::hold_if(drive == 4 && is_metadata(command, data)));
    let attached = start_attach(&scene);
    assert_eq!(scene.rig.held(), 1);
    scene.rig.rule(move |drive, command| Act::hold_if([1, 2].contains(&drive) && is_metadata(command, data)));
    let array = scene.array.clone();
    scene.runtime.spawn(async move { _ = array.fail(0).await });
    scene.runtime.run();
    assert_eq!(scene.rig.release(|position, _| position == 0), 1);
    scene.runtime.run();
    assert!(scene.rig.held() > 0 && attached.get().is_none());
    scene.release();
    assert_eq!(attached.get(), Some(true));
}

/// The assembly is interrupted when all members have the superblock that commits it, and one is replaced by a copy from
/// before.
#[test]
fn copy_older_than_interrupted_assembly_is_stale() {
    let mut scene = Scene::new(Policy::Log);
    scene.write(0, 0, 5);
    scene.stop();
    let copy = scene.rig.copy(1);
    let appended = [const { Cell::new(0) }; 4];
    scene.rig.rule(move |drive, command| match command {
        Command::Write { lba, .. } if lba.0 % 256 > 0 && tells_members(command) => {
            Act::hold_if(appended[drive].replace(appended[drive].get() + 1) > 0)
        }
        _ => Act::Pass,
    });
    scene.start_assembly(None);
    assert!(scene.rig.held() > 0);
    scene.stop();
    scene.drives[1] = copy;
    scene.assemble(None);
    let member = &scene.array.status().members[1];
    assert!(matches!(member.note, Note::Stale { .. }), "{}", member.note);
}
