//! State of the volume under test: outstanding operations, permitted contents of its blocks, injected faults.

use super::{oracle::VolumeOracle, scenario::VolumeScenario, tested::Tested};
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
    /// A volume of a pool is removed, and another one of this name created.
    Replace {
        number: usize,
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
}

/// Counters of the volume, to show that runs reach the relevant cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounts {
    /// Zones collected by the volumes.
    pub collected_zones: u64,
    pub checkpoints: u64,
    pub discarded: u64,
    /// Enlargements.
    pub growths: u64,
    /// Replacements of volumes of a pool.
    pub replacements: u64,
    /// Writes refused because the volume was full.
    pub refusals: u64,
}

/// The volume and its load.
pub struct VolumeModel {
    pub(super) scenario: VolumeScenario,
    pub(super) volume: Option<Tested>,
    pub(super) oracle: VolumeOracle,
    /// Sizes of growths that may have been interrupted, in blocks.
    pub(super) asked: Vec<u64>,
    /// Sizes of the volumes of a pool; none without one.
    pub(super) sizes: Vec<u64>,
    /// The volumes after a replacement of one of them.
    pub(super) replaced: Rc<RefCell<Option<Tested>>>,
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
            in_no_volume: 0,
            ops: Vec::new(),
            tails: Rc::default(),
            struck: false,
            struck_in_recovery: false,
            worn: 0,
        }
    }

    pub(super) fn status(&self) -> Option<VolumeStatus> {
        self.volume.as_ref().map(Tested::status)
    }
}
