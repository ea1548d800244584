//! Library of the `zoneraid` binary and its benchmark. One line per folder, from the lowest layer up:
//!
//! - [`process`]: output, sizes as text, the identity of this machine, run directories, the clock, the crash message,
//!   the status of the process;
//! - [`reactor`]: the event loop with its io_uring, memory for I/O, worker threads, request counters;
//! - [`serve`]: ublk devices, NBD servers and NVMe exports, and the acknowledgement log;
//! - [`drive`]: drives and images, opened and claimed, with their labels and users;
//! - [`report`]: the objects that `--json` prints, and their words;
//! - [`control`]: names of arrays and members, the protocol of the control socket, and its client;
//! - [`members`]: discovery and assembly of arrays, removal and replacement of members;
//! - [`daemon`]: a running array, its rebuilds and its block devices, and the server of the control socket;
//! - [`bench`](mod@bench): cost of the engine, for `zoneraid bench`;
//! - [`cli`]: the command line, with the scenario of `make demo`.
//!
//! Permitted imports between modules are listed in `tests/tidy.rs`.
#![deny(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod control;
pub mod daemon;
pub mod drive;
pub mod members;
pub mod process;
pub mod reactor;
pub mod report;
pub mod serve;
