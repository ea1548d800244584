//! Volumes: what the simulator proves of them, that it would notice if it were not so, and what scripts show
//! better.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use engine::{
    buf::{BLOCK, Buf},
    device::{DeviceError, Geometry, Status, ZonedDevice},
    raid::policy::Policy,
    runtime::Runtime,
    volume::{Behaviour, Volume},
    zone::{Lba, ZoneIndex},
};
use sim::{
    simulator::volume::{CANARIES, Course, Over, Summary, run_seeds},
    ssd::EmulatedDrive,
};
use std::{future::Future, rc::Rc};

const MOST_SEEDS: u64 = 600;

fn play(course: Course, from: u64, to: u64) -> Summary {
    run_seeds(course, from..to, 2, &|| ())
}

fn sound(over: Over, seeds: u64) -> Summary {
    let summary = play(Course { over: Some(over), canary: None }, 0, seeds);
    let failures: Vec<_> = summary.failures.iter().map(|f| (f.seed, f.failure.clone())).collect();
    assert!(failures.is_empty(), "over {}: {failures:?}", over.name());
    summary
}

#[test]
fn over_a_drive_every_promise_is_kept_whenever_the_power_goes() {
    let counts = sound(Over::Drive, 60).counts;
    assert!(counts.judgements > 500 && counts.kills > 20 && counts.interrupted_recoveries > 20, "{counts:?}");
    assert!(counts.collected_zones > 50 && counts.discarded > 1000 && counts.refusals > 0, "{counts:?}");
}

#[test]
fn over_arrays_every_promise_is_kept_with_a_member_lost_in_the_same_moment() {
    for policy in Policy::ALL {
        let counts = sound(Over::Array { policy, parities: 1 }, 6).counts;
        assert!(counts.judgements > 20 && counts.member_losses > 10, "{counts:?}");
    }
    let counts = sound(Over::Array { policy: Policy::Zrwa, parities: 2 }, 3).counts;
    assert!(counts.judgements > 5, "{counts:?}");
}

#[test]
fn every_broken_rule_is_found() {
    for (name, canary) in CANARIES {
        let course = Course { over: Some(Over::Drive), canary: Some(canary) };
        let found =
            (0..MOST_SEEDS / 20).any(|batch| !play(course, batch * 20, batch * 20 + 20).failures.is_empty());
        assert!(found, "{name} was not found in {MOST_SEEDS} seeds");
    }
}

fn geometry() -> Geometry {
    Geometry {
        zones: 24,
        zone_size_blocks: 64,
        zone_capacity_blocks: 60,
        max_open: 8,
        max_active: 8,
        zrwa: None,
        oob_bytes: 0,
        max_transfer_blocks: 32,
        max_append_blocks: 0,
        volatile_cache: false,
    }
}

fn wait<T>(runtime: &Runtime, work: impl Future<Output = T>) -> T {
    runtime.block_on(work, || false).expect("it hangs")
}

fn open(drive: &EmulatedDrive) -> (Runtime, Volume) {
    let runtime = Runtime::new();
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    let volume = wait(&runtime, Volume::open(&runtime, device, Behaviour::default())).unwrap();
    (runtime, volume)
}

fn made(blocks: Option<u64>) -> (EmulatedDrive, Runtime, Volume) {
    let drive = EmulatedDrive::in_memory(&geometry());
    wait(&Runtime::new(), Volume::create(Rc::new(drive.clone()), *b"sixteen bytes...", blocks)).unwrap();
    let (runtime, volume) = open(&drive);
    (drive, runtime, volume)
}

fn block(byte: u8) -> Buf {
    Buf::copy_of(&[byte; BLOCK])
}

fn read(runtime: &Runtime, volume: &Volume, at: u64) -> u8 {
    wait(runtime, volume.read(at, Buf::zeroed(BLOCK))).unwrap()[0]
}

#[test]
fn a_full_volume_says_so_before_it_acknowledges_and_a_discard_makes_room() {
    let (_, runtime, volume) = made(Some(5000));
    let usable = volume.status().usable;
    let full = DeviceError::Status(Status::CapacityExceeded);
    for at in 0..usable {
        wait(&runtime, volume.write(at, &block(at as u8), false)).unwrap();
    }
    assert_eq!(wait(&runtime, volume.write(usable, &block(1), false)), Err(full));
    // Overwriting is never refused, and goes on for as long as anybody likes.
    for round in 0..8 * usable {
        let at = round * 7919 % usable;
        wait(&runtime, volume.write(at, &block(at as u8), false)).unwrap();
    }
    let status = volume.status();
    assert!(status.collected_zones > 20 && status.mapped == usable, "{status:?}");
    wait(&runtime, volume.discard(10, 5)).unwrap();
    assert_eq!(volume.status().mapped, usable - 5);
    for at in usable..usable + 5 {
        wait(&runtime, volume.write(at, &block(9), false)).unwrap();
    }
    assert_eq!(wait(&runtime, volume.write(usable + 5, &block(1), false)), Err(full));
    for at in 0..usable {
        let expected = if (10..15).contains(&at) { 0 } else { at as u8 };
        assert_eq!(read(&runtime, &volume, at), expected, "block {at}");
    }
    wait(&runtime, volume.audit()).unwrap();
    runtime.clear();
}

#[test]
fn a_volume_that_was_stopped_starts_without_anything_to_recover() {
    let (drive, runtime, volume) = made(None);
    for at in 0..200 {
        wait(&runtime, volume.write(at, &block(at as u8 + 1), false)).unwrap();
    }
    wait(&runtime, volume.stop()).unwrap();
    runtime.clear();
    let (runtime, volume) = open(&drive);
    assert_eq!(volume.status().written.blocks(), 0);
    assert_eq!(read(&runtime, &volume, 199), 200);
    runtime.clear();
    // One that was not has something to recover, once.
    let (runtime, volume) = open(&drive);
    wait(&runtime, volume.write(0, &block(77), false)).unwrap();
    runtime.clear();
    let (runtime, volume) = open(&drive);
    assert!(volume.status().written.roots > 0);
    assert_eq!(read(&runtime, &volume, 0), 77);
    runtime.clear();
    let (runtime, volume) = open(&drive);
    assert_eq!(volume.status().written.blocks(), 0);
    runtime.clear();
    drop(volume);
}

#[test]
fn what_is_no_volume_is_refused_and_what_is_on_a_device_is_not_overwritten() {
    let blank = EmulatedDrive::in_memory(&geometry());
    let runtime = Runtime::new();
    let open = |drive: &EmulatedDrive| {
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        wait(&runtime, Volume::open(&runtime, device, Behaviour::default())).err().unwrap().0
    };
    assert_eq!(open(&blank), "there is no volume on the device");
    let (used, ..) = made(None);
    let again = wait(&runtime, Volume::create(Rc::new(used), [1; 16], None)).unwrap_err().0;
    assert!(again.contains("there is something in zone 0"), "{again}");
    runtime.clear();
}

#[test]
fn damaged_pages_cost_their_own_blocks_and_nothing_else() {
    let (drive, runtime, volume) = made(Some(3000));
    for at in [0, 1100, 2100] {
        wait(&runtime, volume.write(at, &block(5), true)).unwrap();
    }
    wait(&runtime, volume.stop()).unwrap();
    runtime.clear();
    // The page of block 1100 is the second that was written to the first map zone.
    let zones = (2..24).map(ZoneIndex);
    let map_zone = zones.into_iter().find(|zone| {
        let lba = drive.geometry().start(*zone);
        let mut ssd = drive.ssd().borrow_mut();
        ssd.stored(lba).unwrap().is_some_and(|bytes| bytes[..4] == *b"zvs1")
    });
    let lba = Lba(drive.geometry().start(map_zone.unwrap()).0 + 1);
    let fault = sim::ssd::Fault::Corrupt { lba, bit: 999 };
    drive.ssd().borrow_mut().faults().after(0, fault);
    let (runtime, volume) = open(&drive);
    let lost = DeviceError::Status(Status::UnrecoveredReadError);
    assert_eq!(wait(&runtime, volume.read(1100, Buf::zeroed(BLOCK))).unwrap_err(), lost);
    assert_eq!(wait(&runtime, volume.write(1100, &block(6), false)), Err(lost));
    assert_eq!((read(&runtime, &volume, 0), read(&runtime, &volume, 2100)), (5, 5));
    runtime.clear();
}
