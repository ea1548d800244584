//! RAID over zones.

pub mod geometry;
pub mod policy;

pub(crate) mod core;
pub(crate) mod metalog;
pub(crate) mod patrol;
pub(crate) mod recover;
pub(crate) mod zone;

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
}
