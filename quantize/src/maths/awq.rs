//! The searches of AWQ (arXiv 2306.00978): scales of the inputs that protect the weights of large
//! activations, and clipping of outliers.

use super::for_each_part;
use super::grid::{Rule, round_to_nearest};

/// Exponents that are tried, from 0 (no scales) to nearly 1.
const EXPONENTS: usize = 20;
/// Shares of a group's largest weight to which it may be clipped: this many, from 1.
const CLIPS: usize = 11;
/// Distance between two of them.
const CLIP_STEP: f32 = 0.05;
/// Smallest mean activation that counts.
const LEAST: f32 = 1e-4;

/// Scales of the inputs of a product, and what they cost: input `i` is divided by scale `i`, its weights are
/// multiplied.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// A scale for each input.
    pub scales: Vec<f32>,
    /// Exponent of the activations.
    pub exponent: f32,
    /// Squared error of the products, summed over the matrices so far.
    pub error: f64,
}

/// Scales to choose among. `mean` has the mean magnitude of each input, `weights` that of its
/// [relative weights](RelativeWeights).
///
/// Scales are powers of the activations, or those divided by powers of the weights, as AutoAWQ has them.
/// `share` makes scales equal that must be. The first candidate has only scales of 1.
pub fn candidates(mean: &[f32], weights: &[f32], share: impl Fn(&mut [f32])) -> Vec<Candidate> {
    let candidate = |step: usize| {
        let exponent = (step / 2) as f32 / EXPONENTS as f32;
        let of_weights = (step % 2 == 1).then_some(weights);
        let mut scales = of_exponent(mean, of_weights, exponent);
        share(&mut scales);
        Candidate { scales, exponent, error: 0.0 }
    };
    (0..2 * EXPONENTS).map(candidate).collect()
}

/// The first of the candidates with the least error.
pub fn best(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().reduce(|best, next| if next.error < best.error { next } else { best })
}

/// Mean magnitude of each input's weights over several matrices, relative to the largest of their groups.
pub struct RelativeWeights {
    group: usize,
    sums: Vec<f64>,
    rows: usize,
}

impl RelativeWeights {
    /// For matrices of `cols` inputs in groups of `group`.
    pub fn new(cols: usize, group: usize) -> Self {
        Self { group, sums: vec![0.0; cols], rows: 0 }
    }

    /// Counts a matrix `[rows, cols]`.
    pub fn add(&mut self, weights: &[f32]) {
        for row in weights.chunks_exact(self.sums.len()) {
            for (weights, sums) in row.chunks(self.group).zip(self.sums.chunks_mut(self.group)) {
                let largest = weights.iter().fold(f32::MIN_POSITIVE, |largest, it| largest.max(it.abs()));
                let shares = weights.iter().map(|weight| f64::from(weight.abs() / largest));
                sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
            }
            self.rows += 1;
        }
    }

    /// The means.
    pub fn means(&self) -> Vec<f32> {
        self.sums.iter().map(|sum| (sum / self.rows.max(1) as f64) as f32).collect()
    }
}

/// `mean` to the power of `exponent`, divided by `weights` to the power of the rest if given, centred around
/// 1.
fn of_exponent(mean: &[f32], weights: Option<&[f32]>, exponent: f32) -> Vec<f32> {
    let scale = |(i, mean): (usize, &f32)| {
        let by = weights.map_or(1.0, |weights| weights[i].powf(1.0 - exponent) + LEAST);
        (mean.powf(exponent) / by).max(LEAST)
    };
    let scales: Vec<f32> = mean.iter().enumerate().map(scale).collect();
    let (low, high) = scales.iter().fold((f32::MAX, 0f32), |(low, high), it| (low.min(*it), high.max(*it)));
    let centre = (low * high).sqrt();
    scales.iter().map(|scale| scale / centre).collect()
}

/// Change of the weights by rounding them after multiplication with `scales`.
pub fn change(weights: &[f32], cols: usize, scales: &[f32], rule: Rule, group: usize) -> Vec<f32> {
    let mut scaled = weights.to_vec();
    multiply_columns(&mut scaled, scales);
    let rounded = round_to_nearest(&scaled, cols, rule, group);
    drop(scaled);
    let mut change = rounded.widen();
    for_each_part(&mut change, cols, |row, change| {
        let weights = &weights[row * cols..][..cols];
        for ((change, weight), scale) in change.iter_mut().zip(weights).zip(scales) {
            *change = *change / scale - weight;
        }
    });
    change
}

/// Multiplies column `i` of `weights` by `scales[i]`.
pub fn multiply_columns(weights: &mut [f32], scales: &[f32]) {
    for_each_part(weights, scales.len(), |_, row| {
        row.iter_mut().zip(scales).for_each(|(weight, scale)| *weight *= scale);
    });
}

/// Clips the outliers of each output's groups where that reduces the error of the product. `inputs` `[any,
/// cols]` are examples of the inputs.
pub fn clip(weights: &mut [f32], inputs: &[f32], cols: usize, rule: Rule, group: usize) {
    let products = products(inputs, cols, group);
    for_each_part(weights, cols, |_, row| {
        for (weights, products) in row.chunks_mut(group).zip(&products) {
            clip_group(weights, products, rule);
        }
    });
}

/// For each group of inputs, the sums of the products of its pairs: `[group, group]`.
fn products(inputs: &[f32], cols: usize, group: usize) -> Vec<Vec<f32>> {
    let mut all: Vec<Vec<f32>> = vec![Vec::new(); cols.div_ceil(group)];
    for_each_part(&mut all, 1, |i, of_group| {
        let (start, end) = (i * group, cols.min((i + 1) * group));
        let width = end - start;
        let mut sums = vec![0f32; width * width];
        for row in inputs.chunks_exact(cols) {
            let row = &row[start..end];
            for (a, sums) in row.iter().zip(sums.chunks_exact_mut(width)) {
                super::add_scaled(sums, *a, row);
            }
        }
        of_group[0] = sums;
    });
    all
}

fn clip_group(weights: &mut [f32], products: &[f32], rule: Rule) {
    let largest = weights.iter().fold(0f32, |largest, it| largest.max(it.abs()));
    let mut best = (f64::INFINITY, largest);
    let mut change = vec![0f32; weights.len()];
    for step in 0..CLIPS {
        let bound = largest * (1.0 - step as f32 * CLIP_STEP);
        let grid = rule.grid(weights.iter().map(|it| it.clamp(-bound, bound)));
        for (change, weight) in change.iter_mut().zip(&*weights) {
            *change = grid.value(rule.code(grid, weight.clamp(-bound, bound))) - weight;
        }
        let error = quadratic(&change, products);
        if error < best.0 {
            best = (error, bound);
        }
    }
    weights.iter_mut().for_each(|weight| *weight = weight.clamp(-best.1, best.1));
}

/// `change * products * changeᵀ`
fn quadratic(change: &[f32], products: &[f32]) -> f64 {
    let rows = products.chunks_exact(change.len());
    change.iter().zip(rows).map(|(a, row)| f64::from(*a) * f64::from(super::dot(row, change))).sum()
}
