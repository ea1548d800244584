//! Experiments with emulated drives that have the timing of real ones, in virtual time.
#![forbid(unsafe_code)]

pub mod apps;
pub mod calibrate;
pub mod classify;
pub mod datasets;
pub mod experiments;
pub mod figure;
pub mod fit;
pub mod host;
pub mod load;
pub mod log_window;
pub mod plot;
pub mod report;
pub mod rotation;
pub mod serial_section;
pub mod static_zones;
pub mod stream;
pub mod system;
pub mod tenants;
pub mod test_bed;
pub mod trace;
pub mod volume;
pub mod work;
