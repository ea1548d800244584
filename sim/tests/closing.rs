//! Closing an array: no task of it runs afterwards, and no data is lost.

use crate::support::{
    array::{pattern, run, write, write_command},
    rig::Act,
    scene::{Scene, finish},
};
use engine::{
    array::{Array, ArrayOptions, ArrayStatus},
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, ZonedDevice},
    raid::policy::Policy,
    runtime::Runtime,
    zone::Lba,
};
use std::{
    cell::Cell,
    rc::Rc,
    task::{Context, Waker},
};

/// Number of references to each drive.
fn holders(scene: &Scene) -> Vec<usize> {
    scene.drives.iter().map(|drive| Rc::strong_count(&drive.device)).collect()
}

#[test]
fn close_releases_drives_and_makes_data_durable() {
    for policy in Policy::ALL {
        let mut scene = Scene::volatile(policy);
        let held = holders(&scene);
        write(&scene.runtime, &scene.array, 0, 0, 7, false);
        write(&scene.runtime, &scene.array, 1, 0, 40, false);
        // The tasks of these reads stay idle for further reads; zone 1 is finished.
        scene.check(1, 40);
        scene.submit(finish(1));
        run(&scene.runtime, scene.array.close()).unwrap();
        let read = Command::read(Lba(0), Buf::zeroed(BLOCK));
        assert_eq!(run(&scene.runtime, scene.array.submit(read)).result, Err(DeviceError::Gone));
        let late = write_command(&scene.array, 0, 7, 1, true);
        assert_eq!(run(&scene.runtime, scene.array.submit(late)).result, Err(DeviceError::Gone));
        // Its tasks have ended; the array itself is dropped when the next one replaces it.
        scene.runtime.run();
        scene.assemble(None);
        assert_eq!(holders(&scene), held, "{policy:?}: the drives are still in use");
        scene.cut(|_| true);
        scene.assemble(Some(2));
        scene.check(0, 7);
        scene.check(1, 40);
    }
}

/// The future that closes an array is dropped after any number of commands: the array is closed all the same, and a
/// second call waits until it is.
#[test]
fn close_given_up_anywhere_makes_data_durable() {
    for policy in Policy::ALL {
        for commands in 0.. {
            let mut scene = Scene::volatile(policy);
            write(&scene.runtime, &scene.array, 0, 0, 7, false);
            let (array, rig) = (scene.array.clone(), scene.rig.clone());
            scene.rig.rule(|_, _| Act::Hold);
            let mut left = commands;
            let closed = scene.runtime.block_on(async move { array.close().await }, || {
                left -= usize::from(left > 0);
                left > 0 && rig.release(|position, _| position == 0) > 0
            });
            let second = scene.runtime.block_on(scene.array.close(), || false);
            assert_eq!(second.is_some(), closed.is_some(), "{policy:?}, {commands} commands");
            scene.release();
            run(&scene.runtime, scene.array.close()).unwrap();
            scene.runtime.run();
            scene.cut(|_| true);
            scene.assemble(Some(2));
            scene.check(0, 7);
            if closed.is_some() {
                assert!(commands > 3, "{policy:?}");
                break;
            }
        }
    }
}

/// Pending commands are answered: those in flight complete, those not yet started are refused.
#[test]
fn close_completes_or_refuses_pending_commands() {
    let scene = Scene::new(Policy::Zrwa);
    scene.write(0, 0, 4);
    scene.rig.rule(|_, command| match command {
        Command::Write { .. } => Act::Hold,
        _ => Act::Pass,
    });
    let first = scene.start_write(0, 4, 4);
    let second = scene.start_write(0, 8, 30);
    let (array, closed) = (scene.array.clone(), Rc::new(Cell::new(false)));
    let told = closed.clone();
    scene.runtime.spawn(async move {
        array.close().await.unwrap();
        told.set(true);
    });
    scene.runtime.run();
    assert!(!closed.get(), "it was closed over a write");
    let flush = scene.start(Command::Flush);
    scene.release();
    assert!(closed.get());
    assert_eq!(run(&scene.runtime, first).result, Ok(()));
    let done = run(&scene.runtime, second).result;
    assert!(matches!(done, Ok(()) | Err(DeviceError::Gone)), "{done:?}");
    assert_eq!(run(&scene.runtime, flush).result, Err(DeviceError::Gone));
}

/// A deferred-write array without member 1, which has the second chunk of zone 0: reads of that chunk take the parity
/// in memory.
fn held_back() -> (Scene, Runtime, Array) {
    let scene = Scene::new(Policy::Zrwa);
    scene.write(0, 0, 7);
    scene.stop();
    let (runtime, there) = (scene.runtime.clone(), scene.without(Some(1)));
    let array = Array::assemble_deferred(&runtime, there, None, ArrayOptions::default());
    let array = run(&runtime, array).unwrap();
    (scene, runtime, array)
}

/// Closing a deferred-write array writes nothing.
#[test]
fn close_of_provisional_array_writes_nothing() {
    let (mut scene, runtime, held_back) = held_back();
    run(&runtime, held_back.close()).unwrap();
    let ArrayStatus { failed, .. } = held_back.status();
    assert!(!failed);
    drop(held_back);
    scene.assemble(None);
    assert!(scene.array.status().members.iter().all(|member| member.zones_to_rebuild == 0));
    scene.check(0, 7);
}

/// A write that arrives while a deferred-write array is being closed does not begin it.
#[test]
fn close_of_provisional_array_refuses_late_write() {
    let (scene, runtime, array) = held_back();
    let mut closing = Box::pin(array.close());
    assert!(closing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    scene.rig.rule(|_, command| match command {
        Command::Read { .. } | Command::Report { .. } => Act::Pass,
        _ => panic!("{command:?}"),
    });
    let late = array.submit(write_command(&array, 0, 7, 1, true));
    assert_eq!(run(&runtime, late).result, Err(DeviceError::Gone));
    run(&runtime, closing).unwrap();
}

/// A rebuild is given up, and the array closed at once.
#[test]
fn close_waits_for_end_of_rebuild_given_up() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 13);
        scene.replace(3);
        scene.rig.rule(|_, _| Act::Hold);
        assert!(scene.runtime.block_on(scene.array.rebuild(&|_| ()), || false).is_none());
        let (array, closed) = (scene.array.clone(), Rc::new(Cell::new(false)));
        let told = closed.clone();
        scene.runtime.spawn(async move { told.set(array.close().await.is_ok()) });
        scene.runtime.run();
        assert!(!closed.get(), "{policy:?}: it was closed during the rebuild");
        scene.release();
        assert!(closed.get(), "{policy:?}");
        assert!(run(&scene.runtime, scene.array.rebuild(&|_| ())).is_err(), "{policy:?}");
        scene.assemble(None);
        scene.rebuild();
        scene.check(0, 13);
    }
}

/// A member that returns while the array is being closed is refused.
#[test]
fn close_of_provisional_array_refuses_returning_member() {
    let (scene, runtime, array) = held_back();
    scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::Read { .. })));
    let answer = Rc::new(Cell::new(None));
    let (told, completed, drive) = (answer.clone(), array.clone(), scene.drives[1].clone());
    runtime.spawn(async move { told.set(Some(completed.complete(drive).await)) });
    runtime.run();
    assert!(scene.rig.held() > 0);
    run(&runtime, array.close()).unwrap();
    scene.rig.rule(|_, command| match command {
        Command::Read { .. } | Command::Report { .. } => Act::Pass,
        _ => panic!("{command:?}"),
    });
    runtime.run();
    while scene.rig.release(|_, _| true) > 0 {
        runtime.run();
    }
    let said = answer.take().unwrap().unwrap_err().to_string();
    assert!(said.contains("has left deferred-write mode without it"), "{said}");
}

/// Reads of a deferred-write array that are in flight complete with the data known before, though the array commits
/// meanwhile.
#[test]
fn provisional_read_completes_while_array_commits() {
    let (scene, runtime, array) = held_back();
    scene.rig.rule(|_, command| Act::hold_if(matches!(command, Command::Read { .. })));
    let read = array.submit(Command::read(Lba(0), Buf::zeroed(7 * BLOCK)));
    runtime.run();
    scene.rig.rule(|_, _| Act::Pass);
    write(&runtime, &array, 0, 7, 1, true);
    assert!(!array.is_deferred());
    scene.release();
    let done = run(&runtime, read);
    assert_eq!(done.result, Ok(()));
    assert_eq!(&done.data[..], &pattern(0, 7)[..]);
}
