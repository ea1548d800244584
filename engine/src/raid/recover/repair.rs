//! Carries out the verdict on a zone on the drives.

use crate::{
    device::DeviceError,
    raid::{
        error::ArrayError,
        events::Event,
        parts::Raid,
        policy::zrwa::Refusal,
        recover::verdict::{AwaitedMembers, Tail, Verdict},
        zone::flow::Zone,
    },
    zone::{ZoneIndex, ZoneState},
};
use std::rc::Rc;

impl Raid {
    /// Carries out a verdict on a zone. The zone table has its state already.
    pub async fn repair(
        self: &Rc<Self>,
        zone: ZoneIndex,
        verdict: Verdict,
        awaited: AwaitedMembers,
    ) -> Result<(), ArrayError> {
        // The failure of this zone alone shows in its state, and does not fail the assembly.
        let done = |result: Result<(), DeviceError>| result.or_else(|_| self.check_members());
        match verdict {
            Verdict::Empty | Verdict::Full | Verdict::Offline(_) => Ok(()),
            Verdict::ReadOnly(tail) => {
                self.record_end(zone, &tail).await;
                self.check_members()
            }
            Verdict::Reset => {
                let dead = self.reset_members(&[zone.0]).await;
                self.membership.settled().await;
                let epoch = self.zone_records.epoch(zone);
                done(self.finish_reset(zone.0..zone.0 + 1, epoch, &dead).await)
            }
            Verdict::Finish(None) => done(self.finish_members(zone, None).await),
            Verdict::Finish(Some(tail)) => {
                let Some(running) = self.go_on(zone, tail, awaited).await else { return Ok(()) };
                let finished = self.finish_members(zone, Some(&running)).await;
                match finished {
                    Ok(()) => self.forget_logged(zone, u64::MAX),
                    // Some parities of the last stripe are not where a full zone has them, so reads take them from
                    // memory. The zone still holds active resources of its members.
                    Err(_) => {
                        running.flow.borrow_mut().end_here();
                        running.failed.set(true);
                        self.load_as(zone, ZoneState::Closed, running.flow.borrow().complete());
                        self.zones.start(Rc::new(running));
                    }
                }
                done(finished)
            }
            Verdict::Open(tail) => {
                let blocks = tail.blocks;
                let Some(running) = self.go_on(zone, tail, awaited).await.map(Rc::new) else { return Ok(()) };
                self.layout.policy.secure(self, &running).await;
                self.zones.start(running.clone());
                self.start_tasks(&running);
                done(self.make_safe(&running, blocks).await)
            }
        }
    }

    /// Prepares a zone to continue from `tail`, and writes all blocks that the tail needs. `None` if the zone has gone
    /// offline, since a member that cannot be spared could not be written.
    async fn go_on(
        self: &Rc<Self>,
        zone: ZoneIndex,
        mut tail: Tail,
        awaited: AwaitedMembers,
    ) -> Option<Zone> {
        let running = Zone::new(&self.layout, zone, self.zone_records.epoch(zone));
        let parities = (std::mem::take(&mut tail.parities), std::mem::take(&mut tail.found));
        running.flow.borrow_mut().restore(tail.blocks, tail.positions, parities);
        self.layout.policy.write_back(self, &running, &tail).await;
        let Some(member) = self.zones.stuck(zone) else { return Some(running) };
        let refusal = Refusal::Lacking { member };
        self.zone_records
            .change(zone, |record| record.wait_for(awaited.members & !record.lost, awaited.floor));
        self.membership.announce_waits();
        self.membership.settled().await;
        self.events.note(Event::ZoneOffline { zone: zone.0, why: refusal.clone() });
        self.zones.put_offline(zone, refusal.clone(), true);
        self.load(zone, &Verdict::Offline(refusal));
        None
    }
}
