//! What is said of an array and can be changed: its name, its owner, how it starts.

use crate::{
    format::{
        Uuid,
        superblock::{Superblock, wrong_with_name},
    },
    raid::error::ArrayError,
};

/// Something that is said of an array and has nothing to do with what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// What it is called: see [`wrong_with_name`].
    Name(String),
    /// Who owns it; zeros for nobody.
    Host([u8; 16]),
    /// Whether it starts by itself where its owner is.
    Autostart(bool),
}

impl Change {
    /// Has a superblock say it.
    ///
    /// # Errors
    /// The name is none.
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
        }
        Ok(())
    }
}
