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
    /// Zones that are offline, and what follows in a zone on a group that cannot be read, are given up, whatever may
    /// have been promised that is there.
    pub give_up: bool,
}
