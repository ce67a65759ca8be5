//! [`StepTime`] from steps whose duration was measured.

use skein_bench::engine::steps::Timed;

use super::step_time::StepTime;

/// Coefficients of overhead, weights, row and context, in this order.
type Terms = [f64; 4];
/// Most times that the steps are classified again by whether reading weights or multiplying takes longer.
const MOST_ROUNDS: usize = 16;

/// Fits the step time with the least sum of squared relative errors over `steps`. Which steps take longer to
/// multiply than to read the weights depends on the result, so classification and fit alternate. A
/// coefficient that would be negative becomes zero.
pub fn fit(steps: &[Timed]) -> StepTime {
    let least_rows = steps.iter().map(|step| step.work.rows).min().unwrap_or(0);
    let mut multiplies: Vec<bool> = steps.iter().map(|step| step.work.rows > 16 * least_rows).collect();
    let mut best = (f64::INFINITY, StepTime { overhead: 0.0, weights: 0.0, row: 0.0, context_token: 0.0 });
    for _ in 0..MOST_ROUNDS {
        let found = solve(steps, &multiplies);
        let squares = steps.iter().map(|step| found.error(step).powi(2)).sum::<f64>();
        if squares < best.0 {
            best = (squares, found);
        }
        let again: Vec<bool> =
            steps.iter().map(|step| found.row * f64::from(step.work.rows) > found.weights).collect();
        if again == multiplies {
            break;
        }
        multiplies = again;
    }
    best.1
}

/// Least squares for a given split of the steps.
fn solve(steps: &[Timed], multiplies: &[bool]) -> StepTime {
    let equations: Vec<Terms> = steps
        .iter()
        .zip(multiplies)
        .map(|(step, &multiplies)| {
            let (rows, context) = (f64::from(step.work.rows), step.work.context as f64);
            let product = if multiplies { [0.0, rows] } else { [1.0, 0.0] };
            // Divided by the measured time, so that every error is relative.
            [1.0, product[0], product[1], context].map(|term| term / step.seconds)
        })
        .collect();
    let mut used = [true; 4];
    loop {
        let [overhead, weights, row, context_token] = least_squares(&equations, used);
        let found = [overhead, weights, row, context_token];
        let worst = (0..4).filter(|&term| used[term]).min_by(|&a, &b| found[a].total_cmp(&found[b]));
        match worst.filter(|&term| found[term] < 0.0) {
            Some(term) => used[term] = false,
            None => return StepTime { overhead, weights, row, context_token },
        }
    }
}

/// The coefficients that bring every equation closest to 1, over the used terms only (normal equations,
/// Gaussian elimination with pivots).
fn least_squares(equations: &[Terms], used: [bool; 4]) -> Terms {
    let mut matrix = [[0.0; 5]; 4];
    for equation in equations {
        for row in (0..4).filter(|&row| used[row]) {
            for column in (0..4).filter(|&column| used[column]) {
                matrix[row][column] += equation[row] * equation[column];
            }
            matrix[row][4] += equation[row];
        }
    }
    // Terms differ by many orders of magnitude. Scaling the diagonal to ones makes pivots comparable.
    let scale: [f64; 4] =
        std::array::from_fn(|term| if matrix[term][term] > 0.0 { matrix[term][term].sqrt() } else { 1.0 });
    for row in 0..4 {
        for column in 0..4 {
            matrix[row][column] /= scale[row] * scale[column];
        }
        matrix[row][4] /= scale[row];
    }
    let mut pivot_of = [None; 4];
    let mut free = [true; 4];
    for (column, pivot_row) in pivot_of.iter_mut().enumerate() {
        let candidates = (0..4).filter(|&row| free[row]);
        let Some(pivot) = candidates
            .max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()))
            .filter(|&row| matrix[row][column].abs() > 1e-9)
        else {
            continue;
        };
        free[pivot] = false;
        *pivot_row = Some(pivot);
        let of_pivot = matrix[pivot].map(|value| value / matrix[pivot][column]);
        matrix[pivot] = of_pivot;
        for (_, values) in matrix.iter_mut().enumerate().filter(|&(row, _)| row != pivot) {
            let factor = values[column];
            for (value, of_pivot) in values.iter_mut().zip(of_pivot) {
                *value -= factor * of_pivot;
            }
        }
    }
    std::array::from_fn(|term| pivot_of[term].map_or(0.0, |row| matrix[row][4] / scale[term]))
}

#[cfg(test)]
mod tests {
    use skein_bench::engine::steps::Work;

    use super::*;

    fn work(rows: u32, context: u64) -> Work {
        Work { rows, context }
    }

    /// Sizes at which a worker is measured.
    fn sizes() -> Vec<Work> {
        vec![
            work(1, 72),
            work(1, 1032),
            work(8, 8256),
            work(32, 2304),
            work(64, 64),
            work(256, 256),
            work(512, 512),
        ]
    }

    fn timed(truth: &StepTime, noise: impl Fn(usize) -> f64) -> Vec<Timed> {
        let one = |(index, work)| Timed { work, seconds: truth.of(work).as_secs_f64() * noise(index) };
        sizes().into_iter().enumerate().map(one).collect()
    }

    fn check(truth: StepTime, noise: fn(usize) -> f64, most: f64) {
        let found = fit(&timed(&truth, noise));
        for work in sizes().into_iter().chain([work(4, 2080), work(16, 1152), work(384, 384), work(1, 500)]) {
            let error = found.error(&Timed { work, seconds: truth.of(work).as_secs_f64() });
            assert!(error.abs() < most, "{work:?}: off by {error:.4}, {found:?} for {truth:?}");
        }
    }

    #[test]
    fn exact_times_give_the_model_back() {
        let of = |overhead, weights, row, context_token| StepTime { overhead, weights, row, context_token };
        check(of(1e-4, 2e-2, 1e-3, 1e-7), |_| 1.0, 1e-6);
        check(of(0.0, 3e-3, 7e-4, 2e-6), |_| 1.0, 1e-6);
        // Multiplying dominates even for one row.
        check(of(5e-4, 0.0, 1e-4, 1e-7), |_| 1.0, 1e-6);
        check(StepTime::OPT_13B_A100, |_| 1.0, 1e-6);
    }

    #[test]
    fn times_that_scatter_by_three_percent_give_nearly_the_same_model() {
        let truth = StepTime { overhead: 1e-3, weights: 2e-2, row: 1e-3, context_token: 2e-6 };
        check(truth, |index| if index % 2 == 0 { 1.03 } else { 0.97 }, 0.12);
    }

    #[test]
    fn no_coefficient_is_negative() {
        // Noise that no model explains: long contexts are faster than short ones.
        let odd = [(1, 64, 0.02), (1, 1024, 0.01), (8, 8192, 0.008), (64, 64, 0.06), (512, 512, 0.5)];
        let steps = odd.map(|(rows, context, seconds)| Timed { work: work(rows, context), seconds });
        let StepTime { overhead, weights, row, context_token } = fit(&steps);
        assert_eq!(context_token, 0.0);
        assert!(overhead >= 0.0 && weights >= 0.0 && row > 0.0, "{overhead} {weights} {row}");
    }
}
