//! Arrays on compressing drives: the capacity efficiency that parity leaves, by policy.

use super::{
    Effort, Experiment,
    braid::{SOURCES, SYSTEMS},
};
use crate::{
    datasets::{self, Dataset},
    figure::{Figure, Plot, Row, Table},
    system::System,
    test_bed::{Setup, TestBed},
    work,
};
use emu::ssd::{
    Model,
    compress::{PAGE, Scheme, compress},
};
use engine::{
    buf::{BLOCK, Buf},
    device::{Command, Completion, DeviceError, Zones},
    zone::{Lba, ZoneIndex},
};
use std::{collections::VecDeque, ops::Range};

pub const BRAID_ARRAY: Experiment =
    Experiment { name: "braid-array", title: "Compression in the drive: arrays", run: braid_array };

const METHOD: &str = "Five ZN540 with zones of 8 MiB, RAID-5 with chunks of 64 KiB, on drives that compress or not. A data \
set is written to four zones of the array at once until they are full, each zone from another place of the set on, with \
requests of 64 KiB (4 KiB, too, for the executable), 32 of which are on their way in each zone; the host costs nothing. \
Capacity efficiency is bytes of data for each byte of flash that these zones take when they have been finished: 0.8 \
without compression, since a fifth is parity. Logs of partial parity are beside them and do not count. Throughput is \
measured once a quarter has been written, since ZRWAs and buffers hold the first of it.

There is no published figure to compare it with.";

/// The policies, each by a system that uses it.
const POLICIES: [(&str, System); 3] =
    [("zrwa", System::Zoneraid), ("inplace", System::Zebra), ("log", System::RaiznPlus)];

/// The set that is also written with small requests.
const SMALL_TOO: &str = "executable (LLVM)";

/// Members, and blocks of a zone of each.
const MEMBERS: usize = 5;
const ZONE_BLOCKS: u64 = 2048;
/// Bytes of a chunk.
const CHUNK: usize = 64 << 10;
/// Zones of the array that are written at once, and requests in flight in each.
const ZONES: u32 = 4;
const DEPTH: usize = 32;

/// Parameters of a run.
struct RunParameters<'s> {
    set: &'s Dataset,
    policy: usize,
    scheme: usize,
    request_kib: u64,
}

/// Results of a run.
struct RunResult {
    efficiency: f64,
    mb_s: f64,
}

fn braid_array(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let sources = if effort == Effort::Quick { &SOURCES[..1] } else { SOURCES };
    let sets = datasets::all(sources)?;
    let mut points = Vec::new();
    for set in &sets.found {
        let sizes: &[u64] = if set.name == SMALL_TOO { &[4, 64] } else { &[64] };
        for (policy, scheme) in (0..POLICIES.len()).flat_map(|p| (0..SYSTEMS.len()).map(move |s| (p, s))) {
            points.extend(sizes.iter().map(|size| RunParameters { set, policy, scheme, request_kib: *size }));
        }
    }
    let found = work::each("arrays", &points, measure)?;
    let mut figure = this.figure(METHOD);
    figure.rows = points.iter().zip(&found).map(|(point, found)| row(point, found)).collect();
    if !sets.found.is_empty() {
        figure.tables.push(table(&sets.found, &points, &found));
        figure.plots.extend((0..POLICIES.len()).map(|policy| plot(policy, &sets.found, &points, &found)));
    }
    figure.not_measured(sets.missing);
    Ok(figure)
}

fn row(point: &RunParameters<'_>, found: &RunResult) -> Row {
    Row {
        system: format!("{} on {}", POLICIES[point.policy].0, SYSTEMS[point.scheme].0),
        host: "free".into(),
        zones: ZONES,
        request_kib: point.request_kib,
        depth: DEPTH as u32,
        mb_s: found.mb_s,
        dataset: Some(point.set.name.clone()),
        capacity_efficiency: Some(found.efficiency),
        ..Row::default()
    }
}

fn measure(point: &RunParameters<'_>) -> anyhow::Result<RunResult> {
    let setup = Setup::zn540(POLICIES[point.policy].1);
    let bed = TestBed::new(&Setup {
        model: Model::zn540().scaled(16, ZONE_BLOCKS),
        members: MEMBERS,
        stores: true,
        compression: Some(SYSTEMS[point.scheme].1).filter(|scheme| *scheme != Scheme::Base),
        request_kib: point.request_kib,
        ..setup
    })?;
    let capacity = bed.array.geometry().zone_capacity_blocks;
    let request = point.request_kib * 1024 / BLOCK as u64;
    let mb_s = bed.run(async {
        fill(&bed, &point.set.bytes, 0..capacity / 4, request).await?;
        let (from, begun_ns) = (capacity / 4, bed.clock.now_ns());
        fill(&bed, &point.set.bytes, from..capacity, request).await?;
        let took_s = (bed.clock.now_ns() - begun_ns) as f64 / 1e9;
        for zone in 0..ZONES {
            let zones = Zones::One(ZoneIndex(zone));
            bed.array.submit(Command::Finish { zones }).await.result?;
        }
        Ok::<_, DeviceError>((ZONES as u64 * (capacity - from) * BLOCK as u64) as f64 / 1e6 / took_s)
    })??;
    let efficiency = (ZONES as u64 * capacity) as f64 / bed.flash_blocks(ZONES) as f64;
    Ok(RunResult { efficiency, mb_s })
}

/// Writes a part of each zone, in turns; each begins at another place of the set.
async fn fill(bed: &TestBed, set: &[u8], part: Range<u64>, request_blocks: u64) -> Result<(), DeviceError> {
    let blocks = (set.len() / BLOCK) as u64;
    let data = Buf::copy_of(&set[..blocks as usize * BLOCK]);
    let (array, mut waiting) = (&bed.array, VecDeque::<Completion>::new());
    let place = |zone: u32, at: u64| (zone as u64 * blocks / ZONES as u64 + at) % blocks;
    let mut at = part.start;
    while at < part.end {
        // A request ends at the end of the set or of its zone.
        let rest = (0..ZONES).map(|zone| blocks - place(zone, at)).fold(part.end - at, u64::min);
        let size = request_blocks.min(rest);
        for zone in 0..ZONES {
            if waiting.len() >= ZONES as usize * DEPTH
                && let Some(oldest) = waiting.pop_front()
            {
                oldest.await.result?;
            }
            let lba = Lba(array.geometry().start(ZoneIndex(zone)).0 + at);
            let from = place(zone, at);
            let write = Command::write(lba, data.slice_blocks(from..from + size), false);
            waiting.push_back(array.submit(write));
        }
        at += size;
    }
    for completion in waiting {
        completion.await.result?;
    }
    Ok(())
}

/// The compression ratios of a set, and of the parity of its chunks.
fn ratios(set: &Dataset) -> (f64, f64) {
    let of = |bytes: &[u8]| {
        let stored: usize = bytes.chunks_exact(PAGE).map(|page| compress(page).len()).sum();
        bytes.len() as f64 / stored.max(1) as f64
    };
    let stripe = CHUNK * (MEMBERS - 1);
    let whole = &set.bytes[..set.bytes.len() / stripe * stripe];
    let mut parity = Vec::new();
    for stripe in whole.chunks_exact(stripe) {
        let mut sum = vec![0; CHUNK];
        for chunk in stripe.chunks_exact(CHUNK) {
            sum.iter_mut().zip(chunk).for_each(|(sum, byte)| *sum ^= byte);
        }
        parity.extend(sum);
    }
    (of(whole), of(&parity))
}

/// The result for a set, a policy and a scheme, with the largest requests.
fn of<'f>(
    (set, policy, scheme): (&str, usize, usize),
    points: &[RunParameters<'_>],
    found: &'f [RunResult],
) -> Option<&'f RunResult> {
    let fits =
        |point: &RunParameters<'_>| point.set.name == set && (point.policy, point.scheme) == (policy, scheme);
    points.iter().zip(found).filter(|(point, _)| fits(point)).map(|(_, found)| found).next_back()
}

fn table(sets: &[Dataset], points: &[RunParameters<'_>], found: &[RunResult]) -> Table {
    let mut header = vec!["data set".to_string(), "ratio".into(), "ratio of its parity".into()];
    let columns: Vec<(usize, usize)> = (0..POLICIES.len())
        .flat_map(|policy| (0..SYSTEMS.len()).map(move |scheme| (policy, scheme)))
        .collect();
    header.extend(columns.iter().map(|(p, s)| format!("{} on {}", POLICIES[*p].0, SYSTEMS[*s].0)));
    let title = "Bytes of data a byte of flash, and MB/s, with 64 KiB".to_string();
    let mut table = Table { title, header, ..Table::default() };
    for set in sets {
        let (ratio, parity) = ratios(set);
        let mut cells = vec![set.name.clone(), format!("{ratio:.2}"), format!("{parity:.2}")];
        cells.extend(columns.iter().map(|(policy, scheme)| {
            let found = of((&set.name, *policy, *scheme), points, found);
            found.map_or(String::new(), |found| format!("{:.2}; {:.0}", found.efficiency, found.mb_s))
        }));
        table.rows.push(cells);
    }
    table
}

fn plot(policy: usize, sets: &[Dataset], points: &[RunParameters<'_>], found: &[RunResult]) -> Plot {
    let places: Vec<&str> = sets.iter().map(|set| set.name.as_str()).collect();
    let line = |scheme: usize| {
        let value =
            |set: &Dataset| of((&set.name, policy, scheme), points, found).map_or(f64::NAN, |f| f.efficiency);
        (SYSTEMS[scheme].0.to_string(), sets.iter().map(value).collect())
    };
    let title = format!("Capacity efficiency of an array, {}", POLICIES[policy].0);
    Plot::named(title, "bytes a byte of flash", &places, (0..SYSTEMS.len()).map(line).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use emu::rng::Rng;

    /// Chunks with noise in a fifth of each page, at the same offset in all chunks or at different ones.
    fn set(shifted: bool) -> Dataset {
        let (mut noise, mut bytes) = (Rng::new(1), vec![0; 2 * CHUNK * (MEMBERS - 1)]);
        for (number, page) in bytes.chunks_mut(PAGE).enumerate() {
            let quarter = if shifted { number / (CHUNK / PAGE) % 4 } else { 0 };
            noise.fill(&mut page[PAGE / 4 * quarter..][..PAGE / 5]);
        }
        Dataset { name: "made".into(), origin: String::new(), bytes }
    }

    #[test]
    fn parity_compresses_only_if_chunks_are_alike() {
        let ((data, alike), (_, shifted)) = (ratios(&set(false)), ratios(&set(true)));
        assert!(data > 4.5 && (alike / data - 1.0).abs() < 0.02, "{data} {alike}");
        assert!(shifted < 1.3, "{shifted}");
    }

    #[test]
    fn array_parity_takes_fifth_and_compresses_like_data() {
        let set = set(false);
        let efficiency = |policy, scheme| {
            measure(&RunParameters { set: &set, policy, scheme, request_kib: 64 }).unwrap().efficiency
        };
        for (policy, (name, _)) in POLICIES.iter().enumerate() {
            let (base, braid) = (efficiency(policy, 0), efficiency(policy, 2));
            assert!((0.75..=0.8).contains(&base), "{name}: {base}");
            assert!((3.0..=4.0 * 0.8).contains(&braid), "{name}: {braid}");
        }
    }
}
