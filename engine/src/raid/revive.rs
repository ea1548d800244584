//! Zones that came back empty although there is something in them.
//!
//! An orderly shutdown of a drive ends zones whose write pointer has not moved: they are empty and
//! have no ZRWA any more, but their blocks can still be read. So an empty zone is taken for one
//! whose write pointer is at its start, and if the logical zone goes on, it gets a ZRWA again and
//! what must be in it is written again: a write pointer commits what was written to the ZRWA.
//!
//! It may also be empty because the drive has lost its ZRWA in a power cut. Then nothing is in it:
//! a member that should hold something and reads as zeros is done without, if parity agrees that
//! zeros are not what it should hold.

use super::{
    core::Core,
    parity,
    recover::{Tail, ZoneView},
    zrwa::{self, Evidence, Refusal},
};
use crate::{
    buf::{BLOCK, Buf},
    device::{Command, Zones},
    zone::{Lba, ZoneIndex},
};
use std::{ops::Range, rc::Rc};

impl Core {
    /// Which of the `revived` members (bits), whose zones are empty, have lost what they should hold
    /// for a tail at `tail` blocks.
    pub async fn lost_of_revived(
        &self,
        view: &ZoneView<'_>,
        evidence: &Evidence,
        tail: u64,
        revived: u32,
    ) -> Result<u32, Refusal> {
        let mut blank = 0;
        for member in Core::each(revived) {
            blank |= (self.is_blank(view.zone, member, tail).await as u32) << member;
        }
        if blank == 0 {
            return Ok(0);
        }
        let present = evidence.wp_blocks.iter().flatten().count();
        let members = self.layout.members;
        if present == members {
            // Maybe zeros are what was written.
            return match self.parity_agrees(view, evidence, tail).await {
                true => Ok(0),
                false if blank.count_ones() == 1 => Ok(blank),
                false => Err(Refusal::Contradiction),
            };
        }
        // Nobody can tell. A shutdown would rather have emptied more zones than this one.
        match revived.count_ones() {
            1 => Err(Refusal::TooFew { present: present - 1, members, needed: members - 1 }),
            _ => Ok(0),
        }
    }

    /// Whether a member should hold something of a zone and nothing but zeros can be read there.
    async fn is_blank(&self, zone: ZoneIndex, member: usize, tail: u64) -> bool {
        let needed = zrwa::needed_of(&self.layout, member, tail);
        for blocks in &needed {
            for (_, data) in self.read_range(zone, member, blocks.clone()).await {
                if data.iter().any(|byte| *byte != 0) {
                    return false;
                }
            }
        }
        !needed.is_empty()
    }

    /// What can be read of some blocks of a member's part of a zone, in pieces of a chunk or, where
    /// there are unreadable ones, of a block.
    async fn read_range(&self, zone: ZoneIndex, member: usize, blocks: Range<u64>) -> Vec<(Lba, Buf)> {
        let start = self.start(member, zone).0;
        let read = async |at: u64, blocks: u64| {
            let data = Buf::zeroed(blocks as usize * BLOCK);
            let done = self.submit(member, Command::read(Lba(start + at), data)).await;
            done.result.is_ok().then_some((Lba(start + at), done.data))
        };
        let mut pieces = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let to = blocks.end.min(at + self.layout.chunk_blocks);
            match read(at, to - at).await {
                Some(piece) => pieces.push(piece),
                None => {
                    for block in at..to {
                        pieces.extend(read(block, 1).await);
                    }
                }
            }
            at = to;
        }
        pieces
    }

    /// Whether parity fits the data everywhere below the tail, as far as it can be read.
    async fn parity_agrees(&self, view: &ZoneView<'_>, evidence: &Evidence, tail: u64) -> bool {
        let layout = &self.layout;
        let (stripe, covered) = (tail / layout.stripe_blocks(), tail % layout.stripe_blocks());
        for row in 0..stripe * layout.chunk_blocks {
            let mut sum = Some(Buf::zeroed(BLOCK));
            for member in 0..layout.members {
                let block = self.read_block(view.zone, member, row, evidence).await;
                sum = sum.zip(block).map(|(mut sum, block)| {
                    if let Some(sum) = sum.as_mut() {
                        parity::xor_assign(sum, &block);
                    }
                    sum
                });
            }
            if sum.is_some_and(|sum| sum.iter().any(|byte| *byte != 0)) {
                return false;
            }
        }
        for block in 0..layout.chunk_blocks.min(covered) {
            let chunks = (covered - block).div_ceil(layout.chunk_blocks);
            let data = self.parity_from_data(view.zone, stripe, chunks, block, evidence).await;
            let slot = self.parity_from_slot(view, stripe, chunks, block, evidence).await;
            if data.zip(slot).is_some_and(|(data, slot)| data[..] != slot[..]) {
                return false;
            }
        }
        true
    }

    /// Gives the members whose zones are empty a ZRWA again, and writes back what is in the zones whose
    /// write pointers have not moved: also where there is a ZRWA, for an earlier recovery may have come
    /// no further than that. One member after the other, so that it never is in doubt on two.
    pub async fn revive(self: &Rc<Self>, zone: ZoneIndex, tail: &Tail) {
        for member in Core::each(self.live(zone)).filter(|member| tail.positions[*member] == 0) {
            let mut pieces = Vec::new();
            let log = self.layout.log_blocks_of(member, tail.blocks);
            for blocks in zrwa::needed_of(&self.layout, member, tail.blocks).into_iter().chain(log) {
                pieces.extend(self.read_range(zone, member, blocks).await);
            }
            if tail.revived & (1 << member) != 0 {
                let zones = Zones::One(Core::physical(zone));
                self.on_all(1 << member, "open zone", |_| Command::Open { zones, zrwa: true }).await;
            }
            for (lba, data) in pieces {
                self.on_all(1 << member, "write", |_| Command::write(lba, data.clone(), false)).await;
            }
            self.barrier(1 << member & self.live(zone)).await;
        }
    }
}
