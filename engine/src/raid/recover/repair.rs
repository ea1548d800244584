//! Does on the drives what was decided of a zone.

use crate::{
    device::DeviceError,
    raid::{
        core::Core,
        error::ArrayError,
        recover::{Tail, Verdict},
        zone::write::Zone,
    },
    zone::ZoneIndex,
};
use std::rc::Rc;

impl Core {
    /// Carries a verdict out. The table knows it already.
    pub async fn repair(self: &Rc<Self>, zone: ZoneIndex, verdict: Verdict) -> Result<(), ArrayError> {
        let done = |result: Result<(), DeviceError>| match result {
            // Only this zone has failed, and says so.
            Err(_) if !self.failed.get() => Ok(()),
            Err(error) => self.check_members().and(Err(ArrayError(format!("zone {}: {error}", zone.0)))),
            Ok(()) => Ok(()),
        };
        match verdict {
            Verdict::Empty | Verdict::Full | Verdict::Offline(_) => Ok(()),
            Verdict::Reset => {
                let dead = self.reset_members(&[zone.0]).await;
                self.membership_settled().await;
                let epoch = self.zones.borrow()[zone.0 as usize].epoch;
                done(self.finish_reset(zone.0..zone.0 + 1, epoch, &dead).await)
            }
            Verdict::Finish(None) => done(self.finish_members(zone, None).await),
            Verdict::Finish(Some(tail)) => {
                let running = self.go_on(zone, tail).await;
                let finished = self.finish_members(zone, Some(&running)).await;
                if finished.is_ok() {
                    self.forget_logged(zone, u64::MAX);
                }
                done(finished)
            }
            Verdict::Open(tail) => {
                let blocks = tail.blocks;
                let running = Rc::new(self.go_on(zone, tail).await);
                self.layout.policy.secure(self, &running).await;
                self.running.borrow_mut().insert(zone.0, running.clone());
                self.start_tasks(&running);
                done(self.make_safe(&running, blocks).await)
            }
        }
    }

    /// The zone as it goes on from `tail`, with everything written that the tail needs.
    async fn go_on(self: &Rc<Self>, zone: ZoneIndex, mut tail: Tail) -> Zone {
        let running = Zone::new(self, zone);
        running.flow.borrow_mut().restore(tail.blocks, tail.positions, std::mem::take(&mut tail.parity));
        self.layout.policy.write_back(self, &running, &tail).await;
        running
    }
}
