//! Probes: members are sent a report command while nothing is read or written.

use crate::support::{
    array::run,
    scene::{STRIPE, Scene},
};
use emu::ssd::{Fault, Kind};
use engine::{
    array::MemberState::{Active, Out},
    raid::policy::Policy,
};

fn states(scene: &Scene) -> Vec<engine::array::MemberState> {
    run(&scene.runtime, scene.array.probe());
    scene.states().into_iter().map(|(state, _)| state).collect()
}

#[test]
fn probe_takes_out_vanished_drive() {
    let scene = Scene::new(Policy::Log);
    scene.write(0, 0, STRIPE);
    assert_eq!(states(&scene), [Active; 4]);
    scene.rig.damage(2, Fault::Vanish);
    assert_eq!(states(&scene), [Active, Active, Out, Active]);
    scene.check(0, STRIPE);
}

#[test]
fn probe_tolerates_single_transient_error() {
    let scene = Scene::new(Policy::Log);
    scene.rig.damage(2, Fault::Fail { kind: Kind::Report, late: false });
    assert_eq!(states(&scene), [Active; 4]);
    let gone = Fault::Fail { kind: Kind::Report, late: false };
    scene.rig.damage(2, gone);
    scene.rig.damage(2, gone);
    assert_eq!(states(&scene), [Active, Active, Out, Active]);
}

#[test]
fn probe_never_fails_idle_array() {
    let scene = Scene::new(Policy::Log);
    scene.write(0, 0, STRIPE);
    scene.rig.damage(2, Fault::Vanish);
    scene.rig.damage(3, Fault::Vanish);
    assert_eq!(states(&scene), [Active, Active, Out, Active]);
    assert!(!scene.array.status().failed);
    // The drive is back before it was needed.
    scene.rig.damage(3, Fault::Return);
    assert_eq!(states(&scene), [Active, Active, Out, Active]);
    scene.check(0, STRIPE);
}
