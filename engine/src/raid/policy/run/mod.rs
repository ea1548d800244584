//! What the policies do: the questions that are answered by reading and writing.
//!
//! The others ([`crate::raid::policy`]) are answered with values. Whatever is done here is done with what a running
//! array has: its members, their logs, its zones.

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
    /// Asked when the members' zones have been opened, before anything is written there.
    pub async fn opened(self, raid: &Raid, zone: &Zone) {
        match self {
            Policy::Log | Policy::Zrwa => {}
            Policy::InPlace => raid.begin_generation(zone, 0).await,
        }
    }

    /// A round of settling: makes what is complete safe, and moves write pointers, as far as `round` asks for
    /// it. Gives the block below which everything is safe then, or 0.
    pub async fn settle(self, raid: &Raid, zone: &Zone, round: &Round) -> u64 {
        match self {
            Policy::Log => log::settle(raid, zone, round).await,
            Policy::Zrwa => zrwa::settle(raid, zone, round).await,
            Policy::InPlace => inplace::settle(raid, zone, round).await,
        }
    }

    /// Makes the parity of a partial stripe the parity of the whole one, as if the rest were zeros. Asked when a
    /// zone is finished, which is quiet and whose finish has been promised.
    pub async fn promote(self, raid: &Raid, zone: &Zone) {
        match self {
            Policy::Log => raid.promote(zone).await,
            Policy::Zrwa | Policy::InPlace => zrwa::promote(raid, zone).await,
        }
    }

    /// What a zone is and where it ended. Asked at assembly, of every zone that is not to be reset; only reads,
    /// and marks in `view` who lacks a part.
    pub async fn judge(self, raid: &Raid, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        match self {
            Policy::Log => raid.judge_log(view).await,
            Policy::Zrwa => raid.judge_zrwa(view).await,
            Policy::InPlace => raid.judge_in_place(view).await,
        }
    }

    /// Members (bits) that do not hold what a process that died had completed below a tail, though they are said to
    /// hold their part: the drive is a copy from before. Asked of a zone that goes on; only reads.
    pub async fn outdated(self, raid: &Raid, view: &ZoneView<'_>, tail: &Tail) -> Result<u32, Refusal> {
        match self {
            // What is lacking is told by write pointers or marks.
            Policy::Log | Policy::InPlace => Ok(0),
            Policy::Zrwa => raid.outdated_zrwa(view, tail).await,
        }
    }

    /// Drops what is in logs and does not count any more, now that every zone has its verdict.
    pub fn keep_what_counts(self, raid: &Raid, verdicts: &[(ZoneIndex, Verdict)]) -> Result<(), ArrayError> {
        match self {
            Policy::Log => raid.keep_of_logs(verdicts),
            Policy::Zrwa | Policy::InPlace => {
                raid.forget_dead(verdicts);
                Ok(())
            }
        }
    }

    /// Writes what is lacking below the tail of a zone that goes on, or is to be finished.
    pub async fn write_back(self, raid: &Rc<Raid>, zone: &Zone, tail: &Tail) {
        match self {
            Policy::Log => raid.fill(zone, &tail.held).await,
            Policy::Zrwa | Policy::InPlace => raid.revive(zone.index, tail).await,
        }
    }

    /// Has the tail with which a zone goes on found again, whoever is lost. Asked behind
    /// [`Policy::write_back`]; what a round of settling shows need not be shown here.
    pub async fn secure(self, raid: &Raid, zone: &Zone) {
        match self {
            Policy::Log | Policy::Zrwa => {}
            Policy::InPlace => raid.secure_in_place(zone).await,
        }
    }

    /// Shows a tail so that it is found without a member that is going to count again: until now there was
    /// nobody else to lose. Asked of a quiet zone.
    pub async fn show_with(self, raid: &Raid, zone: &Zone, member: usize, tail_blocks: u64) {
        match self {
            Policy::Log | Policy::InPlace => {}
            Policy::Zrwa => zrwa::show_with(raid, zone, member, tail_blocks).await,
        }
    }

    /// The record that everything below `tail_blocks` of a zone is promised. Asked before the first promise.
    pub fn promise_record(self, raid: &Raid, zone: &Zone, tail_blocks: u64) -> TailRecord {
        if self == Policy::InPlace {
            // Blocks of earlier generations below this tail have been overwritten.
            zone.flow.borrow_mut().tell(tail_blocks);
            return raid.generation_record(zone);
        }
        TailRecord { zone: zone.index.0, generation: 0, epoch: zone.flow.borrow().epoch(), tail_blocks }
    }

    /// The record of a tail that a member has to have before it counts again: in its metadata log if it has a
    /// generation, otherwise where the layout has tails of its stripe.
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
