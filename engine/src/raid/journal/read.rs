//! Reads a metadata log: determines which of the two zones is current, its records, and any damage.

use crate::{
    adapt::spare::reserves,
    buf::{BLOCK, Buf, BufPool, is_uniform, is_zero},
    device::{Command, DeviceError, Geometry, Status, ZonedDevice},
    format::{
        Origin, Uuid, VERSION,
        codec::{Absurd, FAR, RecordError, expect},
        record::{Checkpoint, HEADER_BYTES, Header, Record},
        superblock::Superblock,
    },
    raid::{
        geometry::META_ZONES,
        journal::{
            log::{LOG_BLOCKS, log_blocks},
            logged::LiveRecords,
        },
    },
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{collections::BTreeMap, rc::Rc};

/// Contents of a drive's metadata log.
pub struct ReadLog {
    /// Array and role of the drive, from the checkpoint.
    pub origin: Origin,
    /// The metadata zone with the newest checkpoint; the spare zone in which it lies, if moved; its blocks to be read.
    pub zone: u32,
    pub place: Option<u32>,
    pub wp_blocks: u64,
    pub generation: u64,
    /// The checkpoint and the records after it except parity, with sequence numbers.
    pub records: Vec<(Record, u64)>,
    /// Number of parity records; `live` has the blocks that are still needed.
    pub parities: usize,
    pub live: LiveRecords,
    /// Numbers of the spare zones of the drive that hold moved parts, by zone of the array.
    pub moved: BTreeMap<u32, u32>,
    /// The highest sequence number in the log.
    pub sequence: u64,
    /// Number of records that were damaged, by a power cut or otherwise.
    pub damaged: u32,
}

/// Why a drive has no readable log, by increasing significance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoLog {
    /// The metadata zones are empty: a blank drive.
    Blank,
    /// The drive has other contents.
    Foreign,
    /// There was a log, but this block of the drive, or the record that begins there, is damaged.
    Damaged(Lba),
    /// The drive is being filled with a copy of a member of an array.
    Target(Uuid, u32),
    /// An intact log with an impossible value.
    Absurd(Absurd),
    /// A log of an unknown format version.
    Version(u16),
    /// The array uses features (bits) that this code does not know.
    Features(u64),
    /// The drive cannot be read.
    Unreadable(DeviceError),
}

impl NoLog {
    /// Whether the zone holds an intact log that this code cannot use, as opposed to one that a power cut has torn: the
    /// other zone then holds an older state, which must not be used. (A log of an older format version may be that
    /// older state itself.)
    pub fn is_intact(self) -> bool {
        match self {
            NoLog::Version(version) => version > VERSION,
            NoLog::Features(_) | NoLog::Absurd(_) => true,
            _ => false,
        }
    }
}

/// The reason that follows from an error in the record at `lba`.
fn no_log(error: RecordError, lba: Lba) -> NoLog {
    match error {
        RecordError::Version(version) => NoLog::Version(version),
        RecordError::Features(unknown) => NoLog::Features(unknown),
        RecordError::Absurd(absurd) => NoLog::Absurd(absurd),
        RecordError::NoRecord | RecordError::Foreign(_) | RecordError::Damaged => NoLog::Damaged(lba),
    }
}

/// Reads the metadata log of a drive of which `aggregate` zones are used as one.
pub async fn read_log(device: &Rc<dyn ZonedDevice>, aggregate: u32) -> Result<ReadLog, NoLog> {
    let mut best: Option<(ReadLog, LogReader<'_>)> = None;
    let mut reason = NoLog::Blank;
    for zone in 0..META_ZONES.min(device.geometry().zones) {
        match read_head(device, (zone, zone), aggregate).await {
            Ok((log, rest)) => {
                if best.as_ref().is_none_or(|(b, _)| b.generation < log.generation) {
                    best = Some((log, rest));
                }
            }
            Err(error) if error.is_intact() => return Err(error),
            Err(error) => reason = reason.max(error),
        }
    }
    // The metadata zones may be worn, and the newest log in a spare zone.
    let spare = find_in_spares(device, best.as_ref().map(|(log, _)| log), aggregate).await;
    let all = spare.into_iter().chain(best);
    let (mut log, mut rest) = all.max_by_key(|(log, _)| log.generation).ok_or(reason)?;
    log.read_on(&mut rest).await?;
    Ok(log)
}

/// Finds logs in spare zones of a drive. `base` is the log in its metadata zones, which may be an old one; `None` if
/// there is none: one of them may be worn, and the other one reset for the next checkpoint.
///
/// The only user data in spare zones is that of moved parts. A zone that one of the logs lists as the place of a moved
/// part is not taken for a log, whatever its contents look like.
async fn find_in_spares<'a>(
    device: &'a Rc<dyn ZonedDevice>,
    base: Option<&ReadLog>,
    aggregate: u32,
) -> Vec<(ReadLog, LogReader<'a>)> {
    let member =
        |log: &ReadLog| log.checkpoint().map(|c| c.superblock.members[log.origin.member as usize].uuid);
    let first_spare = |log: &ReadLog| log.checkpoint().map_or(u32::MAX, |c| META_ZONES + c.superblock.zones);
    let mut found: Vec<(ReadLog, LogReader<'a>)> = Vec::new();
    for place in
        reserves(device.geometry().zones).filter(|place| base.is_none_or(|base| *place >= first_spare(base)))
    {
        for zone in 0..META_ZONES {
            if let Ok((other, reader)) = read_head(device, (zone, place), aggregate).await
                && place >= first_spare(&other)
                && base.is_none_or(|base| {
                    let same = |log: &ReadLog| (log.origin.array, log.origin.member, member(log));
                    same(&other) == same(base)
                })
            {
                found.push((other, reader));
            }
        }
    }
    let moved = |log: &ReadLog| log.moved.values().copied().collect::<Vec<u32>>();
    let parts: Vec<u32> =
        found.iter().flat_map(|(log, _)| moved(log)).chain(base.map(moved).unwrap_or_default()).collect();
    found.retain(|(log, _)| log.place.is_none_or(|place| !parts.contains(&place)));
    found
}

/// Reads the rest of a log with a damaged checkpoint. The checkpoint's state of the array is in the logs of other
/// members too; its contents about this member alone are lost, like those of damaged records. The array and the role
/// are taken from a superblock after the checkpoint. `None` if there is no such superblock, or if parts of zones may be
/// in spare zones, which only the checkpoint would list.
pub async fn salvage_log(device: &Rc<dyn ZonedDevice>, aggregate: u32) -> Option<ReadLog> {
    let geometry = device.geometry();
    for zone in 0..META_ZONES.min(geometry.zones) {
        let report = device.submit(Command::Report { first: ZoneIndex(zone), count: 1 }).await;
        let info = *report.zones.first()?;
        let written = match info.state {
            ZoneState::Empty => continue,
            ZoneState::Full | ZoneState::ReadOnly => geometry.zone_capacity_blocks,
            _ => info.wp_blocks.min(geometry.zone_capacity_blocks),
        };
        let (start, written) = (geometry.start(ZoneIndex(zone)).0, written.min(LOG_BLOCKS));
        let mut reader = LogReader {
            device,
            start,
            recorded: start,
            written,
            at: 0,
            bytes: Vec::new(),
            passed: 0,
            unreadable: 0,
        };
        // The first superblock in the log: all other records are checked against it.
        let (origin, superblock) = loop {
            if reader.at >= reader.written {
                break None;
            }
            let header = Header::read(reader.ahead(1).await.ok()?);
            if let Some(header) = header.filter(|header| header.origin.lba == start + reader.at)
                && let Ok((Record::Superblock(superblock), sequence, _)) = reader.record(header.origin).await
                && header.origin.array == superblock.array
                && (header.origin.member as usize) < superblock.members.len()
                && superblock.aggregate == aggregate
                && fits(&superblock, geometry).is_ok()
                && superblock.event <= sequence
            {
                break Some((header.origin, *superblock));
            }
            reader.pass(1);
        }?;
        let spare = META_ZONES + superblock.zones;
        let count = geometry.zones - spare;
        if count > 0 {
            let report = device.submit(Command::Report { first: ZoneIndex(spare), count }).await;
            let is_unused = |info: &ZoneInfo| matches!(info.state, ZoneState::Empty | ZoneState::Offline);
            if report.result.is_err() || !report.zones.iter().all(is_unused) {
                return None;
            }
        }
        let generation = generation_in_head(device, start).await;
        let mut log = ReadLog {
            origin,
            zone,
            place: None,
            wp_blocks: written,
            generation,
            records: Vec::new(),
            parities: 0,
            live: LiveRecords::default(),
            moved: BTreeMap::new(),
            sequence: 0,
            damaged: 0,
        };
        // All blocks but the first, so that nothing of the checkpoint is used.
        let mut reader = LogReader {
            device,
            start,
            recorded: start,
            written,
            at: 1,
            bytes: Vec::new(),
            passed: 0,
            unreadable: 0,
        };
        log.read_records(&mut reader, superblock).await.ok()?;
        log.live.lacks_records = true;
        // The superblock may be unreadable this time.
        let is_superblock = |record: &Record| matches!(record, Record::Checkpoint(_) | Record::Superblock(_));
        return log.records.iter().any(|(record, _)| is_superblock(record)).then_some(log);
    }
    None
}

/// The generation in the first block of a zone, which may be damaged: that of the next checkpoint has to be higher. 1
/// if it is not plausible.
async fn generation_in_head(device: &Rc<dyn ZonedDevice>, start: u64) -> u64 {
    let done = device.submit(Command::read(Lba(start), Buf::zeroed(BLOCK))).await;
    let bytes = done.data.get(HEADER_BYTES..).and_then(|bytes| bytes.first_chunk());
    let generation = bytes.map_or(1, |bytes| u64::from_le_bytes(*bytes));
    if done.result.is_ok() && (1..FAR).contains(&generation) { generation } else { 1 }
}

/// Reads the blocks of a metadata zone in order.
struct LogReader<'a> {
    device: &'a Rc<dyn ZonedDevice>,
    /// First block of the zone; the same by the addresses in its records, if it was moved; number of blocks to be read.
    start: u64,
    recorded: u64,
    written: u64,
    /// Position, in blocks of the zone. `bytes` holds blocks that have been read, from `passed` blocks before it on.
    at: u64,
    bytes: Vec<u8>,
    passed: u64,
    /// Blocks that the drive could not read.
    unreadable: u32,
}

impl LogReader<'_> {
    /// Reads the next `blocks` blocks, or as many as are left, without moving the position.
    async fn ahead(&mut self, blocks: u64) -> Result<&[u8], NoLog> {
        let geometry = self.device.geometry();
        let end = (self.at + blocks).min(self.written);
        let mut next = self.at - self.passed + (self.bytes.len() / BLOCK) as u64;
        if next < end {
            self.bytes.drain(..self.passed as usize * BLOCK);
            self.passed = 0;
        }
        while next < end {
            let blocks = (self.written - next).min(geometry.max_transfer_blocks as u64);
            let data = Buf::zeroed(blocks as usize * BLOCK);
            let done = self.device.submit(Command::read(Lba(self.start + next), data)).await;
            match done.result {
                Ok(()) => self.bytes.extend_from_slice(&done.data),
                // An unreadable block loses its record. A zone that was finished may have blocks that were never
                // written.
                Err(DeviceError::Status(Status::UnrecoveredReadError | Status::DeallocatedBlock)) => {
                    for block in 0..blocks {
                        let lba = Lba(self.start + next + block);
                        let done = self.device.submit(Command::read(lba, Buf::zeroed(BLOCK))).await;
                        let bytes = if done.result.is_ok() { &done.data[..] } else { &[0; BLOCK] };
                        let unwritten = done.result == Err(Status::DeallocatedBlock.into());
                        self.unreadable += (done.result.is_err() && !unwritten) as u32;
                        self.bytes.extend_from_slice(bytes);
                    }
                }
                Err(error) => return Err(NoLog::Unreadable(error)),
            }
            next += blocks;
        }
        Ok(&self.bytes[self.passed as usize * BLOCK..])
    }

    /// Decodes the record at the position.
    async fn record(&mut self, origin: Origin) -> Result<(Record, u64, u64), ReadError> {
        let header = Header::read(self.ahead(1).await?);
        let blocks = header.filter(|h| h.origin.lba == origin.lba).map_or(1, |header| header.blocks());
        Ok(Record::read(self.ahead(blocks).await?, origin)?)
    }

    /// Judges the damage at the position, where no intact record begins. Returns whether a power cut may have torn the
    /// record, as only the last one, and the length of the record in blocks.
    ///
    /// A block is written whole or not at all: the first blocks of a torn record are intact, the others unwritten.
    async fn judge_damage(&mut self, origin: Origin) -> Result<(bool, u64), NoLog> {
        let header = Header::read(self.ahead(1).await?).filter(|header| header.origin.lba == origin.lba);
        let blocks = header.map_or(1, |header| header.blocks());
        let there = self.ahead(blocks).await?.chunks(BLOCK).take(blocks as usize);
        // The record may have been torn, and a claim written behind its first blocks.
        let is_part =
            |block: &&[u8]| !is_uniform(block) && !Header::read(block).is_some_and(|h| h.is_claim());
        let written = there.filter(is_part).count() as u64;
        Ok((written < blocks, blocks))
    }

    /// Moves to the first block that is not all zeros; returns its header, if it has one. `None` if there is no such
    /// block.
    async fn skip_zeros(&mut self) -> Result<Option<Option<Header>>, NoLog> {
        while self.at < self.written {
            let block = self.ahead(1).await?;
            if !is_zero(&block[..BLOCK.min(block.len())]) {
                return Ok(Some(Header::read(block)));
            }
            self.pass(1);
        }
        Ok(None)
    }

    fn pass(&mut self, blocks: u64) {
        self.at += blocks;
        self.passed += blocks;
    }
}

/// Why a record cannot be read.
enum ReadError {
    Record(RecordError),
    Drive(NoLog),
}

impl From<RecordError> for ReadError {
    fn from(error: RecordError) -> ReadError {
        ReadError::Record(error)
    }
}

impl From<NoLog> for ReadError {
    fn from(error: NoLog) -> ReadError {
        ReadError::Drive(error)
    }
}

/// Checks a superblock against those properties of its drive that do not change: a valid superblock requires no more
/// than the drive has.
fn fits(superblock: &Superblock, geometry: &Geometry) -> Result<(), Absurd> {
    let layout = superblock.layout();
    expect(superblock.zones <= geometry.zones.saturating_sub(META_ZONES), "zones", superblock.zones)?;
    let used_blocks = layout.rows * layout.chunk_blocks;
    expect(used_blocks <= geometry.zone_capacity_blocks, "rows", layout.rows)?;
    // Not every way to access a drive reports its ZRWA.
    if let (true, Some(zrwa)) = (layout.policy.uses_zrwa(), geometry.zrwa) {
        let needed = layout.window_blocks();
        expect(needed <= zrwa.size_blocks, "distance", layout.distance)?;
    }
    let room = log_blocks(geometry, superblock.policy);
    expect(superblock.log_blocks as u64 <= room, "log blocks", superblock.log_blocks)
}

/// Reads the checkpoint of a metadata zone; the reader that is returned continues after it.
async fn read_head(
    device: &Rc<dyn ZonedDevice>,
    (zone, place): (u32, u32),
    aggregate: u32,
) -> Result<(ReadLog, LogReader<'_>), NoLog> {
    let report = device.submit(Command::Report { first: ZoneIndex(place), count: 1 }).await;
    report.result.map_err(NoLog::Unreadable)?;
    let info = report.zones.first().copied().ok_or(NoLog::Foreign)?;
    let geometry = device.geometry();
    let written = match info.state {
        ZoneState::Empty => return Err(NoLog::Blank),
        ZoneState::Full | ZoneState::ReadOnly => geometry.zone_capacity_blocks,
        _ => info.wp_blocks.min(geometry.zone_capacity_blocks),
    };
    let (start, recorded) = (geometry.start(ZoneIndex(place)).0, geometry.start(ZoneIndex(zone)).0);
    let mut reader =
        LogReader { device, start, recorded, written, at: 0, bytes: Vec::new(), passed: 0, unreadable: 0 };
    // A zone that was finished before anything was written in it reads as zeros.
    let header = match reader.skip_zeros().await? {
        None if reader.unreadable > 0 => return Err(NoLog::Damaged(Lba(start))),
        None => return Err(NoLog::Blank),
        Some(None) => return Err(NoLog::Foreign),
        Some(Some(_)) if reader.at > 0 => return Err(NoLog::Damaged(Lba(start))),
        Some(Some(header)) => header,
    };
    let origin = Origin { lba: recorded, ..header.origin };
    let (first, sequence, blocks) = reader.record(origin).await.map_err(|error| match error {
        ReadError::Record(error) => no_log(error, Lba(start)),
        ReadError::Drive(error) => error,
    })?;
    let Record::Checkpoint(checkpoint) = &first else { return Err(NoLog::Damaged(Lba(start))) };
    let superblock = &checkpoint.superblock;
    // A log that is read with another aggregation than it was written with is no evidence.
    if superblock.aggregate != aggregate {
        return Err(NoLog::Damaged(Lba(start)));
    }
    let (role, array) = (origin.member, superblock.array);
    expect(array == origin.array, "array", array.0[0])
        .and_then(|()| expect((role as usize) < superblock.members.len(), "member", role))
        .and_then(|()| fits(superblock, geometry))
        .and_then(|()| first.check(sequence, superblock))
        .and_then(|()| match checkpoint.moved.values().find(|place| **place >= geometry.zones) {
            Some(place) => expect(false, "place", *place),
            None => Ok(()),
        })
        .map_err(NoLog::Absurd)?;
    let mut live = LiveRecords::default();
    live.apply(&first, &checkpoint.superblock.layout());
    let (generation, moved) = (checkpoint.generation, checkpoint.moved.clone());
    reader.pass(blocks);
    let log = ReadLog {
        origin,
        zone,
        place: (place != zone).then_some(place),
        wp_blocks: written,
        generation,
        records: vec![(first, sequence)],
        parities: 0,
        live,
        moved,
        sequence,
        damaged: 0,
    };
    Ok((log, reader))
}

impl ReadLog {
    /// The checkpoint that the log begins with.
    fn checkpoint(&self) -> Option<&Checkpoint> {
        self.records.first().and_then(|(record, _)| match record {
            Record::Checkpoint(checkpoint) => Some(&**checkpoint),
            _ => None,
        })
    }

    /// Reads the records after the checkpoint.
    async fn read_on(&mut self, reader: &mut LogReader<'_>) -> Result<(), NoLog> {
        let Some((Record::Checkpoint(checkpoint), _)) = self.records.first() else { return Ok(()) };
        let superblock = checkpoint.superblock.clone();
        self.read_records(reader, superblock).await
    }

    /// Reads the records after the reader's position, in a log with this superblock.
    async fn read_records(
        &mut self,
        reader: &mut LogReader<'_>,
        mut superblock: Superblock,
    ) -> Result<(), NoLog> {
        let layout = superblock.layout();
        // The buffers are not reused.
        let mut pool = BufPool::default();
        // Of all records only a claim may follow one that a power cut has torn, and which would have ended at `torn`.
        let (mut gap, mut lacks_records, mut torn) = (false, false, 0);
        while reader.at < reader.written {
            let origin = Origin { lba: reader.recorded + reader.at, ..self.origin };
            match reader.record(origin).await {
                // A claim may follow a record that a power cut has torn.
                Ok((Record::Claim { .. }, _, blocks)) => reader.pass(blocks),
                Ok((record, sequence, blocks)) => {
                    if let Record::Checkpoint(checkpoint) = &record {
                        // The records after it are of the assembly that has written it.
                        superblock.agree(&checkpoint.superblock).map_err(NoLog::Absurd)?;
                        superblock.clone_from(&checkpoint.superblock);
                    }
                    record.check(sequence, &superblock).map_err(NoLog::Absurd)?;
                    self.live.apply(&record, &layout);
                    self.sequence = self.sequence.max(sequence);
                    lacks_records |= gap;
                    if let Record::Checkpoint(checkpoint) = &record {
                        // It replaces all earlier records, and contains the present places of zones.
                        self.moved.clone_from(&checkpoint.moved);
                        (gap, lacks_records) = (false, false);
                    }
                    match record {
                        Record::Parity(parity) => {
                            // A stripe is begun when the one `distance` before is safe.
                            let safe = parity.stripe.saturating_sub(layout.distance);
                            self.live.parity.forget(parity.zone, safe, &mut pool);
                            self.parities += 1;
                        }
                        _ => self.records.push((record, sequence)),
                    }
                    reader.pass(blocks);
                }
                Err(ReadError::Record(error @ (RecordError::Absurd(_) | RecordError::Features(_)))) => {
                    return Err(no_log(error, Lba(reader.start + reader.at)));
                }
                Err(ReadError::Record(error)) => {
                    self.damaged += (error != RecordError::NoRecord) as u32;
                    if !gap || error == RecordError::Damaged {
                        let (may_be_torn, blocks) = reader.judge_damage(origin).await?;
                        lacks_records |= !may_be_torn && reader.at >= torn;
                        torn = torn.max(reader.at + blocks);
                    }
                    gap = true;
                    reader.pass(1);
                }
                Err(ReadError::Drive(error)) => return Err(error),
            }
        }
        self.live.lacks_records = lacks_records || reader.unreadable > 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        device::{Completion, Done},
        raid::{
            journal::logged::tests::{parity, superblock, tail},
            policy::{Policy, zrwa::SlotPart},
        },
        runtime::Runtime,
        zone::ZoneInfo,
    };
    use std::collections::BTreeSet;

    /// A drive with a metadata log in its first zone, and unreadable blocks.
    struct Logged {
        geometry: Geometry,
        bytes: Vec<u8>,
        unreadable: BTreeSet<u64>,
    }

    impl ZonedDevice for Logged {
        fn geometry(&self) -> &Geometry {
            &self.geometry
        }

        fn submit(&self, command: Command) -> Completion {
            let wp_blocks = (self.bytes.len() / BLOCK) as u64;
            Completion::ready(match command {
                Command::Report { first, .. } => {
                    let (state, capacity_blocks) = match first.0 {
                        0 => (ZoneState::Closed, self.geometry.zone_capacity_blocks),
                        _ => (ZoneState::Empty, self.geometry.zone_capacity_blocks),
                    };
                    let info = ZoneInfo { zone: first, state, wp_blocks, capacity_blocks, zrwa: false };
                    Done { zones: vec![info], ..Done::ok() }
                }
                Command::Read { lba, data, .. } => {
                    if (lba.0..lba.0 + data.blocks()).any(|block| self.unreadable.contains(&block)) {
                        return Completion::failed(Status::UnrecoveredReadError);
                    }
                    Done::with_data(Buf::copy_of(&self.bytes[lba.0 as usize * BLOCK..][..data.len()]))
                }
                _ => Done::error(Status::InvalidOpcode.into()),
            })
        }
    }

    /// Encodes a log of a checkpoint and `records`; returns also the first block of each of these.
    fn log_of(policy: Policy, records: &[Record]) -> (Logged, Vec<u64>) {
        let superblock = superblock(policy);
        let geometry = Geometry {
            zones: superblock.zones + META_ZONES,
            zone_size_blocks: 1 << 14,
            zone_capacity_blocks: 1 << 14,
            max_open: 9,
            max_active: 9,
            zrwa: None,
            oob_bytes: 0,
            max_transfer_blocks: 7,
            max_append_blocks: 0,
            volatile_cache: false,
        };
        let checkpoint = Checkpoint {
            generation: 1,
            incomplete: Default::default(),
            moved: Default::default(),
            zones: vec![Default::default(); superblock.zones as usize],
            burned: Vec::new(),
            bad_blocks: Vec::new(),
            parity: Vec::new(),
            tails: Vec::new(),
            superblock,
        };
        let array = checkpoint.superblock.array;
        let (mut bytes, mut begins) = (Vec::new(), Vec::new());
        for (record, sequence) in [Record::Checkpoint(Box::new(checkpoint))].iter().chain(records).zip(20..) {
            begins.push((bytes.len() / BLOCK) as u64);
            let origin = Origin { array, member: 1, lba: (bytes.len() / BLOCK) as u64 };
            record.encode_to(&mut bytes, origin, sequence);
        }
        (Logged { geometry, bytes, unreadable: BTreeSet::new() }, begins[1..].to_vec())
    }

    fn read(log: Logged) -> ReadLog {
        let device: Rc<dyn ZonedDevice> = Rc::new(log);
        Runtime::new().block_on(read_log(&device, 1), || false).unwrap().unwrap_or_else(|_| panic!("no log"))
    }

    #[test]
    fn journal_read_keeps_parity_of_stripes_in_window() {
        let whole = |stripe| Record::Parity(parity(0, stripe, SlotPart { index: 0, from: 0, to: 4 }));
        let log = read(log_of(Policy::Zrwa, &[5, 6, 7, 8].map(whole)).0);
        let stripes: BTreeSet<u64> = log.live.parity.of_zone(0, 0).map(|(stripe, _, _)| stripe).collect();
        assert_eq!(stripes, BTreeSet::from([6, 7, 8]), "two stripes are in flight behind the last");
        assert!(!log.live.lacks_records);
    }

    /// Only the first block of a record of two has been written: a claim lies in the place of the second one.
    #[test]
    fn journal_claim_behind_torn_record_makes_no_gap() {
        let (claim, tail) =
            (Record::Claim { host: Uuid([3; 16]), id: Uuid([4; 16]) }, Record::Tail(tail(0, 0, 3)));
        let torn = Record::Parity(parity(0, 0, SlotPart { index: 0, from: 0, to: 1 }));
        for (behind, lacks_records) in [
            (vec![claim.clone()], false),
            (vec![claim.clone(), claim.clone()], false),
            (vec![claim.clone(), tail.clone()], true),
        ] {
            let (mut log, begins) = log_of(Policy::Zrwa, std::slice::from_ref(&torn));
            log.bytes.truncate((begins[0] as usize + 1) * BLOCK);
            for record in &behind {
                let lba = (log.bytes.len() / BLOCK) as u64;
                let origin = Origin { array: superblock(Policy::Zrwa).array, member: 1, lba };
                record.encode_to(&mut log.bytes, origin, 30);
            }
            let read = read(log);
            assert_eq!((read.live.lacks_records, read.damaged), (lacks_records, 1), "{behind:?}");
            assert!(read.records.iter().all(|(record, _)| !matches!(record, Record::Claim { .. })));
        }
        let log = read(log_of(Policy::Zrwa, &[tail, claim]).0);
        assert_eq!((log.live.lacks_records, log.damaged, log.records.len()), (false, 0, 2));
    }

    /// A power cut leaves a log that ends with a torn record, and no gap: any other damage may have hit a record that
    /// counts.
    #[test]
    fn journal_has_gap_unless_last_record_is_torn() {
        let single = Record::Tail(tail(0, 0, 3));
        let long = Record::Parity(parity(0, 0, SlotPart { index: 0, from: 0, to: 4 }));
        let damaged = |records: &[Record], which: usize| {
            let (mut log, begins) = log_of(Policy::Zrwa, records);
            // After the header of the record.
            log.bytes[begins[which] as usize * BLOCK + 70] ^= 1;
            read(log).live.lacks_records
        };
        assert!(!damaged(&[single.clone(), long.clone()], 1));
        assert!(damaged(&[long.clone(), single.clone()], 0), "a record follows");
        assert!(damaged(&[long.clone(), single.clone()], 1), "a single block cannot be torn");
        let unreadable = |records: &[Record], which: usize| {
            let (mut log, begins) = log_of(Policy::Zrwa, records);
            log.unreadable.insert(begins[which]);
            read(log).live.lacks_records
        };
        assert!(unreadable(&[single, long], 1));
    }
}
