//! Refused writes that wait for room. They hold nothing meanwhile: the server of the volume submits them again.

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
    /// Waits until there may be room for refused writes: something was discarded, the reserve was lent, or a retry was
    /// requested.
    pub async fn room_made(&self) {
        let _waiting = Waiting::new(self);
        self.freed.wait().await;
    }
}
