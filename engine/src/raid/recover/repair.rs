//! Carries out the verdict on a zone on the drives.

use crate::{
    device::DeviceError,
    raid::{
        error::ArrayError,
        events::Event,
        failures,
        parts::Raid,
        policy::zrwa::Refusal,
        recover::{
            last_checksums,
            verdict::{AwaitedMembers, Tail, Verdict},
            worn,
        },
        zone::{flow::Zone, load, manage, settle, write},
    },
    zone::{ZoneIndex, ZoneState},
};
use std::rc::Rc;

/// Carries out a verdict on a zone. The zone table has its state already.
pub async fn repair(
    raid: &Rc<Raid>,
    zone: ZoneIndex,
    verdict: Verdict,
    awaited: AwaitedMembers,
) -> Result<(), ArrayError> {
    // The failure of this zone alone shows in its state, and does not fail the assembly.
    let done = |result: Result<(), DeviceError>| result.or_else(|_| failures::check_members(raid));
    match verdict {
        Verdict::Empty | Verdict::Full | Verdict::Offline(_) => Ok(()),
        Verdict::ReadOnly(tail) => {
            worn::record_end(raid, zone, &tail).await;
            failures::check_members(raid)
        }
        Verdict::Reset => {
            let dead = manage::reset_members(raid, &[zone.0]).await;
            raid.membership.settled().await;
            let epoch = raid.zone_records.epoch(zone);
            done(manage::finish_reset(raid, zone.0..zone.0 + 1, epoch, &dead).await)
        }
        Verdict::Finish(None) => done(manage::finish_members(raid, zone, None).await),
        Verdict::Finish(Some(tail)) => {
            let Some(running) = go_on(raid, zone, tail, awaited).await else { return Ok(()) };
            let finished = manage::finish_members(raid, zone, Some(&running)).await;
            match finished {
                Ok(()) => settle::forget_logged(raid, zone, u64::MAX),
                // Some parities of the last stripe are not where a full zone has them, so reads take them from
                // memory. The zone still holds active resources of its members.
                Err(_) => {
                    running.flow.borrow_mut().end_here();
                    running.failed.set(true);
                    load::load_as(raid, zone, ZoneState::Closed, running.flow.borrow().complete());
                    raid.zones.start(Rc::new(running));
                }
            }
            done(finished)
        }
        Verdict::Open(tail) => {
            let blocks = tail.blocks;
            let Some(running) = go_on(raid, zone, tail, awaited).await.map(Rc::new) else { return Ok(()) };
            raid.layout.policy.secure(raid, &running).await;
            raid.zones.start(running.clone());
            write::start_tasks(raid, &running);
            done(settle::make_safe(raid, &running, blocks).await)
        }
    }
}

/// Prepares a zone to continue from `tail`, and writes all blocks that the tail needs. `None` if the zone has gone
/// offline, since a member that cannot be spared could not be written.
async fn go_on(raid: &Rc<Raid>, zone: ZoneIndex, mut tail: Tail, awaited: AwaitedMembers) -> Option<Zone> {
    last_checksums::confirm(raid, zone, &mut tail).await;
    let running = Zone::new(&raid.layout, zone, raid.zone_records.epoch(zone));
    let parities = (std::mem::take(&mut tail.parities), std::mem::take(&mut tail.found));
    running.flow.borrow_mut().restore(tail.blocks, tail.positions, parities, tail.note.take());
    raid.layout.policy.write_back(raid, &running, &tail).await;
    let Some(member) = raid.zones.stuck(zone) else { return Some(running) };
    let refusal = Refusal::Lacking { member };
    raid.zone_records.change(zone, |record| record.wait_for(awaited.members & !record.lost, awaited.floor));
    raid.membership.announce_waits();
    raid.membership.settled().await;
    raid.events.note(Event::ZoneOffline { zone: zone.0, why: refusal.clone() });
    raid.zones.put_offline(zone, refusal.clone(), true);
    load::load(raid, zone, &Verdict::Offline(refusal));
    None
}
