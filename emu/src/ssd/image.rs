//! Media in a file, so that an emulated drive outlives its process.
//!
//! Each drive is one sparse file; [`super::layout`] has its format. The results of a call survive the death of the
//! process at any moment, by the order of the writes: data and metadata, then their written bits, then the state of the
//! zone, each of which is one small write. The host's page cache has to survive: nothing is synced.
//!
//! Two changes need more than an order. A block that is overwritten must change together with its out-of-band metadata:
//! both go to the redo record first, which is replayed when the image is opened. A reset marks the zone as resetting
//! and empty, forgets the blocks, then clears the mark; opening the image completes an interrupted reset.
//!
//! The file is locked while the drive runs, so that no two processes run the same image. Read-only inspection
//! ([`ImageMedia::look`]) neither locks nor writes it: interrupted changes are completed in memory. Another process may
//! run the drive meanwhile, so that the contents may change from one read to the next.

use super::{
    layout::{self, ImageLayout},
    media::Media,
    model::Model,
};
use engine::{
    buf::BLOCK,
    device::Geometry,
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, SeekFrom, fallocate, flock, seek};
use std::{
    collections::BTreeMap,
    fs::{File, Metadata, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

/// Error of creating or using an image.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct ImageError {
    pub path: String,
    pub problem: String,
}

/// The cause of an error on a file, with a possible remedy.
pub fn cause(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "permission denied; its owner may, or root".into(),
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only".into(),
        io::ErrorKind::StorageFull => "the file system is full".into(),
        io::ErrorKind::QuotaExceeded => "the quota is used up".into(),
        _ => error.to_string(),
    }
}

/// Opens a regular file and nothing else: opening a pipe would block, and opening a device may have any effect. A
/// symbolic link is followed only if `links` is true.
pub(super) fn open_file(options: &mut OpenOptions, path: &Path, links: bool) -> io::Result<File> {
    let is_file = |found: Metadata| match () {
        () if found.is_file() => Ok(()),
        () if found.is_dir() => Err(io::Error::other("it is not a regular file but a directory")),
        () => Err(io::Error::other("it is not a regular file")),
    };
    match if links { path.metadata() } else { path.symlink_metadata() } {
        // It may be about to be created.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => is_file(found?)?,
    }
    let flags = OFlags::NONBLOCK | if links { OFlags::empty() } else { OFlags::NOFOLLOW };
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    is_file(file.metadata()?)?;
    Ok(file)
}

const IN_USE: &str = "is in use by another process; stop that first";

impl ImageError {
    /// Whether another process has the image open, so that trying again later may help.
    pub fn in_use(&self) -> bool {
        self.problem == IN_USE
    }
}

/// Media in a file.
pub struct ImageMedia {
    file: File,
    model: Model,
    uuid: [u8; 16],
    layout: ImageLayout,
    zones: Vec<PackedZone>,
    /// Zones of which the file held no written bits when the image was opened, and no block was written since.
    unwritten: ZoneBits,
    /// The written bits of zones that this process writes, and of zones with an interrupted reset.
    written: BTreeMap<u32, Vec<u8>>,
    /// Buffer for redo records.
    redo: Vec<u8>,
    /// A redo record that was replayed in memory only: its blocks supersede those in the file.
    pending: Option<Pending>,
}

/// State of a zone in eight bytes, since there may be many zones: the write pointer above bit 16, the state above bit 8,
/// and in bit 0 whether the zone has a ZRWA.
#[derive(Clone, Copy)]
struct PackedZone(u64);

impl PackedZone {
    fn new(info: &ZoneInfo) -> PackedZone {
        PackedZone(info.wp_blocks << 16 | (info.state as u64) << 8 | info.zrwa as u64)
    }

    fn info(self, zone: ZoneIndex, geometry: &Geometry) -> ZoneInfo {
        let state = ZoneState::from_value((self.0 >> 8) as u8).unwrap_or(ZoneState::Offline);
        let (wp_blocks, zrwa) = (self.0 >> 16, self.0 & 1 == 1);
        ZoneInfo { zone, state, wp_blocks, capacity_blocks: geometry.zone_capacity_blocks, zrwa }
    }
}

/// A set of zones.
struct ZoneBits(Vec<u64>);

impl ZoneBits {
    fn all(zones: u32) -> ZoneBits {
        ZoneBits(vec![u64::MAX; zones.div_ceil(64) as usize])
    }

    fn has(&self, zone: ZoneIndex) -> bool {
        self.0[zone.0 as usize / 64] >> (zone.0 % 64) & 1 == 1
    }

    fn remove(&mut self, zone: ZoneIndex) {
        self.0[zone.0 as usize / 64] &= !(1 << (zone.0 % 64));
    }
}

/// Contents of a redo record.
struct Pending {
    lba: Lba,
    data: Vec<u8>,
    oob: Vec<u8>,
}

/// Purpose of opening an image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenPurpose {
    Use,
    /// Read-only, with the lock.
    Read,
    Look,
}

/// How often an entry of the zone table is read again, since another process may be writing it.
const TRIES: usize = 64;

/// Entries of the zone table in one read.
const ENTRIES_AT_ONCE: usize = 4096;

/// Most separate ranges with data among the written bits that are looked for when an image is opened.
const MOST_EXTENTS: usize = 256;

const REDO_MAGIC: [u8; 8] = *b"ZNSREDO1";
/// Magic, CRC-32C of the rest, number of blocks, first block.
const REDO_HEADER: usize = 24;

impl ImageMedia {
    /// Creates a new image of a blank drive. The model's name is cut to 32 bytes.
    ///
    /// # Errors
    /// A file of this name exists, or it cannot be created.
    pub fn create(path: &Path, model: &Model, uuid: [u8; 16]) -> Result<ImageMedia, ImageError> {
        let failed = |problem: String| ImageError { path: path.display().to_string(), problem };
        let layout = ImageLayout::new(&model.geometry).ok_or_else(|| {
            failed("there can be no such drive in a file; take fewer or smaller zones".into())
        })?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(|e| {
            failed(match e.kind() {
                io::ErrorKind::AlreadyExists => "exists already; remove it or take another name".into(),
                _ => format!("cannot be made: {}", cause(&e)),
            })
        })?;
        ImageMedia::fill(file, model, uuid, layout).map_err(|problem| {
            // It would be in the way of the next try.
            let _ = std::fs::remove_file(path);
            failed(problem)
        })
    }

    /// Turns a new file into an image.
    fn fill(file: File, model: &Model, uuid: [u8; 16], layout: ImageLayout) -> Result<ImageMedia, String> {
        lock(&file)?;
        // The header comes last: without it this is not an image.
        file.set_len(layout.end)
            .and_then(|()| file.write_all_at(&layout::encode_header(model, &uuid), 0))
            .map_err(|e| format!("cannot be written: {}", cause(&e)))?;
        ImageMedia::load(file, model.clone(), uuid, layout, OpenPurpose::Use)
    }

    /// Opens an image and completes changes that an earlier process left incomplete.
    ///
    /// # Errors
    /// The image does not exist, is damaged, of another version, or in use.
    pub fn open(path: &Path) -> Result<ImageMedia, ImageError> {
        ImageMedia::open_for(path, OpenPurpose::Use)
    }

    /// Opens an image read-only, even while another process runs the drive. Calls that would change it fail.
    ///
    /// # Errors
    /// The image does not exist, is damaged, or of another version.
    pub fn look(path: &Path) -> Result<ImageMedia, ImageError> {
        ImageMedia::open_for(path, OpenPurpose::Look)
    }

    /// As [`ImageMedia::look`], but locks the image against use; the file system may be read-only.
    ///
    /// # Errors
    /// The image does not exist, is damaged, of another version, or in use.
    pub fn open_to_read(path: &Path) -> Result<ImageMedia, ImageError> {
        ImageMedia::open_for(path, OpenPurpose::Read)
    }

    /// A duplicate of the file descriptor, to watch the file.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    fn open_for(path: &Path, purpose: OpenPurpose) -> Result<ImageMedia, ImageError> {
        let failed = |problem: String| ImageError { path: path.display().to_string(), problem };
        let file = open_file(OpenOptions::new().read(true).write(purpose == OpenPurpose::Use), path, true);
        let file = file.map_err(|e| failed(format!("cannot be opened: {}", cause(&e))))?;
        if purpose != OpenPurpose::Look {
            lock(&file).map_err(failed)?;
        }
        let (model, uuid) = read_header(&file).map_err(failed)?;
        let layout = ImageLayout::new(&model.geometry);
        let layout =
            layout.ok_or_else(|| failed("the header of the image is damaged; make a new image".into()))?;
        let size = file.metadata().map_err(|e| failed(format!("cannot be read: {e}")))?.len();
        if size < layout.end {
            return Err(failed(format!("the image is cut off: {size} of {} bytes", layout.end)));
        }
        ImageMedia::load(file, model, uuid, layout, purpose).map_err(failed)
    }

    /// Model and UUID of the drive in an image, which another process may have open.
    ///
    /// # Errors
    /// The image does not exist, its header is damaged, or it is of another version.
    pub fn examine(path: &Path) -> Result<(Model, [u8; 16]), ImageError> {
        let failed = |problem: String| ImageError { path: path.display().to_string(), problem };
        let file = open_file(OpenOptions::new().read(true), path, true);
        let file = file.map_err(|e| failed(format!("cannot be opened: {}", cause(&e))))?;
        read_header(&file).map_err(failed)
    }

    /// Whether there is an image at `path`, of any version and state.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_image(path: &Path) -> io::Result<bool> {
        let mut magic = [0; 8];
        match open_file(OpenOptions::new().read(true), path, true)?.read_exact_at(&mut magic, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| layout::is_magic(&magic)),
        }
    }

    /// The model of the drive.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The UUID that the drive was given when it was created.
    pub fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    fn load(
        file: File,
        model: Model,
        uuid: [u8; 16],
        layout: ImageLayout,
        purpose: OpenPurpose,
    ) -> Result<ImageMedia, String> {
        let (zones, resetting) = read_table(&file, &layout, &model.geometry)?;
        let unwritten = find_unwritten(&file, &layout, model.geometry.zones);
        let (written, redo) = (BTreeMap::new(), Vec::new());
        let mut media =
            ImageMedia { file, model, uuid, layout, zones, unwritten, written, redo, pending: None };
        let finished = match purpose {
            OpenPurpose::Use => {
                media.finish(resetting).map_err(|e| format!("cannot be repaired: {}", cause(&e)))
            }
            OpenPurpose::Read | OpenPurpose::Look => {
                media.foresee(resetting).map_err(|e| format!("cannot be read: {}", cause(&e)))
            }
        };
        finished.map(|()| media)
    }

    /// Completes changes that an earlier process left incomplete.
    fn finish(&mut self, resetting: Vec<ZoneIndex>) -> io::Result<()> {
        if let Some(Pending { lba, data, oob }) = self.read_redo()? {
            self.write_blocks(lba, &data, &oob)?;
            self.clear_redo()?;
        }
        resetting.into_iter().try_for_each(|zone| self.finish_reset(zone))
    }

    /// As [`ImageMedia::finish`], in memory only.
    fn foresee(&mut self, resetting: Vec<ZoneIndex>) -> io::Result<()> {
        self.pending = self.read_redo()?;
        for zone in resetting {
            let (_, len) = self.layout.bitmap(zone);
            self.written.insert(zone.0, vec![0; len as usize]);
        }
        Ok(())
    }

    fn geometry(&self) -> &Geometry {
        &self.model.geometry
    }

    /// All written bits of a zone, which are kept in memory from now on.
    fn written(&mut self, zone: ZoneIndex) -> io::Result<&mut Vec<u8>> {
        let bits = match self.written.remove(&zone.0) {
            Some(bits) => bits,
            None => {
                let (at, len) = self.layout.bitmap(zone);
                let mut bits = vec![0; len as usize];
                self.file.read_exact_at(&mut bits, at)?;
                bits
            }
        };
        Ok(self.written.entry(zone.0).or_insert(bits))
    }

    /// Calls `use_bits` with the bytes that hold the written bits of blocks `first..=last` of a zone. Bits that are not
    /// in memory are read, and not kept: an inspection reads a few blocks of each of many zones.
    fn with_written<T>(
        &self,
        zone: ZoneIndex,
        (first, last): (u64, u64),
        use_bits: impl FnOnce(&[u8]) -> T,
    ) -> io::Result<T> {
        let (from, to) = ((first / 8) as usize, (last / 8) as usize);
        if let Some(bits) = self.written.get(&zone.0) {
            return Ok(use_bits(&bits[from..=to]));
        }
        let mut few = [0; 64];
        let mut many = Vec::new();
        let bits = match few.get_mut(..=to - from) {
            Some(few) => few,
            None => {
                many.resize(to - from + 1, 0);
                &mut many[..]
            }
        };
        if !self.unwritten.has(zone) {
            self.file.read_exact_at(bits, self.layout.bitmap(zone).0 + from as u64)?;
        }
        Ok(use_bits(bits))
    }

    /// Sets or clears the written bits of blocks, in memory and in the file.
    fn set_written(&mut self, lba: Lba, blocks: u64, to: bool) -> io::Result<()> {
        let (zone, offset) = self.geometry().locate(lba);
        let (at, _) = self.layout.bitmap(zone);
        self.unwritten.remove(zone);
        let bits = self.written(zone)?;
        let (first, last) = ((offset / 8) as usize, ((offset + blocks - 1) / 8) as usize);
        for block in offset..offset + blocks {
            let (byte, mask) = ((block / 8) as usize, 1 << (block % 8));
            bits[byte] = if to { bits[byte] | mask } else { bits[byte] & !mask };
        }
        let changed = bits[first..=last].to_vec();
        self.file.write_all_at(&changed, at + first as u64)
    }

    fn write_blocks(&mut self, lba: Lba, data: &[u8], oob: &[u8]) -> io::Result<()> {
        let (zone, offset) = self.geometry().locate(lba);
        self.file.write_all_at(data, self.layout.data(zone).0 + offset * BLOCK as u64)?;
        let size = self.geometry().oob_bytes as usize;
        let at = self.layout.oob(zone).0 + offset * size as u64;
        let blocks = data.len() / BLOCK;
        if oob.is_empty() && size > 0 {
            self.file.write_all_at(&vec![0; blocks * size], at)?;
        } else {
            self.file.write_all_at(oob, at)?;
        }
        self.set_written(lba, blocks as u64, true)
    }

    fn write_redo(&mut self, lba: Lba, data: &[u8], oob: &[u8]) -> io::Result<()> {
        let blocks = data.len() / BLOCK;
        let metadata = blocks * self.geometry().oob_bytes as usize;
        let redo = &mut self.redo;
        redo.clear();
        redo.extend_from_slice(&REDO_MAGIC);
        redo.extend_from_slice(&[0; 4]);
        redo.extend_from_slice(&(blocks as u32).to_le_bytes());
        redo.extend_from_slice(&lba.0.to_le_bytes());
        redo.extend_from_slice(data);
        redo.extend_from_slice(oob);
        redo.resize(REDO_HEADER + data.len() + metadata, 0);
        let crc = crc32c::crc32c(&redo[12..]);
        redo[8..12].copy_from_slice(&crc.to_le_bytes());
        self.file.write_all_at(redo, self.layout.redo)
    }

    fn clear_redo(&mut self) -> io::Result<()> {
        self.file.write_all_at(&[0; 8], self.layout.redo)
    }

    /// The redo record; `None` if it has been replayed.
    fn read_redo(&self) -> io::Result<Option<Pending>> {
        let mut header = [0; REDO_HEADER];
        self.file.read_exact_at(&mut header, self.layout.redo)?;
        let number = |at: usize| header[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | *b as u64);
        let (crc, blocks, lba) = (number(8), number(12), Lba(number(16) | number(20) << 32));
        let room = (self.layout.table - self.layout.redo) as usize - REDO_HEADER;
        let (zone, offset) = self.geometry().locate(lba);
        let capacity = self.geometry().zone_capacity_blocks;
        let length = blocks as usize * (BLOCK + self.geometry().oob_bytes as usize);
        let room_there = capacity.saturating_sub(offset);
        let fits = zone.0 < self.geometry().zones && (1..=room_there).contains(&blocks);
        if header[..8] != REDO_MAGIC || length > room || !fits {
            return Ok(None);
        }
        let mut data = vec![0; length];
        self.file.read_exact_at(&mut data, self.layout.redo + REDO_HEADER as u64)?;
        if crc32c::crc32c_append(crc32c::crc32c(&header[12..]), &data) as u64 != crc {
            return Ok(None);
        }
        let oob = data.split_off(blocks as usize * BLOCK);
        Ok(Some(Pending { lba, data, oob }))
    }

    /// Forgets the blocks of a zone that is marked as resetting, then clears the mark.
    fn finish_reset(&mut self, zone: ZoneIndex) -> io::Result<()> {
        let (at, len) = self.layout.bitmap(zone);
        // It is read again, as zeros.
        self.written.remove(&zone.0);
        let cleared = fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len);
        if cleared.is_err() {
            self.file.write_all_at(&vec![0; len as usize], at)?;
        }
        for (at, len) in [self.layout.oob(zone), self.layout.data(zone)] {
            // Only to save space: blocks without written bits are never read.
            let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            _ = (len > 0).then(|| fallocate(&self.file, holes, at, len));
        }
        let info = self.zone(zone);
        self.file.write_all_at(&layout::encode_entry(&info, false), self.layout.entry(zone))
    }
}

/// The zones, and those that are being reset. An entry that looks damaged is read again, since another process may be
/// writing it.
fn read_table(
    file: &File,
    layout: &ImageLayout,
    geometry: &Geometry,
) -> Result<(Vec<PackedZone>, Vec<ZoneIndex>), String> {
    let read_failed = |e: io::Error| format!("cannot be read: {e}");
    let count = geometry.zones as usize;
    let mut table = vec![0; count.min(ENTRIES_AT_ONCE) * layout::ENTRY];
    let (mut zones, mut resetting) = (Vec::with_capacity(count), Vec::new());
    for index in 0..count {
        let zone = ZoneIndex(index as u32);
        if index % ENTRIES_AT_ONCE == 0 {
            table.truncate((count - index) * layout::ENTRY);
            file.read_exact_at(&mut table, layout.entry(zone)).map_err(read_failed)?;
        }
        let entry = &mut table[index % ENTRIES_AT_ONCE * layout::ENTRY..][..layout::ENTRY];
        let mut decoded = layout::decode_entry(entry, zone, geometry);
        for _ in 0..TRIES {
            if decoded.is_some() {
                break;
            }
            file.read_exact_at(entry, layout.entry(zone)).map_err(read_failed)?;
            decoded = layout::decode_entry(entry, zone, geometry);
        }
        let (info, unfinished) =
            decoded.ok_or_else(|| format!("the state of zone {} is damaged; make a new image", zone.0))?;
        zones.push(PackedZone::new(&info));
        if unfinished {
            resetting.push(zone);
        }
    }
    Ok((zones, resetting))
}

/// Zones of which the file has no written bits, by its holes. A zone may be missing in the result.
fn find_unwritten(file: &File, layout: &ImageLayout, zones: u32) -> ZoneBits {
    let mut unwritten = ZoneBits::all(zones);
    let (begin, stride) = layout.bitmap(ZoneIndex(0));
    let end = begin + stride * zones as u64;
    let (mut at, mut extents) = (begin, 0);
    while at < end {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) if data < end => data,
            // Behind the last data of the file.
            Ok(_) | Err(rustix::io::Errno::NXIO) => break,
            // The file system does not tell.
            Err(_) => at,
        };
        let hole = match seek(file, SeekFrom::Hole(data)) {
            Ok(hole) if extents < MOST_EXTENTS => hole.clamp(data + 1, end),
            Ok(_) | Err(_) => end,
        };
        let zones = (data - begin) / stride..(hole - begin).div_ceil(stride);
        zones.for_each(|zone| unwritten.remove(ZoneIndex(zone as u32)));
        (at, extents) = (hole, extents + 1);
    }
    unwritten
}

fn read_header(file: &File) -> Result<(Model, [u8; 16]), String> {
    let mut header = [0; BLOCK];
    file.read_exact_at(&mut header, 0).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => "this is not the image of an emulated drive".into(),
        _ => format!("cannot be read: {e}"),
    })?;
    layout::decode_header(&header)
}

fn lock(file: &File) -> Result<(), String> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
        rustix::io::Errno::WOULDBLOCK => IN_USE.into(),
        _ => format!("cannot be locked: {e}"),
    })
}

impl Pending {
    /// The data and metadata of a block, if it is in this record.
    fn block(&self, lba: Lba, oob_bytes: usize) -> Option<(&[u8], &[u8])> {
        let at = usize::try_from(lba.0.checked_sub(self.lba.0)?).ok()?;
        let data = self.data.chunks_exact(BLOCK).nth(at)?;
        Some((data, self.oob.get(at * oob_bytes..(at + 1) * oob_bytes)?))
    }
}

impl Media for ImageMedia {
    fn read(&mut self, lba: Lba, data: &mut [u8], oob: &mut [u8]) -> io::Result<()> {
        let (zone, offset) = self.geometry().locate(lba);
        let size = self.geometry().oob_bytes as usize;
        let blocks = (data.len() / BLOCK) as u64;
        if blocks == 0 {
            return Ok(());
        }
        let is_written = |bits: &[u8], block: u64| {
            let bit = offset % 8 + block;
            bits[(bit / 8) as usize] >> (bit % 8) & 1 == 1
        };
        let mut unwritten = Vec::new();
        self.with_written(zone, (offset, offset + blocks - 1), |bits| {
            unwritten.extend((0..blocks).filter(|block| !is_written(bits, *block)));
        })?;
        if (unwritten.len() as u64) < blocks {
            self.file.read_exact_at(data, self.layout.data(zone).0 + offset * BLOCK as u64)?;
            if !oob.is_empty() {
                self.file.read_exact_at(oob, self.layout.oob(zone).0 + offset * size as u64)?;
            }
        }
        for block in unwritten {
            data[block as usize * BLOCK..][..BLOCK].fill(0);
            oob.get_mut(block as usize * size..(block as usize + 1) * size).unwrap_or_default().fill(0);
        }
        let Some(pending) = &self.pending else { return Ok(()) };
        for (i, block) in data.chunks_exact_mut(BLOCK).enumerate() {
            let metadata = oob.get_mut(i * size..(i + 1) * size).unwrap_or_default();
            if let Some((bytes, about)) = pending.block(Lba(lba.0 + i as u64), size) {
                block.copy_from_slice(bytes);
                metadata.copy_from_slice(&about[..metadata.len()]);
            }
        }
        Ok(())
    }

    fn write(&mut self, lba: Lba, data: &[u8], oob: &[u8]) -> io::Result<()> {
        let blocks = (data.len() / BLOCK) as u64;
        let mut again = false;
        if self.geometry().oob_bytes > 0 {
            for block in 0..blocks {
                again |= self.is_written(Lba(lba.0 + block))?;
            }
        }
        if again {
            self.write_redo(lba, data, oob)?;
            let written = self.write_blocks(lba, data, oob);
            // The host gets the error of a failed write, which must not be replayed later.
            self.clear_redo().and(written)
        } else {
            self.write_blocks(lba, data, oob)
        }
    }

    fn is_written(&mut self, lba: Lba) -> io::Result<bool> {
        let (zone, offset) = self.geometry().locate(lba);
        let pending = self.pending.as_ref().is_some_and(|pending| pending.block(lba, 0).is_some());
        Ok(pending || self.with_written(zone, (offset, offset), |bits| bits[0] >> (offset % 8) & 1 == 1)?)
    }

    fn forget(&mut self, lba: Lba) -> io::Result<()> {
        self.set_written(lba, 1, false)
    }

    fn zone(&self, zone: ZoneIndex) -> ZoneInfo {
        self.zones[zone.0 as usize].info(zone, self.geometry())
    }

    fn set_zone(&mut self, info: &ZoneInfo) -> io::Result<()> {
        self.file.write_all_at(&layout::encode_entry(info, false), self.layout.entry(info.zone))?;
        self.zones[info.zone.0 as usize] = PackedZone::new(info);
        Ok(())
    }

    fn reset(&mut self, zone: ZoneIndex) -> io::Result<()> {
        let before = self.zone(zone);
        let info = ZoneInfo { state: ZoneState::Empty, wp_blocks: 0, zrwa: false, ..before };
        self.file.write_all_at(&layout::encode_entry(&info, true), self.layout.entry(zone))?;
        self.zones[zone.0 as usize] = PackedZone::new(&info);
        self.finish_reset(zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        Model::zn540().scaled(4, 64)
    }

    /// The contents of the file and its modification time.
    fn fingerprint(path: &Path) -> (Vec<u8>, std::time::SystemTime) {
        (std::fs::read(path).unwrap(), path.metadata().unwrap().modified().unwrap())
    }

    #[test]
    fn image_inspection_shows_unfinished_changes_and_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut media = ImageMedia::create(&path, &model(), [7; 16]).unwrap();
        let (lba, oob) = (Lba(64), [5; 128]);
        media.write(lba, &[1; 2 * BLOCK], &oob).unwrap();
        media.write(Lba(128), &[2; BLOCK], &[6; 64]).unwrap();
        media.write_redo(lba, &[3; 2 * BLOCK], &[4; 128]).unwrap();
        let (state, wp_blocks, zrwa) = (ZoneState::Empty, 0, false);
        let reset = ZoneInfo { zone: ZoneIndex(2), state, wp_blocks, capacity_blocks: 64, zrwa };
        media.file.write_all_at(&layout::encode_entry(&reset, true), media.layout.entry(reset.zone)).unwrap();
        let before = fingerprint(&path);
        // The image is locked meanwhile.
        let mut look = ImageMedia::look(&path).unwrap();
        let mut read = |lba: Lba, blocks: usize| {
            let (mut data, mut oob) = (vec![9; blocks * BLOCK], vec![9; blocks * 64]);
            look.read(lba, &mut data, &mut oob).unwrap();
            let data: Vec<u8> = data.iter().step_by(BLOCK).copied().collect();
            (data, oob[0], look.is_written(lba).unwrap())
        };
        assert_eq!(read(lba, 3), (vec![3, 3, 0], 4, true));
        assert_eq!(read(Lba(128), 1), (vec![0], 0, false), "its zone has been reset");
        assert!(look.write(Lba(0), &[1; BLOCK], &[]).is_err());
        assert!(look.reset(ZoneIndex(1)).is_err());
        assert!(look.forget(lba).is_err());
        drop(look);
        assert!(fingerprint(&path) == before);
        drop(media);
        // Opening the image for use completes the changes, with the same result.
        let mut used = ImageMedia::open(&path).unwrap();
        let mut data = [9; 3 * BLOCK];
        used.read(lba, &mut data, &mut []).unwrap();
        assert_eq!([data[0], data[BLOCK], data[2 * BLOCK]], [3, 3, 0]);
        assert!(!used.is_written(Lba(128)).unwrap());
        assert!(fingerprint(&path).0 != before.0);
    }

    /// Whether the file system has holes in files.
    fn has_holes(file: &File) -> bool {
        seek(file, SeekFrom::Data(BLOCK as u64)).ok() != Some(BLOCK as u64)
    }

    #[test]
    fn image_keeps_no_written_bits_of_zones_only_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let (zones, capacity) = (200, 64);
        let mut media = ImageMedia::create(&path, &Model::zn540().scaled(zones, capacity), [7; 16]).unwrap();
        let written = [0, 63, 64, 199];
        for zone in written {
            media.write(Lba(zone * capacity + 3), &[zone as u8 + 1; BLOCK], &[]).unwrap();
        }
        media.reset(ZoneIndex(64)).unwrap();
        assert_eq!(media.written.len(), 3);
        drop(media);
        for open in [ImageMedia::look, ImageMedia::open] {
            let mut media = open(&path).unwrap();
            for zone in 0..zones as u64 {
                let mut data = [9; 2 * BLOCK];
                media.read(Lba(zone * capacity + 3), &mut data, &mut []).unwrap();
                let is_written = written.contains(&zone) && zone != 64;
                let expected = if is_written { zone as u8 + 1 } else { 0 };
                assert!(data[..BLOCK].iter().all(|byte| *byte == expected), "zone {zone}");
                assert!(data[BLOCK..].iter().all(|byte| *byte == 0), "zone {zone}");
                assert_eq!(media.is_written(Lba(zone * capacity + 3)).unwrap(), is_written);
            }
            assert_eq!(media.written.len(), 0);
            // Without holes every zone may have been written.
            let unwritten = (0..zones).filter(|zone| media.unwritten.has(ZoneIndex(*zone))).count();
            assert!(unwritten >= 190 || !has_holes(&media.file), "{unwritten}");
        }
    }

    #[test]
    fn image_read_mixes_written_and_unwritten_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let mut media = ImageMedia::create(&dir.path().join("image"), &model(), [7; 16]).unwrap();
        for block in [7, 9, 16, 63] {
            media.write(Lba(block), &[block as u8; BLOCK], &[block as u8; 64]).unwrap();
        }
        let (mut data, mut oob) = (vec![1; 58 * BLOCK], vec![1; 58 * 64]);
        media.read(Lba(6), &mut data, &mut oob).unwrap();
        for (block, (data, oob)) in (6..64).zip(data.chunks(BLOCK).zip(oob.chunks(64))) {
            let expected = if [7, 9, 16, 63].contains(&block) { block } else { 0 };
            assert!(data.iter().chain(oob).all(|byte| *byte == expected), "block {block}");
        }
    }
}
