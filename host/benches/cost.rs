//! `cargo bench`: the same measurement as `zoneraid bench`, of RAID-5.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: host::bench::alloc::CountingAllocator = host::bench::alloc::CountingAllocator;

fn main() -> ExitCode {
    let output = host::process::output::Output { json: std::env::args().any(|arg| arg == "--json") };
    match host::bench::run(output, host::bench::ROUNDS, 1, &[]) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output.error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
