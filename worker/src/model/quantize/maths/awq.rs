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

/// Scales of the inputs of `matrices`, each `[rows, cols]`, that minimise the error of their products after
/// rounding: input `i` is divided by scale `i`, its weights are multiplied. `mean` has the mean magnitude of
/// each input; `error(matrix, change)` is the squared error of the products if a matrix changes by `change`.
///
/// Scales are powers of the activations, or those divided by powers of the weights, as AutoAWQ has them.
/// `share` makes scales equal that must be. Returns the exponent of the activations, too.
pub fn scales(
    matrices: &[&[f32]],
    mean: &[f32],
    (rule, group): (Rule, usize),
    share: impl Fn(&mut [f32]),
    mut error: impl FnMut(usize, &[f32]) -> f64,
) -> (Vec<f32>, f32) {
    let cols = mean.len();
    let weights = relative_weights(matrices, cols, group);
    let mut best: Option<(f64, Vec<f32>, f32)> = None;
    for step in 0..2 * EXPONENTS {
        let exponent = (step / 2) as f32 / EXPONENTS as f32;
        let of_weights = (step % 2 == 1).then_some(&weights[..]);
        let mut scales = of_exponent(mean, of_weights, exponent);
        share(&mut scales);
        let mut total = 0.0;
        for (i, weights) in matrices.iter().enumerate() {
            total += error(i, &change(weights, cols, &scales, (rule, group)));
        }
        if best.as_ref().is_none_or(|(least, ..)| total < *least) {
            best = Some((total, scales, exponent));
        }
    }
    best.map_or_else(|| (vec![1.0; cols], 0.0), |(_, scales, exponent)| (scales, exponent))
}

/// Mean magnitude of each input's weights, relative to the largest of their groups.
fn relative_weights(matrices: &[&[f32]], cols: usize, group: usize) -> Vec<f32> {
    let (mut sums, mut rows) = (vec![0f64; cols], 0usize);
    for row in matrices.iter().flat_map(|weights| weights.chunks_exact(cols)) {
        for (weights, sums) in row.chunks(group).zip(sums.chunks_mut(group)) {
            let largest = weights.iter().fold(f32::MIN_POSITIVE, |largest, it| largest.max(it.abs()));
            let shares = weights.iter().map(|weight| f64::from(weight.abs() / largest));
            sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
        }
        rows += 1;
    }
    sums.iter().map(|sum| (sum / rows.max(1) as f64) as f32).collect()
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
fn change(weights: &[f32], cols: usize, scales: &[f32], (rule, group): (Rule, usize)) -> Vec<f32> {
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
pub fn clip(weights: &mut [f32], inputs: &[f32], cols: usize, (rule, group): (Rule, usize)) {
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
