//! Volumes of several shards, as devices above 16 TiB have them.

use crate::support::volume::Leaving;
use emu::{
    rng::Rng,
    ssd::{EmulatedDrive, Fault, Kind, Model},
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Geometry, ZonedDevice},
    runtime::Runtime,
    volume::{NoVolume, Volume, VolumeCreateOptions, VolumeError, VolumeOptions, VolumePlan},
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

const SHARDS: u32 = 3;
const BLOCKS: u64 = 3 * 16 * 20 + 7;

fn geometry() -> Geometry {
    Geometry { max_open: 0, max_active: 0, ..Model::zn540().scaled(SHARDS * 24 + 2, 64).geometry }
}

fn options(uuid: u8) -> VolumeCreateOptions {
    let (blocks, shards) = (Some(BLOCKS), Some(SHARDS));
    VolumeCreateOptions { uuid: [uuid; 16], blocks, shards, ..VolumeCreateOptions::default() }
}

fn wait<T>(runtime: &Runtime, work: impl Future<Output = T>) -> T {
    runtime.block_on(work, || false).expect("it hangs")
}

fn open(drive: &EmulatedDrive) -> Result<(Runtime, Volume), VolumeError> {
    let runtime = Runtime::new();
    let opened = wait(&runtime, Volume::open(&runtime, Rc::new(drive.clone()), VolumeOptions::default()))?;
    Ok((runtime, opened))
}

/// Blocks of which each byte is the same.
fn blocks_of(content: &[u8]) -> Buf {
    let mut bytes = vec![0; content.len() * BLOCK];
    for (block, byte) in bytes.chunks_exact_mut(BLOCK).zip(content) {
        block.fill(*byte);
    }
    Buf::copy_of(&bytes)
}

fn check(runtime: &Runtime, volume: &Volume, content: &[u8], rng: &mut Rng) {
    let mut at = 0;
    while at < content.len() {
        let blocks = (1 + rng.below(70) as usize).min(content.len() - at);
        let read = wait(runtime, volume.read(at as u64, Buf::zeroed(blocks * BLOCK))).unwrap();
        assert!(read[..] == blocks_of(&content[at..at + blocks])[..], "blocks {at} to {}", at + blocks);
        let (mapped, len) = wait(runtime, volume.extent(at as u64, blocks as u64)).unwrap();
        let same = content[at..].iter().take_while(|byte| (**byte > 0) == mapped).count();
        assert_eq!((mapped, len), (content[at] > 0, blocks.min(same) as u64), "extent at {at}");
        at += blocks;
    }
}

#[test]
fn requests_that_span_shards_are_served_and_survive_restarts() {
    let (drive, mut rng) = (EmulatedDrive::in_memory(&geometry()), Rng::new(1));
    let runtime = Runtime::new();
    wait(&runtime, Volume::create(&runtime, Rc::new(drive.clone()), options(1))).unwrap();
    let mut content = vec![0_u8; BLOCKS as usize];
    for _ in 0..4 {
        let (runtime, volume) = open(&drive).unwrap();
        assert_eq!((volume.blocks(), volume.status().shards), (BLOCKS, SHARDS));
        check(&runtime, &volume, &content, &mut rng);
        for _ in 0..100 {
            let at = rng.below(BLOCKS) as usize;
            let blocks = (1 + rng.below(60) as usize).min(content.len() - at);
            let byte = rng.below(256) as u8;
            content[at..at + blocks].fill(byte);
            match byte {
                0..32 => {
                    content[at..at + blocks].fill(0);
                    wait(&runtime, volume.discard(at as u64, blocks as u64)).unwrap();
                }
                _ => {
                    let data = blocks_of(&content[at..at + blocks]);
                    wait(&runtime, volume.write(at as u64, &data, byte.is_multiple_of(2))).unwrap();
                }
            }
        }
        check(&runtime, &volume, &content, &mut rng);
        wait(&runtime, volume.flush()).unwrap();
        wait(&runtime, volume.audit()).unwrap();
        let beyond = volume.read(BLOCKS - 1, Buf::zeroed(2 * BLOCK));
        assert!(wait(&runtime, beyond).is_err());
        assert!(wait(&runtime, volume.write(BLOCKS, &blocks_of(&[1]), false)).is_err());
        let mapped = content.iter().filter(|byte| **byte > 0).count();
        assert_eq!(volume.status().mapped, mapped as u64);
        if rng.chance(1, 2) {
            wait(&runtime, volume.stop()).unwrap();
        }
        runtime.clear();
    }
}

/// Data that a shard has lost may have been acknowledged. A record whose write failed may be on the device, for example
/// that of a snapshot, which must not contain later writes to the other shards.
#[test]
fn failed_write_of_one_shard_stops_all() {
    for shard in 0..SHARDS {
        let (drive, runtime) = (EmulatedDrive::in_memory(&geometry()), Runtime::new());
        wait(&runtime, Volume::create(&runtime, Rc::new(drive.clone()), options(1))).unwrap();
        let (runtime, volume) = open(&drive).unwrap();
        wait(&runtime, volume.flush()).unwrap();
        for zone in shard * 24..(shard + 1) * 24 {
            drive.ssd().borrow_mut().faults().after(0, Fault::WriteFault(ZoneIndex(zone)));
        }
        assert!(wait(&runtime, volume.write(0, &blocks_of(&[7; BLOCKS as usize]), false)).is_err());
        for at in [1, 17, 33] {
            let written = wait(&runtime, volume.write(at, &blocks_of(&[9]), false));
            assert!(written.is_err(), "block {at} after a failure of shard {shard}");
        }
        assert!(wait(&runtime, volume.flush()).is_err(), "shard {shard}");
        runtime.clear();
    }
}

/// The device reports a loss once: another shard must not write a root that relies on lost blocks.
#[test]
fn failed_flush_of_one_shard_stops_all() {
    let cached = Geometry { volatile_cache: true, ..geometry() };
    let (drive, runtime) = (EmulatedDrive::in_memory(&cached), Runtime::new());
    wait(&runtime, Volume::create(&runtime, Rc::new(drive.clone()), options(1))).unwrap();
    let behaviour = VolumeOptions { fua_stands_alone: true, ..VolumeOptions::default() };
    let volume = wait(&runtime, Volume::open(&runtime, Rc::new(drive.clone()), behaviour)).unwrap();
    wait(&runtime, volume.write(0, &blocks_of(&[7; BLOCKS as usize]), false)).unwrap();
    drive.ssd().borrow_mut().faults().after(0, Fault::Fail { kind: Kind::Flush, late: false });
    // A write with FUA to the first shard is a write and a flush of that shard alone.
    assert!(wait(&runtime, volume.write(0, &blocks_of(&[8]), true)).is_err());
    for at in [1, 17, 33] {
        assert!(wait(&runtime, volume.write(at, &blocks_of(&[9]), false)).is_err(), "block {at}");
    }
    assert!(wait(&runtime, volume.flush()).is_err());
    runtime.clear();
}

/// A creation that is interrupted after any command leaves no volume, and can be repeated.
#[test]
fn interrupted_creation_of_shards_is_repeated() {
    for commands in 0.. {
        let drive = EmulatedDrive::in_memory(&geometry());
        let device = Rc::new(Leaving::after(&drive, commands));
        let runtime = Runtime::new();
        let first = wait(&runtime, Volume::create(&runtime, device, options(1)));
        let is_there = open(&drive).is_ok();
        if first.is_ok() {
            assert!(is_there && commands > 10, "{commands} commands");
            return;
        }
        let again = wait(&runtime, Volume::create(&runtime, Rc::new(drive.clone()), options(2)));
        let expected = if is_there { Err(VolumeError::IsThere) } else { Ok(()) };
        assert_eq!(again, expected, "after {commands} commands");
        let (runtime, volume) = open(&drive).unwrap();
        wait(&runtime, volume.write(0, &blocks_of(&[5; 60]), true)).unwrap();
    }
}

/// Nothing else on the device counts as the rest of an interrupted creation.
#[test]
fn shards_are_not_created_on_other_data() {
    for zone in [0, 1, 24, 25, 26, 40, 72, 73] {
        let drive = EmulatedDrive::in_memory(&geometry());
        let runtime = Runtime::new();
        let lba = drive.geometry().start(ZoneIndex(zone));
        wait(&runtime, drive.submit(Command::write(lba, blocks_of(&[7]), true))).result.unwrap();
        let created = wait(&runtime, Volume::create(&runtime, Rc::new(drive.clone()), options(1)));
        assert_eq!(created, Err(VolumeError::NotEmpty { zone }));
        let read = wait(&runtime, drive.submit(Command::read(Lba(lba.0), Buf::zeroed(BLOCK))));
        assert_eq!(read.data[0], 7);
    }
}

/// A shard of another volume is no part of this one.
#[test]
fn foreign_shard_is_refused() {
    let drives = [1, 2].map(|uuid| {
        let (drive, runtime) = (EmulatedDrive::in_memory(&geometry()), Runtime::new());
        wait(&runtime, Volume::create(&runtime, Rc::new(drive.clone()), options(uuid))).unwrap();
        drive
    });
    let runtime = Runtime::new();
    let lba = geometry().start(ZoneIndex(24));
    let root = wait(&runtime, drives[1].submit(Command::read(lba, Buf::zeroed(BLOCK)))).data;
    let zones = engine::device::Zones::One(ZoneIndex(24));
    wait(&runtime, drives[0].submit(Command::Reset { zones })).result.unwrap();
    wait(&runtime, drives[0].submit(Command::write(lba, root, true))).result.unwrap();
    assert!(matches!(open(&drives[0]), Err(VolumeError::Absurd)));
}

#[test]
fn shards_need_blocks_and_active_zones() {
    let of = |geometry: &Geometry, blocks| VolumePlan::of(geometry, blocks, Some(SHARDS));
    assert!(of(&geometry(), Some(3 * 16)).is_ok());
    assert_eq!(of(&geometry(), Some(2 * 16)).err(), Some(NoVolume::Size { blocks: 32 }));
    let few = Geometry { max_active: 14, ..geometry() };
    assert_eq!(of(&few, None).err(), Some(NoVolume::FewActive { active: 14, least: 15 }));
}
