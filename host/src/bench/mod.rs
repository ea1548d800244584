//! Cost of the engine on one core: time, allocations and bandwidth, next to `memcpy`, the engine's parity kernels alone,
//! and ISA-L, if it is installed, on the same core.
//!
//! The array has four data members and one parity member (RAID-5), or two (RAID-6), in 64 KiB chunks; each member is
//! shaped like a ZN540. Members are [`NullDrive`]s, which complete at once and touch no data, or `CopyingDrive`s, which
//! also copy the written data to uncached memory. Every figure is the median of several rounds after a warm-up; a round
//! writes one zone from its start. GB are 10⁹ bytes, and rates are per second of processor time: on a busy machine a
//! thread gets a fraction of a core. Times are given in both.

pub mod alloc;
pub mod checksums;
pub mod fairness;
pub mod host;
mod idle;
mod isal;
pub mod namespaces;
mod null;
mod peer;
pub mod servers;
pub mod volume;

use crate::{
    process::output::{HEALTHY, Output},
    report::level,
};
use alloc::allocations;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use emu::{
    rng::Rng,
    ssd::{Model, NullDrive},
};
use engine::{
    array::{Array, CreateOptions, Drive},
    buf::{BLOCK, Buf},
    code::{
        self,
        decode::{Sum, solve},
        pq, xor,
    },
    device::{Command, Completion, Geometry, ZonedDevice, Zones},
    format::superblock::level_name,
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use indicatif::ProgressBar;
use isal::Isal;
use null::thread_seconds;
use serde::Serialize;
use std::{
    cell::RefCell,
    collections::VecDeque,
    hint::black_box,
    rc::Rc,
    time::{Duration, Instant},
};

const DATA_CHUNKS: usize = 4;
const CHUNK_BYTES: usize = 64 << 10;
const STRIPE_BYTES: usize = DATA_CHUNKS * CHUNK_BYTES;
const SMALL_WRITES: u64 = 200_000;
/// Small writes before the measured ones.
const WARM_UP: u64 = 4_096;
/// Unoptimized builds only check that the benchmark works.
const STRIPE_WRITES: u64 = if cfg!(debug_assertions) { 80 } else { 8_000 };
const READS: u64 = 200_000;
const SMALL_DEPTH: usize = 64;
const STRIPE_DEPTH: usize = 4;
/// Memory behind a [`CopyingDrive`], used as a ring: larger than the caches in total.
const COPY_BYTES: usize = 64 << 20;

/// Options of the array with this number of parities.
fn options_with(parities: usize) -> CreateOptions {
    let chunk_blocks = (CHUNK_BYTES / BLOCK) as u64;
    CreateOptions { chunk_blocks, parities, ..CreateOptions::new("bench", [1; 16]) }
}

/// Rows of `zoneraid bench`, and parts of `zoneraid bench --volume`, that can be measured alone (`--row`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum BenchRow {
    /// 4 KiB writes
    #[value(name = "write_4k")]
    Write4k,
    /// 4 KiB reads
    #[value(name = "read_4k")]
    Read4k,
    /// Stripe writes, members touch no data
    StripeWrite,
    /// Stripe writes, members copy to memory
    StripeWriteCopy,
    /// XOR of a stripe
    Xor,
    /// P and Q of chunks of 64 KiB
    Pq,
    /// P and Q of chunks of 4 KiB
    #[value(name = "pq_4k")]
    Pq4k,
    /// Decoding after the loss of two chunks
    Decode,
    /// `memcpy` of a stripe to all members
    Memcpy,
    /// --volume: reads and writes with 64 in flight
    Volume,
    /// --volume: writes with one in flight
    LoneWrites,
    /// --volume: a pool of volumes beside one volume
    Pools,
    /// --volume: volumes with snapshots
    Snapshots,
    /// --volume: codecs and threads
    Compression,
    /// --volume: compression units
    Units,
}

impl BenchRow {
    const OF_ENGINE: [BenchRow; 9] = [
        BenchRow::Write4k,
        BenchRow::Read4k,
        BenchRow::StripeWrite,
        BenchRow::StripeWriteCopy,
        BenchRow::Xor,
        BenchRow::Pq,
        BenchRow::Pq4k,
        BenchRow::Decode,
        BenchRow::Memcpy,
    ];

    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }
}

/// The rows that are measured, and the progress.
struct BenchRows {
    wanted: Vec<BenchRow>,
    bar: ProgressBar,
}

impl BenchRows {
    /// The rows of `all` that are `wanted`; all if none is.
    ///
    /// # Errors
    /// A row is not among them.
    fn new(output: Output, wanted: &[BenchRow], all: &[BenchRow]) -> Result<BenchRows> {
        if let Some(other) = wanted.iter().find(|row| !all.contains(row)) {
            let names: Vec<String> = all.iter().map(|row| row.name()).collect();
            bail!("there is no row {} here, but: {}", other.name(), names.join(", "));
        }
        let wanted = if wanted.is_empty() { all } else { wanted }.to_vec();
        let bar = output.steps("measuring", wanted.len() as u64);
        // Shown once a row takes long, with the seconds of it.
        bar.enable_steady_tick(Duration::from_secs(2));
        Ok(BenchRows { wanted, bar })
    }

    /// Measures a row; `None` if it is not wanted.
    fn measure<T>(&self, row: BenchRow, measured: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        if !self.wanted.contains(&row) {
            return Ok(None);
        }
        self.bar.set_message(row.name());
        let found = measured().with_context(|| format!("row {}", row.name()))?;
        self.bar.inc(1);
        Ok(Some(found))
    }
}

/// Figures of rows that were not measured are `None`.
#[derive(Serialize)]
struct EngineCosts {
    level: String,
    members: usize,
    /// Model of the processor, and its vector instructions that parity uses.
    processor: String,
    instructions: &'static str,
    /// A sequential stream of 4 KiB writes, queue depth 64: wall-clock and processor time.
    write_4k_ns: Option<f64>,
    write_4k_cpu_ns: Option<f64>,
    write_4k_allocations: Option<f64>,
    /// 256 KiB writes, one stripe each, on members that touch no data.
    stripe_write_gb_s: Option<f64>,
    /// The same on members that copy the data.
    stripe_write_copy_gb_s: Option<f64>,
    /// 4 KiB reads at random places, queue depth 64.
    read_4k_ns: Option<f64>,
    read_4k_cpu_ns: Option<f64>,
    /// XOR of data chunks into a parity chunk by the engine, in cache; in data bytes.
    xor_gb_s: Option<f64>,
    /// Data chunks of a stripe for the next figures: as in the array, or 8 if it has no Q.
    pq_chunks: usize,
    /// P and Q of 64 KiB chunks by the engine, in cache; in data bytes.
    pq_gb_s: Option<f64>,
    /// The same by ISA-L, in alternating rounds; `None` if it is not installed.
    pq_isal_gb_s: Option<f64>,
    /// The same two with chunks of 4 KiB.
    pq_4k_gb_s: Option<f64>,
    pq_4k_isal_gb_s: Option<f64>,
    /// Decoding of a 64 KiB chunk after the loss of two, in cache; in bytes of the chunks read.
    decode_gb_s: Option<f64>,
    /// `memcpy` of the same stripes and parity to the same memory, by a thread without other work; in data bytes.
    memcpy_gb_s: Option<f64>,
    stripe_write_to_xor_ratio: Option<f64>,
    /// `None` for RAID-5.
    stripe_write_to_pq_ratio: Option<f64>,
    stripe_write_copy_to_memcpy_ratio: Option<f64>,
}

/// Default number of rounds for a median.
pub const ROUNDS: usize = 9;

/// Runs the benchmark, of these rows or of all, and prints the results.
pub fn run(output: Output, rounds: usize, parities: usize, rows: &[BenchRow]) -> Result<u8> {
    begin(output, rounds)?;
    let rows = BenchRows::new(output, rows, &BenchRow::OF_ENGINE)?;
    let members = DATA_CHUNKS + parities;
    let null = || Bench::new(rounds, parities, |geometry| Rc::new(NullDrive::new(geometry)));
    let copying = || Bench::new(rounds, parities, |geometry| Rc::new(CopyingDrive::new(geometry)));
    let pq_chunks = if parities == 2 { DATA_CHUNKS } else { MORE_CHUNKS };
    let writes = rows.measure(BenchRow::Write4k, || null()?.small_writes())?;
    let reads = rows.measure(BenchRow::Read4k, || null()?.small_reads())?;
    let stripe_write_gb_s = rows.measure(BenchRow::StripeWrite, || null()?.stripe_writes())?;
    let stripe_write_copy_gb_s = rows.measure(BenchRow::StripeWriteCopy, || copying()?.stripe_writes())?;
    let xor_gb_s = rows.measure(BenchRow::Xor, || xor(rounds))?;
    let pq_both = rows.measure(BenchRow::Pq, || pq(rounds, pq_chunks, CHUNK_BYTES))?;
    let pq_4k_both = rows.measure(BenchRow::Pq4k, || pq(rounds, pq_chunks, BLOCK))?;
    let decode_gb_s = rows.measure(BenchRow::Decode, || decode(rounds, pq_chunks))?;
    let memcpy_gb_s = rows.measure(BenchRow::Memcpy, || Ok(memcpy(rounds, members)))?;
    rows.bar.finish_and_clear();
    let pq_gb_s = pq_both.map(|both| both.0);
    let ratio = |rate: Option<f64>, to: Option<f64>| Some(rate? / to?);
    let costs = EngineCosts {
        level: level(parities),
        members,
        processor: processor(),
        instructions: code::instructions(),
        write_4k_ns: writes.map(|[ns, ..]| ns),
        write_4k_cpu_ns: writes.map(|[_, cpu_ns, _]| cpu_ns),
        write_4k_allocations: writes.map(|[.., allocations]| allocations),
        stripe_write_gb_s,
        stripe_write_copy_gb_s,
        read_4k_ns: reads.map(|[ns, ..]| ns),
        read_4k_cpu_ns: reads.map(|[_, cpu_ns, _]| cpu_ns),
        xor_gb_s,
        pq_chunks,
        pq_gb_s,
        pq_isal_gb_s: pq_both.and_then(|both| both.1),
        pq_4k_gb_s: pq_4k_both.map(|both| both.0),
        pq_4k_isal_gb_s: pq_4k_both.and_then(|both| both.1),
        decode_gb_s,
        memcpy_gb_s,
        stripe_write_to_xor_ratio: ratio(stripe_write_gb_s, xor_gb_s),
        stripe_write_to_pq_ratio: ratio(stripe_write_gb_s, pq_gb_s).filter(|_| parities == 2),
        stripe_write_copy_to_memcpy_ratio: ratio(stripe_write_copy_gb_s, memcpy_gb_s),
    };
    output.print(&costs, |costs| costs_text(costs, &level_name(parities)))?;
    Ok(HEALTHY)
}

/// Model of the processor, as the kernel names it; otherwise the architecture.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or(std::env::consts::ARCH, |(_, model)| model.trim()).to_string()
}

fn costs_text(costs: &EngineCosts, level: &str) -> String {
    let chunks = costs.pq_chunks;
    let rate = |rate: f64| format!("{rate:.2} GB/s");
    let ratio = |ratio: f64| format!("{ratio:.2}");
    let ns = |ns: f64| format!("{ns:.0} ns");
    let rows = [
        ("4 KiB write, sequential, queue depth 64".to_string(), costs.write_4k_ns.map(ns)),
        ("    processor time".into(), costs.write_4k_cpu_ns.map(ns)),
        ("    allocations in it".into(), costs.write_4k_allocations.map(|count| format!("{count:.3}"))),
        ("4 KiB read, random, queue depth 64".into(), costs.read_4k_ns.map(ns)),
        ("    processor time".into(), costs.read_4k_cpu_ns.map(ns)),
        ("256 KiB stripe writes, members touch no data".into(), costs.stripe_write_gb_s.map(rate)),
        ("    XOR of as much".into(), costs.xor_gb_s.map(rate)),
        ("    ratio".into(), costs.stripe_write_to_xor_ratio.map(ratio)),
        ("    ratio to P and Q of as much".into(), costs.stripe_write_to_pq_ratio.map(ratio)),
        ("256 KiB stripe writes, members copy to memory".into(), costs.stripe_write_copy_gb_s.map(rate)),
        ("    this machine's memcpy of as much".into(), costs.memcpy_gb_s.map(rate)),
        ("    ratio".into(), costs.stripe_write_copy_to_memcpy_ratio.map(ratio)),
        (format!("P and Q of {chunks} chunks of 64 KiB"), costs.pq_gb_s.map(rate)),
        ("    by ISA-L".into(), costs.pq_isal_gb_s.map(rate)),
        (format!("P and Q of {chunks} chunks of 4 KiB"), costs.pq_4k_gb_s.map(rate)),
        ("    by ISA-L".into(), costs.pq_4k_isal_gb_s.map(rate)),
        (format!("one of two lost chunks from {chunks} of 64 KiB"), costs.decode_gb_s.map(rate)),
    ];
    let parities = costs.members - DATA_CHUNKS;
    let mut text = format!(
        "{level} {DATA_CHUNKS}+{parities}, 64 KiB chunks, one core\n{} ({})\n",
        costs.processor, costs.instructions
    );
    for (what, figure) in rows {
        if let Some(figure) = figure {
            text += &format!("  {what:<48} {figure:>12}\n");
        }
    }
    text
}

/// Cost of a request: nanoseconds by the wall clock, nanoseconds of processor time of this thread, and allocations.
type Cost = [f64; 3];

/// The start of a measurement.
struct Started {
    wall: Instant,
    cpu_seconds: f64,
    allocations: u64,
}

impl Started {
    fn now() -> Started {
        Started { wall: Instant::now(), cpu_seconds: thread_seconds(), allocations: allocations() }
    }

    /// Cost of each of `count` requests since the start.
    fn cost(&self, count: u64) -> Cost {
        let cpu_ns = (thread_seconds() - self.cpu_seconds) * 1e9;
        let ns = self.wall.elapsed().as_nanos() as f64;
        let allocated = (allocations() - self.allocations) as f64;
        [ns, cpu_ns, allocated].map(|all| all / count as f64)
    }
}

/// A [`NullDrive`] that copies the written data to memory.
struct CopyingDrive {
    null: NullDrive,
    memory: RefCell<Vec<u8>>,
}

impl CopyingDrive {
    fn new(geometry: Geometry) -> CopyingDrive {
        CopyingDrive { null: NullDrive::new(geometry), memory: RefCell::new(vec![1; COPY_BYTES]) }
    }
}

impl ZonedDevice for CopyingDrive {
    fn geometry(&self) -> &Geometry {
        self.null.geometry()
    }

    fn submit(&self, command: Command) -> Completion {
        if let Command::Write { lba, data, .. } = &command {
            let mut memory = self.memory.borrow_mut();
            let at = (lba.0 as usize * BLOCK) % COPY_BYTES;
            let before_end = data.len().min(COPY_BYTES - at);
            memory[at..at + before_end].copy_from_slice(&data[..before_end]);
            memory[..data.len() - before_end].copy_from_slice(&data[before_end..]);
        }
        self.null.submit(command)
    }
}

/// Checks the number of rounds, and warns if the build makes the figures meaningless.
///
/// # Errors
/// `rounds` is 0.
fn begin(output: Output, rounds: usize) -> Result<()> {
    ensure!(rounds > 0, "--rounds cannot be 0");
    if cfg!(debug_assertions) {
        output.note("this is not a release build; the figures mean little");
    }
    Ok(())
}

/// Medians of the values that `round` returns, over this number of rounds after a warm-up. Rounds are numbered from 1.
fn medians<const N: usize>(rounds: usize, round: impl Fn(u64) -> Result<[f64; N]>) -> Result<[f64; N]> {
    round(0)?;
    let rounds = (1..=rounds as u64).map(round).collect::<Result<Vec<_>>>()?;
    Ok(std::array::from_fn(|value| median(rounds.iter().map(|round| round[value]).collect())))
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

struct Bench {
    rounds: usize,
    runtime: Runtime,
    array: Array,
}

impl Bench {
    fn new(
        rounds: usize,
        parities: usize,
        member: impl Fn(Geometry) -> Rc<dyn ZonedDevice>,
    ) -> Result<Bench> {
        let model = Model::zn540();
        let capacity = model.geometry.zone_capacity_blocks;
        Bench::with(rounds, options_with(parities), &model.scaled(8, capacity).geometry, member)
    }

    fn with(
        rounds: usize,
        options: CreateOptions,
        geometry: &Geometry,
        member: impl Fn(Geometry) -> Rc<dyn ZonedDevice>,
    ) -> Result<Bench> {
        let drive = |n: usize| Drive { name: n.to_string(), device: member(geometry.clone()) };
        let runtime = Runtime::new();
        let drives = (0..DATA_CHUNKS + options.parities).map(drive).collect();
        let array = runtime.block_on(Array::create(&runtime, options, drives), || false);
        let array = array.context("the array does not answer")??;
        Ok(Bench { rounds, runtime, array })
    }

    fn wait(&self, completion: Completion) -> Result<engine::device::Done> {
        let done = self.runtime.block_on(completion, || false).context("the array does not answer")?;
        done.result?;
        Ok(done)
    }

    /// Keeps `depth` commands in flight until `count` of them have completed, and returns the cost of each. Buffers are
    /// reused.
    fn stream(
        &self,
        count: u64,
        depth: usize,
        bytes: usize,
        command: impl Fn(u64, Buf) -> Command,
    ) -> Result<Cost> {
        let mut spare: Vec<Buf> = (0..depth).map(|_| Buf::copy_of(&vec![0x5a; bytes])).collect();
        let mut queue: VecDeque<Completion> = VecDeque::with_capacity(depth);
        let started = Started::now();
        let (mut submitted, mut completed) = (0, 0);
        while completed < count {
            while submitted < count
                && let Some(buf) = spare.pop()
            {
                queue.push_back(self.array.submit(command(submitted, buf)));
                submitted += 1;
            }
            self.runtime.run();
            // Takes all completed commands, like a server that polls its queue.
            let before = completed;
            while let Some(mut oldest) = queue.pop_front() {
                let Some(done) = oldest.take() else {
                    queue.push_front(oldest);
                    break;
                };
                done.result?;
                spare.push(done.data);
                completed += 1;
            }
            if completed == before {
                let oldest = queue.pop_front().context("no command is in flight")?;
                spare.push(self.wait(oldest)?.data);
                completed += 1;
            }
        }
        Ok(started.cost(count))
    }

    fn reset(&self) -> Result<()> {
        self.wait(self.array.submit(Command::Reset { zones: Zones::One(ZoneIndex(0)) }))?;
        Ok(())
    }

    fn small_writes(&self) -> Result<Cost> {
        medians(self.rounds, |_| {
            self.reset()?;
            // The first writes open the zone, which allocates once.
            self.stream(WARM_UP, SMALL_DEPTH, BLOCK, |n, data| Command::write(Lba(n), data, false))?;
            self.stream(SMALL_WRITES, SMALL_DEPTH, BLOCK, |n, data| {
                Command::write(Lba(WARM_UP + n), data, false)
            })
        })
    }

    fn small_reads(&self) -> Result<Cost> {
        self.stream(SMALL_WRITES, SMALL_DEPTH, BLOCK, |n, data| Command::write(Lba(n), data, false))?;
        let mut rng = Rng::new(1);
        let places: Vec<Lba> = (0..READS).map(|_| Lba(rng.below(SMALL_WRITES))).collect();
        medians(self.rounds, |_| {
            self.stream(READS, SMALL_DEPTH, BLOCK, |n, data| Command::read(places[n as usize], data))
        })
    }

    fn stripe_writes(&self) -> Result<f64> {
        let blocks = (STRIPE_BYTES / BLOCK) as u64;
        let [_, cpu_ns, _] = medians(self.rounds, |_| {
            self.reset()?;
            self.stream(STRIPE_WRITES, STRIPE_DEPTH, STRIPE_BYTES, |n, data| {
                Command::write(Lba(n * blocks), data, false)
            })
        })?;
        Ok(STRIPE_BYTES as f64 / cpu_ns)
    }
}

/// Throughput of each of `works`, which process this number of data bytes, in GB/s, from alternating rounds.
fn rates<const N: usize>(rounds: usize, bytes: usize, mut works: [&mut dyn FnMut(u64); N]) -> [f64; N] {
    let count = (STRIPE_WRITES * STRIPE_BYTES as u64 / bytes as u64).max(1);
    let mut cpu_ns = [const { Vec::new() }; N];
    for _ in 0..=rounds {
        for (work, cpu_ns) in works.iter_mut().zip(&mut cpu_ns) {
            let started = Started::now();
            (0..count).for_each(&mut **work);
            let [_, each, _] = started.cost(count);
            cpu_ns.push(each);
        }
    }
    cpu_ns.map(|mut cpu_ns| bytes as f64 / median(cpu_ns.split_off(1)))
}

/// As [`rates`], of one work.
fn rate(rounds: usize, bytes: usize, mut work: impl FnMut(u64)) -> f64 {
    let [rate] = rates(rounds, bytes, [&mut work]);
    rate
}

fn xor(rounds: usize) -> Result<f64> {
    let mut stripe = pq_stripe(DATA_CHUNKS, CHUNK_BYTES);
    let (data, parity) = stripe.split_at_mut(DATA_CHUNKS);
    let parity = parity[0].as_mut().context("the buffer is shared")?;
    Ok(rate(rounds, STRIPE_BYTES, |_| {
        xor::xor_all(parity, black_box(data));
        black_box(&parity);
    }))
}

/// Data chunks of a stripe for measuring P and Q if the array has no Q.
const MORE_CHUNKS: usize = 8;

/// A stripe in buffers like those of the engine: data, P, Q.
fn pq_stripe(chunks: usize, chunk_bytes: usize) -> Vec<Buf> {
    (0..chunks + 2).map(|n| Buf::copy_of(&vec![n as u8; chunk_bytes])).collect()
}

/// Runs of a kernel of P and Q between two looks at anything else.
const PQ_TIMES: usize = 16;

/// P and Q by the engine, and by ISA-L if it is installed.
fn pq(rounds: usize, chunks: usize, chunk_bytes: usize) -> Result<(f64, Option<f64>)> {
    let (mut stripe, mut other) = (pq_stripe(chunks, chunk_bytes), pq_stripe(0, chunk_bytes));
    let (data, parity) = stripe.split_at_mut(chunks);
    let data = &*data;
    let (p, q) = parity.split_at_mut(1);
    let (p, q) = p[0].as_mut().zip(q[0].as_mut()).context("the buffers are shared")?;
    let (p_isal, q_isal) = other.split_at_mut(1);
    let (p_isal, q_isal) = p_isal[0].as_mut().zip(q_isal[0].as_mut()).context("the buffers are shared")?;
    let mut ours = |_| {
        for _ in 0..PQ_TIMES {
            pq::pq_all(p, q, black_box(data));
        }
        black_box((&p, &q));
    };
    let bytes = PQ_TIMES * chunks * chunk_bytes;
    let Some(isal) = Isal::load() else {
        return Ok((rate(rounds, bytes, ours), None));
    };
    let mut theirs = |_| {
        isal.pq(p_isal, q_isal, black_box(data), PQ_TIMES);
        black_box((&p_isal, &q_isal));
    };
    let [ours, theirs] = rates(rounds, bytes, [&mut ours, &mut theirs]);
    Ok((ours, Some(theirs)))
}

fn decode(rounds: usize, chunks: usize) -> Result<f64> {
    let mut stripe = pq_stripe(chunks, CHUNK_BYTES);
    let stored: Vec<Sum> = (0..chunks).map(Sum::data).chain([Sum::p(chunks), Sum::q(chunks)]).collect();
    let recipe = solve((1 << stored.len()) - 4, &stored, Sum::data(1)).context("it cannot be decoded")?;
    let (lost, present) = stripe.split_at_mut(2);
    let target = lost[1].as_mut().context("the buffer is shared")?;
    Ok(rate(rounds, chunks * CHUNK_BYTES, |_| {
        recipe.run(target, black_box(present));
        black_box(&target);
    }))
}

fn memcpy(rounds: usize, members: usize) -> f64 {
    let stripe = vec![0x5a_u8; members * CHUNK_BYTES];
    let mut members = vec![vec![1_u8; COPY_BYTES]; members];
    rate(rounds, STRIPE_BYTES, |n| {
        let at = n as usize * CHUNK_BYTES % COPY_BYTES;
        for (member, chunk) in members.iter_mut().zip(black_box(&stripe).chunks_exact(CHUNK_BYTES)) {
            member[at..at + CHUNK_BYTES].copy_from_slice(chunk);
        }
        black_box(&members);
    })
}
