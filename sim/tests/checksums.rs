//! Arrays with checksums: a block that a drive returns wrong without an error is decoded from the others, and is never
//! the source of another one.

use crate::support::{
    array::{geometry, options, pattern, run, submit},
    rig::Act,
    scene::{CHUNK, STRIPE, Scene, finish, is_metadata, part, reset},
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

/// A policy, and the place of its checksums: metadata, or without it blocks of the zones.
#[derive(Clone, Copy, Debug)]
struct Kind {
    policy: Policy,
    oob_bytes: u32,
    group_blocks: u32,
}

const KINDS: [Kind; 6] = [
    Kind { policy: Policy::Zrwa, oob_bytes: 64, group_blocks: 0 },
    Kind { policy: Policy::Log, oob_bytes: 64, group_blocks: 0 },
    Kind { policy: Policy::InPlace, oob_bytes: 64, group_blocks: 0 },
    Kind { policy: Policy::Log, oob_bytes: 20, group_blocks: 16 },
    IN_BLOCKS,
    IN_ZRWAS,
];

/// The kinds with checksums in blocks of the zones.
const IN_ZONES: [Kind; 2] = [IN_BLOCKS, IN_ZRWAS];
const IN_BLOCKS: Kind = Kind { policy: Policy::Log, oob_bytes: 0, group_blocks: 0 };
const IN_ZRWAS: Kind = Kind { policy: Policy::Zrwa, oob_bytes: 0, group_blocks: 0 };

impl Kind {
    fn shape(self) -> Geometry {
        Geometry { oob_bytes: self.oob_bytes, ..geometry(6, 240, 8) }
    }

    fn options(self) -> CreateOptions {
        // Chunks and groups, or bundles, have no common multiple in a zone.
        let in_zrwa = self.policy == Policy::Zrwa && self.oob_bytes == 0;
        CreateOptions {
            policy: Some(self.policy),
            checksums: true,
            group_blocks: self.group_blocks,
            checksum_group_blocks: if in_zrwa { 15 } else { 11 },
            ..options(CHUNK)
        }
    }
}

/// An array with data in zones 0 and 1, with or without checksums.
fn scene_with(kind: Kind, checksums: bool) -> Scene {
    let options = CreateOptions { checksums, ..kind.options() };
    let scene = Scene::created(options, kind.shape());
    scene.write(0, 0, TAIL);
    scene.write(1, 0, 2 * STRIPE + 5);
    scene.submit(finish(1));
    scene
}

fn scene(kind: Kind) -> Scene {
    scene_with(kind, true)
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
    let in_metadata = (own.len() > BLOCK).then(|| ("flipped metadata", flipped(BLOCK + 17)));
    let wrongs = [
        ("flipped", flipped(1234)),
        ("lost", None),
        ("misdirected", scene.rig.stored(member, address(scene, zone, other))),
        (
            "of another drive",
            scene.rig.stored((member + 1) % 4, address(scene, zone, at)).or(Some(vec![7; own.len()])),
        ),
    ];
    wrongs.into_iter().chain(in_metadata).collect()
}

#[test]
fn wrong_block_is_decoded_from_others() {
    for kind in KINDS {
        let mut detected = 0;
        let whole = scene(kind);
        for (member, zone) in (0..4).flat_map(|member| [(member, 0), (member, 1)]) {
            for at in written(&whole, member, zone) {
                let right = whole.rig.stored(member, address(&whole, zone, at));
                for (fault, bytes) in wrongs(&whole, member, zone, at) {
                    // A block that was repaired is not read from the drive any more.
                    let scene = scene(kind);
                    scene.rig.forge(member, address(&scene, zone, at), bytes.as_deref());
                    check(&scene);
                    let status = scene.array.status();
                    detected +=
                        (status.most_missing > 0 || status.members[member].errors.repaired > 0) as u32;
                    scene.rig.forge(member, address(&scene, zone, at), right.as_deref());
                    check(&scene);
                    scene.runtime.run();
                    let is_gone = scene.array.status().most_missing == 0;
                    assert!(is_gone, "{kind:?}: {fault} block {at} of zone {zone} of member {member}");
                }
            }
        }
        // Parity and slots are not read.
        assert!(detected > 200, "{kind:?}: {detected}");
    }
}

/// The other tests read from drives that complete each read at once.
#[test]
fn wrong_block_of_pending_read_is_decoded() {
    for kind in KINDS {
        let scene = scene(kind);
        let mut bytes = scene.rig.stored(0, address(&scene, 0, 0)).unwrap();
        bytes[9] ^= 1;
        scene.rig.forge(0, address(&scene, 0, 0), Some(&bytes));
        scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::Read { .. })));
        let pending = scene.start(Command::read(Lba(0), Buf::zeroed(BLOCK)));
        scene.release();
        assert!(run(&scene.runtime, pending).data[..] == pattern(0, 1), "{kind:?}");
        scene.runtime.run();
        let errors = scene.array.status().members[0].errors;
        assert_eq!((errors.repaired, errors.wrong), (1, 1), "{kind:?}");
    }
}

/// A part with a bad block is written anew in a spare zone, from its own blocks as far as they are right.
#[test]
fn part_in_spare_zone_has_no_wrong_block() {
    for (kind, is_lost) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let options = CreateOptions { spare_zones: Some(2), ..kind.options() };
        let mut scene = Scene::created(options, Geometry { zones: 8, ..kind.shape() });
        scene.write(0, 0, 4 * STRIPE);
        scene.submit(finish(0));
        let (source, wrong) = (address(&scene, 0, 1), address(&scene, 0, 2 * CHUNK));
        let right = scene.rig.stored(1, source).unwrap();
        scene.rig.forge(1, source, Some(&vec![7; right.len()]));
        scene.replace(0);
        _ = run(&scene.runtime, scene.array.rebuild(&|_| ()));
        assert_eq!(scene.array.status().lost_blocks, 1, "{kind:?}");
        scene.rig.forge(1, source, Some(&right));
        // The replaced member has drive number 4.
        let mut bytes = scene.rig.stored(4, wrong).unwrap();
        bytes[8] ^= 1;
        scene.rig.forge(4, wrong, Some(&bytes).filter(|_| !is_lost).map(Vec::as_slice));
        scene.rebuild();
        let status = scene.array.status();
        assert_eq!((status.lost_blocks, status.members[0].moved.len()), (0, 1), "{kind:?}");
        scene.check(0, 4 * STRIPE);
        scene.cut(|_| false);
        scene.assemble(Some(3));
        scene.check(0, 4 * STRIPE);
    }
}

/// The faults of the other tests do change what an array without checksums returns.
#[test]
fn wrong_block_is_returned_without_checksums() {
    for kind in KINDS {
        let scene = scene_with(kind, false);
        let mut bytes = scene.rig.stored(0, address(&scene, 0, 0)).unwrap();
        bytes[9] ^= 1;
        scene.rig.forge(0, address(&scene, 0, 0), Some(&bytes));
        assert!(!is_right(&scene, 0, TAIL), "{kind:?}");
    }
}

/// A block of a member's part of zone 0, with its data and metadata.
type Left = (usize, u64, Vec<u8>);

/// An array of which a power cut interrupted a write of zone 0, up to block `until`: the data writes of two members
/// (`held`) had not been carried out. After this and each further power cut, the zone has been written up to the next of
/// `ends`, the last time by the running array. Also the data of the zone, and the blocks that the interrupted write has
/// left.
fn interrupted(kind: Kind, until: u64, held: [usize; 2], ends: &[u64]) -> (Scene, Vec<u8>, Vec<Left>) {
    let mut scene = Scene::created(kind.options(), kind.shape());
    scene.write(0, 0, 2);
    let data = scene.data();
    scene.rig.rule(move |drive, command| Act::hold_if(held.contains(&drive) && !is_metadata(command, data)));
    let other = Buf::copy_of(&vec![9; (until - 2) as usize * BLOCK]);
    drop(scene.start(Command::write(Lba(2), other, false)));
    scene.cut(|_| false);
    let block = |(member, at)| Some((member, at, scene.rig.stored(member, address(&scene, 0, at))?));
    let places = (0..4).flat_map(|member| written(&scene, member, 0).into_iter().map(move |at| (member, at)));
    let mut left: Vec<_> = places.filter_map(block).collect();
    scene.assemble(None);
    let mut tail = scene.tail(0);
    // A part of the interrupted write may have been kept.
    let mut data = [pattern(0, 2), vec![9; (tail - 2) as usize * BLOCK]].concat();
    let mut is_first = true;
    for end in ends.iter().copied() {
        if end <= tail {
            continue;
        }
        if !is_first {
            scene.cut(|_| false);
            scene.assemble(None);
        }
        is_first = false;
        assert_eq!(scene.tail(0), tail, "{kind:?}");
        scene.write(0, tail, end - tail);
        data.extend(pattern(tail, end - tail));
        tail = end;
    }
    left.retain(|(member, at, bytes)| {
        scene.rig.stored(*member, address(&scene, 0, *at)).as_ref() != Some(bytes)
    });
    (scene, data, left)
}

/// Whether zone 0 has this data, up to its tail if that is before the end; `None` if it cannot be read.
fn holds(scene: &Scene, data: &[u8]) -> Option<bool> {
    let data = &data[..data.len().min(scene.tail(0) as usize * BLOCK)];
    let read = Command::read(Lba(0), Buf::zeroed(data.len()));
    let done = run(&scene.runtime, scene.array.submit(read));
    done.result.is_ok().then(|| done.data[..] == *data)
}

/// After a crash, a ZRWA keeps blocks of interrupted writes behind the tail, with valid marks of the zone's epoch. They
/// are written again; a drive that has lost this write returns the earlier block.
#[test]
fn block_of_interrupted_write_is_detected() {
    let in_marks = KINDS.into_iter().filter(|kind| kind.policy.uses_zrwa() && kind.oob_bytes > 0);
    let ends = [
        &[STRIPE - 1][..],
        &[2 * STRIPE],
        &[CHUNK + 2],
        &[CHUNK + 2, 2 * STRIPE],
        &[CHUNK + 2, CHUNK + 3, STRIPE - 1],
    ];
    let cases = in_marks.flat_map(|kind| {
        let untils = [2 * STRIPE, STRIPE - 1].into_iter();
        let how = untils.flat_map(|until| [[0, 3], [0, 1]].map(|held| (until, held)));
        how.flat_map(move |(until, held)| ends.map(|ends| (kind, until, held, ends)))
    });
    let mut detected = 0;
    for (kind, until, held, ends) in cases {
        let (_, _, left) = interrupted(kind, until, held, ends);
        detected += left.len();
        for (index, (member, at, bytes)) in left.into_iter().enumerate() {
            // It is not returned, and neither a source of other blocks nor of recovery.
            for missing in
                [None, Some(1), Some(2), Some(3)].map(|other| other.map(|other| (member + other) % 4))
            {
                let case =
                    format!("{kind:?}, to {until}, {held:?}, {ends:?}: {at} of {member} without {missing:?}");
                let (mut scene, data, other) = interrupted(kind, until, held, ends);
                assert_eq!((other[index].0, other[index].1), (member, at));
                let lba = address(&scene, 0, at);
                scene.rig.forge(member, lba, Some(&bytes));
                if missing.is_none() {
                    assert_eq!(holds(&scene, &data), Some(true), "{case}");
                    scene.rig.forge(member, lba, Some(&bytes));
                }
                scene.stop();
                scene.assemble(missing);
                // Together with a missing member, the data of the block may be lost.
                let tail = scene.tail(0);
                assert!(
                    missing.is_some() || tail as usize * BLOCK == data.len(),
                    "{case}: the tail is {tail}"
                );
                assert!(holds(&scene, &data).unwrap_or(missing.is_some()), "{case}");
            }
        }
        let (scene, mut data, _) = interrupted(kind, until, held, ends);
        let tail = scene.tail(0);
        scene.write(0, tail, 2 * STRIPE);
        data.extend(pattern(tail, 2 * STRIPE));
        scene.submit(finish(0));
        assert_eq!(holds(&scene, &data), Some(true), "{kind:?}, to {until}, {held:?}, {ends:?}");
    }
    assert!(detected > 100, "{detected} blocks");
}

/// A drive that is shut down in an orderly way makes a zone empty if its write pointer has not moved, and keeps the blocks
/// of an interrupted write, although nothing in the zone was promised.
#[test]
fn block_of_interrupted_first_write_is_detected() {
    let in_marks = KINDS.into_iter().filter(|kind| kind.policy.uses_zrwa() && kind.oob_bytes > 0);
    let cases = in_marks.flat_map(|kind| [[0, 3], [0, 1], [1, 2]].map(|held| (kind, held)));
    let mut detected = 0;
    for (kind, held) in cases {
        let mut scene = Scene::created(kind.options(), kind.shape());
        let data = scene.data();
        scene.rig.rule(move |drive, command| {
            let is_write = matches!(command, Command::Write { .. }) && !is_metadata(command, data);
            Act::hold_if(held.contains(&drive) && is_write)
        });
        drop(scene.start(Command::write(Lba(0), Buf::copy_of(&vec![9; STRIPE as usize * BLOCK]), false)));
        scene.stop();
        scene.rig.shut_down();
        let places =
            (0..4).flat_map(|member| written(&scene, member, 0).into_iter().map(move |at| (member, at)));
        let stored = |scene: &Scene, member, at| scene.rig.stored(member, address(scene, 0, at));
        let left: Vec<_> =
            places.filter_map(|(member, at)| Some((member, at, stored(&scene, member, at)?))).collect();
        scene.assemble(None);
        // A part of the interrupted write may have been kept.
        let tail = scene.tail(0);
        scene.write(0, tail, STRIPE + 2 - tail);
        let data = [vec![9; tail as usize * BLOCK], pattern(tail, STRIPE + 2 - tail)].concat();
        for (member, at, bytes) in
            left.iter().filter(|(member, at, bytes)| stored(&scene, *member, *at).as_ref() != Some(bytes))
        {
            let lba = address(&scene, 0, *at);
            let now = stored(&scene, *member, *at);
            scene.rig.forge(*member, lba, Some(bytes));
            assert_eq!(holds(&scene, &data), Some(true), "{kind:?}, {held:?}: {at} of {member}");
            scene.rig.forge(*member, lba, now.as_deref());
            detected += 1;
        }
    }
    assert!(detected > 0, "no block was left");
}

/// A block of an earlier life of the zone has the same address.
#[test]
fn block_of_earlier_zone_epoch_is_detected() {
    for kind in KINDS {
        let scene = scene(kind);
        let old = scene.rig.stored(0, address(&scene, 0, 0)).unwrap();
        scene.submit(reset(0));
        let data = Buf::copy_of(&vec![3; TAIL as usize * BLOCK]);
        let first = data.slice_blocks(0..STRIPE);
        scene.submit(Command::write(Lba(0), first.clone(), true));
        scene.rig.forge(0, address(&scene, 0, 0), Some(&old));
        let read = Command::read(Lba(0), Buf::zeroed(first.len()));
        assert!(submit(&scene.runtime, &scene.array, read).data[..] == first[..], "{kind:?}");
        assert_eq!(scene.array.status().most_missing, 1, "{kind:?}");
    }
}

/// A rebuild decodes from no block with a wrong checksum: a block that needs it is lost, and reads of it fail.
#[test]
fn rebuild_uses_no_wrong_block() {
    for kind in KINDS {
        for zone in [0, 1] {
            let mut scene = scene(kind);
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
                    Ok(()) => assert!(done.data[..] == pattern(lba, 1), "{kind:?}: block {lba}"),
                    Err(_) => lost += 1,
                }
            }
            assert!((1..=2).contains(&lost), "{kind:?}: {lost} blocks of zone {zone} are lost");
        }
    }
}

/// With two parities a rebuild decodes around a wrong block.
#[test]
fn rebuild_with_two_parities_decodes_around_wrong_block() {
    for kind in KINDS {
        let options = CreateOptions { parities: 2, ..kind.options() };
        let mut scene = Scene::with_members(5, options, kind.shape());
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
        assert_eq!(scene.array.status().lost_blocks, 0, "{kind:?}");
    }
}

/// The copy of a member's drive has the right data, not that of the wrong block.
#[test]
fn copy_of_drive_holds_decoded_block() {
    for (kind, is_lost) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let mut scene = scene(kind);
        let lba = address(&scene, 1, 1);
        let right = scene.rig.stored(2, lba).unwrap();
        match is_lost {
            true => scene.rig.forge(2, lba, None),
            false => scene.damage(2, Fault::Corrupt { lba, bit: 99 }),
        }
        let new = scene.rig.drive(&scene.shape);
        run(&scene.runtime, scene.array.replace(2, new.clone(), &|_| ())).unwrap();
        scene.drives[2] = new;
        assert!(scene.rig.stored(4, lba).unwrap()[..BLOCK] == right[..BLOCK], "{kind:?}");
        check(&scene);
        assert_eq!(scene.array.status().most_missing, 0, "{kind:?}");
    }
}

/// The new drive gets its parts of finished zones even where the member has no data.
#[test]
fn copy_of_drive_includes_finished_zones_without_data() {
    for kind in KINDS {
        for member in 0..4 {
            let mut scene = scene(kind);
            scene.write(2, 0, 1);
            scene.submit(finish(2));
            scene.submit(finish(3));
            let new = scene.rig.drive(&scene.shape);
            run(&scene.runtime, scene.array.replace(member, new.clone(), &|_| ())).unwrap();
            scene.drives[member] = new;
            scene.cut(|_| false);
            scene.assemble(None);
            assert_eq!(scene.array.status().most_missing, 0, "{kind:?}: member {member}");
            scene.check(2, 1);
        }
    }
}

/// After a power cut, with every block below the tail wrong in turn.
#[test]
fn recovery_decodes_wrong_block() {
    for kind in KINDS.into_iter().filter(|kind| kind.oob_bytes > 0) {
        for member in 0..4 {
            let count = written(&scene(kind), member, 0).len();
            for index in 0..count {
                let mut scene = scene(kind);
                let lba = address(&scene, 0, written(&scene, member, 0)[index]);
                let mut bytes = scene.rig.stored(member, lba).unwrap();
                bytes[5] ^= 8;
                scene.rig.forge(member, lba, Some(&bytes));
                scene.cut(|_| false);
                scene.assemble(None);
                let (tail, start) = (scene.tail(0), lba.0 - scene.shape.start(part(0)).0);
                assert_eq!(tail, TAIL, "{kind:?}: member {member}, block {start}");
                assert!(is_right(&scene, 0, TAIL), "{kind:?}: member {member}, block {start}");
            }
        }
    }
}

/// In a ZRWA a slot is overwritten by data, and a parity of some chunks by that of all. If the later write is lost, the
/// earlier block has a valid checksum for its address and zone epoch.
#[test]
fn lost_overwrite_in_zrwa_is_detected() {
    for kind in KINDS.into_iter().filter(|kind| kind.policy.uses_zrwa()) {
        let shape = kind.shape();
        let scene = Scene::created(kind.options(), shape.clone());
        scene.write(0, 0, CHUNK);
        let stored = |member, at| scene.rig.stored(member, address(&scene, 0, at));
        let blocks = || (0..4).flat_map(|member| (0..shape.zone_capacity_blocks).map(move |at| (member, at)));
        let early: Vec<_> =
            blocks().filter_map(|(member, at)| Some((member, at, stored(member, at)?))).collect();
        scene.write(0, CHUNK, 12 * STRIPE - CHUNK);
        let later: Vec<_> =
            early.iter().filter(|(member, at, old)| stored(*member, *at).as_ref() != Some(old)).collect();
        assert!(later.len() as u64 >= CHUNK, "{kind:?}: {} overwritten blocks", later.len());
        let mut failed = 0;
        for absent in 0..4 {
            // Without one member, parity is read as well.
            let mut scene = Scene::created(kind.options(), kind.shape());
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
                        Ok(()) => assert!(done.data[..] == pattern(block, 1), "{kind:?}: block {block}"),
                        Err(_) => failed += 1,
                    }
                }
                scene.rig.forge(*member, lba, right.as_deref());
            }
        }
        assert!(failed > 0, "{kind:?}: no block was needed");
    }
}

#[test]
fn last_groups_are_verified_after_close_and_never_wrong_after_crash() {
    check_last_groups(IN_BLOCKS);
}

#[test]
fn last_bundles_in_zrwas_are_verified_after_close_and_never_wrong_after_crash() {
    check_last_groups(IN_ZRWAS);
}

/// Which blocks of the members are wrong after the end of a process with checksums in blocks of the zones: those in the
/// last groups are right again only if the array was closed; after a crash they are never returned wrong.
fn check_last_groups(kind: Kind) {
    // The tail in a chunk whose partial parity is logged, and in the last one, whose parity is in its row.
    let tails = [TAIL, 3 * STRIPE + 2 * CHUNK + 3];
    for ((parities, members), tail) in
        [(1, 4), (2, 5)].into_iter().flat_map(|level| tails.map(|tail| (level, tail)))
    {
        let created = || {
            let options = CreateOptions { parities, ..kind.options() };
            let scene = Scene::with_members(members, options, kind.shape());
            for at in 0..tail {
                scene.write(0, at, 1);
            }
            scene
        };
        let (mut lost, mut count) = (0, 0);
        for member in 0..members {
            for at in written(&created(), member, 0) {
                for is_closed in [true, false] {
                    let mut scene = created();
                    let lba = address(&scene, 0, at);
                    let mut bytes = scene.rig.stored(member, lba).unwrap();
                    bytes[5] ^= 8;
                    if is_closed {
                        run(&scene.runtime, scene.array.close()).unwrap();
                    }
                    scene.rig.forge(member, lba, Some(&bytes));
                    scene.cut(|_| false);
                    scene.assemble(None);
                    assert_eq!(scene.tail(0), tail);
                    for block in 0..tail {
                        let read = scene.array.submit(Command::read(Lba(block), Buf::zeroed(BLOCK)));
                        let done = run(&scene.runtime, read);
                        let about = format!(
                            "{kind:?}, {parities}: member {member}, {at}: block {block}, {is_closed}"
                        );
                        match done.result {
                            Ok(()) => assert!(done.data[..] == pattern(block, 1), "{about}"),
                            Err(_) if is_closed || parities == 2 => panic!("{about}"),
                            Err(_) => lost += 1,
                        }
                    }
                    count += 1;
                }
            }
        }
        // With one parity, blocks of complete stripes in last groups.
        assert_eq!(lost > 0, parities == 1, "{kind:?}: {lost} blocks of {count} arrays");
    }
}

/// With two parities, a wrong block in the stripe of the tail that a crash leaves, and then a block of another member that
/// cannot be read: nothing is decoded from a running parity that was computed from the wrong block.
#[test]
fn running_parity_of_tail_is_not_that_of_wrong_block() {
    let tail = 3 * STRIPE + 2 * CHUNK + 3;
    let members = || (0..5).flat_map(|wrong| (0..5).map(move |other| (wrong, other)));
    for (kind, (wrong, other)) in IN_ZONES.iter().flat_map(|kind| members().map(move |pair| (kind, pair))) {
        if wrong == other {
            continue;
        }
        let options = CreateOptions { parities: 2, ..kind.options() };
        let mut scene = Scene::with_members(5, options, kind.shape());
        (0..tail).for_each(|at| scene.write(0, at, 1));
        // Row 3 of the parts, with the policy `log` behind one checksum block.
        let lba = address(&scene, 0, 3 * CHUNK + 1 + u64::from(kind.policy == Policy::Log));
        let mut bytes = scene.rig.stored(wrong, lba).unwrap();
        bytes[5] ^= 8;
        scene.rig.forge(wrong, lba, Some(&bytes));
        scene.cut(|_| false);
        scene.assemble(None);
        scene.rig.damage(other, Fault::Unreadable(lba));
        scene.check(0, tail);
    }
}

/// A zone that is finished, and one that is full, have no last groups.
#[test]
fn full_zones_are_verified_after_crash() {
    let sizes = [1, STRIPE + 5, IN_BLOCKS.shape().zone_capacity_blocks];
    for (kind, blocks) in IN_ZONES.iter().flat_map(|kind| sizes.map(|blocks| (kind, blocks))) {
        let created = || {
            let scene = Scene::created(kind.options(), kind.shape());
            let capacity = scene.array.geometry().zone_capacity_blocks;
            scene.write(0, 0, blocks.min(capacity));
            scene.submit(finish(0));
            (scene, blocks.min(capacity))
        };
        for member in 0..4 {
            for at in written(&created().0, member, 0).into_iter().step_by(3) {
                let (mut scene, tail) = created();
                let lba = address(&scene, 0, at);
                let mut bytes = scene.rig.stored(member, lba).unwrap();
                bytes[5] ^= 8;
                scene.rig.forge(member, lba, Some(&bytes));
                scene.cut(|_| false);
                scene.assemble(None);
                assert!(is_right(&scene, 0, tail), "{kind:?}, {blocks}: member {member}, block {at}");
            }
        }
    }
}

/// All members hold an earlier life of the zone, with its checksum blocks: it does not count.
#[test]
fn group_of_earlier_zone_epoch_with_its_checksum_block_is_detected() {
    IN_ZONES.iter().for_each(|kind| check_earlier_zone_epoch(*kind));
}

fn check_earlier_zone_epoch(kind: Kind) {
    let mut scene = Scene::created(kind.options(), kind.shape());
    let blocks = 0..kind.shape().zone_capacity_blocks;
    let mut lives = Vec::new();
    for life in 0..2 {
        if life > 0 {
            scene.submit(reset(0));
        }
        let data = Buf::copy_of(&vec![life + 3; 6 * STRIPE as usize * BLOCK]);
        scene.submit(Command::write(Lba(0), data, true));
        scene.submit(finish(0));
        let stored = |at: u64| scene.rig.stored(0, address(&scene, 0, at));
        lives.push(blocks.clone().map(stored).collect::<Vec<_>>());
    }
    for (at, old) in blocks.zip(&lives[0]) {
        scene.rig.forge(0, address(&scene, 0, at), old.as_deref());
    }
    scene.cut(|_| false);
    scene.assemble(None);
    let read = Command::read(Lba(0), Buf::zeroed(6 * STRIPE as usize * BLOCK));
    let done = run(&scene.runtime, scene.array.submit(read));
    assert_eq!(done.result, Ok(()));
    assert!(done.data.iter().all(|byte| *byte == 4));
}

#[test]
fn checksums_need_metadata_or_room_in_zones() {
    let runtime = engine::runtime::Runtime::new();
    let created = |policy, oob_bytes, group_blocks| {
        let shape = Geometry { oob_bytes, ..IN_BLOCKS.shape() };
        let drives = crate::support::array::drives(4, &shape);
        let options = CreateOptions { policy, checksums: true, group_blocks, ..options(CHUNK) };
        let created = run(&runtime, Array::create(&runtime, options, drives));
        created.map(|array| array.status().policy).map_err(|error| error.to_string())
    };
    assert_eq!(created(Some(Policy::Zrwa), 20, 0), Ok(Policy::Zrwa));
    assert_eq!(created(Some(Policy::Log), 16, 0), Ok(Policy::Log));
    assert_eq!(created(Some(Policy::Zrwa), 16, 0), Ok(Policy::Zrwa));
    assert_eq!(created(None, 0, 0), Ok(Policy::Zrwa));
    let refused = created(Some(Policy::InPlace), 16, 0).unwrap_err();
    assert!(refused.contains("choose the policy 'zrwa' or 'log'"), "{refused}");
    assert_eq!(created(None, 20, 16), Ok(Policy::Log));
    for (oob_bytes, group_blocks) in [(16, 16), (64, 1)] {
        let refused = created(None, oob_bytes, group_blocks).unwrap_err();
        assert!(refused.contains("the policy 'append' has checksums nowhere else"), "{refused}");
    }
}
