//! Blocks of a write on their way to becoming pieces: here, or with the crew.

use crate::{
    buf::{BLOCK, Buf},
    volume::{
        core::{Core, State},
        pack::{Codec, Crew, Packed, Packing, Taken},
    },
};
use std::{collections::VecDeque, ops::Range};

/// Blocks of a write that are packed at a time.
pub const PART: u64 = 16;

/// Parts of a write that are packed.
#[derive(Default)]
pub struct Parts {
    /// Where those end that were offered to the crew.
    offered: u64,
    /// Those of them that come next, and were taken.
    taken: VecDeque<Option<Taken>>,
}

/// Somebody writes.
pub struct Writing<'c>(&'c Core);

impl<'c> Writing<'c> {
    pub fn new(core: &'c Core) -> Writing<'c> {
        core.writers.set(core.writers.get() + 1);
        Writing(core)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.writers.set(self.0.writers.get() - 1);
    }
}

impl Core {
    /// Packs a part of a write. What comes behind it is offered to the crew before, and the part itself if others write as
    /// well, who go on meanwhile.
    pub async fn pack(&self, data: &Buf, part: Range<u64>, codec: Codec, parts: &mut Parts) -> Packed {
        let bytes = |part: Range<u64>| &data[part.start as usize * BLOCK..part.end as usize * BLOCK];
        // A crew may have come while others of its parts were packed here.
        parts.offered = parts.offered.max(part.start);
        if let Some(crew) = &*self.crew.borrow() {
            if parts.offered <= part.start && self.writers.get() == 1 {
                parts.offered = part.end;
                parts.taken.push_back(None);
            }
            while parts.offered < data.blocks() {
                let end = data.blocks().min(parts.offered + PART);
                let taken = self.offer(&**crew, bytes(parts.offered..end), codec);
                if taken.is_none() && parts.offered > part.start {
                    break;
                }
                parts.offered = end;
                parts.taken.push_back(taken);
            }
        }
        if let Some(Some(taken)) = parts.taken.pop_front()
            && let Some(packing) = taken.await
        {
            self.state.borrow_mut().patience.learn(&packing);
            return packing.packed;
        }
        let mut state = self.state.borrow_mut();
        let State { packer, patience, .. } = &mut *state;
        packer.get_or_insert_default().pack(bytes(part), codec, patience)
    }

    /// Offers blocks to the crew, unless none of them is tried, which takes no time.
    fn offer(&self, crew: &dyn Crew, blocks: &[u8], codec: Codec) -> Option<Taken> {
        let patience = self.state.borrow().patience;
        if patience.passes(blocks.len() / BLOCK) {
            return None;
        }
        let taken = crew.take(Packing::new(blocks, codec, patience)).ok()?;
        self.state.borrow_mut().patience.probes();
        Some(taken)
    }
}
