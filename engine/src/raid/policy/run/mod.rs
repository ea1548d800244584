//! The operations of the policies that read and write.
//!
//! The other methods ([`crate::raid::policy`]) are pure. These use the parts of a running array: its members, their
//! logs, its zones.

mod inplace;
mod log;
mod zrwa;

use crate::{
    format::record::TailRecord,
    raid::{
        error::ArrayError,
        parts::Raid,
        policy::{Policy, zrwa::Refusal},
        recover::verdict::{Tail, Verdict, ZoneView},
        zone::flow::{Round, Zone},
    },
    zone::ZoneIndex,
};
use std::rc::Rc;

impl Policy {
    /// Called when the members' zones have been opened, before anything is written there.
    pub async fn opened(self, raid: &Raid, zone: &Zone) {
        match self {
            Policy::Log | Policy::Zrwa => {}
            Policy::InPlace => raid.begin_generation(zone, 0).await,
        }
    }

    /// A round of settling: makes complete data safe, and moves write pointers, as far as `round` requires. Returns the
    /// block below which everything is safe then, or 0.
    pub async fn settle(self, raid: &Raid, zone: &Zone, round: &Round) -> u64 {
        match self {
            Policy::Log => log::settle(raid, zone, round).await,
            Policy::Zrwa => zrwa::settle(raid, zone, round).await,
            Policy::InPlace => inplace::settle(raid, zone, round).await,
        }
    }

    /// Makes the parity of a partial stripe the parity of the whole one, as if the rest were zeros. Called when a zone
    /// is finished: no write is in flight, and the finish has been promised.
    pub async fn promote(self, raid: &Raid, zone: &Zone) {
        match self {
            Policy::Log => raid.promote(zone).await,
            Policy::Zrwa | Policy::InPlace => zrwa::promote(raid, zone).await,
        }
    }

    /// Decides the state of a zone and its tail. Called at assembly, for every zone that is not to be reset; only
    /// reads, and marks in `view` the members that lack their part.
    pub async fn judge(self, raid: &Raid, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        match self {
            Policy::Log => raid.judge_log(view).await,
            Policy::Zrwa => raid.judge_zrwa(view).await,
            Policy::InPlace => raid.judge_in_place(view).await,
        }
    }

    /// Members (bits) that lack data below a tail that a process which died had completed, although their part counts
    /// as present: the drive is a copy from before. Called for a zone that continues; only reads.
    pub async fn outdated(self, raid: &Raid, view: &ZoneView<'_>, tail: &Tail) -> Result<u32, Refusal> {
        match self {
            // Write pointers or marks show missing data.
            Policy::Log | Policy::InPlace => Ok(0),
            Policy::Zrwa => raid.outdated_zrwa(view, tail).await,
        }
    }

    /// Drops contents of logs that do not count any more, when every zone has its verdict.
    pub fn keep_what_counts(self, raid: &Raid, verdicts: &[(ZoneIndex, Verdict)]) -> Result<(), ArrayError> {
        match self {
            Policy::Log => raid.keep_of_logs(verdicts),
            Policy::Zrwa | Policy::InPlace => {
                raid.forget_dead(verdicts);
                Ok(())
            }
        }
    }

    /// Writes missing blocks below the tail of a zone that continues, or is to be finished.
    pub async fn write_back(self, raid: &Rc<Raid>, zone: &Zone, tail: &Tail) {
        match self {
            Policy::Log => raid.fill(zone, &tail.held).await,
            Policy::Zrwa | Policy::InPlace => raid.revive(zone.index, tail).await,
        }
    }

    /// Makes the tail with which a zone continues recoverable with any member lost. Called after
    /// [`Policy::write_back`]; evidence that a round of settling writes need not be written here.
    pub async fn secure(self, raid: &Raid, zone: &Zone) {
        match self {
            Policy::Log | Policy::Zrwa => {}
            Policy::InPlace => raid.secure_in_place(zone).await,
        }
    }

    /// Makes a tail recoverable without a member that is about to count again: until now no other member could be lost.
    /// Called for a zone with no write in flight.
    pub async fn show_with(self, raid: &Raid, zone: &Zone, member: usize, tail_blocks: u64) {
        match self {
            Policy::Log | Policy::InPlace => {}
            Policy::Zrwa => zrwa::show_with(raid, zone, member, tail_blocks).await,
        }
    }

    /// The record that everything below `tail_blocks` of a zone is promised. Called before the first promise.
    pub fn promise_record(self, raid: &Raid, zone: &Zone, tail_blocks: u64) -> TailRecord {
        if self == Policy::InPlace {
            // Blocks of earlier generations below this tail have been overwritten.
            zone.flow.borrow_mut().tell(tail_blocks);
            return raid.generation_record(zone);
        }
        TailRecord { zone: zone.index.0, generation: 0, epoch: zone.flow.borrow().epoch(), tail_blocks }
    }

    /// The record of a tail that a member needs before it counts again: in its metadata log if it has a generation,
    /// otherwise where the layout has tails of its stripe.
    pub fn tail_record(self, raid: &Raid, zone: &Zone, tail_blocks: u64) -> Option<TailRecord> {
        match self {
            Policy::Log => None,
            Policy::Zrwa => {
                let epoch = zone.flow.borrow().epoch();
                let record = TailRecord { zone: zone.index.0, generation: 0, epoch, tail_blocks };
                (tail_blocks > 0).then_some(record)
            }
            Policy::InPlace => Some(raid.generation_record(zone)),
        }
    }
}
