//! Tests of arrays, of the layers on them, and of the simulator, in one program: building it takes a fraction of the
//! time of one program for each file. `cargo test --package zoneraid-sim --test all raid6::` runs those of one file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

mod aggregate;
mod appended;
mod array;
mod checksum_device;
mod checksums;
mod closing;
mod crafted;
mod damage;
mod diverged;
mod doubt;
mod events;
mod evidence;
mod faults;
mod full_volume;
mod golden;
mod golden_layers;
mod guarantee;
mod join;
mod layered;
mod mirror;
mod moments;
mod namespaces;
mod owner;
mod pool;
mod power_loss;
mod probe;
mod raid6;
mod read_only_zones;
mod regressions;
mod regressions_log;
mod repair;
mod revived;
mod sequencer;
mod shards;
mod simulator;
mod single;
mod snapshot;
mod spare_zones;
mod stale;
mod steps;
mod trailers;
mod volume;
mod volume_moments;
mod window;
mod worn_logs;
mod zone_faults;
