//! Shared by the tests of volumes on a single drive.

use emu::{rng::Rng, ssd::EmulatedDrive};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Geometry, ZonedDevice},
};
use std::{cell::Cell, rc::Rc};

/// A drive with small zones.
pub fn geometry() -> Geometry {
    Geometry {
        zones: 24,
        zone_size_blocks: 64,
        zone_capacity_blocks: 60,
        max_open: 8,
        max_active: 8,
        zrwa: None,
        oob_bytes: 0,
        max_transfer_blocks: 32,
        max_append_blocks: 0,
        volatile_cache: false,
    }
}

/// A block that begins with this byte, and does not compress.
pub fn block(byte: u8) -> Buf {
    let mut bytes = noise(byte.into());
    bytes[0] = byte;
    Buf::copy_of(&bytes)
}

/// A block that begins with this byte, and can be squeezed, but not compressed by an eighth.
pub fn text(byte: u8) -> Buf {
    Buf::copy_of(&[vec![byte; 400], noise(byte.into())[400..].to_vec()].concat())
}

/// A block of random bytes, which does not compress.
pub fn noise(at: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(at).fill(&mut bytes);
    bytes
}

/// A device that is gone after some commands.
pub struct Leaving {
    drive: EmulatedDrive,
    /// Commands before it is gone; several devices may share them.
    pub left: Rc<Cell<u32>>,
}

impl Leaving {
    /// A drive that leaves after so many commands.
    pub fn after(drive: &EmulatedDrive, commands: u32) -> Leaving {
        Leaving::sharing(drive, Rc::new(Cell::new(commands)))
    }

    /// A drive that leaves after as many commands as are left.
    pub fn sharing(drive: &EmulatedDrive, left: Rc<Cell<u32>>) -> Leaving {
        Leaving { drive: drive.clone(), left }
    }
}

impl ZonedDevice for Leaving {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        match self.left.get().checked_sub(1) {
            Some(left) => {
                self.left.set(left);
                self.drive.submit(command)
            }
            None => Completion::failed(DeviceError::Gone),
        }
    }
}
