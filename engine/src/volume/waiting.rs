//! Refused writes that wait for room. They hold no resources of the engine: the server of the volume submits them
//! again.

use crate::volume::core::VolumeCore;

/// Guard that counts a write that waits for room.
struct WaitingWrite<'c>(&'c VolumeCore);

impl<'c> WaitingWrite<'c> {
    fn new(core: &'c VolumeCore) -> WaitingWrite<'c> {
        core.waiting.set(core.waiting.get() + 1);
        WaitingWrite(core)
    }
}

impl Drop for WaitingWrite<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

/// Waits until there may be room for refused writes: something was discarded, the reserve was lent, or a retry was
/// requested.
pub async fn room_made(core: &VolumeCore) {
    let _waiting = WaitingWrite::new(core);
    core.freed.wait().await;
}
