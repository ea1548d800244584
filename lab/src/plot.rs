//! Plots as SVG.

use crate::figure::Plot;
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::fmt::Write;

const SIZE: (u32, u32) = (480, 300);
const FONT: &str = "sans-serif";
/// Approximate width of a letter and height of a line of text below the horizontal axis, in pixels.
const LETTER: usize = 7;
const LINE: u32 = 14;
/// Most names below the axis; with more places some have none.
const NAMES: usize = 16;

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

/// Colour of the papers' figures.
const PAPER: RGBColor = RGBColor(60, 60, 60);

/// The plot as a `<figure>` with an `<svg>`, and a legend of its lines, bands and points.
///
/// # Errors
/// Those of the plotting library.
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
        entry(Shape::of(index).sign(), colour(&line.name, index), &line.name);
    }
    for (index, (name, _)) in plot.limits.iter().enumerate() {
        entry(if index == 0 { "- -" } else { "&middot; &middot;" }, PAPER, name);
    }
    plot.bands.iter().for_each(|(name, ..)| entry("&#9618;", PAPER, name));
    let mut points: Vec<&String> = plot.points.iter().map(|point| &point.0).collect();
    points.dedup();
    points.into_iter().for_each(|name| entry("&#10005;", PAPER, name));
    Ok(format!("<figure>{svg}<figcaption>{legend}</figcaption></figure>\n"))
}

/// End of the vertical axis.
fn top(plot: &Plot) -> f64 {
    let values = plot.lines.iter().flat_map(|line| line.values.iter().flatten().copied());
    let stated = plot.limits.iter().map(|limit| limit.1).chain(plot.bands.iter().map(|band| band.2));
    let points = plot.points.iter().map(|point| point.2);
    let most = values.chain(stated).chain(points).filter(|value| value.is_finite()).fold(0.0, f64::max);
    if most > 0.0 { most * 1.08 } else { 1.0 }
}

/// Shape of the markers of a line, so that lines can be told apart where they coincide.
#[derive(Clone, Copy)]
enum Shape {
    Circle,
    Square,
    Triangle,
    Diamond,
    Down,
}

impl Shape {
    fn of(line: usize) -> Shape {
        [Shape::Circle, Shape::Square, Shape::Triangle, Shape::Diamond, Shape::Down][line % 5]
    }

    fn sign(self) -> &'static str {
        match self {
            Shape::Circle => "&#9679;",
            Shape::Square => "&#9632;",
            Shape::Triangle => "&#9650;",
            Shape::Diamond => "&#9670;",
            Shape::Down => "&#9660;",
        }
    }

    /// Its corners, in pixels around its middle.
    fn corners(self, r: i32) -> Vec<(i32, i32)> {
        match self {
            // An octagon.
            Shape::Circle => {
                let half = (r + 1) / 2;
                vec![
                    (-half, -r),
                    (half, -r),
                    (r, -half),
                    (r, half),
                    (half, r),
                    (-half, r),
                    (-r, half),
                    (-r, -half),
                ]
            }
            Shape::Square => vec![(-r, -r), (r, -r), (r, r), (-r, r)],
            Shape::Triangle => vec![(0, -r - 1), (r + 1, r), (-r - 1, r)],
            Shape::Diamond => vec![(0, -r - 1), (r + 1, 0), (0, r + 1), (-r - 1, 0)],
            Shape::Down => vec![(0, r + 1), (r + 1, -r), (-r - 1, -r)],
        }
    }
}

/// The names of places, wrapped to the width that there is; or upright, if a word is wider.
fn names(plot: &Plot) -> (Vec<Vec<String>>, bool) {
    let every = plot.places.len().div_ceil(NAMES).max(1);
    let room = (SIZE.0 as usize - 64) * every / plot.places.len().max(1) / LETTER;
    let upright = plot.places.iter().flat_map(|name| name.split(' ')).any(|word| word.chars().count() > room);
    let wrapped = |name: &String| {
        let mut lines: Vec<String> = Vec::new();
        for word in name.split(' ') {
            match lines.last_mut() {
                Some(line) if upright || line.chars().count() + 1 + word.chars().count() <= room => {
                    *line += " ";
                    *line += word;
                }
                _ => lines.push(word.into()),
            }
        }
        lines
    };
    let shown = |(at, name)| if at % every == 0 { wrapped(name) } else { Vec::new() };
    (plot.places.iter().enumerate().map(shown).collect(), upright)
}

fn draw(plot: &Plot, out: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let (names, upright) = names(plot);
    let most_lines = names.iter().map(Vec::len).max().unwrap_or_default() as u32;
    let longest = names.iter().flatten().map(|line| line.chars().count()).max().unwrap_or_default();
    let below = if upright { (longest * LETTER) as u32 } else { most_lines * LINE } + 10;
    let described = if plot.x.is_empty() { 0 } else { 20 };
    let size = (SIZE.0, SIZE.1 - 40 + below + described);
    let root = SVGBackend::with_string(out, size).into_drawing_area();
    let (top, last) = (top(plot), plot.places.len().saturating_sub(1) as i32);
    // Half a step is left beside the first place and the last.
    let ends = (-0.5, last as f64 + 0.5);
    let mut chart = ChartBuilder::on(&root)
        .caption(&plot.title, (FONT, 16))
        .margin(8)
        .x_label_area_size(below + described)
        .y_label_area_size(56)
        .build_cartesian_2d(ends.0..ends.1, 0.0..top)?;
    let digits = if top < 3.0 { 2 } else { usize::from(top < 30.0) };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .x_labels(0)
        .y_label_formatter(&|y| format!("{y:.digits$}"))
        .x_desc(&plot.x)
        .y_desc(&plot.y)
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 13))
        .draw()?;
    for (_, from, to) in &plot.bands {
        chart.draw_series([Rectangle::new([(ends.0, *from), (ends.1, *to)], PAPER.mix(0.12).filled())])?;
    }
    for (index, (_, limit)) in plot.limits.iter().enumerate() {
        let line = [(ends.0, *limit), (ends.1, *limit)];
        let (dash, gap) = if index == 0 { (6, 4) } else { (2, 3) };
        chart.draw_series(DashedLineSeries::new(line, dash, gap, PAPER.mix(0.7).stroke_width(1)))?;
    }
    let count = plot.lines.len() as i32;
    for (index, line) in plot.lines.iter().enumerate() {
        let (colour, shape) = (colour(&line.name, index), Shape::of(index));
        let points = || {
            let values = line.values.iter().enumerate();
            values.filter_map(|(place, value)| Some((place as f64, (*value)?)))
        };
        // Lines that are drawn first have larger markers, so that they are not hidden completely.
        let behind = (count - 1 - index as i32).min(4);
        let mut aside = 0;
        if plot.apart {
            // Values of one place are next to each other.
            let room = (SIZE.0 as i32 - 64) / (last + 1);
            aside = (2 * index as i32 + 1 - count) * (room * 2 / 3 / count.max(1)).min(12) / 2;
        } else {
            chart.draw_series(LineSeries::new(points(), colour.stroke_width(2 + behind as u32 / 2)))?;
        }
        chart.draw_series(points().map(|point| {
            let corners = shape.corners(3 + behind / 2);
            EmptyElement::at(point)
                + Polygon::new(
                    corners.into_iter().map(|(x, y)| (x + aside, y)).collect::<Vec<_>>(),
                    colour.filled(),
                )
        }))?;
    }
    let crosses = plot
        .points
        .iter()
        .map(|(_, place, value)| Cross::new((*place as f64, *value), 5, PAPER.stroke_width(2)));
    chart.draw_series(crosses)?;
    let style = TextStyle::from((FONT, 13).into_font());
    for (place, lines) in names.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(place as f64, 0.0));
        let (turned, pos) = match upright {
            true => (style.transform(FontTransform::Rotate270), Pos::new(HPos::Right, VPos::Center)),
            false => (style.clone(), Pos::new(HPos::Center, VPos::Top)),
        };
        for (line, text) in lines.iter().enumerate() {
            root.draw(&Text::new(text.clone(), (x, y + 6 + line as i32 * LINE as i32), turned.pos(pos)))?;
        }
    }
    root.present()?;
    drop(chart);
    Ok(())
}

/// Text escaped for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
