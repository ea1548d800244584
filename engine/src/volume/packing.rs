//! Compression of the blocks of a write into pieces: here, or by the crew.

use crate::{
    buf::{BLOCK, Buf},
    volume::{
        core::{Core, State},
        pack::{Crew, How, Packed, Packing, Taken},
        place::Unit,
    },
};
use std::{collections::VecDeque, ops::Range};

/// End of the part of a write that begins with block `from` of it, if the write begins with the logical block `at`: no
/// unit is in two parts.
pub fn part_end(at: u64, from: u64, data: &Buf) -> u64 {
    let part = Unit::MOST.blocks() as u64;
    data.blocks().min(Unit::MOST.first(at + from) + part - at)
}

/// The parts of a write that are packed.
#[derive(Default)]
pub struct Parts {
    /// End of the parts that were offered to the crew.
    offered: u64,
    /// The next of them; `None` for a part that is packed here.
    taken: VecDeque<Option<Taken>>,
}

/// Counts a write in progress.
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
    /// Whether the next `blocks` blocks of a write are stored uncompressed.
    pub fn passes(&self, blocks: u64, parts: &Parts) -> bool {
        parts.taken.is_empty() && self.state.borrow_mut().patience.passes(blocks)
    }

    /// Packs a part of a write. Later parts are offered to the crew before, and the part itself if other writes are in
    /// progress, which continue meanwhile: unless few blocks are tried, which takes no time.
    pub async fn pack(&self, at: u64, data: &Buf, part: Range<u64>, how: How, parts: &mut Parts) -> Packed {
        let blocks = |part: Range<u64>| {
            (at + part.start, &data[part.start as usize * BLOCK..part.end as usize * BLOCK])
        };
        // A crew may have come while earlier parts were packed here.
        parts.offered = parts.offered.max(part.start);
        if let Some(crew) = &*self.crew.borrow()
            && !self.state.borrow().patience.is_out()
        {
            if parts.offered <= part.start && self.writers.get() == 1 {
                parts.offered = part.end;
                parts.taken.push_back(None);
            }
            while parts.offered < data.blocks() {
                let end = part_end(at, parts.offered, data);
                let taken = self.offer(&**crew, blocks(parts.offered..end), how);
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
        packer.get_or_insert_default().pack(blocks(part), how, patience)
    }

    /// Offers blocks to the crew.
    fn offer(&self, crew: &dyn Crew, blocks: (u64, &[u8]), how: How) -> Option<Taken> {
        crew.take(Packing::new(blocks, how, self.state.borrow().patience)).ok()
    }
}
