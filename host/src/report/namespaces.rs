//! What there is to say about namespaces.

use super::volume::VolumeReport;
use crate::size::{bytes, show};
use engine::{
    buf::BLOCK,
    vzone::{Limits, NamespaceStatus},
};
use serde::{Deserialize, Serialize};

/// How an array is divided among namespaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Division {
    /// Zones of namespaces that there is room for, and those that nobody has.
    pub zones: u64,
    pub free_zones: u64,
    pub zone_capacity_bytes: u64,
    pub list: Vec<NamespaceReport>,
}

impl Division {
    pub fn of(zones: u64, zone_capacity_bytes: u64, list: Vec<NamespaceReport>) -> Division {
        let given: u64 = list.iter().map(|namespace| namespace.zones as u64).sum();
        Division { zones, free_zones: zones.saturating_sub(given), zone_capacity_bytes, list }
    }
}

/// How a namespace is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamespaceReport {
    pub name: String,
    /// What file systems use, and the same by the names of the array and the namespace.
    pub block_device: Option<String>,
    pub link: Option<String>,
    pub zones: u32,
    pub capacity_bytes: u64,
    pub written_bytes: u64,
    pub weight: u32,
    pub limits: LimitsReport,
    /// Zones that may be active at once, and those that are.
    pub active: u32,
    pub active_zones: u32,
    /// Zones of the array that each of these has for certain, and all of them together.
    pub width: u32,
    pub essential: u32,
    /// Spare active zones of the array: what is its share by its weight, what it holds, and how much of that is borrowed.
    pub own_spares: u32,
    pub held_spares: u32,
    pub borrowed_spares: u32,
    /// Over how many zones of the array each zone is spread that is being written.
    pub widths: Vec<u32>,
    /// Of zones that are being read: commands on their way, and how many may be.
    pub reads_in_flight: u32,
    pub read_window: u32,
    /// What zones that are being written may write at once; less than nothing if they owe it.
    pub token_bytes: i64,
    /// The volume that it carries. What the array adds to what this writes is not counted there.
    pub volume: Option<VolumeReport>,
}

/// What a namespace may be asked for; nothing where there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsReport {
    pub requests_per_second: Option<u32>,
    pub bytes_per_second: Option<u64>,
}

impl LimitsReport {
    pub fn of(limits: Limits) -> LimitsReport {
        let requests_per_second = Some(limits.requests).filter(|requests| *requests > 0);
        let bytes_per_second = Some(bytes(limits.blocks as u64)).filter(|bytes| *bytes > 0);
        LimitsReport { requests_per_second, bytes_per_second }
    }

    /// For people.
    pub fn words(self) -> String {
        let requests = self.requests_per_second.map(|requests| format!("{requests} requests/s"));
        let bytes = self.bytes_per_second.map(|bytes| show(bytes) + "/s");
        let both: Vec<String> = requests.into_iter().chain(bytes).collect();
        if both.is_empty() { "-".into() } else { both.join(", ") }
    }
}

impl NamespaceReport {
    /// Of one whose zones hold so many blocks each.
    pub fn of(namespace: &NamespaceStatus, zone_capacity_blocks: u64) -> NamespaceReport {
        let NamespaceStatus { spec, active, own_spares, spares, widths, written_blocks, .. } = namespace;
        NamespaceReport {
            name: spec.name.clone(),
            block_device: None,
            link: None,
            zones: spec.zones,
            capacity_bytes: bytes(spec.zones as u64 * zone_capacity_blocks),
            written_bytes: bytes(*written_blocks),
            weight: spec.weight,
            limits: LimitsReport::of(spec.limits),
            active: spec.max_active,
            active_zones: *active,
            width: spec.essential,
            essential: spec.essential * spec.max_active,
            own_spares: *own_spares,
            held_spares: *spares,
            borrowed_spares: spares.saturating_sub(*own_spares),
            widths: widths.clone(),
            reads_in_flight: namespace.reads_in_flight,
            read_window: namespace.read_window,
            token_bytes: namespace.tokens.saturating_mul(BLOCK as i64),
            volume: None,
        }
    }
}
