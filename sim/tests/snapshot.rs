//! Snapshots and clones of the volumes of a pool: their contents, and interruptions of each change at any moment.

use crate::support::{
    pool::{BLOCKS, EXTENT, Scene, geometry},
    volume::{block, noise},
};
use emu::rng::Rng;
use engine::{
    buf::{BLOCK, Buf},
    device::{Geometry, Status},
    volume::{Codec, NewSnapshot, PoolError, Unit, Volume, VolumeError},
    zone::Lba,
};
use std::collections::BTreeMap;

/// The first byte of each block, by the names of volumes and snapshots.
type Contents = BTreeMap<String, Vec<u8>>;

fn snapshot(scene: &Scene, volume: &str, name: &str) -> Result<(), VolumeError> {
    let new = NewSnapshot { volume: volume.into(), name: name.into(), uuid: [7; 16] };
    scene.run(scene.pool.snapshot(vec![new])).map(drop)
}

fn clone(scene: &Scene, snapshot: (&str, &str), name: &str) -> Result<Volume, VolumeError> {
    scene.run(scene.pool.clone_of(snapshot, name, [8; 16]))
}

/// Everything that can be read.
fn contents(scene: &Scene) -> Contents {
    let mut all = Contents::new();
    for volume in scene.pool.volumes() {
        let name = volume.name().unwrap();
        for snapshot in scene.pool.snapshots(&name).unwrap() {
            all.insert(format!("{name}@{}", snapshot.name().unwrap()), bytes(scene, &snapshot));
        }
        all.insert(name, bytes(scene, &volume));
    }
    all
}

fn bytes(scene: &Scene, volume: &Volume) -> Vec<u8> {
    let all = scene.run(volume.read(0, Buf::zeroed(volume.blocks() as usize * BLOCK))).unwrap();
    all.chunks_exact(BLOCK).map(|block| block[0]).collect()
}

/// A volume with three snapshots, between which parts of it are written, discarded, and never touched, and a clone of the
/// second one, in a pool of one or more shards.
fn scene_with_snapshots(shards: u32) -> (Scene, Contents) {
    let scene = Scene::in_shards(&geometry(), 12, shards);
    let (volume, _) = (scene.add("a"), scene.add("other"));
    let mut expected = Contents::from([("other".into(), vec![0; BLOCKS as usize])]);
    let mut now = vec![0; BLOCKS as usize];
    for (number, name) in [(1, "first"), (2, "second"), (3, "third"), (4, "")] {
        // Extents 0 and 1 in each interval, 2 and 4 in some, 3 not before the last snapshot.
        let mut ranges = vec![0..3 * number, EXTENT - 2..EXTENT + number];
        ranges.extend((number % 2 == 1).then_some(2 * EXTENT..2 * EXTENT + 4));
        ranges.extend((number == 4).then_some(3 * EXTENT + 1..4 * EXTENT + 3));
        for at in ranges.into_iter().flatten() {
            scene.write(&volume, at, 10 * number as u8 + at as u8 % 10);
            now[at as usize] = 10 * number as u8 + at as u8 % 10;
        }
        scene.run(volume.discard(EXTENT + number - 1, 1)).unwrap();
        now[(EXTENT + number) as usize - 1] = 0;
        if !name.is_empty() {
            snapshot(&scene, "a", name).unwrap();
            expected.insert(format!("a@{name}"), now.clone());
        }
    }
    let copy = clone(&scene, ("a", "second"), "copy").unwrap();
    let mut of_copy = expected["a@second"].clone();
    for (at, byte) in [(0, 99), (EXTENT, 98), (3 * EXTENT, 97)] {
        scene.write(&copy, at, byte);
        of_copy[at as usize] = byte;
    }
    scene.run(copy.discard(1, EXTENT)).unwrap();
    of_copy[1..=EXTENT as usize].fill(0);
    scene.run(copy.flush()).unwrap();
    expected.extend([("a".to_string(), now), ("copy".to_string(), of_copy)]);
    (scene, expected)
}

#[test]
fn snapshots_and_clones_have_contents_of_their_moments() {
    [1, 2, 3].into_iter().for_each(check_contents);
}

fn check_contents(shards: u32) {
    let (scene, expected) = scene_with_snapshots(shards);
    assert_eq!(contents(&scene), expected);
    let scene = scene.cut();
    assert_eq!(contents(&scene), expected);
    let names = |volume: &str| {
        let snapshots = scene.pool.snapshots(volume).unwrap();
        snapshots.iter().map(|snapshot| snapshot.name().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(names("a"), ["first", "second", "third"]);
    assert_eq!(scene.pool.find("copy").unwrap().clone_of(), Some("a@second".into()));
    scene.run(scene.pool.audit()).unwrap();
    scene.run(scene.pool.space().audit()).unwrap();
    // An extent of a snapshot is mapped or not block by block, wherever the blocks come from.
    for (name, contents) in &expected {
        let volume = scene.pool.find(name).unwrap();
        let mut at = 0;
        while at < BLOCKS {
            let (is_mapped, alike) = scene.run(volume.extent(at, BLOCKS - at)).unwrap();
            let of_blocks = &contents[at as usize..(at + alike) as usize];
            // A hole of a clone may count as mapped.
            let may_be = |byte: &u8| (*byte != 0) == is_mapped || name == "copy" && is_mapped;
            assert!(
                of_blocks.iter().all(may_be),
                "{name}: {alike} blocks from {at}: {is_mapped} {of_blocks:?}"
            );
            at += alike;
        }
    }
}

#[test]
fn snapshot_cannot_be_changed_and_names_are_checked() {
    let (scene, _) = scene_with_snapshots(1);
    let first = scene.pool.find("a@first").unwrap();
    assert!(first.is_snapshot() && !scene.pool.find("a").unwrap().is_snapshot());
    let protected = Err(Status::NamespaceIsWriteProtected.into());
    assert_eq!(scene.run(first.write(0, &block(1), false)), protected);
    assert_eq!(scene.run(first.discard(0, 1)), protected);
    assert_eq!(scene.run(first.compress(Some(Codec::Lz4), Unit::BLOCK)), protected);
    assert_eq!(scene.run(first.grow(2 * BLOCKS)), Err(PoolError::IsSnapshot.into()));
    let taken = Err(PoolError::SnapshotTaken { name: "a@first".into() }.into());
    assert_eq!(snapshot(&scene, "a", "first"), taken);
    assert_eq!(snapshot(&scene, "copy", "first"), Err(PoolError::OfClone.into()));
    assert!(matches!(snapshot(&scene, "a", "x/y"), Err(VolumeError::Pool(PoolError::WrongName { .. }))));
    assert!(matches!(snapshot(&scene, "b", "x"), Err(VolumeError::Pool(PoolError::NoVolume { .. }))));
    let missing = Err(PoolError::NoSnapshot { name: "a@x".into() }.into());
    assert_eq!(scene.run(scene.pool.remove_snapshot("a", "x")), missing);
    let has_clones = Err(PoolError::HasClones { names: "copy".into() }.into());
    assert_eq!(scene.run(scene.pool.remove_snapshot("a", "second")), has_clones);
    let has_snapshots = Err(PoolError::HasSnapshots { names: "first, second, third".into() }.into());
    assert_eq!(scene.run(scene.pool.remove("a")), has_snapshots);
    let has_later = Err(PoolError::HasLater { names: "second, third".into() }.into());
    assert_eq!(scene.run(scene.pool.roll_back("a", "first")), has_later);
    let error = scene.run(scene.pool.rename("other", "a@b")).unwrap_err();
    assert!(matches!(error, VolumeError::Pool(PoolError::WrongName { .. })));
    // All or none.
    let new =
        |volume: &str, name: &str| NewSnapshot { volume: volume.into(), name: name.into(), uuid: [7; 16] };
    assert_eq!(scene.run(scene.pool.snapshot(vec![new("other", "x"), new("a", "first")])).map(drop), taken);
    assert!(scene.pool.snapshots("other").unwrap().is_empty());
    scene.run(scene.pool.snapshot(vec![new("other", "x"), new("a", "x")])).unwrap();
    assert!(scene.pool.find("other@x").is_ok() && scene.pool.find("a@x").is_ok());
}

/// A change, and what there is after it.
type Change = (&'static str, fn(&Scene) -> Result<(), VolumeError>, fn(&mut Contents));

#[test]
fn change_of_snapshots_interrupted_at_any_moment_is_done_or_not() {
    let changes: [Change; 7] = [
        (
            "snapshot",
            |scene| snapshot(scene, "a", "fourth"),
            |all| _ = all.insert("a@fourth".into(), all["a"].clone()),
        ),
        (
            "remove the first",
            |scene| scene.run(scene.pool.remove_snapshot("a", "first")),
            |all| {
                _ = all.remove("a@first");
            },
        ),
        (
            "remove the second",
            |scene| {
                if scene.pool.find("copy").is_ok() {
                    scene.run(scene.pool.remove("copy"))?;
                }
                scene.run(scene.pool.remove_snapshot("a", "second"))
            },
            |all| {
                _ = all.remove("copy");
                _ = all.remove("a@second");
            },
        ),
        (
            "remove the third",
            |scene| scene.run(scene.pool.remove_snapshot("a", "third")),
            |all| {
                _ = all.remove("a@third");
            },
        ),
        (
            "return to the third",
            |scene| scene.run(scene.pool.roll_back("a", "third")),
            |all| _ = all.insert("a".into(), all["a@third"].clone()),
        ),
        (
            "clone",
            |scene| clone(scene, ("a", "first"), "new").map(drop),
            |all| _ = all.insert("new".into(), all["a@first"].clone()),
        ),
        ("remove the clone", |scene| scene.run(scene.pool.remove("copy")), |all| _ = all.remove("copy")),
    ];
    for ((what, change, apply), shards) in changes.into_iter().flat_map(|change| [(change, 1), (change, 2)]) {
        for commands in 0.. {
            let (scene, before) = scene_with_snapshots(shards);
            let mut after = before.clone();
            apply(&mut after);
            scene.device.left.set(commands);
            let is_done = change(&scene).is_ok();
            let scene = scene.cut();
            scene.run(scene.pool.finish_removals()).unwrap();
            let found = contents(&scene);
            let mut between = before.clone();
            if what == "remove the second" {
                between.remove("copy");
            }
            let may_be = found == after || !is_done && (found == before || found == between);
            assert!(may_be, "{what}, {commands} commands: {found:?}, and was to be {after:?}");
            scene.run(scene.pool.audit()).unwrap();
            scene.run(scene.pool.space().audit()).unwrap();
            // Writing on changes nothing but what is written.
            let volume = scene.pool.find("a").unwrap();
            let mut expected = found;
            for at in [0, 1, EXTENT, 2 * EXTENT + 1, 4 * EXTENT] {
                scene.write(&volume, at, 77);
                expected.get_mut("a").unwrap()[at as usize] = 77;
            }
            assert_eq!(contents(&scene), expected, "{what}, {commands} commands, and writing on");
            if is_done {
                assert!(commands > 0, "{what} takes no command");
                break;
            }
        }
    }
}

/// Ranges in which two snapshots, or a snapshot and the volume, may differ.
#[test]
fn changed_ranges_have_all_differences() {
    let moments = [("first", Some("second")), ("first", Some("third")), ("second", None), ("third", None)];
    for ((from, to), shards) in moments.into_iter().flat_map(|of| [(of, 1), (of, 3)]) {
        let (scene, expected) = scene_with_snapshots(shards);
        let changed = scene.run(scene.pool.changed("a", from, to)).unwrap();
        let now = to.map_or("a".to_string(), |to| format!("a@{to}"));
        let (before, after) = (&expected[&format!("a@{from}")], &expected[&now]);
        for at in 0..BLOCKS {
            let is_in = changed.iter().any(|range| range.contains(&at));
            let is_same = before[at as usize] == after[at as usize];
            assert!(is_in || is_same, "block {at} from {from} to {to:?}");
        }
        assert!(changed.windows(2).all(|pair| pair[0].end < pair[1].start), "{changed:?}");
        let blocks: u64 = changed.iter().map(|range| range.end - range.start).sum();
        assert!(blocks < BLOCKS / 2, "{blocks} blocks from {from} to {to:?}");
    }
}

/// A full pool whose zones are collected all the time, under snapshots and clones, with units that are shared.
#[test]
fn collection_keeps_what_snapshots_need() {
    for (codec, shards) in [(None, 1), (Some(Codec::Lz4), 1), (None, 2), (Some(Codec::Lz4), 2)] {
        // Zones are read in several parts when they are collected.
        let zones = Geometry {
            zone_size_blocks: 256,
            zone_capacity_blocks: 250,
            zones: 26 - 5 * (shards - 1),
            ..geometry()
        };
        let scene = Scene::in_shards(&zones, 12, shards);
        let volume = scene.add("a");
        scene.run(volume.compress(codec, Unit::from_bytes(32768).unwrap())).unwrap();
        let mut rng = Rng::new(5);
        let mut expected: BTreeMap<String, Vec<(u8, u64)>> = BTreeMap::new();
        let mut now = vec![(0, 0); BLOCKS as usize];
        let data = |byte: u8, seed: u64| {
            let mut data = [byte; BLOCK];
            data[1..BLOCK / 2].copy_from_slice(&noise(seed)[1..BLOCK / 2]);
            data
        };
        let mut made = 0;
        for round in 0..4000 {
            let (at, blocks) = (rng.below(BLOCKS - 16), 1 + rng.below(16));
            if round % 400 == 399 {
                let name = format!("{made}");
                snapshot(&scene, "a", &name).unwrap();
                expected.insert(format!("a@{name}"), now.clone());
                made += 1;
                if made % 3 == 0 {
                    let old = format!("{}", made - 2);
                    scene.run(scene.pool.remove_snapshot("a", &old)).unwrap();
                    expected.remove(&format!("a@{old}"));
                }
            }
            if rng.chance(1, 8) {
                scene.run(volume.discard(at, blocks)).unwrap();
                now[at as usize..(at + blocks) as usize].fill((0, 0));
                continue;
            }
            let all: Vec<u8> =
                (0..blocks).flat_map(|block| data(round as u8 | 1, round * 16 + block)).collect();
            scene.run(volume.write(at, &Buf::copy_of(&all), rng.chance(1, 4))).unwrap();
            (0..blocks).for_each(|block| now[(at + block) as usize] = (round as u8 | 1, round * 16 + block));
        }
        expected.insert("a".into(), now);
        let status = scene.pool.space().status();
        assert!(status.collected_zones > 10 && status.unreadable_zones == 0, "{status:?}");
        scene.run(scene.pool.space().flush()).unwrap();
        let scene = scene.cut();
        for (name, blocks) in &expected {
            let volume = scene.pool.find(name).unwrap();
            let all = scene.run(volume.read(0, Buf::zeroed(BLOCKS as usize * BLOCK))).unwrap();
            for (at, (bytes, (byte, seed))) in all.chunks_exact(BLOCK).zip(blocks).enumerate() {
                let right = if *byte == 0 { [0; BLOCK] } else { data(*byte, *seed) };
                assert!(bytes == right, "block {at} of {name}");
            }
        }
        scene.run(scene.pool.audit()).unwrap();
        scene.run(scene.pool.space().audit()).unwrap();
    }
}

/// Writes that have completed are in a snapshot, and are durable with it.
#[test]
fn snapshot_makes_earlier_writes_durable() {
    let scene = Scene::with(12);
    let volume = scene.add("a");
    scene.write(&volume, 0, 1);
    snapshot(&scene, "a", "first").unwrap();
    scene.run(volume.write(0, &block(2), false)).unwrap();
    scene.run(volume.write(EXTENT, &block(3), false)).unwrap();
    snapshot(&scene, "a", "second").unwrap();
    let (before, scene) = (contents(&scene), scene.cut());
    assert_eq!(contents(&scene), before);
    assert_eq!((before["a@first"][0], before["a@second"][0], before["a@second"][EXTENT as usize]), (1, 2, 3));
}

/// After the first snapshot the newest root has the feature, before there is an entry that others cannot read.
#[test]
fn snapshot_is_announced_in_the_root() {
    const FEATURES: usize = 124;
    // Pieces in the blocks of headers, and trailers.
    const OF_GROUPS: u8 = 4 | 16;
    let scene = Scene::with(12);
    scene.add("a");
    let newest = |scene: &Scene| {
        let all = (0..2).flat_map(|zone| (0..64).map(move |at| Lba(zone * geometry().zone_size_blocks + at)));
        let mut stored = all.filter_map(|lba| scene.drive.ssd().borrow_mut().stored(lba).unwrap());
        stored.rfind(|block| block.starts_with(b"zvs1")).unwrap()[FEATURES]
    };
    assert_eq!(newest(&scene), 1 | OF_GROUPS);
    snapshot(&scene, "a", "first").unwrap();
    assert_eq!(newest(&scene), 3 | OF_GROUPS);
    // All shards of a pool, whose extents go to them in turn.
    const IN_TURN: u8 = 64;
    let scene = Scene::in_shards(&geometry(), 12, 2);
    scene.add("a");
    let newest = |shard: u64| {
        let first = shard * geometry().zones as u64;
        let zones = first..first + 2;
        let all = zones.flat_map(|zone| (0..64).map(move |at| Lba(zone * geometry().zone_size_blocks + at)));
        let mut stored = all.filter_map(|lba| scene.drive.ssd().borrow_mut().stored(lba).unwrap());
        stored.rfind(|block| block.starts_with(b"zvs1")).unwrap()[FEATURES]
    };
    assert_eq!([0, 1].map(newest), [1 | OF_GROUPS | IN_TURN; 2]);
    snapshot(&scene, "a", "first").unwrap();
    assert_eq!([0, 1].map(newest), [3 | OF_GROUPS | IN_TURN; 2]);
}

/// Blocks that were unmapped at the snapshot are unmapped again after the return.
#[test]
fn return_to_snapshot_leaves_no_holes() {
    let scene = Scene::with(12);
    let volume = scene.add("a");
    scene.write(&volume, 3, 1);
    snapshot(&scene, "a", "first").unwrap();
    [2, 3, 4, 2 * EXTENT].iter().for_each(|at| scene.write(&volume, *at, 2));
    scene.run(scene.pool.roll_back("a", "first")).unwrap();
    assert_eq!(scene.run(volume.extent(0, 3)), Ok((false, 3)));
    assert_eq!(scene.run(volume.extent(3, 2)), Ok((true, 1)));
    assert_eq!(scene.run(volume.extent(4, BLOCKS - 4)), Ok((false, BLOCKS - 4)));
    scene.run(scene.pool.audit()).unwrap();
}

/// A clone that grows has zeros where its snapshot had no blocks, also if the volume has grown and has data there.
#[test]
fn grown_clone_has_zeros_behind_its_snapshot() {
    let scene = Scene::with(12);
    let volume = scene.add("a");
    scene.write(&volume, BLOCKS - 1, 1);
    snapshot(&scene, "a", "first").unwrap();
    scene.run(volume.grow(2 * BLOCKS)).unwrap();
    (BLOCKS..BLOCKS + 9).for_each(|at| scene.write(&volume, at, 2));
    snapshot(&scene, "a", "second").unwrap();
    let copy = clone(&scene, ("a", "first"), "copy").unwrap();
    scene.run(copy.grow(2 * BLOCKS)).unwrap();
    let found = bytes(&scene, &copy);
    assert_eq!(found[BLOCKS as usize - 1], 1);
    assert!(found[BLOCKS as usize..].iter().all(|byte| *byte == 0));
    scene.write(&copy, BLOCKS + 1, 3);
    assert_eq!(bytes(&scene, &copy)[BLOCKS as usize..][..3], [0, 3, 0]);
    let second = clone(&scene, ("a", "second"), "another").unwrap();
    assert_eq!((second.blocks(), bytes(&scene, &second)[BLOCKS as usize]), (2 * BLOCKS, 2));
}

/// The data of snapshots, and of the snapshot of a clone, is found through the extents of the volume, which are not freed.
#[test]
fn end_with_data_of_snapshots_is_not_cut_off() {
    let scene = Scene::with(12);
    let volume = scene.add("a");
    scene.write(&volume, 1, 1);
    scene.write(&volume, EXTENT, 4);
    snapshot(&scene, "a", "early").unwrap();
    scene.write(&volume, 3 * EXTENT + 2, 2);
    snapshot(&scene, "a", "full").unwrap();
    scene.run(volume.discard(EXTENT, BLOCKS - EXTENT)).unwrap();
    snapshot(&scene, "a", "late").unwrap();
    let copy = clone(&scene, ("a", "full"), "copy").unwrap();
    scene.run(copy.discard(EXTENT, BLOCKS - EXTENT)).unwrap();
    let (last, to) = (3 * EXTENT + 2, EXTENT + 4);
    let kept = PoolError::KeptBehindEnd { name: "a@full".into(), last, to };
    assert_eq!(scene.run(volume.resize(to)), Err(kept.into()));
    let below = PoolError::BelowBehindEnd { name: "a@full".into(), last, to };
    assert_eq!(scene.run(copy.resize(to)), Err(below.into()));
    assert_eq!(scene.run(scene.pool.find("a@late").unwrap().resize(to)), Err(PoolError::IsSnapshot.into()));
    scene.run(scene.pool.remove("copy")).unwrap();
    // It has holes at the end, and so has nothing there.
    let copy = clone(&scene, ("a", "early"), "copy").unwrap();
    scene.write(&copy, 3 * EXTENT, 5);
    scene.write(&copy, EXTENT + 5, 5);
    scene.run(copy.discard(EXTENT, BLOCKS - EXTENT)).unwrap();
    scene.run(scene.pool.remove_snapshot("a", "full")).unwrap();
    let before = contents(&scene);
    scene.run(volume.resize(to)).unwrap();
    scene.run(copy.resize(to)).unwrap();
    let scene = scene.cut();
    let cut = |name: &str| before[name][..to as usize].to_vec();
    let expected = Contents::from([
        ("a".into(), cut("a")),
        ("copy".into(), cut("copy")),
        ("a@early".into(), before["a@early"].clone()),
        ("a@late".into(), before["a@late"].clone()),
    ]);
    assert_eq!(contents(&scene), expected);
    scene.run(scene.pool.audit()).unwrap();
    // Later writes to the enlarged end are in no snapshot.
    let [volume, copy] = ["a", "copy"].map(|name| scene.pool.find(name).unwrap());
    for volume in [&volume, &copy] {
        scene.run(volume.resize(BLOCKS)).unwrap();
        assert!(bytes(&scene, volume)[to as usize..].iter().all(|byte| *byte == 0));
        (EXTENT..BLOCKS).step_by(7).for_each(|at| scene.write(volume, at, 6));
    }
    snapshot(&scene, "a", "again").unwrap();
    (EXTENT..BLOCKS).step_by(5).for_each(|at| scene.write(&volume, at, 7));
    let scene = scene.cut();
    let now = contents(&scene);
    assert_eq!((&now["a@early"], &now["a@late"]), (&before["a@early"], &before["a@late"]));
    let expected = |at: u64| if at % 7 == EXTENT % 7 { 6 } else { 0 };
    assert!((to..BLOCKS).all(|at| now["a@again"][at as usize] == expected(at)));
    scene.run(scene.pool.remove_snapshot("a", "late")).unwrap();
    scene.run(scene.pool.remove_snapshot("a", "again")).unwrap();
    let after = contents(&scene);
    assert_eq!((&after["a@early"], &after["a"]), (&now["a@early"], &now["a"]));
    scene.run(scene.pool.audit()).unwrap();
    scene.run(scene.pool.space().audit()).unwrap();
}

/// A volume that was cut gets back the size of a larger snapshot with its contents, and nothing of later blocks.
#[test]
fn return_to_larger_snapshot_enlarges_volume() {
    let scene = Scene::with(12);
    let volume = scene.add("a");
    scene.write(&volume, 1, 1);
    scene.write(&volume, 2 * EXTENT, 8);
    scene.run(volume.discard(2 * EXTENT, 1)).unwrap();
    snapshot(&scene, "a", "first").unwrap();
    scene.write(&volume, EXTENT + 1, 2);
    let before = contents(&scene);
    scene.run(volume.discard(EXTENT + 1, 1)).unwrap();
    scene.run(volume.resize(EXTENT)).unwrap();
    for commands in 0.. {
        let scene = Scene::on(scene.drive.clone());
        scene.device.left.set(commands);
        let is_done = scene.run(scene.pool.roll_back("a", "first")).is_ok();
        let scene = scene.cut();
        let now = scene.pool.find("a").unwrap();
        assert!(now.blocks() == BLOCKS || !is_done && now.blocks() == EXTENT, "{} blocks", now.blocks());
        if now.blocks() == BLOCKS {
            assert_eq!(contents(&scene)["a"], before["a@first"]);
        }
        scene.run(scene.pool.audit()).unwrap();
        if is_done {
            break;
        }
    }
}

/// What a snapshot alone takes is free after its removal, and without compression a volume has as much data as it has
/// blocks that are not zeros; also after parts of units are divided among snapshots, and while the pages of the map change.
#[test]
fn own_space_of_snapshot_is_freed_by_its_removal() {
    for (seed, codec, shards) in [
        (1, None, 1),
        (2, Some(Codec::Lz4), 1),
        (3, Some(Codec::Lz4), 1),
        (4, None, 3),
        (5, Some(Codec::Lz4), 2),
    ] {
        let zones = Geometry { zone_size_blocks: 256, zone_capacity_blocks: 250, zones: 40, ..geometry() };
        let scene = Scene::in_shards(&zones, 16, shards);
        let volume = scene.add("a");
        scene.run(volume.compress(codec, Unit::from_bytes(65536).unwrap())).unwrap();
        let mut rng = Rng::new(seed);
        let mut names = Vec::new();
        for round in 1..=240 {
            let (at, blocks) = (rng.below(BLOCKS - 16), 1 + rng.below(16));
            if rng.chance(1, 4) {
                scene.run(volume.discard(at, blocks)).unwrap();
            } else {
                let mut all = vec![round as u8; blocks as usize * BLOCK];
                all[1..BLOCK].copy_from_slice(&noise(round)[1..]);
                scene.run(volume.write(at, &Buf::copy_of(&all), false)).unwrap();
            }
            if round % 30 == 0 {
                names.push(format!("{round}"));
                snapshot(&scene, "a", &names[names.len() - 1]).unwrap();
            }
            if round == 100 {
                scene.run(scene.pool.space_use()).unwrap();
            }
        }
        let copy = clone(&scene, ("a", &names[2]), "copy").unwrap();
        scene.write(&copy, 0, 1);
        scene.run(copy.discard(40, 30)).unwrap();
        // The counts are those of the next process, or have followed the changes of this one.
        let scene = if seed == 2 { scene.cut() } else { scene };
        let space = scene.run(scene.pool.space_use()).unwrap();
        if codec.is_none() {
            for (name, contents) in contents(&scene) {
                let space = space[&scene.pool.find(&name).unwrap().slot().unwrap()];
                let there = contents.iter().filter(|byte| **byte != 0).count() * BLOCK;
                assert_eq!(space.own + space.shared, there as u64, "{name}: {space:?}");
            }
        }
        let of_clone = scene.pool.find(&format!("a@{}", names[2])).unwrap();
        assert_eq!(of_clone.counted_space().unwrap().own, 0, "a snapshot with a clone");
        scene.run(scene.pool.remove("copy")).unwrap();
        while !names.is_empty() {
            let name = names.remove(rng.below(names.len() as u64) as usize);
            let held = || scene.pool.space().status().held_bytes;
            let (before, found) = (held(), scene.pool.find(&format!("a@{name}")).unwrap());
            let space = scene.run(scene.pool.space_use()).unwrap();
            scene.run(scene.pool.remove_snapshot("a", &name)).unwrap();
            let (freed, own) = (before - held(), space[&found.slot().unwrap()].own);
            // The record of the snapshot has been a block.
            assert_eq!(freed, own + BLOCK as u64, "snapshot {name}, {} others, {codec:?}", names.len());
        }
        let space = scene.run(scene.pool.space_use()).unwrap();
        assert_eq!(space.len(), 1);
        assert_eq!(space[&volume.slot().unwrap()].shared, 0);
        scene.run(scene.pool.space().audit()).unwrap();
    }
}
