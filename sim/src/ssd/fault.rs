//! Faults of a drive, planned ahead.
//!
//! A plan is a list of faults with the number of commands that come before each. The drive
//! consults it with every command. Faults of time, a latency spike and a dropped completion, are
//! handed to whoever runs the drive's queues. Faults of places that a drive does not have do nothing.

use super::Ailments;
use engine::{
    device::{Command, Status},
    zone::{Lba, ZoneIndex},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Something that goes wrong with a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Reads of the block fail, until it is written again or its zone is reset.
    Unreadable(Lba),
    /// The next write or append to the zone fails, and writes nothing.
    WriteFault(ZoneIndex),
    /// The zone can only be read from now on.
    ReadOnly(ZoneIndex),
    /// The zone is lost.
    Offline(ZoneIndex),
    /// A bit of the block, if it is written, is stored the wrong way round, and no error tells.
    /// Bits from 32,768 on are in the out-of-band metadata.
    Corrupt { lba: Lba, bit: u32 },
    /// The drive does not answer any more.
    Vanish,
    /// The drive is back, with what it stored.
    Return,
    /// The answer to the next command comes this much later.
    LatencySpike { us: u64 },
    /// The next command is carried out, but never answered.
    DropCompletion,
    /// The next command of this kind is answered with an error; if it is late, it has been carried out.
    Fail { kind: Kind, late: bool },
    /// Another hand resets the zone.
    Reset(ZoneIndex),
    /// Another hand finishes the zone.
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

    /// What a command of this kind that fails is answered with.
    pub(crate) fn status(self) -> Status {
        match self {
            Kind::Read => Status::UnrecoveredReadError,
            Kind::Write => Status::WriteFault,
            _ => Status::InternalError,
        }
    }
}

/// What will go wrong with a drive, and what has and still matters.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Commands seen so far.
    commands: u64,
    /// By the number of commands before them, in the order they were planned.
    planned: BTreeMap<u64, Vec<Fault>>,
    pub(super) gone: bool,
    pub(super) unreadable: BTreeSet<u64>,
    pub(super) failing_writes: BTreeMap<u32, u32>,
    spike_us: Option<u64>,
    drop_completion: bool,
    /// Whether they are carried out, of commands that fail, by their kind in the order that they were planned.
    failing: BTreeMap<Kind, VecDeque<bool>>,
    /// What was ordered for the drive in an image, beside the plan.
    pub(super) ailments: Ailments,
}

impl FaultPlan {
    /// Plans `fault` for when `commands` more commands have been carried out; with 0 it strikes
    /// before the next one.
    pub fn after(&mut self, commands: u64, fault: Fault) {
        self.planned.entry(self.commands.saturating_add(commands)).or_default().push(fault);
    }

    /// Nothing that is planned comes any more, and no command fails that has not yet.
    pub fn calm(&mut self) {
        self.planned.clear();
        self.failing.clear();
    }

    /// Blocks that could not be read can be read again.
    pub fn mend(&mut self) {
        self.unreadable.clear();
    }

    /// Whether the drive does not answer.
    pub fn is_gone(&self) -> bool {
        self.gone || self.ailments.gone
    }

    /// How many times as long as usual commands take, if not as long.
    pub fn slow(&self) -> Option<u32> {
        self.ailments.slow
    }

    /// How much later the answer to the command just carried out shall come, in microseconds.
    pub fn take_latency_spike_us(&mut self) -> Option<u64> {
        self.spike_us.take()
    }

    /// Whether the command just carried out shall never be answered.
    pub fn take_dropped_completion(&mut self) -> bool {
        std::mem::take(&mut self.drop_completion)
    }

    /// Counts a command, and gives the faults that strike before it.
    pub(super) fn next_command(&mut self) -> Vec<Fault> {
        self.commands += 1;
        if self.planned.first_key_value().is_none_or(|(due, _)| *due >= self.commands) {
            return Vec::new();
        }
        let later = self.planned.split_off(&self.commands);
        std::mem::replace(&mut self.planned, later).into_values().flatten().collect()
    }

    /// Takes note of a fault that the drive does not have to do anything about right now.
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

    /// Whether the command fails; then what kind it is, and whether it is carried out all the same.
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

    /// Which of these blocks have a bit that reads the wrong way round.
    pub(super) fn flipped(&self, lba: Lba, blocks: u64) -> Vec<Lba> {
        self.ailments.flipped.range(lba.0..lba.0 + blocks).map(|b| Lba(*b)).collect()
    }

    /// These blocks have been written or reset: they are well again. Gives whether that ends an ailment.
    pub(super) fn heal(&mut self, lba: Lba, blocks: u64) -> bool {
        if !self.unreadable.is_empty() {
            self.unreadable.retain(|b| !(lba.0..lba.0 + blocks).contains(b));
        }
        self.ailments.heal(lba, blocks)
    }
}
