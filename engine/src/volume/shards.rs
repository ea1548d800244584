//! Shards of a volume: independent logs over zones of their own, each a volume in every respect, with its own roots, map
//! and garbage collection. A volume has as few as its size requires, mostly one: the addresses of a shard have 32 bits,
//! 16 TiB.
//!
//! The zones of the device are divided evenly, in order; the last ones may be left over. The logical blocks are divided
//! into *strides*, which go to the shards in turn; in a pool these are its
//! extents, unless it was made by an earlier program. No field records the number of shards: the root of the first one has
//! the number of its zones.

use crate::{
    adapt::range::ZoneRange,
    device::{Command, Geometry, ZonedDevice, Zones},
    evidence::Presence,
    runtime::Runtime,
    volume::{
        address::Unit,
        core::VolumeCore,
        error::{NoVolume, VolumeError},
        options::{VolumeCreateOptions, VolumeOptions},
        recover,
        root::PoolShape,
        scan::DeviceScan,
        space::{HEAD_ZONES, ShardPlan},
    },
    zone::{MOST_BLOCKS, ZoneIndex, ZoneState},
};
use std::{ops::Range, rc::Rc};

/// Longest stride: 1 GiB, so that hardly any request is in two.
const MOST_STRIDE: u64 = 1 << 18;
/// Least number of strides of a shard, unless they would be shorter than [`LEAST_STRIDE`]: shards are equally full then.
const LEAST_STRIDES: u64 = 64;
/// Shortest stride: the blocks of the largest unit.
const LEAST_STRIDE: u64 = 1 << 4;

/// Distribution of the blocks of a volume over its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardMap {
    shards: u64,
    /// Blocks of the volume.
    blocks: u64,
    /// Blocks of a stride.
    stride: u64,
}

impl ShardMap {
    /// `extent_blocks` are the blocks of an extent of a pool whose extents go to the shards in turn.
    pub fn new(shards: u32, blocks: u64, extent_blocks: Option<u32>) -> ShardMap {
        assert!(shards > 0, "a volume of {blocks} blocks without shards");
        let shards = shards as u64;
        let stride = match extent_blocks {
            Some(blocks) => blocks.into(),
            None => 1 << (blocks / shards / LEAST_STRIDES).clamp(LEAST_STRIDE, MOST_STRIDE).ilog2(),
        };
        ShardMap { shards, blocks, stride: stride.max(1) }
    }

    /// The shard of the block at `at`, the number of the block in it, and the blocks from there to the end of the stride
    /// or of the volume.
    pub fn find(&self, at: u64) -> (usize, u64, u64) {
        assert!(at < self.blocks, "block {at} of a volume of {} blocks", self.blocks);
        let (number, offset) = (at / self.stride, at % self.stride);
        let left = (self.stride - offset).min(self.blocks - at);
        ((number % self.shards) as usize, number / self.shards * self.stride + offset, left)
    }

    /// The number in the volume of a block of a shard: the inverse of [`ShardMap::find`].
    pub fn block(&self, shard: usize, at: u64) -> u64 {
        (at / self.stride * self.shards + shard as u64) * self.stride + at % self.stride
    }

    /// Number of blocks of the volume.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Number of blocks of a shard.
    pub fn blocks_of(&self, shard: usize) -> u64 {
        let (shard, whole, rest) = (shard as u64, self.blocks / self.stride, self.blocks % self.stride);
        let strides = whole / self.shards + u64::from(shard < whole % self.shards);
        strides * self.stride + if shard == whole % self.shards { rest } else { 0 }
    }
}

/// Most blocks of a pool with so many shards: each has addresses of 32 bits, and whole extents.
pub fn most_blocks(shards: u32, pool: PoolShape) -> u64 {
    match shards {
        1 => u32::MAX as u64,
        _ => shards as u64 * (u32::MAX - u32::MAX % pool.extent_blocks.max(1)) as u64,
    }
}

/// Zones of a shard of a device that is divided into `shards`.
fn zones_of(device: &Geometry, shard: usize, shards: u32) -> Range<u32> {
    let zones = device.zones / shards;
    let first = shard as u32 * zones;
    first..first + zones
}

/// Layout of a volume on a device.
#[derive(Clone, Debug)]
pub struct VolumePlan {
    /// Number of shards.
    pub shards: u32,
    /// Logical blocks.
    pub blocks: u64,
    /// Logical blocks that may be mapped at once if they are not compressed.
    pub usable: u64,
    /// Zones that are used.
    pub zones: u32,
    /// Of these, zones that are set aside for garbage collection.
    pub collection_zones: u32,
    /// Of these, zones for data; the others are for the map.
    pub data_zones: u32,
    /// Of the zones, those that are reserved for the map alone.
    pub map_share: u32,
    /// Writable blocks of a zone.
    pub capacity: u32,
    /// The largest unit that the transfer size of the device allows.
    pub unit: Unit,
}

impl VolumePlan {
    /// Computes the layout of a volume of `blocks` blocks; by default as many as fit uncompressed. `shards` is the number
    /// of shards; by default as few as possible.
    ///
    /// # Errors
    /// When the device cannot carry such a volume.
    pub fn of(geometry: &Geometry, blocks: Option<u64>, shards: Option<u32>) -> Result<VolumePlan, NoVolume> {
        VolumePlan::of_pool(geometry, blocks, shards, None)
    }

    /// As [`VolumePlan::of`], of the blocks of a pool with such extents, or of a volume without a pool.
    ///
    /// # Errors
    /// When the device cannot carry it.
    pub fn of_pool(
        geometry: &Geometry,
        blocks: Option<u64>,
        shards: Option<u32>,
        pool: Option<PoolShape>,
    ) -> Result<VolumePlan, NoVolume> {
        let extent_blocks = pool.map(|pool| pool.extent_blocks);
        let most = u32::MAX as u64;
        if let Some(blocks) = blocks.filter(|blocks| *blocks > MOST_BLOCKS) {
            return Err(NoVolume::Size { blocks });
        }
        let places = (geometry.zones as u64).saturating_mul(geometry.zone_capacity_blocks);
        let least = places.div_ceil(most).max(blocks.unwrap_or(0).div_ceil(most)).max(1);
        // Zones are not divided.
        let shards = (least.max(shards.unwrap_or(1).into())..).find(|shards| fits(geometry, *shards));
        let shards = shards.ok_or(NoVolume::ZonesTooLarge)? as u32;
        let share = share_of(geometry, shards)?;
        let blocks = match blocks {
            Some(blocks) => blocks,
            None => {
                let usable = ShardPlan::of(&share, None)?.usable;
                let stride = ShardMap::new(shards, usable * shards as u64, extent_blocks).stride;
                if shards == 1 { usable } else { usable / stride * stride * shards as u64 }
            }
        };
        let map = ShardMap::new(shards, blocks, extent_blocks);
        if blocks == 0 || (0..shards as usize).any(|shard| map.blocks_of(shard) == 0) {
            return Err(NoVolume::Size { blocks });
        }
        let plan = ShardPlan::of(&share, Some(map.blocks_of(0)))?;
        let data_zones = (plan.usable / plan.in_full_zone().max(1)) as u32;
        Ok(VolumePlan {
            shards,
            blocks,
            usable: plan.usable * shards as u64,
            zones: plan.zones * shards,
            collection_zones: plan.spare * shards,
            data_zones: data_zones * shards,
            map_share: plan.map_share * shards,
            capacity: plan.capacity,
            unit: plan.unit,
        })
    }
}

/// Whether the addresses of each of so many shards are short enough, and their number follows from that of their zones.
fn fits(geometry: &Geometry, shards: u64) -> bool {
    let (all, zones) = (geometry.zones as u64, geometry.zones as u64 / shards);
    let is_short = zones.saturating_mul(geometry.zone_capacity_blocks) <= u32::MAX as u64;
    // No device has so many zones.
    zones == 0 || is_short && all / zones == shards
}

/// Geometry of the part of a device that a shard has.
fn share_of(geometry: &Geometry, shards: u32) -> Result<Geometry, NoVolume> {
    if shards == 1 {
        return Ok(geometry.clone());
    }
    let (limits, least) =
        ([geometry.max_open, geometry.max_active], shards.saturating_mul(ShardPlan::LEAST_ACTIVE));
    if let Some(active) = limits.into_iter().find(|limit| *limit > 0 && *limit < least) {
        return Err(NoVolume::FewActive { active, least });
    }
    Ok(ZoneRange::geometry_of(geometry, geometry.zones / shards, shards))
}

/// The part of a device that a shard has.
fn part_of(
    runtime: &Runtime,
    device: &Rc<dyn ZonedDevice>,
    shard: usize,
    shards: u32,
) -> Rc<dyn ZonedDevice> {
    match shards {
        1 => device.clone(),
        _ => {
            let zones = zones_of(device.geometry(), shard, shards);
            Rc::new(ZoneRange::new(runtime, device.clone(), zones, shards))
        }
    }
}

/// UUID of a shard; that of the first one is the UUID of the volume.
fn uuid_of(volume: [u8; 16], shard: usize) -> [u8; 16] {
    let number = u128::from_le_bytes(volume) ^ (shard as u128) << 96;
    number.to_le_bytes()
}

/// As [`super::Volume::create`]. The root of the first shard is written last: there is no volume before it is there.
pub async fn create(
    runtime: &Runtime,
    device: Rc<dyn ZonedDevice>,
    options: VolumeCreateOptions,
) -> Result<(), VolumeError> {
    let plan = VolumePlan::of_pool(device.geometry(), options.blocks, options.shards, options.pool)?;
    if plan.shards > 1 {
        check_empty(runtime, &device, plan.shards).await?;
    }
    let extent_blocks = options.pool.map(|pool| pool.extent_blocks);
    let map = ShardMap::new(plan.shards, plan.blocks, extent_blocks);
    for shard in (0..plan.shards as usize).rev() {
        let part = part_of(runtime, &device, shard, plan.shards);
        if shard > 0 {
            for zone in 0..HEAD_ZONES {
                part.submit(Command::Reset { zones: Zones::One(ZoneIndex(zone)) }).await.result?;
            }
        }
        let (uuid, blocks) = (uuid_of(options.uuid, shard), Some(map.blocks_of(shard)));
        let created =
            recover::create(part, VolumeCreateOptions { uuid, blocks, shards: Some(plan.shards), ..options });
        created.await.map_err(|error| in_shard(error, device.geometry(), shard, plan.shards))?;
    }
    Ok(())
}

/// Checks that nothing is on a device but what an interrupted creation of a volume of several shards leaves: roots of
/// shards, without that of the first one.
async fn check_empty(
    runtime: &Runtime,
    device: &Rc<dyn ZonedDevice>,
    shards: u32,
) -> Result<(), VolumeError> {
    let scan = DeviceScan::at(device.clone()).await?;
    let is_there = match scan.has_volume().await? {
        Presence::Unknown(zones) => return Err(VolumeError::Hidden { zones }),
        Presence::Yes if !scan.was_cut_off().await? => return Err(VolumeError::IsThere),
        presence => presence == Presence::Yes,
    };
    let size = device.geometry().zones / shards;
    let used = scan.zones.iter().filter(|info| info.state != ZoneState::Empty).map(|info| info.zone.0);
    for zone in used {
        let (shard, is_head) = (zone / size, zone % size < HEAD_ZONES);
        let is_root = match is_head && shard < shards {
            // An incomplete root.
            true if shard == 0 => is_there,
            true => {
                let part = part_of(runtime, device, shard as usize, shards);
                DeviceScan::at(part).await?.has_volume().await? == Presence::Yes
            }
            false => false,
        };
        if !is_root {
            return Err(VolumeError::NotEmpty { zone });
        }
    }
    Ok(())
}

/// As [`super::Volume::open`]: the shards, and the distribution of the blocks.
pub async fn open(
    runtime: &Runtime,
    device: Rc<dyn ZonedDevice>,
    options: VolumeOptions,
) -> Result<(Vec<VolumeCore>, ShardMap), VolumeError> {
    let whole = recover::find(device.clone()).await?;
    let identity = whole.identity().clone();
    let shards = device.geometry().zones / identity.zones.max(1);
    let is_divided = shards > 0 && device.geometry().zones / shards == identity.zones;
    if !is_divided || identity.zones <= HEAD_ZONES {
        let (zones, capacity_blocks) = (identity.zones, identity.zone_capacity_blocks);
        return Err(VolumeError::OfAnotherDevice { zones, capacity_blocks });
    }
    share_of(device.geometry(), shards)?;
    let geometry = device.geometry().clone();
    let of_shard = |shard: usize| {
        let geometry = &geometry;
        move |error| in_shard(error, geometry, shard, shards)
    };
    // All shards have to belong together before any of them is changed.
    let mut found = Vec::new();
    match shards {
        1 => found.push((device.clone(), whole)),
        _ => {
            for shard in 0..shards as usize {
                let part = part_of(runtime, &device, shard, shards);
                let there = recover::find(part.clone()).await.map_err(of_shard(shard))?;
                found.push((part, there));
            }
        }
    }
    let blocks = found.iter().try_fold(0_u64, |sum, (_, there)| sum.checked_add(there.identity().blocks));
    let map = ShardMap::new(shards, blocks.ok_or(VolumeError::Absurd)?, identity.extent_in_turn());
    for (shard, (_, there)) in found.iter().enumerate() {
        let own = there.identity();
        let is_part = own.uuid == uuid_of(identity.uuid, shard)
            && own.blocks == map.blocks_of(shard)
            && own.sector == identity.sector
            && (own.pool, own.extents_in_turn) == (identity.pool, identity.extents_in_turn);
        if !is_part {
            return Err(VolumeError::Absurd);
        }
    }
    let share = |pages: Option<usize>| pages.map(|pages| pages.div_ceil(shards as usize));
    let options = VolumeOptions {
        map_pages: share(options.map_pages),
        changed_pages: share(options.changed_pages),
        ..options
    };
    let mut cores = Vec::new();
    for (shard, (part, there)) in found.into_iter().enumerate() {
        cores.push(recover::open(part, there, options).await.map_err(of_shard(shard))?);
    }
    Ok((cores, map))
}

/// The error of a shard, with its place if there are several.
fn in_shard(error: VolumeError, device: &Geometry, shard: usize, shards: u32) -> VolumeError {
    match shards {
        1 => error,
        _ => {
            let first_zone = zones_of(device, shard, shards).start;
            VolumeError::InShard { shard, first_zone, error: Box::new(error) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_volume_are_each_in_one_shard() {
        let sizes = [(1, 1), (1, 1000), (2, 3), (2, 4096), (3, 4097), (5, 12_345), (4, 64)];
        let extents = [None, Some(48)];
        for ((shards, blocks), extent_blocks) in sizes.into_iter().flat_map(|of| extents.map(|e| (of, e))) {
            let map = ShardMap::new(shards, blocks, extent_blocks);
            let mut found = vec![Vec::new(); shards as usize];
            for at in 0..blocks {
                let (shard, place, left) = map.find(at);
                found[shard].push(place);
                assert!(left > 0 && (left == 1 || map.find(at + 1) == (shard, place + 1, left - 1)));
            }
            for (shard, places) in found.iter().enumerate() {
                assert_eq!(*places, (0..map.blocks_of(shard)).collect::<Vec<_>>(), "{map:?}: shard {shard}");
            }
        }
    }

    #[test]
    fn large_devices_need_shards_and_active_zones_for_each() {
        let geometry = Geometry {
            zones: 30_000,
            zone_size_blocks: 1 << 18,
            zone_capacity_blocks: 1 << 18,
            max_open: 128,
            max_active: 128,
            zrwa: None,
            oob_bytes: 0,
            max_transfer_blocks: 256,
            max_append_blocks: 0,
            volatile_cache: true,
        };
        let plan = VolumePlan::of(&geometry, None, None).unwrap();
        assert_eq!(plan.shards, 2);
        let whole = geometry.zones as u64 * geometry.zone_capacity_blocks;
        assert!(plan.usable > whole / 100 * 85 && plan.blocks <= plan.usable, "{plan:?}");
        let few = Geometry { max_open: 9, max_active: 9, ..geometry.clone() };
        let error = VolumePlan::of(&few, None, None).unwrap_err();
        assert_eq!(error, NoVolume::FewActive { active: 9, least: 10 });
        let few_zones = Geometry { max_open: 0, max_active: 0, ..geometry.clone() };
        // A quarter of a PiB, on twenty-four drives of 11 TiB.
        let vast = Geometry { zones: 1 << 18, ..geometry };
        assert_eq!(VolumePlan::of(&vast, None, None).unwrap().shards, 17);
        // 40 shards of 25 zones would look like 41.
        let odd = Geometry { zones: 1039, ..few_zones };
        assert_eq!(VolumePlan::of(&odd, None, Some(40)).unwrap().shards, 41);
    }
}
