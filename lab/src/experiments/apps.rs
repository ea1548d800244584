//! Models of applications: ZRAID's Figures 9 and 10.

use super::{Effort, Experiment};
use crate::{
    apps::{self, App, AppResult, f2fs, lsm},
    figure::{Claim, ClaimKind, Figure, Plot, Table},
    host::Host,
    system::System,
    test_bed::{Setup, TestBed},
    work,
};
use std::rc::Rc;

pub const FIG9: Experiment =
    Experiment { name: "fig9", title: "filebench on F2FS, by a stand-in (ZRAID Fig. 9)", run: fig9 };

const FIG9_METHOD: &str = "Five ZN540 of 1 TB, RAID-5, on the host with mq-deadline; zoneraid also on its daemon. A stand-in for \
F2FS: one zone for data and one for nodes, no cache but for what fsync writes, no cleaning, no checkpoints, processors that \
cost nothing (lab/src/apps/f2fs.rs). fileserver with several sizes of direct writes, oltp, varmail. Operations a second, \
relative to RAIZN+.";

const STAND_IN: &str =
    "A stand-in: file system and processors cost nothing, so that a larger share of time is the array's.";

const SYNC: &str = "A synchronous write that ends inside a chunk has to wait for a logged write pointer after its data with \
ZRAID; the header of its parity tells RAIZN+. That costs more here than log zones do, which the drive does not slow down.";

pub const FIG10: Experiment =
    Experiment { name: "fig10", title: "db_bench on ZenFS, by a stand-in (ZRAID Fig. 10)", run: fig10 };

const FIG10_METHOD: &str = "The same arrays and hosts. A stand-in for RocksDB on ZenFS (lab/src/apps/lsm.rs): four threads put \
records of 8 KiB, which they commit in groups to a log and wait for; memtables of 64 MiB are flushed to four zones, and \
files of the first level compacted into six, each with none (fillrandom) or one (overwrite) of the second; fillseq moves \
files. A put costs a processor 5 µs, a guess. What ZenFS writes is direct I/O that carries neither FUA nor a flush behind \
it, whatever db_bench waits for; last the same as if each write to the log had FUA. The figures are of the second \
second, when compaction keeps up with puts, not of ten million keys.";

const ZENFS: &str = "A stand-in, whose processors cost less than RocksDB's. What decides it is whether writes carry FUA: \
ZenFS sends none (it opens the drive for direct I/O and never syncs it); if each write to the log did, ZRAID would wait \
for a logged write pointer after each group, and lose.";

/// Name of an application, its start on an array, and the measured time in ms.
type Start = (String, Box<dyn Fn(&Rc<App>) + Sync>, u64);

fn figure(
    this: &Experiment,
    method: &str,
    systems: &[System],
    (starts, warm_ms): (&[Start], u64),
) -> anyhow::Result<(Figure, Vec<Vec<AppResult>>)> {
    let daemon = Host::daemon()?;
    let mut setups: Vec<Setup> =
        systems.iter().map(|system| Setup::zn540(*system).on(&Host::mq_deadline())).collect();
    setups.push(Setup::zn540(System::Zoneraid).on(&daemon));
    let points: Vec<(usize, usize)> =
        (0..starts.len()).flat_map(|start| (0..setups.len()).map(move |setup| (start, setup))).collect();
    let hosts: Vec<(System, String)> =
        setups.iter().map(|setup| (setup.system, setup.host.name.clone())).collect();
    let found = work::each(this.name, &points, |(start, setup)| {
        let (_, begin, ms) = &starts[*start];
        let host = Host::by_name(&hosts[*setup].1)?;
        apps::run(TestBed::new(&Setup::zn540(hosts[*setup].0).on(&host))?, warm_ms, *ms, begin)
    })?;
    let mut rest = found.into_iter();
    let found: Vec<Vec<AppResult>> =
        starts.iter().map(|_| rest.by_ref().take(setups.len()).collect()).collect();
    let name = |(system, host): &(System, String)| format!("{}, {host}", system.name());
    let mut header = vec!["operations a second, to RAIZN+; flash WA".to_string()];
    header.extend(hosts.iter().map(name));
    let mut table = Table { header, ..Table::default() };
    let base = systems.iter().position(|system| *system == System::RaiznPlus).unwrap_or_default();
    let mut lines: Vec<(String, Vec<f64>)> = hosts.iter().map(|host| (name(host), Vec::new())).collect();
    for ((what, ..), ran) in starts.iter().zip(&found) {
        let mut cells = vec![what.clone()];
        for (ran_here, line) in ran.iter().zip(&mut lines) {
            let ratio = ran_here.operations_s / ran[base].operations_s;
            line.1.push(ratio);
            let flash = ran_here.left.flash_write_amplification;
            cells.push(format!("{:.0} ({ratio:.2}); {flash:.2}", ran_here.operations_s));
        }
        table.rows.push(cells);
    }
    let mut steadiness =
        Table::new("Operations, second half of the window to the first", &["", "the most", "with"]);
    for ((what, ..), ran) in starts.iter().zip(&found) {
        let most = ran.iter().zip(&hosts).max_by(|a, b| a.0.drift.abs().total_cmp(&b.0.drift.abs()));
        let Some((ran, host)) = most else { continue };
        steadiness.rows.push(vec![what.clone(), format!("{:+.1} %", 100.0 * ran.drift), name(host)]);
    }
    let places: Vec<&str> = starts.iter().map(|start| start.0.as_str()).collect();
    let mut figure = this.figure(method);
    figure.plots.push(Plot::named("Operations a second to RAIZN+", "×", &places, lines));
    figure.tables.extend([table, steadiness]);
    Ok((figure, found))
}

fn fig9(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let ms = if effort == Effort::Quick { 20 } else { 150 };
    let sizes = [4, 16, 64, 1024];
    let mut starts: Vec<Start> = Vec::new();
    for kib in sizes {
        let start = move |app: &Rc<App>| f2fs::fileserver(app, kib);
        starts.push((format!("fileserver {kib} KiB"), Box::new(start), ms));
    }
    starts.push(("oltp".into(), Box::new(f2fs::oltp), ms));
    starts.push(("varmail".into(), Box::new(f2fs::varmail), ms));
    let systems = [System::Raizn, System::RaiznPlus, System::Zraid, System::Zoneraid];
    let (mut figure, found) = figure(this, FIG9_METHOD, &systems, (&starts, 30))?;
    let paper = [(0, 1.14), (3, 1.0), (4, 1.128), (5, 1.162)];
    for (at, paper) in paper {
        let ours = found[at][2].operations_s / found[at][1].operations_s;
        let what = format!("ZRAID to RAIZN+, {}", starts[at].0);
        let why = if at < sizes.len() { STAND_IN } else { SYNC };
        figure.claims.push(Claim::factor(what, paper, ours, why).is(ClaimKind::Guess));
    }
    if let Some(plot) = figure.plots.first_mut() {
        plot.points = paper.map(|(at, value)| ("paper: ZRAID".into(), at, value)).to_vec();
    }
    Ok(figure)
}

fn fig10(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let ms = if effort == Effort::Quick { 50 } else { 1000 };
    let loads = [
        ("fillseq", lsm::Puts::InOrder, false),
        ("fillrandom", lsm::Puts::Random { overlap: 0 }, false),
        ("overwrite", lsm::Puts::Random { overlap: 1 }, false),
        ("fillseq, FUA", lsm::Puts::InOrder, true),
        ("fillrandom, FUA", lsm::Puts::Random { overlap: 0 }, true),
        ("overwrite, FUA", lsm::Puts::Random { overlap: 1 }, true),
    ];
    let start = |(name, puts, fua): (&str, lsm::Puts, bool)| -> Start {
        (name.into(), Box::new(move |app: &Rc<App>| lsm::fill(app, puts, fua)), ms)
    };
    let starts: Vec<Start> = loads.into_iter().map(start).collect();
    let systems = [System::RaiznPlus, System::ZS, System::ZSM, System::Zraid, System::Zoneraid];
    let (mut figure, found) = figure(this, FIG10_METHOD, &systems, (&starts, ms))?;
    let workloads = &found[..3];
    let mean = |of: &dyn Fn(&[AppResult]) -> f64| workloads.iter().map(|ran| of(ran)).sum::<f64>() / 3.0;
    let ratio = mean(&|ran| ran[3].operations_s / ran[0].operations_s);
    let flash = |at: usize| mean(&|ran| ran[at].left.flash_write_amplification);
    figure.claims = vec![
        Claim::factor("ZRAID to RAIZN+, db_bench, mean of three", 1.145, ratio, ZENFS).is(ClaimKind::Guess),
        Claim::factor("flash write amplification of RAIZN+, mean of three", 1.6, flash(0), STAND_IN)
            .is(ClaimKind::Guess),
        Claim::factor("flash write amplification of ZRAID, mean of three", 1.25, flash(3), "")
            .is(ClaimKind::Construction),
    ];
    Ok(figure)
}
