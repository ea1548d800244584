//! What the simulators of volumes and of namespaces share. A *layer* is either of them, on a drive or an array. Its
//! [`world`] has drives, tasks and random numbers; [`step`] executes events, [`lifecycle`] ends and recovers, [`seeds`]
//! runs many lives. What differs between the two is behind [`world::LayerModel`].

pub mod lifecycle;
pub mod seeds;
pub mod step;
pub mod world;

use super::scenario::{GROUP_BLOCKS, draw_appends, level};
use emu::rng::Rng;
use engine::{
    adapt::sequence::Sequencer,
    array::Drive,
    device::{Geometry, ZonedDevice, Zrwa},
    raid::policy::Policy,
    runtime::Runtime,
};
use std::{ops::Range, rc::Rc};

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
