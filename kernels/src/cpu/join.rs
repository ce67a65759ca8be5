//! Joins the partial sums of a product that ranks divide by its inputs.

use super::disjoint::DisjointMut;
use super::matmul::Write;
use super::{Cpu, for_each_row_of};
use crate::leaves;

/// Sums `sums` `[ranks, rows, width]` over the ranks as a balanced tree, adds `bias` `[width]`, and writes to
/// `y` `[rows, width]`. The bits equal those of a single rank with all leaves. Overwrites `sums`.
///
/// # Panics
/// If the shapes disagree, or the number of ranks is not a power of two.
pub fn join_ranks(
    cpu: &mut Cpu,
    sums: &mut [f32],
    ranks: usize,
    bias: Option<&[f32]>,
    width: usize,
    y: &mut [f32],
    write: Write,
) {
    assert!(sums.len() == ranks * y.len() && y.len().is_multiple_of(width), "sums are [ranks, rows, width]");
    assert!(ranks <= leaves::MAX_LEAVES, "{ranks} ranks, at most {}", leaves::MAX_LEAVES);
    assert!(bias.is_none_or(|bias| bias.len() == width), "bias is [width]");
    let (len, rows) = (y.len(), y.len() / width);
    let (sums, y) = (DisjointMut::new(sums), DisjointMut::new(y));
    for_each_row_of(cpu, rows, ranks * width, |row, _| {
        // SAFETY: each row is in one task.
        let y = unsafe { y.part(row * width, width) };
        let mut parts: [&mut [f32]; leaves::MAX_LEAVES] = Default::default();
        for (rank, part) in parts[..ranks].iter_mut().enumerate() {
            // SAFETY: as above, and ranks do not overlap.
            *part = unsafe { sums.part(rank * len + row * width, width) };
        }
        leaves::join(&mut parts[..ranks]);
        let sum = &mut *parts[0];
        if let Some(bias) = bias {
            sum.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
        }
        match write {
            Write::Set => y.copy_from_slice(sum),
            Write::Add => y.iter_mut().zip(sum).for_each(|(y, sum)| *y += *sum),
        }
    });
}
