//! ZapRAID's evaluation, as far as writes are concerned: random writes on a volume over arrays of each policy.

use super::{Effort, Experiment, KERNEL};
use crate::{
    figure::{
        Claim,
        ClaimKind::{Construction, Goal},
        Figure, Plot, Row, Table,
    },
    host::Host,
    load::{self, Job, RequestKind, Window},
    stream::Stream,
    system::System,
    test_bed::{Load, Setup, TestBed, point},
    work,
};
use emu::{ssd::Model, timing::Timing};
use engine::buf::BLOCK;

pub const ZAPRAID: Experiment = Experiment {
    name: "zapraid",
    title: "Random writes on a volume: zone append in groups beside other policies (ZapRAID Exp#1)",
    run: zapraid,
};

const METHOD: &str = "Four ZN540 of 4 TB, (3 + 1); random 4 KiB writes on a volume of 4 GiB, of which nothing is collected \
meanwhile, 16 requests deep unless a row says otherwise; the volume writes to one zone of the array. append-gG: \
policy append with groups of G blocks; g1 is one write at a time in each zone of a drive, without the scheduler's \
merging, all the zone as one group. Chunks of 8 KiB with append, the smallest there are (ZapRAID: 4 KiB), 64 KiB with the others; the second \
table has all with 64 KiB. ZapRAID answers when a stripe is full; here partial stripes have partial parity in the metadata \
logs, so that there is a command more than ZapRAID has. Hosts: mq-deadline is the kernel, where zones that are written in \
order have a lock and appends none; spdk one thread as ZapRAID's. Reads (Exp#2): a zone is filled, the array is assembled \
again with all drives or without one, and 4 KiB are read one at a time at random places, on a host that costs nothing; a \
quarter of them is of the lost drive. A rebuild (Exp#3) is measured with 0.75 and 1.5 GiB in zones of 64 MiB a drive; \
more data takes as much longer. Nothing was fitted to these figures.";

const SPDK: &str = "spdk";
const LOCKED: &str = "Not the paper's host, which is SPDK: here a lock keeps writes of a zone in order, and appends have none.";
const WHY: &str = "The volume joins writes that wait into groups, and the array joins what the volume hands in: few and larger \
writes are on their way, where ZapRAID's zone write has one of 4 KiB at a time.";

/// Blocks of the volume.
const VOLUME_BLOCKS: u64 = 1 << 20;

/// A system with the name of its rows: design, blocks of a group, chunk.
#[derive(Clone, Copy)]
struct Subject {
    name: &'static str,
    system: System,
    group_blocks: u32,
    chunk_kib: u64,
}

const fn subject(name: &'static str, system: System, group_blocks: u32, chunk_kib: u64) -> Subject {
    Subject { name, system, group_blocks, chunk_kib }
}

const SUBJECTS: [Subject; 6] = [
    subject("append-g1", System::RaiznPlus, 1, 8),
    subject("append-g256", System::RaiznPlus, 256, 8),
    subject("append-all", System::RaiznPlus, 1 << 19, 8),
    subject("zrwa", System::Zoneraid, 0, 64),
    subject("inplace", System::Zebra, 0, 64),
    subject("log", System::RaiznPlus, 0, 64),
];

fn run(subject: Subject, host: &Host, request_kib: u64, depth: u32) -> anyhow::Result<Row> {
    let (model, timing) = (Model::zn540_4tb(), Timing::zn540_4tb());
    let Subject { system, group_blocks, chunk_kib, .. } = subject;
    let setup = Setup {
        model,
        timing,
        members: 4,
        chunk_kib,
        group_blocks,
        joins: true,
        volume_blocks: Some(VOLUME_BLOCKS),
        stores: true,
        ..Setup::zn540(system)
    };
    let load = Load { depth, ..Load::fio(1, request_kib) };
    Ok(Row { system: subject.name.into(), ..point(&setup.on(host), &load)? })
}

/// Writes to a zone of the array itself, without joining: commands of 4 KiB, as in ZapRAID.
fn run_alone(subject: Subject, host: &Host) -> anyhow::Result<Row> {
    let (model, timing) = (Model::zn540_4tb(), Timing::zn540_4tb());
    let Subject { system, group_blocks, chunk_kib, .. } = subject;
    let setup = Setup { model, timing, members: 4, chunk_kib, group_blocks, ..Setup::zn540(system) };
    let load = Load { depth: 16, ..Load::fio(1, 4) };
    Ok(Row { system: subject.name.into(), ..point(&setup.on(host), &load)? })
}

fn zapraid(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let depths: &[u32] = if effort == Effort::Quick { &[16] } else { &[1, 4, 16, 64] };
    let sizes: &[u32] = if effort == Effort::Quick { &[256] } else { &[4, 16, 64, 256, 1024, 4096] };
    let hosts = [Host::mq_deadline(), Host::spdk(), Host::free()];
    let mut points = Vec::new();
    for host in &hosts {
        for subject in SUBJECTS {
            points.extend(depths.iter().map(|depth| (host, subject, *depth)));
        }
    }
    let mut figure = this.figure(METHOD);
    figure.rows = work::each(this.name, &points, |(host, subject, depth)| run(*subject, host, 4, *depth))?;
    let rows = figure.rows.clone();
    let of = |host: &str, system: &str| {
        let is = |row: &&Row| (row.host.as_str(), row.system.as_str(), row.depth) == (host, system, 16);
        rows.iter().find(is).cloned().unwrap_or_default()
    };
    let gain = |host: &str, over: &str| of(host, "append-g256").mb_s / of(host, over).mb_s;
    let latency = |host: &str| of(host, "append-g256").p95_us / of(host, "append-g1").p95_us;
    let ours = |host: &str| of(host, "zrwa").mb_s / of(host, "append-g256").mb_s;
    figure.claims = vec![
        Claim::factor("G = 256 to G = 1, throughput", 2.34, gain(SPDK, "append-g1"), WHY)
            .free(gain("free", "append-g1")),
        Claim::factor("G = 256 to G = 1, 95th percentile", 0.477, latency(SPDK), WHY).free(latency("free")),
        Claim::factor("G = 256 to all, throughput", 1.0, gain(SPDK, "append-all"), "")
            .free(gain("free", "append-all")),
        Claim::factor("G = 256 to G = 1, throughput, mq-deadline", 2.34, gain(KERNEL, "append-g1"), LOCKED),
        Claim::factor("G = 256 to G = 1, 95th percentile, mq-deadline", 0.477, latency(KERNEL), LOCKED),
        Claim::at_least("zrwa to append with G = 256, mq-deadline", 1.5, ours(KERNEL), "")
            .free(ours("free"))
            .is(Goal),
    ];
    figure.tables.push(throughput(&rows, &hosts, depths));
    let all = SUBJECTS.map(|subject| Subject { chunk_kib: 64, ..subject });
    let points: Vec<_> =
        hosts.iter().flat_map(|host| all.iter().map(move |subject| (host, *subject))).collect();
    let same = work::each(this.name, &points, |(host, subject)| run(*subject, host, 4, 16))?;
    let mut table = throughput(&same, &hosts, &[16]);
    table.title = "MB/s and 95th percentile in µs, all with chunks of 64 KiB".into();
    figure.tables.push(table);
    let points: Vec<_> = hosts.iter().flat_map(|host| sizes.iter().map(move |size| (host, *size))).collect();
    let swept = work::each(this.name, &points, |(host, size)| {
        run(subject("append", System::RaiznPlus, *size, 8), host, 4, 16)
    })?;
    figure.tables.push(sizes_table(&swept, &hosts, sizes));
    figure.tables.push(chunks(this)?);
    let alone =
        [subject("append-g1", System::RaiznPlus, 1, 8), subject("append-g256", System::RaiznPlus, 256, 8)];
    let points: Vec<_> =
        hosts.iter().flat_map(|host| alone.iter().map(move |subject| (host, *subject))).collect();
    let alone = work::each(this.name, &points, |(host, subject)| run_alone(*subject, host))?;
    figure.tables.push(alone_table(&alone, &hosts));
    let reads = reads(this, &mut figure.claims)?;
    figure.tables.push(reads);
    let rebuilds = rebuilds(this, &mut figure.claims)?;
    figure.tables.push(rebuilds);
    let at_16: Vec<&Row> = rows.iter().filter(|row| row.host == KERNEL).collect();
    figure.plots.push(Plot::of(
        "Random 4 KiB writes, mq-deadline".into(),
        "requests on their way",
        &at_16,
        |row| row.depth.into(),
    ));
    Ok(figure)
}

/// Mean latency of a read in µs, of an array with all its drives, or without the drive `lost`.
fn read_us(subject: Subject, lost: Option<usize>) -> anyhow::Result<f64> {
    let (model, timing) = (Model::zn540_4tb().scaled(64, 16 << 8), Timing::zn540_4tb());
    let Subject { system, group_blocks, chunk_kib, .. } = subject;
    let setup =
        Setup { model, timing, members: 4, chunk_kib, group_blocks, stores: true, ..Setup::zn540(system) };
    let bed = TestBed::new(&setup)?;
    let mib = bed.array.geometry().zone_capacity_blocks * BLOCK as u64 / (1 << 20);
    bed.write_streams(&[Stream { unit_kib: 1024, units: 1..2, mib, ..Stream::default() }])?;
    let again = bed.cut_power(lost)?;
    let job = Job::new(RequestKind::Read, 0, 4, 1);
    let read = load::run(&again.runtime, &again.array, &again.clock, &[job], Window::ms(5, 205))?;
    Ok(read.iter().map(|read| read.mean_us()).sum())
}

/// Exp#2: reads one at a time, normal and degraded. A quarter of the latter is of the lost drive.
fn reads(this: &Experiment, claims: &mut Vec<Claim>) -> anyhow::Result<Table> {
    let subjects = SUBJECTS.iter().filter(|subject| subject.name != "append-all");
    let points: Vec<_> = subjects.flat_map(|subject| [(*subject, None), (*subject, Some(1))]).collect();
    let found = work::each(this.name, &points, |(subject, lost)| read_us(*subject, *lost))?;
    let header = ["system", "all drives, µs", "one lost, µs", "blocks of the lost one, µs", "of the speed"];
    let mut table = Table::new("4 KiB reads one at a time, on average", &header);
    for ((subject, _), us) in points.iter().step_by(2).zip(found.chunks_exact(2)) {
        let lost_us = us[0] + 4.0 * (us[1] - us[0]);
        let share = us[0] / lost_us;
        let mut cells = vec![subject.name.to_string()];
        cells.extend([us[0], us[1], lost_us].map(|us| format!("{us:.1}")));
        cells.push(format!("{share:.3}"));
        table.rows.push(cells);
        if subject.name.starts_with("append") {
            // 'Less than 5% of difference in performance'.
            let what = format!("{}: reads of a lost drive to normal ones", subject.name);
            claims.push(Claim::within(what, (0.95, 1.05), share, SLOWEST));
        }
    }
    Ok(table)
}

const SLOWEST: &str = "A lost block is as late as the slowest of three reads.";

/// Time in seconds of the rebuild of a lost drive with this many full zones in the array.
fn rebuild_s(subject: Subject, zones: u32) -> anyhow::Result<f64> {
    let (model, timing) = (Model::zn540_4tb().scaled(24, REBUILT_BLOCKS), Timing::zn540_4tb());
    let Subject { system, group_blocks, chunk_kib, .. } = subject;
    let setup =
        Setup { model, timing, members: 4, chunk_kib, group_blocks, stores: true, ..Setup::zn540(system) };
    let bed = TestBed::new(&setup)?;
    let mib = bed.array.geometry().zone_capacity_blocks * BLOCK as u64 / (1 << 20);
    let stream = |zone| Stream { zone, unit_kib: 1024, units: 1..2, mib, ..Stream::default() };
    bed.write_streams(&(0..zones).map(stream).collect::<Vec<_>>())?;
    bed.cut_power(Some(1))?.rebuild(1)
}

/// Blocks of a zone of a drive that is rebuilt: 64 MiB.
const REBUILT_BLOCKS: u64 = 16 << 10;

/// Exp#3: rebuilding a drive, without other load.
fn rebuilds(this: &Experiment, claims: &mut Vec<Claim>) -> anyhow::Result<Table> {
    let subjects: Vec<Subject> =
        SUBJECTS.into_iter().filter(|subject| !subject.name.ends_with("all")).collect();
    let points: Vec<_> = subjects.iter().flat_map(|subject| [(*subject, 4), (*subject, 8)]).collect();
    let found = work::each(this.name, &points, |(subject, zones)| rebuild_s(*subject, *zones))?;
    let header = ["system", "100 GiB, s", "1000 GiB, s", "written, MB/s", "of the drive's limit"];
    let mut table = Table::new("A lost drive is rebuilt, by how much data there is", &header);
    let zone_bytes = REBUILT_BLOCKS as f64 * BLOCK as f64;
    let limit = Timing::zn540_4tb().drain_mb_s.unwrap_or(f64::INFINITY);
    for (subject, s) in subjects.iter().zip(found.chunks_exact(2)) {
        // The constant part of the time cancels in the difference.
        let each_s = (s[1] - s[0]) / 4.0;
        let of_gib = |gib: f64| s[0] + (gib * (1 << 30) as f64 / (3.0 * zone_bytes) - 4.0) * each_s;
        let mb_s = zone_bytes / each_s / 1e6;
        let mut cells = vec![subject.name.to_string()];
        cells.extend([of_gib(100.0), of_gib(1000.0)].map(|s| format!("{s:.1}")));
        cells.extend([format!("{mb_s:.0}"), format!("{:.3}", mb_s / limit)]);
        table.rows.push(cells);
        let what = |gib| format!("{}: a drive with its share of {gib} GiB is rebuilt, s", subject.name);
        claims.push(Claim::below(what(100), 81.9, of_gib(100.0), FASTER).is(Construction));
        claims.push(Claim::below(what(1000), 813.2, of_gib(1000.0), FASTER).is(Construction));
        let what = format!("{}: what a rebuild writes to the drive's limit", subject.name);
        claims.push(Claim::at_least(what, 1.0, mb_s / limit, "").is(Goal));
    }
    Ok(table)
}

const FASTER: &str = "Whole zones are read in large pieces; what limits ZapRAID's is not said.";

fn throughput(rows: &[Row], hosts: &[Host], depths: &[u32]) -> Table {
    let mut header = vec!["system, QD".to_string()];
    header.extend(hosts.iter().map(|host| host.name.clone()));
    let mut table = Table { title: "MB/s, and 95th percentile in µs".into(), header, rows: Vec::new() };
    for subject in SUBJECTS {
        for depth in depths {
            let mut cells = vec![format!("{}, {depth}", subject.name)];
            for host in hosts {
                let is =
                    |row: &&Row| row.host == host.name && row.system == subject.name && row.depth == *depth;
                let row = rows.iter().find(is);
                cells.push(row.map_or(String::new(), |row| format!("{:.0}, {:.0}", row.mb_s, row.p95_us)));
            }
            table.rows.push(cells);
        }
    }
    table
}

fn alone_table(rows: &[Row], hosts: &[Host]) -> Table {
    let header = ["host", "append-g1, MB/s", "append-g256, MB/s", "gain", "p95 in µs, g1", "g256"];
    let mut table =
        Table::new("Without volume and joining: 4 KiB writes to a zone of the array, QD 16", &header);
    for (host, pair) in hosts.iter().zip(rows.chunks_exact(2)) {
        let mut cells = vec![host.name.clone()];
        cells.extend(pair.iter().map(|row| format!("{:.0}", row.mb_s)));
        cells.push(format!("{:.2}", pair[1].mb_s / pair[0].mb_s));
        cells.extend(pair.iter().map(|row| format!("{:.0}", row.p95_us)));
        table.rows.push(cells);
    }
    table
}

/// Throughput by chunk size, for small and for large requests: the case for segments with two chunk sizes.
fn chunks(this: &Experiment) -> anyhow::Result<Table> {
    const CHUNKS_KIB: [u64; 4] = [8, 32, 64, 256];
    // With `zrwa` a chunk has at least two flush granules.
    const DESIGNS: [(&str, System, u32, u64); 2] =
        [("append-g256", System::RaiznPlus, 256, 8), ("zrwa", System::Zoneraid, 0, 32)];
    const REQUESTS_KIB: [u64; 2] = [4, 64];
    let cases = DESIGNS.into_iter().flat_map(|design| REQUESTS_KIB.map(|request_kib| (design, request_kib)));
    let points: Vec<_> =
        cases.flat_map(|case| CHUNKS_KIB.map(|chunk_kib| (case.0, case.1, chunk_kib))).collect();
    let rows = work::each(this.name, &points, |((name, system, group, least), request_kib, chunk_kib)| {
        let subject = subject(name, *system, *group, *chunk_kib);
        (chunk_kib >= least).then(|| run(subject, &Host::mq_deadline(), *request_kib, 16)).transpose()
    })?;
    let mut header = vec!["array, KiB of a request".to_string()];
    header.extend(CHUNKS_KIB.map(|chunk_kib| format!("chunks of {chunk_kib} KiB")));
    let title = "MB/s by the size of chunks, mq-deadline, 16 requests deep".into();
    let mut table = Table { title, header, rows: Vec::new() };
    for (point, rows) in points.iter().step_by(CHUNKS_KIB.len()).zip(rows.chunks_exact(CHUNKS_KIB.len())) {
        let mut cells = vec![format!("{}, {}", point.0.0, point.1)];
        cells
            .extend(rows.iter().map(|row| row.as_ref().map_or("-".into(), |row| format!("{:.0}", row.mb_s))));
        table.rows.push(cells);
    }
    Ok(table)
}

/// Throughput by group size, and its cost: size of the table for all zones of a drive, and the blocks to read for a
/// group that is not in memory.
fn sizes_table(rows: &[Row], hosts: &[Host], sizes: &[u32]) -> Table {
    let geometry = Model::zn540_4tb().geometry;
    let blocks = geometry.zones as u64 * geometry.zone_capacity_blocks;
    let mut header = vec!["G".to_string()];
    header.extend(hosts.iter().map(|host| format!("MB/s, {}", host.name)));
    header.extend(["table of a drive, MiB".into(), "blocks read for a group that is not in memory".into()]);
    let title = "Size of groups, 16 requests deep".into();
    let mut table = Table { title, header, rows: Vec::new() };
    for (at, size) in sizes.iter().enumerate() {
        let mut cells = vec![size.to_string()];
        cells.extend((0..hosts.len()).map(|host| format!("{:.0}", rows[host * sizes.len() + at].mb_s)));
        let bits = blocks * size.trailing_zeros() as u64;
        cells.extend([format!("{:.0}", bits as f64 / 8.0 / (1 << 20) as f64), size.to_string()]);
        table.rows.push(cells);
    }
    table
}
