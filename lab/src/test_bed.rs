//! A test bed: an array over emulated drives with timing, in virtual time.

use crate::{
    classify::classifier,
    figure::{Row, WrittenBlocks},
    host::{Host, Threads},
    load::{self, Job, Measurement, RequestKind, Window},
    log_window::LogWindow,
    rotation::RotatedMember,
    serial_section::{Section, Serial},
    stream::Stream,
    system::System,
    trace::Trace,
    volume,
};
use anyhow::{Context, ensure};
use emu::{
    clock::Clock,
    rng::Rng,
    ssd::{
        Cause, Counters, Cut, Media, MemoryMedia, Model, NoMedia, Ssd, TimedDrive,
        compress::{CompressedMedia, PAGE_BLOCKS, Scheme},
    },
    timing::Timing,
};
use engine::{
    adapt::aggregate::AggregateDevice,
    array::{Array, ArrayOptions, CreateOptions, Drive},
    buf::BLOCK,
    device::ZonedDevice,
    raid::{Consistency, LogStep, geometry::physical},
    runtime::Runtime,
    zone::ZoneIndex,
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::Future,
    ops::Range,
    rc::Rc,
    sync::{Mutex, PoisonError},
};

/// Parameters of a test bed.
#[derive(Clone, Debug)]
pub struct Setup {
    pub system: System,
    pub model: Model,
    pub timing: Timing,
    pub members: usize,
    /// Number of members that may be lost.
    pub parities: usize,
    /// All members are namespaces of one drive, which share its hardware.
    pub partitioned: bool,
    /// Zones of a drive that form one.
    pub aggregate: u32,
    pub chunk_kib: u64,
    /// Whether the drives keep data, so that an array can be assembled again.
    pub stores: bool,
    /// The drives' compression, if any; they keep data then.
    pub compression: Option<Scheme>,
    /// Seed of the drives' jitter; `None` for no jitter.
    pub seed: Option<u64>,
    pub host: Host,
    /// Blocks per group that are appended in any order; 0 if zones are not written by appends.
    pub group_blocks: u32,
    /// Queued writes are joined, in all designs.
    pub joins: bool,
    /// The load is random writes to a volume of this many blocks on the array.
    pub volume_blocks: Option<u64>,
    /// Each zone of the array begins on another drive than the one before it.
    pub turned: bool,
    /// Serial section that all writes pass one after the other.
    pub section: Section,
    /// Size that the lock of a zone counts as one request, if the host has such locks.
    pub request_kib: u64,
    pub consistency: Consistency,
}

/// Service time of a sub-request in RAIZN's queue, in µs. A guess: a lock and a list that processors pass to each
/// other. It is only published that the queue is the bottleneck (ZRAID §6.1).
pub const RAIZN_QUEUE_US: f64 = 2.0;

impl Setup {
    /// Five ZN540 of 1 TB with 64 KiB chunks, as in ZRAID §6.1.
    pub fn zn540(system: System) -> Setup {
        let sub_request_us = if system == System::Raizn { RAIZN_QUEUE_US } else { 0.0 };
        Setup {
            system,
            model: Model::zn540(),
            timing: Timing::zn540(),
            members: 5,
            parities: 1,
            partitioned: false,
            aggregate: 1,
            chunk_kib: 64,
            stores: false,
            compression: None,
            seed: Some(1),
            host: Host::free(),
            group_blocks: 0,
            joins: false,
            volume_blocks: None,
            turned: false,
            section: Section { sub_request_us, ..Section::default() },
            request_kib: 4,
            consistency: Consistency::default(),
        }
    }

    /// The same setup on a host.
    pub fn on(self, host: &Host) -> Setup {
        Setup { host: host.clone(), ..self }
    }

    /// Whether writes of a zone go to a drive one after the other.
    fn is_sequenced(&self) -> bool {
        self.system.is_sequenced() && self.group_blocks <= 1
    }

    fn behaviour(&self) -> ArrayOptions {
        let behaviour = self.system.behaviour();
        let join = self.joins || behaviour.join;
        // As published, partial parity is logged at the parity member, where recovery does not find it: not for arrays
        // that are assembled again, or measured as products.
        let published = !(self.stores || self.joins || self.group_blocks > 0);
        let logs_at_parity = behaviour.logs_at_parity && published;
        ArrayOptions { consistency: self.consistency, join, logs_at_parity, ..behaviour }
    }

    /// Five partitions of one PM1731a, four zones as one, as in ZRAID §6.5.
    pub fn pm1731a(system: System) -> Setup {
        let (mut model, timing) = (Model::pm1731a(), Timing::pm1731a());
        let geometry = &mut model.geometry;
        geometry.zones = 8000;
        // Each has its share of the drive's limits.
        for limit in [&mut geometry.max_open, &mut geometry.max_active] {
            *limit /= 5;
        }
        if let Some(zrwa) = &mut geometry.zrwa {
            zrwa.max_zones /= 5;
        }
        Setup { model, timing, partitioned: true, aggregate: 4, ..Setup::zn540(system) }
    }
}

/// Closed loops of writes: one job a zone.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub zones: u32,
    pub request_kib: u64,
    pub depth: u32,
    /// Random reads of 4 KiB in flight at the same time.
    pub readers: u32,
    /// Mean of random pauses after each request.
    pub pause_us: u64,
    pub window: Window,
    /// Number of runs with different seeds; their mean is reported.
    pub seeds: u64,
}

impl Load {
    /// As the papers' fio jobs, which run for ten seconds; drives that stripe their zones reach a steady state after
    /// some milliseconds, as the drift of each row shows.
    pub fn fio(zones: u32, request_kib: u64) -> Load {
        let window = Window::steady(15, 40, 120);
        Load { zones, request_kib, depth: 64, readers: 0, pause_us: 0, window, seeds: 2 }
    }

    /// The same for drives with a large write buffer, which is full after 0.4 s at the latest.
    pub fn long(zones: u32, request_kib: u64) -> Load {
        Load { window: Window::steady(450, 500, 700), seeds: 2, ..Load::fio(zones, request_kib) }
    }
}

/// Jobs begin within this time of each other.
const STAGGER_NS: u64 = 5_000_000;

/// Measures sequential writes on a new array, with several seeds: means, and the spread of throughput.
///
/// # Errors
/// The drives cannot have such an array, or a write fails.
pub fn point(setup: &Setup, load: &Load) -> anyhow::Result<Row> {
    let seed = |n: u64| Setup {
        seed: setup.seed.map(|seed| seed + n),
        request_kib: load.request_kib,
        ..setup.clone()
    };
    let rows: Vec<Row> =
        (0..load.seeds.max(1)).map(|n| run(&seed(n), load)).collect::<anyhow::Result<_>>()?;
    Row::mean(rows).context("nothing was measured")
}

/// Results of runs: many experiments repeat points of other ones.
static DONE: Mutex<BTreeMap<String, Row>> = Mutex::new(BTreeMap::new());

/// A run with one seed. Runs are deterministic, so none is repeated.
fn run(setup: &Setup, load: &Load) -> anyhow::Result<Row> {
    let key = {
        let (mut setup, load) = (setup.clone(), Load { seeds: 1, ..*load });
        setup.host = setup.host.in_front_of(setup.is_sequenced());
        format!("{setup:?} {load:?}")
    };
    let done = || DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = done().get(&key).cloned();
    let row = match known {
        Some(row) => row,
        None => {
            let row = TestBed::new(setup)?.write_zones(load)?;
            done().insert(key, row.clone());
            row
        }
    };
    Ok(Row { host: setup.host.name.clone(), ..row })
}

/// Effects of streams of writes on the drives.
pub struct StreamEffects {
    pub flash_write_amplification: f64,
    pub written: WrittenBlocks,
}

/// A running array.
pub struct TestBed {
    pub clock: Clock,
    pub runtime: Runtime,
    pub array: Rc<dyn ZonedDevice>,
    raid: Array,
    drives: Vec<TimedDrive>,
    setup: Setup,
    end: End,
}

/// Tasks and events hold their array, which holds them: they have to be cleared at the end.
struct End {
    clock: Clock,
    runtime: Runtime,
}

impl Drop for End {
    fn drop(&mut self) {
        self.runtime.clear();
        self.clock.clear();
    }
}

impl TestBed {
    /// Creates the drives and the array on them.
    ///
    /// # Errors
    /// The drives cannot have such an array.
    pub fn new(setup: &Setup) -> anyhow::Result<TestBed> {
        TestBed::traced(setup, None)
    }

    /// As [`TestBed::new`], with events recorded in `trace`.
    ///
    /// # Errors
    /// The drives cannot have such an array.
    pub fn traced(setup: &Setup, trace: Option<Trace>) -> anyhow::Result<TestBed> {
        let (clock, runtime) = (Clock::new(), Runtime::new());
        let threads = Threads::new(&setup.host, &clock, &runtime, trace.clone());
        let sequenced = setup.is_sequenced();
        let request_blocks = setup.request_kib * 1024 / BLOCK as u64;
        let geometry = &setup.model.geometry;
        let mut drives: Vec<TimedDrive> = Vec::new();
        for member in 0..setup.members as u64 {
            let media: Box<dyn Media> = match (setup.compression, setup.stores) {
                (Some(scheme), _) => Box::new(CompressedMedia::new(geometry, scheme)),
                (None, true) => Box::new(MemoryMedia::new(geometry)),
                (None, false) => Box::new(NoMedia::new(geometry)),
            };
            let ssd = Rc::new(RefCell::new(Ssd::new(geometry.clone(), media)));
            let seed = setup.seed.map(|seed| seed * 1000 + member);
            drives.push(match drives.first() {
                Some(drive) if setup.partitioned => drive.namespace(ssd),
                _ => TimedDrive::new(ssd, &setup.timing, &clock, seed),
            });
        }
        let device = |(number, drive): (usize, &TimedDrive)| {
            let mut device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
            if let Some(trace) = &trace {
                watch_dies(trace, number, drive);
                device = trace.of(format!("member {number}"), device, &clock, &runtime);
            }
            device = threads.behind(device, sequenced, request_blocks);
            if setup.behaviour().log_step >= LogStep::Zrwa {
                device = LogWindow::over(device, &runtime);
            }
            if setup.aggregate > 1 {
                let whole = AggregateDevice::new(&runtime, device, setup.aggregate);
                device = Rc::new(whole.context("the zones of the drives cannot be aggregated")?);
            }
            anyhow::Ok(device)
        };
        let devices: Rc<[_]> = drives.iter().enumerate().map(device).collect::<anyhow::Result<_>>()?;
        let member = |number: usize| {
            let device: Rc<dyn ZonedDevice> = match setup.turned {
                true => Rc::new(RotatedMember::new(&devices, number)),
                false => devices[number].clone(),
            };
            Drive { name: format!("drive {number}"), device }
        };
        let options = CreateOptions {
            group_blocks: setup.group_blocks,
            spare_zones: Some(0),
            chunk_blocks: setup.chunk_kib * 1024 / BLOCK as u64,
            parities: setup.parities,
            policy: Some(setup.system.policy()),
            ..CreateOptions::new(setup.system.name(), [1; 16])
        };
        let chunk_blocks = options.chunk_blocks;
        let members = (0..setup.members).map(member).collect();
        let create = Array::create_with(&runtime, options, members, setup.behaviour());
        let array =
            runtime.block_on(create, || clock.advance()).context("creating the array never ends")??;
        // The addresses of appended blocks are known to the array alone.
        if setup.aggregate == 1 && setup.group_blocks <= 1 {
            for (member, drive) in drives.iter().enumerate() {
                drive.set_classifier(classifier(array.layout(), member));
            }
        }
        let raid = array.clone();
        let mut array: Rc<dyn ZonedDevice> = Rc::new(array);
        if setup.section != Section::default() {
            array = Rc::new(Serial::new(array, chunk_blocks, setup.section, &clock, &runtime));
        }
        if let Some(blocks) = setup.volume_blocks {
            array = volume::over(&runtime, &clock, array, blocks)?;
        }
        array = threads.before(array);
        if let Some(trace) = &trace {
            array = trace.of("jobs".into(), array, &clock, &runtime);
        }
        let end = End { clock: clock.clone(), runtime: runtime.clone() };
        Ok(TestBed { clock, runtime, array, raid, drives, setup: setup.clone(), end })
    }

    /// Runs `future` to its end.
    ///
    /// # Errors
    /// It has not ended, and no event is left.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> anyhow::Result<T> {
        self.runtime.block_on(future, || self.clock.advance()).context("nothing can happen any more")
    }

    /// Runs sequential writes and measures them in the window of `load`. The array ends with them.
    ///
    /// # Errors
    /// A write fails.
    pub fn write_zones(self, load: &Load) -> anyhow::Result<Row> {
        let (blocks, pause_ns) = (load.request_kib * 1024 / BLOCK as u64, load.pause_us * 1000);
        let mut rng = Rng::new(self.setup.seed.unwrap_or_default());
        let mut job = |zone| {
            let start_ns = rng.below(STAGGER_NS);
            let kind =
                if self.setup.volume_blocks.is_some() { RequestKind::Scatter } else { RequestKind::Write };
            Job { blocks, start_ns, pause_ns, ..Job::new(kind, zone, 4, load.depth) }
        };
        let mut jobs: Vec<Job> = (0..load.zones).map(&mut job).collect();
        // Readers have a full zone of their own behind those of the writers.
        if load.readers > 0 {
            jobs.push(Job::new(RequestKind::Read, load.zones, 4, load.readers));
            self.fill(load.zones..load.zones + 1)?;
        }
        let before = Rc::new(Cell::new(Counters::default()));
        let (snapshot, drives, begun) =
            (before.clone(), self.drives.clone(), self.clock.sleep(load.window.from_ns));
        self.runtime.spawn(async move {
            begun.await;
            snapshot.set(sum(&drives));
        });
        let measured = load::run(&self.runtime, &self.array, &self.clock, &jobs, load.window)?;
        let (writes, reads) = measured.split_at(load.zones as usize);
        let (measured, reads) = (Measurement::sum(writes), Measurement::sum(reads));
        let (before, now) = (before.take(), sum(&self.drives));
        let mib = measured.bytes as f64 / (1 << 20) as f64;
        let each = |now: u64, then: u64| (now - then) as f64 / mib;
        Ok(Row {
            system: self.setup.system.name().into(),
            host: self.setup.host.name.clone(),
            host_us: self.setup.host.us(),
            zones: load.zones,
            request_kib: load.request_kib,
            depth: load.depth,
            mb_s: measured.mb_s(),
            drift: measured.drift(),
            spread: 0.0,
            read_mb_s: if load.readers > 0 { reads.mb_s() } else { 0.0 },
            flash_write_amplification: amplification(&before, &now, measured.bytes),
            paper_mb_s: None,
            p50_us: measured.quantile_us(0.5),
            p95_us: measured.quantile_us(0.95),
            p99_us: measured.quantile_us(0.99),
            written: written(&before, &now, measured.bytes),
            writes_per_mib: each(now.writes + now.appends, before.writes + before.appends),
            explicit_flushes_per_mib: each(now.zrwa_flushes, before.zrwa_flushes),
            resets: now.resets - before.resets,
            ..Row::default()
        })
    }

    /// Fills zones, one after the other.
    ///
    /// # Errors
    /// A write fails.
    pub fn fill(&self, zones: Range<u32>) -> anyhow::Result<()> {
        let mib = self.array.geometry().zone_capacity_blocks * BLOCK as u64 / (1 << 20);
        for zone in zones {
            let fill = Stream { zone, unit_kib: 1024, units: 1..2, mib, ..Stream::default() };
            self.write_streams(&[fill])?;
        }
        Ok(())
    }

    /// Begins to scrub zones, again and again, at a rate in bytes a second of all drives; returns the bytes that have been
    /// read.
    pub fn scrub(&self, zones: Range<u32>, rate: u64) -> Rc<Cell<u64>> {
        let (raid, clock, read) = (self.raid.clone(), self.clock.clone(), Rc::new(Cell::new(0)));
        let (scrubbed, begin_ns) = (read.clone(), clock.now_ns());
        self.runtime.spawn(async move {
            let pace = async |bytes: u64| {
                scrubbed.set(scrubbed.get() + bytes);
                let due_ns = begin_ns + scrubbed.get() * 1_000_000_000 / rate;
                clock.sleep(due_ns.saturating_sub(clock.now_ns())).await;
            };
            for zone in zones.cycle().map(ZoneIndex) {
                if raid.scrub_zone(zone, pace).await.is_err() {
                    return;
                }
            }
        });
        read
    }

    /// Blocks of flash used by the array's zones below `zones`, which are full.
    pub fn flash_blocks(&self, zones: u32) -> u64 {
        let of = |ssd: &Ssd| {
            let taken = |zone| match ssd.flash_pages(physical(ZoneIndex(zone))) {
                Some(pages) => pages * PAGE_BLOCKS,
                None => ssd.geometry().zone_capacity_blocks,
            };
            (0..zones).map(taken).sum::<u64>()
        };
        self.drives.iter().map(|drive| of(&drive.ssd().borrow())).sum()
    }

    /// Current counters of the drives, for [`TestBed::left_since`].
    pub fn write_counters(&self) -> Counters {
        sum(&self.drives)
    }

    /// Effects on the drives of `host_blocks` written by the host since then.
    pub fn left_since(&self, before: &Counters, host_blocks: u64) -> StreamEffects {
        let (now, host_bytes) = (sum(&self.drives), host_blocks * BLOCK as u64);
        StreamEffects {
            flash_write_amplification: amplification(before, &now, host_bytes),
            written: written(before, &now, host_bytes),
        }
    }

    /// Writes all of `streams` at the same time, to their end.
    ///
    /// # Errors
    /// A write fails.
    pub fn write_streams(&self, streams: &[Stream]) -> anyhow::Result<StreamEffects> {
        let before = sum(&self.drives);
        let (left, blocks) = (Rc::new(Cell::new(streams.len())), Rc::new(Cell::new(0)));
        let failed: Rc<RefCell<Option<anyhow::Error>>> = Rc::default();
        let ended = Rc::new(engine::runtime::Gate::default());
        for (number, stream) in streams.iter().enumerate() {
            let write = stream.clone().write(self.array.clone(), Rng::new(number as u64));
            let (left, blocks, failed, ended) = (left.clone(), blocks.clone(), failed.clone(), ended.clone());
            self.runtime.spawn(async move {
                match write.await {
                    Ok(written) => blocks.set(blocks.get() + written),
                    Err(error) => *failed.borrow_mut() = Some(error),
                }
                left.set(left.get() - 1);
                ended.open();
            });
        }
        self.run(async {
            while left.get() > 0 {
                ended.wait().await;
            }
        })?;
        if let Some(error) = failed.take() {
            return Err(error);
        }
        Ok(self.left_since(&before, blocks.get()))
    }

    /// Cuts the power with commands in flight, removes the member `lost`, and assembles the rest. The drives must keep
    /// data, and must not be partitions of one drive.
    ///
    /// # Errors
    /// The array cannot be assembled.
    pub fn cut_power(self, lost: Option<usize>) -> anyhow::Result<Reassembly> {
        let TestBed { array, drives, setup, end, .. } = self;
        ensure!(!setup.partitioned, "parts of one drive are not cut off");
        // Commands in flight in a drive end here: those that have not taken effect never will.
        drop((array, end));
        let ssds: Vec<_> = drives.iter().map(|drive| drive.ssd().clone()).collect();
        drop(drives);
        let (clock, runtime, mut rng) = (Clock::new(), Runtime::new(), Rng::new(0));
        let mut drives = Vec::new();
        for (member, ssd) in ssds.into_iter().enumerate() {
            ssd.borrow_mut().power_cut(&[], &mut rng, Cut::default())?;
            let seed = setup.seed.map(|seed| seed * 1000 + member as u64);
            drives.push(TimedDrive::new(ssd, &setup.timing, &clock, seed));
        }
        let left = drives.iter().enumerate().filter(|(member, _)| Some(*member) != lost);
        let members: Vec<Drive> = left
            .map(|(number, drive)| Drive { name: format!("drive {number}"), device: Rc::new(drive.clone()) })
            .collect();
        let assembled = runtime.block_on(Array::assemble(&runtime, members), || clock.advance());
        let raid = assembled.context("assembling the array never ends")??;
        let (took_us, read_blocks) = (clock.now_ns() as f64 / 1e3, sum(&drives).read_blocks);
        let _end = End { clock: clock.clone(), runtime: runtime.clone() };
        Ok(Reassembly {
            clock,
            runtime,
            array: Rc::new(raid.clone()),
            raid,
            setup,
            took_us,
            read_blocks,
            _end,
        })
    }
}

/// An array that was assembled after a power cut.
pub struct Reassembly {
    pub clock: Clock,
    pub runtime: Runtime,
    pub array: Rc<dyn ZonedDevice>,
    raid: Array,
    setup: Setup,
    /// From the first command of assembly to the last.
    pub took_us: f64,
    pub read_blocks: u64,
    _end: End,
}

impl Reassembly {
    /// Rebuilds a lost member on a blank drive; gives the time in seconds.
    ///
    /// # Errors
    /// It cannot be rebuilt.
    pub fn rebuild(&self, member: usize) -> anyhow::Result<f64> {
        let Setup { model: Model { geometry, .. }, timing, seed, .. } = &self.setup;
        let ssd = Ssd::new(geometry.clone(), Box::new(MemoryMedia::new(geometry)));
        let drive =
            TimedDrive::new(Rc::new(RefCell::new(ssd)), timing, &self.clock, seed.map(|seed| seed + 77));
        let before = self.clock.now_ns();
        let rebuilt = async {
            self.raid.attach(member, Drive { name: "blank".into(), device: Rc::new(drive) }).await?;
            self.raid.rebuild(&|_| ()).await
        };
        let rebuilt = self.runtime.block_on(rebuilt, || self.clock.advance());
        rebuilt.context("the rebuild never ends")??;
        Ok((self.clock.now_ns() - before) as f64 / 1e9)
    }
}

/// Records the operations of a member's dies in `trace`.
fn watch_dies(trace: &Trace, member: usize, drive: &TimedDrive) {
    let (trace, process) = (trace.clone(), format!("dies of member {member}"));
    drive.watch_dies(Box::new(move |die, what, from_ns, to_ns| {
        trace.busy(&process, &format!("die {die}"), what.into(), from_ns..to_ns);
    }));
}

/// Sum of all drives' counters.
fn sum(drives: &[TimedDrive]) -> Counters {
    drives.iter().fold(Counters::default(), |sum, drive| sum.plus(&drive.counters()))
}

fn amplification(before: &Counters, now: &Counters, host_bytes: u64) -> f64 {
    (now.flash_blocks() - before.flash_blocks()) as f64 * BLOCK as f64 / host_bytes as f64
}

fn written(before: &Counters, now: &Counters, host_bytes: u64) -> WrittenBlocks {
    let each = |blocks: u64| blocks as f64 * BLOCK as f64 / host_bytes as f64;
    let kept = |cause: Cause| each(now.programmed[cause as usize] - before.programmed[cause as usize]);
    let expired = |cause: Cause| each(now.expired[cause as usize] - before.expired[cause as usize]);
    WrittenBlocks {
        data: kept(Cause::Data),
        full_parity: kept(Cause::Parity),
        temporary_parity: expired(Cause::PartialParity) + expired(Cause::Parity),
        logged_parity: kept(Cause::PartialParity),
        headers: kept(Cause::Header),
        metadata: kept(Cause::Metadata) + expired(Cause::Metadata),
    }
}
