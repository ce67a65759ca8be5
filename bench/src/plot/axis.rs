//! Maps values to pixels along an axis, and selects its tick labels.

use super::{BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, text};

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear, starting from zero.
    Linear,
    /// Logarithmic; values must be positive.
    Log,
}

/// Range of an axis.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
}

/// Tick distances of a linear axis, times a power of ten.
const NICE_STEPS: [f64; 4] = [1.0, 2.0, 5.0, 10.0];
/// Most ticks of a linear axis.
const MOST_TICKS: f64 = 7.0;

impl Axis {
    /// Axis for all finite `values`, rounded outwards.
    pub fn over(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let usable = values.filter(|value| value.is_finite() && (scale == Scale::Linear || *value > 0.0));
        let (low, high) = usable
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            return Self { scale, low: if scale == Scale::Log { 0.1 } else { 0.0 }, high: 1.0 };
        }
        match scale {
            Scale::Linear => {
                let step = nice_step(high.max(f64::MIN_POSITIVE));
                Self { scale, low: 0.0, high: (high / step).ceil().max(1.0) * step }
            }
            Scale::Log => {
                let (low, high) = (10_f64.powf(low.log10().floor()), 10_f64.powf(high.log10().ceil()));
                Self { scale, low, high: if high > low { high } else { low * 10.0 } }
            }
        }
    }

    /// Position of `value` in the range: 0 at the low end, 1 at the high end.
    fn share(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).log10() / (self.high / self.low).log10(),
        };
        share.clamp(0.0, 1.0)
    }

    /// X coordinate of `value`, in pixels.
    pub fn x(&self, value: f64) -> f64 {
        LEFT + self.share(value) * (WIDTH - LEFT - RIGHT)
    }

    /// Y coordinate of `value`, in pixels.
    pub fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.share(value) * (HEIGHT - TOP - BOTTOM)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = nice_step(self.high);
                (0..=(self.high / step).round() as u32).map(|tick| f64::from(tick) * step).collect()
            }
            Scale::Log => {
                let decades = (self.high / self.low).log10().round() as i32;
                (0..=decades).map(|decade| self.low * 10_f64.powi(decade)).collect()
            }
        }
    }

    /// The horizontal axis with its grid and name.
    pub fn below(&self, name: &str) -> String {
        let mut out = String::new();
        for tick in self.ticks() {
            out += &line(self.x(tick), TOP, self.x(tick), HEIGHT - BOTTOM);
            out += &text(self.x(tick), HEIGHT - BOTTOM + 16.0, "middle", &shown(tick));
        }
        out + &text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0, "middle", name)
    }

    /// The vertical axis with its grid and name.
    pub fn left(&self, name: &str) -> String {
        let mut out = String::new();
        for tick in self.ticks() {
            out += &line(LEFT, self.y(tick), WIDTH - RIGHT, self.y(tick));
            out += &text(LEFT - 6.0, self.y(tick) + 4.0, "end", &shown(tick));
        }
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        let turned = format!("<g transform=\"rotate(-90 16 {middle:.1})\">");
        out + &turned + &text(16.0, middle, "middle", name) + "</g>\n"
    }
}

fn line(x1: f64, y1: f64, x2: f64, y2: f64) -> String {
    format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>\n")
}

/// Smallest step of 1, 2 or 5 times a power of ten with at most [`MOST_TICKS`] steps up to `high`.
fn nice_step(high: f64) -> f64 {
    let power = 10_f64.powf((high / MOST_TICKS).log10().floor());
    let steps = NICE_STEPS.map(|step| step * power);
    steps.into_iter().find(|step| high / step <= MOST_TICKS).unwrap_or(10.0 * power)
}

/// A number without trailing zeros.
fn shown(value: f64) -> String {
    if value != 0.0 && (value.abs() < 1e-3 || value.abs() >= 1e6) {
        return format!("{value:e}");
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
