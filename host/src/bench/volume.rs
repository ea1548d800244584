//! What a volume costs: time and allocations of a block that is written or read at a random place, on one core.
//!
//! The volume lies on a drive shaped like a ZN540 that answers at once and, once the volume is there, neither
//! stores anything nor reads it; all of the map is in memory. So this is what the volume's own code costs:
//! the map, groups and their headers, copies of the data into groups, and the executor.

use crate::{
    alloc::allocations,
    output::{HEALTHY, Output},
};
use anyhow::{Context, Result, ensure};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, Done, Geometry, ZonedDevice},
    runtime::Runtime,
    volume::{Behaviour, Volume},
};
use serde::Serialize;
use sim::{
    rng::Rng,
    ssd::{EmulatedDrive, Model},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Instant,
};

const ZONES: u32 = 40;
/// Blocks of a round, and of the one before those that count.
const BLOCKS: u64 = 200_000;
/// Requests on the way.
const DEPTH: u64 = 64;

#[derive(Serialize)]
struct Costs {
    /// One 4 KiB write at a random place, 64 of them on the way.
    write_4k_random_ns: f64,
    write_4k_random_allocations: f64,
    /// Blocks that go to the drive for each of them.
    write_amplification: f64,
    /// One 4 KiB read at a random place, 64 of them on the way.
    read_4k_random_ns: f64,
}

/// A drive that stops storing anything once it is told to.
struct Idle {
    drive: EmulatedDrive,
    idles: Cell<bool>,
}

impl ZonedDevice for Idle {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        match command {
            Command::Read { data, oob, .. } | Command::Write { data, oob, .. } if self.idles.get() => {
                Completion::ready(Done { data, oob, ..Done::ok() })
            }
            _ if self.idles.get() => Completion::ready(Done::ok()),
            command => self.drive.submit(command),
        }
    }
}

/// Measures and prints.
pub fn run(output: Output, rounds: usize) -> Result<u8> {
    ensure!(rounds > 0, "--rounds cannot be 0");
    if cfg!(debug_assertions) {
        output.note("this is not a release build; the figures mean little");
    }
    let capacity = Model::zn540().geometry.zone_capacity_blocks;
    let geometry = Model::zn540().scaled(ZONES, capacity).geometry;
    let drive = EmulatedDrive::in_memory(&geometry);
    let device = Rc::new(Idle { drive, idles: Cell::new(false) });
    let runtime = Runtime::new();
    let made = Volume::create(device.clone(), [1; 16], None);
    runtime.block_on(made, || false).context("the drive does not answer")??;
    let behaviour = Behaviour { map_pages: Some(usize::MAX / 2), ..Behaviour::default() };
    let volume = Volume::open(&runtime, device.clone(), behaviour);
    let volume = runtime.block_on(volume, || false).context("the drive does not answer")??;
    device.idles.set(true);
    let (write_ns, allocations) = median_of(rounds, |round| play(&runtime, &volume, true, round))?;
    let (read_ns, _) = median_of(rounds, |round| play(&runtime, &volume, false, round))?;
    let costs = Costs {
        write_4k_random_ns: write_ns,
        write_4k_random_allocations: allocations,
        write_amplification: volume.status().written.amplification(),
        read_4k_random_ns: read_ns,
    };
    runtime.clear();
    output.print(&costs, |costs| {
        format!(
            "a volume on a drive that answers at once, one core\n  {:<48} {:>9.0} ns\n  {:<48} {:>12.3}\n  \
             {:<48} {:>12.3}\n  {:<48} {:>9.0} ns\n",
            "4 KiB write, random, 64 on the way",
            costs.write_4k_random_ns,
            "    allocations in it",
            costs.write_4k_random_allocations,
            "    blocks written for each",
            costs.write_amplification,
            "4 KiB read, random, 64 on the way",
            costs.read_4k_random_ns,
        )
    })?;
    Ok(HEALTHY)
}

/// Medians of the rounds, the first one left out.
fn median_of(rounds: usize, round: impl Fn(u64) -> Result<(f64, f64)>) -> Result<(f64, f64)> {
    let mut all = (0..=rounds as u64).map(round).collect::<Result<Vec<_>>>()?.split_off(1);
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (time, _) = all[all.len() / 2];
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ok((time, all[all.len() / 2].1))
}

/// Keeps requests on the way until a round is done; gives nanoseconds and allocations of one.
fn play(runtime: &Runtime, volume: &Volume, writes: bool, seed: u64) -> Result<(f64, f64)> {
    let mut rng = Rng::new(seed);
    let places: Rc<Vec<u64>> = Rc::new((0..BLOCKS).map(|_| rng.below(volume.blocks())).collect());
    let (next, failed) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(None)));
    // As many tasks as there may be requests: none is made for a request.
    for _ in 0..DEPTH {
        let (volume, places, next, failed) = (volume.clone(), places.clone(), next.clone(), failed.clone());
        runtime.spawn(async move {
            let mut buf = Buf::copy_of(&[0x5a; BLOCK]);
            while let Some(at) = places.get(next.replace(next.get() + 1)) {
                let result = match writes {
                    true => volume.write(*at, &buf, false).await,
                    false => volume.read(*at, std::mem::take(&mut buf)).await.map(|read| buf = read),
                };
                if let Err(error) = result {
                    *failed.borrow_mut() = Some(error);
                    return;
                }
            }
        });
    }
    let (started, allocated) = (Instant::now(), allocations());
    runtime.run();
    let (ns, allocated) = (started.elapsed().as_nanos() as f64, (allocations() - allocated) as f64);
    if let Some(error) = failed.borrow_mut().take() {
        return Err(error.into());
    }
    ensure!(next.get() as u64 >= BLOCKS, "the volume does not answer");
    Ok((ns / BLOCKS as f64, allocated / BLOCKS as f64))
}
