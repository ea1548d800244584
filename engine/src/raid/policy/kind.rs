//! The partial-parity policies, and where they keep partial parity.

/// A partial-parity design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Policy {
    /// RAIZN: partial parity with a header in log zones. For any zoned drive.
    Log = 1,
    /// ZRAID: partial parity in the ZRWA of the data zones, ahead of the data.
    Zrwa = 2,
    /// Zebra: the parity chunk itself is updated in place in the ZRWA; OOB metadata of each block shows the tail.
    InPlace = 3,
}

impl Policy {
    /// All policies, in the order of their numbers.
    pub const ALL: [Policy; 3] = [Policy::Log, Policy::Zrwa, Policy::InPlace];

    /// Name for users.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Log => "log",
            Policy::Zrwa => "zrwa",
            Policy::InPlace => "inplace",
        }
    }

    /// Name for users: `append` if zones are written by appends (`group_blocks` > 0).
    pub fn name_with(self, group_blocks: u32) -> &'static str {
        if group_blocks > 0 { "append" } else { self.name() }
    }

    /// The policy with this number in a superblock.
    pub fn from_value(value: u32) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| *policy as u32 == value)
    }

    /// Whether the members' zones have a ZRWA. Without one, blocks are written at the write pointer and nowhere else.
    /// Called when drives are chosen, and where zones are opened or copied.
    pub fn uses_zrwa(self) -> bool {
        self != Policy::Log
    }

    /// Slot for parity number `which` of chunks `0..=index` of a stripe: the index of the stripe's chunk that lies on
    /// the slot's member, and the number of distances `D` from the stripe's row to the slot's row. `last` is the index
    /// of the last data chunk. Called for every plan.
    pub fn slot(self, last: u64, index: u64, which: usize) -> (u64, u64) {
        let which = which as u64;
        match self {
            Policy::Log | Policy::Zrwa => (index + 1 + which, if index == last { 0 } else { 1 + which }),
            Policy::InPlace => (last + 1 + which, (last - index) % 2),
        }
    }

    /// Size of the ZRWA that the policy needs, as a multiple of the distance `D`. Called for drives with a ZRWA.
    pub fn rows_in_zrwa(self, parities: usize) -> u64 {
        match self {
            // Data, and the slots of each parity.
            Policy::Log | Policy::Zrwa => 1 + parities as u64,
            Policy::InPlace => 2,
        }
    }
}
