//! Zone state machine tests on memory and image media.

use emu::{
    conformance::{
        Action::{self, *},
        ROWS, command, model,
    },
    ssd::{
        EmulatedDrive, Fault, ImageMedia, MemoryMedia, Ssd,
        compress::{Choice, CompressedMedia, Scheme, Slots},
    },
};
use engine::{
    adapt::overlay::Overlay,
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Geometry, Status, ZonedDevice, Zones},
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use std::rc::Rc;

fn perform(ssd: &mut Ssd, step: Action) -> Result<(), DeviceError> {
    match step {
        ReadOnly(zone) => ssd.faults().after(0, Fault::ReadOnly(ZoneIndex(zone))),
        Offline(zone) => ssd.faults().after(0, Fault::Offline(ZoneIndex(zone))),
        _ => (),
    }
    ssd.execute(command(step)).result
}

fn check_rows(mut blank: impl FnMut(usize) -> Ssd) {
    for (i, &(name, before, step, result, zone, state, wp, zrwa)) in ROWS.iter().enumerate() {
        let mut ssd = blank(i);
        for step in before {
            assert_eq!(perform(&mut ssd, *step), Ok(()), "{name}: {step:?} comes before");
        }
        assert_eq!(perform(&mut ssd, step), result.map_err(Into::into), "{name}");
        let info = ssd.zones().info(ZoneIndex(zone));
        assert_eq!((info.state, info.wp_blocks, info.zrwa), (state, wp, zrwa), "{name}");
    }
}

#[test]
fn zone_rules_hold_on_memory_media() {
    let geometry = model().geometry;
    check_rows(|_| Ssd::new(geometry.clone(), Box::new(MemoryMedia::new(&geometry))));
}

#[test]
fn zone_rules_hold_on_compressed_media() {
    let geometry = model().geometry;
    for scheme in [Scheme::Base, Scheme::Balloon(Slots::LeastSpace), Scheme::Braid(Choice::BySizes)] {
        check_rows(|_| Ssd::new(geometry.clone(), Box::new(CompressedMedia::new(&geometry, scheme))));
    }
}

#[test]
fn zone_rules_hold_on_image_media() {
    let folder = tempfile("rules");
    check_rows(|row| {
        let media = ImageMedia::create(&folder.join(format!("{row}")), &model(), [1; 16]).unwrap();
        Ssd::new(model().geometry, Box::new(media))
    });
    std::fs::remove_dir_all(folder).unwrap();
}

/// The preparing steps are executed on the drive below, or on the overlay.
#[test]
fn zone_rules_hold_on_overlay() {
    for below in [true, false] {
        for &(name, before, step, result, zone, state, wp, zrwa) in ROWS {
            // Zone faults can be injected into the drive only, not into the overlay.
            let befalls = |step: &Action| matches!(step, ReadOnly(_) | Offline(_));
            if befalls(&step) || !below && before.iter().any(befalls) {
                continue;
            }
            let runtime = Runtime::new();
            let mut ssd = Ssd::in_memory(&model().geometry);
            let (on_drive, above) = if below { (before, &[][..]) } else { (&[][..], before) };
            on_drive.iter().for_each(|step| assert_eq!(perform(&mut ssd, *step), Ok(()), "{name}: {step:?}"));
            let drive = Rc::new(EmulatedDrive::new(Rc::new(ssd.into())));
            let run = |future| runtime.block_on(future, || false).unwrap();
            let overlay = runtime.block_on(Overlay::over(&runtime, drive.clone()), || false).unwrap();
            let report = || Command::Report { first: ZoneIndex(0), count: 6 };
            let untouched = run(drive.submit(report())).zones;
            above
                .iter()
                .for_each(|step| assert_eq!(run(overlay.submit(command(*step))).result, Ok(()), "{name}"));
            assert_eq!(run(overlay.submit(command(step))).result, result.map_err(Into::into), "{name}");
            let info = run(overlay.submit(report())).zones[zone as usize];
            assert_eq!((info.state, info.wp_blocks, info.zrwa), (state, wp, zrwa), "{name}");
            assert_eq!(run(drive.submit(report())).zones, untouched, "{name}");
        }
    }
}

#[test]
fn overlay_reads_own_writes_over_drive_data() {
    let runtime = Runtime::new();
    let run = |future| runtime.block_on(future, || false).unwrap();
    let drive = Rc::new(EmulatedDrive::in_memory(&model().geometry));
    let filled = |byte: u8, blocks: usize| Buf::copy_of(&vec![byte; blocks * BLOCK]);
    run(drive.submit(Command::write(Lba(0), filled(1, 4), true)));
    run(drive.submit(Command::write(Lba(64), filled(2, 4), true)));
    let overlay = runtime.block_on(Overlay::over(&runtime, drive.clone()), || false).unwrap();
    run(overlay.submit(Command::write(Lba(4), filled(3, 2), true)));
    run(overlay.submit(Command::Reset { zones: Zones::One(ZoneIndex(1)) }));
    run(overlay.submit(Command::write(Lba(64), filled(4, 1), true)));
    let read = |device: &dyn ZonedDevice, lba: u64| {
        let done = run(device.submit(Command::read(Lba(lba), filled(9, 7))));
        assert_eq!(done.result, Ok(()));
        done.data
            .chunks(BLOCK)
            .map(|block| (block[0], block[BLOCK - 1]))
            .map(|(a, b)| a * (a == b) as u8)
            .collect()
    };
    let seen: [Vec<u8>; 4] = [read(&overlay, 0), read(&overlay, 64), read(&*drive, 0), read(&*drive, 64)];
    assert_eq!(seen[0], [1, 1, 1, 1, 3, 3, 0]);
    assert_eq!(seen[1], [4, 0, 0, 0, 0, 0, 0]);
    assert_eq!(seen[2], [1, 1, 1, 1, 0, 0, 0]);
    assert_eq!(seen[3], [2, 2, 2, 2, 0, 0, 0]);
}

#[test]
fn conformance_rows_cover_every_status_code() {
    let elsewhere = [
        Status::InvalidOpcode,
        Status::InternalError,
        Status::CapacityExceeded,
        // Status codes of real drives only.
        Status::DataTransferError,
        Status::NamespaceIsWriteProtected,
        Status::NamespaceNotReady,
        Status::AccessDenied,
        Status::DeallocatedBlock,
        // Status codes of media faults are tested in `faults.rs`.
        Status::WriteFault,
        Status::UnrecoveredReadError,
    ];
    for status in Status::ALL.iter().filter(|status| !elsewhere.contains(status)) {
        assert!(ROWS.iter().any(|row| row.3 == Err(*status)), "{status} is in no row");
    }
}

#[test]
fn drive_without_zrwa_refuses_zrwa_commands() {
    let geometry = Geometry { zrwa: None, ..model().geometry };
    let mut ssd = Ssd::in_memory(&geometry);
    let unsupported = Err(Status::InvalidZoneOperation.into());
    assert_eq!(perform(&mut ssd, OpenZrwa(0)), unsupported);
    assert_eq!(perform(&mut ssd, Flush(0, 1)), unsupported);
}

#[test]
fn write_with_wrong_oob_or_data_length_fails() {
    let mut ssd = Ssd::in_memory(&model().geometry);
    let write = |oob| Command::Write { lba: Lba(0), data: Buf::zeroed(2 * BLOCK), oob, fua: false };
    assert_eq!(ssd.execute(write(Buf::zeroed(64))).result, Err(Status::InvalidField.into()));
    assert_eq!(ssd.execute(write(Buf::zeroed(128))).result, Ok(()));
    let odd = Command::write(Lba(2), Buf::zeroed(BLOCK + 512), false);
    assert_eq!(ssd.execute(odd).result, Err(Status::InvalidField.into()));
}

fn tempfile(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("zoneraid-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
