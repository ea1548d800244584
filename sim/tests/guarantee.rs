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
        let scene = if cut {
            scene.run(large.flush()).unwrap();
            scene.cut()
        } else {
            scene
        };
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
