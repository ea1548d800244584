//! Measures the write amplification of a volume for each choice of victims and each separation of hot and cold blocks,
//! under uniform and skewed load, at several fill levels.
//!
//! The volume is filled once; then eight times its number of blocks is written, one block at a time by eight tasks. The
//! figures are those of the second half. `cargo run --release -p zoneraid-sim --example amplification`

use emu::{rng::Rng, ssd::EmulatedDrive};
use engine::{
    buf::{BLOCK, Buf},
    device::{DeviceError, Geometry},
    runtime::Runtime,
    volume::{Choice, Volume, VolumeCreateOptions, VolumeError, VolumeOptions, WrittenBlocks},
};
use std::{cell::Cell, rc::Rc};

const ZONES: u32 = 96;
const CAPACITY: u64 = 512;
const TASKS: usize = 8;

fn geometry() -> Geometry {
    Geometry {
        zones: ZONES,
        zone_size_blocks: CAPACITY,
        zone_capacity_blocks: CAPACITY,
        max_open: 0,
        max_active: 0,
        zrwa: None,
        oob_bytes: 0,
        max_transfer_blocks: 64,
        max_append_blocks: 0,
        volatile_cache: false,
    }
}

/// The block of the next write: nine of ten in a tenth of the volume if `skewed`, otherwise uniform.
fn draw(rng: &mut Rng, blocks: u64, skewed: bool) -> u64 {
    if skewed && rng.chance(9, 10) { rng.below(blocks / 10) } else { rng.below(blocks) }
}

fn write_all(runtime: &Runtime, volume: &Volume, places: Vec<u64>) {
    let (places, next) = (Rc::new(places), Rc::new(Cell::new(0)));
    for _ in 0..TASKS {
        let (volume, places, next) = (volume.clone(), places.clone(), next.clone());
        let data = Buf::copy_of(&[7; BLOCK]);
        runtime.spawn(async move {
            while let Some(at) = places.get(next.replace(next.get() + 1)) {
                if volume.write(*at, &data, false).await.is_err() {
                    return;
                }
            }
        });
    }
    runtime.run();
}

/// Write amplification, and the number of blocks that garbage collection moved for each block written by users.
fn measure(behaviour: VolumeOptions, percent: u64, skewed: bool) -> Result<(f64, f64), VolumeError> {
    let (runtime, drive) = (Runtime::new(), EmulatedDrive::in_memory(&geometry()));
    let nothing = || VolumeError::Device(DeviceError::Timeout);
    let usable = engine::volume::VolumePlan::of(&geometry(), None, None)?.usable;
    let blocks = usable * percent / 100;
    let made = Volume::create(
        &runtime,
        Rc::new(drive.clone()),
        VolumeCreateOptions { uuid: [1; 16], blocks: Some(blocks), ..VolumeCreateOptions::default() },
    );
    runtime.block_on(made, || false).ok_or_else(nothing)??;
    let volume = Volume::open(&runtime, Rc::new(drive), behaviour);
    let volume = runtime.block_on(volume, || false).ok_or_else(nothing)??;
    let mut rng = Rng::new(1);
    write_all(&runtime, &volume, (0..blocks).collect());
    write_all(&runtime, &volume, (0..4 * blocks).map(|_| draw(&mut rng, blocks, skewed)).collect());
    let before = volume.status().written;
    write_all(&runtime, &volume, (0..4 * blocks).map(|_| draw(&mut rng, blocks, skewed)).collect());
    let now = volume.status().written;
    runtime.clear();
    let part = |what: fn(&WrittenBlocks) -> u64| (what(&now) - what(&before)) as f64;
    let user = part(|written| written.user);
    Ok((part(WrittenBlocks::blocks) / user, part(|written| written.moved) / user))
}

fn main() -> Result<(), VolumeError> {
    println!("{:<14}{:<10}{:>8}{:>8}{:>10}{:>10}", "victims", "streams", "load", "full", "written", "moved");
    for choice in [Choice::Greedy, Choice::CostBenefit] {
        for apart in [false, true] {
            for (skewed, percent) in [(false, 80), (false, 100), (true, 80), (true, 100)] {
                let behaviour =
                    VolumeOptions { choice, apart, map_pages: Some(1 << 10), ..VolumeOptions::default() };
                let (written, moved) = measure(behaviour, percent, skewed)?;
                let (choice, load) = (format!("{choice:?}"), if skewed { "90/10" } else { "even" });
                let streams = if apart { "apart" } else { "mixed" };
                println!("{choice:<14}{streams:<10}{load:>8}{percent:>6} %{written:>10.3}{moved:>10.3}");
            }
        }
    }
    Ok(())
}
