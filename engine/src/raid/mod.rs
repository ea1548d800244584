//! RAID over zones.

pub mod change;
pub mod create;
pub mod error;
pub mod events;
pub mod geometry;
pub mod health;
pub mod policy;
pub mod status;

pub(crate) mod bad_blocks;
pub(crate) mod durable;
pub(crate) mod erase;
pub(crate) mod failures;
pub(crate) mod generations;
pub(crate) mod io;
pub(crate) mod journal;
pub(crate) mod maintain;
pub(crate) mod members;
pub(crate) mod membership;
pub(crate) mod parts;
pub(crate) mod power;
pub(crate) mod recover;
pub(crate) mod run;
pub(crate) mod seat;
pub(crate) mod unreadable;
pub(crate) mod zone;
pub(crate) mod zone_records;

use crate::{device::ZonedDevice, format::Uuid};
use std::rc::Rc;

/// A drive as the caller opened it.
#[derive(Clone)]
pub struct Drive {
    /// Name in messages: a path, usually.
    pub name: String,
    /// The drive.
    pub device: Rc<dyn ZonedDevice>,
}

/// Acknowledged tails and power epochs, which the process that runs an array keeps outside of its own memory. If it
/// dies while the drives keep power, the next process continues there ([`crate::array::Array::take_over`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tails {
    /// [`crate::array::Array::assembly`] of the array that the process ran.
    pub assembly: u64,
    /// For each logical zone the largest [`crate::device::Done::tail`] of the writes and appends that have completed:
    /// raised before the completion is reported, and set to 0 with a reset before that is reported.
    pub blocks: Vec<u64>,
    /// [`crate::array::Array::power_marks`] of the array that the process ran; a drive without a mark counts as
    /// one that has kept power.
    pub power: Vec<PowerMark>,
}

/// The power epoch of a member's drive while a process ran the array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerMark {
    /// A hash of the drive's UUID as a member.
    pub drive: u64,
    /// Its power epoch, of the bits of [`crate::device::LASTING_EPOCH`].
    pub epoch: u64,
}

impl PowerMark {
    /// Identifies a drive of an array, also one that was replaced: the first half of a member's UUID depends on the
    /// event with which it became one, and the second half on its role.
    fn drive_of(uuid: &Uuid) -> u64 {
        let value = u128::from_le_bytes(uuid.0);
        (value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (value >> 64) as u64
    }
}

/// Options with which an array is created or assembled. All but `force` are for experiments and tests.
#[derive(Clone, Copy, Debug)]
pub struct ArrayOptions {
    /// How much of a partial stripe survives a crash.
    pub consistency: Consistency,
    /// Whether writes that are queued behind each other in a zone share a plan.
    pub join: bool,
    /// Variant of the policy `log`, between RAIZN+ and ZRAID.
    pub log_step: LogStep,
    /// Partial parity is logged on the member of the stripe's full parity, as RAIZN has it (ZRAID §2.3), and not on
    /// that of its slot. For measuring alone: no recovery looks for it there.
    pub logs_at_parity: bool,
    /// Uses stale members if there are too few others, for zones that are full (see `raid/recover`).
    pub force: bool,
}

impl Default for ArrayOptions {
    fn default() -> ArrayOptions {
        let (consistency, log_step) = (Consistency::default(), LogStep::None);
        ArrayOptions { consistency, join: true, log_step, logs_at_parity: false, force: false }
    }
}

/// How much of a partial stripe survives a crash: ZRAID's three consistency policies (§6.6, Table 1).
/// Only [`Consistency::WpLog`] keeps all promised data; the others are for comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Write pointers move when a stripe is complete.
    Stripe,
    /// Write pointers move with every chunk.
    Chunk,
    /// As `Chunk`, and a tail inside a chunk is logged for a FUA write or a flush.
    #[default]
    WpLog,
}

/// Steps from RAIZN+ towards ZRAID with the policy `log`, each with those before it (ZRAID §6.3). For
/// measuring alone: no recovery understands the contents that the last two leave on drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogStep {
    /// RAIZN+ itself.
    #[default]
    None,
    /// Data zones have a ZRWA.
    Zrwa,
    /// Many writes are in flight in a zone, none are merged.
    Unsequenced,
    /// Partial parity has no header.
    NoHeader,
}
