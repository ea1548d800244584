//! The simulator of volumes: a block device on a drive or an array, checked against its guarantees.
//!
//! As with arrays, a seed decides everything ([`scenario`]), a world plays it ([`super::layer`]), and the [`oracle`] judges reads
//! while the volume runs, and all data after every recovery. At random moments the world is copied, the copy's power is
//! cut, and its recovery is judged, with a member lost at the same moment if there is an array below.

mod helpers;
mod lifecycle;
mod load;
mod model;
pub mod oracle;
pub mod scenario;
mod stack;

pub use super::layer::DeviceBelow;
pub use model::{VolumeCounts, VolumeModel};
pub(super) use stack::RecordingArray;

/// Results of many seeds.
pub type VolumeSummary = super::layer::LayerSummary<VolumeCounts>;
