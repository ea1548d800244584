//! All figures as one HTML page that needs nothing else.

use crate::{
    figure::{Claim, Figure, Row, Table, Verdict, Written},
    plot,
};
use std::fmt::Write;

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>zoneraid lab</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #222 }
h2 { margin-top: 2.2em; border-bottom: 1px solid #ddd }
table { border-collapse: collapse; font-size: 13px; margin: 1em 0 }
th, td { padding: .15em .7em; border-bottom: 1px solid #eee; text-align: right; vertical-align: top }
th:first-child, td:first-child, td.text { text-align: left }
.matched { color: #17803d } .direction { color: #a16207 } .missed { color: #b91c1c }
details { margin: 1em 0 } summary { cursor: pointer; color: #555 }
svg { max-width: 100%; height: auto } .plots { display: flex; flex-wrap: wrap; gap: 8px }
</style></head><body>
<h1>zoneraid lab</h1>
<p>Every figure here is simulated: the real engine on emulated drives with the timing of published
single-drive measurements, in virtual time. Arrays are predictions; no parameter was chosen by what an
array does. Processors and kernels cost nothing here, drives alone do.</p>
<p>Beside each published figure is ours. <span class="matched">Direction and size</span>: the gain is within a
quarter of the paper's, or 3 percentage points. <span class="direction">Direction only</span>: better or worse as
there, by another factor. <span class="missed">Not matched</span>: anything else.</p>
"#;

/// The page.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn html(figures: &[Figure]) -> anyhow::Result<String> {
    let mut out = String::from(HEAD);
    out.push_str("<ul>");
    for figure in figures {
        let _ = write!(out, "<li><a href=\"#{0}\">{0}</a>: {1}</li>", figure.figure, escape(&figure.title));
    }
    out.push_str("</ul>\n");
    for figure in figures {
        section(&mut out, figure)?;
    }
    out.push_str("</body></html>\n");
    Ok(out)
}

fn section(out: &mut String, figure: &Figure) -> anyhow::Result<()> {
    let _ = writeln!(out, "<h2 id=\"{0}\">{0}: {1}</h2>", figure.figure, escape(&figure.title));
    for paragraph in figure.method.split("\n\n") {
        let _ = writeln!(out, "<p>{}</p>", escape(paragraph));
    }
    if !figure.plots.is_empty() {
        out.push_str("<div class=\"plots\">\n");
        for drawn in &figure.plots {
            out.push_str(&plot::svg(drawn)?);
        }
        out.push_str("</div>\n");
    }
    if !figure.claims.is_empty() {
        claims(out, &figure.claims);
    }
    for table in &figure.tables {
        cells(out, table);
    }
    if !figure.rows.is_empty() {
        out.push_str("<details><summary>All points</summary>\n");
        cells(out, &points(&figure.rows));
        out.push_str("</details>\n");
    }
    Ok(())
}

fn claims(out: &mut String, claims: &[Claim]) {
    out.push_str("<table><tr><th>published</th><th>paper</th><th>here</th><th>matched</th><th></th></tr>\n");
    for claim in claims {
        let class = match claim.verdict {
            Verdict::Matched => "matched",
            Verdict::Direction => "direction",
            Verdict::Missed => "missed",
        };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{:.3} ×</td><td>{:.3} ×</td><td class=\"text {class}\">{}</td><td class=\"text\">{}</td></tr>",
            escape(&claim.what),
            claim.paper,
            claim.ours,
            claim.verdict.name(),
            escape(&claim.why)
        );
    }
    out.push_str("</table>\n");
}

fn cells(out: &mut String, table: &Table) {
    if !table.title.is_empty() {
        let _ = writeln!(out, "<p><b>{}</b></p>", escape(&table.title));
    }
    out.push_str("<table><tr>");
    for cell in &table.header {
        let _ = write!(out, "<th>{}</th>", escape(cell));
    }
    out.push_str("</tr>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{}</td>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
}

/// Measured rows as a table.
pub fn points(rows: &[Row]) -> Table {
    let header = [
        "system",
        "zones",
        "KiB",
        "depth",
        "MB/s",
        "paper",
        "flash WA",
        "p50 µs",
        "p99 µs",
        "writes/MiB",
        "flushes/MiB",
    ];
    let mut table = Table::new("", &header);
    for row in rows {
        table.rows.push(vec![
            row.system.clone(),
            row.zones.to_string(),
            row.request_kib.to_string(),
            row.depth.to_string(),
            format!("{:.0}", row.mb_s),
            row.paper_mb_s.map(|paper| format!("{paper:.0}")).unwrap_or_default(),
            format!("{:.2}", row.flash_write_amplification),
            format!("{:.0}", row.p50_us),
            format!("{:.0}", row.p99_us),
            format!("{:.0}", row.writes_per_mib),
            format!("{:.1}", row.explicit_flushes_per_mib),
        ]);
    }
    table
}

/// What measured rows wrote, by cause.
pub fn written(rows: &[Row]) -> Table {
    let causes = Written::default().causes();
    let mut header = vec!["blocks for each of the host's", "KiB", "zones"];
    header.extend(causes.iter().map(|cause| cause.0));
    let mut table = Table::new("", &header);
    for row in rows {
        let mut cells = vec![row.system.clone(), row.request_kib.to_string(), row.zones.to_string()];
        cells.extend(row.written.causes().iter().map(|cause| format!("{:.3}", cause.1)));
        table.rows.push(cells);
    }
    table
}

/// A figure for the terminal.
pub fn text(figure: &Figure) -> String {
    let mut out = format!("{}: {}\n", figure.figure, figure.title);
    let rows = (!figure.rows.is_empty()).then(|| points(&figure.rows));
    for table in rows.iter().chain(&figure.tables) {
        out.push('\n');
        out.push_str(&self::table(table));
    }
    for claim in &figure.claims {
        let _ = write!(
            out,
            "\n{}: {:.3} × in the paper, {:.3} × here: {}",
            claim.what,
            claim.paper,
            claim.ours,
            claim.verdict.name()
        );
        if !claim.why.is_empty() {
            let _ = write!(out, ". {}", claim.why);
        }
    }
    out
}

/// A table for the terminal.
pub fn table(table: &Table) -> String {
    let mut out = String::new();
    if !table.title.is_empty() {
        let _ = writeln!(out, "{}", table.title);
    }
    let lines = || std::iter::once(&table.header).chain(&table.rows);
    let widths: Vec<usize> = (0..table.header.len())
        .map(|column| {
            lines().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    for line in lines() {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(out, "{cell:<width$}"),
                _ => write!(out, "  {cell:>width$}"),
            };
        }
        out.push('\n');
    }
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
