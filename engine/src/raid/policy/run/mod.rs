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
        core::Core,
        error::ArrayError,
        policy::{Policy, zrwa::Refusal},
        recover::verdict::{Tail, Verdict, ZoneView},
        zone::flow::{Round, Zone},
    },
    zone::ZoneIndex,
};
use std::rc::Rc;

impl Policy {
    /// Asked when the members' zones have been opened, before anything is written there.
    pub async fn opened(self, core: &Core, zone: &Zone) {
        match self {
            Policy::Log | Policy::Zrwa => {}
            Policy::InPlace => core.begin_generation(zone, 0).await,
        }
    }

    /// A round of settling: makes what is complete safe, and moves write pointers, as far as `round` asks for
    /// it. Gives the block below which everything is safe then, or 0.
    pub async fn settle(self, core: &Core, zone: &Zone, round: &Round) -> u64 {
        match self {
            Policy::Log => log::settle(core, zone, round).await,
            Policy::Zrwa => zrwa::settle(core, zone, round).await,
            Policy::InPlace => inplace::settle(core, zone, round).await,
        }
    }

    /// Makes the parity of a partial stripe the parity of the whole one, as if the rest were zeros. Asked when a
    /// zone is finished, which is quiet and whose finish has been promised.
    pub async fn promote(self, core: &Core, zone: &Zone) {
        match self {
            Policy::Log => core.promote(zone).await,
            Policy::Zrwa | Policy::InPlace => zrwa::promote(core, zone).await,
        }
    }

    /// What a zone is and where it ended. Asked at assembly, of every zone that is not to be reset; only reads,
    /// and marks in `view` who lacks a part.
    pub async fn judge(self, core: &Core, view: &mut ZoneView<'_>) -> Result<Verdict, Refusal> {
        match self {
            Policy::Log => core.judge_log(view).await,
            Policy::Zrwa => core.judge_zrwa(view).await,
            Policy::InPlace => core.judge_in_place(view).await,
        }
    }

    /// Drops what is in logs and does not count any more, now that every zone has its verdict.
    pub fn keep_what_counts(self, core: &Core, verdicts: &[(ZoneIndex, Verdict)]) -> Result<(), ArrayError> {
        match self {
            Policy::Log => core.keep_of_logs(verdicts),
            Policy::Zrwa | Policy::InPlace => {
                core.forget_dead(verdicts);
                Ok(())
            }
        }
    }

    /// Writes what is lacking below the tail of a zone that goes on, or is to be finished.
    pub async fn write_back(self, core: &Rc<Core>, zone: &Zone, tail: &Tail) {
        match self {
            Policy::Log => core.fill(zone, &tail.held).await,
            Policy::Zrwa | Policy::InPlace => core.revive(zone.index, tail).await,
        }
    }

    /// Has the tail with which a zone goes on found again, whoever is lost. Asked behind
    /// [`Policy::write_back`]; what a round of settling shows need not be shown here.
    pub async fn secure(self, core: &Core, zone: &Zone) {
        match self {
            Policy::Log | Policy::Zrwa => {}
            Policy::InPlace => core.secure_in_place(zone).await,
        }
    }

    /// Shows a tail so that it is found without a member that is going to count again: until now there was
    /// nobody else to lose. Asked of a quiet zone.
    pub async fn show_with(self, core: &Core, zone: &Zone, member: usize, tail_blocks: u64) {
        match self {
            Policy::Log | Policy::InPlace => {}
            Policy::Zrwa => zrwa::show_with(core, zone, member, tail_blocks).await,
        }
    }

    /// The record of a tail that a member has to have before it counts again: in its metadata log if it has a
    /// generation, otherwise where the layout has tails of its stripe.
    pub fn tail_record(self, core: &Core, zone: &Zone, tail_blocks: u64) -> Option<TailRecord> {
        match self {
            Policy::Log => None,
            Policy::Zrwa => {
                let epoch = zone.flow.borrow().epoch();
                let record = TailRecord { zone: zone.index.0, generation: 0, epoch, tail_blocks };
                (tail_blocks > 0).then_some(record)
            }
            Policy::InPlace => Some(core.generation_record(zone)),
        }
    }
}
