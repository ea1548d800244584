//! The sequencer: sequential writes on drives that reorder commands, with few commands.

use emu::{
    conformance::{
        Action::{Offline, ReadOnly},
        ROWS, command, model,
    },
    rng::Rng,
    ssd::{Cut, EmulatedDrive, Fault as MediaFault, Ssd},
};
use engine::{
    adapt::sequence::Sequencer,
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Done, Geometry, Status, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use sim::simulator::command_queue::{Bay, CommandQueue, Fault};
use std::rc::Rc;

/// Blocks of a zone, all of them writable.
const SIZE: u64 = 64;

/// A drive that executes queued commands in any order, behind a sequencer.
struct Rig {
    runtime: Runtime,
    command_queue: Rc<CommandQueue>,
    bay: Bay,
    bare: Rc<dyn ZonedDevice>,
    sequencer: Sequencer,
}

fn rig(seed: u64) -> Rig {
    let geometry = Geometry { zone_capacity_blocks: SIZE, max_transfer_blocks: 8, ..model().geometry };
    let (runtime, command_queue) = (Runtime::seeded(seed), Rc::new(CommandQueue::default()));
    let bay = command_queue.insert(Ssd::in_memory(&geometry));
    let bare: Rc<dyn ZonedDevice> = Rc::new(command_queue.drive(bay));
    let sequencer = Sequencer::new(&runtime, bare.clone());
    Rig { runtime, command_queue, bay, bare, sequencer }
}

impl Rig {
    /// Executes and completes all commands, in a random order.
    fn settle(&self, rng: &mut Rng) {
        self.runtime.run();
        while self.command_queue.run_one(rng) {
            self.runtime.run();
        }
    }
}

/// A write; its data and metadata identify the block and the life of its zone.
fn write(zone: u64, at: u64, blocks: u64, life: u8, fua: bool) -> Command {
    let range = at..at + blocks;
    let data: Vec<u8> = range.clone().flat_map(|at| vec![life ^ at as u8; BLOCK]).collect();
    let oob: Vec<u8> = range.flat_map(|at| [life ^ at as u8 ^ 0x55; 64]).collect();
    Command::Write { lba: Lba(zone * SIZE + at), data: Buf::copy_of(&data), oob: Buf::copy_of(&oob), fua }
}

fn take(completion: &mut Completion) -> Done {
    completion.take().unwrap()
}

/// Submits writes, resets and finishes of three zones without waiting, and then reads and checks the result. Returns
/// the first error.
fn storm(rig: &Rig, device: &dyn ZonedDevice, rng: &mut Rng) -> Result<(), DeviceError> {
    let (mut ends, mut lives) = ([0; 3], [1; 3]);
    let mut completions = Vec::new();
    for _ in 0..60 {
        let zone = rng.below(3);
        let (end, life) = (&mut ends[zone as usize], &mut lives[zone as usize]);
        let blocks = (1 + rng.below(4)).min(SIZE - *end);
        let zones = Zones::One(ZoneIndex(zone as u32));
        completions.push(device.submit(match rng.below(12) {
            0 => {
                (*end, *life) = (0, *life + 1);
                Command::Reset { zones }
            }
            1 if *end > 0 => {
                *end = SIZE;
                Command::Finish { zones }
            }
            _ if blocks == 0 => continue,
            _ => {
                *end += blocks;
                write(zone, *end - blocks, blocks, *life, rng.chance(1, 4))
            }
        }));
    }
    rig.settle(rng);
    completions.iter_mut().try_for_each(|completion| take(completion).result)?;
    for zone in 0..3 {
        let mut found = Vec::new();
        for at in (0..SIZE).step_by(8) {
            let (lba, data) = (Lba(zone * SIZE + at), Buf::zeroed(8 * BLOCK));
            let mut read = device.submit(Command::Read { lba, data, oob: Buf::zeroed(8 * 64) });
            rig.settle(rng);
            let done = take(&mut read);
            found.extend((0..8).map(|b| (done.data[b * BLOCK], done.oob[b * 64])));
        }
        let (end, life) = (ends[zone as usize], lives[zone as usize]);
        let written = found.iter().take_while(|found| **found != (0, 0)).count();
        assert!(written as u64 == end || end == SIZE, "{written} of {end}");
        for (at, found) in found.iter().enumerate().take(written) {
            assert_eq!(*found, (life ^ at as u8, life ^ at as u8 ^ 0x55), "block {at} of zone {zone}");
        }
    }
    Ok(())
}

#[test]
fn sequencer_keeps_order_on_reordering_drive() {
    let mut confused = 0;
    for seed in 0..200 {
        let rig = rig(seed);
        assert_eq!(storm(&rig, &rig.sequencer, &mut Rng::new(seed)), Ok(()), "seed {seed}");
        let rig = self::rig(seed);
        confused += storm(&rig, &*rig.bare, &mut Rng::new(seed)).is_err() as u32;
    }
    assert!(confused > 190, "the drive is hardly out of order: {confused}");
}

#[test]
fn sequencer_merges_queued_consecutive_writes() {
    let (rig, mut rng) = (rig(1), Rng::new(1));
    let mut completions: Vec<_> =
        (0..20).map(|at| rig.sequencer.submit(write(0, at, 1, 7, at == 5))).collect();
    let other = write(1, 0, 1, 7, false);
    completions.push(rig.sequencer.submit(other));
    assert_eq!(rig.command_queue.queued(), 2, "one of each zone is in flight");
    rig.settle(&mut rng);
    // The first write, 19 blocks in commands of 8, and the write of the other zone.
    assert_eq!(rig.command_queue.commands(), 5);
    for (at, completion) in completions.iter_mut().enumerate().take(20) {
        let done = take(completion);
        assert_eq!((done.result, done.data[0], done.oob[0]), (Ok(()), 7 ^ at as u8, 7 ^ at as u8 ^ 0x55));
    }
}

#[test]
fn sequencer_never_merges_nonconsecutive_writes() {
    let (rig, mut rng) = (rig(4), Rng::new(4));
    let mut completions = [0, 1, 5].map(|at| rig.sequencer.submit(write(0, at, 1, 7, false)));
    rig.settle(&mut rng);
    let results = completions.each_mut().map(|completion| take(completion).result);
    assert_eq!(results, [Ok(()), Ok(()), Err(Status::ZoneInvalidWrite.into())]);
}

#[test]
fn sequencer_merged_write_keeps_fua_of_any_part() {
    let geometry = Geometry { volatile_cache: true, ..model().geometry };
    let (runtime, command_queue, mut rng) = (Runtime::new(), Rc::new(CommandQueue::default()), Rng::new(5));
    let bay = command_queue.insert(Ssd::in_memory(&geometry));
    let sequencer = Sequencer::new(&runtime, Rc::new(command_queue.drive(bay)));
    let mut completions = [0, 1, 2].map(|at| sequencer.submit(write(0, at, 1, 7, at == 2)));
    runtime.run();
    while command_queue.queued() + command_queue.executed() > 0 {
        command_queue.run_all();
        runtime.run();
    }
    completions.iter_mut().for_each(|completion| assert_eq!(take(completion).result, Ok(())));
    assert_eq!(command_queue.commands(), 2);
    command_queue.power_cut(&mut rng, |_| Cut { cache_lost: true, zrwa_lost: false }).unwrap();
    let read = Command::Read { lba: Lba(2), data: Buf::zeroed(BLOCK), oob: Buf::zeroed(64) };
    let mut found = command_queue.drive(bay).submit(read);
    command_queue.run_all();
    assert_eq!(take(&mut found).data[0], 7 ^ 2);
}

#[test]
fn sequencer_passes_single_write_unchanged() {
    let runtime = Runtime::new();
    let drive = EmulatedDrive::in_memory(&model().geometry);
    let sequencer = Sequencer::new(&runtime, Rc::new(drive));
    let data = Buf::zeroed(BLOCK);
    let address = data.as_ptr();
    let done = runtime.block_on(sequencer.submit(Command::write(Lba(0), data, true)), || false).unwrap();
    assert_eq!((done.result, done.data.as_ptr()), (Ok(()), address));
}

#[test]
fn sequencer_error_fails_merged_and_following_writes() {
    let (rig, mut rng) = (rig(2), Rng::new(2));
    let mut completions: Vec<_> = (0..12).map(|at| rig.sequencer.submit(write(0, at, 1, 7, false))).collect();
    rig.command_queue.execute_now(0, false);
    rig.command_queue.set_fault(rig.bay, Fault::Write);
    rig.settle(&mut rng);
    let results: Vec<_> = completions.iter_mut().map(|completion| take(completion).result).collect();
    let fault = Err(Status::WriteFault.into());
    assert_eq!((results[0], &results[1..9]), (Ok(()), &[fault; 8][..]));
    assert_eq!(results[9..], [Err(Status::ZoneInvalidWrite.into()); 3]);
}

#[test]
fn sequencer_dropped_never_sends_queued_writes() {
    let (mut rig, mut rng) = (rig(3), Rng::new(3));
    let mut completions: Vec<_> = (0..3).map(|at| rig.sequencer.submit(write(0, at, 1, 7, false))).collect();
    rig.sequencer = Sequencer::new(&rig.runtime, rig.bare.clone());
    rig.settle(&mut rng);
    assert!(completions.iter_mut().skip(1).all(|c| take(c).result == Err(DeviceError::Gone)));
    assert_eq!(rig.command_queue.commands(), 1);
}

#[test]
fn sequencer_keeps_zone_rules_of_drive() {
    for &(name, before, step, result, zone, state, wp, zrwa) in ROWS {
        let runtime = Runtime::new();
        let drive = EmulatedDrive::in_memory(&model().geometry);
        let sequencer = Sequencer::new(&runtime, Rc::new(drive.clone()));
        let perform = |step| {
            match step {
                ReadOnly(zone) => {
                    drive.ssd().borrow_mut().faults().after(0, MediaFault::ReadOnly(ZoneIndex(zone)))
                }
                Offline(zone) => {
                    drive.ssd().borrow_mut().faults().after(0, MediaFault::Offline(ZoneIndex(zone)))
                }
                _ => (),
            }
            runtime.block_on(sequencer.submit(command(step)), || false).unwrap().result
        };
        for step in before {
            assert_eq!(perform(*step), Ok(()), "{name}: {step:?} comes before");
        }
        assert_eq!(perform(step), result.map_err(Into::into), "{name}");
        let info = drive.ssd().borrow().zones().info(ZoneIndex(zone));
        assert_eq!((info.state, info.wp_blocks, info.zrwa), (state, wp, zrwa), "{name}");
    }
}
