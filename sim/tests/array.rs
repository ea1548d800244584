//! The array on emulated drives that complete at once: from creation to rebuild.

use crate::support::{
    self,
    array::{check, options, run, submit, wp, write},
    rig::{Act, Rig},
};
use emu::{
    rng::Rng,
    ssd::{Cut, EmulatedDrive, Fault, Ssd},
};
use engine::{
    array::{Array, ArrayOptions, CreateOptions, Drive, DriveExamination, MemberState, Tails, examine},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, Status, ZonedDevice, Zones, Zrwa},
    format::{
        Origin,
        record::{Checkpoint, Record, ZoneRecord},
        superblock::Superblock,
    },
    raid::policy::{Policy, zrwa::Refusal},
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{cell::RefCell, rc::Rc};

fn geometry() -> Geometry {
    support::array::geometry(10, 220, 8)
}

fn drives(count: usize) -> Vec<Drive> {
    support::array::drives(count, &geometry())
}

/// Every number of members, chunk size, lost member and kind of tail.
#[test]
fn array_keeps_promised_data_through_loss_and_rebuild() {
    for members in 3..=7 {
        for chunk in [4, 8, 16] {
            for lost in (0..members).map(Some).chain([None]) {
                life(Policy::Zrwa, members, chunk, lost);
                if chunk == 4 {
                    life(Policy::InPlace, members, chunk, lost);
                    life(Policy::Log, members, chunk, lost);
                }
            }
        }
    }
}

fn life(policy: Policy, members: usize, chunk: u64, lost: Option<usize>) {
    let runtime = Runtime::new();
    let all = drives(members);
    let options = CreateOptions { policy: Some(policy), ..options(chunk) };
    let array = run(&runtime, Array::create(&runtime, options, all.clone())).unwrap();
    let capacity = array.geometry().zone_capacity_blocks;
    let stripe = chunk * (members as u64 - 1);
    // The writes after the assembly cross into the last stripe.
    let last = capacity - 2 * stripe + chunk + 1;
    let tails = [(0, 1), (1, chunk), (2, stripe + chunk + 1), (3, 3 * stripe - 1), (6, last)];
    for (zone, tail) in tails {
        let mut at = 0;
        while at < tail {
            let blocks = if at + 4 * stripe < tail { stripe } else { at % 5 + 1 }.min(tail - at);
            write(&runtime, &array, zone, at, blocks, at + blocks == tail);
            at += blocks;
        }
    }
    // A zone that is written to its capacity, and one that is finished inside a stripe.
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
    for (zone, tail) in tails {
        assert_eq!(
            wp(&runtime, &array, zone),
            (ZoneState::Closed, tail),
            "{policy:?} {members} {chunk} {lost:?}"
        );
        check(&runtime, &array, zone, tail);
    }
    assert_eq!(wp(&runtime, &array, 4).0, ZoneState::Full);
    assert_eq!(wp(&runtime, &array, 5).0, ZoneState::Full);
    check(&runtime, &array, 4, capacity);
    check(&runtime, &array, 5, stripe + 3);
    for (zone, tail) in tails {
        write(&runtime, &array, zone, tail, stripe + 1, true);
        check(&runtime, &array, zone, tail + stripe + 1);
    }
    let Some(lost) = lost else { return };
    let blank = drives(1).remove(0);
    run(&runtime, array.attach(lost, blank.clone())).unwrap();
    run(&runtime, array.rebuild(&|_| ())).unwrap();
    let status = array.status();
    assert!(status.members.iter().all(|m| m.zones_to_rebuild == 0));
    runtime.clear();

    // Another member is lost: decoding needs the rebuilt one.
    let runtime = Runtime::new();
    let mut left = all;
    left[lost] = blank;
    left.remove((lost + 1) % members);
    let array = run(&runtime, Array::assemble(&runtime, left)).unwrap();
    for (zone, tail) in tails {
        assert_eq!(wp(&runtime, &array, zone).1, tail + stripe + 1);
        check(&runtime, &array, zone, tail + stripe + 1);
    }
    check(&runtime, &array, 4, capacity);
    check(&runtime, &array, 5, stripe + 3);
}

#[test]
fn array_reset_zone_is_empty_and_writable() {
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
fn assemble_names_foreign_blank_and_stale_drives() {
    let runtime = Runtime::new();
    let ours = drives(5);
    run(&runtime, Array::create(&runtime, options(8), ours.clone())).unwrap();
    let theirs = drives(5);
    run(&runtime, Array::create(&runtime, CreateOptions { uuid: [4; 16], ..options(8) }, theirs.clone()))
        .unwrap();
    let refused = |drives: Vec<Drive>| {
        let runtime = Runtime::new();
        run(&runtime, Array::assemble(&runtime, drives)).map(|_| ()).unwrap_err().to_string()
    };
    let mixed = [&ours[..4], &theirs[..1]].concat();
    assert!(refused(mixed).contains("belongs to array"));
    assert!(refused(ours[..3].to_vec()).contains("only 3 of 5 members"));
    let blank = [&ours[..3], &drives(1)[..]].concat();
    assert!(refused(blank).contains("is blank"));
    // A stale member is left out, which its state shows.
    runtime.clear();
    let runtime = Runtime::new();
    run(&runtime, Array::assemble(&runtime, ours[1..].to_vec())).unwrap();
    runtime.clear();
    let runtime = Runtime::new();
    let array = run(&runtime, Array::assemble(&runtime, ours.clone())).unwrap();
    assert!(
        array.status().members[0].note.to_string().contains("stale"),
        "{}",
        array.status().members[0].note
    );
}

/// Starts the metadata zone that does not hold the log that was `found`, with a checkpoint whose superblock is changed
/// by `change`.
fn rewrite(drive: &Drive, found: &DriveExamination, change: impl FnOnce(&mut Superblock)) {
    let runtime = Runtime::new();
    let mut superblock = found.superblock.clone();
    change(&mut superblock);
    let zone = ZoneIndex(found.generation as u32 % 2);
    let lba = drive.device.geometry().start(zone);
    let checkpoint = Checkpoint {
        generation: found.generation + 1,
        incomplete: Default::default(),
        moved: Default::default(),
        zones: vec![ZoneRecord::default(); superblock.zones as usize],
        burned: Vec::new(),
        bad_blocks: Vec::new(),
        parity: Vec::new(),
        tails: Vec::new(),
        superblock,
    };
    let origin = Origin { array: checkpoint.superblock.array, member: found.member as u32, lba: lba.0 };
    let sequence = checkpoint.superblock.event;
    let bytes = Record::Checkpoint(Box::new(checkpoint)).encode(origin, sequence);
    for command in [Command::Reset { zones: Zones::One(zone) }, Command::write(lba, bytes, true)] {
        assert_eq!(run(&runtime, drive.device.submit(command)).result, Ok(()));
    }
}

fn content(drive: &Drive) -> Vec<Vec<u8>> {
    let runtime = Runtime::new();
    let geometry = drive.device.geometry().clone();
    let read = |zone: u32, at: u64| {
        let lba = Lba(geometry.start(ZoneIndex(zone)).0 + at);
        run(&runtime, drive.device.submit(Command::read(lba, Buf::zeroed(20 * BLOCK)))).data.to_vec()
    };
    (0..geometry.zones)
        .flat_map(|zone| (0..200).step_by(20).map(move |at| (zone, at)))
        .map(|(z, at)| read(z, at))
        .collect()
}

#[test]
fn assemble_refuses_unknown_features_without_writing() {
    let runtime = Runtime::new();
    let all = drives(4);
    let array = run(&runtime, Array::create(&runtime, options(8), all.clone())).unwrap();
    write(&runtime, &array, 0, 0, 9, true);
    runtime.clear();
    let found = run(&runtime, examine(&runtime, &all[0])).unwrap();
    for change in
        [|s: &mut Superblock| s.incompatible = 1 << 10, |s: &mut Superblock| s.read_only_compatible = 2]
    {
        rewrite(&all[0], &found, |superblock| {
            change(superblock);
            superblock.event += 1;
        });
        let before: Vec<_> = all.iter().map(content).collect();
        let runtime = Runtime::new();
        let refused =
            run(&runtime, Array::assemble(&runtime, all.clone())).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("does not support"), "{refused}");
        assert!(before == all.iter().map(content).collect::<Vec<_>>());
    }
    let runtime = Runtime::new();
    // Unknown compatible features do not refuse the array.
    rewrite(&all[0], &found, |superblock| superblock.compatible = 1);
    let array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
    check(&runtime, &array, 0, 9);
}

/// Flips a bit in every block of the metadata log of one member in turn.
#[test]
fn assemble_tolerates_flipped_metadata_bit_of_one_member() {
    for block in 0..8 {
        for member in 0..4 {
            let runtime = Runtime::new();
            let geometry = geometry();
            let emulated: Vec<_> = (0..4).map(|_| EmulatedDrive::in_memory(&geometry)).collect();
            let all: Vec<_> = emulated
                .iter()
                .enumerate()
                .map(|(i, d)| Drive { name: format!("drive{i}"), device: Rc::new(d.clone()) })
                .collect();
            let array = run(&runtime, Array::create(&runtime, options(8), all.clone())).unwrap();
            write(&runtime, &array, 0, 0, 11, true);
            submit(&runtime, &array, Command::Reset { zones: Zones::One(ZoneIndex(0)) });
            write(&runtime, &array, 0, 0, 7, true);
            write(&runtime, &array, 1, 0, 30, true);
            submit(&runtime, &array, Command::Finish { zones: Zones::One(ZoneIndex(1)) });
            runtime.clear();
            let fault = Fault::Corrupt { lba: Lba(block), bit: 77 };
            emulated[member].ssd().borrow_mut().faults().after(0, fault);
            let runtime = Runtime::new();
            let array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
            assert_eq!(wp(&runtime, &array, 0), (ZoneState::Closed, 7));
            check(&runtime, &array, 0, 7);
            assert_eq!(wp(&runtime, &array, 1).0, ZoneState::Full);
            check(&runtime, &array, 1, 30);
        }
    }
}

/// Trap: with three members both witnesses of a stripe's first chunk would be the same member; and with one and a half
/// chunks at the start of a zone there is no chunk before them.
#[test]
fn first_chunks_survive_loss_of_any_member() {
    for members in [3, 4, 5] {
        for chunk in [4, 16] {
            for tail in [chunk, chunk + chunk / 2, chunk * (members as u64 - 1) + chunk, 1, chunk - 1] {
                for lost in 0..members {
                    let runtime = Runtime::new();
                    let mut all = drives(members);
                    let array = run(&runtime, Array::create(&runtime, options(chunk), all.clone())).unwrap();
                    write(&runtime, &array, 2, 0, tail, true);
                    runtime.clear();
                    all.remove(lost);
                    let runtime = Runtime::new();
                    let array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
                    assert_eq!(
                        wp(&runtime, &array, 2),
                        (ZoneState::Closed, tail),
                        "{members} {chunk} {lost}"
                    );
                    check(&runtime, &array, 2, tail);
                }
            }
        }
    }
}

#[test]
fn array_enforces_active_zone_limit_of_members() {
    let runtime = Runtime::new();
    let array = run(&runtime, Array::create(&runtime, options(8), drives(4))).unwrap();
    let most = array.geometry().max_active;
    // Eight, less one for the metadata zone and one for a zone under repair.
    assert_eq!(most, 6);
    for zone in 0..most {
        submit(&runtime, &array, Command::Open { zones: Zones::One(ZoneIndex(zone)), zrwa: false });
    }
    let start = array.geometry().start(ZoneIndex(most));
    let one_more = run(&runtime, array.submit(Command::write(start, Buf::zeroed(BLOCK), false)));
    assert_eq!(one_more.result, Err(Status::TooManyActiveZones.into()));
    submit(&runtime, &array, Command::Finish { zones: Zones::One(ZoneIndex(0)) });
    submit(&runtime, &array, Command::write(start, Buf::zeroed(BLOCK), false));
    for bytes in [0, BLOCK - 1, BLOCK + 1] {
        let uneven = run(&runtime, array.submit(Command::write(Lba(start.0 + 1), Buf::zeroed(bytes), false)));
        assert_eq!(uneven.result, Err(Status::InvalidField.into()));
    }
}

/// Firmware differs: the smallest sizes, granularities and limits of all members apply.
#[test]
fn array_of_unequal_drives_takes_smallest_limits() {
    let shape = |size: u64, capacity: u64, zrwa: u64, granularity: u64, active: u32| Geometry {
        zone_size_blocks: size,
        zone_capacity_blocks: capacity,
        zrwa: Some(Zrwa { size_blocks: zrwa, granularity_blocks: granularity, max_zones: active }),
        ..geometry()
    };
    let shapes = [
        shape(256, 220, 32, 2, 8),
        shape(512, 301, 64, 4, 7),
        Geometry { max_transfer_blocks: 8, ..shape(224, 217, 40, 1, 9) },
        shape(256, 256, 33, 2, 8),
    ];
    let all: Vec<_> = shapes.iter().map(|geometry| support::array::drives(1, geometry).remove(0)).collect();
    let runtime = Runtime::new();
    let array = run(&runtime, Array::create(&runtime, options(8), all.clone())).unwrap();
    assert_eq!(array.geometry().zone_capacity_blocks, 217 / 8 * 8 * 3);
    assert_eq!(array.geometry().max_active, 5);
    let capacity = array.geometry().zone_capacity_blocks;
    (0..capacity).step_by(9).for_each(|at| write(&runtime, &array, 0, at, 9.min(capacity - at), false));
    write(&runtime, &array, 1, 0, 77, true);
    runtime.clear();
    for lost in 0..4 {
        let runtime = Runtime::new();
        let copies: Vec<_> =
            all.iter().enumerate().filter(|(i, _)| *i != lost).map(|(_, d)| d.clone()).collect();
        let found = run(&runtime, Array::inspect(&runtime, copies, None)).unwrap();
        assert_eq!((found.zones[0].state, found.zones[1].wp_blocks), (ZoneState::Full, 77));
    }
    let runtime = Runtime::new();
    let array = run(&runtime, Array::assemble(&runtime, all[1..].to_vec())).unwrap();
    check(&runtime, &array, 0, capacity);
    for (geometry, lacks) in [
        (shape(256, 215, 32, 2, 8), "its zones hold"),
        (shape(256, 220, 24, 2, 8), "its ZRWA has"),
        (shape(256, 220, 32, 8, 8), "flush granularity"),
        (shape(256, 220, 32, 2, 6), "active zones"),
        (Geometry { zrwa: None, ..shape(256, 220, 32, 2, 8) }, "no ZRWA"),
        (Geometry { zones: 9, ..shape(256, 220, 32, 2, 8) }, "9 zones"),
    ] {
        let refused =
            run(&runtime, array.attach(0, support::array::drives(1, &geometry).remove(0))).unwrap_err();
        assert!(refused.to_string().contains(lacks), "{refused}");
    }
    let spare = support::array::drives(1, &shape(1024, 400, 128, 4, 20)).remove(0);
    run(&runtime, array.attach(0, spare)).unwrap();
    run(&runtime, array.rebuild(&|_| ())).unwrap();
    check(&runtime, &array, 1, 77);
}

/// An assembly without one member is interrupted after a single superblock; the next one runs without the drive that
/// has it. That drive is then stale, and its superblock does not count.
#[test]
fn assemble_ignores_superblock_of_aborted_assembly() {
    let runtime = Runtime::new();
    let all = drives(4);
    run(&runtime, Array::create(&runtime, options(8), all.clone())).unwrap();
    runtime.clear();
    let found = run(&runtime, examine(&runtime, &all[1])).unwrap();
    rewrite(&all[1], &found, |superblock| {
        superblock.event += 50;
        superblock.members[0].active = false;
    });
    let runtime = Runtime::new();
    let array = run(&runtime, Array::assemble(&runtime, [&all[..1], &all[2..]].concat())).unwrap();
    write(&runtime, &array, 0, 0, 40, true);
    runtime.clear();
    let runtime = Runtime::new();
    let array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
    let out: Vec<_> = array.status().members.iter().map(|m| m.state == MemberState::Out).collect();
    assert_eq!(out, [false, true, false, false]);
    check(&runtime, &array, 0, 40);
}

/// Without FUA or flush, and before any write pointer has moved.
#[test]
fn take_over_keeps_acknowledged_data_with_member_missing() {
    for missing in [None, Some(0), Some(1), Some(2), Some(3)] {
        let runtime = Runtime::new();
        let rig = Rig::new();
        let all: Vec<_> = (0..4).map(|_| rig.drive(&geometry())).collect();
        let array = run(&runtime, Array::create(&runtime, options(4), all.clone())).unwrap();
        rig.rule(|_, command| match command {
            Command::FlushZrwa { .. } => Act::Hold,
            _ => Act::Pass,
        });
        // Within a chunk, across chunks, exactly a stripe, and into the fourth stripe.
        let plan: [&[u64]; 5] = [&[1], &[3, 2], &[5, 6, 1], &[12, 12, 12, 2], &[9, 9, 9, 9, 5]];
        let mut tails = Tails { assembly: array.assembly(), blocks: vec![0; 8], power: vec![] };
        for (zone, sizes) in (0..).zip(plan) {
            for blocks in sizes {
                write(&runtime, &array, zone, tails.blocks[zone as usize], *blocks, false);
                tails.blocks[zone as usize] += *blocks;
            }
        }
        drop(array);
        runtime.clear();
        rig.rule(|_, _| Act::Pass);
        let left: Vec<_> =
            (0..4).filter(|member| Some(*member) != missing).map(|member| all[member].clone()).collect();
        let seen = run(&runtime, Array::inspect(&runtime, left.clone(), Some(&tails))).unwrap();
        let array = run(&runtime, Array::take_over(&runtime, left.clone(), &tails)).unwrap();
        assert_ne!(array.assembly(), tails.assembly);
        for (zone, tail) in (0..).zip(&tails.blocks).take(plan.len()) {
            assert_eq!(seen.zones[zone as usize].wp_blocks, *tail);
            assert_eq!(
                wp(&runtime, &array, zone),
                (ZoneState::Closed, *tail),
                "zone {zone} without {missing:?}"
            );
            check(&runtime, &array, zone, *tail);
        }
        // The tails are durable now, and writes continue from there; the acknowledgement log of the earlier process is
        // not used.
        write(&runtime, &array, 0, 1, 1, true);
        drop(array);
        runtime.clear();
        let stale = Tails { blocks: vec![7; 8], ..tails.clone() };
        let array = run(&runtime, Array::take_over(&runtime, left, &stale)).unwrap();
        assert_eq!(wp(&runtime, &array, 0), (ZoneState::Closed, 2));
        for (zone, tail) in (1..).zip(&tails.blocks[1..plan.len()]) {
            assert_eq!(wp(&runtime, &array, zone), (ZoneState::Closed, *tail));
            check(&runtime, &array, zone, *tail);
        }
        assert_eq!(wp(&runtime, &array, 7), (ZoneState::Empty, 0));
    }
}

#[test]
fn take_over_rejects_impossible_tails() {
    let runtime = Runtime::new();
    let all = drives(4);
    let array = run(&runtime, Array::create(&runtime, options(4), all.clone())).unwrap();
    write(&runtime, &array, 0, 0, 5, true);
    let sound = Tails { assembly: array.assembly(), blocks: vec![0; 8], power: vec![] };
    drop(array);
    runtime.clear();
    let take_over = |tails: &Tails| {
        runtime.clear();
        run(&runtime, Array::take_over(&runtime, all.clone(), tails))
    };
    let refused = take_over(&Tails { blocks: vec![0; 7], ..sound.clone() });
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("the acknowledgement log of the previous daemon has 7 zones"), "{error}");
    // No stripe so far ahead can have been begun, and no zone is so large. The zone is usable again with an
    // acknowledgement log that does not claim this.
    let mut assembly = sound.assembly;
    for (tail, why) in
        [(60, Refusal::Behind { member: 0, wp_blocks: 2, tail_blocks: 60 }), (1000, Refusal::Beyond(1000))]
    {
        let mut tails = Tails { assembly, ..sound.clone() };
        tails.blocks[0] = tail;
        let array = take_over(&tails).unwrap();
        let offline = array.status().offline;
        assert_eq!(offline.len(), 1);
        assert_eq!((offline[0].zone, &offline[0].refusal), (ZoneIndex(0), &why));
        assembly = array.assembly();
        let array = take_over(&Tails { assembly, ..sound.clone() }).unwrap();
        assert_eq!(wp(&runtime, &array, 0), (ZoneState::Closed, 5));
        check(&runtime, &array, 0, 5);
        assembly = array.assembly();
    }
}

/// After the shutdown, zones without a moved write pointer are empty on some members or on all.
#[test]
fn array_shutdown_keeps_durable_data_with_member_missing() {
    for missing in [None, Some(0), Some(1), Some(2), Some(3)] {
        let runtime = Runtime::new();
        let ssds: Vec<_> = (0..4).map(|_| Rc::new(RefCell::new(Ssd::in_memory(&geometry())))).collect();
        let drives = |missing: Option<usize>| -> Vec<Drive> {
            let drive = |m: usize| Rc::new(EmulatedDrive::new(ssds[m].clone()));
            let present = (0..4).filter(|m| Some(*m) != missing);
            present.map(|m| Drive { name: format!("drive{m}"), device: drive(m) }).collect()
        };
        let shut_down = || {
            runtime.clear();
            ssds.iter().for_each(|ssd| ssd.borrow_mut().shut_down().unwrap());
        };
        let array = run(&runtime, Array::create(&runtime, options(4), drives(None))).unwrap();
        let mut tails = [1, 3, 4, 6, 11, 14];
        for (zone, tail) in (0..).zip(tails) {
            write(&runtime, &array, zone, 0, tail, true);
        }
        for round in 0..2 {
            shut_down();
            let empty =
                |ssd: &Rc<RefCell<Ssd>>| ssd.borrow().zones().info(ZoneIndex(2)).state == ZoneState::Empty;
            assert!(round > 0 || ssds.iter().all(empty));
            let array = run(&runtime, Array::assemble(&runtime, drives(missing))).unwrap();
            for (zone, tail) in (0..).zip(&mut tails) {
                assert_eq!(
                    wp(&runtime, &array, zone),
                    (ZoneState::Closed, *tail),
                    "zone {zone} without {missing:?}"
                );
                check(&runtime, &array, zone, *tail);
                let fua = round == 0;
                write(&runtime, &array, zone, *tail, 5 + 20 * !fua as u64, fua);
                *tail += if fua { 5 } else { 25 };
                check(&runtime, &array, zone, *tail);
            }
            if round == 1 {
                // Once more, after a flush that has committed all writes.
                submit(&runtime, &array, Command::Flush);
                runtime.clear();
                let array = run(&runtime, Array::assemble(&runtime, drives(missing))).unwrap();
                (0..).zip(tails).for_each(|(zone, tail)| check(&runtime, &array, zone, tail));
            }
        }
    }
}

#[test]
fn recovery_detects_lost_content_of_empty_zone() {
    let runtime = Runtime::new();
    let ssds: Vec<_> = (0..4).map(|_| Rc::new(RefCell::new(Ssd::in_memory(&geometry())))).collect();
    let drives = || -> Vec<Drive> {
        let drive = |m: usize| Rc::new(EmulatedDrive::new(ssds[m].clone()));
        (0..4).map(|m| Drive { name: format!("drive{m}"), device: drive(m) }).collect()
    };
    let array = run(&runtime, Array::create(&runtime, options(4), drives())).unwrap();
    // All of the first chunk but its last block, and its slot on the next member.
    write(&runtime, &array, 0, 0, 3, true);
    drop(array);
    runtime.clear();
    let cut = Cut { zrwa_lost: true, ..Cut::default() };
    ssds[0].borrow_mut().power_cut(&[], &mut Rng::new(1), cut).unwrap();
    ssds[2].borrow_mut().power_cut(&[], &mut Rng::new(1), cut).unwrap();
    let array = run(&runtime, Array::assemble(&runtime, drives())).unwrap();
    let lacking: Vec<_> = array.status().members.iter().map(|m| m.zones_to_rebuild).collect();
    assert_eq!(lacking, [1, 0, 0, 0], "nothing was on the third");
    check(&runtime, &array, 0, 3);
    drop(array);
    runtime.clear();
    // Member 1, with the only copy, has lost it too, or reports so: the tail cannot be proven.
    ssds[1].borrow_mut().power_cut(&[], &mut Rng::new(1), cut).unwrap();
    let array = run(&runtime, Array::assemble(&runtime, drives())).unwrap();
    let offline = array.status().offline;
    assert_eq!(offline.len(), 1);
    assert_eq!((offline[0].zone, &offline[0].refusal), (ZoneIndex(0), &Refusal::Lacking { member: 1 }));
}

/// The tails of a process belong to the last assembly that may write; a read-only assembly starts none.
#[test]
fn read_only_assembly_keeps_previous_assembly_id() {
    let (runtime, all) = (Runtime::new(), drives(4));
    let array = run(&runtime, Array::create(&runtime, options(4), all.clone())).unwrap();
    write(&runtime, &array, 0, 0, 3, true);
    let assembly = array.assembly();
    drop(array);
    runtime.clear();
    for there in [&all[..], &all[1..]] {
        let reads = Array::assemble_read_only(&runtime, there.to_vec(), None, ArrayOptions::default());
        let array = run(&runtime, reads).unwrap();
        assert_eq!(array.assembly(), assembly);
        check(&runtime, &array, 0, 3);
        drop(array);
        runtime.clear();
    }
    let array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
    assert!(array.assembly() > assembly);
}
