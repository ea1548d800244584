//! The systems that are compared: designs of the papers, run by zoneraid's engine.

use engine::{array::Behaviour, raid::policy::Policy};

/// A design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Partial parity in the ZRWA of the data zones, a partial parity for every write.
    Zraid,
    /// ZRAID, and writes that wait behind each other share one partial parity.
    Zoneraid,
}

impl System {
    pub const ALL: [System; 2] = [System::Zraid, System::Zoneraid];

    /// As in the papers' figures.
    pub fn name(self) -> &'static str {
        match self {
            System::Zraid => "ZRAID",
            System::Zoneraid => "zoneraid",
        }
    }

    /// The system of this name, whatever its case.
    pub fn by_name(name: &str) -> Option<System> {
        System::ALL.into_iter().find(|system| system.name().eq_ignore_ascii_case(name))
    }

    pub fn policy(self) -> Policy {
        Policy::Zrwa
    }

    pub fn behaviour(self) -> Behaviour {
        Behaviour { join: self == System::Zoneraid, ..Behaviour::default() }
    }
}
