//! Namespaces on a timed drive, or on an array of such drives, and the workers of their tenants.

use anyhow::Context;
use emu::{
    clock::Clock,
    rng::Rng,
    ssd::{Model, NoMedia, Ssd, TimedDrive},
    timing::Timing,
};
use engine::{
    array::{Array, CreateOptions, Drive},
    buf::{BLOCK, Buf},
    device::{Command, Completion, Done, Geometry, ZonedDevice, Zones},
    raid::policy::Policy,
    runtime::Runtime,
    vzone::{Namespace, NamespaceOptions, Namespaces, PATIENCE_US, Spec},
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
};

/// The device below the namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceBelow {
    /// One PM1731a.
    Drive,
    /// RAID-5 of five PM1731a, policy `zrwa`.
    Array,
    /// The same without one of them.
    Degraded,
}

impl DeviceBelow {
    /// Its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            DeviceBelow::Drive => "drive",
            DeviceBelow::Array => "array",
            DeviceBelow::Degraded => "array-degraded",
        }
    }
}

/// Zones of each drive; their number does not matter here.
const ZONES: u32 = 2000;
const MEMBERS: usize = 5;

/// Nanoseconds between two ticks of the namespaces.
const TICK_NS: u64 = 1_000_000;

/// A device that stores its first two zones, which are the journal of namespaces: the drives store nothing.
struct JournalDevice {
    inner: Rc<dyn ZonedDevice>,
    kept: RefCell<HashMap<u64, Vec<u8>>>,
}

impl JournalDevice {
    /// Whether a block is in the stored zones.
    fn keeps(&self, lba: Lba) -> bool {
        lba.0 < self.inner.geometry().start(ZoneIndex(2)).0
    }
}

impl ZonedDevice for JournalDevice {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn optimal_write_blocks(&self) -> u64 {
        self.inner.optimal_write_blocks()
    }

    fn submit(&self, command: Command) -> Completion {
        match command {
            Command::Write { lba, ref data, .. } if self.keeps(lba) => {
                let blocks = (lba.0..).zip(data.chunks_exact(BLOCK).map(<[u8]>::to_vec));
                self.kept.borrow_mut().extend(blocks);
                self.inner.submit(command)
            }
            // It is read at the start only, which is not measured.
            Command::Read { lba, mut data, .. } if self.keeps(lba) => {
                let kept = self.kept.borrow();
                for (lba, block) in
                    (lba.0..).zip(data.as_mut().into_iter().flat_map(|d| d.chunks_exact_mut(BLOCK)))
                {
                    match kept.get(&lba) {
                        Some(bytes) => block.copy_from_slice(bytes),
                        None => block.fill(0),
                    }
                }
                Completion::ready(Done::with_data(data))
            }
            command => self.inner.submit(command),
        }
    }
}

/// Running namespaces.
pub struct Tenants {
    pub clock: Clock,
    pub runtime: Runtime,
    pub list: Vec<Namespace>,
    namespaces: Namespaces,
}

impl Drop for Tenants {
    fn drop(&mut self) {
        self.runtime.clear();
        self.clock.clear();
    }
}

/// A PM1731a that allows `max_active` active zones.
pub fn drive(clock: &Clock, seed: u64, max_active: u32) -> TimedDrive {
    drive_of(&Timing::pm1731a(), clock, seed, max_active)
}

/// The same with another timing.
pub fn drive_of(timing: &Timing, clock: &Clock, seed: u64, max_active: u32) -> TimedDrive {
    let mut geometry = Geometry { zones: ZONES, ..Model::pm1731a().geometry };
    (geometry.max_open, geometry.max_active) = (max_active, max_active);
    let ssd = Ssd::new(geometry.clone(), Box::new(NoMedia::new(&geometry)));
    TimedDrive::new(Rc::new(RefCell::new(ssd)), timing, clock, Some(seed))
}

async fn array(runtime: &Runtime, clock: &Clock, max_active: u32, degraded: bool) -> anyhow::Result<Array> {
    let members = (0..MEMBERS).map(|number| Drive {
        name: format!("drive {number}"),
        device: Rc::new(drive(clock, 1 + number as u64, max_active)),
    });
    let options = CreateOptions {
        policy: Some(Policy::Zrwa),
        spare_zones: Some(0),
        ..CreateOptions::new("tenants", [1; 16])
    };
    let array = Array::create(runtime, options, members.collect()).await?;
    if degraded {
        array.fail(MEMBERS - 1).await?;
    }
    Ok(array)
}

impl Tenants {
    /// Namespaces on a new device, on drives that allow `max_active` active zones.
    ///
    /// # Errors
    /// Such namespaces are not possible.
    pub fn new(below: DeviceBelow, max_active: u32, specs: &[Spec]) -> anyhow::Result<Tenants> {
        Tenants::regulated(below, max_active, specs, true)
    }

    /// As [`Tenants::new`], with or without write admission control.
    ///
    /// # Errors
    /// As there.
    pub fn regulated(
        below: DeviceBelow,
        max_active: u32,
        specs: &[Spec],
        admission: bool,
    ) -> anyhow::Result<Tenants> {
        let (clock, runtime) = (Clock::new(), Runtime::new());
        let inner: Rc<dyn ZonedDevice> = match below {
            DeviceBelow::Drive => Rc::new(drive(&clock, 1, max_active)),
            _ => {
                let made = array(&runtime, &clock, max_active, below == DeviceBelow::Degraded);
                Rc::new(runtime.block_on(made, || clock.advance()).context("making an array never ends")??)
            }
        };
        Tenants::made(inner, (clock, runtime), specs, admission)
    }

    /// Namespaces on `inner`, which uses this clock.
    ///
    /// # Errors
    /// Such namespaces are not possible.
    pub fn over(
        inner: Rc<dyn ZonedDevice>,
        clock: Clock,
        runtime: Runtime,
        specs: &[Spec],
    ) -> anyhow::Result<Tenants> {
        Tenants::made(inner, (clock, runtime), specs, true)
    }

    fn made(
        inner: Rc<dyn ZonedDevice>,
        (clock, runtime): (Clock, Runtime),
        specs: &[Spec],
        admission: bool,
    ) -> anyhow::Result<Tenants> {
        let (time, tasks, specs) = (clock.clone(), runtime.clone(), specs.to_vec());
        let made = async move {
            let device = Rc::new(JournalDevice { inner, kept: RefCell::default() });
            let vzone_zones = Namespaces::fitting(device.geometry());
            Namespaces::create(device.clone(), [7; 16], vzone_zones).await?;
            let clock = time.clone();
            let clock = Rc::new(move || clock.now_ns() / 1000);
            let behaviour = NamespaceOptions { clock, patience_us: PATIENCE_US, admission };
            let namespaces = Namespaces::open(&tasks, device, behaviour).await?;
            for spec in specs {
                namespaces.add(spec).await?;
            }
            anyhow::Ok(namespaces)
        };
        let namespaces =
            runtime.block_on(made, || clock.advance()).context("making namespaces never ends")??;
        let (ticking, time) = (namespaces.clone(), clock.clone());
        runtime.spawn(async move {
            loop {
                time.sleep(TICK_NS).await;
                ticking.tick();
            }
        });
        Ok(Tenants { clock, runtime, list: namespaces.list(), namespaces })
    }

    /// Runs all workers for `ms` milliseconds, and until the requests in flight then have completed.
    ///
    /// # Errors
    /// A command fails.
    pub fn run(&self, workers: &[Worker], ms: u64) -> anyhow::Result<Vec<WorkerResult>> {
        let (stop, begin) = (Rc::new(Cell::new(false)), self.clock.now_ns());
        let mut running = Vec::new();
        for (number, worker) in workers.iter().enumerate() {
            let shared = Rc::new(RunningWorker {
                worker: worker.clone(),
                device: self.list[worker.tenant].clone(),
                clock: self.clock.clone(),
                begin,
                stop: stop.clone(),
                at: Cell::new((0, 0)),
                rounds: Cell::new(0),
                rng: RefCell::new(Rng::new(number as u64)),
                work: RefCell::default(),
                left: Cell::new(worker.depth),
            });
            for _ in 0..worker.depth {
                let loops = shared.clone();
                self.runtime.spawn(async move { loops.requests().await });
            }
            running.push(shared);
        }
        let pass = || self.clock.advance();
        self.runtime.block_on(self.clock.sleep(ms * 1_000_000), pass).context("nothing happens any more")?;
        stop.set(true);
        let clock = self.clock.clone();
        let all = running.clone();
        let rest = async move {
            while all.iter().any(|worker| worker.left.get() > 0) {
                clock.sleep(TICK_NS).await;
            }
        };
        self.runtime.block_on(rest, pass).context("a request never ends")?;
        self.namespaces.audit().map_err(anyhow::Error::msg)?;
        running.iter().map(|worker| worker.finished()).collect()
    }

    /// Records the number of spare zones of each namespace in the middle of each second from now on.
    pub fn watch_spares(&self, seconds: u64) -> Rc<RefCell<Vec<Vec<u32>>>> {
        let noted: Rc<RefCell<Vec<Vec<u32>>>> = Rc::default();
        let (list, clock, notes) = (self.list.clone(), self.clock.clone(), noted.clone());
        self.runtime.spawn(async move {
            clock.sleep(500_000_000).await;
            for _ in 0..seconds {
                let spares = list.iter().map(|namespace| namespace.status().spares).collect();
                notes.borrow_mut().push(spares);
                clock.sleep(1_000_000_000).await;
            }
        });
        noted
    }

    /// Writes the first `mib` MiB of zones, to be read.
    ///
    /// # Errors
    /// A write fails.
    pub fn fill(&self, tenant: usize, zones: &[u32], mib: u64) -> anyhow::Result<()> {
        fill((&self.clock, &self.runtime), &self.list[tenant], zones, mib)
    }
}

/// Writes the first `mib` MiB of zones of a device.
///
/// # Errors
/// A write fails.
pub fn fill(
    (clock, runtime): (&Clock, &Runtime),
    device: &dyn ZonedDevice,
    zones: &[u32],
    mib: u64,
) -> anyhow::Result<()> {
    let filled = async {
        let data = Buf::zeroed(1 << 20);
        for zone in zones {
            let start = device.geometry().start(ZoneIndex(*zone)).0;
            for at in 0..mib {
                let lba = Lba(start + at * data.blocks());
                device.submit(Command::write(lba, data.clone(), false)).await.result?;
            }
        }
        anyhow::Ok(())
    };
    runtime.block_on(filled, || clock.advance()).context("a write never ends")?
}

/// The requests of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerRequests {
    /// Writes its zones one after the other, repeatedly.
    Write,
    /// Reads randomly from the first MiB of its zones, this many in each.
    Read(u64),
    /// Reads this many MiB at the start of its first zone in order, repeatedly.
    ReadInOrder(u64),
}

/// A closed loop of one tenant.
#[derive(Clone, Debug)]
pub struct Worker {
    pub tenant: usize,
    pub zones: Vec<u32>,
    pub does: WorkerRequests,
    pub kib: u64,
    /// Requests in flight.
    pub depth: u32,
    /// Shortest time between the starts of two requests of a loop, in µs.
    pub period_us: u64,
    /// It is idle between these milliseconds.
    pub idle_ms: (u64, u64),
}

impl Worker {
    /// A worker without a period or an idle time.
    pub fn new(tenant: usize, zones: Vec<u32>, does: WorkerRequests, kib: u64, depth: u32) -> Worker {
        Worker { tenant, zones, does, kib, depth, period_us: 0, idle_ms: (0, 0) }
    }
}

/// Results of a worker: completion times in ns from the beginning, and latencies.
#[derive(Clone, Debug, Default)]
pub struct WorkerResult {
    pub completed: Vec<(u64, u64)>,
    pub bytes_each: u64,
    failed: Option<String>,
}

impl WorkerResult {
    /// 10⁶ bytes a second between two milliseconds.
    pub fn mb_s(&self, from_ms: u64, to_ms: u64) -> f64 {
        let window = from_ms * 1_000_000..to_ms * 1_000_000;
        let count = self.completed.iter().filter(|(at, _)| window.contains(at)).count() as u64;
        (count * self.bytes_each) as f64 / 1e3 / (to_ms - from_ms).max(1) as f64
    }

    /// The latency that this share of the requests that completed after `from_ms` does not exceed, in µs.
    pub fn quantile_us(&self, share: f64, from_ms: u64) -> f64 {
        let late = self.completed.iter().filter(|(at, _)| *at >= from_ms * 1_000_000);
        let mut latencies: Vec<u64> = late.map(|(_, latency)| *latency).collect();
        latencies.sort_unstable();
        let at = (latencies.len() as f64 * share) as usize;
        latencies.get(at.min(latencies.len().saturating_sub(1))).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
    }
}

/// Throughput of all of `work` between two milliseconds in 10⁶ bytes a second, and its relative increase from the first
/// to the second half of that time.
pub fn in_all(work: &[WorkerResult], from_ms: u64, to_ms: u64) -> (f64, f64) {
    let between = |from, to| work.iter().map(|work| work.mb_s(from, to)).sum::<f64>();
    let middle = from_ms.midpoint(to_ms);
    (between(from_ms, to_ms), between(middle, to_ms) / between(from_ms, middle) - 1.0)
}

struct RunningWorker {
    worker: Worker,
    device: Namespace,
    clock: Clock,
    begin: u64,
    stop: Rc<Cell<bool>>,
    /// Index of the zone that is being written, and its written blocks.
    at: Cell<(usize, u64)>,
    rounds: Cell<u64>,
    rng: RefCell<Rng>,
    work: RefCell<WorkerResult>,
    left: Cell<u32>,
}

impl RunningWorker {
    async fn requests(&self) {
        let mut data = Buf::zeroed((self.worker.kib << 10) as usize);
        while !self.stop.get() && self.work.borrow().failed.is_none() {
            let begun = self.clock.now_ns();
            let (from, to) = self.worker.idle_ms;
            let since = begun - self.begin;
            if (from * 1_000_000..to * 1_000_000).contains(&since) {
                self.clock.sleep(to * 1_000_000 - since).await;
                continue;
            }
            let blocks = data.blocks();
            // As the block device does.
            let passed = self.device.admit(blocks, |us| self.clock.sleep(us * 1000)).await;
            let (command, before) = self.next(data);
            // Does not wait for the reset: the other requests of the worker follow at once.
            let done = self.device.submit(command);
            if let Some(reset) = before {
                self.note(reset.await.result.err());
            }
            let done = done.await;
            self.device.answered(passed, blocks);
            let now = self.clock.now_ns();
            match done.result {
                Ok(()) => self.work.borrow_mut().completed.push((now - self.begin, now - begun)),
                Err(error) => self.note(Some(error)),
            }
            data = done.data;
            let next = begun + self.worker.period_us * 1000;
            if next > now {
                self.clock.sleep(next - now).await;
            }
        }
        self.left.set(self.left.get() - 1);
    }

    fn note(&self, error: Option<engine::device::DeviceError>) {
        if let Some(error) = error {
            let why = format!("{:?} of tenant {}: {error}", self.worker.does, self.worker.tenant);
            self.work.borrow_mut().failed.get_or_insert(why);
        }
    }

    /// The next command, and a reset that precedes it.
    fn next(&self, data: Buf) -> (Command, Option<Completion>) {
        let (blocks, geometry) = (data.blocks(), self.device.geometry());
        let start = |index: usize| geometry.start(ZoneIndex(self.worker.zones[index])).0;
        match self.worker.does {
            WorkerRequests::Read(mib) => {
                let mut rng = self.rng.borrow_mut();
                let zone = rng.below(self.worker.zones.len() as u64) as usize;
                let place = rng.below((mib << 20) / BLOCK as u64 / blocks);
                (Command::read(Lba(start(zone) + place * blocks), data), None)
            }
            WorkerRequests::ReadInOrder(mib) => {
                let at = self.at.get().1;
                self.at.set((0, (at + blocks) % ((mib << 20) / BLOCK as u64)));
                (Command::read(Lba(start(0) + at), data), None)
            }
            WorkerRequests::Write => {
                let (mut index, mut at) = self.at.get();
                let mut reset = None;
                if at + blocks > geometry.zone_capacity_blocks {
                    // The rest of the zone is shorter than a write.
                    let zone = ZoneIndex(self.worker.zones[index]);
                    drop(self.device.submit(Command::Finish { zones: Zones::One(zone) }));
                    (index, at) = ((index + 1) % self.worker.zones.len(), 0);
                    self.rounds.set(self.rounds.get() + (index == 0) as u64);
                    if self.rounds.get() > 0 {
                        let zones = Zones::One(ZoneIndex(self.worker.zones[index]));
                        reset = Some(self.device.submit(Command::Reset { zones }));
                    }
                }
                self.at.set((index, at + blocks));
                (Command::write(Lba(start(index) + at), data, false), reset)
            }
        }
    }

    fn finished(&self) -> anyhow::Result<WorkerResult> {
        let mut work = self.work.take();
        work.bytes_each = self.worker.kib << 10;
        match work.failed.take() {
            Some(why) => anyhow::bail!("{why}"),
            None => Ok(work),
        }
    }
}
