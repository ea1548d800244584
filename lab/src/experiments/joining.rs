//! Whether joining writes ever loses to separate partial parity: over depths, numbers of drives, pauses.

use super::{Effort, Experiment};
use crate::{
    figure::{Claim, ClaimKind, Figure, Plot, Row, Table},
    load::Window,
    system::System,
    test_bed::{Load, Setup, point},
    work,
};

pub const JOINING: Experiment = Experiment {
    name: "joining",
    title: "zoneraid beside ZRAID over depths, drives and think time",
    run: joining,
};

const METHOD: &str = "ZN540 of 1 TB, RAID-5, chunk 64 KiB: 4 KiB writes to 3 to 32 drives, and 16, 32 and 64 KiB in one \
zone of five; zones, and requests on their way in each, most of them no multiples of a stripe; without pauses, or with \
random ones of 10 or 30 µs on average after each request; 17 ms are measured, and up to 37 while their halves differ \
by more than 1 %. Of 32 drives with seven zones every other number of requests is measured. Not in the papers. The host \
costs nothing, so that nothing hides what joining loses: waiting is a bet on what follows, and with pauses what follows \
may come too late. Joining must not lose, and it shall win where many are on their way. From what load on the engine waits \
was chosen among twenty bounds by these very loads, so that they are no test of it.";

const PLANS: &str = "What is joined is one plan, whose writes are as late as the last of them.";

/// The parameters besides depth.
#[derive(Clone, Copy, PartialEq)]
struct Group {
    drives: usize,
    zones: u32,
    kib: u64,
    pause_us: u64,
}

impl Group {
    fn of(row: &Row) -> Group {
        Group {
            drives: row.drives.unwrap_or_default(),
            zones: row.zones,
            kib: row.request_kib,
            pause_us: row.pause_us.unwrap_or_default(),
        }
    }
}

/// A load on both systems: ZRAID's row, and ours.
type Pair = [Row; 2];

fn ratio([zraid, ours]: &Pair) -> f64 {
    ours.mb_s / zraid.mb_s
}

/// Error bound of the ratio, from the spread over seeds.
fn spread([zraid, ours]: &Pair) -> f64 {
    (zraid.spread + ours.spread) / 2.0
}

fn joining(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let (drives, zones, depths, pauses): (&[usize], &[u32], &[u32], &[u64]) = match effort {
        Effort::Quick => (&[5], &[1], &[1, 3, 24], &[0, 10]),
        Effort::Full => (&[3, 5, 32], &[1, 7], &[1, 2, 3, 4, 6, 8, 12, 24, 48, 100], &[0, 10, 30]),
    };
    let mut groups = Vec::new();
    for pause_us in pauses.iter().copied() {
        for drives in drives.iter().copied() {
            groups.extend(zones.iter().map(|zones| Group { drives, zones: *zones, kib: 4, pause_us }));
        }
        groups.extend([16, 32, 64].map(|kib| Group { drives: 5, zones: 1, kib, pause_us }));
    }
    // These would take nearly half of the total time.
    let depths_of =
        |group: &Group| depths.iter().step_by(if (group.drives, group.zones) == (32, 7) { 2 } else { 1 });
    let loads: Vec<(Group, u32)> =
        groups.iter().flat_map(|group| depths_of(group).map(|depth| (*group, *depth))).collect();
    let pairs: Vec<Pair> = work::each(this.name, &loads, |(group, depth)| {
        let (pause_us, window) = (group.pause_us, Window::steady(8, 25, 45));
        let load = Load { depth: *depth, pause_us, window, ..Load::fio(group.zones, group.kib) };
        let of = |system| -> anyhow::Result<Row> {
            let row = point(&Setup { members: group.drives, ..Setup::zn540(system) }, &load)?;
            Ok(Row { drives: Some(group.drives), pause_us: Some(group.pause_us), ..row })
        };
        Ok([of(System::Zraid)?, of(System::Zoneraid)?])
    })?;
    let mut figure = this.figure(METHOD);
    for pause_us in pauses {
        figure.plots.push(plot(&pairs, *pause_us));
        figure.claims.extend(claims(&pairs, *pause_us));
    }
    figure.tables.push(table(&pairs, &groups, depths));
    figure.rows = pairs.into_iter().flatten().collect();
    Ok(figure)
}

/// The smallest ratio, and the smallest at large depths.
fn claims(pairs: &[Pair], pause_us: u64) -> [Claim; 2] {
    let these = || pairs.iter().filter(move |pair| pair[0].pause_us == Some(pause_us));
    let least = these().min_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let (worst, place) = least.map_or((f64::NAN, String::new()), |pair| {
        let row = &pair[0];
        let drives = row.drives.unwrap_or_default();
        let place = format!(
            "It is least with {drives} drives, zones: {}, requests of {} KiB: {}; seeds differ by {:.1} %. {PLANS}",
            row.zones,
            row.request_kib,
            row.depth,
            100.0 * spread(pair)
        );
        (ratio(pair), place)
    });
    let many = these().filter(|pair| pair[0].depth >= 24).map(ratio);
    let many = many.fold(f64::MAX, f64::min);
    [
        Claim::at_least(format!("zoneraid to ZRAID, pauses of {pause_us} µs, the least"), 1.0, worst, place)
            .is(ClaimKind::Goal),
        Claim::at_least(
            format!("zoneraid to ZRAID, pauses of {pause_us} µs, the least with 24 requests a zone or more"),
            1.0,
            many,
            "",
        )
        .is(ClaimKind::Goal),
    ]
}

fn table(pairs: &[Pair], groups: &[Group], depths: &[u32]) -> Table {
    let mut header =
        vec!["drives, zones, KiB, pause µs".to_string(), "least".into(), "± % over seeds".into()];
    header.extend(depths.iter().map(|depth| format!("QD{depth}")));
    let mut table = Table { title: "zoneraid to ZRAID, throughput".into(), header, rows: Vec::new() };
    for group in groups {
        let of_group: Vec<&Pair> = pairs.iter().filter(|pair| Group::of(&pair[0]) == *group).collect();
        let least = of_group.iter().map(|pair| ratio(pair)).fold(f64::MAX, f64::min);
        let off = of_group.iter().map(|pair| spread(pair)).fold(0.0, f64::max);
        let Group { drives, zones, kib, pause_us } = group;
        let mut cells = vec![format!("{drives}, {zones}, {kib}, {pause_us}")];
        cells.extend([format!("{least:.2}"), format!("{:.1}", 100.0 * off)]);
        cells.extend(depths.iter().map(|depth| {
            let pair = of_group.iter().find(|pair| pair[0].depth == *depth);
            pair.map_or(String::new(), |pair| format!("{:.2}", ratio(pair)))
        }));
        table.rows.push(cells);
    }
    table
}

fn plot(pairs: &[Pair], pause_us: u64) -> Plot {
    let shown = |pair: &&Pair| pair[0].pause_us == Some(pause_us) && pair[0].zones == 1;
    let values: Vec<(String, u64, f64)> = pairs
        .iter()
        .filter(shown)
        .map(|pair| {
            let Group { drives, kib, .. } = Group::of(&pair[0]);
            (format!("{drives} drives, {kib} KiB"), pair[0].depth.into(), ratio(pair))
        })
        .collect();
    let title = format!("zoneraid to ZRAID, one zone, pauses of {pause_us} µs");
    Plot::through(title, "requests on their way", "×", &values).limit("as fast as ZRAID", 1.0)
}
