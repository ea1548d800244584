//! A test bed: an array over emulated drives with timing, in virtual time.

use crate::{
    classify::classifier,
    figure::{Row, Written},
    load::{self, Job, Kind, Window},
    system::System,
};
use anyhow::Context;
use engine::{
    array::{Array, CreateOptions, Drive},
    buf::BLOCK,
    device::ZonedDevice,
    runtime::Runtime,
};
use sim::{
    clock::Clock,
    ssd::{Cause, Counters, Model, NoMedia, Ssd, TimedDrive},
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
    pub chunk_kib: u64,
    /// Decides the jitter of the drives; `None` for none.
    pub seed: Option<u64>,
}

impl Setup {
    /// Five ZN540 of 1 TB with 64 KiB chunks, as in ZRAID §6.1.
    pub fn zn540(system: System) -> Setup {
        Setup {
            system,
            model: Model::zn540(),
            timing: Timing::zn540(),
            members: 5,
            chunk_kib: 64,
            seed: Some(1),
        }
    }
}

/// Closed loops of writes: one job a zone.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub zones: u32,
    pub request_kib: u64,
    pub depth: u32,
    pub window: Window,
}

impl Load {
    /// As the papers' fio jobs. They run for ten seconds; after some milliseconds nothing changes any
    /// more.
    pub fn fio(zones: u32, request_kib: u64) -> Load {
        Load { zones, request_kib, depth: 64, window: Window::ms(20, 80) }
    }
}

/// An array that can be run.
pub struct Bed {
    pub clock: Clock,
    pub runtime: Runtime,
    pub array: Array,
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
        let drives: Vec<TimedDrive> = (0..setup.members as u64)
            .map(|member| {
                let geometry = &setup.model.geometry;
                let ssd = Rc::new(RefCell::new(Ssd::new(geometry.clone(), Box::new(NoMedia::new(geometry)))));
                TimedDrive::new(ssd, &setup.timing, &clock, setup.seed.map(|seed| seed * 1000 + member))
            })
            .collect();
        let members = drives.iter().enumerate().map(|(member, drive)| {
            let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
            Drive { name: format!("drive {member}"), device }
        });
        let options = CreateOptions {
            name: setup.system.name().into(),
            uuid: [1; 16],
            chunk_blocks: setup.chunk_kib * 1024 / BLOCK as u64,
            zone_size_blocks: None,
            policy: Some(setup.system.policy()),
        };
        let create = Array::create_with(&runtime, options, members.collect(), setup.system.behaviour());
        let array =
            runtime.block_on(create, || clock.advance()).context("creating the array never ends")??;
        for (member, drive) in drives.iter().enumerate() {
            drive.set_classifier(classifier(array.layout(), member));
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
        let jobs: Vec<Job> = (0..load.zones).map(job).collect();
        let before = Rc::new(Cell::new(Counters::default()));
        let (snapshot, drives, begun) =
            (before.clone(), self.drives.clone(), self.clock.sleep(load.window.from_ns));
        self.runtime.spawn(async move {
            begun.await;
            snapshot.set(sum(&drives));
        });
        let array: Rc<dyn ZonedDevice> = Rc::new(self.array.clone());
        let measured =
            load::Measured::sum(&load::run(&self.runtime, &array, &self.clock, &jobs, load.window)?);
        let (before, now) = (before.take(), sum(&self.drives));
        let mib = measured.bytes as f64 / (1 << 20) as f64;
        let each = |now: u64, then: u64| (now - then) as f64 / mib;
        Ok(Row {
            system: self.system.name().into(),
            zones: load.zones,
            request_kib: load.request_kib,
            depth: load.depth,
            mb_s: measured.mb_s(),
            flash_write_amplification: amplification(&before, &now, measured.bytes),
            paper_mb_s: None,
            p50_us: measured.quantile_us(0.5),
            p99_us: measured.quantile_us(0.99),
            written: written(&before, &now, measured.bytes),
            writes_per_mib: each(now.writes, before.writes),
            explicit_flushes_per_mib: each(now.zrwa_flushes, before.zrwa_flushes),
        })
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
