//! What an experiment gives: measured rows, what a paper claims beside what was found, tables.

use serde::Serialize;

/// One measured point. Throughput is of the host's data; 1 MB is 10⁶ bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub system: String,
    /// Zones that are written at the same time, one job each.
    pub zones: u32,
    pub request_kib: u64,
    /// Requests of a job that are on their way.
    pub depth: u32,
    pub mb_s: f64,
    /// Of reads beside the writes; 0 without any.
    pub read_mb_s: f64,
    /// Blocks that stay on flash, for each block of the host's.
    pub flash_write_amplification: f64,
    /// What the paper says, where it publishes a number.
    pub paper_mb_s: Option<f64>,
    /// Latency of a request: median and 99th percentile.
    pub p50_us: f64,
    pub p99_us: f64,
    /// What the array wrote to its members, by cause.
    pub written: Written,
    /// Commands to members for each MiB of the host's: writes, and explicit ZRWA flushes.
    pub writes_per_mib: f64,
    pub explicit_flushes_per_mib: f64,
}

/// Blocks written to the members, for each block of the host's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Written {
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

impl Written {
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

    /// All of it.
    pub fn all(&self) -> f64 {
        self.causes().iter().map(|cause| cause.1).sum()
    }
}

/// A figure of a paper, as a factor (1.48 is 48 % more, 0.9 is a tenth less), beside ours.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    pub what: String,
    pub paper: f64,
    pub ours: f64,
    pub verdict: Verdict,
    /// The best explanation of a difference.
    pub why: String,
}

/// How a claim compares.
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
    /// What the report calls it.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Matched => "direction and size",
            Verdict::Direction => "direction only",
            Verdict::Missed => "not matched",
        }
    }
}

impl Claim {
    /// Compares `ours` with `paper`, both factors. `why` explains what is left between them.
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
        Claim { what: what.into(), paper, ours, verdict, why: why.into() }
    }

    /// Compares quantities that are no gains: they match within a quarter.
    pub fn share(what: impl Into<String>, paper: f64, ours: f64, why: impl Into<String>) -> Claim {
        let verdict = if (ours / paper - 1.0).abs() <= 0.25 { Verdict::Matched } else { Verdict::Missed };
        Claim { what: what.into(), paper, ours, verdict, why: why.into() }
    }
}

/// Anything that is not a measured row: text cells below a header.
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
#[derive(Clone, Debug, Serialize)]
pub struct Plot {
    pub title: String,
    pub x: String,
    pub y: String,
    pub places: Vec<String>,
    pub lines: Vec<Line>,
    /// Published limits: horizontal lines.
    pub limits: Vec<(String, f64)>,
}

/// One line of a plot: a value for each place, where there is one.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

/// What an experiment found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    /// As on the command line.
    pub figure: String,
    pub title: String,
    /// What was run, and what the reader should know of it.
    pub method: String,
    pub rows: Vec<Row>,
    pub claims: Vec<Claim>,
    pub tables: Vec<Table>,
    #[serde(skip)]
    pub plots: Vec<Plot>,
}

impl Plot {
    /// Throughput of each system in `rows`, which all have the same value in everything but `place`.
    pub fn of(title: String, x: &str, rows: &[&Row], place: impl Fn(&Row) -> u64) -> Plot {
        let mut places: Vec<u64> = rows.iter().map(|row| place(row)).collect();
        places.sort_unstable();
        places.dedup();
        let mut lines: Vec<Line> = Vec::new();
        for row in rows {
            let at = places.binary_search(&place(row)).unwrap_or_default();
            let line = match lines.iter().position(|line| line.name == row.system) {
                Some(line) => line,
                None => {
                    lines.push(Line { name: row.system.clone(), values: vec![None; places.len()] });
                    lines.len() - 1
                }
            };
            lines[line].values[at] = Some(row.mb_s);
        }
        let places = places.iter().map(u64::to_string).collect();
        Plot { title, x: x.into(), y: "MB/s".into(), places, lines, limits: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_judged_by_their_gain() {
        let verdict = |paper, ours| Claim::factor("", paper, ours, "").verdict;
        assert_eq!(verdict(1.48, 1.40), Verdict::Matched);
        assert_eq!(verdict(1.48, 1.10), Verdict::Direction);
        assert_eq!(verdict(1.48, 1.02), Verdict::Missed);
        assert_eq!(verdict(1.48, 0.90), Verdict::Missed);
        assert_eq!(verdict(0.991, 1.01), Verdict::Matched);
        assert_eq!(verdict(0.991, 1.2), Verdict::Missed);
        assert_eq!(verdict(3.3, 2.9), Verdict::Matched);
    }
}
