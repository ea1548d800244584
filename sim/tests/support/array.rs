//! Shared by the tests of arrays: creates drives, writes data that identifies its position, and reads it back.

use emu::ssd::EmulatedDrive;
use engine::{
    array::{Array, CreateOptions, Drive},
    buf::{BLOCK, Buf},
    device::{Command, Done, Geometry, ZonedDevice, Zrwa},
    format::record::{Header, Record},
    runtime::Runtime,
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::{ops::Range, rc::Rc};

/// A drive with zones of `capacity` blocks, of which `limit` can be open, active and have a ZRWA.
pub fn geometry(zones: u32, capacity: u64, limit: u32) -> Geometry {
    Geometry {
        zones,
        zone_size_blocks: capacity.next_power_of_two(),
        zone_capacity_blocks: capacity,
        max_open: limit,
        max_active: limit,
        zrwa: Some(Zrwa { size_blocks: 32, granularity_blocks: 2, max_zones: limit }),
        oob_bytes: 16,
        max_transfer_blocks: 64,
        max_append_blocks: 64,
        volatile_cache: false,
    }
}

pub fn drives(count: usize, geometry: &Geometry) -> Vec<Drive> {
    let drive = |i| Drive { name: format!("drive{i}"), device: Rc::new(EmulatedDrive::in_memory(geometry)) };
    (0..count).map(drive).collect()
}

pub fn options(chunk_blocks: u64) -> CreateOptions {
    CreateOptions { chunk_blocks, ..CreateOptions::new("test", [3; 16]) }
}

pub fn run<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(future, || false).expect("nothing can happen any more")
}

pub fn submit(runtime: &Runtime, array: &Array, command: Command) -> Done {
    let done = run(runtime, array.submit(command));
    assert_eq!(done.result, Ok(()));
    done
}

/// Data that identifies its position.
pub fn pattern(from: u64, blocks: u64) -> Vec<u8> {
    (from..from + blocks)
        .flat_map(|b| (b.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 77).to_le_bytes().repeat(BLOCK / 8))
        .collect()
}

pub fn write_command(array: &Array, zone: u32, at: u64, blocks: u64, fua: bool) -> Command {
    let lba = array.geometry().start(ZoneIndex(zone)).0 + at;
    Command::write(Lba(lba), Buf::copy_of(&pattern(lba, blocks)), fua)
}

pub fn write(runtime: &Runtime, array: &Array, zone: u32, at: u64, blocks: u64, fua: bool) {
    submit(runtime, array, write_command(array, zone, at, blocks, fua));
}

/// Checks that the first `tail` blocks of a zone read as written.
pub fn check(runtime: &Runtime, array: &Array, zone: u32, tail: u64) {
    let start = array.geometry().start(ZoneIndex(zone)).0;
    let mut at = 0;
    for step in [1, 3, 7, 64, 100, 13].into_iter().cycle() {
        if at >= tail {
            break;
        }
        let blocks = step.min(tail - at);
        let done =
            submit(runtime, array, Command::read(Lba(start + at), Buf::zeroed(blocks as usize * BLOCK)));
        assert!(done.data[..] == pattern(start + at, blocks), "zone {zone} blocks {at} + {blocks}");
        at += blocks;
    }
}

/// The state of a zone and its write pointer, as an offset in blocks.
pub fn wp(runtime: &Runtime, array: &Array, zone: u32) -> (ZoneState, u64) {
    let done = submit(runtime, array, Command::Report { first: ZoneIndex(zone), count: 1 });
    (done.zones[0].state, done.zones[0].wp_blocks)
}

/// The records in the first `blocks` blocks of a drive, which are its metadata, each with its block range.
pub fn records(runtime: &Runtime, drive: &Drive, blocks: u64) -> Vec<(Record, Range<u64>)> {
    let read = |lba| run(runtime, drive.device.submit(Command::read(Lba(lba), Buf::zeroed(BLOCK)))).data;
    let bytes: Vec<u8> = (0..blocks).flat_map(|lba| read(lba).to_vec()).collect();
    let found = (0..blocks).filter_map(|lba| {
        let bytes = &bytes[lba as usize * BLOCK..];
        let header = Header::read(bytes).filter(|header| header.origin.lba == lba)?;
        let (record, _, blocks) = Record::read(bytes, header.origin).ok()?;
        Some((record, lba..lba + blocks))
    });
    found.collect()
}
