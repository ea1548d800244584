//! Who was in a place when something was sent there.

/// The drive that is in the place of a member when a command is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    pub member: usize,
    /// How many drives have been in this place: an error of an earlier one is not the present one's.
    pub incarnation: u32,
}
