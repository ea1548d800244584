//! Zones with checksum blocks, with any order of execution, any power cut, and wrong blocks.

use emu::{
    conformance::model,
    rng::Rng,
    ssd::{Cut, Fault as MediaFault, Ssd},
};
use engine::{
    adapt::{
        checksum::{ChecksumDevice, ChecksumUsage},
        sequence::Sequencer,
    },
    buf::{BLOCK, Buf},
    device::{BlockChecksums, Command, Completion, Done, Geometry, Status, ZonedDevice, Zones, Zrwa},
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use sim::simulator::command_queue::{Bay, CommandQueue};
use std::{cell::Cell, collections::VecDeque, ops::Range, rc::Rc};

/// Blocks of a drive's zone, and distance between the starts of zones.
const CAPACITY: u64 = 72;
const SIZE: u64 = 80;
/// Index of the zone under test.
const ZONE: u64 = 3;
const GROUPS: [u64; 7] = [1, 2, 4, 7, 16, 71, 1008];

struct Rig {
    runtime: Runtime,
    command_queue: Rc<CommandQueue>,
    bay: Bay,
    usage: ChecksumUsage,
    /// Data blocks, and checksum blocks, that are stored together.
    bundle: (u64, u64),
    epoch: Rc<Cell<u64>>,
    device: ChecksumDevice,
}

impl Rig {
    fn new(seed: u64, group_blocks: u64, volatile_cache: bool) -> Rig {
        Rig::with(seed, group_blocks, volatile_cache, None)
    }

    /// With zones that are written in their ZRWAs, if they have such.
    fn with(seed: u64, group_blocks: u64, volatile_cache: bool, zrwa: Option<Zrwa>) -> Rig {
        let (runtime, command_queue) = (Runtime::seeded(seed), Rc::new(CommandQueue::default()));
        let mut ssd = Ssd::in_memory(&Geometry {
            zrwa: zrwa.or(model().geometry.zrwa),
            zone_size_blocks: SIZE,
            zone_capacity_blocks: CAPACITY,
            max_transfer_blocks: 8,
            oob_bytes: 0,
            volatile_cache,
            ..model().geometry
        });
        if seed.is_multiple_of(5) {
            ssd.fail_unwritten();
        }
        let bay = command_queue.insert(ssd);
        let epoch = Rc::new(Cell::new(1));
        // Hardly any checksum block stays in memory.
        let usage = ChecksumUsage {
            group_blocks,
            in_zrwa: zrwa.is_some(),
            plain_zones: 2,
            member: [7; 16],
            cached_blocks: 1,
        };
        let device = open(&runtime, &command_queue, bay, usage, &epoch);
        let sums = zrwa.map_or(1, |zrwa| zrwa.granularity_blocks);
        Rig { runtime, command_queue, bay, usage, bundle: (group_blocks * sums, sums), epoch, device }
    }

    /// Executes or delivers one command of the drive; `false` if there is none.
    fn step(&self, rng: &mut Rng) -> bool {
        self.runtime.run();
        self.command_queue.run_one(rng)
    }

    fn finished(&self, rng: &mut Rng, command: Command) -> Done {
        let mut completion = self.device.submit(command);
        while self.step(rng) {}
        completion.take().unwrap()
    }

    /// A new process, after a power cut or a kill.
    fn begin_anew(&mut self, rng: &mut Rng, cut: bool) {
        match cut {
            true => self.command_queue.power_cut(rng, |_| Cut::default()).unwrap(),
            false => self.command_queue.kill(rng),
        }
        self.runtime.clear();
        self.runtime = Runtime::seeded(rng.below(1 << 32));
        self.device = open(&self.runtime, &self.command_queue, self.bay, self.usage, &self.epoch);
    }

    fn end(&self, rng: &mut Rng) -> u64 {
        let done = self.finished(rng, Command::Report { first: ZoneIndex(ZONE as u32), count: 1 });
        assert_eq!(done.result, Ok(()));
        let info = done.zones[0];
        assert_eq!(info.capacity_blocks, self.capacity());
        if info.state == ZoneState::Full { self.capacity() } else { info.wp_blocks }
    }

    /// Blocks of a zone as presented.
    fn capacity(&self) -> u64 {
        self.device.geometry().zone_capacity_blocks
    }

    /// Reads `blocks` blocks, and returns a byte of each, 0 of unwritten ones; `None` after an Unrecovered Read Error.
    fn read(&self, rng: &mut Rng, at: u64, blocks: u64) -> Option<Vec<u8>> {
        let read = Command::read(Lba(ZONE * SIZE + at), Buf::zeroed(blocks as usize * BLOCK));
        let done = self.finished(rng, read);
        match done.result {
            Ok(()) => Some(done.data.chunks(BLOCK).map(|block| block[7]).collect()),
            Err(error) if error == Status::DeallocatedBlock.into() => match blocks {
                1 => Some(vec![0]),
                // Some of them may be written.
                _ => (at..at + blocks).map(|at| Some(self.read(rng, at, 1)?[0])).collect(),
            },
            Err(error) => {
                assert_eq!(error, Status::UnrecoveredReadError.into());
                None
            }
        }
    }

    /// Checks the first blocks of the zone.
    fn check(&self, rng: &mut Rng, written: &[u8]) {
        let (mut at, end) = (0, written.len() as u64);
        while at < end {
            let blocks = (1 + rng.below(8)).min(end - at);
            let expected = &written[at as usize..(at + blocks) as usize];
            assert_eq!(self.read(rng, at, blocks).as_deref(), Some(expected), "block {at}");
            at += blocks;
        }
    }

    /// Address on the drive of block `at`.
    fn place(&self, at: u64) -> Lba {
        Lba(ZONE * SIZE + at + at / self.bundle.0 * self.bundle.1)
    }

    /// Whether reads of block `at` fail while it and the rest of its group, with the checksum block, are not written: all
    /// of these writes are lost.
    fn is_loss_noticed(&self, rng: &mut Rng, at: u64) -> bool {
        let group = self.bundle.0 + self.bundle.1;
        let Lba(from) = self.place(at);
        let to = ((from - ZONE * SIZE) / group * group + group).min(CAPACITY) + ZONE * SIZE;
        let stored = |lba| self.command_queue.ssd(self.bay).stored(Lba(lba)).unwrap();
        let right: Vec<_> = (from..to).map(stored).collect();
        (from..to).for_each(|lba| self.command_queue.ssd(self.bay).forge(Lba(lba), None).unwrap());
        // Other checksum blocks take the place in memory.
        (0..at / self.usage.group_blocks)
            .for_each(|group| _ = self.read(rng, group * self.usage.group_blocks, 1));
        let is_noticed = self.read(rng, at, 1).is_none();
        for (lba, bytes) in (from..to).zip(&right) {
            self.command_queue.ssd(self.bay).forge(Lba(lba), bytes.as_deref()).unwrap();
        }
        is_noticed
    }

    /// Whether reads of block `at` fail while it is wrong: flipped, unwritten, or another block.
    fn is_noticed(&self, rng: &mut Rng, at: u64) -> bool {
        let (lba, other) = (self.place(at), Lba(ZONE * SIZE + rng.below(CAPACITY)));
        let stored = |lba| self.command_queue.ssd(self.bay).stored(lba).unwrap();
        let (Some(right), other) = (stored(lba), stored(other)) else { panic!("block {at} is not written") };
        let mut flipped = right.clone();
        flipped[rng.below(BLOCK as u64) as usize] ^= 1 << rng.below(8);
        let wrong = match rng.below(3) {
            0 => None,
            1 => other.filter(|other| *other != right),
            _ => Some(flipped),
        };
        self.command_queue.ssd(self.bay).forge(lba, wrong.as_deref()).unwrap();
        let is_noticed = self.read(rng, at, 1).is_none();
        self.command_queue.ssd(self.bay).forge(lba, Some(&right)).unwrap();
        is_noticed
    }
}

fn open(
    runtime: &Runtime,
    command_queue: &Rc<CommandQueue>,
    bay: Bay,
    usage: ChecksumUsage,
    epoch: &Rc<Cell<u64>>,
) -> ChecksumDevice {
    let mut drive: Rc<dyn ZonedDevice> = Rc::new(command_queue.drive(bay));
    if !usage.in_zrwa {
        drive = Rc::new(Sequencer::new(runtime, drive));
    }
    let device = ChecksumDevice::new(runtime, drive, usage).unwrap();
    let epoch = epoch.clone();
    device.set_epochs(Rc::new(move |_| epoch.get()));
    device
}

fn write(at: u64, content: &[u8]) -> Command {
    let data: Vec<u8> = content.iter().flat_map(|byte| [*byte; BLOCK]).collect();
    Command::write(Lba(ZONE * SIZE + at), Buf::copy_of(&data), false)
}

fn on_zone(command: fn(Zones) -> Command) -> Command {
    command(Zones::One(ZoneIndex(ZONE as u32)))
}

/// Writes a zone up to some block through many power cuts, with wrong blocks in between. Returns how many of these
/// were in last groups after a new start, and not noticed.
fn life(seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let mut rig = Rig::new(seed, GROUPS[seed as usize % GROUPS.len()], seed.is_multiple_of(3));
    let most = if rng.chance(1, 2) { rig.capacity() } else { rng.below(rig.capacity()) };
    let (mut written, mut cuts, mut unnoticed): (Vec<u8>, _, _) = (Vec::new(), rng.below(8), 0);
    while (written.len() as u64) < most {
        let mut pending: Vec<(u64, Completion)> = Vec::new();
        let mut complete = written.len() as u64;
        let mut left = if cuts > 0 { rng.below(60) } else { u64::MAX };
        while left > 0 && complete < most {
            left -= 1;
            let at = written.len() as u64;
            if rng.chance(1, 2) && at < most {
                let content: Vec<u8> =
                    (0..(1 + rng.below(8)).min(most - at)).map(|_| 1 + rng.below(255) as u8).collect();
                written.extend(&content);
                pending.push((written.len() as u64, rig.device.submit(write(at, &content))));
            } else {
                rig.step(&mut rng);
            }
            pending.retain_mut(|(end, completion)| match completion.take() {
                Some(done) => {
                    assert_eq!(done.result, Ok(()), "seed {seed}");
                    complete = complete.max(*end);
                    false
                }
                None => true,
            });
        }
        while pending.is_empty() && rig.step(&mut rng) {}
        if complete > 0 && pending.is_empty() {
            rig.check(&mut rng, &written);
            let (at, last) = (rng.below(complete), rig.device.unverified(ZoneIndex(ZONE as u32)));
            // Before the first write after a restart its checksum may not be known.
            assert!(rig.is_noticed(&mut rng, at) || last.contains(&at), "seed {seed}: block {at}");
        }
        if complete == most {
            break;
        }
        cuts -= 1;
        let (submitted, cut) = (written.len() as u64, rng.chance(1, 2));
        rig.begin_anew(&mut rng, cut);
        let end = rig.end(&mut rng);
        let least = if cut && seed.is_multiple_of(3) { 0 } else { complete };
        assert!((least..=submitted).contains(&end), "seed {seed}: {least} <= {end} <= {submitted}");
        written.truncate(end as usize);
        rig.check(&mut rng, &written);
        let last = rig.device.unverified(ZoneIndex(ZONE as u32));
        assert!(last.is_empty() || last.end == end && last.start.is_multiple_of(rig.bundle.0));
        assert!(last.end - last.start <= rig.bundle.0, "seed {seed}: {last:?}");
        if end > 0 {
            let at = rng.below(end);
            let is_noticed = rig.is_noticed(&mut rng, at);
            assert!(is_noticed || last.contains(&at), "seed {seed}: block {at}, {last:?}");
            unnoticed += !is_noticed as u64;
        }
    }
    // Finished, and read by a device without state in memory.
    assert_eq!(rig.finished(&mut rng, on_zone(|zones| Command::Finish { zones })).result, Ok(()));
    rig.begin_anew(&mut rng, true);
    assert_eq!(rig.end(&mut rng), rig.capacity());
    rig.check(&mut rng, &written);
    let at = rng.below(most.max(1));
    // A zero that is lost reads as zero.
    assert!(most == 0 || rig.is_noticed(&mut rng, at), "seed {seed}: block {at} of a full zone");
    assert!(rig.is_loss_noticed(&mut rng, at), "seed {seed}: block {at} of a full zone, and those behind it");
    // Nothing was written behind the end, or at all.
    for at in most..rig.capacity() {
        assert_eq!(rig.read(&mut rng, at, 1), Some(vec![0]), "seed {seed}: block {at}, behind {most}");
    }
    unnoticed
}

#[test]
fn zone_with_checksum_blocks_fills_through_power_cuts_and_notices_wrong_blocks() {
    let unnoticed: u64 = (0..1500).map(life).sum();
    assert!(unnoticed > 100, "only the restart loses checksums: {unnoticed}");
}

/// Writes a zone in its ZRWA, blocks several times, through many power cuts, with wrong blocks in between. Returns how
/// many of these were in last bundles after a new start, and not noticed.
fn life_in_zrwa(seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let granularity_blocks = *rng.pick(&[1, 2, 4]);
    let size_blocks = granularity_blocks * (2 + rng.below(5));
    let zrwa = Zrwa { size_blocks, granularity_blocks, max_zones: 2 };
    let window = size_blocks - granularity_blocks;
    let group_blocks = window / granularity_blocks + rng.below(8);
    let mut rig = Rig::with(seed, group_blocks, false, Some(zrwa));
    assert_eq!(rig.device.geometry().zrwa, Some(Zrwa { size_blocks: window, ..zrwa }));
    let zone = ZoneIndex(ZONE as u32);
    let most = rng.below(rig.capacity() + 1) / granularity_blocks * granularity_blocks;
    let open = |zones| Command::Open { zones, zrwa: true };
    assert_eq!(rig.finished(&mut rng, on_zone(open)).result, Ok(()));
    let mut content = vec![0; rig.capacity() as usize];
    let (mut wp, mut cuts, mut unnoticed) = (0, rng.below(8), 0);
    while wp < most {
        let mut pending: Vec<(Range<u64>, Completion)> = Vec::new();
        // Flushes in flight, to ever later blocks.
        let mut moving: VecDeque<(u64, Completion)> = VecDeque::new();
        let mut left = if cuts > 0 { rng.below(80) } else { u64::MAX };
        while left > 0 && wp < most {
            left -= 1;
            let end = (wp + window).min(most);
            match rng.below(4) {
                0 => {
                    let at = moving.back().map_or(wp, |(to, _)| *to) + rng.below(window);
                    let blocks = (1 + rng.below(4)).min(end.saturating_sub(at));
                    let range = at..at + blocks;
                    let is_busy =
                        |(other, _): &(Range<u64>, _)| other.start < range.end && range.start < other.end;
                    if blocks > 0 && !pending.iter().any(is_busy) {
                        let bytes: Vec<u8> = range.clone().map(|_| 1 + rng.below(255) as u8).collect();
                        content[at as usize..range.end as usize].copy_from_slice(&bytes);
                        pending.push((range, rig.device.submit(write(at, &bytes))));
                    }
                }
                // A flush waits for one that passes the end of a bundle; otherwise the drive may change their order.
                1 if moving.front().is_none_or(|(to, _)| *to / rig.bundle.0 > wp / rig.bundle.0) => {
                    let from = moving.back().map_or(wp, |(to, _)| *to);
                    let to = from + granularity_blocks * (1 + rng.below(window / granularity_blocks));
                    if to <= end && pending.iter().all(|(range, _)| range.start >= to) {
                        let last = Lba(ZONE * SIZE + to - 1);
                        moving.push_back((to, rig.device.submit(Command::FlushZrwa { last })));
                    }
                }
                _ => _ = rig.step(&mut rng),
            }
            pending.retain_mut(|(_, completion)| match completion.take() {
                Some(done) => {
                    assert_eq!(done.result, Ok(()), "seed {seed}");
                    false
                }
                None => true,
            });
            while let Some((to, completion)) = moving.front_mut()
                && let Some(done) = completion.take()
            {
                assert_eq!(done.result, Ok(()), "seed {seed}: a flush to {to}");
                wp = *to;
                moving.pop_front();
            }
        }
        let written: Vec<u64> = (0..wp).filter(|at| content[*at as usize] > 0).collect();
        if pending.is_empty() && moving.is_empty() && !written.is_empty() {
            rig.check(&mut rng, &content[..wp as usize]);
            let (at, last) = (*rng.pick(&written), rig.device.unverified(zone));
            assert!(rig.is_noticed(&mut rng, at) || last.contains(&at), "seed {seed}: block {at}");
        }
        if wp >= most {
            break;
        }
        cuts -= 1;
        let cut = rng.chance(1, 2);
        rig.begin_anew(&mut rng, cut);
        let end = rig.end(&mut rng);
        assert!(end == wp || moving.iter().any(|(to, _)| *to == end), "seed {seed}: {end} is not {wp}");
        wp = end;
        // Writes in flight may be missing.
        for range in pending.into_iter().map(|(range, _)| range) {
            for at in range {
                content[at as usize] = rig.read(&mut rng, at, 1).unwrap()[0];
            }
        }
        rig.check(&mut rng, &content[..wp as usize]);
        let (last, written) =
            (rig.device.unverified(zone), (0..wp).filter(|at| content[*at as usize] > 0).collect::<Vec<_>>());
        assert!(last.start.is_multiple_of(rig.bundle.0) && last.end <= wp + window, "seed {seed}: {last:?}");
        if !written.is_empty() {
            let at = *rng.pick(&written);
            let is_noticed = rig.is_noticed(&mut rng, at);
            assert!(is_noticed || last.contains(&at), "seed {seed}: block {at}, {last:?}");
            unnoticed += !is_noticed as u64;
        }
    }
    // Finished, and read by a device without state in memory.
    content[wp as usize..].fill(0);
    assert_eq!(rig.finished(&mut rng, on_zone(|zones| Command::Finish { zones })).result, Ok(()));
    rig.begin_anew(&mut rng, true);
    assert_eq!(rig.end(&mut rng), rig.capacity());
    rig.check(&mut rng, &content);
    for at in (0..wp).filter(|at| content[*at as usize] > 0) {
        assert!(rig.is_noticed(&mut rng, at), "seed {seed}: block {at} of a full zone");
    }
    unnoticed
}

#[test]
fn zone_with_checksum_blocks_is_written_in_its_zrwa_and_notices_wrong_blocks() {
    let unnoticed: u64 = (0..1500).map(life_in_zrwa).sum();
    assert!(unnoticed > 100, "only the restart loses checksums: {unnoticed}");
}

/// Blocks of an earlier life of a zone, with their checksum blocks, are wrong in the next one.
#[test]
fn earlier_life_of_zone_is_noticed_as_a_whole() {
    for group_blocks in GROUPS {
        let (mut rng, mut rig) = (Rng::new(1), Rig::new(1, group_blocks, false));
        let mut lives = Vec::new();
        for life in 1..3 {
            rig.epoch.set(life);
            assert_eq!(rig.finished(&mut rng, on_zone(|zones| Command::Reset { zones })).result, Ok(()));
            assert_eq!(rig.finished(&mut rng, write(0, &[life as u8; 8])).result, Ok(()));
            assert_eq!(rig.finished(&mut rng, on_zone(|zones| Command::Finish { zones })).result, Ok(()));
            let stored = |at| rig.command_queue.ssd(rig.bay).stored(Lba(ZONE * SIZE + at)).unwrap();
            lives.push((0..CAPACITY).map(stored).collect::<Vec<_>>());
        }
        rig.check(&mut rng, &[2; 8]);
        for (at, old) in (0..CAPACITY).zip(&lives[0]) {
            rig.command_queue.ssd(rig.bay).forge(Lba(ZONE * SIZE + at), old.as_deref()).unwrap();
        }
        rig.begin_anew(&mut rng, true);
        for at in 0..8 {
            assert_eq!(rig.read(&mut rng, at, 1), None, "block {at}, groups of {group_blocks}");
        }
    }
}

/// The checksums that another device has kept make the last group verified again.
#[test]
fn restored_checksums_verify_last_group() {
    let (mut rng, mut rig) = (Rng::new(1), Rig::new(1, 16, false));
    let zone = ZoneIndex(ZONE as u32);
    assert_eq!(rig.finished(&mut rng, write(0, &[3; 8])).result, Ok(()));
    let (from, sums) = rig.device.last_sums(zone).unwrap();
    rig.begin_anew(&mut rng, false);
    assert_eq!((rig.end(&mut rng), rig.device.unverified(zone)), (8, 0..8));
    assert!(!rig.is_noticed(&mut rng, 5));
    rig.device.set_unverified(zone, from, &sums);
    assert_eq!(rig.device.unverified(zone), 0..0);
    assert!(rig.is_noticed(&mut rng, 5));
    // Known checksums are not replaced.
    rig.device.set_unverified(zone, from, &[9; 8]);
    rig.check(&mut rng, &[3; 8]);
}

/// A command that the device below would not carry out in order, or that would leave a group without its checksums.
#[test]
fn unsupported_commands_are_refused() {
    let (mut rng, rig) = (Rng::new(1), Rig::new(1, 16, false));
    let zone = ZoneIndex(ZONE as u32);
    let refused = |rng: &mut Rng, command| rig.finished(rng, command).result.unwrap_err();
    let append = Command::append(zone, Buf::zeroed(BLOCK), false);
    assert_eq!(refused(&mut rng, append), Status::InvalidOpcode.into());
    let finish = Command::Finish { zones: Zones::All };
    assert_eq!(refused(&mut rng, finish), Status::InvalidField.into());
    assert_eq!(refused(&mut rng, write(1, &[1])), Status::ZoneInvalidWrite.into());
    let beyond = write(rig.capacity() - 1, &[1, 1]);
    assert!(rig.finished(&mut rng, beyond).result.is_err());
    let read = Command::read(Lba(ZONE * SIZE + rig.capacity()), Buf::zeroed(BLOCK));
    assert_eq!(refused(&mut rng, read), Status::ZoneBoundaryError.into());
    let small = Geometry { zone_capacity_blocks: 1, ..model().geometry };
    assert!(ChecksumDevice::geometry_of(&small, 16, false).is_none());
    assert!(ChecksumDevice::geometry_of(&model().geometry, 0, false).is_none());
    assert!(ChecksumDevice::geometry_of(&model().geometry, 1009, false).is_none());
}

/// While a checksum block is not written yet, and after its write has failed, the blocks of its group can be read.
#[test]
fn group_is_verified_while_its_checksum_block_is_not_written() {
    for fails in [false, true] {
        let (mut rng, rig) = (Rng::new(1), Rig::new(1, 4, false));
        assert_eq!(rig.finished(&mut rng, write(0, &[1, 2, 3, 4, 5, 6, 7])).result, Ok(()));
        let mut pending = rig.device.submit(write(7, &[8]));
        // The block is written, and the checksum block is in the queue.
        rig.runtime.run();
        rig.command_queue.execute_now(0, false);
        rig.command_queue.deliver(0);
        rig.runtime.run();
        assert!(pending.take().is_none() && rig.command_queue.queued() == 1);
        if fails {
            let zone = ZoneIndex(ZONE as u32);
            rig.command_queue.ssd(rig.bay).faults().after(0, MediaFault::ReadOnly(zone));
            while rig.step(&mut rng) {}
            assert!(pending.take().unwrap().result.is_err());
        }
        for at in [1, 5, 0, 7] {
            let mut read = rig.device.submit(Command::read(Lba(ZONE * SIZE + at), Buf::zeroed(BLOCK)));
            rig.runtime.run();
            // All reads, but not the checksum block.
            while rig.command_queue.queued() > usize::from(!fails) {
                rig.command_queue.execute_now(usize::from(!fails), false);
                rig.command_queue.deliver(0);
                rig.runtime.run();
            }
            let done = read.take().unwrap();
            assert_eq!((done.result, done.data[7]), (Ok(()), 1 + at as u8), "block {at}, {fails}");
        }
    }
}
