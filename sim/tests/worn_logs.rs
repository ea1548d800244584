//! Worn metadata zones: the drive stays a member as long as its log can be written elsewhere.

use crate::support::{
    array::{geometry, options, run},
    rig::{Act, Rig},
    scene::{ACTIVE, CHUNK, META, STRIPE, Scene, ZONES, reset},
};
use emu::ssd::Fault;
use engine::{
    array::{Array, CreateOptions, Drive, examine},
    device::Geometry,
    raid::{error::NoDesign, policy::Policy},
    runtime::Runtime,
    zone::ZoneIndex,
};

/// An array with `spare_zones` spare zones, and data in zone 0.
fn scene(policy: Policy, spare_zones: u32) -> Scene {
    scene_of(CreateOptions { policy: Some(policy), ..options(CHUNK) }, spare_zones)
}

/// As [`scene`], with checksums in blocks of the zones, behind each fifth block.
fn scene_with_checksum_blocks(spare_zones: u32) -> Scene {
    let policy = Some(Policy::Log);
    scene_of(
        CreateOptions { policy, checksums: true, checksum_group_blocks: 5, ..options(CHUNK) },
        spare_zones,
    )
}

fn scene_of(options: CreateOptions, spare_zones: u32) -> Scene {
    let oob_bytes = if options.checksums { 0 } else { geometry(1, 240, 8).oob_bytes };
    let shape = Geometry { oob_bytes, ..geometry(META + ZONES + spare_zones, 240, 8) };
    let scene = Scene::created(CreateOptions { spare_zones: Some(spare_zones), ..options }, shape);
    scene.write(0, 0, 5 * STRIPE + 3);
    scene
}

const TAIL: u64 = 5 * STRIPE + 3;

/// The metadata zones of a drive, with each kind of wear.
fn wear() -> impl Iterator<Item = (u32, fn(ZoneIndex) -> Fault)> {
    let kinds: [fn(ZoneIndex) -> Fault; 2] = [Fault::ReadOnly, Fault::Offline];
    kinds.into_iter().flat_map(|fault| (0..META).map(move |zone| (zone, fault)))
}

#[test]
fn array_survives_worn_metadata_zones_of_two_drives() {
    for (policy, spare) in Policy::ALL.into_iter().flat_map(|policy| [(policy, 0), (policy, 3)]) {
        for (zone, fault) in wear() {
            let mut scene = scene(policy, spare);
            // If the zone with the log itself goes offline, the drive is out.
            let holds = |scene: &Scene, zone: u32| scene.rig.written(1, ZoneIndex(zone)) > 0;
            if matches!(fault(ZoneIndex(0)), Fault::Offline(_)) && holds(&scene, zone) {
                continue;
            }
            for member in [1, 2] {
                scene.damage(member, fault(ZoneIndex(zone)));
            }
            let what = format!("{policy:?} {spare} {zone}");
            for round in 0..6 {
                scene.cut(|_| true);
                let drives = scene.without(None);
                let read = run(
                    &scene.runtime,
                    Array::assemble_read_only(&scene.runtime, drives, None, Default::default()),
                );
                assert_eq!(read.unwrap().status().members.iter().filter(|m| m.drive.is_empty()).count(), 0);
                scene.runtime.clear();
                scene.assemble(None);
                assert_eq!(scene.states(), [ACTIVE; 4], "{what} {round}");
                let status = scene.array.status();
                assert_eq!(status.members[1].worn_log, [zone], "{what} {round}");
                assert_eq!(status.members[1].log_confined, spare == 0, "{what} {round}");
                assert_eq!(
                    (&status.members[0].worn_log[..], status.members[0].log_confined),
                    (&[][..], false)
                );
                scene.check(0, TAIL);
                // Records can still be written.
                scene.write(1, 0, STRIPE + round);
                scene.check(1, STRIPE + round);
                scene.submit(reset(1));
            }
            scene.write(1, 0, 7);
            for missing in [0, 3] {
                scene.cut(|_| true);
                let there = scene.without(Some(missing));
                let read = run(
                    &scene.runtime,
                    Array::assemble_read_only(&scene.runtime, there, None, Default::default()),
                );
                drop(read.unwrap());
                scene.runtime.clear();
            }
            scene.assemble(Some(3));
            scene.check(0, TAIL);
            scene.check(1, 7);
        }
    }
}

/// At runtime, with any kind of record.
#[test]
fn metadata_log_moves_when_its_zone_wears_out() {
    for policy in Policy::ALL.map(Some).into_iter().chain([None]) {
        for zone in 0..META {
            let mut scene = policy.map_or_else(|| scene_with_checksum_blocks(3), |policy| scene(policy, 3));
            for member in [1, 2] {
                scene.damage(member, Fault::ReadOnly(ZoneIndex(zone)));
            }
            for round in 0..40 {
                scene.write(1, 0, 2 * STRIPE + 1 + round % 5);
                scene.submit(reset(1));
            }
            // Until the log of member 1 has several records in the spare zone.
            let in_spare = || scene.rig.written(1, ZoneIndex(META + ZONES + 2));
            let mut tail = 11;
            scene.write(1, 0, tail);
            for _ in 0..400 {
                let before = in_spare();
                scene.write(1, tail, 1);
                tail += 1;
                if in_spare() > before && before > 12 {
                    break;
                }
            }
            assert_eq!(scene.states(), [ACTIVE; 4], "{policy:?} {zone}");
            scene.cut(|_| true);
            for member in [1, 2] {
                let found = run(&scene.runtime, examine(&scene.runtime, &scene.drives[member])).unwrap();
                assert_eq!(found.damaged, 0, "{policy:?} {zone}");
            }
            scene.assemble(Some(0));
            scene.check(0, TAIL);
            scene.check(1, tail);
        }
    }
}

#[test]
fn log_in_spare_zone_survives_cut_anywhere() {
    for policy in Policy::ALL {
        for spare in [0, 3] {
            let mut ended = false;
            for steps in 0..400 {
                let mut scene = scene(policy, spare);
                for member in [1, 2] {
                    let empty = (0..META).find(|zone| scene.rig.written(member, ZoneIndex(*zone)) == 0);
                    scene.damage(member, Fault::ReadOnly(ZoneIndex(empty.unwrap_or(0))));
                }
                scene.cut(|_| true);
                let held = scene.rig.hold_after(steps);
                scene.start_assembly(None);
                if !held.get() {
                    ended = true;
                    break;
                }
                scene.rig.drop_held();
                scene.rig.rule(|_, _| Act::Pass);
                scene.cut(|_| true);
                scene.assemble(None);
                assert_eq!(scene.states(), [ACTIVE; 4], "{policy:?} {spare} {steps}");
                scene.write(0, TAIL, STRIPE);
                scene.cut(|_| true);
                scene.assemble(Some(3));
                scene.check(0, TAIL + STRIPE);
            }
            assert!(ended, "{policy:?} {spare}");
        }
    }
}

/// A log takes the last spare zones, and parts of zones take the first ones.
#[test]
fn log_and_parts_share_spare_zones() {
    let mut scene = scene(Policy::Log, 3);
    scene.damage(1, Fault::ReadOnly(ZoneIndex(0)));
    scene.damage(1, Fault::ReadOnly(ZoneIndex(1)));
    scene.damage(1, Fault::ReadOnly(ZoneIndex(META)));
    for round in 0..6 {
        scene.cut(|_| true);
        scene.assemble(None);
        scene.rebuild();
        assert_eq!(scene.states(), [ACTIVE; 4], "{round}");
        let member = &scene.array.status().members[1];
        assert_eq!(
            member.moved.iter().map(|(zone, place)| (*zone, *place)).collect::<Vec<_>>(),
            [(0, META + ZONES)]
        );
        assert_eq!((&member.worn_log[..], member.log_confined), (&[0, 1][..], false));
        scene.check(0, TAIL);
        scene.write(1, round * 7, 7);
    }
    scene.cut(|_| true);
    scene.assemble(Some(2));
    scene.check(0, TAIL);
    scene.check(1, 42);
}

fn created(
    shape: &Geometry,
    spare: Option<u32>,
    worn: &[(usize, Fault)],
) -> Result<(Runtime, Scene), String> {
    let (runtime, rig) = (Runtime::new(), Rig::new());
    let drives: Vec<Drive> = (0..4).map(|_| rig.drive(shape)).collect();
    for (drive, fault) in worn {
        rig.damage(*drive, *fault);
        run(&runtime, drives[*drive].device.submit(engine::device::Command::Flush));
    }
    let options = CreateOptions { spare_zones: spare, policy: Some(Policy::Log), ..options(CHUNK) };
    let array = run(&runtime, Array::create(&runtime, options, drives.clone()));
    let array = array.map_err(|error| error.to_string())?;
    let shape = shape.clone();
    Ok((runtime.clone(), Scene { runtime, rig, drives, array, shape }))
}

#[test]
fn create_replaces_worn_zones_by_spare_ones() {
    let shape = geometry(META + ZONES + 4, 240, 8);
    let metadata = [(1, Fault::ReadOnly(ZoneIndex(0))), (2, Fault::Offline(ZoneIndex(1)))];
    let data = [(1, Fault::ReadOnly(ZoneIndex(META + 1))), (2, Fault::Offline(ZoneIndex(META + 1)))];
    for worn in [&metadata[..], &data, &[metadata, data].concat()] {
        let (_, mut scene) = created(&shape, None, worn).unwrap();
        assert_eq!(scene.states(), [ACTIVE; 4], "{worn:?}");
        (0..3).for_each(|zone| scene.write(zone, 0, 2 * STRIPE + 1));
        for _ in 0..3 {
            scene.cut(|_| true);
            scene.assemble(None);
            assert_eq!(
                (scene.states(), scene.array.status().offline.len()),
                (vec![ACTIVE; 4], 0),
                "{worn:?}"
            );
        }
        scene.assemble(Some(3));
        (0..3).for_each(|zone| scene.check(zone, 2 * STRIPE + 1));
    }
    // Without spare zones one part may be lacking, and no more.
    let (_, scene) = created(&shape, Some(0), &data[..1]).unwrap();
    scene.write(1, 0, 2 * STRIPE + 1);
    scene.check(1, 2 * STRIPE + 1);
    let refused = created(&shape, Some(0), &data).err();
    assert_eq!(refused, Some(NoDesign::Worn { zone: 1, drives: 2 }.to_string()));
}

/// Parts have a spare zone left, and the log has none.
#[test]
fn part_moved_while_log_is_confined_stays_in_its_place() {
    let mut scene = scene(Policy::Log, 5);
    let empty = (0..META).find(|zone| scene.rig.written(1, ZoneIndex(*zone)) == 0).unwrap();
    scene.damage(1, Fault::ReadOnly(ZoneIndex(empty)));
    (1..5).for_each(|spare| scene.damage(1, Fault::Offline(ZoneIndex(META + ZONES + spare))));
    scene.cut(|_| true);
    scene.assemble(None);
    assert!(scene.array.status().members[1].log_confined);
    scene.damage(1, Fault::ReadOnly(ZoneIndex(META)));
    scene.write(0, TAIL, STRIPE);
    scene.rebuild();
    assert_eq!(scene.states(), [ACTIVE; 4]);
    scene.cut(|_| true);
    scene.assemble(None);
    assert_eq!(scene.array.status().members[1].moved.get(&0), Some(&(META + ZONES)));
    scene.check(0, TAIL + STRIPE);
}
