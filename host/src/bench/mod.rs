//! Cost of the engine on one core: time, allocations and bandwidth, next to plain `memcpy` and XOR on the same core.
//!
//! The array has four data members and one parity member (RAID-5), or two (RAID-6), in 64 KiB chunks; each member is
//! shaped like a ZN540. Members are [`NullDrive`]s, which complete at once and touch no data, or `CopyingDrive`s, which
//! also copy the written data to uncached memory. Every figure is the median of several rounds after a warm-up; a round
//! writes one zone from its start. GB are 10⁹ bytes.

pub mod alloc;
pub mod checksums;
pub mod fairness;
pub mod host;
mod idle;
pub mod namespaces;
mod null;
mod peer;
pub mod volume;

use crate::{
    process::output::{HEALTHY, Output},
    report::level,
};
use alloc::allocations;
use anyhow::{Context, Result, ensure};
use emu::{
    rng::Rng,
    ssd::{Model, NullDrive},
};
use engine::{
    array::{Array, CHECKSUM_GROUP_BLOCKS, CreateOptions, Drive},
    buf::{BLOCK, Buf},
    code::{
        decode::{Sum, solve},
        pq,
    },
    device::{Command, Completion, Geometry, ZonedDevice, Zones},
    format::superblock::level_name,
    runtime::Runtime,
    zone::{Lba, ZoneIndex},
};
use serde::Serialize;
use std::{cell::RefCell, collections::VecDeque, hint::black_box, rc::Rc, time::Instant};

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
    CreateOptions {
        group_blocks: 0,
        spare_zones: None,
        checksums: false,
        checksum_group_blocks: CHECKSUM_GROUP_BLOCKS,
        name: "bench".into(),
        uuid: [1; 16],
        chunk_blocks: (CHUNK_BYTES / BLOCK) as u64,
        zone_size_blocks: None,
        parities,
        policy: None,
        host: [0; 16],
        autostart: false,
    }
}

#[derive(Serialize)]
struct EngineCosts {
    level: String,
    members: usize,
    /// A sequential stream of 4 KiB writes, queue depth 64.
    write_4k_ns: f64,
    write_4k_allocations: f64,
    /// 256 KiB writes, one stripe each, on members that touch no data.
    stripe_write_gb_s: f64,
    /// The same on members that copy the data.
    stripe_write_copy_gb_s: f64,
    /// 4 KiB reads at random places, queue depth 64.
    read_4k_ns: f64,
    /// XOR of data chunks into a parity chunk by a plain loop, in cache; in data bytes.
    xor_gb_s: f64,
    /// Data chunks of a stripe for the next three figures: as in the array, or 8 if it has no Q.
    pq_chunks: usize,
    /// P and Q of 64 KiB chunks by the engine, in cache; in data bytes.
    pq_gb_s: f64,
    /// The same with chunks of 4 KiB.
    pq_4k_gb_s: f64,
    /// Decoding of a 64 KiB chunk after the loss of two, in cache; in bytes of the chunks read.
    decode_gb_s: f64,
    /// `memcpy` of the same stripes and parity to the same memory, by a thread without other work; in data bytes.
    memcpy_gb_s: f64,
    stripe_write_to_xor_ratio: f64,
    /// `None` for RAID-5.
    stripe_write_to_pq_ratio: Option<f64>,
    stripe_write_copy_to_memcpy_ratio: f64,
}

/// Default number of rounds for a median.
pub const ROUNDS: usize = 9;

/// Runs the benchmark and prints the results.
pub fn run(output: Output, rounds: usize, parities: usize) -> Result<u8> {
    begin(output, rounds)?;
    let bar = output.steps("measuring", 5);
    let members = DATA_CHUNKS + parities;
    let null = Bench::new(rounds, parities, |geometry| Rc::new(NullDrive::new(geometry)))?;
    let (write_4k_ns, write_4k_allocations) = null.small_writes()?;
    bar.inc(1);
    let read_4k_ns = null.small_reads()?;
    bar.inc(1);
    let stripe_write_gb_s = null.stripe_writes()?;
    bar.inc(1);
    let copying = Bench::new(rounds, parities, |geometry| Rc::new(CopyingDrive::new(geometry)))?;
    let stripe_write_copy_gb_s = copying.stripe_writes()?;
    bar.inc(1);
    drop(copying);
    let (xor_gb_s, memcpy_gb_s) = (xor(rounds), memcpy(rounds, members));
    let pq_chunks = if parities == 2 { DATA_CHUNKS } else { MORE_CHUNKS };
    let (pq_gb_s, pq_4k_gb_s) = (pq(rounds, pq_chunks, CHUNK_BYTES)?, pq(rounds, pq_chunks, BLOCK)?);
    let decode_gb_s = decode(rounds, pq_chunks)?;
    bar.finish_and_clear();
    let costs = EngineCosts {
        level: level(parities),
        members,
        write_4k_ns,
        write_4k_allocations,
        stripe_write_gb_s,
        stripe_write_copy_gb_s,
        read_4k_ns,
        xor_gb_s,
        pq_chunks,
        pq_gb_s,
        pq_4k_gb_s,
        decode_gb_s,
        memcpy_gb_s,
        stripe_write_to_xor_ratio: stripe_write_gb_s / xor_gb_s,
        stripe_write_to_pq_ratio: (parities == 2).then_some(stripe_write_gb_s / pq_gb_s),
        stripe_write_copy_to_memcpy_ratio: stripe_write_copy_gb_s / memcpy_gb_s,
    };
    output.print(&costs, |costs| costs_text(costs, &level_name(parities)))?;
    Ok(HEALTHY)
}

fn costs_text(costs: &EngineCosts, level: &str) -> String {
    let chunks = costs.pq_chunks;
    let mut rows = vec![
        ("4 KiB write, sequential, queue depth 64".to_string(), format!("{:.0} ns", costs.write_4k_ns)),
        ("    allocations in it".into(), format!("{:.3}", costs.write_4k_allocations)),
        ("4 KiB read, random, queue depth 64".into(), format!("{:.0} ns", costs.read_4k_ns)),
        (
            "256 KiB stripe writes, members touch no data".into(),
            format!("{:.2} GB/s", costs.stripe_write_gb_s),
        ),
        ("    this machine's XOR of as much".into(), format!("{:.2} GB/s", costs.xor_gb_s)),
        ("    ratio".into(), format!("{:.2}", costs.stripe_write_to_xor_ratio)),
    ];
    if let Some(ratio) = costs.stripe_write_to_pq_ratio {
        rows.push(("    ratio to P and Q of as much".into(), format!("{ratio:.2}")));
    }
    rows.extend([
        (
            "256 KiB stripe writes, members copy to memory".into(),
            format!("{:.2} GB/s", costs.stripe_write_copy_gb_s),
        ),
        ("    this machine's memcpy of as much".into(), format!("{:.2} GB/s", costs.memcpy_gb_s)),
        ("    ratio".into(), format!("{:.2}", costs.stripe_write_copy_to_memcpy_ratio)),
        (format!("P and Q of {chunks} chunks of 64 KiB"), format!("{:.2} GB/s", costs.pq_gb_s)),
        (format!("P and Q of {chunks} chunks of 4 KiB"), format!("{:.2} GB/s", costs.pq_4k_gb_s)),
        (format!("one of two lost chunks from {chunks} of 64 KiB"), format!("{:.2} GB/s", costs.decode_gb_s)),
    ]);
    let parities = costs.members - DATA_CHUNKS;
    let mut text = format!("{level} {DATA_CHUNKS}+{parities}, 64 KiB chunks, one core\n");
    for (what, figure) in rows {
        text += &format!("  {what:<48} {figure:>12}\n");
    }
    text
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

/// Medians of the two values that `round` returns, over this number of rounds after a warm-up. Rounds are numbered from
/// 1.
fn medians(rounds: usize, round: impl Fn(u64) -> Result<(f64, f64)>) -> Result<(f64, f64)> {
    round(0)?;
    let rounds = (1..=rounds as u64).map(round).collect::<Result<Vec<_>>>()?;
    let (first, second) = rounds.into_iter().unzip();
    Ok((median(first), median(second)))
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

    /// Keeps `depth` commands in flight until `count` of them have completed, and returns seconds and allocations.
    /// Buffers are reused.
    fn stream(
        &self,
        count: u64,
        depth: usize,
        bytes: usize,
        command: impl Fn(u64, Buf) -> Command,
    ) -> Result<(f64, f64)> {
        let mut spare: Vec<Buf> = (0..depth).map(|_| Buf::copy_of(&vec![0x5a; bytes])).collect();
        let mut queue: VecDeque<Completion> = VecDeque::with_capacity(depth);
        let (started, allocated) = (Instant::now(), allocations());
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
        Ok((started.elapsed().as_secs_f64(), (allocations() - allocated) as f64))
    }

    fn reset(&self) -> Result<()> {
        self.wait(self.array.submit(Command::Reset { zones: Zones::One(ZoneIndex(0)) }))?;
        Ok(())
    }

    /// Median seconds and allocations of the rounds, after a warm-up.
    fn rounds(&self, round: impl Fn() -> Result<(f64, f64)>) -> Result<(f64, f64)> {
        medians(self.rounds, |_| round())
    }

    fn small_writes(&self) -> Result<(f64, f64)> {
        let (seconds, allocated) = self.rounds(|| {
            self.reset()?;
            // The first writes open the zone, which allocates once.
            self.stream(WARM_UP, SMALL_DEPTH, BLOCK, |n, data| Command::write(Lba(n), data, false))?;
            self.stream(SMALL_WRITES, SMALL_DEPTH, BLOCK, |n, data| {
                Command::write(Lba(WARM_UP + n), data, false)
            })
        })?;
        let writes = SMALL_WRITES as f64;
        Ok((seconds * 1e9 / writes, allocated / writes))
    }

    /// Reads the blocks of the small writes.
    fn small_reads(&self) -> Result<f64> {
        let mut rng = Rng::new(1);
        let places: Vec<Lba> = (0..READS).map(|_| Lba(rng.below(SMALL_WRITES))).collect();
        let (seconds, _) = self.rounds(|| {
            self.stream(READS, SMALL_DEPTH, BLOCK, |n, data| Command::read(places[n as usize], data))
        })?;
        Ok(seconds * 1e9 / READS as f64)
    }

    fn stripe_writes(&self) -> Result<f64> {
        let blocks = (STRIPE_BYTES / BLOCK) as u64;
        let (seconds, _) = self.rounds(|| {
            self.reset()?;
            self.stream(STRIPE_WRITES, STRIPE_DEPTH, STRIPE_BYTES, |n, data| {
                Command::write(Lba(n * blocks), data, false)
            })
        })?;
        Ok(STRIPE_WRITES as f64 * STRIPE_BYTES as f64 / seconds / 1e9)
    }
}

/// Throughput of `work`, which processes this number of data bytes, in GB/s.
fn rate(rounds: usize, bytes: usize, mut work: impl FnMut(u64)) -> f64 {
    let count = STRIPE_WRITES * STRIPE_BYTES as u64 / bytes as u64;
    let mut seconds = Vec::new();
    for _ in 0..=rounds {
        let started = Instant::now();
        (0..count).for_each(&mut work);
        seconds.push(started.elapsed().as_secs_f64());
    }
    count as f64 * bytes as f64 / median(seconds.split_off(1)) / 1e9
}

fn xor(rounds: usize) -> f64 {
    let stripe = vec![0x5a_u8; STRIPE_BYTES];
    let mut parity = vec![0_u8; CHUNK_BYTES];
    rate(rounds, STRIPE_BYTES, |_| {
        let (first, second) = black_box(&stripe).split_at(STRIPE_BYTES / 2);
        let ((a, b), (c, d)) = (first.split_at(CHUNK_BYTES), second.split_at(CHUNK_BYTES));
        // One pass over all sources, as the best implementations do.
        for (p, (((a, b), c), d)) in parity.iter_mut().zip(a.iter().zip(b).zip(c).zip(d)) {
            *p = a ^ b ^ c ^ d;
        }
        black_box(&parity);
    })
}

/// Data chunks of a stripe for measuring P and Q if the array has no Q.
const MORE_CHUNKS: usize = 8;

/// A stripe in buffers like those of the engine: data, P, Q.
fn pq_stripe(chunks: usize, chunk_bytes: usize) -> Vec<Buf> {
    (0..chunks + 2).map(|n| Buf::copy_of(&vec![n as u8; chunk_bytes])).collect()
}

fn pq(rounds: usize, chunks: usize, chunk_bytes: usize) -> Result<f64> {
    let mut stripe = pq_stripe(chunks, chunk_bytes);
    let (data, parity) = stripe.split_at_mut(chunks);
    let (p, q) = parity.split_at_mut(1);
    let (p, q) = p[0].as_mut().zip(q[0].as_mut()).context("the buffers are shared")?;
    Ok(rate(rounds, chunks * chunk_bytes, |_| {
        pq::pq_all(p, q, black_box(data));
        black_box((&p, &q));
    }))
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
