//! Write traffic of a drive: blocks that the host wrote, those that reached flash, and the causes of writes.
//!
//! A block in a ZRWA reaches flash when the write pointer passes it. A block that is overwritten before has expired and
//! never does, whether the ZRWA is in memory or in flash (ZRAID §2.3).

use engine::zone::{ZoneIndex, ZoneInfo};
use std::collections::{BTreeMap, VecDeque};

/// Why a block was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    #[default]
    Data,
    Parity,
    PartialParity,
    Header,
    Metadata,
}

impl Cause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Cause; 5] =
        [Cause::Data, Cause::Parity, Cause::PartialParity, Cause::Header, Cause::Metadata];

    pub fn name(self) -> &'static str {
        match self {
            Cause::Data => "data",
            Cause::Parity => "parity",
            Cause::PartialParity => "partial parity",
            Cause::Header => "header",
            Cause::Metadata => "metadata",
        }
    }
}

/// A block that is being written, to be classified.
#[derive(Clone, Copy, Debug)]
pub struct WrittenBlock<'a> {
    pub zone: ZoneIndex,
    /// Blocks from the start of the zone.
    pub offset_blocks: u64,
    /// The write pointer before the write, from the start of the zone.
    pub wp_blocks: u64,
    pub data: &'a [u8],
}

/// Returns the cause of a write.
pub type Classifier = Box<dyn Fn(WrittenBlock<'_>) -> Cause>;

/// Commands and blocks since a drive was created. Arrays are indexed by the number of the [`Cause`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub reads: u64,
    pub writes: u64,
    pub appends: u64,
    /// Explicit ZRWA flushes.
    pub zrwa_flushes: u64,
    pub finishes: u64,
    pub resets: u64,
    pub read_blocks: u64,
    /// Blocks that the host wrote.
    pub written: [u64; Cause::ALL.len()],
    /// Of these, blocks that were overwritten in the ZRWA and never reached flash.
    pub expired: [u64; Cause::ALL.len()],
    /// Of these, blocks that reached flash.
    pub programmed: [u64; Cause::ALL.len()],
    /// Blocks that reached flash although the host did not write them: the rest of finished zones, and holes that a
    /// write pointer passed.
    pub padding: u64,
    /// Blocks that were written to a ZRWA.
    pub zrwa_blocks: u64,
}

impl Counters {
    /// Blocks that reached flash.
    pub fn flash_blocks(&self) -> u64 {
        self.programmed.iter().sum::<u64>() + self.padding
    }

    /// The sums of both.
    pub fn plus(mut self, other: &Counters) -> Counters {
        self.reads += other.reads;
        self.writes += other.writes;
        self.appends += other.appends;
        self.zrwa_flushes += other.zrwa_flushes;
        self.finishes += other.finishes;
        self.resets += other.resets;
        self.read_blocks += other.read_blocks;
        for cause in Cause::ALL.map(|cause| cause as usize) {
            self.written[cause] += other.written[cause];
            self.expired[cause] += other.expired[cause];
            self.programmed[cause] += other.programmed[cause];
        }
        self.padding += other.padding;
        self.zrwa_blocks += other.zrwa_blocks;
        self
    }
}

/// Updates the counters.
#[derive(Default)]
pub(super) struct Traffic {
    pub counters: Counters,
    pub classifier: Option<Classifier>,
    /// By zone, the causes of the blocks in its ZRWA, from the write pointer on.
    zrwa: BTreeMap<u32, VecDeque<Option<Cause>>>,
}

impl Traffic {
    /// Counts `data`, written at this offset of a zone that was as in `before`.
    pub fn wrote(&mut self, before: &ZoneInfo, offset_blocks: u64, data: &[u8]) {
        let Traffic { counters, classifier, zrwa } = self;
        let mut ring = before.zrwa.then(|| zrwa.entry(before.zone.0).or_default());
        for (i, data) in data.chunks_exact(engine::buf::BLOCK).enumerate() {
            let offset_blocks = offset_blocks + i as u64;
            let block = WrittenBlock { zone: before.zone, offset_blocks, wp_blocks: before.wp_blocks, data };
            let cause = classifier.as_ref().map_or(Cause::Data, |classify| classify(block));
            counters.written[cause as usize] += 1;
            let Some(ring) = &mut ring else {
                counters.programmed[cause as usize] += 1;
                continue;
            };
            counters.zrwa_blocks += 1;
            // Another host may have reset the zone just before.
            let at = offset_blocks.saturating_sub(before.wp_blocks) as usize;
            if ring.len() <= at {
                ring.resize(at + 1, None);
            }
            if let Some(old) = ring[at].replace(cause) {
                counters.expired[old as usize] += 1;
            }
        }
    }

    /// Counts a move of the write pointer of a zone with a ZRWA by `blocks`; returns the number of unwritten ones.
    pub fn passed(&mut self, zone: ZoneIndex, blocks: u64) -> u64 {
        let ring = self.zrwa.entry(zone.0).or_default();
        let before = self.counters.padding;
        for _ in 0..blocks {
            match ring.pop_front().flatten() {
                Some(cause) => self.counters.programmed[cause as usize] += 1,
                None => self.counters.padding += 1,
            }
        }
        self.counters.padding - before
    }

    /// Counts a ZRWA that was lost with its contents.
    pub fn dropped(&mut self, zone: ZoneIndex) {
        for cause in self.zrwa.remove(&zone.0).into_iter().flatten().flatten() {
            self.counters.expired[cause as usize] += 1;
        }
    }
}
