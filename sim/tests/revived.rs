//! Empty zones and lost ZRWAs after an end: recovery trusts the contents that are still there, and detects lost ones.

use crate::support::{
    array::{geometry, options, run, submit, wp, write, write_command},
    rig::Act,
    scene::{ACTIVE, CHUNK, STRIPE, Scene},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use engine::{
    array::{Array, MemberState},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, ZonedDevice, Zrwa},
    raid::{
        create::CreateOptions,
        policy::{Policy, zrwa::Refusal},
    },
    zone::{Lba, ZoneState},
};

fn scene_of(shape: &Geometry) -> Scene {
    Scene::shaped(Policy::Zrwa, shape.clone())
}

fn cut_power(scene: &Scene, lost: impl Fn(usize) -> Cut) {
    scene.runtime.clear();
    scene.rig.cut_power(&mut Rng::new(1), lost);
}

/// Cuts the power; the drives in `lost` lose their ZRWAs.
fn lose_zrwas(scene: &Scene, lost: &[usize]) {
    cut_power(scene, |drive| Cut { cache_lost: false, zrwa_lost: lost.contains(&drive) });
}

fn check_end(scene: &Scene, tail: u64) {
    assert_eq!(scene.tail(0), tail);
    scene.check(0, tail);
}

/// Drives with sufficient ZRWAs, and drives with small zones of which four are used as one.
fn shapes() -> [Geometry; 2] {
    let zrwa = Some(Zrwa { size_blocks: 4, granularity_blocks: 2, max_zones: 32 });
    [geometry(8, 200, 8), Geometry { zrwa, zone_size_blocks: 64, ..geometry(40, 64, 32) }]
}

#[test]
fn zrwa_loss_within_first_stripe_is_rebuilt() {
    for (shape, tail) in
        shapes().into_iter().flat_map(|shape| (1..STRIPE + 3).map(move |t| (shape.clone(), t)))
    {
        for member in 0..4 {
            let mut scene = scene_of(&shape);
            write(&scene.runtime, &scene.array, 0, 0, tail, true);
            lose_zrwas(&scene, &[member]);
            scene.assemble(None);
            check_end(&scene, tail);
            let others = scene.states().into_iter().enumerate().filter(|(m, _)| *m != member);
            assert!(others.into_iter().all(|(_, state)| state == ACTIVE), "{tail} without that of {member}");
            run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
            assert_eq!(scene.states(), [ACTIVE; 4]);
            cut_power(&scene, |_| Cut::default());
            scene.assemble(Some((member + 1) % 4));
            check_end(&scene, tail);
        }
    }
}

/// The block that its drive cannot read is the only one that is not in the metadata logs.
#[test]
fn unreadable_block_is_not_that_of_lost_zrwa() {
    let shape = Geometry { oob_bytes: 16, ..geometry(8, 64, 8) };
    for parities in [1, 2] {
        // Of zones of one stripe, all partial parity is in the logs.
        let zone_size_blocks = Some(CHUNK * (4 - parities as u64));
        let policy = Some(Policy::InPlace);
        let options = CreateOptions { parities, policy, zone_size_blocks, ..options(CHUNK) };
        let mut scene = Scene::created(options, shape.clone());
        write(&scene.runtime, &scene.array, 0, 0, 1, true);
        cut_power(&scene, |_| Cut::default());
        scene.damage(0, Fault::Unreadable(Lba(scene.data())));
        scene.assemble(None);
        assert_eq!(scene.array.status().offline, []);
        check_end(&scene, 1);
    }
}

/// The witnesses of a complete stripe prove its end, although the write pointer of another member has not moved yet.
#[test]
fn full_stripe_parity_exposes_member_with_lost_zrwa() {
    for member in [0, 3] {
        let mut scene = scene_of(&shapes()[0]);
        scene.rig.rule(move |drive, command| {
            Act::hold_if(drive == member && matches!(command, Command::FlushZrwa { .. }))
        });
        drop(scene.array.submit(write_command(&scene.array, 0, 0, STRIPE, true)));
        scene.runtime.run();
        lose_zrwas(&scene, &[member]);
        scene.assemble(None);
        check_end(&scene, STRIPE);
        assert_eq!(scene.states()[member], (MemberState::Rebuilding, 1));
    }
}

/// Two members hold blocks of the second chunk's column that read as zeros: one block is zero, the other one was in a
/// lost ZRWA.
#[test]
fn zeros_of_member_with_intact_zrwa_are_accepted() {
    let mut scene = scene_of(&shapes()[0]);
    let block = |byte| Buf::copy_of(&[byte; BLOCK]);
    let write =
        |scene: &Scene, at, data| submit(&scene.runtime, &scene.array, Command::write(Lba(at), data, true));
    (0..5).for_each(|at| _ = write(&scene, at, block(7)));
    // The slot of the second chunk is the XOR of two equal blocks: zeros.
    lose_zrwas(&scene, &[1]);
    scene.assemble(None);
    assert_eq!(scene.array.status().offline, []);
    for at in 0..5 {
        let done = submit(&scene.runtime, &scene.array, Command::read(Lba(at), Buf::zeroed(BLOCK)));
        assert!(done.data[..] == [7; BLOCK], "block {at}");
    }
}

/// With one of these members missing, nothing would contradict the other one.
#[test]
fn two_zeroed_members_contradicting_parity_take_zone_offline() {
    for lost in [&[1, 2][..], &[1, 2, 3]] {
        let mut scene = scene_of(&shapes()[0]);
        write(&scene.runtime, &scene.array, 0, 0, CHUNK + 1, true);
        lose_zrwas(&scene, lost);
        scene.assemble(None);
        let refusals =
            scene.array.status().offline.iter().map(|zone| zone.refusal.clone()).collect::<Vec<_>>();
        assert_eq!(refusals, [Refusal::Contradiction], "{lost:?}");
    }
}

/// The other member that could confirm the zeros is missing.
#[test]
fn unconfirmed_zeros_of_single_part_take_zone_offline() {
    let mut scene = scene_of(&shapes()[0]);
    write(&scene.runtime, &scene.array, 0, 0, 3, true);
    lose_zrwas(&scene, &[0]);
    scene.assemble(Some(1));
    assert_eq!(wp(&scene.runtime, &scene.array, 0).0, ZoneState::Offline);
    cut_power(&scene, |_| Cut::default());
    scene.assemble(None);
    check_end(&scene, 3);
}

/// After an orderly shutdown, the zone of one member alone is empty, its data is zeros, and another member is missing.
/// If the drive returns zeros for unwritten blocks, it may have lost them; if it reports such blocks, they are data.
#[test]
fn zeros_of_single_part_are_accepted_if_drive_reports_unwritten_blocks() {
    for reports_unwritten in [false, true] {
        let mut scene = scene_of(&shapes()[0]);
        if reports_unwritten {
            scene.rig.fail_unwritten();
        }
        scene
            .rig
            .rule(|drive, command| Act::hold_if(drive == 0 && matches!(command, Command::FlushZrwa { .. })));
        let (zeros, rest) = (CHUNK as usize * BLOCK, (STRIPE - CHUNK) as usize * BLOCK);
        let data = Buf::copy_of(&[vec![0; zeros], vec![7; rest]].concat());
        drop(scene.array.submit(Command::write(Lba(0), data.clone(), true)));
        scene.runtime.run();
        scene.runtime.clear();
        scene.rig.drop_held();
        scene.rig.rule(|_, _| Act::Pass);
        scene.rig.shut_down();
        scene.assemble(Some(1));
        let refusals: Vec<_> = scene.array.status().offline.iter().map(|zone| zone.refusal.clone()).collect();
        if reports_unwritten {
            assert_eq!(refusals, []);
            let read = Command::read(Lba(0), Buf::zeroed(data.len()));
            assert!(submit(&scene.runtime, &scene.array, read).data[..] == data[..]);
        } else {
            assert_eq!(refusals, [Refusal::Lacking { member: 0 }]);
        }
    }
}

/// The power is cut at every command of a recovery that gives empty zones their ZRWAs again. One member loses its ZRWA,
/// or all lose their volatile caches.
#[test]
fn recovery_of_empty_zones_survives_cut_anywhere() {
    let [own, small] = shapes();
    let volatile = Geometry { volatile_cache: true, ..own.clone() };
    for (shape, tail) in [own, small, volatile].into_iter().flat_map(|shape| [(shape.clone(), 3), (shape, 9)])
    {
        let volatile = shape.volatile_cache;
        for lost in 0..4 {
            for steps in 0.. {
                let mut scene = scene_of(&shape);
                write(&scene.runtime, &scene.array, 0, 0, tail, true);
                scene.runtime.clear();
                scene.rig.shut_down();
                let cut = scene.rig.hold_after(steps);
                let (runtime, all) = (scene.runtime.clone(), scene.drives.clone());
                scene.runtime.spawn(async move { _ = Array::assemble(&runtime, all).await });
                scene.runtime.run();
                let missing = match volatile {
                    true => {
                        cut_power(&scene, |_| Cut { cache_lost: true, zrwa_lost: false });
                        Some(lost)
                    }
                    false => {
                        lose_zrwas(&scene, &[lost]);
                        None
                    }
                };
                scene.assemble(missing);
                let found = wp(&scene.runtime, &scene.array, 0);
                assert_eq!(found, (ZoneState::Closed, tail), "volatile {volatile}, {lost} after {steps}");
                check_end(&scene, tail);
                if !cut.get() {
                    break;
                }
            }
        }
    }
}
