//! Does on the drives what was decided of a zone.

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
    /// Carries a verdict out. The table knows it already.
    pub async fn repair(
        self: &Rc<Self>,
        zone: ZoneIndex,
        verdict: Verdict,
        awaited: AwaitedMembers,
    ) -> Result<(), ArrayError> {
        // If only this zone has failed, it says so.
        let done = |result: Result<(), DeviceError>| result.or_else(|_| self.check_members());
        match verdict {
            Verdict::Empty | Verdict::Full | Verdict::Offline(_) => Ok(()),
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
                    // The parities of its last stripe are not all where those of a full zone are: reads take
                    // those that are in memory. It still holds resources of its members.
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

    /// The zone as it goes on from `tail`, with everything written that the tail needs; `None` if it is offline,
    /// since a member that cannot be done without still holds something else.
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
