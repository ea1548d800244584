//! Space that is guaranteed to volumes of a pool: other volumes and their snapshots do not take it, also after
//! interruptions.

use crate::support::{
    pool::{BLOCKS, EXTENT, Scene, geometry, new},
    volume::{block, noise},
};
use engine::{
    buf::{BLOCK, Buf},
    device::{DeviceError, Status},
    volume::{Codec, NewSnapshot, NewVolume, PoolError, Unit, Volume, VolumeError},
    zone::Lba,
};

/// Blocks of a volume that is larger than the room of the pool.
const LARGE: u64 = 4000;

fn full() -> Result<(), DeviceError> {
    Err(Status::CapacityExceeded.into())
}

fn write(scene: &Scene, volume: &Volume, at: u64, byte: u8) -> Result<(), DeviceError> {
    scene.run(volume.write(at, &block(byte), false))
}

/// Writes blocks of a volume, from `at` on, until one is refused; the number of blocks.
fn fill(scene: &Scene, volume: &Volume, at: u64) -> u64 {
    let refused = (at..volume.blocks()).find(|at| write(scene, volume, *at, 1) == full());
    refused.expect("the pool has less room") - at
}

fn add(scene: &Scene, name: &str, blocks: u64, guaranteed: u64) -> Result<Volume, VolumeError> {
    scene.run(scene.pool.add(NewVolume { blocks, guaranteed, ..new(name) }))
}

fn snapshot(scene: &Scene, volume: &str, name: &str) -> Result<(), VolumeError> {
    let new = NewSnapshot { volume: volume.into(), name: name.into(), uuid: [7; 16] };
    scene.run(scene.pool.snapshot(vec![new])).map(drop)
}

/// The scene behind a flush of a volume and a power cut.
fn flush_and_cut(scene: Scene, volume: &Volume) -> Scene {
    scene.run(volume.flush()).unwrap();
    scene.cut()
}

fn audit(scene: &Scene) {
    scene.run(scene.pool.audit()).unwrap();
    scene.run(scene.pool.space().audit()).unwrap();
}

/// All blocks of the volume can be written, and written again, while another volume has filled the pool.
#[test]
fn guaranteed_room_stays_for_its_volume() {
    for cut in [false, true] {
        let scene = Scene::with(12);
        let kept = add(&scene, "kept", BLOCKS, BLOCKS).unwrap();
        let large = add(&scene, "large", LARGE, 0).unwrap();
        (0..10).for_each(|at| write(&scene, &kept, at, 1).unwrap());
        let all = fill(&scene, &large, 0);
        let scene = if cut { flush_and_cut(scene, &large) } else { scene };
        let [kept, large] = ["kept", "large"].map(|name| scene.pool.find(name).unwrap());
        assert_eq!((kept.guaranteed(), large.guaranteed()), (BLOCKS, 0));
        assert_eq!(write(&scene, &large, all + 1, 1), full());
        for round in [2, 3] {
            (0..BLOCKS).for_each(|at| write(&scene, &kept, at, round).unwrap());
        }
        (0..all).step_by(7).for_each(|at| write(&scene, &large, at, 5).unwrap());
        audit(&scene);
        // The room of discarded blocks stays guaranteed until the volume is removed.
        scene.run(kept.discard(0, BLOCKS)).unwrap();
        assert_eq!(write(&scene, &large, all + 1, 1), full());
        scene.run(scene.pool.remove("kept")).unwrap();
        assert!(fill(&scene, &large, all) >= BLOCKS, "the room of the volume that was removed");
        audit(&scene);
    }
}

/// Snapshots of other volumes, and data that replaces data which compresses better, take no guaranteed room.
#[test]
fn guaranteed_room_is_not_taken_by_snapshots_or_worse_compression() {
    let scene = Scene::with(12);
    let (kept, large) =
        (add(&scene, "kept", BLOCKS, BLOCKS).unwrap(), add(&scene, "large", LARGE, 0).unwrap());
    scene.run(large.compress(Some(Codec::Lz4), Unit::BLOCK)).unwrap();
    (0..500).for_each(|at| write(&scene, &large, at, 1).unwrap());
    snapshot(&scene, "large", "s").unwrap();
    let worse = |at: u64| scene.run(large.write(at, &Buf::copy_of(&noise(at)), false));
    let refused = (0..500).find(|at| worse(*at) == full());
    if refused.is_none() {
        fill(&scene, &large, 500);
    }
    (0..500).for_each(|at| _ = worse(at));
    for round in [2, 3] {
        (0..BLOCKS).for_each(|at| write(&scene, &kept, at, round).unwrap());
    }
    audit(&scene);
}

/// The guarantee of a volume is also that of its snapshots: the blocks that they keep count towards it.
#[test]
fn guaranteed_room_holds_snapshots_of_its_volume() {
    let scene = Scene::with(12);
    let (kept, large) =
        (add(&scene, "kept", BLOCKS, 2 * BLOCKS).unwrap(), add(&scene, "large", LARGE, 0).unwrap());
    (0..BLOCKS).for_each(|at| write(&scene, &kept, at, 1).unwrap());
    snapshot(&scene, "kept", "s").unwrap();
    fill(&scene, &large, 0);
    (0..BLOCKS).for_each(|at| write(&scene, &kept, at, 2).unwrap());
    let space = scene.run(scene.pool.space_use()).unwrap();
    let bytes = BLOCKS * BLOCK as u64;
    let of = |name: &str| space[&scene.pool.find(name).unwrap().slot().unwrap()];
    assert_eq!((of("kept").own, of("kept@s").own), (bytes, bytes));
    let status = scene.pool.space().status();
    snapshot(&scene, "kept", "t").unwrap();
    assert_eq!(write(&scene, &kept, 0, 3), full(), "{status:?}");
    scene.run(scene.pool.remove_snapshot("kept", "s")).unwrap();
    (0..BLOCKS).for_each(|at| write(&scene, &kept, at, 3).unwrap());
    audit(&scene);
}

/// A guarantee that does not fit is refused with the largest one that does, which is accepted then.
#[test]
fn guarantee_that_does_not_fit_is_refused() {
    let scene = Scene::with(12);
    let (first, second) = (add(&scene, "first", 1000, 0).unwrap(), add(&scene, "second", 1500, 0).unwrap());
    (0..10).for_each(|at| write(&scene, &first, at, 1).unwrap());
    scene.run(first.guarantee(100)).unwrap();
    let Err(VolumeError::Pool(PoolError::NotGuaranteeable { most, .. })) = scene.run(second.guarantee(LARGE))
    else {
        panic!("the pool has less room");
    };
    let more = scene.run(second.guarantee(most + 1));
    assert_eq!(more, Err(PoolError::NotGuaranteeable { blocks: most + 1, most }.into()));
    assert_eq!(second.guaranteed(), 0);
    scene.run(second.guarantee(most)).unwrap();
    assert!(matches!(
        add(&scene, "third", BLOCKS, 1),
        Err(VolumeError::Pool(PoolError::NotGuaranteeable { most: 0, .. }))
    ));
    assert_eq!(scene.pool.volumes().len(), 2);
    let third = add(&scene, "third", BLOCKS, 0).unwrap();
    assert_eq!(write(&scene, &third, 0, 1), full());
    (0..most).for_each(|at| write(&scene, &second, at, 1).unwrap());
    (10..100).for_each(|at| write(&scene, &first, at, 1).unwrap());
    assert_eq!(write(&scene, &first, 100, 1), full());
    scene.run(second.discard(0, 20)).unwrap();
    scene.run(second.guarantee(most - 20)).unwrap();
    (0..20).for_each(|at| write(&scene, &third, at, 1).unwrap());
    let snapshot_of = snapshot(&scene, "third", "s");
    assert_eq!(snapshot_of, Ok(()));
    let refused = scene.run(scene.pool.find("third@s").unwrap().guarantee(1));
    assert_eq!(refused, Err(PoolError::IsSnapshot.into()));
    audit(&scene);
}

/// Extents that a volume with a guarantee may need are left to it, and sizes that need more are refused.
#[test]
fn guarantee_keeps_extents_for_its_volume() {
    let scene = Scene::with(12);
    let kept = add(&scene, "kept", BLOCKS, BLOCKS).unwrap();
    let sparse = add(&scene, "sparse", 1 << 28, 0).unwrap();
    let refused = (0..).find(|extent| write(&scene, &sparse, extent * EXTENT, 1) == full()).unwrap();
    assert!(refused > 0 && scene.pool.extents().1 as u64 == scene.pool.extents_set_aside());
    let too_large = scene.run(kept.grow(BLOCKS + EXTENT));
    assert!(matches!(too_large, Err(VolumeError::Pool(PoolError::FewAddresses { .. }))), "{too_large:?}");
    let second = snapshot(&scene, "kept", "s");
    assert!(matches!(second, Err(VolumeError::Pool(PoolError::FewAddresses { .. }))), "{second:?}");
    (0..BLOCKS).for_each(|at| write(&scene, &kept, at, 1).unwrap());
    assert_eq!((scene.pool.extents().1, scene.pool.extents_set_aside()), (0, 0));
    scene.run(scene.pool.remove("sparse")).unwrap();
    snapshot(&scene, "kept", "s").unwrap();
    assert_eq!(scene.pool.extents_set_aside(), BLOCKS.div_ceil(EXTENT));
    audit(&scene);
}

/// A power cut at each moment of a first guarantee, and of a change of it.
#[test]
fn guarantee_interrupted_at_any_moment_is_former_or_new() {
    for (former, present) in [(0, 40), (40, 70), (70, 0)] {
        for commands in 0.. {
            let scene = Scene::with(12);
            let kept = add(&scene, "kept", BLOCKS, former).unwrap();
            write(&scene, &kept, 0, 1).unwrap();
            scene.device.left.set(commands);
            let is_done = scene.run(kept.guarantee(present)).is_ok();
            let scene = scene.cut();
            let kept = scene.pool.find("kept").unwrap();
            let found = kept.guaranteed();
            assert!(found == present || !is_done && found == former, "{commands} commands: {found}");
            let large = add(&scene, "large", LARGE, 0).unwrap();
            fill(&scene, &large, 0);
            (0..found).for_each(|at| write(&scene, &kept, at, 2).unwrap());
            audit(&scene);
            if is_done {
                break;
            }
        }
    }
}

/// With the first guarantee the newest root has the feature: a program without guarantees would let others take the room.
#[test]
fn guarantee_is_announced_in_the_root() {
    const FEATURES: usize = 124;
    const GUARANTEES: u8 = 8;
    let scene = Scene::with(12);
    let volume = scene.add("a");
    let newest = || {
        let all = (0..2).flat_map(|zone| (0..64).map(move |at| Lba(zone * geometry().zone_size_blocks + at)));
        let mut stored = all.filter_map(|lba| scene.drive.ssd().borrow_mut().stored(lba).unwrap());
        stored.rfind(|block| block.starts_with(b"zvs1")).unwrap()[FEATURES] & GUARANTEES
    };
    assert_eq!(newest(), 0);
    scene.run(volume.guarantee(1)).unwrap();
    assert_eq!(newest(), GUARANTEES);
}

/// Blocks of a volume that is larger than the room of a pool of three shards.
const LARGEST: u64 = 3 * LARGE;

/// Writes all blocks of a volume for which there is room.
fn fill_shards(scene: &Scene, volume: &Volume) {
    (0..volume.blocks()).for_each(|at| _ = write(scene, volume, at, 1));
}

fn write_all(scene: &Scene, volume: &Volume, byte: u8) {
    (0..volume.blocks()).for_each(|at| assert_eq!(write(scene, volume, at, byte), Ok(()), "block {at}"));
}

/// All blocks of a volume in a pool of several shards can be written while another volume has filled these, also behind a
/// power cut, and when the volume has grown.
#[test]
fn guaranteed_room_stays_in_each_shard() {
    for (shards, cut) in [(2, false), (3, false), (2, true), (3, true)] {
        let scene = Scene::in_shards(&geometry(), 12, shards);
        let kept = add(&scene, "kept", BLOCKS, 3 * BLOCKS).unwrap();
        let large = add(&scene, "large", LARGEST, 0).unwrap();
        (0..10).for_each(|at| write(&scene, &kept, at, 1).unwrap());
        fill_shards(&scene, &large);
        scene.run(kept.grow(3 * BLOCKS)).unwrap();
        let scene = if cut { flush_and_cut(scene, &large) } else { scene };
        let [kept, large] = ["kept", "large"].map(|name| scene.pool.find(name).unwrap());
        assert_eq!((kept.guaranteed(), kept.blocks()), (3 * BLOCKS, 3 * BLOCKS));
        let set_aside = scene.pool.space().status().set_aside_bytes / BLOCK as u64;
        assert!((3 * BLOCKS - 11..4 * BLOCKS).contains(&set_aside), "{set_aside} blocks are set aside");
        fill_shards(&scene, &large);
        [2, 3].iter().for_each(|round| write_all(&scene, &kept, *round));
        audit(&scene);
        scene.run(kept.guarantee(0)).unwrap();
        assert_eq!(scene.pool.space().status().set_aside_bytes / BLOCK as u64, table_set_aside(&scene));
        scene.run(scene.pool.remove("kept")).unwrap();
        audit(&scene);
    }
}

/// Blocks that are set aside for the table of a pool.
fn table_set_aside(scene: &Scene) -> u64 {
    let table = 12 + (scene.pool.extents().0 as u64).div_ceil(508);
    table - scene.run(scene.pool.audit()).unwrap()
}

/// The blocks that snapshots keep lie in the shards of those of their volume, and find room and extents there.
#[test]
fn guaranteed_room_holds_snapshots_in_each_shard() {
    let scene = Scene::in_shards(&geometry(), 12, 2);
    let kept = add(&scene, "kept", BLOCKS, 2 * BLOCKS).unwrap();
    let large = add(&scene, "large", LARGEST, 0).unwrap();
    let sparse = add(&scene, "sparse", 1 << 28, 0).unwrap();
    write_all(&scene, &kept, 1);
    snapshot(&scene, "kept", "s").unwrap();
    assert_eq!(scene.pool.extents_set_aside(), BLOCKS.div_ceil(EXTENT));
    (0..2 * scene.pool.extents().0 as u64).for_each(|extent| _ = write(&scene, &sparse, extent * EXTENT, 1));
    fill_shards(&scene, &large);
    write_all(&scene, &kept, 2);
    assert_eq!(scene.pool.extents_set_aside(), 0);
    audit(&scene);
}

/// A volume takes no extent of a shard that the snapshot of another volume needs there, though others are free.
#[test]
fn guarantee_keeps_extents_of_each_shard_for_snapshots() {
    let scene = Scene::in_shards(&geometry(), 12, 2);
    let kept = add(&scene, "kept", BLOCKS, 2 * BLOCKS).unwrap();
    write_all(&scene, &kept, 1);
    let sparse = add(&scene, "sparse", 1 << 28, 0).unwrap();
    let taken = |at: u64| write(&scene, &sparse, at * EXTENT, 1) == Ok(());
    // All but two extents, one in each shard.
    let free = scene.pool.extents().1 as u64 - 2;
    assert!((0..free).all(taken));
    let refused = snapshot(&scene, "kept", "s");
    assert!(matches!(refused, Err(VolumeError::Pool(PoolError::FewAddresses { .. }))), "{refused:?}");
    let refused = add(&scene, "third", 3 * EXTENT, 1).err();
    assert!(matches!(refused, Some(VolumeError::Pool(PoolError::FewAddresses { .. }))), "{refused:?}");
    assert_eq!(scene.pool.volumes().len(), 2);
    let third = add(&scene, "third", 2 * EXTENT, 1).unwrap();
    assert_eq!((scene.pool.extents().1, third.allocated()), (0, Some(2 * EXTENT)));
    audit(&scene);
}

/// A guarantee or a growth that does not fit into the shards is refused, and changes nothing.
#[test]
fn guarantee_that_does_not_fit_in_shards_is_refused() {
    let scene = Scene::in_shards(&geometry(), 12, 2);
    let (kept, large) =
        (add(&scene, "kept", BLOCKS, BLOCKS).unwrap(), add(&scene, "large", LARGEST, 0).unwrap());
    let second = add(&scene, "second", LARGE, 0).unwrap();
    let most_of = |volume: &Volume, blocks: u64| match scene.run(volume.guarantee(blocks)) {
        Err(VolumeError::Pool(PoolError::NotGuaranteeable { most, .. })) => most,
        other => panic!("the pool has less room: {other:?}"),
    };
    let most = most_of(&second, LARGE);
    assert_eq!((second.guaranteed(), second.allocated()), (0, Some(0)));
    assert_eq!(most_of(&second, most + 1), most);
    scene.run(second.guarantee(most)).unwrap();
    assert!(second.allocated() >= Some(LARGE));
    fill_shards(&scene, &large);
    (0..most).for_each(|at| write(&scene, &second, at, 1).unwrap());
    scene.run(scene.pool.remove("second")).unwrap();
    fill_shards(&scene, &large);
    let before = scene.pool.space().status().set_aside_bytes;
    let refused = scene.run(kept.guarantee(3 * BLOCKS));
    assert!(matches!(refused, Err(VolumeError::Pool(PoolError::NotGuaranteeable { .. }))), "{refused:?}");
    let smaller = scene.run(kept.guarantee(BLOCKS - 1));
    assert_eq!((smaller, kept.guaranteed()), (Ok(()), BLOCKS - 1));
    let refused = scene.run(kept.guarantee(3 * BLOCKS));
    assert!(matches!(refused, Err(VolumeError::Pool(PoolError::NotGuaranteeable { .. }))), "{refused:?}");
    assert!(scene.pool.space().status().set_aside_bytes <= before);
    audit(&scene);
}

/// The growth of a volume is refused if a shard has no room for its share of the guarantee.
#[test]
fn growth_without_room_for_guarantee_is_refused() {
    let scene = Scene::in_shards(&geometry(), 12, 2);
    let kept = add(&scene, "kept", 2 * EXTENT, 2 * EXTENT).unwrap();
    fill_shards(&scene, &add(&scene, "large", LARGEST, 0).unwrap());
    let before = (scene.pool.extents(), scene.pool.space().status().set_aside_bytes);
    let refused = scene.run(kept.grow(10 * EXTENT));
    assert!(matches!(refused, Err(VolumeError::Pool(PoolError::NotGuaranteeable { .. }))), "{refused:?}");
    assert_eq!((scene.pool.extents(), scene.pool.space().status().set_aside_bytes), before);
    assert_eq!(kept.blocks(), 2 * EXTENT);
    write_all(&scene, &kept, 3);
    audit(&scene);
}

/// The changes of a volume with a guarantee in a pool of several shards.
#[derive(Clone, Copy, Debug)]
enum Change {
    Guarantee(u64),
    Resize(u64),
    Add,
}

/// A power cut at each moment of a change in a pool of several shards leaves the former state or the new one, and all blocks
/// can be written that are guaranteed then.
#[test]
fn change_in_shards_interrupted_at_any_moment() {
    const GROWN: u64 = 7 * EXTENT + 3;
    for (former, change) in [
        (0, Change::Guarantee(BLOCKS)),
        (40, Change::Guarantee(BLOCKS)),
        (BLOCKS, Change::Guarantee(0)),
        (BLOCKS, Change::Resize(GROWN)),
        (BLOCKS, Change::Resize(EXTENT + 1)),
        (BLOCKS, Change::Add),
    ] {
        for commands in 0.. {
            let scene = Scene::in_shards(&geometry(), 12, 2);
            let kept = add(&scene, "kept", BLOCKS, former).unwrap();
            write(&scene, &kept, 0, 1).unwrap();
            let free = scene.pool.extents().1;
            scene.device.left.set(commands);
            let is_done = match change {
                Change::Guarantee(blocks) => scene.run(kept.guarantee(blocks)).is_ok(),
                Change::Resize(blocks) => scene.run(kept.resize(blocks)).is_ok(),
                Change::Add => add(&scene, "new", BLOCKS, BLOCKS).is_ok(),
            };
            let scene = scene.cut();
            scene.run(scene.pool.finish_removals()).unwrap();
            let new = scene.pool.find("new").ok();
            let kept = scene.pool.find("kept").unwrap();
            let found = (kept.guaranteed(), kept.blocks(), new.is_some());
            let is_new = found
                == match change {
                    Change::Guarantee(blocks) => (blocks, BLOCKS, false),
                    Change::Resize(blocks) => (former, blocks, false),
                    Change::Add => (former, BLOCKS, true),
                };
            let is_former = !is_done && found == (former, BLOCKS, false);
            assert!(is_new || is_former, "{change:?}, {commands} commands: {found:?}");
            if is_former && !matches!(change, Change::Guarantee(_)) {
                assert_eq!(scene.pool.extents().1, free, "{change:?}, {commands} commands");
            }
            fill_shards(&scene, &add(&scene, "large", LARGE, 0).unwrap());
            (0..kept.guaranteed().min(kept.blocks())).for_each(|at| write(&scene, &kept, at, 2).unwrap());
            new.into_iter().for_each(|new| write_all(&scene, &new, 3));
            audit(&scene);
            if is_done {
                break;
            }
        }
    }
}

/// The return to a larger snapshot gives a volume with a guarantee its extents back.
#[test]
fn return_to_larger_snapshot_in_shards_takes_extents() {
    let scene = Scene::in_shards(&geometry(), 12, 2);
    let kept = add(&scene, "kept", BLOCKS, BLOCKS).unwrap();
    snapshot(&scene, "kept", "s").unwrap();
    scene.run(kept.resize(EXTENT)).unwrap();
    assert_eq!(kept.allocated(), Some(EXTENT));
    scene.run(scene.pool.roll_back("kept", "s")).unwrap();
    assert_eq!((kept.blocks(), kept.allocated()), (BLOCKS, Some(5 * EXTENT)));
    fill_shards(&scene, &add(&scene, "large", LARGEST, 0).unwrap());
    write_all(&scene, &kept, 2);
    audit(&scene);
}

/// With the first guarantee the newest roots of all shards have the features: earlier programs refuse to write.
#[test]
fn guarantee_is_announced_in_roots_of_all_shards() {
    const FEATURES: usize = 124;
    const GUARANTEES: u8 = 8 | 128;
    let scene = Scene::in_shards(&geometry(), 12, 2);
    let volume = scene.add("a");
    let newest = |shard: u64| {
        let first = shard * geometry().zones as u64;
        let zones = first..first + 2;
        let all = zones.flat_map(|zone| (0..64).map(move |at| Lba(zone * geometry().zone_size_blocks + at)));
        let mut stored = all.filter_map(|lba| scene.drive.ssd().borrow_mut().stored(lba).unwrap());
        stored.rfind(|block| block.starts_with(b"zvs1")).unwrap()[FEATURES] & GUARANTEES
    };
    assert_eq!([0, 1].map(newest), [0; 2]);
    scene.run(volume.guarantee(1)).unwrap();
    assert_eq!([0, 1].map(newest), [GUARANTEES; 2]);
}
