//! Flash write amplification and its causes (ZRAID §3.2, §6.4).

use super::{Effort, Experiment};
use crate::{
    bed::{Bed, Left, Setup},
    figure::{Claim, Figure, Table},
    stream::Stream,
    system::System,
    work,
};

pub const WAF: Experiment = Experiment {
    name: "waf",
    title: "Flash write amplification and its causes (ZRAID §3.2, §6.4)",
    run: waf,
};

const METHOD: &str = "Five ZN540 of 1 TB, RAID-5, chunk 64 KiB. The traffic is a model of what the papers' \
applications send, nothing is replayed.\n\n\
fillseq: RocksDB on ZenFS with values of 8,000 bytes and synchronous writes. Half of the bytes go to the write-ahead \
log, one to four records of 8 KiB in a synchronous write (four threads commit in groups); half to table files, in \
writes of 1 MiB that begin anywhere in a stripe. Four zones of table files, one of the log.\n\n\
varmail: F2FS, which writes all data to one zone and all nodes to another. Each synchronous write of 4 to 28 KiB \
(16 on average) is followed by one of a node block.";

/// What the host writes in a run.
const MIB: u64 = 512;
/// Of a ZN540.
const ZONE_BYTES: f64 = 1077.0 * 1048576.0;

#[derive(Clone, Copy)]
struct Traffic {
    name: &'static str,
    streams: fn(u64) -> Vec<Stream>,
}

const TRAFFIC: &str = "How much of fillseq is small synchronous writes is not published; half is assumed.";

const FILLSEQ: Traffic = Traffic {
    name: "fillseq",
    streams: |mib| {
        let log = Stream { zone: 0, unit_kib: 8, units: 1..5, sync: true, mib: mib / 2, ..Stream::default() };
        let table = |zone| Stream {
            zone,
            unit_kib: 1024,
            units: 1..2,
            sync: false,
            mib: mib / 8,
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

fn waf(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let mib = if effort == Effort::Quick { MIB / 4 } else { MIB };
    let systems = [System::RaiznPlus, System::Zraid, System::Zoneraid];
    let points: Vec<_> =
        [FILLSEQ, VARMAIL].iter().flat_map(|traffic| systems.map(|system| (*traffic, system))).collect();
    let found = work::each(this.name, &points, |(traffic, system)| {
        Bed::new(&Setup::zn540(*system))?.write_streams(&(traffic.streams)(mib))
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
        let parity = |found: &Left| found.written.logged_parity + found.written.headers;
        let wa = |what: &str, paper: f64, found: &Left, why: &str| {
            let what = format!("flash write amplification, {what}");
            Claim::factor(what, paper, found.flash_write_amplification, why)
        };
        figure.claims = vec![
            wa("fillseq, RAIZN+", 2.0, raizn, TRAFFIC),
            wa("fillseq, ZRAID", 1.25, zraid, ""),
            wa("varmail, RAIZN+ (the paper: RAIZN)", 2.44, mail, ""),
            Claim::share(
                "logged parity to data, fillseq, RAIZN+ (98 of 130 GB)",
                0.754,
                parity(raizn),
                TRAFFIC,
            ),
            Claim::share(
                "temporary parity to data, fillseq, ZRAID (65 of 130 GB)",
                0.5,
                zraid.written.temporary_parity,
                TRAFFIC,
            ),
        ];
    }
    figure.tables.push(table);
    Ok(figure)
}
