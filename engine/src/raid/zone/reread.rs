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
        zone::{flow::Parities, read, stripe},
    },
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

/// See [`crate::device::ZonedDevice::reread`].
pub fn reread(raid: &Rc<Raid>, lba: Lba, attempt: u32) -> Option<Completion> {
    let (zone, at) = raid.geometry.locate(lba);
    if zone.0 >= raid.geometry.zones || at >= raid.tail(zone) {
        return None;
    }
    let piece = read::piece(raid, at, 1);
    let own = raid.layout.member(piece.stripe, piece.index);
    let mut ways = vec![1 << own];
    if raid.layout.parities > 1 {
        let others = (0..raid.layout.members).filter(|member| *member != own);
        ways.extend(others.map(|member| 1 << own | 1 << member));
    }
    let (found, way) = (attempt as usize / ways.len(), attempt as usize % ways.len());
    if found > 1 || found == 1 && found_parities(raid, zone, piece).is_none() {
        return None;
    }
    let (completer, completion) = raid.slots.pair();
    let (array, avoided) = (raid.clone(), ways[way]);
    raid.runtime.spawn(async move {
        let read = match found {
            0 => read::reconstruct_without(&array, zone, piece, avoided).await,
            _ => read_with_found(&array, zone, piece, avoided).await,
        };
        completer.complete(read.map_or_else(Done::error, Done::with_data));
    });
    Some(completion)
}

/// As [`read::reconstruct_without`], with the parities that assembly found instead of those computed from the data.
async fn read_with_found(
    raid: &Raid,
    zone: ZoneIndex,
    piece: ChunkRange,
    avoided: u32,
) -> Result<Buf, DeviceError> {
    let found = found_parities(raid, zone, piece);
    let (tail, known) = found.ok_or(DeviceError::from(Status::UnrecoveredReadError))?;
    // The member of a parity that was not found holds nothing in its place, or a parity of another stripe.
    let lacking = (0..raid.layout.parities).filter(|which| known[*which].is_none());
    let avoided =
        lacking.fold(avoided, |all, which| all | 1 << raid.layout.parity_member(piece.stripe, which));
    stripe::decode_without(raid, zone, piece, Role::Data(piece.index), (tail, &known), avoided).await
}

/// The parities at `piece`'s offset that assembly found and that contradict the data, with the tail that they
/// belong to; `None` if there are none, or the stripe is not partial any more.
fn found_parities(raid: &Raid, zone: ZoneIndex, piece: ChunkRange) -> Option<(u64, Parities)> {
    let running = raid.zones.running(zone)?;
    let flow = running.flow.borrow();
    let of_stripe = flow.found.tail / raid.layout.stripe_blocks() == piece.stripe;
    let known: Parities = std::array::from_fn(|which| flow.found.blocks.get(&(which, piece.from)).cloned());
    (of_stripe && known.iter().any(Option::is_some)).then_some((flow.found.tail, known))
}
