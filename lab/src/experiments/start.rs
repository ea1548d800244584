//! Start time of a volume, by its size and by the number of map pages changed since its last checkpoint.

use super::{Effort, Experiment};
use crate::{
    figure::{Figure, Plot, Table},
    system::System,
    test_bed::{Setup, TestBed},
    work,
};
use anyhow::{Context, Result};
use emu::{clock::Clock, rng::Rng, ssd::Model, timing::Timing};
use engine::{
    buf::{BLOCK, Buf},
    device::ZonedDevice,
    runtime::Runtime,
    volume::{Volume, VolumeCreateOptions, VolumeOptions},
};
use std::{collections::BTreeSet, rc::Rc};

pub const START: Experiment =
    Experiment { name: "start", title: "How long a volume takes to be there again", run: start };

const METHOD: &str = "A volume on four ZN540 (3 + 1) that are as large as it takes, policy zrwa, on a host that costs nothing. \
Blocks at random places were written, each in another page of the map, and a checkpoint was made; then one more in each of \
these pages, a flush, and the power was cut. 'Array' is the time of its assembly, 'after a cut' that of the volume on it, \
'after a stop' that of the same volume once it has been stopped. A checkpoint is made when the pages that have changed \
since the last one take half of the map's budget of 128 MiB a TiB, which is 25,000 pages a TiB, or when four zones are full.";

/// Times of a start.
struct StartTimes {
    array_ms: f64,
    cut_ms: f64,
    stop_ms: f64,
    read_mib: f64,
}

fn setup(tib: u64) -> Setup {
    let (whole, timing) = (Model::zn540_4tb(), Timing::zn540_4tb());
    let capacity = whole.geometry.zone_capacity_blocks;
    // A tenth of the array's zones is reserved by the volume.
    let zones = (tib << 28).div_ceil(3 * capacity) * 10 / 9 + 24;
    let model = whole.scaled(zones as u32, capacity);
    Setup { model, timing, members: 4, stores: true, ..Setup::zn540(System::Zoneraid) }
}

/// Distance of written blocks: at least the blocks of a map page.
const APART: u64 = 1024;

fn start(this: &Experiment, effort: Effort) -> Result<Figure> {
    // The longest first, so that none is left for the end.
    let (sizes, pages): (&[u64], &[u64]) = match effort {
        Effort::Quick => (&[14, 1], &[10_000, 1_000]),
        Effort::Full => (&[14, 4, 1], &[100_000, 25_000, 10_000, 1_000]),
    };
    // A checkpoint leaves no more changed pages than this.
    let points: Vec<(u64, u64)> = sizes
        .iter()
        .flat_map(|tib| pages.iter().map(move |pages| (*tib, *pages)))
        .filter(|(tib, pages)| *pages < 25_000 * tib || *tib == 1)
        .collect();
    let found = work::each(this.name, &points, |(tib, pages)| one(*tib, *pages))?;
    let header =
        ["TiB", "pages changed", "array ms", "after a cut, ms", "after a stop, ms", "MiB read after the cut"];
    let mut table = Table::new("Start of a volume", &header);
    let mut values = Vec::new();
    for ((tib, pages), found) in points.iter().zip(&found).rev() {
        let numbers =
            [found.array_ms, found.cut_ms, found.stop_ms, found.read_mib].map(|n| format!("{n:.0}"));
        table.rows.push([vec![tib.to_string(), pages.to_string()], numbers.to_vec()].concat());
        values.push((format!("{tib} TiB"), *pages, found.cut_ms));
    }
    let mut figure = this.figure(METHOD);
    figure.tables.push(table);
    let plot = Plot::through("Start after a power cut", "pages of the map that have changed", "ms", &values);
    figure.plots.push(plot.limit("goal: 5 s", 5000.0));
    Ok(figure)
}

fn one(tib: u64, pages: u64) -> Result<StartTimes> {
    let bed = TestBed::new(&setup(tib))?;
    let mut rng = Rng::new(tib + pages);
    bed.run(Volume::create(
        &bed.runtime,
        bed.array.clone(),
        VolumeCreateOptions { uuid: [1; 16], blocks: Some(tib << 28), ..VolumeCreateOptions::default() },
    ))??;
    let (_, volume) = open(&bed.runtime, &bed.clock, &bed.array)?;
    let places = (volume.blocks() / APART) - 1;
    let mut chosen = BTreeSet::new();
    while (chosen.len() as u64) < pages {
        chosen.insert(rng.below(places) * APART);
    }
    let data = Buf::zeroed(BLOCK);
    bed.run(async {
        for at in &chosen {
            volume.write(*at, &data, false).await?;
        }
        volume.stop().await
    })??;
    drop(volume);
    let (_, volume) = open(&bed.runtime, &bed.clock, &bed.array)?;
    bed.run(async {
        for at in &chosen {
            volume.write(at + 1, &data, false).await?;
        }
        volume.flush().await
    })??;
    drop(volume);
    let again = bed.cut_power(None)?;
    let (cut_ms, volume) = open(&again.runtime, &again.clock, &again.array)?;
    let read_mib = volume.status().pages_read as f64 * BLOCK as f64 / (1 << 20) as f64;
    let stopped = again.runtime.block_on(volume.stop(), || again.clock.advance());
    stopped.context("stopping the volume never ends")??;
    drop(volume);
    let (stop_ms, _) = open(&again.runtime, &again.clock, &again.array)?;
    Ok(StartTimes { array_ms: again.took_us / 1e3, cut_ms, stop_ms, read_mib })
}

/// Opens the volume on a device; gives the time in ms.
fn open(runtime: &Runtime, clock: &Clock, device: &Rc<dyn ZonedDevice>) -> Result<(f64, Volume)> {
    let before = clock.now_ns();
    let opened = Volume::open(runtime, device.clone(), VolumeOptions::default());
    let volume = runtime.block_on(opened, || clock.advance()).context("opening the volume never ends")??;
    Ok(((clock.now_ns() - before) as f64 / 1e6, volume))
}
