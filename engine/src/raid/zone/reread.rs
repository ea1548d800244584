//! Rereads of blocks with wrong contents: decoded from redundancy, without the member that holds the block.
//!
//! The caller has a checksum for the block, and calls with `attempt` 0, 1, 2 … until the content is right. With one
//! parity the block is decoded from all other members. With two, one more of these may be wrong, so each of them is
//! left out in turn. The parities of a partial stripe are in memory, and the last assembly has computed them from the
//! data, right or wrong: so the attempts are repeated with the parities that the assembly read from the members, where
//! these differ.

use crate::{
    buf::Buf,
    device::{Completion, DeviceError, Done, Status},
    raid::{
        geometry::{ChunkRange, Role},
        parts::Raid,
        zone::flow::Parities,
    },
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

impl Raid {
    /// See [`crate::device::ZonedDevice::reread`].
    pub fn reread(self: &Rc<Self>, lba: Lba, attempt: u32) -> Option<Completion> {
        let (zone, at) = self.geometry.locate(lba);
        if zone.0 >= self.geometry.zones || at >= self.tail(zone) {
            return None;
        }
        let piece = self.piece(at, 1);
        let own = self.layout.member(piece.stripe, piece.index);
        let mut ways = vec![1 << own];
        if self.layout.parities > 1 {
            let others = (0..self.layout.members).filter(|member| *member != own);
            ways.extend(others.map(|member| 1 << own | 1 << member));
        }
        let (found, way) = (attempt as usize / ways.len(), attempt as usize % ways.len());
        if found > 1 || found == 1 && self.found_parities(zone, piece).is_none() {
            return None;
        }
        let (completer, completion) = self.slots.pair();
        let (raid, avoided) = (self.clone(), ways[way]);
        self.runtime.spawn(async move {
            let read = match found {
                0 => raid.read_without(zone, piece, avoided).await,
                _ => raid.read_with_found(zone, piece, avoided).await,
            };
            completer.complete(read.map_or_else(Done::error, Done::with_data));
        });
        Some(completion)
    }

    /// Decodes `piece`, one block, without the members `avoided` (bits).
    async fn read_without(
        self: &Rc<Self>,
        zone: ZoneIndex,
        piece: ChunkRange,
        avoided: u32,
    ) -> Result<Buf, DeviceError> {
        let partial = match self.zones.running(zone) {
            Some(running) => self.partial_stripe(&running, piece).await?,
            None => None,
        };
        let (tail, known) = partial.unwrap_or_else(|| (self.tail(zone), Parities::default()));
        self.decode_without(zone, piece, Role::Data(piece.index), (tail, &known), avoided).await
    }

    /// As [`Raid::read_without`], with the parities that assembly found instead of those computed from the data.
    async fn read_with_found(
        &self,
        zone: ZoneIndex,
        piece: ChunkRange,
        avoided: u32,
    ) -> Result<Buf, DeviceError> {
        let found = self.found_parities(zone, piece);
        let (tail, known) = found.ok_or(DeviceError::from(Status::UnrecoveredReadError))?;
        // The member of a parity that was not found holds nothing in its place, or a parity of another stripe.
        let lacking = (0..self.layout.parities).filter(|which| known[*which].is_none());
        let avoided =
            lacking.fold(avoided, |all, which| all | 1 << self.layout.parity_member(piece.stripe, which));
        self.decode_without(zone, piece, Role::Data(piece.index), (tail, &known), avoided).await
    }

    /// The parities at `piece`'s offset that assembly found and that contradict the data, with the tail that they
    /// belong to; `None` if there are none, or the stripe is not partial any more.
    fn found_parities(&self, zone: ZoneIndex, piece: ChunkRange) -> Option<(u64, Parities)> {
        let running = self.zones.running(zone)?;
        let flow = running.flow.borrow();
        let of_stripe = flow.found.tail / self.layout.stripe_blocks() == piece.stripe;
        let known: Parities =
            std::array::from_fn(|which| flow.found.blocks.get(&(which, piece.from)).cloned());
        (of_stripe && known.iter().any(Option::is_some)).then_some((flow.found.tail, known))
    }
}
