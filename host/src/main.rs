//! `zoneraid`: fault-tolerant storage out of zoned drives, on the command line.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: host::bench::alloc::CountingAllocator = host::bench::alloc::CountingAllocator;

fn main() -> ExitCode {
    host::cli::main()
}
