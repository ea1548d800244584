//! Plots as SVG.

use crate::figure::Plot;
use plotters::prelude::*;
use std::fmt::Write;

const SIZE: (u32, u32) = (480, 300);
const FONT: &str = "sans-serif";

/// A colour for each system, the same in every plot.
fn colour(name: &str, index: usize) -> RGBColor {
    match name {
        "RAIZN" => RGBColor(150, 150, 150),
        "RAIZN+" => RGBColor(217, 95, 2),
        "Z" => RGBColor(230, 171, 2),
        "Z+S" => RGBColor(102, 166, 30),
        "Z+S+M" => RGBColor(166, 118, 29),
        "ZRAID" => RGBColor(31, 120, 180),
        "zoneraid" => RGBColor(196, 20, 60),
        "Zebra" => RGBColor(106, 61, 154),
        "zoneraid, daemon" => RGBColor(251, 106, 74),
        "zoneraid, mq-deadline" => RGBColor(231, 41, 138),
        name if name.ends_with(", mq-deadline") => colour(name.trim_end_matches(", mq-deadline"), index),
        _ => {
            const OTHERS: [RGBColor; 8] = [
                RGBColor(27, 158, 119),
                RGBColor(217, 95, 2),
                RGBColor(117, 112, 179),
                RGBColor(231, 41, 138),
                RGBColor(102, 166, 30),
                RGBColor(230, 171, 2),
                RGBColor(166, 118, 29),
                RGBColor(102, 102, 102),
            ];
            OTHERS[index % OTHERS.len()]
        }
    }
}

/// What the papers state.
const PAPER: RGBColor = RGBColor(60, 60, 60);

/// The plot as a `<figure>` with an `<svg>`, and below it what its lines, bands and points are.
///
/// # Errors
/// What the plotting library says.
pub fn figure(plot: &Plot) -> anyhow::Result<String> {
    let mut svg = String::new();
    draw(plot, &mut svg).map_err(|error| anyhow::anyhow!("plot '{}': {error}", plot.title))?;
    let mut legend = String::new();
    let mut entry = |sign: &str, colour: RGBColor, name: &str| {
        let RGBColor(r, g, b) = colour;
        let name = escape(name);
        let _ = write!(legend, "<span><b style=\"color:rgb({r},{g},{b})\">{sign}</b> {name}</span> ");
    };
    for (index, line) in plot.lines.iter().enumerate() {
        entry("&#9679;", colour(&line.name, index), &line.name);
    }
    plot.limits.iter().for_each(|(name, _)| entry("- -", PAPER, name));
    plot.bands.iter().for_each(|(name, ..)| entry("&#9618;", PAPER, name));
    let mut points: Vec<&String> = plot.points.iter().map(|point| &point.0).collect();
    points.dedup();
    points.into_iter().for_each(|name| entry("&#10005;", PAPER, name));
    Ok(format!("<figure>{svg}<figcaption>{legend}</figcaption></figure>\n"))
}

/// Where the vertical axis ends.
fn top(plot: &Plot) -> f64 {
    let values = plot.lines.iter().flat_map(|line| line.values.iter().flatten().copied());
    let stated = plot.limits.iter().map(|limit| limit.1).chain(plot.bands.iter().map(|band| band.2));
    let points = plot.points.iter().map(|point| point.2);
    let most = values.chain(stated).chain(points).filter(|value| value.is_finite()).fold(0.0, f64::max);
    if most > 0.0 { most * 1.08 } else { 1.0 }
}

fn draw(plot: &Plot, out: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(out, SIZE).into_drawing_area();
    let (top, last) = (top(plot), plot.places.len().saturating_sub(1) as i32);
    let mut chart = ChartBuilder::on(&root)
        .caption(&plot.title, (FONT, 16))
        .margin(8)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0..last.max(1), 0.0..top)?;
    let name_of = |x: &i32| plot.places.get(*x as usize).cloned().unwrap_or_default();
    let digits = if top < 3.0 { 2 } else { usize::from(top < 30.0) };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .x_labels(plot.places.len().min(16))
        .x_label_formatter(&name_of)
        .y_label_formatter(&|y| format!("{y:.digits$}"))
        .x_desc(&plot.x)
        .y_desc(&plot.y)
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 13))
        .draw()?;
    for (_, from, to) in &plot.bands {
        chart.draw_series([Rectangle::new([(0, *from), (last.max(1), *to)], PAPER.mix(0.12).filled())])?;
    }
    for (_, limit) in &plot.limits {
        let ends = [(0, *limit), (last.max(1), *limit)];
        chart.draw_series(DashedLineSeries::new(ends, 5, 4, PAPER.mix(0.7).stroke_width(1)))?;
    }
    for (index, line) in plot.lines.iter().enumerate() {
        let colour = colour(&line.name, index);
        let points =
            || line.values.iter().enumerate().filter_map(|(place, value)| Some((place as i32, (*value)?)));
        chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?;
        chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    let crosses = plot
        .points
        .iter()
        .map(|(_, place, value)| Cross::new((*place as i32, *value), 5, PAPER.stroke_width(2)));
    chart.draw_series(crosses)?;
    root.present()?;
    drop(chart);
    Ok(())
}

/// Text as HTML shows it.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
