//! Pools: volumes are added, written, enlarged, renamed and removed, and each of these is interrupted at any moment.

use crate::support::{
    array::run,
    pool::{BLOCKS, EXTENT, SLOTS, Scene, geometry, new, opened},
    volume::block,
};
use emu::ssd::{EmulatedDrive, Model};
use engine::{
    buf::{BLOCK, Buf},
    device::{DeviceError, Geometry, Status},
    qos::{Qos, Rates},
    runtime::{Exclusive, Runtime},
    volume::{
        self, Codec, NewSnapshot, NewVolume, Opened, Pool, PoolError, Unit, Volume, VolumeCreateOptions,
        VolumeError, VolumeOptions, VolumePlan,
    },
    zone::Lba,
};
use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    rc::Rc,
    task::{Poll, Waker},
};

#[test]
fn volumes_of_pool_have_their_own_blocks() {
    let scene = Scene::new();
    let (a, b) = (scene.add("a"), scene.add("b"));
    // Over the end of an extent, and of a volume.
    let some: Vec<u8> = (0..2 * EXTENT).flat_map(|at| vec![at as u8 + 1; BLOCK]).collect();
    scene.run(a.write(EXTENT - 3, &Buf::copy_of(&some), false)).unwrap();
    scene.run(b.write(EXTENT - 1, &block(200), false)).unwrap();
    for (volume, at, expected) in
        [(&a, EXTENT - 3, 1), (&a, EXTENT, 4), (&b, EXTENT - 1, 200), (&b, EXTENT, 0)]
    {
        assert_eq!(scene.read(volume, at), expected, "block {at}");
    }
    let all = scene.run(a.read(0, Buf::zeroed(BLOCKS as usize * BLOCK))).unwrap();
    assert_eq!(all[(EXTENT as usize - 3) * BLOCK..][..some.len()], some[..]);
    assert_eq!(scene.run(a.extent(0, BLOCKS)), Ok((false, EXTENT - 3)));
    assert_eq!(scene.run(a.extent(EXTENT - 3, BLOCKS - EXTENT + 3)), Ok((true, 2 * EXTENT)));
    scene.run(a.discard(EXTENT, EXTENT)).unwrap();
    assert_eq!(scene.run(a.extent(EXTENT - 3, EXTENT)), Ok((true, 3)));
    assert_eq!((a.allocated(), b.allocated()), (Some(3 * EXTENT), Some(EXTENT)));
    for (at, blocks) in [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 2)] {
        let read = scene.run(a.read(at, Buf::zeroed(blocks as usize * BLOCK))).map(drop);
        assert_eq!(read, Err(Status::LbaOutOfRange.into()), "{blocks} blocks from {at}");
    }
    scene.run(a.compress(Some(Codec::Lz4), Unit::BLOCK)).unwrap();
    scene.run(b.grow(2 * BLOCKS)).unwrap();
    assert_eq!(scene.run(b.grow(BLOCKS)), Err(VolumeError::Shrinks { have: 2 * BLOCKS }));
    let scene = scene.cut();
    let [a, b] = ["a", "b"].map(|name| scene.pool.find(name).unwrap());
    assert_eq!((a.status().codec, b.status().codec), (Some(Codec::Lz4), None));
    assert_eq!((a.blocks(), b.blocks()), (BLOCKS, 2 * BLOCKS));
    scene.run(scene.pool.audit()).unwrap();
}

#[test]
fn impossible_volumes_of_pool_are_refused() {
    let scene = Scene::new();
    scene.add("a");
    let refused = |new: NewVolume| scene.run(scene.pool.add(new)).map(drop).unwrap_err();
    assert_eq!(refused(new("a")), PoolError::NameTaken { name: "a".into() }.into());
    assert!(matches!(refused(new("a/b")), VolumeError::Pool(PoolError::WrongName { .. })));
    for blocks in [0, u64::MAX] {
        assert!(matches!(refused(NewVolume { blocks, ..new("b") }), VolumeError::Design(_)));
    }
    ["b", "c", "d"].iter().for_each(|name| drop(scene.add(name)));
    assert_eq!(refused(new("e")), PoolError::NoSlot { most: SLOTS }.into());
    let missing = VolumeError::Pool(PoolError::NoVolume { name: "e".into() });
    assert_eq!(scene.run(scene.pool.rename("e", "f")), Err(missing.clone()));
    assert_eq!(scene.run(scene.pool.rename("b", "a")), Err(PoolError::NameTaken { name: "a".into() }.into()));
    assert_eq!(scene.run(scene.pool.remove("e")), Err(missing));
    // A pool is not one volume, and only its volumes are written.
    let space = scene.pool.space();
    assert_eq!(scene.run(space.write(0, &block(1), false)), Err(Status::InvalidField.into()));
    assert_eq!(scene.run(space.discard(0, 1)), Err(Status::InvalidField.into()));
    assert_eq!(scene.run(space.grow(1 << 30)), Err(VolumeError::IsPool));
    scene.runtime.clear();
    let runtime = Runtime::new();
    let whole = Volume::open(&runtime, Rc::new(scene.drive.clone()), VolumeOptions::default());
    assert_eq!(run(&runtime, whole).map(drop), Err(VolumeError::IsPool));
    runtime.clear();
}

/// A volume without extents, and with all of them: the pool has as many extents as it has blocks for.
#[test]
fn pool_without_extents_refuses_writes_to_new_ones() {
    let scene = Scene::new();
    let volume = scene.run(scene.pool.add(NewVolume { blocks: 1 << 28, ..new("a") })).unwrap();
    let (_, free, _) = scene.pool.extents();
    (0..free as u64).for_each(|extent| scene.write(&volume, extent * EXTENT * 3, 1));
    let refused = scene.run(volume.write(1 << 27, &block(1), false));
    assert_eq!(refused, Err(Status::CapacityExceeded.into()));
    scene.write(&volume, 1, 2);
    scene.run(scene.pool.remove("a")).unwrap();
    let volume = scene.add("b");
    scene.write(&volume, 0, 3);
    assert_eq!(scene.pool.extents().1, free - 1);
    assert_eq!(scene.read(&volume, 1), 0);
    scene.run(scene.pool.audit()).unwrap();
}

/// A change of a pool, and what its volumes may be after it.
type Change = (&'static str, fn(&Scene) -> Result<(), VolumeError>, Vec<(String, u64, [u8; 2])>);

/// A power cut at each moment of a change: the pool is as before, or as after it, and the other volume has its data.
#[test]
fn change_of_pool_interrupted_at_any_moment_is_done_or_not() {
    let of = |name: &str, blocks: u64, bytes: [u8; 2]| (name.to_string(), blocks, bytes);
    let kept = of("kept", BLOCKS, [1, 2]);
    let before = vec![kept.clone(), of("old", BLOCKS, [3, 0])];
    let changes: [Change; 6] = [
        ("add", |scene| scene.run(scene.pool.add(new("new"))).map(drop), {
            [&before[..], &[of("new", BLOCKS, [0, 0])]].concat()
        }),
        ("remove", |scene| scene.run(scene.pool.remove("old")), vec![kept.clone()]),
        ("rename", |scene| scene.run(scene.pool.rename("old", "new")), {
            vec![kept.clone(), of("new", BLOCKS, [3, 0])]
        }),
        ("grow", |scene| scene.run(scene.pool.find("old")?.grow(2 * BLOCKS)), {
            vec![kept.clone(), of("old", 2 * BLOCKS, [3, 0])]
        }),
        (
            "first write of an extent",
            |scene| Ok(scene.run(scene.pool.find("old")?.write(BLOCKS - 1, &block(9), true))?),
            vec![kept.clone(), of("old", BLOCKS, [3, 9])],
        ),
        (
            "first write of an extent, and flush",
            |scene| {
                let old = scene.pool.find("old")?;
                scene.run(old.write(BLOCKS - 1, &block(9), false))?;
                Ok(scene.run(old.flush())?)
            },
            vec![kept.clone(), of("old", BLOCKS, [3, 9])],
        ),
    ];
    for (what, change, after) in changes {
        for commands in 0.. {
            let scene = Scene::new();
            let (volume, old) = (scene.add("kept"), scene.add("old"));
            for (volume, at, byte) in [(&volume, 0, 1), (&volume, BLOCKS - 1, 2), (&old, 0, 3)] {
                scene.write(volume, at, byte);
            }
            scene.device.left.set(commands);
            let is_done = change(&scene).is_ok();
            let scene = scene.cut();
            scene.run(scene.pool.finish_removals()).unwrap();
            let found = scene.volumes();
            assert!(found == after || !is_done && found == before, "{what}, {commands} commands: {found:?}");
            scene.run(scene.pool.audit()).unwrap();
            // The extents of a volume that was removed hold nothing.
            let other = scene.add("other");
            scene.write(&other, 1, 5);
            assert_eq!(scene.volumes().last().map(|(_, _, bytes)| *bytes), Some([0, 0]), "{what}");
            if is_done {
                assert!(commands > 0, "{what} takes no command");
                break;
            }
        }
    }
}

/// A request of the volume may wait for the table, which the removal changes.
#[test]
fn removal_waits_for_requests_and_refuses_later_ones() {
    let scene = Scene::new();
    let volume = scene.add("a");
    let (writes, done) = (volume.clone(), Rc::new(Cell::new(0)));
    for at in 0..4 {
        let (volume, done) = (writes.clone(), done.clone());
        scene.runtime.spawn(async move {
            let written = volume.write(at * EXTENT, &block(1), false).await;
            assert!(matches!(written, Ok(()) | Err(DeviceError::Gone)), "{written:?}");
            done.set(done.get() + 1);
        });
    }
    // One write is under way when the removal begins.
    assert!(scene.runtime.step());
    scene.run(scene.pool.remove("a")).unwrap();
    scene.runtime.run();
    assert_eq!(done.get(), 4);
    let gone = scene.run(volume.read(0, Buf::zeroed(BLOCK))).map(drop);
    assert_eq!(gone, Err(DeviceError::Gone));
    assert!(scene.pool.volumes().is_empty());
    assert_eq!(scene.run(scene.pool.audit()), Ok(1), "the block of owners");
    let (extents, free, _) = scene.pool.extents();
    assert_eq!(extents, free + 1);
}

/// The request that needs an extent is dropped: the extent is the volume's all the same, and is freed with it.
#[test]
fn dropped_request_leaves_whole_table() {
    let scene = Scene::new();
    let volume = scene.add("a");
    {
        let data = block(1);
        let mut write = std::pin::pin!(volume.write(0, &data, false));
        let waker = std::task::Waker::noop();
        assert!(write.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
    }
    scene.runtime.run();
    assert_eq!(volume.allocated(), Some(EXTENT));
    scene.run(scene.pool.remove("a")).unwrap();
    let scene = scene.cut();
    assert!(scene.volumes().is_empty());
}

/// A damaged block of the table is named, and nothing is written.
#[test]
fn damaged_table_of_pool_is_refused() {
    let scene = Scene::new();
    let volume = scene.add("a");
    scene.write(&volume, 0, 1);
    run(&scene.runtime, scene.pool.space().stop()).unwrap();
    scene.runtime.clear();
    let drive = scene.drive.clone();
    let capacity = geometry().zone_capacity_blocks;
    let table = (0..geometry().zones as u64)
        .flat_map(|zone| (0..capacity).map(move |at| zone * geometry().zone_size_blocks + at))
        .map(Lba)
        .filter(|lba| {
            let stored = drive.ssd().borrow_mut().stored(*lba).unwrap();
            stored.is_some_and(|bytes| bytes.starts_with(b"zvp1"))
        });
    let table: Vec<_> = table.collect();
    assert_eq!(table.len(), 2, "a record, and owners");
    for lba in table {
        let bytes = drive.ssd().borrow_mut().stored(lba).unwrap().unwrap();
        let mut wrong = bytes.clone();
        wrong[40] ^= 1;
        drive.ssd().borrow_mut().forge(lba, Some(&wrong)).unwrap();
        let runtime = Runtime::new();
        let error = opened(&runtime, Rc::new(drive.clone())).map(drop).unwrap_err();
        assert!(matches!(error, VolumeError::Pool(PoolError::TableDamaged { .. })), "{error}");
        runtime.clear();
        drive.ssd().borrow_mut().forge(lba, Some(&bytes)).unwrap();
    }
    assert!(opened(&Runtime::new(), Rc::new(drive)).is_ok());
}

/// A pool of the default shape has room for so many volumes, and all of them are found again.
#[test]
fn small_pool_has_a_thousand_volumes() {
    let geometry = Geometry { max_open: 0, max_active: 0, ..Model::zn540().scaled(400, 1024).geometry };
    let drive = EmulatedDrive::in_memory(&geometry);
    let options = VolumeCreateOptions { uuid: [9; 16], ..VolumeCreateOptions::default() };
    run(&Runtime::new(), Pool::create(&Runtime::new(), Rc::new(drive.clone()), options)).unwrap();
    let scene = Scene::on(drive);
    let volumes = (0..1024).map(|number| (number, scene.add(&number.to_string())));
    let volumes: Vec<(u64, Volume)> = volumes.collect();
    volumes.iter().for_each(|(number, volume)| scene.write(volume, number % BLOCKS, *number as u8));
    let names: Vec<String> = volumes.iter().filter_map(|(_, volume)| volume.name()).collect();
    let scene = scene.cut();
    let found: Vec<String> = scene.pool.volumes().iter().filter_map(Volume::name).collect();
    assert_eq!(found, names);
    for number in [0, 1, 255, 512, 1023] {
        let volume = scene.pool.find(&number.to_string()).unwrap();
        assert_eq!(scene.read(&volume, number % BLOCKS), number as u8);
    }
    scene.run(scene.pool.audit()).unwrap();
}

/// What a pool offers of the space after parity.
#[test]
fn pools_offer_most_of_their_device() {
    // 4 x 1 TB and 64 GiB of data, in zones of 4 ZN540 or small ones.
    let large =
        Geometry { zones: 904, zone_size_blocks: 1 << 20, zone_capacity_blocks: 4 * 275_712, ..geometry() };
    let large = Geometry { zone_size_blocks: 2 << 20, ..large };
    let small = Geometry { zones: 1024, zone_size_blocks: 16384, zone_capacity_blocks: 16384, ..geometry() };
    // Above 16 TiB there are several shards.
    let sharded = Geometry { zones: 8 * 904, ..large.clone() };
    for (geometry, percent) in [(large, 85), (small, 70), (sharded, 85)] {
        let device = emu::ssd::NullDrive::new(geometry.clone());
        let options = Pool::options(&device, VolumeCreateOptions::default()).unwrap();
        let plan = VolumePlan::of_pool(&geometry, options.blocks, options.shards, options.pool).unwrap();
        let space = geometry.zones as u64 * geometry.zone_capacity_blocks;
        assert!(plan.usable >= space / 100 * percent, "{} of {space} blocks", plan.usable);
        let extent_blocks = options.pool.unwrap().extent_blocks;
        assert!(extent_blocks <= 32 * 672, "extents of {extent_blocks} blocks");
    }
}

/// Settings that are changed while the volume is removed, or by a handle that is left, do not reach the slot, which
/// another volume may have.
#[test]
fn settings_of_removed_volume_do_not_change_next_one() {
    let scene = Scene::new();
    let old = scene.add("old");
    let (done, told) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(None)));
    let (pool, finished) = (scene.pool.clone(), done.clone());
    scene.runtime.spawn(async move { finished.set(Some(pool.remove("old").await.is_ok())) });
    let (setting, answer) = (old.clone(), told.clone());
    scene.runtime.spawn(async move { answer.set(Some(setting.queue_writes(9).await)) });
    scene.runtime.run();
    assert_eq!((done.get(), told.get()), (Some(true), Some(Err(DeviceError::Gone))));
    scene.add("new");
    assert_eq!(scene.run(old.grow(2 * BLOCKS)), Err(DeviceError::Gone.into()));
    assert_eq!(scene.run(old.compress(Some(Codec::Lz4), Unit::BLOCK)), Err(DeviceError::Gone));
    assert_eq!(scene.run(scene.pool.rename("new", "old")), Ok(()));
    let scene = scene.cut();
    assert_eq!(scene.volumes(), [("old".to_string(), BLOCKS, [0, 0])]);
}

/// Other volumes get extents while one is removed.
#[test]
fn removal_does_not_hold_up_other_volumes() {
    let scene = Scene::new();
    let (large, other) = (scene.add("large"), scene.add("other"));
    (0..4).for_each(|extent| scene.write(&large, extent * EXTENT, 1));
    let (pool, removed) = (scene.pool.clone(), Rc::new(Cell::new(false)));
    let told = removed.clone();
    scene.runtime.spawn(async move {
        pool.remove("large").await.unwrap();
        told.set(true);
    });
    // It has recorded the removal, and discards.
    while scene.pool.find("large").is_ok() {
        assert!(scene.runtime.step());
    }
    let writes = Rc::new(Cell::new(0));
    for extent in 0..3 {
        let (other, writes) = (other.clone(), writes.clone());
        scene.runtime.spawn(async move {
            other.write(extent * EXTENT, &block(2), false).await.unwrap();
            writes.set(writes.get() + 1);
        });
    }
    scene.runtime.run();
    assert!(removed.get() && writes.get() == 3);
    scene.run(scene.pool.audit()).unwrap();
}

/// An owner that cannot be: the pool does not start unless it is given up, and then the extent is free and empty.
#[test]
fn impossible_owner_is_refused_and_can_be_given_up() {
    let scene = Scene::new();
    let (volume, other) = (scene.add("a"), scene.add("b"));
    scene.write(&volume, 0, 1);
    scene.write(&other, 0, 2);
    scene.run(scene.pool.space().stop()).unwrap();
    scene.runtime.clear();
    let drive = scene.drive.clone();
    let (capacity, size) = (geometry().zone_capacity_blocks, geometry().zone_size_blocks);
    let all =
        (0..geometry().zones as u64).flat_map(|zone| (0..capacity).map(move |at| Lba(zone * size + at)));
    let stored = |lba: Lba| drive.ssd().borrow_mut().stored(lba).unwrap();
    // The newest block with owners.
    let is_owners =
        |lba: &Lba| stored(*lba).is_some_and(|bytes| bytes.starts_with(b"zvp1") && bytes[26] == 2);
    let lba = all.filter(is_owners).max().unwrap();
    let mut bytes = stored(lba).unwrap();
    // The first extent becomes that of a volume in a slot that is free.
    let first = (0..508).find(|extent| bytes[32 + extent * 8] == 1).unwrap();
    bytes[32 + first * 8] = SLOTS as u8;
    let sum = crc32c::crc32c(&bytes[8..BLOCK]);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    drive.ssd().borrow_mut().forge(lba, Some(&bytes)).unwrap();
    let runtime = Runtime::new();
    assert_eq!(opened(&runtime, Rc::new(drive.clone())).map(drop), Err(VolumeError::Absurd));
    runtime.clear();
    for give_up in [true, false] {
        let options = VolumeOptions { give_up, ..VolumeOptions::default() };
        let opened = run(&runtime, volume::open(&runtime, Rc::new(drive.clone()), options)).unwrap();
        let Opened::Pool(pool) = opened else { panic!("a pool is taken for a volume") };
        run(&runtime, pool.audit()).unwrap();
        let read =
            |name: &str| run(&runtime, pool.find(name).unwrap().read(0, Buf::zeroed(BLOCK))).unwrap()[0];
        assert_eq!((read("a"), read("b")), (0, 2));
        runtime.clear();
    }
}

fn limited_to(limits: Rates) -> Qos {
    Qos { limits, ..Qos::default() }
}

/// A power cut at each moment of a change of limits and floors, of a volume that was created with others.
#[test]
fn qos_interrupted_at_any_moment_is_former_or_new() {
    let former = limited_to(Rates { requests: 7, blocks: 0 });
    let new_one = Qos {
        limits: Rates { requests: 7, blocks: 900 },
        floors: Rates { requests: 6, blocks: 800 },
        latency_us: 70,
    };
    for commands in 0.. {
        let scene = Scene::new();
        scene.add("other");
        let limited = scene.run(scene.pool.add(NewVolume { qos: former, ..new("a") })).unwrap();
        scene.device.left.set(commands);
        let is_done = scene.run(limited.set_qos(move |qos| *qos = new_one)).is_ok();
        assert!(!is_done || limited.qos() == new_one);
        let scene = scene.cut();
        let [other, limited] = ["other", "a"].map(|name| scene.pool.find(name).unwrap().qos());
        assert!(limited == new_one || !is_done && limited == former, "{commands} commands: {limited:?}");
        assert_eq!(other, Qos::default());
        if is_done {
            break;
        }
    }
}

#[test]
fn limits_survive_other_changes_and_hold_for_snapshots() {
    let scene = Scene::with(8);
    let volume = scene.run(scene.pool.add(new("a"))).unwrap();
    let limits = Rates { requests: 5, blocks: 6 };
    scene.run(volume.set_qos(move |qos| qos.limits = limits)).unwrap();
    let snapshot = NewSnapshot { volume: "a".into(), name: "s".into(), uuid: [3; 16] };
    let snapshot = scene.run(scene.pool.snapshot(vec![snapshot])).unwrap().remove(0);
    let clone = scene.run(scene.pool.clone_of(("a", "s"), "c", [4; 16])).unwrap();
    assert_eq!([&snapshot, &clone].map(|volume| volume.qos().limits), [limits, Rates::default()]);
    let refused = scene.run(snapshot.set_qos(|qos| qos.limits.requests = 1));
    assert_eq!(refused, Err(VolumeError::Device(Status::NamespaceIsWriteProtected.into())));
    scene.run(volume.compress(Some(Codec::Lz4), Unit::BLOCK)).unwrap();
    scene.run(volume.grow(2 * BLOCKS)).unwrap();
    scene.run(scene.pool.rename("a", "b")).unwrap();
    scene.run(scene.pool.roll_back("b", "s")).unwrap();
    assert_eq!(volume.qos(), limited_to(limits));
    let scene = scene.cut();
    let [volume, snapshot] = ["b", "b@s"].map(|name| scene.pool.find(name).unwrap());
    assert_eq!([volume.qos(), snapshot.qos(), volume.status().qos], [limited_to(limits); 3]);
    // The snapshot uses up what its volume may do, and that is forgotten when the limits have changed.
    let waits = |volume: &Volume| {
        let waited_us = Cell::new(0);
        let sleep = |us| {
            waited_us.set(waited_us.get() + us);
            std::future::ready(())
        };
        _ = scene.run(volume.admit(6, || 0, sleep));
        waited_us.get()
    };
    assert_eq!([&snapshot, &volume].map(waits), [0, 990_000]);
    scene.run(volume.set_qos(|qos| qos.limits = Rates::default())).unwrap();
    scene.run(volume.set_qos(move |qos| qos.limits = limits)).unwrap();
    assert_eq!([&volume, &snapshot].map(waits), [0, 990_000]);
}

/// A clock that moves when no task is ready.
#[derive(Default)]
struct TestClock {
    now_us: Cell<u64>,
    timers: RefCell<Vec<(u64, Waker)>>,
}

impl TestClock {
    fn sleep(&self, us: u64) -> impl Future<Output = ()> {
        let at_us = self.now_us.get() + us;
        poll_fn(move |context| {
            if self.now_us.get() >= at_us {
                return Poll::Ready(());
            }
            self.timers.borrow_mut().push((at_us, context.waker().clone()));
            Poll::Pending
        })
    }

    /// Runs all tasks for a second.
    fn run(&self, runtime: &Runtime) {
        let end_us = self.now_us.get() + 1_000_000;
        loop {
            runtime.run();
            let next_us = self.timers.borrow().iter().map(|(at_us, _)| *at_us).min();
            let Some(next_us) = next_us.filter(|at_us| *at_us <= end_us) else { return };
            self.now_us.set(next_us);
            let is_due = |(at_us, _): &mut (u64, Waker)| *at_us <= next_us;
            self.timers.borrow_mut().extract_if(.., is_due).for_each(|(_, waker)| waker.wake());
        }
    }
}

/// Eight writers of a volume with limits never rest; another volume of the pool is written each millisecond, and the
/// limited one is flushed.
#[test]
fn limited_volume_waits_and_others_do_not() {
    let scene = Scene::new();
    let clock = Rc::new(TestClock::default());
    let [limited, free] = ["limited", "free"].map(|name| scene.add(name));
    let counts = Rc::new([const { Cell::new(0_u64) }; 3]);
    let count = |which: usize| {
        let counts = counts.clone();
        move || counts[which].set(counts[which].get() + 1)
    };
    for writer in 0..8 {
        let (volume, clock, count) = (limited.clone(), clock.clone(), count(0));
        scene.runtime.spawn(async move {
            loop {
                _ = volume.admit(1, || clock.now_us.get(), |us| clock.sleep(us)).await;
                volume.write(writer, &block(1), false).await.unwrap();
                count();
                // Without limits it would never end.
                clock.sleep(100).await;
            }
        });
    }
    for (volume, is_flush) in [(free, false), (limited.clone(), true)] {
        let (clock, count) = (clock.clone(), count(1 + is_flush as usize));
        scene.runtime.spawn(async move {
            loop {
                let begun_us = clock.now_us.get();
                if is_flush {
                    volume.flush().await.unwrap();
                } else {
                    _ = volume.admit(1, || clock.now_us.get(), |us| clock.sleep(us)).await;
                    volume.write(9, &block(2), false).await.unwrap();
                }
                assert_eq!(clock.now_us.get(), begun_us, "flush: {is_flush}");
                count();
                clock.sleep(1000).await;
            }
        });
    }
    let second = || {
        counts.iter().for_each(|count| count.set(0));
        clock.run(&scene.runtime);
        [0, 1, 2].map(|which| counts[which].get())
    };
    let [unlimited, free, flushes] = second();
    assert!(unlimited > 70_000 && free >= 1000 && flushes >= 1000, "{unlimited} {free} {flushes}");
    let limit = |rate| scene.run(limited.set_qos(move |qos| qos.limits.requests = rate)).unwrap();
    for rate in [500, 50] {
        limit(rate);
        let [written, free, flushes] = second();
        let most = rate as u64 * 101 / 100 + 1;
        assert!((rate as u64..=most + 8).contains(&written), "{written} writes at {rate} a second");
        assert!((999..=1001).contains(&free) && (999..=1001).contains(&flushes), "{free} {flushes}");
    }
    // Waiting requests notice the change within a tenth of a second.
    limit(0);
    assert!(second()[0] > 60_000);
}

/// A volume with a floor, four writers and a pause, beside another one with sixteen writers, on a device that takes 100 µs
/// for each write, one at a time.
#[test]
fn floor_of_volume_holds_beside_busy_neighbour_and_is_lent_while_idle() {
    let scene = Scene::new();
    let clock = Rc::new(TestClock::default());
    let [guaranteed, busy] = ["guaranteed", "busy"].map(|name| scene.add(name));
    let device = Rc::new(Exclusive::default());
    let pauses = [(); 2].map(|()| Rc::new(Cell::new(false)));
    let counts = Rc::new([const { Cell::new(0_u64) }; 2]);
    for writer in 0..20 {
        let is_busy = writer >= 4;
        let volume = if is_busy { busy.clone() } else { guaranteed.clone() };
        let (clock, device, counts) = (clock.clone(), device.clone(), counts.clone());
        let pauses = pauses[is_busy as usize].clone();
        scene.runtime.spawn(async move {
            loop {
                if pauses.get() {
                    clock.sleep(1000).await;
                    continue;
                }
                let now_us = || clock.now_us.get();
                let admitted = volume.admit(1, now_us, |us| clock.sleep(us)).await;
                {
                    let _turn = device.take().await;
                    clock.sleep(100).await;
                    volume.write(writer % BLOCKS, &block(1), false).await.unwrap();
                }
                volume.answered(admitted, 1, now_us);
                let count = &counts[is_busy as usize];
                count.set(count.get() + 1);
            }
        });
    }
    let second = || {
        counts.iter().for_each(|count| count.set(0));
        clock.run(&scene.runtime);
        [0, 1].map(|which| counts[which].get())
    };
    let [fair, _] = second();
    assert!((1900..=2100).contains(&fair), "a fifth of 10,000: {fair}");
    let above_limit = |qos: &mut Qos| (qos.limits.requests, qos.floors.requests) = (5999, 6000);
    let refused = scene.run(guaranteed.set_qos(above_limit));
    assert_eq!(refused, Err(PoolError::FloorAboveLimit.into()));
    scene.run(guaranteed.set_qos(|qos| qos.floors.requests = 6000)).unwrap();
    second();
    let [with_floor, other] = second();
    assert!(with_floor >= 5900 && other >= 3000, "{with_floor} {other}");
    assert!(busy.status().held_to.is_some() && guaranteed.status().held_to.is_none());
    // The capacity that the volume does not use goes to the other one.
    pauses[0].set(true);
    second();
    let [none, all] = second();
    assert!(none == 0 && all >= 9900, "{none} {all}");
    assert_eq!(busy.status().held_to, None);
    pauses[0].set(false);
    second();
    let [again, _] = second();
    assert!(again >= 5900, "{again}");
    // Requests that all wait are not throttled for long without the other volume either.
    pauses.iter().for_each(|pauses| pauses.set(true));
    let (begun_us, last_us) = (clock.now_us.get(), Rc::new(Cell::new(0)));
    for _ in 0..2000 {
        let (volume, clock, last_us) = (busy.clone(), clock.clone(), last_us.clone());
        scene.runtime.spawn(async move {
            let admitted = volume.admit(1, || clock.now_us.get(), |us| clock.sleep(us)).await;
            last_us.set(clock.now_us.get());
            volume.answered(admitted, 1, || clock.now_us.get());
        });
    }
    second();
    let took_us = last_us.get() - begun_us;
    assert!((50_000..200_000).contains(&took_us), "{took_us} us for 2,000 requests");
    pauses.iter().for_each(|pauses| pauses.set(false));
    // Without the floor each request waits its turn again.
    scene.run(guaranteed.set_qos(|qos| *qos = Qos::default())).unwrap();
    let [fair, _] = second();
    assert!((1900..=2100).contains(&fair) && busy.status().held_to.is_none(), "{fair}");
    assert!(!guaranteed.needs_admission());
}

#[test]
fn floors_hold_from_start_until_volume_is_removed() {
    let scene = Scene::new();
    let [guaranteed, other] = ["guaranteed", "other"].map(|name| scene.add(name));
    assert!(!other.needs_admission());
    scene.run(guaranteed.set_qos(|qos| qos.latency_us = 9)).unwrap();
    assert!(other.needs_admission());
    let scene = scene.cut();
    let other = scene.pool.find("other").unwrap();
    assert!(other.needs_admission());
    scene.run(scene.pool.remove("guaranteed")).unwrap();
    assert!(!other.needs_admission());
    let floors = Rates { requests: 1, blocks: 0 };
    scene.run(scene.pool.add(NewVolume { qos: Qos { floors, ..Qos::default() }, ..new("new") })).unwrap();
    assert!(other.needs_admission());
    let above_limit = Qos { limits: floors, floors: Rates { requests: 2, blocks: 0 }, latency_us: 0 };
    let refused = scene.run(scene.pool.add(NewVolume { qos: above_limit, ..new("c") })).map(drop);
    assert_eq!(refused, Err(PoolError::FloorAboveLimit.into()));
}

/// The end is cut off when it has no data: its extents are free, other volumes get them, and later blocks are zeros.
#[test]
fn volume_of_pool_shrinks_to_its_data() {
    let scene = Scene::new();
    let (volume, _) = (scene.add("a"), scene.add("b"));
    [0, EXTENT + 2, EXTENT + 3, 3 * EXTENT, BLOCKS - 1].iter().for_each(|at| scene.write(&volume, *at, 1));
    let free = scene.pool.extents().1;
    let to = EXTENT + 3;
    for (last, from) in [(BLOCKS - 1, BLOCKS - 5), (3 * EXTENT, 2 * EXTENT), (EXTENT + 3, EXTENT + 3)] {
        assert_eq!(scene.run(volume.resize(to)), Err(VolumeError::DataBehindEnd { last, to }));
        assert_eq!((volume.blocks(), scene.read(&volume, last)), (BLOCKS, 1));
        scene.run(volume.discard(from, BLOCKS - from)).unwrap();
    }
    scene.run(volume.resize(to)).unwrap();
    assert_eq!((volume.blocks(), scene.pool.extents().1), (to, free + 2));
    let beyond = scene.run(volume.read(to, Buf::zeroed(BLOCK))).map(drop);
    assert_eq!(beyond, Err(Status::LbaOutOfRange.into()));
    assert!(matches!(scene.run(volume.resize(0)), Err(VolumeError::Design(_))));
    let scene = scene.cut();
    let volume = scene.pool.find("a").unwrap();
    assert_eq!((volume.blocks(), scene.pool.extents().1), (to, free + 2));
    scene.run(scene.pool.audit()).unwrap();
    scene.run(volume.resize(BLOCKS)).unwrap();
    let all = scene.run(volume.read(0, Buf::zeroed(BLOCKS as usize * BLOCK))).unwrap();
    let there = (0..BLOCKS).filter(|at| all[*at as usize * BLOCK] != 0);
    assert_eq!(there.collect::<Vec<_>>(), [0, EXTENT + 2]);
    let other = scene.pool.find("b").unwrap();
    for extent in 0..4 {
        scene.write(&other, extent * EXTENT, 2);
        assert_eq!(scene.read(&other, extent * EXTENT + 3), 0);
    }
    scene.run(scene.pool.audit()).unwrap();
}

/// A power cut at each moment of a cut of the end, whose blocks were discarded without a flush.
#[test]
fn shrinking_interrupted_at_any_moment_is_done_or_not() {
    let written = || (0..BLOCKS).step_by(8).chain([BLOCKS - 1]);
    // In the last case no extent is freed.
    for to in [EXTENT + 3, 2 * EXTENT, 1, BLOCKS - 2] {
        for commands in 0.. {
            let scene = Scene::new();
            let (kept, old) = (scene.add("kept"), scene.add("old"));
            written().for_each(|at| scene.write(&old, at, 3));
            scene.write(&kept, 0, 1);
            scene.run(old.discard(to, BLOCKS - to)).unwrap();
            scene.device.left.set(commands);
            let is_done = scene.run(old.resize(to)).is_ok();
            let scene = scene.cut();
            let old = scene.pool.find("old").unwrap();
            let is_cut = old.blocks() == to;
            assert!(is_cut || !is_done && old.blocks() == BLOCKS, "{commands}: {} blocks", old.blocks());
            scene.run(scene.pool.audit()).unwrap();
            scene.run(old.resize(BLOCKS)).unwrap();
            for at in written() {
                let byte = scene.read(&old, at);
                assert!(byte == if at < to { 3 } else { 0 } || at >= to && !is_cut, "{commands}: block {at}");
            }
            // All extents that are free hold nothing.
            let other = scene.add("other");
            scene.run(other.resize(1 << 20)).unwrap();
            for extent in 0..scene.pool.extents().1 as u64 {
                scene.write(&other, extent * EXTENT + 1, 5);
                assert_eq!([0, 8].map(|at| scene.read(&other, extent * EXTENT + at)), [0, 0], "{commands}");
            }
            if is_done {
                assert!(commands > 0, "it takes no command");
                break;
            }
        }
    }
}

/// A write to the end at any moment of a cut: it comes first, and the cut is refused, or it is refused itself.
#[test]
fn shrinking_and_writing_of_end_exclude_each_other() {
    let mut found = [0, 0];
    for steps in 0.. {
        let scene = Scene::new();
        let volume = scene.add("a");
        scene.write(&volume, 3 * EXTENT, 1);
        scene.run(volume.discard(EXTENT, BLOCKS - EXTENT)).unwrap();
        let (shrunk, written) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(None)));
        let (of, told) = (volume.clone(), shrunk.clone());
        scene.runtime.spawn(async move { told.set(Some(of.resize(EXTENT + 2).await.is_ok())) });
        (0..steps).for_each(|_| _ = scene.runtime.step());
        let is_late = shrunk.get().is_some();
        let (of, told) = (volume.clone(), written.clone());
        // The partly cut extent, and one that is freed.
        let at = if steps % 2 == 0 { EXTENT + 2 } else { 2 * EXTENT };
        scene.runtime.spawn(async move { told.set(Some(of.write(at, &block(2), false).await)) });
        // The others wait for nothing.
        scene.write(&volume, 0, 9);
        scene.runtime.run();
        match (shrunk.get(), written.get()) {
            (Some(true), Some(Err(error))) => {
                assert_eq!((error, volume.blocks()), (Status::LbaOutOfRange.into(), EXTENT + 2));
                found[0] += 1;
            }
            (Some(false), Some(Ok(()))) => {
                assert_eq!((volume.blocks(), scene.read(&volume, at)), (BLOCKS, 2));
                found[1] += 1;
            }
            ends => panic!("{ends:?} after {steps} steps"),
        }
        let scene = scene.cut();
        scene.run(scene.pool.audit()).unwrap();
        if is_late {
            break;
        }
    }
    assert!(found.iter().all(|times| *times > 0), "{found:?}");
}

/// A request that is dropped may leave the claim of an extent behind, which must not lie behind the new end.
#[test]
fn shrinking_after_dropped_write_leaves_whole_table() {
    for steps in 0..40 {
        let scene = Scene::new();
        let volume = scene.add("a");
        let waker = std::task::Waker::noop();
        let (data, shrunk) = (block(1), Rc::new(Cell::new(None)));
        {
            let mut write = std::pin::pin!(volume.write(2 * EXTENT, &data, false));
            assert!(write.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
            (0..steps).for_each(|_| _ = scene.runtime.step());
        }
        let (of, told) = (volume.clone(), shrunk.clone());
        scene.runtime.spawn(async move { told.set(Some(of.resize(EXTENT).await)) });
        scene.runtime.run();
        assert_eq!(shrunk.take(), Some(Ok(())), "{steps} steps");
        let scene = scene.cut();
        assert_eq!(scene.pool.find("a").unwrap().blocks(), EXTENT);
        scene.run(scene.pool.audit()).unwrap();
    }
}
