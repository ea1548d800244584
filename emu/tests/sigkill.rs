//! An image survives SIGKILL of its process at any moment.
//!
//! This program starts itself as a child process that executes random commands on an image and acknowledges each. The
//! parent kills it, executes the acknowledged commands on a drive in memory, and compares: each zone and block of the
//! image is as after the last acknowledged command, or as after the next one.
#![allow(clippy::unwrap_used)]

use emu::{
    rng::Rng,
    ssd::{ImageMedia, Model, Ssd},
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Geometry, Zones, Zrwa},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use std::{
    io::{Read, Write},
    path::Path,
    process::{Command as Process, Stdio},
    time::Duration,
};

const ZONES: u32 = 4;
const OOB: usize = 64;
const ROUNDS: u64 = 60;

fn model() -> Model {
    let geometry = Geometry {
        zones: ZONES,
        zone_size_blocks: 128,
        zone_capacity_blocks: 100,
        max_open: 3,
        max_active: 3,
        zrwa: Some(Zrwa { size_blocks: 16, granularity_blocks: 4, max_zones: 2 }),
        oob_bytes: OOB as u32,
        max_transfer_blocks: 32,
        max_append_blocks: 32,
        volatile_cache: false,
    };
    Model { name: "sigkill".into(), geometry }
}

/// The command with this number, determined by the seed and the state of the drive.
fn command(rng: &mut Rng, ssd: &Ssd, number: u64) -> Command {
    let zone = ZoneIndex(rng.below(ZONES as u64) as u32);
    let zones = Zones::One(zone);
    let info = ssd.zones().info(zone);
    let start = ssd.geometry().start(zone).0;
    let blocks = 1 + rng.below(20) as usize;
    let ahead = if info.zrwa { rng.below(16) } else { 0 };
    match rng.below(24) {
        0 => Command::Reset { zones },
        1 if rng.chance(1, 4) => Command::Finish { zones },
        2..=4 => Command::Open { zones, zrwa: rng.chance(3, 4) },
        5..=7 => Command::FlushZrwa { last: Lba(start + info.wp_blocks + 4 * (1 + rng.below(3)) - 1) },
        _ => {
            let tag = (number + 1).to_le_bytes();
            let (data, oob) = (tag.repeat(blocks * BLOCK / 8), tag.repeat(blocks * OOB / 8));
            let lba = Lba(start + info.wp_blocks + ahead);
            Command::Write { lba, data: Buf::copy_of(&data), oob: Buf::copy_of(&oob), fua: false }
        }
    }
}

fn child(path: &Path, seed: u64) {
    let image = ImageMedia::open(path).unwrap();
    let mut ssd = Ssd::new(image.model().geometry.clone(), Box::new(image));
    let (mut rng, mut stdout) = (Rng::new(seed), std::io::stdout());
    for number in 0.. {
        let command = command(&mut rng, &ssd, number);
        ssd.execute(command);
        stdout.write_all(b".").and_then(|()| stdout.flush()).unwrap();
    }
}

/// All visible state of a drive: its zones, and a tag for each block, 0 if unwritten. Fails on a block if its metadata
/// or halves are of another version than the rest.
fn picture(ssd: &mut Ssd) -> (Vec<ZoneInfo>, Vec<u64>) {
    let geometry = ssd.geometry().clone();
    let zones: Vec<ZoneInfo> = (0..ZONES).map(|zone| power_on(ssd.zones().info(ZoneIndex(zone)))).collect();
    let mut tags = Vec::new();
    for lba in 0..ZONES as u64 * geometry.zone_size_blocks {
        let (data, oob) = (Buf::zeroed(BLOCK), Buf::zeroed(OOB));
        let done = ssd.execute(Command::Read { lba: Lba(lba), data, oob });
        done.result.unwrap();
        let (data, oob): (&[u8], &[u8]) = (&done.data, &done.oob);
        assert!(data.chunks(8).chain(oob.chunks(8)).all(|tag| tag == &data[..8]), "block {lba} is torn");
        tags.push(u64::from_le_bytes(data[..8].try_into().unwrap()));
    }
    (zones, tags)
}

/// The state of a zone after a power cycle.
fn power_on(info: ZoneInfo) -> ZoneInfo {
    let state = match info.state {
        ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen | ZoneState::Closed => {
            if info.wp_blocks == 0 && !info.zrwa { ZoneState::Empty } else { ZoneState::Closed }
        }
        state => state,
    };
    ZoneInfo { state, ..info }
}

/// Returns how many commands were acknowledged, and whether the next one had begun.
fn round(path: &Path, seed: u64) -> (u64, bool) {
    drop(ImageMedia::create(path, &model(), [3; 16]).unwrap());
    let program = std::env::current_exe().unwrap();
    let mut process = Process::new(program)
        .args([path.as_os_str(), seed.to_string().as_ref()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(10 + 7 * seed % 60));
    process.kill().unwrap();
    process.wait().unwrap();
    let mut acknowledged = Vec::new();
    process.stdout.take().unwrap().read_to_end(&mut acknowledged).unwrap();
    let acknowledged = acknowledged.len() as u64;

    let mut memory = Ssd::in_memory(&model().geometry);
    let mut rng = Rng::new(seed);
    for number in 0..acknowledged {
        let command = command(&mut rng, &memory, number);
        memory.execute(command);
    }
    let before = picture(&mut memory);
    let last = command(&mut rng, &memory, acknowledged);
    let described = format!("after {acknowledged} commands, {last:?}");
    memory.execute(last);
    let after = picture(&mut memory);

    let image = ImageMedia::open(path).unwrap();
    let found = picture(&mut Ssd::new(model().geometry, Box::new(image)));
    for zone in 0..ZONES as usize {
        let blocks = zone * 128..(zone + 1) * 128;
        let info = found.0[zone];
        assert!(info == before.0[zone] || info == after.0[zone], "{described}: {info:?}");
        let changed = before.0[zone] != after.0[zone];
        for lba in blocks {
            let (tag, old, new) = (found.1[lba], before.1[lba], after.1[lba]);
            assert!(tag == old || tag == new, "{described}: block {lba} holds {tag}, not {old} or {new}");
            // Data is written before the zone state: a new state has all of its data.
            assert!(!changed || info != after.0[zone] || tag == new, "{described}: block {lba} holds {tag}");
        }
    }
    (acknowledged, found != before)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, path, seed] = &arguments[..]
        && let Ok(seed) = seed.parse()
    {
        return child(Path::new(path), seed);
    }
    let folder = std::env::temp_dir().join(format!("zoneraid-sigkill-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (mut acknowledged, mut cut_short) = (0, 0);
    for seed in 0..ROUNDS {
        let (commands, begun) = round(&folder.join(format!("{seed}.img")), seed);
        acknowledged += commands;
        cut_short += begun as u64;
    }
    std::fs::remove_dir_all(&folder).unwrap();
    println!("{ROUNDS} processes killed, {acknowledged} commands acknowledged, {cut_short} cut short");
    assert!(acknowledged > ROUNDS, "the processes were killed before they did anything");
}
