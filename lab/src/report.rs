//! All figures as one self-contained HTML page.

use crate::{
    figure::{Claim, ClaimKind, Figure, Row, Table, Verdict, WrittenBlocks},
    plot::{self, escape},
};
use std::fmt::Write;

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>zoneraid lab</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1040px; margin: 1.5em auto; padding: 0 .8em; color: #222 }
h2 { margin-top: 2.2em; border-bottom: 1px solid #ddd }
.wide { overflow-x: auto; margin: 1em 0 }
table { border-collapse: collapse; font-size: 14px }
th, td { padding: .2em .6em; border-bottom: 1px solid #eee; text-align: right; vertical-align: top }
th:first-child, td:first-child, td.text, th.text { text-align: left }
td.text { min-width: 12em }
.matched { color: #17803d } .direction { color: #a16207 } .missed { color: #b91c1c }
details { margin: 1em 0 } summary { cursor: pointer; color: #555 }
figure { margin: 0; flex: 1 1 300px; max-width: 480px } svg { width: 100%; height: auto }
figcaption { font-size: 13px; color: #444 } figcaption span { white-space: nowrap; margin-right: .6em }
.plots { display: flex; flex-wrap: wrap; gap: 12px } .took { color: #777 }
</style></head><body>
<h1>zoneraid lab</h1>
<p>Every figure here is simulated: the real engine on emulated drives with the timing of published
single-drive measurements, in virtual time. Arrays are predictions; no parameter of a drive or host was chosen
by what an array does, and where the engine was changed after a figure was seen its section says so. Claims are
stated on the calibrated host that their section names; what a host that costs nothing would give stands beside.</p>
<p><span class="matched">Direction and size</span>: the gain is within a quarter of the paper's, or 3 percentage
points. <span class="direction">Direction only</span>: better or worse as there, by another factor.
<span class="missed">Not matched</span>: anything else. The error is ours over the paper's, less one. A claim that
holds by construction could not be otherwise, given how many blocks an array writes or what a drive was calibrated
with; one that rests on a guess moves with a parameter that nobody has published; a goal of ours is in no paper.</p>
"#;

/// The page: a summary, then the experiments.
///
/// # Errors
/// A plot cannot be drawn.
pub fn html(figures: &[Figure]) -> anyhow::Result<String> {
    let mut out = String::from(HEAD);
    summary(&mut out, figures);
    out.push_str("<ul>");
    for figure in figures {
        let _ = write!(
            out,
            "<li><a href=\"#{0}\">{0}</a>: {1} <span class=\"took\">({2:.0} s)</span></li>",
            figure.figure,
            escape(&figure.title),
            figure.took_s
        );
    }
    out.push_str("</ul>\n");
    for figure in figures {
        section(&mut out, figure)?;
    }
    out.push_str("</body></html>\n");
    Ok(out)
}

/// All claims in one table, and the number of each kind that hold.
fn summary(out: &mut String, figures: &[Figure]) {
    out.push_str("<h2 id=\"summary\">Every claim</h2>\n");
    for kind in [ClaimKind::Prediction, ClaimKind::Guess, ClaimKind::Construction, ClaimKind::Goal] {
        let of = |verdict: Option<Verdict>| {
            let claims = figures.iter().flat_map(|figure| &figure.claims);
            claims
                .filter(|claim| claim.kind == kind && verdict.is_none_or(|verdict| claim.verdict == verdict))
                .count()
        };
        let _ = writeln!(
            out,
            "<p>{}: {} claims; direction and size {}, direction only {}, not matched {}.</p>",
            kind.name(),
            of(None),
            of(Some(Verdict::Matched)),
            of(Some(Verdict::Direction)),
            of(Some(Verdict::Missed))
        );
    }
    out.push_str("<div class=\"wide\"><table><tr><th>claim</th>");
    out.push_str("<th>paper</th><th>here</th><th>free host</th><th>error</th><th class=\"text\">kind</th>");
    out.push_str("<th class=\"text\">verdict</th></tr>\n");
    for figure in figures {
        for claim in &figure.claims {
            let what = format!("<a href=\"#{0}\">{0}</a>: {1}", figure.figure, escape(&claim.what));
            claim_row(out, &what, claim, "");
        }
    }
    out.push_str("</table></div>\n");
}

/// A claim as a row; `more` are further cells.
fn claim_row(out: &mut String, what: &str, claim: &Claim, more: &str) {
    let class = match claim.verdict {
        Verdict::Matched => "matched",
        Verdict::Direction => "direction",
        Verdict::Missed => "missed",
    };
    let _ = writeln!(
        out,
        "<tr><td>{what}</td><td>{}</td><td>{}</td><td>{}</td><td>{:+.0} %</td><td class=\"text\">{}</td>\
         <td class=\"text {class}\">{}</td>{more}</tr>",
        number(claim.paper),
        number(claim.ours),
        claim.free.map(number).unwrap_or_default(),
        claim.error * 100.0,
        claim.kind.name(),
        claim.verdict.name(),
    );
}

/// With the significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

fn section(out: &mut String, figure: &Figure) -> anyhow::Result<()> {
    let _ = writeln!(out, "<h2 id=\"{0}\">{0}: {1}</h2>", figure.figure, escape(&figure.title));
    for paragraph in figure.method.split("\n\n") {
        let _ = writeln!(out, "<p>{}</p>", escape(paragraph));
    }
    if !figure.plots.is_empty() {
        out.push_str("<div class=\"plots\">\n");
        for drawn in &figure.plots {
            out.push_str(&plot::figure(drawn)?);
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
    let _ = writeln!(out, "<p class=\"took\">Computed in {:.1} s, beside others.</p>", figure.took_s);
    Ok(())
}

fn claims(out: &mut String, claims: &[Claim]) {
    out.push_str(
        "<div class=\"wide\"><table><tr><th>published</th><th>paper</th><th>here</th><th>free host</th>",
    );
    out.push_str("<th>error</th><th class=\"text\">kind</th><th class=\"text\">matched</th><th></th></tr>\n");
    for claim in claims {
        let why = format!("<td class=\"text\">{}</td>", escape(&claim.why));
        claim_row(out, &escape(&claim.what), claim, &why);
    }
    out.push_str("</table></div>\n");
}

fn cells(out: &mut String, table: &Table) {
    if !table.title.is_empty() {
        let _ = writeln!(out, "<p><b>{}</b></p>", escape(&table.title));
    }
    out.push_str("<div class=\"wide\"><table><tr>");
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
    out.push_str("</table></div>\n");
}

/// Rows of capacity efficiency.
fn rooms(rows: &[Row]) -> Table {
    let mut table = Table::new("", &["data set", "system", "bytes a byte of flash"]);
    for row in rows {
        let efficiency = row.capacity_efficiency.or(row.capacity_ratio).map(number).unwrap_or_default();
        table.rows.push(vec![row.dataset.clone().unwrap_or_default(), row.system.clone(), efficiency]);
    }
    table
}

/// Measured rows as a table.
pub fn points(rows: &[Row]) -> Table {
    if rows.iter().all(|row| row.capacity_efficiency.or(row.capacity_ratio).is_some()) {
        return rooms(rows);
    }
    let header = [
        "system",
        "host",
        "zones",
        "KiB",
        "depth",
        "MB/s",
        "± %",
        "drift %",
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
            row.host.clone(),
            row.zones.to_string(),
            row.request_kib.to_string(),
            row.depth.to_string(),
            format!("{:.0}", row.mb_s),
            if row.seeds > 1 { format!("{:.1}", row.spread * 50.0) } else { String::new() },
            if row.seeds > 0 { format!("{:+.1}", row.drift * 100.0) } else { String::new() },
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

/// Steadiness of measured rows: how many drift by more than 3 % within their window, or spread by as much over seeds,
/// if there is more than one. `None` if no row was measured in a window.
pub fn unsteady(rows: &[Row]) -> Option<Table> {
    const MOST: f64 = 0.03;
    let header = ["", "points", "the most", "more than 3 %", "of these the furthest"];
    let mut table = Table::new("Steadiness", &header);
    let mut line = |what: &str, least_seeds: usize, of: fn(&Row) -> f64| {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.seeds >= least_seeds).collect();
        let Some(furthest) = rows.iter().max_by(|a, b| of(a).total_cmp(&of(b))) else { return };
        let far = rows.iter().filter(|row| of(row) > MOST).count();
        let name =
            |row: &Row| format!("{}, {}, {} zones, {} KiB", row.system, row.host, row.zones, row.request_kib);
        table.rows.push(vec![
            what.into(),
            rows.len().to_string(),
            format!("{:.1} %", 100.0 * of(furthest)),
            far.to_string(),
            Some(furthest).filter(|row| of(row) > MOST).map(|row| name(row)).unwrap_or_default(),
        ]);
    };
    line("second half of the window to the first", 1, |row| row.drift.abs());
    line("from the lowest seed to the highest", 2, |row| row.spread);
    (!table.rows.is_empty()).then_some(table)
}

/// Blocks written, by cause, for measured rows.
pub fn written(rows: &[Row]) -> Table {
    let causes = WrittenBlocks::default().causes();
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
        let free = claim.free.map(|free| format!(" ({} on a free host)", number(free))).unwrap_or_default();
        let _ = write!(
            out,
            "\n{}: {} in the paper, {}{free} here, {:+.0} %: {}, {}",
            claim.what,
            number(claim.paper),
            number(claim.ours),
            claim.error * 100.0,
            claim.verdict.name(),
            claim.kind.name()
        );
        if !claim.why.is_empty() {
            let _ = write!(out, ". {}", claim.why);
        }
    }
    let _ = write!(out, "\n\nComputed in {:.1} s.", figure.took_s);
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
