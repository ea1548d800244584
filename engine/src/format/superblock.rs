//! The superblock: the properties and the members of an array.
//!
//! A checksum proves that a superblock is as it was written, not that its values are possible. So its numbers are
//! checked, in [`Superblock::check`] and nowhere else, both when an array is created and when a superblock is read:
//! code that uses a superblock may rely on these bounds.

use crate::{
    adapt::checksum::block::GROUP_BLOCKS as CHECKSUM_GROUP_BLOCKS,
    buf::BLOCK,
    device::DriveId,
    format::{
        Uuid,
        codec::{Absurd, Decoder, Encoder, MOST_NUMBER, RecordError, expect},
        lineage::Lineage,
        name::{NAME_BYTES, shows, wrong_with_name},
        oob::{OOB_BYTES, SUMMED_OOB_BYTES},
    },
    raid::{
        geometry::{Layout, MAX_MEMBERS, MAX_PARITIES},
        policy::kind::Policy,
    },
    zone::{MOST_BLOCKS, MOST_ZONES},
};
use std::ops::RangeInclusive;

/// Default of [`Superblock::error_limit`].
pub const ERROR_LIMIT: u32 = 100;

/// Longest model name of a drive, in bytes: that of NVMe.
pub const MODEL_BYTES: usize = 40;
/// Longest serial number of a drive, in bytes: that of NVMe.
pub const SERIAL_BYTES: usize = 20;

/// Largest drive, in bytes.
const MOST_BYTES: u64 = MOST_BLOCKS * BLOCK as u64;

/// Incompatible feature: zones are written by appends, in groups.
pub const GROUPS: u64 = 2;

/// Incompatible feature: each block of a zone has a checksum in its out-of-band metadata.
pub const CHECKSUMS: u64 = 4;

/// Incompatible feature: each block of a data zone has a checksum in a block of the zone.
pub const CHECKSUM_BLOCKS: u64 = 8;

/// Incompatible feature: as [`CHECKSUM_BLOCKS`], in zones that are written in their ZRWAs.
pub const ZRWA_CHECKSUM_BLOCKS: u64 = 16;

/// Incompatible feature: as [`GROUPS`], with a checksum of each block in its metadata.
pub const GROUP_CHECKSUMS: u64 = 32;

/// Incompatible feature: a single drive without parity.
pub const SINGLE: u64 = 64;

/// Incompatible feature: policy `zrwa` with [`CHECKSUMS`], where tail records in the metadata logs that have a generation
/// begin it.
pub const GENERATIONS: u64 = 128;

/// Incompatible feature: policy `zrwa`, where log blocks may have notes.
pub const NOTES: u64 = 256;

/// Incompatible feature: policy `zrwa`, where the ZRWAs of a zone may have cells.
pub const CELLS: u64 = 512;

/// The features of checksums in blocks of the zones.
const IN_BLOCKS: u64 = CHECKSUM_BLOCKS | ZRWA_CHECKSUM_BLOCKS;

/// Incompatible features that this code knows. A superblock with any other one is refused.
pub const KNOWN_INCOMPATIBLE: u64 =
    GROUPS | GROUP_CHECKSUMS | CHECKSUMS | IN_BLOCKS | SINGLE | GENERATIONS | NOTES | CELLS;

/// Read-only-compatible features that this code knows: none yet. A superblock with any other one is refused, also by a
/// read-only assembly.
pub const KNOWN_READ_ONLY_COMPATIBLE: u64 = 0;

/// Possible numbers of zones of a drive that are used as one.
pub const AGGREGATES: [u32; 5] = [1, 2, 4, 8, 16];

/// Number of members that an array with this number of parities may have. Without parity it is a single drive.
pub fn members_of(parities: usize) -> RangeInclusive<u64> {
    match parities {
        0 => 1..=1,
        _ => parities as u64 + 2..=MAX_MEMBERS as u64,
    }
}

/// Level with this number of parities, as users type it and as JSON has it.
pub fn level(parities: usize) -> String {
    match parities {
        0 => "single".into(),
        _ => format!("raid{}", 4 + parities),
    }
}

/// Name of the level with this number of parities, in sentences.
pub fn level_name(parities: usize) -> String {
    match parities {
        0 => "single".into(),
        _ => format!("RAID-{}", 4 + parities),
    }
}

/// Blocks in a chunk: 8 KiB to 16 MiB.
pub const CHUNK_BLOCKS: RangeInclusive<u64> = 2..=4096;

/// The visible part of a drive's own description, cut to `most` bytes.
pub fn kept_of(text: &str, most: usize) -> String {
    let shown: String = text.trim().chars().filter(|c| shows(*c)).collect();
    let end = (0..=most.min(shown.len())).rfind(|end| shown.is_char_boundary(*end)).unwrap_or(0);
    shown[..end].trim().to_string()
}

/// Stage in the life of an array. Only a `Whole` one can be assembled: a power cut during creation or destruction
/// leaves drives with one of the other stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// The array is being created: its superblock is not on all drives yet.
    Making = 1,
    /// The array is complete.
    #[default]
    Whole = 2,
    /// The array is being destroyed: its drives are being made blank.
    Ending = 3,
}

impl Stage {
    fn from_value(value: u32) -> Option<Stage> {
        [Stage::Making, Stage::Whole, Stage::Ending].into_iter().find(|stage| *stage as u32 == value)
    }
}

/// The properties and the members of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Features (bits) that unaware code may ignore.
    pub compatible: u64,
    /// Features (bits) that code has to know to write anything.
    pub read_only_compatible: u64,
    /// Features (bits) that code has to know to read anything.
    pub incompatible: u64,
    /// Array UUID, random.
    pub array: Uuid,
    /// User-visible name.
    pub name: String,
    /// Sequence number of this superblock: the higher one is newer.
    pub event: u64,
    /// Members with a last event older than this have missed changes and are stale.
    pub floor: u64,
    /// Blocks in a chunk.
    pub chunk_blocks: u32,
    /// Rows of chunks in a zone.
    pub rows: u64,
    /// Rows that partial parity is ahead of its stripe (D).
    pub distance: u32,
    /// Distance between two logical zones in blocks.
    pub zone_size_blocks: u64,
    /// Logical zones.
    pub zones: u32,
    /// Most logical zones that are active at once; every member can have two more.
    pub max_active: u32,
    /// Blocks that a member's metadata log may need.
    pub log_blocks: u32,
    /// Number of the last assembly: acknowledged tails (`Tails`) with another number are void.
    pub assembly: u64,
    /// How partial stripes are protected.
    pub policy: Policy,
    /// Zones of a member that are used as one (static aggregation, ZRAID §4.4); 1 without it.
    pub aggregate: u32,
    /// Parities of a stripe: the number of members that may be lost.
    pub parities: u32,
    /// Blocks of a group, if members' zones are written by appends; otherwise 0.
    pub group_blocks: u32,
    /// Blocks of members' zones that share a checksum block, if there are such blocks; otherwise 0.
    pub checksum_group_blocks: u32,
    /// UUID of the owner, the host that created or adopted the array; zeros for none.
    pub host: Uuid,
    /// Whether the array starts automatically on `host`.
    pub autostart: bool,
    /// Whether it is being created, complete, or being destroyed.
    pub stage: Stage,
    /// UUID of the host that runs the array; zeros if it has been stopped, or that host has no id.
    pub runner: Uuid,
    /// Blocks of a member that may be repaired before it is to be replaced; 0 if any number may.
    pub error_limit: u32,
    /// By role.
    pub members: Vec<SuperblockMember>,
    /// The assemblies that have written to the array.
    pub lineage: Lineage,
}

/// How the zones of a member are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In any order, in a ZRWA.
    Any,
    /// One write at a time.
    One,
    /// One write at a time or, `in_zrwa`, in any order, with checksums in blocks of the zones.
    Checksums {
        /// Whether zones are written in their ZRWAs.
        in_zrwa: bool,
        /// Blocks that share a checksum block.
        group_blocks: u64,
        /// UUID of the member that is written.
        member: Uuid,
    },
    /// By appends.
    Groups {
        /// Blocks of a group, which may land in any order.
        blocks: u64,
        /// Whether each block has a checksum.
        checksums: bool,
        /// UUID of the member that is written.
        member: Uuid,
    },
}

impl Order {
    /// How the zones of the member with UUID `member` are written, by the policy and the blocks of a group: of one that
    /// is written by appends, with `checksums` or not, and of one that shares a checksum block; 0 for none.
    pub fn of(policy: Policy, groups: (u32, u32), checksums: bool, member: Uuid) -> Order {
        match (groups.0 as u64, groups.1 as u64) {
            (0, group_blocks @ 1..) => Order::Checksums { in_zrwa: policy.uses_zrwa(), group_blocks, member },
            _ if policy.uses_zrwa() => Order::Any,
            (0, 0) => Order::One,
            (blocks, _) => Order::Groups { blocks, checksums, member },
        }
    }
}

/// Errors of a member's drive since it became the member; each count ends at 65,535.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    /// Reads that failed, or returned a wrong block.
    pub reads: u16,
    /// Of the repaired blocks, those that the drive had returned wrong.
    pub wrong: u16,
    /// Errors that took the member out, or cost it a part of a zone: mostly failed writes.
    pub writes: u16,
    /// Blocks that were repaired, since the drive could not read them or returned them wrong.
    pub repaired: u16,
}

impl std::ops::Add for ErrorCounts {
    type Output = ErrorCounts;

    fn add(self, other: ErrorCounts) -> ErrorCounts {
        ErrorCounts {
            reads: self.reads.saturating_add(other.reads),
            wrong: self.wrong.saturating_add(other.wrong),
            writes: self.writes.saturating_add(other.writes),
            repaired: self.repaired.saturating_add(other.repaired),
        }
    }
}

/// A member in the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperblockMember {
    /// UUID of the drive as a member of the array.
    pub uuid: Uuid,
    /// Event with which the drive became the member.
    pub since: u64,
    /// Whether the member belongs to the array now; otherwise its place is vacant.
    pub active: bool,
    /// The member is taking over from the drive that became the member with this event, and holds the same: if the new
    /// drive cannot be used, the old one is the member.
    pub taking_over: Option<u64>,
    /// Label of the drive, to identify it when it is missing.
    pub drive_id: DriveId,
    /// Errors of the drive.
    pub errors: ErrorCounts,
}

impl SuperblockMember {
    /// An active member.
    pub fn new(uuid: Uuid, since: u64, drive_id: DriveId) -> SuperblockMember {
        SuperblockMember {
            uuid,
            since,
            active: true,
            taking_over: None,
            drive_id,
            errors: ErrorCounts::default(),
        }
    }

    fn encode(&self, out: &mut Encoder) {
        let SuperblockMember { uuid, since, active, taking_over, drive_id, errors } = self;
        let flags = *active as u32 | (taking_over.is_some() as u32) << 1;
        out.bytes(&uuid.0).u32(flags).u16(errors.reads).u16(errors.wrong);
        out.u64(*since).u64(taking_over.unwrap_or(0));
        out.u64(drive_id.size_bytes);
        out.bytes(&padded::<MODEL_BYTES>(&drive_id.model)).bytes(&padded::<SERIAL_BYTES>(&drive_id.serial));
        out.u16(errors.writes).u16(errors.repaired);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<SuperblockMember, RecordError> {
        // Up to version 9 the counts are zeros.
        let (uuid, flags, reads, wrong) = (Uuid(from.array()?), from.u32()?, from.u16()?, from.u16()?);
        let (since, before, size_bytes) = (from.u64()?, from.u64()?, from.u64()?);
        let model = text(from.bytes(MODEL_BYTES)?, "model")?;
        let serial = text(from.bytes(SERIAL_BYTES)?, "serial")?;
        let errors = ErrorCounts { reads, wrong, writes: from.u16()?, repaired: from.u16()? };
        let drive_id = DriveId { model, serial, size_bytes };
        let taking_over = (flags & 2 != 0).then_some(before);
        Ok(SuperblockMember { uuid, since, active: flags & 1 != 0, taking_over, drive_id, errors })
    }
}

/// Text padded with zeros to `N` bytes; longer text is cut off.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let len = text.len().min(N);
    bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
    bytes
}

/// The inverse of [`padded`].
fn text(bytes: &[u8], field: &'static str) -> Result<String, Absurd> {
    let len = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = str::from_utf8(&bytes[..len]);
    text.map(str::to_string).map_err(|_| Absurd { field, value: len as u64 })
}

impl Superblock {
    /// The arrangement of every zone.
    pub fn layout(&self) -> Layout {
        Layout {
            policy: self.policy,
            members: self.members.len(),
            parities: self.parities as usize,
            chunk_blocks: self.chunk_blocks as u64,
            rows: self.rows,
            distance: self.distance as u64,
        }
    }

    /// How the zones of the member with UUID `member` are written.
    pub fn order(&self, member: Uuid) -> Order {
        let groups = (self.group_blocks, self.checksum_group_blocks);
        Order::of(self.policy, groups, self.incompatible & GROUP_CHECKSUMS != 0, member)
    }

    /// Whether each block of a zone has a checksum.
    pub fn has_checksums(&self) -> bool {
        self.incompatible & (CHECKSUMS | GROUP_CHECKSUMS | IN_BLOCKS) != 0
    }

    /// Whether each block of a zone has a checksum in its out-of-band metadata.
    pub fn has_checksums_in_metadata(&self) -> bool {
        self.incompatible & CHECKSUMS != 0
    }

    /// Whether a record begins each generation of a zone: what one assembly has written to it.
    pub fn logs_generations(&self) -> bool {
        let has_records = self.policy == Policy::InPlace || self.incompatible & GENERATIONS != 0;
        self.has_checksums_in_metadata() && has_records
    }

    /// Whether log blocks may have notes.
    pub fn has_notes(&self) -> bool {
        self.incompatible & NOTES != 0
    }

    /// Whether the ZRWAs of a zone may have cells.
    pub fn has_cells(&self) -> bool {
        self.incompatible & CELLS != 0
    }

    /// Whether each block of a data zone has a checksum in a block of the zone.
    pub fn has_checksum_blocks(&self) -> bool {
        self.checksum_group_blocks > 0
    }

    /// Whether blocks of members' zones contain the UUID of the member that they were written for.
    pub fn stores_member_uuids(&self) -> bool {
        self.group_blocks > 0 || self.has_checksum_blocks()
    }

    /// Bytes of out-of-band metadata that each block needs.
    pub fn oob_bytes(&self) -> usize {
        match self.policy.uses_marks() {
            _ if self.has_checksums_in_metadata() => SUMMED_OOB_BYTES,
            true => OOB_BYTES,
            false => 0,
        }
    }

    /// Whether all bits of `mask` are roles of members.
    pub fn are_members(&self, mask: u32) -> bool {
        mask as u64 >> self.members.len() == 0
    }

    /// Appends the encoded superblock (docs/FORMAT.md).
    pub fn encode(&self, out: &mut Encoder) {
        out.u64(self.compatible).u64(self.read_only_compatible).u64(self.incompatible);
        out.bytes(&self.array.0);
        out.bytes(&padded::<NAME_BYTES>(&self.name));
        out.u64(self.event).u64(self.floor);
        out.u32(self.chunk_blocks).u32(self.distance).u64(self.rows);
        out.u64(self.zone_size_blocks).u32(self.zones).u32(self.members.len() as u32);
        out.u32(self.max_active).u32(self.log_blocks).u64(self.assembly);
        out.u32(self.policy as u32).u32(self.aggregate);
        out.bytes(&self.host.0).u32(self.autostart as u32).u32(self.stage as u32);
        out.u32(self.parities).u32(self.group_blocks.max(self.checksum_group_blocks));
        out.u32(self.lineage.assemblies.len() as u32).u32(self.lineage.attempts.len() as u32);
        out.bytes(&self.runner.0);
        out.u32(self.error_limit).u32(0);
        for member in &self.members {
            member.encode(out);
        }
        self.lineage.encode(out);
    }

    /// Reads a superblock of a supported format version. Its features are decoded first, so that a superblock of a
    /// later zoneraid, in which other fields may have other meanings, is distinguished from a damaged one.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn decode(from: &mut Decoder<'_>, version: u16) -> Result<Superblock, RecordError> {
        let (compatible, read_only_compatible, incompatible) = (from.u64()?, from.u64()?, from.u64()?);
        let unknown =
            (incompatible & !KNOWN_INCOMPATIBLE) | (read_only_compatible & !KNOWN_READ_ONLY_COMPATIBLE);
        if unknown != 0 {
            return Err(RecordError::Features(unknown));
        }
        let array = Uuid(from.array()?);
        let name = text(from.bytes(NAME_BYTES)?, "name")?;
        let (event, floor) = (from.u64()?, from.u64()?);
        let (chunk_blocks, distance, rows) = (from.u32()?, from.u32()?, from.u64()?);
        let (zone_size_blocks, zones, count) = (from.u64()?, from.u32()?, from.u32()?);
        let (max_active, log_blocks, assembly) = (from.u32()?, from.u32()?, from.u64()?);
        let (policy, aggregate) = (from.u32()?, from.u32()?);
        let policy = Policy::from_value(policy).ok_or(Absurd { field: "policy", value: policy as u64 })?;
        let (host, autostart, stage) = (Uuid(from.array()?), from.u32()?, from.u32()?);
        expect(autostart <= 1, "autostart", autostart)?;
        let stage = Stage::from_value(stage).ok_or(Absurd { field: "stage", value: stage as u64 })?;
        let (parities, group_blocks) = (from.u32()?, from.u32()?);
        // Without these features the field is reserved.
        let of = |feature: u64| if incompatible & feature != 0 { group_blocks } else { 0 };
        let (group_blocks, checksum_group_blocks) = (of(GROUPS), of(IN_BLOCKS));
        // Version 8 has neither the lineage nor the host that runs the array.
        let (assemblies, attempts) = if version > 8 { (from.u32()?, from.u32()?) } else { (0, 0) };
        let runner = if version > 8 { Uuid(from.array()?) } else { Uuid::default() };
        let (error_limit, _) = if version > 9 { (from.u32()?, from.u32()?) } else { (ERROR_LIMIT, 0) };
        expect(count as usize <= MAX_MEMBERS, "members", count)?;
        let members =
            (0..count).map(|_| SuperblockMember::decode(from)).collect::<Result<_, RecordError>>()?;
        let mut lineage = Lineage::decode(from, assemblies, attempts)?;
        if version < 10 {
            // The head was shorter, so that there was room for another one.
            lineage.cut(count as usize);
        }
        let superblock = Superblock {
            compatible,
            read_only_compatible,
            incompatible,
            array,
            name,
            event,
            floor,
            chunk_blocks,
            rows,
            distance,
            zone_size_blocks,
            zones,
            max_active,
            log_blocks,
            assembly,
            policy,
            aggregate,
            parities,
            group_blocks,
            checksum_group_blocks,
            host,
            autostart: autostart == 1,
            stage,
            runner,
            error_limit,
            members,
            lineage,
        };
        superblock.check()?;
        Ok(superblock)
    }

    /// Checks whether such an array is possible, on any drives.
    ///
    /// # Errors
    /// The first field with an impossible value.
    pub fn check(&self) -> Result<(), Absurd> {
        let (members, chunk) = (self.members.len() as u64, self.chunk_blocks as u64);
        expect(wrong_with_name(&self.name).is_none(), "name", self.name.len() as u64)?;
        expect(self.parities <= MAX_PARITIES as u32, "parities", self.parities)?;
        let is_single = self.incompatible & SINGLE != 0;
        expect(is_single == (self.parities == 0), "parities", self.parities)?;
        expect(!is_single || self.policy == Policy::Log, "policy", self.policy as u32)?;
        expect(members_of(self.parities as usize).contains(&members), "members", members)?;
        expect(chunk.is_power_of_two() && CHUNK_BLOCKS.contains(&chunk), "chunk blocks", chunk)?;
        let stripe = chunk * (members - self.parities as u64);
        expect((1..=MOST_BLOCKS / stripe).contains(&self.rows), "rows", self.rows)?;
        expect((1..=MOST_ZONES).contains(&self.zones), "zones", self.zones)?;
        let sizes = self.rows * stripe..=MOST_BLOCKS / self.zones as u64;
        expect(sizes.contains(&self.zone_size_blocks), "zone size", self.zone_size_blocks)?;
        expect((1..=self.rows).contains(&(self.distance as u64)), "distance", self.distance)?;
        expect((1..=self.zones).contains(&self.max_active), "max active", self.max_active)?;
        expect(self.log_blocks > 0, "log blocks", self.log_blocks)?;
        expect(AGGREGATES.contains(&self.aggregate), "aggregate", self.aggregate)?;
        let has_groups = self.incompatible & GROUPS != 0;
        let can_be = self.group_blocks.is_power_of_two() && self.policy == Policy::Log && self.aggregate == 1;
        let group_blocks_can_be = if has_groups { can_be } else { self.group_blocks == 0 };
        expect(group_blocks_can_be, "group blocks", self.group_blocks)?;
        let has_blocks = self.incompatible & IN_BLOCKS != 0;
        let can_be = CHECKSUM_GROUP_BLOCKS.contains(&(self.checksum_group_blocks as u64))
            && match self.incompatible & ZRWA_CHECKSUM_BLOCKS {
                0 => self.policy == Policy::Log && self.aggregate == 1,
                _ => self.policy == Policy::Zrwa,
            };
        let checksum_group_can_be = if has_blocks { can_be } else { self.checksum_group_blocks == 0 };
        expect(checksum_group_can_be, "checksum group blocks", self.checksum_group_blocks)?;
        let has_sums = self.incompatible & GROUP_CHECKSUMS != 0;
        let exclusive = self.incompatible & (GROUPS | CHECKSUMS | IN_BLOCKS);
        let has_generations = self.incompatible & GENERATIONS != 0;
        let generations_can_be = self.has_checksums_in_metadata() && self.policy == Policy::Zrwa;
        let features_can_be = exclusive.count_ones() <= 1
            && (!has_sums || self.group_blocks > 1)
            && (!has_generations || generations_can_be)
            && (self.incompatible & (NOTES | CELLS) == 0 || self.policy == Policy::Zrwa);
        expect(features_can_be, "features", self.incompatible)?;
        expect((1..=MOST_NUMBER).contains(&self.event), "event", self.event)?;
        expect(self.floor <= self.event, "floor", self.floor)?;
        expect(self.assembly <= MOST_NUMBER, "assembly", self.assembly)?;
        self.lineage.check(self.members.len(), self.event)?;
        for (role, member) in self.members.iter().enumerate() {
            let another = self.members[..role].iter().any(|other| other.uuid == member.uuid);
            expect(!another, "member with the uuid of another", role as u64)?;
            expect(member.since <= self.event, "since", member.since)?;
            let DriveId { model, serial, size_bytes } = &member.drive_id;
            expect(kept_of(model, MODEL_BYTES) == *model, "model", role as u64)?;
            expect(kept_of(serial, SERIAL_BYTES) == *serial, "serial", role as u64)?;
            expect(*size_bytes <= MOST_BYTES, "size", *size_bytes)?;
        }
        Ok(())
    }

    /// Checks whether `self` and `other` agree in the fields that never change, as two superblocks of one array do.
    ///
    /// # Errors
    /// The first field that differs.
    pub fn agree(&self, other: &Superblock) -> Result<(), Absurd> {
        let fields = |s: &Superblock| {
            [
                ("members", s.members.len() as u64),
                ("policy", s.policy as u64),
                ("aggregate", s.aggregate as u64),
                ("parities", s.parities as u64),
                ("group blocks", s.group_blocks as u64),
                ("checksum group blocks", s.checksum_group_blocks as u64),
                ("chunk blocks", s.chunk_blocks as u64),
                ("rows", s.rows),
                ("distance", s.distance as u64),
                ("zones", s.zones as u64),
                ("zone size", s.zone_size_blocks),
                ("max active", s.max_active as u64),
                ("log blocks", s.log_blocks as u64),
            ]
        };
        for ((field, value), (_, expected)) in fields(self).into_iter().zip(fields(other)) {
            expect(value == expected, field, value)?;
        }
        Ok(())
    }
}
