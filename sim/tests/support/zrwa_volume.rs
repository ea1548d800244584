//! A volume on an array of policy `zrwa`, on drives that a test copies, damages, or leaves out.

use super::{
    array::{geometry, options, run},
    volume::{Leaving, block},
};
use emu::ssd::EmulatedDrive;
use engine::{
    array::{Array, CreateOptions, Drive},
    buf::{BLOCK, Buf},
    device::{Command, Geometry, ZonedDevice},
    raid::policy::Policy,
    runtime::Runtime,
    volume::{Volume, VolumeCreateOptions, VolumeOptions, VolumeStatus},
    zone::{Lba, ZoneIndex},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Metadata zones of a drive, before the data zones.
const META: u32 = 2;

pub struct Scene {
    pub drives: Vec<EmulatedDrive>,
    pub parities: usize,
}

/// A volume that runs on the drives of a scene.
pub struct Running {
    pub runtime: Runtime,
    pub array: Rc<Array>,
    pub volume: Volume,
}

impl Scene {
    /// A volume on new drives with zones of `capacity` blocks.
    pub fn new(shape: (usize, usize), chunk: u64, capacity: u64) -> Scene {
        let scene = Scene::without_volume(shape, chunk, capacity);
        let runtime = Runtime::new();
        let array = Rc::new(run(&runtime, Array::assemble(&runtime, scene.there(&[]))).unwrap());
        let made = VolumeCreateOptions { uuid: [5; 16], ..Default::default() };
        run(&runtime, Volume::create(&runtime, array, made)).unwrap();
        runtime.clear();
        scene
    }

    /// An array on new drives with zones of `capacity` blocks.
    pub fn without_volume((members, parities): (usize, usize), chunk: u64, capacity: u64) -> Scene {
        let shape = Geometry { max_transfer_blocks: 32, ..geometry(26, capacity, 14) };
        let drives = (0..members).map(|_| EmulatedDrive::in_memory(&shape)).collect();
        let scene = Scene { drives, parities };
        let runtime = Runtime::new();
        let of = CreateOptions { policy: Some(Policy::Zrwa), parities, ..options(chunk) };
        run(&runtime, Array::create(&runtime, of, scene.there(&[]))).unwrap();
        scene
    }

    /// A copy of the drives as they are now.
    pub fn copy(&self) -> Scene {
        let copy = |drive: &EmulatedDrive| {
            EmulatedDrive::new(Rc::new(RefCell::new(drive.ssd().borrow().copy().unwrap())))
        };
        Scene { drives: self.drives.iter().map(copy).collect(), parities: self.parities }
    }

    /// The drives that are not in `without`.
    pub fn there(&self, without: &[usize]) -> Vec<Drive> {
        let named = self.drives.iter().enumerate().filter(|(at, _)| !without.contains(at));
        named
            .map(|(at, drive)| Drive { name: format!("drive{at}"), device: Rc::new(drive.clone()) })
            .collect()
    }

    /// The drives, which are gone after as many commands as are left.
    pub fn leaving(&self, left: &Rc<Cell<u32>>) -> Vec<Drive> {
        let leaving = |(at, drive): (usize, &EmulatedDrive)| Drive {
            name: format!("drive{at}"),
            device: Rc::new(Leaving::sharing(drive, left.clone())),
        };
        self.drives.iter().enumerate().map(leaving).collect()
    }

    pub fn start(&self, without: &[usize]) -> Running {
        let runtime = Runtime::new();
        let array = Rc::new(run(&runtime, Array::assemble(&runtime, self.there(without))).unwrap());
        let volume = run(&runtime, Volume::open(&runtime, array.clone(), VolumeOptions::default())).unwrap();
        Running { runtime, array, volume }
    }

    /// All blocks of data zones that begin with this magic number, by member.
    pub fn blocks_with(&self, magic: &[u8]) -> Vec<(usize, Lba, Buf)> {
        let mut found = Vec::new();
        for (member, drive) in self.drives.iter().enumerate() {
            for zone in (META..drive.geometry().zones).map(ZoneIndex) {
                let start = drive.geometry().start(zone).0;
                for lba in (start..start + drive.geometry().zone_capacity_blocks).map(Lba) {
                    let done = run(&Runtime::new(), drive.submit(Command::read(lba, Buf::zeroed(BLOCK))));
                    if done.result.is_ok() && done.data.starts_with(magic) {
                        found.push((member, lba, done.data));
                    }
                }
            }
        }
        found
    }

    /// The trailers of groups.
    pub fn trailers(&self) -> Vec<(usize, Lba, Buf)> {
        let mut found = self.blocks_with(b"zvg1");
        found.retain(|(_, _, block)| block[46] > 0);
        found
    }

    /// All sets of as many members as there are parities.
    pub fn losses(&self) -> Vec<Vec<usize>> {
        let members = self.drives.len();
        match self.parities {
            1 => (0..members).map(|member| vec![member]).collect(),
            _ => (0..members).flat_map(|one| (0..one).map(move |other| vec![one, other])).collect(),
        }
    }
}

impl Running {
    /// A synchronous write.
    pub fn write(&self, at: u64, byte: u8) {
        run(&self.runtime, self.volume.write(at, &block(byte), true)).unwrap();
    }

    /// Synchronous writes of blocks 0 to `count`, all different; returns these.
    pub fn write_lone(&self, count: u64) -> Vec<(u64, u8)> {
        let contents: Vec<(u64, u8)> = (0..count).map(|at| (at, at as u8 + 1)).collect();
        contents.iter().for_each(|(at, byte)| self.write(*at, *byte));
        contents
    }

    pub fn check(&self, contents: &[(u64, u8)], what: impl std::fmt::Display) {
        for (at, byte) in contents {
            let data = run(&self.runtime, self.volume.read(*at, Buf::zeroed(BLOCK))).unwrap();
            assert!(data[..] == block(*byte)[..], "block {at}, {what}");
        }
        run(&self.runtime, self.volume.audit()).unwrap();
    }

    pub fn status(&self) -> VolumeStatus {
        self.volume.status()
    }

    /// Ends the process.
    pub fn kill(self) {
        self.runtime.clear();
        drop((self.volume, self.array));
    }
}
