//! Arrays of the level `single`: one drive, no parity.

use crate::support::{
    array::{geometry, options, pattern, run, submit},
    rig::Rig,
    scene::{CHUNK, META, Scene, ZONES, finish, reset},
};
use emu::ssd::Fault;
use engine::{
    array::{Array, Condition, CreateOptions, Health},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, ZonedDevice},
    raid::{error::ArrayError, geometry::META_ZONES, policy::Policy},
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};

fn shape() -> Geometry {
    Geometry { oob_bytes: 64, ..geometry(ZONES + META, 240, 8) }
}

fn single(checksums: bool) -> CreateOptions {
    CreateOptions { parities: 0, checksums, ..options(CHUNK) }
}

fn scene(checksums: bool) -> Scene {
    Scene::with_members(1, single(checksums), shape())
}

/// Blocks that are written to each zone in the end.
const ENDS: [u64; 6] = [9, 2 * CHUNK + 1, 240, 0, 3, 240];

/// Writes, resets and finishes: each kind of record is followed by others.
fn use_zones(scene: &Scene) {
    scene.write(0, 0, 7);
    scene.submit(reset(0));
    scene.write(0, 0, ENDS[0]);
    scene.write(1, 0, ENDS[1]);
    scene.submit(finish(1));
    scene.write(2, 0, ENDS[2]);
    for (zone, before) in [(4, 2), (5, 7)] {
        scene.write(zone, 0, before);
        scene.submit(finish(zone));
        scene.submit(reset(zone));
        scene.write(zone, 0, ENDS[zone as usize]);
    }
    scene.write(3, 0, 5);
    scene.submit(reset(3));
}

/// Checks that each block is as written or cannot be read, and that no zone ends too soon. Returns the number of blocks
/// that cannot be read.
fn check_known(scene: &Scene, about: &str) -> u64 {
    let geometry = scene.array.geometry().clone();
    let mut errors = 0;
    for (zone, end) in (0..).zip(ENDS) {
        let info = submit(&scene.runtime, &scene.array, Command::Report { first: ZoneIndex(zone), count: 1 })
            .zones[0];
        let is_offline = info.state == ZoneState::Offline;
        let ends_at = if info.state == ZoneState::Full { 240 } else { info.wp_blocks };
        assert!(is_offline || ends_at >= end, "{about}: zone {zone} of {end} blocks is {info:?}");
        for at in (0..end).map(|at| geometry.start(ZoneIndex(zone)).0 + at) {
            let done = run(&scene.runtime, scene.array.submit(Command::read(Lba(at), Buf::zeroed(BLOCK))));
            assert!(done.result.is_err() || done.data[..] == pattern(at, 1), "{about}: block {at} is wrong");
            errors += u64::from(done.result.is_err());
        }
    }
    errors
}

#[test]
fn single_drive_keeps_data_over_cuts_and_replacement() {
    for checksums in [false, true] {
        let mut scene = scene(checksums);
        use_zones(&scene);
        assert_eq!(check_known(&scene, "written"), 0);
        scene.cut(|_| false);
        scene.assemble(None);
        assert_eq!(check_known(&scene, "after a cut"), 0);
        let health = Health::of(&scene.array.status());
        assert_eq!((health.condition, health.may_be_lost), (Condition::Healthy, 0));
        let new = scene.rig.drive(&scene.shape);
        run(&scene.runtime, scene.array.replace(0, new.clone(), &|_| ())).unwrap();
        scene.drives[0] = new;
        scene.stop();
        scene.assemble(None);
        assert_eq!(check_known(&scene, "on another drive"), 0);
    }
}

/// The level `single` is refused with several drives and with the policies `zrwa` and `inplace`, and a level with parity
/// with one drive.
#[test]
fn single_drive_takes_one_drive_and_no_parity_policy() {
    let created = |count: usize, options: CreateOptions| {
        let rig = Rig::new();
        let drives = (0..count).map(|_| rig.drive(&shape())).collect();
        let runtime = Runtime::new();
        let made = run(&runtime, Array::create(&runtime, options, drives)).map(|_| ());
        runtime.clear();
        made.map_err(|error: ArrayError| error.to_string())
    };
    assert_eq!(created(1, single(true)), Ok(()));
    assert!(created(2, single(true)).unwrap_err().contains("single takes one drive, not 2"));
    assert!(created(1, options(CHUNK)).unwrap_err().contains("RAID-5 takes 3 to 32 drives"));
    for policy in [Policy::Zrwa, Policy::InPlace] {
        let options = CreateOptions { policy: Some(policy), ..single(false) };
        assert!(created(1, options).unwrap_err().contains("no use for the policy"));
    }
}

/// An unreadable block is an error and a known loss, until its zone is reset.
#[test]
fn unreadable_block_of_single_drive_is_listed_as_lost() {
    for checksums in [false, true] {
        let mut scene = scene(checksums);
        use_zones(&scene);
        let lba = Lba(scene.shape.start(ZoneIndex(META_ZONES + 2)).0 + 17);
        scene.damage(0, Fault::Unreadable(lba));
        for start in 0..2 {
            assert_eq!(check_known(&scene, "unreadable"), 1);
            let status = scene.array.status();
            let lost: Vec<_> =
                status.lost.iter().map(|range| (range.zone, range.from, range.blocks)).collect();
            assert_eq!(lost, [(2, 17, 1)], "start {start}, checksums: {checksums}");
            assert_eq!(Health::of(&status).condition, Condition::Degraded);
            scene.cut(|_| false);
            scene.assemble(None);
        }
        scene.submit(reset(2));
        let status = scene.array.status();
        assert_eq!((status.lost.len(), Health::of(&status).condition), (0, Condition::Healthy));
    }
}

/// Each block of the metadata is unreadable or damaged in turn: no block reads as anything else than was written, and no
/// zone is emptied, also after another start.
#[test]
fn damaged_metadata_of_single_drive_never_loses_data_silently() {
    let (mut refused, mut offline, mut fine) = (0, 0, 0);
    for checksums in [false, true] {
        for flips in [false, true] {
            for meta in 0..META_ZONES {
                for at in 0.. {
                    let mut scene = scene(checksums);
                    use_zones(&scene);
                    let lba = Lba(scene.shape.start(ZoneIndex(meta)).0 + at);
                    let Some(mut bytes) = scene.rig.stored(0, lba) else { break };
                    let is_last = scene.rig.stored(0, Lba(lba.0 + 1)).is_none();
                    scene.cut(|_| false);
                    let about = format!("block {at} of metadata zone {meta}, flips: {flips}");
                    match flips {
                        // A damaged last record looks like the result of a power cut.
                        true if is_last => continue,
                        true => {
                            bytes[100] ^= 4;
                            scene.rig.forge(0, lba, Some(&bytes));
                        }
                        false => scene.damage(0, Fault::Unreadable(lba)),
                    }
                    let drives = scene.without(None);
                    match run(&scene.runtime, Array::assemble(&scene.runtime, drives)) {
                        Err(_) => {
                            refused += 1;
                            continue;
                        }
                        Ok(array) => scene.array = array,
                    }
                    let errors = check_known(&scene, &about);
                    scene.stop();
                    scene.assemble(None);
                    assert_eq!(check_known(&scene, &format!("{about}, again")), errors, "{about}");
                    *(if errors > 0 { &mut offline } else { &mut fine }) += 1;
                }
            }
        }
    }
    assert!(refused > 0 && offline > 0 && fine > 0, "{refused} refused, {offline} offline, {fine} fine");
}

/// A replacement is refused if a zone cannot be copied, because a block of it is unreadable or it can no longer be
/// written. The old drive stays the member, and all of its readable blocks are read.
#[test]
fn single_drive_is_not_replaced_by_part_of_its_data() {
    for is_stuck in [false, true] {
        let mut scene = scene(true);
        use_zones(&scene);
        let zone = ZoneIndex(META_ZONES);
        match is_stuck {
            true => {
                scene.damage(0, Fault::ReadOnly(zone));
                let end = Lba(scene.array.geometry().start(ZoneIndex(0)).0 + ENDS[0]);
                assert!(scene.refused(Command::write(end, Buf::zeroed(BLOCK), true)));
            }
            false => scene.damage(0, Fault::Unreadable(Lba(scene.shape.start(zone).0 + 1))),
        }
        let lost = u64::from(!is_stuck);
        assert_eq!(check_known(&scene, "struck"), lost);
        let new = scene.rig.drive(&scene.shape);
        let replaced = run(&scene.runtime, scene.array.replace(0, new, &|_| ()));
        assert!(replaced.as_ref().is_err_and(|why| why.to_string().contains("nowhere else")), "{replaced:?}");
        assert_eq!(check_known(&scene, "not replaced"), lost, "stuck: {is_stuck}");
        scene.stop();
        scene.assemble(None);
        assert_eq!(check_known(&scene, "started again"), lost, "stuck: {is_stuck}");
    }
}

/// Zones that can only be read are read after a start, and the array works, however many there are.
#[test]
fn read_only_zones_of_single_drive_stay_readable() {
    for checksums in [false, true] {
        let mut scene = scene(checksums);
        use_zones(&scene);
        scene.cut(|_| false);
        for zone in [0, 2, 5] {
            scene.damage(0, Fault::ReadOnly(ZoneIndex(META_ZONES + zone)));
        }
        for about in ["started", "started again"] {
            scene.assemble(None);
            assert_eq!(check_known(&scene, about), 0);
            scene.stop();
        }
    }
    let shape = Geometry { zones: 40, max_open: 0, max_active: 0, ..shape() };
    let scene = Scene::with_members(1, single(false), shape);
    for zone in 0..20 {
        scene.write(zone, 0, 2);
        scene.damage(0, Fault::Offline(ZoneIndex(META_ZONES + zone)));
        let end = Lba(scene.array.geometry().start(ZoneIndex(zone)).0 + 2);
        assert!(scene.refused(Command::write(end, Buf::zeroed(BLOCK), true)));
    }
    scene.write(30, 0, 5);
    scene.check(30, 5);
}
