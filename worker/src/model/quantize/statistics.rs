//! What calibration measures of the inputs of a product.

use skein_kernels::cpu::Cpu;

use super::layer::add_product;
use super::maths::for_each_part;
use super::scheme::Method;

/// Rows that are kept as examples of a product's inputs.
const EXAMPLES: usize = 512;

/// Sums over the rows of the calibration text.
pub(super) struct Statistics {
    cols: usize,
    /// Rows of the whole text.
    of_rows: usize,
    rows: usize,
    /// `XᵀX` `[cols, cols]`, for GPTQ.
    pub hessian: Vec<f32>,
    /// Sum of each input's magnitudes, for AWQ.
    magnitudes: Vec<f64>,
    /// Some rows `[any, cols]`, evenly spread, for AWQ.
    pub examples: Vec<f32>,
}

impl Statistics {
    /// For a text of `of_rows` rows.
    pub fn new(method: Method, cols: usize, of_rows: usize) -> Self {
        let (is_gptq, none) = (method == Method::Gptq, (Vec::new(), Vec::new()));
        let (hessian, magnitudes) =
            if is_gptq { (vec![0.0; cols * cols], none.1) } else { (none.0, vec![0.0; cols]) };
        Self { cols, of_rows, rows: 0, hessian, magnitudes, examples: Vec::new() }
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
                let number = |row: usize| row * EXAMPLES / self.of_rows.max(1);
                let at = self.rows + i;
                if at == 0 || number(at) != number(at - 1) {
                    self.examples.extend_from_slice(row);
                }
            }
        }
        self.rows += count;
    }

    /// Mean magnitude of each input.
    pub fn means(&self) -> Vec<f32> {
        self.magnitudes.iter().map(|sum| (sum / self.rows.max(1) as f64) as f32).collect()
    }
}
