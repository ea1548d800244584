//! The hot window of a volume on an array with cells: blocks that are overwritten often take no blocks of the log, and
//! are found after an end at any moment, with any members lost.

use crate::support::{
    array::run,
    pool::new,
    volume::block,
    zrwa_volume::{Running, Scene},
};
use emu::{
    rng::Rng,
    ssd::{Cut, EmulatedDrive},
};
use engine::{
    array::{Array, Drive},
    buf::{BLOCK, Buf},
    device::ZonedDevice,
    runtime::Runtime,
    volume::{self, NewSnapshot, Opened, Pool, PoolShape, Volume, VolumeCreateOptions, VolumeOptions},
};
use std::{cell::Cell, rc::Rc};

/// Blocks that are overwritten.
const HOT: u64 = 5;

/// Overwrites blocks 0 to [`HOT`] until the window takes them; returns the contents.
fn warm(running: &Running) -> Vec<(u64, u8)> {
    for round in 0..9 {
        (0..HOT).for_each(|at| running.write(at, round));
    }
    running.runtime.run();
    let before = running.status().written.window;
    (0..HOT).for_each(|at| running.write(at, 9));
    assert_eq!(running.status().written.window - before, HOT);
    (0..HOT).map(|at| (at, 9)).collect()
}

/// A volume of which these blocks are in the window, after the end of its process; and their contents.
fn warm_scene() -> (Scene, Vec<(u64, u8)>) {
    let scene = Scene::new((4, 1), 4, 640);
    let running = scene.start(&[]);
    let contents = warm(&running);
    running.kill();
    (scene, contents)
}

/// A cell whose block a snapshot keeps, and which the volume, or an earlier snapshot, gets from it.
#[test]
fn cells_pass_from_snapshots_to_others() {
    for is_merged in [false, true] {
        let scene = Scene::without_volume((4, 1), 4, 640);
        let runtime = Runtime::new();
        let array = Rc::new(run(&runtime, Array::assemble(&runtime, scene.there(&[]))).unwrap());
        let pool = Some(PoolShape { extent_blocks: 32, slots: 8 });
        let options = VolumeCreateOptions { uuid: [5; 16], pool, ..Default::default() };
        run(&runtime, Pool::create(&runtime, array.clone(), options)).unwrap();
        let opened = run(&runtime, volume::open(&runtime, array.clone(), VolumeOptions::default())).unwrap();
        let Opened::Pool(pool) = opened else { panic!("a pool is taken for a volume") };
        let volume = run(&runtime, pool.add(new("a"))).unwrap();
        let running = Running { runtime, array, volume };
        let contents = warm(&running);
        let snapshot = |name: &str| {
            let new = NewSnapshot { volume: "a".into(), name: name.into(), uuid: [7; 16] };
            run(&running.runtime, pool.snapshot(vec![new])).unwrap();
        };
        if is_merged {
            snapshot("earlier");
            // The earlier snapshot has an extent, and no entries for the cells.
            running.write(20, 1);
        }
        snapshot("later");
        (0..HOT).for_each(|at| running.write(at, 50));
        let (keeper, what) = match is_merged {
            true => {
                run(&running.runtime, pool.remove_snapshot("a", "later")).unwrap();
                ("a@earlier", "in the earlier snapshot")
            }
            false => {
                run(&running.runtime, pool.roll_back("a", "later")).unwrap();
                ("a", "in the volume")
            }
        };
        run(&running.runtime, pool.space().flush()).unwrap();
        let (Running { runtime, array, .. }, volume) = (running, pool.find(keeper).unwrap());
        for (at, byte) in contents {
            let data = run(&runtime, volume.read(at, Buf::zeroed(BLOCK))).unwrap();
            assert!(data[..] == block(byte)[..], "block {at} {what}");
        }
        run(&runtime, pool.space().audit()).unwrap();
        runtime.clear();
        drop(array);
    }
}

#[test]
fn hot_blocks_take_no_blocks_of_the_log() {
    let scene = Scene::new((4, 1), 4, 640);
    let running = scene.start(&[]);
    let cold: Vec<(u64, u8)> = (100..140).map(|at| (at, at as u8)).collect();
    cold.iter().for_each(|(at, byte)| running.write(*at, *byte));
    warm(&running);
    let before = running.status().written;
    for round in 0..100u64 {
        (0..HOT).for_each(|at| running.write(at, (round + at) as u8));
    }
    let after = running.status().written;
    assert_eq!(after.window - before.window, 100 * HOT);
    assert_eq!(after.blocks(), before.blocks());
    let hot: Vec<(u64, u8)> = (0..HOT).map(|at| (at, (99 + at) as u8)).collect();
    running.check(&hot, "while it runs");
    running.check(&cold, "while it runs");
    running.kill();
    let again = scene.start(&[]);
    again.check(&hot, "after another start");
    // The first write ends the window of the process that died, and the blocks of it are moved to the log.
    again.write(200, 1);
    again.runtime.run();
    assert!(again.status().written.moved >= HOT);
    again.check(&hot, "after the move");
    again.kill();
    scene.start(&[0]).check(&hot, "without a member");
}

/// More blocks than there are cells: those that were written least recently are moved out.
#[test]
fn window_moves_blocks_that_were_written_least_recently() {
    let scene = Scene::new((4, 1), 4, 640);
    let running = scene.start(&[]);
    warm(&running);
    let before = running.status().written;
    for round in 0..20u8 {
        for at in 0..40 {
            running.write(at, round);
            running.write(at % 3, round);
        }
    }
    let after = running.status().written;
    assert!(after.window - before.window > 800, "{} in the window", after.window - before.window);
    assert!(after.moved > before.moved);
    let contents: Vec<(u64, u8)> = (0..40).map(|at| (at, 19)).collect();
    running.check(&contents, "while it runs");
    running.kill();
    scene.start(&[]).check(&contents, "after another start");
}

#[test]
fn blocks_of_the_window_are_found_with_any_members_lost() {
    for (members, parities) in [(3, 1), (4, 1), (6, 2)] {
        let scene = Scene::new((members, parities), 4, 640);
        let running = scene.start(&[]);
        let mut contents = warm(&running);
        for write in 0..20u8 {
            let at = u64::from(write) % HOT;
            running.write(at, 100 + write);
            contents[at as usize] = (at, 100 + write);
            for lost in scene.losses() {
                let what = format!("{members} members without {lost:?}, after write {write}");
                let copy = scene.copy();
                let started = copy.start(&lost);
                started.check(&contents, &what);
                // It goes on, and overwrites one of the blocks.
                started.write(1, 99);
                started.runtime.run();
                started.kill();
                let again = copy.start(&lost);
                let now: Vec<_> =
                    contents.iter().map(|(at, b)| (*at, if *at == 1 { 99 } else { *b })).collect();
                again.check(&now, &what);
                again.kill();
            }
        }
        running.kill();
    }
}

/// A power cut leaves old and new copies of a cell: the version is the old or the new one, and stays.
#[test]
fn copies_of_a_cell_may_differ() {
    let scene = Scene::new((4, 1), 4, 640);
    let running = scene.start(&[]);
    warm(&running);
    for write in 0..12u8 {
        let (at, before) = (u64::from(write) % HOT, scene.copy());
        running.write(at, 100 + write);
        for old in 1..15u32 {
            let after = scene.copy();
            let drives = (0..4).map(|member| match old >> member & 1 {
                1 => before.copy().drives.swap_remove(member),
                _ => after.copy().drives.swap_remove(member),
            });
            let mixed = Scene { drives: drives.collect(), parities: 1 };
            let started = mixed.start(&[]);
            let found =
                run(&started.runtime, started.volume.read(at, engine::buf::Buf::zeroed(BLOCK))).unwrap()[0];
            let earlier = write.checked_sub(HOT as u8).map_or(9, |earlier| 100 + earlier);
            assert!([100 + write, earlier].contains(&found), "{found} after write {write}");
            started.kill();
            for lost in 0..4 {
                let what = format!("write {write}, old {old:b}, without {lost}");
                mixed.copy().start(&[lost]).check(&[(at, found)], what);
            }
        }
    }
    running.kill();
}

/// A start, and the move of the blocks to the log, may be interrupted after any command.
#[test]
fn start_that_is_interrupted_finds_the_window_again() {
    let (scene, contents) = warm_scene();
    for commands in 0.. {
        let copy = scene.copy();
        let runtime = Runtime::new();
        let left = Rc::new(Cell::new(commands));
        let drives = copy.leaving(&left);
        let moved = runtime.block_on(
            async {
                let array = Array::assemble(&runtime, drives).await.ok()?;
                let volume = Volume::open(&runtime, Rc::new(array), VolumeOptions::default()).await.ok()?;
                volume.write(70, &block(1), true).await.ok()?;
                Some(volume)
            },
            || false,
        );
        runtime.run();
        let is_whole =
            matches!(&moved, Some(Some(volume)) if volume.status().written.moved >= HOT) && left.get() > 0;
        runtime.clear();
        drop(moved);
        let again = copy.start(&[]);
        again.check(&contents, format!("after {commands} commands"));
        again.kill();
        if is_whole {
            assert!(commands > 40, "{commands}");
            return;
        }
    }
}

/// A rebuilt part has its cells again.
#[test]
fn rebuild_copies_cells() {
    let (mut scene, contents) = warm_scene();
    for member in 0..4 {
        let running = scene.start(&[member]);
        // Nothing is written to the volume: its window stays.
        let new = EmulatedDrive::in_memory(scene.drives[member].geometry());
        let drive = Drive { name: "new".into(), device: Rc::new(new.clone()) };
        run(&running.runtime, running.array.attach(member, drive)).unwrap();
        run(&running.runtime, running.array.rebuild(&|_| ())).unwrap();
        running.check(&contents, "after the rebuild");
        running.kill();
        scene.drives[member] = new;
    }
    for lost in 0..4 {
        scene.copy().start(&[lost]).check(&contents, "without another member");
    }
}

/// A power cut, after an orderly shutdown or in which the drives in `lost` lose their ZRWAs.
fn cut_power(scene: &Scene, lost: &[usize]) {
    for (member, drive) in scene.drives.iter().enumerate() {
        let cut = Cut { cache_lost: false, zrwa_lost: lost.contains(&member) };
        drive.ssd().borrow_mut().power_cut(&[], &mut Rng::new(1), cut).unwrap();
    }
}

/// A member that has lost its ZRWAs gets its cells again with its parts.
#[test]
fn cells_of_lost_zrwa_are_rebuilt() {
    let (scene, contents) = warm_scene();
    for member in 0..4 {
        cut_power(&scene, &[member]);
        let running = scene.start(&[]);
        running.check(&contents, format!("without the ZRWA of {member}"));
        run(&running.runtime, running.array.rebuild(&|_| ())).unwrap();
        running.kill();
    }
    for lost in 0..4 {
        scene.copy().start(&[lost]).check(&contents, "without a member");
    }
}

/// Zones that an orderly shutdown has ended get their cells again, which have to be written for that.
#[test]
fn cells_survive_shutdowns() {
    let (scene, contents) = warm_scene();
    for round in 0..3 {
        for drive in &scene.drives {
            drive.ssd().borrow_mut().shut_down().unwrap();
        }
        let running = scene.start(&[]);
        running.check(&contents, format!("after shutdown {round}"));
        running.kill();
        cut_power(&scene, &[round]);
        let running = scene.start(&[]);
        running.check(&contents, format!("after power cut {round}"));
        run(&running.runtime, running.array.rebuild(&|_| ())).unwrap();
        running.kill();
    }
}

/// Cells that are written while a drive is rebuilt, or copied to another one, are on that drive, too.
#[test]
fn cells_are_written_during_rebuild_and_copy() {
    for copies in [false, true] {
        for member in 0..4 {
            let mut scene = Scene::new((4, 1), 4, 640);
            let running = match copies {
                true => scene.start(&[]),
                false => scene.start(&[member]),
            };
            let mut contents = warm(&running);
            let new = EmulatedDrive::in_memory(scene.drives[member].geometry());
            let drive = Drive { name: "new".into(), device: Rc::new(new.clone()) };
            let (array, ended) = (running.array.clone(), Rc::new(Cell::new(false)));
            let has_ended = ended.clone();
            running.runtime.spawn(async move {
                match copies {
                    true => _ = array.replace(member, drive, &|_| ()).await.unwrap(),
                    false => {
                        array.attach(member, drive).await.unwrap();
                        array.rebuild(&|_| ()).await.unwrap();
                    }
                }
                has_ended.set(true);
            });
            for write in 0..60u8 {
                let at = u64::from(write) % HOT;
                running.write(at, 100 + write);
                contents[at as usize] = (at, 100 + write);
            }
            running.runtime.run();
            assert!(ended.get(), "member {member}, copied: {copies}");
            assert!(running.status().written.window > 60);
            running.check(&contents, "while it runs");
            running.kill();
            scene.drives[member] = new;
            for lost in 0..4 {
                scene.copy().start(&[lost]).check(&contents, format!("without {lost}, {member} is new"));
            }
        }
    }
}
