//! Changes of an array's name, owner, automatic start, and error limit.

use crate::{
    format::{Uuid, name::wrong_with_name, superblock::Superblock},
    raid::error::ArrayError,
};

/// A change of a property that does not concern the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The name: see [`wrong_with_name`] for its rules.
    Name(String),
    /// UUID of the owner; zeros for none.
    Host([u8; 16]),
    /// Whether the array starts automatically on its owner.
    Autostart(bool),
    /// Blocks of a member that may be repaired before it is to be replaced; 0 if any number may.
    ErrorLimit(u32),
}

impl Change {
    /// Applies the change to a superblock.
    ///
    /// # Errors
    /// The name is not valid.
    pub fn apply(&self, superblock: &mut Superblock) -> Result<(), ArrayError> {
        match self {
            Change::Name(name) => {
                if let Some(wrong) = wrong_with_name(name) {
                    return Err(ArrayError::Name(wrong));
                }
                superblock.name.clone_from(name);
            }
            Change::Host(host) => superblock.host = Uuid(*host),
            Change::Autostart(autostart) => superblock.autostart = *autostart,
            Change::ErrorLimit(limit) => superblock.error_limit = *limit,
        }
        Ok(())
    }
}
