//! Requests over time, one row each: from sending to the first token, and from there to the last.

use super::axis::{Axis, Scale};
use super::{BOTTOM, HEIGHT, TOP, colour, legend, text, title};

/// A request; times in seconds since the start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// When the client sent it.
    pub sent: f64,
    /// Arrival of the first token; `None` if there was none.
    pub first_token: Option<f64>,
    /// Time of its end.
    pub end: f64,
    /// Whether it ended with an error.
    pub failed: bool,
}

/// Most rows; with more requests, an even selection is drawn.
const MOST_ROWS: usize = 400;
const PREFILL: usize = 4;
const DECODE: usize = 0;
const FAILED: usize = 1;

/// Draws `requests` in the order in which they were sent.
pub fn waterfall(heading: &str, requests: &[Request]) -> String {
    let mut sorted = requests.to_vec();
    sorted.sort_by(|left, right| left.sent.total_cmp(&right.sent));
    let every = sorted.len().div_ceil(MOST_ROWS).max(1);
    let rows: Vec<Request> = sorted.into_iter().step_by(every).collect();
    let x = Axis::over(Scale::Linear, rows.iter().map(|request| request.end));
    let mut out = title(heading) + &x.below("seconds");
    let pitch = (HEIGHT - TOP - BOTTOM) / rows.len().max(1) as f64;
    for (row, request) in rows.iter().enumerate() {
        let top = TOP + pitch * row as f64;
        let mut piece = |from: f64, to: f64, kind: usize| {
            let (start, end) = (x.x(from), x.x(to));
            out += &format!(
                "<rect x=\"{start:.1}\" y=\"{top:.2}\" width=\"{:.1}\" height=\"{:.2}\" fill=\"{}\"/>\n",
                (end - start).max(0.3),
                pitch.max(0.6) * 0.85,
                colour(kind)
            );
        };
        let first = request.first_token.unwrap_or(request.end);
        piece(request.sent, first, PREFILL);
        piece(first, request.end, if request.failed { FAILED } else { DECODE });
    }
    for (place, (kind, name)) in
        [(PREFILL, "until first token"), (DECODE, "tokens"), (FAILED, "failed")].into_iter().enumerate()
    {
        out += &legend(place, kind, name);
    }
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    out += &format!("<g transform=\"rotate(-90 56 {middle:.1})\">");
    out + &text(56.0, middle, "middle", "requests, first sent at the top") + "</g>\n"
}
