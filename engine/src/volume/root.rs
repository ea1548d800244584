//! Roots of volumes: the state at a cut, as a checkpoint records it, in sealed blocks ([`super::format`]).

use crate::{
    format::codec::{Decoder, Encoder},
    volume::{
        address::{Address, GRAINS, Unit},
        format::MOST_NUMBER,
        piece::Codec,
    },
};

/// The first version whose roots have features.
const WITH_FEATURES: u16 = 6;

/// Maximum live count of one block in grains: a piece of one grain counts for two (`address::charge`).
const MOST_LIVE: u64 = 2 * GRAINS as u64;

/// Maximum live count of one block in a pool with snapshots: each of the 16 blocks of a unit of 8 grains counts for 9 if
/// another volume has it.
pub const MOST_LIVE_SHARED: u64 = 18 * GRAINS as u64;

/// The state of a zone in a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootZone {
    /// Live count of the zone, in grains.
    pub live: u32,
    pub state: ZoneUse,
    /// Incarnation of the zone. Of a zone of the map: the last checkpoint before it was begun, so that all its pages have
    /// larger generations; 0 in zones that were begun before version 7. 0 if it is free.
    pub segment: u64,
}

impl RootZone {
    /// Whether nothing more is written to the zone, and it has contents.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, ZoneUse::ClosedData | ZoneUse::ClosedMap)
    }
}

/// Use of a zone by the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZoneUse {
    #[default]
    Free = 0,
    /// Being written with groups.
    Data = 1,
    /// Being written with pages and directory blocks of the map.
    Map = 2,
    /// Contains groups; nothing more is written to it.
    ClosedData = 3,
    /// Contains pages of the map; nothing more is written to it.
    ClosedMap = 4,
    /// Unusable: it could not be reset, or is worn. It holds no live data.
    Lost = 5,
}

impl ZoneUse {
    /// Whether the zone holds pages of the map.
    pub fn is_of_map(self) -> bool {
        matches!(self, ZoneUse::Map | ZoneUse::ClosedMap)
    }

    fn from_value(value: u8) -> Option<ZoneUse> {
        use ZoneUse::*;
        [Free, Data, Map, ClosedData, ClosedMap, Lost].into_iter().find(|used| *used as u8 == value)
    }
}

/// Number of the hot window in [`CutRecord::stream`]: it has no stream.
pub const WINDOW: u8 = 4;

/// The position of a stream at the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutRecord {
    pub stream: u8,
    pub zone: u32,
    /// Cut: the root covers all blocks below this offset.
    pub offset: u32,
    /// Least possible write pointer of the zone. If it is below `offset`, a power cut has torn the last group, and the
    /// blocks from here to `offset` are to be filled with zeros.
    pub written: u32,
}

/// Size of a sector: the smallest write that users may make. It never changes. The volume itself has blocks only; its
/// server writes parts of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SectorSize {
    /// An eighth of a block, for users that support nothing else.
    B512 = 512,
    /// A block.
    #[default]
    B4096 = 4096,
}

impl SectorSize {
    /// The sector size of this number of bytes, if there is one.
    pub fn from_bytes(bytes: u32) -> Option<SectorSize> {
        [SectorSize::B512, SectorSize::B4096].into_iter().find(|size| *size as u32 == bytes)
    }
}

/// Feature of a root: the blocks are those of a pool, and the first of them hold its table ([`super::pool_table`]).
pub const POOL: u64 = 1;

/// Feature of a root: the pool may have snapshots, and its log the entries that concern these.
pub const SNAPSHOTS: u64 = 2;

/// Feature of a root: groups may have pieces in the block of their header.
pub const SHARED_HEADERS: u64 = 4;

/// Feature of a root: room is guaranteed to volumes of the pool, and the root has the room of each extent.
pub const GUARANTEES: u64 = 8;

/// Feature of a root: groups may end with their header.
pub const TRAILERS: u64 = 16;

/// Feature of a root: there is a hot window ([`super::window`]), whose zone is in the cuts.
pub const HOT_WINDOW: u64 = 32;

/// Feature of a root: the extents of the pool go to its shards in turn.
pub const EXTENTS_IN_TURN: u64 = 64;

/// Feature of a root: room is guaranteed to volumes of a pool of several shards.
pub const GUARANTEES_IN_SHARDS: u64 = 128;

/// Division of the blocks of a pool, which never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// Blocks of an extent.
    pub extent_blocks: u32,
    /// Most volumes.
    pub slots: u32,
}

/// The identity of a volume, which never changes, apart from its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeIdentity {
    pub uuid: [u8; 16],
    /// Number of logical blocks.
    pub blocks: u64,
    /// Writable blocks of a zone of the device, and its number of zones.
    pub zone_capacity_blocks: u64,
    pub zones: u32,
    pub sector: SectorSize,
    /// Division of the blocks among the volumes of a pool; `None` if they are those of one volume.
    pub pool: Option<PoolShape>,
    /// Whether the extents of the pool go to its shards in turn. False with one shard, and in pools of earlier programs,
    /// whose extents may be in two.
    pub extents_in_turn: bool,
}

impl VolumeIdentity {
    /// Blocks of an extent, if the extents go to the shards in turn.
    pub fn extent_in_turn(&self) -> Option<u32> {
        self.pool.filter(|_| self.extents_in_turn).map(|pool| pool.extent_blocks)
    }

    /// 64-bit hash of the UUID, which is part of every group header and sealed block of the volume.
    pub fn mark(&self) -> u64 {
        let mark = crc32c::crc32c(&self.uuid);
        self.uuid.iter().fold(mark as u64, |sum, byte| sum.rotate_left(8) ^ *byte as u64)
    }
}

/// The state of a volume at a cut: the content of a checkpoint record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    pub identity: VolumeIdentity,
    /// Number of the checkpoint.
    pub generation: u64,
    /// Number of the next entry.
    pub next_number: u64,
    /// Number of the next segment.
    pub next_segment: u64,
    /// Age in segments below which a version counts as short-lived.
    pub lifespan: u64,
    /// Number of mapped logical blocks.
    pub mapped: u64,
    /// Codec of new data.
    pub codec: Option<Codec>,
    /// Largest unit of new data.
    pub unit: Unit,
    /// Seconds for which a write waits for room; 0 if it fails at once.
    pub queue_seconds: u8,
    /// Whether the volumes of the pool may have snapshots.
    pub has_snapshots: bool,
    /// [`SHARED_HEADERS`]: in every root but those of earlier programs.
    pub shares_headers: bool,
    /// Counted grains of each extent of the pool, if room is guaranteed to some of its volumes.
    pub extents: Option<Vec<u32>>,
    /// [`TRAILERS`]: in every root but those of earlier programs.
    pub has_trailers: bool,
    /// Features (bits) without which a program must not open the volume, except those above.
    pub other_features: u64,
    pub cuts: Vec<CutRecord>,
    /// Places of the blocks of the directory.
    pub directory: Vec<Address>,
    /// One record for each zone of the device.
    pub zones: Vec<RootZone>,
}

impl Root {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        let VolumeIdentity { uuid, blocks, zone_capacity_blocks, zones, sector, pool, .. } = &self.identity;
        let with = |has: bool, feature: u64| if has { feature } else { 0 };
        let features = self.other_features
            | with(pool.is_some(), POOL)
            | with(self.has_snapshots, SNAPSHOTS)
            | with(self.shares_headers, SHARED_HEADERS)
            | with(self.extents.is_some(), GUARANTEES)
            | with(self.extents.is_some() && self.identity.extents_in_turn, GUARANTEES_IN_SHARDS)
            | with(self.has_trailers, TRAILERS)
            | with(self.identity.extents_in_turn, EXTENTS_IN_TURN)
            | with(self.cuts.iter().any(|cut| cut.stream == WINDOW), HOT_WINDOW);
        out.bytes(uuid).u64(*blocks).u64(*zone_capacity_blocks).u32(*zones).u32(*sector as u32);
        out.u64(self.generation).u64(self.next_number).u64(self.next_segment).u64(self.lifespan);
        let [codec, level] = Codec::in_root(self.codec);
        out.u64(self.mapped).u32(u32::from_le_bytes([codec, level, self.unit.number(), self.queue_seconds]));
        out.u32(self.cuts.len() as u32).u32(self.directory.len() as u32).u64(features);
        for cut in &self.cuts {
            out.u32(cut.stream as u32).u32(cut.zone).u32(cut.offset).u32(cut.written);
        }
        for at in &self.directory {
            out.u32(*at as u32);
        }
        for zone in &self.zones {
            out.u32(zone.live).u64(zone.segment << 8 | zone.state as u64);
        }
        // Behind everything else, where a program without pools does not look before it refuses the feature.
        if let Some(PoolShape { extent_blocks, slots }) = pool {
            out.u32(*extent_blocks).u32(*slots);
        }
        for held in self.extents.iter().flatten() {
            out.u32(*held);
        }
        out.0
    }

    /// Reads a root of a format version; `None` if it is not valid.
    pub fn decode(bytes: &[u8], version: u16) -> Option<Root> {
        let mut from = Decoder(bytes);
        let identity = VolumeIdentity {
            uuid: from.array().ok()?,
            blocks: from.u64().ok()?,
            zone_capacity_blocks: from.u64().ok()?,
            zones: from.u32().ok()?,
            sector: SectorSize::from_bytes(from.u32().ok()?)?,
            pool: None,
            extents_in_turn: false,
        };
        let (generation, next_number) = (from.u64().ok()?, from.u64().ok()?);
        let (next_segment, lifespan) = (from.u64().ok()?, from.u64().ok()?);
        let (mapped, [codec, level, unit, queue_seconds]) =
            (from.u64().ok()?, from.u32().ok()?.to_le_bytes());
        let (codec, unit) = (Codec::of_root([codec, level])?, Unit::of_number(unit)?);
        let (cuts, directory) = (from.u32().ok()?, from.u32().ok()?);
        let features = if version >= WITH_FEATURES { from.u64().ok()? } else { 0 };
        let identity = VolumeIdentity { extents_in_turn: features & EXTENTS_IN_TURN != 0, ..identity };
        let whole = bytes.len() as u64;
        let numbers = [generation, next_number, next_segment, lifespan, mapped];
        if numbers.iter().any(|number| *number >= MOST_NUMBER) {
            return None;
        }
        if cuts as u64 > whole || directory as u64 > whole || identity.zones as u64 > whole {
            return None;
        }
        let mut root = Root {
            identity,
            generation,
            next_number,
            next_segment,
            lifespan,
            mapped,
            codec,
            unit,
            queue_seconds,
            has_snapshots: features & SNAPSHOTS != 0,
            shares_headers: features & SHARED_HEADERS != 0,
            extents: None,
            has_trailers: features & TRAILERS != 0,
            other_features: features
                & !(POOL | SNAPSHOTS | SHARED_HEADERS | GUARANTEES | TRAILERS | HOT_WINDOW | EXTENTS_IN_TURN)
                & !GUARANTEES_IN_SHARDS,
            cuts: Vec::new(),
            directory: Vec::new(),
            zones: Vec::new(),
        };
        for _ in 0..cuts {
            let (stream, zone) = (from.u32().ok()?, from.u32().ok()?);
            let (offset, written) = (from.u32().ok()?, from.u32().ok()?);
            let sane = zone < root.identity.zones && offset as u64 <= root.identity.zone_capacity_blocks;
            let stream = u8::try_from(stream).ok().filter(|_| sane && written <= offset)?;
            root.cuts.push(CutRecord { stream, zone, offset, written });
        }
        for _ in 0..directory {
            root.directory.push(from.u32().ok()? as Address);
        }
        for _ in 0..root.identity.zones {
            let (live, packed) = (from.u32().ok()?, from.u64().ok()?);
            let state = ZoneUse::from_value(packed as u8)?;
            let segment = packed >> 8;
            let next = if state.is_of_map() { generation } else { next_segment };
            let most = if root.has_snapshots { MOST_LIVE_SHARED } else { MOST_LIVE };
            if segment >= next.max(1) || live as u64 > root.identity.zone_capacity_blocks.saturating_mul(most)
            {
                return None;
            }
            root.zones.push(RootZone { live, state, segment });
        }
        if features & POOL != 0 {
            root.identity.pool = Some(PoolShape { extent_blocks: from.u32().ok()?, slots: from.u32().ok()? });
        }
        if features & GUARANTEES != 0 {
            root.extents = Some(root.read_extents(&mut from)?);
        }
        let needs_pool = root.has_snapshots || root.identity.extents_in_turn;
        (root.identity.pool.is_some() || !needs_pool).then_some(root)
    }

    /// The counted grains of each extent of a pool; `None` if there is no pool, or a number cannot be.
    fn read_extents(&self, from: &mut Decoder<'_>) -> Option<Vec<u32>> {
        let extent_blocks = self.identity.pool?.extent_blocks;
        let extents = self.identity.blocks.checked_div(extent_blocks.into())?;
        (extent_blocks <= u32::MAX / GRAINS).then_some(())?;
        let mut held = Vec::new();
        for _ in 0..extents {
            let grains = from.u32().ok()?;
            (grains as u64 <= extent_blocks as u64 * GRAINS as u64).then_some(())?;
            held.push(grains);
        }
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::format::VERSION;

    #[test]
    fn volume_root_reads_back_and_rejects_truncation() {
        let identity = VolumeIdentity {
            uuid: *b"sixteen bytes...",
            blocks: 1 << 32,
            zone_capacity_blocks: 50,
            zones: 2,
            sector: SectorSize::B512,
            pool: Some(PoolShape { extent_blocks: 1 << 25, slots: 3 }),
            extents_in_turn: true,
        };
        let root = Root {
            identity,
            generation: 3,
            next_number: 4,
            next_segment: (1 << 40) + 1,
            lifespan: 6,
            mapped: 5,
            codec: Some(Codec::Lz4),
            unit: Unit::MOST,
            queue_seconds: 60,
            has_snapshots: true,
            shares_headers: true,
            extents: Some(vec![64; 128]),
            has_trailers: true,
            other_features: 1 << 40,
            cuts: vec![CutRecord { stream: 1, zone: 1, offset: 50, written: 49 }],
            directory: vec![0, 9, 8],
            zones: vec![
                RootZone { live: 4, state: ZoneUse::ClosedData, segment: 1 << 40 },
                RootZone::default(),
            ],
        };
        let bytes = root.encode();
        assert_eq!(Root::decode(&bytes, VERSION).as_ref(), Some(&root));
        for len in 0..bytes.len() {
            assert_eq!(Root::decode(&bytes[..len], VERSION), None, "{len} bytes");
        }
    }
}
