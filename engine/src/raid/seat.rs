//! The drive in the place of a member at the time of a command.

/// The drive that is in the place of a member when a command is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    pub member: usize,
    /// Number of drives that have been in this place: errors of an earlier one do not concern the present one.
    pub incarnation: u32,
}
