//! What calibration measures of the inputs of a product.

use skein_kernels::cpu::Cpu;

use super::layer::add_product;
use super::maths::for_each_part;
use super::scheme::Method;

/// Rows that are kept as examples of a product's inputs.
const EXAMPLES: usize = 512;
/// The same for an expert, of which a layer may have hundreds; at most twice as many.
const EXAMPLES_OF_EXPERT: usize = 128;

/// Which rows are kept as examples.
#[derive(Debug, Clone, Copy)]
pub(super) enum Examples {
    /// [`EXAMPLES`] of this many, evenly spread.
    Of(usize),
    /// One in this many; doubled whenever there are twice [`EXAMPLES_OF_EXPERT`]. How many rows choose an
    /// expert is known only in the end.
    OneIn(usize),
}

/// Sums over the rows of the calibration text.
pub(super) struct Statistics {
    cols: usize,
    kept: Examples,
    /// Rows so far.
    pub rows: usize,
    /// `XᵀX` `[cols, cols]`, for GPTQ.
    pub hessian: Vec<f32>,
    /// Sum of each input's magnitudes, for AWQ.
    magnitudes: Vec<f64>,
    /// Some rows `[any, cols]`, evenly spread, for AWQ.
    pub examples: Vec<f32>,
}

impl Statistics {
    /// For rows of `cols` inputs, of which some are `kept`.
    pub fn new(method: Method, cols: usize, kept: Examples) -> Self {
        let (is_gptq, none) = (method == Method::Gptq, (Vec::new(), Vec::new()));
        let (hessian, magnitudes) =
            if is_gptq { (vec![0.0; cols * cols], none.1) } else { (none.0, vec![0.0; cols]) };
        Self { cols, kept, rows: 0, hessian, magnitudes, examples: Vec::new() }
    }

    /// Adds the rows of a window.
    pub fn add(&mut self, cpu: &mut Cpu, inputs: &[f32]) {
        let (cols, count) = (self.cols, inputs.len() / self.cols);
        if !self.hessian.is_empty() {
            let mut across = vec![0f32; inputs.len()];
            for_each_part(&mut across, count, |col, to| {
                to.iter_mut().enumerate().for_each(|(row, to)| *to = inputs[row * cols + col]);
            });
            add_product(cpu, &across, &across, count, &mut self.hessian);
        }
        if !self.magnitudes.is_empty() {
            for (i, row) in inputs.chunks_exact(cols).enumerate() {
                let sums = self.magnitudes.iter_mut().zip(row);
                sums.for_each(|(sum, value)| *sum += f64::from(value.abs()));
                self.keep(self.rows + i, row);
            }
        }
        self.rows += count;
    }

    /// Keeps row number `at` if it is an example.
    fn keep(&mut self, at: usize, row: &[f32]) {
        let is_example = match self.kept {
            Examples::Of(all) => {
                let number = |row: usize| row * EXAMPLES / all.max(1);
                at == 0 || number(at) != number(at - 1)
            }
            Examples::OneIn(every) => at.is_multiple_of(every),
        };
        if !is_example {
            return;
        }
        self.examples.extend_from_slice(row);
        if let Examples::OneIn(every) = &mut self.kept
            && self.examples.len() == 2 * EXAMPLES_OF_EXPERT * self.cols
        {
            *every *= 2;
            let all = std::mem::take(&mut self.examples);
            self.examples = all.chunks_exact(self.cols).step_by(2).collect::<Vec<_>>().concat();
        }
    }

    /// Mean magnitude of each input.
    pub fn means(&self) -> Vec<f32> {
        self.magnitudes.iter().map(|sum| (sum / self.rows.max(1) as f64) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_any_number_of_rows_are_evenly_spread() {
        let check = |kept: Examples, rows: usize, least: usize, most: usize| {
            let mut statistics = Statistics::new(Method::Awq, 2, kept);
            let inputs: Vec<f32> = (0..rows).flat_map(|row| [row as f32, -1.0]).collect();
            // In windows of several lengths.
            for window in inputs.chunks(2 * 37) {
                statistics.add(&mut Cpu::new(1), window);
            }
            let found: Vec<f32> = statistics.examples.iter().step_by(2).copied().collect();
            assert!((least..=most).contains(&found.len()), "{rows} rows give {}", found.len());
            let steps: Vec<f32> = found.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let (low, high) =
                steps.iter().fold((f32::MAX, 0f32), |(low, high), it| (low.min(*it), high.max(*it)));
            assert!(rows < 2 || high - low <= 1.0, "{rows} rows: steps of {low} to {high}");
            assert_eq!((statistics.rows, statistics.means()[1]), (rows, 1.0));
        };
        for rows in [1, 3, EXAMPLES, 1000, 5000] {
            check(Examples::Of(rows), rows, rows.min(EXAMPLES), EXAMPLES);
        }
        for rows in [1, 100, 255, 256, 257, 5000] {
            check(Examples::OneIn(1), rows, rows.min(EXAMPLES_OF_EXPERT), 2 * EXAMPLES_OF_EXPERT);
        }
    }
}
