//! Line charts in SVG.

use super::axis::{Axis, Scale};
use super::{colour, legend, title};

/// A line with its points in order of x.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Label in the legend.
    pub name: String,
    /// Points `(x, y)`; non-finite ones are skipped.
    pub points: Vec<(f64, f64)>,
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

/// Draws `lines`, with a dot at each point.
pub fn chart(chart: &Chart<'_>, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let x = Axis::over(chart.x_scale, points().map(|point| point.0));
    let y = Axis::over(chart.y_scale, points().map(|point| point.1));
    let mut out = title(chart.title) + &x.below(chart.x) + &y.left(chart.y);
    for (index, line) in lines.iter().enumerate() {
        let finite = line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        let pixels: Vec<(f64, f64)> = finite.map(|point| (x.x(point.0), y.y(point.1))).collect();
        let path: Vec<String> = pixels.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        out += &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"/>\n",
            path.join(" "),
            colour(index)
        );
        for (x, y) in pixels {
            out += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.4\" fill=\"{}\"/>\n", colour(index));
        }
        out += &legend(index, &line.name);
    }
    out
}
