//! Reports on scrubs: the present or last one, and earlier ones.

use crate::process::{
    output::table,
    size::{bytes, show},
};
use engine::array::{ScrubFinding, ScrubFindingKind};
use indicatif::HumanDuration;
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// Most findings that a report lists.
pub const MOST_FINDINGS: usize = 256;

/// State of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubState {
    /// The array has never been scrubbed.
    #[default]
    Never,
    Running,
    Paused,
    Complete,
    /// Ended by the operator.
    Stopped,
}

impl ScrubState {
    /// Whether the scrub has not ended.
    pub fn is_under_way(self) -> bool {
        matches!(self, ScrubState::Running | ScrubState::Paused)
    }
}

impl fmt::Display for ScrubState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ScrubState::Never => "never",
            ScrubState::Running => "running",
            ScrubState::Paused => "paused",
            ScrubState::Complete => "complete",
            ScrubState::Stopped => "stopped",
        })
    }
}

/// Blocks that a scrub found wrong, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubErrors {
    /// Blocks that a drive could not read.
    pub unreadable: u64,
    /// Blocks that a drive returned wrong.
    pub wrong: u64,
    /// Blocks of stripes that contradict their parity, where it is not known which block is wrong.
    pub contradictions: u64,
}

impl ScrubErrors {
    pub fn sum(&self) -> u64 {
        self.unreadable + self.wrong + self.contradictions
    }
}

/// Name of a kind of error in reports.
pub fn kind_of(kind: ScrubFindingKind) -> &'static str {
    match kind {
        ScrubFindingKind::Unreadable => "unreadable",
        ScrubFindingKind::Wrong => "wrong",
        ScrubFindingKind::Contradiction => "contradictory",
    }
}

/// A range of blocks that a scrub found wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingReport {
    /// Role of the member; `None` if it is not known which member is wrong.
    pub role: Option<u32>,
    pub zone: u32,
    /// Offset in the member's part of the zone.
    pub offset_bytes: u64,
    pub length_bytes: u64,
    /// `unreadable`, `wrong` or `contradictory`.
    pub kind: String,
    pub repaired: bool,
}

/// A scrub: the present one, or one that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScrubReport {
    pub state: ScrubState,
    /// Only zones that were not read by the last complete scrub are read.
    pub since_last: bool,
    /// Times in seconds since 1970.
    pub started_at: u64,
    pub ended_at: Option<u64>,
    /// Milliseconds for which it ran.
    pub active_ms: u64,
    /// Bytes of all members.
    pub scanned_bytes: u64,
    pub total_bytes: u64,
    pub bytes_per_second: u64,
    /// `None` if it does not run, or has just begun.
    pub seconds_left: Option<u64>,
    pub repaired_bytes: u64,
    pub unrecoverable_bytes: u64,
    pub errors: ScrubErrors,
    /// The first findings.
    pub findings: Vec<FindingReport>,
}

impl ScrubReport {
    /// Adds what the scrub of a zone has found.
    pub fn add(&mut self, findings: &[ScrubFinding]) {
        for finding in findings {
            let blocks = finding.to - finding.from;
            let kind = kind_of(finding.kind);
            *match finding.kind {
                ScrubFindingKind::Unreadable => &mut self.errors.unreadable,
                ScrubFindingKind::Wrong => &mut self.errors.wrong,
                ScrubFindingKind::Contradiction => &mut self.errors.contradictions,
            } += blocks;
            let sum =
                if finding.is_repaired { &mut self.repaired_bytes } else { &mut self.unrecoverable_bytes };
            *sum += bytes(blocks);
            let role = finding.member.map(|member| member as u32);
            let (offset_bytes, length_bytes) = (bytes(finding.from), bytes(blocks));
            if let Some(last) = self.findings.last_mut()
                && (last.role, last.zone, &*last.kind, last.repaired)
                    == (role, finding.zone, kind, finding.is_repaired)
                && last.offset_bytes + last.length_bytes == offset_bytes
            {
                last.length_bytes += length_bytes;
            } else if self.findings.len() < MOST_FINDINGS {
                let (zone, repaired) = (finding.zone, finding.is_repaired);
                let kind = kind.to_string();
                self.findings.push(FindingReport { role, zone, offset_bytes, length_bytes, kind, repaired });
            }
        }
    }

    /// Updates the rate and the time that is left.
    pub fn estimate(&mut self) {
        let bytes = self.scanned_bytes.saturating_mul(1000);
        self.bytes_per_second = bytes.checked_div(self.active_ms).unwrap_or_default();
        let left = self.total_bytes.saturating_sub(self.scanned_bytes);
        let runs = self.state == ScrubState::Running && self.bytes_per_second > 0;
        self.seconds_left = runs.then(|| left.div_ceil(self.bytes_per_second));
    }

    /// Progress or result in one line.
    pub fn line(&self) -> String {
        let percent = self.scanned_bytes.saturating_mul(100) / self.total_bytes.max(1);
        let left = self.seconds_left.map(|s| format!(", {} left", HumanDuration(Duration::from_secs(s))));
        let done = match self.state {
            ScrubState::Never => return "never".into(),
            ScrubState::Running | ScrubState::Paused => {
                format!("{}, {} %{}", self.state, percent.min(100), left.unwrap_or_default())
            }
            ScrubState::Complete | ScrubState::Stopped => {
                let when = self.ended_at.map(date).unwrap_or_default();
                format!("{} {when}, {} read", self.state, show(self.scanned_bytes))
            }
        };
        format!("{done}, {}", self.result())
    }

    /// Number of errors, and the bytes that were repaired and that could not be.
    fn result(&self) -> String {
        match self.errors.sum() {
            0 => "no errors".into(),
            1 => format!(
                "1 error, {} repaired, {} not",
                show(self.repaired_bytes),
                show(self.unrecoverable_bytes)
            ),
            errors => format!(
                "{errors} errors, {} repaired, {} not",
                show(self.repaired_bytes),
                show(self.unrecoverable_bytes)
            ),
        }
    }
}

/// A time in seconds since 1970, as date and time of day (UTC).
fn date(seconds: u64) -> String {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.replace('T', " ").trim_end_matches('Z').into()
}

/// The scrubs of an array.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScrubStatus {
    pub array: String,
    pub uuid: String,
    /// The present scrub, or else the last one.
    #[serde(flatten)]
    pub scrub: ScrubReport,
    /// Scrubs that have ended, the last one first.
    pub history: Vec<ScrubReport>,
}

impl ScrubStatus {
    pub fn text(&self) -> String {
        let mut text = format!("{}: scrub {}\n", self.array, self.scrub.line());
        for finding in &self.scrub.findings {
            let of = finding.role.map_or("a member".into(), |role| format!("member {role}"));
            let done = if finding.repaired { "repaired" } else { "not repaired" };
            let (length, offset) = (show(finding.length_bytes), show(finding.offset_bytes));
            text +=
                &format!("  zone {}, {of}, {length} at {offset}: {}, {done}\n", finding.zone, finding.kind);
        }
        if !self.history.is_empty() {
            let head = ["STARTED", "ENDED", "STATE", "READ", "RATE", "ERRORS", "REPAIRED", "NOT REPAIRED"];
            let row = |scrub: &ScrubReport| {
                vec![
                    date(scrub.started_at),
                    scrub.ended_at.map(date).unwrap_or_default(),
                    scrub.state.to_string(),
                    show(scrub.scanned_bytes),
                    format!("{}/s", show(scrub.bytes_per_second)),
                    scrub.errors.sum().to_string(),
                    show(scrub.repaired_bytes),
                    show(scrub.unrecoverable_bytes),
                ]
            };
            let rows = [head.map(String::from).to_vec()].into_iter().chain(self.history.iter().map(row));
            text += "\n";
            text += &table(&rows.collect::<Vec<_>>());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrub_report_counts_and_merges_findings() {
        let mut report = ScrubReport::default();
        let finding = |from, kind, is_repaired| ScrubFinding {
            zone: 1,
            member: Some(2),
            from,
            to: from + 1,
            kind,
            is_repaired,
        };
        let (unreadable, wrong) = (ScrubFindingKind::Unreadable, ScrubFindingKind::Wrong);
        report.add(&[finding(4, unreadable, true), finding(5, unreadable, true), finding(6, wrong, false)]);
        assert_eq!(report.errors, ScrubErrors { unreadable: 2, wrong: 1, contradictions: 0 });
        assert_eq!((report.repaired_bytes, report.unrecoverable_bytes), (8192, 4096));
        let listed: Vec<_> =
            report.findings.iter().map(|f| (f.offset_bytes, f.length_bytes, f.repaired)).collect();
        assert_eq!(listed, [(16384, 8192, true), (24576, 4096, false)]);
        report.add(&vec![finding(9, wrong, true); 1000]);
        assert_eq!(report.findings.len(), MOST_FINDINGS);
        assert_eq!(date(0), "1970-01-01 00:00:00");
    }
}
