//! The operations of the policies that read and write: opening, settling, finishing, recovery.
//!
//! The other methods of [`Policy`] ([`crate::raid::policy`]) are pure. These use the components of a running array: its
//! members, their logs, its zones.

pub mod inplace;
mod log;
mod zrwa;

use crate::{
    format::record::TailRecord,
    raid::{
        error::ArrayError,
        parts::Raid,
        policy::{Policy, zrwa::Refusal},
        recover::{
            revive,
            verdict::{Tail, Verdict, ZoneView},
        },
        zone::{
            flow::{Round, Zone},
            relocated,
        },
    },
    zone::ZoneIndex,
};
use std::rc::Rc;

impl Policy {
    /// Logs the records that a new zone needs, after the members' zones were opened and before they are written.
    pub async fn opened(self, raid: &Raid, zone: &Zone) {
        match self {
            Policy::Log => {}
            // In a zone that this assembly has reset there is nothing of an earlier one.
            Policy::Zrwa if raid.membership.is_of_earlier_assembly(raid.zone_records.epoch(zone.index)) => {
                zrwa::begin_generation(raid, zone).await;
            }
            Policy::Zrwa => {}
            Policy::InPlace => inplace::begin_generation(raid, zone, 0).await,
        }
    }

    /// Carries out a round of settling: makes complete data safe and moves write pointers, as far as `round` requires.
    /// Returns the end of the blocks that are safe now; 0 if `round` requires none.
    pub async fn settle(self, raid: &Raid, zone: &Zone, round: &Round) -> u64 {
        match self {
            Policy::Log => log::settle(raid, zone, round).await,
            Policy::Zrwa => zrwa::settle(raid, zone, round).await,
            Policy::InPlace => inplace::settle(raid, zone, round).await,
        }
    }

    /// Writes the parity of a partial stripe in the place of its full parity, as if the rest of the data were zeros.
    /// Called when a zone is finished: no write is in flight, and the finish has been logged.
    pub async fn promote(self, raid: &Raid, zone: &Zone) {
        match self {
            Policy::Log => relocated::promote(raid, zone).await,
            Policy::Zrwa | Policy::InPlace => zrwa::promote(raid, zone).await,
        }
    }

    /// Determines the verdict on a zone. Called at assembly, for every zone that is not to be reset. Writes nothing to
    /// the drives; marks in `view` the members that lack their part.
    pub async fn judge(self, raid: &Raid, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        match self {
            Policy::Log => log::judge_log(raid, view).await,
            Policy::Zrwa => zrwa::judge_zrwa(raid, view).await,
            Policy::InPlace => inplace::judge_in_place(raid, view).await,
        }
    }

    /// Members (bits) whose drive is an older copy: it lacks completed data below `tail`, although its part counts as
    /// present. Called at takeover, for a zone that continues. Writes nothing.
    pub async fn outdated(self, raid: &Raid, view: &ZoneView<'_>, tail: &Tail) -> Result<u32, Refusal> {
        match self {
            // Write pointers or marks show missing data.
            Policy::Log | Policy::InPlace => Ok(0),
            Policy::Zrwa => zrwa::outdated_zrwa(raid, view, tail).await,
        }
    }

    /// Drops the contents of the metadata logs that no zone needs, given its verdict.
    pub fn keep_what_counts(self, raid: &Raid, verdicts: &[(ZoneIndex, Verdict)]) -> Result<(), ArrayError> {
        match self {
            Policy::Log => log::keep_of_logs(raid, verdicts),
            Policy::Zrwa | Policy::InPlace => {
                forget_dead(raid, verdicts);
                Ok(())
            }
        }
    }

    /// Writes missing blocks below the tail of a zone that continues, or is to be finished.
    pub async fn write_back(self, raid: &Rc<Raid>, zone: &Zone, tail: &Tail) {
        match self {
            Policy::Log => relocated::fill(raid, zone, &tail.held).await,
            Policy::Zrwa | Policy::InPlace => revive::revive(raid, zone.index, tail).await,
        }
    }

    /// Writes the evidence of the tail with which a zone continues, so that it is found with any member lost. Called
    /// after [`Policy::write_back`], and followed by a round of settling.
    pub async fn secure(self, raid: &Raid, zone: &Zone) {
        match self {
            Policy::Log => {}
            Policy::Zrwa => zrwa::begin_generation(raid, zone).await,
            Policy::InPlace => inplace::secure_in_place(raid, zone).await,
        }
    }

    /// Writes more evidence of a tail before a rebuilt `member` counts: until then one member less could be lost.
    /// Called for a zone without writes in flight.
    pub async fn show_with(self, raid: &Raid, zone: &Zone, member: usize, tail_blocks: u64) {
        match self {
            Policy::Log | Policy::InPlace => {}
            Policy::Zrwa => zrwa::show_with(raid, zone, member, tail_blocks).await,
        }
    }

    /// The record of the first promise of a zone: all blocks below `tail_blocks`.
    pub fn promise_record(self, raid: &Raid, zone: &Zone, tail_blocks: u64) -> TailRecord {
        if self == Policy::InPlace {
            // All blocks below this tail are valid, of any generation: older remains have been overwritten.
            zone.flow.borrow_mut().set_recorded_tail(tail_blocks);
            return inplace::generation_record(raid, zone);
        }
        TailRecord { zone: zone.index.0, generation: 0, epoch: zone.flow.borrow().epoch(), tail_blocks }
    }

    /// The record of a tail that a rebuilt member needs before it counts: in its metadata log if the record has a
    /// generation (`inplace`), otherwise in the log blocks of the tail's stripe.
    pub fn tail_record(self, raid: &Raid, zone: &Zone, tail_blocks: u64) -> Option<TailRecord> {
        match self {
            Policy::Log => None,
            Policy::Zrwa => {
                let epoch = zone.flow.borrow().epoch();
                let record = TailRecord { zone: zone.index.0, generation: 0, epoch, tail_blocks };
                (tail_blocks > 0).then_some(record)
            }
            Policy::InPlace => Some(inplace::generation_record(raid, zone)),
        }
    }
}

/// Drops logged parity and tails of zones that do not continue. In a zone that does, parity of stripes below its
/// tail is still needed: until write pointers prove these stripes, another recovery may find an earlier tail. Of
/// relocated blocks, those of complete stripes are kept: repaired blocks, which do not change.
fn forget_dead(raid: &Raid, verdicts: &[(ZoneIndex, Verdict)]) {
    let goes_on = |zone: u32, epoch: u64| {
        raid.zone_records.record(ZoneIndex(zone)).epoch == epoch
            && verdicts.iter().any(|(z, verdict)| {
                let goes_on = matches!(
                    verdict,
                    Verdict::Open(_) | Verdict::Finish(Some(_)) | Verdict::ReadOnly(_) | Verdict::Offline(_)
                );
                z.0 == zone && goes_on
            })
    };
    let keeps_row = |zone: u32, epoch: u64, stripe: u64| {
        raid.zone_records.record(ZoneIndex(zone)).epoch == epoch
            && verdicts.iter().any(|(z, verdict)| {
                let rows = match verdict {
                    Verdict::Open(tail) | Verdict::Finish(Some(tail)) => {
                        tail.blocks / raid.layout.stripe_blocks()
                    }
                    Verdict::Full | Verdict::ReadOnly(_) | Verdict::Offline(_) => raid.layout.rows,
                    Verdict::Empty | Verdict::Reset | Verdict::Finish(None) => 0,
                };
                z.0 == zone && stripe < rows
            })
    };
    for log in raid.members.logs() {
        let mut live = log.live.borrow_mut();
        live.parity.retain(|zone, epoch, _, _, _| goes_on(zone, epoch));
        live.relocated.retain(|zone, epoch, stripe, _, _| keeps_row(zone, epoch, stripe));
        live.tails.retain(|zone, tail| goes_on(*zone, tail.epoch));
        live.notes.retain(|zone, (tail, _)| goes_on(*zone, tail.epoch));
    }
}
