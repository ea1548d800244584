//! Planned faults of a drive.
//!
//! A plan is a list of faults, each with the number of commands before it. The drive consults it with every command.
//! Faults of timing, a latency spike and a dropped completion, are passed to the code that runs the drive's queues.
//! Faults at addresses that the drive does not have are ignored.

use super::ailments::Ailments;
use engine::{
    device::{Command, Status},
    zone::{Lba, ZoneIndex},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A fault of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reads of the block fail, until it is written again or its zone is reset.
    Unreadable(Lba),
    /// The next write or append to the zone fails, and writes nothing.
    WriteFault(ZoneIndex),
    /// The zone becomes read-only.
    ReadOnly(ZoneIndex),
    /// The zone becomes offline.
    Offline(ZoneIndex),
    /// A stored bit of the block is inverted, if the block is written, without an error. Bits from 32,768 on are in the
    /// out-of-band metadata.
    Corrupt { lba: Lba, bit: u32 },
    /// The drive no longer answers.
    Vanish,
    /// The drive is back, with the data that it stored.
    Return,
    /// The completion of the next command is late by this much.
    LatencySpike { us: u64 },
    /// The next command is executed, but never completed.
    DropCompletion,
    /// The next command of this kind completes with an error; if `late`, it has been executed.
    Fail { kind: Kind, late: bool },
    /// Another host resets the zone.
    Reset(ZoneIndex),
    /// Another host finishes the zone.
    Finish(ZoneIndex),
}

/// Kinds of commands. An append is a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Read,
    Write,
    Flush,
    Report,
    Open,
    Close,
    Finish,
    Reset,
    FlushZrwa,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 9] = [
        Kind::Read,
        Kind::Write,
        Kind::Flush,
        Kind::Report,
        Kind::Open,
        Kind::Close,
        Kind::Finish,
        Kind::Reset,
        Kind::FlushZrwa,
    ];

    /// The kind of a command.
    pub fn of(command: &Command) -> Kind {
        match command {
            Command::Read { .. } => Kind::Read,
            Command::Write { .. } | Command::Append { .. } => Kind::Write,
            Command::Flush => Kind::Flush,
            Command::Report { .. } => Kind::Report,
            Command::Open { .. } => Kind::Open,
            Command::Close { .. } => Kind::Close,
            Command::Finish { .. } => Kind::Finish,
            Command::Reset { .. } => Kind::Reset,
            Command::FlushZrwa { .. } => Kind::FlushZrwa,
        }
    }

    /// The status of a failing command of this kind.
    pub fn status(self) -> Status {
        match self {
            Kind::Read => Status::UnrecoveredReadError,
            Kind::Write => Status::WriteFault,
            _ => Status::InternalError,
        }
    }
}

/// Content of reads of a block with a silent fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Replacement<'a> {
    Unwritten,
    /// As another block.
    Block(Lba),
    /// As this data and metadata, if it is written.
    Stale(&'a [u8]),
}

/// Planned faults of a drive, and the past ones that still have effects.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Commands so far.
    commands: u64,
    /// By the number of commands before them, in the order of planning.
    planned: BTreeMap<u64, Vec<Fault>>,
    pub(super) gone: bool,
    pub(super) unreadable: BTreeSet<u64>,
    pub(super) failing_writes: BTreeMap<u32, u32>,
    spike_us: Option<u64>,
    drop_completion: bool,
    /// Failing commands by kind, in the order of planning: whether each is executed.
    failing: BTreeMap<Kind, VecDeque<bool>>,
    /// Injected faults of a drive in an image, independent of the plan.
    pub(super) ailments: Ailments,
}

impl FaultPlan {
    /// Plans `fault` for after `commands` more commands; with 0 it strikes before the next one.
    pub fn after(&mut self, commands: u64, fault: Fault) {
        self.planned.entry(self.commands.saturating_add(commands)).or_default().push(fault);
    }

    /// Cancels planned faults and failures of commands that are still to come.
    pub fn calm(&mut self) {
        self.planned.clear();
        self.failing.clear();
    }

    /// Makes unreadable blocks readable again.
    pub fn mend(&mut self) {
        self.unreadable.clear();
    }

    /// Whether the drive does not answer.
    pub fn is_gone(&self) -> bool {
        self.gone || self.ailments.gone
    }

    /// Factor of command durations; `None` for normal speed.
    pub fn slow(&self) -> Option<u32> {
        self.ailments.slow
    }

    /// Extra latency of the command just executed, in microseconds.
    pub fn take_latency_spike_us(&mut self) -> Option<u64> {
        self.spike_us.take()
    }

    /// Whether the command just executed is never completed.
    pub fn take_dropped_completion(&mut self) -> bool {
        std::mem::take(&mut self.drop_completion)
    }

    /// Counts a command, and returns the faults that strike before it.
    pub(super) fn next_command(&mut self) -> Vec<Fault> {
        self.commands += 1;
        if self.planned.first_key_value().is_none_or(|(due, _)| *due >= self.commands) {
            return Vec::new();
        }
        let later = self.planned.split_off(&self.commands);
        std::mem::replace(&mut self.planned, later).into_values().flatten().collect()
    }

    /// Records a fault that needs no action of the drive now.
    pub(super) fn note(&mut self, fault: Fault) {
        match fault {
            Fault::Unreadable(lba) => _ = self.unreadable.insert(lba.0),
            Fault::WriteFault(zone) => *self.failing_writes.entry(zone.0).or_default() += 1,
            Fault::Vanish => self.gone = true,
            Fault::Return => self.gone = false,
            Fault::LatencySpike { us } => self.spike_us = Some(us),
            Fault::DropCompletion => self.drop_completion = true,
            Fault::Fail { kind, late } => self.failing.entry(kind).or_default().push_back(late),
            // The drive has done that itself, or has no such zone.
            Fault::ReadOnly(_) | Fault::Offline(_) | Fault::Corrupt { .. } => (),
            Fault::Reset(_) | Fault::Finish(_) => (),
        }
    }

    /// Whether the next write to `zone` fails.
    pub(super) fn take_write_fault(&mut self, zone: ZoneIndex) -> bool {
        let Some(left) = self.failing_writes.get_mut(&zone.0) else { return false };
        *left -= 1;
        if *left == 0 {
            self.failing_writes.remove(&zone.0);
        }
        true
    }

    /// The kind of the command if it fails, and whether it is executed nevertheless.
    pub(super) fn take_failure(&mut self, command: &Command) -> Option<(Kind, bool)> {
        if self.failing.is_empty() {
            return None;
        }
        let kind = Kind::of(command);
        let late = self.failing.get_mut(&kind)?.pop_front();
        self.failing.retain(|_, failing| !failing.is_empty());
        late.map(|late| (kind, late))
    }

    /// Whether a read of these blocks fails.
    pub(super) fn is_unreadable(&self, lba: Lba, blocks: u64) -> bool {
        let sets = [&self.unreadable, &self.ailments.unreadable];
        sets.iter().any(|set| set.range(lba.0..lba.0 + blocks).next().is_some())
    }

    /// The blocks among these with an inverted bit.
    pub(super) fn flipped(&self, lba: Lba, blocks: u64) -> Vec<Lba> {
        self.ailments.flipped.range(lba.0..lba.0 + blocks).map(|b| Lba(*b)).collect()
    }

    /// The blocks among these that have other contents than those written to them.
    pub(super) fn replaced(&self, lba: Lba, blocks: u64) -> Vec<(Lba, Replacement<'_>)> {
        let Ailments { dropped, misdirected, stale, .. } = &self.ailments;
        let range = lba.0..lba.0 + blocks;
        let lost = dropped.range(range.clone()).chain(misdirected.range(range.clone()).map(|(from, _)| from));
        let lost = lost.map(|at| (Lba(*at), Replacement::Unwritten));
        let arrived = misdirected.iter().filter(|(_, to)| range.contains(to));
        let arrived = arrived.map(|(from, to)| (Lba(*to), Replacement::Block(Lba(*from))));
        let stale = stale.range(range.clone()).map(|(at, bytes)| (Lba(*at), Replacement::Stale(bytes)));
        lost.chain(arrived).chain(stale).collect()
    }

    /// Removes the faults of blocks that were written or reset. Returns whether that ends an injected fault.
    pub(super) fn heal(&mut self, lba: Lba, blocks: u64) -> bool {
        if !self.unreadable.is_empty() {
            self.unreadable.retain(|b| !(lba.0..lba.0 + blocks).contains(b));
        }
        self.ailments.heal(lba, blocks)
    }
}
