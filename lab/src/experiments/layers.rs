//! Compression on the host, in the drive, and in both: capacity of a volume.

use super::{Effort, Experiment, braid::SOURCES};
use crate::{
    datasets::{self, Dataset},
    figure::{Claim, ClaimKind, Figure, Plot, Row, Table},
    work,
};
use anyhow::{Context, ensure};
use emu::ssd::{
    EmulatedDrive, Model, Ssd,
    compress::{Choice, CompressedMedia, PAGE, PAGE_BLOCKS, Scheme, compress},
};
use engine::{
    buf::{BLOCK, Buf},
    runtime::Runtime,
    volume::{Codec, Level, Unit, Volume, VolumeCreateOptions, VolumeOptions},
    zone::ZoneIndex,
};
use std::{cell::RefCell, rc::Rc};

pub const LAYERS: Experiment =
    Experiment { name: "layers", title: "Compression on the host, in the drive, and in both", run: layers };

const METHOD: &str = "A data set is written to a volume on an emulated PM1731a, in order, 64 blocks at a time, and read \
back; the volume compresses with LZ4, with zstd at level 1, or not, block by block or in units of 16 or 64 KiB, and the drive \
is one that compresses as Braid does (LZ4), or not. \
Capacity ratio is bytes of the set for each byte of flash in all zones: headers of groups, map and roots of the volume \
count, and so does what waits in the drive's buffer, as it is. One drive: parity of an array is another matter \
(braid-array).";

/// The stacks: name, the volume's compression and its unit in bytes, and whether the drive compresses.
const STACKS: [(&str, HostCompression, usize, bool); 10] = [
    ("none", HostCompression::Off, BLOCK, false),
    ("host", HostCompression::Lz4, BLOCK, false),
    ("drive", HostCompression::Off, BLOCK, true),
    ("both", HostCompression::Lz4, BLOCK, true),
    ("host-zstd", HostCompression::Zstd, BLOCK, false),
    ("both-zstd", HostCompression::Zstd, BLOCK, true),
    ("host-16k", HostCompression::Lz4, 4 * BLOCK, false),
    ("host-64k", HostCompression::Lz4, 16 * BLOCK, false),
    ("host-zstd-16k", HostCompression::Zstd, 4 * BLOCK, false),
    ("host-zstd-64k", HostCompression::Zstd, 16 * BLOCK, false),
];

#[derive(Clone, Copy, PartialEq)]
enum HostCompression {
    Off,
    Lz4,
    Zstd,
}

impl HostCompression {
    fn codec(self) -> Option<Codec> {
        match self {
            HostCompression::Off => None,
            HostCompression::Lz4 => Some(Codec::Lz4),
            HostCompression::Zstd => Level::new(1).map(Codec::Zstd),
        }
    }
}

/// Zones, and blocks of each.
const ZONES: u32 = 32;
const ZONE_BLOCKS: u64 = 1024;
/// Blocks of a write.
const WRITE_BLOCKS: usize = 64;
/// Goal for the ratio of both layers to the better one alone.
const GOAL: f64 = 1.15;

/// A set, and its ratios with the stacks.
struct SetRatios {
    name: String,
    ratios: Vec<f64>,
    /// With LZ4 over units of 4, 16 and 64 KiB, packed without gaps.
    ideal: [f64; 3],
}

fn layers(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let sources = if effort == Effort::Quick { &SOURCES[..1] } else { SOURCES };
    let sets = datasets::all(sources)?;
    let found = work::each("layers", &sets.found, measure)?;
    let mut figure = this.figure(METHOD);
    for found in &found {
        figure.rows.extend(STACKS.iter().zip(&found.ratios).map(|((stack, ..), ratio)| Row {
            system: stack.to_string(),
            host: "free".into(),
            dataset: Some(found.name.clone()),
            capacity_ratio: Some(*ratio),
            ..Row::default()
        }));
    }
    if !found.is_empty() {
        figure.tables.push(units(&found));
        let places: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
        let line = |stack: usize| {
            (STACKS[stack].0.to_string(), found.iter().map(|found| found.ratios[stack]).collect())
        };
        let lines = (0..STACKS.len()).map(line).collect();
        figure.plots.push(Plot::named("Capacity ratio", "bytes a byte of flash", &places, lines));
        figure.claims.push(claim(&found));
    }
    figure.not_measured(sets.missing);
    Ok(figure)
}

fn measure(set: &Dataset) -> anyhow::Result<SetRatios> {
    let ratio = |(_, host, unit, drive): &(_, _, _, _)| ratio(set, (*host, *unit), *drive);
    let ratios = STACKS.iter().map(ratio).collect::<anyhow::Result<_>>()?;
    let ideal = [BLOCK, PAGE, 4 * PAGE].map(|unit| {
        let stored: usize = set.bytes.chunks_exact(unit).map(|unit| compress(unit).len()).sum();
        (set.bytes.len() / unit * unit) as f64 / stored.max(1) as f64
    });
    Ok(SetRatios { name: set.name.clone(), ratios, ideal })
}

/// Writes a set to a volume, and reads it back; gives bytes per byte of flash.
fn ratio(set: &Dataset, (host, unit): (HostCompression, usize), compresses: bool) -> anyhow::Result<f64> {
    let geometry = Model::pm1731a().scaled(ZONES, ZONE_BLOCKS).geometry;
    let ssd = match compresses {
        true => {
            let media = CompressedMedia::new(&geometry, Scheme::Braid(Choice::BySizes));
            Ssd::new(geometry.clone(), Box::new(media))
        }
        false => Ssd::in_memory(&geometry),
    };
    let drive = EmulatedDrive::new(Rc::new(RefCell::new(ssd)));
    let (runtime, device) = (Runtime::new(), Rc::new(drive.clone()));
    let blocks = set.bytes.len() / BLOCK;
    let work = async {
        let unit = Unit::from_bytes(unit as u64).context("there is no such unit")?;
        let options = VolumeCreateOptions {
            uuid: [1; 16],
            codec: host.codec(),
            unit,
            ..VolumeCreateOptions::default()
        };
        Volume::create(&runtime, device.clone(), options).await?;
        let volume = Volume::open(&runtime, device, VolumeOptions::default()).await?;
        for (number, piece) in set.bytes[..blocks * BLOCK].chunks(WRITE_BLOCKS * BLOCK).enumerate() {
            volume.write((number * WRITE_BLOCKS) as u64, &Buf::copy_of(piece), false).await?;
        }
        volume.flush().await?;
        volume.stop().await?;
        for (number, piece) in set.bytes[..blocks * BLOCK].chunks(WRITE_BLOCKS * BLOCK).enumerate() {
            let data = volume.read((number * WRITE_BLOCKS) as u64, Buf::zeroed(piece.len())).await?;
            ensure!(data[..] == *piece, "{}: block {number} reads as something else", set.name);
        }
        Ok(())
    };
    let done = runtime.block_on(work, || false).context("the drive does not answer")?;
    runtime.clear();
    done?;
    let ssd = drive.ssd().borrow();
    let taken: u64 = (0..ZONES).map(|zone| flash_blocks(&ssd, ZoneIndex(zone))).sum();
    Ok(blocks as f64 / taken as f64)
}

/// Blocks of flash that a zone uses, including buffered ones.
fn flash_blocks(ssd: &Ssd, zone: ZoneIndex) -> u64 {
    let written = ssd.zones().info(zone).wp_blocks;
    // Pages are placed four at a time.
    let waiting = written % (4 * PAGE_BLOCKS);
    match ssd.flash_pages(zone) {
        Some(pages) => pages * PAGE_BLOCKS + waiting,
        None => written,
    }
}

fn claim(found: &[SetRatios]) -> Claim {
    let gain = |found: &SetRatios| found.ratios[3] / found.ratios[1].max(found.ratios[2]);
    let enough = found.iter().filter(|found| gain(found) >= GOAL).count();
    let gains: Vec<String> = found.iter().map(|found| format!("{} {:.2}", found.name, gain(found))).collect();
    let why = format!(
        "Share of the sets on which both hold {GOAL} times what the better one alone does: {}",
        gains.join(", ")
    );
    let what = "both layers to the better one alone, sets on which that is worth it";
    Claim::at_least(what, 0.5, enough as f64 / found.len() as f64, why).is(ClaimKind::Goal)
}

fn units(found: &[SetRatios]) -> Table {
    let header = [
        "data set",
        "4 KiB",
        "16 KiB",
        "64 KiB",
        "host",
        "drive",
        "both",
        "host, zstd",
        "both, zstd",
        "host, 16 KiB",
        "64 KiB",
        "host, zstd, 16 KiB",
        "64 KiB",
    ];
    let mut table =
        Table::new("LZ4 by size of unit, byte behind byte, and what the stacks make of it", &header);
    for found in found {
        let values = found.ideal.iter().chain(&found.ratios[1..]).map(|value| format!("{value:.2}"));
        table.rows.push([found.name.clone()].into_iter().chain(values).collect());
    }
    table
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn compression_layers_save_space_noise_costs_only_headers() {
        let (mut noise, mut bytes) = (emu::rng::Rng::new(1), vec![0; 4 << 20]);
        noise.fill(&mut bytes);
        let of = |bytes: Vec<u8>| {
            measure(&Dataset { name: "made".into(), origin: String::new(), bytes }).unwrap().ratios
        };
        let [none, host, drive, both, zstd, _, ref units @ ..] = of(bytes.clone())[..] else { panic!("few") };
        assert!(
            none > 0.9 && [host, zstd] == [none; 2] && *units == [none; 4] && drive >= none && both >= none,
            "{none} {host} {drive} {both}"
        );
        // Groups of four equal blocks: together they take little more than one.
        for alike in bytes.chunks_mut(4 * BLOCK) {
            alike[BLOCK / 4..BLOCK].fill(0);
            let (first, others) = alike.split_at_mut(BLOCK);
            others.chunks_mut(BLOCK).for_each(|block| block.copy_from_slice(first));
        }
        let [none, host, drive, both, zstd, _, ref units @ ..] = of(bytes)[..] else { panic!("few") };
        assert!(units.iter().all(|ratio| *ratio > 1.5 * host), "{units:?} {host}");
        assert!(
            none < 1.0 && host.min(zstd) > 3.0 && drive > 2.5 && both >= 0.95 * host,
            "{none} {host} {drive} {both}"
        );
    }
}
