//! Damage to the metadata of volumes and namespaces, and offline zones with such metadata: damage that the array can
//! repair is read correctly, nothing is discarded unless requested, and possibly existing data is never reported as
//! absent.

use crate::support::{
    array::{geometry, options, run},
    volume::{block, noise, text},
};
use emu::ssd::{EmulatedDrive, Fault};
use engine::{
    adapt::overlay::Overlay,
    array::{Array, CreateOptions, Drive},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, Status, ZonedDevice, Zones},
    evidence::Presence,
    qos::Qos,
    raid::policy::Policy,
    runtime::Runtime,
    volume::{self, Volume, VolumeError, VolumeOptions},
    vzone::{self, Namespaces, PATIENCE_US, Spec, VzoneError},
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::rc::Rc;

const CHUNK: u64 = 4;
const META: u32 = 2;

/// Magics of the blocks of roots and map pages, of group headers, and of the journal of namespaces.
const MAGICS: [&[u8; 4]; 3] = [b"zvs1", b"zvg1", b"zvj3"];

/// The drives of an array, with injectable damage.
struct Members {
    drives: Vec<EmulatedDrive>,
}

impl Members {
    fn new(members: usize, policy: Policy, parities: usize) -> Members {
        let shape = Geometry { max_transfer_blocks: 32, ..geometry(26, 640, 14) };
        let drives = (0..members).map(|_| EmulatedDrive::in_memory(&shape)).collect();
        let members = Members { drives };
        let (runtime, of) = (
            Runtime::new(),
            CreateOptions { policy: Some(policy), parities, zone_size_blocks: Some(60), ..options(CHUNK) },
        );
        run(&runtime, Array::create(&runtime, of, members.there(&[]))).unwrap();
        runtime.clear();
        members
    }

    /// The drives that are not in `without`.
    fn there(&self, without: &[usize]) -> Vec<Drive> {
        let named = self.drives.iter().enumerate().filter(|(at, _)| !without.contains(at));
        named
            .map(|(at, drive)| Drive { name: format!("drive{at}"), device: Rc::new(drive.clone()) })
            .collect()
    }

    fn assembled(&self, runtime: &Runtime, without: &[usize]) -> Rc<Array> {
        Rc::new(run(runtime, Array::assemble(runtime, self.there(without))).unwrap())
    }

    /// The array assembled read-only under an overlay, which leaves the drives unchanged.
    fn looked_at(&self, runtime: &Runtime) -> Rc<dyn ZonedDevice> {
        let array = Array::assemble_read_only(runtime, self.there(&[]), None, Default::default());
        let array = Rc::new(run(runtime, array).unwrap());
        Rc::new(run(runtime, Overlay::over(runtime, array)))
    }

    /// Blocks of volume and namespace metadata on all members, without the array's own.
    fn metadata(&self) -> Vec<(usize, Lba)> {
        let runtime = Runtime::new();
        let mut found = Vec::new();
        for (member, drive) in self.drives.iter().enumerate() {
            for zone in (META..drive.geometry().zones).map(ZoneIndex) {
                let start = drive.geometry().start(zone).0;
                for lba in (start..start + drive.geometry().zone_capacity_blocks).map(Lba) {
                    let done = run(&runtime, drive.submit(Command::read(lba, Buf::zeroed(BLOCK))));
                    if done.result.is_ok() && MAGICS.iter().any(|magic| done.data.starts_with(&magic[..])) {
                        found.push((member, lba));
                    }
                }
            }
        }
        found
    }

    fn flip(&self, (member, lba): (usize, Lba), bit: u32) {
        strike(&self.drives[member], Fault::Corrupt { lba, bit });
    }
}

fn strike(drive: &EmulatedDrive, fault: Fault) {
    drive.ssd().borrow_mut().faults().after(0, fault);
    // Faults take effect with the next command.
    let report = drive.submit(Command::Report { first: ZoneIndex(0), count: 1 });
    run(&Runtime::new(), report).result.unwrap();
}

async fn read_all(volume: &Volume, blocks: u64) -> Vec<u8> {
    let mut all = Vec::new();
    for at in 0..blocks {
        all.extend_from_slice(&volume.read(at, Buf::zeroed(BLOCK)).await.unwrap());
    }
    all
}

/// Creates a volume on an array and kills its process; returns the contents of the volume's first blocks, some of which
/// are in zones begun since the newest root.
fn with_volume(members: &Members) -> Vec<u8> {
    let runtime = Runtime::new();
    let array = members.assembled(&runtime, &[]);
    let made = volume::VolumeCreateOptions { uuid: [7; 16], blocks: Some(900), ..Default::default() };
    run(&runtime, Volume::create(&Runtime::new(), array.clone(), made)).unwrap();
    let mut all = Vec::new();
    run(&runtime, async {
        let volume = Volume::open(&runtime, array.clone(), VolumeOptions::default()).await.unwrap();
        for round in 0..3 {
            for at in 0..40 {
                let bytes = Buf::copy_of(&noise(round * 1000 + at));
                volume.write(at, &bytes, false).await.unwrap();
                volume.write(700 + at, &bytes, false).await.unwrap();
            }
            volume.flush().await.unwrap();
            if round == 1 {
                volume.stop().await.unwrap();
            }
        }
        all = read_all(&volume, 900).await;
    });
    runtime.clear();
    all
}

fn check_any_flipped_bit(members: usize, policy: Policy, parities: usize) {
    let members = Members::new(members, policy, parities);
    let all = with_volume(&members);
    let metadata = members.metadata();
    assert!(metadata.len() > 50, "{policy:?}: {} blocks", metadata.len());
    for (count, at) in metadata.into_iter().enumerate() {
        // In the magic, in the checksum, and in the bytes that it covers.
        let bit = [3, 40, 70, 200][count % 4];
        members.flip(at, bit);
        let runtime = Runtime::new();
        let device = members.looked_at(&runtime);
        run(&runtime, async {
            let presence = Volume::is_on(device.clone()).await.unwrap();
            assert_eq!(presence, Presence::Yes, "{policy:?}, {parities}: bit {bit} of {at:?}");
            let volume = Volume::open(&runtime, device, VolumeOptions::default()).await;
            let volume =
                volume.unwrap_or_else(|e| panic!("{policy:?}, {parities}: bit {bit} of {at:?}: {e}"));
            assert!(read_all(&volume, 900).await == all, "{policy:?}, {parities}: bit {bit} of {at:?}");
        });
        runtime.clear();
        members.flip(at, bit);
    }
}

#[test]
fn volume_survives_any_flipped_metadata_bit_zrwa() {
    check_any_flipped_bit(4, Policy::Zrwa, 1);
}

#[test]
fn volume_survives_any_flipped_metadata_bit_log() {
    check_any_flipped_bit(4, Policy::Log, 1);
}

#[test]
fn volume_survives_any_flipped_metadata_bit_inplace() {
    check_any_flipped_bit(4, Policy::InPlace, 1);
}

#[test]
fn volume_survives_any_flipped_metadata_bit_raid6() {
    check_any_flipped_bit(5, Policy::Zrwa, 2);
}

/// With two parities one member may be corrupt while another one is missing.
#[test]
fn raid6_volume_survives_flipped_bits_on_two_members() {
    let members = Members::new(5, Policy::Zrwa, 2);
    let all = with_volume(&members);
    let metadata = members.metadata();
    for (at, (member, lba)) in metadata.iter().enumerate().step_by(7) {
        // The same row on another member: data or a parity of the same stripe.
        let other = ((member + 1 + at % 4) % 5, *lba);
        members.flip((*member, *lba), 70);
        members.flip(other, 70);
        let runtime = Runtime::new();
        let device = members.looked_at(&runtime);
        run(&runtime, async {
            let volume = Volume::open(&runtime, device, VolumeOptions::default()).await;
            let volume = volume.unwrap_or_else(|error| panic!("{member}, {lba:?}, {other:?}: {error}"));
            let read = read_all(&volume, 900).await;
            // User data of the volume has no checksum.
            let same = read.chunks(BLOCK).zip(all.chunks(BLOCK)).filter(|(a, b)| a == b).count();
            assert!(same >= 899, "{member}, {lba:?}, {other:?}");
        });
        runtime.clear();
        members.flip((*member, *lba), 70);
        members.flip(other, 70);
    }
}

/// A volume on a single drive, without redundancy.
fn single() -> (EmulatedDrive, Runtime, Volume) {
    let drive = EmulatedDrive::in_memory(&crate::support::volume::geometry());
    let options = volume::VolumeCreateOptions { uuid: [7; 16], blocks: Some(600), ..Default::default() };
    run(&Runtime::new(), Volume::create(&Runtime::new(), Rc::new(drive.clone()), options)).unwrap();
    let (runtime, volume) = open(&drive, false).unwrap();
    (drive, runtime, volume)
}

fn open(drive: &EmulatedDrive, give_up: bool) -> Result<(Runtime, Volume), VolumeError> {
    let runtime = Runtime::new();
    let behaviour = VolumeOptions { give_up, ..VolumeOptions::default() };
    let volume = run(&runtime, Volume::open(&runtime, Rc::new(drive.clone()), behaviour))?;
    Ok((runtime, volume))
}

fn states(drive: &EmulatedDrive) -> Vec<(ZoneState, u64)> {
    let report = drive.submit(Command::Report { first: ZoneIndex(0), count: drive.geometry().zones });
    run(&Runtime::new(), report).zones.iter().map(|zone| (zone.state, zone.wp_blocks)).collect()
}

#[test]
fn volume_recovery_keeps_zone_with_damaged_first_group() {
    for bit in [5, 37, 90, 200, 400] {
        let (drive, runtime, volume) = single();
        let before = states(&drive);
        for at in 0..20 {
            run(&runtime, volume.write(at, &block(7), false)).unwrap();
        }
        run(&runtime, volume.flush()).unwrap();
        runtime.clear();
        let after = states(&drive);
        let zone = (2..after.len()).find(|zone| before[*zone].1 == 0 && after[*zone].1 > 0).unwrap();
        let lba = drive.geometry().start(ZoneIndex(zone as u32));
        strike(&drive, Fault::Corrupt { lba, bit });
        let refused = open(&drive, false).err().unwrap();
        assert_eq!(refused, VolumeError::GroupUnreadable { zone: zone as u32, block: 0 }, "bit {bit}");
        assert_eq!(states(&drive), after, "bit {bit}");
        // The bit flips back.
        strike(&drive, Fault::Corrupt { lba, bit });
        let (runtime, volume) = open(&drive, false).unwrap();
        assert!(run(&runtime, read_all(&volume, 20)) == block(7).repeat(20));
        runtime.clear();
    }
}

/// Writes 40 blocks that are squeezed among others, damages one of them by `damage`, and has all of them moved.
fn collect_squeezed(runtime: &Runtime, volume: &Volume, damage: impl FnOnce()) {
    run(runtime, async {
        for at in 0..40 {
            volume.write(at, &text(at as u8), true).await.unwrap();
            volume.write(40 + at, &block(1), true).await.unwrap();
        }
    });
    damage();
    let is_collected = (0..20_000).any(|round| {
        let at = 40 + round * 7919 % 250;
        run(runtime, volume.write(at, &block(round as u8), false)).unwrap();
        volume.status().written.moved >= 40
    });
    assert!(is_collected && volume.status().unreadable_zones == 0);
}

/// The header proves that its block is damaged, and that a reconstruction is right: the piece is taken from that, too.
#[test]
fn collection_takes_piece_beside_damaged_header_from_reconstruction() {
    let members = Members::new(4, Policy::Zrwa, 1);
    let runtime = Runtime::new();
    let array = members.assembled(&runtime, &[]);
    let made = volume::VolumeCreateOptions { uuid: [7; 16], blocks: Some(300), ..Default::default() };
    run(&runtime, Volume::create(&Runtime::new(), array.clone(), made)).unwrap();
    let volume = run(&runtime, Volume::open(&runtime, array.clone(), VolumeOptions::default())).unwrap();
    let mut damaged = false;
    collect_squeezed(&runtime, &volume, || {
        let squeezed = members.metadata().into_iter().find(|(member, lba)| {
            let stored = members.drives[*member].ssd().borrow_mut().stored(*lba).unwrap();
            stored.is_some_and(|block| block.starts_with(b"zvg1") && block[45] == 2)
        });
        for bit in [70, 8 * 2000] {
            members.flip(squeezed.unwrap(), bit);
        }
        damaged = true;
    });
    let expected: Vec<u8> = (0..40).flat_map(|at| text(at).to_vec()).collect();
    assert!(damaged && run(&runtime, read_all(&volume, 40)) == expected);
    run(&runtime, volume.audit()).unwrap();
    runtime.clear();
}

/// A squeezed block that cannot be expanded is moved as it is, and is lost alone.
#[test]
fn damaged_squeezed_block_leaves_zone_collectable() {
    let (drive, runtime, volume) = single();
    let first = run(&runtime, async {
        volume.write(599, &text(9), true).await.unwrap();
        let zones = (2..drive.geometry().zones).map(|zone| drive.geometry().start(ZoneIndex(zone)));
        let is_group = |lba: &Lba| {
            let stored = drive.ssd().borrow_mut().stored(*lba).unwrap();
            stored.is_some_and(|block| block.starts_with(b"zvg1"))
        };
        zones.into_iter().find(is_group).unwrap()
    });
    // The codec of the piece.
    collect_squeezed(&runtime, &volume, || strike(&drive, Fault::Corrupt { lba: first, bit: 8 * (128 + 2) }));
    (0..40).for_each(|at| {
        let data = run(&runtime, volume.read(at, Buf::zeroed(BLOCK))).unwrap();
        assert!(data[..] == text(at as u8)[..], "block {at}");
    });
    let lost = run(&runtime, volume.read(599, Buf::zeroed(BLOCK)));
    assert_eq!(lost.err(), Some(Status::UnrecoveredReadError.into()));
    run(&runtime, volume.write(599, &block(9), true)).unwrap();
    run(&runtime, volume.audit()).unwrap();
    runtime.clear();
}

/// Foreign data in a zone that the root lists as free proves no loss.
#[test]
fn volume_open_refuses_free_zone_with_foreign_data() {
    let (drive, runtime, _) = single();
    runtime.clear();
    let lba = drive.geometry().start(ZoneIndex(20));
    run(&Runtime::new(), drive.submit(Command::write(lba, block(9), true))).result.unwrap();
    let refused = open(&drive, false).err();
    assert_eq!(refused, Some(VolumeError::GroupUnreadable { zone: 20, block: 0 }));
    assert_eq!(states(&drive)[20].1, 1);
    assert!(open(&drive, true).is_ok());
    assert_eq!(states(&drive)[20].1, 0);
}

#[test]
fn volume_open_names_damaged_newest_root_only() {
    let (drive, runtime, volume) = single();
    runtime.clear();
    drop(volume);
    // The only root is present and unreadable.
    let lba = drive.geometry().start(ZoneIndex(0));
    strike(&drive, Fault::Corrupt { lba, bit: 77 });
    for give_up in [false, true] {
        let refused = open(&drive, give_up).err();
        assert_eq!(refused, Some(VolumeError::RootDamaged { zone: 0, block: 0 }));
    }
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    assert_eq!(run(&Runtime::new(), Volume::is_on(device.clone())), Ok(Presence::Yes));
    let runtime = Runtime::new();
    let again = Volume::create(&runtime, device, volume::VolumeCreateOptions::default());
    assert_eq!(run(&runtime, again).err(), Some(VolumeError::RootDamaged { zone: 0, block: 0 }));
    strike(&drive, Fault::Corrupt { lba, bit: 77 });
    let (runtime, volume) = open(&drive, false).unwrap();
    run(&runtime, volume.write(3, &block(3), true)).unwrap();
    run(&runtime, volume.stop()).unwrap();
    runtime.clear();
    // An older root in front of a newer one.
    strike(&drive, Fault::Corrupt { lba, bit: 77 });
    assert!(open(&drive, false).is_ok());
    // A block without a root in the other head zone is obsolete: the zone of the newest root has room for more.
    let other = drive.geometry().start(ZoneIndex(1));
    run(&Runtime::new(), drive.submit(Command::write(other, block(1), true))).result.unwrap();
    let (runtime, volume) = open(&drive, false).unwrap();
    assert_eq!(run(&runtime, read_all(&volume, 4))[3 * BLOCK], 3);
    run(&runtime, volume.stop()).unwrap();
    runtime.clear();
    // The newest root.
    let last = Lba(lba.0 + states(&drive)[0].1 - 1);
    strike(&drive, Fault::Corrupt { lba: last, bit: 300 });
    let block = (last.0 - lba.0) as u32;
    assert_eq!(open(&drive, false).err(), Some(VolumeError::RootDamaged { zone: 0, block }));
}

fn spec(name: &str) -> Spec {
    Spec {
        name: name.into(),
        zones: 2,
        max_active: 1,
        max_open: 1,
        essential: 1,
        weight: 1,
        qos: Qos::default(),
    }
}

fn quick() -> vzone::NamespaceOptions {
    vzone::NamespaceOptions { clock: Rc::new(|| 0), patience_us: PATIENCE_US, admission: true }
}

/// Prepares a device for namespaces, and adds two, one with three blocks of data.
fn with_tenant(runtime: &Runtime, device: &Rc<dyn ZonedDevice>) {
    run(runtime, async {
        Namespaces::create(device.clone(), [9; 16], 1).await.unwrap();
        let namespaces = Namespaces::open(runtime, device.clone(), quick()).await.unwrap();
        let one = namespaces.add(spec("one")).await.unwrap();
        namespaces.add(spec("two")).await.unwrap();
        for at in 0..3 {
            one.submit(Command::write(Lba(at), block(at as u8 + 1), true)).await.result.unwrap();
        }
    });
    runtime.clear();
}

async fn check_tenant(runtime: &Runtime, device: Rc<dyn ZonedDevice>) -> Result<(), VzoneError> {
    let namespaces = Namespaces::open(runtime, device, quick()).await?;
    let list = namespaces.list();
    assert_eq!(list.iter().map(|namespace| namespace.name()).collect::<Vec<_>>(), ["one", "two"]);
    for at in 0..3 {
        let done = list[0].submit(Command::read(Lba(at), Buf::zeroed(BLOCK))).await;
        assert_eq!(done.data[0], at as u8 + 1);
    }
    Ok(())
}

#[test]
fn namespaces_survive_any_flipped_journal_bit() {
    let kinds = Policy::ALL.into_iter().map(|policy| (4, policy, 1)).chain([(5, Policy::Zrwa, 2)]);
    for (count, policy, parities) in kinds {
        let members = Members::new(count, policy, parities);
        let runtime = Runtime::new();
        let array: Rc<dyn ZonedDevice> = members.assembled(&runtime, &[]);
        with_tenant(&runtime, &array);
        drop(array);
        let metadata = members.metadata();
        assert!(metadata.len() >= 3, "{}", metadata.len());
        for at in metadata {
            for bit in [2, 36, 99] {
                members.flip(at, bit);
                let runtime = Runtime::new();
                let device = members.looked_at(&runtime);
                let presence = run(&runtime, Namespaces::are_on(device.clone()));
                assert_eq!(presence, Ok(Presence::Yes), "{policy:?}: bit {bit} of {at:?}");
                let checked = run(&runtime, check_tenant(&runtime, device));
                assert_eq!(checked, Ok(()), "{policy:?}, {parities}: bit {bit} of {at:?}");
                runtime.clear();
                members.flip(at, bit);
            }
        }
    }
}

/// A checkpoint repeats the journal before it, which is reset before anything else is written.
#[test]
fn namespaces_refuse_damaged_journal_without_intact_copy() {
    let drive = EmulatedDrive::in_memory(&Geometry { zones: 60, ..crate::support::volume::geometry() });
    let (runtime, device): (_, Rc<dyn ZonedDevice>) = (Runtime::new(), Rc::new(drive.clone()));
    with_tenant(&runtime, &device);
    let used = (0..2).find(|zone| states(&drive)[*zone].1 > 0).unwrap();
    let other = drive.geometry().start(ZoneIndex(1 - used as u32));
    run(&runtime, drive.submit(Command::write(other, block(1), true))).result.unwrap();
    assert_eq!(run(&runtime, check_tenant(&runtime, device.clone())), Ok(()));
    runtime.clear();
    let used = (0..2).find(|zone| states(&drive)[*zone].1 > 0).unwrap() as u32;
    strike(&drive, Fault::Corrupt { lba: drive.geometry().start(ZoneIndex(used)), bit: 500 });
    let opened = run(&runtime, check_tenant(&runtime, device.clone()));
    assert_eq!(opened, Err(VzoneError::Damaged { zone: used, block: 0 }));
    assert_eq!(run(&runtime, Namespaces::are_on(device)), Ok(Presence::Yes));
}

/// Member 0 was replaced by a blank drive that is not rebuilt yet, and member 2 is missing.
#[test]
fn presence_is_unknown_while_metadata_zones_are_offline() {
    for policy in [Policy::Zrwa, Policy::Log] {
        for divided in [false, true] {
            let mut members = Members::new(4, policy, 1);
            let runtime = Runtime::new();
            let array = members.assembled(&runtime, &[]);
            if divided {
                let device: Rc<dyn ZonedDevice> = array.clone();
                with_tenant(&runtime, &device);
            } else {
                drop(array);
                runtime.clear();
                with_volume(&members);
            }
            let runtime = Runtime::new();
            let array = members.assembled(&runtime, &[0]);
            members.drives[0] = EmulatedDrive::in_memory(members.drives[1].geometry());
            let new = members.there(&[1, 2, 3]).remove(0);
            run(&runtime, array.attach(0, new)).unwrap();
            runtime.clear();
            drop(array);
            let found = |without: &[usize]| {
                let runtime = Runtime::new();
                let array = members.assembled(&runtime, without);
                let offline = array.status().offline;
                let volume = run(&runtime, Volume::is_on(array.clone())).unwrap();
                let namespaces = run(&runtime, Namespaces::are_on(array.clone())).unwrap();
                runtime.clear();
                (volume, namespaces, offline)
            };
            let (volume, namespaces, offline) = found(&[2]);
            let zones: Vec<u32> = offline.iter().map(|offline| offline.zone.0).collect();
            assert!(zones.contains(&0) || zones.contains(&1), "{zones:?}");
            assert!(offline.iter().all(|offline| offline.waits_for == [2]), "{offline:?}");
            for presence in [volume, namespaces] {
                let Presence::Unknown(hidden) = presence else {
                    panic!("{policy:?}, {divided}: {presence:?}")
                };
                assert!(hidden.iter().all(|zone| zones.contains(zone)), "{hidden:?} of {zones:?}");
            }
            let (volume, namespaces, offline) = found(&[]);
            assert!(offline.is_empty());
            let is_there = |there| if there { Presence::Yes } else { Presence::No };
            assert_eq!((volume, namespaces), (is_there(!divided), is_there(divided)), "{policy:?}");
        }
    }
}

/// Foreign data on an array proves that it has no volume, even if a zone that could hold a root is offline.
#[test]
fn foreign_data_proves_absence_of_volume_and_namespaces() {
    let drive = EmulatedDrive::in_memory(&crate::support::volume::geometry());
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    let write = |zone: u32| {
        let lba = drive.geometry().start(ZoneIndex(zone));
        run(&Runtime::new(), drive.submit(Command::write(lba, block(9), true))).result.unwrap();
    };
    write(1);
    strike(&drive, Fault::Offline(ZoneIndex(0)));
    let both = || {
        (
            run(&Runtime::new(), Volume::is_on(device.clone())),
            run(&Runtime::new(), Namespaces::are_on(device.clone())),
        )
    };
    assert_eq!(both(), (Ok(Presence::No), Ok(Presence::No)));
    let reset = drive.submit(Command::Reset { zones: Zones::One(ZoneIndex(1)) });
    run(&Runtime::new(), reset).result.unwrap();
    assert_eq!(both(), (Ok(Presence::Unknown(vec![0])), Ok(Presence::Unknown(vec![0]))));
    write(9);
    assert_eq!(both(), (Ok(Presence::No), Ok(Presence::No)));
}

/// An overlay shows nothing of a zone that was reset, its own blocks or the drive's, and nothing of a refused write.
#[test]
fn overlay_forgets_reset_zones_and_refused_writes() {
    let runtime = Runtime::new();
    let drive = Rc::new(EmulatedDrive::in_memory(&geometry(4, 60, 4)));
    let write = |device: &dyn ZonedDevice, lba: u64, byte: u8| {
        run(&runtime, device.submit(Command::write(Lba(lba), block(byte), false))).result
    };
    assert_eq!(write(&*drive, 0, 1), Ok(()));
    let overlay = run(&runtime, Overlay::over(&runtime, drive.clone()));
    let read = |lba: u64| run(&runtime, overlay.submit(Command::read(Lba(lba), Buf::zeroed(BLOCK)))).data[0];
    assert_eq!(write(&overlay, 1, 2), Ok(()));
    assert!(write(&overlay, 5, 3).is_err());
    assert_eq!([read(0), read(1), read(5)], [1, 2, 0]);
    let zones = Zones::One(ZoneIndex(0));
    assert_eq!(run(&runtime, overlay.submit(Command::Reset { zones })).result, Ok(()));
    assert_eq!([read(0), read(1)], [0, 0]);
}
