use std::ops::Range;

use proptest::prelude::*;

use super::super::super::Cpu;
use super::super::super::input::{Encoding, GROUP, INPUT_GROUP, Input};
use super::super::super::packed::formats::int4::step_at;
use super::super::super::packed::{Layout, Packed};
use super::super::super::rows::{Rows, RowsMut};
use super::super::super::simd::integer::IntegerIsa;
use super::super::{Linear, Write, matmul_on};
use super::*;

fn formats() -> Vec<Format> {
    Format::all().filter(|format| format.is_integer()).collect()
}

fn hash(i: usize, seed: u32) -> u32 {
    (i as u32 ^ seed.rotate_left(16)).wrapping_mul(0x9E37_79B1).rotate_left(13).wrapping_mul(0x85EB_CA6B)
}

/// Random codes, scales around 2^-7, zero points of 4 bits.
fn packed(layout: Layout, seed: u32) -> Packed {
    let mut bytes: Vec<u8> = (0..layout.bytes()).map(|i| (hash(i, seed) >> 24) as u8).collect();
    let (scales, zeros) = (layout.scales_at(), layout.zeros_at());
    for i in 0..layout.panels() * layout.panel_scales() {
        let scale = 2f32.powi(-7) * (1.0 + hash(i, !seed) as f32 / 4e9);
        match layout.scale_bytes() {
            2 => bytes[scales + 2 * i..][..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes()),
            _ => bytes[scales + 4 * i..][..4].copy_from_slice(&scale.to_le_bytes()),
        }
    }
    bytes[zeros..].iter_mut().for_each(|zero| *zero &= 15);
    if layout.format == Format::INT4 {
        fit_steps(layout, &mut bytes);
    }
    Packed::new(layout, bytes.into())
}

/// Limits multipliers to 8, or puts zero points in the middle, so that every code fits 8 bits.
fn fit_steps(layout: Layout, bytes: &mut [u8]) {
    for panel in bytes[..layout.panels() * layout.panel_bytes()].chunks_mut(layout.panel_bytes()) {
        for (group, lane) in (0..layout.groups()).flat_map(|group| (0..PANEL).map(move |lane| (group, lane)))
        {
            let step = &mut panel[step_at(group * GROUP, lane)];
            if *step & 15 > 8 {
                *step = (*step & 15) | (0x70 + (*step & 0x10));
            }
        }
    }
}

/// The formula at the top of this module, one output at a time.
fn reference(x: &Input, packed: &Packed) -> Vec<f32> {
    let (layout, Rows { values: groups, stride }) = (packed.layout(), x.codes());
    let width = layout.scale_cols();
    // Columns that share a scale.
    let span_sum = |m: usize, row: usize, columns: Range<usize>| {
        let (mut sum, zero) = (0f32, packed.scale_zero(row, columns.start).1);
        for at in columns.clone().step_by(INPUT_GROUP) {
            let group = groups[m * stride + at / INPUT_GROUP];
            let products =
                group.codes.iter().zip(at..columns.end).map(|(code, col)| {
                    (i32::from(packed.code(row, col)) - i32::from(zero)) * i32::from(*code)
                });
            sum = (products.sum::<i32>() as f32).mul_add(group.scale, sum);
        }
        sum
    };
    let leaf_sum = |m: usize, row: usize, leaf: usize| {
        let (first, end) = (leaf * layout.leaf_cols(), (leaf + 1) * layout.leaf_cols());
        let mut sum = 0f32;
        for at in (first..end).step_by(width) {
            let (span, scale) = (span_sum(m, row, at..end.min(at + width)), packed.scale_zero(row, at).0);
            sum = if width == layout.leaf_cols() { span * scale } else { span.mul_add(scale, sum) };
        }
        sum
    };
    let output = |m: usize, row: usize| {
        let sums: Vec<f32> = (0..layout.leaves).map(|leaf| leaf_sum(m, row, leaf)).collect();
        tree(&sums)
    };
    (0..x.rows()).flat_map(|m| (0..layout.rows).map(move |row| output(m, row))).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Sum of `sums` as a balanced tree.
fn tree(sums: &[f32]) -> f32 {
    match sums {
        [sum] => *sum,
        _ => {
            let (left, right) = sums.split_at(sums.len() / 2);
            tree(left) + tree(right)
        }
    }
}

fn input(cpu: &mut Cpu, m: usize, cols: usize, seed: u32) -> Input {
    let x: Vec<f32> = (0..m * cols).map(|i| hash(i, seed) as f32 / 1e9 - 2.1).collect();
    let mut input = Input::default();
    input.set(cpu, Encoding::Int8, &x, cols);
    input
}

/// Compares every instruction set and several numbers of threads with the formula.
fn check(m: usize, layout: Layout, seed: u32, with_bias: bool, add: bool) {
    let Layout { rows, cols, .. } = layout;
    let weights = packed(layout, seed);
    let x = input(&mut Cpu::new(1), m, cols, !seed);
    let bias: Vec<f32> = (0..rows).map(|i| hash(i, seed ^ 5) as f32 / 1e8).collect();
    let before: Vec<f32> = (0..m * rows).map(|i| hash(i, seed ^ 9) as f32 / 1e8).collect();
    let expected: Vec<f32> = reference(&x, &weights)
        .into_iter()
        .enumerate()
        .map(|(i, sum)| if with_bias { sum + bias[i % rows] } else { sum })
        .enumerate()
        .map(|(i, sum)| if add { before[i] + sum } else { sum })
        .collect();
    let linear = Linear { weights: &weights, bias: with_bias.then_some(&bias) };
    for isa in IntegerIsa::available() {
        for threads in [1, 3] {
            let mut y = before.clone();
            let write = if add { Write::Add } else { Write::Set };
            let to = RowsMut { values: &mut y, stride: rows };
            matmul_on(&mut Cpu::new(threads), isa, &x, &[linear], to, write);
            assert_eq!(
                bits(&y),
                bits(&expected),
                "[{m}, {cols}] x {layout:?} on {} with {threads} threads",
                isa.name()
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_formula(
        m in 1usize..40, rows in 1usize..150, cols in 1usize..200, format: prop::sample::Index, seed: u32,
        with_bias: bool, add: bool,
    ) {
        check(m, Layout::new(*format.get(&formats()), rows, cols), seed, with_bias, add);
    }

    #[test]
    fn leaves_are_joined_as_a_tree(
        m in 1usize..40, rows in 1usize..100, level in 1u32..4, units in 1usize..6, format: prop::sample::Index, seed: u32,
        with_bias: bool, add: bool,
    ) {
        let leaves = 1 << level;
        let layout = Layout { leaves, ..Layout::new(*format.get(&formats()), rows, leaves * units * GROUP) };
        check(m, layout, seed, with_bias, add);
    }
}

#[test]
fn products_divided_among_threads_agree_too() {
    for (i, format) in formats().into_iter().enumerate() {
        check(1, Layout::new(format, 1000, 352), i as u32, true, true);
        check(13, Layout::new(format, 700, 96), i as u32, false, false);
        check(1, Layout { leaves: 4, ..Layout::new(format, 1000, 384) }, i as u32, true, true);
        check(13, Layout { leaves: 8, ..Layout::new(format, 700, 256) }, i as u32, false, true);
    }
}

#[test]
fn sums_of_the_largest_codes_do_not_overflow() {
    let cols = 32 * 1024 + 40;
    for format in formats() {
        check(2, Layout::new(format, 3, cols), 3, false, false);
        // The largest codes of both, so that every product has the largest magnitude.
        let layout = Layout::new(format, 1, cols);
        let mut weights = packed(layout, 1).bytes().to_vec();
        weights[..layout.panels() * layout.panel_bytes()].fill(255);
        if format == Format::INT4 {
            fit_steps(layout, &mut weights);
        }
        let (packed, cpu) = (&Packed::new(layout, weights.into()), &mut Cpu::new(1));
        let mut x = Input::default();
        x.set(cpu, Encoding::Int8, &vec![-1.0; cols], cols);
        for isa in IntegerIsa::available() {
            let mut y = [0.0];
            let to = RowsMut { values: &mut y, stride: 1 };
            matmul_on(cpu, isa, &x, &[packed.into()], to, Write::Set);
            assert_eq!(bits(&y), bits(&reference(&x, packed)), "{format:?} on {}", isa.name());
            assert!(y[0] < 0.0);
        }
    }
}
