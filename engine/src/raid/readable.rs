//! Parts of zones that are lost for writing and can still be read: those of drives' zones that have become read-only.
//!
//! To everything that writes, such a part is like one that is lost: it is done without until it has been rebuilt or
//! reset. To reads and rebuilds it is a source, as far as it is known to hold the data. Drives do not say how far a
//! read-only zone is written, so each part has an end, in blocks of the logical zone, that is decided when the part is
//! lost. Why nothing stale or unwritten is ever read:
//!
//! - Below the end every write had completed when the part was lost, on this member too: plans complete in order, and
//!   the one that failed had not. What was written later, without the member, lies behind it.
//! - In a zone with a ZRWA only whole stripes below the write pointer count, whose blocks are final and not in the ZRWA,
//!   which may be gone. A ZRWA is lost as a whole and reads as zeros then; so if anything else is found in it, it is
//!   there, and all that had completed counts.
//! - Of the stripe in which the end lies only data counts: parity is elsewhere as long as the stripe is partial.
//! - What is below stays as it is: a read-only zone is not written. The end is forgotten with a reset of the zone, before
//!   the part is rebuilt in another place, and when another drive takes the member's place.

use crate::raid::geometry::{Layout, Piece, Role};
use std::{cell::RefCell, collections::BTreeMap, ops::Range};

/// What is known of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readable {
    /// Everything of the part below this block of the zone can be read: 0 until it is known that the part is read-only.
    pub tail_blocks: u64,
    /// Everything below this block had completed when the part was lost.
    pub complete_blocks: u64,
    /// What lies below this block of the part is below its write pointer.
    pub written_blocks: u64,
}

impl Readable {
    /// The end, in blocks of the zone, of whole stripes below the write pointer.
    pub fn passed_blocks(&self, layout: &Layout) -> u64 {
        let rows =
            (self.written_blocks / layout.chunk_blocks).min(self.complete_blocks / layout.stripe_blocks());
        rows * layout.stripe_blocks()
    }
}

/// The parts of all zones that are lost and may be readable, by zone and member.
#[derive(Default)]
pub struct ReadableParts(RefCell<BTreeMap<(u32, usize), Readable>>);

impl ReadableParts {
    /// What is known of a part, if it is one of these.
    pub fn get(&self, zone: u32, member: usize) -> Option<Readable> {
        self.0.borrow().get(&(zone, member)).copied()
    }

    /// Sets what is known of a part.
    pub fn set(&self, zone: u32, member: usize, part: Readable) {
        self.0.borrow_mut().insert((zone, member), part);
    }

    /// Forgets a part: it is written anew.
    pub fn remove(&self, zone: u32, member: usize) {
        self.0.borrow_mut().remove(&(zone, member));
    }

    /// Forgets the parts of zones that are reset.
    pub fn remove_zones(&self, zones: &Range<u32>) {
        self.0.borrow_mut().retain(|(zone, _), _| !zones.contains(zone));
    }

    /// Forgets the parts of a member: another drive takes its place.
    pub fn remove_member(&self, member: usize) {
        self.0.borrow_mut().retain(|(_, of), _| *of != member);
    }

    /// Whether a part can be read in the row of `piece`'s stripe at its offsets.
    pub fn has_piece(&self, layout: &Layout, zone: u32, member: usize, piece: Piece) -> bool {
        let Some(Readable { tail_blocks, .. }) = self.get(zone, member) else { return false };
        let (stripe, covered) = (tail_blocks / layout.stripe_blocks(), tail_blocks % layout.stripe_blocks());
        match layout.role(member, piece.stripe) {
            _ if piece.stripe != stripe => piece.stripe < stripe,
            Role::Data(index) => index * layout.chunk_blocks + piece.to <= covered,
            Role::Parity(_) => false,
        }
    }

    /// Members (bits) whose parts of a zone can be read in all rows below block `to` of the parts.
    pub fn with_rows(&self, layout: &Layout, zone: u32, to: u64) -> u32 {
        let parts = self.0.borrow();
        let those = parts
            .range((zone, 0)..(zone + 1, 0))
            .filter(|(_, part)| part.tail_blocks / layout.stripe_blocks() * layout.chunk_blocks >= to);
        those.fold(0, |all, ((_, member), _)| all | 1 << member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::policy::Policy;

    #[test]
    fn readable_part_has_rows_below_its_end_and_data_of_the_last_one() {
        let layout =
            Layout { policy: Policy::Zrwa, members: 4, parities: 1, chunk_blocks: 4, rows: 9, distance: 2 };
        let parts = ReadableParts::default();
        // Two stripes, a chunk, and one block.
        let part = Readable { tail_blocks: 29, complete_blocks: 29, written_blocks: 6 };
        (0..4).for_each(|member| parts.set(1, member, part));
        assert_eq!(part.passed_blocks(&layout), 12);
        for member in 0..4 {
            let has = |stripe, from, to| {
                let piece = Piece { stripe, index: 0, from, to };
                parts.has_piece(&layout, 1, member, piece)
            };
            assert!(has(0, 0, 4) && has(1, 3, 4) && !has(3, 0, 1));
            let expected = match layout.role(member, 2) {
                Role::Data(0) => (true, true),
                Role::Data(1) => (true, false),
                _ => (false, false),
            };
            assert_eq!((has(2, 0, 1), has(2, 1, 4)), expected);
        }
        let rows = |to| parts.with_rows(&layout, 1, to);
        assert_eq!((rows(8), rows(9), parts.with_rows(&layout, 0, 1)), (0b1111, 0, 0));
        parts.remove_member(2);
        parts.remove(1, 0);
        assert_eq!(rows(8), 0b1010);
        parts.remove_zones(&(1..2));
        assert_eq!(rows(0), 0);
    }
}
