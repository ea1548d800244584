//! Golden images: arrays written by earlier code are read correctly.
//!
//! `fixtures/v10` holds the members of two arrays of the present format version, a RAID-5 and a RAID-6, created once by
//! `sim/examples/golden.rs`; `support/golden.rs` describes the contents of their zones. The tests unpack them, assemble
//! them with all members and without each set of members that the parity makes up for, compare the contents, and write
//! on.

use crate::support::golden::{self, Golden, RAID5, RAID6, ZONES};
use engine::{
    array::{self, Array, Drive, MemberState},
    buf::{BLOCK, Buf},
    device::{Command, Done, DriveId, Geometry, ZonedDevice, Zones},
    format::{
        OLDEST_VERSION, VERSION,
        record::{Header, Record},
    },
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{collections::BTreeSet, path::Path, rc::Rc};

/// Unpacks the image of one member.
fn unpack_of(golden: &Golden, version: u16, member: usize, dir: &Path) -> Drive {
    let name = golden.file_name(member);
    let device = Rc::new(golden::unpacked(&format!("v{version}"), &name, dir));
    Drive { name: format!("member {member}"), device }
}

fn unpack(golden: &Golden, version: u16, missing: &[usize], dir: &Path) -> Vec<Drive> {
    let there = (0..golden.members).filter(|member| !missing.contains(member));
    there.map(|member| unpack_of(golden, version, member, dir)).collect()
}

/// Contents of the image files of `members` in `dir`.
fn content(golden: &Golden, members: &[usize], dir: &Path) -> Vec<Vec<u8>> {
    members.iter().map(|member| std::fs::read(dir.join(golden.file_name(*member))).unwrap()).collect()
}

/// Every set of members that may be missing.
fn losses(golden: &Golden) -> Vec<Vec<usize>> {
    let sets = 0..1_u32 << golden.members;
    let members = |set: u32| (0..golden.members).filter(move |member| set >> member & 1 != 0).collect();
    sets.filter(|set| set.count_ones() as usize <= golden.parities).map(members).collect()
}

fn run<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(future, || false).expect("an answer")
}

fn submit(runtime: &Runtime, array: &Array, command: Command) -> Done {
    let done = run(runtime, array.submit(command));
    assert_eq!(done.result, Ok(()));
    done
}

/// Expected contents of a zone, up to its capacity.
fn expected(zone: u32) -> Vec<u8> {
    let plan = &ZONES[zone as usize];
    let life = plan.earlier_blocks.is_some() as u32;
    let mut bytes = golden::content(zone, life, 0, plan.blocks).to_vec();
    bytes.resize(golden::CAPACITY_BLOCKS as usize * BLOCK, 0);
    bytes
}

fn check_zones(runtime: &Runtime, array: &Array) {
    let report = Command::Report { first: ZoneIndex(0), count: ZONES.len() as u32 };
    let zones = submit(runtime, array, report).zones;
    assert_eq!(zones.len(), ZONES.len());
    for (info, plan) in zones.iter().zip(&ZONES) {
        assert_eq!((info.state, info.capacity_blocks), (plan.state, golden::CAPACITY_BLOCKS), "{info:?}");
        if plan.state != ZoneState::Full {
            assert_eq!(info.wp_blocks, plan.blocks, "{info:?}");
        }
        let expected = expected(info.zone.0);
        let start = array.geometry().start(info.zone).0;
        for (at, blocks) in (0..golden::CAPACITY_BLOCKS).step_by(24).map(|at| (at, 24)) {
            let read = Command::read(Lba(start + at), Buf::zeroed(blocks * BLOCK));
            let found = submit(runtime, array, read).data;
            let wanted = &expected[at as usize * BLOCK..][..found.len()];
            assert!(found[..] == *wanted, "zone {} in blocks {at} to {}", info.zone.0, at + blocks as u64);
        }
    }
}

/// Writes every zone that is not full to its capacity, to check that the array can continue.
fn write_on(runtime: &Runtime, array: &Array) {
    for (zone, plan) in (0..).zip(&ZONES).filter(|(_, plan)| plan.state != ZoneState::Full) {
        let start = array.geometry().start(ZoneIndex(zone)).0;
        let data = golden::content(zone, 9, plan.blocks, golden::CAPACITY_BLOCKS - plan.blocks);
        submit(runtime, array, Command::write(Lba(start + plan.blocks), data.clone(), true));
        let read = Command::read(Lba(start + plan.blocks), Buf::zeroed(data.len()));
        assert!(submit(runtime, array, read).data[..] == data[..], "zone {zone} after writing on");
        submit(runtime, array, Command::Reset { zones: Zones::One(ZoneIndex(zone)) });
    }
}

fn read_whoever_is_missing(golden: &Golden) {
    let versions = OLDEST_VERSION..=VERSION;
    for (version, missing) in
        versions.flat_map(|version| losses(golden).into_iter().map(move |set| (version, set)))
    {
        let dir = tempfile::tempdir().unwrap();
        let drives = unpack(golden, version, &missing, dir.path());
        // Twice: the second assembly has to find the state that the first one left after its repairs.
        for again in [false, true] {
            let runtime = Runtime::new();
            let array = run(&runtime, Array::assemble(&runtime, drives.clone())).unwrap();
            let status = array.status();
            assert_eq!((status.name.as_str(), status.uuid), (golden::NAME, golden.uuid));
            assert_eq!((status.host, status.autostart), (golden::HOST, true));
            assert_eq!((status.chunk_blocks, status.parities), (golden::CHUNK_BLOCKS, golden.parities));
            for (role, member) in status.members.iter().enumerate() {
                let state = if missing.contains(&role) { MemberState::Out } else { MemberState::Active };
                assert_eq!(member.state, state, "member {role} without {missing:?}: {}", member.note);
                // Also for the missing drive; member 1 has been replaced.
                let serial = format!("{:02x}", [0, 0x11, 2, 3, 4][role]).repeat(4);
                let Geometry { zones, zone_capacity_blocks, .. } = golden.model().geometry;
                let size_bytes = zones as u64 * zone_capacity_blocks * BLOCK as u64;
                assert_eq!(member.drive_id, DriveId { model: golden::NAME.into(), serial, size_bytes });
            }
            check_zones(&runtime, &array);
            if again {
                write_on(&runtime, &array);
            }
        }
    }
}

#[test]
fn golden_raid5_is_read_with_any_member_missing() {
    read_whoever_is_missing(&RAID5);
}

#[test]
fn golden_raid6_is_read_with_any_two_missing() {
    assert_eq!(losses(&RAID6).len(), 16);
    read_whoever_is_missing(&RAID6);
}

#[test]
fn golden_older_versions_are_refused_without_writing() {
    for version in 3..OLDEST_VERSION {
        let dir = tempfile::tempdir().unwrap();
        let drives =
            (0..RAID5.members).map(|member| unpack_of(&RAID5, version, member, dir.path())).collect();
        let before = content(&RAID5, &[0, 1, 2, 3], dir.path());
        let runtime = Runtime::new();
        let refused = run(&runtime, Array::assemble(&runtime, drives)).err().unwrap();
        let said = format!(
            "has format version {version}, this zoneraid supports versions {OLDEST_VERSION} to {VERSION}: use \
             an older one"
        );
        assert!(refused.to_string().contains(&said), "{refused}");
        assert!(content(&RAID5, &[0, 1, 2, 3], dir.path()) == before);
    }
}

#[test]
fn golden_too_few_members_are_refused_without_writing() {
    for (golden, there, said) in [(RAID5, &[0, 3], "2 of 4 members"), (RAID6, &[1, 4], "2 of 5 members")] {
        let missing: Vec<usize> = (0..golden.members).filter(|member| !there.contains(member)).collect();
        assert_eq!(missing.len(), golden.parities + 1);
        let dir = tempfile::tempdir().unwrap();
        let drives = unpack(&golden, VERSION, &missing, dir.path());
        let before = content(&golden, there, dir.path());
        let runtime = Runtime::new();
        let refused = run(&runtime, Array::assemble(&runtime, drives)).err().unwrap();
        assert!(refused.to_string().contains(said), "{refused}");
        assert!(content(&golden, there, dir.path()) == before);
    }
}

/// Checks the coverage of the images.
#[test]
fn golden_images_hold_every_record_kind() {
    assert_eq!(VERSION, 10, "a new version needs images of its own");
    [RAID5, RAID6].iter().for_each(holds_every_kind_of_record);
}

fn holds_every_kind_of_record(golden: &Golden) {
    let dir = tempfile::tempdir().unwrap();
    let drives = unpack(golden, VERSION, &[], dir.path());
    let runtime = Runtime::new();
    let (mut in_log, mut in_data) = (BTreeSet::new(), BTreeSet::new());
    let (mut logged_lives, mut checkpointed, mut parities) = (BTreeSet::new(), (0, 0), BTreeSet::new());
    for drive in &drives {
        let examined = run(&runtime, array::examine(&runtime, drive)).unwrap();
        assert_eq!(examined.damaged, 0);
        let geometry = drive.device.geometry().clone();
        for zone in 0..geometry.zones {
            let start = geometry.start(ZoneIndex(zone)).0;
            let bytes: Vec<u8> = (0..geometry.zone_capacity_blocks)
                .flat_map(|at| {
                    let read = Command::read(Lba(start + at), Buf::zeroed(BLOCK));
                    run(&runtime, drive.device.submit(read)).data.to_vec()
                })
                .collect();
            for at in (0..bytes.len()).step_by(BLOCK) {
                let Some(header) = Header::read(&bytes[at..]) else { continue };
                assert_eq!(header.origin.lba, start + (at / BLOCK) as u64);
                let Ok((record, _, _)) = Record::read(&bytes[at..], header.origin) else { continue };
                if zone < 2 { &mut in_log } else { &mut in_data }.insert(header.kind);
                let layout = examined.superblock.layout();
                match record {
                    Record::Parity(part) => {
                        let which = layout.slot_of(examined.member, part.stripe, part.index.into());
                        parities.extend(which);
                    }
                    Record::Tail(tail) if zone < 2 => _ = logged_lives.insert((tail.zone, tail.epoch)),
                    Record::Checkpoint(c) => {
                        checkpointed.0 += c.parity.len();
                        checkpointed.1 += c.tails.len();
                    }
                    _ => {}
                }
            }
        }
    }
    // Bad block records need more room than these logs have.
    assert_eq!(in_log, (1..=11).filter(|kind| *kind != 10).collect());
    assert_eq!(in_data, BTreeSet::from([8]), "tail records in rows ahead");
    // The zone's present life is too short for logged tails.
    let earlier = logged_lives.iter().any(|(zone, _)| *zone == 5);
    assert!(earlier, "a tail of zone 5 before it was reset: {logged_lives:?}");
    assert!(checkpointed.0 > 0 && checkpointed.1 > 0, "partial parity and tails in checkpoints");
    assert_eq!(parities, (0..golden.parities).collect(), "slots of each parity in logs");
}
