//! SVG plots without external programs: line charts, stacked bars, and a waterfall of requests. Pure: numbers
//! in, text out. The colours are those of Okabe and Ito (2008), which are distinguishable with colour
//! blindness.

mod axis;
mod bars;
mod lines;
mod waterfall;

pub use axis::Scale;
pub use bars::{Bar, bars};
pub use lines::{Chart, Line, chart};
pub use waterfall::{Request, waterfall};

/// Colours in the order of use.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// Width and height of one plot, in pixels.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
/// Margins around the plotted area, in pixels.
const LEFT: f64 = 72.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 52.0;

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// Escapes `text` for use between tags.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A text element; `anchor` is `start`, `middle` or `end`.
fn text(x: f64, y: f64, anchor: &str, content: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>\n", escaped(content))
}

fn title(content: &str) -> String {
    format!("<text x=\"{LEFT}\" y=\"22\" font-size=\"14\" font-weight=\"600\">{}</text>\n", escaped(content))
}

/// Legend entry number `index` at the right: a coloured square and its label.
fn legend(index: usize, label: &str) -> String {
    let (x, y) = (WIDTH - RIGHT + 14.0, TOP + 18.0 * index as f64);
    let square =
        format!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n", colour(index));
    square + &text(x + 16.0, y + 9.0, "start", label)
}

/// One SVG document with the plots one below the other.
pub fn document(plots: &[String]) -> String {
    let height = HEIGHT * plots.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"11\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (index, plot) in plots.iter().enumerate() {
        out += &format!("<g transform=\"translate(0 {:.0})\">\n{plot}</g>\n", HEIGHT * index as f64);
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests;
