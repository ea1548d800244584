//! Classifies the writes of an array by cause, from address and contents of a block.

use emu::ssd::{Cause, Classifier, WrittenBlock};
use engine::{
    buf::BLOCK,
    format::record::Header,
    raid::{
        geometry::{Layout, Role},
        policy::Policy,
    },
};
use std::cell::Cell;

/// Zones at the start of a member that hold logs.
const LOG_ZONES: u32 = 2;
/// Kind of a record of partial parity.
const PARITY: u16 = 7;

/// Classifies the writes of an array with this layout to its member `member`.
pub fn classifier(layout: &Layout, member: usize) -> Classifier {
    let layout = *layout;
    // The current record in the log zone: its cause, and the number of its blocks that follow.
    let record = Cell::new((Cause::Metadata, 0));
    Box::new(move |block: WrittenBlock<'_>| {
        if block.zone.0 < LOG_ZONES {
            return in_log(&record, block.data);
        }
        let row = block.offset_blocks / layout.chunk_blocks;
        // The array's window keeps data below this row, and temporary blocks from it on: in `distance` rows slots of P,
        // in the next ones those of Q. Logs are in the last of them.
        let ahead = block.wp_blocks / layout.chunk_blocks + layout.distance;
        match layout.role(member, row) {
            _ if layout.policy == Policy::Zrwa && row >= ahead => {
                let ahead_of_log = layout.parities as u64 * layout.distance;
                let holds_log = |stripe| layout.log(stripe).0.any(|holder| holder == member);
                let is_log = row >= ahead + ahead_of_log - layout.distance && holds_log(row - ahead_of_log);
                if is_log { Cause::Metadata } else { Cause::PartialParity }
            }
            _ if layout.policy == Policy::InPlace && row >= ahead => Cause::PartialParity,
            Role::Data(_) => Cause::Data,
            Role::Parity(_) => Cause::Parity,
        }
    })
}

/// Records follow each other; each begins with a block that has a header.
fn in_log(record: &Cell<(Cause, u64)>, block: &[u8]) -> Cause {
    let (cause, left) = record.get();
    if left > 0 {
        record.set((cause, left - 1));
        return cause;
    }
    // Only partial parity ever comes without a header, and only when that is measured (ZRAID §6.3).
    let Some(header) = Header::read(block) else { return Cause::PartialParity };
    let more = header.payload_bytes as u64 / BLOCK as u64;
    let (first, rest) = match header.kind == PARITY {
        true => (Cause::Header, Cause::PartialParity),
        false => (Cause::Metadata, Cause::Metadata),
    };
    record.set((rest, more));
    first
}
