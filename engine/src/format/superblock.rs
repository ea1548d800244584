//! The superblock: what an array is and who belongs to it.

use super::{
    Uuid,
    codec::{Decoder, Encoder},
};
use crate::raid::{geometry::Layout, policy::Policy};

/// Longest name of an array, in bytes.
pub const NAME_BYTES: usize = 64;

/// Incompatible features this code knows: none yet. A set bit outside refuses to assemble.
pub const KNOWN_INCOMPATIBLE: u64 = 0;

/// Read-only-compatible features this code knows: none yet. zoneraid has no read-only assembly,
/// so that a set bit outside refuses to assemble as well.
pub const KNOWN_READ_ONLY_COMPATIBLE: u64 = 0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub compatible: u64,
    pub read_only_compatible: u64,
    pub incompatible: u64,
    pub array: Uuid,
    pub name: String,
    /// Sequence number of this superblock: the higher one is the newer.
    pub event: u64,
    /// Members whose last event is older than this were away and are stale.
    pub floor: u64,
    /// Blocks in a chunk.
    pub chunk_blocks: u32,
    /// Rows of chunks in a zone.
    pub rows: u64,
    /// Rows that partial parity is ahead (D).
    pub distance: u32,
    /// Distance between two logical zones in blocks.
    pub zone_size_blocks: u64,
    /// Logical zones.
    pub zones: u32,
    /// Most logical zones that are active at once; every member can do two more.
    pub max_active: u32,
    /// Blocks that a member's metadata log may need.
    pub log_blocks: u32,
    /// Number of the assembly whose tails may be believed (see `Tails`).
    pub assembly: u64,
    pub policy: Policy,
    /// Zones of a member that are used as one (static aggregation, ZRAID §4.4); 1 without it.
    pub aggregate: u32,
    /// In the order of their roles.
    pub members: Vec<SuperblockMember>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperblockMember {
    pub uuid: Uuid,
    /// Whether the member belongs to the array now; otherwise its place is vacant.
    pub active: bool,
}

impl Superblock {
    /// The arrangement of every zone.
    pub fn layout(&self) -> Layout {
        Layout {
            policy: self.policy,
            members: self.members.len(),
            chunk_blocks: self.chunk_blocks as u64,
            rows: self.rows,
            distance: self.distance as u64,
        }
    }

    pub fn encode(&self, out: &mut Encoder) {
        out.u64(self.compatible).u64(self.read_only_compatible).u64(self.incompatible);
        out.bytes(&self.array.0);
        let mut name = [0; NAME_BYTES];
        let len = self.name.len().min(NAME_BYTES);
        name[..len].copy_from_slice(&self.name.as_bytes()[..len]);
        out.bytes(&name);
        out.u64(self.event).u64(self.floor);
        out.u32(self.chunk_blocks).u32(self.distance).u64(self.rows);
        out.u64(self.zone_size_blocks).u32(self.zones).u32(self.members.len() as u32);
        out.u32(self.max_active).u32(self.log_blocks).u64(self.assembly);
        out.u32(self.policy as u32).u32(self.aggregate);
        for member in &self.members {
            out.bytes(&member.uuid.0).u64(member.active as u64);
        }
    }

    pub fn decode(from: &mut Decoder<'_>) -> Option<Superblock> {
        let (compatible, read_only_compatible, incompatible) = (from.u64()?, from.u64()?, from.u64()?);
        let array = Uuid(from.array()?);
        let name = from.bytes(NAME_BYTES)?;
        let len = name.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES);
        let name = String::from_utf8_lossy(&name[..len]).into_owned();
        let (event, floor) = (from.u64()?, from.u64()?);
        let (chunk_blocks, distance, rows) = (from.u32()?, from.u32()?, from.u64()?);
        let (zone_size_blocks, zones, count) = (from.u64()?, from.u32()?, from.u32()?);
        let (max_active, log_blocks, assembly) = (from.u32()?, from.u32()?, from.u64()?);
        let (policy, aggregate) = (Policy::from_value(from.u32()?)?, from.u32()?);
        let sane = (3..=32).contains(&count)
            && chunk_blocks.is_power_of_two()
            && rows > 0
            && distance > 0
            && aggregate > 0;
        if !sane {
            return None;
        }
        let members = (0..count)
            .map(|_| Some(SuperblockMember { uuid: Uuid(from.array()?), active: from.u64()? & 1 != 0 }))
            .collect::<Option<_>>()?;
        Some(Superblock {
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
            members,
        })
    }
}
