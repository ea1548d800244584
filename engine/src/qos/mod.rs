//! Quality of service of the clients of one device, which are its namespaces, or the volumes of a pool: rate limits,
//! guaranteed rates, latency class.

mod control;
mod limit;
mod terms;
mod throttle;

pub use self::{
    control::{AdmittedRequest, QosControl, QosState},
    limit::Rates,
    terms::Qos,
};
