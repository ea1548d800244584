//! A pool on a single drive, which can leave at any moment.

use super::{
    array::run,
    volume::{Leaving, block},
};
use emu::{
    rng::Rng,
    ssd::{Cut, EmulatedDrive, Model},
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Geometry, ZonedDevice},
    runtime::Runtime,
    volume::{
        self, NewVolume, Opened, Pool, PoolShape, Unit, Volume, VolumeCreateOptions, VolumeError,
        VolumeOptions,
    },
};
use std::rc::Rc;

/// Blocks of an extent.
pub const EXTENT: u64 = 32;
/// Blocks of a volume: the last extent is a part of one.
pub const BLOCKS: u64 = 4 * EXTENT + 5;
pub const SLOTS: u32 = 4;

pub fn geometry() -> Geometry {
    Geometry { max_open: 0, max_active: 0, volatile_cache: true, ..Model::zn540().scaled(40, 64).geometry }
}

pub fn new(name: &str) -> NewVolume {
    NewVolume {
        name: name.into(),
        uuid: [name.len() as u8; 16],
        blocks: BLOCKS,
        sector: Default::default(),
        codec: None,
        unit: Unit::BLOCK,
        qos: Default::default(),
        guaranteed: 0,
    }
}

fn shape(slots: u32, shards: u32) -> VolumeCreateOptions {
    let pool = Some(PoolShape { extent_blocks: EXTENT as u32, slots });
    VolumeCreateOptions { uuid: [9; 16], pool, shards: Some(shards), ..VolumeCreateOptions::default() }
}

/// A pool on a drive.
pub struct Scene {
    pub drive: EmulatedDrive,
    pub runtime: Runtime,
    pub device: Rc<Leaving>,
    pub pool: Pool,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.runtime.clear();
    }
}

impl Scene {
    pub fn new() -> Scene {
        Scene::with(SLOTS)
    }

    /// A pool with so many slots.
    pub fn with(slots: u32) -> Scene {
        Scene::over(&geometry(), slots)
    }

    /// A pool with so many slots on a drive of this geometry.
    pub fn over(geometry: &Geometry, slots: u32) -> Scene {
        Scene::in_shards(geometry, slots, 1)
    }

    /// A pool with so many slots and shards, each with a drive's worth of zones of this geometry.
    pub fn in_shards(geometry: &Geometry, slots: u32, shards: u32) -> Scene {
        let drive =
            EmulatedDrive::in_memory(&Geometry { zones: shards * geometry.zones, ..geometry.clone() });
        let runtime = Runtime::new();
        let created = Pool::create(&runtime, Rc::new(drive.clone()), shape(slots, shards));
        run(&runtime, created).unwrap();
        Scene::on(drive)
    }

    pub fn on(drive: EmulatedDrive) -> Scene {
        let runtime = Runtime::new();
        let device = Rc::new(Leaving::after(&drive, u32::MAX));
        let pool = opened(&runtime, device.clone()).unwrap();
        Scene { drive, runtime, device, pool }
    }

    /// Cuts the power, and opens the pool again; what was cached is lost.
    pub fn cut(self) -> Scene {
        self.runtime.clear();
        let drive = self.drive.clone();
        drive
            .ssd()
            .borrow_mut()
            .power_cut(&[], &mut Rng::new(1), Cut { cache_lost: true, zrwa_lost: false })
            .unwrap();
        Scene::on(drive)
    }

    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        run(&self.runtime, work)
    }

    pub fn add(&self, name: &str) -> Volume {
        self.run(self.pool.add(new(name))).unwrap()
    }

    /// Names, sizes, and the first byte of the blocks that the tests write: the first one and the last one.
    pub fn volumes(&self) -> Vec<(String, u64, [u8; 2])> {
        let ends = |volume: &Volume| [0, BLOCKS - 1].map(|at| self.read(volume, at));
        let each = self.pool.volumes();
        each.iter().map(|volume| (volume.name().unwrap(), volume.blocks(), ends(volume))).collect()
    }

    pub fn read(&self, volume: &Volume, at: u64) -> u8 {
        self.run(volume.read(at, Buf::zeroed(BLOCK))).unwrap()[0]
    }

    pub fn write(&self, volume: &Volume, at: u64, byte: u8) {
        self.run(volume.write(at, &block(byte), true)).unwrap();
    }
}

pub fn opened(runtime: &Runtime, device: Rc<dyn ZonedDevice>) -> Result<Pool, VolumeError> {
    match run(runtime, volume::open(runtime, device, VolumeOptions::default()))? {
        Opened::Pool(pool) => Ok(pool),
        Opened::Volume(_) => panic!("a pool is taken for a volume"),
    }
}
