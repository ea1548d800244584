//! Compression of the blocks of a write into pieces: here, or by the workers.

use crate::{
    buf::{BLOCK, Buf},
    volume::{
        address::Unit,
        core::{VolumeCore, VolumeState},
        piece::{CompressionJob, CompressionWorkers, Encoding, PackedPieces, PendingJob},
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
pub struct WriteParts {
    /// End of the parts that were offered to the workers.
    offered: u64,
    /// The next of them; `None` for a part that is packed here.
    taken: VecDeque<Option<PendingJob>>,
}

/// Counts a write in progress.
pub struct WriteCount<'c>(&'c VolumeCore);

impl<'c> WriteCount<'c> {
    pub fn new(core: &'c VolumeCore) -> WriteCount<'c> {
        core.writers.set(core.writers.get() + 1);
        WriteCount(core)
    }
}

impl Drop for WriteCount<'_> {
    fn drop(&mut self) {
        self.0.writers.set(self.0.writers.get() - 1);
    }
}

impl VolumeCore {
    /// Whether the next `blocks` blocks of a write are stored uncompressed.
    pub fn passes(&self, blocks: u64, parts: &WriteParts) -> bool {
        parts.taken.is_empty() && self.state.borrow_mut().patience.passes(blocks)
    }

    /// Packs a part of a write. Later parts are offered to the workers before, and the part itself if other writes are
    /// in progress, which continue meanwhile: unless few blocks are tried, which takes no time.
    pub async fn pack(
        &self,
        at: u64,
        data: &Buf,
        part: Range<u64>,
        how: Encoding,
        parts: &mut WriteParts,
    ) -> PackedPieces {
        let blocks = |part: Range<u64>| {
            (at + part.start, &data[part.start as usize * BLOCK..part.end as usize * BLOCK])
        };
        // Workers may have been added while earlier parts were packed here.
        parts.offered = parts.offered.max(part.start);
        if let Some(workers) = &*self.workers.borrow()
            && !self.state.borrow().patience.is_out()
        {
            if parts.offered <= part.start && self.writers.get() == 1 {
                parts.offered = part.end;
                parts.taken.push_back(None);
            }
            while parts.offered < data.blocks() {
                let end = part_end(at, parts.offered, data);
                let taken = self.offer(&**workers, blocks(parts.offered..end), how);
                if taken.is_none() && parts.offered > part.start {
                    break;
                }
                parts.offered = end;
                parts.taken.push_back(taken);
            }
        }
        if let Some(Some(taken)) = parts.taken.pop_front()
            && let Some(compression) = taken.await
        {
            self.state.borrow_mut().patience.learn(&compression);
            return compression.packed;
        }
        let mut state = self.state.borrow_mut();
        let VolumeState { encoder, patience, .. } = &mut *state;
        encoder.get_or_insert_default().pack(blocks(part), how, patience)
    }

    /// Offers blocks to the workers.
    fn offer(
        &self,
        workers: &dyn CompressionWorkers,
        blocks: (u64, &[u8]),
        how: Encoding,
    ) -> Option<PendingJob> {
        workers.take(CompressionJob::new(blocks, how, self.state.borrow().patience)).ok()
    }
}
