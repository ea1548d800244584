//! Full logs: the cost of their renewal, and of a single log zone for all zones (Zebra's two issues with RAIZN).

use super::{Effort, Experiment};
use crate::{
    figure::{Claim, ClaimKind, Figure, Plot, Row, Table},
    host::Host,
    load::Window,
    system::System,
    test_bed::{Load, Setup, point},
    work,
};
use emu::{ssd::Model, timing::Timing};

pub const LOGS: Experiment = Experiment {
    name: "logs",
    title: "What logging partial parity costs: one zone for all, and its renewal (Zebra's motivation)",
    run: logs,
};

const METHOD: &str = "RAIZN+, 8 KiB writes, 64 requests deep, host with mq-deadline. Contention: what an array writes, to what \
its drives would let it write in all (members times bandwidth over blocks written); large zones are four ZN540 of 4 TB \
with 12 zones, small ones seven PM1731a with 15 zones of four each, whose data zones alone are counted as bandwidth. \
Renewal: two seconds and more, in which logs are full and begin anew, beside the same with zones so large that they never \
are. The slides name neither loads nor sizes.";

const BANDWIDTH: &str = "A large zone gives its log all of a drive's bandwidth if need be, so that one log zone is no \
bottleneck of the drive; the driver's lock on it costs nothing here.";
const RENEWAL: &str =
    "A new log begins with a checkpoint of a few MiB, while the old one is reset; nothing live is copied.";

/// Four ZN540 of 4 TB, (3 + 1).
fn large() -> Setup {
    let (model, timing) = (Model::zn540_4tb(), Timing::zn540_4tb());
    Setup { model, timing, members: 4, ..Setup::zn540(System::RaiznPlus) }.on(&Host::mq_deadline())
}

/// Seven PM1731a, (6 + 1).
fn small() -> Setup {
    let model = Model::pm1731a();
    let setup = Setup::pm1731a(System::RaiznPlus);
    Setup { model, members: 7, partitioned: false, ..setup }.on(&Host::mq_deadline())
}

/// Zones that are never full.
fn endless() -> Setup {
    let mut setup = large();
    let capacity = setup.model.geometry.zone_capacity_blocks;
    setup.model = setup.model.scaled(64, capacity * 8);
    setup
}

fn logs(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let until = if effort == Effort::Quick { 200 } else { 3000 };
    let long = Load { window: Window::ms(50, until), seeds: 1, ..Load::fio(12, 8) };
    let points = [
        (large as fn() -> Setup, Load::fio(12, 8)),
        (small as fn() -> Setup, Load::long(15, 8)),
        (large as fn() -> Setup, long),
        (endless as fn() -> Setup, long),
    ];
    let mut figure = this.figure(METHOD);
    figure.rows = work::each(this.name, &points, |(setup, load)| point(&setup(), load))?;
    let [wide, narrow, renewed, never] = &figure.rows[..] else { return Ok(figure) };
    let drive_mb_s = large().timing.drain_mb_s.unwrap_or(f64::NAN);
    let zone_mb_s = 15.0 * 4.0 * 42.0;
    let share = |row: &Row, members: f64, mb_s: f64| row.mb_s * row.written.all() / (members * mb_s);
    let lost = share(wide, 4.0, drive_mb_s);
    let lost_small = share(narrow, 7.0, zone_mb_s);
    figure.claims = vec![
        Claim::factor("RAIZN to what its drives could write, large zones (− 19 %)", 0.81, lost, BANDWIDTH),
        Claim::factor("RAIZN to what its drives could write, small zones (− 76 %)", 0.24, lost_small, ""),
        Claim::within(
            "RAIZN with renewal of logs to without",
            (0.85, 0.938),
            renewed.mb_s / never.mb_s,
            RENEWAL,
        ),
        Claim::factor(
            "p99 with renewal of logs to without (+ 65 %)",
            1.65,
            renewed.p99_us / never.p99_us,
            RENEWAL,
        ),
    ];
    let mut table = Table::new("", &["", "MB/s", "p99 µs", "resets of zones"]);
    for (what, row) in [("logs are renewed", renewed), ("logs never full", never)] {
        table.rows.push(vec![
            what.into(),
            format!("{:.0}", row.mb_s),
            format!("{:.0}", row.p99_us),
            row.resets.to_string(),
        ]);
    }
    let shares = vec![("here".to_string(), vec![lost, lost_small, renewed.mb_s / never.mb_s])];
    let places = ["large zones", "small zones", "with renewal"];
    let mut plot = Plot::named("RAIZN+ to what it could write", "×", &places, shares);
    plot.points =
        [0.81, 0.24].into_iter().enumerate().map(|(at, share)| ("slides".into(), at, share)).collect();
    plot.points.extend([0.85, 0.938].map(|share| ("slides, from and to".into(), 2, share)));
    figure.plots.push(plot);
    figure.tables = vec![table, collections(&mut figure.claims)];
    Ok(figure)
}

/// Number of times that logs of one zone a member fill up, from the paper's own figures.
fn collections(claims: &mut Vec<Claim>) -> Table {
    // Three workloads of about 130 GB, 1.6 blocks written for each on average, 1.25 of them data and parity.
    let (logged, zone) = (3.0 * 130e9 * (1.6 - 1.25), 1077.0 * 1048576.0);
    let ours = logged / zone;
    let why = "By the paper's own bytes and the capacity of a zone; its collections must begin before a zone is full, or \
               its workloads have written more than the one whose bytes it gives.";
    claims.push(
        Claim::share("collections of logs in three db_bench workloads", 345.0, ours, why)
            .is(ClaimKind::Construction),
    );
    let mut table = Table::new(
        "Log zones filled in db_bench, by the bytes of ZRAID §6.4",
        &["GB logged", "zones", "paper"],
    );
    table.rows.push(vec![format!("{:.0}", logged / 1e9), format!("{ours:.0}"), "345".into()]);
    table
}
