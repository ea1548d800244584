//! Reads of compressing drives (Braid-ZNS Fig. 4b, without its writes).

use super::{
    Effort, Experiment,
    braid::{SOURCES, SYSTEMS},
};
use crate::{
    datasets::Dataset,
    figure::{Claim, ClaimKind, Figure, Plot, Row},
    work,
};
use anyhow::Context;
use emu::{
    clock::Clock,
    rng::Rng,
    ssd::{
        Model, Ssd, TimedDrive,
        compress::{CompressedMedia, PAGE, Scheme},
    },
    timing::Timing,
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Geometry, ZonedDevice},
    runtime::Runtime,
    zone::Lba,
};
use std::{cell::RefCell, collections::VecDeque, rc::Rc};

pub const BRAID_READS: Experiment = Experiment {
    name: "braid-reads",
    title: "Compression in the drive: reads (Braid-ZNS Fig. 4b)",
    run: braid_reads,
};

const METHOD: &str = "A data set is written to zones of 4 MiB of an emulated PM1731a, one after the other, and read by one \
job, in order or at random places, a number of requests deep. Base is the drive without compression. A request that is answered before an older one waits for it to be followed by the next. The data set is an \
executable, of medium ratio and sparse sizes, as the paper's mozilla is; Balloon has the slots that take the least \
space. The paper's drive is FEMU's, whose times it does not say: a figure of it is a shape here and no more.";

/// The set that is read: medium ratio, sparse sizes.
const SET: &str = "executable (LLVM)";

/// Blocks of a zone.
const ZONE_BLOCKS: u64 = 1024;

/// Parameters of a run.
#[derive(Clone, Copy)]
struct ReadParameters {
    system: &'static str,
    scheme: Scheme,
    sequential: bool,
    request_blocks: u64,
    depth: u32,
    /// Decompression time of a page.
    expand_us: f64,
}

fn braid_reads(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let source = SOURCES.iter().find(|source| source.name == SET).context("there is no such data set")?;
    let mut figure = this.figure(METHOD);
    let set = match source.dataset() {
        Ok(set) => set,
        Err(error) => {
            figure.not_measured(vec![(SET.into(), format!("{error:#}"))]);
            return Ok(figure);
        }
    };
    let (sizes, depths): (&[u64], &[u32]) = match effort {
        Effort::Quick => (&[16], &[8]),
        Effort::Full => (&[1, 4, 16, 64], &[1, 8, 32]),
    };
    let mut points = Vec::new();
    for sequential in [true, false] {
        for (system, scheme) in SYSTEMS {
            for (request_blocks, depth) in sizes.iter().flat_map(|size| depths.iter().map(|d| (*size, *d))) {
                for expand_us in [Timing::pm1731a().expand_us, 0.0] {
                    points.push(ReadParameters {
                        system,
                        scheme,
                        sequential,
                        request_blocks,
                        depth,
                        expand_us,
                    });
                }
            }
        }
    }
    let speeds = work::each("reads", &points, |point| mb_s(&set, point))?;
    let found: Vec<(ReadParameters, f64)> = points.into_iter().zip(speeds).collect();
    figure.rows = found.iter().filter(|(point, _)| point.expand_us > 0.0).map(row).collect();
    figure.plots.extend(plots(&found));
    figure.claims.push(claim(&found));
    Ok(figure)
}

fn row((point, mb_s): &(ReadParameters, f64)) -> Row {
    Row {
        system: point.system.into(),
        host: "free".into(),
        zones: 1,
        request_kib: point.request_blocks * BLOCK as u64 / 1024,
        depth: point.depth,
        mb_s: *mb_s,
        dataset: Some(format!("{SET}, {}", order(point.sequential))),
        ..Row::default()
    }
}

fn order(sequential: bool) -> &'static str {
    if sequential { "sequential" } else { "random" }
}

/// A drive with the set on it, and its number of blocks.
fn written(set: &Dataset, point: &ReadParameters, clock: &Clock) -> anyhow::Result<(TimedDrive, u64)> {
    let blocks = (set.bytes.len() / PAGE * PAGE / BLOCK) as u64;
    let zones = blocks.div_ceil(ZONE_BLOCKS) as u32;
    let geometry: Geometry = Model::pm1731a().scaled(zones, ZONE_BLOCKS).geometry;
    let mut ssd = match point.scheme {
        Scheme::Base => Ssd::in_memory(&geometry),
        scheme => Ssd::new(geometry.clone(), Box::new(CompressedMedia::new(&geometry, scheme))),
    };
    for (n, piece) in set.bytes[..blocks as usize * BLOCK].chunks(16 * BLOCK).enumerate() {
        ssd.execute(Command::write(Lba(n as u64 * 16), Buf::copy_of(piece), false)).result?;
    }
    let timing = Timing { expand_us: point.expand_us, ..Timing::pm1731a() };
    Ok((TimedDrive::new(Rc::new(RefCell::new(ssd)), &timing, clock, Some(1)), blocks))
}

/// Throughput of a point: with at least four times the requests of a zone.
fn mb_s(set: &Dataset, point: &ReadParameters) -> anyhow::Result<f64> {
    let clock = Clock::new();
    let (drive, blocks) = written(set, point, &clock)?;
    let (places, mut rng) = (blocks / point.request_blocks, Rng::new(7));
    let requests = (4 * ZONE_BLOCKS / point.request_blocks).max(4 * point.depth as u64);
    let job = async {
        let mut waiting: VecDeque<Completion> = VecDeque::new();
        for number in 0..requests {
            if waiting.len() == point.depth as usize
                && let Some(oldest) = waiting.pop_front()
            {
                oldest.await.result?;
            }
            let place = if point.sequential { number % places } else { rng.below(places) };
            let data = Buf::zeroed(point.request_blocks as usize * BLOCK);
            waiting.push_back(drive.submit(Command::read(Lba(place * point.request_blocks), data)));
        }
        for completion in waiting {
            completion.await.result?;
        }
        Ok::<_, DeviceError>(())
    };
    Runtime::new().block_on(job, || clock.advance()).context("the reads never end")??;
    let bytes = requests * point.request_blocks * BLOCK as u64;
    Ok(bytes as f64 / 1e6 / (clock.now_ns() as f64 / 1e9))
}

/// Ratios of Braid to Balloon with otherwise equal parameters, each with Braid's point.
fn gains(found: &[(ReadParameters, f64)]) -> Vec<(ReadParameters, f64)> {
    let key = |p: &ReadParameters| (p.sequential, p.request_blocks, p.depth, p.expand_us > 0.0);
    let of = |system: &'static str| found.iter().filter(move |(point, _)| point.system == system);
    let gain = |(point, mb_s): &(ReadParameters, f64)| {
        let other = of("balloon").find(|(other, _)| key(other) == key(point))?;
        Some((*point, mb_s / other.1))
    };
    of("braid").filter_map(gain).collect()
}

fn claim(found: &[(ReadParameters, f64)]) -> Claim {
    let best = |idealised: bool| {
        let gains = gains(found);
        let sequential = gains.iter().filter(|(p, _)| p.sequential && (p.expand_us == 0.0) == idealised);
        sequential.map(|(_, gain)| *gain).fold(0.0, f64::max)
    };
    let why = format!(
        "It goes with how many pages Balloon truncates, which its slots decide (see braid), and with the drive. With \
         engines that take no time it is {:.2}.",
        best(true)
    );
    Claim::factor("sequential reads, Braid to Balloon, at best", 2.24, best(false), why).is(ClaimKind::Guess)
}

fn plots(found: &[(ReadParameters, f64)]) -> Vec<Plot> {
    let mut depths: Vec<u32> = found.iter().map(|(point, _)| point.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let plot = |sequential: bool, depth: u32| {
        let shown = found.iter().filter(|(p, _)| p.sequential == sequential && p.depth == depth);
        let values: Vec<(String, u64, f64)> = shown
            .filter(|(point, _)| point.expand_us > 0.0)
            .map(|(p, mb_s)| (p.system.to_string(), p.request_blocks * BLOCK as u64 / 1024, *mb_s))
            .collect();
        let title = format!("{} reads, {depth} deep", order(sequential));
        Plot::through(title, "request, KiB", "MB/s", &values)
    };
    [true, false]
        .into_iter()
        .flat_map(|s| depths.iter().map(move |d| (s, *d)))
        .map(|(s, d)| plot(s, d))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Braid reads fewer flash pages than Base, and none twice.
    #[test]
    fn braid_reads_faster_than_base_and_balloon() {
        let (mut noise, mut bytes) = (Rng::new(1), vec![0; 256 * PAGE]);
        for (number, page) in bytes.chunks_mut(PAGE).enumerate() {
            noise.fill(&mut page[..PAGE / 16 * if number % 4 == 0 { 7 } else { 3 }]);
        }
        let set = Dataset { name: "made".into(), origin: String::new(), bytes };
        let mb_s = |system: usize, request_blocks| {
            let (system, scheme) = SYSTEMS[system];
            let (sequential, depth, expand_us) = (true, 1, 7.0);
            super::mb_s(
                &set,
                &ReadParameters { system, scheme, sequential, request_blocks, depth, expand_us },
            )
            .unwrap()
        };
        let (base, braid) = (mb_s(0, 16), mb_s(2, 16));
        assert!(braid > 1.3 * base, "{braid} {base}");
        let (balloon, braid) = (mb_s(1, 4), mb_s(2, 4));
        assert!(braid > 1.1 * balloon, "{braid} {balloon}");
        let gains = gains(&[(point("balloon"), 100.0), (point("braid"), 150.0), (point("base"), 1.0)]);
        assert_eq!(gains.iter().map(|(_, gain)| *gain).collect::<Vec<_>>(), [1.5]);
    }

    fn point(system: &'static str) -> ReadParameters {
        let (sequential, request_blocks, depth, expand_us) = (true, 4, 1, 7.0);
        ReadParameters { system, scheme: Scheme::Base, sequential, request_blocks, depth, expand_us }
    }
}
