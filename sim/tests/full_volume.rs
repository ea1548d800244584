//! Over-committed volumes whose usable blocks are all in use.

use crate::support::volume::{block, geometry};
use emu::{rng::Rng, ssd::EmulatedDrive};
use engine::{
    buf::Buf,
    device::{DeviceError, Status, ZonedDevice},
    runtime::Runtime,
    volume::{Volume, VolumeCreateOptions, VolumeOptions},
};
use std::{future::Future, rc::Rc};

const FULL: DeviceError = DeviceError::Status(Status::CapacityExceeded);

fn wait<T>(runtime: &Runtime, work: impl Future<Output = T>) -> T {
    runtime.block_on(work, || false).expect("it hangs")
}

fn open(drive: &EmulatedDrive) -> (Runtime, Volume) {
    let runtime = Runtime::new();
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    let volume = wait(&runtime, Volume::open(&runtime, device, VolumeOptions::default())).unwrap();
    (runtime, volume)
}

fn made(blocks: Option<u64>) -> (EmulatedDrive, Runtime, Volume) {
    let drive = EmulatedDrive::in_memory(&geometry());
    let options = VolumeCreateOptions { uuid: [1; 16], blocks, ..VolumeCreateOptions::default() };
    wait(&Runtime::new(), Volume::create(&Runtime::new(), Rc::new(drive.clone()), options)).unwrap();
    let (runtime, volume) = open(&drive);
    (drive, runtime, volume)
}

/// Writes new blocks from `at` on until one is refused; returns that block.
fn fill(runtime: &Runtime, volume: &Volume, mut at: u64) -> u64 {
    loop {
        match wait(runtime, volume.write(at, &block(at as u8), false)) {
            Ok(()) => at += 1,
            Err(error) => {
                assert_eq!(error, FULL);
                return at;
            }
        }
    }
}

#[test]
fn full_volume_takes_overwrites_discards_and_new_blocks() {
    let (mut drive, mut runtime, mut volume) = made(Some(8000));
    let end = fill(&runtime, &volume, 0);
    let status = volume.status();
    assert!(status.reserve > 0 && status.usable == end && status.mapped == end, "{status:?}");
    let mut rng = Rng::new(3);
    for round in 0..4 {
        // Overwrites and discards are never refused, in any order.
        for _ in 0..2 * end {
            let at = rng.below(end);
            wait(&runtime, volume.write(at, &block(at as u8), rng.below(8) == 0)).unwrap();
        }
        let (at, blocks) = (rng.below(end - 64), 1 + rng.below(63));
        wait(&runtime, volume.discard(at, blocks)).unwrap();
        for block_at in at..at + blocks {
            wait(&runtime, volume.write(block_at, &block(block_at as u8), false)).unwrap();
        }
        wait(&runtime, volume.audit()).unwrap();
        if round % 2 == 1 {
            runtime.clear();
            (runtime, volume) = open(&drive);
        }
    }
    for at in (0..end).step_by(7) {
        assert_eq!(wait(&runtime, volume.read(at, Buf::zeroed(4096))).unwrap()[0], at as u8);
    }
    _ = &mut drive;
}

/// The reserve is for file systems, which replay their journal to blocks that were never written before they discard
/// any.
#[test]
fn full_volume_start_lends_half_of_reserve() {
    let (drive, runtime, volume) = made(Some(8000));
    let end = fill(&runtime, &volume, 0);
    let reserve = volume.status().reserve;
    wait(&runtime, volume.stop()).unwrap();
    runtime.clear();
    let (runtime, volume) = open(&drive);
    let lent = fill(&runtime, &volume, end) - end;
    assert_eq!(lent, reserve / 2);
    // The other half is for overwrites, and is not lent at further starts.
    wait(&runtime, volume.stop()).unwrap();
    runtime.clear();
    let (runtime, volume) = open(&drive);
    assert_eq!(fill(&runtime, &volume, end + lent), end + lent);
    for at in 0..2 * end {
        wait(&runtime, volume.write(at % end, &block(at as u8), false)).unwrap();
    }
    wait(&runtime, volume.audit()).unwrap();
}

#[test]
fn lent_reserve_takes_new_blocks_until_process_ends() {
    let (drive, runtime, volume) = made(Some(8000));
    let end = fill(&runtime, &volume, 0);
    let reserve = volume.status().reserve;
    volume.lend(7);
    assert_eq!((fill(&runtime, &volume, end), volume.status().lent), (end + 7, 7));
    volume.lend(0);
    assert_eq!(fill(&runtime, &volume, end + 7), end + 7);
    volume.lend(u64::MAX);
    assert_eq!(volume.status().lent, reserve);
    let all = fill(&runtime, &volume, end + 7);
    assert_eq!(all, end + reserve);
    for at in 0..2 * all {
        wait(&runtime, volume.write(at % all, &block(at as u8), false)).unwrap();
    }
    wait(&runtime, volume.audit()).unwrap();
    wait(&runtime, volume.stop()).unwrap();
    runtime.clear();
    let (_runtime, volume) = open(&drive);
    assert_eq!(volume.status().lent, reserve / 2);
}

#[test]
fn volume_queue_time_survives_power_cut() {
    let (drive, runtime, volume) = made(Some(8000));
    assert_eq!(volume.status().queue_seconds, 0);
    wait(&runtime, volume.queue_writes(200)).unwrap();
    runtime.clear();
    let (_runtime, volume) = open(&drive);
    assert_eq!(volume.status().queue_seconds, 200);
}

/// A discard ends the waiting of writes for room, and until then they are counted.
#[test]
fn volume_discard_wakes_writes_waiting_for_room() {
    let (_drive, runtime, volume) = made(Some(8000));
    let end = fill(&runtime, &volume, 0);
    let waiting = volume.clone();
    runtime.spawn(async move {
        waiting.room_made().await;
        waiting.write(end, &block(9), false).await.unwrap();
    });
    runtime.run();
    assert_eq!(volume.status().waiting, 1);
    wait(&runtime, volume.discard(0, 100)).unwrap();
    runtime.run();
    assert_eq!(volume.status().waiting, 0);
    assert_eq!(wait(&runtime, volume.read(end, Buf::zeroed(4096))).unwrap()[0], 9);
}

#[test]
fn volume_without_over_commitment_keeps_no_reserve() {
    let (_, runtime, volume) = made(None);
    let status = volume.status();
    assert_eq!((status.reserve, status.usable, volume.is_over_committed()), (0, status.blocks, false));
    for at in 0..status.blocks {
        wait(&runtime, volume.write(at, &block(at as u8), false)).unwrap();
    }
}
