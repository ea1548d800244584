//! Repair of blocks that a drive cannot read or returns wrong, and scrubs, which find them.

use crate::support::{
    array::{geometry, options, pattern, run},
    rig::Act,
    scene::{CHUNK, STRIPE, Scene, finish, part, reset},
};
use emu::ssd::Fault;
use engine::{
    array::{Event, ScrubFindingKind, ZoneScrub},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, ZonedDevice},
    raid::{create::CreateOptions, policy::Policy},
    zone::{Lba, ZoneIndex},
};

/// End of zone 0, with a partial stripe; zone 1 is full.
const TAIL: u64 = 5 * STRIPE + CHUNK + 3;
const FINISHED: u64 = 2 * STRIPE + 5;

fn shape() -> Geometry {
    Geometry { oob_bytes: 64, ..geometry(6, 240, 8) }
}

fn scene_with(policy: Policy, checksums: bool, members: usize) -> Scene {
    let parities = members - 3;
    let options = CreateOptions { policy: Some(policy), checksums, parities, ..options(CHUNK) };
    let scene = Scene::with_members(members, options, shape());
    scene.write(0, 0, TAIL);
    scene.write(1, 0, FINISHED);
    scene.submit(finish(1));
    scene
}

fn address(scene: &Scene, zone: u32, at: u64) -> Lba {
    Lba(scene.shape.start(part(zone)).0 + at)
}

fn check(scene: &Scene) {
    scene.check(0, TAIL);
    scene.check(1, FINISHED);
}

fn scrub(scene: &Scene, zone: u32) -> ZoneScrub {
    run(&scene.runtime, scene.array.scrub_zone(ZoneIndex(zone), async |_| ())).unwrap()
}

fn repaired(scene: &Scene) -> u64 {
    scene.array.status().members.iter().map(|member| u64::from(member.errors.repaired)).sum()
}

/// Every block of a full zone, and of the settled part of another one, is unreadable in turn: it is repaired, after
/// that any member may be lost, also after a crash.
#[test]
fn unreadable_block_is_repaired_and_any_member_may_be_lost() {
    for policy in Policy::ALL {
        for (zone, at) in [(0, 0), (0, CHUNK + 1), (1, 0), (1, 2 * CHUNK - 1)] {
            for member in 0..4 {
                let mut scene = scene_with(policy, false, 4);
                let lba = address(&scene, zone, at);
                scene.damage(member, Fault::Unreadable(lba));
                let found = scrub(&scene, zone);
                let about = format!("{policy:?}: block {at} of zone {zone} of member {member}: {found:?}");
                assert_eq!(found.findings.len(), 1, "{about}");
                assert!(found.findings[0].is_repaired, "{about}");
                assert_eq!((scene.array.status().most_missing, repaired(&scene)), (0, 1), "{about}");
                assert_eq!(scrub(&scene, zone).findings, [], "{about}");
                check(&scene);
                scene.cut(|_| false);
                scene.assemble(Some((member + 1) % 4));
                // The drives have the count.
                let errors = scene.array.status().members[member].errors;
                assert_eq!((errors.repaired, errors.wrong), (1, 0), "{about}");
                check(&scene);
                // The rebuild of another member decodes from the repaired block.
                scene.replace((member + 1) % 4);
                scene.rebuild();
                assert_eq!(scene.array.status().lost_blocks, 0, "{about}");
                check(&scene);
            }
        }
    }
}

/// The lost ranges in the status are the blocks that cannot be read, and no others.
#[test]
fn lost_ranges_are_blocks_that_cannot_be_read() {
    for policy in Policy::ALL {
        for (first, second) in [(0, 1), (1, 2), (3, 0)] {
            let scene = scene_with(policy, false, 4);
            for (zone, at) in [(0, 0), (0, 1), (0, 2 * CHUNK + 1), (1, CHUNK)] {
                for member in [first, second] {
                    scene.damage(member, Fault::Unreadable(address(&scene, zone, at)));
                }
                scrub(&scene, zone);
            }
            let mut failed = Vec::new();
            for (zone, tail) in [(0, TAIL), (1, FINISHED)] {
                let start = scene.array.geometry().start(ZoneIndex(zone)).0;
                for at in 0..tail {
                    let read = Command::read(Lba(start + at), Buf::zeroed(BLOCK));
                    if run(&scene.runtime, scene.array.submit(read)).result.is_err() {
                        failed.push((zone, at));
                    }
                }
            }
            let lost = scene.array.status().lost;
            let blocks = lost
                .iter()
                .flat_map(|range| (range.from..range.from + range.blocks).map(|at| (range.zone, at)));
            assert_eq!(blocks.collect::<Vec<_>>(), failed, "{policy:?}: members {first} and {second}");
            assert!(failed.len() >= 4, "{policy:?}: {failed:?}");
        }
    }
}

/// A wrong block is found by its checksum.
#[test]
fn block_with_wrong_checksum_is_repaired_after_read() {
    for policy in Policy::ALL {
        let mut scene = scene_with(policy, true, 4);
        let lba = address(&scene, 0, 1);
        let mut bytes = scene.rig.stored(0, lba).unwrap();
        bytes[9] ^= 1;
        scene.rig.forge(0, lba, Some(&bytes));
        check(&scene);
        scene.runtime.run();
        assert_eq!((scene.array.status().most_missing, repaired(&scene)), (0, 1), "{policy:?}");
        let repaired = |event: &Event| matches!(event, Event::Repaired { member: 0, zone: 0, at: 1 });
        assert!(scene.array.events(0).events.iter().any(repaired), "{policy:?}");
        scene.stop();
        scene.assemble(Some(2));
        check(&scene);
    }
}

/// A read of the wrong block that began before its repair does not take it for right.
#[test]
fn read_that_began_before_repair_does_not_return_wrong_block() {
    for policy in Policy::ALL {
        let scene = scene_with(policy, true, 4);
        let lba = address(&scene, 0, 0);
        let mut bytes = scene.rig.stored(0, lba).unwrap();
        bytes[9] ^= 1;
        scene.rig.forge(0, lba, Some(&bytes));
        scene.rig.rule(move |drive, command| {
            Act::hold_if(drive == 0 && matches!(command, Command::Read { lba: at, .. } if *at == lba))
        });
        let pending = scene.start(Command::read(Lba(0), Buf::zeroed(BLOCK)));
        scene.rig.rule(|_, _| Act::Pass);
        assert!(scrub(&scene, 0).findings[0].is_repaired, "{policy:?}");
        scene.release();
        assert!(run(&scene.runtime, pending).data[..] == pattern(0, 1), "{policy:?}");
    }
}

/// Without checksums two parities show which block of a stripe is wrong, and one does not.
#[test]
fn scrub_without_checksums_finds_wrong_block_by_parities() {
    for policy in Policy::ALL {
        for members in [4, 5] {
            for (zone, at) in [(0, 0), (0, 2 * CHUNK + 1), (1, CHUNK + 2)] {
                for member in 0..members {
                    let mut scene = scene_with(policy, false, members);
                    let lba = address(&scene, zone, at);
                    let mut bytes = scene.rig.stored(member, lba).unwrap();
                    bytes[4000] ^= 0x80;
                    scene.rig.forge(member, lba, Some(&bytes));
                    let found = scrub(&scene, zone).findings;
                    let about =
                        format!("{policy:?}: block {at} of zone {zone} of member {member}: {found:?}");
                    assert_eq!(found.len(), 1, "{about}");
                    assert_eq!((found[0].from, found[0].to), (at, at + 1), "{about}");
                    if members == 4 {
                        assert_eq!((found[0].member, found[0].kind), (None, ScrubFindingKind::Contradiction));
                        assert!(!found[0].is_repaired, "{about}");
                        continue;
                    }
                    assert_eq!((found[0].member, found[0].kind), (Some(member), ScrubFindingKind::Wrong));
                    assert!(found[0].is_repaired, "{about}");
                    check(&scene);
                    assert_eq!(scrub(&scene, zone).findings, [], "{about}");
                    scene.cut(|_| false);
                    scene.assemble(Some((member + 2) % members));
                    check(&scene);
                }
            }
        }
    }
}

/// Scrubs of data that is right find nothing, also with a member missing, and read all of it.
#[test]
fn scrub_of_right_data_finds_nothing() {
    for policy in Policy::ALL {
        for (members, checksums) in [(4, false), (4, true), (5, false), (5, true)] {
            let mut scene = scene_with(policy, checksums, members);
            for missing in [None, Some(1)] {
                for zone in 0..3 {
                    let found = scrub(&scene, zone);
                    assert_eq!(found.findings, [], "{policy:?}: zone {zone} without {missing:?}");
                    assert_eq!(found.is_whole, zone > 0, "{policy:?}: zone {zone}");
                    let rows = [5 * CHUNK, FINISHED / STRIPE * CHUNK, 0][zone as usize];
                    let read = rows * (members - missing.iter().count()) as u64 * BLOCK as u64;
                    assert!(found.scanned_bytes <= read, "{policy:?}: {found:?}");
                    assert!(zone == 0 || found.scanned_bytes == read, "{policy:?}: {found:?}");
                }
                scene.stop();
                scene.assemble(Some(1));
            }
        }
    }
}

/// The content of a repaired block is void after a reset.
#[test]
fn repaired_block_is_forgotten_at_reset() {
    for policy in Policy::ALL {
        let mut scene = scene_with(policy, false, 4);
        scene.damage(1, Fault::Unreadable(address(&scene, 1, 1)));
        assert!(scrub(&scene, 1).findings[0].is_repaired, "{policy:?}");
        scene.submit(reset(1));
        scene.check(1, 0);
        let start = scene.array.geometry().start(ZoneIndex(1));
        let data = Buf::copy_of(&vec![3; 2 * STRIPE as usize * BLOCK]);
        scene.submit(Command::write(start, data.clone(), true));
        let is_right = |scene: &Scene| {
            let done = run(&scene.runtime, scene.array.submit(Command::read(start, Buf::zeroed(data.len()))));
            done.data[..] == data[..]
        };
        assert!(is_right(&scene), "{policy:?}");
        scene.cut(|_| false);
        scene.assemble(Some(0));
        assert!(is_right(&scene), "{policy:?}");
    }
}

/// A block of a stripe that is not settled may still change: it is repaired when the zone has gone on.
#[test]
fn block_of_partial_stripe_is_repaired_when_zone_goes_on() {
    for policy in Policy::ALL {
        let scene = scene_with(policy, true, 4);
        let at = TAIL / STRIPE * CHUNK;
        let member =
            (0..4).find(|member| scene.rig.stored(*member, address(&scene, 0, at)).is_some()).unwrap();
        let lba = address(&scene, 0, at);
        scene.damage(member, Fault::Unreadable(lba));
        check(&scene);
        scene.runtime.run();
        let before = (scene.array.status().most_missing, repaired(&scene));
        scene.write(0, TAIL, 12 * STRIPE - TAIL);
        scene.submit(finish(0));
        scene.check(0, 12 * STRIPE);
        scrub(&scene, 0);
        let after = (scene.array.status().most_missing, repaired(&scene));
        // Slots are not read, and in a ZRWA the block is written again.
        assert!(
            before == (1, 0) && after == (0, 1) || before.1 == 0 && after.0 == 0,
            "{policy:?}: {before:?} {after:?}"
        );
    }
}

/// Relocated blocks take a bounded part of a log; the rest of the unreadable blocks stays unreadable.
#[test]
fn repair_of_many_blocks_leaves_room_in_log() {
    for policy in Policy::ALL {
        let mut scene = scene_with(policy, true, 4);
        scene.write(2, 0, 18 * STRIPE);
        scene.submit(finish(2));
        for at in 0..18 * CHUNK {
            scene.damage(2, Fault::Unreadable(address(&scene, 2, at)));
        }
        let findings = scrub(&scene, 2).findings;
        let done = findings.iter().filter(|finding| finding.is_repaired).count() as u64;
        assert_eq!(findings.len() as u64, 18 * CHUNK, "{policy:?}");
        // A quarter of a log of 240 blocks, with a header for each block.
        assert!(done > 0 && done <= 30, "{policy:?}: {done} are repaired");
        assert_eq!(scene.array.status().members[2].unreadable_blocks, 18 * CHUNK - done, "{policy:?}");
        // Many records, and so several checkpoints.
        for _ in 0..300 {
            scene.submit(reset(3));
            scene.write(3, 0, 3);
        }
        scene.check(2, 18 * STRIPE);
        scene.cut(|_| false);
        scene.assemble(None);
        scene.check(2, 18 * STRIPE);
        check(&scene);
    }
}

/// Two blocks of one stripe: neither can be decoded, unless there are two parities.
#[test]
fn blocks_that_need_each_other_stay_unreadable() {
    for policy in Policy::ALL {
        for members in [4, 5] {
            let scene = scene_with(policy, true, members);
            (0..2).for_each(|member| scene.damage(member, Fault::Unreadable(address(&scene, 1, 2))));
            let findings = scrub(&scene, 1).findings;
            assert_eq!(findings.len(), 2, "{policy:?}");
            let is_repaired = members == 5;
            assert!(findings.iter().all(|finding| finding.is_repaired == is_repaired), "{policy:?}");
            let missing = if is_repaired { 0 } else { 2 };
            assert_eq!(scene.array.status().most_missing, missing, "{policy:?}");
        }
    }
}

/// A power cut at every step of the repair, with another member lost afterwards.
#[test]
fn repair_is_interrupted_at_every_step() {
    for (policy, volatile) in Policy::ALL.into_iter().flat_map(|policy| [(policy, false), (policy, true)]) {
        for (zone, at) in [(0, 1), (1, 1)] {
            for steps in 0.. {
                let options = CreateOptions { policy: Some(policy), checksums: true, ..options(CHUNK) };
                let mut scene = Scene::created(options, Geometry { volatile_cache: volatile, ..shape() });
                scene.write(0, 0, TAIL);
                scene.write(1, 0, FINISHED);
                scene.submit(finish(1));
                scene.submit(Command::Flush);
                let lba = address(&scene, zone, at);
                let mut bytes = scene.rig.stored(1, lba).unwrap();
                bytes[5] ^= 8;
                scene.rig.forge(1, lba, Some(&bytes));
                let cut = scene.rig.hold_after(steps);
                let array = scene.array.clone();
                scene.runtime.spawn(async move { _ = array.scrub_zone(ZoneIndex(zone), async |_| ()).await });
                scene.runtime.run();
                scene.cut(|_| true);
                scene.assemble(None);
                check(&scene);
                scrub(&scene, zone);
                assert_eq!(scene.array.status().most_missing, 0, "{policy:?}: cut after {steps} steps");
                scene.stop();
                scene.assemble(Some(3));
                check(&scene);
                if !cut.get() {
                    assert!(steps > 0 && steps < 50, "{policy:?}: {steps} steps");
                    break;
                }
            }
        }
    }
}
