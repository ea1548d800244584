//! Zones that are reported empty although they hold data.
//!
//! An orderly shutdown of a drive ends zones in which the write pointer has not moved: they are empty and have no ZRWA
//! any more, but their blocks can still be read. So an empty zone is taken for one with its write pointer at its start,
//! and if the logical zone continues, it gets a ZRWA again and its blocks are written again: a write pointer commits
//! the contents of the ZRWA.
//!
//! A zone may also be empty because the drive has lost its ZRWA in a power cut. Then it holds nothing: a member that
//! should hold data and reads as zeros is excluded if parity shows that its data is not zeros. So is a member that
//! cannot read its data. Of small zones used as one, some may have got a ZRWA again and lost it, while the others still
//! hold their data: each is checked.

use crate::{
    buf::{BLOCK, Buf, is_zero},
    device::{Command, DeviceError, Done, Status, Zones, Zrwa},
    raid::{
        geometry::{each, physical, subsets},
        io,
        parts::Raid,
        policy::zrwa::{self, Refusal, ZrwaEvidence},
        recover::{
            judge,
            verdict::{RepairWrite, Tail, ZoneView},
        },
        zone::{
            cells,
            checksum::{self, Expected},
        },
    },
    runtime::give_way,
    zone::ZoneIndex,
};
use std::{ops::Range, rc::Rc};

/// Data of zones with write pointers that have not moved, to be written back.
#[derive(Default)]
pub struct RevivedData {
    /// Members (bits) that lack data that they should hold.
    pub gone: u32,
    /// By member, in the order of the writes.
    pub pieces: Vec<RepairWrite>,
}

/// Reads the data that members with write pointers at the start hold for a tail at `tail` blocks. Removes members
/// that lack it from the evidence. `empty` are the members (bits) with empty zones.
pub async fn hold(
    raid: &Raid,
    view: &ZoneView<'_>,
    evidence: &mut ZrwaEvidence,
    tail: u64,
    empty: u32,
) -> Result<RevivedData, Refusal> {
    let (mut held, mut blank) = (RevivedData::default(), 0);
    for member in (0..raid.layout.members).filter(|member| evidence.wp_blocks[*member] == Some(0)) {
        let bit = 1 << member;
        let first = held.pieces.len();
        let needed = zrwa::needed_of(&raid.layout, member, tail);
        for piece in read_ranges(raid, view.zone, member, &needed).await {
            match piece {
                Ok(piece) => held.pieces.push(piece),
                Err(_) => held.gone |= bit,
            }
        }
        let pieces = &held.pieces[first..];
        if held.gone & bit == 0 && lacks_a_zrwa(raid, view.zone, member, pieces).await {
            blank |= bit;
        }
        // Another log member has a copy.
        let log = raid.layout.log_blocks_of(member, tail);
        let log = read_ranges(raid, view.zone, member, log.as_slice()).await;
        held.pieces.extend(log.into_iter().flatten());
    }
    do_without(raid, evidence, held.gone)?;
    if blank != 0 {
        let lost = lost_of_blank(raid, view, evidence, tail, blank, empty).await?;
        do_without(raid, evidence, lost)?;
        held.gone |= lost;
    }
    let holding = |member: &usize| evidence.wp_blocks[*member] == Some(0);
    let mask = (0..raid.layout.members).filter(holding).fold(0, |mask, member| mask | 1 << member);
    held.pieces.extend(cells_of(raid, view.zone, tail, mask).await);
    Ok(held)
}

/// The contents of the cells, to be written back to the members in `mask`, from another one where a member has zeros: nothing
/// else shows that a member which holds no block of the tail has lost its ZRWA.
async fn cells_of(raid: &Raid, zone: ZoneIndex, tail: u64, mask: u32) -> Vec<RepairWrite> {
    let mut pieces = Vec::new();
    for (members, at) in cells::all(raid, tail) {
        let there = members.filter(|member| mask & (1 << member) != 0);
        let reads: Vec<_> = there.map(|member| (member, cells::read_copy(raid, zone, member, at))).collect();
        let mut copies = Vec::new();
        for (member, read) in reads {
            let done = read.await;
            copies.push((member, Some(done.data).filter(|data| done.result.is_ok() && !is_zero(data))));
        }
        let any = copies.iter().find_map(|(_, data)| data.clone());
        for (member, data) in copies {
            if let Some(data) = data.or_else(|| any.clone())
                && let Command::Write { lba, data, oob, .. } =
                    io::cell_command(raid, member, zone, at, data, false)
            {
                pieces.push(RepairWrite { member, lba, data, oob });
            }
        }
        give_way().await;
    }
    pieces
}

/// Removes members from the evidence; an error if too few are left.
fn do_without(raid: &Raid, evidence: &mut ZrwaEvidence, gone: u32) -> Result<(), Refusal> {
    for member in each(gone) {
        evidence.wp_blocks[member] = None;
        if evidence.wp_blocks.iter().flatten().count() < raid.layout.fewest_members() {
            return Err(Refusal::Lacking { member });
        }
    }
    Ok(())
}

/// Which of the members that read as zeros (`blank`) have lost their data.
async fn lost_of_blank(
    raid: &Raid,
    view: &ZoneView<'_>,
    evidence: &ZrwaEvidence,
    tail: u64,
    blank: u32,
    empty: u32,
) -> Result<u32, Refusal> {
    match parity_agrees(raid, view, evidence, tail).await {
        // The data is zeros.
        Some(true) => return Ok(0),
        Some(false) => {}
        // Undecidable. A single empty zone has probably lost its ZRWA: a shutdown would have emptied more.
        None if empty.count_ones() == 1 => return Ok(blank & empty),
        None => return Ok(0),
    }
    let there = evidence.wp_blocks.iter().flatten().count();
    let most = there.saturating_sub(raid.layout.fewest_members()) as u32;
    // Members that kept their ZRWA are less suspect.
    for suspects in [blank & empty, blank] {
        for lost in (1..=most).flat_map(|count| subsets(suspects, count)) {
            let mut others = evidence.clone();
            each(lost).for_each(|member| others.wp_blocks[member] = None);
            // The set is unique: if parity agrees without either of two members, it agrees with both. If parity
            // cannot be checked without the suspects, none of them is trusted.
            let agrees = parity_agrees(raid, view, &others, tail).await;
            if agrees == Some(true) || agrees.is_none() && lost == suspects {
                return Ok(lost);
            }
        }
    }
    Err(Refusal::Contradiction)
}

/// Blocks of the ZRWAs of a member while the write pointer is at the start: several ranges where small zones are
/// used as one. Each is lost as a whole.
pub fn zrwas_at_start(raid: &Raid, member: usize) -> impl Iterator<Item = Range<u64>> {
    let layout = &raid.layout;
    let end = layout.window_blocks().min(layout.rows * layout.chunk_blocks);
    let (aggregate, has_checksum_blocks) = {
        let superblock = raid.membership.superblock();
        (superblock.aggregate as u64, superblock.has_checksum_blocks())
    };
    let zrwa = raid.members.device(member).and_then(|device| device.geometry().zrwa);
    // Checksum blocks take a part of the drive's ZRWA.
    let taken = |zrwa: Zrwa| if has_checksum_blocks { zrwa.granularity_blocks } else { 0 };
    let size = |zrwa: Zrwa| zrwa.size_blocks + taken(zrwa);
    let each = zrwa.map_or(end, |zrwa| size(zrwa) / aggregate).max(1);
    (0..end).step_by(each as usize).map(move |from| from..end.min(from + each))
}

/// Whether a ZRWA of a member that should hold some of `pieces` has only zeros, and is not known to hold them: a drive
/// that reports other blocks of it as unwritten would report these as well, had it lost them.
async fn lacks_a_zrwa(raid: &Raid, zone: ZoneIndex, member: usize, pieces: &[RepairWrite]) -> bool {
    let start = raid.members.start(member, zone).0;
    for zrwa in zrwas_at_start(raid, member) {
        let blocks = pieces.iter().flat_map(|piece| (piece.lba.0 - start..).zip(piece.data.chunks(BLOCK)));
        let mut needed = blocks.filter(|(at, _)| zrwa.contains(at)).peekable();
        if needed.peek().is_some()
            && needed.all(|(_, data)| is_zero(data))
            && reads_as(raid, zone, member, zrwa).await == Some(ReadsAs::Zeros)
        {
            return true;
        }
    }
    false
}

/// Whether `blocks` of a member's part of a zone are all zeros; `None` if some of them cannot be read, and the
/// others are zeros.
pub async fn is_blank(raid: &Raid, zone: ZoneIndex, member: usize, blocks: Range<u64>) -> Option<bool> {
    reads_as(raid, zone, member, blocks).await.map(|contents| contents != ReadsAs::Data)
}

/// What some blocks of a drive read as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadsAs {
    /// Some are not zeros.
    Data,
    /// All are zeros.
    Zeros,
    /// The drive reports some as unwritten; the others, if any, are zeros.
    Unwritten,
}

/// What `blocks` of a member's part of a zone read as; `None` if some of them cannot be read, and the others are zeros.
async fn reads_as(raid: &Raid, zone: ZoneIndex, member: usize, blocks: Range<u64>) -> Option<ReadsAs> {
    let mut found = Some(ReadsAs::Zeros);
    for piece in read_ranges(raid, zone, member, &[blocks]).await {
        match piece {
            Ok(piece) if !is_zero(&piece.data) => return Some(ReadsAs::Data),
            Ok(_) => {}
            Err(error) if error == Status::DeallocatedBlock.into() => {
                found = found.map(|_| ReadsAs::Unwritten);
            }
            Err(_) => found = None,
        }
    }
    found
}

/// Reads some blocks of a member's part of a zone, in pieces of a chunk or, where there are unreadable ones or ones that
/// do not match their checksums, of a block.
async fn read_ranges(
    raid: &Raid,
    zone: ZoneIndex,
    member: usize,
    ranges: &[Range<u64>],
) -> Vec<Result<RepairWrite, DeviceError>> {
    let read = async |at: u64, blocks: u64| {
        let Done { result, data, oob, .. } =
            io::read(raid, member, zone, at, Buf::zeroed(blocks as usize * BLOCK)).await;
        result.and_then(|()| checksum::check(raid, member, zone, at, Expected::Any, (&data, &oob)))?;
        Ok(RepairWrite { member, lba: io::address(raid, member, zone, at), data, oob })
    };
    let mut pieces = Vec::new();
    for blocks in ranges {
        let mut at = blocks.start;
        while at < blocks.end {
            let to = blocks.end.min(at + raid.layout.chunk_blocks);
            match read(at, to - at).await {
                Ok(piece) => pieces.push(Ok(piece)),
                Err(_) => {
                    for block in at..to {
                        pieces.push(read(block, 1).await);
                    }
                }
            }
            at = to;
        }
    }
    pieces
}

/// Whether parity matches the data everywhere below the tail; `None` if that cannot be decided.
async fn parity_agrees(raid: &Raid, view: &ZoneView<'_>, evidence: &ZrwaEvidence, tail: u64) -> Option<bool> {
    let layout = &raid.layout;
    let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
    let whole = (0..stripe).map(|stripe| (stripe, layout.stripe_blocks()));
    let mut agrees = Some(true);
    for (stripe, covered) in whole.chain([(stripe, covered)]) {
        for block in 0..layout.chunk_blocks.min(covered) {
            let chunks = (covered - block).div_ceil(layout.chunk_blocks);
            let column = judge::read_column(raid, view, stripe, chunks, block..block + 1, evidence).await;
            match column.agrees() {
                Some(false) => return Some(false),
                Some(true) => {}
                None => agrees = None,
            }
        }
    }
    agrees
}

/// Opens the empty zones of members with a ZRWA again, and writes back the data of zones with write pointers at the
/// start: also where there is a ZRWA, as an earlier recovery may have been interrupted after opening it. One member
/// after the other, so that an interruption leaves at most one of them with a ZRWA that lacks its data.
pub async fn revive(raid: &Rc<Raid>, zone: ZoneIndex, tail: &Tail) {
    for member in each(raid.live(zone)) {
        if tail.revived & (1 << member) != 0 {
            let zones = Zones::One(physical(zone));
            let open = |_| Command::Open { zones, zrwa: true };
            io::on_parts(raid, zone, 1 << member, "open zone", open).await;
        }
        let pieces = || tail.held.iter().filter(|piece| piece.member == member);
        for RepairWrite { lba, data, oob, .. } in pieces() {
            let write = || io::copied_command(*lba, data.clone(), oob.clone());
            io::on_parts(raid, zone, 1 << member, "write", |_| write()).await;
        }
    }
}
