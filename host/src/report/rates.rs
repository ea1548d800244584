//! Reports on limits and floors, as rates of requests and bytes.

use crate::process::size::{bytes, show};
use engine::qos::Rates;
use serde::{Deserialize, Serialize};

/// Limits of a namespace or of a volume of a pool, or their floors; `None` for no limit or floor.
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

    /// Whether neither rate is given.
    pub fn is_none(self) -> bool {
        self.requests_per_second.is_none() && self.bytes_per_second.is_none()
    }

    /// The rates in words.
    pub fn words(self) -> String {
        let requests = self.requests_per_second.map(|requests| format!("{requests} requests/s"));
        let bytes = self.bytes_per_second.map(|bytes| show(bytes) + "/s");
        let both: Vec<String> = requests.into_iter().chain(bytes).collect();
        if both.is_empty() { "-".into() } else { both.join(", ") }
    }
}
