//! Reports on namespaces.

use super::{
    LostRange,
    rates::RatesReport,
    volume::{PoolVolumeReport, VolumeReport},
};
use crate::process::size::bytes;
use engine::{buf::BLOCK, vzone::NamespaceStatus};
use serde::{Deserialize, Serialize};

/// Division of an array into namespaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Division {
    /// Zones of namespaces that the array has room for, and how many of them are free.
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

/// State of a namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamespaceReport {
    pub name: String,
    /// Its block device, and the link to it by the names of array and namespace.
    pub block_device: Option<String>,
    pub link: Option<String>,
    pub zones: u32,
    pub capacity_bytes: u64,
    pub written_bytes: u64,
    pub weight: u32,
    /// Upper limits and guaranteed floors.
    pub limits: RatesReport,
    pub floors: RatesReport,
    /// Latency that 999 of 1000 requests shall not exceed, in microseconds; `None` outside of the class of low latency.
    pub latency_us: Option<u32>,
    /// Zones that may be active at once, and zones that are active.
    pub active: u32,
    pub active_zones: u32,
    /// Zones of the array guaranteed to each active zone, and to all of them together.
    pub width: u32,
    pub essential: u32,
    /// Spare active zones of the array: its share by weight, how many it holds, and how many of these are borrowed.
    pub own_spares: u32,
    pub held_spares: u32,
    pub borrowed_spares: u32,
    /// Stripe widths: zones of the array over which each open zone is spread.
    pub widths: Vec<u32>,
    /// Bytes of reads in flight, and the window of each zone for these under congestion control; `None` without a
    /// limit.
    pub read_bytes_in_flight: u64,
    pub read_window_bytes: Option<u64>,
    /// Write admission tokens of all open zones, in bytes; negative if these are in debt.
    pub token_bytes: i64,
    /// Throttled rate for the sake of other namespaces; `None` if it is not throttled.
    pub held_to_bytes_per_second: Option<u64>,
    /// Whether its floors or its latency were found unattainable, so that others are not throttled further for now.
    pub floors_out_of_reach: bool,
    pub latency_out_of_reach: bool,
    /// Ranges of its zones that the array has lost.
    #[serde(default)]
    pub lost: Vec<LostRange>,
    /// The volume that it carries, or its pool; its write amplification does not include parity and metadata of the array.
    pub volume: Option<VolumeReport>,
    /// The volumes of the pool that it carries; `None` without a pool.
    pub volumes: Option<Vec<PoolVolumeReport>>,
}

/// The latency of a class in words.
pub fn latency_words(us: Option<u32>) -> String {
    us.map_or("-".into(), |us| format!("{us} us"))
}

impl NamespaceReport {
    /// Converts a status; zones hold `zone_capacity_blocks` each.
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
            lost: Vec::new(),
            volume: None,
            volumes: None,
        }
    }
}
