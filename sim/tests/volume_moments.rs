//! Tests of single rules of the volume: a read, a cut or a change by another program arrives at the moment for which
//! the rule exists.

use crate::support::{
    array::run,
    rig::{Act, Rig},
    volume::{block, geometry, noise},
};
use emu::ssd::Fault;
use engine::{
    array::Drive,
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Geometry, Status, ZonedDevice, Zones},
    runtime::{Gate, Runtime},
    volume::{
        Codec, CompressionJob, CompressionWorkers, PendingJob, PieceEncoder, Unit, Volume,
        VolumeCreateOptions, VolumeError, VolumeOptions, VolumePlan,
    },
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

/// Blocks of a zone that can be written.
const CAPACITY: u64 = 60;
/// Zones of the head, which hold the roots.
const HEAD: u32 = 2;
/// Logical blocks of a page of the map.
const PAGE: u64 = 672;
/// Blocks that fill a zone if each is written alone, with a header of its own.
const ALONE: u64 = CAPACITY / 2;

/// A volume on a drive under control of the test.
struct Scene {
    rig: Rc<Rig>,
    drive: Drive,
    runtime: Runtime,
    volume: Volume,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

impl Scene {
    fn new() -> Scene {
        Scene::of(3000)
    }

    /// With a volume of `blocks` blocks.
    fn of(blocks: u64) -> Scene {
        Scene::on(&geometry(), blocks)
    }

    fn on(shape: &Geometry, blocks: u64) -> Scene {
        let rig = Rig::new();
        let drive = rig.drive(shape);
        let runtime = Runtime::new();
        let created = Volume::create(
            &runtime,
            drive.device.clone(),
            VolumeCreateOptions { uuid: [3; 16], blocks: Some(blocks), ..VolumeCreateOptions::default() },
        );
        run(&runtime, created).unwrap();
        let volume = open(&runtime, drive.device.clone(), VolumeOptions::default()).unwrap();
        Scene { rig, drive, runtime, volume }
    }

    /// Ends the process and starts the next one.
    fn restart(&mut self) -> Result<(), VolumeError> {
        self.restart_as(VolumeOptions::default())
    }

    fn restart_as(&mut self, behaviour: VolumeOptions) -> Result<(), VolumeError> {
        self.runtime.clear();
        self.rig.drop_held();
        self.rig.rule(|_, _| Act::Pass);
        self.volume = open(&self.runtime, self.drive.device.clone(), behaviour)?;
        Ok(())
    }

    fn write(&self, at: u64, byte: u8) {
        self.put(at, &block(byte));
    }

    fn put(&self, at: u64, data: &Buf) {
        run(&self.runtime, self.volume.write(at, data, true)).unwrap();
    }

    /// Starts a write and leaves it in flight.
    fn start_write(&self, at: u64, data: Buf) {
        let volume = self.volume.clone();
        self.runtime.spawn(async move { volume.write(at, &data, false).await.unwrap() });
        self.runtime.run();
    }

    fn read(&self, at: u64) -> Result<u8, DeviceError> {
        run(&self.runtime, self.volume.read(at, Buf::zeroed(BLOCK))).map(|data| data[0])
    }

    fn stop(&self) {
        run(&self.runtime, self.volume.stop()).unwrap();
    }

    fn submit(&self, command: Command) -> Buf {
        let done = run(&self.runtime, self.drive.device.submit(command));
        assert_eq!(done.result, Ok(()));
        done.data
    }

    /// Reads the first `blocks` blocks of a zone.
    fn stored(&self, zone: ZoneIndex, blocks: u64) -> Buf {
        let (start, most) = (geometry().start(zone).0, geometry().max_transfer_blocks as u64);
        let read = |at: u64| {
            let part = Buf::zeroed(most.min(blocks - at) as usize * BLOCK);
            self.submit(Command::read(Lba(start + at), part)).to_vec()
        };
        Buf::copy_of(&(0..blocks).step_by(most as usize).flat_map(read).collect::<Vec<u8>>())
    }

    /// Replaces the contents of a zone by these blocks, like another program.
    fn replace(&self, zone: ZoneIndex, blocks: Buf) {
        self.submit(Command::Reset { zones: Zones::One(zone) });
        let (start, most) = (geometry().start(zone).0, geometry().max_transfer_blocks as u64);
        for at in (0..blocks.blocks()).step_by(most as usize) {
            let part = blocks.slice_blocks(at..blocks.blocks().min(at + most));
            self.submit(Command::write(Lba(start + at), part, true));
        }
    }

    /// Zones with `magic` at the start of their first block.
    fn zones_of(&self, magic: &[u8; 4]) -> Vec<ZoneIndex> {
        let zones = (HEAD..geometry().zones).map(ZoneIndex);
        zones.filter(|zone| self.stored(*zone, 1).starts_with(magic)).collect()
    }

    fn damage(&self, fault: Fault) {
        self.rig.damage(0, fault);
        // Faults take effect with the next command.
        self.submit(Command::Flush);
    }
}

fn open(
    runtime: &Runtime,
    device: Rc<dyn ZonedDevice>,
    behaviour: VolumeOptions,
) -> Result<Volume, VolumeError> {
    run(runtime, Volume::open(runtime, device, behaviour))
}

/// Whether a command reads from a zone.
fn reads(command: &Command, zone: ZoneIndex) -> bool {
    matches!(command, Command::Read { lba, .. } if geometry().locate(*lba).0 == zone)
}

/// One block is read by one command, and two that are not adjacent by one each.
#[test]
fn volume_zone_reset_waits_for_pending_reads() {
    for blocks in [1, 2] {
        let scene = Scene::new();
        (0..ALONE).for_each(|at| scene.write(at, 1));
        let zone = scene.zones_of(b"zvg1")[0];
        scene.rig.rule(move |_, command| Act::hold_if(reads(command, zone)));
        let found: Rc<RefCell<Option<Buf>>> = Rc::default();
        let (volume, told) = (scene.volume.clone(), found.clone());
        scene.runtime.spawn(async move {
            let data = volume.read(0, Buf::zeroed(blocks * BLOCK)).await.unwrap();
            *told.borrow_mut() = Some(data);
        });
        scene.runtime.run();
        (0..ALONE).for_each(|at| scene.write(at, 2));
        let stopped = Rc::new(Cell::new(false));
        let (volume, told) = (scene.volume.clone(), stopped.clone());
        scene.runtime.spawn(async move { told.set(volume.stop().await.is_ok()) });
        scene.runtime.run();
        assert!(!stopped.get() && scene.rig.written(0, zone) > 0);
        assert_eq!(scene.rig.release(|_, _| true), blocks);
        scene.runtime.run();
        assert!(found.borrow().as_ref().is_some_and(|data| **data == *block(1).repeat(blocks)));
        assert!(stopped.get() && scene.rig.written(0, zone) == 0);
    }
}

/// The end of a group was torn and has been padded; later writes behind it are promised, too.
#[test]
fn volume_missing_data_behind_torn_group_is_detected() {
    let mut scene = Scene::new();
    (0..5).for_each(|at| scene.write(at, 1));
    let zone = scene.zones_of(b"zvg1")[0];
    scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::Write { .. })));
    scene.start_write(10, Buf::copy_of(&block(2).repeat(4)));
    scene.rig.tear(2);
    scene.restart().unwrap();
    let filled = scene.rig.written(0, zone);
    assert_eq!(filled, 5 * 2 + 5);
    (0..5).for_each(|at| scene.write(at, 3));
    scene.stop();
    scene.replace(zone, scene.stored(zone, filled - 1));
    let lost = scene.restart().unwrap_err();
    assert!(matches!(lost, VolumeError::LostBlocks { .. }), "{lost}");
}

/// The zone could not be reset and goes offline; the newest root lists it as empty.
#[test]
fn volume_unfreed_dead_zone_going_offline_is_ignored() {
    let mut scene = Scene::new();
    (0..ALONE).for_each(|at| scene.write(at, 1));
    let zone = scene.zones_of(b"zvg1")[0];
    (0..ALONE).for_each(|at| scene.write(at, 2));
    scene.rig.rule(move |_, command| match command {
        Command::Reset { zones } if *zones == Zones::One(zone) => Act::Refuse,
        _ => Act::Pass,
    });
    scene.stop();
    scene.damage(Fault::Offline(zone));
    scene.restart().unwrap();
    (0..ALONE).for_each(|at| assert_eq!(scene.read(at), Ok(2)));
}

/// The entry numbers of the group are newer than those of the root, and its segment number is older.
#[test]
fn volume_group_with_older_segment_number_is_ignored() {
    let mut scene = Scene::new();
    scene.write(0, 1);
    scene.stop();
    let mut group = scene.stored(scene.zones_of(b"zvg1")[0], 2).to_vec();
    group[28] = 1;
    let sum = crc32c::crc32c(&group[8..64 + 16]);
    group[4..8].copy_from_slice(&sum.to_le_bytes());
    group[BLOCK..].fill(9);
    scene.replace(ZoneIndex(geometry().zones - 1), Buf::copy_of(&group));
    scene.restart().unwrap();
    assert_eq!(scene.read(0), Ok(1));
}

/// A drive that reports the capacity as write pointer of read-only zones.
struct Silent(Rc<dyn ZonedDevice>);

impl ZonedDevice for Silent {
    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        let mut done = self.0.submit(command).take().unwrap();
        let worn = done.zones.iter_mut().filter(|info| info.state == ZoneState::ReadOnly);
        worn.for_each(|info| info.wp_blocks = CAPACITY);
        Completion::ready(done)
    }
}

/// The older version of the block is not taken for the newer, promised one.
#[test]
fn volume_unreadable_last_block_never_reveals_older_version() {
    let mut scene = Scene::new();
    scene.write(0, 1);
    scene.stop();
    scene.write(0, 2);
    let newest = |zone: &ZoneIndex| scene.stored(*zone, scene.rig.written(0, *zone)).ends_with(&block(2));
    let zone = scene.zones_of(b"zvg1").into_iter().find(newest).unwrap();
    let last = Lba(geometry().start(zone).0 + scene.rig.written(0, zone) - 1);
    scene.damage(Fault::ReadOnly(zone));
    scene.damage(Fault::Unreadable(last));
    scene.drive.device = Rc::new(Silent(scene.drive.device.clone()));
    scene.restart().unwrap();
    assert!(scene.read(0).is_err());
}

/// The checksums of these pages are right.
#[test]
fn volume_rejects_swapped_and_dangling_map_pages() {
    let pages = [0, PAGE];
    for swapped in [true, false] {
        let mut scene = Scene::new();
        pages.iter().for_each(|page| scene.write(page + 5, 1));
        scene.stop();
        let map = scene.zones_of(b"zvs1")[0];
        let mut stored = scene.stored(map, scene.rig.written(0, map)).to_vec();
        let nothing = (geometry().zones as u64 - 1) * CAPACITY;
        let (first, others) = stored.split_at_mut(BLOCK);
        if swapped {
            first.copy_from_slice(&others[..BLOCK]);
        } else {
            first[32 + 5 * 6..][..6].copy_from_slice(&nothing.to_le_bytes()[..6]);
            let sum = crc32c::crc32c(&first[8..]);
            first[4..8].copy_from_slice(&sum.to_le_bytes());
        }
        scene.replace(map, Buf::copy_of(&stored));
        scene.restart().unwrap();
        assert!(scene.read(5).is_err(), "swapped: {swapped}");
        assert_eq!(scene.read(PAGE + 5), Ok(1));
    }
}

/// The block is that of an earlier incarnation of the zone, with the right number, at the same place.
#[test]
fn volume_rejects_map_blocks_older_than_their_zone() {
    const PAGES: u8 = 1;
    const DIRECTORY: u8 = 2;
    let generation = |block: &[u8]| u64::from_le_bytes(block[16..24].try_into().unwrap());
    for kind in [PAGES, DIRECTORY] {
        let mut scene = Scene::new();
        let mut earlier = BTreeMap::<(ZoneIndex, usize), Vec<u8>>::new();
        let (map, at, old) = (0..4000u32)
            .find_map(|version| {
                scene.write(5, version as u8);
                scene.stop();
                let mut newest = (0, None);
                for map in scene.zones_of(b"zvs1") {
                    let stored = scene.stored(map, scene.rig.written(0, map));
                    for (at, block) in stored.chunks(BLOCK).enumerate().filter(|(_, block)| block[26] == kind)
                    {
                        let before = earlier.insert((map, at), block.to_vec());
                        let old = before.filter(|before| before != block);
                        newest = newest.max((generation(block), old.map(|old| (map, at, old))));
                    }
                }
                newest.1
            })
            .expect("the same place is written twice");
        let mut stored = scene.stored(map, scene.rig.written(0, map)).to_vec();
        stored[at * BLOCK..][..BLOCK].copy_from_slice(&old);
        scene.replace(map, Buf::copy_of(&stored));
        let restarted = scene.restart();
        match kind {
            PAGES => assert_eq!(scene.read(5), Err(Status::UnrecoveredReadError.into())),
            _ => assert!(matches!(restarted, Err(VolumeError::MapDamaged { .. })), "{restarted:?}"),
        }
    }
}

/// A block is written twice into one group, and both pieces are in the same block of the drive. When that is collected,
/// the page of the map has to be read first.
#[test]
fn volume_collection_moves_newer_piece_of_shared_block() {
    const AT: u64 = 4 * PAGE;
    let short = |byte: u8| {
        let mut bytes = [0; BLOCK];
        bytes[..BLOCK / 8].fill(byte);
        Buf::copy_of(&bytes)
    };
    let mut scene = Scene::of(40 * PAGE);
    run(&scene.runtime, scene.volume.compress(Some(Codec::Lz4), Unit::BLOCK)).unwrap();
    // Blocks written a second time go to the stream of short-lived ones.
    (0..20).for_each(|page| scene.put(page * PAGE, &short(4)));
    scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::Write { .. })));
    // The first two are in flight while the others are put into one group.
    [0, PAGE].into_iter().for_each(|at| scene.start_write(at, Buf::copy_of(&noise(at))));
    [1, 2].into_iter().for_each(|version| scene.start_write(AT, short(version)));
    // More pages than the cache of the map can hold.
    (5..20).for_each(|page| scene.start_write(page * PAGE, short(3)));
    scene.rig.rule(|_, _| Act::Pass);
    while scene.rig.release(|_, _| true) > 0 {
        scene.runtime.run();
    }
    scene.stop();
    scene.restart_as(VolumeOptions { map_pages: Some(2), ..VolumeOptions::default() }).unwrap();
    let (usable, collected) =
        (scene.volume.status().usable, |scene: &Scene| scene.volume.status().collected_zones);
    let mut round = 0;
    while collected(&scene) < 40 {
        scene.put(round * 7919 % (usable - 10), &Buf::copy_of(&noise(round)));
        round += 1;
        assert!(round < 20 * usable);
    }
    assert_eq!(scene.read(AT), Ok(2));
}

/// While garbage collection waits for the page of an earlier entry, the last live block of its victim is overwritten,
/// and the zone is reset and written again, with the block in its old place.
#[test]
fn volume_collection_ignores_stale_read_of_reused_place() {
    const FIRST: u64 = 14;
    const LAST: u64 = PAGE - 1;
    let mut scene = Scene::new();
    // The second group has blocks of two pages, and only its first block stays live in the zone.
    let data = |blocks: u64, byte| Buf::copy_of(&vec![byte; blocks as usize * BLOCK]);
    scene.put(0, &data(FIRST, 1));
    scene.put(LAST, &data(2, 1));
    let zone = scene.zones_of(b"zvg1")[0];
    let at = (2 * PAGE..).step_by(FIRST as usize);
    let rest: Vec<u64> = at
        .clone()
        .take_while(|at| {
            scene.put(*at, &data(FIRST, 1));
            scene.rig.written(0, zone) < CAPACITY
        })
        .collect();
    let discard = |scene: &Scene, at, blocks| run(&scene.runtime, scene.volume.discard(at, blocks)).unwrap();
    discard(&scene, 0, FIRST);
    discard(&scene, PAGE, 1);
    rest.iter().for_each(|at| discard(&scene, *at, FIRST));
    scene.stop();
    let page = Lba(geometry().start(scene.zones_of(b"zvs1")[0]).0 + 1);
    scene.restart_as(VolumeOptions { map_pages: Some(4), ..VolumeOptions::default() }).unwrap();
    scene
        .rig
        .rule(move |_, command| Act::hold_if(matches!(command, Command::Read { lba, .. } if *lba == page)));
    // As full as the zones allow: the reserve is not for new blocks, but moved blocks have to share its room.
    let status = scene.volume.status();
    let fill = status.usable + status.reserve - 2 * FIRST;
    assert!(fill < status.usable);
    at.take(fill as usize / FIRST as usize).for_each(|at| scene.put(at, &data(FIRST, 1)));
    for n in 0.. {
        scene.start_write(2 * PAGE + n * 37 % fill, data(1, 1));
        if scene.rig.held() > 0 {
            break;
        }
    }
    scene.write(LAST, 2);
    scene.stop();
    assert_eq!(scene.rig.written(0, zone), 0);
    // Writes have no credit; discards and checkpoints use the free zones that come before this one.
    let mut discards = 2 * PAGE..2 * PAGE + fill;
    for at in discards.by_ref().take(260) {
        discard(&scene, at, 1);
        if at % 2 == 0 {
            scene.stop();
        }
    }
    let has_begun = || scene.rig.written(0, zone) == FIRST + 1;
    discards.take_while(|_| !has_begun()).for_each(|at| discard(&scene, at, 1));
    scene.write(LAST, 3);
    assert_eq!(scene.rig.written(0, zone), FIRST + 1 + 2);
    scene.rig.rule(|_, _| Act::Pass);
    assert_eq!(scene.rig.release(|_, _| true), 1);
    scene.runtime.run();
    assert_eq!(scene.read(LAST), Ok(3));
}

/// The page of the write is read while the last zone is full and another write fails, and arrives only afterwards.
#[test]
fn volume_write_without_room_fails_after_device_failure() {
    let mut scene = Scene::new();
    [0, 4 * PAGE].into_iter().for_each(|at| scene.write(at, 1));
    scene.stop();
    scene.restart().unwrap();
    // The second page that was written.
    let page = Lba(geometry().start(scene.zones_of(b"zvs1")[0]).0 + 1);
    let is_page = move |command: &Command| matches!(command, Command::Read { lba, .. } if *lba == page);
    let is_write = |command: &Command| matches!(command, Command::Write { .. });
    scene.rig.rule(move |_, command| Act::hold_if(is_page(command) || is_write(command)));
    let results: Rc<RefCell<Vec<bool>>> = Rc::default();
    let others = [(0, PAGE as usize); 3];
    for (at, blocks) in [(4 * PAGE, 1)].into_iter().chain(others) {
        let (volume, results) = (scene.volume.clone(), results.clone());
        scene.runtime.spawn(async move {
            let result = volume.write(at, &Buf::copy_of(&vec![2; blocks * BLOCK]), false).await;
            results.borrow_mut().push(result.is_ok());
        });
    }
    scene.runtime.run();
    scene.rig.rule(move |_, command| if is_write(command) { Act::Fail } else { Act::Pass });
    assert!(scene.rig.release(|_, command| is_write(command)) > 0);
    scene.runtime.run();
    assert_eq!(scene.rig.release(|_, command| is_page(command)), 1);
    scene.runtime.run();
    assert_eq!(*results.borrow(), [false; 4]);
}

/// Each checkpoint writes the same hot pages, and one that is never written again.
#[test]
fn volume_cold_map_pages_never_pin_map_zones() {
    const HOT: u64 = 40;
    const COLD: u64 = 30;
    let blocks = (HOT + COLD) * PAGE;
    let mut scene = Scene::of(blocks);
    scene.restart_as(VolumeOptions { map_pages: Some(200), ..VolumeOptions::default() }).unwrap();
    let share = VolumePlan::of(&geometry(), Some(blocks), None).unwrap().map_share as usize;
    for cold in HOT..HOT + COLD {
        (0..HOT).chain([cold]).for_each(|page| scene.write(page * PAGE, 1));
        scene.stop();
        let zones = scene.zones_of(b"zvs1").len();
        assert!(zones <= share, "{zones} zones, {share} are the map's");
    }
}

#[test]
fn volume_hit_rate_counts_pages_once_per_request() {
    let mut scene = Scene::of(20 * PAGE);
    (0..5).for_each(|page| scene.write(page * PAGE, 1));
    scene.stop();
    scene.restart_as(VolumeOptions { map_pages: Some(3), ..VolumeOptions::default() }).unwrap();
    assert_eq!(scene.volume.status().map_hit_rate(), None);
    let counts = |act: &dyn Fn(&Scene)| {
        let of = |scene: &Scene| {
            let status = scene.volume.status();
            assert!(status.map_cached_bytes <= status.map_memory_bytes);
            [status.page_lookups, status.page_hits, status.pages_read]
        };
        let before = of(&scene);
        act(&scene);
        let after = of(&scene);
        [0, 1, 2].map(|which| after[which] - before[which])
    };
    let read = |at, blocks: u64| {
        move |scene: &Scene| {
            run(&scene.runtime, scene.volume.read(at, Buf::zeroed(blocks as usize * BLOCK)))
                .map(drop)
                .unwrap()
        }
    };
    let write = |at, blocks: u64| {
        move |scene: &Scene| scene.put(at, &Buf::copy_of(&vec![2; blocks as usize * BLOCK]))
    };
    // Lookups, hits, and pages that were read.
    assert_eq!(counts(&read(0, 1)), [1, 0, 1]);
    assert_eq!(counts(&read(0, 1)), [1, 1, 0]);
    // Many runs in one page, and in two.
    assert_eq!(counts(&read(0, 9)), [1, 1, 0]);
    assert_eq!(counts(&read(PAGE - 4, 8)), [2, 1, 1]);
    // Pages that were never written need not be read.
    assert_eq!(counts(&read(9 * PAGE, 8)), [1, 1, 0]);
    assert_eq!(counts(&write(2 * PAGE, 8)), [1, 0, 1]);
    assert_eq!(counts(&write(2 * PAGE + 4, 8)), [1, 1, 0]);
    assert_eq!(counts(&|scene| run(&scene.runtime, scene.volume.discard(2 * PAGE, 12)).unwrap()), [1, 1, 0]);
    assert_eq!(counts(&read(3 * PAGE, 1)), [1, 0, 1]);
    assert_eq!(scene.volume.status().map_hit_rate(), Some(6.0 / 10.0));
}

#[test]
fn map_of_data_written_in_order_is_in_memory_as_a_whole() {
    const PAGES: u64 = 40;
    const BUDGET: u64 = 8;
    let shape = Geometry { zones: 100, zone_size_blocks: 512, zone_capacity_blocks: 500, ..geometry() };
    let mut scene = Scene::on(&shape, PAGES * PAGE);
    (0..PAGES * PAGE).step_by(64).for_each(|at| scene.put(at, &Buf::copy_of(&vec![1; 64 * BLOCK])));
    scene.stop();
    scene.restart_as(VolumeOptions { map_pages: Some(BUDGET as usize), ..VolumeOptions::default() }).unwrap();
    let pages_read = |scene: &Scene| scene.volume.status().pages_read;
    let read_all = |scene: &Scene, byte| {
        let before = pages_read(scene);
        // Not in order; 17 and the number of pages have no common divisor.
        for page in (0..3 * PAGES).map(|step| step * 17 % PAGES) {
            assert_eq!(scene.read(page * PAGE + page).unwrap(), byte);
        }
        pages_read(scene) - before
    };
    assert_eq!(read_all(&scene, 1), PAGES);
    let status = scene.volume.status();
    assert_eq!((status.map_cached_pages, status.map_written_pages), (PAGES, PAGES));
    assert!(
        status.map_cached_bytes <= status.map_memory_bytes && status.map_memory_bytes < status.map_bytes / 4
    );
    // Packed pages are changed, few at a time, and checkpoints write them.
    for pages in (0..PAGES).collect::<Vec<_>>().chunks(3) {
        pages.iter().for_each(|page| scene.write(page * PAGE + page, 2));
        scene.stop();
    }
    assert_eq!((pages_read(&scene), read_all(&scene, 2)), (PAGES, 0));
    // Single blocks of later writes in between: most pages are read again and again.
    (0..PAGES * PAGE).step_by(2).for_each(|at| scene.write(at, 2));
    scene.stop();
    scene.restart_as(VolumeOptions { map_pages: Some(BUDGET as usize), ..VolumeOptions::default() }).unwrap();
    assert!(read_all(&scene, 2) > 2 * PAGES);
    let status = scene.volume.status();
    assert!(status.map_cached_pages <= BUDGET && status.map_cached_bytes <= status.map_memory_bytes);
}

/// A drive with a volatile cache that checks the order in which zones are begun.
struct Witness {
    device: Rc<dyn ZonedDevice>,
    /// Use of each zone: the stream of its groups, or the map.
    kinds: RefCell<BTreeMap<u32, u8>>,
    /// Zones with writes that are not flushed.
    unsafe_zones: RefCell<BTreeSet<u32>>,
}

impl ZonedDevice for Witness {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        const MAP: u8 = 3;
        match &command {
            Command::Flush => self.unsafe_zones.borrow_mut().clear(),
            Command::Write { lba, data, .. } => {
                let (zone, at) = geometry().locate(*lba);
                if zone.0 >= HEAD {
                    let (mut kinds, mut unsafe_zones) =
                        (self.kinds.borrow_mut(), self.unsafe_zones.borrow_mut());
                    if at == 0 {
                        let kind = if data.starts_with(b"zvg1") { data[44] } else { MAP };
                        let before = unsafe_zones.iter().find(|other| kinds[other] == kind);
                        assert_eq!(before, None, "zone {} is begun", zone.0);
                        kinds.insert(zone.0, kind);
                    }
                    unsafe_zones.insert(zone.0);
                }
            }
            _ => {}
        }
        self.device.submit(command)
    }
}

/// The map has pages for more than one zone, and the last group of a zone was torn and is padded.
#[test]
fn volume_zone_begins_after_predecessor_is_durable() {
    let (runtime, rig) = (Runtime::new(), Rig::new());
    let drive = rig.drive(&Geometry { volatile_cache: true, ..geometry() });
    let witness = Rc::new(Witness {
        device: drive.device.clone(),
        kinds: RefCell::default(),
        unsafe_zones: RefCell::default(),
    });
    let pages = CAPACITY + 10;
    let created = Volume::create(
        &runtime,
        witness.clone(),
        VolumeCreateOptions { uuid: [3; 16], blocks: Some(pages * PAGE), ..VolumeCreateOptions::default() },
    );
    run(&runtime, created).unwrap();
    let behaviour = VolumeOptions { map_pages: Some(2 * pages as usize), ..VolumeOptions::default() };
    let volume = open(&runtime, witness.clone(), behaviour).unwrap();
    let write = |volume: &Volume, at: u64, blocks: usize| {
        run(&runtime, volume.write(at, &Buf::copy_of(&block(1).repeat(blocks)), false)).unwrap();
    };
    (0..pages).for_each(|page| write(&volume, page * PAGE, 1));
    run(&runtime, volume.stop()).unwrap();
    let left = CAPACITY - 2 * pages % CAPACITY;
    (1..left / 2 - 1).for_each(|at| write(&volume, at, 1));
    rig.rule(|_, command| Act::hold_if(matches!(command, Command::Write { .. })));
    let other = volume.clone();
    runtime.spawn(async move { other.write(100, &Buf::copy_of(&block(2).repeat(3)), false).await.unwrap() });
    runtime.run();
    assert!(rig.held() > 0);
    rig.tear(2);
    runtime.clear();
    rig.rule(|_, _| Act::Pass);
    let begun = witness.kinds.borrow().len();
    let volume = open(&runtime, witness.clone(), behaviour).unwrap();
    (200..210).for_each(|at| write(&volume, at, 1));
    assert!(witness.kinds.borrow().len() > begun);
    runtime.clear();
}

/// Compression workers that return nothing until the test lets them.
#[derive(Default)]
struct Others {
    taken: Cell<u32>,
    is_over: Rc<(Cell<bool>, Gate)>,
}

impl CompressionWorkers for Others {
    fn take(&self, mut packing: CompressionJob) -> Result<PendingJob, CompressionJob> {
        self.taken.set(self.taken.get() + 1);
        let is_over = self.is_over.clone();
        Ok(Box::pin(async move {
            while !is_over.0.get() {
                is_over.1.wait().await;
            }
            packing.run(&mut PieceEncoder::default());
            Some(packing)
        }))
    }
}

#[test]
fn volume_worker_results_stay_with_their_write() {
    const PART: u64 = 16;
    let scene = Scene::new();
    run(&scene.runtime, scene.volume.compress(Some(Codec::Lz4), Unit::BLOCK)).unwrap();
    let others = Rc::new(Others::default());
    scene.volume.employ(others.clone());
    let noise = |from: u64| (from..from + PART).flat_map(noise).collect::<Vec<u8>>();
    let [ones, twos] = [1, 2].map(|byte| vec![byte; PART as usize * BLOCK]);
    // The workers have the second part of the first write, and all parts of the second one. The noise in them makes the
    // volume leave the next blocks uncompressed, as many as the second write's second part, which the workers have.
    scene.start_write(32 * PART, Buf::copy_of(&[ones.clone(), noise(0)].concat()));
    let parts = [noise(PART), ones, twos];
    scene.start_write(0, Buf::copy_of(&parts.concat()));
    assert_eq!(others.taken.get(), 1 + 3);
    others.is_over.0.set(true);
    others.is_over.1.open();
    scene.runtime.run();
    for (at, part) in (0..).step_by(PART as usize).zip(parts) {
        let read = run(&scene.runtime, scene.volume.read(at, Buf::zeroed(part.len()))).unwrap();
        assert!(*read == *part, "from block {at}");
    }
}

/// The start after the torn write is interrupted behind its checkpoint, before it has filled up the zone.
#[test]
fn volume_torn_zone_is_filled_up_by_second_start() {
    let mut scene = Scene::new();
    (0..ALONE - 1).for_each(|at| scene.write(at, 1));
    let zone = scene.zones_of(b"zvg1")[0];
    scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::Write { .. })));
    scene.start_write(ALONE - 1, block(1));
    assert_eq!(scene.rig.held(), 1);
    scene.runtime.clear();
    scene.rig.tear(1);
    let (begin, end) = (geometry().start(zone), geometry().start(ZoneIndex(zone.0 + 1)));
    scene.rig.rule(move |_, command| {
        let is_in_zone = |lba: &Lba| (begin..end).contains(lba);
        Act::hold_if(matches!(command, Command::Write { lba, .. } if is_in_zone(lba)))
    });
    let (runtime, device) = (scene.runtime.clone(), scene.drive.device.clone());
    let opening = async move { _ = Volume::open(&runtime, device, VolumeOptions::default()).await };
    scene.runtime.spawn(opening);
    scene.runtime.run();
    assert_eq!(scene.rig.held(), 1);
    scene.restart().unwrap();
    let report = Command::Report { first: zone, count: 1 };
    let done = run(&scene.runtime, scene.drive.device.submit(report));
    assert_eq!(done.zones[0].state, ZoneState::Full);
    assert_eq!(scene.read(0), Ok(1));
}

/// A power cut at each moment of a growth over the end of a block of the directory: the volume has the former size or the
/// new one, and its data.
#[test]
fn growth_interrupted_at_any_moment_keeps_volume_and_data() {
    let (small, large) = (3000, PAGE * PAGE + 5 * PAGE);
    let shape = Geometry { zone_size_blocks: 256, zone_capacity_blocks: 240, zones: 48, ..geometry() };
    let mut sizes = BTreeSet::new();
    for steps in 0.. {
        let mut scene = Scene::on(&shape, small);
        scene.write(7, 1);
        scene.write(small - 1, 2);
        let (cut, volume) = (scene.rig.hold_after(steps), scene.volume.clone());
        let growing = volume.clone();
        scene.runtime.spawn(async move { _ = growing.grow(large).await });
        // Of a write beyond the end nothing is done before the volume is larger.
        scene.runtime.spawn(async move { _ = volume.write(large - 1, &block(4), true).await });
        scene.runtime.run();
        let before = scene.volume.blocks();
        scene.restart().unwrap();
        let blocks = scene.volume.blocks();
        assert!([small, large].contains(&blocks) && blocks >= before, "{blocks} blocks after {steps} steps");
        sizes.insert(blocks);
        assert_eq!([7, small - 1, 8].map(|at| scene.read(at)), [Ok(1), Ok(2), Ok(0)], "after {steps} steps");
        if blocks == large {
            assert_eq!(scene.read(large - 1), Ok(0), "after {steps} steps");
            scene.write(large - 1, 3);
            scene.restart().unwrap();
            assert_eq!([small, large - 1].map(|at| scene.read(at)), [Ok(0), Ok(3)], "after {steps} steps");
        }
        if !cut.get() {
            assert_eq!(blocks, large, "after {steps} steps");
            break;
        }
    }
    assert_eq!(sizes.len(), 2);
}

/// A growth that would leave garbage collection no zones, or make the volume smaller, is refused, and changes nothing.
#[test]
fn growth_without_room_for_map_is_refused() {
    let mut scene = Scene::new();
    scene.write(2999, 1);
    let grow = |scene: &Scene, blocks: u64| run(&scene.runtime, scene.volume.grow(blocks));
    assert_eq!(grow(&scene, 2999), Err(VolumeError::Shrinks { have: 3000 }));
    // The volume is nearly full. Each size has ten more pages in its map than the one before.
    let plan = VolumePlan::of(&geometry(), Some(3000), None).unwrap();
    (0..plan.usable - plan.usable / 8)
        .for_each(|at| _ = run(&scene.runtime, scene.volume.write(at, &block(4), false)));
    scene.stop();
    scene.restart().unwrap();
    let sizes = (1..).map(|pages| 3000 + pages * 10 * PAGE);
    let refused = sizes.map(|blocks| grow(&scene, blocks)).find(|grown| grown.is_err());
    assert_eq!(refused, Some(Err(VolumeError::TooFullToGrow)));
    let size = scene.volume.blocks();
    scene.restart().unwrap();
    assert_eq!(scene.volume.blocks(), size);
    assert_eq!([0, 2999].map(|at| scene.read(at)), [Ok(4), Ok(1)]);
    // Garbage collection works.
    (0..2 * CAPACITY).for_each(|at| scene.write(at, 5));
    assert_eq!(scene.read(0), Ok(5));
}

/// The root of a growth is the newest one wherever it lies in the head, also at the start of the other zone.
#[test]
fn root_of_grown_volume_is_found_anywhere_in_head() {
    let mut ends = BTreeSet::new();
    for stops in 0..2 * CAPACITY {
        let mut scene = Scene::new();
        scene.write(0, 1);
        (0..stops).for_each(|_| scene.stop());
        run(&scene.runtime, scene.volume.grow(3000 + PAGE)).unwrap();
        scene.restart().unwrap();
        assert_eq!((scene.volume.blocks(), scene.read(0)), (3000 + PAGE, Ok(1)), "after {stops} stops");
        ends.insert((0..HEAD).map(|zone| scene.rig.written(0, ZoneIndex(zone))).max());
    }
    assert!(ends.len() > CAPACITY as usize / 4, "{ends:?}");
}
