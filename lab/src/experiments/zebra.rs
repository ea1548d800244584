//! Zebra's evaluation, as far as its slides describe it.

use super::{Effort, Experiment};
use crate::{
    bed::{Bed, Load, Setup},
    figure::{Claim, Figure, Row, Table},
    stream::Stream,
    system::System,
    work,
};
use sim::{ssd::Model, timing::Timing};

pub const ZEBRA: Experiment = Experiment {
    name: "zebra",
    title: "Parity that is updated in place beside RAIZN (Zebra's evaluation)",
    run: zebra,
};

const METHOD: &str = "Large zones: four ZN540 of 4 TB, (3 + 1). Small zones: seven PM1731a, (6 + 1), four zones as one; \
the slides emulate seven drives of no stated kind. Sequential writes of 4, 8 and 16 KiB, one job a zone, 64 requests \
deep. How many zones were written is not published: 1, 4, 7 and 12 here, 15 on small zones. The slides give ranges \
over all their settings, so that the mean gain is compared with the middle of a range.\n\n\
Mixed: writes of 8 KiB to four zones beside 64 random reads of 4 KiB from another one. Recovery: four zones of which \
32 MiB were written in 8 KiB requests, then a power cut; the time is from the first command of assembly to the last. \
RAIZN reads its logs, so that its time depends on how full they are, which is not published. Traces and RocksDB of \
the slides were not repeated.";

const MIXED: &str = "The slides' ratios of reads, zones and RAIZN's state are not published.";
const RECOVERY: &str = "Every policy begins new metadata logs at assembly, and reads as much as the table says. RAIZN's \
time grows with its logs, which were nearly empty here.";

const SYSTEMS: [System; 4] = [System::Raizn, System::RaiznPlus, System::Zebra, System::Zoneraid];
const SIZES: [u64; 3] = [4, 8, 16];

fn large(system: System) -> Setup {
    let (model, timing) = (Model::zn540_4tb(), Timing::zn540_4tb());
    Setup { model, timing, members: 4, ..Setup::zn540(system) }
}

fn small(system: System) -> Setup {
    let model = Model::pm1731a();
    Setup { model, members: 7, partitioned: false, ..Setup::pm1731a(system) }
}

fn zebra(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let zones: &[u32] = if effort == Effort::Quick { &[4] } else { &[1, 4, 7, 12] };
    let mut figure = this.figure(METHOD);
    let points = |zones: &[u32]| {
        let mut points = Vec::new();
        for system in SYSTEMS {
            for size in SIZES {
                points.extend(zones.iter().map(|zones| (system, Load::fio(*zones, size))));
            }
        }
        points
    };
    let run = |setup: fn(System) -> Setup, points: &[(System, Load)]| {
        work::each(this.name, points, |(system, load)| Bed::new(&setup(*system))?.write_zones(load))
    };
    let on_large = run(large, &points(zones))?;
    let on_small = run(small, &points(&[15]))?;
    // Few, short zones: one of them has to be full before.
    let short = |system| Setup { model: Model::zn540_4tb().scaled(64, 128 << 8), ..large(system) };
    let mixed: Vec<_> =
        SYSTEMS.iter().map(|system| (*system, Load { readers: 64, ..Load::fio(4, 8) })).collect();
    let mixed = run(short, &mixed)?;
    let streams: Vec<Stream> =
        (0..4).map(|zone| Stream { zone, unit_kib: 8, units: 1..2, mib: 32, ..Stream::default() }).collect();
    let recovered = work::each(this.name, &SYSTEMS[1..], |system| {
        let model = Model::zn540_4tb().scaled(64, Model::zn540_4tb().geometry.zone_capacity_blocks);
        let bed = Bed::new(&Setup { model, stores: true, ..large(*system) })?;
        bed.write_streams(&streams)?;
        bed.recover()
    })?;

    let beside = |rows: &[Row], over: &str| {
        let gain = super::gain(rows, "Zebra", over, |_| true);
        let each = |size: u64| super::gain(rows, "Zebra", over, |row| row.request_kib == size);
        let each = SIZES.map(|size| format!("{size} KiB {:.2}", each(size)));
        (gain, format!("Mean over zones: {}", each.join(", ")))
    };
    for (what, paper, rows) in [
        ("large zones (slides: 1.06 to 1.51)", 1.285, &on_large),
        ("small zones (slides: 3.3 to 4.2)", 3.75, &on_small),
    ] {
        for over in ["RAIZN", "RAIZN+"] {
            let (gain, each) = beside(rows, over);
            figure.claims.push(Claim::factor(format!("Zebra to {over}, {what}"), paper, gain, each));
        }
    }
    let gain = super::gain(&mixed, "Zebra", "RAIZN", |_| true);
    figure.claims.push(Claim::factor("Zebra to RAIZN, writes beside reads", 2.2, gain, MIXED));
    let mut table = Table::new("Recovery after a power cut", &["", "ms", "MiB read"]);
    for (system, (us, blocks)) in SYSTEMS[1..].iter().zip(&recovered) {
        table.rows.push(vec![
            system.name().into(),
            format!("{:.1}", us / 1e3),
            format!("{:.1}", *blocks as f64 / 256.0),
        ]);
    }
    if let [raizn, zebra, ..] = recovered[..] {
        figure.claims.push(Claim::factor(
            "recovery, RAIZN's time to Zebra's",
            14.2,
            raizn.0 / zebra.0,
            RECOVERY,
        ));
    }
    figure.tables.push(table);
    figure.rows = [on_large, on_small, mixed].concat();
    Ok(figure)
}
