//! The compared systems: designs of the papers, run by zoneraid's engine.

use engine::{
    array::ArrayOptions,
    raid::{LogStep, policy::Policy},
};

/// A design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// RAIZN as published: partial parity in log zones, and one queue from which all sub-requests
    /// of the array are dispatched, one after the other.
    Raizn,
    /// RAIZN without that queue; the base line of ZRAID §6.
    RaiznPlus,
    /// RAIZN+ on zones with a ZRWA ("Z").
    Z,
    /// Many writes in flight in a zone, nothing is merged ("+ S").
    ZS,
    /// No header for partial parity ("+ M").
    ZSM,
    /// Partial parity in the ZRWA of the data zones, a partial parity for every write.
    Zraid,
    /// The parity chunk itself is updated in the ZRWA.
    Zebra,
    /// ZRAID, with queued writes sharing one partial parity.
    Zoneraid,
}

impl System {
    pub const ALL: [System; 8] = [
        System::Raizn,
        System::RaiznPlus,
        System::Z,
        System::ZS,
        System::ZSM,
        System::Zraid,
        System::Zebra,
        System::Zoneraid,
    ];

    /// Its name in the papers' figures.
    pub fn name(self) -> &'static str {
        match self {
            System::Raizn => "RAIZN",
            System::RaiznPlus => "RAIZN+",
            System::Z => "Z",
            System::ZS => "Z+S",
            System::ZSM => "Z+S+M",
            System::Zraid => "ZRAID",
            System::Zebra => "Zebra",
            System::Zoneraid => "zoneraid",
        }
    }

    /// The system of this name, in any case.
    pub fn by_name(name: &str) -> Option<System> {
        System::ALL.into_iter().find(|system| system.name().eq_ignore_ascii_case(name))
    }

    pub fn policy(self) -> Policy {
        match self {
            System::Raizn | System::RaiznPlus | System::Z | System::ZS | System::ZSM => Policy::Log,
            System::Zraid | System::Zoneraid => Policy::Zrwa,
            System::Zebra => Policy::InPlace,
        }
    }

    /// Whether writes of a zone go to a drive one after the other.
    pub fn is_sequenced(self) -> bool {
        matches!(self, System::Raizn | System::RaiznPlus | System::Z)
    }

    pub fn behaviour(self) -> ArrayOptions {
        let log_step = match self {
            System::Z => LogStep::Zrwa,
            System::ZS => LogStep::Unsequenced,
            System::ZSM => LogStep::NoHeader,
            _ => LogStep::None,
        };
        let logs_at_parity = self.policy() == Policy::Log;
        ArrayOptions { join: self == System::Zoneraid, log_step, logs_at_parity, ..ArrayOptions::default() }
    }
}
