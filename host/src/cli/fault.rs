//! `emulate fault`: faults of an emulated drive.

use super::args::Fault;
use crate::process::output::{HEALTHY, Output};
use anyhow::{Context, Result, ensure};
use emu::ssd::{Ailment, AilmentFile, Ailments, ImageMedia, Media};
use engine::{
    buf::BLOCK,
    device::Geometry,
    zone::{Lba, ZoneIndex, ZoneState},
};
use serde::Serialize;
use std::path::Path;

/// The faults of an emulated drive.
#[derive(Serialize)]
struct Faults {
    drive: String,
    gone: bool,
    /// Factor by which commands are slowed down.
    slow: u32,
    read_only_zones: Vec<u32>,
    offline_zones: Vec<u32>,
    unreadable_blocks: Vec<u64>,
    flipped_blocks: Vec<u64>,
    dropped_blocks: Vec<u64>,
    misdirected_blocks: Vec<u64>,
    stale_blocks: Vec<u64>,
}

pub fn run(output: Output, drive: &Path, fault: Fault) -> Result<u8> {
    let (model, _) = ImageMedia::examine(drive)?;
    let mut file = AilmentFile::of(drive)?;
    let change = match ailment(drive, &model.geometry, fault)? {
        Some(ailment) => file.add(ailment),
        None => file.clear(),
    };
    change.with_context(|| format!("the faults of {} cannot be written", drive.display()))?;
    let now = file.ailments();
    let now = now.with_context(|| format!("the faults of {} cannot be read", drive.display()))?;
    output.print(&Faults::new(drive, now), faults_text)?;
    Ok(HEALTHY)
}

/// The fault to add; `None` to clear all of them.
fn ailment(drive: &Path, geometry: &Geometry, fault: Fault) -> Result<Option<Ailment>> {
    Ok(Some(match fault {
        Fault::ReadOnly { zone } => Ailment::ReadOnly(zone_of(geometry, zone)?),
        Fault::Offline { zone } => Ailment::Offline(zone_of(geometry, zone)?),
        Fault::Unreadable { lba } => Ailment::Unreadable(block_of(geometry, lba)?),
        Fault::Flip { lba } => Ailment::Flipped(block_of(geometry, lba)?),
        Fault::Drop { lba } => Ailment::Dropped(block_of(geometry, lba)?),
        Fault::Misdirect { lba, to } => {
            Ailment::Misdirected(block_of(geometry, lba)?, block_of(geometry, to)?)
        }
        Fault::Stale { lba } => {
            let lba = block_of(geometry, lba)?;
            let mut bytes = vec![0; BLOCK + geometry.oob_bytes as usize];
            let (data, oob) = bytes.split_at_mut(BLOCK);
            let read = ImageMedia::look(drive)?.read(lba, data, oob);
            read.with_context(|| format!("block {} of {} cannot be read", lba.0, drive.display()))?;
            Ailment::Stale(lba, bytes)
        }
        Fault::Slow { factor } => Ailment::Slow(factor),
        Fault::Gone => Ailment::Gone,
        Fault::Clear => return Ok(None),
    }))
}

fn zone_of(geometry: &Geometry, zone: u32) -> Result<ZoneIndex> {
    ensure!(zone < geometry.zones, "there is no zone {zone}; the drive has {}, from 0", geometry.zones);
    Ok(ZoneIndex(zone))
}

fn block_of(geometry: &Geometry, lba: u64) -> Result<Lba> {
    let blocks = geometry.zones as u64 * geometry.zone_size_blocks;
    ensure!(lba < blocks, "there is no block {lba}; the drive has {blocks}, from 0");
    let (zone, offset) = geometry.locate(Lba(lba));
    ensure!(
        offset < geometry.zone_capacity_blocks,
        "block {lba} lies beyond the capacity of zone {}",
        zone.0
    );
    Ok(Lba(lba))
}

impl Faults {
    fn new(drive: &Path, now: Ailments) -> Faults {
        let worn =
            |as_what| now.worn.iter().filter(|(_, state)| **state == as_what).map(|(z, _)| *z).collect();
        Faults {
            drive: drive.display().to_string(),
            gone: now.gone,
            slow: now.slow.unwrap_or(1),
            read_only_zones: worn(ZoneState::ReadOnly),
            offline_zones: worn(ZoneState::Offline),
            unreadable_blocks: now.unreadable.into_iter().collect(),
            flipped_blocks: now.flipped.into_iter().collect(),
            dropped_blocks: now.dropped.into_iter().collect(),
            misdirected_blocks: now.misdirected.into_keys().collect(),
            stale_blocks: now.stale.into_keys().collect(),
        }
    }
}

fn faults_text(faults: &Faults) -> String {
    let mut what = Vec::new();
    if faults.gone {
        what.push("gone".to_string());
    }
    if faults.slow > 1 {
        what.push(format!("{} times as slow", faults.slow));
    }
    let mut list = |numbers: Vec<String>, one: &str, many: &str| match numbers.len() {
        0 => (),
        n => what.push(format!("{} {}", if n == 1 { one } else { many }, numbers.join(", "))),
    };
    let text = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect();
    list(text(&faults.read_only_zones), "read-only zone", "read-only zones");
    list(text(&faults.offline_zones), "offline zone", "offline zones");
    let text = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect();
    list(text(&faults.unreadable_blocks), "unreadable block", "unreadable blocks");
    list(text(&faults.flipped_blocks), "flipped bit in block", "flipped bits in blocks");
    list(text(&faults.dropped_blocks), "lost write of block", "lost writes of blocks");
    list(text(&faults.misdirected_blocks), "misdirected write of block", "misdirected writes of blocks");
    list(text(&faults.stale_blocks), "stale block", "stale blocks");
    let what = if what.is_empty() { "no faults".to_string() } else { what.join("; ") };
    format!("{}: {what}\n", faults.drive)
}
