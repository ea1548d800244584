//! State of the volume under test: outstanding operations, permitted contents of its blocks, injected faults.

use super::{
    oracle::{Content, GuaranteeOracle, SnapshotOracle, VolumeOracle},
    scenario::VolumeScenario,
    tested::Tested,
};
use crate::simulator::layer::world::LayerWorld;
use engine::{array::Tails, buf::Buf, device::DeviceError, volume::VolumeStatus};
use std::{cell::RefCell, rc::Rc};

pub(super) type VolumeWorld = LayerWorld<VolumeModel>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeOpKind {
    Write {
        at: u64,
        blocks: u64,
        fua: bool,
    },
    Discard {
        at: u64,
        blocks: u64,
    },
    Read {
        at: u64,
        blocks: u64,
    },
    Flush,
    Grow {
        blocks: u64,
    },
    /// The end of the last volume is discarded and cut off, so that `to` of `from` blocks are left.
    Shrink {
        from: u64,
        to: u64,
    },
    /// A volume of a pool is removed, and another one of this name created.
    Replace {
        number: usize,
    },
    /// A snapshot of a volume of a pool is made.
    Snapshot {
        number: usize,
        id: u64,
    },
    RemoveSnapshot {
        id: u64,
    },
    ReadSnapshot {
        id: u64,
        at: u64,
        blocks: u64,
    },
    /// A volume gets back the contents of a snapshot.
    RollBack {
        number: usize,
        id: u64,
    },
    /// A volume of a pool is removed, and a clone of a snapshot gets its name.
    Clone {
        number: usize,
        id: u64,
    },
    /// Blocks are guaranteed to a volume of a pool.
    Guarantee {
        number: usize,
        blocks: u64,
    },
}

/// The result of an operation, with the data of a read; `None` while it is outstanding.
pub(super) type Answer = Rc<RefCell<Option<Result<Buf, DeviceError>>>>;

pub(super) struct VolumeOp {
    pub(super) kind: VolumeOpKind,
    pub(super) begun: u64,
    pub(super) answer: Answer,
    /// The largest number of blocks that may have been mapped since the operation began, as of the last count.
    pub(super) mapped: u64,
    /// [`GuaranteeOracle::changes`] when it began.
    pub(super) changes: u64,
}

/// Counters of the volume, to show that runs reach the relevant cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounts {
    /// Zones collected by the volumes.
    pub collected_zones: u64,
    /// Blocks written to hot windows.
    pub in_window: u64,
    pub checkpoints: u64,
    pub discarded: u64,
    /// Enlargements.
    pub growths: u64,
    /// Ends that were cut off.
    pub shrinks: u64,
    /// Replacements of volumes of a pool.
    pub replacements: u64,
    /// Snapshots made, removed and returned to, and clones.
    pub snapshots: u64,
    pub removed_snapshots: u64,
    pub returns: u64,
    pub clones: u64,
    /// Guarantees that were set or changed.
    pub guarantees: u64,
    /// Writes refused because the volume was full.
    pub refusals: u64,
}

/// The volume and its load.
pub struct VolumeModel {
    pub(super) scenario: VolumeScenario,
    pub(super) volume: Option<Tested>,
    pub(super) oracle: VolumeOracle,
    /// Sizes of changes of the size that may have been interrupted, in blocks.
    pub(super) asked: Vec<u64>,
    /// Sizes of the volumes of a pool; none without one.
    pub(super) sizes: Vec<u64>,
    /// The volumes after a replacement of one of them.
    pub(super) replaced: Rc<RefCell<Option<Tested>>>,
    pub(super) snapshots: Vec<SnapshotOracle>,
    pub(super) guarantees: GuaranteeOracle,
    /// Number of the next snapshot.
    pub(super) next_snapshot: u64,
    /// Mapped blocks of no volume, as last counted.
    pub(super) in_no_volume: u64,
    pub(super) ops: Vec<VolumeOp>,
    /// Contents of the acknowledgement log of the running process.
    pub(super) tails: Rc<RefCell<Tails>>,
    /// A command of the drive was made to fail: operations may fail.
    pub(super) struck: bool,
    /// A command of the drive was made to fail during this recovery.
    pub(super) struck_in_recovery: bool,
    /// Number of read-only zones.
    pub(super) worn: u64,
}

impl VolumeModel {
    pub(super) fn new(scenario: VolumeScenario) -> VolumeModel {
        VolumeModel {
            scenario,
            volume: None,
            oracle: VolumeOracle::new(0),
            asked: Vec::new(),
            sizes: Vec::new(),
            replaced: Rc::default(),
            snapshots: Vec::new(),
            guarantees: GuaranteeOracle::default(),
            next_snapshot: 0,
            in_no_volume: 0,
            ops: Vec::new(),
            tails: Rc::default(),
            struck: false,
            struck_in_recovery: false,
            worn: 0,
        }
    }

    /// The snapshot with this number.
    pub(super) fn snapshot_mut(&mut self, id: u64) -> Option<&mut SnapshotOracle> {
        self.snapshots.iter_mut().find(|snapshot| snapshot.id == id)
    }

    /// The volume of which this is a snapshot.
    pub(super) fn head_of(&self, id: u64) -> usize {
        let found = self.snapshots.iter().find(|snapshot| snapshot.id == id);
        found.map_or(0, |snapshot| snapshot.number)
    }

    /// Adds contents that snapshots which are being made may have, since writes have begun meanwhile.
    pub(super) fn widen(&mut self) {
        for at in 0..self.ops.len() {
            let VolumeOp { kind, begun, .. } = self.ops[at];
            if let VolumeOpKind::Snapshot { number, id } = kind {
                let range = self.volume.as_ref().map_or(0..0, |volume| volume.range(number));
                let blocks = self.snapshot_mut(id).map_or(0, |snapshot| snapshot.blocks.len() as u64);
                let now = self.oracle.contents(range.start, blocks, begun);
                let Some(snapshot) = self.snapshot_mut(id) else { continue };
                for (contents, more) in snapshot.blocks.iter_mut().zip(now) {
                    let others: Vec<Content> =
                        more.into_iter().filter(|content| !contents.contains(content)).collect();
                    contents.extend(others);
                }
            }
        }
    }

    pub(super) fn status(&self) -> Option<VolumeStatus> {
        self.volume.as_ref().map(Tested::status)
    }
}

/// The volume that an operation replaces or gives other contents.
pub(super) fn replaced_by(kind: VolumeOpKind) -> Option<usize> {
    match kind {
        VolumeOpKind::Replace { number }
        | VolumeOpKind::RollBack { number, .. }
        | VolumeOpKind::Clone { number, .. } => Some(number),
        _ => None,
    }
}

/// Whether one of two operations replaces a volume that the other one uses.
pub(super) fn uses(world: &VolumeWorld, a: VolumeOpKind, b: VolumeOpKind) -> bool {
    let changes_size = |kind| matches!(kind, VolumeOpKind::Grow { .. } | VolumeOpKind::Shrink { .. });
    let is_snapshot = |kind| matches!(kind, VolumeOpKind::Snapshot { .. });
    if changes_size(a) && (changes_size(b) || is_snapshot(b)) || is_snapshot(a) && changes_size(b) {
        return true;
    }
    // Blocks that are being cut off have no users.
    if let (VolumeOpKind::Shrink { to, .. }, other) | (other, VolumeOpKind::Shrink { to, .. }) = (a, b)
        && let VolumeOpKind::Write { at, blocks, .. }
        | VolumeOpKind::Discard { at, blocks }
        | VolumeOpKind::Read { at, blocks } = other
    {
        return at + blocks > to;
    }
    let (other, replaced) = match (replaced_by(a), replaced_by(b)) {
        (Some(replaced), _) => (b, replaced),
        (_, Some(replaced)) => (a, replaced),
        _ => return false,
    };
    let range = world.model.volume.as_ref().map_or(0..0, |volume| volume.range(replaced));
    match other {
        VolumeOpKind::Write { at, blocks, .. }
        | VolumeOpKind::Discard { at, blocks }
        | VolumeOpKind::Read { at, blocks } => at < range.end && range.start < at + blocks,
        VolumeOpKind::Flush => false,
        VolumeOpKind::Snapshot { number, .. } | VolumeOpKind::Guarantee { number, .. } => number == replaced,
        VolumeOpKind::ReadSnapshot { .. } | VolumeOpKind::RemoveSnapshot { .. } => false,
        VolumeOpKind::Grow { .. }
        | VolumeOpKind::Shrink { .. }
        | VolumeOpKind::Replace { .. }
        | VolumeOpKind::RollBack { .. }
        | VolumeOpKind::Clone { .. } => true,
    }
}
