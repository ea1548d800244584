//! Fuzzing of all external input: images, metadata logs, records, the control socket in both directions, files of tails
//! and of faults. No input may cause a panic, a hang, or an allocation in proportion to a number in it.
//!
//! Inputs are derived from valid ones: each field in turn, and several at random, are set to extremes or to other
//! fields; bytes are flipped, cut off and repeated; then checksums are mostly corrected. Inputs that once failed, and
//! some that failed for other programs, are kept in `tests/corpus/TARGET` and tried first. Everything follows from a
//! seed. A failure prints the seed, the file in which the input is kept, and how to try it again.
//!
//! `ZONERAID_FUZZ_SECONDS` sets how long each target is tried (1 by default), `ZONERAID_FUZZ_SEED` repeats a run, and
//! `ZONERAID_FUZZ_INPUT` names a single file to try.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use emu::{
    rng::Rng,
    ssd::{Ailment, AilmentFile, EmulatedDrive, ImageMedia, Media, Model, Ssd},
};
use engine::{
    array::{Array, ArrayOptions, CreateOptions, Drive, examine},
    buf::{BLOCK, Buf},
    device::{Command, ZonedDevice, Zones},
    format::{
        Origin,
        record::{
            BadBlocks, BurnedRange, Checkpoint, Header, Lacks, ParityRecord, PartBadBlocks, RELOCATED,
            Record, TailRecord, ZoneRecord,
        },
        superblock::Superblock,
    },
    raid::policy::Policy,
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use host::{
    control::{
        client,
        name::{MemberName, SnapshotName},
        protocol::{
            About, Answer, Line, PROTOCOL, Request, StopReport, TrafficDevice, TrafficDrive, TrafficReport,
        },
    },
    daemon,
    reactor::traffic::{Traffic, TrafficCounts},
    report::{ExamineReport, FailReport, RebuildReport, Status, Zones as ZoneReport},
    serve::{
        ack_log::{AckLog, AckLogContents, Extent},
        nbd::{
            self,
            wire::{NbdExport, NbdOperation, Negotiation, Next},
        },
    },
};
use serde_json::{Value, json};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::{Cell, RefCell},
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::{fs::FileExt, net::UnixListener},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use support::Place;

/// Counts the bytes that a thread has allocated and not freed, and their maximum.
struct Measuring;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // The counters of a thread are gone when it ends.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

/// Result of `work`, and the most bytes that it had allocated at a time.
fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let held = HELD.get();
    MOST.set(held);
    let value = work();
    (value, (MOST.get() - held).max(0) as usize)
}

// SAFETY: the contract is that of `System`, to which every call is passed on as it came.
unsafe impl GlobalAlloc for Measuring {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Measuring = Measuring;

const MIB: usize = 1 << 20;
/// Number of inputs that are tried even on a slow machine.
const LEAST: usize = 20;
/// Time after which an input counts as hanging.
const PATIENCE: Duration = Duration::from_secs(20);

/// Code that parses external input.
struct Target<'a> {
    /// Part of its test's name, and the name of its corpus directory.
    name: &'a str,
    /// Valid inputs.
    seeds: Vec<Vec<u8>>,
    /// Corrects the checksums of an input.
    fix: &'a dyn Fn(&mut [u8]),
    /// Another change of an input, for text instead of bytes.
    change: &'a dyn Fn(&[u8], &mut Rng) -> Vec<u8>,
    /// Limit of the bytes that reading an input may allocate.
    most_bytes: usize,
    run: &'a dyn Fn(&[u8]),
}

/// The current input, for the watching thread.
type Trying = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

impl Target<'_> {
    /// Tries the corpus, every field of the seeds, and as many other inputs as there is time for.
    fn test(&self) {
        let trying: Trying = Arc::default();
        self.watch(trying.clone());
        if let Some(path) = env::var_os("ZONERAID_FUZZ_INPUT") {
            return self.try_one(&fs::read(path).unwrap(), &trying);
        }
        let corpus = self.corpus();
        assert!(self.name == "itself" || !corpus.is_empty(), "nothing is kept for {}", self.name);
        for path in corpus {
            self.try_one(&fs::read(path).unwrap(), &trying);
        }
        for seed in &self.seeds {
            self.try_one(seed, &trying);
        }
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
        let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
        let seed = number("ZONERAID_FUZZ_SEED").unwrap_or(clock);
        let time = Duration::from_secs(number("ZONERAID_FUZZ_SECONDS").unwrap_or(1));
        let (mut rng, begun, mut tried) = (Rng::new(seed), Instant::now(), 0);
        println!("{}: ZONERAID_FUZZ_SEED={seed}", self.name);
        let mut fields = self.fields(&mut rng);
        while begun.elapsed() < time || tried < LEAST {
            let input = fields.pop().unwrap_or_else(|| self.at_random(&mut rng));
            self.try_one(&input, &trying);
            tried += 1;
        }
        println!("{}: {tried} inputs, {} fields left", self.name, fields.len());
    }

    fn corpus(&self) -> Vec<PathBuf> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(self.name);
        let mut paths: Vec<PathBuf> =
            fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }

    fn try_one(&self, input: &[u8], trying: &Trying) {
        *trying.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), input.to_vec()));
        let (result, took) = measured(|| catch_unwind(AssertUnwindSafe(|| (self.run)(input))));
        *trying.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if result.is_err() {
            panic!("{}", keep(self.name, input, "panics"));
        }
        if took > self.most_bytes {
            panic!("{}", keep(self.name, input, &format!("takes {took} bytes")));
        }
    }

    /// Ends the process if an input takes too long.
    fn watch(&self, trying: Trying) {
        let name = self.name.to_string();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(500));
                if let Some((since, input)) = &*trying.lock().unwrap_or_else(PoisonError::into_inner)
                    && since.elapsed() > PATIENCE
                {
                    // Output of tests is captured until they end.
                    let _ = writeln!(std::io::stderr(), "{}", keep(&name, input, "hangs"));
                    std::process::exit(101);
                }
            }
        });
    }

    /// Inputs with one field each at one extreme, in a random order.
    fn fields(&self, rng: &mut Rng) -> Vec<Vec<u8>> {
        let mut inputs = Vec::new();
        for seed in &self.seeds {
            if let Ok(seed) = serde_json::from_slice(seed) {
                inputs.extend(numbers_at_extremes(&seed));
                continue;
            }
            for (at, size) in fields(seed) {
                for value in extremes(&seed[at..at + size]) {
                    let mut input = seed.clone();
                    input[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
                    (self.fix)(&mut input);
                    inputs.push(input);
                }
                // More of them would dominate the memory that is measured.
                if inputs.len() * seed.len() > 64 * MIB {
                    break;
                }
            }
        }
        for at in (1..inputs.len()).rev() {
            inputs.swap(at, rng.below(at as u64 + 1) as usize);
        }
        inputs
    }

    fn at_random(&self, rng: &mut Rng) -> Vec<u8> {
        let seed = &self.seeds[rng.below(self.seeds.len() as u64) as usize];
        let mut input = if rng.chance(1, 2) { (self.change)(seed, rng) } else { seed.clone() };
        for _ in 0..rng.range(1..6) {
            mutate(&mut input, rng);
        }
        if rng.chance(7, 8) {
            (self.fix)(&mut input);
        }
        input
    }
}

/// Saves a failed input, and returns a message with its path.
fn keep(name: &str, input: &[u8], what: &str) -> String {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join(format!("{name}-{:08x}", crc32c::crc32c(input)));
    fs::write(&path, input).unwrap();
    format!(
        "{name} {what}: ZONERAID_FUZZ_INPUT={} cargo test --locked -p zoneraid --test fuzz {name}",
        path.display()
    )
}

/// Positions and sizes of possible numbers of 4 and 8 bytes: where `bytes` is not zero, or next to that.
fn fields(bytes: &[u8]) -> Vec<(usize, usize)> {
    let is_used =
        |at: usize| bytes[at.saturating_sub(16)..(at + 20).min(bytes.len())].iter().any(|b| *b != 0);
    let words = (0..bytes.len() / 4).map(|word| word * 4).filter(|at| is_used(*at)).take(400);
    words.flat_map(|at| [(at, 4), (at, 8)]).filter(|(at, size)| at + size <= bytes.len()).collect()
}

/// Copies of `value` with one number each at one extreme.
fn numbers_at_extremes(value: &Value) -> Vec<Vec<u8>> {
    fn numbers(value: &Value, path: String, found: &mut Vec<String>) {
        match value {
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(at, item)| numbers(item, format!("{path}/{at}"), found));
            }
            Value::Object(fields) => {
                fields.iter().for_each(|(name, field)| numbers(field, format!("{path}/{name}"), found));
            }
            Value::Number(_) => found.push(path),
            _ => {}
        }
    }
    let mut found = Vec::new();
    numbers(value, String::new(), &mut found);
    let inputs = found.iter().flat_map(|path| {
        [0, 1, u64::from(u32::MAX), u64::MAX].map(|extreme| {
            let mut changed = value.clone();
            *changed.pointer_mut(path).unwrap() = extreme.into();
            changed.to_string().into_bytes()
        })
    });
    inputs.collect()
}

/// Extreme values for a field, and values next to its present one.
fn extremes(field: &[u8]) -> Vec<u64> {
    let now = field.iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    let bits = field.len() as u32 * 8;
    let most = u64::MAX >> (64 - bits);
    let mut values = vec![0, 1, 2, 3, most, most - 1, now.wrapping_add(1), now.wrapping_sub(1), !now];
    values.extend([now << 1, now >> 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, 1 << (bits / 2), most >> 12]);
    values
}

fn mutate(input: &mut Vec<u8>, rng: &mut Rng) {
    if input.is_empty() {
        return input.push(rng.next_u64() as u8);
    }
    // The beginning of most inputs decides how the rest is parsed.
    let most = if rng.chance(1, 2) { input.len().min(256) } else { input.len() };
    let at = rng.below(most as u64) as usize;
    let size = [1, 2, 4, 8][rng.below(4) as usize].min(input.len() - at);
    match rng.below(8) {
        0 => input[at] ^= 1 << rng.below(8),
        1 => input[at..at + size].copy_from_slice(&rng.next_u64().to_le_bytes()[..size]),
        2 | 3 => {
            let at = at / 4 * 4;
            let size = if rng.chance(1, 2) { 4 } else { 8 }.min(input.len() - at);
            let values = extremes(&input[at..at + size]);
            let value = values[rng.below(values.len() as u64) as usize];
            input[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        }
        4 => {
            let from = rng.below((input.len() - size + 1) as u64) as usize;
            let other = input[from..from + size].to_vec();
            input[at..at + size].copy_from_slice(&other);
        }
        5 => input.truncate(at),
        6 => {
            let piece = input[at..(at + rng.range(1..64) as usize).min(input.len())].to_vec();
            input.splice(at..at, piece);
        }
        _ => input[at..at + size].fill(if rng.chance(1, 2) { 0 } else { 0xff }),
    }
}

fn unchanged(input: &[u8], _: &mut Rng) -> Vec<u8> {
    input.to_vec()
}

fn run<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(future, || false).unwrap()
}

/// Corrects the checksums of records that begin at block boundaries.
fn fix_records(bytes: &mut [u8]) {
    for at in (0..bytes.len()).step_by(BLOCK) {
        let record = &mut bytes[at..];
        let Some(header) = Header::read(record) else { continue };
        let length = 64_usize.saturating_add(header.payload_bytes as usize);
        if record.len() < 64 || record.len() < length {
            continue;
        }
        record[52..56].fill(0);
        let sum = crc32c::crc32c(&record[..length]);
        record[52..56].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The drives, in memory, of an array with data that is not running.
struct Array4 {
    drives: Vec<Rc<RefCell<Ssd>>>,
}

impl Array4 {
    fn new(policy: Policy, parities: usize) -> Array4 {
        let mut geometry = Model::zn540().scaled(12, 220 * parities as u64).geometry;
        geometry.zrwa = geometry.zrwa.filter(|_| policy != Policy::Log);
        if let Some(zrwa) = &mut geometry.zrwa {
            (zrwa.size_blocks, zrwa.granularity_blocks) = (32, 2);
        }
        let drives = (0..4).map(|_| Rc::new(RefCell::new(Ssd::in_memory(&geometry)))).collect();
        let array = Array4 { drives };
        let runtime = Runtime::new();
        let (name, uuid, zone_size_blocks) = ("test".to_string(), [3; 16], None);
        let policy = Some(policy);
        let (host, autostart) = ([7; 16], true);
        let options = CreateOptions {
            group_blocks: 0,
            spare_zones: None,
            checksums: false,
            checksum_group_blocks: 1008,
            name,
            uuid,
            chunk_blocks: 8,
            zone_size_blocks,
            parities,
            policy,
            host,
            autostart,
        };
        let made = run(&runtime, Array::create(&runtime, options, array.copies())).unwrap();
        for (zone, blocks) in [(0, 11), (1, 64), (2, 50)] {
            let lba = made.geometry().start(ZoneIndex(zone));
            let write = Command::write(lba, Buf::copy_of(&vec![7; blocks * BLOCK]), true);
            run(&runtime, made.submit(write)).result.unwrap();
        }
        run(&runtime, made.submit(Command::Reset { zones: Zones::One(ZoneIndex(2)) })).result.unwrap();
        runtime.clear();
        array
    }

    /// Handles of the drives themselves.
    fn copies(&self) -> Vec<Drive> {
        let drive = |ssd: &Rc<RefCell<Ssd>>| EmulatedDrive::new(ssd.clone());
        let named = self.drives.iter().map(drive).enumerate();
        named.map(|(n, drive)| Drive { name: format!("drive{n}"), device: Rc::new(drive) }).collect()
    }

    /// Copies of the drives, which may be changed.
    fn again(&self) -> Array4 {
        let copy = |ssd: &Rc<RefCell<Ssd>>| Rc::new(RefCell::new(ssd.borrow().copy().unwrap()));
        Array4 { drives: self.drives.iter().map(copy).collect() }
    }

    /// The metadata zone with the newer log of a drive, and its contents.
    fn log(&self, runtime: &Runtime, drive: usize) -> (ZoneIndex, Vec<u8>) {
        let device = &self.copies()[drive].device;
        let report = run(runtime, device.submit(Command::Report { first: ZoneIndex(0), count: 2 })).zones;
        let zone = report.iter().rev().find(|zone| zone.wp_blocks > 0).unwrap();
        let mut log = Vec::new();
        for at in 0..zone.wp_blocks {
            let lba = Lba(device.geometry().start(zone.zone).0 + at);
            log.extend_from_slice(&run(runtime, device.submit(Command::read(lba, Buf::zeroed(BLOCK)))).data);
        }
        (zone.zone, log)
    }

    /// Replaces the contents of a zone of a drive.
    fn forge(&self, runtime: &Runtime, drive: usize, zone: ZoneIndex, log: &[u8]) {
        let device = &self.copies()[drive].device;
        let zones = Zones::One(zone);
        run(runtime, device.submit(Command::Reset { zones })).result.unwrap();
        for (at, block) in log.chunks(BLOCK).take(220).enumerate() {
            let mut whole = block.to_vec();
            whole.resize(BLOCK, 0);
            let lba = Lba(device.geometry().start(zone).0 + at as u64);
            run(runtime, device.submit(Command::write(lba, Buf::copy_of(&whole), false))).result.unwrap();
        }
    }

    /// Inspects and assembles the array, and reads all that is readable.
    fn read(&self, tails: Option<&engine::array::Tails>) {
        let runtime = Runtime::new();
        let drives = self.copies();
        for drive in &drives {
            let _ = run(&runtime, examine(&runtime, drive));
        }
        let _ = run(&runtime, Array::inspect(&runtime, drives.clone(), tails));
        if let Ok(array) =
            run(&runtime, Array::assemble_read_only(&runtime, drives, tails, ArrayOptions::default()))
        {
            array.status();
            for zone in 0..array.geometry().zones.min(16) {
                let lba = array.geometry().start(ZoneIndex(zone));
                run(&runtime, array.submit(Command::read(lba, Buf::zeroed(BLOCK))));
            }
        }
        runtime.clear();
    }
}

fn metadata_log(name: &str, policy: Policy, parities: usize) {
    let array = Array4::new(policy, parities);
    let runtime = Runtime::new();
    let (zone, log) = array.log(&runtime, 1);
    Target {
        name,
        seeds: vec![log],
        fix: &fix_records,
        change: &unchanged,
        most_bytes: 64 * MIB,
        run: &|input| {
            let forged = array.again();
            forged.forge(&runtime, 1, zone, input);
            forged.read(None);
        },
    }
    .test();
}

#[test]
fn metadata_log_log() {
    metadata_log("log_log", Policy::Log, 1);
}

#[test]
fn metadata_log_zrwa() {
    metadata_log("log_zrwa", Policy::Zrwa, 1);
}

#[test]
fn metadata_log_inplace() {
    metadata_log("log_inplace", Policy::InPlace, 1);
}

#[test]
fn metadata_log_of_raid6_log() {
    metadata_log("log_log_raid6", Policy::Log, 2);
}

#[test]
fn metadata_log_of_raid6_zrwa() {
    metadata_log("log_zrwa_raid6", Policy::Zrwa, 2);
}

#[test]
fn metadata_log_of_raid6_inplace() {
    metadata_log("log_inplace_raid6", Policy::InPlace, 2);
}

#[test]
fn records() {
    let array = Array4::new(Policy::Log, 1);
    let runtime = Runtime::new();
    let found = run(&runtime, examine(&runtime, &array.copies()[1])).unwrap();
    let of = found.superblock;
    let origin = Origin { array: of.array, member: 1, lba: 3 };
    let seeds = all_records(&of).iter().map(|record| record.encode(origin, 9).to_vec()).collect();
    Target {
        name: "record",
        seeds,
        fix: &fix_records,
        change: &unchanged,
        most_bytes: MIB,
        run: &|input| {
            let Ok((record, sequence, blocks)) = Record::read(input, origin) else { return };
            assert!(blocks as usize <= input.len().div_ceil(BLOCK));
            let sane = record.check(sequence, &of);
            if let Record::Checkpoint(checkpoint) = &record {
                checkpoint.superblock.layout().capacity_blocks();
            }
            // A parsed record is encoded and parsed again.
            let again = record.encode(origin, sequence);
            let (same, ..) = Record::read(&again, origin).unwrap();
            assert_eq!((format!("{same:?}"), same.check(sequence, &of)), (format!("{record:?}"), sane));
        },
    }
    .test();
}

/// Records of all kinds.
fn all_records(of: &Superblock) -> Vec<Record> {
    let (zone, epoch, member) = (1, 2, 1);
    let data = Buf::copy_of(&[5; 2 * BLOCK]);
    let parity = |index| ParityRecord { zone, epoch, stripe: 0, index, from: 0, data: data.clone() };
    let tail = TailRecord { zone, generation: 0, epoch, tail_blocks: 11 };
    let burned = BurnedRange { zone, member, epoch, from: 2, to: 4 };
    let bad_blocks = BadBlocks { zone, member, epoch, from: 4, to: 6 };
    let zones =
        vec![ZoneRecord { epoch, lost: 2, finished: Some(7), ..Default::default() }; of.zones as usize];
    let checkpoint = Checkpoint {
        generation: 2,
        incomplete: [0].into(),
        moved: [(1, of.zones + 2)].into(),
        superblock: of.clone(),
        zones,
        burned: vec![burned],
        bad_blocks: vec![bad_blocks],
        parity: vec![parity(0)],
        tails: vec![tail],
    };
    vec![
        Record::Checkpoint(Box::new(checkpoint)),
        Record::Superblock(Box::new(of.clone())),
        Record::Reset { first: zone, count: 1 },
        Record::ResetDone { first: zone, count: 1, epoch },
        Record::Finish { zone, epoch, tail_blocks: 7 },
        Record::Rebuilt { zone, epoch, members: 2 },
        Record::Parity(parity(1)),
        Record::Parity(parity(RELOCATED)),
        Record::Tail(tail),
        Record::Lacks(Lacks { zone, members: 2, epoch }),
        Record::BadBlocks(PartBadBlocks { zone, member, epoch, ranges: vec![2..4, 6..9] }),
        Record::Decided { zone, epoch },
        Record::Claim { host: engine::format::Uuid([5; 16]), id: engine::format::Uuid([6; 16]) },
    ]
}

/// Creates a sparse file of the largest size that the file system allows, for headers of large drives.
fn largest(path: &Path) -> File {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    let sizes = (30..63).rev().map(|bits| 1_u64 << bits);
    assert!(sizes.into_iter().any(|size| file.set_len(size).is_ok()));
    file
}

#[test]
fn images() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut model = Model::zn540().scaled(4, 64);
    (model.geometry.max_transfer_blocks, model.geometry.max_append_blocks) = (2, 2);
    let mut media = ImageMedia::create(&path, &model, [7; 16]).unwrap();
    media.write(Lba(64), &[1; 2 * BLOCK], &[2; 128]).unwrap();
    drop(media);
    let drive = EmulatedDrive::open_image(&path).unwrap();
    let runtime = Runtime::new();
    for zone in [0, 2] {
        let write = Command::write(Lba(zone * 64), Buf::copy_of(&[3; BLOCK]), false);
        run(&runtime, drive.submit(write)).result.unwrap();
    }
    drop(drive);
    let mut seed = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    // Header, redo record, table of zones, and bits of written blocks.
    let table = {
        let whole = |at: &usize| seed[*at] != 0 && seed[*at + 4..*at + 8] == entry_sum(&seed[*at..*at + 16]);
        (2..seed.len() / 4096).map(|page| page * 4096).find(whole).unwrap()
    };
    seed.truncate(table + 2 * 4096);
    let mut with_redo = seed.clone();
    with_redo[4096..4104].copy_from_slice(b"ZNSREDO1");
    with_redo[4108] = 1;
    with_redo[4112] = 64;
    let fix = |bytes: &mut [u8]| {
        if bytes.len() < table + 64 {
            return;
        }
        let sum = crc32c::crc32c(&bytes[..4092]).to_le_bytes();
        bytes[4092..4096].copy_from_slice(&sum);
        let blocks = u32::from_le_bytes(bytes[4108..4112].try_into().unwrap()) as usize;
        let end = blocks.saturating_mul(BLOCK + 64).saturating_add(4096 + 24).min(bytes.len());
        let sum = crc32c::crc32c(&bytes[4108..end]).to_le_bytes();
        bytes[4104..4108].copy_from_slice(&sum);
        for entry in bytes[table..table + 64].chunks_mut(16).filter(|entry| **entry != [0; 16]) {
            let sum = entry_sum(entry);
            entry[4..8].copy_from_slice(&sum);
        }
    };
    fix(&mut with_redo);
    Target {
        name: "image",
        seeds: vec![seed, with_redo],
        fix: &fix,
        change: &unchanged,
        // Enough for a million zones.
        most_bytes: 256 * MIB,
        run: &|input| {
            let file = largest(&path);
            file.write_all_at(input, 0).unwrap();
            let _ = ImageMedia::examine(&path);
            for open in [EmulatedDrive::look_at_image, EmulatedDrive::open_image] {
                let Ok(drive) = open(&path) else { continue };
                let runtime = Runtime::new();
                let zones = drive.geometry().zones;
                let report = Command::Report { first: ZoneIndex(0), count: zones };
                run(&runtime, drive.submit(report)).result.unwrap();
                for zone in [0, 1, zones - 1] {
                    let lba = drive.geometry().start(ZoneIndex(zone));
                    let _ = run(&runtime, drive.submit(Command::read(lba, Buf::zeroed(BLOCK))));
                }
                let drive = Drive { name: "image".into(), device: Rc::new(drive) };
                let _ = run(&runtime, examine(&runtime, &drive));
            }
            file.set_len(0).unwrap();
        },
    }
    .test();
}

/// The checksum of an entry of an image's table of zones.
fn entry_sum(entry: &[u8]) -> [u8; 4] {
    let mut entry = entry.to_vec();
    entry[4..8].fill(0);
    crc32c::crc32c(&entry).to_le_bytes()
}

#[test]
fn fault_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    drop(EmulatedDrive::create_image(&path, &Model::zn540().scaled(4, 64), [7; 16]).unwrap());
    let faults = dir.path().join("image.faults");
    let file = AilmentFile::of(&path).unwrap();
    for ailment in [
        Ailment::ReadOnly(ZoneIndex(2)),
        Ailment::Offline(ZoneIndex(3)),
        Ailment::Unreadable(Lba(7)),
        Ailment::Flipped(Lba(9)),
        Ailment::Stale(Lba(8), vec![5; 4160]),
        Ailment::Slow(3),
    ] {
        file.add(ailment).unwrap();
    }
    let seed = fs::read(&faults).unwrap();
    let words =
        ["18446744073709551615", "4294967296", "-1", "\n", " ", "gone", "well 0 18446744073709551615"];
    Target {
        name: "faults",
        seeds: vec![seed],
        fix: &|_| (),
        change: &|input, rng| {
            let text = String::from_utf8_lossy(input).into_owned();
            let mut parts: Vec<&str> = text.split_inclusive([' ', '\n']).collect();
            let at = rng.range(1..parts.len() as u64) as usize;
            parts[at] = words[rng.below(words.len() as u64) as usize];
            parts.concat().into_bytes()
        },
        most_bytes: 4 * MIB,
        run: &|input| {
            fs::write(&faults, input).unwrap();
            let Ok(drive) = EmulatedDrive::look_at_image(&path) else { return };
            let runtime = Runtime::new();
            let report = Command::Report { first: ZoneIndex(0), count: 4 };
            let _ = run(&runtime, drive.submit(report));
            let _ = run(&runtime, drive.submit(Command::read(Lba(0), Buf::zeroed(16 * BLOCK))));
        },
    }
    .test();
    // A file that is not ours may have any size.
    largest(&faults);
    let (refused, took) = measured(|| EmulatedDrive::look_at_image(&path).is_err());
    assert!(refused && took < 64 * MIB, "refused: {refused}, {took} bytes");
}

#[test]
fn tails_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("array.tails");
    let array = Array4::new(Policy::Zrwa, 1);
    let runtime = Runtime::new();
    let uuid = [3; 16];
    let found = run(&runtime, examine(&runtime, &array.copies()[0])).unwrap().superblock;
    let append = Some(Extent { zone: ZoneIndex(1), at: 64, blocks: 8 });
    let mut complete = vec![0; found.zones as usize];
    (complete[0], complete[1]) = (11, 64);
    drop(AckLog::create(&path, &uuid, found.assembly, &complete, &[append], &[]).unwrap());
    let seed = fs::read(&path).unwrap();
    Target {
        name: "tails",
        seeds: vec![seed.clone()],
        fix: &|_| (),
        change: &unchanged,
        most_bytes: 64 * MIB,
        run: &|input| {
            fs::write(&path, input).unwrap();
            if let Ok(Some(left)) = AckLogContents::read(&path, &uuid) {
                array.again().read(Some(&left.into_tails()));
            }
        },
    }
    .test();
    // A file that is not ours may have any size; the last input may have been of another boot.
    fs::write(&path, seed).unwrap();
    largest(&path);
    let (refused, took) = measured(|| AckLogContents::read(&path, &uuid).is_err());
    assert!(refused && took < 64 * MIB, "refused: {refused}, {took} bytes");
}

/// All kinds of JSON values, to replace a value.
fn odd_values() -> Vec<String> {
    let words =
        ["null", "true", "-1", "0", "18446744073709551615", "1e999", "0.5", "\"\"", "[]", "{}", "\u{7f}"];
    let mut values: Vec<String> = words.map(String::from).to_vec();
    values.push("[".repeat(100_000));
    values.push(format!("\"{}\"", "x".repeat(100_000)));
    values.push("\"\\u0000\\u001b[2J\\ud800\"".into());
    values.push(format!("[{}0]", "0,".repeat(10_000)));
    values
}

/// The JSON `input` with one value replaced, left out or repeated.
fn change_json(input: &[u8], rng: &mut Rng) -> Vec<u8> {
    fn count(value: &Value) -> u64 {
        1 + match value {
            Value::Array(items) => items.iter().map(count).sum::<u64>(),
            Value::Object(fields) => fields.values().map(count).sum::<u64>(),
            _ => 0,
        }
    }
    fn replace(value: &mut Value, at: &mut u64, with: &Value) {
        if *at == 0 {
            *value = with.clone();
        }
        *at = at.wrapping_sub(1);
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| replace(item, at, with)),
            Value::Object(fields) => fields.values_mut().for_each(|field| replace(field, at, with)),
            _ => {}
        }
    }
    let Ok(mut value) = serde_json::from_slice::<Value>(input) else { return input.to_vec() };
    let values = odd_values();
    let odd = &values[rng.below(values.len() as u64) as usize];
    let mark = "in the place of this";
    let mut at = rng.below(count(&value));
    replace(&mut value, &mut at, &mark.into());
    value.to_string().replace(&format!("\"{mark}\""), odd).into_bytes()
}

fn line<T: serde::Serialize>(content: T) -> Vec<u8> {
    serde_json::to_vec(&Line { protocol: PROTOCOL, content }).unwrap()
}

#[test]
fn requests() {
    let member = MemberName::Path { path: "/dev/ng0n1".into(), exists: true };
    let seeds = vec![
        line(Request::About),
        line(Request::Zones { zone: Some(3) }),
        line(Request::Fail { member: MemberName::Role(2) }),
        line(Request::Replace { member, drive: "/dev/ng1n1".into(), now: true, yes: true }),
        line(Request::Examine { drive: "/dev/ng1n1".into() }),
        line(Request::SnapshotVolumes {
            on: None,
            snapshots: vec![SnapshotName::new("mail@monday").unwrap()],
        }),
        line(Request::Stop),
    ];
    Target {
        name: "request",
        seeds,
        fix: &|_| (),
        change: &change_json,
        most_bytes: 8 * MIB,
        run: &|input| {
            if let Ok(request) = daemon::request(input) {
                // A valid request can be encoded again.
                assert!(daemon::request(&line(request)).is_ok());
            }
        },
    }
    .test();
}

/// Parses all messages of an NBD client, one after the other: replies are bounded, and requests lie within the volume.
fn listen(mut input: &[u8]) {
    fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
        let (taken, rest) = input.split_at_checked(N)?;
        *input = rest;
        taken.try_into().ok()
    }
    let export = NbdExport { name: "tank".into(), size_bytes: 1 << 30, read_only: false, is_snapshot: false };
    let other = NbdExport { name: "pond".into(), ..export.clone() };
    let mut negotiate = || {
        let mut negotiation = Negotiation::new(vec![export.clone(), other.clone()], take(&mut input)?)?;
        loop {
            let header = take(&mut input)?;
            let (data, rest) = input.split_at_checked(negotiation.option_bytes(&header)? as usize)?;
            input = rest;
            let mut replies = Vec::new();
            let next = negotiation.answer(&header, data, &mut replies);
            assert!(replies.len() < 4096, "{} bytes of answers", replies.len());
            match next {
                Next::Option => {}
                Next::Requests => return Some(negotiation.terms()),
                Next::End => return None,
            }
        }
    };
    let Some(terms) = negotiate() else { return };
    while let Some(request) = take(&mut input).and_then(|header| nbd::wire::NbdRequest::read(&header, &terms))
    {
        input = input.get(request.payload_bytes as usize..).unwrap_or_default();
        let (at, bytes) = match request.work {
            Ok(NbdOperation::Read { at, bytes, .. } | NbdOperation::Write { at, bytes, .. }) => (at, bytes),
            Ok(NbdOperation::Zero { at, bytes, .. } | NbdOperation::Trim { at, bytes, .. }) => (at, bytes),
            Ok(NbdOperation::Status { at, bytes, .. }) => (at, bytes),
            Ok(NbdOperation::Flush | NbdOperation::Disconnect) | Err(_) => continue,
        };
        assert!(bytes > 0 && at + bytes as u64 <= export.size_bytes, "{request:?}");
    }
}

#[test]
fn nbd_clients() {
    let option = |number: u32, data: &[u8]| {
        [&b"IHAVEOPT"[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let request = |flags: u16, kind: u16, (at, bytes): (u64, u32)| {
        let (magic, words) =
            (0x2560_9513_u32.to_be_bytes(), [flags.to_be_bytes(), kind.to_be_bytes()].concat());
        [&magic[..], &words, &[7; 8], &at.to_be_bytes(), &bytes.to_be_bytes()].concat()
    };
    let context = b"\0\0\0\x04tank\0\0\0\x02\0\0\0\x0fbase:allocation\0\0\0\x05base:";
    let info = b"\0\0\0\x04tank\0\x01\0\x03";
    let work = [
        request(0, 0, (0, 4096)),
        request(1, 1, (4096, 16)),
        vec![9; 16],
        request(0, 3, (0, 0)),
        request(8, 7, (0, 1 << 30)),
        request(1, 6, (1 << 20, 1 << 29)),
        request(0, 4, (512, 512)),
        request(0, 2, (0, 0)),
    ]
    .concat();
    let polite = [option(8, b""), option(9, context), option(10, context), option(6, info), option(7, info)];
    let seeds = vec![
        [&[0, 0, 0, 3][..], &polite.concat(), &work].concat(),
        [&[0, 0, 0, 1][..], &option(3, b""), &option(5, b""), &option(1, b"tank"), &work].concat(),
        [&[0, 0, 0, 3][..], &option(2, b"")].concat(),
    ];
    Target { name: "nbd", seeds, fix: &|_| (), change: &unchanged, most_bytes: MIB, run: &listen }.test();
}

/// The messages of a daemon of a small array, with an answer of each kind.
fn answers() -> Vec<Vec<u8>> {
    let place = Place::with_array(6);
    let uuid = place.json(&["status", "drives"])["uuid"].as_str().unwrap().to_string();
    let about = About { name: "tank".into(), uuid: uuid.clone(), pid: 7, members: 5, ..Default::default() };
    let progress = json!({
        "copied": {"role": 1, "drive": "x"},
        "done_bytes": 1, "total_bytes": 9, "bytes_per_second": 1, "seconds_left": 8, "running": true,
    });
    let rebuilt = json!({
        "array": "tank", "role": 1, "drive": "x", "copied_bytes": 5, "rebuilt_bytes": 7,
        "left_out": [{"zone": 1, "role": 2, "reason": "why"}],
        "lost": [
            {"zone": 1, "start_bytes": 0, "bytes": 4096},
            {"zone": 2, "start_bytes": 0, "bytes": 4096},
        ],
    });
    let traffic = Traffic::default();
    traffic.begin();
    traffic.counted();
    traffic.reads.count(4096, traffic.begin().map(|_| Duration::from_millis(1)));
    let device = TrafficDevice { namespace: None, client: Some(1), counted: traffic.counted() };
    let drive = TrafficDrive { drive: "x".into(), role: Some(1), counted: traffic.counted() };
    let mut status = place.json(&["status", "drives"]);
    status["rebuild"] = progress.clone();
    status["offline_zones"] = json!([{"zone": 1, "reason": "why", "waits_for": [2]}]);
    let done = [
        serde_json::to_value(about).unwrap(),
        status,
        place.json(&["zone", "report", "drives"]),
        place.json(&["examine", "drives/drive1.img"]),
        rebuilt,
        json!({"array": "tank", "role": 1, "drive": "x"}),
        json!({"array": "tank", "uuid": uuid}),
        serde_json::to_value(TrafficReport {
            devices: vec![device],
            drives: vec![drive],
            turns: traffic.reads.counts(),
        })
        .unwrap(),
    ];
    let mut lines: Vec<Vec<u8>> = done.into_iter().map(|value| line(Answer::Done(value))).collect();
    lines.push(line(Answer::Note("a note".into())));
    lines.push(line(Answer::Progress(serde_json::from_value(progress).unwrap())));
    lines.push(line(Answer::Error("an error".into())));
    lines
}

#[test]
fn daemon_answers() {
    Target {
        name: "answer",
        seeds: answers(),
        fix: &|_| (),
        change: &change_json,
        most_bytes: 16 * MIB,
        run: &|input| {
            let Ok(Answer::Done(value)) = client::answer(input) else { return };
            if let Ok(status) = serde_json::from_value::<Status>(value.clone()) {
                let _ = (status.size_bytes(), status.active());
            }
            if let Ok(rebuilt) = serde_json::from_value::<RebuildReport>(value.clone()) {
                let _ = (rebuilt.is_whole(), rebuilt.losses());
            }
            if let Ok(asked) = serde_json::from_value::<TrafficReport>(value.clone()) {
                let counted = asked.devices.iter().map(|asked| &asked.counted);
                for TrafficCounts { reads, writes } in
                    counted.chain(asked.drives.iter().map(|asked| &asked.counted))
                {
                    let _ = (reads.all_but_one_in_us(100), writes.all_but_one_in_us(2));
                }
            }
            let _ = serde_json::from_value::<About>(value.clone());
            let _ = serde_json::from_value::<ZoneReport>(value.clone());
            let _ = serde_json::from_value::<ExamineReport>(value.clone());
            let _ = serde_json::from_value::<FailReport>(value.clone());
            let _ = serde_json::from_value::<StopReport>(value);
        },
    }
    .test();
}

/// Commands that send requests to a daemon, each with the kind of answer that it expects first in [`answers`].
const ASKING: [(&str, &[&str]); 6] = [
    ("status", &["status", "tank"]),
    ("status", &["status"]),
    ("status", &["list", "drives"]),
    ("zones", &["zone", "report", "tank"]),
    ("examine", &["examine", "drives/drive1.img"]),
    ("rebuild", &["rebuild", "tank"]),
];

#[test]
fn commands_with_mutated_daemon_answers() {
    let place = Place::with_array(5);
    fs::create_dir_all(place.path("run")).unwrap();
    let lines = answers();
    let uuid = "11111111-2222-4333-8444-555555555555";
    let drives = vec![place.path("drives/drive1.img")];
    let about = About { name: "tank".into(), uuid: uuid.into(), pid: 1, drives, ..Default::default() };
    let about = line(Answer::Done(serde_json::to_value(about).unwrap()));
    let listener = UnixListener::bind(place.path(&format!("run/{uuid}.sock"))).unwrap();
    let next: Arc<Mutex<Vec<u8>>> = Arc::default();
    let answer = next.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut asked = BufReader::new(&stream);
            let mut request = String::new();
            let mut left = asked.read_line(&mut request).is_ok();
            // Nothing follows the answer.
            while left {
                left = request.contains("\"about\"");
                let said = if left { about.clone() } else { answer.lock().unwrap().clone() };
                // The client may have disconnected.
                let _ = (&stream).write_all(&[&said[..], b"\n"].concat());
                request.clear();
                left = left && asked.read_line(&mut request).is_ok_and(|read| read > 0);
            }
        }
    });
    Target {
        name: "commands",
        seeds: vec![lines[1].clone(), lines[2].clone(), lines[3].clone(), lines[4].clone(), lines[8].clone()],
        fix: &|_| (),
        change: &change_json,
        most_bytes: 16 * MIB,
        run: &|input| {
            let kind = |line: &&[u8]| {
                let text = String::from_utf8_lossy(line).into_owned();
                match () {
                    () if text.contains("\"wp_bytes\"") => "zones",
                    () if text.contains("\"superblock\"") => "examine",
                    () if text.contains("\"lost\"") || text.contains("\"progress\"") => "rebuild",
                    () => "status",
                }
            };
            *next.lock().unwrap() = input.to_vec();
            for (_, args) in ASKING.iter().filter(|(asked, _)| *asked == kind(&input)) {
                // A panic has an exit code that no command uses.
                let ran = place.run(args);
                assert!([0, 1, 2, 4].contains(&ran.code), "{args:?}: {} {}", ran.code, ran.stderr);
            }
        },
    }
    .test();
}

#[test]
fn fuzz_target_reports_panic_or_excess_memory_reproducibly() {
    let target = |run: &dyn Fn(&[u8])| {
        let (seeds, most_bytes) = (vec![vec![1; 64]], MIB);
        let target = Target {
            name: "itself",
            seeds,
            fix: &|_| (),
            change: &unchanged,
            most_bytes,
            run: &|input| run(input),
        };
        catch_unwind(AssertUnwindSafe(|| target.test()))
    };
    let said = |error: Box<dyn std::any::Any + Send>| error.downcast_ref::<String>().unwrap().clone();
    let panics = said(target(&|input| assert!(input[..8] != [0xff; 8])).unwrap_err());
    assert!(panics.starts_with("itself panics: ZONERAID_FUZZ_INPUT=/"), "{panics}");
    let path = panics.split_once('=').unwrap().1.split(' ').next().unwrap();
    assert_eq!(fs::read(path).unwrap()[..8], [0xff; 8]);
    let greedy = |input: &[u8]| {
        let said = u32::from_le_bytes(input.get(..4).unwrap_or(&[0; 4]).try_into().unwrap());
        drop(Vec::<u8>::with_capacity(said.min(1 << 30) as usize));
    };
    assert!(said(target(&greedy).unwrap_err()).contains("itself takes "));
    target(&|_| ()).unwrap();
}
