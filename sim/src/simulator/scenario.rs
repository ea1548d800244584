//! The scenario of one seed: drives, load, faults and scheduling, all drawn from the seed.
//!
//! This is swarm testing: each seed enables a random subset of operations and faults, with rates of its own. A run that
//! does everything at an average rate rarely reaches a corner case; a run that does little but, for example, small FUA
//! writes and finishes reaches many.

use emu::{
    rng::Rng,
    ssd::compress::{Choice, Scheme, Slots},
};
use engine::{
    device::{Geometry, Zrwa},
    format::oob::SUMMED_OOB_BYTES,
    raid::{
        geometry::{MAX_MEMBERS, MAX_PARITIES},
        policy::Policy,
    },
};

pub use engine::format::superblock::level;

/// Possible numbers of parities of an array with several members, and so of members that may be lost.
pub const PARITIES: &[usize] = &[1, 2];

/// The number of parities of the level with this name, if there is one.
pub fn parities_of(name: &str) -> Option<usize> {
    (0..=MAX_PARITIES).find(|parities| level(*parities) == name)
}

/// Relative rates of the kinds of operations.
#[derive(Clone, Debug, Default)]
pub struct Load {
    pub write: u64,
    pub append: u64,
    pub flush: u64,
    pub read: u64,
    pub report: u64,
    pub reset: u64,
    pub reset_all: u64,
    pub finish: u64,
    pub open: u64,
    pub close: u64,
    /// Invalid commands, which must be refused.
    pub wrong: u64,
    pub fua_percent: u64,
    pub queue_depth: usize,
    /// Percentage of resets and finishes that are submitted with operations in flight in their zone.
    pub race_percent: u64,
    /// Number of zones that most operations go to.
    pub hot_zones: u64,
    /// Relative rates of writes below a chunk, around a chunk, and up to three stripes.
    pub sizes: [u64; 3],
    /// Percentage of writes that end at the end of a chunk.
    pub aligned_percent: u64,
}

/// Relative rates of the kinds of events.
#[derive(Clone, Debug)]
pub struct Pace {
    pub execute: u64,
    pub deliver: u64,
    pub step: u64,
    pub issue: u64,
    /// Commands of a drive are executed oldest first, instead of in any order.
    pub in_order: bool,
    /// Number of commands in 1000 that are delayed, by up to `spike_events`.
    pub spike_permille: u64,
    pub spike_events: u64,
    /// Number of events in 10,000 that slow one drive down for a while.
    pub slow_per_myriad: u64,
}

/// Rates of faults. Percentages are of power cuts, the other rates of 100,000 events.
#[derive(Clone, Debug, Default)]
pub struct Misfortune {
    /// The process is killed instead of a power cut; the drives keep power.
    pub kill_percent: u64,
    /// The host is restarted instead of a power cut: the process is killed, the drives are shut down in good order.
    pub shutdown_percent: u64,
    pub member_lost_percent: u64,
    pub zrwa_lost_percent: u64,
    pub cut_in_recovery_percent: u64,
    pub fault_in_recovery_percent: u64,
    pub cut_in_rebuild_percent: u64,
    pub stale_returns_percent: u64,
    /// Assemblies without a member that are in deferred-write mode.
    pub hold_back_percent: u64,
    /// Percentage of work phases that begin with a copy of a member's drive.
    pub copies_percent: u64,
    /// Drives that do not belong to the array are offered beside its own.
    pub strangers_percent: u64,
    /// Spares that are not blank.
    pub used_spare_percent: u64,
    pub drain_percent: u64,
    pub write_fault: u64,
    pub read_fault: u64,
    pub silence: u64,
    pub vanish: u64,
    pub dead_block: u64,
    pub dead_zone: u64,
    pub fail: u64,
    /// A command of any kind fails, or is executed after the host gave up waiting.
    pub command: u64,
    /// A zone is scrubbed.
    pub scrub: u64,
    /// Seed of the moments and zones of scrubs.
    pub scrub_seed: u64,
    /// A drive fails silently: never drawn, only set explicitly.
    pub silent: u64,
    /// Forks include cases that are known to fail occasionally: never drawn, only set explicitly.
    pub beyond: bool,
    /// A drive loses power or is reset while the host keeps running.
    pub power: u64,
    /// Percentage of kills that are followed by power losses of drives before the next process starts.
    pub power_after_kill_percent: u64,
    /// Drives report no power epoch; neither of the two faults above occurs then.
    pub power_hidden: bool,
    pub repair: u64,
    /// A working drive is replaced.
    pub replace: u64,
    /// Name, host or autostart of the running array are changed.
    pub change: u64,
    /// Percentage of recoveries that follow a change of name, host or autostart, completed or interrupted.
    pub change_percent: u64,
    /// The life ends with the destruction of the array.
    pub destroy_percent: u64,
}

impl Misfortune {
    /// Without faults of drives, which a single drive has no parity for.
    fn without_faults(self) -> Misfortune {
        Misfortune {
            member_lost_percent: 0,
            zrwa_lost_percent: 0,
            fault_in_recovery_percent: 0,
            stale_returns_percent: 0,
            write_fault: 0,
            read_fault: 0,
            silence: 0,
            vanish: 0,
            dead_block: 0,
            dead_zone: 0,
            fail: 0,
            command: 0,
            power: 0,
            ..self
        }
    }
}

/// Most forks of a life. A fork is judged as often as a dozen power cuts.
const MOST_FORKS: u64 = 10;

/// Size of a stripe, parity included, above which a life does less, so that it takes no longer than others.
const COSTLY_BLOCKS: u64 = 48;

/// All parameters that a seed determines in advance.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub policy: Policy,
    pub members: usize,
    /// Number of members that may be lost: 1 or 2.
    pub parities: usize,
    /// The geometry of the drives; if they are `mixed`, the minimum of each.
    pub drive: Geometry,
    pub mixed: bool,
    /// Reads of unwritten blocks fail, instead of returning zeros.
    pub unwritten_fails: bool,
    /// A finish discards the contents of the zone's ZRWA.
    pub finish_drops: bool,
    /// A write with FUA makes only its own blocks durable.
    pub fua_alone: bool,
    /// A block may tear inside if the power is cut while it is written. Never drawn: the host refuses such drives.
    pub sectors_tear: bool,
    /// Drives compress their data, which a host can only detect by their remaining capacity.
    pub compression: Option<Scheme>,
    pub chunk_blocks: u64,
    /// Number of small zones of a drive that are used as one.
    pub aggregate: u32,
    /// As in [`engine::array::CreateOptions`].
    pub spare_zones: u32,
    /// As in [`engine::array::CreateOptions`].
    pub zone_size_blocks: Option<u64>,
    /// Policy `log`: metadata logs are so small that power cuts may displace more blocks than they have room for.
    pub cramped: bool,
    /// Blocks of a group if zones are written by appends, otherwise 0.
    pub group_blocks: u32,
    /// Blocks that share a checksum block if checksums are in blocks of the zones, otherwise 0.
    pub checksum_group_blocks: u32,
    /// Whether the array merges queued writes.
    pub join: bool,
    pub load: Load,
    pub pace: Pace,
    pub misfortune: Misfortune,
    /// Number of power cuts of a run.
    pub rounds: u64,
    /// Most events between two power cuts.
    pub work_events: u64,
    /// Most forks of the run.
    pub forks: u64,
}

impl Scenario {
    /// Data chunks in a stripe.
    pub fn data_chunks(&self) -> u64 {
        // A single drive is a member without parity.
        self.members.saturating_sub(self.parities).max(1) as u64
    }

    /// Whether there is no array: a layer lies on a drive.
    pub fn is_bare(&self) -> bool {
        self.members <= self.parities
    }

    /// Draws a scenario for the given policy and number of parities, or for any.
    pub fn draw(rng: &mut Rng, policy: Option<Policy>, parities: Option<usize>) -> Scenario {
        let drawn = draw_kind(rng);
        let (policy, parities) = (policy.unwrap_or(drawn.0), parities.unwrap_or(drawn.1));
        let members = draw_members(rng);
        let (policy, members) = match parities {
            0 => (Policy::Log, 1),
            _ => (policy, (members + parities - 1).min(MAX_MEMBERS)),
        };
        let chunk_blocks = if rng.chance(1, 8) { 16 << rng.below(2) } else { 2 << rng.below(3) };
        let small_zones = policy.uses_zrwa() && rng.chance(1, 5);
        let cramped = policy == Policy::Log && rng.chance(1, 2);
        let (mut drive, aggregate) =
            draw_drive(rng, (policy, parities), chunk_blocks, (small_zones, cramped));
        let zone_size_blocks = rng.chance(1, 4).then(|| {
            let row = chunk_blocks * (members - parities) as u64;
            let rows = aggregate as u64 * drive.zone_capacity_blocks / chunk_blocks;
            row + rng.below(rows * row + rows * row / 4)
        });
        // An event takes time in proportion to the size of the array.
        let size = members as u64 * chunk_blocks;
        let costly = if size > COSTLY_BLOCKS { (size / COSTLY_BLOCKS).ilog2() as u64 + 1 } else { 0 };
        let work_events = 1 << (8 + rng.below(6 - costly.min(4)));
        let mut misfortune = draw_misfortune(rng);
        // A separate generator: the other draws stay the same.
        let mut spares = Rng::new(rng.clone().next_u64() ^ 1);
        let spare_zones = [0, 1 + spares.below(3) as u32][spares.below(2) as usize];
        drive.zones += aggregate * spare_zones;
        if spare_zones > 0 && misfortune.dead_zone > 0 {
            misfortune.dead_zone += spares.below(100);
        }
        if parities == 0 {
            misfortune = misfortune.without_faults();
        }
        if cramped {
            // A member that cannot keep displaced blocks needs a repair, and may be the only such member.
            (misfortune.dead_block, misfortune.dead_zone) = (0, 0);
        }
        Scenario {
            policy,
            members,
            parities,
            chunk_blocks,
            aggregate,
            zone_size_blocks,
            cramped,
            load: draw_load(rng),
            pace: draw_pace(rng),
            misfortune,
            rounds: 3 + rng.below(if cramped { 3 } else { 6 }),
            work_events,
            forks: (MOST_FORKS >> costly).max(1),
            spare_zones,
            finish_drops: drive.zrwa.is_some() && rng.chance(1, 2),
            fua_alone: drive.volatile_cache && rng.chance(1, 2),
            sectors_tear: false,
            // A separate generator: the other draws stay the same.
            compression: draw_compression(&mut Rng::new(rng.clone().next_u64()), &drive),
            drive,
            mixed: !small_zones && rng.chance(1, 4),
            unwritten_fails: rng.chance(1, 4),
            group_blocks: 0,
            checksum_group_blocks: 0,
            join: rng.chance(3, 4),
        }
    }
}

impl Scenario {
    /// Whether the blocks of the array have checksums: half of the time where the drives have room for them. It is not
    /// drawn, so that the draws stay the same.
    pub fn has_checksums(&self) -> bool {
        let drive = &self.drive;
        let has_room = drive.oob_bytes as usize >= SUMMED_OOB_BYTES && self.group_blocks != 1;
        self.checksum_group_blocks > 0
            || has_room && (drive.zones as u64 + drive.zone_capacity_blocks).is_multiple_of(2)
    }

    /// Gives the array checksums in blocks of the zones, in half of all cases, on drives without room for them in
    /// metadata.
    pub fn store_checksums(&mut self) {
        let drive = &mut self.drive;
        // A separate generator: the other draws stay the same.
        let mut rng = Rng::new(drive.zone_capacity_blocks ^ (drive.zones as u64) << 32);
        if drive.oob_bytes as usize >= SUMMED_OOB_BYTES || rng.chance(1, 2) {
            return;
        }
        match drive.zrwa.as_mut().filter(|_| self.policy == Policy::Zrwa) {
            None => {
                self.checksum_group_blocks = *rng.pick(&[1, 3, 8, 13, 64, 1008]);
                let groups = drive.zone_capacity_blocks / self.checksum_group_blocks as u64 + 1;
                drive.zone_capacity_blocks += groups;
            }
            Some(zrwa) => {
                // A bundle is no smaller than a ZRWA. On mixed drives a zone has one, whatever their granularity.
                let parts = self.aggregate as u64;
                let granularity = zrwa.granularity_blocks;
                let least = parts * zrwa.size_blocks / granularity;
                let more = if self.mixed { 1008 } else { *rng.pick(&[0, 1, 5, 13, 100]) };
                let group = (least + more).min(1008);
                self.checksum_group_blocks = group as u32;
                if parts == 1 {
                    zrwa.size_blocks += granularity;
                }
                let data = parts * drive.zone_capacity_blocks;
                let sums = (data / (group * granularity) + 1) * granularity;
                // The last bundle may have to be as large as a ZRWA.
                let all = data + sums + parts * zrwa.size_blocks + 4 * granularity;
                let unit = if parts > 1 { zrwa.size_blocks } else { 1 };
                drive.zone_capacity_blocks = all.div_ceil(parts).next_multiple_of(unit);
            }
        }
        drive.zone_size_blocks = drive.zone_size_blocks.max(drive.zone_capacity_blocks);
        // An array with checksum blocks reserves another active zone.
        let more = |limit: &mut u32| *limit += if *limit > 0 { self.aggregate } else { 0 };
        [&mut drive.max_open, &mut drive.max_active].into_iter().for_each(more);
        drive.zrwa.iter_mut().for_each(|zrwa| zrwa.max_zones += self.aggregate);
    }

    /// With checksums in blocks of the zones of a drive: the data blocks of a bundle, and the blocks behind them.
    pub fn bundle(&self, drive: &Geometry) -> Option<(u64, u64)> {
        let sums = match self.policy {
            Policy::Zrwa => drive.zrwa.map_or(1, |zrwa| zrwa.granularity_blocks),
            _ => 1,
        };
        (self.checksum_group_blocks > 0).then_some((self.checksum_group_blocks as u64 * sums, sums))
    }

    /// Makes the array write its zones by appends, on drives that support appends.
    pub fn append(&mut self, rng: &mut Rng) {
        self.group_blocks = *rng.pick(&[1, 2, 4, 16, 64, 4096]);
        let drive = &mut self.drive;
        // Marks, in half of all cases with room for checksums.
        drive.oob_bytes = drive.oob_bytes.max(16 + 4 * (drive.zones % 2));
        drive.max_append_blocks = if drive.max_append_blocks == 0 { 4 } else { drive.max_append_blocks };
        // The minimum reserve of a zone, or more: it is soon used up.
        drive.zone_capacity_blocks += 8 + drive.zone_capacity_blocks / 48;
        drive.zone_size_blocks = drive.zone_size_blocks.max(drive.zone_capacity_blocks);
    }
}

/// Whether zones of an array of the policy `log` are written by appends: half of the time, from a separate generator,
/// so that the other draws stay the same.
pub(super) fn draw_appends(rng: &Rng) -> bool {
    Rng::new(rng.clone().next_u64()).chance(1, 2)
}

/// Blocks of a group below volumes and namespaces on zones that are written by appends: a zone has several.
pub const GROUP_BLOCKS: u32 = 16;

/// Shares of the policies and numbers of parities: chosen so that all get about the same running time, forks included.
const SHARES: [(Policy, usize, u64); 6] = [
    (Policy::Zrwa, 1, 6),
    (Policy::Log, 1, 6),
    (Policy::InPlace, 1, 6),
    (Policy::Zrwa, 2, 4),
    (Policy::Log, 2, 4),
    (Policy::InPlace, 2, 5),
];

fn draw_kind(rng: &mut Rng) -> (Policy, usize) {
    let mut draw = rng.below(SHARES.iter().map(|(_, _, share)| share).sum());
    for (policy, parities, share) in SHARES {
        if draw < share {
            return (policy, parities);
        }
        draw -= share;
    }
    (Policy::Zrwa, 1)
}

/// Draws the number of members: mostly few; one life in 64 has 10 or more.
fn draw_members(rng: &mut Rng) -> usize {
    let members = match rng.below(64) {
        0 => 10 + rng.below(23),
        1..9 => 3 + rng.below(7),
        _ => 3 + rng.below(4),
    };
    members as usize
}

/// Draws a drive that has at least the resources of `least`.
pub(super) fn draw_roomier(rng: &mut Rng, least: &Geometry) -> Geometry {
    let more = |rng: &mut Rng, most: u64| if rng.chance(1, 2) { 0 } else { rng.below(most) };
    let more_of_limit = |rng: &mut Rng, limit: u32| match limit {
        0 => 0,
        limit => limit + more(rng, 4) as u32,
    };
    let zone_capacity_blocks = least.zone_capacity_blocks + more(rng, 40);
    let zrwa = least.zrwa.map(|zrwa| Zrwa {
        size_blocks: (zrwa.size_blocks + more(rng, 4) * zrwa.granularity_blocks).min(zone_capacity_blocks),
        granularity_blocks: if rng.chance(1, 2) { zrwa.granularity_blocks } else { 1 },
        max_zones: more_of_limit(rng, zrwa.max_zones),
    });
    let max_open = more_of_limit(rng, least.max_open);
    Geometry {
        zones: least.zones + more(rng, 3) as u32,
        zone_size_blocks: least.zone_size_blocks.max(zone_capacity_blocks) + more(rng, 9),
        zone_capacity_blocks,
        max_open,
        max_active: if least.max_active == 0 {
            0
        } else {
            (least.max_active + more(rng, 4) as u32).max(max_open)
        },
        zrwa,
        max_transfer_blocks: least.max_transfer_blocks << more(rng, 2),
        volatile_cache: least.volatile_cache && rng.chance(1, 2),
        ..least.clone()
    }
}

/// Draws a drive and how many of its zones are used as one (with `small_zones`, several). If it is `cramped`, its
/// metadata log soon has no room left for the blocks that power cuts displace.
fn draw_drive(
    rng: &mut Rng,
    (policy, parities): (Policy, usize),
    chunk_blocks: u64,
    (small_zones, cramped): (bool, bool),
) -> (Geometry, u32) {
    let whole_chunks = (policy == Policy::InPlace) as u64;
    let fg = 1u64 << rng.below(chunk_blocks.trailing_zeros() as u64 + whole_chunks);
    // A chunk, and the slots of each parity.
    let fewest = policy.rows_in_zrwa(parities);
    let (factor, zrwa_blocks) = if small_zones {
        let blocks = (fg * (1 + rng.below(fewest * chunk_blocks / fg - 1))).max(chunk_blocks / 2);
        ((2 * fewest * chunk_blocks).div_ceil(blocks).next_power_of_two(), blocks)
    } else {
        let chunks = match rng.chance(1, 4) {
            true => fewest + rng.below(fewest),
            false => 2 * fewest + rng.below(2 * fewest + 1),
        };
        (1, chunks * chunk_blocks)
    };
    let window_chunks = factor * zrwa_blocks / chunk_blocks;
    let distance = window_chunks / fewest;
    let zones = 4 + rng.below(7) as u32;
    // One of the limits is binding; the others are no tighter, or absent.
    let limit = 3 + rng.below(if chunk_blocks >= 8 { 3 } else { 5 }) as u32;
    let mut limits = [limit; 3];
    for other in rng.pick(&[[0, 1], [1, 2], [0, 2]]) {
        limits[*other] = if rng.chance(1, 2) { 0 } else { limit + rng.below(4) as u32 };
    }
    let [max_open, max_active, max_zones] = limits;
    let max_zones = if max_zones == 0 { zones } else { max_zones };
    let max_active = if max_active == 0 { 0 } else { max_active.max(max_open) };
    // Large enough for a window, and for a checkpoint with the partial parity of all open zones; often not a block
    // larger, so that the metadata log is full all the time.
    let decisive = [max_open, max_active, max_zones].into_iter().filter(|limit| *limit > 0).min();
    let open = decisive.unwrap_or(limit) as u64 - 2;
    // Each chunk of partial parity is a record with a header, and a member keeps some of each parity.
    let records = |count: u64, header: u64| parities as u64 * count * (chunk_blocks + header);
    let metadata = 11
        + chunk_blocks
        + match policy {
            Policy::Log => records(2 * open + if cramped { 30 } else { 120 }, 1),
            Policy::InPlace => records(open * distance.div_ceil(3), 4),
            Policy::Zrwa => records(open * distance, 1),
        };
    let least = metadata.max(chunk_blocks * (window_chunks + 2));
    let spare = if rng.chance(1, 2) { 0 } else { rng.below(3 * chunk_blocks + 32) };
    let grain = match rng.below(10) {
        0..6 => chunk_blocks,
        6..9 => fg,
        _ => 1,
    };
    let grain = if small_zones { factor * zrwa_blocks } else { grain };
    let zone_capacity_blocks = (least + spare).next_multiple_of(grain) / factor;
    let zone_size_blocks =
        if rng.chance(1, 4) { zone_capacity_blocks } else { zone_capacity_blocks.next_power_of_two() };
    let parts = |zones: u32| zones * factor as u32;
    let zrwa = Zrwa { size_blocks: zrwa_blocks, granularity_blocks: fg, max_zones: parts(max_zones) };
    let drive = Geometry {
        zones: parts(zones) + rng.below(factor) as u32,
        zone_size_blocks,
        zone_capacity_blocks,
        max_open: parts(max_open),
        max_active: parts(max_active),
        zrwa: (policy.uses_zrwa() || rng.chance(1, 4)).then_some(zrwa),
        oob_bytes: match (policy, rng.chance(1, 2)) {
            (_, true) => 64,
            (Policy::InPlace, false) => 16,
            _ => 0,
        },
        max_transfer_blocks: [8, 16, 32, 64][rng.below(4) as usize].max(chunk_blocks as u32),
        max_append_blocks: [0, 8, 32][rng.below(3) as usize],
        // Small zones with volatile caches are refused; with this rate about half of all lives have volatile caches.
        volatile_cache: !small_zones && rng.chance(9, 16),
    };
    (drive, factor as u32)
}

/// One drive in six compresses, if it has a ZRWA.
fn draw_compression(rng: &mut Rng, drive: &Geometry) -> Option<Scheme> {
    let schemes = [
        Scheme::Braid(Choice::BySizes),
        Scheme::Braid(Choice::AlwaysBraided),
        Scheme::Balloon(Slots::LeastSpace),
    ];
    (drive.zrwa.is_some() && rng.chance(1, 6)).then(|| *rng.pick(&schemes))
}

/// A rate that is often zero.
fn rate(rng: &mut Rng, on_percent: u64, most: u64) -> u64 {
    if rng.chance(on_percent, 100) { 1 + rng.below(most) } else { 0 }
}

fn draw_load(rng: &mut Rng) -> Load {
    Load {
        write: 20 + rng.below(60),
        append: rate(rng, 40, 30),
        flush: rate(rng, 60, 15),
        read: rate(rng, 60, 20),
        report: rate(rng, 30, 5),
        reset: rate(rng, 70, 8),
        reset_all: rate(rng, 15, 1),
        finish: rate(rng, 50, 5),
        open: rate(rng, 30, 4),
        close: rate(rng, 30, 4),
        wrong: rate(rng, 20, 3),
        fua_percent: [0, 5, 20, 50, 100][rng.below(5) as usize],
        queue_depth: 1 + rng.below(16) as usize,
        race_percent: rate(rng, 40, 100),
        hot_zones: 1 + rng.below(3),
        sizes: [1 + rng.below(10), rng.below(6), rng.below(4)],
        aligned_percent: [0, 20, 80][rng.below(3) as usize],
    }
}

fn draw_pace(rng: &mut Rng) -> Pace {
    let weight = |rng: &mut Rng| 1 << rng.below(4);
    Pace {
        execute: weight(rng),
        deliver: weight(rng),
        step: 2 * weight(rng),
        issue: weight(rng),
        in_order: rng.chance(1, 5),
        spike_permille: rate(rng, 30, 50),
        spike_events: 10 + rng.below(300),
        slow_per_myriad: rate(rng, 30, 50),
    }
}

fn draw_misfortune(rng: &mut Rng) -> Misfortune {
    let faults = rng.chance(1, 2);
    let on = |percent: u64| if faults { percent } else { 0 };
    // A separate generator: the other draws stay the same.
    let mut owner = Rng::new(rng.clone().next_u64());
    let mut losses = Rng::new(rng.clone().next_u64() ^ 2);
    let mut scrubs = Rng::new(rng.clone().next_u64() ^ 3);
    let power_hidden = losses.chance(1, 4);
    let with_power = |rate: u64| if power_hidden { 0 } else { rate };
    Misfortune {
        power: with_power(rate(&mut losses, on(40), 60)),
        power_after_kill_percent: with_power(rate(&mut losses, 50, 50)),
        power_hidden,
        kill_percent: rate(rng, 50, 50),
        shutdown_percent: rate(rng, 50, 50),
        member_lost_percent: [70, 90, 100][rng.below(3) as usize],
        zrwa_lost_percent: rate(rng, 30, 50),
        cut_in_recovery_percent: rate(rng, 60, 80),
        cut_in_rebuild_percent: rate(rng, 60, 80),
        stale_returns_percent: rate(rng, 60, 100),
        hold_back_percent: rate(rng, 50, 100),
        copies_percent: rate(rng, 40, 60),
        strangers_percent: rate(rng, 30, 40),
        used_spare_percent: rate(rng, 60, 100),
        drain_percent: rate(rng, 50, 30),
        write_fault: rate(rng, on(25), 60),
        read_fault: rate(rng, on(25), 60),
        silence: rate(rng, on(25), 60),
        vanish: rate(rng, on(40), 60),
        dead_block: rate(rng, on(25), 60),
        dead_zone: rate(rng, on(25), 60),
        fail: rate(rng, on(25), 60),
        command: rate(rng, on(40), 60),
        scrub: rate(&mut scrubs, 50, 600),
        scrub_seed: scrubs.next_u64(),
        silent: 0,
        beyond: false,
        repair: 200 + rng.below(3000),
        replace: rate(rng, 60, 600),
        change: rate(&mut owner, 40, 600),
        change_percent: rate(&mut owner, 30, 50),
        destroy_percent: [0, 25][owner.below(2) as usize],
        fault_in_recovery_percent: rate(rng, on(50), 60),
    }
}
