//! What a volume costs: time and allocations of a block that is written or read at a random place, on one core.
//!
//! The volume lies on a drive shaped like a ZN540 that answers at once and, once the volume is there, neither
//! stores anything nor reads it; all of the map is in memory. So this is what the volume's own code costs:
//! the map, groups and their headers, copies of the data into groups, and the executor.

use super::{
    begin,
    idle::{self, Idle, REQUESTS},
    medians,
};
use crate::output::{HEALTHY, Output};
use anyhow::{Context, Result};
use engine::{
    buf::{BLOCK, Buf},
    runtime::Runtime,
    volume::{Behaviour, Volume},
};
use serde::Serialize;
use sim::rng::Rng;
use std::rc::Rc;

const ZONES: u32 = 40;
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

/// Measures and prints.
pub fn run(output: Output, rounds: usize) -> Result<u8> {
    begin(output, rounds)?;
    let device = Rc::new(Idle::new(ZONES));
    let runtime = Runtime::new();
    let made = Volume::create(device.clone(), [1; 16], None);
    runtime.block_on(made, || false).context("the drive does not answer")??;
    let behaviour = Behaviour { map_pages: Some(usize::MAX / 2), ..Behaviour::default() };
    let volume = Volume::open(&runtime, device.clone(), behaviour);
    let volume = runtime.block_on(volume, || false).context("the drive does not answer")??;
    device.idle();
    let (write_ns, allocations) = medians(rounds, |round| play(&runtime, &volume, true, round))?;
    let (read_ns, _) = medians(rounds, |round| play(&runtime, &volume, false, round))?;
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

/// Nanoseconds and allocations of a request, at places that the number of the round decides.
fn play(runtime: &Runtime, volume: &Volume, writes: bool, round: u64) -> Result<(f64, f64)> {
    let mut rng = Rng::new(round);
    let places: Rc<Vec<u64>> = Rc::new((0..REQUESTS).map(|_| rng.below(volume.blocks())).collect());
    idle::play(runtime, DEPTH, |turns| {
        let (volume, places) = (volume.clone(), places.clone());
        async move {
            let mut buf = Buf::copy_of(&[0x5a; BLOCK]);
            while let Some(turn) = turns.take() {
                let at = places[turn as usize];
                match writes {
                    true => volume.write(at, &buf, false).await?,
                    false => buf = volume.read(at, std::mem::take(&mut buf)).await?,
                }
            }
            Ok(())
        }
    })
}
