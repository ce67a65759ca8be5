//! Finds weights that are NaN or infinite: a row that meets one gives no finite logit.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Cpu;
use super::blocks::BlockType;
use super::matrix::{Storage, WeightMatrix};

/// Fewest bytes per task.
const BYTES_PER_TASK: usize = 1 << 20;

/// A weight that is NaN or infinite.
#[derive(Debug, Clone, Copy)]
pub struct NonFinite {
    /// Its row.
    pub row: usize,
    /// Its column.
    pub col: usize,
    /// Its value.
    pub value: f32,
}

/// The first weight of `matrix` that is NaN or infinite, as the numbers of a block are if its scale is.
pub fn first_non_finite(cpu: &mut Cpu, matrix: &WeightMatrix) -> Option<NonFinite> {
    let is_bad = |row: usize| match matrix.storage() {
        Storage::Bf16(_) => any_16::<0x7f80>(matrix.row(row)),
        Storage::F16(_) => any_16::<0x7c00>(matrix.row(row)),
        Storage::F32(_) => any_32(matrix.row(row)),
        Storage::Blocks(kind, _) => any_scale(*kind, matrix.row(row)),
    };
    let each = (BYTES_PER_TASK / matrix.row_bytes().max(1)).max(1);
    let first = AtomicUsize::new(usize::MAX);
    cpu.threads.run(matrix.rows().div_ceil(each), |task, _| {
        let mut rows = task * each..((task + 1) * each).min(matrix.rows());
        if let Some(row) = rows.find(|row| is_bad(*row)) {
            first.fetch_min(row, Ordering::Relaxed);
        }
    });
    let row = Some(first.into_inner()).filter(|row| *row < matrix.rows())?;
    let mut values = vec![0.0; matrix.cols()];
    matrix.widen_row(row, &mut values);
    let col = values.iter().position(|value| !value.is_finite())?;
    Some(NonFinite { row, col, value: values[col] })
}

/// Whether a word has all bits of its `EXPONENT`. Without an early end, so that the loop is vectorised.
fn any_16<const EXPONENT: u16>(bytes: &[u8]) -> bool {
    let words = bytes.as_chunks::<2>().0.iter().map(|word| u16::from_le_bytes(*word));
    words.fold(0u16, |bad, word| bad | u16::from(word & EXPONENT == EXPONENT)) != 0
}

/// The same for single precision.
fn any_32(bytes: &[u8]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    words.fold(0u32, |bad, word| bad | u32::from(word & EXPONENT == EXPONENT)) != 0
}

/// Whether a scale or minimum in a row of blocks has all bits of the exponent.
fn any_scale(kind: BlockType, row: &[u8]) -> bool {
    let is_bad = |block: &[u8], at: usize| u16::from_le_bytes([block[at], block[at + 1]]) & 0x7c00 == 0x7c00;
    row.chunks_exact(kind.form().bytes).any(|block| kind.halves().iter().any(|at| is_bad(block, *at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_and_minima_of_blocks_are_searched() {
        for kind in BlockType::ALL {
            let (form, halves) = (kind.form(), kind.halves());
            for at in halves {
                // The third block of the second row.
                let (blocks, bad) = (4, 6);
                let mut bytes = vec![0x11u8; 3 * blocks * form.bytes];
                let matrix = |bytes: &[u8]| {
                    let storage = Storage::Blocks(kind, bytes.to_vec().into());
                    WeightMatrix::new(storage, 3, blocks * form.values)
                };
                assert!(first_non_finite(&mut Cpu::new(2), &matrix(&bytes)).is_none(), "{}", form.name);
                bytes[bad * form.bytes + at..][..2].copy_from_slice(&[0, 0x7c]);
                let found = first_non_finite(&mut Cpu::new(2), &matrix(&bytes)).expect(form.name);
                assert_eq!((found.row, found.col / form.values), (1, 2), "{}", form.name);
            }
            assert_eq!(halves.is_empty(), kind == BlockType::Mxfp4, "{}", form.name);
        }
    }

    #[test]
    fn the_first_weight_that_is_not_finite_is_found_in_every_type() {
        const ROWS: usize = 9000; // several tasks
        const COLS: usize = 67;
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [None, Some(0), Some(8000 * COLS + 66)] {
                let value = |i: usize| match (at.is_some_and(|at| i == at || i == at + 70), i % 3) {
                    (true, _) => bad,
                    (_, 0) => -60000.0,
                    (_, 1) => 0.0,
                    _ => 1e-7,
                };
                let all = || (0..ROWS * COLS).map(value);
                let of_16: Vec<u8> = all().flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect();
                let of_bf16: Vec<u8> = all().flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect();
                let of_32: Vec<u8> = all().flat_map(f32::to_le_bytes).collect();
                for storage in
                    [Storage::F16(of_16.into()), Storage::Bf16(of_bf16.into()), Storage::F32(of_32.into())]
                {
                    let matrix = WeightMatrix::new(storage, ROWS, COLS);
                    let found = first_non_finite(&mut Cpu::new(2), &matrix);
                    let place = found.map(|found| found.row * COLS + found.col);
                    assert_eq!(place, at);
                    assert!(found.is_none_or(|found| found.value.to_string() == bad.to_string()));
                }
            }
        }
    }
}
