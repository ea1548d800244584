//! As `regressions.rs`, for arrays with the policy `log`: bugs with drives and metadata logs that cannot be read during
//! an assembly, and with blocks that power cuts have displaced.
//!
//! A block is displaced if its place in the zone is burned, by an interrupted write; it is relocated to the metadata
//! log.

use crate::support::{
    array::{check, geometry, options, pattern, records, run, wp, write, write_command},
    rig::{Act, Rig},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use engine::{
    array::{Array, CreateOptions, Drive, MemberState},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, ZonedDevice, Zones},
    format::record::{RELOCATED, Record},
    raid::{
        geometry::Layout,
        policy::{
            Policy,
            log::{IN_FLIGHT_STRIPES, LogEvidence, LogPart, decide},
            zrwa::Refusal,
        },
    },
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

const MEMBERS: usize = 4;
const CHUNK: u64 = 4;
const STRIPE: u64 = 3 * CHUNK;
/// Metadata zones of a drive, before the data zones.
const META_ZONES: u64 = 2;

fn layout() -> Layout {
    let distance = IN_FLIGHT_STRIPES;
    Layout { policy: Policy::Log, members: MEMBERS, parities: 1, chunk_blocks: CHUNK, rows: 50, distance }
}

/// Drives of a rig, and an array of them.
fn rigged(
    runtime: &Runtime,
    geometry: &Geometry,
    zone_size_blocks: Option<u64>,
) -> (Rc<Rig>, Vec<Drive>, Array) {
    let rig = Rig::new();
    let all: Vec<_> = (0..MEMBERS).map(|_| rig.drive(geometry)).collect();
    let options = CreateOptions { policy: Some(Policy::Log), zone_size_blocks, ..options(CHUNK) };
    let array = run(runtime, Array::create(runtime, options, all.clone())).unwrap();
    (rig, all, array)
}

/// Drops the array without a shutdown and assembles it again.
fn reassemble(runtime: &Runtime, array: Array, all: &[Drive]) -> Array {
    drop(array);
    runtime.clear();
    run(runtime, Array::assemble(runtime, all.to_vec())).unwrap()
}

/// Number of zones that each member lacks.
fn lacking(array: &Array) -> Vec<u32> {
    array.status().members.iter().map(|member| member.zones_to_rebuild).collect()
}

#[track_caller]
fn assert_all_active(array: &Array) {
    let members: Vec<_> = array.status().members.iter().map(|m| (m.state, m.note.clone())).collect();
    assert!(members.iter().all(|m| m.0 == MemberState::Active), "{members:?}");
}

/// A write of content that occurs nowhere else.
fn junk(array: &Array, zone: u32, at: u64, blocks: u64, byte: u8) -> Command {
    let lba = array.geometry().start(ZoneIndex(zone)).0 + at;
    Command::write(Lba(lba), Buf::copy_of(&vec![byte; blocks as usize * BLOCK]), true)
}

/// Holds back the writes of member `behind` to its data zones.
fn leave_behind(rig: &Rig, shape: &Geometry, behind: usize) {
    let data = META_ZONES * shape.zone_size_blocks;
    rig.rule(move |drive, command| match command {
        Command::Write { lba, .. } if drive == behind && lba.0 >= data => Act::Hold,
        _ => Act::Pass,
    });
}

/// Writes the first stripe of `zones` zones, and then two more, of which the first chunk does not arrive before a power
/// cut: the blocks on the other members beyond the tail are burned.
fn displace(runtime: &Runtime, rig: &Rig, array: Array, all: &[Drive], zones: u32) -> Array {
    let behind = layout().member(1, 0);
    let mut pending = Vec::new();
    for zone in 0..zones {
        write(runtime, &array, zone, 0, STRIPE, true);
    }
    leave_behind(rig, all[0].device.geometry(), behind);
    for zone in 0..zones {
        pending.push(array.submit(junk(&array, zone, STRIPE, 2 * STRIPE, 7)));
    }
    runtime.run();
    rig.cut_power(&mut Rng::new(1), |_| Cut::default());
    let array = reassemble(runtime, array, all);
    for zone in 0..zones {
        assert_eq!(wp(runtime, &array, zone).1, STRIPE);
    }
    array
}

/// All data of a stripe is there, its parity is not, and one read of `block` in the row of member `reader` fails once
/// during the assembly. That block counted as the missing parity from then on, and the parity was relocated to its
/// place.
fn one_read_fails(stripe: u64, reader: usize, block: u64) {
    let runtime = Runtime::new();
    let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
    let (rig, all, array) = rigged(&runtime, &geometry, None);
    for at in 0..stripe {
        write(&runtime, &array, 0, at * STRIPE, STRIPE, true);
    }
    let (parity, row) =
        (layout().parity_member(stripe, 0), META_ZONES * geometry.zone_size_blocks + stripe * CHUNK);
    rig.rule(move |drive, command| match command {
        Command::Write { lba, .. } if drive == parity && lba.0 >= row => Act::Hold,
        _ => Act::Pass,
    });
    // In parts, so that there is partial parity.
    let parts: Vec<_> = (0..3)
        .map(|part| {
            let done = array.submit(write_command(&array, 0, stripe * STRIPE + part * CHUNK, CHUNK, true));
            runtime.run();
            done
        })
        .collect();
    drop(parts);
    rig.cut_power(&mut Rng::new(1), |_| Cut::default());
    let failed = Cell::new(false);
    rig.rule(move |drive, command| match command {
        Command::Read { lba, data, .. }
            if drive == reader
                && (lba.0..lba.0 + data.blocks()).contains(&(row + block))
                && !failed.replace(true) =>
        {
            Act::Fail
        }
        _ => Act::Pass,
    });
    let array = reassemble(&runtime, array, &all);
    rig.rule(|_, _| Act::Pass);
    let tail = wp(&runtime, &array, 0).1;
    assert!(tail >= stripe * STRIPE + 2 * CHUNK, "{tail} blocks are left");
    check(&runtime, &array, 0, tail);
    assert_all_active(&array);
    // The next assembly does not find it there either, nor does one without a member.
    let array = reassemble(&runtime, array, &all);
    check(&runtime, &array, 0, tail);
    let mut others = all.clone();
    others.remove((reader + 1) % MEMBERS);
    let array = reassemble(&runtime, array, &others);
    check(&runtime, &array, 0, tail);
}

#[test]
fn unreadable_block_is_not_taken_for_missing_parity() {
    for stripe in 0..MEMBERS as u64 {
        for reader in (0..MEMBERS).filter(|member| *member != layout().parity_member(stripe, 0)) {
            (0..CHUNK).for_each(|block| one_read_fails(stripe, reader, block));
        }
    }
}

/// Relocated blocks are in the member's log only. One block of the log was unreadable, and the array rolled back to
/// that place, or took the remains of an interrupted write for data.
#[test]
fn member_with_unreadable_relocated_blocks_is_rebuilt() {
    for (member, end) in (0..MEMBERS).flat_map(|member| [(member, 3 * STRIPE), (member, 200)]) {
        let runtime = Runtime::new();
        let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
        let (rig, all, array) = rigged(&runtime, &geometry, None);
        let array = displace(&runtime, &rig, array, &all, 1);
        let data = META_ZONES * geometry.zone_size_blocks;
        let logged = Rc::new(RefCell::new(Vec::new()));
        let seen = logged.clone();
        rig.rule(move |drive, command| {
            if let Command::Write { lba, data: record, .. } = command
                && drive == member
                && lba.0 < data
            {
                seen.borrow_mut().extend(lba.0..lba.0 + record.blocks());
            }
            Act::Pass
        });
        let mut at = STRIPE;
        while at < end {
            write(&runtime, &array, 0, at, STRIPE.min(end - at), true);
            at += STRIPE.min(end - at);
        }
        runtime.run();
        rig.rule(|_, _| Act::Pass);
        if member == layout().member(1, 0) {
            // This member has no burned blocks.
            continue;
        }
        let record = logged.borrow().first().copied().unwrap();
        rig.damage(member, Fault::Unreadable(Lba(record)));
        let mut others = all.clone();
        others.remove((member + 1) % MEMBERS);
        drop(array);
        runtime.clear();
        let array = run(&runtime, Array::assemble(&runtime, others)).unwrap();
        let offline: Vec<_> = array.status().offline.iter().map(|zone| zone.zone.0).collect();
        assert_eq!(offline, [0], "member {member} cannot do without another one");
        drop(array);
        runtime.clear();
        let array = run(&runtime, Array::assemble(&runtime, all)).unwrap();
        assert!(array.status().offline.is_empty());
        let lacks = lacking(&array);
        assert_eq!(lacks[member], 1, "{lacks:?}");
        check(&runtime, &array, 0, end);
        run(&runtime, array.rebuild(&|_| ())).unwrap();
        assert_all_active(&array);
        check(&runtime, &array, 0, end);
    }
}

/// Two members lack their parts, and those of the others are empty: only the acknowledgement log of a killed process
/// proves that the zone was begun.
#[test]
fn too_few_empty_parts_decide_no_tail() {
    let parts = vec![None, None, Some(LogPart::default()), Some(LogPart::default())];
    // With or without a tail: the missing parts may hold all that was written.
    for told_blocks in [0, 5] {
        let evidence = LogEvidence { parts: parts.clone(), told_blocks, ..LogEvidence::default() };
        assert_eq!(decide(&layout(), &evidence), Err(Refusal::TooFew { present: 2, members: 4, needed: 3 }));
    }
}

/// The limit of displaced blocks was the room that small zones left in a log, which was none: a member lost its part of
/// the zone at the first power cut, and after the second one the array was refused.
#[test]
fn partly_used_zones_leave_room_for_relocated_blocks() {
    let runtime = Runtime::new();
    let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
    let (rig, all, array) = rigged(&runtime, &geometry, Some(4 * STRIPE));
    let mut array = displace(&runtime, &rig, array, &all, 2);
    assert_all_active(&array);
    for zone in 0..2 {
        write(&runtime, &array, zone, STRIPE, 2 * STRIPE, true);
    }
    for _ in 0..2 {
        rig.cut_power(&mut Rng::new(1), |_| Cut::default());
        array = reassemble(&runtime, array, &all);
        assert_all_active(&array);
        (0..2).for_each(|zone| check(&runtime, &array, zone, 3 * STRIPE));
    }
}

/// Power cuts in many zones at once displace more blocks than half of a small log can hold: the members drop parts of
/// zones instead, no zone on more than one member.
#[test]
fn members_drop_parts_when_log_lacks_relocation_room() {
    let runtime = Runtime::new();
    let geometry = Geometry { zrwa: None, ..geometry(10, 92, 5) };
    let (rig, all, array) = rigged(&runtime, &geometry, None);
    let zones = array.geometry().max_active;
    assert_eq!(zones, 3);
    let array = displace(&runtime, &rig, array, &all, zones);
    let lacks = lacking(&array);
    assert!(lacks.iter().sum::<u32>() > 0 && lacks.iter().all(|lacks| *lacks <= 1), "{lacks:?}");
    for zone in 0..zones {
        write(&runtime, &array, zone, STRIPE, 2 * STRIPE, true);
        check(&runtime, &array, zone, 3 * STRIPE);
    }
    let array = reassemble(&runtime, array, &all);
    run(&runtime, array.rebuild(&|_| ())).unwrap();
    assert_all_active(&array);
    let array = reassemble(&runtime, array, &all[1..]);
    (0..zones).for_each(|zone| check(&runtime, &array, zone, 3 * STRIPE));
}

/// Records the address of the last metadata block that a drive has written from now on.
fn last_logged(rig: &Rc<Rig>, of: usize) -> Rc<Cell<Option<Lba>>> {
    let last = Rc::new(Cell::new(None));
    let noted = last.clone();
    rig.rule(move |drive, command| {
        if let Command::Write { lba, .. } = command
            && drive == of
            && lba.0 < META_ZONES * 256
        {
            noted.set(Some(*lba));
        }
        Act::Pass
    });
    last
}

/// A finished zone of a member was reset by another program. Only its parity was found to be lacking, so the member's
/// data read as zeros.
#[test]
fn externally_reset_part_of_finished_zone_is_lacking() {
    for (member, tail) in (0..MEMBERS).flat_map(|member| (1..4 * STRIPE).map(move |tail| (member, tail))) {
        let runtime = Runtime::new();
        let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
        let (rig, all, array) = rigged(&runtime, &geometry, None);
        write(&runtime, &array, 0, 0, tail, true);
        let zones = Zones::One(ZoneIndex(0));
        run(&runtime, array.submit(Command::Finish { zones })).result.unwrap();
        let zones = Zones::One(ZoneIndex(META_ZONES as u32));
        run(&runtime, all[member].device.submit(Command::Reset { zones })).result.unwrap();
        rig.cut_power(&mut Rng::new(1), |_| Cut::default());
        let array = reassemble(&runtime, array, &all);
        check(&runtime, &array, 0, tail);
        assert!(lacking(&array).iter().enumerate().all(|(other, zones)| other == member || *zones == 0));
    }
}

/// With the data's member missing, the only trace of a small write is parity in the log of another one. An unreadable
/// block in that log may have held it: the zone waits for the missing member.
#[test]
fn unreadable_log_block_makes_zone_await_missing_member() {
    let runtime = Runtime::new();
    let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
    let (rig, all, array) = rigged(&runtime, &geometry, None);
    let holder = layout().slot(0, 0, 0).0;
    let logged = last_logged(&rig, holder);
    write(&runtime, &array, 3, 0, 1, true);
    rig.damage(holder, Fault::Unreadable(logged.get().unwrap()));
    let missing = layout().member(0, 0);
    rig.cut_power(&mut Rng::new(1), |_| Cut::default());
    let some: Vec<_> = (0..MEMBERS).filter(|m| *m != missing).map(|m| all[m].clone()).collect();
    let array = reassemble(&runtime, array, &some);
    assert_eq!(wp(&runtime, &array, 3).0, ZoneState::Offline);
    let array = reassemble(&runtime, array, &all);
    assert_eq!(wp(&runtime, &array, 3).1, 1);
    check(&runtime, &array, 3, 1);
}

/// Relocated blocks of a member are in its log. With an unreadable block there, the member lacks its part of the zone;
/// a finished zone could not be decoded with another member missing, and did not wait for that one.
#[test]
fn finished_zone_with_damaged_log_awaits_missing_member() {
    let mut waited = 0;
    for (holder, missing) in (0..MEMBERS).flat_map(|m| [(m, (m + 1) % MEMBERS), (m, (m + 2) % MEMBERS)]) {
        let runtime = Runtime::new();
        let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
        let (rig, all, array) = rigged(&runtime, &geometry, None);
        let array = displace(&runtime, &rig, array, &all, 1);
        let logged = last_logged(&rig, holder);
        write(&runtime, &array, 0, STRIPE, 4 * STRIPE, true);
        run(&runtime, array.submit(Command::Finish { zones: Zones::One(ZoneIndex(0)) })).result.unwrap();
        rig.cut_power(&mut Rng::new(1), |_| Cut::default());
        let Some(lba) = logged.get() else { continue };
        rig.damage(holder, Fault::Unreadable(lba));
        let some: Vec<_> = (0..MEMBERS).filter(|m| *m != missing).map(|m| all[m].clone()).collect();
        let array = reassemble(&runtime, array, &some);
        waited += (wp(&runtime, &array, 0).0 == ZoneState::Offline) as u32;
        let array = reassemble(&runtime, array, &all);
        assert_eq!(wp(&runtime, &array, 0).0, ZoneState::Full, "{holder} {missing}");
        check(&runtime, &array, 0, 5 * STRIPE);
    }
    assert!(waited > 0);
}

#[test]
fn reads_return_relocated_instead_of_burned_blocks() {
    let runtime = Runtime::new();
    let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
    let (rig, all, array) = rigged(&runtime, &geometry, None);
    let array = displace(&runtime, &rig, array, &all, 1);
    write(&runtime, &array, 0, STRIPE, 2 * STRIPE, true);
    check(&runtime, &array, 0, 3 * STRIPE);
    for missing in 0..MEMBERS {
        rig.cut_power(&mut Rng::new(1), |_| Cut::default());
        runtime.clear();
        let others = all.iter().enumerate().filter(|(m, _)| *m != missing).map(|(_, d)| d.clone()).collect();
        let found = run(&runtime, Array::inspect(&runtime, others, None)).unwrap();
        assert_eq!(found.zones[0].wp_blocks, 3 * STRIPE, "without {missing}");
    }
}

/// A new drive is written from the start of its zones, so no place is burned.
#[test]
fn new_drive_has_no_relocated_blocks() {
    let behind = layout().member(1, 0);
    for (member, missing) in (0..MEMBERS).flat_map(|m| (0..MEMBERS).map(move |other| (m, other))) {
        if member == missing || member == behind {
            continue;
        }
        let runtime = Runtime::new();
        let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
        let (rig, mut all, array) = rigged(&runtime, &geometry, None);
        let array = displace(&runtime, &rig, array, &all, 1);
        run(&runtime, array.fail(member)).unwrap();
        all[member] = rig.drive(&geometry);
        run(&runtime, array.attach(member, all[member].clone())).unwrap();
        run(&runtime, array.rebuild(&|_| ())).unwrap();
        write(&runtime, &array, 0, STRIPE, 2 * STRIPE, true);
        // Another drive is new, too: checkpoints record that.
        let another = (member + 1) % MEMBERS;
        run(&runtime, array.fail(another)).unwrap();
        all[another] = rig.drive(&geometry);
        run(&runtime, array.attach(another, all[another].clone())).unwrap();
        run(&runtime, array.rebuild(&|_| ())).unwrap();
        assert_all_active(&array);
        rig.cut_power(&mut Rng::new(1), |_| Cut::default());
        let others: Vec<_> = (0..MEMBERS).filter(|m| *m != missing).map(|m| all[m].clone()).collect();
        let array = reassemble(&runtime, array, &others);
        assert_eq!(wp(&runtime, &array, 0).1, 3 * STRIPE, "{member} is new, {missing} is missing");
        check(&runtime, &array, 0, 3 * STRIPE);
    }
}

/// The blocks displaced in a lacking part would only take room in the log.
#[test]
fn relocated_blocks_of_lacking_part_are_dropped() {
    for member in (0..MEMBERS).filter(|member| *member != layout().member(1, 0)) {
        let runtime = Runtime::new();
        let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
        let (rig, all, array) = rigged(&runtime, &geometry, None);
        let mut array = displace(&runtime, &rig, array, &all, 1);
        write(&runtime, &array, 0, STRIPE, 2 * STRIPE, true);
        for lacking in [false, true] {
            if lacking {
                rig.damage(member, Fault::ReadOnly(ZoneIndex(META_ZONES as u32)));
            }
            array = reassemble(&runtime, array, &all);
            let found = records(&runtime, &all[member], META_ZONES * geometry.zone_size_blocks);
            let checkpoints = found.into_iter().filter_map(|(record, _)| match record {
                Record::Checkpoint(checkpoint) => Some(checkpoint),
                _ => None,
            });
            let newest = checkpoints.max_by_key(|checkpoint| checkpoint.generation).unwrap();
            let relocated = newest.parity.iter().any(|parity| parity.index == RELOCATED);
            let burned = newest.burned.iter().any(|burned| burned.member as usize == member);
            assert_eq!((relocated, burned), (!lacking, !lacking), "{member}");
            check(&runtime, &array, 0, 3 * STRIPE);
        }
    }
}

/// A read of a drive with displaced blocks is in flight, and the drive is replaced.
#[test]
fn relocated_blocks_are_not_read_from_attached_drive() {
    let runtime = Runtime::new();
    let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
    let (rig, _, array) = {
        let (rig, all, array) = rigged(&runtime, &geometry, None);
        let array = displace(&runtime, &rig, array, &all, 1);
        (rig, all, array)
    };
    write(&runtime, &array, 0, STRIPE, 3 * STRIPE, true);
    // Chunks of the second and third stripe are displaced, the first one of the fourth stripe is read from its drive.
    let (reader, other) = (layout().member(1, 1), layout().member(3, 0));
    let data = META_ZONES * geometry.zone_size_blocks;
    let is_of_data = move |command: &Command| matches!(command, Command::Read { lba, .. } if lba.0 >= data);
    rig.rule(move |drive, command| Act::hold_if(drive == other && is_of_data(command)));
    let at = STRIPE + CHUNK;
    let read = array.submit(Command::read(Lba(at), Buf::zeroed((STRIPE + 3 * CHUNK) as usize * BLOCK)));
    runtime.run();
    assert_eq!(rig.held(), 1);
    run(&runtime, array.fail(reader)).unwrap();
    run(&runtime, array.attach(reader, rig.drive(&geometry))).unwrap();
    rig.rule(|_, _| Act::Pass);
    rig.release(|_, _| true);
    let done = run(&runtime, read);
    assert_eq!(done.result, Ok(()));
    assert!(done.data[..] == pattern(at, STRIPE + 3 * CHUNK), "not what was written");
}

/// The new drive takes over without the zone, which cannot be copied, and is rebuilt at once.
#[test]
fn relocated_blocks_are_not_read_from_replacement_drive() {
    let runtime = Runtime::new();
    let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
    let (rig, all, array) = rigged(&runtime, &geometry, None);
    let array = displace(&runtime, &rig, array, &all, 1);
    // The second chunk of the second stripe, and the chunk of the same member in the incomplete stripe.
    let (reader, at, tail) = (layout().member(1, 1), STRIPE + CHUNK, 4 * STRIPE + 2 * CHUNK + 1);
    assert_eq!(reader, layout().member(4, 2));
    write(&runtime, &array, 0, STRIPE, tail - STRIPE, true);
    let row = META_ZONES * geometry.zone_size_blocks + 4 * CHUNK;
    rig.damage(reader, Fault::Unreadable(Lba(row)));
    let other = layout().member(3, 0);
    let holds = move |drive| drive == reader || drive == other;
    rig.rule(move |drive, command| Act::hold_if(holds(drive) && matches!(command, Command::Read { .. })));
    let (replacing, new) = (array.clone(), rig.drive(&geometry));
    runtime.spawn(async move { _ = replacing.replace(reader, new, &|_| ()).await });
    runtime.run();
    let copied = rig.held();
    // During the copy of the zone.
    let read = array.submit(Command::read(Lba(at), Buf::zeroed((STRIPE + 3 * CHUNK) as usize * BLOCK)));
    runtime.run();
    assert!(copied > 0 && rig.held() == copied + 1);
    rig.rule(|_, _| Act::Pass);
    let is_copy = |command: &Command| matches!(command, Command::Read { data, .. } if data.blocks() > CHUNK);
    assert_eq!(rig.release(|_, command| is_copy(command)), copied);
    runtime.run();
    assert_eq!(array.status().members[reader].zones_to_rebuild, 1);
    run(&runtime, array.rebuild(&|_| ())).unwrap();
    assert_eq!(rig.release(|_, _| true), 1);
    let done = run(&runtime, read);
    assert_eq!(done.result, Ok(()));
    assert!(done.data[..] == pattern(at, STRIPE + 3 * CHUNK), "not what was written");
    check(&runtime, &array, 0, tail);
}

/// All members' zones are full, but relocated blocks had not arrived in the logs.
#[test]
fn full_parts_without_relocated_blocks_leave_zone_incomplete() {
    let runtime = Runtime::new();
    let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
    let (rig, all, array) = rigged(&runtime, &geometry, None);
    let (first, end) = (48 * STRIPE, 50 * STRIPE);
    for at in (0..first).step_by(STRIPE as usize) {
        write(&runtime, &array, 0, at, STRIPE, true);
    }
    leave_behind(&rig, &geometry, layout().member(48, 0));
    drop(array.submit(junk(&array, 0, first, end - first, 7)));
    runtime.run();
    rig.cut_power(&mut Rng::new(1), |_| Cut::default());
    let array = reassemble(&runtime, array, &all);
    assert_eq!(wp(&runtime, &array, 0).1, first);
    let data = META_ZONES * geometry.zone_size_blocks;
    rig.rule(move |_, command| match command {
        Command::Write { lba, .. } if lba.0 < data => Act::Hold,
        _ => Act::Pass,
    });
    drop(array.submit(write_command(&array, 0, first, end - first, true)));
    runtime.run();
    rig.cut_power(&mut Rng::new(1), |_| Cut::default());
    let array = reassemble(&runtime, array, &all);
    let (state, tail) = wp(&runtime, &array, 0);
    assert!(state != ZoneState::Full && tail < end, "{state:?} {tail}");
    check(&runtime, &array, 0, tail);
}

/// Blocks relocated for an interrupted write were taken for those of the next one before its own records arrived.
#[test]
fn relocated_blocks_beyond_tail_are_dropped() {
    let runtime = Runtime::new();
    let geometry = Geometry { zrwa: None, ..geometry(10, 200, 5) };
    let (rig, all, array) = rigged(&runtime, &geometry, None);
    let array = displace(&runtime, &rig, array, &all, 1);
    leave_behind(&rig, &geometry, layout().member(1, 0));
    drop(array.submit(junk(&array, 0, STRIPE, 2 * STRIPE, 9)));
    runtime.run();
    rig.cut_power(&mut Rng::new(1), |_| Cut::default());
    let array = reassemble(&runtime, array, &all);
    assert_eq!(wp(&runtime, &array, 0).1, STRIPE);
    let data = META_ZONES * geometry.zone_size_blocks;
    rig.rule(move |_, command| match command {
        Command::Write { lba, .. } if lba.0 < data => Act::Hold,
        _ => Act::Pass,
    });
    drop(array.submit(write_command(&array, 0, STRIPE, 2 * STRIPE, true)));
    runtime.run();
    rig.cut_power(&mut Rng::new(1), |_| Cut::default());
    let array = reassemble(&runtime, array, &all);
    let tail = wp(&runtime, &array, 0).1;
    assert_eq!(tail, STRIPE + CHUNK, "the first chunk has arrived");
    check(&runtime, &array, 0, tail);
}

/// With a member missing no other part can be dropped: displaced blocks take all the room in the log, and then the
/// array is refused.
#[test]
fn degraded_array_without_relocation_room_is_refused() {
    let runtime = Runtime::new();
    let geometry = Geometry { zrwa: None, ..geometry(10, 92, 5) };
    let (rig, all, mut array) = rigged(&runtime, &geometry, None);
    let (zones, others) = (array.geometry().max_active, &all[1..]);
    (0..zones).for_each(|zone| write(&runtime, &array, zone, 0, STRIPE, true));
    let mut refusal = None;
    for at in (STRIPE..8 * STRIPE).step_by(2 * STRIPE as usize) {
        leave_behind(&rig, &geometry, layout().member(at / STRIPE, 0));
        for zone in 0..zones {
            drop(array.submit(junk(&array, zone, at, 2 * STRIPE, 7)));
        }
        runtime.run();
        rig.cut_power(&mut Rng::new(1), |_| Cut::default());
        drop(array);
        runtime.clear();
        match run(&runtime, Array::assemble(&runtime, others.to_vec())) {
            Ok(found) => array = found,
            Err(error) => {
                refusal = Some(error.to_string());
                break;
            }
        }
        for zone in 0..zones {
            assert_eq!(wp(&runtime, &array, zone).1, at);
            write(&runtime, &array, zone, at, 2 * STRIPE, true);
            check(&runtime, &array, zone, at + 2 * STRIPE);
        }
    }
    assert!(
        refusal
            .as_ref()
            .is_some_and(|said| said.contains("is too small for the blocks relocated after power cuts")),
        "{refusal:?}"
    );
}
