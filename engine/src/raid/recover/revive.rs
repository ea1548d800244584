//! Zones that came back empty although there is something in them.
//!
//! An orderly shutdown of a drive ends zones whose write pointer has not moved: they are empty and
//! have no ZRWA any more, but their blocks can still be read. So an empty zone is taken for one
//! whose write pointer is at its start, and if the logical zone goes on, it gets a ZRWA again and
//! what must be in it is written again: a write pointer commits what was written to the ZRWA.
//!
//! It may also be empty because the drive has lost its ZRWA in a power cut. Then nothing is in it:
//! a member that should hold something and reads as zeros is done without, if parity says that zeros
//! are not what it should hold. So is a member that cannot read what it should hold. Of small zones used
//! as one, some may have got a ZRWA again and lost it, and what is in the others is there: each is asked.

use crate::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Status, Zones},
    raid::{
        geometry::{each, physical, subsets},
        parts::Raid,
        policy::zrwa::{self, Evidence, Refusal},
        recover::verdict::{Held, Tail, ZoneView},
    },
    zone::{Lba, ZoneIndex},
};
use std::{ops::Range, rc::Rc};

/// What is in the zones whose write pointers have not moved, and has to be written back.
#[derive(Default)]
pub struct Kept {
    /// Members (bits) that lack what they should hold.
    pub gone: u32,
    /// By member, in the order in which it is to be written.
    pub pieces: Vec<Held>,
}

impl Raid {
    /// Reads what members whose write pointers are at the start hold for a tail at `tail` blocks. Takes
    /// those that lack it out of the evidence. `empty` are the members (bits) whose zones are empty.
    pub async fn hold(
        &self,
        view: &ZoneView<'_>,
        evidence: &mut Evidence,
        tail: u64,
        empty: u32,
    ) -> Result<Kept, Refusal> {
        let (mut held, mut blank) = (Kept::default(), 0);
        let piece_of = |member, (lba, data)| Held { member, lba, data, oob: Buf::default() };
        for member in (0..self.layout.members).filter(|member| evidence.wp_blocks[*member] == Some(0)) {
            let bit = 1 << member;
            let first = held.pieces.len();
            let needed = zrwa::needed_of(&self.layout, member, tail);
            for piece in self.read_ranges(view.zone, member, &needed).await {
                match piece {
                    Ok(piece) => held.pieces.push(piece_of(member, piece)),
                    Err(_) => held.gone |= bit,
                }
            }
            let pieces = &held.pieces[first..];
            if held.gone & bit == 0 && self.lacks_a_zrwa(view.zone, member, pieces).await {
                blank |= bit;
            }
            // Another log member has a copy.
            let log = self.layout.log_blocks_of(member, tail);
            let log = self.read_ranges(view.zone, member, log.as_slice()).await;
            held.pieces.extend(log.into_iter().flatten().map(|piece| piece_of(member, piece)));
        }
        self.do_without(evidence, held.gone)?;
        if blank != 0 {
            let lost = self.lost_of_blank(view, evidence, tail, blank, empty).await?;
            self.do_without(evidence, lost)?;
            held.gone |= lost;
        }
        Ok(held)
    }

    /// Takes members out of the evidence, as long as enough are left.
    fn do_without(&self, evidence: &mut Evidence, gone: u32) -> Result<(), Refusal> {
        for member in each(gone) {
            evidence.wp_blocks[member] = None;
            if evidence.wp_blocks.iter().flatten().count() < self.layout.fewest_members() {
                return Err(Refusal::Lacking { member });
            }
        }
        Ok(())
    }

    /// Which of the members that read as zeros have lost what they should hold.
    async fn lost_of_blank(
        &self,
        view: &ZoneView<'_>,
        evidence: &Evidence,
        tail: u64,
        blank: u32,
        empty: u32,
    ) -> Result<u32, Refusal> {
        match self.parity_agrees(view, evidence, tail).await {
            // Zeros are what was written.
            Some(true) => return Ok(0),
            Some(false) => {}
            // Nobody can tell. A shutdown would rather have emptied more zones than this one.
            None if empty.count_ones() == 1 => return Ok(blank & empty),
            None => return Ok(0),
        }
        let there = evidence.wp_blocks.iter().flatten().count();
        let most = there.saturating_sub(self.layout.fewest_members()) as u32;
        // Those that kept their ZRWA are less in doubt.
        for suspects in [blank & empty, blank] {
            for lost in (1..=most).flat_map(|count| subsets(suspects, count)) {
                let mut others = evidence.clone();
                each(lost).for_each(|member| others.wp_blocks[member] = None);
                // It cannot be another set as well: what agrees without either of two agrees with both. Where nobody
                // can tell, no suspect is left to be believed.
                let agrees = self.parity_agrees(view, &others, tail).await;
                if agrees == Some(true) || agrees.is_none() && lost == suspects {
                    return Ok(lost);
                }
            }
        }
        Err(Refusal::Contradiction)
    }

    /// What a member's ZRWAs hold while the write pointer is at the start, one after the other: there are
    /// several where small zones are used as one. Each is lost as a whole.
    pub fn zrwas_at_start(&self, member: usize) -> impl Iterator<Item = Range<u64>> {
        let layout = &self.layout;
        let end = layout.window_blocks().min(layout.rows * layout.chunk_blocks);
        let aggregate = self.membership.superblock().aggregate as u64;
        let zrwa = self.members.device(member).and_then(|device| device.geometry().zrwa);
        let each = zrwa.map_or(end, |zrwa| zrwa.size_blocks / aggregate).max(1);
        (0..end).step_by(each as usize).map(move |from| from..end.min(from + each))
    }

    /// Whether there are only zeros in a ZRWA of a member that should hold some of `pieces`.
    async fn lacks_a_zrwa(&self, zone: ZoneIndex, member: usize, pieces: &[Held]) -> bool {
        let start = self.members.start(member, zone).0;
        for zrwa in self.zrwas_at_start(member) {
            let blocks =
                pieces.iter().flat_map(|piece| (piece.lba.0 - start..).zip(piece.data.chunks(BLOCK)));
            let mut needed = blocks.filter(|(at, _)| zrwa.contains(at)).peekable();
            if needed.peek().is_some()
                && needed.all(|(_, data)| is_zeros(data))
                && self.is_blank(zone, member, zrwa).await == Some(true)
            {
                return true;
            }
        }
        false
    }

    /// Whether there are only zeros in some blocks of a member's part of a zone; `None` if not all that there is
    /// can be read, and what can be read is zeros.
    pub async fn is_blank(&self, zone: ZoneIndex, member: usize, blocks: Range<u64>) -> Option<bool> {
        let mut blank = Some(true);
        for piece in self.read_ranges(zone, member, &[blocks]).await {
            match piece {
                Ok((_, data)) if !is_zeros(&data) => return Some(false),
                Ok(_) => {}
                Err(error) if error == Status::DeallocatedBlock.into() => {}
                Err(_) => blank = None,
            }
        }
        blank
    }

    /// Reads some blocks of a member's part of a zone, in pieces of a chunk or, where there are
    /// unreadable ones, of a block.
    async fn read_ranges(
        &self,
        zone: ZoneIndex,
        member: usize,
        ranges: &[Range<u64>],
    ) -> Vec<Result<(Lba, Buf), DeviceError>> {
        let start = self.members.start(member, zone).0;
        let read = async |at: u64, blocks: u64| {
            let data = Buf::zeroed(blocks as usize * BLOCK);
            let done = self.members.submit(member, Command::read(Lba(start + at), data)).await;
            done.result.map(|()| (Lba(start + at), done.data))
        };
        let mut pieces = Vec::new();
        for blocks in ranges {
            let mut at = blocks.start;
            while at < blocks.end {
                let to = blocks.end.min(at + self.layout.chunk_blocks);
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

    /// Whether parity fits the data everywhere below the tail; `None` if that cannot be told.
    async fn parity_agrees(&self, view: &ZoneView<'_>, evidence: &Evidence, tail: u64) -> Option<bool> {
        let layout = &self.layout;
        let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
        let whole = (0..stripe).map(|stripe| (stripe, layout.stripe_blocks()));
        let mut agrees = Some(true);
        for (stripe, covered) in whole.chain([(stripe, covered)]) {
            for block in 0..layout.chunk_blocks.min(covered) {
                let chunks = (covered - block).div_ceil(layout.chunk_blocks);
                let column = self.read_column(view, stripe, chunks, block..block + 1, evidence).await;
                match column.agrees() {
                    Some(false) => return Some(false),
                    Some(true) => {}
                    None => agrees = None,
                }
            }
        }
        agrees
    }

    /// Gives the members whose zones are empty a ZRWA again, and writes back what is in the zones whose
    /// write pointers have not moved: also where there is a ZRWA, for an earlier recovery may have come
    /// no further than that. One member after the other, so that it never is in doubt on two.
    pub async fn revive(self: &Rc<Self>, zone: ZoneIndex, tail: &Tail) {
        for member in each(self.live(zone)) {
            if tail.revived & (1 << member) != 0 {
                let zones = Zones::One(physical(zone));
                let open = |_| Command::Open { zones, zrwa: true };
                self.on_parts(zone, 1 << member, "open zone", open).await;
            }
            let pieces = || tail.held.iter().filter(|piece| piece.member == member);
            for Held { lba, data, oob, .. } in pieces() {
                let (lba, data, oob) = (*lba, data.clone(), oob.clone());
                let write = Command::Write { lba, data, oob, fua: false };
                self.on_parts(zone, 1 << member, "write", |_| write.clone()).await;
            }
        }
    }
}

fn is_zeros(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}
