//! The lead of zoneraid on real hosts: the same writes with costs of the host.

use super::{Effort, Experiment, best};
use crate::{
    figure::{Figure, Plot, Row, Table},
    host::Host,
    system::System,
    test_bed::{Load, Setup, point},
    work,
};

pub const HOSTS: Experiment = Experiment {
    name: "hosts",
    title: "Small writes on hosts that cost something: break-even with ZRAID and its limit",
    run: hosts,
};

const METHOD: &str = "Five ZN540 of 1 TB, RAID-5, chunk 64 KiB, 64 requests deep in each zone. 'x µs': one thread takes x µs \
for a request and x µs for a command to a drive, whatever the array. spdk, mq-deadline and daemon: hosts calibrated as \
'calibrate' says; mq-deadline has many processors, spdk and daemon one thread. A break-even is the x at which zoneraid on \
one thread only writes as much as ZRAID's limit of 3,075 MB/s, or as ZRAID on a host that costs nothing: between the \
points measured on a straight line over µs a MB. Both on the same host, zoneraid stays ahead wherever the ratio is above 1.";

/// µs of one thread for a request, and for a command.
const COSTS: [f64; 8] = [0.0, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0];
/// The paper's limit with requests up to 64 KiB.
const LIMIT: f64 = 3075.0;

fn hosts(this: &Experiment, effort: Effort) -> anyhow::Result<Figure> {
    let (zones, sizes): (&[u32], &[u64]) = match effort {
        Effort::Quick => (&[12], &[4]),
        Effort::Full => (&[1, 12], &[4, 8, 16, 64]),
    };
    let mut all: Vec<Host> = COSTS.map(Host::one_thread).to_vec();
    all.extend([Host::spdk(), Host::mq_deadline(), Host::daemon()?]);
    let mut points = Vec::new();
    for host in &all {
        for system in [System::Zraid, System::Zoneraid] {
            for zones in zones {
                points.extend(sizes.iter().map(|size| (host, system, *zones, *size)));
            }
        }
    }
    let mut figure = this.figure(METHOD);
    figure.rows = work::each(this.name, &points, |(host, system, zones, size)| {
        point(&Setup::zn540(*system).on(host), &Load::fio(*zones, *size))
    })?;
    let loads: Vec<(u32, u64)> =
        sizes.iter().flat_map(|size| zones.iter().map(move |zones| (*zones, *size))).collect();
    figure.tables = vec![throughput(&figure.rows, &all, &loads), break_even(&figure.rows, &loads)];
    for (zones, size) in &loads {
        figure.plots.push(plot(&figure.rows, *zones, *size));
    }
    Ok(figure)
}

fn of(rows: &[Row], system: &str, host: &str, (zones, size): (u32, u64)) -> f64 {
    best(rows, system, |row| row.host == host && (row.zones, row.request_kib) == (zones, size))
}

fn throughput(rows: &[Row], hosts: &[Host], loads: &[(u32, u64)]) -> Table {
    let mut header = vec!["KiB, zones".to_string()];
    header.extend(hosts.iter().map(|host| host.name.clone()));
    let title = "MB/s of ZRAID / zoneraid on the same host, and the ratio";
    let mut table = Table { title: title.into(), header, rows: Vec::new() };
    for load in loads {
        let mut cells = vec![format!("{}, {}", load.1, load.0)];
        for host in hosts {
            let [zraid, ours] = ["ZRAID", "zoneraid"].map(|system| of(rows, system, &host.name, *load));
            cells.push(format!("{zraid:.0} / {ours:.0} ({:.2})", ours / zraid));
        }
        table.rows.push(cells);
    }
    table
}

fn break_even(rows: &[Row], loads: &[(u32, u64)]) -> Table {
    let header = ["KiB, zones", "with 3,075 MB/s", "with ZRAID free of cost", "ZRAID free of cost, MB/s"];
    let mut table =
        Table::new("µs a request and a sub-request at which zoneraid on one thread is level", &header);
    for load in loads {
        let ours: Vec<(f64, f64)> =
            COSTS.iter().map(|us| (*us, of(rows, "zoneraid", &Host::one_thread(*us).name, *load))).collect();
        let zraid = of(rows, "ZRAID", &Host::one_thread(0.0).name, *load);
        let text = |level: f64| match crossing(&ours, level) {
            Some(us) => format!("{us:.2}"),
            None => "beyond 4".into(),
        };
        table.rows.push(vec![
            format!("{}, {}", load.1, load.0),
            text(LIMIT),
            text(zraid),
            format!("{zraid:.0}"),
        ]);
    }
    table
}

/// The cost at which throughput falls below `level`: interpolated linearly in time per byte.
fn crossing(values: &[(f64, f64)], level: f64) -> Option<f64> {
    values.windows(2).find_map(|pair| {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let (t0, t1, t) = (1.0 / y0, 1.0 / y1, 1.0 / level);
        (y0 >= level && y1 < level).then(|| x0 + (t - t0) / (t1 - t0) * (x1 - x0))
    })
}

fn plot(rows: &[Row], zones: u32, size: u64) -> Plot {
    let mut values = Vec::new();
    for us in [0.0, 1.0, 2.0, 3.0, 4.0] {
        for system in ["ZRAID", "zoneraid"] {
            let mb_s = of(rows, system, &Host::one_thread(us).name, (zones, size));
            values.push((system.to_string(), us as u64, mb_s));
        }
    }
    let title = format!("{size} KiB in {zones} zones, one thread");
    Plot::through(title, "µs a request and a sub-request", "MB/s", &values)
        .limit("ZRAID's limit in the paper: 3075", LIMIT)
        .limit("ZRAID, free of cost, here", of(rows, "ZRAID", &Host::one_thread(0.0).name, (zones, size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn break_even_interpolates_time_per_byte() {
        // 1 µs more a MB for each µs.
        let values = [(0.0, 1.0), (1.0, 0.5), (2.0, 1.0 / 3.0)];
        assert!((crossing(&values, 0.4).unwrap() - 1.5).abs() < 1e-9);
        assert_eq!(crossing(&values, 0.1), None);
        assert_eq!(crossing(&[(0.0, 1.0), (1.0, 0.9)], 2.0), None);
    }
}
