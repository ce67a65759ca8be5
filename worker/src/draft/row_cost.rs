//! Measures the time of a pure decode step by its number of rows. The line that `scheduler::step_time` fits
//! is for long steps: it cannot show that eight rows may take as long as one, because the weights are read
//! once, while thirty-two rows take longer.
//!
//! Only ratios between numbers of rows matter. A change that affects all of them alike, such as a longer
//! context or a busier machine, moves a common scale; the rest of an error moves the measured number of rows.

use std::time::Duration;

/// Numbers of rows with a measurement; others are interpolated.
const ROWS: [u32; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];
/// Time of each additional row as a fraction of the first, assumed until measured.
const FURTHER_ROW: f64 = 0.06;
/// Fraction of an error that moves the common scale.
const SCALE_GAIN: f64 = 0.05;
/// Least fraction of an error that moves a number of rows; its first measurements move it more.
const LEAST_GAIN: f64 = 0.15;
/// Errors are clipped to this natural logarithm, so that one delayed step has little effect.
const LARGEST_ERROR: f64 = 0.4;
/// Number of steps after which a measurement is outdated and its neighbours are used instead.
const FORGOTTEN_AFTER: u64 = 512;

/// Measured step times by number of rows.
#[derive(Debug, Clone, Default)]
pub(super) struct RowCost {
    /// Logarithm of the scale; `None` before the first step.
    scale: Option<f64>,
    measured: [Measured; ROWS.len()],
    steps: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    /// Logarithm of the ratio of the time to the scale.
    relative: f64,
    times: u32,
    /// Number of the latest step measured; 0 = none.
    latest: u64,
}

impl RowCost {
    /// Records that a step of `rows` rows took `took`.
    pub fn observe(&mut self, rows: u32, took: Duration) {
        let seconds = took.as_secs_f64();
        if rows == 0 || rows > ROWS[ROWS.len() - 1] || seconds <= 0.0 {
            return;
        }
        self.steps += 1;
        let nearest = nearest(rows);
        let scale = self.scale.unwrap_or(seconds.ln() - assumed(rows));
        let expected = scale + self.relative(rows);
        let error = (seconds.ln() - expected).clamp(-LARGEST_ERROR, LARGEST_ERROR);
        // Without a measurement, the estimate is the starting point.
        let relative = self.relative(ROWS[nearest]);
        let measured = &mut self.measured[nearest];
        if measured.latest == 0 || measured.latest + FORGOTTEN_AFTER < self.steps {
            *measured = Measured { relative, times: 0, latest: 0 };
        }
        measured.times = measured.times.saturating_add(1);
        measured.relative += error * LEAST_GAIN.max(1.0 / (f64::from(measured.times) + 1.0));
        measured.latest = self.steps;
        self.scale = Some(scale + error * SCALE_GAIN);
    }

    /// Estimated time of a step of `rows` rows, in seconds; `None` before the first step.
    pub fn seconds(&self, rows: u32) -> Option<f64> {
        self.scale.map(|scale| (scale + self.relative(rows)).exp())
    }

    /// Logarithm of the ratio of the time of `rows` rows to the scale: measured, interpolated, or beyond the
    /// last measurement extrapolated by the assumed cost.
    fn relative(&self, rows: u32) -> f64 {
        let known = |at: &usize| {
            let latest = self.measured[*at].latest;
            latest > 0 && latest + FORGOTTEN_AFTER >= self.steps
        };
        let above = ROWS.partition_point(|known| *known < rows);
        let above = (above..ROWS.len()).find(known);
        let below = (0..ROWS.len()).rev().filter(|at| ROWS[*at] <= rows).find(known);
        let at = |index: usize| (f64::from(ROWS[index]), self.measured[index].relative);
        match (below.map(at), above.map(at)) {
            (Some(below), Some(above)) if below.0 < above.0 => {
                let part = (f64::from(rows) - below.0) / (above.0 - below.0);
                below.1 + part * (above.1 - below.1)
            }
            (Some((of, relative)), _) | (None, Some((of, relative))) => {
                relative + assumed(rows) - assumed(of as u32)
            }
            (None, None) => assumed(rows),
        }
    }
}

/// Logarithm of the assumed ratio of the time of `rows` rows to that of one row.
fn assumed(rows: u32) -> f64 {
    (1.0 + FURTHER_ROW * f64::from(rows.saturating_sub(1))).ln()
}

/// Index of the measured number of rows nearest to `rows`.
fn nearest(rows: u32) -> usize {
    let above = ROWS.partition_point(|known| *known < rows);
    let is_below = above > 0 && rows - ROWS[above - 1] < ROWS[above] - rows;
    if is_below { above - 1 } else { above }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time of a step in milliseconds, on a device that computes rows in tiles of eight.
    fn tiled(rows: u32) -> f64 {
        20.0 * f64::from(rows.div_ceil(8)) + 0.3 * f64::from(rows)
    }

    fn observe(cost: &mut RowCost, rows: u32, millis: f64) {
        cost.observe(rows, Duration::from_secs_f64(millis / 1e3));
    }

    fn ratio(cost: &RowCost, of: u32, to: u32) -> f64 {
        cost.seconds(of).unwrap() / cost.seconds(to).unwrap()
    }

    #[test]
    fn ratios_are_assumed_and_then_measured() {
        let mut cost = RowCost::default();
        assert_eq!(cost.seconds(4), None);
        observe(&mut cost, 1, 20.3);
        assert!((ratio(&cost, 9, 1) - 1.48).abs() < 0.01, "assumed");
        for step in 0..40 {
            let rows = [1, 8, 32][step % 3];
            observe(&mut cost, rows, tiled(rows));
        }
        for rows in [8, 32] {
            let (got, is) = (ratio(&cost, rows, 1), tiled(rows) / tiled(1));
            assert!((got / is - 1.0).abs() < 0.05, "{rows} rows: {got}, in truth {is}");
        }
        assert!(ratio(&cost, 5, 1) < ratio(&cost, 8, 1), "between its neighbours");
        assert!(ratio(&cost, 64, 32) > 1.5, "beyond the last, as assumed");
    }

    #[test]
    fn a_context_that_grows_moves_all_rows_and_a_hiccup_none() {
        let mut cost = RowCost::default();
        (0..30).for_each(|step| observe(&mut cost, [1, 8][step % 2], tiled([1, 8][step % 2])));
        let before = ratio(&cost, 8, 1);
        observe(&mut cost, 8, 900.0);
        assert!(ratio(&cost, 8, 1) < before * 1.07, "{} after {before}", ratio(&cost, 8, 1));
        (0..30).for_each(|step| observe(&mut cost, [1, 8][step % 2], tiled([1, 8][step % 2])));
        // The device gradually becomes twice as slow, and only eight rows are measured.
        (0..300).for_each(|step| observe(&mut cost, 8, tiled(8) * (1.0 + f64::from(step) / 300.0)));
        let after = ratio(&cost, 8, 1);
        assert!(after < before * 1.75, "{after} after {before}");
        // Outdated measurements are replaced by estimates.
        (0..600).for_each(|_| observe(&mut cost, 8, 2.0 * tiled(8)));
        assert!((ratio(&cost, 8, 1) - 1.42).abs() < 0.02, "assumed again: {}", ratio(&cost, 8, 1));
    }
}
