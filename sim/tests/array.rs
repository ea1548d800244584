//! The array on emulated drives that answer at once: its life from creation to rebuild.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use engine::{
    array::{Array, CreateOptions, Drive},
    buf::{BLOCK, Buf},
    device::{Command, Done, Geometry, ZonedDevice, Zones, Zrwa},
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use sim::ssd::EmulatedDrive;
use std::rc::Rc;

fn geometry() -> Geometry {
    Geometry {
        zones: 10,
        zone_size_blocks: 256,
        zone_capacity_blocks: 220,
        max_open: 8,
        max_active: 8,
        zrwa: Some(Zrwa { size_blocks: 32, granularity_blocks: 2, max_zones: 8 }),
        oob_bytes: 0,
        max_transfer_blocks: 64,
        max_append_blocks: 64,
        volatile_cache: false,
    }
}

fn drives(count: usize) -> Vec<Drive> {
    let drive =
        |i| Drive { name: format!("drive{i}"), device: Rc::new(EmulatedDrive::in_memory(&geometry())) };
    (0..count).map(drive).collect()
}

fn options(chunk_blocks: u64) -> CreateOptions {
    CreateOptions { name: "test".into(), uuid: [3; 16], chunk_blocks, zone_size_blocks: None }
}

fn run<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(future, || false).expect("nothing can happen any more")
}

fn submit(runtime: &Runtime, array: &Array, command: Command) -> Done {
    let done = run(runtime, array.submit(command));
    assert_eq!(done.result, Ok(()));
    done
}

fn pattern(from: u64, blocks: u64) -> Vec<u8> {
    (from..from + blocks)
        .flat_map(|b| (b.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 77).to_le_bytes().repeat(BLOCK / 8))
        .collect()
}

fn write(runtime: &Runtime, array: &Array, zone: u32, at: u64, blocks: u64, fua: bool) {
    let start = array.geometry().start(ZoneIndex(zone)).0;
    let data = Buf::copy_of(&pattern(start + at, blocks));
    submit(runtime, array, Command::write(Lba(start + at), data, fua));
}

fn check(runtime: &Runtime, array: &Array, zone: u32, tail: u64) {
    let start = array.geometry().start(ZoneIndex(zone)).0;
    let mut at = 0;
    for step in [1, 3, 7, 64, 100, 13].into_iter().cycle() {
        if at >= tail {
            break;
        }
        let blocks = step.min(tail - at);
        let done =
            submit(runtime, array, Command::read(Lba(start + at), Buf::zeroed(blocks as usize * BLOCK)));
        assert!(done.data[..] == pattern(start + at, blocks), "zone {zone} blocks {at} + {blocks}");
        at += blocks;
    }
}

fn wp(runtime: &Runtime, array: &Array, zone: u32) -> (ZoneState, u64) {
    let done = submit(runtime, array, Command::Report { first: ZoneIndex(zone), count: 1 });
    (done.zones[0].state, done.zones[0].wp_blocks)
}

/// Every number of members, every chunk size, every member lost, at every kind of tail.
#[test]
fn what_was_promised_is_there_whoever_is_missing_and_the_array_goes_on() {
    for members in 3..=7 {
        for chunk in [4, 8, 16] {
            for lost in (0..members).map(Some).chain([None]) {
                life(members, chunk, lost);
            }
        }
    }
}

fn life(members: usize, chunk: u64, lost: Option<usize>) {
    let runtime = Runtime::new();
    let all = drives(members);
    let array = run(&runtime, Array::create(&runtime, options(chunk), all.clone())).unwrap();
    let capacity = array.geometry().zone_capacity_blocks;
    let stripe = chunk * (members as u64 - 1);
    let tails = [1, chunk, stripe + chunk + 1, 3 * stripe - 1];
    for (zone, tail) in tails.into_iter().enumerate() {
        let mut at = 0;
        while at < tail {
            let blocks = (at % 5 + 1).min(tail - at);
            write(&runtime, &array, zone as u32, at, blocks, at + blocks == tail);
            at += blocks;
        }
    }
    // The last tail again in a zone that ends there, and a zone to the brim.
    let mut at = 0;
    while at < capacity {
        let blocks = (2 * stripe + 3).min(capacity - at);
        write(&runtime, &array, 4, at, blocks, false);
        at += blocks;
    }
    write(&runtime, &array, 5, 0, stripe + 3, false);
    submit(&runtime, &array, Command::Finish { zones: Zones::One(ZoneIndex(5)) });
    drop(array);
    runtime.clear();

    let runtime = Runtime::new();
    let mut left = all.clone();
    if let Some(lost) = lost {
        left.remove(lost);
    }
    left.reverse();
    let array = run(&runtime, Array::assemble(&runtime, left)).unwrap();
    let degraded =
        |array: &Array| array.status().members.iter().filter(|m| !m.drive.is_empty()).count() < members;
    assert_eq!(degraded(&array), lost.is_some());
    for (zone, tail) in tails.into_iter().enumerate() {
        assert_eq!(
            wp(&runtime, &array, zone as u32),
            (ZoneState::Closed, tail),
            "{members} {chunk} {lost:?}"
        );
        check(&runtime, &array, zone as u32, tail);
    }
    assert_eq!(wp(&runtime, &array, 4).0, ZoneState::Full);
    assert_eq!(wp(&runtime, &array, 5).0, ZoneState::Full);
    check(&runtime, &array, 4, capacity);
    check(&runtime, &array, 5, stripe + 3);
    for (zone, tail) in tails.into_iter().enumerate() {
        write(&runtime, &array, zone as u32, tail, stripe + 1, true);
        check(&runtime, &array, zone as u32, tail + stripe + 1);
    }
    let Some(lost) = lost else { return };
    let blank = drives(1).remove(0);
    run(&runtime, array.attach(lost, blank.clone())).unwrap();
    run(&runtime, array.rebuild(&|_| ())).unwrap();
    let status = array.status();
    assert!(status.members.iter().all(|m| m.zones_to_rebuild == 0));
    runtime.clear();

    // Another one goes: what was rebuilt has to stand in for it.
    let runtime = Runtime::new();
    let mut left = all;
    left[lost] = blank;
    left.remove((lost + 1) % members);
    let array = run(&runtime, Array::assemble(&runtime, left)).unwrap();
    for (zone, tail) in tails.into_iter().enumerate() {
        assert_eq!(wp(&runtime, &array, zone as u32).1, tail + stripe + 1);
        check(&runtime, &array, zone as u32, tail + stripe + 1);
    }
    check(&runtime, &array, 4, capacity);
    check(&runtime, &array, 5, stripe + 3);
}

#[test]
fn a_reset_zone_is_empty_and_can_be_written_again() {
    let runtime = Runtime::new();
    let all = drives(5);
    let array = run(&runtime, Array::create(&runtime, options(8), all.clone())).unwrap();
    write(&runtime, &array, 0, 0, 50, true);
    submit(&runtime, &array, Command::Reset { zones: Zones::One(ZoneIndex(0)) });
    assert_eq!(wp(&runtime, &array, 0), (ZoneState::Empty, 0));
    write(&runtime, &array, 0, 0, 9, true);
    submit(&runtime, &array, Command::Reset { zones: Zones::All });
    write(&runtime, &array, 0, 0, 7, true);
    runtime.clear();
    let runtime = Runtime::new();
    let array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
    assert_eq!(wp(&runtime, &array, 0), (ZoneState::Closed, 7));
    check(&runtime, &array, 0, 7);
}

#[test]
fn drives_that_do_not_belong_together_are_refused_by_name() {
    let runtime = Runtime::new();
    let ours = drives(5);
    run(&runtime, Array::create(&runtime, options(8), ours.clone())).unwrap();
    let theirs = drives(5);
    run(&runtime, Array::create(&runtime, CreateOptions { uuid: [4; 16], ..options(8) }, theirs.clone()))
        .unwrap();
    let refused = |drives: Vec<Drive>| {
        let runtime = Runtime::new();
        run(&runtime, Array::assemble(&runtime, drives)).map(|_| ()).unwrap_err().0
    };
    let mixed = [&ours[..4], &theirs[..1]].concat();
    assert!(refused(mixed).contains("belongs to array"));
    assert!(refused(ours[..3].to_vec()).contains("only 3 of 5 members"));
    let blank = [&ours[..3], &drives(1)[..]].concat();
    assert!(refused(blank).contains("is blank"));
    // A member that was away is left out, and says so.
    runtime.clear();
    let runtime = Runtime::new();
    run(&runtime, Array::assemble(&runtime, ours[1..].to_vec())).unwrap();
    runtime.clear();
    let runtime = Runtime::new();
    let array = run(&runtime, Array::assemble(&runtime, ours.clone())).unwrap();
    assert!(array.status().members[0].note.contains("stale"), "{}", array.status().members[0].note);
}
