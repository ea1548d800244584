//! Flash write amplification and its causes (ZRAID §3.2, §6.4).

use super::{Effort, Experiment};
use crate::{
    figure::{Claim, ClaimKind, Figure, Plot, Table},
    stream::Stream,
    system::System,
    test_bed::{Setup, StreamEffects, TestBed},
    work,
};

pub const WAF: Experiment = Experiment {
    name: "waf",
    title: "Flash write amplification and its causes (ZRAID §3.2, §6.4)",
    run: waf,
};

const METHOD: &str = "Five ZN540 of 1 TB, RAID-5, chunk 64 KiB. The traffic is a model of what the papers' \
applications send, nothing is replayed.\n\n\
fillseq: RocksDB on ZenFS with values of 8,000 bytes and synchronous writes. The paper's 98 GB logged and 65 GB temporary \
of 130 say what its log was: records of 8 KiB (header, and as much parity), for two thirds of all bytes; the third that \
is left goes to table files, in writes of 1 MiB that begin anywhere in a stripe. Four zones of table files, one of the log. \
So all figures of fillseq hold by construction.\n\n\
varmail: F2FS, which writes all data to one zone and all nodes to another. Each synchronous write of 4 to 28 KiB \
(16 on average) is followed by one of a node block.";

/// MiB that the host writes in a run.
const MIB: u64 = 512;
/// Bytes of a zone of a ZN540.
const ZONE_BYTES: f64 = 1077.0 * 1048576.0;

#[derive(Clone, Copy)]
struct Traffic {
    name: &'static str,
    streams: fn(u64) -> Vec<Stream>,
}

const TRAFFIC: &str = "How much of fillseq is small synchronous writes follows from the paper's bytes.";

const FILLSEQ: Traffic = Traffic {
    name: "fillseq",
    streams: |mib| {
        let log =
            Stream { zone: 0, unit_kib: 8, units: 1..2, sync: true, mib: mib * 2 / 3, ..Stream::default() };
        let table = |zone| Stream {
            zone,
            unit_kib: 1024,
            units: 1..2,
            sync: false,
            mib: mib / 12,
            first_kib: 36 * zone as u64,
        };
        std::iter::once(log).chain((1..5).map(table)).collect()
    },
};

const VARMAIL: Traffic = Traffic {
    name: "varmail",
    streams: |mib| {
        let mib = mib / 8;
        let data =
            Stream { zone: 0, unit_kib: 4, units: 1..8, sync: true, mib: mib * 4 / 5, ..Stream::default() };
        let nodes =
            Stream { zone: 1, unit_kib: 4, units: 1..2, sync: true, mib: mib / 5, ..Stream::default() };
        vec![data, nodes]
    },
};

const MOST: &str = "In fillseq: 2 to 1.25.";
const HEADERS: &str =
    "The paper's mean of three workloads is 24 %: the other two have larger writes, so a smaller share.";

/// The ratio of RAIZN+'s flash writes to ZRAID's, in fillseq.
fn most(found: &[StreamEffects]) -> f64 {
    match found {
        [raizn, zraid, ..] => raizn.flash_write_amplification / zraid.flash_write_amplification,
        _ => f64::NAN,
    }
}

fn waf(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let mib = if effort == Effort::Quick { MIB / 4 } else { MIB };
    let systems = [System::RaiznPlus, System::Zraid, System::Zoneraid];
    let points: Vec<_> =
        [FILLSEQ, VARMAIL].iter().flat_map(|traffic| systems.map(|system| (*traffic, system))).collect();
    let found = work::each(this.name, &points, |(traffic, system)| {
        TestBed::new(&Setup::zn540(*system))?.write_streams(&(traffic.streams)(mib))
    })?;
    let header = [
        "traffic",
        "system",
        "flash WA",
        "full parity",
        "logged parity",
        "headers",
        "metadata",
        "temporary parity",
        "log zones filled by 100 GB",
    ];
    let mut table =
        Table::new("Blocks for each block of the host's; temporary parity never stays on flash.", &header);
    for ((traffic, system), written) in points.iter().zip(&found) {
        let mut cells = vec![traffic.name.to_string(), system.name().to_string()];
        let causes = &written.written;
        for value in [
            written.flash_write_amplification,
            causes.full_parity,
            causes.logged_parity,
            causes.headers,
            causes.metadata,
            causes.temporary_parity,
        ] {
            cells.push(format!("{value:.2}"));
        }
        cells.push(format!("{:.0}", (causes.logged_parity + causes.headers) * 100e9 / ZONE_BYTES));
        table.rows.push(cells);
    }
    let of = |name: &str, system: System| {
        points.iter().position(|point| point.0.name == name && point.1 == system).map(|at| &found[at])
    };
    let mut figure = this.figure(METHOD);
    if let (Some(raizn), Some(zraid), Some(mail)) =
        (of("fillseq", System::RaiznPlus), of("fillseq", System::Zraid), of("varmail", System::RaiznPlus))
    {
        let parity = |found: &StreamEffects| found.written.logged_parity + found.written.headers;
        let wa = |what: &str, paper: f64, found: &StreamEffects, why: &str| {
            let what = format!("flash write amplification, {what}");
            Claim::factor(what, paper, found.flash_write_amplification, why)
        };
        let logged = "logged parity to data, fillseq, RAIZN+ (98 of 130 GB)";
        let temporary = "temporary parity to data, fillseq, ZRAID (65 of 130 GB)";
        let headers_of = "headers to logged parity, fillseq, RAIZN+ (98 less 65 of 98 GB)";
        let headers = raizn.written.headers / parity(raizn);
        figure.claims = vec![
            wa("fillseq, RAIZN+", 2.0, raizn, "").is(ClaimKind::Construction),
            wa("fillseq, ZRAID", 1.25, zraid, "").is(ClaimKind::Construction),
            wa("varmail, RAIZN+ (the paper: RAIZN)", 2.44, mail, "The mix of sizes is a guess.")
                .is(ClaimKind::Guess),
            Claim::factor("RAIZN+ to ZRAID, flash writes, the most", 1.6, most(&found), MOST)
                .is(ClaimKind::Construction),
            Claim::share(logged, 0.754, parity(raizn), TRAFFIC).is(ClaimKind::Construction),
            Claim::share(temporary, 0.5, zraid.written.temporary_parity, TRAFFIC).is(ClaimKind::Construction),
            Claim::share(headers_of, 1.0 - 65.0 / 98.0, headers, HEADERS).is(ClaimKind::Construction),
        ];
    }
    figure.tables.push(table);
    let names: Vec<String> =
        points.iter().map(|(traffic, system)| format!("{} {}", traffic.name, system.name())).collect();
    let line = |what: &str, of: fn(&StreamEffects) -> f64| (what.to_string(), found.iter().map(of).collect());
    let lines = vec![
        line("blocks on flash for each of the host's", |found| found.flash_write_amplification),
        line("temporary parity", |found| found.written.temporary_parity),
    ];
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut plot = Plot::named("Flash write amplification", "blocks", &names, lines);
    plot.points =
        [(0, 2.0), (1, 1.25), (3, 2.44)].map(|(at, value)| ("ZRAID §6.4, §3.2".into(), at, value)).to_vec();
    figure.plots.push(plot);
    Ok(figure)
}
