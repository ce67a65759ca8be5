//! GPTQ (arXiv 2210.17323): inputs are rounded one after another, and each error is compensated by the
//! weights of the inputs that follow, as the inverse of the Hessian `XᵀX` says.

use super::grid::{Grid, Quantised, Rule};
use super::{add_scaled, factor, for_each_part};

/// Outputs that a task quantises together; they share each row of the factor while it is in the cache.
const ROWS: usize = 16;
/// Factor by which the damping grows if the Hessian cannot be factored.
const MORE_DAMPING: f32 = 10.0;
/// Largest damping that is tried, as a share of the Hessian's mean diagonal.
const MOST_DAMPING: f32 = 10.0;

/// Order in which inputs are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActOrder {
    /// Inputs are quantised in their stored order.
    Off,
    /// The largest activations first; groups are consecutive inputs as stored.
    Static,
    /// The largest activations first, and groups are consecutive in that order.
    Group,
}

/// What GPTQ needs besides weights and Hessian.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// How grids follow from weights.
    pub rule: Rule,
    /// Inputs that share a grid.
    pub group: usize,
    /// Order in which inputs are rounded.
    pub order: ActOrder,
    /// Share of the Hessian's mean diagonal that is added to its diagonal.
    pub damping: f32,
}

/// The Hessian has values that are not finite, or cannot be factored with any damping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadHessian;

/// Quantises `weights` `[rows, cols]` for inputs with `hessian`.
pub fn quantise(weights: &[f32], cols: usize, hessian: &Factored, settings: &Settings) -> Quantised {
    let Settings { rule, group, order, .. } = *settings;
    let (rows, groups, inputs) = (weights.len() / cols, cols.div_ceil(group), &hessian.order[..]);
    let mut outputs: Vec<(Vec<u8>, Vec<Grid>)> = vec![(Vec::new(), Vec::new()); rows];
    for_each_part(&mut outputs, ROWS, |part, outputs| {
        let mut lines: Vec<Line> = (0..outputs.len())
            .map(|row| {
                let stored = &weights[(part * ROWS + row) * cols..][..cols];
                Line::new(stored, inputs, &rule, group, order)
            })
            .collect();
        for i in 0..cols {
            let factor = &hessian.inverse[i * cols..(i + 1) * cols];
            for line in &mut lines {
                if order != ActOrder::Static && i % group == 0 {
                    let end = cols.min(i + group);
                    line.grids[i / group] = rule.grid(line.weights[i..end].iter().copied());
                }
                let at = if order == ActOrder::Static { inputs[i] as usize } else { i };
                let (grid, weight) = (line.grids[at / group], line.weights[i]);
                let code = rule.code(grid, weight);
                line.codes[inputs[i] as usize] = code;
                let error = (weight - grid.value(code)) / factor[i];
                add_scaled(&mut line.weights[i + 1..], -error, &factor[i + 1..]);
            }
        }
        for (output, line) in outputs.iter_mut().zip(lines) {
            *output = (line.codes, line.grids);
        }
    });
    let group_of = (order == ActOrder::Group).then(|| {
        let mut of = vec![0; cols];
        inputs.iter().enumerate().for_each(|(i, input)| of[*input as usize] = (i / group) as u32);
        of
    });
    let mut codes = Vec::with_capacity(rows * cols);
    let mut grids = Vec::with_capacity(rows * groups);
    for (of_row, grids_of_row) in outputs {
        codes.extend(of_row);
        grids.extend(grids_of_row);
    }
    Quantised { rows, cols, bits: rule.bits, group, codes, grids, group_of }
}

/// One output while it is quantised.
struct Line {
    /// Weights in the order of rounding, with the errors so far compensated.
    weights: Vec<f32>,
    /// Codes as stored.
    codes: Vec<u8>,
    grids: Vec<Grid>,
}

impl Line {
    fn new(stored: &[f32], inputs: &[u32], rule: &Rule, group: usize, order: ActOrder) -> Self {
        let groups = stored.len().div_ceil(group);
        let grids = match order {
            ActOrder::Static => stored.chunks(group).map(|of| rule.grid(of.iter().copied())).collect(),
            ActOrder::Off | ActOrder::Group => vec![Grid { scale: 1.0, zero: 0 }; groups],
        };
        let weights = inputs.iter().map(|input| stored[*input as usize]).collect();
        Self { weights, codes: vec![0; stored.len()], grids }
    }
}

/// A Hessian prepared for [`quantise`]; matrices that read the same inputs share it.
pub struct Factored {
    /// Inputs in the order of rounding.
    order: Vec<u32>,
    /// Upper Cholesky factor of the inverse, `[cols, cols]`, in that order.
    inverse: Vec<f32>,
    /// Damping that was used, as a share of the mean diagonal.
    pub damping: f32,
}

impl Factored {
    /// Factors the inverse of `hessian` `[cols, cols]`.
    ///
    /// # Errors
    /// If no damping makes it positive definite.
    pub fn new(hessian: &[f32], cols: usize, settings: &Settings) -> Result<Self, BadHessian> {
        let diagonal: Vec<f32> = (0..cols).map(|i| hessian[i * cols + i]).collect();
        if !diagonal.iter().all(|value| value.is_finite()) {
            return Err(BadHessian);
        }
        let mut order: Vec<u32> = (0..cols as u32).collect();
        if settings.order != ActOrder::Off {
            let size = |input: &u32| diagonal[*input as usize];
            order.sort_by(|a, b| size(b).total_cmp(&size(a))); // stable
        }
        let mean = diagonal.iter().map(|it| f64::from(*it)).sum::<f64>() / cols as f64;
        let mut damping = settings.damping;
        while damping <= MOST_DAMPING {
            let added = (f64::from(damping) * mean) as f32;
            let mut matrix = ordered(hessian, cols, &order, added);
            if factor::factor(&mut matrix, cols).is_ok() {
                let inverse = factor::invert(matrix, cols);
                return Ok(Self { order, inverse, damping });
            }
            damping = if damping > 0.0 { damping * MORE_DAMPING } else { settings.damping.max(1e-3) };
        }
        Err(BadHessian)
    }
}

/// `hessian` with its inputs in `order`, and `added` on the diagonal. An input that was always zero is
/// independent of the others.
fn ordered(hessian: &[f32], cols: usize, order: &[u32], added: f32) -> Vec<f32> {
    let mut matrix = vec![0f32; cols * cols];
    for_each_part(&mut matrix, cols, |i, row| {
        let from = &hessian[order[i] as usize * cols..][..cols];
        row.iter_mut().zip(order).for_each(|(to, input)| *to = from[*input as usize]);
        row[i] = if row[i] == 0.0 { 1.0 } else { row[i] + added };
    });
    matrix
}
