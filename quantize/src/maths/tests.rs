//! Against naive references in double precision.

use super::awq;
use super::factor::{factor, invert};
use super::gptq::{self, ActOrder, BadHessian, Factored, Settings};
use super::grid::{Quantised, Rule, ScaleType, round_to_nearest};

const RULE: Rule = Rule { bits: 4, is_symmetric: true, least_zero: 1, scales: ScaleType::F16 };

/// Numbers that look random, about normal, from a seed.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (0..4).map(|_| next()).sum()).collect()
}

/// Inputs `[rows, cols]` that depend on each other, some much larger than others.
fn inputs(rows: usize, cols: usize) -> Vec<f32> {
    let (own, shared) = (numbers(rows * cols, 1), numbers(rows, 2));
    let size = |col: usize| [1.0, 0.2, 8.0, 0.5, 1.5][col % 5];
    (0..rows * cols).map(|i| size(i % cols) * (own[i] + shared[i / cols])).collect()
}

/// `XᵀX` of the inputs, computed term by term.
fn hessian(inputs: &[f32], cols: usize) -> Vec<f32> {
    let sum = |a: usize, b: usize| -> f64 {
        inputs.chunks_exact(cols).map(|row| f64::from(row[a]) * f64::from(row[b])).sum()
    };
    (0..cols * cols).map(|i| sum(i / cols, i % cols) as f32).collect()
}

/// Inverse by Gauss and Jordan.
fn inverse(matrix: &[f64], size: usize) -> Vec<f64> {
    let (mut left, mut right) = (matrix.to_vec(), vec![0.0; size * size]);
    (0..size).for_each(|i| right[i * size + i] = 1.0);
    for i in 0..size {
        let pivot = left[i * size + i];
        for j in 0..size {
            left[i * size + j] /= pivot;
            right[i * size + j] /= pivot;
        }
        for row in (0..size).filter(|row| *row != i) {
            let factor = left[row * size + i];
            for j in 0..size {
                left[row * size + j] -= factor * left[i * size + j];
                right[row * size + j] -= factor * right[i * size + j];
            }
        }
    }
    right
}

/// Squared error of the products with `inputs`.
fn product_error(inputs: &[f32], cols: usize, change: &[f32]) -> f64 {
    let mut error = 0.0;
    for row in inputs.chunks_exact(cols) {
        for change in change.chunks_exact(cols) {
            error += row.iter().zip(change).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>().powi(2);
        }
    }
    error
}

fn change(weights: &[f32], quantised: &Quantised) -> Vec<f32> {
    quantised.widen().iter().zip(weights).map(|(after, before)| after - before).collect()
}

/// One output by the formula of Optimal Brain Surgeon, with a new inverse after each input: the codes.
fn naive_row(weights: &[f32], hessian: &[f32], settings: &Settings) -> Vec<u8> {
    let (cols, group) = (weights.len(), settings.group);
    let mean = (0..cols).map(|i| f64::from(hessian[i * cols + i])).sum::<f64>() / cols as f64;
    let at = |a: usize, b: usize| {
        f64::from(hessian[a * cols + b]) + if a == b { f64::from(settings.damping) * mean } else { 0.0 }
    };
    let mut order: Vec<usize> = (0..cols).collect();
    if settings.order != ActOrder::Off {
        order.sort_by(|a, b| hessian[b * cols + b].total_cmp(&hessian[a * cols + a]));
    }
    let mut left: Vec<f64> = weights.iter().map(|it| f64::from(*it)).collect();
    let mut codes = vec![0; cols];
    let mut grid = settings.rule.grid(weights[..group].iter().copied());
    for i in 0..cols {
        let input = order[i];
        match settings.order {
            ActOrder::Static => {
                let start = input / group * group;
                grid = settings.rule.grid(weights[start..start + group].iter().copied());
            }
            _ if i % group == 0 => {
                grid = settings.rule.grid(order[i..i + group].iter().map(|input| left[*input] as f32));
            }
            _ => {}
        }
        codes[input] = settings.rule.code(grid, left[input] as f32);
        let remaining = &order[i..];
        let matrix: Vec<f64> = remaining.iter().flat_map(|a| remaining.iter().map(|b| at(*a, *b))).collect();
        let inverse = inverse(&matrix, remaining.len());
        let error = (left[input] - f64::from(grid.value(codes[input]))) / inverse[0];
        remaining.iter().zip(&inverse).skip(1).for_each(|(input, of)| left[*input] -= error * of);
    }
    codes
}

#[test]
fn a_matrix_is_the_product_of_its_factors_and_the_factor_is_inverted() {
    for size in [1, 5, 64, 65, 130] {
        let mut matrix = hessian(&inputs(200, size), size);
        (0..size).for_each(|i| matrix[i * size + i] += 1.0);
        let mut root = matrix.clone();
        factor(&mut root, size).unwrap();
        let inverted = invert(root, size);
        let wide: Vec<f64> = matrix.iter().map(|it| f64::from(*it)).collect();
        let exact = inverse(&wide, size);
        let largest = exact.iter().fold(0f64, |largest, it| largest.max(it.abs()));
        for i in 0..size {
            for j in 0..size {
                assert!(i <= j || inverted[i * size + j] == 0.0, "the factor is upper triangular");
                let sum: f64 = (0..size)
                    .map(|k| f64::from(inverted[k * size + i]) * f64::from(inverted[k * size + j]))
                    .sum();
                let off = (sum - exact[i * size + j]).abs();
                assert!(off < 1e-4 * largest, "{size}: {i} {j}: {sum} {}", exact[i * size + j]);
            }
        }
    }
}

#[test]
fn gptq_chooses_the_codes_of_the_naive_formula() {
    let (rows, cols) = (19, 96);
    let (weights, hessian) = (numbers(rows * cols, 3), hessian(&inputs(300, cols), cols));
    for order in [ActOrder::Off, ActOrder::Static, ActOrder::Group] {
        for rule in [RULE, Rule { is_symmetric: false, ..RULE }, Rule { bits: 3, ..RULE }] {
            let settings = Settings { rule, group: 32, order, damping: 0.01 };
            let factored = Factored::new(&hessian, cols, &settings).unwrap();
            let quantised = gptq::quantise(&weights, cols, &factored, &settings);
            let naive: Vec<u8> =
                weights.chunks_exact(cols).flat_map(|row| naive_row(row, &hessian, &settings)).collect();
            // Single precision may decide a tie otherwise, and the later codes of that output follow.
            let differ = quantised.codes.iter().zip(&naive).filter(|(a, b)| a != b).count();
            assert!(differ * 200 <= naive.len(), "{order:?} {rule:?}: {differ} of {}", naive.len());
        }
    }
}

#[test]
fn gptq_has_a_smaller_error_than_rounding_to_nearest() {
    let (rows, cols) = (40, 128);
    let inputs = inputs(600, cols);
    let (weights, hessian) = (numbers(rows * cols, 4), hessian(&inputs, cols));
    let rounded = round_to_nearest(&weights, cols, RULE, 64);
    let nearest = product_error(&inputs, cols, &change(&weights, &rounded));
    for order in [ActOrder::Off, ActOrder::Static, ActOrder::Group] {
        let settings = Settings { rule: RULE, group: 64, order, damping: 0.01 };
        let factored = Factored::new(&hessian, cols, &settings).unwrap();
        let quantised = gptq::quantise(&weights, cols, &factored, &settings);
        let error = product_error(&inputs, cols, &change(&weights, &quantised));
        println!("{order:?}: {:.3} of rounding to nearest", error / nearest);
        assert!(error < 0.6 * nearest, "{order:?}: {error} {nearest}");
    }
}

#[test]
fn an_input_that_was_always_zero_is_rounded_to_nearest() {
    let (rows, cols) = (4, 32);
    let weights = numbers(rows * cols, 5);
    let mut inputs = inputs(100, cols);
    inputs.iter_mut().skip(7).step_by(cols).for_each(|value| *value = 0.0);
    let settings = Settings { rule: RULE, group: 32, order: ActOrder::Static, damping: 0.01 };
    let factored = Factored::new(&hessian(&inputs, cols), cols, &settings).unwrap();
    let quantised = gptq::quantise(&weights, cols, &factored, &settings);
    let rounded = round_to_nearest(&weights, cols, RULE, 32);
    for row in 0..rows {
        assert_eq!(quantised.codes[row * cols + 7], rounded.codes[row * cols + 7]);
    }
    let nothing = Factored::new(&vec![0.0; cols * cols], cols, &settings).unwrap();
    assert_eq!(gptq::quantise(&weights, cols, &nothing, &settings), rounded);
}

#[test]
fn a_hessian_without_rank_gets_more_damping_and_one_with_nan_is_refused() {
    let cols = 64;
    let settings = Settings { rule: RULE, group: 32, order: ActOrder::Off, damping: 0.0 };
    let factored = Factored::new(&hessian(&inputs(3, cols), cols), cols, &settings).unwrap();
    assert!(factored.damping > 0.0);
    let mut bad = hessian(&inputs(100, cols), cols);
    bad[0] = f32::NAN;
    assert_eq!(Factored::new(&bad, cols, &settings).err(), Some(BadHessian));
}

#[test]
fn codes_are_the_nearest_ones() {
    for bits in [2, 3, 4, 8] {
        for is_symmetric in [true, false] {
            let rule = Rule { bits, is_symmetric, ..RULE };
            let weights = numbers(6 * 64, 6);
            let quantised = round_to_nearest(&weights, 64, rule, 32);
            for (i, weight) in weights.iter().enumerate() {
                let grid = quantised.grid(i / 64, i % 64 / 32);
                let off = |code: u8| (grid.value(code) - weight).abs();
                let best = (0..=rule.most()).map(off).fold(f32::MAX, f32::min);
                assert!(off(quantised.codes[i]) <= best, "{bits} bits: {weight} {grid:?}");
            }
        }
    }
    let zeros = round_to_nearest(&[0.0; 32], 32, RULE, 32);
    assert!(zeros.widen().iter().all(|value| *value == 0.0));
    let tiny = round_to_nearest(&[1e-9; 32], 32, RULE, 32);
    assert!(tiny.widen().iter().all(|value| value.is_finite()), "the scale is below half precision");
}

#[test]
fn awq_finds_the_best_exponent_and_its_scales_cancel() {
    let (rows, cols, group) = (24, 64, 32);
    let (inputs, rule) = (inputs(200, cols), Rule { is_symmetric: false, ..RULE });
    let weights = numbers(rows * cols, 7);
    let mean: Vec<f32> = (0..cols)
        .map(|col| inputs.iter().skip(col).step_by(cols).map(|it| it.abs()).sum::<f32>() / 200.0)
        .collect();
    let mut relative = awq::RelativeWeights::new(cols, group);
    relative.add(&weights);
    let mut candidates = awq::candidates(&mean, &relative.means(), |_| {});
    assert!(candidates[0].scales.iter().all(|scale| *scale == 1.0), "the first changes nothing");
    for candidate in &mut candidates {
        let change = awq::change(&weights, cols, &candidate.scales, rule, group);
        candidate.error += product_error(&inputs, cols, &change);
    }
    let plain = candidates[0].error;
    let least = candidates.iter().map(|candidate| candidate.error).fold(f64::MAX, f64::min);
    let awq::Candidate { scales, exponent, error } = awq::best(candidates).unwrap();
    assert!(error == least && exponent > 0.0 && least < 0.8 * plain, "{exponent}: {error} {least} {plain}");
    let mut scaled = weights.clone();
    awq::multiply_columns(&mut scaled, &scales);
    let rounded = round_to_nearest(&scaled, cols, rule, group).widen();
    let change: Vec<f32> = (0..weights.len()).map(|i| rounded[i] / scales[i % cols] - weights[i]).collect();
    assert!((product_error(&inputs, cols, &change) / least - 1.0).abs() < 1e-6);
}

#[test]
fn clipping_never_makes_a_product_worse() {
    let (rows, cols, group) = (16, 64, 32);
    let (inputs, rule) = (inputs(100, cols), Rule { is_symmetric: false, ..RULE });
    let mut weights = numbers(rows * cols, 8);
    weights.iter_mut().step_by(37).for_each(|weight| *weight *= 6.0);
    let mut clipped = weights.clone();
    awq::clip(&mut clipped, &inputs, cols, rule, group);
    assert_ne!(clipped, weights);
    // Groups are judged one by one, so each one's inputs alone.
    for start in (0..cols).step_by(group) {
        let only: Vec<f32> = (0..inputs.len())
            .map(|i| if (start..start + group).contains(&(i % cols)) { inputs[i] } else { 0.0 })
            .collect();
        let error = |clipped: &[f32]| {
            let rounded = round_to_nearest(clipped, cols, rule, group);
            product_error(&only, cols, &change(&weights, &rounded))
        };
        assert!(error(&clipped) <= error(&weights) * 1.0001);
    }
}
