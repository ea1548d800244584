//! An array of drives that the program defines itself: created, written, stopped without warning, recovered without one
//! of its drives, and rebuilt on a new one.
//!
//!     cargo run --locked --package zoneraid-engine --example embed
//!
//! `MemoryDrive` is all that a drive has to be. The rules of zones are those of [`ZoneTable`]; a driver for real drives
//! leaves them to the drive.

use engine::{
    array::{Array, CreateOptions, Drive, MemberState},
    buf::{BLOCK, Buf},
    device::{Command, Completion, Done, Geometry, Status, ZonedDevice, Zones},
    runtime::Runtime,
    table::ZoneTable,
    zone::{Lba, ZoneIndex},
};
use std::{cell::RefCell, error::Error, rc::Rc};

/// A zoned drive without a ZRWA in memory. Every command is complete, and durable, when it is submitted.
struct MemoryDrive {
    geometry: Geometry,
    state: RefCell<DriveState>,
}

struct DriveState {
    zones: ZoneTable,
    bytes: Vec<u8>,
}

impl MemoryDrive {
    fn new() -> MemoryDrive {
        let geometry = Geometry {
            zones: 16,
            zone_size_blocks: 256,
            zone_capacity_blocks: 256,
            max_open: 0,
            max_active: 0,
            zrwa: None,
            oob_bytes: 0,
            max_transfer_blocks: 64,
            max_append_blocks: 0,
            volatile_cache: false,
        };
        let bytes = vec![0; geometry.size_bytes() as usize];
        let state = RefCell::new(DriveState { zones: ZoneTable::new(&geometry), bytes });
        MemoryDrive { geometry, state }
    }

    fn execute(&self, command: Command) -> Result<Done, Status> {
        let DriveState { zones, bytes } = &mut *self.state.borrow_mut();
        let bytes_of = |lba: Lba, length: usize| lba.0 as usize * BLOCK..lba.0 as usize * BLOCK + length;
        match command {
            Command::Read { lba, mut data, .. } => {
                zones.check_read(lba, data.blocks())?;
                let Some(buffer) = data.as_mut() else { return Err(Status::InvalidField) };
                buffer.copy_from_slice(&bytes[bytes_of(lba, buffer.len())]);
                return Ok(Done::with_data(data));
            }
            Command::Write { lba, data, .. } => {
                zones.write(lba, data.blocks())?;
                bytes[bytes_of(lba, data.len())].copy_from_slice(&data);
                return Ok(Done::with_data(data));
            }
            Command::Report { first, count } => {
                return Ok(Done { zones: zones.report(first, count)?, ..Done::ok() });
            }
            Command::Flush => {}
            Command::Open { zones: Zones::One(zone), zrwa } => zones.open(zone, zrwa)?,
            Command::Close { zones: Zones::One(zone) } => zones.close(zone)?,
            Command::Finish { zones: Zones::One(zone) } => zones.finish(zone)?,
            Command::Reset { zones: Zones::One(zone) } => {
                zones.reset(zone)?;
                // Blocks above the write pointer are read as zeros.
                let length = self.geometry.zone_size_blocks as usize * BLOCK;
                bytes[bytes_of(self.geometry.start(zone), length)].fill(0);
            }
            // The array never selects all zones of a member, and appends only where the geometry allows it.
            _ => return Err(Status::InvalidField),
        }
        Ok(Done::ok())
    }
}

impl ZonedDevice for MemoryDrive {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, command: Command) -> Completion {
        self.execute(command).map_or_else(Completion::failed, Completion::ready)
    }
}

/// A program that uses the array, from its start to its end.
struct Process(Runtime);

impl Process {
    /// Runs the engine until `future` is done. These drives answer at once, so there is never anything to wait for.
    fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T, Box<dyn Error>> {
        self.0.block_on(future, || false).ok_or_else(|| "a drive does not answer".into())
    }

    fn run(&self, array: &Array, command: Command) -> Result<Done, Box<dyn Error>> {
        let done = self.wait(array.submit(command))?;
        done.result?;
        Ok(done)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let drive = |name: &str| Drive { name: name.into(), device: Rc::new(MemoryDrive::new()) };
    let mut drives: Vec<Drive> = ["a", "b", "c"].map(drive).into();
    let data = Buf::copy_of(&[7; 5 * BLOCK]);

    let process = Process(Runtime::new());
    let options = CreateOptions::new("tank", *b"sixteen bytes...");
    let array = process.wait(Array::create(&process.0, options, drives.clone()))??;
    let start = array.geometry().start(ZoneIndex(2));
    process.run(&array, Command::write(start, data.clone(), true))?;
    let geometry = array.geometry();
    println!("created: {} zones of {} blocks", geometry.zones, geometry.zone_capacity_blocks);

    // The process ends without a word to the array, and a drive is lost.
    process.0.clear();
    drives.remove(1);

    let process = Process(Runtime::new());
    let array = process.wait(Array::assemble(&process.0, drives.clone()))??;
    let read = process.run(&array, Command::read(start, Buf::zeroed(5 * BLOCK)))?;
    assert_eq!(read.data.as_slice(), data.as_slice());
    println!("recovered without drive b: {:?}", array.status().members[1].state);

    process.wait(array.attach(1, drive("d")))??;
    process.wait(array.rebuild(&|_| ()))??;
    assert_eq!(array.status().members[1].state, MemberState::Active);
    println!("rebuilt on drive d: {:?}", array.status().members[1].state);
    process.wait(array.close())??;
    Ok(())
}

#[test]
fn embedded_array_recovers_and_rebuilds() -> Result<(), Box<dyn Error>> {
    main()
}
