//! Cost of a namespace: time and allocations per block written or read, on one core.
//!
//! The namespace lies on a drive shaped like a ZN540 that completes at once and, once the namespace exists, neither
//! stores nor reads data. So this is the cost of the layer's own code: admission, tokens, windows, address translation,
//! and the executor. The same requests without a namespace are measured for comparison.

use super::{
    Cost, begin,
    idle::{self, Idle, REQUESTS},
    medians,
};
use crate::process::{
    clock::clock,
    output::{HEALTHY, Output},
};
use anyhow::{Context, Result};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, ZonedDevice, Zones},
    qos::Qos,
    runtime::Runtime,
    vzone::{Namespace, NamespaceOptions, Namespaces, PATIENCE_US, Spec},
    zone::{Lba, ZoneIndex},
};
use serde::Serialize;
use std::rc::Rc;

const ZONES: u32 = 100;
/// Queue depth, where it is more than one.
const DEPTH: u64 = 64;

#[derive(Serialize)]
struct NamespaceCosts {
    /// Sequential 4 KiB writes at queue depth 1, and at 64: wall-clock and processor time.
    write_4k_alone_ns: f64,
    write_4k_alone_cpu_ns: f64,
    write_4k_ns: f64,
    write_4k_cpu_ns: f64,
    write_4k_allocations: f64,
    /// The same for reads.
    read_4k_alone_ns: f64,
    read_4k_alone_cpu_ns: f64,
    read_4k_ns: f64,
    read_4k_cpu_ns: f64,
    read_4k_allocations: f64,
    /// Requests to the drive itself at queue depth 64: the cost of the tasks that make them.
    drive_4k_ns: f64,
    drive_4k_cpu_ns: f64,
}

/// Runs the benchmark and prints the results.
pub fn run(output: Output, rounds: usize) -> Result<u8> {
    begin(output, rounds)?;
    let device = Rc::new(Idle::new(ZONES));
    let runtime = Runtime::new();
    let namespace = make(&runtime, device.clone());
    let namespace: Rc<dyn ZonedDevice> =
        Rc::new(runtime.block_on(namespace, || false).context("the drive does not answer")??);
    device.idle();
    let of = |writes, depth| medians(rounds, |_| play(&runtime, &namespace, writes, depth));
    let ([write_alone, write_alone_cpu, _], [write, write_cpu, write_allocations]) =
        (of(true, 1)?, of(true, DEPTH)?);
    let ([read_alone, read_alone_cpu, _], [read, read_cpu, read_allocations]) =
        (of(false, 1)?, of(false, DEPTH)?);
    let below: Rc<dyn ZonedDevice> = device;
    let [drive, drive_cpu, _] = medians(rounds, |_| play(&runtime, &below, false, DEPTH))?;
    let costs = NamespaceCosts {
        write_4k_alone_ns: write_alone,
        write_4k_alone_cpu_ns: write_alone_cpu,
        write_4k_ns: write,
        write_4k_cpu_ns: write_cpu,
        write_4k_allocations: write_allocations,
        read_4k_alone_ns: read_alone,
        read_4k_alone_cpu_ns: read_alone_cpu,
        read_4k_ns: read,
        read_4k_cpu_ns: read_cpu,
        read_4k_allocations: read_allocations,
        drive_4k_ns: drive,
        drive_4k_cpu_ns: drive_cpu,
    };
    runtime.clear();
    output.print(&costs, |costs| {
        let lines = [
            ("4 KiB write, queue depth 1", costs.write_4k_alone_ns, "ns"),
            ("    processor time", costs.write_4k_alone_cpu_ns, "ns"),
            ("4 KiB write, queue depth 64", costs.write_4k_ns, "ns"),
            ("    processor time", costs.write_4k_cpu_ns, "ns"),
            ("    allocations in it", costs.write_4k_allocations, ""),
            ("4 KiB read, queue depth 1", costs.read_4k_alone_ns, "ns"),
            ("    processor time", costs.read_4k_alone_cpu_ns, "ns"),
            ("4 KiB read, queue depth 64", costs.read_4k_ns, "ns"),
            ("    processor time", costs.read_4k_cpu_ns, "ns"),
            ("    allocations in it", costs.read_4k_allocations, ""),
            ("4 KiB read of the drive, queue depth 64", costs.drive_4k_ns, "ns"),
            ("    processor time", costs.drive_4k_cpu_ns, "ns"),
        ];
        let line = |(what, value, unit): (&str, f64, &str)| match unit {
            "" => format!("  {what:<48} {value:>12.3}\n"),
            unit => format!("  {what:<48} {value:>9.0} {unit}\n"),
        };
        let head = "a namespace on a drive that answers at once, one core\n".to_string();
        head + &lines.map(line).concat()
    })?;
    Ok(HEALTHY)
}

async fn make(runtime: &Runtime, device: Rc<Idle>) -> Result<Namespace> {
    Namespaces::create(device.clone(), [1; 16], 8).await?;
    let behaviour = NamespaceOptions { clock: clock(), patience_us: PATIENCE_US, admission: true };
    let namespaces = Namespaces::open(runtime, device, behaviour).await?;
    let (name, qos) = ("bench".into(), Qos::default());
    let spec = Spec { name, zones: 2, max_active: 2, max_open: 2, essential: 1, weight: 1, qos };
    Ok(namespaces.add(spec).await?)
}

/// Cost of a sequential request. A round of writes starts with an empty zone.
fn play(runtime: &Runtime, device: &Rc<dyn ZonedDevice>, writes: bool, depth: u64) -> Result<Cost> {
    if writes {
        let reset = device.submit(Command::Reset { zones: Zones::One(ZoneIndex(0)) });
        runtime.block_on(reset, || false).context("the namespace does not answer")?.result?;
    }
    let no_threads = || false;
    idle::play(runtime, (REQUESTS, depth), no_threads, |turns| {
        let device = device.clone();
        async move {
            let mut data = Buf::copy_of(&[0x5a; BLOCK]);
            while let Some(turn) = turns.take() {
                let command = match writes {
                    true => Command::write(Lba(turn), data, false),
                    false => Command::read(Lba(turn), data),
                };
                let done = device.submit(command).await;
                done.result?;
                data = done.data;
            }
            Ok(())
        }
    })
}
