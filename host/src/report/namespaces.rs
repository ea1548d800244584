//! What there is to say about namespaces.

use super::volume::VolumeReport;
use crate::size::{bytes, show};
use engine::{
    buf::BLOCK,
    vzone::{NamespaceStatus, Rates},
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
    /// What it may be asked for at most, and what it gets at least.
    pub limits: RatesReport,
    pub floors: RatesReport,
    /// What 999 of 1000 requests are to take at most; nothing if it is not of the class of latency.
    pub latency_us: Option<u32>,
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
    /// What is being read, and how much of that each zone may have on its way for others' sake; nothing if nobody is to
    /// be spared.
    pub read_bytes_in_flight: u64,
    pub read_window_bytes: Option<u64>,
    /// What zones that are being written may write at once; less than nothing if they owe it.
    pub token_bytes: i64,
    /// To how much it is held back for the sake of others; nothing if it is not.
    pub held_to_bytes_per_second: Option<u64>,
    /// Whether its floors, and its latency, were found to be out of reach: nobody is held back further for them for now.
    pub floors_out_of_reach: bool,
    pub latency_out_of_reach: bool,
    /// The volume that it carries. What the array adds to what this writes is not counted there.
    pub volume: Option<VolumeReport>,
}

/// Limits of a namespace, or floors; nothing where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RatesReport {
    pub requests_per_second: Option<u32>,
    pub bytes_per_second: Option<u64>,
}

impl RatesReport {
    pub fn of(rates: Rates) -> RatesReport {
        let requests_per_second = Some(rates.requests).filter(|requests| *requests > 0);
        let bytes_per_second = Some(bytes(rates.blocks as u64)).filter(|bytes| *bytes > 0);
        RatesReport { requests_per_second, bytes_per_second }
    }

    /// For people.
    pub fn words(self) -> String {
        let requests = self.requests_per_second.map(|requests| format!("{requests} requests/s"));
        let bytes = self.bytes_per_second.map(|bytes| show(bytes) + "/s");
        let both: Vec<String> = requests.into_iter().chain(bytes).collect();
        if both.is_empty() { "-".into() } else { both.join(", ") }
    }
}

/// The latency of a class, for people.
pub fn latency_words(us: Option<u32>) -> String {
    us.map_or("-".into(), |us| format!("{us} us"))
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
            limits: RatesReport::of(spec.qos.limits),
            floors: RatesReport::of(spec.qos.floors),
            latency_us: Some(spec.qos.latency_us).filter(|us| *us > 0),
            active: spec.max_active,
            active_zones: *active,
            width: spec.essential,
            essential: spec.essential * spec.max_active,
            own_spares: *own_spares,
            held_spares: *spares,
            borrowed_spares: spares.saturating_sub(*own_spares),
            widths: widths.clone(),
            read_bytes_in_flight: bytes(namespace.read_blocks),
            read_window_bytes: namespace.read_window_blocks.map(bytes),
            token_bytes: namespace.tokens.saturating_mul(BLOCK as i64),
            held_to_bytes_per_second: namespace.held_to.map(bytes),
            floors_out_of_reach: namespace.out_of_reach[0],
            latency_out_of_reach: namespace.out_of_reach[1],
            volume: None,
        }
    }
}
