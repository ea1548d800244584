//! What a process has told the kernel about the ends of zones, where the next process finds it.
//!
//! A write that has completed survives the death of this process, since the drives stay powered,
//! but an assembly after a power cut may promise less. So the end of every completed write is kept
//! in memory that outlives the process (a file on a tmpfs), stored before the kernel hears of the
//! completion. A reboot loses it together with the page cache, which is what it is there for.

use crate::map::SharedMap;
use anyhow::{Context, Result};
use engine::zone::ZoneIndex;
use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// `zrtails1`, as it lies in the file.
const MAGIC: u64 = u64::from_ne_bytes(*b"zrtails1");

/// Words before those of the zones: magic, UUID (2), assembly, number of zones, and room.
const HEADER: usize = 8;

/// The ends of zones as this process knows them, in blocks from their starts.
pub struct TailFile {
    path: PathBuf,
    map: SharedMap,
}

/// What the process before this one knew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Which assembly of the array it ran.
    pub assembly: u64,
    /// Per zone: up to where writes have completed.
    pub complete: Vec<u64>,
    /// Per zone: up to where the kernel has certainly been told so. Between this and `complete`
    /// there may be appends that the kernel will ask for again.
    pub acknowledged: Vec<u64>,
}

impl Left {
    /// What is in the file at `path`; `None` if there is none for the array `uuid`.
    pub fn read(path: &Path, uuid: &[u8; 16]) -> Option<Left> {
        let mut bytes = Vec::new();
        File::open(path).ok()?.read_to_end(&mut bytes).ok()?;
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)))
            .collect();
        let (header, zones) = words.split_at_checked(HEADER)?;
        let [magic, a, b, assembly, count, ..] = *header else { return None };
        if magic != MAGIC || [a, b] != uuid_words(uuid) || zones.len() as u64 != 2 * count {
            return None;
        }
        let every_other = |from: usize| zones.iter().skip(from).step_by(2).copied().collect();
        Some(Left { assembly, complete: every_other(0), acknowledged: every_other(1) })
    }
}

impl TailFile {
    /// Replaces the file at `path` by one for this assembly of the array. Where the process
    /// before this one has `left` something, it stays until writes go beyond it.
    pub fn create(
        path: &Path,
        uuid: &[u8; 16],
        assembly: u64,
        zones: u32,
        left: Option<&Left>,
    ) -> Result<TailFile> {
        let [a, b] = uuid_words(uuid);
        let mut words = vec![MAGIC, a, b, assembly, zones as u64, 0, 0, 0];
        for zone in 0..zones as usize {
            let of = |values: &[u64]| values.get(zone).copied().unwrap_or(0);
            words.extend(left.map_or([0, 0], |left| [of(&left.complete), of(&left.acknowledged)]));
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let new = path.with_extension("tails.new");
        let map = || -> std::io::Result<SharedMap> {
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir)?;
            }
            let mut file =
                File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&bytes)?;
            let map = SharedMap::writable(&file, words.len())?;
            // There is always a whole file: the old one or this one.
            fs::rename(&new, path)?;
            Ok(map)
        };
        let map = map().with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(TailFile { path: path.to_path_buf(), map })
    }

    /// Notes that everything below `end` in `zone` has completed. To be called before the kernel
    /// hears of it.
    pub fn complete(&self, zone: ZoneIndex, end: u64) {
        self.raise(self.word(zone), end);
    }

    /// Notes that the kernel knows what has completed below `end` in `zone`.
    pub fn acknowledge(&self, zone: ZoneIndex, end: u64) {
        self.raise(self.word(zone) + 1, end);
    }

    /// Notes that `zone` may be empty from now on; what was known is for [`TailFile::put_back`].
    pub fn clear(&self, zone: ZoneIndex) -> (u64, u64) {
        let word = self.word(zone);
        let known = (self.map.load(word), self.map.load(word + 1));
        self.map.store(word + 1, 0);
        self.map.store(word, 0);
        known
    }

    /// Takes a [`TailFile::clear`] back.
    pub fn put_back(&self, zone: ZoneIndex, (complete, acknowledged): (u64, u64)) {
        self.complete(zone, complete);
        self.acknowledge(zone, acknowledged);
    }

    /// Removes the file: nobody needs to know any more.
    pub fn remove(&self) {
        // Left behind it does no harm: the next assembly has another number.
        let _ = fs::remove_file(&self.path);
    }

    fn word(&self, zone: ZoneIndex) -> usize {
        HEADER + 2 * zone.0 as usize
    }

    fn raise(&self, word: usize, to: u64) {
        if self.map.load(word) < to {
            self.map.store(word, to);
        }
    }
}

fn uuid_words(uuid: &[u8; 16]) -> [u64; 2] {
    let value = u128::from_ne_bytes(*uuid);
    [value as u64, (value >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_process_finds_what_was_stored_and_only_for_the_same_array() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/array.tails");
        let (uuid, other) = ([7; 16], [8; 16]);
        assert_eq!(Left::read(&path, &uuid), None);
        let tails = TailFile::create(&path, &uuid, 5, 3, None).unwrap();
        tails.complete(ZoneIndex(1), 12);
        tails.complete(ZoneIndex(1), 9);
        tails.acknowledge(ZoneIndex(1), 8);
        tails.complete(ZoneIndex(2), 4);
        let known = tails.clear(ZoneIndex(2));
        let left = Left::read(&path, &uuid).unwrap();
        assert_eq!(left, Left { assembly: 5, complete: vec![0, 12, 0], acknowledged: vec![0, 8, 0] });
        assert_eq!(Left::read(&path, &other), None);
        tails.put_back(ZoneIndex(2), known);
        let left = Left::read(&path, &uuid).unwrap();
        assert_eq!(left.complete, [0, 12, 4]);

        let next = TailFile::create(&path, &uuid, 6, 3, Some(&left)).unwrap();
        // The process before may still have its file mapped: nobody reads that one any more.
        tails.complete(ZoneIndex(0), 100);
        next.complete(ZoneIndex(0), 1);
        let left = Left::read(&path, &uuid).unwrap();
        assert_eq!(left, Left { assembly: 6, complete: vec![1, 12, 4], acknowledged: vec![0, 8, 0] });
        next.remove();
        assert_eq!(Left::read(&path, &uuid), None);
    }
}
