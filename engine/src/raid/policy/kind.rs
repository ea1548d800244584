//! Which designs for stripes that are not full there are, and where they keep partial parity.

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
    /// In the order of their numbers.
    pub const ALL: [Policy; 3] = [Policy::Log, Policy::Zrwa, Policy::InPlace];

    /// What users call it.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Log => "log",
            Policy::Zrwa => "zrwa",
            Policy::InPlace => "inplace",
        }
    }

    /// What users call it where zones are written by appends, in groups of so many blocks; 0 for zones that are not.
    pub fn name_with(self, group_blocks: u32) -> &'static str {
        if group_blocks > 0 { "append" } else { self.name() }
    }

    /// The policy with this number in a superblock.
    pub fn from_value(value: u32) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| *policy as u32 == value)
    }

    /// Whether the members' zones have a ZRWA. Asked of drives, and where zones are opened or copied: without
    /// one, blocks are written at the write pointer and nowhere else.
    pub fn uses_zrwa(self) -> bool {
        self != Policy::Log
    }

    /// Where parity number `which` of the first chunks of a stripe, up to `index`, is kept: on the member of this
    /// chunk of the stripe, so many distances ahead of its row. `last` is the last data chunk. Asked of every
    /// plan.
    pub fn slot(self, last: u64, index: u64, which: usize) -> (u64, u64) {
        let which = which as u64;
        match self {
            Policy::Log | Policy::Zrwa => (index + 1 + which, if index == last { 0 } else { 1 + which }),
            Policy::InPlace => (last + 1 + which, (last - index) % 2),
        }
    }

    /// How often the distance fits between a write pointer and the end of what is written beyond it. Asked of
    /// drives with a ZRWA, which has to be so large.
    pub fn rows_in_zrwa(self, parities: usize) -> u64 {
        match self {
            // Data, and the slots of each parity.
            Policy::Log | Policy::Zrwa => 1 + parities as u64,
            Policy::InPlace => 2,
        }
    }
}
