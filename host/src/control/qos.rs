//! Limits, floors and latency targets of namespaces and of volumes of a pool, in messages to a daemon.

use engine::qos::{Qos, Rates};
use serde::{Deserialize, Serialize};

/// Upper limits and guaranteed floors in requests and blocks a second, and the latency target in microseconds; 0 for none.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct NewQos {
    pub limits: [u32; 2],
    pub floors: [u32; 2],
    pub latency_us: u32,
}

impl From<NewQos> for Qos {
    fn from(NewQos { limits, floors, latency_us }: NewQos) -> Qos {
        let rates = |[requests, blocks]: [u32; 2]| Rates { requests, blocks };
        Qos { limits: rates(limits), floors: rates(floors), latency_us }
    }
}

impl From<Qos> for NewQos {
    fn from(Qos { limits, floors, latency_us }: Qos) -> NewQos {
        let pair = |Rates { requests, blocks }| [requests, blocks];
        NewQos { limits: pair(limits), floors: pair(floors), latency_us }
    }
}

/// Changes of these; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QosChange {
    pub limits: [Option<u32>; 2],
    pub floors: [Option<u32>; 2],
    pub latency_us: Option<u32>,
}

impl QosChange {
    /// Whether nothing is changed.
    pub fn is_none(self) -> bool {
        self == QosChange::default()
    }

    /// Applies the changes.
    pub fn apply(self, qos: &mut Qos) {
        for (rates, [requests, blocks]) in [(&mut qos.limits, self.limits), (&mut qos.floors, self.floors)] {
            rates.requests = requests.unwrap_or(rates.requests);
            rates.blocks = blocks.unwrap_or(rates.blocks);
        }
        qos.latency_us = self.latency_us.unwrap_or(qos.latency_us);
    }
}
