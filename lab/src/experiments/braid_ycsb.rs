//! YCSB on compressing drives (Braid-ZNS Fig. 4c and 4d), with a model of RocksDB.

use super::{
    Effort, Experiment,
    braid::{SOURCES, SYSTEMS},
    ycsb::{operations, row},
};
use crate::{
    apps::ycsb::{self, ClientResult, Options, Workload},
    datasets::Dataset,
    figure::{Claim, ClaimKind, Figure, Plot, Row},
    work,
};
use emu::{
    clock::Clock,
    ssd::{
        Media, Model, NoMedia, Ssd, TimedDrive,
        compress::{CompressedMedia, PAGE, Scheme, Slots},
    },
    timing::Timing,
};
use engine::{device::ZonedDevice, runtime::Runtime};
use std::{cell::RefCell, rc::Rc};

pub const BRAID_YCSB: Experiment = Experiment {
    name: "braid-ycsb",
    title: "Compression in the drive: YCSB, by a stand-in (Braid-ZNS Fig. 4c, 4d)",
    run: braid_ycsb,
};

const METHOD: &str = "The stand-in for RocksDB of the experiment ycsb, alone on a drive, over its six \
workloads; files and logs hold the bytes of a data set, over and over. Base is the drive without compression, \
Balloon has the slots that take the least space. The paper says neither how many records, nor how many \
clients, nor FEMU's times. Guesses: a ZN540, whose zones lie on all dies as FEMU's do; 10 million records of 1 \
KiB, eight clients. Everything is a 64th of what it is there, and a level has at most 32 MiB on the drive. The \
data sets are an executable (MS, as mozilla) and a list of words (MD, as webster).";

/// The paper's sets, the ones used here, and the mean gain of Braid over Balloon.
const SETS: [(&str, &str, f64); 2] =
    [("MS_mozilla", "executable (LLVM)", 1.187), ("MD_webster", "words (American)", 1.06)];

/// Balloon with slots that 90 % of the units fit in.
const FITTING: (&str, Scheme) = ("balloon, 90 % fit", Scheme::Balloon(Slots::Fitting(90)));

/// Scale of all sizes relative to RocksDB.
const SCALE: u64 = 64;
const CLIENTS: u32 = 8;
/// Warm-up of the clients, in ms.
const WARM_MS: u64 = 100;
/// Blocks of a zone.
const ZONE_BLOCKS: u64 = 2048;

fn options(workload: Workload) -> Options {
    let (records, most_blocks) = (10_000_000 / SCALE, 8192);
    Options { workload, scale: SCALE, records, most_blocks, threads: CLIENTS, filters: false }
}

fn measure(set: &Dataset, scheme: Scheme, workload: Workload, ms: u64) -> anyhow::Result<Row> {
    let (clock, runtime, options) = (Clock::new(), Runtime::new(), options(workload));
    let geometry = Model::zn540().scaled(options.zones_in_all(ZONE_BLOCKS), ZONE_BLOCKS).geometry;
    // A drive that does not compress needs no data, only its timing.
    let media: Box<dyn Media> = match scheme {
        Scheme::Base => Box::new(NoMedia::new(&geometry)),
        scheme => Box::new(CompressedMedia::new(&geometry, scheme)),
    };
    let ssd = Rc::new(RefCell::new(Ssd::new(geometry, media)));
    let drive: Rc<dyn ZonedDevice> = Rc::new(TimedDrive::new(ssd, &Timing::zn540(), &clock, Some(1)));
    let bytes = &set.bytes[..set.bytes.len() / PAGE * PAGE];
    let ran: Vec<ClientResult> = ycsb::run((&clock, &runtime), &[(drive, options)], (WARM_MS, ms), bytes)?;
    Ok(row(workload, &ran.iter().collect::<Vec<_>>(), ms))
}

/// Mean ratio of Braid's operations to those of another system, over these workloads.
fn gain(rows: &[Row], other: &str, workloads: &[Workload]) -> f64 {
    let speed = |system: &str, workload: &Workload| {
        let of = |row: &&Row| row.system == system && row.load == Some(workload.name());
        rows.iter().find(of).map_or(f64::NAN, |row| row.mb_s)
    };
    let ratios = workloads.iter().map(|workload| speed("braid", workload) / speed(other, workload));
    ratios.sum::<f64>() / workloads.len() as f64
}

fn claims(rows: &[Row], (named, _, paper): &(&str, &str, f64)) -> Vec<Claim> {
    let claim = |what: &str, paper: f64, workloads: &[Workload]| {
        let why = format!(
            "It goes with how many pages Balloon truncates, which its slots decide (see braid), and with how much of \
             an operation is the drive's. Over Balloon with slots that 90 of 100 units fit in it is {:.2}, over Base \
             {:.2}.",
            gain(rows, FITTING.0, workloads),
            gain(rows, "base", workloads)
        );
        let what = format!("{named}: {what}, Braid to Balloon");
        Claim::factor(what, paper, gain(rows, "balloon", workloads), why).is(ClaimKind::Guess)
    };
    let mut claims = vec![claim("mean of six workloads", *paper, &Workload::ALL)];
    if *named == SETS[0].0 {
        claims.push(claim("mean of D and E", 1.272, &[Workload::D, Workload::E]));
    }
    claims
}

fn plot(rows: &[Row], named: &str) -> Plot {
    let line = |(system, _): (&str, Scheme)| {
        let own = rows.iter().filter(|row| row.system == system);
        (system.to_string(), own.filter_map(|row| Some(row.operations.as_ref()?.operations_s)).collect())
    };
    let places: Vec<&str> = Workload::ALL.iter().map(|workload| workload.name()).collect();
    Plot::named(
        format!("YCSB, {named}"),
        "operations/s",
        &places,
        SYSTEMS.into_iter().chain([FITTING]).map(line).collect(),
    )
}

fn braid_ycsb(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let (ms, sets) = if effort == Effort::Quick { (20, &SETS[..1]) } else { (200, &SETS[..]) };
    let (mut figure, mut missing) = (this.figure(METHOD), Vec::new());
    for set in sets {
        let Some(source) = SOURCES.iter().find(|source| source.name == set.1) else { continue };
        let data = match source.dataset() {
            Ok(data) => data,
            Err(error) => {
                missing.push((set.1.into(), format!("{error:#}")));
                continue;
            }
        };
        let of = |system: (&'static str, Scheme)| Workload::ALL.map(|workload| (system, workload));
        let points: Vec<_> = SYSTEMS.into_iter().chain([FITTING]).flat_map(of).collect();
        let rows = work::each(this.name, &points, |((system, scheme), workload)| {
            let row = measure(&data, *scheme, *workload, ms)?;
            let dataset = Some(set.1.into());
            anyhow::Ok(Row { system: system.to_string(), request_kib: 8, depth: CLIENTS, dataset, ..row })
        })?;
        figure.claims.extend(claims(&rows, set));
        figure.plots.push(plot(&rows, set.1));
        figure.rows.extend(rows);
    }
    figure.tables.push(operations("Operations, and latencies of reads", &figure.rows));
    figure.not_measured(missing);
    Ok(figure)
}
