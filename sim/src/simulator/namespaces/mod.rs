//! The simulator of namespaces: several tenants on a drive or an array, checked against the guarantees of each.
//!
//! As with arrays, a seed decides everything ([`scenario`]), a world plays it ([`super::layer`]), and the [`oracle`] judges reads
//! while the namespaces run, and all data after every recovery. The allocation is audited all the time: no physical
//! zone has two owners, and none is lost. At random moments the world is copied, the copy's power is cut, and its
//! recovery is judged, with a member lost at the same moment if there is an array below.

mod lifecycle;
mod load;
mod model;
mod ops;
pub mod oracle;
pub mod scenario;
mod stack;

pub use super::layer::DeviceBelow;
pub use model::{NamespaceCounts, NamespaceModel};

/// Results of many seeds.
pub type NamespaceSummary = super::layer::LayerSummary<NamespaceCounts>;
