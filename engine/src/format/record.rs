//! Records: the entries of a member's metadata log, and the log blocks in data zones.
//!
//! A record is a 64-byte header, its payload, and zeros up to a whole block. The checksum covers header and payload;
//! the header contains the array, the member and the block where the record lies, so a copy of it elsewhere (in user
//! data, say) is never taken for a record.

use crate::{
    buf::{BLOCK, Buf},
    format::{
        OLDEST_VERSION, Origin, Uuid, VERSION,
        codec::{Absurd, Decoder, Encoder, MOST_NUMBER, RecordError, TooShort, expect},
        superblock::Superblock,
    },
    raid::geometry::META_ZONES,
    zone::MOST_BLOCKS,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// First bytes of every record.
pub const MAGIC: [u8; 8] = *b"zoneraid";
pub use crate::format::codec::HEADER_BYTES;

/// Persistent state of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneRecord {
    /// Sequence number of the zone's last reset: everything logged for it before is void.
    pub epoch: u64,
    /// A reset has been logged, and may not have reached all members.
    pub resetting: bool,
    /// The zone's tail in blocks, if it was finished.
    pub finished: Option<u64>,
    /// Members (bits) that lack their part of this zone until it is rebuilt.
    pub lost: u32,
    /// Members (bits) that the zone waits for; 0 if it waits for none. Meanwhile it is offline, and their parts stay as
    /// they are, whichever members leave or return: that of a member that was away is valid if the event of its own
    /// superblock is `since` or newer.
    pub waits: u32,
    /// Oldest event of a superblock with which a returning member's part is valid (see `waits`).
    pub since: u64,
}

impl ZoneRecord {
    /// Adds members (bits) that the zone waits for. The first call sets `since` to `floor`, that of the present
    /// superblock.
    pub fn wait_for(&mut self, members: u32, floor: u64) {
        if self.waits == 0 {
            self.since = floor;
        }
        self.waits |= members;
    }
}

/// Blocks that are stored in the metadata log instead of their place in the zone: partial parity for which the zone has
/// no slot (§5.2), or the content of burned blocks.
#[derive(Clone, Debug)]
pub struct ParityRecord {
    /// Zone of the array.
    pub zone: u32,
    /// Epoch of the zone.
    pub epoch: u64,
    /// Stripe of the zone.
    pub stripe: u64,
    /// Chunk of the stripe, in whose slot the blocks belong, or [`RELOCATED`].
    pub index: u32,
    /// The first block, from the start of the chunk.
    pub from: u32,
    /// The blocks.
    pub data: Buf,
}

/// `index` of a record that contains the member's own blocks in the row of the stripe, not partial parity.
pub const RELOCATED: u32 = u32::MAX;

/// Blocks of a member's part of a zone that were written before a power cut and hold no valid data, although the write
/// pointer, which cannot go back, has passed them. Their content goes to the metadata log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurnedRange {
    /// Zone of the array.
    pub zone: u32,
    /// Role of the member.
    pub member: u32,
    /// Epoch of the zone.
    pub epoch: u64,
    /// First block, from the start of the member's part.
    pub from: u64,
    /// Exclusive end.
    pub to: u64,
}

/// Blocks of a member's part of a zone that could not be rebuilt: zeros were written in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadBlocks {
    /// Zone of the array.
    pub zone: u32,
    /// Role of the member.
    pub member: u32,
    /// Epoch of the zone.
    pub epoch: u64,
    /// First block, from the start of the member's part.
    pub from: u64,
    /// Exclusive end.
    pub to: u64,
}

/// All bad blocks of a member's part of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartBadBlocks {
    /// Zone of the array.
    pub zone: u32,
    /// Role of the member.
    pub member: u32,
    /// Epoch of the zone.
    pub epoch: u64,
    /// Blocks from the start of the member's part, in order.
    pub ranges: Vec<Range<u64>>,
}

/// Parts of a zone that were lost while the array was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lacks {
    /// Zone of the array.
    pub zone: u32,
    /// Members (bits) that lack their part until it is rebuilt.
    pub members: u32,
    /// Epoch of the zone.
    pub epoch: u64,
}

/// A logged write pointer (§5.3): everything up to `tail_blocks` is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailRecord {
    /// Zone of the array.
    pub zone: u32,
    /// Policy `inplace`: blocks beyond the tail are valid only if their generation is this one or newer. Policy `zrwa`: if
    /// not 0, the record is no tail, and begins a generation at `tail_blocks`.
    pub generation: u32,
    /// Epoch of the zone.
    pub epoch: u64,
    /// End of the valid data, in blocks of the zone.
    pub tail_blocks: u64,
}

/// The complete state of the array and of a member's log: replaces all earlier records of this log.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Number of the checkpoint in its log: of the two metadata zones the one with the higher number counts.
    pub generation: u64,
    /// Zones in doubt of which records may be missing in this member's log.
    pub incomplete: BTreeSet<u32>,
    /// Zones of the array of which this member's part lies in a spare zone, and its number on the drive.
    pub moved: BTreeMap<u32, u32>,
    /// Properties and members of the array.
    pub superblock: Superblock,
    /// Records of all zones, in their order.
    pub zones: Vec<ZoneRecord>,
    /// Burned blocks of all members.
    pub burned: Vec<BurnedRange>,
    /// Bad blocks of all members.
    pub bad_blocks: Vec<BadBlocks>,
    /// Partial parity and relocated blocks in this member's log that are still needed.
    pub parity: Vec<ParityRecord>,
    /// Tails in this member's log that are still needed.
    pub tails: Vec<TailRecord>,
}

/// Checksums of blocks of a member's part of a zone that are in no checksum block yet ([`crate::adapt::checksum`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastChecksums {
    /// Zone of the array.
    pub zone: u32,
    /// Epoch of the zone.
    pub epoch: u64,
    /// First block, from the start of the member's part.
    pub from: u64,
    /// One for each block.
    pub sums: Vec<u32>,
}

/// A record of a metadata log or of a log block.
#[derive(Clone, Debug)]
pub enum Record {
    /// The complete state, which replaces all earlier records.
    Checkpoint(Box<Checkpoint>),
    /// A change of the array or of its members.
    Superblock(Box<Superblock>),
    /// The zones are being reset; their epoch is the record's sequence number.
    Reset {
        /// The first zone.
        first: u32,
        /// How many zones.
        count: u32,
    },
    /// The resets of `epoch` have reached all members.
    ResetDone {
        /// The first zone.
        first: u32,
        /// How many zones.
        count: u32,
        /// Epoch of the zones since the reset was logged.
        epoch: u64,
    },
    /// The zone is being finished with its tail at `tail_blocks`.
    Finish {
        /// Zone of the array.
        zone: u32,
        /// Epoch of the zone.
        epoch: u64,
        /// End of the valid data, in blocks of the zone.
        tail_blocks: u64,
    },
    /// The members (bits) hold their part of the zone again.
    Rebuilt {
        /// Zone of the array.
        zone: u32,
        /// Epoch of the zone.
        epoch: u64,
        /// Members (bits) that have their part again.
        members: u32,
    },
    /// Partial parity or relocated blocks.
    Parity(ParityRecord),
    /// End of the data of a zone.
    Tail(TailRecord),
    /// As [`Record::Tail`], with the note of the last write: only in log blocks.
    Note(TailRecord, Buf),
    /// Parts of a zone that are lost.
    Lacks(Lacks),
    /// Blocks that a rebuild could not decode.
    BadBlocks(PartBadBlocks),
    /// The tail of the zone has been decided, and the zone waits for no member any more.
    Decided {
        /// Zone of the array.
        zone: u32,
        /// Epoch of the zone.
        epoch: u64,
    },
    /// Another host is about to assemble the array. The host that runs it cannot append to this log any more. The
    /// record contains no state of the array.
    Claim {
        /// UUID of the host that is about to assemble the array.
        host: Uuid,
        /// Random id, a new one for each attempt.
        id: Uuid,
    },
    /// The checksums of blocks at the end of this member's part of a zone when the array was closed.
    Checksums(LastChecksums),
}

/// Bytes of a zone record in a checkpoint.
pub const ZONE_BYTES: usize = 40;
/// Longest note, in bytes: with its tail it fits into a block.
pub const MOST_NOTE_BYTES: usize = BLOCK - HEADER_BYTES - TAIL_BYTES - 8;
/// Bytes of a tail in a checkpoint.
pub const TAIL_BYTES: usize = 24;
const BURNED_BYTES: usize = 32;
/// Bytes of a run of bad blocks in a checkpoint.
pub const BAD_BLOCKS_BYTES: usize = 32;
/// Bytes of a parity record in a checkpoint, without the data.
const PARITY_BYTES: usize = 32;
const NOT_FINISHED: u64 = u64::MAX;

impl Record {
    fn kind(&self) -> u16 {
        match self {
            Record::Checkpoint(_) => 1,
            Record::Superblock(_) => 2,
            Record::Reset { .. } => 3,
            Record::ResetDone { .. } => 4,
            Record::Finish { .. } => 5,
            Record::Rebuilt { .. } => 6,
            Record::Parity(_) => 7,
            Record::Tail(_) => 8,
            Record::Lacks(_) => 9,
            Record::BadBlocks(_) => 10,
            Record::Decided { .. } => 11,
            Record::Claim { .. } => CLAIM,
            Record::Checksums(_) => 13,
            Record::Note(..) => 14,
        }
    }

    fn payload(&self, out: &mut Encoder) {
        match self {
            Record::Checkpoint(checkpoint) => checkpoint.encode(out),
            Record::Superblock(superblock) => superblock.encode(out),
            Record::Reset { first, count } => {
                out.u32(*first).u32(*count);
            }
            Record::ResetDone { first, count, epoch } => {
                out.u32(*first).u32(*count).u64(*epoch);
            }
            Record::Finish { zone, epoch, tail_blocks } => {
                out.u32(*zone).u32(0).u64(*epoch).u64(*tail_blocks);
            }
            Record::Rebuilt { zone, epoch, members } => {
                out.u32(*zone).u32(*members).u64(*epoch);
            }
            Record::Parity(parity) => parity.encode(out),
            Record::Tail(tail) => tail.encode(out),
            Record::Note(tail, note) => {
                tail.encode(out);
                out.u32(note.len() as u32).u32(0).bytes(note);
            }
            Record::Lacks(Lacks { zone, members, epoch }) => {
                out.u32(*zone).u32(*members).u64(*epoch);
            }
            Record::BadBlocks(bad_blocks) => bad_blocks.encode(out),
            Record::Decided { zone, epoch } => {
                out.u32(*zone).u32(0).u64(*epoch);
            }
            Record::Claim { host, id } => {
                out.bytes(&host.0).bytes(&id.0);
            }
            Record::Checksums(checksums) => checksums.encode(out),
        }
    }

    fn decode(header: &Header, from: &mut Decoder<'_>) -> Result<Record, RecordError> {
        Ok(match header.kind {
            1 => Record::Checkpoint(Box::new(Checkpoint::decode(from, header.version)?)),
            2 => Record::Superblock(Box::new(Superblock::decode(from, header.version)?)),
            3 => Record::Reset { first: from.u32()?, count: from.u32()? },
            4 => Record::ResetDone { first: from.u32()?, count: from.u32()?, epoch: from.u64()? },
            5 => {
                let (zone, _) = (from.u32()?, from.u32()?);
                Record::Finish { zone, epoch: from.u64()?, tail_blocks: from.u64()? }
            }
            6 => {
                let (zone, members) = (from.u32()?, from.u32()?);
                Record::Rebuilt { zone, members, epoch: from.u64()? }
            }
            7 => Record::Parity(ParityRecord::decode(from)?),
            8 => Record::Tail(TailRecord::decode(from)?),
            9 => Record::Lacks(Lacks { zone: from.u32()?, members: from.u32()?, epoch: from.u64()? }),
            10 => Record::BadBlocks(PartBadBlocks::decode(from)?),
            11 => {
                let (zone, _) = (from.u32()?, from.u32()?);
                Record::Decided { zone, epoch: from.u64()? }
            }
            13 => Record::Checksums(LastChecksums::decode(from)?),
            14 => {
                let (tail, bytes, _) = (TailRecord::decode(from)?, from.u32()?, from.u32()?);
                Record::Note(tail, Buf::copy_of(from.bytes(bytes as usize)?))
            }
            CLAIM => Record::Claim { host: Uuid(from.array()?), id: Uuid(from.array()?) },
            _ => return Err(RecordError::Damaged),
        })
    }

    /// Checks whether the record is possible in the array that `of` describes.
    ///
    /// # Errors
    /// The first field with an impossible value.
    pub fn check(&self, sequence: u64, of: &Superblock) -> Result<(), Absurd> {
        expect(sequence <= MOST_NUMBER, "sequence", sequence)?;
        let zone_exists = |zone: u32| expect(zone < of.zones, "zone", zone);
        match self {
            Record::Checkpoint(checkpoint) => {
                expect(checkpoint.superblock.event <= sequence, "event", checkpoint.superblock.event)?;
                let epochs = checkpoint.zones.iter().map(|zone| zone.epoch);
                epochs.max().map_or(Ok(()), |newest| expect(newest <= sequence, "epoch", newest))?;
                checkpoint.check(of)
            }
            Record::Superblock(superblock) => {
                expect(superblock.event <= sequence, "event", superblock.event)?;
                superblock.agree(of)
            }
            Record::Reset { first, count } | Record::ResetDone { first, count, .. } => {
                zone_exists(*first)?;
                expect(*count <= of.zones - first, "count", *count)
            }
            Record::Finish { zone, tail_blocks, .. } => {
                zone_exists(*zone)?;
                expect(*tail_blocks <= of.layout().capacity_blocks(), "tail", *tail_blocks)
            }
            Record::Rebuilt { zone, members, .. } => {
                zone_exists(*zone)?;
                expect(of.are_members(*members), "members", *members)
            }
            Record::Parity(parity) => parity.check(of),
            Record::Tail(tail) => tail.check(of),
            Record::Note(tail, note) => {
                tail.check(of)?;
                expect(tail.generation == 0, "generation of tail", tail.generation)?;
                expect((1..=MOST_NOTE_BYTES).contains(&note.len()), "note bytes", note.len() as u64)
            }
            Record::Decided { zone, .. } => zone_exists(*zone),
            Record::Claim { .. } => Ok(()),
            Record::Checksums(checksums) => checksums.check(of),
            Record::Lacks(lacks) => {
                zone_exists(lacks.zone)?;
                expect(of.are_members(lacks.members), "members that lack", lacks.members)
            }
            Record::BadBlocks(bad_blocks) => bad_blocks.check(of),
        }
    }

    /// Encodes the record as whole blocks, to be written at `origin.lba` of the member.
    pub fn encode(&self, origin: Origin, sequence: u64) -> Buf {
        let mut bytes = Vec::new();
        self.encode_to(&mut bytes, origin, sequence);
        Buf::copy_of(&bytes)
    }

    /// As [`Record::encode`], appended to `bytes`.
    pub fn encode_to(&self, bytes: &mut Vec<u8>, origin: Origin, sequence: u64) {
        let start = bytes.len();
        let mut out = Encoder(std::mem::take(bytes));
        out.bytes(&MAGIC).u16(VERSION).u16(self.kind()).u32(0).bytes(&origin.array.0);
        out.u64(sequence).u64(origin.lba).u32(origin.member).u32(0).u64(0);
        debug_assert_eq!(out.0.len() - start, HEADER_BYTES);
        self.payload(&mut out);
        let record = &mut out.0[start..];
        let payload = (record.len() - HEADER_BYTES) as u32;
        record[12..16].copy_from_slice(&payload.to_le_bytes());
        let crc = crc32c::crc32c(record);
        record[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        *bytes = out.0;
        bytes.resize(start + (bytes.len() - start).next_multiple_of(BLOCK), 0);
    }

    /// Decodes the record at the start of `bytes`, which were read at `origin.lba`; with its sequence number and its
    /// length in blocks.
    pub fn read(bytes: &[u8], origin: Origin) -> Result<(Record, u64, u64), RecordError> {
        let header = Header::read(bytes).ok_or(RecordError::NoRecord)?;
        if header.origin.lba != origin.lba {
            return Err(RecordError::NoRecord);
        }
        let len = HEADER_BYTES + header.payload_bytes as usize;
        let covered = bytes.get(..len).ok_or(RecordError::Damaged)?;
        if checksum(covered) != header.crc {
            return Err(RecordError::Damaged);
        }
        // The header has this layout in every version, and the checksum covers the same bytes.
        if !(OLDEST_VERSION..=VERSION).contains(&header.version) {
            return Err(RecordError::Version(header.version));
        }
        if header.origin != origin {
            return Err(RecordError::Foreign(header.origin));
        }
        let mut payload = Decoder(&covered[HEADER_BYTES..]);
        let record = Record::decode(&header, &mut payload)?;
        // A payload of another length has another layout.
        if !payload.0.is_empty() {
            return Err(RecordError::Damaged);
        }
        Ok((record, header.sequence, len.div_ceil(BLOCK) as u64))
    }
}

/// The kind of a claim.
const CLAIM: u16 = 12;

const CRC_AT: usize = 52;

/// The checksum of header and payload, with zeros in its own place.
fn checksum(covered: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&covered[..CRC_AT]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &covered[CRC_AT + 4..])
}

/// The header of a record, not verified except for the magic.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Format version.
    pub version: u16,
    /// Kind of the record.
    pub kind: u16,
    /// Bytes after the header.
    pub payload_bytes: u32,
    /// Writer of the record, and its address.
    pub origin: Origin,
    /// Sequence number: grows from record to record.
    pub sequence: u64,
    /// CRC-32C of header and payload.
    pub crc: u32,
}

impl Header {
    /// Length of the record in blocks.
    pub fn blocks(&self) -> u64 {
        (HEADER_BYTES as u64 + self.payload_bytes as u64).div_ceil(BLOCK as u64)
    }

    /// Whether the record is a claim of another host.
    pub fn is_claim(&self) -> bool {
        self.kind == CLAIM
    }

    /// The header at the start of `bytes`, if there is one.
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let mut from = Decoder(bytes);
        (from.array() == Ok(MAGIC)).then(|| Header::fields(&mut from))?.ok()
    }

    fn fields(from: &mut Decoder<'_>) -> Result<Header, TooShort> {
        let (version, kind, payload_bytes) = (from.u16()?, from.u16()?, from.u32()?);
        let array = Uuid(from.array()?);
        let (sequence, lba, member, crc) = (from.u64()?, from.u64()?, from.u32()?, from.u32()?);
        Ok(Header { version, kind, payload_bytes, origin: Origin { array, member, lba }, sequence, crc })
    }
}

impl Checkpoint {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.generation);
        self.superblock.encode(out);
        out.u32(self.zones.len() as u32).u32(self.parity.len() as u32).u32(self.tails.len() as u32);
        out.u32(self.burned.len() as u32).u32(self.bad_blocks.len() as u32);
        for (index, zone) in (0..).zip(&self.zones) {
            let finished = zone.finished.unwrap_or(NOT_FINISHED);
            let flags = zone.resetting as u32 | (self.incomplete.contains(&index) as u32) << 1;
            out.u64(zone.epoch).u64(finished).u32(zone.lost).u32(flags);
            let place = self.moved.get(&index).copied().unwrap_or(0);
            out.u32(zone.waits).u32(place).u64(zone.since);
        }
        for tail in &self.tails {
            tail.encode(out);
        }
        for burned in &self.burned {
            burned.encode(out);
        }
        for bad_block in &self.bad_blocks {
            bad_block.encode(out);
        }
        for parity in &self.parity {
            parity.encode(out);
        }
    }

    fn decode(from: &mut Decoder<'_>, version: u16) -> Result<Checkpoint, RecordError> {
        let generation = from.u64()?;
        let superblock = Superblock::decode(from, version)?;
        let (zones, parity, tails, burned) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
        let bad_blocks = from.u32()?;
        expect(zones == superblock.zones, "zone records", zones)?;
        let mut room = from.0.len() as u64;
        let counts = [
            ("zone records", zones, ZONE_BYTES),
            ("tails", tails, TAIL_BYTES),
            ("burned", burned, BURNED_BYTES),
            ("bad blocks", bad_blocks, BAD_BLOCKS_BYTES),
            ("parities", parity, PARITY_BYTES),
        ];
        for (field, count, bytes) in counts {
            let taken = count as u64 * bytes as u64;
            expect(taken <= room, field, count)?;
            room -= taken;
        }
        let (mut incomplete, mut moved) = (BTreeSet::new(), BTreeMap::new());
        let zones = (0..zones)
            .map(|zone| {
                let (epoch, finished, lost) = (from.u64()?, from.u64()?, from.u32()?);
                let finished = (finished != NOT_FINISHED).then_some(finished);
                let (flags, waits, place) = (from.u32()?, from.u32()?, from.u32()?);
                if flags & 2 != 0 {
                    incomplete.insert(zone);
                }
                if place != 0 {
                    moved.insert(zone, place);
                }
                let resetting = flags & 1 != 0;
                Ok(ZoneRecord { epoch, resetting, finished, lost, waits, since: from.u64()? })
            })
            .collect::<Result<_, TooShort>>()?;
        let tails = (0..tails).map(|_| TailRecord::decode(from)).collect::<Result<_, TooShort>>()?;
        let burned = (0..burned).map(|_| BurnedRange::decode(from)).collect::<Result<_, TooShort>>()?;
        let bad_blocks = (0..bad_blocks).map(|_| BadBlocks::decode(from)).collect::<Result<_, TooShort>>()?;
        let parity = (0..parity).map(|_| ParityRecord::decode(from)).collect::<Result<_, RecordError>>()?;
        Ok(Checkpoint { generation, incomplete, moved, superblock, zones, burned, bad_blocks, parity, tails })
    }

    fn check(&self, of: &Superblock) -> Result<(), Absurd> {
        expect((1..=MOST_NUMBER).contains(&self.generation), "generation", self.generation)?;
        self.superblock.agree(of)?;
        let capacity_blocks = of.layout().capacity_blocks();
        for zone in &self.zones {
            let finished = zone.finished.unwrap_or(0);
            expect(finished <= capacity_blocks, "finished", finished)?;
            expect(of.are_members(zone.lost), "lost", zone.lost)?;
            expect(of.are_members(zone.waits), "waits", zone.waits)?;
        }
        let mut taken = BTreeSet::new();
        for place in self.moved.values() {
            expect(*place >= META_ZONES + of.zones && taken.insert(place), "place", *place)?;
        }
        self.tails.iter().try_for_each(|tail| tail.check(of))?;
        self.burned.iter().try_for_each(|burned| burned.check(of))?;
        self.bad_blocks.iter().try_for_each(|bad_block| bad_block.check(of))?;
        self.parity.iter().try_for_each(|parity| parity.check(of))
    }
}

impl BurnedRange {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.zone).u32(self.member).u64(self.epoch).u64(self.from).u64(self.to);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<BurnedRange, TooShort> {
        let (zone, member, epoch) = (from.u32()?, from.u32()?, from.u64()?);
        Ok(BurnedRange { zone, member, epoch, from: from.u64()?, to: from.u64()? })
    }

    fn check(&self, of: &Superblock) -> Result<(), Absurd> {
        expect(self.zone < of.zones, "zone of burned", self.zone)?;
        expect((self.member as usize) < of.members.len(), "member of burned", self.member)?;
        expect(self.to <= of.rows * of.chunk_blocks as u64, "to", self.to)?;
        expect(self.from <= self.to, "from", self.from)
    }
}

impl BadBlocks {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.zone).u32(self.member).u64(self.epoch).u64(self.from).u64(self.to);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<BadBlocks, TooShort> {
        let (zone, member, epoch) = (from.u32()?, from.u32()?, from.u64()?);
        Ok(BadBlocks { zone, member, epoch, from: from.u64()?, to: from.u64()? })
    }

    fn check(&self, of: &Superblock) -> Result<(), Absurd> {
        expect(self.zone < of.zones, "zone of bad blocks", self.zone)?;
        expect((self.member as usize) < of.members.len(), "member of bad blocks", self.member)?;
        expect(self.to <= of.rows * of.chunk_blocks as u64, "end of bad blocks", self.to)?;
        expect(self.from <= self.to, "start of bad blocks", self.from)
    }
}

impl PartBadBlocks {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.zone).u32(self.member).u64(self.epoch).u32(self.ranges.len() as u32).u32(0);
        for range in &self.ranges {
            out.u64(range.start).u64(range.end);
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<PartBadBlocks, TooShort> {
        let (zone, member, epoch, count, _) =
            (from.u32()?, from.u32()?, from.u64()?, from.u32()?, from.u32()?);
        let ranges = (0..count).map(|_| Ok(from.u64()?..from.u64()?)).collect::<Result<_, TooShort>>()?;
        Ok(PartBadBlocks { zone, member, epoch, ranges })
    }

    fn check(&self, of: &Superblock) -> Result<(), Absurd> {
        let (zone, member, epoch) = (self.zone, self.member, self.epoch);
        let mut ranges =
            self.ranges.iter().map(|r| BadBlocks { zone, member, epoch, from: r.start, to: r.end });
        expect(zone < of.zones, "zone of bad blocks", zone)?;
        expect((member as usize) < of.members.len(), "member of bad blocks", member)?;
        ranges.try_for_each(|bad_block| bad_block.check(of))
    }
}

impl ParityRecord {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.zone).u32(self.index).u64(self.epoch).u64(self.stripe);
        out.u32(self.from).u32(self.data.len() as u32).bytes(&self.data);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<ParityRecord, RecordError> {
        let (zone, index, epoch, stripe) = (from.u32()?, from.u32()?, from.u64()?, from.u64()?);
        let (first, len) = (from.u32()?, from.u32()?);
        if !(len as usize).is_multiple_of(BLOCK) {
            return Err(RecordError::Damaged);
        }
        Ok(ParityRecord {
            zone,
            epoch,
            stripe,
            index,
            from: first,
            data: Buf::copy_of(from.bytes(len as usize)?),
        })
    }

    fn check(&self, of: &Superblock) -> Result<(), Absurd> {
        expect(self.zone < of.zones, "zone of parity", self.zone)?;
        let index = self.index as u64;
        expect(self.index == RELOCATED || index < of.layout().data_chunks(), "index", index)?;
        expect(self.stripe < of.rows, "stripe", self.stripe)?;
        let (from, chunk) = (self.from as u64, of.chunk_blocks as u64);
        expect(from < chunk, "from", from)?;
        expect(self.data.blocks() <= chunk - from, "data bytes", self.data.len() as u64)
    }
}

impl LastChecksums {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.zone).u32(self.sums.len() as u32).u64(self.epoch).u64(self.from);
        for sum in &self.sums {
            out.u32(*sum);
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<LastChecksums, TooShort> {
        let (zone, count, epoch, first) = (from.u32()?, from.u32()?, from.u64()?, from.u64()?);
        let sums = (0..count).map(|_| from.u32()).collect::<Result<_, TooShort>>()?;
        Ok(LastChecksums { zone, epoch, from: first, sums })
    }

    fn check(&self, of: &Superblock) -> Result<(), Absurd> {
        let count = self.sums.len() as u64;
        expect(self.zone < of.zones, "zone of checksums", self.zone)?;
        expect(count <= of.checksum_group_blocks as u64, "checksums", count)?;
        expect(self.from <= MOST_BLOCKS - count, "start of checksums", self.from)
    }
}

impl TailRecord {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.zone).u32(self.generation).u64(self.epoch).u64(self.tail_blocks);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<TailRecord, TooShort> {
        let (zone, generation) = (from.u32()?, from.u32()?);
        Ok(TailRecord { zone, generation, epoch: from.u64()?, tail_blocks: from.u64()? })
    }

    fn check(&self, of: &Superblock) -> Result<(), Absurd> {
        expect(self.zone < of.zones, "zone of tail", self.zone)?;
        // The low bits of an earlier event. Once events have more bits, this check always passes.
        expect(self.generation as u64 <= of.event, "generation of tail", self.generation)?;
        expect(self.tail_blocks <= of.layout().capacity_blocks(), "tail", self.tail_blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin { array: Uuid([7; 16]), member: 3, lba: 42 }
    }

    #[test]
    fn record_reads_back_and_rejects_flipped_bits() {
        let parity =
            ParityRecord { zone: 1, epoch: 2, stripe: 3, index: 1, from: 5, data: Buf::copy_of(&[9; BLOCK]) };
        let mut bytes = Record::Parity(parity).encode(origin(), 77).to_vec();
        assert_eq!(bytes.len(), 2 * BLOCK);
        let (record, sequence, blocks) = Record::read(&bytes, origin()).unwrap();
        assert_eq!((sequence, blocks), (77, 2));
        assert!(
            matches!(record, Record::Parity(p) if p.data[..] == [9; BLOCK] && p.from == 5 && p.stripe == 3)
        );
        for bit in 0..(HEADER_BYTES + 32) * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::read(&bytes, origin()).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(Record::read(&bytes, origin()).is_ok());
    }

    #[test]
    fn record_read_distinguishes_misplaced_foreign_and_newer_records() {
        let record = Record::Reset { first: 1, count: 2 };
        let bytes = record.encode(origin(), 1);
        let at = |change: fn(&mut Origin)| {
            let mut other = origin();
            change(&mut other);
            Record::read(&bytes, other).map(|_| ()).unwrap_err()
        };
        assert_eq!(at(|o| o.lba = 43), RecordError::NoRecord);
        assert_eq!(at(|o| o.member = 4), RecordError::Foreign(origin()));
        assert_eq!(at(|o| o.array = Uuid([8; 16])), RecordError::Foreign(origin()));
        let mut newer = bytes.to_vec();
        newer[8] = VERSION as u8 + 1;
        newer[CRC_AT..CRC_AT + 4].fill(0);
        let crc = crc32c::crc32c(&newer[..HEADER_BYTES + 8]);
        newer[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Record::read(&newer, origin()).map(|_| ()), Err(RecordError::Version(VERSION + 1)));
        assert_eq!(Record::read(&[0; BLOCK], origin()).map(|_| ()), Err(RecordError::NoRecord));
    }
}
