use super::super::super::{Layout, PackError, Packed, formats};
use super::*;
use crate::cpu::Cpu;
use crate::cpu::blocks::{Block, BlockType};
use crate::cpu::input::{CodeGroup, Encoding, INPUT_GROUP, Input};
use crate::cpu::matmul::{Linear, Write, matmul};
use crate::cpu::matrix::{Storage, WeightMatrix};
use crate::cpu::rows::Rows;
use crate::cpu::simd::Isa;

fn hash(i: usize, seed: u32) -> u32 {
    (i as u32 ^ seed.rotate_left(16)).wrapping_mul(0x9E37_79B1).rotate_left(13).wrapping_mul(0x85EB_CA6B)
}

/// Offsets of the half-precision numbers in a block.
fn halves(kind: BlockType) -> &'static [usize] {
    match kind {
        BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 | BlockType::Iq4Nl => &[0],
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => &[0, 2],
        BlockType::Q2K => &[80, 82],
        BlockType::Q3K => &[108],
        BlockType::Q6K => &[208],
        BlockType::Mxfp4 => &[],
    }
}

/// Random blocks with scales around 2^-7.
fn matrix(kind: BlockType, rows: usize, cols: usize, seed: u32) -> WeightMatrix {
    let bytes = kind.row_bytes(cols).unwrap() * rows;
    let mut bytes: Vec<u8> = (0..bytes).map(|i| (hash(i, seed) >> 24) as u8).collect();
    for (i, block) in bytes.chunks_exact_mut(kind.form().bytes).enumerate() {
        for at in halves(kind) {
            let scale = (hash(i + at, !seed) as f32 / 4e9 - 0.3) / 64.0;
            block[*at..][..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        }
        if kind == BlockType::Mxfp4 {
            block[0] = 118 + block[0] % 8;
        }
    }
    WeightMatrix::new(Storage::Blocks(kind, bytes.into()), rows, cols)
}

fn packed(cpu: &mut Cpu, matrix: &WeightMatrix, leaves: usize) -> Packed {
    let format = Format::keeping(matrix.storage())[0];
    let layout = Layout { format, rows: matrix.rows(), cols: matrix.cols(), leaves };
    Packed::in_layout(cpu, matrix, layout).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn packed_blocks_have_the_bits_of_stored_ones() {
    for kind in BlockType::ALL {
        let each = kind.form().values;
        for (rows, cols) in [(1, each), (16, 3 * each), (37, 4 * each)] {
            let matrix = matrix(kind, rows, cols, 3);
            let packed = packed(&mut Cpu::new(3), &matrix, 1);
            let (mut got, mut expected) = (vec![0.0; cols], vec![0.0; cols]);
            for row in 0..rows {
                packed.widen_row(row, &mut got);
                matrix.widen_row(row, &mut expected);
                assert_eq!(bits(&got), bits(&expected), "{} [{rows}, {cols}] row {row}", kind.name());
            }
        }
    }
}

#[test]
fn nothing_grows_by_more_than_a_sixteenth() {
    for (kind, most) in [(BlockType::Q4_0, 1.001), (BlockType::Q8_0, 1.001), (BlockType::Q4K, 1.03)] {
        let matrix = matrix(kind, 64, 2048, 1);
        let packed = packed(&mut Cpu::new(1), &matrix, 1);
        let ratio = packed.bytes().len() as f64 / matrix.len_bytes() as f64;
        assert!(ratio <= most, "{} takes {ratio} of its bytes", kind.name());
    }
    for kind in [BlockType::Q5_0, BlockType::Q5_1, BlockType::Q4_1, BlockType::Q5K, BlockType::Q6K] {
        let matrix = matrix(kind, 64, 2048, 1);
        let packed = packed(&mut Cpu::new(1), &matrix, 1);
        assert!(packed.bytes().len() * 16 <= matrix.len_bytes() * 17, "{}", kind.name());
    }
}

/// The formula at the top of the kernel, for one row of inputs and one output, over one leaf.
fn leaf_sum(matrix: &WeightMatrix, kind: BlockType, row: usize, first: usize, inputs: &[CodeGroup]) -> f32 {
    let (form, mut block, mut result) = (kind.form(), Block::default(), 0f32);
    for (i, inputs) in inputs.chunks(form.group / INPUT_GROUP).enumerate() {
        let col = first + i * form.group;
        let bytes = &matrix.row(row)[col / form.values * form.bytes..][..form.bytes];
        kind.decode(bytes, &mut block);
        let (at, group) = (col % form.values, col % form.values / form.group);
        let (mut sum, mut sum_of_x) = (0f32, 0f32);
        for (j, input) in inputs.iter().enumerate() {
            let (terms, zero) = (input.codes.iter().zip(&block.codes[at + j * INPUT_GROUP..]), form.zero);
            let term = |(x, code): (&i8, &u8)| (i32::from(*code) - i32::from(zero)) * i32::from(*x);
            sum = (terms.map(term).sum::<i32>() as f32).mul_add(input.scale, sum);
            sum_of_x += input.scale * input.codes.map(i32::from).iter().sum::<i32>() as f32;
        }
        let scale = if form.has_factors { f32::from(block.factors[group]) } else { 1.0 } * block.scale;
        result = sum.mul_add(scale, result);
        if form.has_minimum {
            let factor = if form.has_factors { -f32::from(block.minimum_factors[group]) } else { 1.0 };
            result = sum_of_x.mul_add(factor * block.minimum, result);
        }
    }
    result
}

fn tree(sums: &[f32]) -> f32 {
    match sums {
        [sum] => *sum,
        _ => {
            let (left, right) = sums.split_at(sums.len() / 2);
            tree(left) + tree(right)
        }
    }
}

/// Compares products on every instruction set and thread count with the formula, and with `f64`.
fn check(kind: BlockType, (m, rows, cols, leaves): (usize, usize, usize, usize)) {
    let matrix = matrix(kind, rows, cols, 5);
    let weights = packed(&mut Cpu::new(2), &matrix, leaves);
    let x: Vec<f32> = (0..m * cols).map(|i| hash(i, 9) as f32 / 1e9 - 2.1).collect();
    let mut input = Input::default();
    input.set(&mut Cpu::new(1), Encoding::Int8, &x, cols);
    let (Rows { values: groups, stride }, leaf) = (input.codes(), cols / leaves);
    let mut expected = Vec::new();
    for (i, row) in (0..m).flat_map(|i| (0..rows).map(move |row| (i, row))) {
        let sum = |at: usize| {
            let groups = &groups[i * stride + at * leaf / INPUT_GROUP..][..leaf / INPUT_GROUP];
            leaf_sum(&matrix, kind, row, at * leaf, groups)
        };
        expected.push(tree(&(0..leaves).map(sum).collect::<Vec<_>>()));
    }
    let mut values = vec![0.0; cols];
    for (row, got) in expected.iter().take(rows).enumerate() {
        matrix.widen_row(row, &mut values);
        let code = |col: usize| {
            let group = groups[col / INPUT_GROUP];
            f64::from(group.codes[col % INPUT_GROUP]) * f64::from(group.scale)
        };
        let exact: f64 = values.iter().enumerate().map(|(col, w)| f64::from(*w) * code(col)).sum();
        let size: f64 = values.iter().enumerate().map(|(col, w)| (f64::from(*w) * code(col)).abs()).sum();
        let got = f64::from(*got);
        assert!((got - exact).abs() <= 1e-5 * size, "{}: {got} for {exact}", kind.name());
    }
    for isa in Isa::available() {
        for threads in [1, 3] {
            let (cpu, mut y) = (&mut Cpu::with_isa(threads, isa), vec![0.0; m * rows]);
            matmul(cpu, &input, &[Linear::from(&weights)], &mut y, Write::Set);
            let what = format!("{} {m} x [{rows}, {cols}] / {leaves} on {}", kind.name(), isa.name());
            assert_eq!(bits(&y), bits(&expected), "{what}, {threads} threads");
        }
    }
}

#[test]
fn products_are_the_formula_on_every_instruction_set() {
    for kind in BlockType::ALL {
        let each = kind.form().values.max(64);
        for m in [1, 2, 3, 5, 7, 8, 19] {
            check(kind, (m, 37 + m, 2 * each, 1));
        }
        check(kind, (4, 70, 1024, 8));
        check(kind, (1, 600, 512, 2));
    }
    check(BlockType::Q5_0, (3, 33, 96, 1));
    check(BlockType::Q4_1, (9, 20, 224, 1));
}

#[test]
fn stacks_may_mix_types() {
    let kinds = [BlockType::Q4K, BlockType::Q6K, BlockType::Q5_0, BlockType::Q8_0];
    let (cols, cpu) = (512, &mut Cpu::new(2));
    let parts: Vec<Packed> = kinds.iter().map(|kind| packed(cpu, &matrix(*kind, 130, cols, 7), 1)).collect();
    for m in [1, 4, 30] {
        let x: Vec<f32> = (0..m * cols).map(|i| hash(i, 9) as f32 / 1e9 - 2.1).collect();
        let mut input = Input::default();
        input.set(cpu, Encoding::Int8, &x, cols);
        let stack: Vec<Linear<'_>> = parts.iter().map(Linear::from).collect();
        let mut together = vec![0.0; m * 130 * kinds.len()];
        matmul(cpu, &input, &stack, &mut together, Write::Set);
        for (i, part) in parts.iter().enumerate() {
            let mut alone = vec![0.0; m * 130];
            matmul(cpu, &input, &[part.into()], &mut alone, Write::Set);
            for row in 0..m {
                assert_eq!(together[(row * kinds.len() + i) * 130..][..130], alone[row * 130..][..130]);
            }
        }
    }
}

#[test]
fn a_scale_beyond_halves_takes_another_format() {
    let mut bytes = vec![0x12; 17 * 3];
    (bytes[0], bytes[17], bytes[34]) = (120, 200, 120); // 2^-8, 2^72
    let matrix = WeightMatrix::new(Storage::Blocks(BlockType::Mxfp4, bytes.into()), 3, 32);
    let [small, wide] = Format::keeping(matrix.storage()) else { panic!("two formats") };
    let refused = Packed::of(&mut Cpu::new(1), &matrix, *small).unwrap_err();
    assert_eq!(refused, PackError::WideScale { row: 1 });
    let packed = Packed::of(&mut Cpu::new(1), &matrix, *wide).unwrap();
    let mut row = [0.0; 32];
    packed.widen_row(1, &mut row);
    assert_eq!((row[0], row[16]), (2.0 * 2f32.powi(72), 2f32.powi(72)));
}

#[test]
fn formats_have_names_of_their_own() {
    let mut names: Vec<String> = Format::all()
        .chain(Format::of_blocks())
        .map(|format| format!("{format:?} {}", format.file_name()))
        .collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert_eq!(count, formats::blocks::TABLE.len() + Format::all().count());
}
