//! Stacked horizontal bars of shares.

use super::{HEIGHT, LEFT, RIGHT, TOP, WIDTH, colour, legend, shortened, text, title};

/// A bar with its parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Label at the left.
    pub name: String,
    /// Parts as fractions of 1, in the order of the legend.
    pub parts: Vec<f64>,
}

/// Additional space for names, compared with a plot that has numbers on the left.
const NAMES: f64 = 56.0;

/// Draws `bars` under `heading`; `parts` labels the parts.
pub fn bars(heading: &str, parts: &[&str], bars: &[Bar]) -> String {
    let mut out = title(heading);
    let (left, width) = (LEFT + NAMES, WIDTH - LEFT - NAMES - RIGHT);
    let pitch = ((HEIGHT - TOP - 30.0) / bars.len().max(1) as f64).min(44.0);
    for (row, bar) in bars.iter().enumerate() {
        let top = TOP + pitch * row as f64;
        out += &text(left - 8.0, top + pitch * 0.45 + 4.0, "end", &shortened(&bar.name));
        let mut x = left;
        for (part, share) in bar.parts.iter().enumerate() {
            let long = width * share.clamp(0.0, 1.0);
            out += &format!(
                "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{long:.1}\" height=\"{:.1}\" fill=\"{}\"/>\n",
                pitch * 0.75,
                colour(part)
            );
            if long > 34.0 {
                let label = format!("{:.1}%", share * 100.0);
                let place = (x + long / 2.0, top + pitch * 0.45 + 3.0);
                out += &format!("<g fill=\"#fff\">{}</g>", text(place.0, place.1, "middle", &label));
            }
            x += long;
        }
    }
    for (index, part) in parts.iter().enumerate() {
        out += &legend(index, index, part);
    }
    out
}
