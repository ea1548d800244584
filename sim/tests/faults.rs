//! Scheduled faults of the emulated drive take effect at the planned command, and files that are no valid image are
//! refused.

use emu::{
    rng::Rng,
    ssd::{Ailment, AilmentFile, Cut, EmulatedDrive, Fault, ImageMedia, Kind, LOOK_EVERY, Model, Ssd},
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Done, Status, Zones},
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{
    fs::OpenOptions,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

fn model() -> Model {
    Model::zn540().scaled(8, 512)
}

fn write(ssd: &mut Ssd, lba: u64, byte: u8) -> Result<(), DeviceError> {
    let (data, oob) = (Buf::copy_of(&[byte; BLOCK]), Buf::copy_of(&[byte; 64]));
    ssd.execute(Command::Write { lba: Lba(lba), data, oob, fua: false }).result
}

fn read(ssd: &mut Ssd, lba: u64) -> Done {
    ssd.execute(Command::Read { lba: Lba(lba), data: Buf::zeroed(BLOCK), oob: Buf::zeroed(64) })
}

#[test]
fn fault_unreadable_block_fails_until_zone_reset() {
    let mut ssd = Ssd::in_memory(&model().geometry);
    write(&mut ssd, 0, 1).unwrap();
    write(&mut ssd, 1, 1).unwrap();
    ssd.faults().after(1, Fault::Unreadable(Lba(1)));
    assert_eq!(read(&mut ssd, 1).result, Ok(()));
    assert_eq!(read(&mut ssd, 1).result, Err(Status::UnrecoveredReadError.into()));
    assert_eq!(read(&mut ssd, 0).result, Ok(()));
    ssd.execute(Command::Reset { zones: Zones::All }).result.unwrap();
    assert_eq!(read(&mut ssd, 1).result, Ok(()));
}

#[test]
fn fault_write_error_writes_nothing_and_occurs_once() {
    let mut ssd = Ssd::in_memory(&model().geometry);
    ssd.faults().after(0, Fault::WriteFault(ZoneIndex(0)));
    assert_eq!(write(&mut ssd, 512, 1), Ok(()));
    assert_eq!(write(&mut ssd, 0, 1), Err(Status::WriteFault.into()));
    assert_eq!(ssd.zones().info(ZoneIndex(0)).wp_blocks, 0);
    assert_eq!(ssd.zones().open_zones(), 1);
    assert_eq!(write(&mut ssd, 0, 1), Ok(()));
}

#[test]
fn fault_corruption_silently_flips_one_bit() {
    let mut ssd = Ssd::in_memory(&model().geometry);
    write(&mut ssd, 0, 0).unwrap();
    ssd.faults().after(0, Fault::Corrupt { lba: Lba(0), bit: 8 * 100 + 3 });
    ssd.faults().after(0, Fault::Corrupt { lba: Lba(0), bit: 8 * BLOCK as u32 + 1 });
    let done = read(&mut ssd, 0);
    assert_eq!(done.result, Ok(()));
    let ones = |bytes: &[u8]| bytes.iter().map(|b| b.count_ones()).sum::<u32>();
    assert_eq!((done.data[100], ones(&done.data)), (8, 1));
    assert_eq!((done.oob[0], ones(&done.oob)), (2, 1));
}

#[test]
fn fault_worn_zones_stay_worn_after_power_cut() {
    let mut ssd = Ssd::in_memory(&model().geometry);
    write(&mut ssd, 0, 7).unwrap();
    ssd.faults().after(0, Fault::ReadOnly(ZoneIndex(0)));
    ssd.faults().after(0, Fault::Offline(ZoneIndex(1)));
    ssd.faults().after(0, Fault::Offline(ZoneIndex(8)));
    ssd.faults().after(0, Fault::Corrupt { lba: Lba(8 * 512), bit: 0 });
    assert_eq!(read(&mut ssd, 0).data[0], 7);
    let cut = Cut { cache_lost: true, zrwa_lost: true };
    ssd.power_cut(&[], &mut Rng::new(1), cut).unwrap();
    assert_eq!(ssd.zones().info(ZoneIndex(0)).state, ZoneState::ReadOnly);
    assert_eq!(ssd.zones().info(ZoneIndex(1)).state, ZoneState::Offline);
    assert_eq!(read(&mut ssd, 0).data[0], 7);
}

#[test]
fn fault_vanished_drive_returns_unchanged() {
    let mut ssd = Ssd::in_memory(&model().geometry);
    write(&mut ssd, 0, 7).unwrap();
    ssd.faults().after(0, Fault::Vanish);
    ssd.faults().after(2, Fault::Return);
    let gone = read(&mut ssd, 0);
    assert_eq!(gone.result, Err(DeviceError::Gone));
    assert_eq!(gone.data.len(), BLOCK, "the buffers come back");
    assert_eq!(write(&mut ssd, 1, 7), Err(DeviceError::Gone));
    assert_eq!(read(&mut ssd, 0).data[0], 7);
    assert_eq!(ssd.zones().info(ZoneIndex(0)).wp_blocks, 1);
}

#[test]
fn fault_latency_and_dropped_completion_apply_once() {
    let mut ssd = Ssd::in_memory(&model().geometry);
    ssd.faults().after(1, Fault::LatencySpike { us: 500 });
    ssd.faults().after(1, Fault::DropCompletion);
    write(&mut ssd, 0, 1).unwrap();
    assert_eq!(ssd.faults().take_latency_spike_us(), None);
    write(&mut ssd, 1, 1).unwrap();
    assert_eq!(ssd.faults().take_latency_spike_us(), Some(500));
    assert_eq!(ssd.faults().take_latency_spike_us(), None);
    assert!(ssd.faults().take_dropped_completion());
    assert!(!ssd.faults().take_dropped_completion());
}

/// A command of each kind that succeeds on a drive with block 512 in the ZRWA of zone 1.
fn command(kind: Kind) -> Command {
    let zones = Zones::One(ZoneIndex(1));
    let data = || Buf::copy_of(&[9; BLOCK]);
    match kind {
        Kind::Read => Command::Read { lba: Lba(512), data: Buf::zeroed(BLOCK), oob: Buf::zeroed(64) },
        Kind::Write => Command::Write { lba: Lba(513), data: data(), oob: Buf::default(), fua: false },
        Kind::Flush => Command::Flush,
        Kind::Report => Command::Report { first: ZoneIndex(0), count: 8 },
        Kind::Open => Command::Open { zones: Zones::One(ZoneIndex(2)), zrwa: true },
        Kind::Close => Command::Close { zones },
        Kind::Finish => Command::Finish { zones },
        Kind::Reset => Command::Reset { zones },
        Kind::FlushZrwa => Command::FlushZrwa { last: Lba(515) },
    }
}

fn with_zrwa() -> Ssd {
    let mut ssd = Ssd::in_memory(&model().geometry);
    let open = Command::Open { zones: Zones::One(ZoneIndex(1)), zrwa: true };
    ssd.execute(open).result.unwrap();
    write(&mut ssd, 512, 7).unwrap();
    ssd
}

/// All visible state of the zones and blocks that the commands address.
fn seen(ssd: &mut Ssd) -> String {
    let zones = [1, 2].map(|zone| ssd.zones().info(ZoneIndex(zone)));
    let data = [512, 513].map(|lba| read(ssd, lba).data[0]);
    format!("{zones:?} {data:?}")
}

#[test]
fn fault_fails_each_command_before_or_after_execution() {
    for kind in Kind::ALL {
        let mut well = with_zrwa();
        let before = seen(&mut well);
        well.execute(command(kind)).result.unwrap();
        let after = seen(&mut well);
        let changes = !matches!(kind, Kind::Read | Kind::Flush | Kind::Report);
        assert_eq!(before != after, changes, "{kind:?}");
        for late in [false, true] {
            let mut ssd = with_zrwa();
            ssd.faults().after(0, Fault::Fail { kind, late });
            let other = if kind == Kind::Flush { Kind::Report } else { Kind::Flush };
            assert_eq!(ssd.execute(command(other)).result, Ok(()), "{other:?} beside {kind:?}");
            let done = ssd.execute(command(kind));
            assert!(matches!(done.result, Err(DeviceError::Status(_))), "{kind:?}");
            let carries = matches!(kind, Kind::Read | Kind::Write);
            assert_eq!(done.data.len(), if carries { BLOCK } else { 0 }, "{kind:?} gives its buffer back");
            assert_eq!(
                seen(&mut ssd),
                if late { after.clone() } else { before.clone() },
                "{kind:?}, late: {late}"
            );
            if !late {
                assert_eq!(ssd.execute(command(kind)).result, Ok(()), "{kind:?} fails once");
            }
        }
    }
}

#[test]
fn fault_resets_and_finishes_zones_between_commands() {
    let mut ssd = with_zrwa();
    ssd.faults().after(1, Fault::Finish(ZoneIndex(1)));
    assert_eq!(write(&mut ssd, 513, 7), Ok(()));
    assert_eq!(write(&mut ssd, 514, 7), Err(Status::ZoneIsFull.into()));
    assert_eq!(read(&mut ssd, 513).data[0], 7);
    ssd.faults().after(0, Fault::Reset(ZoneIndex(1)));
    assert_eq!(read(&mut ssd, 513).data[0], 0);
    assert_eq!(ssd.zones().info(ZoneIndex(1)).state, ZoneState::Empty);
    // A zone that cannot be reset or finished stays as it is, without an error.
    ssd.faults().after(0, Fault::Offline(ZoneIndex(1)));
    ssd.faults().after(0, Fault::Reset(ZoneIndex(1)));
    ssd.faults().after(0, Fault::Finish(ZoneIndex(8)));
    assert_eq!(write(&mut ssd, 0, 7), Ok(()));
    assert_eq!(ssd.zones().info(ZoneIndex(1)).state, ZoneState::Offline);
}

#[test]
fn fault_zone_wears_out_at_any_zone_command() {
    for kind in [Kind::Write, Kind::Close, Kind::Finish, Kind::Reset, Kind::FlushZrwa] {
        for (fault, state) in [
            (Fault::ReadOnly(ZoneIndex(1)), ZoneState::ReadOnly),
            (Fault::Offline(ZoneIndex(1)), ZoneState::Offline),
        ] {
            let mut ssd = with_zrwa();
            ssd.faults().after(0, fault);
            assert!(ssd.execute(command(kind)).result.is_err(), "{kind:?} of a zone that is {state:?}");
            let info = ssd.zones().info(ZoneIndex(1));
            assert_eq!((info.state, info.zrwa, info.wp_blocks), (state, false, 0), "{kind:?}");
            let left = read(&mut ssd, 512);
            assert_eq!(left.result.is_ok(), state == ZoneState::ReadOnly, "{kind:?}");
            assert_eq!((ssd.zones().active_zones(), ssd.zones().zrwa_zones()), (0, 0));
        }
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("zoneraid-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn problem(path: &Path) -> String {
    ImageMedia::open(path).err().map(|e| e.problem).unwrap_or_default()
}

#[test]
fn image_open_refuses_invalid_file_with_reason() {
    let folder = folder("refused");
    let path = folder.join("drive.img");
    let drive = EmulatedDrive::create_image(&path, &model(), [5; 16]).unwrap();
    assert!(problem(&path).contains("in use by another process"), "{}", problem(&path));
    let again = EmulatedDrive::create_image(&path, &model(), [5; 16]);
    assert!(again.err().unwrap().to_string().contains("exists already"));
    drop(drive);
    assert_eq!(problem(&path), "");
    assert!(ImageMedia::is_image(&path).unwrap());

    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let patch = |at, bytes: &[u8]| {
        let mut before = vec![0; bytes.len()];
        file.read_exact_at(&mut before, at).unwrap();
        file.write_all_at(bytes, at).unwrap();
        before
    };
    for (at, bytes, expected) in [
        (0, &b"x"[..], "not the image of an emulated drive"),
        (8, &[2], "version 2"),
        (12, &[9], "header of the image is damaged"),
    ] {
        let before = patch(at, bytes);
        assert!(problem(&path).contains(expected), "{}", problem(&path));
        patch(at, &before);
    }
    assert_eq!(problem(&path), "");
    let size = file.metadata().unwrap().len();
    file.set_len(size - 1).unwrap();
    assert!(problem(&path).contains("cut off"), "{}", problem(&path));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn image_keeps_drive_state_across_reopen() {
    let folder = folder("again");
    let path = folder.join("drive.img");
    let open = |image: ImageMedia| Ssd::new(image.model().geometry.clone(), Box::new(image));
    {
        let mut ssd = open(ImageMedia::create(&path, &model(), [5; 16]).unwrap());
        let zrwa = Command::Open { zones: Zones::One(ZoneIndex(1)), zrwa: true };
        ssd.execute(zrwa).result.unwrap();
        write(&mut ssd, 512 + 9, 1).unwrap();
        write(&mut ssd, 512 + 9, 2).unwrap();
        write(&mut ssd, 1024, 3).unwrap();
        ssd.execute(Command::Finish { zones: Zones::One(ZoneIndex(2)) }).result.unwrap();
        write(&mut ssd, 0, 4).unwrap();
        ssd.execute(Command::Reset { zones: Zones::One(ZoneIndex(0)) }).result.unwrap();
    }
    let image = ImageMedia::open(&path).unwrap();
    assert_eq!((image.uuid(), image.model()), (&[5; 16], &model()));
    let mut ssd = open(image);
    let done = read(&mut ssd, 512 + 9);
    assert_eq!((done.data[0], done.oob[0]), (2, 2));
    assert_eq!(read(&mut ssd, 1024).data[0], 3);
    assert_eq!(read(&mut ssd, 1025).data[0], 0);
    assert_eq!(read(&mut ssd, 0).data[0], 0);
    assert!(ssd.zones().info(ZoneIndex(1)).zrwa);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A drive in a new image: a block in zone 0, four in the ZRWA of zone 1, and one in zone 2, which is full.
fn used_image(path: &Path) -> EmulatedDrive {
    let drive = EmulatedDrive::create_image(path, &model(), [5; 16]).unwrap();
    let ssd = &mut drive.ssd().borrow_mut();
    ssd.execute(Command::Open { zones: Zones::One(ZoneIndex(1)), zrwa: true }).result.unwrap();
    for lba in [0, 512, 513, 514, 515, 1024] {
        write(ssd, lba, 6).unwrap();
    }
    ssd.execute(Command::Finish { zones: Zones::One(ZoneIndex(2)) }).result.unwrap();
    drive.clone()
}

fn states(drive: &EmulatedDrive) -> Vec<ZoneState> {
    let ssd = drive.ssd().borrow();
    (0..4).map(|zone| ssd.zones().info(ZoneIndex(zone)).state).collect()
}

#[test]
fn image_ailments_apply_live_and_persist_until_cleared() {
    let folder = folder("ailing");
    let path = folder.join("drive.img");
    let drive = used_image(&path);
    assert_eq!(read(&mut drive.ssd().borrow_mut(), 0).data[0], 6);
    let file = AilmentFile::of(&path).unwrap();
    for ailment in [
        Ailment::ReadOnly(ZoneIndex(1)),
        Ailment::Offline(ZoneIndex(2)),
        Ailment::Offline(ZoneIndex(8)),
        Ailment::Unreadable(Lba(513)),
        Ailment::Flipped(Lba(514)),
        Ailment::Flipped(Lba(516)),
        Ailment::Slow(7),
    ] {
        file.add(ailment).unwrap();
    }
    std::thread::sleep(LOOK_EVERY);
    let suffers = |drive: &EmulatedDrive| {
        let ssd = &mut drive.ssd().borrow_mut();
        assert_eq!(write(ssd, 512, 1), Err(Status::ZoneIsReadOnly.into()));
        assert_eq!(read(ssd, 512).data[0], 6);
        assert_eq!(read(ssd, 513).result, Err(Status::UnrecoveredReadError.into()));
        assert_eq!((read(ssd, 514).result, read(ssd, 514).data[..2].to_vec()), (Ok(()), vec![7, 6]));
        assert_eq!(read(ssd, 516).data[0], 0, "there is nothing to flip");
        assert_eq!(read(ssd, 1024).result, Err(Status::ZoneIsOffline.into()));
        assert_eq!(ssd.faults().slow(), Some(7));
        let next = ssd.zones().info(ZoneIndex(0)).wp_blocks;
        write(ssd, next, 6)
    };
    suffers(&drive).unwrap();
    drop(drive);
    let drive = EmulatedDrive::open_image(&path).unwrap();
    use ZoneState::{Closed, Empty, Full, Offline, ReadOnly};
    assert_eq!(states(&drive), [Closed, ReadOnly, Offline, Empty]);
    suffers(&drive).unwrap();
    file.add(Ailment::Gone).unwrap();
    std::thread::sleep(LOOK_EVERY);
    assert_eq!(read(&mut drive.ssd().borrow_mut(), 0).result, Err(DeviceError::Gone));

    file.clear().unwrap();
    std::thread::sleep(LOOK_EVERY);
    for lba in [0, 1, 2, 512, 513, 514, 515, 1024] {
        let done = read(&mut drive.ssd().borrow_mut(), lba);
        assert_eq!((done.result, done.data[0]), (Ok(()), 6), "{lba}");
    }
    assert_eq!(states(&drive)[1..], [Closed, Full, Empty]);
    assert_eq!(drive.ssd().borrow_mut().faults().slow(), None);
    write(&mut drive.ssd().borrow_mut(), 512, 9).unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside the image");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn image_block_ailment_ends_with_rewrite_or_reset() {
    let folder = folder("well");
    let path = folder.join("drive.img");
    let drive = used_image(&path);
    let file = AilmentFile::of(&path).unwrap();
    for lba in [0, 512, 513] {
        file.add(Ailment::Unreadable(Lba(lba))).unwrap();
        file.add(Ailment::Flipped(Lba(lba))).unwrap();
    }
    std::thread::sleep(LOOK_EVERY);
    write(&mut drive.ssd().borrow_mut(), 512, 9).unwrap();
    let reset = Command::Reset { zones: Zones::One(ZoneIndex(0)) };
    drive.ssd().borrow_mut().execute(reset).result.unwrap();
    let look = |drive: &EmulatedDrive, lba| {
        let done = read(&mut drive.ssd().borrow_mut(), lba);
        done.result.map(|()| done.data[0])
    };
    let found = [Ok(0), Ok(9), Err(Status::UnrecoveredReadError.into())];
    assert_eq!([0, 512, 513].map(|lba| look(&drive, lba)), found);
    drop(drive);
    let drive = EmulatedDrive::open_image(&path).unwrap();
    assert_eq!([0, 512, 513].map(|lba| look(&drive, lba)), found);
    // It can become unreadable again.
    file.add(Ailment::Unreadable(Lba(512))).unwrap();
    std::thread::sleep(LOOK_EVERY);
    assert_eq!(look(&drive, 512), Err(Status::UnrecoveredReadError.into()));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn image_recreated_under_same_name_has_no_ailments() {
    let folder = folder("namesake");
    let path = folder.join("drive.img");
    drop(used_image(&path));
    AilmentFile::of(&path).unwrap().add(Ailment::Gone).unwrap();
    std::fs::remove_file(&path).unwrap();
    let drive = EmulatedDrive::create_image(&path, &model(), [6; 16]).unwrap();
    assert_eq!(read(&mut drive.ssd().borrow_mut(), 0).result, Ok(()));
    AilmentFile::of(&path).unwrap().add(Ailment::Unreadable(Lba(0))).unwrap();
    std::thread::sleep(LOOK_EVERY);
    let done = read(&mut drive.ssd().borrow_mut(), 0);
    assert_eq!(done.result, Err(Status::UnrecoveredReadError.into()));
    std::fs::remove_dir_all(folder).unwrap();
}
