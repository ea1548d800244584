//! Faults of a drive in an image that a user has injected, in a file beside the image.
//!
//! `drive0.img.faults` is text: the UUID of the drive, then a line for each fault, in the order of injection. The image
//! is not changed, so that all faults are undone by removing the file.
//!
//! | line | meaning |
//! |---|---|
//! | `read-only ZONE` | the zone can only be read (NVMe: ZSRO), until the fault is undone |
//! | `offline ZONE` | the zone is lost (ZSO); it does not become read-only again |
//! | `unreadable LBA` | reads of the block fail |
//! | `flip LBA` | the lowest bit of the block's first byte is inverted in reads, without an error |
//! | `drop LBA` | the write of the block is lost: it reads as unwritten, without an error |
//! | `misdirect LBA OTHER` | the write of the block went to another one, which has its content; it reads as unwritten |
//! | `stale LBA BYTES` | writes of the block are lost: it keeps this content (hexadecimal data and metadata), once written |
//! | `slow FACTOR` | commands take this many times as long; 1 is normal speed |
//! | `gone` | the drive does not answer |
//! | `well LBA BLOCKS` | appended by the drive: blocks have been written or reset, and can be read again |
//!
//! When the fault of a zone is undone, the zone is closed if it was open, and otherwise unchanged. The process that
//! runs the drive locks the image, not this file. The drive checks the file when it is opened, and with a command if
//! the last check was [`LOOK_EVERY`] ago. That is one `stat`; the whole file is read again if it is another file or has
//! grown, for lines are only ever added. Unknown lines are ignored, and so is the file of another drive: an image may
//! get the name of one that was removed. An image that is removed while it is in use is a pulled drive: it is gone from
//! the next check on. A path that is not a regular file is an error, and so is a symbolic link: another user may have
//! put it there.

use super::image::{ImageError, ImageMedia, open_file};
use engine::zone::{Lba, ZoneIndex, ZoneState};
use rustix::fs::{FlockOperation, flock};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::{File, Metadata, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Longest time until a running drive notices a change.
pub const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Longest file that is read, in bytes; far above anything typed by hand.
const MOST_BYTES: u64 = 16 << 20;

/// A fault that lasts until it is undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ailment {
    ReadOnly(ZoneIndex),
    Offline(ZoneIndex),
    Unreadable(Lba),
    Flipped(Lba),
    Dropped(Lba),
    /// The block, and the one that has its content.
    Misdirected(Lba, Lba),
    /// The block, and the data and metadata that it keeps.
    Stale(Lba, Vec<u8>),
    Slow(u32),
    Gone,
}

impl fmt::Display for Ailment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ailment::ReadOnly(zone) => write!(f, "read-only {}", zone.0),
            Ailment::Offline(zone) => write!(f, "offline {}", zone.0),
            Ailment::Unreadable(lba) => write!(f, "unreadable {}", lba.0),
            Ailment::Flipped(lba) => write!(f, "flip {}", lba.0),
            Ailment::Dropped(lba) => write!(f, "drop {}", lba.0),
            Ailment::Misdirected(lba, to) => write!(f, "misdirect {} {}", lba.0, to.0),
            Ailment::Stale(lba, bytes) => write!(f, "stale {} {}", lba.0, hex(bytes)),
            Ailment::Slow(factor) => write!(f, "slow {factor}"),
            Ailment::Gone => write!(f, "gone"),
        }
    }
}

/// All injected faults of a drive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ailments {
    pub gone: bool,
    /// Factor of command durations; `None` for normal speed.
    pub slow: Option<u32>,
    /// Zones that are read-only or offline.
    pub worn: BTreeMap<u32, ZoneState>,
    /// Unreadable blocks.
    pub unreadable: BTreeSet<u64>,
    /// Blocks with an inverted bit, if they are written.
    pub flipped: BTreeSet<u64>,
    /// Blocks of which the write was lost.
    pub dropped: BTreeSet<u64>,
    /// Blocks of which the write went to another block, and that block.
    pub misdirected: BTreeMap<u64, u64>,
    /// Blocks of which all writes are lost, and the data and metadata that they keep.
    pub stale: BTreeMap<u64, Vec<u8>>,
}

impl Ailments {
    /// Adds the fault of a line.
    fn add(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let what = words.next();
        if what == Some("stale") {
            let lba = words.next().and_then(|word| word.parse().ok());
            if let (Some(lba), Some(bytes)) = (lba, words.next().and_then(decode_hex)) {
                self.stale.insert(lba, bytes);
            }
            return;
        }
        let mut number = || words.next()?.parse::<u64>().ok();
        // No drive has as many zones.
        let small = |number: u64| number.min(u32::MAX.into()) as u32;
        match (what, number(), number()) {
            (Some("read-only"), Some(zone), None) => {
                _ = self.worn.entry(small(zone)).or_insert(ZoneState::ReadOnly);
            }
            (Some("offline"), Some(zone), None) => _ = self.worn.insert(small(zone), ZoneState::Offline),
            (Some("unreadable"), Some(lba), None) => _ = self.unreadable.insert(lba),
            (Some("flip"), Some(lba), None) => _ = self.flipped.insert(lba),
            (Some("drop"), Some(lba), None) => _ = self.dropped.insert(lba),
            (Some("misdirect"), Some(lba), Some(to)) => _ = self.misdirected.insert(lba, to),
            (Some("slow"), Some(factor), None) => self.slow = (factor > 1).then_some(small(factor)),
            (Some("gone"), None, None) => self.gone = true,
            (Some("well"), Some(lba), Some(blocks)) => _ = self.heal(Lba(lba), blocks),
            _ => (),
        }
    }

    /// Removes the faults of these blocks that end with a write or reset; returns whether there were any.
    pub(super) fn heal(&mut self, lba: Lba, blocks: u64) -> bool {
        let before = self.count();
        if before == 0 {
            return false;
        }
        let other = |b: &u64| *b < lba.0 || *b - lba.0 >= blocks;
        self.unreadable.retain(other);
        self.flipped.retain(other);
        self.dropped.retain(other);
        self.misdirected.retain(|from, to| other(from) && other(to));
        self.count() < before
    }

    /// Number of faults of blocks that end with a write or reset.
    fn count(&self) -> usize {
        self.unreadable.len() + self.flipped.len() + self.dropped.len() + self.misdirected.len()
    }

    /// Parses the file of the drive with this UUID. The last line may be incomplete.
    fn read(text: &str, uuid: &str) -> Ailments {
        let mut ailments = Ailments::default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.lines();
        if lines.next() == Some(uuid) {
            lines.for_each(|line| ailments.add(line));
        }
        ailments
    }
}

/// The hexadecimal digits of bytes.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a word of hexadecimal digits.
fn decode_hex(word: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    let pair = |pair: &[u8]| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8);
    word.as_bytes().chunks(2).map(pair).collect()
}

/// The file with the injected faults of a drive.
pub struct AilmentFile {
    path: PathBuf,
    /// The first line.
    uuid: String,
    looked: Option<Instant>,
    /// Identity of the file that was read last: device, inode and length. It is held open, so that its inode is not
    /// reused.
    read: Option<(File, [u64; 3])>,
    /// The image, if it had a name when it was opened; if it loses it, the drive has been pulled.
    image: Option<File>,
}

impl AilmentFile {
    /// The file of the drive in the image at `path`.
    ///
    /// # Errors
    /// There is no image.
    pub fn of(path: &Path) -> Result<AilmentFile, ImageError> {
        let (_, uuid) = ImageMedia::examine(path)?;
        AilmentFile::beside(path, &uuid).map_err(|e| ImageError {
            path: path.display().to_string(),
            problem: format!("is not there: {e}"),
        })
    }

    /// The file beside the image at `path`, which has this UUID.
    pub(super) fn beside(path: &Path, uuid: &[u8; 16]) -> io::Result<AilmentFile> {
        let mut name = path.canonicalize()?.into_os_string();
        name.push(".faults");
        Ok(AilmentFile { path: name.into(), uuid: hex(uuid), looked: None, read: None, image: None })
    }

    /// Makes the drive gone once its `image` has been removed.
    pub(super) fn watch(self, image: File) -> io::Result<AilmentFile> {
        let is_named = image.metadata()?.nlink() > 0;
        Ok(AilmentFile { image: Some(image).filter(|_| is_named), ..self })
    }

    /// Adds a fault, which a running drive notices.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&self, ailment: Ailment) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = open_file(options.read(true).append(true).create(true), &self.path, false)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let mut text = String::new();
        (&mut file).take(MOST_BYTES).read_to_string(&mut text)?;
        let before = match text.lines().next() {
            None => format!("{}\n", self.uuid),
            Some(uuid) if uuid != self.uuid => {
                self.clear()?;
                return self.add(ailment);
            }
            // An incomplete line is ended, and remains one that is ignored.
            Some(_) if !text.ends_with('\n') => "\n".into(),
            Some(_) => String::new(),
        };
        let line = format!("{before}{ailment}\n");
        if (text.len() + line.len()) as u64 > MOST_BYTES {
            return Err(io::Error::other(format!("it would have more than {MOST_BYTES} bytes")));
        }
        file.write_all(line.as_bytes())
    }

    /// Undoes all faults.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn clear(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The faults of the drive now.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn ailments(&mut self) -> io::Result<Ailments> {
        self.read = None;
        Ok(self.read_again()?.unwrap_or_default())
    }

    /// The faults of the drive now; `None` if they cannot have changed since the last check, or no check is due.
    pub(super) fn look(&mut self) -> io::Result<Option<Ailments>> {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return Ok(None);
        }
        self.looked = Some(Instant::now());
        if self
            .image
            .as_ref()
            .map_or(Ok(false), |image| Ok::<_, io::Error>(image.metadata()?.nlink() == 0))?
        {
            return Ok(Some(Ailments { gone: true, ..Ailments::default() }));
        }
        self.read_again()
    }

    /// Appends that these blocks can be read again. Does nothing if the file has been removed.
    pub(super) fn note_well(&self, lba: Lba, blocks: u64) -> io::Result<()> {
        match open_file(OpenOptions::new().append(true), &self.path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            opened => opened?.write_all(format!("well {} {blocks}\n", lba.0).as_bytes()),
        }
    }

    fn read_again(&mut self) -> io::Result<Option<Ailments>> {
        let identity = |found: Metadata| [found.dev(), found.ino(), found.len()];
        let now = match std::fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(self.read.take().map(|_| Ailments::default()));
            }
            found => identity(found?),
        };
        if self.read.as_ref().is_some_and(|(_, read)| *read == now) {
            return Ok(None);
        }
        let mut file = open_file(OpenOptions::new().read(true), &self.path, false)?;
        let opened = identity(file.metadata()?);
        let mut text = Vec::new();
        if (&mut file).take(MOST_BYTES + 1).read_to_end(&mut text)? as u64 > MOST_BYTES {
            return Err(io::Error::other(format!("it has more than {MOST_BYTES} bytes")));
        }
        self.read = Some((file, opened));
        Ok(Some(Ailments::read(&String::from_utf8_lossy(&text), &self.uuid)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_lines_accumulate_and_foreign_lines_are_ignored() {
        let text = "me\nread-only 3\noffline 3\nread-only 3\nunreadable 7\nunreadable 8\nflip 9\nwell 8 2\n\
                    drop 20\ndrop 30\nmisdirect 21 22\nmisdirect 31 32\nmisdirect 33 34\nwell 30 2\nwell 34 1\n\
                    stale 50 00fF10\nstale 51 0g\nstale 52 123\nwell 50 1\nslow 4\nread-only\nread-only 1 2\nslow x\nnonsense\n\ngone";
        let found = Ailments::read(text, "me");
        assert_eq!(found.worn, BTreeMap::from([(3, ZoneState::Offline)]));
        assert_eq!((found.unreadable, found.flipped), (BTreeSet::from([7]), BTreeSet::new()));
        assert_eq!((found.dropped, found.misdirected), (BTreeSet::from([20]), BTreeMap::from([(21, 22)])));
        assert_eq!(found.stale, BTreeMap::from([(50, vec![0, 255, 16])]));
        assert_eq!((found.slow, found.gone), (Some(4), false), "the last line is not all there");
        assert!(Ailments::read(&format!("{text}\nslow 1\n"), "me").gone);
        assert_eq!(Ailments::read(&format!("{text}\nslow 1\n"), "me").slow, None);
        assert_eq!(Ailments::read(text, "you"), Ailments::default());
    }
}
