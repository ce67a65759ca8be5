//! Line charts in SVG.

use super::axis::{Axis, Scale};
use super::{LEGEND_X, colour, legend_text, legend_y, title};

/// Width of the dash that represents a line with a single point.
const POINT_WIDTH: f64 = 24.0;

/// A line with its points in order of x.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Label in the legend; empty = not in the legend.
    pub name: String,
    /// Points `(x, y)`; non-finite ones are skipped.
    pub points: Vec<(f64, f64)>,
    /// Index of the colour. Lines of the same colour have different dashes.
    pub colour: usize,
    /// Dash pattern of the line.
    pub dash: Dash,
}

/// Dash pattern of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dash {
    /// Solid line with a dot at each point.
    Solid,
    /// Line of long dashes.
    Dashed,
    /// Line of short dashes.
    Dotted,
}

impl Dash {
    /// The pattern with this index; wraps around.
    pub fn of(index: usize) -> Self {
        [Self::Dotted, Self::Dashed, Self::Solid][index % 3]
    }

    fn attribute(self) -> &'static str {
        match self {
            Self::Solid => "",
            Self::Dashed => " stroke-dasharray=\"6 4\"",
            Self::Dotted => " stroke-dasharray=\"2 3\"",
        }
    }
}

/// Title, axes and scales of a chart.
#[derive(Debug, Clone)]
pub struct Chart<'a> {
    /// Heading above the chart.
    pub title: &'a str,
    /// Name and unit of the x axis.
    pub x: &'a str,
    /// Name and unit of the y axis.
    pub y: &'a str,
    /// Scale of the x axis.
    pub x_scale: Scale,
    /// Scale of the y axis.
    pub y_scale: Scale,
}

/// Draws `lines` into `chart` as SVG.
pub fn chart(chart: &Chart<'_>, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let x = Axis::over(chart.x_scale, points().map(|point| point.0));
    let y = Axis::over(chart.y_scale, points().map(|point| point.1));
    let mut out = title(chart.title) + &x.below(chart.x) + &y.left(chart.y);
    for (index, line) in lines.iter().enumerate() {
        let finite = line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        let pixels: Vec<(f64, f64)> = finite.map(|point| (x.x(point.0), y.y(point.1))).collect();
        out += &match pixels[..] {
            // A single point has no line, and its dot does not show the dash pattern.
            [(x, y)] => polyline(line, &[(x - POINT_WIDTH, y), (x, y)]),
            _ => polyline(line, &pixels),
        };
        for (x, y) in pixels.iter().filter(|_| line.dash == Dash::Solid) {
            out += &format!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.4\" fill=\"{}\"/>\n",
                colour(line.colour)
            );
        }
        if line.name.is_empty() {
            continue;
        }
        let middle = legend_y(index) + 5.0;
        out += &polyline(line, &[(LEGEND_X - 4.0, middle), (LEGEND_X + 12.0, middle)]);
        out += &legend_text(index, &line.name);
    }
    out
}

fn polyline(line: &Line, pixels: &[(f64, f64)]) -> String {
    let path: Vec<String> = pixels.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"{}/>\n",
        path.join(" "),
        colour(line.colour),
        line.dash.attribute()
    )
}
