//! Cost of a volume: time and allocations per block written or read at a random place, on one core; with compression
//! also with the help of other threads.
//!
//! The volume lies on a drive shaped like a ZN540 that completes at once and, once the volume exists, neither stores
//! nor reads data; the whole map is in memory. So this is the cost of the volume's own code: the map, groups and their
//! headers, copies of the data into groups, the codec, and the executor. The data to be compressed are invented words,
//! which LZ4 halves, and noise. Times are wall-clock, and processor time of the engine's thread; ratios are of processor
//! time. Larger compression units are measured on a drive that stores data in memory.

use super::{
    BenchRow, BenchRows, Cost, begin,
    idle::{self, Idle, REQUESTS},
    medians,
};
use crate::{
    process::{
        output::{HEALTHY, Output, table},
        size::show,
    },
    reactor::{Reactor, workers::WorkerThreads},
    report::Compression,
};
use anyhow::{Context, Error, Result, bail};
use emu::rng::Rng;
use engine::{
    buf::{BLOCK, Buf},
    volume::{
        self, NewSnapshot, NewVolume, Opened, Pool, SectorSize, Unit, Volume, VolumeCreateOptions,
        VolumeOptions,
    },
};
use serde::Serialize;
use std::rc::Rc;

/// Logical blocks of a volume.
const BLOCKS: u64 = 11_000_000;
/// Zones of a drive that holds all of them.
const ZONES: u64 = 48;
/// Queue depth.
const DEPTH: u64 = 64;
/// Number of different blocks of data.
const POOL: u64 = 64;
/// Size of the vocabulary.
const WORDS: u64 = 100;

#[derive(Serialize)]
struct VolumeCosts {
    #[serde(flatten)]
    plain: PlainCosts,
    lone_writes: Vec<LoneWriteCosts>,
    pools: Vec<PoolCosts>,
    snapshots: Vec<SnapshotCosts>,
    compression: Vec<CompressionCosts>,
    units: Vec<UnitCosts>,
}

/// Cost of 4 KiB requests at random places of a volume, queue depth 64; `None` if not measured.
#[derive(Default, Serialize)]
struct PlainCosts {
    write_4k_random_ns: Option<f64>,
    write_4k_random_cpu_ns: Option<f64>,
    write_4k_random_allocations: Option<f64>,
    /// Blocks written to the drive per block of the user.
    write_amplification: Option<f64>,
    read_4k_random_ns: Option<f64>,
    read_4k_random_cpu_ns: Option<f64>,
}

/// Cost of 4 KiB writes at random places, one at a time, without compression.
#[derive(Serialize)]
struct LoneWriteCosts {
    /// `words` or `noise`.
    data: &'static str,
    write_4k_ns: f64,
    write_4k_cpu_ns: f64,
    /// Blocks written to the drive for each.
    blocks: f64,
}

/// Cost of 4 KiB requests at random places of the volumes of a pool in turn, queue depth 64.
#[derive(Serialize)]
struct PoolCosts {
    volumes: u64,
    write_4k_random_allocations: f64,
    /// Compared with one volume without a pool.
    #[serde(flatten)]
    requests: ComparedCosts,
}

/// Cost of 4 KiB requests at random places of a volume with snapshots, queue depth 64.
#[derive(Serialize)]
struct SnapshotCosts {
    snapshots: u64,
    /// Compared with a volume of a pool without snapshots.
    #[serde(flatten)]
    requests: ComparedCosts,
}

/// Cost of writes and reads, from rounds that alternate with those of another volume.
#[derive(Serialize)]
struct ComparedCosts {
    write_4k_random_ns: f64,
    write_4k_random_cpu_ns: f64,
    read_4k_random_ns: f64,
    read_4k_random_cpu_ns: f64,
    /// Processor time relative to that of the other volume.
    write_overhead: f64,
    read_overhead: f64,
}

/// Cost of 4 KiB writes at random places, queue depth 64.
#[derive(Serialize)]
struct CompressionCosts {
    compression: Compression,
    /// Threads that compress, beside the engine's.
    threads: usize,
    write_words_ns: f64,
    write_words_cpu_ns: f64,
    /// Compression ratio of words.
    words_ratio: f64,
    write_noise_ns: f64,
    write_noise_cpu_ns: f64,
    /// Time relative to uncompressed writes, from alternating rounds.
    noise_overhead: f64,
}

/// Cost of words in this compression unit, with writes of 64 KiB at queue depth 64.
#[derive(Serialize)]
struct UnitCosts {
    compression: Compression,
    unit_bytes: u64,
    /// Per 4 KiB of such a write.
    write_64k_ns: f64,
    write_64k_cpu_ns: f64,
    /// Compression ratio of words.
    words_ratio: f64,
    /// 4 KiB reads at random places.
    read_4k_random_ns: f64,
    read_4k_random_cpu_ns: f64,
}

/// Requests of a round with compression.
const COMPRESSED: u64 = 50_000;

/// Writes of 64 KiB in a round, and blocks in each.
const LARGE: u64 = 512;
const LARGE_BLOCKS: u64 = 16;

/// A volume on a drive that completes at once.
struct VolumeRig {
    reactor: Reactor,
    volume: Volume,
    /// Those that are used in turn: several in a pool.
    volumes: Rc<Vec<Volume>>,
}

impl VolumeRig {
    /// A volume with room for this number of writes without garbage collection, which would have no data to read.
    fn new(compression: Compression, writes: u64) -> Result<VolumeRig> {
        let zones = ZONES + writes * 5 / 4 / Idle::zone_blocks();
        let (rig, device) = VolumeRig::storing(compression, Unit::BLOCK, zones)?;
        device.idle();
        Ok(rig)
    }

    /// A volume on a drive that stores its data in memory.
    fn storing(compression: Compression, unit: Unit, zones: u64) -> Result<(VolumeRig, Rc<Idle>)> {
        let (device, reactor) = (Rc::new(Idle::new(zones as u32)), Reactor::default());
        let runtime = reactor.runtime();
        let (uuid, blocks, codec) = ([1; 16], Some(BLOCKS), compression.0);
        let options = VolumeCreateOptions { uuid, blocks, codec, unit, ..VolumeCreateOptions::default() };
        let made = Volume::create(runtime, device.clone(), options);
        runtime.block_on(made, || false).context("the drive does not answer")??;
        let behaviour = VolumeOptions { map_pages: Some(usize::MAX / 2), ..VolumeOptions::default() };
        let volume = Volume::open(runtime, device.clone(), behaviour);
        let volume = runtime.block_on(volume, || false).context("the drive does not answer")??;
        let volumes = Rc::new(vec![volume.clone()]);
        Ok((VolumeRig { reactor, volume, volumes }, device))
    }

    /// Volumes of a pool, with as many blocks in all as one volume has, and snapshots of the first of them.
    fn with_pool(count: u64, snapshots: u64, writes: u64) -> Result<VolumeRig> {
        let zones = ZONES + writes * 5 / 4 / Idle::zone_blocks();
        let (device, reactor) = (Rc::new(Idle::new(zones as u32)), Reactor::default());
        let runtime = reactor.runtime();
        let made = async {
            let options = VolumeCreateOptions { uuid: [1; 16], ..VolumeCreateOptions::default() };
            Pool::create(runtime, device.clone(), options).await?;
            let behaviour = VolumeOptions { map_pages: Some(usize::MAX / 2), ..VolumeOptions::default() };
            let Opened::Pool(pool) = volume::open(runtime, device.clone(), behaviour).await? else {
                bail!("the pool was opened as a volume");
            };
            let mut volumes = Vec::new();
            for number in 0..count {
                let new = NewVolume {
                    name: number.to_string(),
                    uuid: [2; 16],
                    blocks: BLOCKS / count,
                    sector: SectorSize::default(),
                    codec: None,
                    unit: Unit::BLOCK,
                    qos: Default::default(),
                    guaranteed: 0,
                };
                volumes.push(pool.add(new).await?);
            }
            for number in 0..snapshots {
                // Each one keeps a block.
                volumes[0].write(number, &Buf::zeroed(BLOCK), false).await?;
                let [volume, name] = [0, number].map(|number| number.to_string());
                pool.snapshot(vec![NewSnapshot { volume, name, uuid: [3; 16] }]).await?;
            }
            Ok((volumes[0].clone(), Rc::new(volumes)))
        };
        let (volume, volumes) = runtime.block_on(made, || false).context("the drive does not answer")??;
        device.idle();
        Ok(VolumeRig { reactor, volume, volumes })
    }
}

impl Drop for VolumeRig {
    fn drop(&mut self) {
        self.reactor.runtime().clear();
    }
}

/// Parts of the benchmark.
const ROWS: [BenchRow; 6] = [
    BenchRow::Volume,
    BenchRow::LoneWrites,
    BenchRow::Pools,
    BenchRow::Snapshots,
    BenchRow::Compression,
    BenchRow::Units,
];

/// Default number of volumes of the larger pool.
pub const VOLUMES: u32 = 100;

/// Most volumes of a pool that is measured.
pub const MOST_VOLUMES: u32 = 10_000;

/// Runs these parts of the benchmark, or all, and prints the results. The larger of two pools has `volumes` volumes.
pub fn run(output: Output, rounds: usize, volumes: u32, rows: &[BenchRow]) -> Result<u8> {
    begin(output, rounds)?;
    let rows = BenchRows::new(output, rows, &ROWS)?;
    let costs = measured(rounds, volumes.into(), &rows)?;
    rows.bar.finish_and_clear();
    output.print(&costs, text)?;
    Ok(HEALTHY)
}

/// Time and processor time of a request, as cells of a table.
fn both(ns: f64, cpu_ns: f64) -> [String; 2] {
    [ns, cpu_ns].map(|ns| format!("{ns:.0} ns"))
}

/// Writes, then reads: time, processor time, and the ratio.
fn compared_cells(costs: &ComparedCosts) -> [String; 6] {
    let [write, write_cpu] = both(costs.write_4k_random_ns, costs.write_4k_random_cpu_ns);
    let [read, read_cpu] = both(costs.read_4k_random_ns, costs.read_4k_random_cpu_ns);
    let [write_ratio, read_ratio] =
        [costs.write_overhead, costs.read_overhead].map(|ratio| format!("{ratio:.3}"));
    [write, write_cpu, write_ratio, read, read_cpu, read_ratio]
}

fn text(costs: &VolumeCosts) -> String {
    let mut parts = vec!["a volume on a drive that answers at once, one core\n".to_string()];
    let line = |what: &str, ns: Option<f64>| ns.map(|ns| format!("  {what:<48} {ns:>9.0} ns\n"));
    let figure =
        |what: &str, figure: Option<f64>| figure.map(|figure| format!("  {what:<48} {figure:>12.3}\n"));
    let plain = &costs.plain;
    let lines = [
        line("4 KiB write, random, queue depth 64", plain.write_4k_random_ns),
        line("    processor time", plain.write_4k_random_cpu_ns),
        figure("    allocations in it", plain.write_4k_random_allocations),
        figure("    blocks written for each", plain.write_amplification),
        line("4 KiB read, random, queue depth 64", plain.read_4k_random_ns),
        line("    processor time", plain.read_4k_random_cpu_ns),
    ];
    parts.extend(lines.into_iter().flatten());
    let head = ["4 KiB write, one at a time, of", "time", "processor", "blocks written for each"];
    parts.push(table_of(head, &costs.lone_writes, |row| {
        let [ns, cpu] = both(row.write_4k_ns, row.write_4k_cpu_ns);
        vec![row.data.to_string(), ns, cpu, format!("{:.3}", row.blocks)]
    }));
    let head = [
        "volumes of a pool",
        "4 KiB write",
        "processor",
        "to one volume",
        "allocations",
        "4 KiB read",
        "processor",
        "to one volume",
    ];
    parts.push(table_of(head, &costs.pools, |row| {
        let [write, write_cpu, write_ratio, read, read_cpu, read_ratio] = compared_cells(&row.requests);
        let allocations = format!("{:.3}", row.write_4k_random_allocations);
        vec![row.volumes.to_string(), write, write_cpu, write_ratio, allocations, read, read_cpu, read_ratio]
    }));
    let head = [
        "snapshots of a volume",
        "4 KiB write",
        "processor",
        "to none",
        "4 KiB read",
        "processor",
        "to none",
    ];
    parts.push(table_of(head, &costs.snapshots, |row| {
        [vec![row.snapshots.to_string()], compared_cells(&row.requests).to_vec()].concat()
    }));
    let head = [
        "compression",
        "threads besides",
        "4 KiB write of words",
        "processor",
        "ratio",
        "of noise",
        "processor",
        "to off",
    ];
    parts.push(table_of(head, &costs.compression, |row| {
        let [words, words_cpu] = both(row.write_words_ns, row.write_words_cpu_ns);
        let [noise, noise_cpu] = both(row.write_noise_ns, row.write_noise_cpu_ns);
        let (ratio, overhead) = (format!("{:.2}", row.words_ratio), format!("{:.3}", row.noise_overhead));
        let (codec, threads) = (row.compression.to_string(), row.threads.to_string());
        vec![codec, threads, words, words_cpu, ratio, noise, noise_cpu, overhead]
    }));
    let head = [
        "compression",
        "unit",
        "4 KiB of a 64 KiB write of words",
        "processor",
        "ratio",
        "4 KiB read, random",
        "processor",
    ];
    parts.push(table_of(head, &costs.units, |row| {
        let [write, write_cpu] = both(row.write_64k_ns, row.write_64k_cpu_ns);
        let [read, read_cpu] = both(row.read_4k_random_ns, row.read_4k_random_cpu_ns);
        let (codec, unit) = (row.compression.to_string(), show(row.unit_bytes));
        vec![codec, unit, write, write_cpu, format!("{:.2}", row.words_ratio), read, read_cpu]
    }));
    parts.concat()
}

/// A table with these heads and a row for each of the costs, behind an empty line; nothing if there are none.
fn table_of<C, const N: usize>(heads: [&str; N], costs: &[C], row: impl Fn(&C) -> Vec<String>) -> String {
    if costs.is_empty() {
        return String::new();
    }
    let heads = std::iter::once(heads.map(String::from).to_vec());
    "\n".to_string() + &table(&heads.chain(costs.iter().map(row)).collect::<Vec<_>>())
}

fn measured(rounds: usize, volumes: u64, rows: &BenchRows) -> Result<VolumeCosts> {
    let plain = rows.measure(BenchRow::Volume, || plain_costs(rounds))?;
    let lone_writes = rows.measure(BenchRow::LoneWrites, || {
        Ok(vec![lone_writes(rounds, "words", &words())?, lone_writes(rounds, "noise", &noise())?])
    })?;
    let pools = rows.measure(BenchRow::Pools, || {
        [1, volumes].into_iter().map(|volumes| pool_costs(rounds, volumes)).collect::<Result<_>>()
    })?;
    let snapshots = rows.measure(BenchRow::Snapshots, || {
        [0, 1, 200].into_iter().map(|snapshots| snapshot_costs(rounds, snapshots)).collect::<Result<_>>()
    })?;
    let compression = rows.measure(BenchRow::Compression, || {
        let mut compression = Vec::new();
        for (codec, helped) in [
            ("off", false),
            ("lz4", false),
            ("lz4", true),
            ("zstd:1", false),
            ("zstd:1", true),
            ("zstd:3", true),
        ] {
            compression.extend(compressed(rounds, codec.parse().map_err(Error::msg)?, helped)?);
        }
        Ok(compression)
    })?;
    let units = rows.measure(BenchRow::Units, || {
        let mut units = Vec::new();
        for codec in ["lz4", "zstd:1"] {
            for unit in [4 << 10, 16 << 10, 64 << 10].into_iter().filter_map(Unit::from_bytes) {
                units.push(unit_costs(rounds, codec.parse().map_err(Error::msg)?, unit)?);
            }
        }
        Ok(units)
    })?;
    Ok(VolumeCosts {
        plain: plain.unwrap_or_default(),
        lone_writes: lone_writes.unwrap_or_default(),
        pools: pools.unwrap_or_default(),
        snapshots: snapshots.unwrap_or_default(),
        compression: compression.unwrap_or_default(),
        units: units.unwrap_or_default(),
    })
}

fn plain_costs(rounds: usize) -> Result<PlainCosts> {
    let rig = VolumeRig::new(Compression(None), (rounds as u64 + 1) * REQUESTS)?;
    let block = noise();
    let writes = medians(rounds, |round| play(&rig, &block, random(&rig, REQUESTS, round)))?;
    let reads = medians(rounds, |round| play(&rig, &[], random(&rig, REQUESTS, round)))?;
    let amplification = rig.volume.status().written.amplification();
    let [write_4k_random_ns, write_4k_random_cpu_ns, write_4k_random_allocations] = writes.map(Some);
    let [read_4k_random_ns, read_4k_random_cpu_ns, _] = reads.map(Some);
    Ok(PlainCosts {
        write_4k_random_ns,
        write_4k_random_cpu_ns,
        write_4k_random_allocations,
        write_amplification: Some(amplification),
        read_4k_random_ns,
        read_4k_random_cpu_ns,
    })
}

/// Cost of writes of these blocks, one at a time.
fn lone_writes(rounds: usize, data: &'static str, blocks: &[Buf]) -> Result<LoneWriteCosts> {
    let rig = VolumeRig::new(Compression(None), (rounds as u64 + 1) * COMPRESSED)?;
    let [write_4k_ns, write_4k_cpu_ns, _] =
        medians(rounds, |round| play_at(1, &rig, blocks, random(&rig, COMPRESSED, round)))?;
    let blocks = rig.volume.status().written.amplification();
    Ok(LoneWriteCosts { data, write_4k_ns, write_4k_cpu_ns, blocks })
}

/// Cost of a pool with so many volumes.
fn pool_costs(rounds: usize, volumes: u64) -> Result<PoolCosts> {
    let writes = 2 * (rounds as u64 + 1) * REQUESTS;
    let (plain, pool) =
        (VolumeRig::new(Compression(None), writes)?, VolumeRig::with_pool(volumes, 0, writes)?);
    let requests = requests_compared(rounds, (&plain, &pool))?;
    let block = noise();
    let [.., write_4k_random_allocations] =
        medians(rounds, |round| play(&pool, &block, random(&pool, REQUESTS, round)))?;
    Ok(PoolCosts { volumes, write_4k_random_allocations, requests })
}

/// Cost of a volume with so many snapshots.
fn snapshot_costs(rounds: usize, snapshots: u64) -> Result<SnapshotCosts> {
    let writes = (rounds as u64 + 1) * REQUESTS;
    let rigs = (&VolumeRig::with_pool(1, 0, writes)?, &VolumeRig::with_pool(1, snapshots, writes)?);
    Ok(SnapshotCosts { snapshots, requests: requests_compared(rounds, rigs)? })
}

/// Cost of writes and reads of the second of two rigs.
fn requests_compared(rounds: usize, rigs: (&VolumeRig, &VolumeRig)) -> Result<ComparedCosts> {
    let [write_4k_random_ns, write_4k_random_cpu_ns, write_overhead] = compared(rounds, rigs, &noise())?;
    let [read_4k_random_ns, read_4k_random_cpu_ns, read_overhead] = compared(rounds, rigs, &[])?;
    Ok(ComparedCosts {
        write_4k_random_ns,
        write_4k_random_cpu_ns,
        read_4k_random_ns,
        read_4k_random_cpu_ns,
        write_overhead,
        read_overhead,
    })
}

/// Time and processor time of requests to the second of two rigs, and the latter relative to that of the first, from
/// alternating rounds: writes of `blocks`, or reads if there are none.
fn compared(rounds: usize, (plain, other): (&VolumeRig, &VolumeRig), blocks: &[Buf]) -> Result<[f64; 3]> {
    medians(rounds, |round| {
        let [_, without, _] = play(plain, blocks, random(plain, REQUESTS, round))?;
        let [ns, with, _] = play(other, blocks, random(other, REQUESTS, round))?;
        Ok([ns, with, with / without])
    })
}

/// Cost of a codec; `None` if other threads were to help and there are no processors for them.
fn compressed(rounds: usize, compression: Compression, helped: bool) -> Result<Option<CompressionCosts>> {
    let (mut threads, writes) = (0, (rounds as u64 + 1) * COMPRESSED);
    let mut rig = || {
        let rig = VolumeRig::new(compression, writes)?;
        if helped && let Some(worker_threads) = WorkerThreads::start(&rig.reactor)? {
            threads = worker_threads.threads();
            rig.volume.employ(worker_threads);
        }
        anyhow::Ok(rig)
    };
    let write = |rig: &VolumeRig, blocks: &[Buf], round| play(rig, blocks, random(rig, COMPRESSED, round));
    let (for_words, for_noise, plain) = (rig()?, rig()?, VolumeRig::new(Compression(None), writes)?);
    let (words, noise) = (words(), noise());
    let [write_words_ns, write_words_cpu_ns, _] = medians(rounds, |round| write(&for_words, &words, round))?;
    let [write_noise_ns, write_noise_cpu_ns, noise_overhead] = medians(rounds, |round| {
        let [_, without, _] = write(&plain, &noise, round)?;
        let [ns, with, _] = write(&for_noise, &noise, round)?;
        Ok([ns, with, with / without])
    })?;
    let status = for_words.volume.status();
    let words_ratio = status.mapped as f64 * BLOCK as f64 / status.held_bytes as f64;
    let found = CompressionCosts {
        compression,
        threads,
        write_words_ns,
        write_words_cpu_ns,
        words_ratio,
        write_noise_ns,
        write_noise_cpu_ns,
        noise_overhead,
    };
    Ok((threads > 0 || !helped).then_some(found))
}

/// Cost of words in compression units of this size.
fn unit_costs(rounds: usize, compression: Compression, unit: Unit) -> Result<UnitCosts> {
    let (rig, _) = VolumeRig::storing(compression, unit, ZONES)?;
    let large: Vec<Buf> = words()
        .chunks_exact(LARGE_BLOCKS as usize)
        .map(|blocks| Buf::copy_of(&blocks.iter().flat_map(|block| block.to_vec()).collect::<Vec<u8>>()))
        .collect();
    let write = |_| play(&rig, &large, (0..LARGE).map(|at| at * LARGE_BLOCKS).collect());
    let [write_64k_ns, write_64k_cpu_ns, _] =
        medians(rounds, write)?.map(|whole| whole / LARGE_BLOCKS as f64);
    let status = rig.volume.status();
    let [read_4k_random_ns, read_4k_random_cpu_ns, _] = medians(rounds, |round| {
        let mut rng = Rng::new(round);
        play(&rig, &[], (0..COMPRESSED).map(|_| rng.below(LARGE * LARGE_BLOCKS)).collect())
    })?;
    Ok(UnitCosts {
        compression,
        unit_bytes: unit.bytes() as u64,
        write_64k_ns,
        write_64k_cpu_ns,
        words_ratio: status.mapped as f64 * BLOCK as f64 / status.held_bytes as f64,
        read_4k_random_ns,
        read_4k_random_cpu_ns,
    })
}

/// Blocks of words with very different frequencies.
fn words() -> Vec<Buf> {
    let mut rng = Rng::new(1);
    let word = |rng: &mut Rng| {
        let letters = 4 + rng.below(7);
        let word: Vec<u8> = (0..letters).map(|_| b'a' + rng.below(26) as u8).collect();
        [&word[..], b" "].concat()
    };
    let vocabulary: Vec<Vec<u8>> = (0..WORDS).map(|_| word(&mut rng)).collect();
    let block = |_| {
        let mut text = Vec::new();
        while text.len() < BLOCK {
            let word = (0..3).fold(WORDS, |most, _| 1 + rng.below(most)) - 1;
            text.extend_from_slice(&vocabulary[word as usize]);
        }
        Buf::copy_of(&text[..BLOCK])
    };
    (0..POOL).map(block).collect()
}

fn noise() -> Vec<Buf> {
    let mut rng = Rng::new(2);
    let block = |_| {
        let mut bytes = vec![0; BLOCK];
        rng.fill(&mut bytes);
        Buf::copy_of(&bytes)
    };
    (0..POOL).map(block).collect()
}

/// Random block numbers; the seed is the number of the round.
fn random(rig: &VolumeRig, requests: u64, round: u64) -> Vec<u64> {
    let mut rng = Rng::new(round);
    (0..requests).map(|_| rng.below(rig.volume.blocks())).collect()
}

/// As [`play_at`], at queue depth 64.
fn play(rig: &VolumeRig, blocks: &[Buf], places: Vec<u64>) -> Result<Cost> {
    play_at(DEPTH, rig, blocks, places)
}

/// Cost of a request at this queue depth: writes of `blocks` at `places`, or reads of single blocks
/// if `blocks` is empty.
fn play_at(depth: u64, rig: &VolumeRig, blocks: &[Buf], places: Vec<u64>) -> Result<Cost> {
    let (requests, places, blocks) = (places.len() as u64, Rc::new(places), Rc::new(blocks.to_vec()));
    let idle = || rig.reactor.ring().and_then(|ring| Ok(ring.wait()?)).unwrap_or(false);
    idle::play(rig.reactor.runtime(), (requests, depth), idle, |turns| {
        let (volumes, places, blocks) = (rig.volumes.clone(), places.clone(), blocks.clone());
        async move {
            let mut buf = Buf::zeroed(BLOCK);
            while let Some(turn) = turns.take() {
                let (at, volume) = (places[turn as usize], &volumes[turn as usize % volumes.len()]);
                match blocks.get(turn as usize % blocks.len().max(1)) {
                    Some(block) => volume.write(at, block, false).await?,
                    None => buf = volume.read(at, std::mem::take(&mut buf)).await?,
                }
            }
            Ok(())
        }
    })
}
