//! Planned faults strike when they should, and images refuse what is not theirs.
#![allow(clippy::unwrap_used)]

use engine::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Done, Status, Zones},
    zone::{Lba, ZoneIndex, ZoneState},
};
use sim::{
    rng::Rng,
    ssd::{Cut, EmulatedDrive, Fault, ImageMedia, Model, Ssd},
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
fn an_unreadable_block_fails_until_its_zone_is_reset() {
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
fn a_write_fault_writes_nothing_and_is_over_then() {
    let mut ssd = Ssd::in_memory(&model().geometry);
    ssd.faults().after(0, Fault::WriteFault(ZoneIndex(0)));
    assert_eq!(write(&mut ssd, 512, 1), Ok(()));
    assert_eq!(write(&mut ssd, 0, 1), Err(Status::WriteFault.into()));
    assert_eq!(ssd.zones().info(ZoneIndex(0)).wp_blocks, 0);
    assert_eq!(ssd.zones().open_zones(), 1);
    assert_eq!(write(&mut ssd, 0, 1), Ok(()));
}

#[test]
fn corruption_is_silent_and_one_bit() {
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
fn worn_zones_are_still_worn_when_power_returns() {
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
fn a_drive_vanishes_and_returns_as_it_was() {
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
fn faults_of_time_are_handed_on_once() {
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

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("zoneraid-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn problem(path: &Path) -> String {
    ImageMedia::open(path).err().map(|e| e.problem).unwrap_or_default()
}

#[test]
fn an_image_is_refused_with_its_reason() {
    let folder = folder("refused");
    let path = folder.join("drive.img");
    let drive = EmulatedDrive::create_image(&path, &model(), [5; 16]).unwrap();
    assert!(problem(&path).contains("in use by another process"), "{}", problem(&path));
    let again = EmulatedDrive::create_image(&path, &model(), [5; 16]);
    assert!(again.err().unwrap().to_string().contains("exists already"));
    drop(drive);
    assert_eq!(problem(&path), "");
    assert!(ImageMedia::is_image(&path));

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
fn a_drive_in_an_image_is_the_same_after_it_was_opened_again() {
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
