//! Output of the commands: text for people, or one JSON object with `--json`.
//!
//! Every object carries `output_version`; within a version fields are only ever added. Their shapes are in `schemas/`.
//! Reports go to standard output, errors to standard error. A closed pipe is not an error.
//!
//! Much of the output comes from elsewhere: names of arrays and files, answers of drives and daemons. So all text
//! passes through [`visible`] on its way to a terminal, and colours are added behind that.

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::{
    cell::Cell,
    io::{ErrorKind, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Version of all JSON output.
pub const OUTPUT_VERSION: u32 = 1;

/// The command succeeded, and the array is healthy.
pub const HEALTHY: u8 = 0;
/// `status`: the array works without some of its members.
pub const DEGRADED: u8 = 1;
/// `status`: the array cannot be used.
pub const UNUSABLE: u8 = 2;
/// The command itself failed.
pub const FAILED: u8 = 4;

/// How long a transfer may take before its progress is shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// Columns below which a bar is only a percentage: a line that wraps cannot be overwritten.
const BAR_COLUMNS: u16 = 70;

const BYTES_OF: &str = "{msg:<10} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
const STEPS: &str = "{msg:<10} {wide_bar} {pos}/{len} {eta} left";
const NARROW: &str = "{msg:<10} {percent:>3} %";
const BYTES: &str = "{msg:<10} {bytes}";

/// Whether this process prints JSON, for code without an [`Output`].
static JSON: AtomicBool = AtomicBool::new(false);

/// Whether errors and notes are suppressed.
static HUSHED: AtomicBool = AtomicBool::new(false);

/// Suppresses errors and notes of this process; only the requested output is printed.
pub fn hush() {
    HUSHED.store(true, Ordering::Relaxed);
}

/// Prints a note, as [`Output::note`] does.
pub fn note(text: &str) {
    Output { json: JSON.load(Ordering::Relaxed) }.note(text);
}

/// Colour of a state: good, fair or bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shade {
    Good,
    Fair,
    Bad,
}

/// Placeholders for the start of each of the three colours and for the end, until it is known whether colours are
/// shown. They are Unicode noncharacters, which are never assigned.
const SHADES: [(char, &str); 4] =
    [('\u{fdd0}', "\x1b[32m"), ('\u{fdd1}', "\x1b[33m"), ('\u{fdd2}', "\x1b[31m"), ('\u{fdd3}', "\x1b[0m")];

/// `text` in a colour, where colours are shown.
pub fn shaded(text: &str, shade: Shade) -> String {
    format!("{}{text}{}", SHADES[shade as usize].0, SHADES[3].0)
}

/// The state of a member in its colour.
pub fn shaded_state(state: &str) -> String {
    let shade = match state {
        "active" => Shade::Good,
        "rebuilding" => Shade::Fair,
        _ => Shade::Bad,
    };
    shaded(state, shade)
}

/// Replaces the placeholders by escape sequences, or removes them.
fn paint(text: &str, colours: bool) -> String {
    SHADES.iter().fold(text.to_string(), |text, (mark, code)| {
        if text.contains(*mark) { text.replace(*mark, if colours { code } else { "" }) } else { text }
    })
}

/// Whether standard output shows colours: on a terminal, unless $NO_COLOR (<https://no-color.org>) is set.
fn has_colours() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    std::io::stdout().is_terminal() && set("NO_COLOR").is_none() && set("TERM").is_none_or(|t| t != "dumb")
}

/// Whether a terminal interprets this character: a control character, line separator or change of text direction.
fn is_interpreted(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with the characters that a terminal would interpret escaped.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_interpreted(c) && c != '\n' { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

/// As [`visible`], in one line.
pub fn in_one_line(text: &str) -> String {
    visible(text).replace('\n', "\\n")
}

/// `text` quoted as one word of a shell command.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:,@%+=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_string()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// The output format of this process.
#[derive(Clone, Copy)]
pub struct Output {
    pub json: bool,
}

#[derive(Serialize)]
struct VersionedOutput<'a, T> {
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
    /// Creates the output, and sets the format for [`note`].
    pub fn of_process(json: bool) -> Output {
        JSON.store(json, Ordering::Relaxed);
        Output { json }
    }

    /// Prints `content`: as JSON, or through `text` for people.
    pub fn print<T: Serialize>(self, content: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        if self.json {
            let json =
                serde_json::to_string_pretty(&VersionedOutput { output_version: OUTPUT_VERSION, content })?;
            self.raw(&(escaped(&json) + "\n"))
        } else {
            self.raw(&paint(&visible(&text(content)), has_colours()))
        }
    }

    /// Prints one line for people.
    pub fn line(self, line: &str) -> Result<()> {
        self.raw(&(in_one_line(line) + "\n"))
    }

    /// Prints `text` unchanged: text from outside must be escaped in it.
    pub fn raw(self, text: &str) -> Result<()> {
        ignore_closed_pipe(std::io::stdout().lock().write_all(text.as_bytes()))
            .context("standard output cannot be written")
    }

    /// Prints the reason for a failure to standard error.
    pub fn error(self, error: &str) {
        self.message(Message { output_version: OUTPUT_VERSION, error: Some(error), note: None }, error);
    }

    /// Prints a note to standard error: information for the user although nothing failed.
    pub fn note(self, note: &str) {
        self.message(Message { output_version: OUTPUT_VERSION, error: None, note: Some(note) }, note);
    }

    fn message(self, message: Message<'_>, text: &str) {
        if HUSHED.load(Ordering::Relaxed) {
            return;
        }
        let line = match serde_json::to_string(&message) {
            Ok(json) if self.json => escaped(&json),
            _ => format!("zoneraid: {}", in_one_line(text)),
        };
        // If standard error is closed there is nowhere to report that.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }

    /// A progress bar on standard error; hidden unless that is a terminal.
    pub fn bar(self, what: &str, total_bytes: u64) -> ProgressBar {
        self.progress(what, total_bytes, BYTES_OF)
    }

    /// As [`Output::bar`], in steps.
    pub fn steps(self, what: &str, steps: u64) -> ProgressBar {
        self.progress(what, steps, STEPS)
    }

    /// The progress of a copy to or from a zone, shown once it has taken longer than `PATIENCE`. The total of a pipe is
    /// not known.
    pub fn transfer(self, what: &str, total_bytes: Option<u64>) -> CopyProgress {
        let hidden = ProgressDrawTarget::hidden();
        let bar = ProgressBar::with_draw_target(total_bytes, hidden);
        let template = if total_bytes.is_some() { BYTES_OF } else { BYTES };
        CopyProgress { bar: dress(bar, what, template), pending: Cell::new(self.is_watched()) }
    }

    /// Whether standard error is a terminal, and the output not JSON.
    fn is_watched(self) -> bool {
        !self.json && std::io::stderr().is_terminal()
    }

    fn progress(self, what: &str, total: u64, template: &str) -> ProgressBar {
        let bar = if self.is_watched() { ProgressBar::new(total) } else { ProgressBar::hidden() };
        dress(bar, what, template)
    }
}

/// JSON with the characters that a terminal would interpret escaped inside the strings too.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_interpreted(c) && c != '\n' { text += &format!("\\u{:04x}", c as u32) } else { text.push(c) }
    }
    text
}

fn dress(bar: ProgressBar, what: &str, template: &str) -> ProgressBar {
    let narrow = rustix::termios::tcgetwinsize(std::io::stderr())
        .is_ok_and(|size| (1..BAR_COLUMNS).contains(&size.ws_col));
    let template = if narrow && template.contains("wide_bar") { NARROW } else { template };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.with_message(what.to_string())
}

/// Progress bar of a copy; removed from the screen when dropped.
pub struct CopyProgress {
    bar: ProgressBar,
    /// Whether the bar is still to be shown.
    pending: Cell<bool>,
}

impl CopyProgress {
    /// Sets the bytes done.
    pub fn set_position(&self, bytes: u64) {
        if self.pending.get() && self.bar.elapsed() > PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.pending.set(false);
        }
        self.bar.set_position(bytes);
    }
}

impl Drop for CopyProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Turns the error of a closed pipe into success.
pub fn ignore_closed_pipe(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Lays `rows` out in columns as wide as their widest cell; numbers are right-aligned.
pub fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|t| in_one_line(t)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let count = |cell: &str| cell.chars().filter(|c| SHADES.iter().all(|(mark, _)| mark != c)).count();
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| count(t)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    // As in `12`, `1.5 GiB`, `3 of 5`, and `-` for none.
    let is_number = |cell: &str| cell.split(' ').next().is_some_and(|word| word.parse::<f64>().is_ok());
    let numeric = |c: usize| {
        let mut cells = rows.iter().skip(1).filter_map(|r| r.get(c)).map(String::as_str);
        cells.clone().any(is_number) && cells.all(|cell| cell == "-" || is_number(cell))
    };
    let right: Vec<bool> = (0..columns).map(numeric).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column] - count(cell));
            let (before, after) = if right[column] { (pad.as_str(), "") } else { ("", pad.as_str()) };
            line += &format!(" {before}{cell}{after} ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Formats sixteen bytes as a UUID.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Parses a UUID in the format of [`uuid`].
pub fn parse_uuid(text: &str) -> Result<[u8; 16]> {
    let number = u128::from_str_radix(&text.replace('-', ""), 16);
    Ok(number.with_context(|| format!("'{text}' is no UUID"))?.to_be_bytes())
}

/// A random version 4 UUID.
pub fn new_uuid() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| anyhow::anyhow!("the system gives no random numbers: {e}"))?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}

/// Fields that are only in `content` as printed, or only in the schema file `schema`. For output that cannot be
/// produced on every machine.
#[cfg(test)]
pub fn undescribed<T: Serialize>(content: &T, schema: &str) -> Vec<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas").join(schema);
    let schema: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let printed = serde_json::to_value(VersionedOutput { output_version: OUTPUT_VERSION, content }).unwrap();
    let fields = |value: &serde_json::Value| -> std::collections::BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    fields(&printed).symmetric_difference(&fields(&schema["properties"])).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_escapes_terminal_control_characters() {
        assert_eq!(visible("a\x1b[2Jb\r\u{9b}1m\n\u{202e}ü"), "a\\u{1b}[2Jb\\u{d}\\u{9b}1m\n\\u{202e}ü");
        assert_eq!(in_one_line("two\nlines"), "two\\nlines");
        let text = "\x7f\u{9b}\u{202e}\n";
        let json = escaped(&serde_json::to_string(text).unwrap());
        assert!(!json.chars().any(is_interpreted), "{json:?}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn output_shades_are_colours_without_width() {
        let good = shaded("well", Shade::Good);
        assert_eq!(
            (paint(&good, true).as_str(), paint(&good, false).as_str()),
            ("\x1b[32mwell\x1b[0m", "well")
        );
        let rows = [vec![good, "x".to_string()], vec!["better".to_string(), "y".to_string()]];
        assert_eq!(paint(&table(&rows), false), "  well    x\n  better  y\n");
    }

    #[test]
    fn output_table_aligns_only_numbers_right() {
        let rows = [["WP", "UUID"], ["7", "91b2aa9c-56d5"], ["-", "b2"], ["1.5 GiB", "0"]];
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.map(String::from).to_vec()).collect();
        let text = "       WP  UUID\n        7  91b2aa9c-56d5\n        -  b2\n  1.5 GiB  0\n";
        assert_eq!(table(&rows), text);
    }

    #[test]
    fn output_quotes_words_for_shell_if_needed() {
        assert_eq!(quoted("/dev/ng0n1"), "/dev/ng0n1");
        assert_eq!(quoted("my array"), "'my array'");
        assert_eq!(quoted("it's; rm -rf $HOME"), r"'it'\''s; rm -rf $HOME'");
        assert_eq!(quoted(""), "''");
    }
}
