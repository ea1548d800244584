//! Results of an experiment: measured rows, claims of a paper beside our results, tables.

use serde::Serialize;

/// One measured point. Throughput is of the host's data; 1 MB is 10⁶ bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub system: String,
    /// Name of the host in front of the drives, and its CPU time per request in µs; 0 for a host without costs.
    pub host: String,
    pub host_us: f64,
    /// Zones that are written at the same time, one job each.
    pub zones: u32,
    pub request_kib: u64,
    /// Requests of a job in flight.
    pub depth: u32,
    pub mb_s: f64,
    /// Number of runs with different seeds that it is the mean of; 0 if it comes from runs of another kind.
    pub seeds: usize,
    /// Difference between the highest and the lowest throughput over seeds, as a share of the mean.
    pub spread: f64,
    /// Relative increase of completions from the first to the second half of the window.
    pub drift: f64,
    /// Throughput of reads beside the writes; 0 without any.
    pub read_mb_s: f64,
    /// Blocks that reach flash, per block of the host.
    pub flash_write_amplification: f64,
    /// The paper's figure for this point, if its text has one.
    pub paper_mb_s: Option<f64>,
    /// Latency of a request: median, 95th and 99th percentile.
    pub p50_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
    /// Blocks that the array wrote to its members, by cause.
    pub written: WrittenBlocks,
    /// Commands to members per MiB of the host: writes and appends, and explicit ZRWA flushes.
    pub writes_per_mib: f64,
    pub explicit_flushes_per_mib: f64,
    /// Zones of members that were reset in the measured run.
    pub resets: u64,
    /// Number of members, if it differs from the experiment's array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drives: Option<usize>,
    /// Mean of random pauses after each request, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_us: Option<u64>,
    /// The written data, if it is not zeros.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Bytes of the data set per byte of flash used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_efficiency: Option<f64>,
    /// The same of a stack of layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_ratio: Option<f64>,
    /// Share of a volume's space that is in use when it is overwritten, and the distribution of the writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_percent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<&'static str>,
    /// Results of an application.
    #[serde(flatten)]
    pub operations: Option<Operations>,
    /// Results of tenants that share a device.
    #[serde(flatten)]
    pub tenancy: Option<Tenancy>,
    /// Results of a tenant with a promise.
    #[serde(flatten)]
    pub promise: Option<PromiseResult>,
}

/// Effects of a promise to one of four tenants, the others of which write as much as they can: in MB/s for a floor, in
/// µs for a latency target.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PromiseResult {
    pub promised: f64,
    /// Its value without the promise, and with it.
    pub without: f64,
    pub got: f64,
    /// Throughput of the others without the promise, and with it, in MB/s.
    pub others_without: f64,
    pub others: f64,
    /// Their throughput while it was idle, relative to that without a floor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others_idle: Option<f64>,
    /// Time until it had its floor again, in ms, rounded up to ten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_ms: Option<f64>,
}

/// Fairness between tenants.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tenancy {
    pub tenants: u32,
    /// Jain's index of the throughput of equal ones.
    pub jain: f64,
    /// The largest relative deviation of one of them from an equal share.
    pub share_error: f64,
    /// p99.9 of reads of a quiet tenant: alone, beside loud ones, and the latter over the former.
    pub p99_9_alone_us: f64,
    pub p99_9_beside_us: f64,
    pub p99_9_ratio: f64,
    /// Throughput of the loud tenants beside the quiet one, relative to that without it.
    pub loud_share: f64,
}

/// Operations of an application.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Operations {
    pub operations_s: f64,
    /// Latency of its reads, each of which includes all device reads that the operation waits for.
    pub p99_9_us: f64,
    pub p99_99_us: f64,
    /// Shares of gets that find their record in a memtable, and of blocks that are in the cache.
    pub in_memory: f64,
    pub cached: f64,
}

impl Row {
    /// The mean of runs with different seeds; counts of commands and blocks are those of the first.
    pub fn mean(rows: Vec<Row>) -> Option<Row> {
        let of = |value: fn(&Row) -> f64| rows.iter().map(value).sum::<f64>() / rows.len() as f64;
        let mb_s = of(|row| row.mb_s);
        let most = rows.iter().map(|row| row.mb_s).fold(f64::MIN, f64::max);
        let least = rows.iter().map(|row| row.mb_s).fold(f64::MAX, f64::min);
        Some(Row {
            mb_s,
            seeds: rows.len(),
            spread: (most - least) / mb_s,
            drift: of(|row| row.drift),
            read_mb_s: of(|row| row.read_mb_s),
            p50_us: of(|row| row.p50_us),
            p95_us: of(|row| row.p95_us),
            p99_us: of(|row| row.p99_us),
            ..rows.first()?.clone()
        })
    }
}

/// Blocks written to the members, per block of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WrittenBlocks {
    pub data: f64,
    pub full_parity: f64,
    /// Partial parity that is overwritten in the ZRWA: it never stays on flash.
    pub temporary_parity: f64,
    /// Partial parity in log zones, which stays there until the log zone is reset.
    pub logged_parity: f64,
    /// Headers of logged partial parity.
    pub headers: f64,
    /// Other records, and logged write pointers.
    pub metadata: f64,
}

impl WrittenBlocks {
    /// The causes, with their names.
    pub fn causes(&self) -> [(&'static str, f64); 6] {
        [
            ("data", self.data),
            ("full parity", self.full_parity),
            ("partial parity, temporary", self.temporary_parity),
            ("partial parity, logged", self.logged_parity),
            ("headers", self.headers),
            ("metadata", self.metadata),
        ]
    }

    /// The sum of all causes.
    pub fn all(&self) -> f64 {
        self.causes().iter().map(|cause| cause.1).sum()
    }
}

/// A figure of a paper beside ours: mostly a factor (1.48 is 48 % more, 0.9 is a tenth less).
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    pub what: String,
    pub paper: f64,
    /// On the experiment's calibrated host, or on a free one if there is no other.
    pub ours: f64,
    /// On a host without costs, if that is another one.
    pub free: Option<f64>,
    /// `ours` over `paper`, less one.
    pub error: f64,
    pub kind: ClaimKind,
    pub verdict: Verdict,
    /// The best explanation of a difference, and its sensitivity to guesses.
    pub why: String,
}

/// The evidential value of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimKind {
    /// The result was in no way used for calibration.
    Prediction,
    /// It follows from the number of blocks that an array writes, or from the calibration of a drive.
    Construction,
    /// It depends on an unpublished parameter.
    Guess,
    /// Our own goal, not in any paper.
    Goal,
}

impl ClaimKind {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            ClaimKind::Prediction => "prediction",
            ClaimKind::Construction => "by construction",
            ClaimKind::Guess => "rests on a guess",
            ClaimKind::Goal => "a goal of ours",
        }
    }
}

/// Result of the comparison with a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The same direction, and the size within a quarter of the paper's or 3 percentage points.
    Matched,
    /// The same direction, another size.
    Direction,
    Missed,
}

impl Verdict {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Matched => "direction and size",
            Verdict::Direction => "direction only",
            Verdict::Missed => "not matched",
        }
    }
}

impl Claim {
    fn new(what: String, paper: f64, ours: f64, verdict: Verdict, why: String) -> Claim {
        let error = ours / paper - 1.0;
        Claim { what, paper, ours, free: None, error, kind: ClaimKind::Prediction, verdict, why }
    }

    /// Compares `ours` with `paper`, both factors. `why` explains the remaining difference.
    pub fn factor(what: impl Into<String>, paper: f64, ours: f64, why: impl Into<String>) -> Claim {
        const SAME: f64 = 0.03;
        let (theirs, gain) = (paper - 1.0, ours - 1.0);
        let verdict = if (gain - theirs).abs() <= (theirs.abs() / 4.0).max(SAME) {
            Verdict::Matched
        } else if theirs.signum() == gain.signum() && theirs.abs() > SAME && gain.abs() > SAME {
            Verdict::Direction
        } else {
            Verdict::Missed
        };
        Claim::new(what.into(), paper, ours, verdict, why.into())
    }

    /// Compares quantities that are not gains: they match within a quarter.
    pub fn share(what: impl Into<String>, paper: f64, ours: f64, why: impl Into<String>) -> Claim {
        let matched = ours == paper || (ours / paper - 1.0).abs() <= 0.25;
        let verdict = if matched { Verdict::Matched } else { Verdict::Missed };
        let claim = Claim::new(what.into(), paper, ours, verdict, why.into());
        // There is no relative error to 0.
        if paper == 0.0 { Claim { error: ours, ..claim } } else { claim }
    }

    /// A claim that a value is below a bound without saying by how much: by at least 2 %.
    pub fn below(what: impl Into<String>, bound: f64, ours: f64, why: impl Into<String>) -> Claim {
        let verdict = if ours < 0.98 * bound { Verdict::Direction } else { Verdict::Missed };
        Claim::new(format!("{} (below)", what.into()), bound, ours, verdict, why.into())
    }

    /// A claim that a value does not fall below a bound: by at most 2 %.
    pub fn at_least(what: impl Into<String>, bound: f64, ours: f64, why: impl Into<String>) -> Claim {
        let verdict = if ours >= 0.98 * bound { Verdict::Direction } else { Verdict::Missed };
        Claim::new(format!("{} (at least)", what.into()), bound, ours, verdict, why.into())
    }

    /// A claim that a value is in a range.
    pub fn within(
        what: impl Into<String>,
        (low, high): (f64, f64),
        ours: f64,
        why: impl Into<String>,
    ) -> Claim {
        let nearest = ours.clamp(low, high);
        let matched = ours == nearest;
        let verdict = if matched { Verdict::Matched } else { Verdict::Missed };
        Claim::new(format!("{} ({low} to {high})", what.into()), nearest, ours, verdict, why.into())
    }

    /// The same claim, of another kind than a prediction.
    pub fn is(self, kind: ClaimKind) -> Claim {
        Claim { kind, ..self }
    }

    /// The same claim, with the result on a host without costs.
    pub fn free(self, ours: f64) -> Claim {
        Claim { free: Some(ours), ..self }
    }
}

/// Data other than measured rows: text cells below a header.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    pub title: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows yet.
    pub fn new(title: impl Into<String>, header: &[&str]) -> Table {
        Table {
            title: title.into(),
            header: header.iter().map(|h| h.to_string()).collect(),
            rows: Vec::new(),
        }
    }
}

/// Lines over a common horizontal axis of named places.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Plot {
    pub title: String,
    pub x: String,
    pub y: String,
    pub places: Vec<String>,
    /// Places are categories, and not values of one quantity.
    pub apart: bool,
    pub lines: Vec<Line>,
    /// Figures of a paper for all places: horizontal lines.
    pub limits: Vec<(String, f64)>,
    /// Ranges of a paper for all places: bands.
    pub bands: Vec<(String, f64, f64)>,
    /// Figures of a paper for single places, by their index.
    pub points: Vec<(String, usize, f64)>,
}

/// One line of a plot: a value for each place, if there is one.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

/// Results of an experiment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    /// Its name on the command line.
    pub figure: String,
    pub title: String,
    /// Description of the runs, with notes for the reader.
    pub method: String,
    pub rows: Vec<Row>,
    pub claims: Vec<Claim>,
    pub tables: Vec<Table>,
    #[serde(skip)]
    pub plots: Vec<Plot>,
    /// Run time in seconds; in a report, beside other experiments.
    pub took_s: f64,
}

impl Figure {
    /// Adds a table of sets that could not be measured, with reasons; none if there are no such sets.
    pub fn not_measured(&mut self, missing: Vec<(String, String)>) {
        if missing.is_empty() {
            return;
        }
        let mut table = Table::new("Not measured", &["data set", "why"]);
        table.rows.extend(missing.into_iter().map(|(name, why)| vec![name, why]));
        self.tables.push(table);
    }
}

impl Plot {
    /// Throughput of each system in `rows`, which differ in `place` alone. Rows of other hosts than a free one are
    /// lines of their own.
    pub fn of(title: String, x: &str, rows: &[&Row], place: impl Fn(&Row) -> u64) -> Plot {
        let name = |row: &Row| match row.host == "free" {
            true => row.system.clone(),
            false => format!("{}, {}", row.system, row.host),
        };
        let values: Vec<(String, u64, f64)> =
            rows.iter().map(|row| (name(row), place(row), row.mb_s)).collect();
        Plot::through(title, x, "MB/s", &values)
    }

    /// Lines through values: the name of a line, a place, a value.
    pub fn through(title: impl Into<String>, x: &str, y: &str, values: &[(String, u64, f64)]) -> Plot {
        let mut places: Vec<u64> = values.iter().map(|value| value.1).collect();
        places.sort_unstable();
        places.dedup();
        let mut lines: Vec<Line> = Vec::new();
        for (name, place, value) in values {
            let at = places.binary_search(place).unwrap_or_default();
            let line = match lines.iter().position(|line| line.name == *name) {
                Some(line) => line,
                None => {
                    lines.push(Line { name: name.clone(), values: vec![None; places.len()] });
                    lines.len() - 1
                }
            };
            lines[line].values[at] = Some(*value);
        }
        let places = places.iter().map(u64::to_string).collect();
        Plot { title: title.into(), x: x.into(), y: y.into(), places, lines, ..Plot::default() }
    }

    /// Values at places that are categories, one for each place.
    pub fn named(title: impl Into<String>, y: &str, places: &[&str], lines: Vec<(String, Vec<f64>)>) -> Plot {
        let line = |(name, values): (String, Vec<f64>)| Line {
            name,
            values: values.into_iter().map(|value| value.is_finite().then_some(value)).collect(),
        };
        Plot {
            title: title.into(),
            y: y.into(),
            places: places.iter().map(|place| place.to_string()).collect(),
            apart: true,
            lines: lines.into_iter().map(line).collect(),
            ..Plot::default()
        }
    }

    /// The same with a published limit.
    pub fn limit(mut self, name: impl Into<String>, value: f64) -> Plot {
        self.limits.push((name.into(), value));
        self
    }

    /// The same with a published range.
    pub fn band(mut self, name: impl Into<String>, from: f64, to: f64) -> Plot {
        self.bands.push((name.into(), from, to));
        self
    }

    /// The same with a published value at one of the places.
    pub fn published(mut self, name: impl Into<String>, place: u64, value: f64) -> Plot {
        let at = self.places.iter().position(|name| *name == place.to_string());
        self.points.extend(at.map(|at| (name.into(), at, value)));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_verdict_follows_gain() {
        let verdict = |paper, ours| Claim::factor("", paper, ours, "").verdict;
        assert_eq!(verdict(1.48, 1.40), Verdict::Matched);
        assert_eq!(verdict(1.48, 1.10), Verdict::Direction);
        assert_eq!(verdict(1.48, 1.02), Verdict::Missed);
        assert_eq!(verdict(1.48, 0.90), Verdict::Missed);
        assert_eq!(verdict(0.991, 1.01), Verdict::Matched);
        assert_eq!(verdict(0.991, 1.2), Verdict::Missed);
        assert_eq!(verdict(3.3, 2.9), Verdict::Matched);
        assert_eq!(Claim::below("", 3075.0, 3070.0, "").verdict, Verdict::Missed);
        let at_least = |ours| Claim::at_least("", 1.0, ours, "").verdict;
        assert_eq!(
            (at_least(0.97), at_least(0.99), at_least(1.4)),
            (Verdict::Missed, Verdict::Direction, Verdict::Direction)
        );
        assert!((Claim::factor("", 2.0, 1.5, "").error + 0.25).abs() < 1e-9);
        assert_eq!(Claim::share("", 0.0, 0.0, "").error, 0.0);
        let within = |ours| Claim::within("", (0.85, 0.938), ours, "");
        assert_eq!(
            [0.84, 0.86, 0.94].map(|ours| within(ours).verdict == Verdict::Matched),
            [false, true, false]
        );
        assert!((within(0.425).error + 0.5).abs() < 1e-9 && within(0.9).error == 0.0);
    }
}
