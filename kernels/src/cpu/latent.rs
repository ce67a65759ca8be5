//! Queries and keys of latent attention (DeepSeek-AI 2024): only the last values of each head are rotated.

use super::disjoint::DisjointMut;
use super::rope::Rotate;
use super::{Cpu, for_each_row_of};

/// Heads of a row, and the part of each that is rotated.
#[derive(Debug, Clone, Copy)]
pub struct HeadsAt {
    /// Number of rows.
    pub rows: usize,
    /// Heads at the start of each row.
    pub heads: usize,
    /// Values of a head.
    pub dim: usize,
    /// First value of a head that is rotated; all after it are.
    pub first: usize,
}

/// Rotates the last values of each head of `x`, `[rows, stride]`, in place, by halves. `cos` and `sin` are
/// `[rows, rotated / 2]`.
///
/// # Panics
/// If the shapes disagree.
pub fn rotate_parts(cpu: &mut Cpu, x: &mut [f32], at: HeadsAt, stride: usize, cos: &[f32], sin: &[f32]) {
    let HeadsAt { rows, heads, dim, first } = at;
    let half = (dim - first) / 2;
    assert!(x.len() == rows * stride && heads * dim <= stride, "the heads lie inside a row");
    assert!(cos.len() == rows * half && sin.len() == cos.len(), "cos and sin are [rows, rotated / 2]");
    let (isa, x) = (cpu.isa, DisjointMut::new(x));
    for_each_row_of(cpu, rows, heads * 2 * half, |row, _| {
        for head in 0..heads {
            // SAFETY: each row is in one task, and a head is borrowed once at a time.
            let x = unsafe { x.part(row * stride + head * dim + first, 2 * half) };
            isa.run(Rotate { x, cos: &cos[row * half..][..half], sin: &sin[row * half..][..half] });
        }
    });
}

/// Sets `to` `[rows, heads, rank + rotated]` to `by_head` `[heads, rows, rank]` and, after it, to the rotated
/// values of `queries` `[rows, heads, dim]`.
///
/// # Panics
/// If the shapes disagree.
pub fn queries_of_latent(cpu: &mut Cpu, by_head: &[f32], queries: &[f32], at: HeadsAt, to: &mut [f32]) {
    let HeadsAt { rows, heads, dim, first } = at;
    let (rank, rotated) = (by_head.len() / (rows * heads).max(1), dim - first);
    let width = rank + rotated;
    assert!(by_head.len() == heads * rows * rank && queries.len() == rows * heads * dim, "heads of all rows");
    assert_eq!(to.len(), rows * heads * width, "to is [rows, heads, rank + rotated]");
    let to = DisjointMut::new(to);
    for_each_row_of(cpu, rows, heads * width, |row, _| {
        // SAFETY: each row is in one task.
        let to = unsafe { to.part(row * heads * width, heads * width) };
        for (head, to) in to.chunks_exact_mut(width).enumerate() {
            to[..rank].copy_from_slice(&by_head[(head * rows + row) * rank..][..rank]);
            to[rank..].copy_from_slice(&queries[(row * heads + head) * dim + first..][..rotated]);
        }
    });
}
