//! A test bed: an array over emulated drives with timing, in virtual time.

use crate::{
    classify::classifier,
    fifo::Fifo,
    figure::{Row, Written},
    load::{self, Job, Kind, Measured, Window},
    stream::Stream,
    system::System,
};
use anyhow::Context;
use engine::{
    adapt::aggregate::Aggregated,
    array::{Array, CreateOptions, Drive},
    buf::BLOCK,
    device::ZonedDevice,
    runtime::Runtime,
};
use sim::{
    clock::Clock,
    rng::Rng,
    ssd::{Cause, Counters, Cut, Media, MemoryMedia, Model, NoMedia, Ssd, TimedDrive},
    timing::Timing,
};
use std::{
    cell::{Cell, RefCell},
    future::Future,
    rc::Rc,
};

/// What is built.
#[derive(Clone)]
pub struct Setup {
    pub system: System,
    pub model: Model,
    pub timing: Timing,
    pub members: usize,
    /// How many of them parity makes up for.
    pub parities: usize,
    /// All members are parts of one drive: namespaces that share its hardware.
    pub partitioned: bool,
    /// Zones of a drive that are one.
    pub aggregate: u32,
    pub chunk_kib: u64,
    /// Whether the drives keep what is written, so that an array can be found again.
    pub stores: bool,
    /// Decides the jitter of the drives; `None` for none.
    pub seed: Option<u64>,
    /// What a sub-request takes in RAIZN's queue. A guess: a lock and a list that processors pass to
    /// each other. Nothing is published but that it is the bottleneck (ZRAID §6.1).
    pub fifo_us: f64,
}

impl Setup {
    /// Five ZN540 of 1 TB with 64 KiB chunks, as in ZRAID §6.1.
    pub fn zn540(system: System) -> Setup {
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
            seed: Some(1),
            fifo_us: 2.0,
        }
    }

    /// Five partitions of one PM1731a, four zones as one, as in ZRAID §6.5.
    pub fn pm1731a(system: System) -> Setup {
        let (mut model, timing) = (Model::pm1731a(), Timing::pm1731a());
        let geometry = &mut model.geometry;
        geometry.zones = 8000;
        // Each has its share of what the drive allows.
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
    /// Random reads of 4 KiB that are on their way meanwhile.
    pub readers: u32,
    pub window: Window,
}

impl Load {
    /// As the papers' fio jobs. They run for ten seconds; after some milliseconds nothing changes any
    /// more.
    pub fn fio(zones: u32, request_kib: u64) -> Load {
        Load { zones, request_kib, depth: 64, readers: 0, window: Window::ms(50, 250) }
    }
}

/// What streams of writes left on the drives.
pub struct Left {
    pub flash_write_amplification: f64,
    pub written: Written,
}

/// An array that can be run.
pub struct Bed {
    pub clock: Clock,
    pub runtime: Runtime,
    pub array: Rc<dyn ZonedDevice>,
    drives: Vec<TimedDrive>,
    system: System,
}

impl Bed {
    /// Makes the drives and the array on them.
    ///
    /// # Errors
    /// When the drives cannot have such an array.
    pub fn new(setup: &Setup) -> anyhow::Result<Bed> {
        let (clock, runtime) = (Clock::new(), Runtime::new());
        let geometry = &setup.model.geometry;
        let mut drives: Vec<TimedDrive> = Vec::new();
        for member in 0..setup.members as u64 {
            let media: Box<dyn Media> = match setup.stores {
                true => Box::new(MemoryMedia::new(geometry)),
                false => Box::new(NoMedia::new(geometry)),
            };
            let ssd = Rc::new(RefCell::new(Ssd::new(geometry.clone(), media)));
            let seed = setup.seed.map(|seed| seed * 1000 + member);
            drives.push(match drives.first() {
                Some(drive) if setup.partitioned => drive.namespace(ssd),
                _ => TimedDrive::new(ssd, &setup.timing, &clock, seed),
            });
        }
        let member = |(number, drive): (usize, &TimedDrive)| {
            let mut device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
            if setup.aggregate > 1 {
                let whole = Aggregated::new(&runtime, device, setup.aggregate);
                device = Rc::new(whole.context("the zones of the drives cannot be aggregated")?);
            }
            anyhow::Ok(Drive { name: format!("drive {number}"), device })
        };
        let options = CreateOptions {
            name: setup.system.name().into(),
            uuid: [1; 16],
            chunk_blocks: setup.chunk_kib * 1024 / BLOCK as u64,
            zone_size_blocks: None,
            parities: setup.parities,
            policy: Some(setup.system.policy()),
            host: [0; 16],
            autostart: false,
        };
        let chunk_blocks = options.chunk_blocks;
        let members = drives.iter().enumerate().map(member).collect::<anyhow::Result<_>>()?;
        let create = Array::create_with(&runtime, options, members, setup.system.behaviour());
        let array =
            runtime.block_on(create, || clock.advance()).context("creating the array never ends")??;
        if setup.aggregate == 1 {
            for (member, drive) in drives.iter().enumerate() {
                drive.set_classifier(classifier(array.layout(), member));
            }
        }
        let mut array: Rc<dyn ZonedDevice> = Rc::new(array);
        if setup.system == System::Raizn {
            array = Rc::new(Fifo::new(array, chunk_blocks, setup.fifo_us, &clock, &runtime));
        }
        Ok(Bed { clock, runtime, array, drives, system: setup.system })
    }

    /// Runs `future` to its end.
    ///
    /// # Errors
    /// When nothing can happen any more and it has not ended.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> anyhow::Result<T> {
        self.runtime.block_on(future, || self.clock.advance()).context("nothing can happen any more")
    }

    /// Sequential writes, measured once they are under way. The array ends with them.
    ///
    /// # Errors
    /// When a write fails.
    pub fn write_zones(self, load: &Load) -> anyhow::Result<Row> {
        let blocks = load.request_kib * 1024 / BLOCK as u64;
        let job = |zone| Job { blocks, ..Job::new(Kind::Write, zone, 4, load.depth) };
        let mut jobs: Vec<Job> = (0..load.zones).map(job).collect();
        // Readers have a zone of their own behind those of the writers, which is full.
        if load.readers > 0 {
            jobs.push(Job::new(Kind::Read, load.zones, 4, load.readers));
            let capacity = self.array.geometry().zone_capacity_blocks * BLOCK as u64 / (1 << 20);
            let units = 1..2;
            let fill = Stream { zone: load.zones, unit_kib: 1024, units, mib: capacity, ..Stream::default() };
            self.write_streams(&[fill])?;
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
        let (measured, reads) = (Measured::sum(writes), Measured::sum(reads));
        let (before, now) = (before.take(), sum(&self.drives));
        let mib = measured.bytes as f64 / (1 << 20) as f64;
        let each = |now: u64, then: u64| (now - then) as f64 / mib;
        Ok(Row {
            system: self.system.name().into(),
            zones: load.zones,
            request_kib: load.request_kib,
            depth: load.depth,
            mb_s: measured.mb_s(),
            read_mb_s: if load.readers > 0 { reads.mb_s() } else { 0.0 },
            flash_write_amplification: amplification(&before, &now, measured.bytes),
            paper_mb_s: None,
            p50_us: measured.quantile_us(0.5),
            p99_us: measured.quantile_us(0.99),
            written: written(&before, &now, measured.bytes),
            writes_per_mib: each(now.writes, before.writes),
            explicit_flushes_per_mib: each(now.zrwa_flushes, before.zrwa_flushes),
        })
    }

    /// Writes all of `streams` at the same time, to their end.
    ///
    /// # Errors
    /// When a write fails.
    pub fn write_streams(&self, streams: &[Stream]) -> anyhow::Result<Left> {
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
        let (now, host_bytes) = (sum(&self.drives), blocks.get() * BLOCK as u64);
        Ok(Left {
            flash_write_amplification: amplification(&before, &now, host_bytes),
            written: written(&before, &now, host_bytes),
        })
    }

    /// Cuts the power when nothing is on its way, and gives the time until the array is there again, in
    /// µs, and what was read for it, in blocks. Only drives that keep what is written can do that.
    ///
    /// # Errors
    /// When the array cannot be found again.
    pub fn recover(self) -> anyhow::Result<(f64, u64)> {
        let Bed { clock, runtime, array, drives, .. } = self;
        drop(array);
        runtime.clear();
        let mut rng = Rng::new(0);
        for drive in &drives {
            drive.ssd().borrow_mut().power_cut(&[], &mut rng, Cut::default())?;
        }
        let members = drives
            .iter()
            .enumerate()
            .map(|(number, drive)| Drive { name: format!("drive {number}"), device: Rc::new(drive.clone()) });
        let (begin, before) = (clock.now_ns(), sum(&drives));
        let assembled = runtime.block_on(Array::assemble(&runtime, members.collect()), || clock.advance());
        assembled.context("assembling the array never ends")??;
        let read = sum(&drives).read_blocks - before.read_blocks;
        Ok(((clock.now_ns() - begin) as f64 / 1e3, read))
    }
}

/// Of all drives together.
fn sum(drives: &[TimedDrive]) -> Counters {
    drives.iter().fold(Counters::default(), |sum, drive| sum.plus(&drive.counters()))
}

fn amplification(before: &Counters, now: &Counters, host_bytes: u64) -> f64 {
    (now.flash_blocks() - before.flash_blocks()) as f64 * BLOCK as f64 / host_bytes as f64
}

fn written(before: &Counters, now: &Counters, host_bytes: u64) -> Written {
    let each = |blocks: u64| blocks as f64 * BLOCK as f64 / host_bytes as f64;
    let kept = |cause: Cause| each(now.programmed[cause as usize] - before.programmed[cause as usize]);
    let expired = |cause: Cause| each(now.expired[cause as usize] - before.expired[cause as usize]);
    Written {
        data: kept(Cause::Data),
        full_parity: kept(Cause::Parity),
        temporary_parity: expired(Cause::PartialParity) + expired(Cause::Parity),
        logged_parity: kept(Cause::PartialParity),
        headers: kept(Cause::Header),
        metadata: kept(Cause::Metadata) + expired(Cause::Metadata),
    }
}
