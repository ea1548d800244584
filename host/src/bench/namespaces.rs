//! What a namespace costs: time and allocations of a block that is written or read, on one core.
//!
//! The namespace lies on a drive shaped like a ZN540 that answers at once and, once the namespace is there, neither
//! stores anything nor reads it. So this is what the layer's own code costs: tickets, tokens, windows, where blocks
//! lie, and the executor.

use crate::{
    alloc::allocations,
    output::{HEALTHY, Output},
};
use anyhow::{Context, Result, ensure};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, Done, Geometry, ZonedDevice, Zones},
    runtime::Runtime,
    vzone::{Behaviour, Namespace, Namespaces, PATIENCE_US, Spec},
    zone::{Lba, ZoneIndex},
};
use serde::Serialize;
use sim::ssd::{EmulatedDrive, Model};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Instant,
};

const ZONES: u32 = 100;
/// Blocks of a round, and of the one before those that count.
const BLOCKS: u64 = 200_000;
/// Requests on the way, where there is more than one.
const DEPTH: u64 = 64;

#[derive(Serialize)]
struct Costs {
    /// One 4 KiB write behind the other, one and 64 of them on the way.
    write_4k_alone_ns: f64,
    write_4k_ns: f64,
    write_4k_allocations: f64,
    /// The same of reads.
    read_4k_alone_ns: f64,
    read_4k_ns: f64,
    read_4k_allocations: f64,
}

/// A drive that stops storing anything once it is told to.
struct Idle {
    drive: EmulatedDrive,
    idles: Cell<bool>,
}

impl ZonedDevice for Idle {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        match command {
            Command::Read { data, oob, .. } | Command::Write { data, oob, .. } if self.idles.get() => {
                Completion::ready(Done { data, oob, ..Done::ok() })
            }
            _ if self.idles.get() => Completion::ready(Done::ok()),
            command => self.drive.submit(command),
        }
    }
}

/// Measures and prints.
pub fn run(output: Output, rounds: usize) -> Result<u8> {
    ensure!(rounds > 0, "--rounds cannot be 0");
    if cfg!(debug_assertions) {
        output.note("this is not a release build; the figures mean little");
    }
    let capacity = Model::zn540().geometry.zone_capacity_blocks;
    let geometry = Model::zn540().scaled(ZONES, capacity).geometry;
    let device = Rc::new(Idle { drive: EmulatedDrive::in_memory(&geometry), idles: Cell::new(false) });
    let runtime = Runtime::new();
    let namespace = make(&runtime, device.clone());
    let namespace = runtime.block_on(namespace, || false).context("the drive does not answer")??;
    device.idles.set(true);
    let of = |writes, depth| median_of(rounds, || play(&runtime, &namespace, writes, depth));
    let ((write_alone, _), (write, write_allocations)) = (of(true, 1)?, of(true, DEPTH)?);
    let ((read_alone, _), (read, read_allocations)) = (of(false, 1)?, of(false, DEPTH)?);
    let costs = Costs {
        write_4k_alone_ns: write_alone,
        write_4k_ns: write,
        write_4k_allocations: write_allocations,
        read_4k_alone_ns: read_alone,
        read_4k_ns: read,
        read_4k_allocations: read_allocations,
    };
    runtime.clear();
    output.print(&costs, |costs| {
        let lines = [
            ("4 KiB write, one on the way", costs.write_4k_alone_ns, "ns"),
            ("4 KiB write, 64 on the way", costs.write_4k_ns, "ns"),
            ("    allocations in it", costs.write_4k_allocations, ""),
            ("4 KiB read, one on the way", costs.read_4k_alone_ns, "ns"),
            ("4 KiB read, 64 on the way", costs.read_4k_ns, "ns"),
            ("    allocations in it", costs.read_4k_allocations, ""),
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
    let begun = Instant::now();
    let clock = Rc::new(move || begun.elapsed().as_micros() as u64);
    let behaviour = Behaviour { clock, patience_us: PATIENCE_US, canary: None };
    let namespaces = Namespaces::open(runtime, device, behaviour).await?;
    let spec = Spec { name: "bench".into(), zones: 2, max_active: 2, max_open: 2, essential: 1, weight: 1 };
    Ok(namespaces.add(spec).await?)
}

/// Medians of the rounds, the first one left out.
fn median_of(rounds: usize, round: impl Fn() -> Result<(f64, f64)>) -> Result<(f64, f64)> {
    let mut all = (0..=rounds).map(|_| round()).collect::<Result<Vec<_>>>()?.split_off(1);
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (time, _) = all[all.len() / 2];
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ok((time, all[all.len() / 2].1))
}

/// Keeps requests on the way until a round is done; gives nanoseconds and allocations of one. A round of writes
/// begins with an empty zone.
fn play(runtime: &Runtime, namespace: &Namespace, writes: bool, depth: u64) -> Result<(f64, f64)> {
    let (next, failed) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(None)));
    if writes {
        let reset = namespace.submit(Command::Reset { zones: Zones::One(ZoneIndex(0)) });
        runtime.block_on(reset, || false).context("the namespace does not answer")?.result?;
    }
    // As many tasks as there may be requests: none is made for a request.
    for _ in 0..depth {
        let (namespace, next, failed) = (namespace.clone(), next.clone(), failed.clone());
        runtime.spawn(async move {
            let mut data = Buf::copy_of(&[0x5a; BLOCK]);
            while next.get() < BLOCKS {
                let at = Lba(next.replace(next.get() + 1));
                let command = match writes {
                    true => Command::write(at, data, false),
                    false => Command::read(at, data),
                };
                let done = namespace.submit(command).await;
                data = done.data;
                if let Err(error) = done.result {
                    *failed.borrow_mut() = Some(error);
                    return;
                }
            }
        });
    }
    let (started, allocated) = (Instant::now(), allocations());
    runtime.run();
    let (ns, allocated) = (started.elapsed().as_nanos() as f64, (allocations() - allocated) as f64);
    if let Some(error) = failed.borrow_mut().take() {
        return Err(error.into());
    }
    ensure!(next.get() >= BLOCKS, "the namespace does not answer");
    Ok((ns / BLOCKS as f64, allocated / BLOCKS as f64))
}
