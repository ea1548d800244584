//! The systems that are compared: designs of the papers, run by zoneraid's engine.

use engine::{array::Behaviour, raid::policy::Policy};

/// A design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// RAIZN as published: partial parity in log zones, and one queue from which all sub-requests
    /// of the array are dispatched, one after the other.
    Raizn,
    /// RAIZN without that queue; the base line of ZRAID §6.
    RaiznPlus,
    /// Partial parity in the ZRWA of the data zones, a partial parity for every write.
    Zraid,
    /// The parity chunk itself is updated in the ZRWA.
    Zebra,
    /// ZRAID, and writes that wait behind each other share one partial parity.
    Zoneraid,
}

impl System {
    pub const ALL: [System; 5] =
        [System::Raizn, System::RaiznPlus, System::Zraid, System::Zebra, System::Zoneraid];

    /// As in the papers' figures.
    pub fn name(self) -> &'static str {
        match self {
            System::Raizn => "RAIZN",
            System::RaiznPlus => "RAIZN+",
            System::Zraid => "ZRAID",
            System::Zebra => "Zebra",
            System::Zoneraid => "zoneraid",
        }
    }

    /// The system of this name, whatever its case.
    pub fn by_name(name: &str) -> Option<System> {
        System::ALL.into_iter().find(|system| system.name().eq_ignore_ascii_case(name))
    }

    pub fn policy(self) -> Policy {
        match self {
            System::Raizn | System::RaiznPlus => Policy::Log,
            System::Zraid | System::Zoneraid => Policy::Zrwa,
            System::Zebra => Policy::InPlace,
        }
    }

    pub fn behaviour(self) -> Behaviour {
        Behaviour { join: self == System::Zoneraid, ..Behaviour::default() }
    }
}
