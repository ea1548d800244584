//! `zoneraid`: fault-tolerant storage out of zoned drives, on the command line.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: host::alloc::CountingAllocator = host::alloc::CountingAllocator;

fn main() -> ExitCode {
    host::cli::main()
}
