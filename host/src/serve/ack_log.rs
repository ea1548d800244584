//! Acknowledgement log: the ends of zones that a process has acknowledged to the kernel, kept for the next process.
//!
//! A completed write survives the death of this process, since the drives stay powered, but an assembly after a power
//! cut may recover less. So the end of every completed write is stored, before the completion is reported to the
//! kernel, in memory that outlives the process (a file on a tmpfs). A reboot discards it together with the page cache,
//! as intended; a file of another boot, in a directory that survives a reboot, is ignored.

use super::map::SharedMap;
use crate::process::run;
use anyhow::{Context, Result};
use engine::{
    array::{PowerMark, Tails},
    buf::Buf,
    device::{Command, Completion, Done, Geometry, Slots, ZonedDevice, Zones},
    raid::geometry::MAX_MEMBERS,
    runtime::Runtime,
    zone::{Lba, MOST_ZONES, ZoneIndex},
};
use std::{
    cell::Cell,
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    ops::Range,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    rc::Rc,
};

/// `zrtails3` as stored in the file.
const MAGIC: u64 = u64::from_ne_bytes(*b"zrtails3");

/// Magic number of the previous version, which has no power marks.
const MAGIC_WITHOUT_POWER: u64 = u64::from_ne_bytes(*b"zrtails2");

/// Header words: magic, UUID (2), assembly, number of zones, boot ID (2), and one unused.
const HEADER: usize = 8;

/// Index of the header word with the number of the assembly.
const ASSEMBLY: usize = 3;

/// Byte range of the boot ID.
const BOOT: Range<usize> = 40..56;

/// Slots for appends: one for each request that can be outstanding, followed by as many for appends inherited from the
/// previous process.
pub const SLOTS: usize = 1024;

/// Number of words of an append slot: the offset in the zone; zone plus 1 and number of blocks, or 0 if it is free.
const SLOT: usize = 2;

/// Index of the first zone word.
const ZONES: usize = HEADER + SLOTS * SLOT;

/// Number of words behind the zone words: for each member [`PowerMark::drive`] and the power epoch plus 1, or zeros.
const POWER: usize = 2 * MAX_MEMBERS;

/// Largest size of the file, in bytes.
const MOST_BYTES: u64 = (ZONES as u64 + MOST_ZONES as u64 + POWER as u64) * 8;

/// Maximum size of the file at [`server_note`], in bytes.
const MOST_PLACE_BYTES: u64 = 8 << 10;

/// Path of the file beside `ack_log` that holds the address of an NBD server.
fn server_note(ack_log: &Path) -> PathBuf {
    ack_log.with_extension("nbd")
}

/// The address that the NBD server which wrote the file `ack_log` was listening on, in the form of `serve --nbd`;
/// `None` if the process served block devices.
pub fn served_at(ack_log: &Path) -> Option<String> {
    let mut place = String::new();
    File::open(server_note(ack_log)).ok()?.take(MOST_PLACE_BYTES).read_to_string(&mut place).ok()?;
    Some(place.trim_end().to_string()).filter(|place| !place.is_empty())
}

/// The acknowledged ends of zones of this process, in blocks from the start of each zone.
pub struct AckLog {
    path: PathBuf,
    map: SharedMap,
    /// Set by [`AckLog::inherit`] until the array is written to: the contents are those of the previous process.
    inherited: Cell<bool>,
}

/// Contents of an acknowledgement log that the previous process has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckLogContents {
    /// Number of the assembly that the process ran.
    pub assembly: u64,
    /// Per zone: the end of the completed writes, in blocks from its start.
    pub complete: Vec<u64>,
    /// By slot: an append that the kernel may have no answer to.
    pub appends: Vec<Option<Extent>>,
    /// As [`Tails::power`].
    pub power: Vec<PowerMark>,
}

/// Location and length of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub zone: ZoneIndex,
    /// Offset of the first block, from the start of the zone.
    pub at: u64,
    pub blocks: u64,
}

impl Extent {
    /// Whether both have a block in common.
    pub fn overlaps(&self, other: &Extent) -> bool {
        self.zone == other.zone && self.at < other.at + other.blocks && other.at < self.at + self.blocks
    }

    fn to_words(self) -> [u64; SLOT] {
        [self.at, self.blocks << 32 | (self.zone.0 as u64 + 1)]
    }

    fn from_words(words: &[u64]) -> Option<Extent> {
        let [at, rest] = *words else { return None };
        let zone = ZoneIndex((rest as u32).checked_sub(1)?);
        Some(Extent { zone, at, blocks: rest >> 32 })
    }
}

impl AckLogContents {
    /// Reads the acknowledgement log of the array `uuid`; `None` if there is none of this boot.
    pub fn of(uuid: &[u8; 16]) -> Result<Option<AckLogContents>> {
        AckLogContents::read(&run::ack_log_path(&run::directory(uuid), uuid), uuid)
    }

    /// Reads the acknowledgement log at `path` for the array `uuid`; `None` if it does not exist or is of another boot.
    pub fn read(path: &Path, uuid: &[u8; 16]) -> Result<Option<AckLogContents>> {
        let mut bytes = Vec::new();
        match File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
        };
        if bytes.get(BOOT).is_some_and(|boot| boot != boot_id()) {
            return Ok(None);
        }
        let left = AckLogContents::parse(&bytes, uuid).with_context(|| {
            format!(
                "the acknowledgement log {0} is damaged: reboot, or remove {0} and the block device, to \
                 assemble the array as after a power cut",
                path.display()
            )
        });
        left.map(Some)
    }

    /// Converts the contents for the assembly of the array.
    pub fn into_tails(self) -> Tails {
        Tails { assembly: self.assembly, blocks: self.complete, power: self.power }
    }

    fn parse(bytes: &[u8], uuid: &[u8; 16]) -> Option<AckLogContents> {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)))
            .collect();
        let (header, rest) = words.split_at_checked(HEADER)?;
        let (slots, zones) = rest.split_at_checked(SLOTS * SLOT)?;
        let [magic, a, b, assembly, count, ..] = *header else { return None };
        let power_words = match magic {
            MAGIC => POWER,
            MAGIC_WITHOUT_POWER => 0,
            _ => return None,
        };
        let (zones, power) = zones.split_at_checked(zones.len().checked_sub(power_words)?)?;
        if [a, b] != uuid_words(uuid) || zones.len() as u64 != count {
            return None;
        }
        let mut appends: Vec<_> = slots.chunks(SLOT).map(Extent::from_words).collect();
        // Moves inherited appends behind the slots for new ones: each stays until its request has been reissued and
        // answered, also if the next process dies as well.
        appends.sort_by_key(Option::is_some);
        Some(AckLogContents { assembly, complete: zones.to_vec(), appends, power: power_marks(power) })
    }
}

impl AckLog {
    /// Replaces the file at `path` by one for this assembly of the array, in which zones end at `complete`. `appends`
    /// are those inherited from the previous process; `power` is as [`Tails::power`].
    pub fn create(
        path: &Path,
        uuid: &[u8; 16],
        assembly: u64,
        complete: &[u64],
        appends: &[Option<Extent>],
        power: &[PowerMark],
    ) -> Result<AckLog> {
        let [a, b] = uuid_words(uuid);
        let [c, d] = uuid_words(&boot_id());
        let mut words = vec![MAGIC, a, b, assembly, complete.len() as u64, c, d, 0];
        let append = |slot: usize| appends.get(slot).copied().flatten();
        words.extend((0..SLOTS).flat_map(|slot| append(slot).map_or([0; SLOT], Extent::to_words)));
        words.extend(complete);
        words.extend(power_words(power));
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
            // Atomic replacement: there is always a complete file, the old one or this one.
            fs::rename(&new, path)?;
            Ok(map)
        };
        let map = map().with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(AckLog { path: path.to_path_buf(), map, inherited: Cell::new(false) })
    }

    /// Stores the number of the assembly. To be called before its first write is carried out.
    pub fn begin(&self, assembly: u64) {
        self.map.store(ASSEMBLY, assembly);
        self.inherited.set(false);
    }

    /// Stores the power marks of the members. To be called once all consequences of a change are recorded on the
    /// members.
    pub fn note_power(&self, power: &[PowerMark]) {
        let first = self.map.len() - POWER;
        for (place, word) in (first..).zip(power_words(power)) {
            // A mark rarely changes, and another process must not read a half-written one.
            if self.map.load(place) != word {
                self.map.store(place, word);
            }
        }
    }

    /// Marks the contents as inherited: until the array begins to write, this file is the only record of the writes
    /// that the previous process has acknowledged.
    pub fn inherit(&self) {
        self.inherited.set(true);
    }

    /// Records that everything below `end` in `zone` has completed. To be called before the completion is reported to
    /// the kernel.
    pub fn complete(&self, zone: ZoneIndex, end: u64) {
        let word = ZONES + zone.0 as usize;
        if self.map.load(word) < end {
            self.map.store(word, end);
        }
    }

    /// Stores the location of the append in `slot`. To be called before it is submitted.
    pub fn begin_append(&self, slot: usize, extent: Extent) {
        if slot >= SLOTS {
            return;
        }
        self.end_append(slot);
        let [at, rest] = extent.to_words();
        let word = HEADER + slot * SLOT;
        self.map.store(word, at);
        // Stored last: a slot is either complete or free.
        self.map.store(word + 1, rest);
    }

    /// Frees `slot`: the kernel has the answer to its append, or the append has failed.
    pub fn end_append(&self, slot: usize) {
        if slot < SLOTS {
            self.map.store(HEADER + slot * SLOT + 1, 0);
        }
    }

    /// As [`AckLog::end_append`], if `slot` still holds the append to `extent`.
    pub fn end_append_to(&self, slot: usize, extent: &Extent) {
        if self.append(slot).as_ref() == Some(extent) {
            self.end_append(slot);
        }
    }

    /// Stores that `zone` may be empty from now on and has no outstanding appends; returns its end as stored before.
    pub fn clear(&self, zone: ZoneIndex) -> u64 {
        for slot in 0..SLOTS {
            if self.append(slot).is_some_and(|extent| extent.zone == zone) {
                self.end_append(slot);
            }
        }
        let word = ZONES + zone.0 as usize;
        let known = self.map.load(word);
        self.map.store(word, 0);
        known
    }

    fn append(&self, slot: usize) -> Option<Extent> {
        let word = HEADER + slot * SLOT;
        if slot < SLOTS { Extent::from_words(&[self.map.load(word), self.map.load(word + 1)]) } else { None }
    }

    /// Removes the file, unless it is inherited: then the next process still needs it.
    pub fn remove(&self) {
        if self.inherited.get() {
            return;
        }
        // A file that stays behind is harmless: the next assembly has another number.
        let _ = fs::remove_file(&self.path);
        self.note_block_devices();
    }

    /// Notes that an NBD server listens at `place`, so that its death is not taken for that of a process with block
    /// devices.
    pub fn note_server(&self, place: &str) -> Result<()> {
        let note = server_note(&self.path);
        fs::write(&note, format!("{place}\n"))
            .with_context(|| format!("{} cannot be written", note.display()))
    }

    /// Notes that this process serves block devices and no NBD clients.
    pub fn note_block_devices(&self) {
        let _ = fs::remove_file(server_note(&self.path));
    }
}

/// The device of a volume or of namespaces: stores the ends of zones in the acknowledgement log before it passes on
/// completed writes, so that all writes that the volume has acknowledged are below these ends.
pub struct RecordingDevice {
    device: Rc<dyn ZonedDevice>,
    ack_log: Rc<AckLog>,
    runtime: Runtime,
    slots: Rc<Slots>,
}

impl RecordingDevice {
    pub fn of(runtime: &Runtime, device: Rc<dyn ZonedDevice>, ack_log: Rc<AckLog>) -> RecordingDevice {
        RecordingDevice { device, ack_log, runtime: runtime.clone(), slots: Rc::default() }
    }

    /// Calls `record` with the result of a command before the result is passed on.
    fn recorded(
        &self,
        mut completion: Completion,
        record: impl FnOnce(&AckLog, &Done) + 'static,
    ) -> Completion {
        if let Some(done) = completion.take() {
            record(&self.ack_log, &done);
            return Completion::ready(done);
        }
        let (completer, later) = self.slots.pair();
        let ack_log = self.ack_log.clone();
        self.runtime.spawn(async move {
            let done = completion.await;
            record(&ack_log, &done);
            completer.complete(done);
        });
        later
    }

    /// Records that everything up to the end of a write is complete, if it succeeds.
    fn write_recorded(&self, completion: Completion, lba: Lba, blocks: u64) -> Completion {
        let (zone, at) = self.device.geometry().locate(lba);
        self.recorded(completion, move |ack_log, done| {
            if done.result.is_ok() {
                ack_log.complete(zone, done.tail.max(at + blocks));
            }
        })
    }
}

impl ZonedDevice for RecordingDevice {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn direct_read_blocks(&self) -> u64 {
        self.device.direct_read_blocks()
    }

    fn reread(&self, lba: Lba, attempt: u32) -> Option<Completion> {
        self.device.reread(lba, attempt)
    }

    fn cells(&self) -> u32 {
        self.device.cells()
    }

    fn write_cell(&self, zone: ZoneIndex, cell: u32, data: Buf) -> Completion {
        self.device.write_cell(zone, cell, data)
    }

    fn read_cell(&self, zone: ZoneIndex, cell: u32, copy: u32) -> Option<Completion> {
        self.device.read_cell(zone, cell, copy)
    }

    fn note_room(&self, lba: Lba, blocks: u64) -> usize {
        self.device.note_room(lba, blocks)
    }

    fn write_with_note(&self, lba: Lba, data: Buf, note: Buf) -> Completion {
        let blocks = data.blocks();
        self.write_recorded(self.device.write_with_note(lba, data, note), lba, blocks)
    }

    fn note(&self, zone: ZoneIndex) -> Option<Buf> {
        self.device.note(zone)
    }

    fn submit(&self, command: Command) -> Completion {
        match &command {
            Command::Write { lba, data, .. } => {
                let (lba, blocks) = (*lba, data.blocks());
                self.write_recorded(self.device.submit(command), lba, blocks)
            }
            Command::Reset { zones: Zones::One(zone) } => {
                let (zone, device) = (*zone, self.device.clone());
                let known = self.ack_log.clear(zone);
                self.recorded(self.device.submit(command), move |ack_log, done| {
                    // The zone may be unchanged. An array completes a zone report at submission.
                    if done.result.is_err() {
                        let report = device.submit(Command::Report { first: zone, count: 1 }).take();
                        let wp = report.and_then(|done| Some(done.zones.first()?.wp_blocks));
                        ack_log.complete(zone, known.min(wp.unwrap_or(0)));
                    }
                })
            }
            _ => self.device.submit(command),
        }
    }
}

fn power_words(power: &[PowerMark]) -> impl Iterator<Item = u64> {
    let words = power.iter().flat_map(|mark| [mark.drive, mark.epoch + 1]);
    words.chain(std::iter::repeat(0)).take(POWER)
}

fn power_marks(words: &[u64]) -> Vec<PowerMark> {
    let marks = words.chunks_exact(2);
    let marks = marks.filter_map(|mark| Some(PowerMark { drive: mark[0], epoch: mark[1].checked_sub(1)? }));
    marks.collect()
}

/// The boot ID: a file of an earlier boot, in a directory that survives a reboot, is no longer valid.
fn boot_id() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_ne_bytes()
}

fn uuid_words(uuid: &[u8; 16]) -> [u64; 2] {
    let value = u128::from_ne_bytes(*uuid);
    [value as u64, (value >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{
        buf::{BLOCK, Buf},
        device::DeviceError,
        zone::Lba,
    };

    #[test]
    fn ack_log_is_read_only_for_same_array() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/array.tails");
        let (uuid, other) = ([7; 16], [8; 16]);
        assert_eq!(AckLogContents::read(&path, &uuid).unwrap(), None);
        let mark = |drive, epoch| PowerMark { drive, epoch };
        let ack_log = AckLog::create(&path, &uuid, 5, &[0, 3, 0], &[], &[mark(7, 0)]).unwrap();
        ack_log.complete(ZoneIndex(1), 12);
        ack_log.complete(ZoneIndex(1), 9);
        ack_log.complete(ZoneIndex(2), 4);
        let extent = |zone, at| Extent { zone: ZoneIndex(zone), at, blocks: 128 };
        ack_log.begin_append(7, extent(2, 4));
        assert_eq!(ack_log.clear(ZoneIndex(2)), 4);
        ack_log.begin_append(0, extent(0, 1 << 40));
        ack_log.begin_append(3, extent(2, 0));
        ack_log.begin_append(3, extent(1, 12));
        ack_log.begin_append(SLOTS - 1, extent(1, 12));
        ack_log.end_append_to(SLOTS - 1, &extent(1, 13));
        ack_log.end_append_to(SLOTS - 1, &extent(1, 12));
        ack_log.end_append_to(3, &extent(2, 0));
        let left = AckLogContents::read(&path, &uuid).unwrap().unwrap();
        assert_eq!((left.assembly, &left.complete[..]), (5, &[0, 12, 0][..]));
        // Inherited appends are behind all slots for new ones.
        assert_eq!(left.appends[..SLOTS - 2], [None; SLOTS - 2]);
        assert_eq!(left.appends[SLOTS - 2..], [Some(extent(0, 1 << 40)), Some(extent(1, 12))]);
        assert_eq!(left.power, [mark(7, 0)]);
        // The previous version wrote the same without power marks.
        let mut bytes = fs::read(&path).unwrap();
        bytes[..8].copy_from_slice(b"zrtails2");
        bytes.truncate(bytes.len() - POWER * 8);
        let old = dir.path().join("old.tails");
        fs::write(&old, bytes).unwrap();
        assert_eq!(
            AckLogContents::read(&old, &uuid).unwrap(),
            Some(AckLogContents { power: vec![], ..left.clone() })
        );
        assert!(AckLogContents::read(&path, &other).unwrap_err().to_string().contains("damaged"));

        let next = AckLog::create(&path, &uuid, 6, &left.complete, &left.appends, &left.power).unwrap();
        assert_eq!(AckLogContents::read(&path, &uuid).unwrap(), Some(AckLogContents { assembly: 6, ..left }));
        // Until the array begins to write, the inherited contents count.
        next.inherit();
        next.remove();
        next.begin(7);
        assert_eq!(AckLogContents::read(&path, &uuid).unwrap().unwrap().assembly, 7);
        next.note_power(&[mark(8, 3), mark(9, 0)]);
        assert_eq!(AckLogContents::read(&path, &uuid).unwrap().unwrap().power, [mark(8, 3), mark(9, 0)]);
        // The previous process may still have its file mapped, which is not read any more.
        ack_log.complete(ZoneIndex(0), 100);
        next.complete(ZoneIndex(0), 1);
        assert_eq!(AckLogContents::read(&path, &uuid).unwrap().unwrap().complete, [1, 12, 0]);
        let mut bytes = fs::read(&path).unwrap();
        bytes[BOOT.start] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(AckLogContents::read(&path, &uuid).unwrap(), None);
        next.remove();
        assert_eq!(AckLogContents::read(&path, &uuid).unwrap(), None);
        assert!(!path.exists());
    }

    /// A device of one zone that answers every command with the given result.
    struct Failing(Geometry, Result<(), DeviceError>);

    impl ZonedDevice for Failing {
        fn geometry(&self) -> &Geometry {
            &self.0
        }

        fn submit(&self, _: Command) -> Completion {
            Completion::ready(Done { result: self.1, tail: 3, ..Done::ok() })
        }
    }

    #[test]
    fn ack_log_records_only_successful_writes() {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry {
            zones: 1,
            zone_size_blocks: 8,
            zone_capacity_blocks: 8,
            max_open: 0,
            max_active: 0,
            zrwa: None,
            oob_bytes: 0,
            max_transfer_blocks: 8,
            max_append_blocks: 0,
            volatile_cache: false,
        };
        for (result, end) in [(Err(DeviceError::Gone), 0), (Ok(()), 3)] {
            let path = dir.path().join(format!("{end}.tails"));
            let ack_log = Rc::new(AckLog::create(&path, &[7; 16], 1, &[0], &[], &[]).unwrap());
            let device = Rc::new(Failing(geometry.clone(), result));
            let noting = RecordingDevice::of(&Runtime::new(), device, ack_log);
            let data = Buf::zeroed(2 * BLOCK);
            assert_eq!(noting.submit(Command::write(Lba(0), data, true)).take().unwrap().result, result);
            assert_eq!(AckLogContents::read(&path, &[7; 16]).unwrap().unwrap().complete, [end]);
        }
    }
}
