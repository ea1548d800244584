//! `zoneraid`: fault-tolerant storage out of zoned drives, on the command line.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: host::alloc::Counting = host::alloc::Counting;

fn main() -> ExitCode {
    host::cli::main()
}
