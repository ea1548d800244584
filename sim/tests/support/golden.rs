//! Contents of the golden images: an array of each level, with a zone in every state that the format has.
//!
//! Shared by the program that creates images of the present version (`sim/examples/golden.rs`) and the test that reads
//! them (`sim/tests/golden.rs`). Existing images are never created again, so the contents described here do not change
//! either.

// The program and the test each use only a part.
#![allow(dead_code, clippy::unwrap_used)]

use emu::ssd::{EmulatedDrive, Model};
use engine::{
    array::CreateOptions,
    buf::{BLOCK, Buf},
    device::{Geometry, Zrwa},
    zone::ZoneState::{self, Closed, Empty, Full},
};
use flate2::read::GzDecoder;
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    path::Path,
};

pub const NAME: &str = "golden";
pub const HOST: [u8; 16] = *b"made on this one";
/// Twenty stripes of three chunks in a zone, and D = 2: small, with all cases.
pub const CHUNK_BLOCKS: u64 = 2;
pub const CAPACITY_BLOCKS: u64 = 120;

/// One of the arrays.
pub struct Golden {
    pub uuid: [u8; 16],
    pub members: usize,
    pub parities: usize,
    /// Prefix of the names of its images.
    prefix: &'static str,
    zrwa_blocks: u64,
    /// Larger than the zones of the array if its logs need more.
    zone_capacity_blocks: u64,
    zone_size_blocks: Option<u64>,
}

pub const RAID5: Golden = Golden {
    uuid: *b"golden images v7",
    members: 4,
    parities: 1,
    prefix: "",
    zrwa_blocks: 8,
    zone_capacity_blocks: 40,
    zone_size_blocks: None,
};

pub const RAID6: Golden = Golden {
    uuid: *b"golden RAID-6 v7",
    members: 5,
    parities: 2,
    prefix: "raid6-",
    zrwa_blocks: 12,
    zone_capacity_blocks: 64,
    zone_size_blocks: Some(CAPACITY_BLOCKS),
};

/// Contents of a logical zone.
pub struct Zone {
    pub state: ZoneState,
    /// Written blocks; those above read as zeros.
    pub blocks: u64,
    /// Blocks written before the last reset, if there was one.
    pub earlier_blocks: Option<u64>,
    pub finished: bool,
}

const fn zone(state: ZoneState, blocks: u64, earlier_blocks: Option<u64>, finished: bool) -> Zone {
    Zone { state, blocks, earlier_blocks, finished }
}

/// By zone number.
pub const ZONES: [Zone; 8] = [
    // Written to its end.
    zone(Full, CAPACITY_BLOCKS, None, false),
    // Finished inside a chunk: parity of the partial stripe moved to its own place.
    zone(Full, 27, None, true),
    // Ends inside a chunk: partial parity and tail records in the rows ahead.
    zone(Closed, 45, None, false),
    // Ends inside a chunk of the last stripe but one: parity and tail in the metadata log.
    zone(Closed, 111, None, false),
    // Written and reset.
    zone(Empty, 0, Some(45), false),
    // Written nearly to its end, reset and begun again: the log has records of both lives.
    zone(Closed, 9, Some(111), false),
    // Finished without having been written.
    zone(Full, 0, None, true),
    // Never written.
    zone(Empty, 0, None, false),
];

impl Golden {
    pub fn model(&self) -> Model {
        let geometry = Geometry {
            zones: 2 + ZONES.len() as u32,
            zone_size_blocks: 64,
            zone_capacity_blocks: self.zone_capacity_blocks,
            max_open: 6,
            max_active: 6,
            zrwa: Some(Zrwa { size_blocks: self.zrwa_blocks, granularity_blocks: 1, max_zones: 6 }),
            oob_bytes: 0,
            max_transfer_blocks: 16,
            max_append_blocks: 16,
            volatile_cache: false,
        };
        Model { name: NAME.into(), geometry }
    }

    pub fn options(&self) -> CreateOptions {
        CreateOptions {
            chunk_blocks: CHUNK_BLOCKS,
            zone_size_blocks: self.zone_size_blocks,
            parities: self.parities,
            host: HOST,
            autostart: true,
            ..CreateOptions::new(NAME, self.uuid)
        }
    }

    /// Name of a member's image; compressed it ends in `.gz`.
    pub fn file_name(&self, member: usize) -> String {
        format!("{}member{member}.img", self.prefix)
    }
}

/// Data written from block `from` of a zone on, in its `life` (0 before the first reset): a repeated line of text,
/// different in every block.
pub fn content(zone: u32, life: u32, from: u64, blocks: u64) -> Buf {
    let line = |block: u64| format!("zone {zone:3} life {life:2} block {block:8}\n").into_bytes();
    let bytes: Vec<u8> = (from..from + blocks).flat_map(|block| line(block).repeat(BLOCK / 32)).collect();
    Buf::copy_of(&bytes)
}

/// Unpacks the image `name` of the golden images `images` to `dir`, as a sparse file, and opens it.
pub fn unpacked(images: &str, name: &str, dir: &Path) -> EmulatedDrive {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(images);
    let mut packed = GzDecoder::new(File::open(images.join(format!("{name}.gz"))).unwrap());
    let path = dir.join(name);
    let mut file = File::create_new(&path).unwrap();
    let mut block = Vec::new();
    while Read::by_ref(&mut packed).take(BLOCK as u64).read_to_end(&mut block).unwrap() > 0 {
        if block.iter().all(|byte| *byte == 0) {
            file.seek(SeekFrom::Current(block.len() as i64)).unwrap();
        } else {
            file.write_all(&block).unwrap();
        }
        block.clear();
    }
    let len = file.stream_position().unwrap();
    file.set_len(len).unwrap();
    drop(file);
    EmulatedDrive::open_image(&path).unwrap()
}
