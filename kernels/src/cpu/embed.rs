//! Looks tokens up in the embedding table, and adds rows of other tables.

use super::disjoint::DisjointMut;
use super::matrix::WeightMatrix;
use super::{Cpu, for_each_row_of};

/// `out[i] = scale * table[tokens[i]]`, widened; `out` is `[tokens.len(), table.cols()]`.
///
/// # Panics
/// If a token is not a row of the table, or the shapes disagree.
pub fn embed(cpu: &mut Cpu, table: &WeightMatrix, tokens: &[u32], scale: f32, out: &mut [f32]) {
    let outside = tokens.iter().find(|token| **token as usize >= table.rows());
    assert!(outside.is_none(), "token {outside:?} is outside the vocabulary of {}", table.rows());
    embed_part(cpu, table, 0, tokens, scale, out);
}

/// Like [`embed`], for a table whose first row belongs to token `first`. Rows of tokens outside the table
/// become zeros.
///
/// # Panics
/// If the shapes disagree.
pub fn embed_part(
    cpu: &mut Cpu,
    table: &WeightMatrix,
    first: usize,
    tokens: &[u32],
    scale: f32,
    out: &mut [f32],
) {
    let width = table.cols();
    assert_eq!(out.len(), tokens.len() * width, "out is [tokens, width]");
    let out = DisjointMut::new(out);
    for_each_row_of(cpu, tokens.len(), width, |row, _| {
        // SAFETY: each row is in one task.
        let out = unsafe { out.part(row * width, width) };
        let token = match (tokens[row] as usize).checked_sub(first) {
            Some(token) if token < table.rows() => token,
            _ => return out.fill(0.0),
        };
        table.widen_row(token, out);
        if scale != 1.0 {
            out.iter_mut().for_each(|value| *value *= scale);
        }
    });
}

/// Adds to each row of `x` `[rows, width]` a row of `table` `[any, width]`, of the number that `index` gives.
///
/// # Panics
/// If the table has no such row, or the shapes disagree.
pub fn add_rows(
    cpu: &mut Cpu,
    table: &[f32],
    width: usize,
    index: impl Fn(usize) -> usize + Sync,
    x: &mut [f32],
) {
    assert!(x.len().is_multiple_of(width), "x is [rows, width]");
    let (rows, x) = (x.len() / width, DisjointMut::new(x));
    for_each_row_of(cpu, rows, width, |row, _| {
        // SAFETY: each row is in one task.
        let x = unsafe { x.part(row * width, width) };
        let added = &table[index(row) * width..][..width];
        x.iter_mut().zip(added).for_each(|(x, added)| *x += added);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::matrix::Storage;

    #[test]
    fn a_row_of_the_table_is_added_to_each_row() {
        let (table, mut x) = ([1.0, 2.0, 10.0, 20.0], [0.5; 6]);
        add_rows(&mut Cpu::new(2), &table, 2, |row| row % 2, &mut x);
        assert_eq!(x, [1.5, 2.5, 10.5, 20.5, 1.5, 2.5]);
    }

    #[test]
    fn tokens_become_their_rows() {
        let bytes: Vec<u8> = (0..12).flat_map(|i| half::bf16::from_f32(i as f32).to_le_bytes()).collect();
        let table = WeightMatrix::new(Storage::Bf16(bytes.into()), 4, 3);
        let mut out = vec![0.0; 6];
        embed(&mut Cpu::new(1), &table, &[3, 1], 1.0, &mut out);
        assert_eq!(out, [9.0, 10.0, 11.0, 3.0, 4.0, 5.0]);
        embed(&mut Cpu::new(1), &table, &[3, 1], 1.5, &mut out);
        assert_eq!(out, [13.5, 15.0, 16.5, 4.5, 6.0, 7.5]);
        let mut out = [f32::NAN; 9];
        embed_part(&mut Cpu::new(1), &table.part(1..3, 0..3), 1, &[3, 2, 0], 1.0, &mut out);
        assert_eq!(out, [0.0, 0.0, 0.0, 6.0, 7.0, 8.0, 0.0, 0.0, 0.0]);
    }
}
