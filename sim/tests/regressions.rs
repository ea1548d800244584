//! One scripted scene for each bug that was found in the array, to keep it fixed.
//!
//! A scene forces, in a fixed order, the events that the simulator meets by chance: a [`Rig`] holds commands back until
//! the script releases them. Each test is named for the property that must hold, and its comment describes the events
//! that violated it.

use crate::support::{
    array::{check, drives, geometry, options, pattern, run, submit, wp, write, write_command},
    rig::{Act, Rig},
};
use emu::{rng::Rng, ssd::Cut};
use engine::{
    array::{Array, ArrayError, Drive, MemberState, Tails},
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Geometry, Status, ZonedDevice, Zones},
    raid::{error::NoRebuild, policy::zrwa::Refusal},
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{cell::RefCell, rc::Rc};

const CHUNK: u64 = 4;
/// Blocks of a stripe of four members.
const STRIPE: u64 = 3 * CHUNK;
/// Metadata zones of a drive, before the data zones: also the physical zone of logical zone 0.
const META_ZONES: u64 = 2;

fn create(runtime: &Runtime, all: &[Drive]) -> Array {
    run(runtime, Array::create(runtime, options(CHUNK), all.to_vec())).unwrap()
}

/// Drops the array without a shutdown and assembles it again.
fn reassemble(runtime: &Runtime, array: Array, all: &[Drive]) -> Array {
    drop(array);
    runtime.clear();
    run(runtime, Array::assemble(runtime, all.to_vec())).unwrap()
}

/// Four drives of a rig, and an array of them.
fn rigged(runtime: &Runtime, geometry: &Geometry) -> (Rc<Rig>, Vec<Drive>, Array) {
    let rig = Rig::new();
    let all: Vec<_> = (0..4).map(|_| rig.drive(geometry)).collect();
    let array = create(runtime, &all);
    (rig, all, array)
}

fn capacity(array: &Array) -> u64 {
    array.geometry().zone_capacity_blocks
}

fn finish(zone: u32) -> Command {
    Command::Finish { zones: Zones::One(ZoneIndex(zone)) }
}

fn reset(zone: u32) -> Command {
    Command::Reset { zones: Zones::One(ZoneIndex(zone)) }
}

/// Writes a zone from its start to `end`, `step` blocks at a time, and runs all tasks until they wait.
fn write_up_to(runtime: &Runtime, array: &Array, zone: u32, end: u64, step: u64) {
    let mut at = 0;
    while at < end {
        let blocks = step.min(end - at);
        write(runtime, array, zone, at, blocks, false);
        at += blocks;
    }
    runtime.run();
}

/// Whether a command writes at block `from` of a drive, or after it.
fn writes_from(command: &Command, from: u64) -> bool {
    matches!(command, Command::Write { lba, .. } if lba.0 >= from)
}

/// Whether a command writes before block `end` of a drive.
fn writes_before(command: &Command, end: u64) -> bool {
    matches!(command, Command::Write { lba, .. } if lba.0 < end)
}

/// Releases the `chosen` commands, and those that follow from them, until there are no more.
fn release_all(runtime: &Runtime, rig: &Rig, chosen: impl Fn(&Command) -> bool) {
    runtime.run();
    while rig.release(|_, command| chosen(command)) > 0 {
        runtime.run();
    }
}

#[track_caller]
fn assert_all_active(array: &Array) {
    let status = array.status();
    let members: Vec<_> = status.members.iter().map(|m| (m.state, m.note.clone())).collect();
    assert!(!status.failed && members.iter().all(|m| m.0 == MemberState::Active), "{members:?}");
}

/// Starts a rebuild; the returned cell receives its result.
fn start_rebuild(runtime: &Runtime, array: &Array) -> Rc<RefCell<Option<Result<u64, ArrayError>>>> {
    let (array, result) = (array.clone(), Rc::new(RefCell::new(None)));
    let place = result.clone();
    runtime.spawn(async move {
        let ended = array.rebuild(&|_| ()).await.map(|done| done.bytes);
        *place.borrow_mut() = Some(ended);
    });
    result
}

/// Near the end of a zone, partial parity goes to the metadata log. The log is read back when the
/// array is assembled, with the partial parity of zones that are full since: every checkpoint
/// carried it on, until a checkpoint did not fit into a metadata zone and the array was lost.
#[test]
fn assembly_drops_logged_partial_parity_of_full_zones() {
    let runtime = Runtime::new();
    let all = drives(4, &geometry(12, 48, 3));
    let mut array = create(&runtime, &all);
    for zone in 0..array.geometry().zones {
        write_up_to(&runtime, &array, zone, capacity(&array), CHUNK);
        submit(&runtime, &array, Command::Flush);
        array = reassemble(&runtime, array, &all);
        assert_all_active(&array);
    }
}

/// One zone can be open. The last write of zone 0 is in flight, so zone 1 waits to be opened, with a write in its
/// queue; then zone 1 is changed by `command`, and zone 0 ends. The opening was carried out despite the change. Returns
/// the results of `command` and of the write to zone 1.
fn change_while_waiting(
    runtime: &Runtime,
    command: Command,
    refuses: fn(usize, &Command) -> bool,
) -> (Array, [Result<(), DeviceError>; 2]) {
    let geometry = geometry(8, 200, 3);
    let (rig, _, array) = rigged(runtime, &geometry);
    let last = capacity(&array) - STRIPE;
    write_up_to(runtime, &array, 0, last, STRIPE);
    let zone_0 = META_ZONES * geometry.zone_size_blocks;
    let zone_1 = zone_0 + geometry.zone_size_blocks;
    rig.rule(move |drive, command| match refuses(drive, command) {
        true => Act::Refuse,
        false => Act::hold_if(writes_from(command, zone_0) && writes_before(command, zone_1)),
    });
    let ending = array.submit(write_command(&array, 0, last, STRIPE, false));
    let waiting = array.submit(write_command(&array, 1, 0, 3, false));
    let change = array.submit(command);
    runtime.run();
    let results = [run(runtime, change).result, run(runtime, waiting).result];
    rig.rule(|_, _| Act::Pass);
    rig.release(|_, _| true);
    assert_eq!(run(runtime, ending).result, Ok(()));
    runtime.run();
    (array, results)
}

/// The members' zones were opened after they had been finished, which drives refuse: all members
/// were taken out.
#[test]
fn zone_waiting_for_open_can_be_finished() {
    let runtime = Runtime::new();
    let (array, results) = change_while_waiting(&runtime, finish(1), |_, _| false);
    assert_eq!(results, [Ok(()), Err(Status::ZoneIsFull.into())]);
    assert_eq!(wp(&runtime, &array, 1).0, ZoneState::Full);
    assert_all_active(&array);
}

/// The queued write was never completed.
#[test]
fn failed_finish_of_waiting_zone_fails_queued_writes() {
    let runtime = Runtime::new();
    let refuses = |drive, command: &Command| drive < 2 && matches!(command, Command::Finish { .. });
    let (_, results) = change_while_waiting(&runtime, finish(1), refuses);
    assert_eq!(results, [Err(Status::InternalError.into()); 2]);
}

/// The members' zones were opened although the logical zone had been reset; the next write to it opened them again,
/// which drives refuse.
#[test]
fn zone_waiting_for_open_can_be_reset() {
    let runtime = Runtime::new();
    let (array, results) = change_while_waiting(&runtime, reset(1), |_, _| false);
    assert_eq!(results, [Ok(()), Err(Status::ZoneInvalidWrite.into())]);
    write(&runtime, &array, 1, 0, 3, true);
    check(&runtime, &array, 1, 3);
    assert_all_active(&array);
}

/// Records that do not fit into the rest of the metadata zone cause a checkpoint in the other one,
/// and were written again after it. With much partial parity, checkpoint and records together were
/// larger than a zone: all members failed at the same moment. `filled` blocks of the log are used
/// before a burst of writes at the end of three zones.
fn burst_of_partial_parity(filled: u64) {
    let runtime = Runtime::new();
    let array = create(&runtime, &drives(6, &geometry(8, 76, 5)));
    let (zones, stripe) = (array.geometry().max_active, 5 * CHUNK);
    let burst = capacity(&array) - 4 * stripe;
    for zone in 0..zones {
        write_up_to(&runtime, &array, zone, burst, stripe);
    }
    for _ in 0..filled {
        submit(&runtime, &array, reset(5));
    }
    let writes: Vec<Completion> = (burst..capacity(&array))
        .step_by(CHUNK as usize)
        .flat_map(|at| (0..zones).map(move |zone| (zone, at)))
        .map(|(zone, at)| array.submit(write_command(&array, zone, at, CHUNK, true)))
        .collect();
    for write in writes {
        assert_eq!(run(&runtime, write).result, Ok(()), "{filled} blocks used");
    }
    assert_all_active(&array);
}

#[test]
fn metadata_log_has_room_for_any_record_burst() {
    (0..80).for_each(burst_of_partial_parity);
}

/// Two rebuilds of the same member wrote the same zones, each resetting the other's copies:
/// the drive refused the writes that followed, and was taken out. Here both are started, and their
/// commands arrive in an order that the seed decides.
fn two_rebuilds(seed: u64) {
    let runtime = Runtime::seeded(seed);
    let geometry = geometry(8, 200, 6);
    let (rig, _, array) = rigged(&runtime, &geometry);
    for zone in 0..4 {
        write(&runtime, &array, zone, 0, 200, true);
    }
    submit(&runtime, &array, Command::Finish { zones: Zones::All });
    run(&runtime, array.fail(1)).unwrap();
    run(&runtime, array.attach(1, rig.drive(&geometry))).unwrap();
    rig.rule(|_, _| Act::Hold);
    let rebuilds = [start_rebuild(&runtime, &array), start_rebuild(&runtime, &array)];
    let mut rng = Rng::new(seed);
    runtime.run();
    while rig.held() > 0 {
        let chosen = rng.below(rig.held() as u64) as usize;
        rig.release(|position, _| position == chosen);
        runtime.run();
    }
    rig.rule(|_, _| Act::Pass);
    let done = rebuilds.iter().filter(|r| matches!(*r.borrow(), Some(Ok(_)))).count();
    let refused = |r: &Result<u64, ArrayError>| r == &Err(NoRebuild::UnderWay.into());
    let refusals = rebuilds.iter().filter(|r| r.borrow().as_ref().is_some_and(refused)).count();
    assert_eq!((done, refusals), (1, 1), "seed {seed}: {rebuilds:?}");
    assert_all_active(&array);
    for zone in 0..4 {
        check(&runtime, &array, zone, 200);
    }
}

#[test]
fn rebuild_refuses_second_concurrent_rebuild() {
    (0..30).for_each(two_rebuilds);
}

/// The record that a zone is rebuilt did not fit into the log. The checkpoint that was written first still listed the
/// zone as lacking, and was newer than the record, which therefore did not count: a rebuild that had been reported as
/// done was undone by the next assembly. `filled` blocks of the log are used before the rebuild.
fn rebuild_with_log(filled: u64) {
    let runtime = Runtime::new();
    let geometry = geometry(8, 200, 6);
    let mut all = drives(4, &geometry);
    let array = create(&runtime, &all);
    for zone in 0..2 {
        write(&runtime, &array, zone, 0, 30, true);
    }
    run(&runtime, array.fail(1)).unwrap();
    all[1] = drives(1, &geometry).remove(0);
    run(&runtime, array.attach(1, all[1].clone())).unwrap();
    for _ in 0..filled {
        submit(&runtime, &array, reset(5));
    }
    run(&runtime, array.rebuild(&|_| ())).unwrap();
    assert_all_active(&array);
    // Another member is lost: the array needs the rebuilt one.
    all.remove(3);
    let array = reassemble(&runtime, array, &all);
    for zone in 0..2 {
        check(&runtime, &array, zone, 30);
    }
}

#[test]
fn completed_rebuild_survives_assembly_with_full_log() {
    (0..120).for_each(rebuild_with_log);
}

/// A member fails the flush of its cache before write pointers are moved. They were moved on the other members all the
/// same, and the power was cut before the superblocks listed the member as out: it returned without the contents of its
/// cache, in an array that took it for complete.
fn failed_flush(seed: u64) {
    let runtime = Runtime::new();
    let geometry = Geometry { volatile_cache: true, ..geometry(8, 200, 6) };
    let (rig, all, array) = rigged(&runtime, &geometry);
    write(&runtime, &array, 0, 0, STRIPE, true);
    let data = META_ZONES * geometry.zone_size_blocks;
    rig.rule(move |drive, command| match command {
        Command::Flush if drive == 2 => Act::Fail,
        // Metadata writes stay in flight.
        command if writes_before(command, data) => Act::Hold,
        Command::Reset { .. } | Command::Finish { .. } => Act::Hold,
        _ => Act::Pass,
    });
    write(&runtime, &array, 0, STRIPE, 2 * STRIPE, false);
    runtime.run();
    rig.cut_power(&mut Rng::new(seed), |drive| Cut { cache_lost: drive == 2, zrwa_lost: false });
    let array = reassemble(&runtime, array, &all);
    let (_, tail) = wp(&runtime, &array, 0);
    assert!(tail >= STRIPE, "seed {seed}: {tail} blocks are left");
    check(&runtime, &array, 0, tail);
}

#[test]
fn write_pointers_wait_until_failed_member_is_recorded() {
    (0..40).for_each(failed_flush);
}

/// One zone can be open, and zone 1 is: zone 0 has a queued write. There is nothing to copy for zone 0, so a rebuild
/// only records that it is not lacking. While the `slow` command of that is in flight, zone 1 ends, and zone 0 was
/// opened on all members except the one under rebuild, which then counted as active without an open zone.
fn end_while_crossed_off(slow: fn(usize, &Command) -> bool) {
    let runtime = Runtime::new();
    let geometry = Geometry { volatile_cache: true, ..geometry(8, 200, 3) };
    let (rig, _, array) = rigged(&runtime, &geometry);
    run(&runtime, array.fail(3)).unwrap();
    let last = capacity(&array) - STRIPE;
    write_up_to(&runtime, &array, 1, last, STRIPE);
    let data = META_ZONES * geometry.zone_size_blocks;
    let zone_1 = data + geometry.zone_size_blocks;
    rig.rule(move |_, command| Act::hold_if(writes_from(command, zone_1)));
    let ending = array.submit(write_command(&array, 1, last, STRIPE, false));
    let waiting = array.submit(write_command(&array, 0, 0, 30, false));
    runtime.run();
    run(&runtime, array.attach(3, rig.drive(&geometry))).unwrap();
    rig.rule(move |drive, command| Act::hold_if(writes_from(command, zone_1) || slow(drive, command)));
    let rebuild = start_rebuild(&runtime, &array);
    runtime.run();
    // Zone 1 ends: only data writes are needed for that.
    rig.rule(move |drive, command| Act::hold_if(slow(drive, command)));
    release_all(&runtime, &rig, |command| writes_from(command, data));
    assert!(rebuild.borrow().is_none() && rig.held() > 0);
    rig.rule(|_, _| Act::Pass);
    release_all(&runtime, &rig, |_| true);
    assert_eq!(run(&runtime, ending).result, Ok(()));
    assert_eq!(run(&runtime, waiting).result, Ok(()));
    assert!(matches!(*rebuild.borrow(), Some(Ok(_))), "{rebuild:?}");
    assert_all_active(&array);
    check(&runtime, &array, 0, 30);
    check(&runtime, &array, 1, capacity(&array));
}

#[test]
fn zone_open_waits_for_record_of_completed_rebuild() {
    // Either the record itself, or the flush of the new drive before it.
    end_while_crossed_off(|_, command| writes_before(command, META_ZONES * 256));
    end_while_crossed_off(|drive, command| drive == 4 && matches!(command, Command::Flush));
}

/// A member lost the ZRWAs of two zones: it lacks these zones, but they stay active on its drive. They stayed so after
/// the array had finished them, and two others that the array then opened exceeded the drive's limit: the drive
/// refused, and was taken out.
#[test]
fn finished_zone_frees_resources_on_lacking_member() {
    let runtime = Runtime::new();
    let (rig, all, array) = rigged(&runtime, &geometry(10, 200, 4));
    assert_eq!(array.geometry().max_active, 2);
    for zone in 0..2 {
        write(&runtime, &array, zone, 0, 30, true);
    }
    rig.cut_power(&mut Rng::new(1), |drive| Cut { cache_lost: false, zrwa_lost: drive == 2 });
    let array = reassemble(&runtime, array, &all);
    assert_eq!(array.status().members[2].zones_to_rebuild, 2);
    for zone in 0..2 {
        submit(&runtime, &array, finish(zone));
    }
    for zone in 2..4 {
        write(&runtime, &array, zone, 0, 30, true);
    }
    let member = array.status().members.remove(2);
    assert_eq!(member.state, MemberState::Rebuilding, "{}", member.note);
    for zone in 0..4 {
        check(&runtime, &array, zone, 30);
    }
}

/// All of a zone is written, but the members' write pointers are not at its end yet. Such a zone counts as full, so a
/// finish completed at once, and after a crash the zone was not full.
#[test]
fn finish_of_full_zone_waits_for_members() {
    let runtime = Runtime::new();
    let (rig, all, array) = rigged(&runtime, &geometry(8, 200, 6));
    let last = capacity(&array) - STRIPE;
    write_up_to(&runtime, &array, 0, last, STRIPE);
    rig.rule(|_, command| Act::hold_if(matches!(command, Command::FlushZrwa { .. })));
    write(&runtime, &array, 0, last, STRIPE, false);
    let mut finished = array.submit(finish(0));
    runtime.run();
    assert!(finished.take().is_none());
    rig.rule(|_, _| Act::Pass);
    rig.release(|_, _| true);
    assert_eq!(run(&runtime, finished).result, Ok(()));
    let array = reassemble(&runtime, array, &all);
    assert_eq!(wp(&runtime, &array, 0).0, ZoneState::Full);
}

fn fail_if(fail: bool) -> Act {
    if fail { Act::Fail } else { Act::Pass }
}

/// Whether a command reads any of these blocks of a drive.
fn reads_any(command: &Command, blocks: &std::ops::Range<u64>) -> bool {
    matches!(command, Command::Read { lba, data, .. }
        if lba.0 < blocks.end && blocks.start < lba.0 + data.blocks())
}

/// Number of zones that each member lacks.
fn lacking(array: &Array) -> Vec<u32> {
    array.status().members.iter().map(|member| member.zones_to_rebuild).collect()
}

/// Writes the first three blocks of zone 0 and shuts the drives down in an orderly way, after which all parts of the
/// zone are empty. Returns the first data block of the drives, too.
fn shut_down_with_three_blocks(runtime: &Runtime) -> (Rc<Rig>, Vec<Drive>, u64) {
    let geometry = geometry(10, 200, 8);
    let (rig, all, array) = rigged(runtime, &geometry);
    write(runtime, &array, 0, 0, 3, true);
    drop(array);
    runtime.clear();
    rig.shut_down();
    (rig, all, META_ZONES * geometry.zone_size_blocks)
}

/// Blocks that could not be read when they were to be written back were left out, and read as zeros once the write
/// pointer had passed them.
#[test]
fn member_with_unreadable_empty_zone_is_rebuilt() {
    let runtime = Runtime::new();
    let (rig, all, data) = shut_down_with_three_blocks(&runtime);
    rig.rule(move |drive, command| fail_if(drive == 0 && reads_any(command, &(data + 1..data + 2))));
    let array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
    rig.rule(|_, _| Act::Pass);
    assert_eq!(lacking(&array), [1, 0, 0, 0]);
    write(&runtime, &array, 0, 3, 37, true);
    check(&runtime, &array, 0, 40);
    run(&runtime, array.rebuild(&|_| ())).unwrap();
    assert_all_active(&array);
    check(&runtime, &array, 0, 40);
}

/// As before, with a member missing: there is nothing to rebuild from.
#[test]
fn unreadable_empty_zone_of_degraded_array_is_offline() {
    let runtime = Runtime::new();
    let (rig, all, data) = shut_down_with_three_blocks(&runtime);
    rig.rule(move |drive, command| fail_if(drive == 0 && reads_any(command, &(data + 1..data + 2))));
    let array = run(&runtime, Array::assemble(&runtime, all[..3].to_vec())).unwrap();
    assert_eq!(offline(&array), [(0, Refusal::Lacking { member: 0 }, vec![3])]);
    rig.rule(|_, _| Act::Pass);
    let array = reassemble(&runtime, array, &all);
    check(&runtime, &array, 0, 3);
}

/// Offline zones, with the reason and the members that they wait for.
fn offline(array: &Array) -> Vec<(u32, Refusal, Vec<usize>)> {
    array.status().offline.into_iter().map(|zone| (zone.zone.0, zone.refusal, zone.waits_for)).collect()
}

/// Reads of unwritten blocks fail on some drives. Parity was to verify a member that had lost its ZRWA, and unreadable
/// blocks counted as matching.
#[test]
fn lost_zrwa_is_detected_with_unreadable_unwritten_blocks() {
    let runtime = Runtime::new();
    let (rig, all, array) = rigged(&runtime, &geometry(10, 200, 8));
    rig.fail_unwritten();
    write(&runtime, &array, 0, 0, 3, true);
    rig.cut_power(&mut Rng::new(1), |drive| Cut { cache_lost: false, zrwa_lost: drive == 0 });
    let array = reassemble(&runtime, array, &all);
    assert_eq!(lacking(&array), [1, 0, 0, 0]);
    check(&runtime, &array, 0, 3);
}

/// One member with the zone's log is missing, and the other one cannot read that log of a zone that is empty
/// everywhere: the zone was reset.
#[test]
fn empty_zone_with_unreadable_log_is_offline() {
    let runtime = Runtime::new();
    let (rig, all, data) = shut_down_with_three_blocks(&runtime);
    // The log is half the ZRWA ahead.
    let log = data + 16..data + 18;
    rig.rule(move |drive, command| fail_if(drive == 3 && reads_any(command, &log)));
    let array = run(&runtime, Array::assemble(&runtime, all[1..].to_vec())).unwrap();
    assert_eq!(offline(&array), [(0, Refusal::Log { member: 3 }, vec![0])]);
    rig.rule(|_, _| Act::Pass);
    let array = reassemble(&runtime, array, &all[1..]);
    check(&runtime, &array, 0, 3);
}

/// While a member is out, one witness of the first chunk is enough. When the rebuilt part counted again, the record of
/// that was durable before the second witness: without the first one the zone was reset.
#[test]
fn rebuilt_member_counts_only_with_two_tail_witnesses() {
    let runtime = Runtime::new();
    let (rig, mut all, array) = rigged(&runtime, &geometry(10, 200, 8));
    // The first chunk is on member 0, its slot on member 1, and a logged tail would be on 0 and 3.
    run(&runtime, array.fail(2)).unwrap();
    write(&runtime, &array, 0, 0, CHUNK, true);
    all[2] = rig.drive(&geometry(10, 200, 8));
    run(&runtime, array.attach(2, all[2].clone())).unwrap();
    let data = META_ZONES * geometry(10, 200, 8).zone_size_blocks;
    rig.rule(move |_, command| match command {
        Command::Write { lba, fua: true, .. } if lba.0 >= data => Act::Hold,
        _ => Act::Pass,
    });
    assert!(runtime.block_on(array.rebuild(&|_| ()), || false).is_none(), "no tail was logged");
    drop(array);
    runtime.clear();
    rig.rule(|_, _| Act::Pass);
    rig.shut_down();
    let array = run(&runtime, Array::assemble(&runtime, all[1..].to_vec())).unwrap();
    assert_eq!(wp(&runtime, &array, 0).0, ZoneState::Offline);
    let array = reassemble(&runtime, array, &all);
    check(&runtime, &array, 0, CHUNK);
}

/// A metadata zone that was finished early is read to its end. Where its unwritten blocks are unreadable, the whole log
/// counted as unreadable.
#[test]
fn metadata_log_is_read_despite_unreadable_unwritten_blocks() {
    let runtime = Runtime::new();
    let (rig, all, mut array) = rigged(&runtime, &geometry(10, 200, 8));
    rig.fail_unwritten();
    write(&runtime, &array, 0, 0, 3, true);
    // Every assembly switches to the other metadata zone; this one ends before the checkpoint there is written.
    let blocks = META_ZONES * geometry(10, 200, 8).zone_size_blocks;
    rig.rule(move |_, command| Act::hold_if(writes_before(command, blocks)));
    drop(array);
    runtime.clear();
    let (other, drives) = (runtime.clone(), all.clone());
    runtime.spawn(async move { _ = Array::assemble(&other, drives).await });
    runtime.run();
    runtime.clear();
    rig.cut_power(&mut Rng::new(1), |_| Cut::default());
    array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
    assert_all_active(&array);
    check(&runtime, &array, 0, 3);
}

/// Zeros are written, the drives are shut down in an orderly way, and a member is missing: the remaining data looks as
/// if another member had lost its ZRWA too.
#[test]
fn zeros_confirmed_by_parity_are_accepted() {
    for (members, blocks, byte) in [(3, 4, 0), (4, 8, 7), (5, 12, 0)] {
        let runtime = Runtime::new();
        let (rig, geometry) = (Rig::new(), geometry(10, 200, 8));
        let all: Vec<_> = (0..members).map(|_| rig.drive(&geometry)).collect();
        let array = create(&runtime, &all);
        let data = Buf::copy_of(&vec![byte; blocks as usize * BLOCK]);
        submit(&runtime, &array, Command::write(Lba(0), data, true));
        drop(array);
        runtime.clear();
        rig.shut_down();
        let array = run(&runtime, Array::assemble(&runtime, all[..members - 1].to_vec())).unwrap();
        assert_eq!(wp(&runtime, &array, 0).1, blocks, "{members} members");
    }
}

/// The process is killed, and the drives are shut down in an orderly way while the host stays up: acknowledged writes
/// without FUA were given up because all parts of the zone were empty.
#[test]
fn take_over_uses_tails_after_drive_shutdown() {
    let runtime = Runtime::new();
    let (rig, all, array) = rigged(&runtime, &geometry(10, 200, 8));
    let mut tails =
        Tails { assembly: array.assembly(), blocks: vec![0; array.geometry().zones as usize], power: vec![] };
    write(&runtime, &array, 0, 0, 3, false);
    // The tail of zone 1 is from before a reset.
    (tails.blocks[0], tails.blocks[1]) = (3, 3);
    drop(array);
    runtime.clear();
    rig.shut_down();
    let array = run(&runtime, Array::take_over(&runtime, all, &tails)).unwrap();
    assert_eq!([0, 1].map(|zone| wp(&runtime, &array, zone).1), [3, 0]);
    check(&runtime, &array, 0, 3);
}

/// Near the end of a zone. The first assembly after a kill took the acknowledged tail, in the next stripe, and dropped
/// the logged parity of the stripe before; the power was cut before write pointers proved that tail, and with a member
/// missing the promised data could not be decoded any more.
#[test]
fn interrupted_take_over_keeps_parity_of_promised_data() {
    for missing in 0..4 {
        let runtime = Runtime::new();
        let geometry = geometry(10, 200, 16);
        let (rig, mut all, array) = rigged(&runtime, &geometry);
        let promised = 48 * STRIPE + CHUNK + 1;
        write_up_to(&runtime, &array, 0, promised - 1, STRIPE);
        write(&runtime, &array, 0, promised - 1, 1, true);
        rig.rule(|_, command| Act::hold_if(matches!(command, Command::FlushZrwa { .. })));
        write(&runtime, &array, 0, promised, STRIPE, false);
        let mut tails = Tails { assembly: array.assembly(), blocks: vec![0; 8], power: vec![] };
        tails.blocks[0] = promised + STRIPE;
        drop(array);
        runtime.clear();
        all.remove(missing);
        let first = META_ZONES * geometry.zone_size_blocks;
        rig.rule(move |_, command| {
            Act::hold_if(writes_from(command, first) || matches!(command, Command::FlushZrwa { .. }))
        });
        let taken = runtime.block_on(Array::take_over(&runtime, all.clone(), &tails), || false);
        assert!(taken.is_none(), "it was to be cut off");
        runtime.clear();
        rig.rule(|_, _| Act::Pass);
        let array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
        let (_, tail) = wp(&runtime, &array, 0);
        assert!(tail >= promised, "{tail} without {missing}");
        check(&runtime, &array, 0, tail);
    }
}

/// A drive is taken out and attached again, which resets it, while a read of it is in flight. The data that this read
/// returned was used.
#[test]
fn stale_read_from_reattached_drive_is_discarded() {
    let runtime = Runtime::new();
    let (rig, all, array) = rigged(&runtime, &geometry(10, 200, 5));
    write_up_to(&runtime, &array, 0, 8 * STRIPE, STRIPE);
    for (member, own) in all.iter().enumerate() {
        rig.rule(move |drive, command| match command {
            Command::Read { .. } if drive == member => Act::Hold,
            _ => Act::Pass,
        });
        let reads: Vec<_> = (0..8 * STRIPE / CHUNK)
            .map(|chunk| array.submit(Command::read(Lba(chunk * CHUNK), Buf::zeroed(CHUNK as usize * BLOCK))))
            .collect();
        runtime.run();
        assert!(rig.held() > 0);
        rig.rule(|_, _| Act::Pass);
        run(&runtime, array.fail(member)).unwrap();
        run(&runtime, array.attach(member, own.clone())).unwrap();
        rig.release(|_, _| true);
        for (chunk, read) in (0..).zip(reads) {
            let done = run(&runtime, read);
            assert_eq!(done.result, Ok(()));
            assert!(done.data[..] == pattern(chunk * CHUNK, CHUNK), "chunk {chunk} without {member}");
        }
        run(&runtime, array.rebuild(&|_| ())).unwrap();
        check(&runtime, &array, 0, 8 * STRIPE);
    }
}

/// An orderly shutdown has made a zone empty that can still be read in its ZRWA. These contents were still there when
/// the drive was attached again, since a reset of all zones skips empty ones, and looked like a damaged log.
#[test]
fn attach_leaves_no_old_data_on_drive() {
    for member in 0..4 {
        let runtime = Runtime::new();
        let (rig, all, array) = rigged(&runtime, &geometry(10, 200, 5));
        (0..6).for_each(|zone| write(&runtime, &array, zone % 3, (zone / 3) as u64, 1, true));
        drop(array);
        runtime.clear();
        rig.shut_down();
        let others: Vec<_> = (0..4).filter(|m| *m != member).map(|m| all[m].clone()).collect();
        let array = run(&runtime, Array::assemble(&runtime, others)).unwrap();
        (0..3).for_each(|zone| _ = submit(&runtime, &array, reset(zone)));
        run(&runtime, array.attach(member, all[member].clone())).unwrap();
        run(&runtime, array.rebuild(&|_| ())).unwrap();
        for zone in 2..5 {
            let first = Lba(zone * 256);
            let read = Command::read(first, Buf::zeroed(32 * BLOCK));
            let done = run(&runtime, all[member].device.submit(read));
            assert!(done.data.iter().all(|byte| *byte == 0), "zone {zone} of drive {member}");
        }
        let missing = (member + 1) % 4;
        let some: Vec<_> = (0..4).filter(|m| *m != missing).map(|m| all[m].clone()).collect();
        let array = reassemble(&runtime, array, &some);
        (0..3).for_each(|zone| assert_eq!(wp(&runtime, &array, zone), (ZoneState::Empty, 0)));
    }
}
