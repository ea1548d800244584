//! Asks a real drive what `emu/src/conformance.rs` asks the emulated one, and whether it keeps what
//! is written to it:
//!
//!     conformance DRIVE
//!
//! Everything on the drive is destroyed. The rows are for one shape of drive, which QEMU can emulate;
//! another one is only written and read. Exits with 0 if the drive differs only where QEMU or the
//! block layer are known to.
#![allow(clippy::unwrap_used)]

use emu::conformance::{Action, ROWS, Row, command, model};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, DeviceError, Done, Geometry, Status, ZonedDevice, Zones},
    zone::{Lba, ZoneIndex, ZoneInfo, ZoneState},
};
use host::{drive, reactor::Reactor};
use std::{path::Path, process::ExitCode, rc::Rc};

/// Where QEMU differs: it gives a ZRWA to zones that are not empty, counts such a one twice and never
/// gets it back, takes an explicit flush to be about one block more, and opens all zones one by one.
const QEMU: &[&str] = &[
    "open all opens all or none",
    "no victim is closed in vain",
    "no ZRWA for an open zone",
    "no ZRWA for a written zone",
    "no second ZRWA for a zone",
    "finish releases the ZRWA",
    "reset releases the ZRWA",
    "flush one more than the ZRWA",
    "flush to the end of an odd capacity",
    "flush beyond the capacity",
    "a zone that fills up releases its ZRWA",
];

/// Where block devices differ: the kernel cuts reads at the ends of zones.
const BLOCK_LAYER: &[&str] = &["a read into the next zone"];

struct Bench {
    reactor: Reactor,
    drive: Rc<dyn ZonedDevice>,
}

impl Bench {
    fn run(&self, command: Command) -> Done {
        self.reactor.wait(self.drive.submit(command)).unwrap()
    }

    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn zone(&self, zone: u32) -> ZoneInfo {
        let done = self.run(Command::Report { first: ZoneIndex(zone), count: 1 });
        done.result.unwrap();
        done.zones[0]
    }

    fn blank(&self) {
        self.run(Command::Reset { zones: Zones::All }).result.unwrap();
    }

    /// Whether a drive of this kind can be asked for `step`.
    fn knows(&self, step: Action) -> bool {
        let geometry = self.geometry();
        match step {
            Action::ReadOnly(_) | Action::Offline(_) => false,
            Action::OpenZrwa(_) | Action::OpenAllZrwa | Action::Flush(..) => geometry.zrwa.is_some(),
            Action::Append(..) => geometry.max_append_blocks > 0,
            _ => true,
        }
    }

    /// What is wrong with the drive in this row.
    fn check(&self, row: &Row) -> Result<(), String> {
        let &(_, before, step, expected, zone, state, wp_blocks, zrwa) = row;
        self.blank();
        for step in before {
            self.run(command(*step)).result.map_err(|error| format!("{step:?} comes before: {error}"))?;
        }
        let result = self.run(command(step)).result;
        // The block layer says less of what is wrong.
        let same = match result {
            Err(DeviceError::Os(_)) => expected.is_err(),
            result => result == expected.map_err(Into::into),
        };
        if !same {
            return Err(format!("{result:?} instead of {expected:?}"));
        }
        let info = self.zone(zone);
        let wp_matters = state != ZoneState::Full;
        if info.state != state || info.zrwa != zrwa || wp_matters && info.wp_blocks != wp_blocks {
            return Err(format!("zone {zone} is {info:?}"));
        }
        Ok(())
    }

    /// Writes in every way that there is, and reads it back.
    fn write_and_read(&self) {
        let geometry = self.geometry().clone();
        let start = geometry.start(ZoneIndex(1));
        let length = geometry.zone_capacity_blocks.min(64).min(geometry.max_transfer_blocks as u64) & !7;
        let fill = |at: u64, bytes: usize, salt: u8| -> Buf {
            let bytes = bytes as u64;
            let bytes = (0..bytes).map(|i| (at * 37 + i / 16 * 7 + i) as u8 ^ salt).collect::<Vec<_>>();
            Buf::copy_of(&bytes)
        };
        let oob_bytes = geometry.oob_bytes as usize;
        self.blank();
        let zrwa = geometry.zrwa.filter(|zrwa| zrwa.size_blocks >= 8);
        self.run(Command::Open { zones: Zones::One(ZoneIndex(1)), zrwa: zrwa.is_some() }).result.unwrap();
        let mut at = 0;
        let mut pending = Vec::new();
        while at < length {
            let batch = (length - at).min(8);
            // Blocks of a ZRWA in any order; elsewhere a block device puts them in order by itself.
            let mut offsets: Vec<u64> = (at..at + batch).collect();
            if zrwa.is_some() {
                offsets.reverse();
            }
            for offset in offsets {
                let oob = fill(offset, oob_bytes, 0xa5);
                let (lba, data) = (Lba(start.0 + offset), fill(offset, BLOCK, 0));
                let write = Command::Write { lba, data, oob, fua: offset % 3 == 0 };
                pending.push(self.drive.submit(write));
                if zrwa.is_none() && geometry.max_append_blocks > 0 {
                    self.reactor.wait(pending.pop().unwrap()).unwrap().result.unwrap();
                }
            }
            for write in pending.drain(..) {
                self.reactor.wait(write).unwrap().result.unwrap();
            }
            at += batch;
            if zrwa.is_some() {
                self.run(Command::FlushZrwa { last: Lba(start.0 + at - 1) }).result.unwrap();
            }
        }
        self.run(Command::Flush).result.unwrap();
        assert_eq!(self.zone(1).wp_blocks, length);
        let blank = |bytes: usize| Buf::zeroed(bytes);
        let (data, oob) = (blank(length as usize * BLOCK), blank(length as usize * oob_bytes));
        let done = self.run(Command::Read { lba: start, data, oob });
        done.result.unwrap();
        for offset in 0..length {
            let at = offset as usize;
            assert_eq!(done.data[at * BLOCK..][..BLOCK], *fill(offset, BLOCK, 0), "block {offset}");
            assert_eq!(
                done.oob[at * oob_bytes..][..oob_bytes],
                *fill(offset, oob_bytes, 0xa5),
                "metadata {offset}"
            );
        }
        // Without metadata of its own, which the drive must put somewhere harmless.
        let done = self.run(Command::read(Lba(start.0 + 1), blank(BLOCK)));
        assert_eq!((done.result, &*done.data), (Ok(()), &*fill(1, BLOCK, 0)));

        if geometry.max_append_blocks > 0 {
            let appends: Vec<_> = (0..3)
                .map(|i| self.drive.submit(Command::append(ZoneIndex(2), fill(i, BLOCK, 1), false)))
                .collect();
            let mut landed = Vec::new();
            for (i, append) in (0..).zip(appends) {
                let done = self.reactor.wait(append).unwrap();
                done.result.unwrap();
                landed.push(done.lba.0 - geometry.start(ZoneIndex(2)).0);
                let read = self.run(Command::read(done.lba, blank(BLOCK)));
                assert_eq!((read.result, &*read.data), (Ok(()), &*fill(i, BLOCK, 1)), "append {i}");
            }
            landed.sort_unstable();
            assert_eq!(landed, [0, 1, 2]);
        }
        let zones = self.run(Command::Report { first: ZoneIndex(0), count: u32::MAX }).zones;
        assert_eq!(zones.len(), geometry.zones as usize);
        assert!((0..).zip(&zones).all(|(i, zone)| zone.zone == ZoneIndex(i)));
        let shared = blank(BLOCK);
        let refused = self.run(Command::read(start, shared.clone()));
        assert_eq!(refused.result, Err(Status::InvalidField.into()), "a read into a shared buffer");
        self.blank();
    }
}

fn main() -> ExitCode {
    let path = std::env::args().nth(1).unwrap();
    let qemu = drive::drive_id(Path::new(&path)).model.is_some_and(|model| model.starts_with("QEMU"));
    let reactor = Reactor::default();
    let drive = match drive::open(&reactor, Path::new(&path)) {
        Ok(drive) => drive,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let bench = Bench { reactor, drive };
    println!("{path}: {:?}", bench.geometry());
    bench.write_and_read();
    println!("what was written can be read");
    let (geometry, wanted) = (bench.geometry(), model().geometry);
    let shape =
        |g: &Geometry| (g.zones, g.zone_size_blocks, g.zone_capacity_blocks, g.max_open, g.max_active);
    if shape(geometry) != shape(&wanted) {
        println!("the rows are for drives of another shape");
        return ExitCode::SUCCESS;
    }
    let block_layer = geometry.max_append_blocks == 0;
    let known = |row: &str| qemu && QEMU.contains(&row) || block_layer && BLOCK_LAYER.contains(&row);
    let (mut checked, mut differs) = (0, Vec::new());
    for row in ROWS {
        let too_large = row.0 == "a write larger than a transfer" || row.0 == "an append larger than allowed";
        if !row.1.iter().chain([&row.2]).all(|step| bench.knows(*step)) || too_large {
            continue;
        }
        checked += 1;
        if let Err(how) = bench.check(row) {
            println!("differs{}: {}: {how}", if known(row.0) { " as is known" } else { "" }, row.0);
            differs.push(row.0);
        }
    }
    bench.blank();
    let news = differs.iter().filter(|name| !known(name)).count();
    println!("{checked} of {} rows checked, {} differ, {news} of them unexpected", ROWS.len(), differs.len());
    if news == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
