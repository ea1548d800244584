//! Contents of the golden images of the layers above an array: a volume and namespaces, each on a drive of its own.
//!
//! Shared by the program that creates images of the present versions (`sim/examples/golden.rs`) and the test that reads
//! them (`sim/tests/golden_layers.rs`). Existing images are never created again, so the contents described here do not
//! change either.

// The program and the test each use only a part.
#![allow(dead_code, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use super::golden;
use emu::ssd::Model;
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Done, Geometry, ZonedDevice, Zones},
    qos::{Qos, Rates},
    runtime::Runtime,
    volume::{
        self, Codec, Level, NewVolume, Opened, Pool, PoolShape, Unit, Volume, VolumeCreateOptions,
        VolumeOptions,
    },
    vzone::{Namespace, NamespaceOptions, Namespaces, Spec},
    zone::{Lba, ZoneIndex, ZoneState},
};
use std::rc::Rc;

/// File name of the image of each layer.
pub const IMAGE: &str = "drive.img";

/// The drive of either layer.
pub fn model() -> Model {
    let geometry = Geometry {
        zones: 26,
        zone_size_blocks: 64,
        zone_capacity_blocks: 48,
        max_open: 12,
        max_active: 12,
        zrwa: None,
        oob_bytes: 0,
        max_transfer_blocks: 16,
        max_append_blocks: 16,
        volatile_cache: false,
    };
    Model { name: golden::NAME.into(), geometry }
}

fn run<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(future, || false).expect("an answer")
}

/// Logical blocks of the volume, which is smaller than the drive: compressed and moved blocks are in every zone.
pub const VOLUME_BLOCKS: u64 = 300;
/// Operations on the volume.
const OPERATIONS: u32 = 400;
/// Garbage collection, which is part of the image, has written over the whole drive by then.
const REOPENED_AT: [u32; 2] = [150, 333];

/// Opens the volume on `device`; with it belongs the runtime that runs its tasks.
pub fn open_volume(device: Rc<dyn ZonedDevice>) -> (Runtime, Volume) {
    let runtime = Runtime::new();
    let options = VolumeOptions { map_pages: Some(2), ..VolumeOptions::default() };
    let volume = run(&runtime, Volume::open(&runtime, device, options)).expect("the volume opens");
    (runtime, volume)
}

/// The blocks of an operation, and whether it writes them or discards them.
fn operation(number: u32) -> (u64, u64, bool) {
    let blocks = 1 + u64::from(number % 9);
    (u64::from(number * 37) % (VOLUME_BLOCKS - blocks), blocks, number % 11 != 10)
}

/// Data that operation `number` writes from block `at` on: a repeated line of text, different in every block.
pub fn content(number: u32, at: u64, blocks: u64) -> Buf {
    let line = |block: u64| format!("write {number:6} of block {block:9}\n").into_bytes();
    let bytes: Vec<u8> = (at..at + blocks).flat_map(|block| line(block).repeat(BLOCK / 32)).collect();
    Buf::copy_of(&bytes)
}

/// Creates the volume; its last checkpoint is older than its last writes.
pub fn write_volume(device: &Rc<dyn ZonedDevice>) {
    let runtime = Runtime::new();
    let options = VolumeCreateOptions {
        uuid: *b"golden volume v5",
        blocks: Some(VOLUME_BLOCKS),
        codec: Some(Codec::Lz4),
        unit: Unit::MOST,
        ..VolumeCreateOptions::default()
    };
    run(&runtime, Volume::create(&runtime, device.clone(), options)).expect("the volume is created");
    let (mut runtime, mut volume) = open_volume(device.clone());
    for number in 0..OPERATIONS {
        let (at, blocks, writes) = operation(number);
        let result = match writes {
            true => run(&runtime, volume.write(at, &content(number, at, blocks), false)),
            false => run(&runtime, volume.discard(at, blocks)),
        };
        result.expect("an operation succeeds");
        let codec = match number {
            99 => Some(None),
            222 => Some(Level::new(3).map(Codec::Zstd)),
            _ => None,
        };
        if let Some(codec) = codec {
            run(&runtime, volume.compress(codec, Unit::from_bytes(16384).unwrap()))
                .expect("the codec changes");
        }
        if REOPENED_AT.contains(&number) {
            run(&runtime, volume.stop()).expect("the volume stops");
            drop(volume);
            runtime.clear();
            (runtime, volume) = open_volume(device.clone());
        }
    }
    run(&runtime, volume.flush()).expect("a flush succeeds");
    drop(volume);
    runtime.clear();
}

/// Compares all blocks of the volume.
pub fn check_volume(runtime: &Runtime, volume: &Volume) {
    let mut lives = [None; VOLUME_BLOCKS as usize];
    for number in 0..OPERATIONS {
        let (at, blocks, writes) = operation(number);
        lives[at as usize..(at + blocks) as usize].fill(writes.then_some(number));
    }
    assert_eq!(volume.blocks(), VOLUME_BLOCKS);
    for (at, life) in (0..).zip(lives) {
        let found = run(runtime, volume.read(at, Buf::zeroed(BLOCK))).expect("a block is read");
        let wanted = life.map_or(Buf::zeroed(BLOCK), |life| content(life, at, 1));
        assert!(found[..] == wanted[..], "block {at} of life {life:?}");
    }
    assert_eq!(run(runtime, volume.audit()), Ok(()));
}

/// The drive of the pool, with room for two shards.
pub fn pool_model() -> Model {
    let of_volume = model();
    let geometry = Geometry { zones: 62, max_open: 0, max_active: 0, ..of_volume.geometry };
    Model { geometry, ..of_volume }
}

/// Blocks of an extent, and of each volume of the pool.
const POOL_EXTENT: u32 = 16;
pub const POOL_VOLUME_BLOCKS: u64 = 150;
pub const POOL_VOLUMES: [&str; 2] = ["a", "b"];

/// Opens the pool on `device`.
pub fn open_pool(device: Rc<dyn ZonedDevice>) -> (Runtime, Pool) {
    let runtime = Runtime::new();
    match run(&runtime, volume::open(&runtime, device, VolumeOptions::default())).expect("the pool opens") {
        Opened::Pool(pool) => (runtime, pool),
        Opened::Volume(_) => panic!("a pool is taken for a volume"),
    }
}

/// Creates a pool of two shards and two volumes; its last checkpoint is older than its last writes.
pub fn write_pool(device: &Rc<dyn ZonedDevice>) {
    let runtime = Runtime::new();
    let options = VolumeCreateOptions {
        uuid: *b"golden pool of 7",
        pool: Some(PoolShape { extent_blocks: POOL_EXTENT, slots: 4 }),
        shards: Some(2),
        ..VolumeCreateOptions::default()
    };
    run(&runtime, Pool::create(&runtime, device.clone(), options)).expect("the pool is created");
    runtime.clear();
    for (round, name) in POOL_VOLUMES.into_iter().enumerate() {
        let (runtime, pool) = open_pool(device.clone());
        let new = NewVolume {
            name: name.into(),
            uuid: [round as u8 + 1; 16],
            blocks: POOL_VOLUME_BLOCKS,
            sector: Default::default(),
            codec: None,
            unit: Unit::default(),
            qos: Default::default(),
            guaranteed: 0,
        };
        run(&runtime, pool.add(new)).expect("a volume is added");
        for number in 0..OPERATIONS / 4 {
            let (at, blocks, writes) = pool_operation(number);
            let volume = pool.find(POOL_VOLUMES[number as usize % (round + 1)]).expect("a volume");
            let result = match writes {
                true => run(&runtime, volume.write(at, &content(number, at, blocks), false)),
                false => run(&runtime, volume.discard(at, blocks)),
            };
            result.expect("an operation succeeds");
        }
        run(&runtime, pool.space().flush()).expect("a flush succeeds");
        runtime.clear();
    }
}

fn pool_operation(number: u32) -> (u64, u64, bool) {
    let (at, blocks, writes) = operation(number);
    (at % (POOL_VOLUME_BLOCKS - blocks), blocks, writes)
}

/// Compares all blocks of the volumes of the pool.
pub fn check_pool(runtime: &Runtime, pool: &Pool) {
    let mut lives = [[None; POOL_VOLUME_BLOCKS as usize]; POOL_VOLUMES.len()];
    for (round, number) in
        (0..POOL_VOLUMES.len()).flat_map(|round| (0..OPERATIONS / 4).map(move |n| (round, n)))
    {
        let (at, blocks, writes) = pool_operation(number);
        let of_volume = &mut lives[number as usize % (round + 1)];
        of_volume[at as usize..(at + blocks) as usize].fill(writes.then_some(number));
    }
    for (name, lives) in POOL_VOLUMES.into_iter().zip(lives) {
        let volume = pool.find(name).expect("a volume");
        assert_eq!(volume.blocks(), POOL_VOLUME_BLOCKS);
        for (at, life) in (0..).zip(lives) {
            let found = run(runtime, volume.read(at, Buf::zeroed(BLOCK))).expect("a block is read");
            let wanted = life.map_or(Buf::zeroed(BLOCK), |life| content(life, at, 1));
            assert!(found[..] == wanted[..], "block {at} of volume {name}, life {life:?}");
        }
    }
    assert!(run(runtime, pool.audit()).is_ok());
    assert_eq!(run(runtime, pool.space().audit()), Ok(()));
}

/// A v-zone of the namespaces' image: its state, and its written blocks.
pub struct Written {
    pub namespace: usize,
    pub zone: u32,
    pub state: ZoneState,
    pub blocks: u64,
    /// 1 if it was reset once.
    pub life: u32,
}

const fn written(namespace: usize, zone: u32, state: ZoneState, blocks: u64, life: u32) -> Written {
    Written { namespace, zone, state, blocks, life }
}

/// All v-zones.
pub const WRITTEN: [Written; 6] = [
    written(0, 0, ZoneState::Full, 64, 0),
    written(0, 1, ZoneState::Closed, 21, 0),
    written(0, 2, ZoneState::Empty, 0, 0),
    written(1, 0, ZoneState::Closed, 7, 1),
    written(1, 1, ZoneState::Full, 33, 0),
    written(1, 2, ZoneState::Empty, 0, 1),
];

/// The namespaces.
pub fn specs() -> [Spec; 2] {
    let spec = |name: &str, weight: u32, qos: Qos| Spec {
        name: name.into(),
        zones: 3,
        max_active: 2,
        max_open: 2,
        essential: 1,
        weight,
        qos,
    };
    let limits = Rates { requests: 9000, blocks: 70_000 };
    [spec("one", 1, Qos::default()), spec("two", 7, Qos { limits, ..Qos::default() })]
}

pub fn namespace_options() -> NamespaceOptions {
    NamespaceOptions { clock: Rc::new(|| 0), patience_us: 1, admission: false }
}

/// Opens the namespaces on `device`.
pub fn open_namespaces(device: Rc<dyn ZonedDevice>) -> (Runtime, Namespaces) {
    let runtime = Runtime::new();
    let opened = run(&runtime, Namespaces::open(&runtime, device, namespace_options()));
    let namespaces = opened.expect("the namespaces open");
    (runtime, namespaces)
}

fn submit(runtime: &Runtime, namespace: &Namespace, command: Command) -> Done {
    let done = run(runtime, namespace.submit(command));
    assert_eq!(done.result, Ok(()));
    done
}

/// Writes blocks of a v-zone, in pieces of various sizes.
pub fn write_vzone(runtime: &Runtime, of: &Namespace, (zone, life): (u32, u32), from: u64, to: u64) {
    let (mut at, start) = (from, of.geometry().start(ZoneIndex(zone)).0);
    for size in [3, 8, 1, 5].into_iter().cycle() {
        let size = size.min(to - at);
        if size == 0 {
            return;
        }
        submit(runtime, of, Command::write(Lba(start + at), golden::content(zone, life, at, size), false));
        at += size;
    }
}

/// Creates the namespaces; they are not stopped at the end.
pub fn write_namespaces(device: &Rc<dyn ZonedDevice>) {
    let runtime = Runtime::new();
    let created = run(&runtime, Namespaces::create(device.clone(), *b"golden spaces v3", 2));
    created.expect("the namespaces are created");
    let (mut runtime, mut namespaces) = open_namespaces(device.clone());
    for number in [0, 1] {
        let Spec { name, .. } = &specs()[number];
        let plain = Spec { qos: Qos::default(), ..specs()[number].clone() };
        let mut namespace = run(&runtime, namespaces.add(plain)).expect("a namespace is added");
        if number == 0 {
            // One that exists no more.
            let other = run(&runtime, namespaces.add(Spec { name: "gone".into(), ..specs()[0].clone() }));
            write_vzone(&runtime, &other.expect("another one is added"), (0, 0), 0, 30);
            run(&runtime, namespaces.remove("gone")).expect("it is removed");
        } else {
            let qos = specs()[number].qos;
            namespace = run(&runtime, namespaces.set_qos(name, qos)).expect("its limits are set");
        }
        for written in WRITTEN.iter().filter(|written| written.namespace == number) {
            let zones = Zones::One(ZoneIndex(written.zone));
            if written.life > 0 {
                write_vzone(&runtime, &namespace, (written.zone, 0), 0, 40);
                submit(&runtime, &namespace, Command::Reset { zones });
            }
            write_vzone(&runtime, &namespace, (written.zone, written.life), 0, written.blocks);
            match written.state {
                ZoneState::Full => _ = submit(&runtime, &namespace, Command::Finish { zones }),
                ZoneState::Closed => _ = submit(&runtime, &namespace, Command::Close { zones }),
                _ => {}
            }
        }
        submit(&runtime, &namespace, Command::Flush);
        drop(namespace);
        run(&runtime, namespaces.close());
        drop(namespaces);
        runtime.clear();
        (runtime, namespaces) = open_namespaces(device.clone());
    }
    drop(namespaces);
    runtime.clear();
}

/// Compares all v-zones.
pub fn check_namespaces(runtime: &Runtime, namespaces: &Namespaces) {
    let all = namespaces.list();
    assert_eq!(all.iter().map(|namespace| namespace.status().spec).collect::<Vec<Spec>>(), specs());
    for Written { namespace, zone, state, blocks, life } in WRITTEN {
        let of = &all[namespace];
        let report = Command::Report { first: ZoneIndex(zone), count: 1 };
        let info = submit(runtime, of, report).zones[0];
        assert_eq!(info.state, state, "zone {zone} of {namespace}");
        assert!(state == ZoneState::Full || info.wp_blocks == blocks, "zone {zone} of {namespace}: {info:?}");
        let start = of.geometry().start(ZoneIndex(zone)).0;
        for at in 0..blocks {
            let found = submit(runtime, of, Command::read(Lba(start + at), Buf::zeroed(BLOCK))).data;
            let wanted = golden::content(zone, life, at, 1);
            assert!(found[..] == wanted[..], "block {at} of zone {zone} of {namespace}");
        }
    }
    assert_eq!(namespaces.audit(), Ok(()));
}
