//! Parameters drawn from a seed: the device below the volume, its load, and the ends of processes.

use crate::simulator::layer::{DeviceBelow, world::Life};
use emu::rng::Rng;
use engine::{
    buf::BLOCK,
    device::Geometry,
    raid::policy::Policy,
    volume::{Choice, Codec, Level, Unit, VolumeOptions},
};

/// Relative rates of the kinds of operations.
#[derive(Clone, Debug)]
pub struct VolumeLoad {
    pub write: u64,
    pub read: u64,
    pub discard: u64,
    pub flush: u64,
    pub fua_percent: u64,
    pub queue_depth: usize,
    /// Largest number of blocks of a write.
    pub most_blocks: u64,
    /// Percentage of writes that go to a certain eighth of the volume.
    pub hot_percent: u64,
    /// Half of the operations are at the boundary of two pages of the map.
    pub crosses: bool,
}

/// Parameters of a life of a volume.
#[derive(Clone, Debug)]
pub struct VolumeScenario {
    pub behaviour: VolumeOptions,
    /// Codec of the volume most of the time; Zstandard uses compression workers.
    pub codec: Option<Codec>,
    /// Largest unit of blocks that are compressed together.
    pub unit: Unit,
    /// Number of shards.
    pub shards: u32,
    /// Number of volumes of a pool; 0 for one volume without a pool.
    pub volumes: u64,
    /// Blocks of an extent of the pool.
    pub extent_blocks: u32,
    /// Whether snapshots and clones are made of the volumes of a pool.
    pub snapshots: bool,
    /// Whether space is guaranteed to volumes of a pool.
    pub guarantees: bool,
    /// Size of the volume, or of all of a pool, in percent of the usable blocks.
    pub size_percent: u64,
    /// The volume is filled before anything else.
    pub filled: bool,
    pub load: VolumeLoad,
    /// One of `fault_rarity` events makes a command of a bare drive fail; 0 for none.
    pub fault_rarity: u64,
}

/// Draws the parameters of a life.
pub fn draw(rng: &mut Rng, over: Option<DeviceBelow>) -> (Life, VolumeScenario) {
    let drawn = draw_over(rng);
    let over = over.unwrap_or(drawn);
    let single = over == DeviceBelow::Drive;
    let parities = if let DeviceBelow::Array { parities, .. } = over { parities } else { 0 };
    let members = if parities == 0 { 1 } else { parities + 2 + rng.below(2) as usize };
    let chunk_blocks = 2 << rng.below(2);
    let stripe = chunk_blocks * (members - parities) as u64;
    let zone_size_blocks = (24 + rng.below(50)).next_multiple_of(stripe);
    let weight = |rng: &mut Rng| 1 << rng.below(4);
    let shape = if single { rng.below(6) } else { 0 };
    let drive = if single {
        draw_drive(rng, shape)
    } else {
        over.draw_member(rng, chunk_blocks, (20..26, 8..13), 2 * 640 + 10)
    };
    let fua_stands_alone = single && rng.chance(1, 2);
    let unwritten_fails = rng.chance(1, 4);
    let mut scenario = VolumeScenario {
        behaviour: VolumeOptions {
            choice: if rng.chance(1, 2) { Choice::Greedy } else { Choice::CostBenefit },
            apart: rng.chance(1, 4),
            map_pages: Some(2 + rng.below(3) as usize),
            changed_pages: Some(1 + rng.below(2) as usize),
            fua_stands_alone,
            give_up: false,
        },
        codec: if rng.chance(1, 2) { draw_codec(&mut Rng::new(rng.clone().next_u64())) } else { None },
        unit: Unit::default(),
        shards: 1,
        volumes: 0,
        extent_blocks: 16,
        snapshots: false,
        guarantees: false,
        // Rarely larger than the usable blocks; or full, so that victims are full, too; or with many pages of the
        // map.
        size_percent: if shape == MANY_ZONES {
            100
        } else if shape == MANY_PAGES {
            400 + rng.below(600)
        } else if rng.chance(1, 5) {
            101 + rng.below(60)
        } else {
            20 + rng.below(81)
        },
        filled: single && (shape == MANY_ZONES || rng.chance(1, 6)),
        load: draw_load(rng, shape == MANY_PAGES),
        fault_rarity: 0,
    };
    let mut life = Life {
        over,
        members,
        drive,
        chunk_blocks,
        zone_size_blocks,
        unwritten_fails,
        fua_stands_alone,
        queue_depth: scenario.load.queue_depth,
        // No ticks.
        pace: [weight(rng), weight(rng), 2 * weight(rng), weight(rng), 0],
        in_order: rng.chance(1, 5),
        rounds: 2 + rng.below(4),
        work_events: 1 << (9 + rng.below(if single { 5 } else { 6 })),
        fork_rarity: if single { 60 } else { 400 },
        most_forks: if single { 60 } else { 12 },
        cut_in_recovery_percent: [0, 30, 80][rng.below(3) as usize],
        kill_percent: if rng.chance(1, 2) { 40 } else { 0 },
    };
    scenario.fault_rarity = if rng.chance(1, 3) { 1000 } else { 0 };
    // Compressible data takes a little more than half of its size.
    if scenario.codec.is_some() && rng.chance(1, 2) {
        scenario.size_percent *= 2;
    }
    // Drawn from separate numbers, so that the rest of a life does not change.
    let mut own = Rng::new(rng.clone().next_u64() ^ 2);
    if single && shape > MANY_PAGES && own.chance(1, 12) {
        scenario.draw_large_root(&mut life, &mut own);
    } else if scenario.codec.is_some() {
        let mut own = Rng::new(rng.clone().next_u64());
        scenario.draw_unit(&mut life, &mut own, single && shape > MANY_PAGES);
    }
    let mut own = Rng::new(rng.clone().next_u64() ^ 3);
    if shape < MANY_PAGES && own.chance(1, 4) {
        scenario.draw_shards(&mut life, &mut own);
    }
    let mut own = Rng::new(rng.clone().next_u64() ^ 4);
    if own.chance(1, 3) {
        scenario.volumes = 1 + own.below(4);
        scenario.extent_blocks = 16 * (1 + own.below(6)) as u32;
        scenario.snapshots = own.chance(2, 3);
        scenario.guarantees = own.chance(1, 2);
    }
    (life, scenario)
}

impl VolumeScenario {
    /// Divides the volume into two or three shards, on drives with more zones, also more active ones.
    fn draw_shards(&mut self, life: &mut Life, rng: &mut Rng) {
        self.shards = 2 + rng.below(2) as u32;
        let drive = &mut life.drive;
        drive.zones = drive.zones * self.shards + rng.below(self.shards.into()) as u32;
        (drive.max_open, drive.max_active) = (drive.max_open * self.shards, drive.max_active * self.shards);
        if let Some(zrwa) = &mut drive.zrwa {
            zrwa.max_zones *= self.shards;
        }
    }

    /// Makes a root take several blocks and transfers, on a drive with very many zones and short transfers.
    fn draw_large_root(&mut self, life: &mut Life, rng: &mut Rng) {
        let zone_capacity_blocks = 16 + rng.below(8);
        life.drive = Geometry {
            zones: 1400 + rng.below(300) as u32,
            zone_size_blocks: zone_capacity_blocks + rng.below(5),
            zone_capacity_blocks,
            max_transfer_blocks: 4,
            ..life.drive.clone()
        };
        (self.size_percent, self.filled) = (2 + rng.below(3), false);
        // Each recovery reads the state of all zones.
        (life.rounds, life.most_forks) = (2, 5);
    }

    /// Draws a unit. With `any_drive`, a large unit gets a drive with few zones that have room for it.
    fn draw_unit(&mut self, life: &mut Life, rng: &mut Rng, any_drive: bool) {
        self.unit = *rng.pick(&Unit::all().collect::<Vec<Unit>>());
        let blocks = (self.unit.bytes() / BLOCK) as u64;
        if blocks > 4 && any_drive {
            let zone_capacity_blocks = 16 * blocks + rng.below(6 * blocks);
            life.drive = Geometry {
                zones: 18 + rng.below(4) as u32,
                zone_size_blocks: zone_capacity_blocks + rng.below(9),
                zone_capacity_blocks,
                max_transfer_blocks: (4 * blocks + 2 + rng.below(4 * blocks)) as u32,
                ..life.drive.clone()
            };
            self.load.most_blocks = 3 * blocks;
        }
    }
}

fn draw_codec(rng: &mut Rng) -> Option<Codec> {
    match rng.below(2) {
        0 => Some(Codec::Lz4),
        _ => Level::new(1 + rng.below(3) as u8).map(Codec::Zstd),
    }
}

/// Draws the device below the volume.
fn draw_over(rng: &mut Rng) -> DeviceBelow {
    match rng.below(8) {
        0..4 => DeviceBelow::Drive,
        4 => DeviceBelow::array(*rng.pick(&Policy::ALL), 2, rng),
        kind => DeviceBelow::array(Policy::ALL[kind as usize % Policy::ALL.len()], 1, rng),
    }
}

/// Shapes of drives: with enough zones that a tenth of them is spare, and with a map of many pages.
const MANY_ZONES: u64 = 1;
const MANY_PAGES: u64 = 2;

fn draw_drive(rng: &mut Rng, shape: u64) -> Geometry {
    let zone_capacity_blocks = if shape == MANY_ZONES { 16 + rng.below(8) } else { 16 + rng.below(64) };
    let limit = if rng.chance(1, 2) { 0 } else { 5 + rng.below(4) as u32 };
    Geometry {
        zones: match shape {
            MANY_ZONES => 100 + rng.below(30) as u32,
            MANY_PAGES => 36 + rng.below(20) as u32,
            _ => 18 + rng.below(10) as u32,
        },
        zone_size_blocks: zone_capacity_blocks + rng.below(9),
        zone_capacity_blocks,
        max_open: limit,
        max_active: limit,
        zrwa: None,
        oob_bytes: 0,
        max_transfer_blocks: [4, 8, 16, 64][rng.below(4) as usize],
        max_append_blocks: 0,
        volatile_cache: rng.chance(1, 2),
    }
}

fn draw_load(rng: &mut Rng, crosses: bool) -> VolumeLoad {
    let rate = |rng: &mut Rng, on: u64, most: u64| if rng.chance(on, 100) { 1 + rng.below(most) } else { 0 };
    VolumeLoad {
        write: 20 + rng.below(40),
        read: rate(rng, 60, 20),
        discard: rate(rng, 60, 12),
        flush: rate(rng, 70, 10),
        fua_percent: [0, 10, 50, 100][rng.below(4) as usize],
        queue_depth: 1 + rng.below(12) as usize,
        most_blocks: [1, 4, 12, 40][rng.below(4) as usize],
        hot_percent: [0, 50, 90][rng.below(3) as usize],
        crosses,
    }
}
