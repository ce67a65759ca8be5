//! Quantised matrices as tensors of checkpoints; [`skein_model::checkpoint::quantised`] reads the same
//! layouts.

use half::{bf16, f16};
use safetensors::tensor::Dtype;
use skein_kernels::cpu::packed::to_e4m3;

use super::maths::grid::{Quantised, ScaleType};

/// A tensor to be written.
pub(super) struct Encoded {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// Largest finite FP8 number (E4M3).
const FP8_MOST: f32 = 448.0;
/// Column of each place in an AWQ word.
const AWQ_COLUMNS: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

fn tensor(base: &str, suffix: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Encoded {
    Encoded { name: format!("{base}.{suffix}"), dtype, shape: shape.to_vec(), bytes }
}

/// `values` in the type of scales.
pub(super) fn floats(values: impl Iterator<Item = f32>, kind: ScaleType) -> (Dtype, Vec<u8>) {
    match kind {
        ScaleType::F16 => (Dtype::F16, values.flat_map(|it| f16::from_f32(it).to_le_bytes()).collect()),
        ScaleType::Bf16 => (Dtype::BF16, values.flat_map(|it| bf16::from_f32(it).to_le_bytes()).collect()),
        ScaleType::F32 => (Dtype::F32, values.flat_map(f32::to_le_bytes).collect()),
    }
}

/// Words of `bits`-bit codes without gaps, from the low bits: `count` codes, `code(i)`.
fn words(count: usize, bits: usize, code: impl Fn(usize) -> u8) -> Vec<u32> {
    let mut words = vec![0u32; (count * bits).div_ceil(32)];
    for i in 0..count {
        let (at, shift, code) = (i * bits / 32, i * bits % 32, u32::from(code(i)));
        words[at] |= code << shift;
        if shift + bits > 32 {
            words[at + 1] |= code >> (32 - shift);
        }
    }
    words
}

/// `lines` of words, each as long as the others, side by side: word `w` of line `l` is at `[w, l]`.
fn across(lines: &[Vec<u32>]) -> Vec<u8> {
    let length = lines.first().map_or(0, Vec::len);
    (0..length).flat_map(|at| lines.iter().flat_map(move |line| line[at].to_le_bytes())).collect()
}

/// `lines` of words one after another.
fn down(lines: &[Vec<u32>]) -> Vec<u8> {
    lines.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
}

/// Scales `[groups, rows]` in half precision.
fn scales_by_group(matrix: &Quantised) -> Vec<u8> {
    let order = (0..matrix.groups()).flat_map(|group| (0..matrix.rows).map(move |row| (row, group)));
    floats(order.map(|(row, group)| matrix.grid(row, group).scale), ScaleType::F16).1
}

/// GPTQ, version 1, for the module `base`.
pub(super) fn gptq(base: &str, matrix: &Quantised) -> Vec<Encoded> {
    let Quantised { rows, cols, group, ref codes, .. } = *matrix;
    let (bits, groups) = (matrix.bits as usize, matrix.groups());
    let lines: Vec<_> = (0..rows).map(|row| words(cols, bits, |col| codes[row * cols + col])).collect();
    // Version 1 stores zero points less one.
    let zero = |row, group| (matrix.grid(row, group).zero.wrapping_sub(1)) & (u8::MAX >> (8 - bits));
    let zeros: Vec<_> = (0..groups).map(|group| words(rows, bits, |row| zero(row, group))).collect();
    let group_of = |col| matrix.group_of.as_ref().map_or((col / group) as u32, |of| of[col]);
    let group_of = (0..cols).flat_map(|col| group_of(col).to_le_bytes()).collect();
    vec![
        tensor(base, "qweight", Dtype::I32, &[cols * bits / 32, rows], across(&lines)),
        tensor(base, "qzeros", Dtype::I32, &[groups, rows * bits / 32], down(&zeros)),
        tensor(base, "scales", Dtype::F16, &[groups, rows], scales_by_group(matrix)),
        tensor(base, "g_idx", Dtype::I32, &[cols], group_of),
    ]
}

/// AWQ's layout `gemm`, for the module `base`.
pub(super) fn awq(base: &str, matrix: &Quantised) -> Vec<Encoded> {
    let Quantised { rows, cols, ref codes, .. } = *matrix;
    let groups = matrix.groups();
    let line = |code: &dyn Fn(usize) -> u8| words(rows, 4, |i| code(i / 8 * 8 + AWQ_COLUMNS[i % 8]));
    let lines: Vec<_> = (0..cols).map(|col| line(&|row| codes[row * cols + col])).collect();
    let zeros: Vec<_> = (0..groups).map(|group| line(&|row| matrix.grid(row, group).zero)).collect();
    vec![
        tensor(base, "qweight", Dtype::I32, &[cols, rows / 8], down(&lines)),
        tensor(base, "qzeros", Dtype::I32, &[groups, rows / 8], down(&zeros)),
        tensor(base, "scales", Dtype::F16, &[groups, rows], scales_by_group(matrix)),
    ]
}

/// compressed-tensors' `pack-quantized` for symmetric codes, for the module `base`.
pub(super) fn packed(base: &str, matrix: &Quantised, kind: ScaleType) -> Vec<Encoded> {
    let Quantised { rows, cols, ref codes, .. } = *matrix;
    let bits = matrix.bits as usize;
    let lines: Vec<_> = (0..rows).map(|row| words(cols, bits, |col| codes[row * cols + col])).collect();
    let shape = [rows as u64, cols as u64].iter().flat_map(|it| it.to_le_bytes()).collect();
    let (dtype, scales) = floats(matrix.grids.iter().map(|grid| grid.scale), kind);
    let mut tensors = vec![
        tensor(base, "weight_packed", Dtype::I32, &[rows, (cols * bits).div_ceil(32)], down(&lines)),
        tensor(base, "weight_scale", dtype, &[rows, matrix.groups()], scales),
        tensor(base, "weight_shape", Dtype::I64, &[2], shape),
    ];
    if let Some(of) = &matrix.group_of {
        let bytes = of.iter().flat_map(|group| group.to_le_bytes()).collect();
        tensors.push(tensor(base, "weight_g_idx", Dtype::I32, &[cols], bytes));
    }
    tensors
}

/// compressed-tensors' `int-quantized` for symmetric 8-bit codes and a scale for each output.
pub(super) fn int8(base: &str, matrix: &Quantised, kind: ScaleType) -> Vec<Encoded> {
    let (dtype, scales) = floats(matrix.grids.iter().map(|grid| grid.scale), kind);
    let codes = matrix.codes.iter().map(|code| code ^ 0x80).collect();
    vec![
        tensor(base, "weight", Dtype::I8, &[matrix.rows, matrix.cols], codes),
        tensor(base, "weight_scale", dtype, &[matrix.rows, 1], scales),
    ]
}

/// compressed-tensors' `float-quantized` with a scale for each output, of `weights` `[rows, cols]`.
pub(super) fn fp8(base: &str, weights: &[f32], cols: usize, kind: ScaleType) -> Vec<Encoded> {
    let rows = weights.len() / cols;
    let (mut codes, mut scales) = (Vec::with_capacity(weights.len()), Vec::with_capacity(rows));
    for row in weights.chunks_exact(cols) {
        let scale = fp8_scale(row, kind);
        codes.extend(row.iter().map(|weight| to_e4m3(weight / scale)));
        scales.push(scale);
    }
    let (dtype, scales) = floats(scales.into_iter(), kind);
    vec![
        tensor(base, "weight", Dtype::F8_E4M3, &[rows, cols], codes),
        tensor(base, "weight_scale", dtype, &[rows, 1], scales),
    ]
}

/// Scale that brings the largest weight to the largest FP8 number, as it is stored.
fn fp8_scale(row: &[f32], kind: ScaleType) -> f32 {
    let largest = row.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
    if largest > 0.0 { kind.round(largest / FP8_MOST) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Value of an E4M3 code, by the format's definition.
    fn value(code: u8) -> f32 {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let size = if exponent == 0 {
            mantissa / 8.0 * 2f32.powi(-6)
        } else {
            (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7)
        };
        if code & 0x80 == 0 { size } else { -size }
    }

    #[test]
    fn fp8_codes_are_the_nearest_numbers_and_ties_go_to_even_codes() {
        let finite = || (0..=0x7eu8).map(|code| (code, value(code)));
        for i in 0..40_000 {
            let x = (i as f32 * 0.731).sin() * 2f32.powi(i % 22 - 12);
            let best = finite().map(|(_, it)| (it - x.abs()).abs()).fold(f32::MAX, f32::min);
            let code = to_e4m3(x);
            assert_eq!((value(code) - x).abs(), best, "{x} {code:#x}");
            assert_eq!(code & 0x80 != 0, x.is_sign_negative());
        }
        for (code, size) in finite() {
            assert_eq!(to_e4m3(size), code);
            let next = value(code + 1);
            if code < 0x7e {
                assert_eq!(to_e4m3(f32::midpoint(size, next)), code + (code & 1), "{size} {next}");
            }
        }
        assert_eq!((to_e4m3(1e9), to_e4m3(-1e9)), (0x7e, 0xfe));
    }

    #[test]
    fn words_have_no_gaps() {
        assert_eq!(words(8, 4, |i| i as u8), [0x7654_3210]);
        let three = words(32, 3, |i| (i % 8) as u8);
        for i in 0..32 {
            let (at, shift) = (i * 3 / 32, i * 3 % 32);
            let wide = u64::from(three[at]) | u64::from(three.get(at + 1).copied().unwrap_or(0)) << 32;
            assert_eq!(wide >> shift & 7, i as u64 % 8);
        }
    }
}
