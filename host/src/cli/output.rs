//! What the commands print: text for people, or one JSON object with `--json`.
//!
//! Every object carries `output_version`; within a version fields are only ever added. Their
//! shapes are in `schemas/`. Reports go to standard output, errors to standard error. A reader
//! that has gone away (a broken pipe) is not an error.

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::{
    cell::Cell,
    io::{ErrorKind, IsTerminal, Write},
    time::Duration,
};

/// Version of all JSON output.
pub const OUTPUT_VERSION: u32 = 1;

/// The command did what it was asked, and the array is healthy.
pub const HEALTHY: u8 = 0;
/// `status`: the array works without some of its members.
pub const DEGRADED: u8 = 1;
/// `status`: the array cannot be used.
pub const UNUSABLE: u8 = 2;
/// The command itself failed.
pub const FAILED: u8 = 4;

/// How long a transfer may take before its progress is shown.
const PATIENCE: Duration = Duration::from_secs(2);

const BYTES_OF: &str = "{msg:<10} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
const BYTES: &str = "{msg:<10} {bytes} {bytes_per_sec}";

/// Where output goes.
#[derive(Clone, Copy)]
pub struct Output {
    pub json: bool,
}

#[derive(Serialize)]
struct Versioned<'a, T> {
    output_version: u32,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Serialize)]
struct Message<'a> {
    output_version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
}

impl Output {
    /// Prints `content`: as it is in JSON, through `text` for people.
    pub fn print<T: Serialize>(self, content: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        let text = if self.json {
            serde_json::to_string_pretty(&Versioned { output_version: OUTPUT_VERSION, content })? + "\n"
        } else {
            text(content)
        };
        quiet_if_nobody_reads(std::io::stdout().lock().write_all(text.as_bytes()))
            .context("standard output cannot be written")
    }

    /// Prints one line for people.
    pub fn line(self, line: &str) -> Result<()> {
        quiet_if_nobody_reads(writeln!(std::io::stdout().lock(), "{line}"))
            .context("standard output cannot be written")
    }

    /// Says why the command failed.
    pub fn error(self, error: &str) {
        self.message(Message { output_version: OUTPUT_VERSION, error: Some(error), note: None }, error);
    }

    /// Says something the user should know although nothing failed.
    pub fn note(self, note: &str) {
        self.message(Message { output_version: OUTPUT_VERSION, error: None, note: Some(note) }, note);
    }

    fn message(self, message: Message<'_>, text: &str) {
        let line = match serde_json::to_string(&message) {
            Ok(json) if self.json => json,
            _ => format!("zoneraid: {text}"),
        };
        // There is nobody left to tell if standard error is gone.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }

    /// A bar on standard error for what may take long; hidden unless a person watches.
    pub fn bar(self, what: &str, total_bytes: u64) -> ProgressBar {
        self.progress(what, total_bytes, BYTES_OF)
    }

    /// As [`Output::bar`], for a handful of steps.
    pub fn steps(self, what: &str, steps: u64) -> ProgressBar {
        self.progress(what, steps, "{msg:<10} {wide_bar} {pos}/{len}")
    }

    /// How far a copy to or from a zone is; shown once it has taken longer than [`PATIENCE`]. The
    /// total is not known of a pipe.
    pub fn transfer(self, what: &str, total_bytes: Option<u64>) -> Transfer {
        let hidden = ProgressDrawTarget::hidden();
        let bar = ProgressBar::with_draw_target(total_bytes, hidden);
        let template = if total_bytes.is_some() { BYTES_OF } else { BYTES };
        Transfer { bar: dress(bar, what, template), pending: Cell::new(self.is_watched()) }
    }

    /// Whether a person looks at standard error.
    fn is_watched(self) -> bool {
        !self.json && std::io::stderr().is_terminal()
    }

    fn progress(self, what: &str, total: u64, template: &str) -> ProgressBar {
        let bar = if self.is_watched() { ProgressBar::new(total) } else { ProgressBar::hidden() };
        dress(bar, what, template)
    }
}

fn dress(bar: ProgressBar, what: &str, template: &str) -> ProgressBar {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.with_message(what.to_string())
}

/// The progress of a copy; gone from the screen when dropped.
pub struct Transfer {
    bar: ProgressBar,
    /// Whether it is to be shown, and has not been yet.
    pending: Cell<bool>,
}

impl Transfer {
    /// So much is done.
    pub fn set_position(&self, bytes: u64) {
        if self.pending.get() && self.bar.elapsed() > PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.pending.set(false);
        }
        self.bar.set_position(bytes);
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Turns the error of a reader that has gone away into success.
pub fn quiet_if_nobody_reads(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Lays `rows` out in columns that are as wide as their widest cell; numbers to the right.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let numeric = |c: usize| {
        rows.len() > 1
            && rows[1..].iter().filter_map(|r| r.get(c)).all(|t| t.starts_with(|c: char| c.is_ascii_digit()))
    };
    let right: Vec<bool> = (0..columns).map(numeric).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            let (before, after) = if right[column] { (pad.as_str(), "") } else { ("", pad.as_str()) };
            line += &format!(" {before}{cell}{after} ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Sixteen bytes the way UUIDs are written.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// A random version 4 UUID.
pub fn new_uuid() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| anyhow::anyhow!("the system gives no random numbers: {e}"))?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}

/// Fields that only one of `content`, as it is printed, and the schema in the file `schema` has. For
/// what cannot be printed on every machine.
#[cfg(test)]
pub fn undescribed<T: Serialize>(content: &T, schema: &str) -> Vec<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas").join(schema);
    let schema: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let printed = serde_json::to_value(Versioned { output_version: OUTPUT_VERSION, content }).unwrap();
    let fields = |value: &serde_json::Value| -> std::collections::BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    fields(&printed).symmetric_difference(&fields(&schema["properties"])).cloned().collect()
}
