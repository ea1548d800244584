//! Scrub: reads every complete stripe of a zone, with its parity, and verifies it.
//!
//! A block is wrong if its checksum does not match, in an array that has checksums; or if the parities of its stripe
//! show that it, and no other, contradicts the rest, which takes two parities. With one parity and no checksums a stripe
//! that contradicts its parity is reported, since it is not known which of its blocks is wrong. Wrong and unreadable
//! blocks are repaired ([`super::repair`]).
//!
//! Only blocks that do not change any more are read: a zone that is being written up to its last settled stripe.

use crate::{
    buf::{BLOCK, Buf},
    raid::{
        error::{ArrayError, RebuildStop},
        failures,
        geometry::each,
        io,
        maintain::{part, repair},
        parts::Raid,
        status::{ScrubFinding, ScrubFindingKind, ZoneScrub},
        zone::{
            checksum::{self, Expected},
            consistency::{is_consistent, wrong_member},
            exclusion, relocated, stripe,
        },
    },
    runtime::{self, COPY, give_way},
    zone::{ZoneIndex, ZoneState},
};
use std::{ops::Range, rc::Rc};

/// As [`crate::array::Array::scrub_zone`].
pub async fn scrub_zone(
    raid: &Rc<Raid>,
    zone: ZoneIndex,
    pace: impl AsyncFn(u64),
) -> Result<ZoneScrub, ArrayError> {
    let (mut scrub, epoch) = (ZoneScrub::default(), raid.zone_records.epoch(zone));
    let mut at = 0;
    while let Some(hold) = exclusion::held(raid, zone).await {
        let end = final_blocks(raid, zone);
        if raid.zone_records.epoch(zone) != epoch || at >= end {
            scrub.is_whole = is_unchanging(raid, zone, epoch) && at == end;
            break;
        }
        let to = end.min(batch_end(raid, zone, at));
        let bytes = match verify(raid, zone, at..to, &mut scrub.findings).await {
            Ok(bytes) => bytes,
            // The parts have changed meanwhile.
            Err(RebuildStop::Again) => 0,
            Err(RebuildStop::Error(_)) => break,
        };
        drop(hold);
        raid.zone_records.unreadable.wake(zone);
        if bytes > 0 {
            (scrub.scanned_bytes, at) = (scrub.scanned_bytes + bytes, to);
        }
        give_way().await;
        pace(bytes).await;
    }
    if raid.membership.has_failed() {
        return Err(failures::too_many_failed(raid));
    }
    repair::repair_zone(raid, zone).await;
    for finding in &mut scrub.findings {
        let Some(member) = finding.member else { continue };
        // What parity alone has shown to be wrong can be read.
        let can_be_read = raid.checksums || finding.kind == ScrubFindingKind::Unreadable;
        finding.is_repaired = (finding.from..finding.to).all(|at| {
            relocated::is_relocated(raid, zone, member, at)
                || can_be_read && !raid.zone_records.unreadable.has(zone, member, at)
        });
    }
    Ok(scrub)
}

/// End of the blocks that are verified at once, from block `at` of the parts of a zone on: as many rows as one read of
/// each drive covers, so that disks do not seek for each row. A single row if blocks of more rows are read one by one.
fn batch_end(raid: &Raid, zone: ZoneIndex, at: u64) -> u64 {
    let (chunk, most) = (raid.layout.chunk_blocks, part::batch_blocks(raid));
    let (row, rows) = ((at / chunk + 1) * chunk, (at + most) / chunk * chunk);
    let is_plain = |member: usize| {
        !relocated::is_any_relocated(raid, zone, member, at..rows)
            && !raid.zone_records.has_bad_block(zone, member, at..rows)
    };
    match rows > row && each(raid.live(zone)).all(is_plain) {
        true => rows,
        false => row.min(at + most),
    }
}

/// Whether a zone is full or empty, in this epoch, and so many members hold their parts that it can be verified.
fn is_unchanging(raid: &Raid, zone: ZoneIndex, epoch: u64) -> bool {
    let is_idle = raid.zones.running(zone).is_none() && !raid.zones.is_offline(zone);
    let state = raid.zones.state(zone);
    is_idle
        && raid.zone_records.epoch(zone) == epoch
        && (state == ZoneState::Empty || state == ZoneState::Full && raid.members.are_enough(raid.live(zone)))
}

/// End of the blocks of the parts of a zone that can be verified: of complete stripes, and on all members that hold
/// their part final.
fn final_blocks(raid: &Raid, zone: ZoneIndex) -> u64 {
    let layout = &raid.layout;
    if raid.zones.is_offline(zone) || !raid.members.are_enough(raid.live(zone)) {
        return 0;
    }
    match raid.zones.running(zone) {
        Some(_) => {
            each(raid.live(zone)).map(|member| repair::final_blocks(raid, zone, member)).min().unwrap_or(0)
        }
        None if raid.zones.state(zone) == ZoneState::Full => {
            raid.finished_tail(zone) / layout.stripe_blocks() * layout.chunk_blocks
        }
        None => 0,
    }
}

/// Reads blocks from all members that hold their parts of a zone, and adds wrong ones to `findings`.
/// Returns the bytes that were read.
async fn verify(
    raid: &Rc<Raid>,
    zone: ZoneIndex,
    blocks: Range<u64>,
    findings: &mut Vec<ScrubFinding>,
) -> Result<u64, RebuildStop> {
    let (layout, losses) = (&raid.layout, raid.members.losses());
    let live = raid.live(zone);
    let count = blocks.end - blocks.start;
    let pending: Vec<_> = each(live)
        .map(|member| {
            let buf = raid.pool.borrow_mut().take(count).freeze();
            (raid.members.seat(member), io::read(raid, member, zone, blocks.start, buf))
        })
        .collect();
    let mut parts: Vec<Option<Buf>> = vec![None; raid.members.count()];
    let mut bad = Vec::new();
    for (seat, completion) in pending {
        let member = seat.member;
        let done = checksum::checked(raid, member, zone, blocks.start, Expected::Row, completion.await);
        if raid.zone_records.has_bad_block(zone, member, blocks.clone()) {
            // The drive has zeros in the place of blocks that a rebuild could not decode.
            continue;
        }
        if done.result.is_ok() && !relocated::is_any_relocated(raid, zone, member, blocks.clone()) {
            stripe::note_read_of(raid, zone, member, blocks.clone(), Ok(()));
            parts[member] = Some(done.data);
            continue;
        }
        let mut whole = Vec::with_capacity(count as usize * BLOCK);
        for at in blocks.clone() {
            match read_block(raid, zone, member, at).await {
                Ok(block) => whole.extend_from_slice(&block),
                Err(kind) => {
                    let finding = ScrubFinding {
                        zone: zone.0,
                        member: Some(member),
                        from: at,
                        to: at + 1,
                        kind,
                        is_repaired: false,
                    };
                    bad.push(finding);
                }
            }
        }
        if whole.len() == count as usize * BLOCK {
            parts[member] = Some(Buf::copy_of(&whole));
        }
    }
    if raid.members.losses() != losses || raid.live(zone) != live {
        return Err(RebuildStop::Again);
    }
    findings.append(&mut bad);
    runtime::work(count as u32 * COPY);
    let bytes_of = |part: &Range<u64>| {
        (part.start - blocks.start) as usize * BLOCK..(part.end - blocks.start) as usize * BLOCK
    };
    let mut next = blocks.start;
    while next < blocks.end {
        let row = next / layout.chunk_blocks;
        let of_row = next..blocks.end.min((row + 1) * layout.chunk_blocks);
        next = of_row.end;
        if is_consistent(layout, row, &parts, bytes_of(&of_row), None) {
            continue;
        }
        for at in of_row {
            let bytes = bytes_of(&(at..at + 1));
            if is_consistent(layout, row, &parts, bytes.clone(), None) {
                continue;
            }
            // A wrong block that matches its checksum is the error of a write, not of a drive.
            let member = match raid.checksums {
                true => None,
                false => wrong_member(layout, row, &parts, bytes),
            };
            if let Some(member) = member {
                repair::repair(raid, zone, member, at, true).await;
            }
            let kind = match member {
                Some(_) => ScrubFindingKind::Wrong,
                None => ScrubFindingKind::Contradiction,
            };
            findings.push(ScrubFinding {
                zone: zone.0,
                member,
                from: at,
                to: at + 1,
                kind,
                is_repaired: false,
            });
        }
    }
    let read = parts.iter().flatten().count() as u64 * count;
    parts.into_iter().flatten().for_each(|part| raid.pool.borrow_mut().give(part));
    Ok(read.max(1) * BLOCK as u64)
}

/// Reads one block of a member's part of a zone, and records whether that is possible.
async fn read_block(raid: &Raid, zone: ZoneIndex, member: usize, at: u64) -> Result<Buf, ScrubFindingKind> {
    if let Some(found) = relocated::get(raid, zone, member, at) {
        return Ok(found);
    }
    let seat = raid.members.seat(member);
    let (read, is_wrong) = checksum::read_block(raid, member, zone, at).await;
    stripe::note_read_of(raid, zone, member, at..at + 1, read.result);
    if let Err(error) = read.result {
        stripe::read_failed(raid, zone, seat, error);
        return Err(if is_wrong { ScrubFindingKind::Wrong } else { ScrubFindingKind::Unreadable });
    }
    Ok(read.data)
}
