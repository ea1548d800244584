//! Volumes: runs of the simulator, and scripted tests where these are clearer.

use crate::support::volume::{block, geometry, noise, text};
use emu::ssd::{EmulatedDrive, Fault, Kind};
use engine::{
    buf::{BLOCK, Buf},
    device::{
        Command, Completer, Completion, DeviceError, Done, Geometry, Slots, Status, ZonedDevice, Zones,
    },
    evidence::Presence,
    raid::policy::Policy,
    runtime::{COPY, MOST_WORK, Runtime, SLICE},
    volume::{Codec, Unit, Volume, VolumeCreateOptions, VolumeError, VolumeOptions, VolumePlan},
    zone::{Lba, ZoneIndex, ZoneState},
};
use sim::simulator::{
    layer::seeds::run_seeds,
    volume::{DeviceBelow, VolumeModel, VolumeSummary},
};
use std::{
    cell::{Cell, RefCell},
    future::Future,
    rc::Rc,
    task::Poll,
};

fn play(over: Option<DeviceBelow>, from: u64, to: u64) -> VolumeSummary {
    run_seeds::<VolumeModel>(over, from..to, 2, &|| ())
}

fn sound(over: DeviceBelow, seeds: u64) -> VolumeSummary {
    let summary = play(Some(over), 0, seeds);
    let failures: Vec<_> = summary.failures.iter().map(|f| (f.seed, f.failure.clone())).collect();
    assert!(failures.is_empty(), "over {}: {failures:?}", over.name());
    summary
}

#[test]
fn volume_on_drive_keeps_promises_through_every_end() {
    let counts = sound(DeviceBelow::Drive, 60).counts;
    assert!(counts.judgements > 500 && counts.kills > 20 && counts.interrupted_recoveries > 20, "{counts:?}");
    let own = counts.own;
    assert!(own.collected_zones > 50 && own.discarded > 1000 && own.refusals > 0, "{own:?}");
}

#[test]
fn volume_on_arrays_survives_cut_with_member_loss() {
    for policy in Policy::ALL {
        let counts = sound(DeviceBelow::Array { policy, parities: 1, group_blocks: 0 }, 6).counts;
        assert!(counts.judgements > 20 && counts.member_losses > 10, "{counts:?}");
    }
    for (policy, parities, group_blocks) in [(Policy::Zrwa, 2, 0), (Policy::Log, 1, 16)] {
        let counts = sound(DeviceBelow::Array { policy, parities, group_blocks }, 3).counts;
        assert!(counts.judgements > 5, "{counts:?}");
    }
}

/// Writes that waited for a page of the map while the device failed a write then waited for room forever.
#[test]
fn volume_waiting_write_fails_when_device_fails() {
    for seed in [4571, 4599] {
        let failures = play(None, seed, seed + 1).failures;
        assert!(failures.is_empty(), "seed {seed}: {:?}", failures[0].failure);
    }
}

fn wait<T>(runtime: &Runtime, work: impl Future<Output = T>) -> T {
    runtime.block_on(work, || false).expect("it hangs")
}

fn try_open(drive: &EmulatedDrive, behaviour: VolumeOptions) -> (Runtime, Result<Volume, String>) {
    let runtime = Runtime::new();
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    let volume = wait(&runtime, Volume::open(&runtime, device, behaviour)).map_err(|error| error.to_string());
    (runtime, volume)
}

fn open(drive: &EmulatedDrive) -> (Runtime, Volume) {
    let (runtime, volume) = try_open(drive, VolumeOptions::default());
    (runtime, volume.unwrap())
}

fn made(blocks: Option<u64>) -> (EmulatedDrive, Runtime, Volume) {
    made_on(&geometry(), blocks)
}

fn made_on(geometry: &Geometry, blocks: Option<u64>) -> (EmulatedDrive, Runtime, Volume) {
    let drive = EmulatedDrive::in_memory(geometry);
    wait(
        &Runtime::new(),
        Volume::create(
            &Runtime::new(),
            Rc::new(drive.clone()),
            VolumeCreateOptions { uuid: *b"sixteen bytes...", blocks, ..VolumeCreateOptions::default() },
        ),
    )
    .unwrap();
    let (runtime, volume) = open(&drive);
    (drive, runtime, volume)
}

fn read(runtime: &Runtime, volume: &Volume, at: u64) -> u8 {
    wait(runtime, volume.read(at, Buf::zeroed(BLOCK))).unwrap()[0]
}

#[test]
fn volume_presence_follows_its_head_zones() {
    let drive = EmulatedDrive::in_memory(&geometry());
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    let runtime = Runtime::new();
    let is_on = || wait(&runtime, Volume::is_on(device.clone())).unwrap() == Presence::Yes;
    let create = |blocks| {
        wait(
            &runtime,
            Volume::create(
                &Runtime::new(),
                device.clone(),
                VolumeCreateOptions { uuid: [1; 16], blocks, ..VolumeCreateOptions::default() },
            ),
        )
        .err()
    };
    assert!(!is_on());
    assert_eq!(
        wait(&runtime, Volume::open(&runtime, device.clone(), VolumeOptions::default())).err(),
        Some(VolumeError::NotThere)
    );
    // Foreign data.
    let start = drive.geometry().start(ZoneIndex(0));
    wait(&runtime, drive.submit(Command::write(start, block(7), false))).result.unwrap();
    assert_eq!((is_on(), create(None)), (false, Some(VolumeError::NotEmpty { zone: 0 })));
    let zones = Zones::One(ZoneIndex(0));
    wait(&runtime, drive.submit(Command::Reset { zones })).result.unwrap();
    assert_eq!((create(None), is_on()), (None, true));
    assert_eq!(create(Some(100)), Some(VolumeError::IsThere));
    // Each root has several blocks: an unreadable first block hides nothing.
    let volume = wait(&runtime, Volume::open(&runtime, device.clone(), VolumeOptions::default())).unwrap();
    wait(&runtime, volume.stop()).unwrap();
    strike(&drive, Fault::Unreadable(start));
    assert!(is_on());
}

#[test]
fn volume_presence_with_offline_head_follows_other_zones() {
    let fill = |drive: &EmulatedDrive, byte| {
        let start = drive.geometry().start(ZoneIndex(7));
        wait(&Runtime::new(), drive.submit(Command::write(start, block(byte), true))).result.unwrap();
    };
    let is_on = |drive: &EmulatedDrive| {
        (0..2).for_each(|zone| strike(drive, Fault::Offline(ZoneIndex(zone))));
        let device = Rc::new(Forgetting(drive.clone()));
        wait(&Runtime::new(), Volume::is_on(device)).unwrap()
    };
    let (drive, runtime, volume) = made(Some(5000));
    wait(&runtime, volume.write(1, &block(1), true)).unwrap();
    assert_eq!(is_on(&drive), Presence::Yes);
    // With an offline head a volume is possible; foreign data elsewhere proves that there is none.
    let drive = EmulatedDrive::in_memory(&geometry());
    assert_eq!(is_on(&drive), Presence::Unknown(vec![0, 1]));
    fill(&drive, 7);
    assert_eq!(is_on(&drive), Presence::No);
}

#[test]
fn volume_extents_report_mapped_blocks() {
    let (_, runtime, volume) = made(Some(5000));
    let extents = || {
        let (mut at, mut all) = (0, Vec::new());
        while at < volume.blocks() {
            let (mapped, blocks) = wait(&runtime, volume.extent(at, volume.blocks() - at)).unwrap();
            all.push((mapped, blocks));
            at += blocks;
        }
        all
    };
    assert_eq!(extents(), [(false, 5000)]);
    for at in [3, 4, 1015, 1016, 4999] {
        wait(&runtime, volume.write(at, &block(1), false)).unwrap();
    }
    assert_eq!(extents(), [(false, 3), (true, 2), (false, 1010), (true, 2), (false, 3982), (true, 1)],);
    wait(&runtime, volume.discard(4, 1012)).unwrap();
    assert_eq!(extents(), [(false, 3), (true, 1), (false, 1012), (true, 1), (false, 3982), (true, 1)]);
    assert_eq!(wait(&runtime, volume.extent(3, 1)), Ok((true, 1)));
    let beyond = Err(DeviceError::Status(Status::LbaOutOfRange));
    assert_eq!(wait(&runtime, volume.extent(4999, 2)), beyond);
    runtime.clear();
}

/// Other ready tasks run at least after each slice, and unmapped pages are skipped as a whole.
#[test]
fn volume_long_requests_yield_to_other_tasks() {
    let large = Geometry {
        zones: 40,
        zone_size_blocks: 1024,
        zone_capacity_blocks: 1024,
        max_transfer_blocks: 128,
        ..geometry()
    };
    let (_, runtime, volume) = made_on(&large, Some(1 << 20));
    let turns = Rc::new(Cell::new(0));
    let (counted, counter) = (turns.clone(), runtime.clone());
    runtime.spawn(async move {
        // Always ready, like another client with work.
        loop {
            counted.set(counted.get() + 1);
            let mut given = false;
            std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut given, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    });
    let taken = |what: &str, least: u32| {
        let (turns, most) = (turns.replace(0), counter.most_worked());
        assert!(turns >= least, "{what}: others had {turns} turns");
        assert!(most <= MOST_WORK, "{what}: {most} units of work in one turn");
    };
    assert_eq!(wait(&runtime, volume.extent(0, 1 << 20)), Ok((false, 1 << 20)));
    taken("an extent of 4 GiB without a page", 0);
    let data: Vec<u8> = (0..1500).flat_map(noise).collect();
    let data = Buf::copy_of(&data);
    wait(&runtime, volume.write(100, &data, false)).unwrap();
    taken("a write of 1,500 blocks", 1500 * COPY / SLICE);
    let mut read = Buf::zeroed(1500 * BLOCK);
    read = wait(&runtime, volume.read(100, read)).unwrap();
    assert!(read[..] == data[..]);
    taken("a read of 1,500 blocks", 1);
    assert_eq!(wait(&runtime, volume.extent(100, 64 << 10)), Ok((true, 1500)));
    taken("an extent of 1,500 blocks", 1);
    wait(&runtime, volume.discard(0, 1 << 20)).unwrap();
    taken("a discard of 4 GiB", 2);
    assert_eq!(wait(&runtime, volume.extent(0, 1 << 20)), Ok((false, 1 << 20)));
    taken("an extent of 4 GiB with three pages", 1);
    runtime.clear();
}

#[test]
fn volume_full_refuses_writes_until_discard() {
    let (_, runtime, volume) = made(Some(5000));
    let usable = volume.status().usable;
    let full = DeviceError::Status(Status::CapacityExceeded);
    for at in 0..usable {
        wait(&runtime, volume.write(at, &block(at as u8), false)).unwrap();
    }
    assert_eq!(wait(&runtime, volume.write(usable, &block(1), false)), Err(full));
    // Overwrites are never refused, however many there are.
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

/// The header is in the same block, whether the volume compresses its data or not.
#[test]
fn volume_lone_write_takes_one_block_if_compressible() {
    for codec in [None, Some(Codec::Lz4)] {
        let (drive, runtime, volume) = made(Some(300));
        wait(&runtime, volume.compress(codec, Unit::BLOCK)).unwrap();
        let blocks = |at: u64, data: &Buf| {
            let before = volume.status().written;
            wait(&runtime, volume.write(at, data, true)).unwrap();
            let after = volume.status().written;
            (after.blocks() - before.blocks(), after.headers - before.headers)
        };
        for at in 0..20 {
            assert_eq!(blocks(at, &text(at as u8 + 1)), (1, 0), "block {at}");
        }
        assert_eq!(blocks(20, &block(21)), (2, 1));
        // Of several blocks the first one makes room.
        let three = Buf::copy_of(&[&text(22)[..], &block(23), &block(24)].concat());
        assert_eq!(blocks(21, &three), (3, 0));
        runtime.clear();
        let (runtime, volume) = open(&drive);
        (0..24).for_each(|at| assert_eq!(read(&runtime, &volume, at), at as u8 + 1));
        assert_eq!(wait(&runtime, volume.read(4, Buf::zeroed(BLOCK))).unwrap()[..], text(5)[..]);
        assert_eq!(wait(&runtime, volume.read(21, Buf::zeroed(3 * BLOCK))).unwrap()[..], three[..]);
        wait(&runtime, volume.audit()).unwrap();
        runtime.clear();
    }
}

/// Collection makes squeezed blocks whole, so that they do not lie across two blocks of the device.
#[test]
fn volume_collection_moves_squeezed_blocks_as_whole_ones() {
    let (drive, runtime, volume) = made(Some(300));
    for at in 0..40 {
        wait(&runtime, volume.write(at, &text(at as u8), true)).unwrap();
        wait(&runtime, volume.write(40 + at, &block(1), true)).unwrap();
    }
    for round in 0..3000 {
        let at = 40 + round * 7919 % 250;
        wait(&runtime, volume.write(at, &block(round as u8), false)).unwrap();
    }
    assert!(volume.status().written.moved >= 40);
    for group in zones_of(&drive, b"zvg1").into_iter().flat_map(|zone| groups_in(&drive, zone)) {
        let header = drive.ssd().borrow_mut().stored(group).unwrap().unwrap().to_vec();
        let (is_of_moves, entries) = (header[44] == 2, header[40] as usize);
        let grains = (0..entries).map(|entry| header[64 + 16 * entry + 12]);
        assert!(!is_of_moves || grains.clone().all(|grains| grains == 64), "{group:?}");
    }
    (0..40).for_each(|at| {
        let data = wait(&runtime, volume.read(at, Buf::zeroed(BLOCK))).unwrap();
        assert!(data[..] == text(at as u8)[..], "block {at}");
    });
    wait(&runtime, volume.audit()).unwrap();
    runtime.clear();
}

/// The volume may be a read-only one, or on a deferred-write array without a member.
#[test]
fn volume_without_writes_writes_nothing_after_start() {
    let (drive, mut runtime, mut volume) = made(Some(5000));
    let usable = volume.status().usable;
    for at in 0..usable {
        wait(&runtime, volume.write(at, &block(1), false)).unwrap();
    }
    let (mut collecting, mut at) = (0, 0);
    for _ in 0..20 {
        while !volume.status().collects {
            at = (at + 7919) % usable;
            wait(&runtime, volume.write(at, &block(2), false)).unwrap();
        }
        runtime.clear();
        (runtime, volume) = open(&drive);
        let before = volume.status();
        runtime.run();
        assert_eq!(volume.status(), before);
        wait(&runtime, volume.write(at, &block(3), false)).unwrap();
        runtime.run();
        collecting += u32::from(volume.status().collected_zones > 0);
    }
    assert!(collecting > 0, "there was nothing to collect");
    runtime.clear();
}

#[test]
fn volume_start_after_stop_recovers_nothing() {
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
    // A volume that was not stopped has changes to recover, once.
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
fn volume_open_refuses_blank_and_create_refuses_volume() {
    let blank = EmulatedDrive::in_memory(&geometry());
    let runtime = Runtime::new();
    let open = |drive: &EmulatedDrive| {
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        wait(&runtime, Volume::open(&runtime, device, VolumeOptions::default())).err()
    };
    assert_eq!(open(&blank), Some(VolumeError::NotThere));
    let (used, ..) = made(None);
    let again = wait(
        &runtime,
        Volume::create(
            &Runtime::new(),
            Rc::new(used),
            VolumeCreateOptions { uuid: [1; 16], ..VolumeCreateOptions::default() },
        ),
    )
    .err();
    assert_eq!(again, Some(VolumeError::IsThere));
    runtime.clear();
}

/// A stopped volume with three blocks, each on another page of the map; also the address of the second page.
fn with_pages() -> (EmulatedDrive, Lba) {
    let (drive, runtime, volume) = made(Some(3000));
    for at in [0, 1100, 2100] {
        wait(&runtime, volume.write(at, &block(5), true)).unwrap();
    }
    wait(&runtime, volume.stop()).unwrap();
    runtime.clear();
    let lba = newest_page(&drive, 1);
    (drive, lba)
}

const LOST: DeviceError = DeviceError::Status(Status::UnrecoveredReadError);

#[test]
fn volume_damaged_map_page_loses_own_blocks_only() {
    let (drive, lba) = with_pages();
    strike(&drive, Fault::Corrupt { lba, bit: 999 });
    let (runtime, volume) = open(&drive);
    assert_eq!(wait(&runtime, volume.read(1100, Buf::zeroed(BLOCK))).unwrap_err(), LOST);
    assert_eq!(wait(&runtime, volume.write(1100, &block(6), false)), Err(LOST));
    assert_eq!((read(&runtime, &volume, 0), read(&runtime, &volume, 2100)), (5, 5));
    runtime.clear();
}

#[test]
fn volume_gives_up_damaged_page_only_on_request() {
    let (drive, lba) = with_pages();
    let (runtime, volume) = open(&drive);
    for at in [0, 1100, 1101, 2100] {
        wait(&runtime, volume.write(at, &block(6), true)).unwrap();
    }
    runtime.clear();
    strike(&drive, Fault::Corrupt { lba, bit: 999 });
    for _ in 0..2 {
        let (runtime, volume) = try_open(&drive, VolumeOptions::default());
        let said = volume.err().unwrap();
        assert!(said.contains("the map page for blocks 672 and following cannot be read"), "{said}");
        runtime.clear();
    }
    let (runtime, volume) = try_open(&drive, VolumeOptions { give_up: true, ..VolumeOptions::default() });
    let volume = volume.unwrap();
    assert_eq!(volume.given_up(), [VolumeError::PageUnreadable { page: 1, error: LOST }]);
    runtime.clear();
    // The loss is final, also if the page becomes readable again.
    let (runtime, volume) = open(&drive);
    assert_eq!(volume.given_up(), []);
    assert_eq!(wait(&runtime, volume.read(1100, Buf::zeroed(BLOCK))).unwrap_err(), LOST);
    runtime.clear();
    strike(&drive, Fault::Corrupt { lba, bit: 999 });
    let (runtime, volume) = open(&drive);
    assert_eq!([0, 1100, 2100].map(|at| read(&runtime, &volume, at)), [6, 5, 6]);
    wait(&runtime, volume.audit()).unwrap();
    runtime.clear();
}

#[test]
fn volume_start_names_all_data_that_it_would_give_up() {
    let (drive, _) = with_pages();
    let (runtime, volume) = open(&drive);
    for at in [0, 1100, 2100] {
        wait(&runtime, volume.write(at, &block(6), true)).unwrap();
    }
    runtime.clear();
    for page in [1, 3] {
        strike(&drive, Fault::Corrupt { lba: newest_page(&drive, page), bit: 999 });
    }
    let (runtime, volume) = try_open(&drive, VolumeOptions::default());
    let said = volume.err().unwrap();
    for first in [672, 2016] {
        assert!(said.contains(&format!("the map page for blocks {first} and following")), "{said}");
    }
    runtime.clear();
    let (runtime, volume) = try_open(&drive, VolumeOptions { give_up: true, ..VolumeOptions::default() });
    assert_eq!(volume.unwrap().given_up().len(), 2);
    runtime.clear();
}

/// The blocks of the volume that cannot be read if a block of the device is unreadable, and those of an unreadable page
/// of the map, are known before.
#[test]
fn volume_names_blocks_stored_in_range_of_zone() {
    const BLOCKS: u64 = 300;
    for (codec, shards) in [(None, 1), (Some(Codec::Lz4), 1), (Some(Codec::Lz4), 2)] {
        let geometry = Geometry { zones: 52, max_open: 12, max_active: 12, ..geometry() };
        let drive = EmulatedDrive::in_memory(&geometry);
        let options = VolumeCreateOptions {
            blocks: Some(BLOCKS),
            codec,
            unit: Unit::MOST,
            shards: Some(shards),
            ..VolumeCreateOptions::default()
        };
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        let runtime = Runtime::new();
        wait(&runtime, Volume::create(&runtime, device, options)).unwrap();
        let (runtime, volume) = open(&drive);
        for number in 0..60 {
            let (at, blocks) = (number * 37 % (BLOCKS - 16), 1 + number % 16);
            let data: Vec<u8> = (at..at + blocks).flat_map(|at| short(at).to_vec()).collect();
            wait(&runtime, volume.write(at, &Buf::copy_of(&data), true)).unwrap();
        }
        wait(&runtime, volume.discard(17, 20)).unwrap();
        let (map, mut named, mut empty) = (zones_of(&drive, b"zvs1"), 0, 0);
        for zone in (2..geometry.zones).map(ZoneIndex) {
            let info = drive.ssd().borrow().zones().info(zone);
            let written =
                if info.state == ZoneState::Full { geometry.zone_capacity_blocks } else { info.wp_blocks };
            for at in (0..written).step_by(3) {
                let stored = wait(&runtime, volume.stored_in(zone, std::slice::from_ref(&(at..at + 1))));
                let lba = Lba(geometry.start(zone).0 + at);
                strike(&drive, Fault::Unreadable(lba));
                let is_lost = |at: &u64| wait(&runtime, volume.read(*at, Buf::zeroed(BLOCK))).is_err();
                let lost: Vec<u64> = (0..BLOCKS).filter(is_lost).collect();
                assert_eq!(stored.blocks.into_iter().collect::<Vec<u64>>(), lost, "block {at} of {zone:?}");
                // A block of the directory is in memory, and was there at the last checkpoint.
                assert!(!stored.may_be_more || map.contains(&zone));
                named += lost.len();
                empty += lost.is_empty() as usize;
                drive.ssd().borrow_mut().faults().mend();
            }
        }
        assert!(named > 20 && empty > 5, "{named} blocks, and {empty} places without one");
        runtime.clear();
    }
    let (drive, lba) = with_pages();
    let (runtime, volume) = open(&drive);
    let (zone, at) = geometry().locate(lba);
    let stored = wait(&runtime, volume.stored_in(zone, std::slice::from_ref(&(at..at + 1))));
    assert_eq!((stored.blocks.len(), stored.blocks.first(), stored.may_be_more), (672, Some(&672), false));
    // The page is in memory now.
    assert_eq!(read(&runtime, &volume, 1100), 5);
    let stored = wait(&runtime, volume.stored_in(zone, std::slice::from_ref(&(at..at + 1))));
    assert!(stored.blocks.is_empty() && stored.may_be_more);
    runtime.clear();
}

/// A change would commit a deferred-write array without its missing member.
#[test]
fn volume_failed_start_changes_nothing() {
    let (drive, lba) = with_pages();
    let device = Rc::new(Holding::of(&drive));
    let runtime = Runtime::new();
    let opened = Volume::open(&runtime, device.clone(), VolumeOptions::default());
    let volume = wait(&runtime, opened).unwrap();
    // Zones are dead according to a durable root, and are not reset yet.
    for round in 0..150 {
        wait(&runtime, volume.write(0, &block(round), false)).unwrap();
    }
    device.holds.set(|command| matches!(command, Command::Reset { .. }));
    let stopping = volume.clone();
    runtime.spawn(async move { _ = stopping.stop().await });
    runtime.run();
    assert!(!device.held.borrow().is_empty());
    wait(&runtime, volume.write(1100, &block(6), true)).unwrap();
    runtime.clear();
    strike(&drive, Fault::Corrupt { lba, bit: 999 });
    let state = |zone| drive.ssd().borrow().zones().info(ZoneIndex(zone));
    let states = || (0..geometry().zones).map(state).collect::<Vec<_>>();
    let before = states();
    assert!(try_open(&drive, VolumeOptions::default()).1.is_err());
    assert_eq!(states(), before);
}

#[test]
fn volume_discards_cause_checkpoints_like_writes() {
    // So large that no zone is collected.
    let (_, runtime, volume) = made_on(&Geometry { zones: 100, ..geometry() }, Some(3000));
    for at in 0..300 {
        wait(&runtime, volume.write(at, &block(1), false)).unwrap();
    }
    wait(&runtime, volume.stop()).unwrap();
    let before = volume.status().checkpoints;
    // Each has a header of its own that a start would read: more than four zones of headers.
    for at in 0..300 {
        wait(&runtime, volume.discard(at, 1)).unwrap();
    }
    let status = volume.status();
    assert!(status.checkpoints > before && status.collected_zones == 0, "{status:?}");
    runtime.clear();
}

#[test]
fn volume_create_repeats_interrupted_creation() {
    let large = Geometry { zones: 1000, ..geometry() };
    let create = |drive: &EmulatedDrive| {
        let options =
            VolumeCreateOptions { uuid: [1; 16], blocks: Some(3000), ..VolumeCreateOptions::default() };
        wait(&Runtime::new(), Volume::create(&Runtime::new(), Rc::new(drive.clone()), options))
    };
    let whole = EmulatedDrive::in_memory(&large);
    create(&whole).unwrap();
    let root = |at| whole.ssd().borrow_mut().stored(Lba(at)).unwrap().unwrap()[..BLOCK].to_vec();
    let put = |drive: &EmulatedDrive, lba: Lba, bytes: &[u8]| {
        let written = drive.submit(Command::write(lba, Buf::copy_of(bytes), true));
        wait(&Runtime::new(), written).result.unwrap();
    };
    let drive = EmulatedDrive::in_memory(&large);
    put(&drive, Lba(0), &root(0));
    assert_eq!(
        try_open(&drive, VolumeOptions::default()).1.err().unwrap(),
        VolumeError::NotThere.to_string()
    );
    // With other data on the device it is not an interrupted creation.
    let zone = ZoneIndex(9);
    put(&drive, drive.geometry().start(zone), &[7; BLOCK]);
    assert_eq!(create(&drive), Err(VolumeError::IsThere));
    wait(&Runtime::new(), drive.submit(Command::Reset { zones: Zones::One(zone) })).result.unwrap();
    create(&drive).unwrap();
    assert_eq!(create(&drive), Err(VolumeError::IsThere));
    let (runtime, volume) = open(&drive);
    assert_eq!(read(&runtime, &volume, 0), 0);
    runtime.clear();
}

/// Overwrites blocks below `blocks` many times, or until a write is refused; returns whether one was.
fn overwrite(runtime: &Runtime, volume: &Volume, blocks: u64) -> bool {
    let full = DeviceError::Status(Status::CapacityExceeded);
    let refused = (0..30 * blocks).map(|round| round * 7919 % blocks).any(|at| {
        let written = wait(runtime, volume.write(at, &block(at as u8), false));
        assert!(written.is_ok() || written == Err(full), "{written:?}");
        written.is_err()
    });
    (0..blocks).for_each(|at| assert_eq!(read(runtime, volume, at), at as u8));
    assert_eq!(volume.status().failed, None);
    refused
}

#[test]
fn volume_write_without_reclaimable_room_is_refused() {
    let device = Rc::new(Holding::of(&made(Some(5000)).0));
    let runtime = Runtime::new();
    let opened = Volume::open(&runtime, device.clone(), VolumeOptions::default());
    let volume = wait(&runtime, opened).unwrap();
    let usable = volume.status().usable;
    for at in 0..usable {
        wait(&runtime, volume.write(at, &block(at as u8), false)).unwrap();
    }
    assert!(!overwrite(&runtime, &volume, usable));
    let lost = (1..12).find(|_| {
        device.failing_resets.set(1);
        overwrite(&runtime, &volume, usable)
    });
    assert!(lost.is_some_and(|lost| lost > 4), "{lost:?}");
    assert!(overwrite(&runtime, &volume, usable));
    wait(&runtime, volume.discard(usable / 4, usable)).unwrap();
    assert!(!overwrite(&runtime, &volume, usable / 4));
    wait(&runtime, volume.audit()).unwrap();
    runtime.clear();
}

#[test]
fn volume_uncollectable_zones_reduce_usable_until_readable() {
    let (drive, runtime, volume) = made(Some(3000));
    let (usable, page) = (volume.status().usable, 672);
    let blocks = usable * 3 / 4;
    for at in 0..blocks {
        wait(&runtime, volume.write(at, &block(at as u8), false)).unwrap();
        if at % 16 == 0 {
            wait(&runtime, volume.write(page + at / 16, &block(7), false)).unwrap();
        }
    }
    wait(&runtime, volume.stop()).unwrap();
    runtime.clear();
    // Blocks of the second page can no longer be moved.
    let damage = Fault::Corrupt { lba: newest_page(&drive, 1), bit: 999 };
    strike(&drive, damage);
    let (runtime, volume) = open(&drive);
    overwrite(&runtime, &volume, blocks);
    let status = volume.status();
    assert!(status.unreadable_zones > 3 && status.usable < usable, "{status:?}");
    // The page is readable again.
    strike(&drive, damage);
    wait(&runtime, volume.discard(blocks / 2, blocks / 2)).unwrap();
    assert!(!overwrite(&runtime, &volume, blocks / 2));
    // Each refused write has one more of these zones retried.
    let refused = (0..20).take_while(|_| {
        let written = wait(&runtime, volume.write(2000, &block(1), false));
        runtime.run();
        written.is_err()
    });
    assert!(refused.count() < 20);
    let after = volume.status();
    assert!(after.unreadable_zones < status.unreadable_zones && after.usable >= after.mapped, "{after:?}");
    assert_eq!(read(&runtime, &volume, page), 7);
    wait(&runtime, volume.audit()).unwrap();
    runtime.clear();
}

/// Zones with `magic` at the start of their first block.
fn zones_of(drive: &EmulatedDrive, magic: &[u8; 4]) -> Vec<ZoneIndex> {
    let mut ssd = drive.ssd().borrow_mut();
    let start = |zone: &ZoneIndex| drive.geometry().start(*zone);
    let mut is_one = |zone: &ZoneIndex| ssd.stored(start(zone)).unwrap().is_some_and(|b| b[..4] == *magic);
    (2..geometry().zones).map(ZoneIndex).filter(|zone| is_one(zone)).collect()
}

/// Address of the newest copy of a page of the map.
fn newest_page(drive: &EmulatedDrive, page: u32) -> Lba {
    let (start, capacity) = (|zone| drive.geometry().start(zone).0, geometry().zone_capacity_blocks);
    let zones = zones_of(drive, b"zvs1").into_iter();
    let pages = zones.flat_map(|zone| (start(zone)..start(zone) + capacity).map(Lba)).filter_map(|lba| {
        let block = drive.ssd().borrow_mut().stored(lba).unwrap()?;
        let generation = block[16..24].iter().rev().copied().collect::<Vec<u8>>();
        ((block[26], &block[28..32]) == (1, &page.to_le_bytes()[..])).then_some((generation, lba))
    });
    pages.max().unwrap().1
}

fn strike(drive: &EmulatedDrive, fault: Fault) {
    drive.ssd().borrow_mut().faults().after(0, fault);
}

/// A volume after a kill of its process, with 20 promised blocks in a zone that was begun since the root, and that
/// zone.
fn with_promises() -> (EmulatedDrive, ZoneIndex) {
    with_promises_on(&geometry())
}

fn with_promises_on(geometry: &Geometry) -> (EmulatedDrive, ZoneIndex) {
    let (drive, runtime, volume) = made_on(geometry, Some(3000));
    for at in 0..20 {
        wait(&runtime, volume.write(at, &block(at as u8 + 1), true)).unwrap();
    }
    runtime.clear();
    let zones = zones_of(&drive, b"zvg1");
    assert_eq!(zones.len(), 1);
    (drive, zones[0])
}

#[test]
fn volume_promises_are_recovered_from_readonly_zone() {
    // Its last block may be unreadable.
    for there in [20, 19] {
        let (drive, zone) = with_promises();
        strike(&drive, Fault::ReadOnly(zone));
        for group in groups_in(&drive, zone).split_off(there) {
            strike(&drive, Fault::Unreadable(Lba(group.0 + 1)));
        }
        for round in 0..3 {
            let (runtime, volume) = open(&drive);
            let found = (0..20).filter(|at| wait(&runtime, volume.read(*at, Buf::zeroed(BLOCK))).is_ok());
            assert_eq!(found.count(), there);
            let there = there as u64;
            (0..there).for_each(|at| assert_eq!(read(&runtime, &volume, at), at as u8 + 1, "round {round}"));
            wait(&runtime, volume.write(100, &block(round), true)).unwrap();
            wait(&runtime, volume.audit()).unwrap();
            runtime.clear();
        }
    }
}

#[test]
fn volume_open_refuses_offline_zone_unless_given_up() {
    let (drive, zone) = with_promises();
    strike(&drive, Fault::Offline(zone));
    for _ in 0..2 {
        let (runtime, volume) = try_open(&drive, VolumeOptions::default());
        let said = volume.err().unwrap();
        assert!(said.contains(&format!("zone {} of the device is offline", zone.0)), "{said}");
        runtime.clear();
    }
    let (runtime, volume) = try_open(&drive, VolumeOptions { give_up: true, ..VolumeOptions::default() });
    let volume = volume.unwrap();
    assert_eq!(read(&runtime, &volume, 0), 0);
    wait(&runtime, volume.write(0, &block(9), true)).unwrap();
    runtime.clear();
    // The loss is final.
    let (runtime, volume) = open(&drive);
    assert_eq!(read(&runtime, &volume, 0), 9);
    runtime.clear();
}

/// Addresses of the groups in a zone.
fn groups_in(drive: &EmulatedDrive, zone: ZoneIndex) -> Vec<Lba> {
    let geometry = drive.geometry();
    let blocks = (0..geometry.zone_capacity_blocks).map(|at| Lba(geometry.start(zone).0 + at));
    let is_group = |lba: &Lba| {
        let stored = drive.ssd().borrow_mut().stored(*lba).unwrap();
        stored.is_some_and(|bytes| bytes.starts_with(b"zvg1"))
    };
    blocks.filter(is_group).collect()
}

#[test]
fn volume_unreadable_block_loses_only_itself() {
    let (drive, zone) = with_promises();
    let groups = groups_in(&drive, zone);
    assert_eq!(groups.len(), 20);
    strike(&drive, Fault::Unreadable(Lba(groups[7].0 + 1)));
    for round in 0..2 {
        let (runtime, volume) = open(&drive);
        for at in (0..20).filter(|at| *at != 7) {
            assert_eq!(read(&runtime, &volume, at), at as u8 + 1, "round {round}");
        }
        let lost = wait(&runtime, volume.read(7, Buf::zeroed(BLOCK)));
        assert_eq!(lost.err(), Some(Status::UnrecoveredReadError.into()));
        assert_eq!(volume.given_up(), []);
        runtime.clear();
    }
    // Garbage collection moves all other blocks out of the zone; the unreadable one goes when it is overwritten.
    let (runtime, volume) = open(&drive);
    let most = volume.status().usable - 20;
    let collect = |from: u64| {
        for round in 0..3 {
            for at in from..most {
                wait(&runtime, volume.write(at, &block(round), false)).unwrap();
            }
        }
        wait(&runtime, volume.flush()).unwrap();
    };
    collect(20);
    assert_eq!(volume.status().live_bytes[zone.0 as usize], BLOCK as u64);
    (0..20).filter(|at| *at != 7).for_each(|at| assert_eq!(read(&runtime, &volume, at), at as u8 + 1));
    wait(&runtime, volume.write(7, &block(8), true)).unwrap();
    wait(&runtime, volume.audit()).unwrap();
    (0..20).for_each(|at| assert_eq!(read(&runtime, &volume, at), at as u8 + 1));
    runtime.clear();
}

#[test]
fn volume_unreadable_group_needs_give_up_to_open() {
    // The last one has small transfers.
    for (first, rot, max_transfer_blocks) in [(0, false, 32), (12, false, 32), (12, true, 32), (12, true, 8)]
    {
        let (drive, zone) = with_promises_on(&Geometry { max_transfer_blocks, ..geometry() });
        let lba = groups_in(&drive, zone)[first];
        strike(&drive, if rot { Fault::Corrupt { lba, bit: 99 } } else { Fault::Unreadable(lba) });
        let (_, volume) = try_open(&drive, VolumeOptions::default());
        let said = volume.err().unwrap();
        let at = lba.0 - drive.geometry().start(zone).0;
        assert!(said.contains(&format!("block {at} of zone {} of the device", zone.0)), "{said}");
        let (runtime, volume) = try_open(&drive, VolumeOptions { give_up: true, ..VolumeOptions::default() });
        let volume = volume.unwrap();
        assert_eq!(volume.given_up(), [VolumeError::GroupUnreadable { zone: zone.0, block: at as u32 }]);
        let expected = |at: u64| if (at as usize) < first { at as u8 + 1 } else { 0 };
        (0..20).for_each(|at| assert_eq!(read(&runtime, &volume, at), expected(at)));
        // The zone is not written on, and is no longer active.
        let state = drive.ssd().borrow().zones().info(zone).state;
        assert!(!state.is_active(), "{state:?}");
        wait(&runtime, volume.write(19, &block(99), true)).unwrap();
        runtime.clear();
        // The loss is final.
        let (runtime, volume) = open(&drive);
        (0..19).for_each(|at| assert_eq!(read(&runtime, &volume, at), expected(at)));
        assert_eq!((read(&runtime, &volume, 19), volume.given_up()), (99, Vec::new()));
        wait(&runtime, volume.audit()).unwrap();
        runtime.clear();
    }
}

#[test]
fn volume_open_refuses_externally_reset_zone() {
    for blocks in [20, 100] {
        let (drive, runtime, volume) = made(Some(3000));
        for at in 0..blocks {
            wait(&runtime, volume.write(at, &block(1), true)).unwrap();
        }
        wait(&runtime, volume.stop()).unwrap();
        runtime.clear();
        let zone = zones_of(&drive, b"zvg1")[0];
        drive.ssd().borrow_mut().execute(Command::Reset { zones: Zones::One(zone) }).result.unwrap();
        for give_up in [false, true] {
            let (_, volume) = try_open(&drive, VolumeOptions { give_up, ..VolumeOptions::default() });
            let said = volume.err().unwrap();
            assert!(said.contains(&format!("lost blocks of zone {}", zone.0)), "{said}");
        }
    }
}

#[test]
fn volume_never_starts_from_root_older_than_unreadable() {
    for is_offline in [true, false] {
        let (drive, _) = with_promises();
        let (runtime, volume) = open(&drive);
        wait(&runtime, volume.stop()).unwrap();
        runtime.clear();
        let written = |zone| drive.ssd().borrow().zones().info(zone).wp_blocks;
        let newest = ZoneIndex((written(ZoneIndex(1)) > 0) as u32);
        let last = Lba(drive.geometry().start(newest).0 + written(newest) - 1);
        strike(&drive, if is_offline { Fault::Offline(newest) } else { Fault::Unreadable(last) });
        for give_up in [false, true] {
            let behaviour = VolumeOptions { give_up, ..VolumeOptions::default() };
            let (_, volume) = try_open(&drive, behaviour);
            let said = volume.err().unwrap();
            assert!(said.contains(&format!("zone {} of the device", newest.0)), "{said}");
            // An array reports an offline zone as empty.
            let (runtime, device) = (Runtime::new(), Rc::new(Forgetting(drive.clone())));
            let opened = wait(&runtime, Volume::open(&runtime, device, behaviour));
            let root = |error: VolumeError| matches!(error, VolumeError::RootUnreadable { zone, .. } if zone == newest.0);
            assert!(opened.err().is_some_and(root));
        }
    }
}

/// A drive that reports write pointer 0 for offline zones.
struct Forgetting(EmulatedDrive);

impl ZonedDevice for Forgetting {
    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        let mut done = self.0.ssd().borrow_mut().execute(command);
        done.zones
            .iter_mut()
            .filter(|info| info.state == ZoneState::Offline)
            .for_each(|info| info.wp_blocks = 0);
        Completion::ready(done)
    }
}

/// A block of which the first eighth does not compress, unique for each `at`.
fn short(at: u64) -> Buf {
    let mut bytes = noise(at);
    bytes[BLOCK / 8..].fill(0);
    Buf::copy_of(&bytes)
}

#[test]
fn volume_compression_holds_more_and_refuses_overflow() {
    let (drive, runtime, volume) = made(Some(2000));
    wait(&runtime, volume.compress(Some(Codec::Lz4), Unit::BLOCK)).unwrap();
    let (usable, full) = (volume.status().usable, DeviceError::Status(Status::CapacityExceeded));
    let blocks = 4 * usable;
    for round in 0..4 * blocks {
        let at = round * 7919 % blocks;
        wait(&runtime, volume.write(at, &short(at + round / blocks), false)).unwrap();
    }
    let status = volume.status();
    assert!(status.mapped == blocks && status.held_bytes < usable * BLOCK as u64, "{status:?}");
    assert!(status.collected_zones > 20 && status.codec == Some(Codec::Lz4), "{status:?}");
    wait(&runtime, volume.audit()).unwrap();
    // Data that compresses less takes more room, until there is none; the other blocks keep their data.
    let refused = (0..blocks).find(|at| {
        let done = wait(&runtime, volume.write(*at, &Buf::copy_of(&noise(*at)), false));
        assert!(done.is_ok() || done == Err(full));
        done.is_err()
    });
    let refused = refused.unwrap();
    assert!((usable / 4..usable).contains(&refused), "{refused} of {usable}");
    runtime.clear();
    let (runtime, volume) = open(&drive);
    for at in 0..blocks {
        let expected = if at < refused { Buf::copy_of(&noise(at)) } else { short(at + 3) };
        let data = wait(&runtime, volume.read(at, Buf::zeroed(BLOCK))).unwrap();
        assert!(data[..] == expected[..], "block {at}");
    }
    // All blocks in one read, which combines runs of pieces; then without compression.
    let all = wait(&runtime, volume.read(0, Buf::zeroed(blocks as usize * BLOCK))).unwrap();
    assert!(all[refused as usize * BLOCK..][..BLOCK] == short(refused + 3)[..]);
    wait(&runtime, volume.compress(None, Unit::BLOCK)).unwrap();
    assert_eq!(wait(&runtime, volume.write(refused, &short(refused), false)), Err(full));
    wait(&runtime, volume.discard(0, refused)).unwrap();
    wait(&runtime, volume.write(refused, &short(refused), false)).unwrap();
    wait(&runtime, volume.audit()).unwrap();
    runtime.clear();
}

/// Units are partly overwritten, partly discarded, moved as a whole and block by block, and recovered. No more blocks
/// are mapped than fit without compression, so no write is ever refused.
#[test]
fn volume_partly_overwritten_units_keep_remaining_blocks() {
    let (zone_size_blocks, zone_capacity_blocks) = (320, 300);
    let large = Geometry { zones: 30, max_transfer_blocks: 128, ..geometry() };
    let drive = EmulatedDrive::in_memory(&Geometry { zone_size_blocks, zone_capacity_blocks, ..large });
    let options = VolumeCreateOptions {
        uuid: [1; 16],
        codec: Some(Codec::Lz4),
        unit: Unit::MOST,
        ..VolumeCreateOptions::default()
    };
    wait(&Runtime::new(), Volume::create(&Runtime::new(), Rc::new(drive.clone()), options)).unwrap();
    let (mut runtime, mut volume) = open(&drive);
    let blocks = volume.blocks();
    assert_eq!((volume.status().unit, blocks), (Unit::MOST, volume.status().usable));
    let (mut expected, mut collected) = (vec![vec![0; BLOCK]; blocks as usize], 0);
    for round in 0..6000 {
        let at = round * 7919 % blocks;
        // A third of the first units is overwritten by small writes only.
        let (at, count, compresses) = match round % 5 {
            _ if round < blocks / 16 => (round * 16, 16, Some(round % 2 > 0)),
            0 => (at, 3, None),
            1 => (at, 1, Some(false)),
            2 => (at, 2, Some(true)),
            _ => ((at / 48 * 48 + 16 * (round % 2)) % (blocks - 16), 16, Some(round % 7 > 0)),
        };
        let count = count.min(blocks - at);
        let content = |at| match compresses {
            None => vec![0; BLOCK],
            Some(true) => short(at)[..].to_vec(),
            Some(false) => noise(at),
        };
        let data: Vec<Vec<u8>> = (at..at + count).map(|at| content(at + round * blocks)).collect();
        match compresses {
            None => wait(&runtime, volume.discard(at, count)).unwrap(),
            _ => wait(&runtime, volume.write(at, &Buf::copy_of(&data.concat()), false)).unwrap(),
        }
        expected[at as usize..][..count as usize].clone_from_slice(&data);
        if round % 500 == 0 {
            collected += volume.status().collected_zones;
            runtime.clear();
            (runtime, volume) = open(&drive);
            wait(&runtime, volume.audit()).unwrap();
            let all = wait(&runtime, volume.read(0, Buf::zeroed(blocks as usize * BLOCK))).unwrap();
            let wrong = (0..blocks as usize).find(|at| all[at * BLOCK..][..BLOCK] != expected[*at]);
            assert_eq!(wrong, None, "in round {round}");
        }
    }
    assert!(collected > 5, "{collected} zones were collected");
    runtime.clear();
}

#[test]
fn volume_unit_holds_room_until_wholly_discarded() {
    let (drive, runtime, volume) = made(None);
    wait(&runtime, volume.compress(Some(Codec::Lz4), Unit::MOST)).unwrap();
    assert_eq!(volume.status().unit.bytes(), 2 * BLOCK);
    let pair = Buf::copy_of(&[&short(1)[..], &short(2)].concat());
    let held = || volume.status().held_bytes;
    wait(&runtime, volume.write(1, &pair, false)).unwrap();
    let alone = held();
    wait(&runtime, volume.write(4, &pair, false)).unwrap();
    let together = held() - alone;
    assert!(together < alone && together > alone * 3 / 4, "{together} of {alone}");
    // Half of a unit takes as much room as all of it, until the other half is discarded, too.
    wait(&runtime, volume.discard(4, 1)).unwrap();
    assert_eq!(held(), alone + together);
    wait(&runtime, volume.discard(5, 1)).unwrap();
    assert_eq!(held(), alone);
    wait(&runtime, volume.stop()).unwrap();
    runtime.clear();
    let (runtime, volume) = open(&drive);
    assert_eq!((volume.status().unit.bytes(), volume.status().mapped), (2 * BLOCK, 2));
    runtime.clear();
}

#[test]
fn volume_worn_zone_stops_writes_until_restart() {
    let (drive, runtime, volume) = made(Some(9 * 672));
    let pages = [0, 1100, 2100, 3100, 4100];
    for at in pages {
        wait(&runtime, volume.write(at, &block(5), true)).unwrap();
    }
    wait(&runtime, volume.stop()).unwrap();
    runtime.clear();
    let (runtime, volume) =
        try_open(&drive, VolumeOptions { map_pages: Some(2), ..VolumeOptions::default() });
    let volume = volume.unwrap();
    wait(&runtime, volume.write(0, &block(6), true)).unwrap();
    strike(&drive, Fault::ReadOnly(*zones_of(&drive, b"zvg1").last().unwrap()));
    let worn = DeviceError::Status(Status::ZoneIsReadOnly);
    assert_eq!(wait(&runtime, volume.write(1100, &block(6), true)), Err(worn));
    assert_eq!(wait(&runtime, volume.write(4100, &block(6), true)), Err(worn));
    // Reads continue, also those that load pages of the map.
    pages[2..].iter().for_each(|at| assert_eq!(read(&runtime, &volume, *at), 5));
    runtime.clear();
    let (runtime, volume) = open(&drive);
    assert_eq!((read(&runtime, &volume, 0), read(&runtime, &volume, 4100)), (6, 5));
    wait(&runtime, volume.write(4100, &block(7), true)).unwrap();
    wait(&runtime, volume.audit()).unwrap();
    runtime.clear();
}

#[test]
fn volume_zone_failing_reset_reduces_usable_room() {
    let (drive, runtime, volume) = made(None);
    let usable = volume.status().usable;
    strike(&drive, Fault::Fail { kind: Kind::Reset, late: false });
    for round in 0..8 * usable {
        let at = round * 7919 % (usable / 2);
        wait(&runtime, volume.write(at, &block(at as u8), false)).unwrap();
    }
    let status = volume.status();
    assert!(status.checkpoints > 5 && status.usable < usable, "{status:?}");
    assert_eq!((status.failed, status.unreadable_zones), (None, 0));
    (0..usable / 2).for_each(|at| assert_eq!(read(&runtime, &volume, at), at as u8));
    runtime.clear();
    // The next start finds that the zone can be reset after all.
    let (runtime, volume) = open(&drive);
    assert_eq!(volume.status().usable, usable);
    wait(&runtime, volume.audit()).unwrap();
    runtime.clear();
}

#[test]
fn volume_open_refuses_invalid_group_despite_checksum() {
    // One leaves no number for the next entry; another one belongs to another life of the zone.
    let last = (28, (1 << 24) - 1, 24, u32::MAX);
    let values = [(36, u32::MAX), (36, 19), (24 + 4, u32::MAX), (16 + 4, u32::MAX), (68, 4000), (16, 7)];
    let values = values.map(|(at, value)| (at, value, at, value)).into_iter().chain([last]);
    for (at, value, and_at, and_value) in values {
        let (drive, zone) = with_promises();
        let start = drive.geometry().start(zone);
        let wp = drive.ssd().borrow().zones().info(zone).wp_blocks;
        let mut header = drive.ssd().borrow_mut().stored(start).unwrap().unwrap()[..BLOCK].to_vec();
        let mut put = |at: usize, value: u32| header[at..at + 4].copy_from_slice(&value.to_le_bytes());
        put(32, wp as u32);
        put(28, 1);
        put(at, value);
        put(and_at, and_value);
        let sum = crc32c::crc32c(&header[8..64 + 16]);
        header[4..8].copy_from_slice(&sum.to_le_bytes());
        let data = Buf::copy_of(&[header, vec![7; BLOCK]].concat());
        let runtime = Runtime::new();
        let written = drive.submit(Command::write(Lba(start.0 + wp), data, true));
        wait(&runtime, written).result.unwrap();
        let (runtime, volume) = try_open(&drive, VolumeOptions::default());
        assert!(volume.is_err(), "{value} at {at}");
        runtime.clear();
    }
}

#[test]
fn volume_group_with_last_segment_number_is_foreign() {
    let (drive, zone) = with_promises();
    let mut group =
        drive.ssd().borrow_mut().stored(drive.geometry().start(zone)).unwrap().unwrap()[..BLOCK].to_vec();
    group[16..24].copy_from_slice(&((1u64 << 56) - 1).to_le_bytes());
    let sum = crc32c::crc32c(&group[8..64 + 16]);
    group[4..8].copy_from_slice(&sum.to_le_bytes());
    let data = Buf::copy_of(&[group, vec![7; BLOCK]].concat());
    let other = drive.geometry().start(ZoneIndex(20));
    wait(&Runtime::new(), drive.submit(Command::write(other, data, true))).result.unwrap();
    let try_open = |give_up| {
        let runtime = Runtime::new();
        let behaviour = VolumeOptions { give_up, ..VolumeOptions::default() };
        let opened = wait(&runtime, Volume::open(&runtime, Rc::new(drive.clone()), behaviour));
        opened.map(|volume| (runtime, volume))
    };
    // Nothing proves that the group is obsolete.
    let refused = VolumeError::GroupUnreadable { zone: 20, block: 0 };
    assert_eq!(try_open(false).err(), Some(refused));
    for gives_up in [true, false] {
        let (runtime, volume) = try_open(gives_up).unwrap();
        (0..20).for_each(|at| assert_eq!(read(&runtime, &volume, at), at as u8 + 1));
        wait(&runtime, volume.write(100, &block(1), true)).unwrap();
        runtime.clear();
    }
}

/// A device that holds selected commands, and fails resets.
struct Holding {
    drive: EmulatedDrive,
    slots: Rc<Slots>,
    holds: Cell<fn(&Command) -> bool>,
    held: RefCell<Vec<Completer>>,
    /// Number of resets that fail, except in the head, without which there is no volume.
    failing_resets: Cell<u32>,
}

impl Holding {
    fn of(drive: &EmulatedDrive) -> Holding {
        let (slots, held) = (Rc::default(), RefCell::default());
        Holding {
            drive: drive.clone(),
            slots,
            holds: Cell::new(|_| false),
            held,
            failing_resets: Cell::new(0),
        }
    }
}

impl ZonedDevice for Holding {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        if let Command::Reset { zones: Zones::One(ZoneIndex(2..)) } = command
            && let Some(left) = self.failing_resets.get().checked_sub(1)
        {
            self.failing_resets.set(left);
            return Completion::ready(Done::error(Status::InternalError.into()));
        }
        if !self.holds.get()(&command) {
            return self.drive.submit(command);
        }
        let (completer, completion) = self.slots.pair();
        self.held.borrow_mut().push(completer);
        completion
    }
}

/// An array reports the loss of a zone to a single flush, and continues.
#[test]
fn volume_concurrent_flushes_all_fail_after_loss() {
    let device = Rc::new(Holding::of(&EmulatedDrive::in_memory(&geometry())));
    let runtime = Runtime::new();
    wait(
        &runtime,
        Volume::create(
            &Runtime::new(),
            device.clone(),
            VolumeCreateOptions { uuid: *b"sixteen bytes...", ..VolumeCreateOptions::default() },
        ),
    )
    .unwrap();
    let opened = Volume::open(&runtime, device.clone(), VolumeOptions::default());
    let volume = wait(&runtime, opened).unwrap();
    wait(&runtime, volume.write(3, &block(7), false)).unwrap();
    device.holds.set(|command| matches!(command, Command::Flush));
    let told: Rc<RefCell<Vec<bool>>> = Rc::default();
    for _ in 0..3 {
        let (volume, told) = (volume.clone(), told.clone());
        runtime.spawn(async move {
            let result = volume.flush().await;
            told.borrow_mut().push(result.is_ok());
        });
    }
    runtime.run();
    device.holds.set(|_| false);
    let results = [Done::error(Status::InternalError.into())].into_iter();
    let results = results.chain(std::iter::repeat_with(Done::ok));
    for (completer, done) in device.held.take().into_iter().zip(results) {
        completer.complete(done);
    }
    runtime.run();
    assert_eq!(*told.borrow(), [false; 3]);
    assert!(wait(&runtime, volume.flush()).is_err());
}

/// Wear has left only the free zones that are set aside for the map.
#[test]
fn volume_without_room_takes_discards() {
    let (drive, runtime, volume) = made(Some(5000));
    let usable = volume.status().usable;
    for at in (0..usable / 14).map(|group| 14 * group) {
        wait(&runtime, volume.write(at, &Buf::copy_of(&[1; 14 * BLOCK]), false)).unwrap();
    }
    wait(&runtime, volume.stop()).unwrap();
    runtime.clear();
    let share = VolumePlan::of(&geometry(), Some(5000), None).unwrap().map_share as usize;
    let kept = share - zones_of(&drive, b"zvs1").len();
    let is_empty = |zone: &ZoneIndex| drive.ssd().borrow().zones().info(*zone).state == ZoneState::Empty;
    let empty: Vec<_> = (2..geometry().zones).map(ZoneIndex).filter(is_empty).collect();
    empty[kept..].iter().for_each(|zone| strike(&drive, Fault::ReadOnly(*zone)));
    let (runtime, volume) = open(&drive);
    // Each has a header of its own: one more zone is begun.
    for at in (0..58).map(|number| number * usable / 60) {
        wait(&runtime, volume.discard(at, 1)).unwrap();
    }
    wait(&runtime, volume.audit()).unwrap();
    runtime.clear();
}
