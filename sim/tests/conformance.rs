//! The rules of zones on both kinds of media.
#![allow(clippy::unwrap_used)]

use engine::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Geometry, Status},
    zone::{Lba, ZoneIndex},
};
use sim::{
    conformance::{
        Do::{self, *},
        ROWS, command, model,
    },
    ssd::{Fault, ImageMedia, MemoryMedia, Ssd},
};

fn perform(ssd: &mut Ssd, step: Do) -> Result<(), DeviceError> {
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
fn every_rule_and_refusal_in_memory() {
    let geometry = model().geometry;
    check_rows(|_| Ssd::new(geometry.clone(), Box::new(MemoryMedia::new(&geometry))));
}

#[test]
fn every_rule_and_refusal_in_an_image() {
    let folder = tempfile("rules");
    check_rows(|row| {
        let media = ImageMedia::create(&folder.join(format!("{row}")), &model(), [1; 16]).unwrap();
        Ssd::new(model().geometry, Box::new(media))
    });
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn every_refusal_of_the_specification_is_in_a_row() {
    let elsewhere = [
        Status::InvalidOpcode,
        Status::InternalError,
        Status::CapacityExceeded,
        // What only real drives say.
        Status::DataTransferError,
        Status::NamespaceIsWriteProtected,
        Status::NamespaceNotReady,
        Status::AccessDenied,
        Status::DeallocatedBlock,
        // Those of faults are in `faults.rs`.
        Status::WriteFault,
        Status::UnrecoveredReadError,
    ];
    for status in Status::ALL.iter().filter(|status| !elsewhere.contains(status)) {
        assert!(ROWS.iter().any(|row| row.3 == Err(*status)), "{status} is in no row");
    }
}

#[test]
fn a_drive_without_a_zrwa_refuses_it() {
    let geometry = Geometry { zrwa: None, ..model().geometry };
    let mut ssd = Ssd::in_memory(&geometry);
    let unsupported = Err(Status::InvalidZoneOperation.into());
    assert_eq!(perform(&mut ssd, OpenZrwa(0)), unsupported);
    assert_eq!(perform(&mut ssd, Flush(0, 1)), unsupported);
}

#[test]
fn metadata_has_to_fit_its_blocks() {
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
