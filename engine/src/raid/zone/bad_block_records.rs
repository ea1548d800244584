//! Records of bad blocks (blocks that a rebuild could not decode), and their limit.

use crate::{
    buf::BLOCK,
    format::record::{BAD_BLOCKS_BYTES, PartBadBlocks, Record},
    raid::{
        durable,
        error::NoPart,
        journal::log::{checkpoint_blocks, log_blocks},
        parts::Raid,
    },
    zone::ZoneIndex,
};
use std::ops::Range;

/// Most runs of bad blocks of an array.
const MOST_RANGES: u64 = 4096;

/// Logs the bad blocks of a rebuilt part, before the part is in use; an error if there are too many.
pub async fn record_bad_blocks(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    ranges: &[Range<u64>],
) -> Result<(), NoPart> {
    let epoch = raid.zone_records.epoch(zone);
    let bad_blocks = PartBadBlocks { zone: zone.0, member: member as u32, epoch, ranges: ranges.to_vec() };
    let before = raid.zone_records.bad_blocks().among(zone, member, 0..u64::MAX).len() as u64;
    if before == 0 && ranges.is_empty() {
        return Ok(());
    }
    if raid.zone_records.bad_blocks().count() - before + ranges.len() as u64 > most_bad_blocks(raid) {
        return Err(NoPart::TooManyBadBlocks);
    }
    raid.zone_records.change_bad_blocks(|all| all.set(bad_blocks.clone()));
    let sequence = raid.membership.next_sequence();
    durable::broadcast(raid, Record::BadBlocks(bad_blocks), sequence).await;
    Ok(())
}

/// Removes the bad blocks and the unreadable blocks of zones that have been reset.
pub fn forget_bad_blocks(raid: &Raid, zones: Range<u32>) {
    raid.zone_records.unreadable.remove_zones(&zones);
    raid.zone_records.change_bad_blocks(|all| all.retain(|zone, _| !zones.contains(&zone)));
}

/// Blocks of a metadata log that bad blocks take in a checkpoint.
pub fn bad_block_room(raid: &Raid) -> u64 {
    (raid.zone_records.bad_blocks().count() * BAD_BLOCKS_BYTES as u64).div_ceil(BLOCK as u64)
}

/// Most runs of bad blocks that there may be: they take at most a quarter of the room that checkpoints leave in a log.
fn most_bad_blocks(raid: &Raid) -> u64 {
    let superblock = raid.membership.superblock();
    let devices = (0..raid.members.count()).filter_map(|member| raid.members.device(member));
    let logs = devices.map(|device| log_blocks(device.geometry(), superblock.policy));
    let room = logs.min().unwrap_or(0).saturating_sub(checkpoint_blocks(&superblock));
    MOST_RANGES.min(room / 4 * (BLOCK as u64 / BAD_BLOCKS_BYTES as u64))
}
