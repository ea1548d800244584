//! Aggregation of small zones: written data survives a power loss or an orderly shutdown between the commands into
//! which one command is split.

use crate::support::array::{check, drives, geometry, options, pattern, run, write, write_command};
use emu::{
    rng::Rng,
    ssd::{Cut, EmulatedDrive, Fault, Kind, Model, Ssd},
};
use engine::{
    adapt::aggregate::AggregateDevice,
    array::{Array, CreateOptions, Drive, MemberState, examine},
    buf::{BLOCK, Buf},
    device::{Command, Completion, Geometry, Status, ZonedDevice, Zones, Zrwa},
    raid::policy::Policy,
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use sim::simulator::command_queue::{Bay, CommandQueue};
use std::{cell::Cell, rc::Rc};

const FACTOR: u32 = 4;

/// Zones of 32 blocks with ZRWAs of 4 blocks in granules of 2: a scaled-down PM1731a.
fn small() -> Geometry {
    Geometry {
        zones: 26,
        zone_size_blocks: 32,
        zone_capacity_blocks: 32,
        max_open: 16,
        max_active: 16,
        zrwa: Some(Zrwa { size_blocks: 4, granularity_blocks: 2, max_zones: 16 }),
        oob_bytes: 64,
        max_transfer_blocks: 32,
        max_append_blocks: 32,
        volatile_cache: false,
    }
}

/// A drive with a command queue under the control of the test, and its aggregated zones.
struct Rig {
    runtime: Runtime,
    command_queue: Rc<CommandQueue>,
    bay: Bay,
    device: AggregateDevice,
}

impl Rig {
    fn new() -> Rig {
        let command_queue = Rc::new(CommandQueue::default());
        let bay = command_queue.insert(Ssd::in_memory(&small()));
        Rig::of(command_queue, bay)
    }

    fn of(command_queue: Rc<CommandQueue>, bay: Bay) -> Rig {
        let runtime = Runtime::new();
        let device = AggregateDevice::new(&runtime, Rc::new(command_queue.drive(bay)), FACTOR).unwrap();
        Rig { runtime, command_queue, bay, device }
    }

    fn submit(&self, command: Command) -> engine::device::Done {
        let command_queue = self.command_queue.clone();
        let idle = || {
            let waits = command_queue.queued() + command_queue.executed() > 0;
            command_queue.run_all();
            waits
        };
        self.runtime.block_on(self.device.submit(command), idle).unwrap()
    }

    fn zone(&self) -> ZoneInfo {
        self.submit(Command::Report { first: ZoneIndex(0), count: 1 }).zones[0]
    }

    /// Opens zone 0 with a ZRWA and fills it.
    fn filled() -> Rig {
        let rig = Rig::new();
        let zones = Zones::One(ZoneIndex(0));
        assert_eq!(rig.submit(Command::Open { zones, zrwa: true }).result, Ok(()));
        for at in [12, 0] {
            assert_eq!(rig.submit(blocks(at, if at == 0 { 12 } else { 4 })).result, Ok(()));
        }
        rig
    }

    /// Checks that zone 0 holds the data that `filled` has written.
    fn check_filled(&self) {
        for from in [0, 8] {
            let (data, oob) = (Buf::zeroed(8 * BLOCK), Buf::zeroed(8 * 64));
            let done = self.submit(Command::Read { lba: Lba(from), data, oob });
            assert_eq!(done.result, Ok(()));
            for block in 0..8 {
                let at = (from + block as u64) as u8;
                let found = (done.data[block * BLOCK], done.oob[block * 64]);
                assert_eq!(found, (at + 1, at ^ 0x55));
            }
        }
    }
}

fn blocks(at: u64, count: u64) -> Command {
    let data: Vec<u8> = (at..at + count).flat_map(|at| [at as u8 + 1; BLOCK]).collect();
    let oob: Vec<u8> = (at..at + count).flat_map(|at| [at as u8 ^ 0x55; 64]).collect();
    Command::Write { lba: Lba(at), data: Buf::copy_of(&data), oob: Buf::copy_of(&oob), fua: false }
}

fn flush(to: u64) -> Command {
    Command::FlushZrwa { last: Lba(to - 1) }
}

#[test]
fn aggregate_reads_across_parts_and_divides_limits() {
    let rig = Rig::filled();
    rig.check_filled();
    assert_eq!(rig.device.geometry().zones, 6);
    assert_eq!(rig.device.geometry().max_open, 4);
    assert_eq!(rig.device.geometry().zrwa.unwrap().size_blocks, 16);
    assert_eq!(rig.submit(blocks(126, 4)).result, Err(Status::ZoneBoundaryError.into()));
    assert_eq!(rig.submit(flush(6)).result, Ok(()));
    assert_eq!(rig.submit(flush(4)).result, Err(Status::ZoneBoundaryError.into()));
    let zone = rig.zone();
    assert_eq!((zone.state, zone.wp_blocks, zone.zrwa), (ZoneState::ExplicitlyOpen, 6, true));
    // Blocks 4 and 5 are committed and cannot be overwritten; the blocks from 6 on can be.
    assert_eq!(rig.submit(blocks(4, 2)).result, Err(Status::ZoneInvalidWrite.into()));
    assert_eq!(rig.submit(blocks(6, 9)).result, Ok(()));
    assert_eq!(rig.submit(Command::Finish { zones: Zones::One(ZoneIndex(0)) }).result, Ok(()));
    assert_eq!((rig.zone().state, rig.zone().wp_blocks), (ZoneState::Full, 128));
    assert_eq!(rig.submit(Command::Reset { zones: Zones::One(ZoneIndex(0)) }).result, Ok(()));
    assert_eq!((rig.zone().state, rig.zone().wp_blocks), (ZoneState::Empty, 0));
}

/// Executes and completes up to `commands` queued commands, one by one.
fn advance(rig: &Rig, commands: usize) {
    for _ in 0..commands {
        rig.runtime.run();
        if rig.command_queue.queued() > 0 {
            rig.command_queue.execute_now(0, false);
            rig.command_queue.deliver(0);
        }
    }
}

/// Drops the queued commands, and cuts the power or shuts the drive down in an orderly way.
fn end(rig: Rig, shutdown: bool, cut: Cut) -> Rig {
    let (Rig { command_queue, bay, .. }, rng) = (rig, &mut Rng::new(1));
    command_queue.drop_queued();
    match shutdown {
        true => command_queue.shut_down(rng).unwrap(),
        false => command_queue.power_cut(rng, |_| cut).unwrap(),
    }
    Rig::of(command_queue, bay)
}

/// Cuts the power, or shuts the drive down, after `executed` commands of a flush, and again during its repair.
fn interrupted(executed: usize, shutdown: bool, again: usize, shutdown_again: bool) {
    let rig = Rig::filled();
    let flushing = rig.device.submit(flush(10));
    advance(&rig, executed);
    drop(flushing);
    let mut rig = end(rig, shutdown, Cut::default());
    if shutdown && executed == 0 {
        // No part has moved its write pointer: all parts are empty, and the zone has to be opened again.
        assert_eq!((rig.zone().state, rig.zone().zrwa), (ZoneState::Empty, false));
        return rig.check_filled();
    }
    let wp = if executed == 0 { 0 } else { 10 };
    assert_eq!((rig.zone().wp_blocks, rig.zone().zrwa), (wp, true), "{executed} executed");
    if again > 0 {
        let write = rig.device.submit(blocks(12, 4));
        advance(&rig, again);
        drop(write);
        rig = end(rig, shutdown_again, Cut::default());
        if wp > 0 || !shutdown_again {
            assert_eq!((rig.zone().wp_blocks, rig.zone().zrwa), (wp, true));
        }
    }
    rig.check_filled();
    if wp > 0 || !shutdown_again {
        assert_eq!(rig.submit(blocks(12, 4)).result, Ok(()));
        assert_eq!(rig.submit(flush(16)).result, Ok(()));
        assert_eq!(rig.zone().wp_blocks, 16);
        rig.check_filled();
        // Blocks below the write pointer are no longer in a ZRWA.
        end(rig, false, Cut { cache_lost: false, zrwa_lost: true }).check_filled();
    }
}

#[test]
fn aggregate_interrupted_zrwa_flush_is_atomic() {
    for (executed, again) in (0..4).flat_map(|executed| (0..40).map(move |again| (executed, again))) {
        for ends in [[false, false], [false, true], [true, false], [true, true]] {
            interrupted(executed, ends[0], again, ends[1]);
        }
    }
}

/// An interrupted finish can be repeated, and loses no data.
#[test]
fn aggregate_interrupted_finish_can_be_repeated() {
    let finish = Command::Finish { zones: Zones::One(ZoneIndex(0)) };
    for (shutdown, wp) in [false, true].into_iter().flat_map(|ends| [0, 6, 10].map(|wp| (ends, wp))) {
        for executed in 1..=2 * FACTOR as usize {
            let rig = Rig::filled();
            if wp > 0 {
                assert_eq!(rig.submit(flush(wp)).result, Ok(()));
            }
            let finishing = rig.device.submit(finish.clone());
            advance(&rig, executed);
            drop(finishing);
            let rig = end(rig, shutdown, Cut::default());
            let what = format!("{wp} blocks flushed, {executed} executed, shut down: {shutdown}");
            assert_eq!(rig.submit(finish.clone()).result, Ok(()), "{what}");
            assert_eq!(rig.zone().state, ZoneState::Full, "{what}");
            rig.check_filled();
        }
    }
}

/// After a finish that has failed on one part, the next one begins anew with the write pointers, and loses no data if
/// it is interrupted.
#[test]
fn aggregate_failed_finish_can_be_repeated() {
    let finish = Command::Finish { zones: Zones::One(ZoneIndex(0)) };
    for (shutdown, kind) in
        [false, true].into_iter().flat_map(|e| [Kind::FlushZrwa, Kind::Finish].map(|k| (e, k)))
    {
        for executed in 1..=3 * FACTOR as usize {
            let rig = Rig::filled();
            rig.command_queue.ssd(rig.bay).faults().after(0, Fault::Fail { kind, late: false });
            assert!(rig.submit(finish.clone()).result.is_err());
            let finishing = rig.device.submit(finish.clone());
            advance(&rig, executed);
            drop(finishing);
            let rig = end(rig, shutdown, Cut::default());
            let what = format!("{kind:?} failed, {executed} executed, shut down: {shutdown}");
            assert_eq!(rig.submit(finish.clone()).result, Ok(()), "{what}");
            assert_eq!(rig.zone().state, ZoneState::Full, "{what}");
            rig.check_filled();
        }
    }
}

/// With a new ZRWA, the blocks that could not be copied would read as zeros.
#[test]
fn aggregate_unreadable_part_gets_no_new_zrwa() {
    let rig = Rig::filled();
    let flushing = rig.device.submit(flush(10));
    advance(&rig, 1);
    drop(flushing);
    let rig = end(rig, true, Cut::default());
    // The write pointer of the second part has not moved.
    rig.command_queue.ssd(rig.bay).faults().after(0, Fault::Unreadable(Lba(32)));
    let result = rig.submit(blocks(12, 4)).result;
    assert_eq!(result, Err(Status::UnrecoveredReadError.into()));
}

#[test]
fn create_chooses_aggregate_factor_for_chunk_size() {
    let aggregate = |geometry: &Geometry, chunk_blocks| {
        let runtime = Runtime::new();
        let drives = drives(3, geometry);
        run(&runtime, Array::create(&runtime, options(chunk_blocks), drives.clone())).unwrap();
        run(&runtime, examine(&runtime, &drives[0])).unwrap().superblock.aggregate
    };
    // ZRAID §6.5: four zones of a PM1731a for chunks of 64 KiB.
    assert_eq!(aggregate(&Model::pm1731a().scaled(48, 1024).geometry, 16), 4);
    assert_eq!(aggregate(&Model::zn540().scaled(24, 4096).geometry, 16), 1);
}

#[test]
fn aggregated_array_assembles_degraded_and_rebuilds_new_drive() {
    let geometry = Geometry { zones: 40, zone_capacity_blocks: 64, zone_size_blocks: 64, ..small() };
    let other = |name: &str, geometry: &Geometry| Drive {
        name: name.into(),
        device: Rc::new(EmulatedDrive::in_memory(geometry)),
    };
    for missing in 0..4 {
        let mut all = drives(4, &geometry);
        let runtime = Runtime::new();
        let array = run(&runtime, Array::create(&runtime, options(4), all.clone())).unwrap();
        write(&runtime, &array, 0, 0, 31, true);
        write(&runtime, &array, 1, 0, 5, true);
        runtime.clear();
        all.remove(missing);
        let runtime = Runtime::new();
        let array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
        check(&runtime, &array, 0, 31);
        check(&runtime, &array, 1, 5);
        let unfit = other("unfit", &Geometry { zone_capacity_blocks: 62, ..geometry.clone() });
        let refused = run(&runtime, array.attach(missing, unfit)).unwrap_err().to_string();
        assert_eq!(
            refused,
            "unfit: this array aggregates 4 zones of a drive into one, which the geometry of this drive does \
             not allow"
        );
        run(&runtime, array.attach(missing, other("blank", &geometry))).unwrap();
        run(&runtime, array.rebuild(&|_| ())).unwrap();
        check(&runtime, &array, 0, 31);
        check(&runtime, &array, 1, 5);
        runtime.clear();
    }
}

/// Active zones that no aggregate contains would leave the drive too few for a rebuild.
#[test]
fn used_drive_is_emptied_beyond_its_last_aggregate() {
    let geometry = Geometry { zones: 42, ..larger() };
    let rest = geometry.zones / FACTOR * FACTOR..geometry.zones;
    let runtime = Runtime::new();
    let used = drives(6, &geometry);
    let states = |drive: &Drive| -> Vec<ZoneState> {
        let report = Command::Report { first: ZoneIndex(rest.start), count: rest.len() as u32 };
        let done = run(&runtime, drive.device.submit(report));
        assert_eq!((done.result, done.zones.len()), (Ok(()), rest.len()));
        done.zones.iter().map(|info| info.state).collect()
    };
    let empty = vec![ZoneState::Empty; rest.len()];
    for drive in &used {
        for zone in rest.clone().map(ZoneIndex) {
            let opened = Command::Open { zones: Zones::One(zone), zrwa: true };
            assert_eq!(run(&runtime, drive.device.submit(opened)).result, Ok(()));
        }
        assert_ne!(states(drive), empty);
    }
    let array = run(&runtime, Array::create(&runtime, options(4), used[..4].to_vec())).unwrap();
    assert_eq!(run(&runtime, examine(&runtime, &used[0])).unwrap().superblock.aggregate, FACTOR);
    write(&runtime, &array, 0, 0, 31, true);
    run(&runtime, array.fail(0)).unwrap();
    run(&runtime, array.attach(0, used[4].clone())).unwrap();
    run(&runtime, array.rebuild(&|_| ())).unwrap();
    run(&runtime, array.replace(1, used[5].clone(), &|_| ())).unwrap();
    for drive in &used {
        assert_eq!(states(drive), empty, "{}", drive.name);
    }
    check(&runtime, &array, 0, 31);
    runtime.clear();
}

fn larger() -> Geometry {
    Geometry { zones: 40, zone_capacity_blocks: 64, zone_size_blocks: 64, ..small() }
}

/// Interrupts the reopening of a member's zone. After an orderly shutdown, recovery opens the empty zone of a member
/// with ZRWAs again. The power is cut once `opened` parts of it are open, and the member loses the contents of its
/// ZRWAs: in this cut if `at_once`, otherwise in a second one. Returns `false` if the member's zone is not reopened.
fn zrwa_lost_while_reopened(member: usize, opened: usize, tail: u64, at_once: bool) -> bool {
    let command_queue = Rc::new(CommandQueue::default());
    let bays: Vec<Bay> = (0..4).map(|_| command_queue.insert(Ssd::in_memory(&larger()))).collect();
    let drives = || -> Vec<Drive> {
        bays.iter()
            .map(|b| Drive { name: format!("drive{b}"), device: Rc::new(command_queue.drive(*b)) })
            .collect()
    };
    let idle = || {
        let waits = command_queue.queued() + command_queue.executed() > 0;
        command_queue.run_all();
        waits
    };
    let options = CreateOptions { policy: Some(Policy::Zrwa), ..options(4) };
    let rng = &mut Rng::new(1);
    let runtime = Runtime::new();
    let array = runtime.block_on(Array::create(&runtime, options, drives()), idle).unwrap().unwrap();
    let written = array.submit(write_command(&array, 0, 0, tail, true));
    assert_eq!(runtime.block_on(written, idle).unwrap().result, Ok(()));
    drop(array);
    runtime.clear();
    command_queue.shut_down(rng).unwrap();

    let runtime = Runtime::new();
    let (executor, offered) = (runtime.clone(), drives());
    runtime.spawn(async move { drop(Array::assemble(&executor, offered).await) });
    let mut left = opened;
    while left > 0 {
        runtime.run();
        if command_queue.queued() == 0 {
            runtime.clear();
            return false;
        }
        while left > 0 && command_queue.queued() > 0 {
            let event = command_queue.execute_now(0, true);
            left -= (event.bay == bays[member] && event.what.starts_with("open")) as usize;
        }
        while command_queue.executed() > 0 {
            command_queue.deliver(0);
        }
    }
    runtime.clear();
    command_queue.drop_queued();
    let lost = |bay| Cut { cache_lost: false, zrwa_lost: bay == bays[member] };
    if !at_once {
        command_queue.power_cut(rng, |_| Cut::default()).unwrap();
    }
    command_queue.power_cut(rng, lost).unwrap();

    let runtime = Runtime::new();
    let array = runtime.block_on(Array::assemble(&runtime, drives()), idle).unwrap().unwrap();
    let case = format!("member {member}, {opened} parts open, tail {tail}, at once: {at_once}");
    let read = array.submit(Command::read(Lba(0), Buf::zeroed(tail as usize * BLOCK)));
    let done = runtime.block_on(read, idle).unwrap();
    assert_eq!(done.result, Ok(()), "{case}");
    assert!(done.data[..] == pattern(0, tail), "{case}: not what was acknowledged");
    runtime.clear();
    true
}

#[test]
fn aggregate_zrwa_loss_during_reopen_is_detected() {
    let mut reopened = 0;
    for member in 0..4 {
        for opened in 1..=FACTOR as usize {
            for tail in [1, 2, 3, 5, 7, 8, 12, 13, 17, 23] {
                reopened += zrwa_lost_while_reopened(member, opened, tail, true) as u32;
                reopened += zrwa_lost_while_reopened(member, opened, tail, false) as u32;
            }
        }
    }
    assert!(reopened > 100, "{reopened}");
}

/// A drive that cannot read one block.
struct Scratched {
    drive: Rc<EmulatedDrive>,
    block: Rc<Cell<Option<Lba>>>,
}

impl ZonedDevice for Scratched {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        match (&command, self.block.get()) {
            (Command::Read { lba, data, .. }, Some(bad))
                if (lba.0..lba.0 + data.blocks()).contains(&bad.0) =>
            {
                Completion::failed(Status::UnrecoveredReadError)
            }
            _ => self.drive.submit(command),
        }
    }
}

#[test]
fn aggregate_unreadable_block_degrades_only_its_zone() {
    for present in [4, 3] {
        let raw: Vec<_> = (0..4).map(|_| Rc::new(EmulatedDrive::in_memory(&larger()))).collect();
        let block = Rc::new(Cell::new(None));
        let drives = |count: usize| -> Vec<Drive> {
            let sound = Rc::new(Cell::new(None));
            let drive = |i: usize| Drive {
                name: format!("drive{i}"),
                device: Rc::new(Scratched {
                    drive: raw[i].clone(),
                    block: if i == 0 { block.clone() } else { sound.clone() },
                }),
            };
            (0..count).map(drive).collect()
        };
        let options = CreateOptions { policy: Some(Policy::Zrwa), ..options(4) };
        let runtime = Runtime::new();
        let array = run(&runtime, Array::create(&runtime, options, drives(4))).unwrap();
        write(&runtime, &array, 0, 0, 8, true);
        write(&runtime, &array, 0, 8, 1, true);
        runtime.clear();
        // In the last part of the first data zone.
        block.set(Some(Lba(11 * 64 + 3)));
        for readable in [false, true] {
            let runtime = Runtime::new();
            let array = run(&runtime, Array::assemble(&runtime, drives(present))).unwrap();
            check(&runtime, &array, 0, 9);
            let states: Vec<_> = array.status().members.iter().map(|member| member.state).collect();
            let others = &states[1..present];
            assert!(others.iter().all(|state| *state == MemberState::Active), "{states:?}");
            // With another member missing, this member cannot be left out, and the zone cannot be written for now.
            let data = Buf::copy_of(&pattern(9, 3));
            let done = run(&runtime, array.submit(Command::write(Lba(9), data, true)));
            let stuck = present == 3 && !readable;
            assert_eq!(done.result, if stuck { Err(Status::ZoneIsReadOnly.into()) } else { Ok(()) });
            assert_eq!(states[0], if present == 4 { MemberState::Rebuilding } else { MemberState::Active });
            runtime.clear();
            if !stuck {
                break;
            }
            block.set(None);
        }
    }
}

/// Foreign data is looked for in the zones as the drive would use them as a member, aggregated or not.
#[test]
fn assemble_omits_foreign_drive_with_empty_metadata_zones() {
    let plain = Geometry { zone_capacity_blocks: 256, zone_size_blocks: 256, ..geometry(24, 256, 5) };
    for (geometry, zones) in [(plain, [2, 4, 8, 16]), (larger(), [1, 8, 16, 32])] {
        for zone in zones {
            let runtime = Runtime::new();
            let mut all = drives(5, &geometry);
            let array = run(&runtime, Array::create(&runtime, options(4), all[..4].to_vec())).unwrap();
            write(&runtime, &array, 0, 0, 5, true);
            runtime.clear();
            let used = all.pop().unwrap();
            let lba = geometry.start(ZoneIndex(zone));
            let data = Buf::copy_of(&[7; BLOCK]);
            let done = run(&runtime, used.device.submit(Command::write(lba, data, true)));
            assert_eq!(done.result, Ok(()));
            all[3] = used;
            let array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
            check(&runtime, &array, 0, 5);
            runtime.clear();
        }
    }
}

#[test]
fn aggregate_finish_after_failed_one_moves_last_part_first() {
    let finish = Command::Finish { zones: Zones::One(ZoneIndex(0)) };
    for executed in 1..=3 * FACTOR as usize {
        let rig = Rig::filled();
        let fault = Fault::Fail { kind: Kind::FlushZrwa, late: false };
        rig.command_queue.ssd(rig.bay).faults().after(FACTOR as u64 - 1, fault);
        assert!(rig.submit(finish.clone()).result.is_err());
        let finishing = rig.device.submit(finish.clone());
        advance(&rig, executed);
        drop(finishing);
        let rig = end(rig, true, Cut::default());
        assert_eq!(rig.submit(finish.clone()).result, Ok(()), "{executed} executed");
        rig.check_filled();
    }
}
