//! Outstanding operations of the load, and zone changes that wait.

use super::oracle::{Change, FlushPoint, ReadPoint, ReportPoint};
use engine::device::{Completion, Done};
use std::fmt;

/// An outstanding operation.
pub struct Op {
    pub kind: OpKind,
    pub completion: Completion,
}

/// How to check the completion.
#[derive(Clone, Debug)]
pub enum OpKind {
    Write {
        zone: u32,
        start: u64,
        end: u64,
        fua: bool,
        append: bool,
        life: u64,
    },
    Read {
        point: ReadPoint,
        blocks: u64,
    },
    Flush(FlushPoint),
    Report {
        first: u32,
        point: ReportPoint,
    },
    Change {
        zones: Vec<u32>,
        change: Change,
    },
    Open {
        zone: u32,
    },
    Close {
        zone: u32,
    },
    /// Has to be refused.
    Wrong {
        zone: u32,
        what: &'static str,
    },
}

/// A change of a zone that waits until nothing is in flight in the zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingChange {
    Reset(u32),
    Finish(u32),
    Open(u32),
    Close(u32),
    ResetAll,
}

impl WaitingChange {
    pub fn holds(self, zone: u32) -> bool {
        match self {
            WaitingChange::Reset(z)
            | WaitingChange::Finish(z)
            | WaitingChange::Open(z)
            | WaitingChange::Close(z) => z == zone,
            WaitingChange::ResetAll => true,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpKind::Write { zone, start, end, fua, append, .. } => {
                let verb = if *append { "append" } else { "write" };
                write!(f, "{verb} zone {zone} {start}..{end}{}", if *fua { " FUA" } else { "" })
            }
            OpKind::Read { point, blocks } => {
                write!(f, "read zone {} {}..{}", point.zone, point.block, point.block + blocks)
            }
            OpKind::Flush(_) => f.write_str("flush"),
            OpKind::Report { first, .. } => write!(f, "report from zone {first} on"),
            OpKind::Change { zones, change } => write!(f, "{change:?} zones {zones:?}"),
            OpKind::Open { zone } => write!(f, "open zone {zone}"),
            OpKind::Close { zone } => write!(f, "close zone {zone}"),
            OpKind::Wrong { zone, what } => write!(f, "{what} in zone {zone}"),
        }
    }
}

/// The result of an operation, in a line of the trace.
pub fn outcome(done: &Done) -> String {
    match &done.result {
        Ok(()) => "done".into(),
        Err(error) => format!("failed: {error}"),
    }
}
