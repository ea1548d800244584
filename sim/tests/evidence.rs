//! The evidence that an assembly accepts and rejects: lacking or changed parts, logs with unreadable records, and
//! members that were missing.

use crate::support::{
    array::{geometry, records, run, wp, write, write_command},
    rig::Act,
    scene::{ACTIVE, CHUNK, LACKS_ONE, META, STRIPE, Scene, ZONES, is_metadata, part, reset, writes_to},
};
use emu::{
    rng::Rng,
    ssd::{Cut, Fault},
};
use engine::{
    array::{Array, ArrayOptions, MemberState},
    buf::{BLOCK, Buf},
    device::{Command, ZonedDevice, Zones},
    format::{
        Origin,
        codec::RecordError,
        record::{HEADER_BYTES, Header, Record, TailRecord},
    },
    owner::Change,
    raid::{
        error::Note,
        policy::{Policy, log::position},
    },
    zone::{Lba, ZoneState},
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
};

fn state(scene: &Scene, zone: u32) -> ZoneState {
    wp(&scene.runtime, &scene.array, zone).0
}

/// Blocks of the `chosen` records in a drive's metadata log.
fn logged(scene: &Scene, drive: usize, chosen: impl Fn(&Record) -> bool) -> BTreeSet<u64> {
    let found = records(&scene.runtime, &scene.drives[drive], scene.data());
    found.into_iter().filter(|(record, _)| chosen(record)).flat_map(|(_, blocks)| blocks).collect()
}

/// An array with zone 0 offline: a shutdown has made it empty on all drives, member 0 with its data is missing, and
/// member 3 with the other copy of its log records is not rebuilt.
fn in_doubt(policy: Policy) -> Scene {
    let mut scene = Scene::new(policy);
    scene.write(0, 0, 1);
    scene.replace(3);
    scene.stop();
    scene.rig.shut_down();
    scene.assemble(Some(0));
    assert_eq!(state(&scene, 0), ZoneState::Offline, "{policy:?}");
    scene
}

/// Member 1 lost its part at runtime, and the zone was written on: the contents of the part look as valid as any.
#[test]
fn recovery_rejects_lost_part_despite_second_loss() {
    for (policy, changed) in Policy::ALL.into_iter().flat_map(|policy| [(policy, false), (policy, true)]) {
        for other in [0, 2, 3] {
            let mut scene = Scene::new(policy);
            scene.write(0, 0, 40);
            scene.rig.damage(1, Fault::WriteFault(part(0)));
            scene.write(0, 40, 22);
            assert_eq!(scene.states()[1], LACKS_ONE);
            scene.cut(|_| false);
            if changed {
                scene.damage(other, Fault::Reset(part(0)));
            }
            scene.assemble(Some(other).filter(|_| !changed));
            assert_eq!(state(&scene, 0), ZoneState::Offline, "{policy:?} {other}, changed {changed}");
            scene.cut(|_| false);
            if !changed {
                scene.assemble(None);
                assert_eq!(scene.tail(0), 62, "{policy:?} {other}");
                scene.check(0, 62);
            }
        }
    }
}

/// As before, with a full zone: the remains of the lost part look complete.
#[test]
fn lost_and_changed_parts_take_full_zone_offline() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        let capacity = scene.array.geometry().zone_capacity_blocks;
        scene.write(0, 0, 40);
        scene.rig.damage(1, Fault::WriteFault(part(0)));
        (40..capacity).step_by(20).for_each(|at| scene.write(0, at, 20.min(capacity - at)));
        assert_eq!(scene.states()[1], LACKS_ONE);
        scene.cut(|_| false);
        scene.damage(2, Fault::Reset(part(0)));
        scene.assemble(None);
        assert_eq!(state(&scene, 0), ZoneState::Offline, "{policy:?}");
    }
}

#[test]
fn rebuild_leaves_out_offline_zone() {
    for policy in Policy::ALL {
        let scene = in_doubt(policy);
        let rebuilt = run(&scene.runtime, scene.array.rebuild(&|_| ())).unwrap();
        // The zone is reported as left out.
        let left_out: Vec<_> = rebuilt.left_out.iter().map(|out| (out.zone, out.member)).collect();
        assert_eq!(left_out, [(0, 3)], "{policy:?}");
        assert_eq!(scene.states()[3], LACKS_ONE, "{policy:?}");
    }
}

/// The remaining members agree without either of two members, so neither of the two may be left out.
#[test]
fn ambiguous_changed_part_takes_zone_offline() {
    // Stripe 2 has been begun, with data on member 2; or stripes 2 and 3 have, with data on member 2 only.
    for (changed, promised, more) in [(1, 26, 0), (3, 24, 24)] {
        let mut scene = Scene::new(Policy::Log);
        scene.write(0, 0, promised);
        if more > 0 {
            let data = scene.data();
            scene
                .rig
                .rule(move |drive, command| Act::hold_if(drive != 2 && writes_to(command, data..u64::MAX)));
            drop(scene.start_write(0, promised, more));
        }
        scene.cut(|_| false);
        scene.damage(changed, Fault::Reset(part(0)));
        for _ in 0..2 {
            scene.assemble(None);
            assert_eq!(state(&scene, 0), ZoneState::Offline, "{changed} after {promised}");
            scene.cut(|_| false);
        }
    }
}

#[test]
fn too_few_members_cannot_prove_zone_empty() {
    for policy in Policy::ALL {
        let mut scene = in_doubt(policy);
        scene.stop();
        scene.assemble(None);
        assert_eq!(scene.tail(0), 1, "{policy:?}");
        scene.check(0, 1);
    }
}

/// Every block is written, and the members' zones, which are larger than their used part, are not finished yet.
#[test]
fn unfinished_full_zone_waits_for_absent_member() {
    for policy in Policy::ALL {
        let mut scene = Scene::shaped(policy, geometry(ZONES + META, 242, 8));
        let end = scene.array.geometry().zone_capacity_blocks;
        (0..end - 24).step_by(24).for_each(|at| scene.write(0, at, 24));
        scene.replace(1);
        scene.rig.rule(|_, command| match command {
            Command::Finish { zones: Zones::One(zone) } => Act::hold_if(*zone == part(0)),
            _ => Act::Pass,
        });
        drop(scene.start_write(0, end - 24, 24));
        assert_eq!(scene.rig.held(), 3);
        scene.cut(|_| false);
        scene.assemble(Some(0));
        assert_eq!(state(&scene, 0), ZoneState::Offline, "{policy:?}");
        scene.cut(|_| false);
        scene.assemble(None);
        scene.check(0, end);
    }
}

/// The logged partial parity that decodes the tail of the missing member is unreadable.
#[test]
fn zone_with_unreadable_logged_partial_parity_is_offline() {
    let mut scene = Scene::new(Policy::InPlace);
    let (end, stripe) = (scene.array.geometry().zone_capacity_blocks, scene.array.layout().rows - 1);
    (0..end - STRIPE).step_by(STRIPE as usize).for_each(|at| scene.write(0, at, STRIPE));
    scene.write(0, end - STRIPE, 2 * CHUNK);
    let (parity, missing) =
        (scene.array.layout().parity_member(stripe, 0), scene.array.layout().member(stripe, 1));
    let versions = logged(&scene, parity, |record| matches!(record, Record::Parity(_)));
    assert!(!versions.is_empty());
    scene.cut(|_| false);
    scene.rig.hide(vec![(parity, versions)]);
    scene.assemble(Some(missing));
    assert_eq!(state(&scene, 0), ZoneState::Offline);
    scene.cut(|_| false);
    scene.assemble(None);
    assert_eq!(scene.tail(0), end - CHUNK);
    scene.check(0, end - CHUNK);
}

/// A shutdown has made the zone empty on all members, so only the record of its beginning proves that it has data.
#[test]
fn zone_with_unreadable_begin_records_stays_offline() {
    let mut scene = Scene::new(Policy::InPlace);
    scene.write(0, 0, 3);
    let is_of_zone = |record: &Record| matches!(record, Record::Tail(TailRecord { zone: 0, .. }));
    let begun = (0..4).map(|drive| (drive, logged(&scene, drive, is_of_zone))).collect();
    scene.stop();
    scene.rig.shut_down();
    scene.rig.hide(begun);
    for _ in 0..3 {
        scene.assemble(None);
        assert_eq!(state(&scene, 0), ZoneState::Offline);
        scene.stop();
    }
}

/// An assembly is interrupted before `missing` has its superblock; the next one, without that member, is interrupted
/// too.
#[test]
fn member_stays_active_after_two_interrupted_assemblies() {
    for policy in Policy::ALL {
        for missing in 0..4 {
            let mut scene = Scene::new(policy);
            scene.write(0, 0, 5);
            scene.stop();
            let data = scene.data();
            for (held, there) in [(vec![missing], None), (vec![0, 1, 2, 3], Some(missing))] {
                // The superblock that records a member as out is appended to the log, not part of a checkpoint.
                scene.rig.rule(move |drive, command| match command {
                    Command::Write { lba, .. } if there.is_some() && lba.0 % 256 == 0 => Act::Pass,
                    _ => Act::hold_if(held.contains(&drive) && is_metadata(command, data)),
                });
                scene.start_assembly(there);
                assert!(scene.rig.held() > 0);
                scene.cut(|_| false);
            }
            scene.assemble(None);
            assert_eq!(scene.states(), [ACTIVE; 4], "{policy:?} without {missing}");
            scene.check(0, 5);
        }
    }
}

/// Zone 0 was offline with unreadable log blocks, and is decided without member 2 in an interrupted assembly: that
/// member is stale as soon as anything may have changed without it.
#[test]
fn decided_zone_awaits_no_absent_member() {
    let mut seen = BTreeSet::new();
    for steps in 0.. {
        let mut scene = Scene::new(Policy::Zrwa);
        scene.write(0, 0, 3);
        scene.write(1, 0, 30);
        scene.stop();
        let log = scene.data() + 4 * CHUNK..scene.data() + 4 * CHUNK + 2;
        scene.rig.hide([0, 3].map(|drive| (drive, log.clone().collect())).to_vec());
        scene.assemble(None);
        assert_eq!(state(&scene, 0), ZoneState::Offline);
        scene.stop();
        let cut = scene.rig.hold_after(steps);
        scene.start_assembly(Some(2));
        scene.cut(|_| false);
        scene.assemble(None);
        let found = scene.states()[2].0;
        assert_ne!(found, MemberState::Rebuilding, "after {steps}");
        seen.insert(found == MemberState::Out);
        (0..2).for_each(|zone| scene.check(zone, [3, 30][zone as usize]));
        if !cut.get() {
            break;
        }
    }
    assert_eq!(seen.len(), 2);
}

/// Two members lack a zone, which has failed; when one of them goes out, the zone does not wait for it.
#[test]
fn failed_zone_awaits_no_member_lacking_its_part() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        (0..2).for_each(|zone| scene.write(zone, 0, 5));
        (1..3).for_each(|member| scene.rig.damage(member, Fault::Offline(part(0))));
        assert!(scene.refused(write_command(&scene.array, 0, 5, 2 * STRIPE, true)), "{policy:?}");
        scene.rig.rule(|drive, command| match drive == 2 && matches!(command, Command::Write { .. }) {
            true => Act::Fail,
            false => Act::Pass,
        });
        scene.write(1, 5, 2 * STRIPE);
        scene.cut(|_| false);
        scene.assemble(None);
        assert_eq!(scene.states()[2].0, MemberState::Out, "{policy:?}");
        scene.check(1, 5 + 2 * STRIPE);
    }
}

/// The member fails in the reset itself; another member lacks the zone.
#[test]
fn reset_zone_awaits_no_failed_member() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 50);
        scene.replace(1);
        scene.rig.rule(|drive, command| match command {
            Command::Reset { zones: Zones::One(zone) } if drive == 2 && *zone == part(0) => Act::Fail,
            _ => Act::Pass,
        });
        scene.submit(reset(0));
        scene.write(0, 0, 9);
        scene.cut(|_| false);
        scene.assemble(None);
        assert_eq!(scene.states()[2].0, MemberState::Out, "{policy:?}");
        assert_eq!(scene.tail(0), 9, "{policy:?}");
        scene.check(0, 9);
    }
}

/// Payloads in logs are arbitrary: here parity in a record torn by a power cut contains a block that looks like
/// a damaged record, at the second block of the torn one.
#[test]
fn log_payload_resembling_damaged_record_is_ignored() {
    let zeros = Buf::zeroed(2 * BLOCK);
    // The parity of a first chunk equals the chunk, and goes to the log of member 1. Neither it nor the data arrives.
    let begin = |data: &Buf| {
        let scene = Scene::new(Policy::Log);
        let (from, seen) = (scene.data(), Rc::new(RefCell::new(None)));
        let noted = seen.clone();
        scene.rig.rule(move |drive, command| match command {
            Command::Write { lba, data, .. } if drive == 1 && lba.0 < from => {
                noted.replace(Some((*lba, data.clone())));
                Act::Hold
            }
            _ => Act::hold_if(writes_to(command, from..u64::MAX)),
        });
        drop(scene.start(Command::write(Lba(0), data.clone(), true)));
        scene.stop();
        let (lba, record) = seen.take().unwrap();
        (scene, lba, record)
    };
    let (_, lba, record) = begin(&zeros);
    let header = Header::read(&record).unwrap();
    let payload = header.payload_bytes as usize - zeros.len();
    // A record of one block with a wrong bit.
    let origin = Origin { lba: lba.0 + 1, ..header.origin };
    let tail = TailRecord { zone: 0, generation: 0, epoch: 0, tail_blocks: 1 };
    let mut damaged = Record::Tail(tail).encode(origin, header.sequence + 1).to_vec();
    damaged[HEADER_BYTES] ^= 1;
    let mut data = zeros.to_vec();
    data[BLOCK - HEADER_BYTES - payload..][..BLOCK].copy_from_slice(&damaged);
    let (mut scene, lba, record) = begin(&Buf::copy_of(&data));
    assert_eq!(Record::read(&record[BLOCK..], origin).err(), Some(RecordError::Damaged));
    let torn = Command::write(lba, record.slice_blocks(0..2), true);
    assert_eq!(run(&scene.runtime, scene.drives[1].device.submit(torn)).result, Ok(()));
    scene.assemble(Some(0));
    assert_eq!(state(&scene, 0), ZoneState::Empty);
}

/// A flushed state has to be found again with any returning member, so a flush commits the array.
#[test]
fn flush_commits_provisional_array() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 5);
        scene.cut(|_| false);
        let (there, behaviour) = (scene.without(Some(1)), ArrayOptions::default());
        let assembled = Array::assemble_deferred(&scene.runtime, there, None, behaviour);
        scene.array = run(&scene.runtime, assembled).unwrap();
        scene.check(0, 5);
        assert!(scene.array.is_deferred(), "{policy:?}");
        scene.submit(Command::Flush);
        assert!(!scene.array.is_deferred(), "{policy:?}");
        scene.cut(|_| false);
        scene.assemble(None);
        assert_eq!(scene.states()[1].0, MemberState::Out, "{policy:?}");
        scene.check(0, 5);
    }
}

/// Member 3 fails, and the host dies when only member 2 has heard of that. Member 2 returns to an array in deferred-write
/// mode, which has used member 3 until then: the zones end as members 0 to 2 show, and their data is there.
#[test]
fn return_of_member_that_takes_another_one_out_keeps_data() {
    for policy in Policy::ALL {
        for (blocks, more) in (0..14).flat_map(|blocks| [(blocks, 1), (blocks, 5), (blocks, 14)]) {
            let what = format!("{policy:?}: {blocks} and {more} blocks");
            let mut scene = Scene::new(policy);
            if blocks > 0 {
                scene.write(0, 0, blocks);
            }
            let data = scene.data();
            scene.rig.rule(move |drive, command| match command {
                _ if drive == 3 => Act::Fail,
                _ => Act::hold_if(drive != 2 && is_metadata(command, data)),
            });
            drop(scene.start_write(0, blocks, more));
            scene.stop();
            let there = scene.without(Some(2));
            let array = Array::assemble_deferred(&scene.runtime, there, None, ArrayOptions::default());
            let Ok(array) = run(&scene.runtime, array) else { continue };
            scene.array = array;
            if !scene.array.is_deferred() {
                continue;
            }
            scene.check(0, blocks);
            run(&scene.runtime, scene.array.complete(scene.drives[2].clone())).unwrap();
            assert!(!scene.array.is_deferred(), "{what}");
            let (state, tail) = wp(&scene.runtime, &scene.array, 0);
            assert!(state != ZoneState::Offline && tail >= blocks, "{what}: {state:?} {tail}");
            scene.check(0, tail);
            scene.write(0, tail, 3);
            scene.cut(|_| false);
            scene.assemble(None);
            scene.check(0, tail + 3);
        }
    }
}

/// A power cut leaves one member with write pointers, and takes the parity. When that member returns to an array in
/// deferred-write mode, its zones stay as they were reported without it: empty. The checkpoints that name their resets
/// are valid.
#[test]
fn zones_reset_at_return_of_member_leave_valid_checkpoints() {
    let mut scene = Scene::new(Policy::Zrwa);
    let first = scene.array.layout().member(0, 0);
    scene.rig.rule(move |drive, command| {
        Act::hold_if(drive != first && matches!(command, Command::FlushZrwa { .. }))
    });
    for zone in 0..2 {
        write(&scene.runtime, &scene.array, zone, 0, CHUNK + 2, false);
        // The write pointer follows with the next write.
        write(&scene.runtime, &scene.array, zone, CHUNK + 2, 1, false);
    }
    scene.runtime.clear();
    scene
        .rig
        .cut_power(&mut Rng::new(1), |drive| Cut { cache_lost: false, zrwa_lost: drive == (first + 2) % 4 });
    let there = scene.without(Some(first));
    let array = Array::assemble_deferred(&scene.runtime, there, None, ArrayOptions::default());
    scene.array = run(&scene.runtime, array).unwrap();
    (0..2).for_each(|zone| assert_eq!(state(&scene, zone), ZoneState::Empty));
    run(&scene.runtime, scene.array.complete(scene.drives[first].clone())).unwrap();
    assert!(!scene.array.is_deferred());
    scene.stop();
    scene.assemble(None);
    for zone in 0..2 {
        assert_eq!(state(&scene, zone), ZoneState::Empty);
        scene.write(zone, 0, 5);
    }
}

/// An assembly takes member 0 back, and is interrupted when only one other member has its superblock. With `heard`,
/// member 0 alone also has the superblock of an interrupted change, and the other one that of an interrupted assembly
/// without member 0.
#[test]
fn interrupted_return_of_member_keeps_others_current() {
    for (policy, heard) in Policy::ALL.into_iter().flat_map(|policy| [(policy, false), (policy, true)]) {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 8);
        scene.replace(1);
        if heard {
            scene.stop();
            let (data, size, checkpoints) = (scene.data(), scene.shape.zone_size_blocks, Cell::new(0));
            // A first superblock goes to all members, and the change itself to member 0 only.
            scene.rig.rule(move |_, command| match command {
                Command::Write { lba, .. } if lba.0 < data && lba.0 % size == 0 => {
                    checkpoints.set(checkpoints.get() + 1);
                    Act::hold_if(checkpoints.get() > 5)
                }
                _ => Act::Pass,
            });
            let (runtime, there, change) =
                (scene.runtime.clone(), scene.without(None), Change::Name("other".into()));
            scene.runtime.spawn(async move { _ = Array::change(&runtime, there, &change).await });
            scene.runtime.run();
            assert_eq!(scene.rig.held(), 1, "{policy:?}");
        }
        scene.cut(|_| false);
        scene.assemble(Some(0));
        assert_eq!(state(&scene, 0), ZoneState::Offline, "{policy:?}");
        for missing in [heard.then_some(0), None] {
            scene.cut(|_| false);
            let data = scene.data();
            // Member 1 is drive 4 now.
            scene.rig.rule(move |drive, command| Act::hold_if(drive < 4 && is_metadata(command, data)));
            scene.start_assembly(missing);
            assert_eq!(scene.rig.held(), 1, "{policy:?}");
        }
        scene.cut(|_| false);
        scene.assemble(None);
        assert_eq!(scene.tail(0), 8, "{policy:?}");
        scene.check(0, 8);
    }
}

/// A member failed at runtime while a zone needed its part, and no superblock was written since. An assembly records on
/// the other members that it is back, and is interrupted before the member's own superblock.
#[test]
fn returning_member_counts_as_absent_until_superblock_written() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        scene.write(0, 0, 8);
        scene.replace(1);
        scene.rig.rule(|drive, command| match drive == 0 && matches!(command, Command::Write { .. }) {
            true => Act::Fail,
            false => Act::Pass,
        });
        scene.write(1, 0, STRIPE);
        assert_eq!(scene.states()[0].0, MemberState::Out, "{policy:?}");
        scene.cut(|_| false);
        let data = scene.data();
        scene.rig.rule(move |drive, command| Act::hold_if(drive == 0 && is_metadata(command, data)));
        scene.start_assembly(None);
        assert_eq!(scene.rig.held(), 1, "{policy:?}");
        scene.cut(|_| false);
        scene.assemble(None);
        let member = &scene.array.status().members[0];
        assert!(matches!(member.note, Note::TakenBack { .. }), "{policy:?}: {}", member.note);
        scene.check(0, 8);
        scene.check(1, STRIPE);
    }
}

/// Assembles without `missing`, and by force with a stale member.
fn force(scene: &mut Scene, missing: usize) {
    let (there, behaviour) =
        (scene.without(Some(missing)), ArrayOptions { force: true, ..ArrayOptions::default() });
    scene.array = run(&scene.runtime, Array::assemble_with(&scene.runtime, there, None, behaviour)).unwrap();
}

/// Zone 0 is unchanged since the member went out; zone 1 is lacking according to the member's own log only; zone 2 was
/// rewritten without the member.
#[test]
fn forced_member_counts_only_for_unchanged_zones() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        let end = scene.array.geometry().zone_capacity_blocks;
        let fill = |scene: &Scene, zone| (0..end).step_by(60).for_each(|at| scene.write(zone, at, 60));
        (0..3).for_each(|zone| fill(&scene, zone));
        let (data, size) = (scene.data(), scene.shape.zone_size_blocks);
        let second = data + size..data + 2 * size;
        scene.rig.rule(move |drive, command| match command {
            Command::Read { lba, .. } if drive == 3 && second.contains(&lba.0) => Act::Offline,
            _ => Act::hold_if(drive != 3 && is_metadata(command, data)),
        });
        scene.check(1, 2 * STRIPE);
        // No other member records it.
        scene.runtime.run();
        assert_eq!(scene.states()[3], LACKS_ONE, "{policy:?}");
        scene.stop();
        scene.assemble(Some(3));
        scene.submit(reset(2));
        fill(&scene, 2);
        scene.stop();
        force(&mut scene, 0);
        let states = [0, 1, 2].map(|zone| state(&scene, zone));
        assert_eq!(states, [ZoneState::Full, ZoneState::Offline, ZoneState::Offline], "{policy:?}");
        scene.check(0, end);
    }
}

/// The forced member's log alone has the tail of a write that recovery has discarded since: the zone was decided with
/// an earlier tail.
#[test]
fn forced_member_log_is_ignored_after_others_return() {
    let mut scene = Scene::new(Policy::Zrwa);
    // Near the end of the zone, where tails go to the metadata logs: those of stripe 57 to members 1 and 0.
    let begun = 57 * STRIPE;
    (0..begun).step_by(3 * STRIPE as usize).for_each(|at| scene.write(0, at, 3 * STRIPE));
    scene.write(0, begun, 1);
    let data = scene.data();
    scene.rig.rule(move |drive, command| Act::hold_if(drive == 1 && is_metadata(command, data)));
    drop(scene.start_write(0, begun + 1, 2));
    scene.cut(|_| false);
    scene.assemble(Some(0));
    assert_eq!(scene.tail(0), begun + 1);
    scene.cut(|_| false);
    force(&mut scene, 2);
    assert_eq!(state(&scene, 0), ZoneState::Offline);
    scene.cut(|_| false);
    scene.assemble(None);
    assert_eq!(scene.tail(0), begun + 1);
    scene.check(0, begun + 1);
}

/// Some superblocks record a member as back, and others still as out; then a destruction is interrupted when only that
/// member is marked for it.
#[test]
fn member_marked_destroyed_by_interrupted_destruction_is_out() {
    for policy in Policy::ALL {
        let mut scene = Scene::new(policy);
        (0..2).for_each(|zone| scene.write(zone, 0, 30));
        // The zones wait for member 0, since the new drive lacks them.
        scene.replace(1);
        scene.cut(|_| false);
        scene.assemble(Some(0));
        let data = scene.data();
        for (destroyed, told) in [(false, 4), (true, 0)] {
            scene.cut(|_| false);
            scene.rig.rule(move |drive, command| Act::hold_if(drive != told && is_metadata(command, data)));
            let (runtime, drives) = (scene.runtime.clone(), scene.without(None));
            scene.runtime.spawn(async move {
                match destroyed {
                    true => _ = Array::destroy(&runtime, drives).await,
                    false => _ = Array::assemble(&runtime, drives).await,
                }
            });
            scene.runtime.run();
            assert_eq!(scene.rig.held(), 1, "{policy:?}");
        }
        scene.cut(|_| false);
        scene.assemble(None);
        let member = &scene.array.status().members[0];
        assert_eq!(member.state, MemberState::Out, "{policy:?}: {}", member.note);
    }
}

/// A member holds burned blocks of a write that recovery has discarded; then its part is reset by another program.
#[test]
fn part_ending_before_burned_blocks_counts_as_lost() {
    let mut scene = Scene::new(Policy::Log);
    scene.write(0, 0, STRIPE + 1);
    let (data, member) = (scene.data(), scene.array.layout().member(1, 2));
    scene.rig.rule(move |drive, command| Act::hold_if(drive != member && writes_to(command, data..u64::MAX)));
    drop(scene.start_write(0, STRIPE + 1, STRIPE - 1));
    scene.cut(|_| false);
    scene.assemble(None);
    let tail = scene.tail(0);
    assert!((STRIPE + 1..STRIPE + 2 * CHUNK).contains(&tail), "{tail}");
    assert_eq!(scene.rig.written(member, part(0)), 2 * CHUNK);
    scene.cut(|_| false);
    scene.damage(member, Fault::Reset(part(0)));
    scene.assemble(None);
    assert_eq!(scene.states()[member], LACKS_ONE);
    assert_eq!(scene.tail(0), tail);
    scene.check(0, tail);
}

/// Load while blocks are unreadable.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    /// So many blocks, written with FUA.
    Writes(u64),
}

/// Appends to a member are lost in a power cut. Others that landed are unreadable in the next assembly, and readable in
/// the one after that.
#[test]
fn part_end_is_independent_of_temporarily_unreadable_blocks() {
    let meanwhile = [Meanwhile::Nothing, Meanwhile::Writes(1), Meanwhile::Writes(4), Meanwhile::Writes(30)];
    for (member, (landed, pending)) in (0..4).flat_map(|member| {
        [
            (0, [1, 1, 1]),
            (1, [1, 1, 1]),
            (2, [1, 1, 2]),
            (0, [12, 12, 1]),
            (6, [12, 12, 1]),
            (12, [1, 12, 12]),
        ]
        .map(|case| (member, case))
    }) {
        for (lost, then, near_end) in (0..3).flat_map(|lost| {
            let near_end = [meanwhile[0], meanwhile[2]].map(|then| (lost, then, true));
            meanwhile.map(|then| (lost, then, false)).into_iter().chain(near_end)
        }) {
            let case = format!(
                "member {member}, {landed} and {pending:?}, {lost} lost, then {then:?}, at the end: {near_end}"
            );
            let mut scene = Scene::appended(64);
            let capacity = scene.array.geometry().zone_capacity_blocks;
            let begin = if near_end { capacity - 4 * STRIPE } else { 0 };
            let landed = begin + landed;
            (0..begin).step_by(STRIPE as usize).for_each(|at| scene.write(0, at, STRIPE));
            if landed > begin {
                scene.write(0, begin, landed - begin);
            }
            // The first of the appends in flight to the member are lost, and those behind them land.
            scene.rig.rule(move |drive, command| {
                Act::hold_if(drive == member && matches!(command, Command::Append { .. }))
            });
            let mut end = landed;
            for blocks in pending {
                drop(scene.start_write(0, end, blocks));
                end += blocks;
            }
            scene.rig.release(|position, _| position > lost);
            let voids = scene.data()..scene.data() + scene.shape.zone_size_blocks;
            scene.cut(|_| false);
            // All blocks of the member beyond the promised ones.
            let written = scene.rig.written(member, part(0));
            let promised = position(scene.array.layout(), member, landed);
            let bad = (voids.start + promised..voids.start + written).collect();
            scene.rig.hide(vec![(member, bad)]);
            scene.assemble(None);
            assert_ne!(state(&scene, 0), ZoneState::Offline, "{case}");
            let mut told = scene.tail(0);
            assert!(told >= landed, "{case}: {told}");
            if let Meanwhile::Writes(blocks) = then {
                scene.write(0, told, blocks);
                told += blocks;
            }
            for round in 0..if near_end { 2 } else { 3 } {
                scene.cut(|_| false);
                scene.assemble(None);
                assert_eq!(scene.tail(0), told, "{case}, round {round}");
                scene.check(0, told);
                scene.write(0, told, 3);
                told += 3;
            }
        }
    }
}

/// Trap: an assembly that restarts its count would give an epoch to a zone a second time.
#[test]
fn zone_epoch_is_never_reused_after_assembly() {
    let mut scene = Scene::new(Policy::Log);
    let epochs = |scene: &Scene| {
        let logged = records(&scene.runtime, &scene.drives[0], scene.data());
        let epochs = logged.into_iter().filter_map(|(record, _)| match record {
            Record::ResetDone { epoch, .. } => Some(epoch),
            _ => None,
        });
        epochs.collect::<BTreeSet<_>>()
    };
    for _ in 0..5 {
        scene.write(0, 0, 1);
        scene.submit(reset(0));
    }
    let before = epochs(&scene);
    scene.cut(|_| false);
    scene.assemble(None);
    scene.write(0, 0, 1);
    scene.submit(reset(0));
    assert!(epochs(&scene).last() > before.last(), "{:?} after {before:?}", epochs(&scene));
}

/// An interrupted write arrived on one member only and is not part of the tail; later writes in front of it do not make
/// it count.
#[test]
fn remains_beyond_tail_of_earlier_assembly_are_ignored() {
    for policy in Policy::ALL {
        for survivor in 0..4 {
            let mut scene = Scene::new(policy);
            scene.write(0, 0, 2 * STRIPE);
            let data = scene.data();
            scene.rig.rule(move |drive, command| {
                Act::hold_if(drive != survivor && writes_to(command, data..u64::MAX))
            });
            drop(scene.start_write(0, 2 * STRIPE, STRIPE));
            scene.cut(|_| false);
            scene.assemble(None);
            let tail = scene.tail(0);
            scene.write(0, tail, CHUNK);
            scene.cut(|_| false);
            scene.assemble(None);
            assert_eq!(scene.tail(0), tail + CHUNK, "{policy:?}, survivor {survivor}");
            scene.check(0, tail + CHUNK);
        }
    }
}

/// No promise was recorded, and neither copy of the tail record can be read when the zone is empty on all members.
#[test]
fn empty_zone_with_unread_tail_record_is_offline() {
    let mut scene = Scene::new(Policy::Zrwa);
    let data = scene.data();
    scene.rig.rule(move |_, command| Act::hold_if(is_metadata(command, data)));
    drop(scene.start_write(0, 0, 3));
    assert!(scene.rig.held() > 0);
    scene.stop();
    scene.rig.shut_down();
    let log = data + 4 * CHUNK..data + 4 * CHUNK + 2;
    scene.rig.hide([0, 3].map(|drive| (drive, log.clone().collect())).to_vec());
    scene.assemble(None);
    assert_eq!(state(&scene, 0), ZoneState::Offline);
    scene.stop();
    scene.assemble(None);
    assert_eq!(scene.tail(0), 3);
    scene.check(0, 3);
}
