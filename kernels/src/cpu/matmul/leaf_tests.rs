//! Products whose sums have several leaves.

use super::super::packed::{Format, Layout, Packed};
use super::super::simd::Isa;
use super::*;
use crate::cpu::input::Encoding;
use crate::cpu::matrix::{Storage, WeightMatrix};
use crate::leaves::{self, MAX_LEAVES};

/// Pseudo-random numbers with many digits.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let hash = |i: usize| {
        (i as u32 ^ seed.rotate_left(16)).wrapping_mul(0x9E37_79B1).rotate_left(13).wrapping_mul(0x85EB_CA6B)
    };
    (0..count).map(|i| ((hash(i) >> 8) as f32 / (1 << 23) as f32 - 1.0) * 0.377_123_4).collect()
}

/// A matrix `[n, k]` in the type that `format` preserves; in bfloat16 if the format quantises.
fn stored(format: Format, n: usize, k: usize) -> WeightMatrix {
    let values = noise(n * k, 4);
    let storage = if format == Format::F32 {
        Storage::F32(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>().into())
    } else if format == Format::F16 {
        let halves = values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes());
        Storage::F16(halves.collect::<Vec<_>>().into())
    } else {
        // Few exponents, so that they fold.
        let halves = values.iter().map(|v| half::bf16::from_f32(v + 0.5f32.copysign(*v)));
        Storage::Bf16(halves.flat_map(half::bf16::to_le_bytes).collect::<Vec<_>>().into())
    };
    WeightMatrix::new(storage, n, k)
}

/// Encodings that a format can multiply.
fn encodings(layout: Layout) -> Vec<Encoding> {
    let mut encodings = vec![layout.encoding(false), layout.encoding(true)];
    encodings.dedup();
    encodings
}

fn product(cpu: &mut Cpu, encoding: Encoding, x: &[f32], linear: Linear<'_>, y: &mut [f32], write: Write) {
    let mut input = Input::default();
    input.set(cpu, encoding, x, linear.weights.cols());
    matmul(cpu, &input, &[linear], y, write);
}

/// Columns `from..to` of each row of `x` `[rows, width]`.
fn columns(x: &[f32], width: usize, columns: std::ops::Range<usize>) -> Vec<f32> {
    x.chunks(width).flat_map(|row| row[columns.clone()].to_vec()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Sums of the leaves, each computed as a product with one leaf, joined as a tree; then the bias.
fn leaf_by_leaf(
    cpu: &mut Cpu,
    matrix: &WeightMatrix,
    layout: Layout,
    encoding: Encoding,
    x: &[f32],
    bias: &[f32],
) -> Vec<f32> {
    let (m, width) = (x.len() / layout.cols, layout.leaf_cols());
    let mut sums: Vec<Vec<f32>> = (0..layout.leaves)
        .map(|leaf| {
            let cols = leaf * width..(leaf + 1) * width;
            let part = matrix.part(0..layout.rows, cols.clone());
            let packed =
                Packed::in_layout(cpu, &part, Layout::new(layout.format, layout.rows, width)).unwrap();
            let mut y = vec![0.0; m * layout.rows];
            let x = columns(x, layout.cols, cols);
            product(cpu, encoding, &x, (&packed).into(), &mut y, Write::Set);
            y
        })
        .collect();
    leaves::join(&mut sums.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    sums[0].iter().enumerate().map(|(i, sum)| sum + bias[i % layout.rows]).collect()
}

#[test]
fn every_format_joins_its_leaves_as_a_tree_on_every_instruction_set() {
    let (n, k) = (75, 8 * 96);
    let bias = noise(n, 5);
    for (format, leaves) in Format::all().flat_map(|format| [1, 2, 4, 8].map(|leaves| (format, leaves))) {
        let (matrix, layout) = (stored(format, n, k), Layout { leaves, ..Layout::new(format, n, k) });
        for m in [1, 3, 7, 40] {
            let (x, before) = (noise(m * k, 3), noise(m * n, 6));
            for encoding in encodings(layout) {
                let expected = leaf_by_leaf(&mut Cpu::new(1), &matrix, layout, encoding, &x, &bias);
                let added: Vec<f32> = before.iter().zip(&expected).map(|(y, sum)| y + sum).collect();
                for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
                    let cpu = &mut Cpu::with_isa(threads, isa);
                    let packed = Packed::in_layout(cpu, &matrix, layout).unwrap();
                    let linear = Linear { weights: &packed, bias: Some(&bias) };
                    let mut y = before.clone();
                    product(cpu, encoding, &x, linear, &mut y, Write::Add);
                    assert!(
                        bits(&y) == bits(&added),
                        "{m} rows of {layout:?} {encoding:?} on {}",
                        isa.name()
                    );
                }
            }
        }
    }
}

#[test]
fn sums_of_leaves_are_near_those_in_f64() {
    let (m, n, k) = (3, 20, 8 * 224);
    let x = noise(m * k, 3);
    for (format, leaves) in [Format::F32, Format::F16, Format::BF16]
        .into_iter()
        .flat_map(|format| [1, 8].map(|leaves| (format, leaves)))
    {
        let (matrix, layout) = (stored(format, n, k), Layout { leaves, ..Layout::new(format, n, k) });
        let cpu = &mut Cpu::new(2);
        let packed = Packed::in_layout(cpu, &matrix, layout).unwrap();
        let (mut y, mut row) = (vec![0.0; m * n], vec![0.0; k]);
        product(cpu, Encoding::F32, &x, (&packed).into(), &mut y, Write::Set);
        for (i, got) in y.iter().enumerate() {
            packed.widen_row(i % n, &mut row);
            let exact: f64 =
                x[i / n * k..][..k].iter().zip(&row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            assert!((f64::from(*got) - exact).abs() < 2e-4, "{layout:?}: {got} for {exact}");
        }
    }
}

#[test]
fn ranks_that_hold_some_leaves_give_the_bits_of_one_that_holds_all() {
    let (m, n, k, threads) = (5, 50, MAX_LEAVES * 160, 2);
    let x = noise(m * k, 3);
    for format in Format::all() {
        let (matrix, layout) = (stored(format, n, k), Layout { leaves: 8, ..Layout::new(format, n, k) });
        let cpu = &mut Cpu::new(threads);
        for encoding in encodings(layout) {
            let packed = Packed::in_layout(cpu, &matrix, layout).unwrap();
            let mut whole = vec![0.0; m * n];
            product(cpu, encoding, &x, (&packed).into(), &mut whole, Write::Set);
            for ranks in [2, 4, 8] {
                let own = Layout { leaves: layout.leaves / ranks, cols: k / ranks, ..layout };
                let mut sums: Vec<Vec<f32>> = (0..ranks)
                    .map(|rank| {
                        let cols = rank * own.cols..(rank + 1) * own.cols;
                        let part = matrix.part(0..n, cols.clone());
                        let packed = Packed::in_layout(cpu, &part, own).unwrap();
                        let mut y = vec![0.0; m * n];
                        let encoding = own.encoding(encoding == Encoding::Bf16);
                        product(cpu, encoding, &columns(&x, k, cols), (&packed).into(), &mut y, Write::Set);
                        y
                    })
                    .collect();
                leaves::join(&mut sums.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
                assert!(bits(&sums[0]) == bits(&whole), "{format:?} {encoding:?} on {ranks} ranks");
            }
        }
    }
}
