//! Triangular factors of a symmetric matrix, blocked and on all threads.

use super::{add_scaled, dot, for_each_part};

/// Columns that are eliminated together.
const BLOCK: usize = 64;

/// The matrix is not positive definite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotPositive;

/// Factors `matrix` `[size, size]` to `R * Rᵀ` with an upper triangular `R`, which replaces its upper
/// triangle. Only that triangle is read.
///
/// The last column is eliminated first, so that `R⁻¹` is the upper Cholesky factor of the inverse: `matrix⁻¹
/// = (R⁻¹)ᵀ * R⁻¹`.
pub(super) fn factor(matrix: &mut [f32], size: usize) -> Result<(), NotPositive> {
    for start in (0..size).step_by(BLOCK).rev() {
        let end = size.min(start + BLOCK);
        // Subtracts the products with the columns behind the block.
        let behind: Vec<f32> =
            (start..end).flat_map(|row| matrix[row * size + end..(row + 1) * size].to_vec()).collect();
        let width = size - end;
        for_each_part(&mut matrix[..end * size], size, |i, row| {
            for j in start.max(i)..end {
                row[j] -= dot(&row[end..], &behind[(j - start) * width..][..width]);
            }
        });
        let block = factor_block(matrix, size, start..end)?;
        let width = end - start;
        for_each_part(&mut matrix[..start * size], size, |_, row| {
            solve(&block, &mut row[start..end], width);
        });
    }
    Ok(())
}

/// Factors the diagonal block of `columns`; returns its `R` as `[width, width]`.
fn factor_block(
    matrix: &mut [f32],
    size: usize,
    columns: std::ops::Range<usize>,
) -> Result<Vec<f32>, NotPositive> {
    let (start, width) = (columns.start, columns.len());
    let mut block = vec![0f32; width * width];
    for i in 0..width {
        block[i * width..][i..width].copy_from_slice(&matrix[(start + i) * size + start + i..][..width - i]);
    }
    for j in (0..width).rev() {
        let of_j = block[j * width + j + 1..(j + 1) * width].to_vec();
        let left =
            f64::from(block[j * width + j]) - of_j.iter().map(|it| f64::from(*it).powi(2)).sum::<f64>();
        if left.is_nan() || left <= 0.0 {
            return Err(NotPositive);
        }
        let root = left.sqrt() as f32;
        block[j * width + j] = root;
        for i in 0..j {
            let row = &mut block[i * width..(i + 1) * width];
            row[j] = (row[j] - dot(&row[j + 1..], &of_j)) / root;
        }
    }
    for i in 0..width {
        matrix[(start + i) * size + start + i..][..width - i].copy_from_slice(&block[i * width..][i..width]);
    }
    Ok(block)
}

/// Solves `x * Rᵀ = row` for a row above the diagonal block `R`, in place.
fn solve(block: &[f32], row: &mut [f32], width: usize) {
    for j in (0..width).rev() {
        let behind = dot(&row[j + 1..], &block[j * width + j + 1..(j + 1) * width]);
        row[j] = (row[j] - behind) / block[j * width + j];
    }
}

/// Inverse of the upper triangular `matrix`, whose lower triangle is not read. The result's lower triangle is
/// zero. Takes the memory of one more.
pub(super) fn invert(mut matrix: Vec<f32>, size: usize) -> Vec<f32> {
    // Columns of the inverse do not depend on each other: each part computes some of them, by rows.
    let mut parts = vec![0f32; size * size];
    for_each_part(&mut parts, BLOCK * size, |part, to| {
        let (first, width) = (part * BLOCK, to.len() / size);
        let mut sums = vec![0f32; width];
        for i in (0..first + width).rev() {
            sums.fill(0.0);
            for k in i + 1..first + width {
                add_scaled(&mut sums, -matrix[i * size + k], &to[k * width..(k + 1) * width]);
            }
            if i >= first {
                sums[i - first] += 1.0;
            }
            let diagonal = matrix[i * size + i];
            to[i * width..(i + 1) * width].iter_mut().zip(&sums).for_each(|(to, sum)| *to = sum / diagonal);
        }
    });
    for_each_part(&mut matrix, size, |i, row| {
        for (part, to) in row.chunks_mut(BLOCK).enumerate() {
            to.copy_from_slice(&parts[part * BLOCK * size + i * to.len()..][..to.len()]);
        }
    });
    matrix
}
