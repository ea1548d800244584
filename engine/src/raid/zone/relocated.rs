//! Relocated blocks: their content is in the metadata log of their member, since their place cannot be written. With the
//! policy `log` they replace burned blocks; with every policy, blocks that the drive cannot read or returns wrong
//! ([`crate::raid::maintain::repair`]). They are kept in memory, and reads take them from there: the drive may return an
//! error for their place.

use crate::{
    buf::{BLOCK, Buf},
    device::Completion,
    format::record::{ParityRecord, RELOCATED, Record},
    raid::{
        durable, failures, io,
        journal::log::{checkpoint_blocks, log_blocks},
        parts::Raid,
        policy::{Policy, log::position},
        recover::verdict::RepairWrite,
        zone::{bad_block_records, flow::Zone},
    },
    zone::{Lba, ZoneIndex},
};
use std::{collections::BTreeMap, ops::Range};

/// The content of block `at` of a member's part of a zone, if it is relocated. If the member's drive has been replaced
/// since, it is wrong: callers in a running array compare [`crate::raid::members::Members::losses`].
pub fn get(raid: &Raid, zone: ZoneIndex, member: usize, at: u64) -> Option<Buf> {
    let log = raid.members.log(member).filter(|_| has_relocated(raid, zone, member))?;
    let (epoch, chunk) = (raid.zone_records.epoch(zone), raid.layout.chunk_blocks);
    let live = log.live.borrow();
    live.relocated.get(zone.0, epoch, at / chunk, RELOCATED as u64, at % chunk).cloned()
}

/// Whether block `at` of a member's part of a zone is relocated.
pub fn is_relocated(raid: &Raid, zone: ZoneIndex, member: usize, at: u64) -> bool {
    get(raid, zone, member, at).is_some()
}

/// Whether any of `blocks` of a member's part of a zone is relocated.
pub fn is_any_relocated(raid: &Raid, zone: ZoneIndex, member: usize, mut blocks: Range<u64>) -> bool {
    has_relocated(raid, zone, member) && blocks.any(|at| is_relocated(raid, zone, member, at))
}

/// Whether any block of a member's part of a zone is relocated.
pub fn has_relocated(raid: &Raid, zone: ZoneIndex, member: usize) -> bool {
    raid.relocates.get()
        && raid.members.log(member).is_some_and(|log| log.live.borrow().relocated.has(zone.0))
}

/// Blocks of a member's log that its burned and relocated blocks may take at most, by zone, with the headers of their
/// records.
pub fn log_blocks_taken(raid: &Raid, member: usize) -> BTreeMap<u32, u64> {
    let (chunk, mut taken) = (raid.layout.chunk_blocks, BTreeMap::new());
    let burned = raid.zone_records.burned();
    for b in burned.iter().filter(|b| b.member as usize == member) {
        // Each row has a record of its own, with a header.
        let rows = b.to.div_ceil(chunk) - b.from / chunk;
        *taken.entry(b.zone).or_insert(0) += b.to - b.from + rows;
    }
    if let Some(log) = raid.members.log(member) {
        for (zone, stripe, block) in log.live.borrow().relocated.blocks() {
            if !raid.zone_records.is_burned(ZoneIndex(zone), member, stripe * chunk + block) {
                *taken.entry(zone).or_insert(0) += 2;
            }
        }
    }
    taken
}

/// Blocks of a member's log that burned and relocated blocks may take: all that checkpoints leave.
pub fn log_room(raid: &Raid, member: usize) -> u64 {
    let Some(device) = raid.members.device(member) else { return 0 };
    let needed = checkpoint_blocks(&raid.membership.superblock()) + bad_block_records::bad_block_room(raid);
    log_blocks(device.geometry(), raid.layout.policy).saturating_sub(needed)
}

/// Logs the content of burned or unreadable blocks of a member, from block `at` of its part of a zone on, within a row.
pub fn relocate(raid: &Raid, zone: ZoneIndex, epoch: u64, member: usize, at: u64, data: &[u8]) -> Completion {
    let (stripe, from) = (at / raid.layout.chunk_blocks, (at % raid.layout.chunk_blocks) as u32);
    let end = from as u64 + (data.len() / BLOCK) as u64;
    assert!(end <= raid.layout.chunk_blocks, "relocated blocks {from}..{end} of a chunk");
    raid.relocates.set(true);
    let data = raid.copy(data);
    let record = ParityRecord { zone: zone.0, epoch, stripe, index: RELOCATED, from, data };
    raid.append(member, Record::Parity(record))
}

/// Drops the burned and relocated blocks of a member's part of a zone, which is written anew.
pub fn unburn(raid: &Raid, zone: ZoneIndex, member: usize) {
    raid.zone_records.retain_burned(|b| (b.zone, b.member as usize) != (zone.0, member));
    if let Some(log) = raid.members.log(member) {
        log.live.borrow_mut().relocated.forget(zone.0, u64::MAX, &mut raid.pool.borrow_mut());
    }
}

/// Drops the burned and relocated blocks of zones that have been reset.
pub fn forget_burned(raid: &Raid, zones: Range<u32>) {
    if raid.layout.policy == Policy::Log || raid.relocates.get() {
        for zone in zones {
            (0..raid.members.count()).for_each(|member| unburn(raid, ZoneIndex(zone), member));
        }
    }
}

/// Writes blocks to members' parts of a quiesced zone, or to their logs if they are burned, and waits for all.
pub async fn fill(raid: &Raid, zone: &Zone, pieces: &[RepairWrite]) {
    let mut pending = Vec::new();
    for RepairWrite { member, lba, data, .. } in pieces {
        if raid.live(zone.index) & (1 << member) == 0 {
            continue;
        }
        let (member, start) = (*member, raid.members.start(*member, zone.index).0);
        let mut flow = zone.flow.borrow_mut();
        let at = lba.0 - start;
        let (burned, rest) = flow.split(Policy::Log, member, at, data.clone());
        if let Some(burned) = burned {
            pending.push((
                raid.members.seat(member),
                relocate(raid, zone.index, flow.epoch(), member, at, &burned),
            ));
        }
        if let Some((at, rest)) = rest {
            let write = io::rows_command(raid, member, zone.index, at, rest);
            pending.push((raid.members.seat(member), raid.members.submit(member, write)));
        }
    }
    for (seat, completion) in pending {
        if let Err(error) = completion.await.result {
            failures::part_failed(raid, zone.index, seat, error, "write");
        }
    }
    durable::barrier(raid, raid.live(zone.index)).await;
}

/// Writes the full parity of the partial stripe of a zone that is being finished, as if the rest of the data were
/// zeros.
pub async fn promote(raid: &Raid, zone: &Zone) {
    let layout = &raid.layout;
    let tail = zone.flow.borrow().complete();
    let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
    let mut held = Vec::new();
    for which in 0..layout.parities {
        let member = layout.parity_member(stripe, which);
        // If the tail is in the last chunk, the full parity has been written up to `at`.
        let at = position(layout, member, tail);
        let blocks = at - stripe * layout.chunk_blocks..covered.min(layout.chunk_blocks);
        if !blocks.is_empty() {
            let data = zone.flow.borrow().parity(which, blocks.start, blocks.end);
            let lba = Lba(raid.members.start(member, zone.index).0 + at);
            held.push(RepairWrite { member, lba, data, oob: Buf::default() });
        }
    }
    if !held.is_empty() {
        fill(raid, zone, &held).await;
    }
}
