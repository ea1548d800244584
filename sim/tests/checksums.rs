//! Arrays with checksums: a block that a drive returns wrong without an error is decoded from the others, and is never
//! the source of another one.

use crate::support::{
    array::{geometry, options, pattern, run, submit},
    rig::Act,
    scene::{CHUNK, STRIPE, Scene, finish, part, reset},
};
use emu::ssd::Fault;
use engine::{
    array::Array,
    buf::{BLOCK, Buf},
    device::{Command, Geometry, ZonedDevice},
    raid::{create::CreateOptions, policy::Policy},
    zone::{Lba, ZoneIndex},
};

/// End of zone 0, with a partial stripe; zone 1 is full.
const TAIL: u64 = 3 * STRIPE + CHUNK + 3;

fn shape() -> Geometry {
    Geometry { oob_bytes: 64, ..geometry(6, 240, 8) }
}

/// An array with data in zones 0 and 1, with or without checksums.
fn scene_with(policy: Policy, checksums: bool) -> Scene {
    let options = CreateOptions { policy: Some(policy), checksums, ..options(CHUNK) };
    let scene = Scene::created(options, shape());
    scene.write(0, 0, TAIL);
    scene.write(1, 0, 2 * STRIPE + 5);
    scene.submit(finish(1));
    scene
}

fn scene(policy: Policy) -> Scene {
    scene_with(policy, true)
}

/// Address of block `at` of a member's part of a zone.
fn address(scene: &Scene, zone: u32, at: u64) -> Lba {
    Lba(scene.shape.start(part(zone)).0 + at)
}

/// The written blocks of a member's part of a zone, from its start.
fn written(scene: &Scene, member: usize, zone: u32) -> Vec<u64> {
    let blocks = 0..scene.shape.zone_capacity_blocks;
    blocks.filter(|at| scene.rig.stored(member, address(scene, zone, *at)).is_some()).collect()
}

fn check(scene: &Scene) {
    scene.check(0, TAIL);
    scene.check(1, 2 * STRIPE + 5);
}

/// Whether a read of the first `tail` blocks of a zone succeeds and returns the data that was written.
fn is_right(scene: &Scene, zone: u32, tail: u64) -> bool {
    let start = scene.array.geometry().start(ZoneIndex(zone)).0;
    let read = Command::read(Lba(start), Buf::zeroed(tail as usize * BLOCK));
    let done = run(&scene.runtime, scene.array.submit(read));
    done.result.is_ok() && done.data[..] == pattern(start, tail)
}

/// A wrong block: the name of the fault, and its content.
type Wrong = (&'static str, Option<Vec<u8>>);

/// All ways in which block `at` of a member's part may be wrong.
fn wrongs(scene: &Scene, member: usize, zone: u32, at: u64) -> Vec<Wrong> {
    let own = scene.rig.stored(member, address(scene, zone, at)).unwrap();
    let flipped = |byte: usize| {
        let mut bytes = own.clone();
        bytes[byte] ^= 4;
        Some(bytes)
    };
    let other = written(scene, member, zone).into_iter().find(|other| *other != at).unwrap();
    vec![
        ("flipped", flipped(1234)),
        ("flipped metadata", flipped(BLOCK + 17)),
        ("lost", None),
        ("misdirected", scene.rig.stored(member, address(scene, zone, other))),
        (
            "of another drive",
            scene.rig.stored((member + 1) % 4, address(scene, zone, at)).or(Some(vec![7; own.len()])),
        ),
    ]
}

#[test]
fn wrong_block_is_decoded_from_others() {
    for policy in Policy::ALL {
        let mut detected = 0;
        let whole = scene(policy);
        for (member, zone) in (0..4).flat_map(|member| [(member, 0), (member, 1)]) {
            for at in written(&whole, member, zone) {
                let right = whole.rig.stored(member, address(&whole, zone, at));
                for (fault, bytes) in wrongs(&whole, member, zone, at) {
                    // A block that was repaired is not read from the drive any more.
                    let scene = scene(policy);
                    scene.rig.forge(member, address(&scene, zone, at), bytes.as_deref());
                    check(&scene);
                    let status = scene.array.status();
                    detected +=
                        (status.most_missing > 0 || status.members[member].repaired_blocks > 0) as u32;
                    scene.rig.forge(member, address(&scene, zone, at), right.as_deref());
                    check(&scene);
                    scene.runtime.run();
                    let is_gone = scene.array.status().most_missing == 0;
                    assert!(is_gone, "{policy:?}: {fault} block {at} of zone {zone} of member {member}");
                }
            }
        }
        // Parity and slots are not read.
        assert!(detected > 200, "{policy:?}: {detected}");
    }
}

/// The other tests read from drives that complete each read at once.
#[test]
fn wrong_block_of_pending_read_is_decoded() {
    for policy in Policy::ALL {
        let scene = scene(policy);
        let mut bytes = scene.rig.stored(0, address(&scene, 0, 0)).unwrap();
        bytes[9] ^= 1;
        scene.rig.forge(0, address(&scene, 0, 0), Some(&bytes));
        scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::Read { .. })));
        let pending = scene.start(Command::read(Lba(0), Buf::zeroed(BLOCK)));
        scene.release();
        assert!(run(&scene.runtime, pending).data[..] == pattern(0, 1), "{policy:?}");
        scene.runtime.run();
        assert_eq!(scene.array.status().members[0].repaired_blocks, 1, "{policy:?}");
    }
}

/// A part with a bad block is written anew in a spare zone, from its own blocks as far as they are right.
#[test]
fn part_in_spare_zone_has_no_wrong_block() {
    for policy in Policy::ALL {
        let spare_zones = Some(2);
        let options = CreateOptions { policy: Some(policy), checksums: true, spare_zones, ..options(CHUNK) };
        let mut scene = Scene::created(options, Geometry { zones: 8, ..shape() });
        scene.write(0, 0, 4 * STRIPE);
        scene.submit(finish(0));
        let (source, wrong) = (address(&scene, 0, 1), address(&scene, 0, 2 * CHUNK));
        let right = scene.rig.stored(1, source).unwrap();
        scene.rig.forge(1, source, Some(&vec![7; right.len()]));
        scene.replace(0);
        _ = run(&scene.runtime, scene.array.rebuild(&|_| ()));
        assert_eq!(scene.array.status().lost_blocks, 1, "{policy:?}");
        scene.rig.forge(1, source, Some(&right));
        // The replaced member has drive number 4.
        let mut bytes = scene.rig.stored(4, wrong).unwrap();
        bytes[8] ^= 1;
        scene.rig.forge(4, wrong, Some(&bytes));
        scene.rebuild();
        let status = scene.array.status();
        assert_eq!((status.lost_blocks, status.members[0].moved.len()), (0, 1), "{policy:?}");
        scene.check(0, 4 * STRIPE);
        scene.cut(|_| false);
        scene.assemble(Some(3));
        scene.check(0, 4 * STRIPE);
    }
}

/// The faults of the other tests do change what an array without checksums returns.
#[test]
fn wrong_block_is_returned_without_checksums() {
    for policy in Policy::ALL {
        let scene = scene_with(policy, false);
        let mut bytes = scene.rig.stored(0, address(&scene, 0, 0)).unwrap();
        bytes[9] ^= 1;
        scene.rig.forge(0, address(&scene, 0, 0), Some(&bytes));
        assert!(!is_right(&scene, 0, TAIL), "{policy:?}");
    }
}

/// A block of an earlier life of the zone has the same address.
#[test]
fn block_of_earlier_zone_epoch_is_detected() {
    for policy in Policy::ALL {
        let scene = scene(policy);
        let old = scene.rig.stored(0, address(&scene, 0, 0)).unwrap();
        scene.submit(reset(0));
        let data = Buf::copy_of(&vec![3; TAIL as usize * BLOCK]);
        let first = data.slice_blocks(0..STRIPE);
        scene.submit(Command::write(Lba(0), first.clone(), true));
        scene.rig.forge(0, address(&scene, 0, 0), Some(&old));
        let read = Command::read(Lba(0), Buf::zeroed(first.len()));
        assert!(submit(&scene.runtime, &scene.array, read).data[..] == first[..], "{policy:?}");
        assert_eq!(scene.array.status().most_missing, 1, "{policy:?}");
    }
}

/// A rebuild decodes from no block with a wrong checksum: a block that needs it is lost, and reads of it fail.
#[test]
fn rebuild_uses_no_wrong_block() {
    for policy in Policy::ALL {
        for zone in [0, 1] {
            let mut scene = scene(policy);
            let address = address(&scene, zone, 1);
            let mut bytes = scene.rig.stored(1, address).unwrap();
            bytes[77] ^= 1;
            scene.rig.forge(1, address, Some(&bytes));
            scene.replace(0);
            _ = run(&scene.runtime, scene.array.rebuild(&|_| ()));
            let tail = if zone == 0 { TAIL } else { 2 * STRIPE + 5 };
            let start = scene.array.geometry().start(ZoneIndex(zone)).0;
            let mut lost = 0;
            for lba in start..start + tail {
                let read = scene.array.submit(Command::read(Lba(lba), Buf::zeroed(BLOCK)));
                let done = run(&scene.runtime, read);
                match done.result {
                    Ok(()) => assert!(done.data[..] == pattern(lba, 1), "{policy:?}: block {lba}"),
                    Err(_) => lost += 1,
                }
            }
            assert!((1..=2).contains(&lost), "{policy:?}: {lost} blocks of zone {zone} are lost");
        }
    }
}

/// With two parities a rebuild decodes around a wrong block.
#[test]
fn rebuild_with_two_parities_decodes_around_wrong_block() {
    for policy in Policy::ALL {
        let options = CreateOptions { policy: Some(policy), checksums: true, parities: 2, ..options(CHUNK) };
        let mut scene = Scene::with_members(5, options, shape());
        scene.write(0, 0, TAIL);
        for at in written(&scene, 1, 0) {
            let lba = address(&scene, 0, at);
            let mut bytes = scene.rig.stored(1, lba).unwrap();
            bytes[at as usize] ^= 1;
            scene.rig.forge(1, lba, Some(&bytes));
        }
        scene.replace(0);
        scene.rebuild();
        scene.check(0, TAIL);
        assert_eq!(scene.array.status().lost_blocks, 0, "{policy:?}");
    }
}

/// The copy of a member's drive has the right data, not that of the wrong block.
#[test]
fn copy_of_drive_holds_decoded_block() {
    for policy in Policy::ALL {
        let mut scene = scene(policy);
        let lba = address(&scene, 1, 1);
        let right = scene.rig.stored(2, lba).unwrap();
        scene.rig.damage(2, Fault::Corrupt { lba, bit: 99 });
        let new = scene.rig.drive(&scene.shape);
        run(&scene.runtime, scene.array.replace(2, new.clone(), &|_| ())).unwrap();
        scene.drives[2] = new;
        assert!(scene.rig.stored(4, lba).unwrap()[..BLOCK] == right[..BLOCK], "{policy:?}");
        check(&scene);
        assert_eq!(scene.array.status().most_missing, 0, "{policy:?}");
    }
}

/// After a power cut, with every block below the tail wrong in turn.
#[test]
fn recovery_decodes_wrong_block() {
    for policy in Policy::ALL {
        for member in 0..4 {
            let count = written(&scene(policy), member, 0).len();
            for index in 0..count {
                let mut scene = scene(policy);
                let lba = address(&scene, 0, written(&scene, member, 0)[index]);
                let mut bytes = scene.rig.stored(member, lba).unwrap();
                bytes[5] ^= 8;
                scene.rig.forge(member, lba, Some(&bytes));
                scene.cut(|_| false);
                scene.assemble(None);
                let (tail, start) = (scene.tail(0), lba.0 - scene.shape.start(part(0)).0);
                assert_eq!(tail, TAIL, "{policy:?}: member {member}, block {start}");
                assert!(is_right(&scene, 0, TAIL), "{policy:?}: member {member}, block {start}");
            }
        }
    }
}

/// In a ZRWA a slot is overwritten by data, and a parity of some chunks by that of all. If the later write is lost, the
/// earlier block has a valid checksum for its address and zone epoch.
#[test]
fn lost_overwrite_in_zrwa_is_detected() {
    for policy in [Policy::Zrwa, Policy::InPlace] {
        let options = CreateOptions { policy: Some(policy), checksums: true, ..options(CHUNK) };
        let scene = Scene::created(options, shape());
        scene.write(0, 0, CHUNK);
        let stored = |member, at| scene.rig.stored(member, address(&scene, 0, at));
        let blocks =
            || (0..4).flat_map(|member| (0..shape().zone_capacity_blocks).map(move |at| (member, at)));
        let early: Vec<_> =
            blocks().filter_map(|(member, at)| Some((member, at, stored(member, at)?))).collect();
        scene.write(0, CHUNK, 12 * STRIPE - CHUNK);
        let later: Vec<_> =
            early.iter().filter(|(member, at, old)| stored(*member, *at).as_ref() != Some(old)).collect();
        assert!(later.len() as u64 >= CHUNK, "{policy:?}: {} overwritten blocks", later.len());
        let mut failed = 0;
        for absent in 0..4 {
            // Without one member, parity is read as well.
            let mut scene = Scene::created(
                CreateOptions { policy: Some(policy), checksums: true, ..self::options(CHUNK) },
                shape(),
            );
            scene.write(0, 0, 12 * STRIPE);
            scene.stop();
            scene.assemble(Some(absent));
            for (member, at, old) in &later {
                let lba = address(&scene, 0, *at);
                let right = scene.rig.stored(*member, lba);
                scene.rig.forge(*member, lba, Some(old));
                for block in 0..12 * STRIPE {
                    let read = Command::read(Lba(block), Buf::zeroed(BLOCK));
                    let done = run(&scene.runtime, scene.array.submit(read));
                    match done.result {
                        Ok(()) => assert!(done.data[..] == pattern(block, 1), "{policy:?}: block {block}"),
                        Err(_) => failed += 1,
                    }
                }
                scene.rig.forge(*member, lba, right.as_deref());
            }
        }
        assert!(failed > 0, "{policy:?}: no block was needed");
    }
}

#[test]
fn checksums_need_metadata_and_no_appends() {
    let runtime = engine::runtime::Runtime::new();
    let created = |oob_bytes, group_blocks| {
        let drives = crate::support::array::drives(4, &Geometry { oob_bytes, ..shape() });
        let policy = Some(Policy::Log);
        let options = CreateOptions { policy, checksums: true, group_blocks, ..options(CHUNK) };
        run(&runtime, Array::create(&runtime, options, drives)).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(created(20, 0), Ok(()));
    let refused = created(16, 0).unwrap_err();
    assert!(refused.contains("a checksum needs 20"), "{refused}");
    let refused = created(64, 16).unwrap_err();
    assert!(refused.contains("has no checksums"), "{refused}");
}
