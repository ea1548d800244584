//! How a volume shall behave.

use crate::volume::victim::Choice;

/// How a volume shall behave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Behaviour {
    /// How zones to be collected are chosen.
    pub choice: Choice,
    /// Hot and cold blocks share a stream: for comparison.
    pub mixed: bool,
    /// Pages of the map that are kept in memory; 128 MiB a TiB if there is no number.
    pub map_pages: Option<usize>,
    /// A write with FUA makes nothing durable but what it writes, as with a bare drive, and not what lies before it
    /// in its zone, as with an array.
    pub fua_stands_alone: bool,
    /// Zones that are offline are given up, whatever may have been promised that is in them.
    pub give_up: bool,
    /// A rule that is broken.
    pub canary: Option<Canary>,
}

/// A rule to be broken on purpose, to prove that the simulator notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A block is moved although it was written anew meanwhile.
    OldCopyWins,
    /// Zones are reset before the root is safe that does not need them.
    ResetTooEarly,
    /// A discard is not written.
    DiscardComesBack,
    /// A flush waits for nothing.
    FlushCompletesEarly,
    /// A recovery takes a compressed block for whole whose end was torn off.
    TornPieceBelieved,
}
