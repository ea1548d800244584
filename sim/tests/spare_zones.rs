//! Worn zones of a drive, and the spare zones that replace them.

use crate::support::{
    array::{geometry, options, run, wp},
    rig::{Act, Rig},
    scene::{ACTIVE, CHUNK, META, STRIPE, Scene, ZONES, is_metadata, part, reset},
};
use emu::ssd::Fault;
use engine::{
    array::{Array, CreateOptions},
    device::{Command, ZonedDevice, Zones},
    raid::{
        error::{NoDesign, NoPart},
        policy::Policy,
    },
    runtime::{Gate, Runtime},
    zone::{ZoneIndex, ZoneState},
};
use std::{future::poll_fn, pin::pin, rc::Rc, task::Poll};

/// First spare zone of a drive.
const SPARE: u32 = META + ZONES;
const KINDS: [(Policy, u32); 4] =
    [(Policy::Zrwa, 0), (Policy::InPlace, 0), (Policy::Log, 0), (Policy::Log, 4)];

/// An empty array with `spare_zones` spare zones.
fn empty((policy, group_blocks): (Policy, u32), spare_zones: u32) -> Scene {
    let options = CreateOptions {
        policy: Some(policy),
        group_blocks,
        spare_zones: Some(spare_zones),
        ..options(CHUNK)
    };
    Scene::created(options, geometry(SPARE + spare_zones, 240, 8))
}

/// An array with `spare_zones` spare zones, and data in zones 0 and 1.
fn scene(kind: (Policy, u32), spare_zones: u32) -> Scene {
    let scene = empty(kind, spare_zones);
    for zone in [0, 1] {
        scene.write(zone, 0, 5 * STRIPE + 3);
    }
    scene
}

/// Wears out a member's parts of zones 0 and 1 and writes to these zones, so that the wear is detected; returns their
/// tail.
fn wear(scene: &Scene, member: usize) -> u64 {
    scene.damage(member, Fault::ReadOnly(part(0)));
    scene.damage(member, Fault::Offline(part(1)));
    // Every member has blocks of two stripes.
    for zone in [0, 1] {
        scene.write(zone, 5 * STRIPE + 3, 2 * STRIPE);
    }
    assert_eq!(scene.states()[member].1, 2);
    7 * STRIPE + 3
}

fn moved(scene: &Scene, member: usize) -> (Vec<(u32, u32)>, u32) {
    let status = &scene.array.status().members[member];
    (status.moved.iter().map(|(zone, place)| (*zone, *place)).collect(), status.spare_zones)
}

#[test]
fn worn_parts_are_rebuilt_in_spare_zones() {
    for kind in KINDS {
        let mut scene = scene(kind, 3);
        let tail = wear(&scene, 1);
        scene.rebuild();
        assert_eq!(scene.states(), [ACTIVE; 4], "{kind:?}");
        assert_eq!(moved(&scene, 1), (vec![(0, SPARE), (1, SPARE + 1)], 1));
        assert_eq!(moved(&scene, 2), (vec![], 3));
        assert!(!scene.array.status().members[1].worn);
        // Any other member may be lost, and the moved zones can be written and reset as others.
        for other in [0, 2, 3] {
            scene.cut(|_| true);
            scene.assemble(Some(other));
            assert_eq!(moved(&scene, 1), (vec![(0, SPARE), (1, SPARE + 1)], 1));
            scene.check(0, tail);
            scene.check(1, tail);
            scene.replace(other);
            scene.rebuild();
            assert_eq!(scene.states(), [ACTIVE; 4], "{kind:?}");
        }
        scene.write(0, tail, STRIPE);
        scene.submit(reset(1));
        scene.write(1, 0, 2 * STRIPE + 1);
        scene.cut(|_| true);
        scene.assemble(Some(0));
        scene.check(0, tail + STRIPE);
        scene.check(1, 2 * STRIPE + 1);
        assert_eq!(scene.states()[1], ACTIVE, "{kind:?}");
    }
}

/// The drive that replaces a member uses its own spare zones.
#[test]
fn replacement_drive_holds_moved_parts_in_place() {
    for kind in KINDS {
        let mut scene = scene(kind, 2);
        let tail = wear(&scene, 1);
        scene.rebuild();
        let new = scene.rig.drive(&scene.shape);
        run(&scene.runtime, scene.array.replace(1, new.clone(), &|_| ())).unwrap();
        scene.drives[1] = new;
        scene.rebuild();
        assert_eq!((scene.states(), moved(&scene, 1)), (vec![ACTIVE; 4], (vec![], 2)), "{kind:?}");
        scene.cut(|_| true);
        scene.assemble(Some(2));
        scene.check(0, tail);
        scene.check(1, tail);
        assert_eq!(moved(&scene, 1), (vec![], 2));
    }
}

#[test]
fn spare_zone_rebuild_survives_cut_anywhere() {
    for kind in KINDS {
        let mut ended = false;
        for commands in 0.. {
            let mut scene = scene(kind, 2);
            let tail = wear(&scene, 1);
            let held = scene.rig.hold_after(commands);
            let rebuilt = scene.start_rebuild();
            if !held.get() {
                assert_eq!(rebuilt.get(), Some(true));
                ended = true;
                break;
            }
            scene.rig.drop_held();
            scene.rig.rule(|_, _| Act::Pass);
            scene.cut(|_| true);
            scene.assemble(None);
            for zone in [0, 1] {
                scene.check(zone, tail);
            }
            scene.rebuild();
            assert_eq!(scene.states(), [ACTIVE; 4], "{kind:?} after {commands} commands");
            assert_eq!(moved(&scene, 1).0.len(), 2, "{kind:?} after {commands} commands");
            scene.cut(|_| true);
            scene.assemble(Some(3));
            for zone in [0, 1] {
                scene.check(zone, tail);
            }
        }
        assert!(ended);
    }
}

/// The wear of the first spare zone is not detected before it is filled.
#[test]
fn spare_zone_worn_while_filled_is_replaced() {
    for kind in KINDS {
        let mut scene = scene(kind, 4);
        let tail = wear(&scene, 1);
        let (rig, wears) = (scene.rig.clone(), std::cell::Cell::new(true));
        let starts = SPARE as u64 * scene.shape.zone_size_blocks;
        scene.rig.rule(move |drive, command| {
            let fills = matches!(command, Command::Write { lba, .. } if lba.0 > starts)
                || matches!(command, Command::Append { zone, .. } if zone.0 == SPARE);
            if drive == 1 && fills && wears.replace(false) {
                rig.damage(1, Fault::ReadOnly(ZoneIndex(SPARE)));
            }
            Act::Pass
        });
        scene.rebuild();
        assert_eq!(scene.states(), [ACTIVE; 4], "{kind:?}");
        // The worn spare zone does not count as available.
        assert_eq!(moved(&scene, 1), (vec![(0, SPARE + 1), (1, SPARE + 2)], 1), "{kind:?}");
        // Another one wears out later.
        scene.damage(1, Fault::Offline(ZoneIndex(SPARE + 2)));
        scene.write(1, tail, STRIPE);
        assert_eq!(scene.states()[1].1, 1, "{kind:?}");
        scene.rebuild();
        assert_eq!(moved(&scene, 1), (vec![(0, SPARE + 1), (1, SPARE + 3)], 0), "{kind:?}");
        scene.cut(|_| true);
        scene.assemble(Some(2));
        assert_eq!((scene.states()[1], moved(&scene, 1).0.len()), (ACTIVE, 2), "{kind:?}");
        scene.check(0, tail);
        scene.check(1, tail + STRIPE);
    }
}

/// A zone that too many members cannot write is reset while another one is being rebuilt in a spare zone.
#[test]
fn zones_moved_at_the_same_time_get_different_spares() {
    for kind in KINDS {
        let mut scene = scene(kind, 4);
        wear(&scene, 1);
        scene.damage(2, Fault::Offline(part(1)));
        scene.cut(|_| true);
        scene.assemble(None);
        assert_eq!(scene.array.status().offline.len(), 1, "{kind:?}");
        let is_of_spares =
            |command: &Command| matches!(command, Command::Report { first, .. } if first.0 >= SPARE);
        scene.rig.rule(move |drive, command| Act::hold_if(drive == 1 && is_of_spares(command)));
        let rebuilt = scene.start_rebuild();
        let reset = scene.array.submit(reset(1));
        scene.runtime.run();
        assert!(scene.rig.held() > 1, "{kind:?}");
        scene.rig.rule(|_, _| Act::Pass);
        scene.rig.release(|_, _| true);
        assert_eq!(run(&scene.runtime, reset).result, Ok(()), "{kind:?}");
        scene.runtime.run();
        assert!(rebuilt.get().is_some(), "{kind:?}");
        scene.rebuild();
        assert_eq!(scene.states(), [ACTIVE; 4], "{kind:?}");
        let (moved, _) = moved(&scene, 1);
        assert!(moved.len() == 2 && moved[0].1 != moved[1].1, "{kind:?}: {moved:?}");
        scene.write(1, 0, 2 * STRIPE + 1);
        scene.cut(|_| true);
        scene.assemble(Some(0));
        scene.check(0, 7 * STRIPE + 3);
        scene.check(1, 2 * STRIPE + 1);
    }
}

#[test]
fn writable_part_is_never_moved_to_spare() {
    for kind in KINDS {
        let scene = scene(kind, 1);
        // Reset by another program.
        scene.damage(2, Fault::Reset(part(0)));
        scene.write(0, 5 * STRIPE + 3, 2 * STRIPE);
        assert_eq!(scene.states()[2].1, 1, "{kind:?}");
        scene.rebuild();
        assert_eq!((scene.states(), moved(&scene, 2)), (vec![ACTIVE; 4], (vec![], 1)), "{kind:?}");
    }
}

#[test]
fn rebuild_leaves_out_worn_part_without_spare() {
    for kind in KINDS {
        let scene = scene(kind, 1);
        wear(&scene, 1);
        let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
        let left_out: Vec<_> = rebuilt.left_out.iter().map(|out| (out.member, out.zone)).collect();
        assert_eq!(left_out.len(), 1, "{kind:?}: {left_out:?}");
        assert!(left_out[0].0 == 1 && matches!(rebuilt.left_out[0].reason, NoPart::Worn(_)));
        assert_eq!(moved(&scene, 1).0.len(), 1, "{kind:?}");
        let status = &scene.array.status().members[1];
        assert!(status.worn && status.spare_zones == 0);
    }
}

/// A rebuild that was dropped has not recorded yet which spare zone it was about to write.
#[test]
fn spare_zone_is_written_only_after_record() {
    let scene = scene((Policy::Zrwa, 0), 2);
    wear(&scene, 1);
    let data = scene.data();
    scene.rig.rule(move |drive, command| Act::hold_if(drive == 1 && is_metadata(command, data)));
    let stop = Rc::new(Gate::default());
    let (array, stopped) = (scene.array.clone(), stop.clone());
    scene.runtime.spawn(async move {
        let (mut rebuild, mut stopped) = (pin!(array.rebuild(&|_| ())), pin!(stopped.wait()));
        poll_fn(|context| match stopped.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => rebuild.as_mut().poll(context).map(|_| ()),
        })
        .await;
    });
    scene.runtime.run();
    assert_eq!((moved(&scene, 1).0.len(), scene.rig.held()), (1, 1));
    stop.open();
    scene.runtime.run();
    let rebuilt = scene.start_rebuild();
    let written = || [SPARE, SPARE + 1].map(|zone| scene.rig.written(1, ZoneIndex(zone)));
    assert_eq!((written(), rebuilt.get()), ([0, 0], None));
    scene.release();
    assert_eq!((rebuilt.get(), scene.states()), (Some(true), vec![ACTIVE; 4]));
    assert!(written().iter().all(|blocks| *blocks > 0));
}

#[test]
fn design_refuses_array_of_spare_zones_only() {
    let (runtime, rig) = (Runtime::new(), Rig::new());
    let drives: Vec<_> = (0..4).map(|_| rig.drive(&geometry(META + 4, 240, 8))).collect();
    let design = |spare: Option<u32>| {
        let options = CreateOptions { spare_zones: spare, ..options(CHUNK) };
        Array::design(&runtime, &options, &drives).map(|design| (design.geometry.zones, design.spare_blocks))
    };
    assert_eq!(design(None).unwrap(), (4, 0));
    assert_eq!(design(Some(3)).unwrap(), (1, 4 * 3 * 240));
    assert_eq!(design(Some(4)).unwrap_err(), NoDesign::Spares { spare: 4, zones: 4 }.into());
    let many: Vec<_> = (0..4).map(|_| rig.drive(&geometry(META + 400, 64, 8))).collect();
    let options = options(CHUNK);
    assert_eq!(Array::design(&runtime, &options, &many).unwrap().geometry.zones, 397);
}

/// Wear may be detected by any command, and a reset of an offline zone needs writable parts.
#[test]
fn reset_moves_parts_of_offline_zone_to_spares() {
    for kind in KINDS {
        let mut scene = scene(kind, 2);
        for member in [1, 2] {
            scene.damage(member, Fault::Offline(part(0)));
        }
        scene.cut(|_| true);
        scene.assemble(None);
        assert_eq!(scene.array.status().offline.len(), 1, "{kind:?}");
        scene.submit(reset(0));
        assert_eq!(scene.states(), [ACTIVE; 4], "{kind:?}");
        scene.write(0, 0, 2 * STRIPE);
        scene.cut(|_| true);
        scene.assemble(Some(0));
        scene.check(0, 2 * STRIPE);
        scene.check(1, 5 * STRIPE + 3);
    }
}

/// A spare zone holds none of the worn part's data: the data would be missing if the reset failed.
#[test]
fn failed_reset_of_offline_zone_keeps_data() {
    const SHORT: u64 = 2 * CHUNK;
    for kind in KINDS {
        let offline = |worn: &[usize]| {
            let mut scene = empty(kind, 1);
            scene.write(0, 0, SHORT);
            worn.iter().for_each(|member| scene.damage(*member, Fault::Offline(part(0))));
            scene.cut(|_| false);
            scene.assemble(Some(0));
            assert_eq!(scene.array.status().offline.len(), 1, "{kind:?}");
            scene
        };
        for steps in 0.. {
            let mut scene = offline(&[1]);
            let held = scene.rig.hold_after(steps);
            drop(scene.start(reset(0)));
            scene.cut(|_| false);
            scene.assemble(None);
            if wp(&scene.runtime, &scene.array, 0) != (ZoneState::Empty, 0) {
                scene.check(0, SHORT);
            }
            if !held.get() {
                break;
            }
        }
        // Too few members have a spare zone for it.
        let mut scene = offline(&[1, 2]);
        scene.damage(2, Fault::Offline(ZoneIndex(SPARE)));
        assert!(scene.refused(reset(0)), "{kind:?}");
        scene.cut(|_| false);
        scene.assemble(Some(0));
        assert_eq!(scene.array.status().offline.len(), 1, "{kind:?}");
    }
}

#[test]
fn reset_that_finds_wear_marks_member_worn() {
    for kind in KINDS {
        let scene = scene(kind, 1);
        scene.damage(3, Fault::ReadOnly(part(1)));
        scene.submit(reset(1));
        scene.runtime.run();
        let status = &scene.array.status().members[3];
        assert!(status.worn && status.zones_to_rebuild == 1, "{kind:?}: {status:?}");
        scene.rebuild();
        assert_eq!((scene.states(), moved(&scene, 3).0), (vec![ACTIVE; 4], vec![(1, SPARE)]), "{kind:?}");
    }
}

/// One of four aggregated small zones is worn: the others are not left open.
#[test]
fn moved_aggregate_leaves_no_active_zones_behind() {
    let shape = engine::device::Geometry {
        zrwa: Some(engine::device::Zrwa { size_blocks: 4, granularity_blocks: 1, max_zones: 28 }),
        ..geometry(4 * (SPARE + 3), 60, 28)
    };
    let options = CreateOptions { policy: Some(Policy::Zrwa), spare_zones: Some(3), ..options(CHUNK) };
    let mut scene = Scene::created(options, shape);
    assert_eq!(scene.array.status().aggregate, 4);
    let (mut tail, mut place) = (0, META);
    for worn in 0..3 {
        scene.write(0, tail, 3 * STRIPE + 1);
        scene.damage(1, Fault::ReadOnly(ZoneIndex(4 * place)));
        // So that all members are written.
        scene.write(0, tail + 3 * STRIPE + 1, 4 * STRIPE);
        tail += 7 * STRIPE + 1;
        assert_eq!(scene.states()[1].1, 1, "{worn}");
        scene.rebuild();
        let active = |zone: u32| scene.rig.written(1, ZoneIndex(zone)) > 0;
        assert_eq!((4 * place + 1..4 * place + 4).filter(|zone| active(*zone)).count(), 0, "{worn}");
        place = SPARE + worn;
        assert_eq!((scene.states(), moved(&scene, 1).0), (vec![ACTIVE; 4], vec![(0, place)]));
    }
    scene.cut(|_| true);
    scene.assemble(Some(3));
    scene.check(0, tail);
}

/// A checkpoint is written before it is recorded that a member has failed in a reset.
#[test]
fn reset_is_not_done_before_failed_member_is_out() {
    let mut scene = scene((Policy::Log, 0), 1);
    scene.damage(1, Fault::ReadOnly(part(1)));
    scene.submit(reset(1));
    scene.runtime.run();
    let data = scene.data();
    // The members are recorded only when their logs have been read.
    scene.rig.rule(move |drive, command| match command {
        Command::Reset { zones: Zones::One(zone) } if drive == 0 && *zone == part(0) => Act::Fail,
        Command::Read { lba, .. } => Act::hold_if(lba.0 < data),
        _ => Act::Pass,
    });
    drop(scene.start(reset(0)));
    scene.start_rebuild();
    scene.cut(|_| false);
    scene.assemble(None);
    assert_eq!(moved(&scene, 1).0, [(1, SPARE)], "no checkpoint was written");
    assert_eq!(wp(&scene.runtime, &scene.array, 0), (ZoneState::Empty, 0));
}

/// A reset moves a part while a rebuild is about to move another one.
#[test]
fn spare_zone_of_move_under_way_is_not_taken() {
    let mut scene = scene((Policy::Log, 0), 4);
    wear(&scene, 1);
    scene.damage(2, Fault::Offline(part(1)));
    scene.cut(|_| true);
    scene.assemble(None);
    scene.rig.rule(|drive, command| match command {
        Command::Reset { zones: Zones::One(zone) } => Act::hold_if(drive == 1 && *zone == part(0)),
        _ => Act::Pass,
    });
    let rebuilt = scene.start_rebuild();
    assert_eq!(scene.rig.held(), 1);
    scene.submit(reset(1));
    scene.release();
    assert!(rebuilt.get().is_some());
    assert_eq!(moved(&scene, 1).0, [(0, SPARE), (1, SPARE + 1)]);
}
