//! Cost of checksums: the same requests on an array with and one without, in alternating rounds.
//!
//! The arrays of [`super`] on emulated drives in memory, which store data and metadata at once. For writes, the daemon
//! as well: its processor time for a request, with null drives behind io_uring ([`super::host`]).

use super::{Bench, SMALL_DEPTH, begin, host, median, options_with};
use crate::process::output::{HEALTHY, Output};
use anyhow::Result;
use emu::{
    rng::Rng,
    ssd::{EmulatedDrive, Model},
};
use engine::{
    array::CreateOptions,
    buf::BLOCK,
    device::{Command, ZonedDevice},
    raid::policy::Policy,
    zone::Lba,
};
use serde::Serialize;
use std::{cell::RefCell, rc::Rc};

/// Requests of a round of 4 KiB; fewer of larger ones.
const REQUESTS: u64 = if cfg!(debug_assertions) { 512 } else { 16_384 };
/// Blocks of a drive's zone.
const ZONE_BLOCKS: u64 = 8192;

/// Cost of one kind of request.
#[derive(Serialize)]
struct RequestCost {
    request: &'static str,
    /// Time without and with checksums, by the wall clock, and processor time of the thread.
    without_ns: f64,
    without_cpu_ns: f64,
    with_ns: f64,
    with_cpu_ns: f64,
    /// Median of the ratios of processor time of the rounds, less 1.
    overhead: f64,
}

/// Costs of all kinds.
#[derive(Serialize)]
struct ChecksumCosts {
    /// On emulated drives in memory.
    engine: Vec<RequestCost>,
    /// The same with the policy `log` and checksums in blocks of the zones, on drives without metadata.
    engine_in_blocks: Vec<RequestCost>,
    /// The same with the policy `zrwa`.
    engine_in_zrwas: Vec<RequestCost>,
    /// On null drives behind io_uring.
    daemon: Vec<RequestCost>,
}

/// Runs the benchmark and prints the results.
pub fn run(output: Output, rounds: usize) -> Result<u8> {
    begin(output, rounds)?;
    let costs = ChecksumCosts {
        engine: engine_costs(rounds, None)?,
        engine_in_blocks: engine_costs(rounds, Some(Policy::Log))?,
        engine_in_zrwas: engine_costs(rounds, Some(Policy::Zrwa))?,
        daemon: daemon_costs(rounds)?,
    };
    output.print(&costs, |costs| {
        let head = format!("  {:<32}{:>12}{:>12}{:>10}\n", "processor time", "without", "with", "more");
        let row = |cost: &RequestCost| {
            let RequestCost { request, without_cpu_ns: without, with_cpu_ns: with, overhead, .. } = cost;
            format!("  {request:<32}{without:>9.0} ns{with:>9.0} ns{:>8.1} %\n", 100.0 * overhead)
        };
        let rows = |costs: &[RequestCost]| costs.iter().map(row).collect::<String>();
        let parts = [
            ("engine, checksums in metadata", &costs.engine),
            ("engine, policy log, checksums in blocks of the zones", &costs.engine_in_blocks),
            ("engine, policy zrwa, checksums in blocks of the zones", &costs.engine_in_zrwas),
            ("daemon, checksums in metadata", &costs.daemon),
        ];
        parts.map(|(title, costs)| format!("{title}\n{head}{}", rows(costs))).concat()
    })?;
    Ok(HEALTHY)
}

/// Medians of rounds that alternate between both arrays; a round returns its wall-clock and its processor time.
fn paired(
    request: &'static str,
    rounds: usize,
    round: impl Fn(bool) -> Result<[f64; 2]>,
) -> Result<RequestCost> {
    let mut costs: [Vec<f64>; 5] = Default::default();
    // The first round warms up.
    for number in 0..=rounds {
        let ([without, without_cpu], [with, with_cpu]) = (round(false)?, round(true)?);
        if number > 0 {
            let of_round = [without, without_cpu, with, with_cpu, with_cpu / without_cpu];
            costs.iter_mut().zip(of_round).for_each(|(all, cost)| all.push(cost));
        }
    }
    let [without_ns, without_cpu_ns, with_ns, with_cpu_ns, ratio] = costs.map(median);
    Ok(RequestCost { request, without_ns, without_cpu_ns, with_ns, with_cpu_ns, overhead: ratio - 1.0 })
}

/// Costs of an array with a policy and checksums in blocks of the zones; or with the best policy, and checksums in metadata.
fn engine_costs(rounds: usize, policy: Option<Policy>) -> Result<Vec<RequestCost>> {
    let mut geometry = Model::zn540().scaled(8, ZONE_BLOCKS).geometry;
    if policy.is_some() {
        geometry.oob_bytes = 0;
    }
    let bench = |checksums| {
        let options = CreateOptions { checksums, policy, ..options_with(1) };
        let drive = |geometry| Rc::new(EmulatedDrive::in_memory(&geometry)) as Rc<dyn ZonedDevice>;
        Bench::with(rounds, options, &geometry, drive)
    };
    let benches = [bench(false)?, bench(true)?];
    let of = |checksums: bool| &benches[usize::from(checksums)];
    let rng = RefCell::new(Rng::new(1));
    let mut costs = Vec::new();
    for (blocks, [write, read]) in [
        (1, ["4 KiB write", "4 KiB read at random places"]),
        (16, ["64 KiB write", "64 KiB read at random places"]),
    ] {
        let (count, bytes) = (REQUESTS / blocks, blocks as usize * BLOCK);
        costs.push(paired(write, rounds, |checksums| {
            let bench = of(checksums);
            bench.reset()?;
            let write = |n, data| Command::write(Lba(n * blocks), data, false);
            let [ns, cpu_ns, _] = bench.stream(count, SMALL_DEPTH, bytes, write)?;
            Ok([ns, cpu_ns])
        })?);
        costs.push(paired(read, rounds, |checksums| {
            let read = |_, data| Command::read(Lba(rng.borrow_mut().below(count) * blocks), data);
            let [ns, cpu_ns, _] = of(checksums).stream(count, SMALL_DEPTH, bytes, read)?;
            Ok([ns, cpu_ns])
        })?);
    }
    Ok(costs)
}

fn daemon_costs(rounds: usize) -> Result<Vec<RequestCost>> {
    let rig = |checksums| host::ArrayRig::with(CreateOptions { checksums, ..options_with(1) }, true, true);
    let rigs = [rig(false)?, rig(true)?];
    let of = |checksums: bool| &rigs[usize::from(checksums)];
    [(1, "4 KiB write"), (16, "64 KiB write")]
        .map(|(blocks, request)| {
            paired(request, rounds, |checksums| {
                let spent = of(checksums).median(1, REQUESTS / blocks, SMALL_DEPTH, blocks * BLOCK as u64)?;
                Ok([spent.wall_us * 1e3, spent.us * 1e3])
            })
        })
        .into_iter()
        .collect()
}
