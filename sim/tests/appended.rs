//! Zones that are written sequentially and stored by zone appends, with any order of execution and any power cut.

use emu::{
    conformance::model,
    rng::Rng,
    ssd::{Cut, Fault as MediaFault, Ssd},
};
use engine::{
    adapt::append::{AppendDevice, GROUPS_BYTES, Usage},
    buf::{BLOCK, Buf},
    device::{Command, Completion, Done, Geometry, Status, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, UNKNOWN_WP, ZoneIndex, ZoneState},
};
use sim::simulator::command_queue::{Bay, CommandQueue, Fault};
use std::{cell::Cell, collections::BTreeSet, rc::Rc};

/// Usable blocks of a zone, and distance between the starts of zones.
const SHOWN: u64 = 64;
const SIZE: u64 = 80;
/// Index of the zone under test.
const ZONE: u64 = 3;
/// Owner of the blocks: the UUID of the member.
const MEMBER: [u8; 16] = [7; 16];

struct Rig {
    runtime: Runtime,
    command_queue: Rc<CommandQueue>,
    bay: Bay,
    usage: Usage,
    device: AppendDevice,
    /// Present epoch of all zones.
    epoch: Rc<Cell<u64>>,
}

fn drive() -> Geometry {
    Geometry {
        zone_size_blocks: SIZE,
        zone_capacity_blocks: SHOWN + 8,
        max_transfer_blocks: 8,
        max_append_blocks: 4,
        oob_bytes: 20,
        ..model().geometry
    }
}

fn rig(seed: u64, group_blocks: u64) -> Rig {
    let (runtime, command_queue) = (Runtime::seeded(seed), Rc::new(CommandQueue::default()));
    let capacity = if group_blocks == 1 { SHOWN } else { SHOWN + 8 };
    let bay = command_queue.insert(Ssd::in_memory(&Geometry { zone_capacity_blocks: capacity, ..drive() }));
    // Recommended memory for groups that are not being written, or memory for a single one.
    let groups_bytes = if seed.is_multiple_of(2) { GROUPS_BYTES } else { 0 };
    let checksums = group_blocks > 1 && (seed / 2).is_multiple_of(2);
    let usage = Usage { group_blocks, checksums, plain_zones: 2, member: MEMBER, groups_bytes };
    let device = AppendDevice::new(&runtime, Rc::new(command_queue.drive(bay)), usage).unwrap();
    assert_eq!(device.geometry().zone_capacity_blocks, SHOWN);
    let rig = Rig { runtime, command_queue, bay, usage, device, epoch: Rc::new(Cell::new(1)) };
    rig.set_epochs();
    rig
}

impl Rig {
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
        self.open();
    }

    /// Opens the device anew, without any state in memory.
    fn open(&mut self) {
        let drive = Rc::new(self.command_queue.drive(self.bay));
        self.device = AppendDevice::new(&self.runtime, drive, self.usage).unwrap();
        self.set_epochs();
    }

    fn set_epochs(&self) {
        let epoch = self.epoch.clone();
        if let Some(checksums) = self.device.checksums() {
            checksums.set_epochs(Rc::new(move |_| epoch.get()));
        }
    }

    fn end(&self, rng: &mut Rng) -> u64 {
        let done = self.finished(rng, Command::Report { first: ZoneIndex(ZONE as u32), count: 1 });
        assert_eq!(done.result, Ok(()));
        done.zones[0].wp_blocks
    }

    /// Reports and reads the zone while some adjacent blocks are unreadable. Reads return the `written` data or an
    /// error, and a reported end is still the end after a power cut. Returns whether an end was reported.
    fn look_badly(&mut self, rng: &mut Rng, (complete, written): (u64, &[u8])) -> bool {
        let bad = ZONE * SIZE + rng.below(complete + 8);
        for lba in bad..bad + 1 + rng.below(5) {
            self.command_queue.ssd(self.bay).faults().after(0, MediaFault::Unreadable(Lba(lba)));
        }
        let told = self.end(rng);
        let sure = if told == UNKNOWN_WP { complete } else { told };
        assert!((complete..=written.len() as u64).contains(&sure));
        for at in 0..sure {
            let read = Command::read(Lba(ZONE * SIZE + at), Buf::zeroed(BLOCK));
            let done = self.finished(rng, read);
            match done.result {
                Ok(()) => assert_eq!(done.data[7], written[at as usize], "block {at}"),
                Err(error) => assert_eq!(error, Status::UnrecoveredReadError.into()),
            }
        }
        if told == UNKNOWN_WP {
            for at in complete..written.len() as u64 {
                assert_eq!(
                    self.finished(rng, write(at, &[1])).result,
                    Err(Status::ZoneInvalidWrite.into()),
                    "block {at}"
                );
            }
        }
        self.command_queue.ssd(self.bay).faults().mend();
        self.begin_anew(rng, true);
        if told != UNKNOWN_WP {
            assert_eq!(self.end(rng), told);
        }
        told != UNKNOWN_WP
    }

    /// First byte of each block below `end`.
    fn content(&self, rng: &mut Rng, end: u64) -> Vec<u8> {
        let mut found = Vec::new();
        while (found.len() as u64) < end {
            let at = found.len() as u64;
            let blocks = (1 + rng.below(8)).min(end - at);
            let read = Command::read(Lba(ZONE * SIZE + at), Buf::zeroed(blocks as usize * BLOCK));
            let done = self.finished(rng, read);
            assert_eq!(done.result, Ok(()), "block {at}");
            found.extend(done.data.chunks(BLOCK).map(|block| block[7]));
        }
        found
    }
}

fn write(at: u64, content: &[u8]) -> Command {
    let data: Vec<u8> = content.iter().flat_map(|byte| [*byte; BLOCK]).collect();
    Command::write(Lba(ZONE * SIZE + at), Buf::copy_of(&data), false)
}

/// Statistics of a life.
#[derive(Default)]
struct Seen {
    /// Most commands in flight at once.
    most: usize,
    /// How often an end was reported with unreadable blocks, and how often it was not.
    told: u64,
    not_told: u64,
}

/// Writes a zone to its end through many power cuts.
fn life(seed: u64, group_blocks: u64) -> Seen {
    let (mut rng, mut seen) = (Rng::new(seed), Seen::default());
    let mut rig = rig(seed, group_blocks);
    let mut written: Vec<u8> = Vec::new();
    let cuts = rng.below(12);
    for round in 0.. {
        let mut pending: Vec<(u64, Completion)> = Vec::new();
        let mut complete = written.len() as u64;
        let events = if round < cuts { rng.below(60) } else { u64::MAX };
        let mut event = 0;
        while event < events && complete < SHOWN {
            event += 1;
            if rng.chance(1, 2) && (written.len() as u64) < SHOWN {
                let at = written.len() as u64;
                let blocks = (1 + rng.below(6)).min(SHOWN - at);
                let content: Vec<u8> = (0..blocks).map(|_| 1 + rng.below(255) as u8).collect();
                pending.push((at + blocks, rig.device.submit(write(at, &content))));
                written.extend(content);
            } else {
                rig.step(&mut rng);
            }
            seen.most = seen.most.max(rig.command_queue.queued());
            let mut gap = false;
            for (end, completion) in &mut pending {
                match completion.take() {
                    Some(done) => {
                        assert_eq!(done.result, Ok(()), "seed {seed}");
                        assert!(!gap, "seed {seed}: a write has overtaken another");
                        complete = complete.max(*end);
                        *end = 0;
                    }
                    None => gap |= *end > 0,
                }
            }
            pending.retain(|(end, _)| *end > 0);
        }
        if complete == SHOWN {
            break;
        }
        let submitted = written.len() as u64;
        let cut = rng.chance(3, 4);
        rig.begin_anew(&mut rng, cut);
        for _ in 0..rng.below(3) {
            match rig.look_badly(&mut rng, (complete, &written)) {
                true => seen.told += 1,
                false => seen.not_told += 1,
            }
        }
        let end = rig.end(&mut rng);
        assert!((complete..=submitted).contains(&end), "seed {seed}: {complete} <= {end} <= {submitted}");
        written.truncate(end as usize);
        assert_eq!(rig.content(&mut rng, end), written, "seed {seed}");
    }
    // Finished, and read by a device without state in memory.
    let finish = Command::Finish { zones: Zones::One(ZoneIndex(ZONE as u32)) };
    assert_eq!(rig.finished(&mut rng, finish).result, Ok(()));
    rig.begin_anew(&mut rng, true);
    assert_eq!(rig.content(&mut rng, SHOWN), written, "seed {seed}");
    seen
}

#[test]
fn append_zone_fills_through_repeated_power_cuts() {
    let mut all = Seen::default();
    for seed in 0..600 {
        let groups = [1, 2, 4, 16, 64, 1024, 8];
        let group_blocks = groups[seed as usize % groups.len()];
        let seen = life(seed, group_blocks);
        assert!(group_blocks > 1 || seen.most <= 1, "one at a time");
        let Seen { most, told, not_told } = &mut all;
        (*most, *told, *not_told) = (seen.most.max(*most), *told + seen.told, *not_told + seen.not_told);
    }
    assert!(all.most >= 4, "hardly anything is on its way at once: {}", all.most);
    let (told, not_told) = (all.told, all.not_told);
    assert!(told > 100 && not_told > 100, "with blocks that cannot be read {told} and {not_told}");
}

/// Late execution, as after a timeout: the drive executes an append of the previous user after the next user of the
/// drive has reset the zone.
#[test]
fn late_append_of_previous_user_never_becomes_data() {
    let (mut noticed, mut cut_before) = (0, 0);
    for seed in 0..400 {
        let (mut rig, mut rng) = (rig(seed, 16), Rng::new(seed));
        assert_eq!(rig.end(&mut rng), 0);
        let old = rng.below(6);
        if old > 0 {
            assert_eq!(rig.finished(&mut rng, write(0, &vec![99; old as usize])).result, Ok(()));
        }
        let mut pending = rig.device.submit(write(old, &[99]));
        rig.command_queue.set_fault(rig.bay, Fault::Tardy { events: 0 });
        rig.command_queue.execute_now(0, false);
        rig.command_queue.deliver(0);
        rig.runtime.run();
        assert!(pending.take().unwrap().result.is_err());
        assert_eq!(rig.command_queue.queued(), 1);
        rig.usage.member = [8; 16];
        rig.open();
        let mut reset = rig.device.submit(Command::Reset { zones: Zones::One(ZoneIndex(ZONE as u32)) });
        rig.command_queue.execute_now(1, false);
        rig.command_queue.deliver(0);
        rig.runtime.run();
        assert_eq!(reset.take().unwrap().result, Ok(()));
        // From here on the late append may land at any time.
        let submitted = 1 + rng.below(8);
        let mut pending: Vec<_> =
            (0..submitted).map(|at| rig.device.submit(write(at, &[at as u8]))).collect();
        (0..rng.below(2 * submitted + 4)).for_each(|_| _ = rig.step(&mut rng));
        let done: Vec<_> = pending.iter_mut().map_while(|pending| pending.take()).collect();
        let complete = done.iter().take_while(|done| done.result.is_ok()).count() as u64;
        noticed += done.iter().any(|done| done.result.is_err()) as u64;
        rig.begin_anew(&mut rng, true);
        match rig.end(&mut rng) {
            UNKNOWN_WP => cut_before += 1,
            end => {
                assert!((complete..=submitted).contains(&end), "seed {seed}");
                let content: Vec<u8> = (0..end as u8).collect();
                assert_eq!(rig.content(&mut rng, end), content, "seed {seed}");
            }
        }
    }
    assert!(noticed > 20 && cut_before > 20, "{noticed} at work, {cut_before} after a cut");
}

#[test]
fn append_read_completes_while_zone_is_finished() {
    for seed in 0..200 {
        let (mut rig, mut rng) = (rig(seed, 4), Rng::new(seed));
        let content: Vec<u8> = (0..11).collect();
        assert_eq!(rig.end(&mut rng), 0);
        for at in 0..11 {
            assert_eq!(rig.finished(&mut rng, write(at, &[at as u8])).result, Ok(()));
        }
        rig.begin_anew(&mut rng, false);
        let from = rng.below(8);
        let read = Command::read(Lba(ZONE * SIZE + from), Buf::zeroed(3 * BLOCK));
        let mut read = rig.device.submit(read);
        (0..rng.below(8)).for_each(|_| _ = rig.step(&mut rng));
        let finish = Command::Finish { zones: Zones::One(ZoneIndex(ZONE as u32)) };
        assert_eq!(rig.finished(&mut rng, finish).result, Ok(()));
        let done = read.take().unwrap();
        assert_eq!(done.result, Ok(()), "seed {seed}");
        let found: Vec<u8> = done.data.chunks(BLOCK).map(|block| block[7]).collect();
        assert_eq!(found, content[from as usize..from as usize + 3], "seed {seed}");
    }
}

/// A group is read from the drive while its end is being written, in a zone that was not read before.
#[test]
fn append_group_read_keeps_concurrently_written_blocks() {
    for seed in 0..400 {
        let (mut rig, mut rng) = (rig(seed, 4), Rng::new(seed));
        assert_eq!(rig.end(&mut rng), 0);
        assert_eq!(rig.finished(&mut rng, write(0, &[1, 2])).result, Ok(()));
        rig.begin_anew(&mut rng, false);
        let mut read = rig.device.submit(Command::read(Lba(ZONE * SIZE), Buf::zeroed(2 * BLOCK)));
        (0..rng.below(6)).for_each(|_| _ = rig.step(&mut rng));
        let mut pending: Vec<_> = (2..9).map(|at| rig.device.submit(write(at, &[at as u8 + 1]))).collect();
        while rig.step(&mut rng) {}
        assert_eq!(read.take().unwrap().result, Ok(()));
        assert!(pending.iter_mut().all(|pending| pending.take().unwrap().result == Ok(())));
        assert_eq!(rig.content(&mut rng, 9), [1, 2, 3, 4, 5, 6, 7, 8, 9], "seed {seed}");
    }
}

#[test]
fn append_report_marks_only_failed_zone_unknown() {
    let (mut rig, mut rng) = (rig(3, 16), Rng::new(3));
    assert_eq!(rig.finished(&mut rng, write(0, &[1, 2, 3])).result, Ok(()));
    rig.begin_anew(&mut rng, false);
    let zone = ZoneIndex(ZONE as u32);
    let mut report = rig.device.submit(Command::Report { first: ZoneIndex(0), count: 100 });
    rig.runtime.run();
    rig.command_queue.execute_now(0, false);
    rig.command_queue.deliver(0);
    rig.runtime.run();
    // After the drive has reported the write pointer, and before any block of the zone is read.
    rig.command_queue.ssd(rig.bay).faults().after(0, MediaFault::Offline(zone));
    while rig.step(&mut rng) {}
    let done = report.take().unwrap();
    assert_eq!(done.result, Ok(()));
    let in_doubt: Vec<u32> =
        done.zones.iter().filter(|info| info.wp_blocks == UNKNOWN_WP).map(|info| info.zone.0).collect();
    assert_eq!(in_doubt, [ZONE as u32]);
}

#[test]
fn appends_run_in_parallel_only_within_group() {
    let (rig, mut rng) = (rig(1, 4), Rng::new(1));
    assert_eq!(rig.end(&mut rng), 0);
    let mut pending: Vec<_> = (0..6).map(|at| rig.device.submit(write(at, &[at as u8]))).collect();
    assert_eq!(rig.command_queue.queued(), 4);
    while rig.step(&mut rng) {}
    assert!(pending.iter_mut().all(|completion| completion.take().unwrap().result == Ok(())));
    assert_eq!(rig.content(&mut rng, 6), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn append_failed_write_fails_successors_until_reset() {
    let (rig, mut rng) = (rig(2, 16), Rng::new(2));
    assert_eq!(rig.end(&mut rng), 0);
    let mut pending: Vec<_> = (0..4).map(|at| rig.device.submit(write(at, &[at as u8]))).collect();
    rig.command_queue.execute_now(0, false);
    rig.command_queue.set_fault(rig.bay, Fault::Write);
    while rig.step(&mut rng) {}
    let results: Vec<_> = pending.iter_mut().map(|completion| completion.take().unwrap().result).collect();
    let first_bad = results.iter().position(|result| result.is_err()).unwrap();
    assert_eq!(results[first_bad], Err(Status::WriteFault.into()));
    assert!(
        first_bad > 0 && results[first_bad + 1..].iter().all(|r| *r == Err(Status::ZoneInvalidWrite.into()))
    );
    assert_eq!(rig.end(&mut rng), first_bad as u64);
    assert!(rig.finished(&mut rng, write(first_bad as u64, &[9])).result.is_err());
    let reset = Command::Reset { zones: Zones::One(ZoneIndex(ZONE as u32)) };
    assert_eq!(rig.finished(&mut rng, reset).result, Ok(()));
    assert_eq!(rig.finished(&mut rng, write(0, &[9, 8, 7])).result, Ok(()));
    assert_eq!(rig.content(&mut rng, 4), [9, 8, 7, 0]);
}

#[test]
fn append_unreadable_block_makes_end_unknown_until_reset() {
    for seed in 0..60 {
        let (mut rig, mut rng) = (rig(seed, 16), Rng::new(seed));
        let mut pending: Vec<_> = (0..12).map(|at| rig.device.submit(write(at, &[at as u8 + 1]))).collect();
        while rig.step(&mut rng) {}
        assert!(pending.iter_mut().all(|completion| completion.take().unwrap().result == Ok(())));
        let bad = Lba(ZONE * SIZE + rng.below(12));
        rig.command_queue.ssd(rig.bay).faults().after(0, MediaFault::Unreadable(bad));
        rig.begin_anew(&mut rng, true);
        assert_eq!(rig.end(&mut rng), UNKNOWN_WP);
        let mut unreadable = 0;
        for at in 0..12 {
            let done = rig.finished(&mut rng, Command::read(Lba(ZONE * SIZE + at), Buf::zeroed(BLOCK)));
            match done.result {
                Ok(()) => assert_eq!(done.data[0], at as u8 + 1, "seed {seed}"),
                Err(error) => {
                    assert_eq!(error, Status::UnrecoveredReadError.into());
                    unreadable += 1;
                }
            }
        }
        assert!(unreadable >= 1);
        // The zone cannot be written until it is reset.
        assert_eq!(rig.finished(&mut rng, write(12, &[1])).result, Err(Status::ZoneInvalidWrite.into()));
        let reset = Command::Reset { zones: Zones::One(ZoneIndex(ZONE as u32)) };
        assert_eq!(rig.finished(&mut rng, reset).result, Ok(()));
        assert_eq!(rig.finished(&mut rng, write(0, &[1])).result, Ok(()));
        assert_eq!(rig.end(&mut rng), 1);
    }
}

/// Reads in the last group, and in the empty one behind it.
#[test]
fn append_read_of_finished_zone_needs_few_commands() {
    let (mut rng, mut rig) = (Rng::new(1), rig(2, 8));
    rig.finished(&mut rng, write(0, &[5; 5]));
    rig.finished(&mut rng, Command::Finish { zones: Zones::One(ZoneIndex(ZONE as u32)) });
    rig.open();
    for (at, content) in [(4, 5), (20, 0)] {
        let mut read = rig.device.submit(Command::read(Lba(ZONE * SIZE + at), Buf::zeroed(BLOCK)));
        let events = std::iter::repeat_with(|| rig.step(&mut rng)).take_while(|more| *more).count();
        assert_eq!(read.take().map(|done| done.data[7]), Some(content));
        // A report, two reads of metadata, and a read of the block.
        assert!(events <= 4 * 2, "{events} events");
    }
}

#[test]
fn append_reports_zone_states_and_refuses_unfit_drives() {
    let (rig, mut rng) = (rig(5, 16), Rng::new(5));
    assert_eq!(rig.finished(&mut rng, write(0, &[1, 2, 3])).result, Ok(()));
    let wrong = rig.finished(&mut rng, write(2, &[1]));
    assert_eq!(wrong.result, Err(Status::ZoneInvalidWrite.into()));
    let report = rig.finished(&mut rng, Command::Report { first: ZoneIndex(0), count: 100 }).zones;
    assert_eq!(report.len() as u32, rig.device.geometry().zones);
    let info = report[ZONE as usize];
    assert_eq!((info.state, info.wp_blocks, info.capacity_blocks), (ZoneState::ImplicitlyOpen, 3, SHOWN));
    assert!(report.iter().all(|info| info.zone.0 == ZONE as u32 || info.state == ZoneState::Empty));
    let bare: Rc<dyn ZonedDevice> = Rc::new(rig.command_queue.drive(rig.bay));
    for lacking in [Geometry { oob_bytes: 8, ..drive() }, Geometry { max_append_blocks: 0, ..drive() }] {
        assert_eq!(AppendDevice::geometry_of(&lacking, 16, false), None);
        assert!(AppendDevice::geometry_of(&lacking, 1, false).is_some());
    }
    let marked = Geometry { oob_bytes: 16, ..drive() };
    assert!(AppendDevice::geometry_of(&marked, 16, false).is_some());
    assert_eq!(AppendDevice::geometry_of(&marked, 16, true), None);
    assert_eq!(AppendDevice::geometry_of(&drive(), 1, true), None);
    assert!(AppendDevice::new(&rig.runtime, bare, Usage { group_blocks: 3, ..rig.usage }).is_none());
}

/// A drive loses the last block of a group in a power cut of its own, and the next group begins in its place.
#[test]
fn append_block_in_place_of_lost_one_makes_end_unknown() {
    let mut lost = 0;
    for seed in 0..20 {
        let (mut rig, mut rng) = (rig(seed, 4), Rng::new(seed));
        let shape = Geometry { volatile_cache: true, ..drive() };
        rig.bay = rig.command_queue.insert(Ssd::in_memory(&shape));
        rig.open();
        assert_eq!(rig.finished(&mut rng, write(0, &[1, 2, 3])).result, Ok(()));
        assert_eq!(rig.finished(&mut rng, Command::Flush).result, Ok(()));
        assert_eq!(rig.finished(&mut rng, write(3, &[4])).result, Ok(()));
        let cut = Cut { cache_lost: true, zrwa_lost: false };
        rig.command_queue.power_cycle(rig.bay, &mut rng, cut);
        rig.finished(&mut rng, write(4, &[5]));
        rig.begin_anew(&mut rng, false);
        let zone = ZoneIndex(ZONE as u32);
        let stored = rig.command_queue.ssd(rig.bay).zones().info(zone).wp_blocks;
        if stored == 4 {
            lost += 1;
            assert_eq!(rig.end(&mut rng), UNKNOWN_WP, "seed {seed}");
        }
    }
    assert!(lost > 0);
}

/// A block that the drive has lost, or of which it has kept an older version, cannot be read; all others can. The zone
/// is finished, and read by a device without state in memory.
#[test]
fn append_wrong_block_costs_no_other_block() {
    let zone = ZoneIndex(ZONE as u32);
    let (mut stale, mut places) = (0, BTreeSet::new());
    for seed in (0..400).filter(|seed: &u64| (seed / 2).is_multiple_of(2)) {
        let (mut rig, mut rng) = (rig(seed, [4, 16][seed as usize / 4 % 2]), Rng::new(seed));
        let fill = |rig: &Rig, rng: &mut Rng, first: u8| -> Vec<u8> {
            let written: Vec<u8> = (first..).take(SHOWN as usize).collect();
            let writes = written.chunks(4).zip((0..).step_by(4));
            let mut pending: Vec<Completion> =
                writes.map(|(content, at)| rig.device.submit(write(at, content))).collect();
            while rig.step(rng) {}
            assert!(pending.iter_mut().all(|write| write.take().unwrap().result == Ok(())));
            written
        };
        fill(&rig, &mut rng, 100);
        let place = rng.below(SHOWN);
        let older = rig.command_queue.ssd(rig.bay).stored(Lba(ZONE * SIZE + place)).unwrap();
        assert_eq!(rig.finished(&mut rng, Command::Reset { zones: Zones::One(zone) }).result, Ok(()));
        rig.epoch.set(2);
        let written = fill(&rig, &mut rng, 1);
        assert_eq!(rig.finished(&mut rng, Command::Finish { zones: Zones::One(zone) }).result, Ok(()));
        let is_stale = seed.is_multiple_of(2);
        let fault = older.filter(|_| is_stale);
        rig.command_queue.ssd(rig.bay).forge(Lba(ZONE * SIZE + place), fault.as_deref()).unwrap();
        rig.begin_anew(&mut rng, false);
        let mut wrong = 0;
        for at in 0..SHOWN {
            let done = rig.finished(&mut rng, Command::read(Lba(ZONE * SIZE + at), Buf::zeroed(BLOCK)));
            match done.result {
                Ok(()) => assert_eq!(done.data[7], written[at as usize], "seed {seed}: block {at}"),
                Err(_) => wrong += 1,
            }
        }
        assert_eq!(wrong, 1, "seed {seed}: place {place}, stale: {is_stale}");
        stale += u32::from(is_stale);
        places.insert(place);
    }
    assert!(stale > 50 && places.len() > 32, "{stale} stale blocks, {} places", places.len());
}
