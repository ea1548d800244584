//! Common parts of the simulators of volumes and of namespaces: the device below the layer, and playing seeds.

use super::{
    runner::each_seed,
    scenario::{GROUP_BLOCKS, draw_appends, level},
};
use emu::rng::Rng;
use engine::{
    adapt::sequence::Sequencer,
    array::{Array, CreateOptions, Drive},
    device::{Geometry, ZonedDevice, Zrwa},
    raid::policy::Policy,
    runtime::Runtime,
};
use std::{
    ops::Range,
    rc::Rc,
    sync::{Mutex, PoisonError},
};

/// The device below a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceBelow {
    Drive,
    /// Zones of members are written by appends in groups of `group_blocks` blocks, unless that is 0.
    Array {
        policy: Policy,
        parities: usize,
        group_blocks: u32,
    },
}

impl DeviceBelow {
    /// Its name in messages.
    pub fn name(self) -> String {
        match self {
            DeviceBelow::Drive => "drive".into(),
            DeviceBelow::Array { policy, parities, group_blocks } => {
                format!("{} {}", level(parities), policy.name_with(group_blocks))
            }
        }
    }

    /// An array with this policy; with the policy `log` half of them write their zones by appends.
    pub(super) fn array(policy: Policy, parities: usize, rng: &Rng) -> DeviceBelow {
        let appends = policy == Policy::Log && draw_appends(rng);
        DeviceBelow::Array { policy, parities, group_blocks: if appends { GROUP_BLOCKS } else { 0 } }
    }

    /// Creates it from new drives; an array has chunks and zones of the given numbers of blocks.
    pub(super) async fn create(
        self,
        runtime: &Runtime,
        drives: Vec<Drive>,
        uuid: [u8; 16],
        (chunk_blocks, zone_size_blocks): (u64, u64),
    ) -> Result<Rc<dyn ZonedDevice>, String> {
        let DeviceBelow::Array { policy, parities, group_blocks } = self else {
            return sequenced(runtime, &drives);
        };
        let options = CreateOptions {
            group_blocks,
            chunk_blocks,
            zone_size_blocks: Some(zone_size_blocks),
            parities,
            policy: Some(policy),
            ..CreateOptions::new("simulated", uuid)
        };
        Ok(Rc::new(Array::create(runtime, options, drives).await.map_err(|e| e.to_string())?))
    }

    /// Draws a member of such an array, with room in its metadata log for all open zones: from these ranges of numbers
    /// of zones and of active zones, and with zones of `appended_blocks` blocks if they are written by appends.
    pub(super) fn draw_member(
        self,
        rng: &mut Rng,
        chunk_blocks: u64,
        (zones, active): (Range<u32>, Range<u32>),
        appended_blocks: u64,
    ) -> Geometry {
        let (policy, appends) = match self {
            DeviceBelow::Array { policy, group_blocks, .. } => (policy, group_blocks > 0),
            DeviceBelow::Drive => (Policy::Log, false),
        };
        let zone_capacity_blocks = if appends { appended_blocks } else { 640 };
        let one_of = |range: Range<u32>, rng: &mut Rng| range.start + rng.below(range.len() as u64) as u32;
        let limit = one_of(active, rng);
        let size_blocks = chunk_blocks * 12;
        let granularity_blocks = 1 << rng.below(chunk_blocks.trailing_zeros() as u64);
        let zrwa = Zrwa { size_blocks, granularity_blocks, max_zones: limit };
        Geometry {
            zones: one_of(zones, rng),
            zone_size_blocks: zone_capacity_blocks,
            zone_capacity_blocks,
            max_open: limit,
            max_active: limit,
            zrwa: policy.uses_zrwa().then_some(zrwa),
            oob_bytes: if appends || policy == Policy::InPlace { 16 } else { 0 },
            max_transfer_blocks: 16,
            max_append_blocks: if appends { 4 } else { 0 },
            volatile_cache: rng.chance(1, 2),
        }
    }
}

/// A bare drive, written in order.
pub(super) fn sequenced(runtime: &Runtime, drives: &[Drive]) -> Result<Rc<dyn ZonedDevice>, String> {
    let drive = drives.first().ok_or("there is no drive")?;
    Ok(Rc::new(Sequencer::new(runtime, drive.device.clone())))
}

/// The result of one seed.
#[derive(Clone, Debug)]
pub struct LayerOutcome<C> {
    pub seed: u64,
    pub over: DeviceBelow,
    pub counts: C,
    /// The broken promise, or the panic.
    pub failure: Option<String>,
    pub trace: Vec<String>,
}

/// Results of many seeds.
#[derive(Clone, Debug, Default)]
pub struct LayerSummary<C> {
    pub seeds: u64,
    pub counts: C,
    /// In order of their seeds.
    pub failures: Vec<LayerOutcome<C>>,
}

/// Plays all `seeds` with `play` on `jobs` threads, and sums up the counters. `finished` is called after each seed.
pub(super) fn run_seeds<C: Default + Send>(
    play: &(dyn Fn(u64) -> LayerOutcome<C> + Sync),
    add: fn(&mut C, &C),
    seeds: Range<u64>,
    jobs: usize,
    finished: &(dyn Fn() + Sync),
) -> LayerSummary<C> {
    let total = Mutex::new(LayerSummary::default());
    each_seed(seeds, jobs, &|seed| {
        let outcome = play(seed);
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        total.seeds += 1;
        add(&mut total.counts, &outcome.counts);
        if outcome.failure.is_some() {
            total.failures.push(outcome);
        }
        drop(total);
        finished();
    });
    let mut summary = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    summary.failures.sort_by_key(|failure| failure.seed);
    summary
}
