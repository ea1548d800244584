//! Parameters drawn from a seed: the device, the namespaces, their load, and the ends of processes.

use crate::simulator::layer::{DeviceBelow, world::Life};
use emu::rng::Rng;
use engine::{device::Geometry, qos::Qos, raid::policy::Policy, vzone::Spec};

/// Parameters of a life of namespaces.
#[derive(Clone, Debug)]
pub struct NamespaceScenario {
    pub vzone_zones: u32,
    pub patience_us: u64,
    /// Namespaces that are added at the start, as long as there is room.
    pub namespaces: Vec<Spec>,
    /// Relative rates of writes, reads, flushes, finishes and resets.
    pub load: [u64; 5],
    /// Limits of tenants are changed while they work.
    pub limits: bool,
    /// Namespaces are added, resized and removed while others work.
    pub reshapes: bool,
    pub fua_percent: u64,
    pub most_blocks: u64,
}

/// Draws the parameters of a life.
pub fn draw(rng: &mut Rng, over: Option<DeviceBelow>) -> (Life, NamespaceScenario) {
    let drawn = match rng.below(6) {
        0..4 => DeviceBelow::Drive,
        kind => {
            let policy = Policy::ALL[(kind as usize + rng.below(3) as usize) % Policy::ALL.len()];
            DeviceBelow::array(policy, 1, rng)
        }
    };
    let over = over.unwrap_or(drawn);
    let single = over == DeviceBelow::Drive;
    let members = if single { 1 } else { 3 + rng.below(2) as usize };
    let chunk_blocks = 2 << rng.below(2);
    let stripe = chunk_blocks * (members as u64 - 1).max(1);
    let weight = |rng: &mut Rng| 1 << rng.below(4);
    let vzone_zones = 1 + rng.below(if single { 8 } else { 4 }) as u32;
    let drive = match single {
        true => draw_drive(rng),
        false => over.draw_member(rng, chunk_blocks, (24..32, 10..16), 640 + 10),
    };
    let zone_size_blocks = (24 + rng.below(50)).next_multiple_of(stripe);
    let (unwritten_fails, fua_stands_alone) = (rng.chance(1, 4), rng.chance(1, 2));
    let mut scenario = NamespaceScenario {
        vzone_zones,
        patience_us: 1 << (8 + rng.below(8)),
        namespaces: (0..1 + rng.below(4)).map(|index| draw_spec(rng, index, vzone_zones)).collect(),
        load: [20 + rng.below(40), rng.below(15), rng.below(8), rng.below(4), rng.below(5)],
        // Drawn from separate numbers, so that the rest of a life does not change.
        limits: Rng::new(rng.clone().next_u64()).chance(1, 3),
        reshapes: Rng::new(!rng.clone().next_u64()).chance(1, 3),
        fua_percent: [0, 10, 50, 100][rng.below(4) as usize],
        most_blocks: 0,
    };
    let queue_depth = 1 + rng.below(12) as usize;
    scenario.most_blocks = [1, 4, 12, 24][rng.below(4) as usize];
    let mut life = Life {
        over,
        members,
        drive,
        chunk_blocks,
        zone_size_blocks,
        unwritten_fails,
        fua_stands_alone,
        queue_depth,
        pace: [2 * weight(rng), 2 * weight(rng), 4 * weight(rng), weight(rng), 1],
        in_order: rng.chance(1, 5),
        rounds: 2 + rng.below(4),
        work_events: 1 << (9 + rng.below(4)),
        fork_rarity: if single { 50 } else { 300 },
        most_forks: if single { 60 } else { 10 },
        cut_in_recovery_percent: [0, 40, 80][rng.below(3) as usize],
        kill_percent: if single && rng.chance(1, 2) { 40 } else { 0 },
    };
    // Drawn from separate numbers, so that the rest of a life does not change.
    let mut own = Rng::new(rng.clone().next_u64() ^ 2);
    if single && own.chance(1, 8) {
        scenario.crowd(&mut life, &mut own);
    }
    (life, scenario)
}

impl NamespaceScenario {
    /// Draws enough namespaces and zones that a checkpoint of the journal takes several blocks, on a drive with
    /// short transfers.
    fn crowd(&mut self, life: &mut Life, rng: &mut Rng) {
        self.vzone_zones = 1;
        life.drive.zones = 130 + rng.below(60) as u32;
        life.drive.zone_capacity_blocks = 12 + rng.below(8);
        life.drive.zone_size_blocks = life.drive.zone_capacity_blocks + rng.below(4);
        (life.drive.max_open, life.drive.max_active) = (0, 0);
        life.drive.max_transfer_blocks = 1 + rng.below(3) as u32;
        let large = |index| {
            let zones = 8 + rng.below(5) as u32;
            let name = format!("tenant-of-many-zones-{index}");
            Spec { name, zones, max_active: 4, max_open: 4, ..draw_spec(rng, index, 1) }
        };
        self.namespaces = (0..10).map(large).collect();
        self.reshapes = false;
        // Each recovery reads all zones.
        life.rounds = 2;
        (life.most_forks, life.fork_rarity) = (8, 400);
        life.work_events = life.work_events.max(1 << 12);
    }
}

/// Draws a namespace; `index` is part of its name.
pub fn draw_spec(rng: &mut Rng, index: u64, vzone_zones: u32) -> Spec {
    let zones = 1 + rng.below(4) as u32;
    let essential = 1 << rng.below(2);
    let max_active = 1 + rng.below(zones as u64) as u32;
    Spec {
        name: format!("tenant{index}"),
        zones,
        max_active,
        max_open: 1 + rng.below(max_active as u64) as u32,
        essential: if essential > vzone_zones { 1 } else { essential },
        weight: 1 + rng.below(3) as u32,
        qos: Qos::default(),
    }
}

fn draw_drive(rng: &mut Rng) -> Geometry {
    let zone_capacity_blocks = 5 + rng.below(16);
    let limit = if rng.chance(1, 5) { 0 } else { 8 + rng.below(16) as u32 };
    Geometry {
        zones: 30 + rng.below(50) as u32,
        zone_size_blocks: zone_capacity_blocks + rng.below(4),
        zone_capacity_blocks,
        max_open: limit,
        max_active: limit,
        zrwa: None,
        oob_bytes: 0,
        max_transfer_blocks: [4, 8, 24][rng.below(3) as usize],
        max_append_blocks: 0,
        volatile_cache: rng.chance(1, 2),
    }
}
