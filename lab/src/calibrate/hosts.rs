//! Hosts in front of a Western Digital ZN540 of 1 TB: one drive, written through the kernel.

use super::{Bench, CalibrationRow, CalibrationTable};
use crate::{
    host::{Host, Threads},
    load::{self, Job, Measurement, RequestKind, Window},
};
use anyhow::Result;
use engine::{adapt::sequence::Sequencer, buf::BLOCK, device::ZonedDevice};
use std::rc::Rc;

const NAME: &str = "zn540";
const SIZE: &str = "the emulated drive writes 16 KiB faster than the published one, as its own row says";
const ZONES: &str =
    "published writes that were merged slow each other down over several zones; a lock of each zone does not";

pub(super) fn rows() -> Result<Vec<CalibrationRow>> {
    let source = "StoNet, io_uring";
    let mut table = CalibrationTable { drive: NAME, source, unit: "MiB/s", rows: Vec::new() };
    kernel(&mut table)?;
    table.source = "StoNet, io_uring with mq-deadline";
    one_zone(&mut table)?;
    several_zones(&mut table)?;
    merged(&mut table)?;
    Ok(table.rows)
}

/// Without a scheduler, one request at a time.
fn kernel(table: &mut CalibrationTable) -> Result<()> {
    let host = Host::io_uring();
    for (zones, kib, published) in
        [(1, 4, 298.5), (2, 4, 515.0), (4, 4, 679.6), (1, 8, 584.8), (1, 16, 737.9)]
    {
        let predicted = run(&host, zones, kib, 1)?.0.mib_s();
        let item = format!("no scheduler: {kib} KiB writes to {zones} zones, QD1");
        let row = table.row(item, predicted, published);
        if kib == 16 {
            row.missed(30.0, SIZE);
        }
    }
    table.unit = "µs";
    table.row("no scheduler: 4 KiB write", run(&host, 1, 4, 1)?.0.mean_us(), 12.6);
    table.unit = "MiB/s";
    Ok(())
}

fn one_zone(table: &mut CalibrationTable) -> Result<()> {
    const SIZES: [(u64, &[(u32, f64)]); 3] = [
        (4, &[(1, 262.0), (2, 296.0), (4, 416.0), (8, 594.0), (16, 876.0), (32, 1146.0)]),
        (8, &[(1, 509.0), (2, 583.0), (4, 738.0), (8, 1064.0), (16, 1147.0)]),
        (16, &[(1, 673.0), (2, 742.0), (4, 1074.0), (8, 1147.0)]),
    ];
    for (kib, depths) in SIZES {
        for (depth, published) in depths {
            let predicted = run(&Host::mq_deadline(), 1, kib, *depth)?.0.mib_s();
            let row = table.row(
                format!("mq-deadline: {kib} KiB writes to one zone, QD{depth}"),
                predicted,
                *published,
            );
            match (kib, depth) {
                (16, 1 | 2) => row.missed(40.0, SIZE),
                (4, 32) => row.missed(
                    20.0,
                    "a request's share of the lock is taken as the same however many are merged",
                ),
                _ => (),
            }
        }
    }
    Ok(())
}

fn several_zones(table: &mut CalibrationTable) -> Result<()> {
    for (zones, depth, published) in [(4, 1, 646.0), (2, 8, 904.2), (4, 4, 733.8), (8, 4, 841.9)] {
        let predicted = run(&Host::mq_deadline(), zones, 4, depth)?.0.mib_s();
        let row =
            table.row(format!("mq-deadline: 4 KiB writes to {zones} zones, QD{depth}"), predicted, published);
        if depth > 1 {
            row.missed(60.0, ZONES);
        }
    }
    Ok(())
}

/// Requests per command, from the counters of the kernel's block layer.
fn merged(table: &mut CalibrationTable) -> Result<()> {
    table.unit = "×";
    for (zones, depth, published) in [(1, 2, 1.0), (1, 4, 2.0), (1, 8, 4.0), (1, 16, 8.0), (4, 4, 2.0)] {
        let predicted = run(&Host::mq_deadline(), zones, 4, depth)?.1;
        table.row(
            format!("mq-deadline: requests in a command, {zones} zones, QD{depth}"),
            predicted,
            published,
        );
    }
    Ok(())
}

/// Writes to `zones` zones of one drive behind `host`; and the number of requests per command.
fn run(host: &Host, zones: u32, kib: u64, depth: u32) -> Result<(Measurement, f64)> {
    let bench = Bench::new(NAME)?;
    let threads = Threads::new(host, &bench.clock, &bench.runtime, None);
    let in_order = host.lock.is_some();
    let mut device = threads.behind(bench.device(), in_order, kib * 1024 / BLOCK as u64);
    if in_order {
        device = Rc::new(Sequencer::new(&bench.runtime, device)) as Rc<dyn ZonedDevice>;
    }
    let jobs: Vec<Job> = (0..zones).map(|zone| Job::new(RequestKind::Write, zone, kib, depth)).collect();
    let window = Window::ms(50, 250);
    let before = bench.drive.counters().writes;
    let measured = load::run(&bench.runtime, &threads.before(device), &bench.clock, &jobs, window)?;
    let measured = Measurement::sum(&measured);
    // In the whole run, of which four fifths are measured.
    let commands = (bench.drive.counters().writes - before) as f64 * 0.8;
    let requests = measured.latencies_ns.len() as f64;
    Ok((measured, requests / commands))
}
