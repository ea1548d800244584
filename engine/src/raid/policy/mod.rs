//! Which design protects stripes that are not full: the array's partial-parity policy.
//!
//! Chosen when an array is made, kept in its superblock. The three differ in where the parity of a
//! partial stripe goes and in what tells the end of a zone after a crash; everything else is shared.

pub mod inplace;
pub mod log;
pub mod zrwa;

use crate::device::Geometry;

/// A partial-parity design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Policy {
    /// RAIZN: partial parity with a header in log zones. Any zoned drive will do.
    Log = 1,
    /// ZRAID: partial parity in the ZRWA of the data zones, ahead of the data.
    Zrwa = 2,
    /// Zebra: the parity chunk itself is updated in place in the ZRWA; OOB metadata of each block
    /// tells the tail.
    InPlace = 3,
}

impl Policy {
    pub const ALL: [Policy; 3] = [Policy::Log, Policy::Zrwa, Policy::InPlace];

    /// What users call it.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Log => "log",
            Policy::Zrwa => "zrwa",
            Policy::InPlace => "inplace",
        }
    }

    /// The policy with this number in a superblock.
    pub fn from_value(value: u32) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| *policy as u32 == value)
    }

    /// The policy for drives of which `geometries` are: `zrwa` if all have a ZRWA, `log` otherwise.
    pub fn best_for<'a>(mut geometries: impl Iterator<Item = &'a Geometry>) -> Policy {
        if geometries.all(|geometry| geometry.zrwa.is_some()) { Policy::Zrwa } else { Policy::Log }
    }

    /// Whether the members' zones have a ZRWA.
    pub fn uses_zrwa(self) -> bool {
        self != Policy::Log
    }
}
