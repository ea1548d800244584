//! Writes that were refused, and wait for room. They hold nothing meanwhile: those who serve the volume try them again.

use crate::volume::core::Core;

/// Counts a write that waits for room.
struct Waiting<'c>(&'c Core);

impl<'c> Waiting<'c> {
    fn new(core: &'c Core) -> Waiting<'c> {
        core.waiting.set(core.waiting.get() + 1);
        Waiting(core)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Core {
    /// Waits until there may be room for what was refused: something was discarded, the reserve was lent, or those who
    /// wait are to look again.
    pub async fn room_made(&self) {
        let _waiting = Waiting::new(self);
        self.freed.wait().await;
    }
}
