//! The cost of a volume that has been written completely: garbage collection, and a map larger than its memory.

use super::{Effort, Experiment};
use crate::{
    figure::{Claim, ClaimKind, Figure, Plot, Row, Table},
    load::Measurement,
    system::System,
    test_bed::{Setup, TestBed},
    work,
};
use anyhow::{Context, Result};
use emu::{clock::Clock, rng::Rng, ssd::Model, timing::Timing};
use engine::{
    buf::{BLOCK, Buf},
    runtime::Gate,
    volume::{Choice, Volume, VolumeCreateOptions, VolumeOptions, WrittenBlocks, pages_in},
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

pub const VOLUME: Experiment = Experiment {
    name: "volume",
    title: "A volume that has been overwritten: collection, and a map larger than its memory",
    run: volume,
};

const METHOD: &str = "A volume on four ZN540 (3 + 1) with small zones (12 MiB of the array; a reset or finish takes as much \
less time), policy zrwa unless a row says otherwise, on a host that costs nothing. It is filled in order up to a share of what \
there is room for, then overwritten, 4 KiB and 16 requests at a time, once and a half as much as there is room for, and \
measured while as much as there is room for is written (once and half of it where writes are uniform, which is steady sooner; \
a half and a third where all of it is used, or the map is in memory in part, which takes longest), with all of the map in \
memory unless a row says otherwise. '4 at a time': with so few requests blocks are written to the hot window. 'uniform': any block; 'zipf': with an exponent of 0.99; 'log': half \
of the writes go round in a log, which is a 64th of all, the others are zipf. The amplification of the volume is what it writes \
to the array for each block of the user's, that of flash what stays on the drives. 'large map': the blocks that are used are 20 \
apart, so that the map is as much larger; '128 MiB a TiB': so much of that map is in memory, a twelfth of it. The map in part: a volume of 64 GiB of which \
6,000 pages of the map have 16 blocks each; 19 of 20 requests go to a tenth of these.";

const WHY_RAIZN: &str = "BIZA's figures are for a block device of its own, which absorbs what is hot in the ZRWA, over RAIZN \
behind dm-zap, with fio and traces; here the volume is the same on both, except for the hot window, which RAIZN has no room for.";

/// Zones of the array, of the one with part of the map in memory, and blocks of a zone of a drive.
const ZONES: u32 = 80;
const PAGED_ZONES: u32 = 128;
const CAPACITY: u64 = 1024;

const DEPTH: usize = 16;
/// Few enough for the hot window.
const FEW: usize = 4;

/// Distance of logical blocks for a large map.
const SPREAD: u64 = 20;

/// Distribution of the written blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum WriteDistribution {
    Uniform,
    Zipf,
    Log,
}

impl WriteDistribution {
    const ALL: [WriteDistribution; 3] =
        [WriteDistribution::Uniform, WriteDistribution::Zipf, WriteDistribution::Log];

    fn name(self) -> &'static str {
        match self {
            WriteDistribution::Uniform => "uniform",
            WriteDistribution::Zipf => "zipf",
            WriteDistribution::Log => "log",
        }
    }
}

/// Generator of block addresses.
struct Places {
    load: WriteDistribution,
    blocks: u64,
    /// Cumulative weights of ranks.
    weights: Vec<f64>,
    log_at: u64,
}

impl Places {
    fn new(load: WriteDistribution, blocks: u64) -> Places {
        let mut sum = 0.0;
        let ranks = if load == WriteDistribution::Uniform { 0 } else { blocks };
        let weights = (1..=ranks).map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        });
        Places { load, blocks, weights: weights.collect(), log_at: 0 }
    }

    fn next(&mut self, rng: &mut Rng) -> u64 {
        if self.load == WriteDistribution::Log && rng.chance(1, 2) {
            self.log_at = (self.log_at + 1) % (self.blocks / 64);
            return self.log_at;
        }
        let Some(sum) = self.weights.last() else { return rng.below(self.blocks) };
        let at = rng.unit() * sum;
        let rank = self.weights.partition_point(|weight| *weight < at) as u64;
        // A prime, so that neighbours in rank are not neighbours in address.
        (rank as u128 * 2_654_435_761 % self.blocks as u128) as u64
    }
}

/// Parameters of a volume under load.
#[derive(Clone, Copy, Debug)]
struct VolumeCase {
    name: &'static str,
    system: System,
    group_blocks: u32,
    used_percent: u64,
    load: WriteDistribution,
    /// Logical blocks for each used one: the map grows by this factor.
    spread: u64,
    /// Requests at a time.
    depth: usize,
    behaviour: VolumeOptions,
}

impl VolumeCase {
    fn new(used_percent: u64, load: WriteDistribution) -> VolumeCase {
        let (system, behaviour) = (System::Zoneraid, WHOLE_MAP);
        VolumeCase {
            name: "zrwa",
            system,
            group_blocks: 0,
            used_percent,
            load,
            spread: 1,
            depth: DEPTH,
            behaviour,
        }
    }

    fn over(self, name: &'static str, system: System, group_blocks: u32) -> VolumeCase {
        VolumeCase { name, system, group_blocks, ..self }
    }

    fn behaving(self, name: &'static str, behaviour: VolumeOptions) -> VolumeCase {
        VolumeCase { name, behaviour, ..self }
    }
}

/// All of the map is in memory.
const WHOLE_MAP: VolumeOptions = VolumeOptions {
    choice: Choice::CostBenefit,
    apart: false,
    map_pages: Some(usize::MAX / 2),
    changed_pages: None,
    fua_stands_alone: false,
    give_up: false,
};

/// Results of a case.
struct CaseResult {
    row: Row,
    /// Blocks written per block of the user, and of these the moved ones, headers, and the map with roots.
    amplification: f64,
    moved: f64,
    headers: f64,
    map: f64,
}

fn setup(system: System, group_blocks: u32, zones: u32) -> Setup {
    let (whole, mut timing) = (Model::zn540_4tb(), Timing::zn540_4tb());
    let part = CAPACITY as f64 / whole.geometry.zone_capacity_blocks as f64;
    let reset = &mut timing.reset;
    let times = [&mut reset.fixed_us, &mut reset.full_us, &mut reset.unfinished_us, &mut timing.finish_us];
    times.into_iter().for_each(|us| *us *= part);
    let model = whole.scaled(zones + 2, CAPACITY);
    Setup { model, timing, members: 4, group_blocks, joins: true, stores: true, ..Setup::zn540(system) }
}

/// Requests that follow each other, a number of them at a time.
struct RequestLoop {
    volume: Volume,
    clock: Clock,
    rng: RefCell<Rng>,
    left: Cell<u64>,
    running: Cell<usize>,
    ended: Gate,
    latencies_ns: RefCell<Vec<u64>>,
    /// The time when half of them had begun.
    half_ns: Cell<u64>,
    failed: RefCell<Option<anyhow::Error>>,
}

/// Executes `count` requests, `depth` at a time, at the addresses that `next` gives.
fn requests(
    bed: &TestBed,
    volume: &Volume,
    (count, depth): (u64, usize),
    writes: bool,
    next: impl FnMut(&mut Rng) -> u64 + 'static,
) -> Result<Measurement> {
    let shared = Rc::new(RequestLoop {
        volume: volume.clone(),
        clock: bed.clock.clone(),
        rng: RefCell::new(Rng::new(count)),
        left: Cell::new(count),
        running: Cell::new(depth),
        ended: Gate::default(),
        latencies_ns: RefCell::default(),
        half_ns: Cell::default(),
        failed: RefCell::default(),
    });
    let next = Rc::new(RefCell::new(next));
    let before = bed.clock.now_ns();
    for _ in 0..depth {
        let (shared, next) = (shared.clone(), next.clone());
        bed.runtime.spawn(async move {
            let mut data = Buf::zeroed(BLOCK);
            while shared.left.get() > 0 {
                shared.left.set(shared.left.get() - 1);
                if shared.left.get() == count / 2 {
                    shared.half_ns.set(shared.clock.now_ns());
                }
                let at = (next.borrow_mut())(&mut shared.rng.borrow_mut());
                let begun = shared.clock.now_ns();
                let result = match writes {
                    true => shared.volume.write(at, &data, false).await,
                    false => shared.volume.read(at, std::mem::take(&mut data)).await.map(|read| data = read),
                };
                if let Err(error) = result {
                    *shared.failed.borrow_mut() = Some(anyhow::anyhow!("block {at}: {error}"));
                    break;
                }
                shared.latencies_ns.borrow_mut().push(shared.clock.now_ns() - begun);
            }
            shared.running.set(shared.running.get() - 1);
            shared.ended.open();
        });
    }
    bed.run(async {
        while shared.running.get() > 0 {
            shared.ended.wait().await;
        }
    })?;
    if let Some(error) = shared.failed.take() {
        return Err(error);
    }
    let mut latencies_ns = shared.latencies_ns.take();
    latencies_ns.sort_unstable();
    let (window_ns, bytes) = (bed.clock.now_ns() - before, count * BLOCK as u64);
    // The halves are of requests, not of time.
    let share = (shared.half_ns.get() - before) as f64 / window_ns as f64;
    Ok(Measurement { bytes, second_half_bytes: (bytes as f64 * share) as u64, window_ns, latencies_ns })
}

fn open(bed: &TestBed, blocks: Option<u64>, behaviour: VolumeOptions) -> Result<Volume> {
    bed.run(Volume::create(
        &bed.runtime,
        bed.array.clone(),
        VolumeCreateOptions { uuid: [1; 16], blocks, ..VolumeCreateOptions::default() },
    ))??;
    Ok(bed.run(Volume::open(&bed.runtime, bed.array.clone(), behaviour))??)
}

/// Writes blocks sequentially, `spread` apart.
fn fill(bed: &TestBed, volume: &Volume, blocks: u64, spread: u64) -> Result<()> {
    if spread > 1 {
        let next = Cell::new(0);
        requests(bed, volume, (blocks, DEPTH), true, move |_| next.replace(next.get() + spread))?;
        return Ok(());
    }
    const AT_ONCE: u64 = 64;
    let data = Buf::zeroed(AT_ONCE as usize * BLOCK);
    bed.run(async {
        for at in (0..blocks).step_by(AT_ONCE as usize) {
            let data = data.slice_blocks(0..AT_ONCE.min(blocks - at));
            volume.write(at, &data, false).await?;
        }
        anyhow::Ok(())
    })?
}

fn one(case: &VolumeCase) -> Result<CaseResult> {
    let bed = TestBed::new(&setup(case.system, case.group_blocks, ZONES))?;
    let blocks = bed.array.geometry().zone_capacity_blocks * ZONES as u64 * 4 / 5 * case.spread;
    // Without the minimum that applies to small volumes.
    let map_pages = case.behaviour.map_pages.or(Some(pages_in(blocks * BLOCK as u64 / 8192)));
    let behaviour = VolumeOptions { map_pages, ..case.behaviour };
    let volume = open(&bed, (case.spread > 1).then_some(blocks), behaviour)?;
    let room = volume.status().usable;
    let used = room * case.used_percent / 100;
    fill(&bed, &volume, used, case.spread)?;
    let places = Rc::new(RefCell::new(Places::new(case.load, used)));
    let next = || {
        let places = places.clone();
        let spread = case.spread;
        move |rng: &mut Rng| places.borrow_mut().next(rng) * spread
    };
    let (first, count) = match case.load {
        _ if case.used_percent == 100 || case.behaviour.map_pages.is_none() => (room / 2, room / 3),
        WriteDistribution::Uniform if case.spread == 1 => (room, room / 2),
        _ => (room * 3 / 2, room),
    };
    requests(&bed, &volume, (first, case.depth), true, next())?;
    let (before, counters) = (volume.status().written, bed.write_counters());
    let measured = requests(&bed, &volume, (count, case.depth), true, next())?;
    let after = volume.status().written;
    let left = bed.left_since(&counters, count);
    let each =
        |of: fn(&WrittenBlocks) -> u64| (of(&after) - of(&before)) as f64 / (after.user - before.user) as f64;
    Ok(CaseResult {
        row: Row {
            system: case.name.into(),
            host: "free".into(),
            zones: 1,
            request_kib: 4,
            depth: case.depth as u32,
            mb_s: measured.mb_s(),
            seeds: 1,
            drift: measured.drift(),
            flash_write_amplification: left.flash_write_amplification,
            p50_us: measured.quantile_us(0.5),
            p95_us: measured.quantile_us(0.95),
            p99_us: measured.quantile_us(0.99),
            written: left.written,
            used_percent: Some(case.used_percent),
            load: Some(case.load.name()),
            ..Row::default()
        },
        amplification: each(WrittenBlocks::blocks),
        moved: each(|written| written.moved),
        headers: each(|written| written.headers),
        map: each(|written| written.map + written.roots),
    })
}

/// Map pages in use, and blocks of each.
const PAGES: u64 = 6000;
const PAGE_BLOCKS: u64 = 16;
/// Logical blocks from a page to the next one in use.
const APART: u64 = (16 << 20) / PAGES;

/// Reads and writes with part of the map in memory: throughput of each, the share of requests that find their page in
/// memory, and pages written per block.
struct PagedMapResult {
    read_mb_s: f64,
    write_mb_s: f64,
    read_hits: f64,
    write_hits: f64,
    map: f64,
}

fn paged(pages: &Option<usize>) -> Result<PagedMapResult> {
    let bed = TestBed::new(&setup(System::Zoneraid, 0, PAGED_ZONES))?;
    let behaviour =
        VolumeOptions { map_pages: Some(pages.unwrap_or(usize::MAX / 2)), ..VolumeOptions::default() };
    let volume = open(&bed, Some(16 << 20), behaviour)?;
    let data = Buf::zeroed(PAGE_BLOCKS as usize * BLOCK);
    bed.run(async {
        for page in 0..PAGES {
            volume.write(page * APART, &data, false).await?;
        }
        volume.stop().await
    })??;
    let next = |rng: &mut Rng| {
        let hot = PAGES / 10;
        let page = if rng.chance(19, 20) { rng.below(hot) } else { rng.range(hot..PAGES) };
        page * APART + rng.below(PAGE_BLOCKS)
    };
    const COUNT: u64 = 100_000;
    let run = |writes| {
        requests(&bed, &volume, (COUNT / 2, DEPTH), writes, next)?;
        let before = volume.status();
        let measured = requests(&bed, &volume, (COUNT, DEPTH), writes, next)?;
        let after = volume.status();
        let hits = 1.0 - (after.pages_read - before.pages_read) as f64 / COUNT as f64;
        let map = (after.written.map - before.written.map) as f64 / COUNT as f64;
        anyhow::Ok((measured.mb_s(), hits, map))
    };
    let ((read_mb_s, read_hits, _), (write_mb_s, write_hits, map)) = (run(false)?, run(true)?);
    Ok(PagedMapResult { read_mb_s, write_mb_s, read_hits, write_hits, map })
}

fn volume(this: &Experiment, effort: Effort) -> Result<Figure> {
    let shares: &[u64] = if effort == Effort::Quick { &[20, 80] } else { &[20, 50, 80, 100] };
    let loads: &[WriteDistribution] =
        if effort == Effort::Quick { &[WriteDistribution::Zipf] } else { &WriteDistribution::ALL };
    let mut cases: Vec<VolumeCase> =
        loads.iter().flat_map(|load| shares.iter().map(|share| VolumeCase::new(*share, *load))).collect();
    let greedy = VolumeOptions { choice: Choice::Greedy, ..WHOLE_MAP };
    let apart = VolumeOptions { apart: true, ..WHOLE_MAP };
    for load in loads {
        let case = VolumeCase::new(80, *load);
        let spread = VolumeCase { spread: SPREAD, ..case };
        cases.push(spread.behaving("zrwa, large map", WHOLE_MAP));
        cases.push(spread.behaving("zrwa, 128 MiB a TiB", VolumeOptions::default()));
        if *load != WriteDistribution::Uniform {
            cases.push(case.behaving("zrwa, greedy", greedy));
            cases.push(case.behaving("zrwa, hot and cold", apart));
        }
    }
    let case = VolumeCase::new(80, WriteDistribution::Zipf);
    cases.push(case.over("inplace", System::Zebra, 0));
    cases.push(case.over("log", System::RaiznPlus, 0));
    cases.push(case.over("append-g256", System::RaiznPlus, 256));
    cases.push(case.over("RAIZN", System::Raizn, 0));
    for share in shares.iter().copied().filter(|share| *share < 100) {
        let few = VolumeCase { depth: FEW, ..VolumeCase::new(share, WriteDistribution::Zipf) };
        cases.push(few.behaving("zrwa, 4 at a time", WHOLE_MAP));
        cases.push(few.over("RAIZN, 4 at a time", System::Raizn, 0));
    }
    let found = work::each(this.name, &cases, one)?;
    let mut figure = this.figure(METHOD);
    let header = [
        "array", "load", "used, %", "MB/s", "p50, µs", "p99, µs", "volume", "moved", "headers", "map",
        "flash",
    ];
    let mut table =
        Table::new("Overwriting, by how full the volume is: throughput, latency, amplification", &header);
    for CaseResult { row, amplification, moved, headers, map } in &found {
        let mut cells = vec![row.system.clone(), row.load.unwrap_or_default().to_string()];
        cells.push(row.used_percent.unwrap_or_default().to_string());
        cells.extend([row.mb_s, row.p50_us, row.p99_us].map(|value| format!("{value:.0}")));
        cells.extend(
            [*amplification, *moved, *headers, *map, row.flash_write_amplification]
                .map(|value| format!("{value:.2}")),
        );
        table.rows.push(cells);
    }
    figure.tables.push(table);
    let of = |system: &str, load: WriteDistribution, used: u64| {
        let is = |found: &&CaseResult| {
            let row = &found.row;
            (row.system.as_str(), row.load, row.used_percent) == (system, Some(load.name()), Some(used))
        };
        found.iter().find(is).with_context(|| format!("{system} was not measured"))
    };
    for load in loads {
        let tail = of("zrwa", *load, 80)?.row.p99_us / of("zrwa", *load, 20)?.row.p99_us;
        let what = format!("{}: 99th percentile at 80 % used to 20 %, at most", load.name());
        figure.claims.push(Claim::below(what, 3.0, tail, "").is(ClaimKind::Goal));
    }
    for share in shares.iter().copied().filter(|share| *share < 100) {
        let of = |system: &str| of(system, WriteDistribution::Zipf, share);
        let (ours, theirs) = (&of("zrwa, 4 at a time")?.row, &of("RAIZN, 4 at a time")?.row);
        let waf = ours.flash_write_amplification / theirs.flash_write_amplification;
        let gain = ours.mb_s / theirs.mb_s;
        let claim = |what: &str, paper: f64, found: f64| {
            let what = format!("{what} of zrwa to RAIZN, 4 at a time, {share} % used (BIZA's)");
            Claim::factor(what, paper, found, WHY_RAIZN).is(ClaimKind::Goal)
        };
        figure.claims.push(claim("flash writes", 0.573, waf));
        figure.claims.push(claim("throughput", 1.932, gain));
    }
    let lines = |name: &str, y: &str, value: fn(&CaseResult) -> f64| {
        let zrwa = found.iter().filter(|found| found.row.system == "zrwa");
        let values: Vec<(String, u64, f64)> = zrwa
            .map(|found| {
                let row = &found.row;
                (row.load.unwrap_or_default().to_string(), row.used_percent.unwrap_or_default(), value(found))
            })
            .collect();
        Plot::through(name, "used, % of what there is room for", y, &values)
    };
    figure.plots.push(lines("Throughput of overwriting", "MB/s", |found| found.row.mb_s));
    figure.plots.push(lines("99th percentile of overwriting", "µs", |found| found.row.p99_us));
    figure.plots.push(lines("Blocks written for each of the user's", "blocks", |found| found.amplification));
    map(this, effort, &mut figure)?;
    figure.rows = found.into_iter().map(|found| found.row).collect();
    Ok(figure)
}

/// The loss of throughput if only part of the map is in memory.
fn map(this: &Experiment, effort: Effort, figure: &mut Figure) -> Result<()> {
    let budgets: &[Option<usize>] = match effort {
        Effort::Quick => &[None, Some(1000)],
        Effort::Full => &[None, Some(3000), Some(1500), Some(1000), Some(800)],
    };
    let found = work::each(this.name, budgets, paged)?;
    let header = ["pages", "reads, MB/s", "hits", "writes, MB/s", "hits", "pages written a block"];
    let mut table = Table::new("A map in memory as a whole, and in part", &header);
    for (pages, found) in budgets.iter().zip(&found) {
        let mut cells = vec![pages.map_or("all".to_string(), |pages| pages.to_string())];
        cells.extend([
            format!("{:.0}", found.read_mb_s),
            format!("{:.3}", found.read_hits),
            format!("{:.0}", found.write_mb_s),
            format!("{:.3}", found.write_hits),
            format!("{:.3}", found.map),
        ]);
        table.rows.push(cells);
    }
    figure.tables.push(table);
    // The smallest budget that still has a hit rate of 95 %.
    let part = found.iter().rev().find(|found| found.read_hits.min(found.write_hits) >= 0.95);
    if let (Some(all), Some(part)) = (found.first(), part) {
        for (what, of) in
            [("reads", part.read_mb_s / all.read_mb_s), ("writes", part.write_mb_s / all.write_mb_s)]
        {
            let what = format!("{what} of which 95 % find their page, to all in memory");
            figure.claims.push(Claim::at_least(what, 0.95, of, "").is(ClaimKind::Goal));
        }
    }
    Ok(())
}
