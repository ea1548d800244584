//! RAID over zones.

pub mod change;
pub mod create;
pub mod error;
pub mod events;
pub mod geometry;
pub mod policy;
pub mod status;

pub(crate) mod catalog;
pub(crate) mod erase;
pub(crate) mod holes;
pub(crate) mod journal;
pub(crate) mod members;
pub(crate) mod membership;
pub(crate) mod parts;
pub(crate) mod patrol;
pub(crate) mod recover;
pub(crate) mod seat;
pub(crate) mod zone;

use crate::device::ZonedDevice;
use std::rc::Rc;

/// A drive as the caller found it.
#[derive(Clone)]
pub struct Drive {
    /// What messages call it: a path, usually.
    pub name: String,
    /// The drive.
    pub device: Rc<dyn ZonedDevice>,
}

/// What a process that runs an array leaves outside of its own memory, so that the next one can go on
/// exactly there if it dies while the drives keep power ([`crate::array::Array::take_over`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tails {
    /// [`crate::array::Array::assembly`] of the array that the process ran.
    pub assembly: u64,
    /// For each logical zone the largest [`crate::device::Done::tail`] of the writes and appends that have completed:
    /// raised before anybody is told of the completion, and set to 0 with a reset before anybody is
    /// told of that.
    pub blocks: Vec<u64>,
}

/// How an array shall be assembled and behave: the default but for experiments, tests, and where an operator
/// has no other choice.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// How much of a partial stripe survives a crash.
    pub consistency: Consistency,
    /// Whether writes that are queued behind each other in a zone share a plan.
    pub join: bool,
    /// A rule that is broken.
    pub canary: Option<Canary>,
    /// How far the policy `log` is on the way to ZRAID.
    pub log_step: LogStep,
    /// Takes stale members where there are too few others, for zones that are full (see `raid/recover`).
    pub force: bool,
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        let (consistency, log_step) = (Consistency::default(), LogStep::None);
        Behaviour { consistency, join: true, canary: None, log_step, force: false }
    }
}

/// How much of a partial stripe survives a crash: ZRAID's three policies (§6.6, Table 1).
/// Only [`Consistency::WpLog`] keeps what was promised; the others are for comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Write pointers move when a stripe is complete.
    Stripe,
    /// Write pointers move with every chunk.
    Chunk,
    /// And a tail inside a chunk is logged for a FUA write or a flush.
    #[default]
    WpLog,
}

/// Steps from RAIZN+ towards ZRAID with the policy `log`, each with those before it (ZRAID §6.3). For
/// measuring alone: no recovery understands what the last two leave behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogStep {
    /// RAIZN+ itself.
    #[default]
    None,
    /// Data zones have a ZRWA.
    Zrwa,
    /// Many writes are on their way in a zone, nothing is merged.
    Unsequenced,
    /// Partial parity has no header.
    NoHeader,
}

/// A rule to be broken on purpose, to prove that the simulator notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Members that lag behind are moved before the witnesses of the stripe.
    LaggardOrder,
    /// Log records of a zone's earlier life are believed.
    NoEpochCheck,
    /// Partial parity goes one row too near.
    WrongSlot,
    /// A write is acknowledged although one before it is still on its way.
    AckBeforePredecessors,
    /// Data may overwrite the log and slots of a stripe that is not settled.
    LogSlotOverwritten,
    /// What a process that died had answered is not looked at.
    TailsIgnored,
    /// The end of a write is told although the plan that it went with ends elsewhere.
    TailInsidePlan,
    /// A zone that is empty on all members is taken for one without anything in it.
    EmptyIsUnwritten,
    /// What lies in burned blocks is believed.
    BurnedBelieved,
    /// Partial parity of what was rolled back is believed.
    StaleParity,
    /// Policy `inplace`: every version of a stripe's parity overwrites the one before, at any time.
    OneParityPlace,
    /// In partial parity Q is the sum of the chunks, like P.
    QWithoutCoefficients,
    /// The slots of Q lie where those of P do.
    QSlotTooNear,
    /// Of partial parity there is P alone.
    PartialPAlone,
    /// A tail is logged on as many members as may be lost, and not on one more.
    OneLogCopyLess,
}
