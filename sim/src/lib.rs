//! The emulated ZNS SSD and the simulator.
