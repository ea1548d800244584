//! Plots as SVG.

use crate::figure::Plot;
use plotters::prelude::*;

const SIZE: (u32, u32) = (460, 300);
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
        _ => {
            const OTHERS: [RGBColor; 4] =
                [RGBColor(27, 158, 119), RGBColor(231, 41, 138), RGBColor(102, 102, 102), RGBColor(0, 0, 0)];
            OTHERS[index % OTHERS.len()]
        }
    }
}

/// The plot as an `<svg>` element.
///
/// # Errors
/// What the plotting library says.
pub fn svg(plot: &Plot) -> anyhow::Result<String> {
    let mut out = String::new();
    draw(plot, &mut out).map_err(|error| anyhow::anyhow!("plot '{}': {error}", plot.title))?;
    Ok(out)
}

fn draw(plot: &Plot, out: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(out, SIZE).into_drawing_area();
    let values = plot.lines.iter().flat_map(|line| line.values.iter().flatten().copied());
    let most = values.chain(plot.limits.iter().map(|limit| limit.1)).fold(1.0, f64::max);
    let last = plot.places.len().saturating_sub(1) as i32;
    let mut chart = ChartBuilder::on(&root)
        .caption(&plot.title, (FONT, 15))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(52)
        .build_cartesian_2d(0..last.max(1), 0.0..most * 1.08)?;
    let name_of = |x: &i32| plot.places.get(*x as usize).cloned().unwrap_or_default();
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .x_labels(plot.places.len())
        .x_label_formatter(&name_of)
        .y_label_formatter(&|y| format!("{y:.0}"))
        .x_desc(&plot.x)
        .y_desc(&plot.y)
        .label_style((FONT, 12))
        .axis_desc_style((FONT, 12))
        .draw()?;
    for (name, limit) in &plot.limits {
        let ends = [(0, *limit), (last, *limit)];
        chart.draw_series(DashedLineSeries::new(ends, 5, 4, BLACK.mix(0.5).stroke_width(1)))?;
        let label = Text::new(name.clone(), (0, *limit + most * 0.05), (FONT, 10));
        chart.draw_series([label])?;
    }
    for (index, line) in plot.lines.iter().enumerate() {
        let colour = colour(&line.name, index);
        let points =
            || line.values.iter().enumerate().filter_map(|(place, value)| Some((place as i32, (*value)?)));
        let series = chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?;
        series
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
        chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .label_font((FONT, 11))
        .draw()?;
    root.present()?;
    drop(chart);
    Ok(())
}
