//! Writes that have to survive crashes, and their verification.
//!
//! [`Load`] writes to some zones of a zoned block device, each zone from a thread of its own, and logs acknowledgements
//! outside the guest: the end of a write with FUA, or of writes before a flush. [`Verify`] reads the log and the device
//! after a crash. The contents of a block follow from its zone, the zone's generation (number of resets), its place and
//! the seed, so that a block that is old, misplaced or wrongly reconstructed is told from the right one.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use std::{
    fs,
    io::Write,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

const BLOCK: usize = 4096;
/// Blocks of the longest write.
const LONGEST: usize = 64;

#[derive(Args, Clone)]
pub struct Target {
    /// Zoned block device
    device: PathBuf,
    /// Acknowledgement log, outside of the crashing guest
    #[arg(long, value_name = "FILE")]
    log: PathBuf,
    /// Seed of the written data
    #[arg(long, env = "GUEST_SEED")]
    seed: u64,
}

#[derive(Args)]
pub struct Load {
    #[command(flatten)]
    target: Target,
    /// Zones written to, from the first on
    #[arg(long, default_value_t = 6)]
    zones: usize,
    /// Duration; until killed by default
    #[arg(long)]
    seconds: Option<u64>,
}

#[derive(Args)]
pub struct Verify {
    #[command(flatten)]
    target: Target,
}

/// A zone of the device, in blocks, as the kernel reports it.
#[derive(Clone, Debug, PartialEq)]
struct ReportedZone {
    start: u64,
    capacity: u64,
    /// Blocks below the write pointer; the capacity if the zone is full.
    written: u64,
    full: bool,
}

/// State of a zone according to the log.
#[derive(Clone, Debug, Default, PartialEq)]
struct ExpectedZone {
    generation: u64,
    acknowledged: u64,
    /// A reset was begun, and may be done.
    resetting: bool,
    /// A finish was begun, and may be done.
    finishing: bool,
    finished: bool,
}

#[derive(Clone, Copy)]
enum Event {
    /// A reset begins; once it is done, the zone has this generation.
    Resetting(u64),
    Reset(u64),
    Finishing,
    Finished,
    /// This many blocks are durable.
    Acknowledged(u64),
}

impl Event {
    fn line(self, zone: usize) -> String {
        match self {
            Self::Resetting(generation) => format!("resetting {zone} {generation}\n"),
            Self::Reset(generation) => format!("reset {zone} {generation}\n"),
            Self::Finishing => format!("finishing {zone} 0\n"),
            Self::Finished => format!("finished {zone} 0\n"),
            Self::Acknowledged(blocks) => format!("ack {zone} {blocks}\n"),
        }
    }

    fn parse(line: &str) -> Option<(usize, Self)> {
        let words: Vec<&str> = line.split(' ').collect();
        let [kind, zone, number] = words[..] else { return None };
        let number = number.parse().ok()?;
        let event = match kind {
            "resetting" => Self::Resetting(number),
            "reset" => Self::Reset(number),
            "finishing" => Self::Finishing,
            "finished" => Self::Finished,
            "ack" => Self::Acknowledged(number),
            _ => return None,
        };
        Some((zone.parse().ok()?, event))
    }
}

impl ExpectedZone {
    fn learn(&mut self, event: Event) {
        match event {
            Event::Resetting(_) => self.resetting = true,
            Event::Reset(generation) => *self = Self { generation, ..Self::default() },
            Event::Finishing => self.finishing = true,
            Event::Finished => {
                self.finishing = false;
                self.finished = true;
            }
            Event::Acknowledged(blocks) => self.acknowledged = self.acknowledged.max(blocks),
        }
    }

    /// Whether a reset or a finish was begun, and may be done or not.
    fn changing(&self) -> bool {
        self.resetting || self.finishing
    }
}

/// The state of each zone in the log. Only the last line may be torn.
fn replay(log: &str) -> Result<Vec<ExpectedZone>> {
    let mut zones: Vec<ExpectedZone> = Vec::new();
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    for line in whole.lines() {
        let (zone, event) = Event::parse(line).with_context(|| format!("the log says '{line}'"))?;
        if zones.len() <= zone {
            zones.resize(zone + 1, ExpectedZone::default());
        }
        zones[zone].learn(event);
    }
    Ok(zones)
}

/// A pseudo-random sequence (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Fills `block` with the contents of block `place` of a zone in one of its generations.
fn fill(block: &mut [u8], seed: u64, zone: usize, generation: u64, place: u64) {
    let mut numbers = Numbers(seed ^ ((zone as u64) << 48) ^ (generation << 32) ^ place);
    let mut head = [zone as u64, generation, place].into_iter();
    for word in block.chunks_exact_mut(8) {
        let value = head.next().unwrap_or_else(|| numbers.next());
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Memory that is aligned for direct I/O.
struct AlignedBuffer {
    memory: Vec<u8>,
    offset: usize,
}

impl AlignedBuffer {
    fn new(length: usize) -> Self {
        let memory = vec![0; length + BLOCK];
        let offset = memory.as_ptr().align_offset(BLOCK);
        Self { memory, offset }
    }

    fn bytes(&mut self, length: usize) -> &mut [u8] {
        &mut self.memory[self.offset..][..length]
    }
}

fn open(device: &Path, flags: rustix::fs::OFlags) -> Result<fs::File> {
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags((flags | rustix::fs::OFlags::DIRECT).bits().cast_signed())
        .open(device)
        .with_context(|| format!("cannot open {}", device.display()))
}

fn blkzone(device: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new("blkzone").args(args).arg(device).output().context("cannot run blkzone")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "blkzone {} failed: {}", args.join(" "), stderr.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn report(device: &Path) -> Result<Vec<ReportedZone>> {
    let text = blkzone(device, &["report"])?;
    text.lines().map(|line| parse_report(line).with_context(|| format!("blkzone reports '{line}'"))).collect()
}

/// Parses a line of `blkzone report`, which has hexadecimal numbers of sectors of 512 bytes.
fn parse_report(line: &str) -> Option<ReportedZone> {
    let sectors = |key: &str| {
        let rest = line.split_once(key)?.1.trim_start_matches([' ', ':']).strip_prefix("0x")?;
        let digits = rest.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        Some(u64::from_str_radix(digits, 16).ok()? * 512 / BLOCK as u64)
    };
    let full = line.contains("(fu)");
    let capacity = sectors("cap")?;
    let written = if full { capacity } else { sectors("wptr")? };
    Some(ReportedZone { start: sectors("start")?, capacity, written, full })
}

struct RequestLog(Mutex<fs::File>);

impl RequestLog {
    fn open(path: &Path) -> Result<Self> {
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        Ok(Self(Mutex::new(file.with_context(|| format!("cannot open {}", path.display()))?)))
    }

    fn write(&self, zone: usize, event: Event) -> Result<()> {
        let Ok(mut file) = self.0.lock() else { bail!("another zone's thread has failed") };
        file.write_all(event.line(zone).as_bytes()).context("cannot write to the log")
    }
}

impl Load {
    pub fn run(&self) -> Result<()> {
        let target = &self.target;
        let log = RequestLog::open(&target.log)?;
        let known = replay(&fs::read_to_string(&target.log)?)?;
        let zones = report(&target.device)?;
        ensure!(zones.len() >= self.zones, "{} has only {} zones", target.device.display(), zones.len());
        let end = self.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        thread::scope(|scope| {
            let threads: Vec<_> = zones[..self.zones]
                .iter()
                .enumerate()
                .map(|(number, zone)| {
                    let known = known.get(number).cloned().unwrap_or_default();
                    let log = &log;
                    scope.spawn(move || Writer::new(target, log, number, zone, &known)?.write_until(end))
                })
                .collect();
            for thread in threads {
                match thread.join() {
                    Ok(result) => result?,
                    Err(_) => bail!("a zone's thread has failed"),
                }
            }
            Ok(())
        })
    }
}

/// Writes to one zone.
struct Writer<'a> {
    target: &'a Target,
    log: &'a RequestLog,
    number: usize,
    zone: ReportedZone,
    generation: u64,
    numbers: Numbers,
    /// Handles for writes that complete in the drive's cache, and for durable writes.
    cached: fs::File,
    durable: fs::File,
    buffer: AlignedBuffer,
}

impl<'a> Writer<'a> {
    fn new(
        target: &'a Target,
        log: &'a RequestLog,
        number: usize,
        zone: &ReportedZone,
        known: &ExpectedZone,
    ) -> Result<Self> {
        ensure!(!known.changing(), "the log of zone {number} has to be verified first");
        Ok(Self {
            target,
            log,
            number,
            zone: zone.clone(),
            generation: known.generation,
            numbers: Numbers(target.seed ^ number as u64 ^ (zone.written << 20)),
            cached: open(&target.device, rustix::fs::OFlags::empty())?,
            durable: open(&target.device, rustix::fs::OFlags::DSYNC)?,
            buffer: AlignedBuffer::new(LONGEST * BLOCK),
        })
    }

    fn write_until(&mut self, end: Option<Instant>) -> Result<()> {
        while end.is_none_or(|end| Instant::now() < end) {
            let written = self.zone.written;
            match self.numbers.below(400) {
                0 if written > 0 => self.reset()?,
                1 if written > 0 && !self.zone.full => self.finish()?,
                _ if written == self.zone.capacity => self.reset()?,
                _ => self.write_some()?,
            }
        }
        Ok(())
    }

    fn write_some(&mut self) -> Result<()> {
        let longest = match self.numbers.below(3) {
            0 => 1,
            1 => 8,
            _ => LONGEST as u64,
        };
        let first = self.zone.written;
        let blocks = (1 + self.numbers.below(longest)).min(self.zone.capacity - first);
        let bytes = self.buffer.bytes(blocks as usize * BLOCK);
        for (block, place) in bytes.chunks_exact_mut(BLOCK).zip(first..) {
            fill(block, self.target.seed, self.number, self.generation, place);
        }
        let fua = self.numbers.below(3) > 0;
        let file = if fua { &self.durable } else { &self.cached };
        file.write_all_at(bytes, (self.zone.start + first) * BLOCK as u64).with_context(|| {
            format!("cannot write {blocks} blocks to block {first} of zone {}", self.number)
        })?;
        self.zone.written += blocks;
        let flushed = !fua && self.numbers.below(4) == 0;
        if flushed {
            self.cached.sync_data().context("cannot flush")?;
        }
        if fua || flushed {
            self.log.write(self.number, Event::Acknowledged(self.zone.written))?;
        }
        Ok(())
    }

    fn blkzone(&self, verb: &str) -> Result<()> {
        let sector = (self.zone.start * (BLOCK as u64 / 512)).to_string();
        // Without `--force` it opens the device for exclusive use, as other workers do.
        blkzone(&self.target.device, &[verb, "--force", "--count", "1", "--offset", &sector]).map(drop)
    }

    fn reset(&mut self) -> Result<()> {
        self.log.write(self.number, Event::Resetting(self.generation + 1))?;
        self.blkzone("reset")?;
        self.generation += 1;
        self.log.write(self.number, Event::Reset(self.generation))?;
        self.zone.written = 0;
        self.zone.full = false;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.log.write(self.number, Event::Finishing)?;
        self.blkzone("finish")?;
        self.log.write(self.number, Event::Finished)?;
        self.zone.written = self.zone.capacity;
        self.zone.full = true;
        Ok(())
    }
}

impl Verify {
    pub fn run(&self) -> Result<ExitCode> {
        let target = &self.target;
        let known = replay(&fs::read_to_string(&target.log).unwrap_or_default())?;
        let log = RequestLog::open(&target.log)?;
        let file = open(&target.device, rustix::fs::OFlags::empty())?;
        let mut wrong = 0;
        let mut total = [0, 0];
        for (number, (known, zone)) in known.iter().zip(report(&target.device)?).enumerate() {
            match check(target.seed, number, known, &zone, &file) {
                Ok(events) => {
                    for event in events {
                        log.write(number, event)?;
                    }
                }
                Err(error) => {
                    wrong += 1;
                    println!("zone {number}: {error:#}; the log knows {known:?}, reported is {zone:?}");
                }
            }
            total[0] += known.acknowledged;
            total[1] += zone.written;
        }
        println!(
            "verify: {} zones, {} blocks acknowledged, {} below write pointers, {wrong} zones wrong",
            known.len(),
            total[0],
            total[1]
        );
        Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Checks a zone against the log. Returns the state that was seen, which is certain from now on.
fn check(
    seed: u64,
    number: usize,
    known: &ExpectedZone,
    zone: &ReportedZone,
    file: &fs::File,
) -> Result<Vec<Event>> {
    if known.resetting && zone.written == 0 {
        return Ok(vec![Event::Reset(known.generation + 1)]);
    }
    ensure!(!known.finished || zone.full, "a finished zone is not full any more");
    ensure!(zone.written >= known.acknowledged, "acknowledged blocks are above the write pointer");
    let mut buffer = AlignedBuffer::new(LONGEST * BLOCK);
    let mut expected = vec![0; BLOCK];
    // A zone that was finished early reads as zeros behind its data.
    let may_end_early = zone.full && (known.finishing || known.finished);
    let mut ended = false;
    let mut place = 0;
    while place < zone.written {
        let blocks = (zone.written - place).min(LONGEST as u64);
        let bytes = buffer.bytes(blocks as usize * BLOCK);
        file.read_exact_at(bytes, (zone.start + place) * BLOCK as u64)
            .with_context(|| format!("cannot read block {place}"))?;
        for (block, place) in bytes.chunks_exact(BLOCK).zip(place..) {
            let zeros = block.iter().all(|byte| *byte == 0);
            if place >= known.acknowledged && may_end_early && (zeros || ended) {
                ended = true;
                ensure!(zeros, "block {place} has data above the end of the zone's data");
                continue;
            }
            fill(&mut expected, seed, number, known.generation, place);
            if block != expected {
                let word =
                    |at: usize| block[at..at + 8].iter().rev().fold(0, |w: u64, b| w << 8 | u64::from(*b));
                bail!(
                    "block {place} is not what was written; it says zone {}, generation {}, block {}",
                    word(0),
                    word(8),
                    word(16)
                );
            }
        }
        place += blocks;
    }
    // Blocks that were seen may not be lost later. A change that did not happen is over.
    let mut seen = vec![Event::Reset(known.generation), Event::Acknowledged(zone.written)];
    if may_end_early {
        seen = vec![Event::Reset(known.generation), Event::Acknowledged(known.acknowledged)];
        seen.push(Event::Finished);
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;

    fn image(generation: u64, blocks: u64) -> fs::File {
        let file = tempfile::tempfile().unwrap();
        let mut block = vec![0; BLOCK];
        for place in 0..blocks {
            fill(&mut block, SEED, 0, generation, place);
            file.write_all_at(&block, place * BLOCK as u64).unwrap();
        }
        file.set_len(100 * BLOCK as u64).unwrap();
        file
    }

    fn zone(written: u64) -> ReportedZone {
        ReportedZone { start: 0, capacity: 100, written, full: written == 100 }
    }

    fn known(log: &str) -> ExpectedZone {
        replay(log).unwrap().remove(0)
    }

    #[test]
    fn zone_report_is_parsed_in_blocks() {
        let line = "  start: 0x000010000, len 0x010000, cap 0x00c000, wptr 0x000008 reset:0 non-seq:0, \
                    zcond: 2(oi) [type: 2(SEQ_WRITE_REQUIRED)]";
        let expected = ReportedZone { start: 0x2000, capacity: 0x1800, written: 1, full: false };
        assert_eq!(parse_report(line), Some(expected));
        let full = parse_report(&line.replace("2(oi)", "14(fu)")).unwrap();
        assert_eq!(full.written, full.capacity);
        assert_eq!(parse_report("nonsense"), None);
    }

    #[test]
    fn load_check_requires_acknowledged_blocks() {
        let known = known("ack 0 5\nack 0 9\nack 0 12");
        assert_eq!(known.acknowledged, 9, "the last line is torn");
        assert!(check(SEED, 0, &known, &zone(9), &image(0, 9)).is_ok());
        assert!(check(SEED, 0, &known, &zone(11), &image(0, 11)).is_ok());
        assert!(check(SEED, 0, &known, &zone(8), &image(0, 8)).is_err(), "lost");
        assert!(check(SEED, 0, &known, &zone(11), &image(0, 9)).is_err(), "never written");
        assert!(check(SEED, 0, &known, &zone(9), &image(1, 9)).is_err(), "another generation");
        assert!(check(SEED + 1, 0, &known, &zone(9), &image(0, 9)).is_err(), "another seed");
    }

    #[test]
    fn load_check_requires_atomic_reset() {
        let begun = known("ack 0 9\nresetting 0 1\n");
        assert!(check(SEED, 0, &begun, &zone(0), &image(0, 9)).is_ok());
        assert!(check(SEED, 0, &begun, &zone(9), &image(0, 9)).is_ok());
        assert!(check(SEED, 0, &begun, &zone(3), &image(0, 9)).is_err());
        let done = known("ack 0 9\nresetting 0 1\nreset 0 1\nack 0 2\n");
        assert!(check(SEED, 0, &done, &zone(0), &image(1, 2)).is_err());
        assert!(check(SEED, 0, &done, &zone(9), &image(0, 9)).is_err());
        assert!(check(SEED, 0, &done, &zone(2), &image(1, 2)).is_ok());
    }

    #[test]
    fn load_log_marks_zone_changing_until_change_ends() {
        for (log, changing) in [
            ("ack 0 9\n", false),
            ("resetting 0 1\n", true),
            ("resetting 0 1\nreset 0 1\n", false),
            ("finishing 0 0\n", true),
            ("finishing 0 0\nfinished 0 0\n", false),
        ] {
            assert_eq!(known(log).changing(), changing, "{log}");
        }
    }

    #[test]
    fn load_check_requires_finished_zone_full_zero_padded() {
        let finished = known("ack 0 9\nfinishing 0 0\nfinished 0 0\n");
        assert!(check(SEED, 0, &finished, &zone(100), &image(0, 9)).is_ok());
        assert!(check(SEED, 0, &finished, &zone(100), &image(0, 11)).is_ok());
        assert!(check(SEED, 0, &finished, &zone(100), &image(0, 8)).is_err());
        assert!(check(SEED, 0, &finished, &zone(9), &image(0, 9)).is_err());
        let begun = known("ack 0 9\nfinishing 0 0\n");
        assert!(check(SEED, 0, &begun, &zone(9), &image(0, 9)).is_ok());
        assert!(check(SEED, 0, &begun, &zone(100), &image(0, 9)).is_ok());
        assert!(check(SEED, 0, &known("ack 0 9\n"), &zone(100), &image(0, 9)).is_err());
    }
}
