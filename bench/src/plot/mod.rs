//! SVG plots without external programs: line charts, stacked bars, and a waterfall of requests. Pure: numbers
//! in, text out. The colours are those of Okabe and Ito (2008), which are distinguishable with colour
//! blindness.

mod axis;
mod bars;
mod lines;
mod waterfall;

pub use axis::Scale;
pub use bars::{Bar, bars};
pub use lines::{Chart, Dash, Line, chart};
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

/// Left edge of the legend, which is to the right of the plot.
const LEGEND_X: f64 = WIDTH - RIGHT + 14.0;
/// Most characters of a name in the legend and beside a bar.
const NAME_CHARACTERS: usize = 20;

/// Top of legend entry `index`.
fn legend_y(index: usize) -> f64 {
    TOP + 18.0 * index as f64
}

/// Text of legend entry `index`.
fn legend_text(index: usize, label: &str) -> String {
    text(LEGEND_X + 16.0, legend_y(index) + 9.0, "start", &shortened(label))
}

/// Legend entry `index`, with a square of colour `kind`.
fn legend(index: usize, kind: usize, label: &str) -> String {
    let (y, fill) = (legend_y(index), colour(kind));
    let square =
        format!("<rect x=\"{LEGEND_X}\" y=\"{y:.1}\" width=\"10\" height=\"10\" fill=\"{fill}\"/>\n");
    square + &legend_text(index, label)
}

/// Shortens a long `name` in the middle, because names often differ at the end.
fn shortened(name: &str) -> String {
    let characters: Vec<char> = name.chars().collect();
    if characters.len() <= NAME_CHARACTERS {
        return name.to_owned();
    }
    let (start, end) = (NAME_CHARACTERS / 2 - 1, characters.len() - NAME_CHARACTERS / 2);
    characters[..start].iter().chain(&['…']).chain(&characters[end..]).collect()
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
