//! The oracle of block devices: the permitted contents of each block.
//!
//! Every write and discard is a *version* of the blocks that it covers, with the moments of its beginning and its end.
//! A version is *over* another one that had ended when it began. Two that overlap in time may come in either order. A
//! version is *safe* once it has ended with FUA, or had ended before a flush began that has ended. Then a block may
//! hold
//!
//! - when it is read: any version, unless one is over it that had ended when the read began;
//! - after a power cut: any version, unless a safe one is over it;
//! - after the end of a process while the drives keep power: any version, unless one is over it that has ended.
//!
//! The contents found by a recovery are final: from then on they are the only version, and safe.

use crate::simulator::{
    layer::world::LayerEnd,
    stamp::{self, Stamp},
};
use engine::buf::BLOCK;

/// Identifies blocks of volumes in stamps.
const MARK: u32 = 0x76;

/// Contents of a block from some moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    /// Number of the write; 0 for zeros.
    write: u64,
    /// The block that was written: another one if the data came through a snapshot.
    block: u64,
    begun: u64,
    ended: Option<u64>,
    safe: bool,
    /// The write was refused: it may have taken effect or not, and other versions may be over it.
    refused: bool,
}

impl Version {
    /// Whether this version has ended, and began after the end of `other`.
    fn is_over(&self, other: &Version) -> bool {
        self.ended.is_some() && !self.refused && other.ended.is_some_and(|ended| ended < self.begun)
    }
}

/// Contents that a block may have: the block that was written, and the number of the write, 0 for zeros.
pub type Content = (u64, u64);

/// Whether a block has one of these contents.
pub fn holds_one(contents: &[Content], bytes: &[u8]) -> bool {
    contents.iter().any(|content| holds(*content, bytes))
}

/// Whether a block has this content.
pub fn holds((block, write): Content, bytes: &[u8]) -> bool {
    match write {
        0 => stamp::is_zero(bytes),
        _ => holds_write(block, write, bytes),
    }
}

#[derive(Clone, Debug)]
pub struct VolumeOracle {
    blocks: Vec<Vec<Version>>,
    now: u64,
    writes: u64,
}

/// Contents that a write puts into a block of a volume: some eighths of [`Stamp::fill`], which do not compress, and
/// then zeros. Of 32 writes in a row eight have only blocks that do not compress.
pub fn fill(block: u64, write: u64, bytes: &mut [u8]) {
    let eighths = if write / 8 % 4 == 3 { 8 } else { 1 + (7 * block + 3 * write) % 8 };
    let (stamp, zeros) = bytes.split_at_mut(BLOCK / 8 * eighths as usize);
    Stamp { zone: MARK, block, write }.fill(stamp);
    zeros.fill(0);
}

fn holds_write(block: u64, write: u64, bytes: &[u8]) -> bool {
    let mut expected = [0; BLOCK];
    fill(block, write, &mut expected);
    expected == bytes
}

impl VolumeOracle {
    /// For a volume without writes.
    pub fn new(blocks: u64) -> VolumeOracle {
        let zeros = Version { write: 0, block: 0, begun: 0, ended: Some(0), safe: true, refused: false };
        VolumeOracle { blocks: vec![vec![zeros]; blocks as usize], now: 1, writes: 0 }
    }

    /// Adds blocks that were never written, up to `blocks`.
    pub fn grow(&mut self, blocks: u64) {
        let more = VolumeOracle::new(blocks.saturating_sub(self.blocks()));
        self.blocks.extend(more.blocks);
    }

    /// Removes the blocks behind the first `blocks`.
    pub fn shrink(&mut self, blocks: u64) {
        self.blocks.truncate(blocks as usize);
    }

    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Number of blocks that may hold other data than zeros.
    pub fn may_be_mapped(&self) -> u64 {
        self.may_be_mapped_in(0, self.blocks())
    }

    /// As [`VolumeOracle::may_be_mapped`], of some blocks; those that a growth has just added have no data.
    pub fn may_be_mapped_in(&self, at: u64, blocks: u64) -> u64 {
        let of_range = self.blocks.iter().skip(at as usize).take(blocks as usize);
        of_range.filter(|versions| versions.iter().any(|v| v.write > 0)).count() as u64
    }

    /// Whether all of these blocks hold data, in any order of the writes in flight.
    pub fn are_mapped(&self, at: u64, blocks: u64) -> bool {
        let mut versions = self.blocks[at as usize..(at + blocks) as usize].iter();
        versions.all(|versions| {
            let is_there = |v: &Version| v.write > 0 && v.ended.is_some() && !v.refused;
            versions.iter().any(is_there) && versions.iter().all(|v| v.write > 0)
        })
    }

    /// A new moment, at which nothing else happens.
    pub fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Begins a write or a discard; returns the number of the write, or 0, and the moment of its beginning.
    pub fn begin(&mut self, at: u64, blocks: u64, discard: bool) -> (u64, u64) {
        let begun = self.tick();
        if !discard {
            self.writes += 1;
        }
        let write = if discard { 0 } else { self.writes };
        for block in at..at + blocks {
            self.begin_version(block, (block, write), begun);
        }
        (write, begun)
    }

    fn begin_version(&mut self, at: u64, (block, write): Content, begun: u64) {
        let version = Version { write, block, begun, ended: None, safe: false, refused: false };
        self.blocks[at as usize].push(version);
    }

    /// Begins to give blocks the contents of others; returns the moment.
    pub fn begin_copy(&mut self, at: u64, contents: &[Content]) -> u64 {
        let begun = self.tick();
        (at..).zip(contents).for_each(|(at, content)| self.begin_version(at, *content, begun));
        begun
    }

    /// The contents that blocks may have for a reader that began at this moment.
    pub fn contents(&self, at: u64, blocks: u64, begun: u64) -> Vec<Vec<Content>> {
        let of_block = |versions: &Vec<Version>| {
            let is_seen = |version: &&Version| VolumeOracle::is_seen(versions, version, begun);
            versions.iter().filter(is_seen).map(|version| (version.block, version.write)).collect()
        };
        self.blocks[at as usize..(at + blocks) as usize].iter().map(of_block).collect()
    }

    /// Whether a read that began at this moment may find this version.
    fn is_seen(versions: &[Version], version: &Version, begun: u64) -> bool {
        let is_over = |over: &Version| over.is_over(version) && over.ended.is_some_and(|ended| ended < begun);
        !versions.iter().any(is_over)
    }

    /// Ends the write or discard that began at this moment.
    pub fn end(&mut self, at: u64, blocks: u64, begun: u64, safe: bool) {
        let ended = self.tick();
        for versions in &mut self.blocks[at as usize..(at + blocks) as usize] {
            for version in versions.iter_mut().filter(|version| version.begun == begun) {
                (version.ended, version.safe) = (Some(ended), safe);
            }
        }
    }

    /// The write or discard that began at this moment was refused; it may have taken effect in part.
    pub fn refuse(&mut self, at: u64, blocks: u64, begun: u64) {
        self.end(at, blocks, begun, false);
        for versions in &mut self.blocks[at as usize..(at + blocks) as usize] {
            versions.iter_mut().filter(|version| version.begun == begun).for_each(|v| v.refused = true);
        }
    }

    /// Ends the flush that began at this moment. Versions that no longer matter are dropped, unless there are reads in
    /// flight (`reads`).
    pub fn flushed(&mut self, begun: u64, reads: bool) {
        for versions in &mut self.blocks {
            for version in versions.iter_mut() {
                version.safe |= !version.refused && version.ended.is_some_and(|ended| ended < begun);
            }
            if !reads && versions.len() > 1 {
                let safe: Vec<Version> = versions.iter().filter(|v| v.safe).copied().collect();
                versions.retain(|version| !safe.iter().any(|safe| safe.is_over(version)));
            }
        }
    }

    fn holds(versions: &[Version], bytes: &[u8], allowed: impl Fn(&Version) -> bool) -> bool {
        let mut versions = versions.iter().filter(|version| allowed(version));
        versions.any(|version| holds((version.block, version.write), bytes))
    }

    fn complain(&self, block: u64, bytes: &[u8], when: &str) -> String {
        let versions = &self.blocks[block as usize];
        let held = stamp::describe(bytes).replace(&format!("zone {MARK} "), "");
        format!("block {block} holds {held} {when}; versions: {versions:?}")
    }

    /// Judges the data of a read that began at this moment.
    ///
    /// # Errors
    /// The first wrong block.
    pub fn check_read(&self, at: u64, begun: u64, data: &[u8]) -> Result<(), String> {
        for (block, bytes) in (at..).zip(data.chunks_exact(BLOCK)) {
            let versions = &self.blocks[block as usize];
            let allowed = |version: &Version| VolumeOracle::is_seen(versions, version, begun);
            if !VolumeOracle::holds(versions, bytes, allowed) {
                return Err(self.complain(block, bytes, &format!("in a read of moment {begun}")));
            }
        }
        Ok(())
    }

    /// Judges all blocks after a recovery, and takes their contents as final.
    ///
    /// # Errors
    /// The first wrong block.
    pub fn recovered(&mut self, end: LayerEnd, data: &[u8]) -> Result<(), String> {
        for (block, bytes) in (0..).zip(data.chunks_exact(BLOCK)) {
            let versions = &self.blocks[block as usize];
            let over = |over: &Version, version: &Version| {
                over.is_over(version) && (over.safe || end == LayerEnd::Kill)
            };
            let allowed = |version: &Version| !versions.iter().any(|other| over(other, version));
            if !VolumeOracle::holds(versions, bytes, allowed) {
                return Err(self.complain(block, bytes, &format!("after {end:?} and recovery")));
            }
        }
        for (versions, bytes) in self.blocks.iter_mut().zip(data.chunks_exact(BLOCK)) {
            versions.retain(|version| VolumeOracle::holds(&[*version], bytes, |_| true));
            versions.truncate(1);
            for version in versions {
                (version.begun, version.ended) = (0, Some(0));
                (version.safe, version.refused) = (true, false);
            }
        }
        Ok(())
    }
}

/// Whether a snapshot is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    There,
    /// It is being made, or removed, or that was interrupted.
    Uncertain,
}

/// A snapshot, and what its blocks may contain: one content once it was read.
#[derive(Clone, Debug)]
pub struct SnapshotOracle {
    pub id: u64,
    /// The volume.
    pub number: usize,
    pub presence: Presence,
    pub blocks: Vec<Vec<Content>>,
}

impl SnapshotOracle {
    /// Judges blocks that were read, which do not change any more.
    pub fn check(&mut self, at: u64, data: &[u8], when: &str) -> Result<(), String> {
        let blocks = &mut self.blocks[at as usize..];
        for (index, (contents, bytes)) in blocks.iter_mut().zip(data.chunks_exact(BLOCK)).enumerate() {
            if !holds_one(contents, bytes) {
                let (block, found) = (at + index as u64, stamp::describe(bytes));
                return Err(format!(
                    "block {block} of snapshot {} of volume {} holds {found} {when}, and may hold {contents:?}",
                    self.id, self.number
                ));
            }
            contents.retain(|content| holds(*content, bytes));
        }
        Ok(())
    }

    /// The contents of its blocks, if all are certain.
    pub fn certain(&self) -> Option<Vec<Content>> {
        self.blocks.iter().map(|contents| Some(*contents.first()?).filter(|_| contents.len() == 1)).collect()
    }
}

/// The guarantees of the volumes of a pool.
#[derive(Clone, Debug, Default)]
pub struct GuaranteeOracle {
    /// By volume: the blocks that may be guaranteed; 0 if there are none.
    permitted: Vec<Vec<u64>>,
    /// Number of changes that have begun or ended.
    pub changes: u64,
    /// The power was cut: writes may have come back that were discarded, so that more is taken than fits.
    pub has_lost: bool,
}

impl GuaranteeOracle {
    /// The blocks that may be guaranteed to a volume.
    pub fn of(&mut self, number: usize) -> &mut Vec<u64> {
        while self.permitted.len() <= number {
            self.permitted.push(vec![0]);
        }
        &mut self.permitted[number]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn content(write: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        if write > 0 {
            fill(0, write, &mut bytes);
        }
        bytes
    }

    /// The writes that a block may hold after an end.
    fn allowed(oracle: &VolumeOracle, end: LayerEnd) -> Vec<u64> {
        (0..9).filter(|write| oracle.clone().recovered(end, &content(*write)).is_ok()).collect()
    }

    #[test]
    fn volume_oracle_allows_old_data_until_write_safe() {
        let mut oracle = VolumeOracle::new(1);
        let (first, begun) = oracle.begin(0, 1, false);
        assert_eq!(allowed(&oracle, LayerEnd::Kill), [0, first]);
        oracle.end(0, 1, begun, false);
        assert_eq!(allowed(&oracle, LayerEnd::PowerCut), [0, first]);
        assert_eq!(allowed(&oracle, LayerEnd::Kill), [first]);
        let flush = oracle.tick();
        let (second, begun) = oracle.begin(0, 1, false);
        oracle.end(0, 1, begun, false);
        oracle.flushed(flush, false);
        assert_eq!(allowed(&oracle, LayerEnd::PowerCut), [first, second]);
        let (_, begun) = oracle.begin(0, 1, true);
        oracle.end(0, 1, begun, true);
        assert_eq!(allowed(&oracle, LayerEnd::PowerCut), [0]);
        oracle.recovered(LayerEnd::PowerCut, &content(0)).unwrap();
        assert_eq!(allowed(&oracle, LayerEnd::Kill), [0]);
    }

    #[test]
    fn volume_oracle_allows_refused_write_until_overwritten() {
        let mut oracle = VolumeOracle::new(1);
        let (refused, begun) = oracle.begin(0, 1, false);
        oracle.refuse(0, 1, begun);
        assert_eq!(allowed(&oracle, LayerEnd::Kill), [0, refused]);
        let (second, begun) = oracle.begin(0, 1, false);
        oracle.end(0, 1, begun, true);
        assert_eq!(allowed(&oracle, LayerEnd::PowerCut), [second]);
    }

    #[test]
    fn volume_oracle_allows_overlapping_writes_in_any_order() {
        let mut oracle = VolumeOracle::new(1);
        let (first, one) = oracle.begin(0, 1, false);
        let (second, two) = oracle.begin(0, 1, false);
        let early = oracle.tick();
        oracle.end(0, 1, two, true);
        oracle.end(0, 1, one, true);
        assert_eq!(allowed(&oracle, LayerEnd::PowerCut), [first, second]);
        let late = oracle.tick();
        assert!(oracle.check_read(0, early, &content(0)).is_ok());
        assert!(oracle.check_read(0, late, &content(0)).is_err());
        assert!(oracle.check_read(0, late, &content(first)).is_ok());
    }
}
