//! Leaves: the order of summation of a product that ranks may divide by its inputs.
//!
//! The inputs are divided into at most eight leaves of equal length. A leaf is summed in ascending order from
//! zero, and the leaves are joined as a balanced tree, in f32:
//!
//! ```text
//! y = ((l0 + l1) + (l2 + l3)) + ((l4 + l5) + (l6 + l7))
//! ```
//!
//! With one, two, four or eight ranks and evenly divided leaves, each rank holds whole subtrees, so the sum
//! has the same bits for every number of ranks. (A left fold would not: `fold(l0..l3) + fold(l4..l7)` is a
//! different expression.) The number of leaves depends only on the model's configuration.

use std::ops::Range;

/// Most leaves of a product, and so most ranks that can divide it.
pub const MAX_LEAVES: usize = 8;
/// Levels of the tree below its root.
pub const MAX_LEVELS: usize = MAX_LEAVES.ilog2() as usize;
/// The length of a leaf is a multiple of this many inputs, unless there is only one leaf. It is the number of
/// columns that share a scale in grouped formats, and a multiple of every other unit of the kernels.
pub const UNIT: usize = 32;

/// Number of leaves of a product over `inputs` inputs that can be divided at multiples of `unit`: the largest
/// power of two up to eight for which leaves are whole multiples of `unit` and of [`UNIT`] inputs.
pub fn count(inputs: usize, unit: usize) -> usize {
    let unit = lowest_common_multiple(unit.max(1), UNIT);
    let divides = |leaves: &usize| inputs > 0 && inputs.is_multiple_of(leaves * unit);
    (0..=MAX_LEVELS).rev().map(|level| 1 << level).find(divides).unwrap_or(1)
}

fn lowest_common_multiple(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a / divisor * b
}

/// The leaves of `rank`, one of `ranks`, out of `leaves`.
///
/// # Panics
/// If the ranks cannot divide the leaves evenly.
pub fn of_rank(leaves: usize, rank: usize, ranks: usize) -> Range<usize> {
    assert!(
        ranks > 0 && leaves.is_multiple_of(ranks) && rank < ranks,
        "{leaves} leaves are divided among {ranks} ranks"
    );
    let each = leaves / ranks;
    rank * each..(rank + 1) * each
}

/// Replaces `sums[0]` with the sum of all of `sums` as a balanced tree, element by element; the others are
/// overwritten with partial sums. Each element of `sums` belongs to a leaf or a whole subtree, in order.
///
/// # Panics
/// If the number of sums is not a power of two, or their lengths differ.
pub fn join(sums: &mut [&mut [f32]]) {
    assert!(sums.len().is_power_of_two(), "a balanced tree has a power of two of leaves");
    let mut apart = 1;
    while apart < sums.len() {
        for pair in sums.chunks_exact_mut(2 * apart) {
            let (left, right) = pair.split_at_mut(apart);
            assert_eq!(left[0].len(), right[0].len(), "all sums have one length");
            for (left, right) in left[0].iter_mut().zip(right[0].iter()) {
                *left += right;
            }
        }
        apart *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_cut_at_whole_heads_and_units() {
        // Heads of attention and their dimension: Llama 3 8B and 70B, Qwen2.5 0.5B, 7B and 14B, Gemma 2 9B.
        for (heads, dim, leaves) in
            [(32, 128, 8), (64, 128, 8), (14, 64, 2), (28, 128, 4), (40, 128, 8), (16, 256, 8)]
        {
            assert_eq!(count(heads * dim, dim), leaves, "{heads} x {dim}");
        }
        for (inner, leaves) in [(14336, 8), (4864, 8), (18944, 8), (2880, 2), (704, 2), (80, 1), (0, 1)] {
            assert_eq!(count(inner, 1), leaves, "{inner}");
        }
        assert_eq!(count(32 * 80, 80), 8, "heads of 80: cut every 160 inputs");
        assert_eq!(count(6 * 80, 80), 1, "three heads are not whole units of 32");
    }

    #[test]
    fn any_number_of_ranks_gives_the_same_bits() {
        let leaf = |i: usize| (0..100).map(|j| ((i * 131 + j * 37) % 97) as f32 * 0.377_123 - 17.1).collect();
        let all: Vec<Vec<f32>> = (0..MAX_LEAVES).map(leaf).collect();
        let joined = |mut sums: Vec<Vec<f32>>| {
            join(&mut sums.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            sums.swap_remove(0)
        };
        let expected = joined(all.clone());
        for ranks in [2, 4, 8] {
            let of = |rank| joined(all[of_rank(MAX_LEAVES, rank, ranks)].to_vec());
            assert_eq!(joined((0..ranks).map(of).collect()), expected, "{ranks} ranks");
        }
        let element = |i: usize| all[i][7];
        let halves = [0, 4].map(|i| (element(i) + element(i + 1)) + (element(i + 2) + element(i + 3)));
        assert_eq!((halves[0] + halves[1]).to_bits(), expected[7].to_bits());
        let fold = (1..MAX_LEAVES)
            .fold(all[0].clone(), |sum, i| sum.iter().zip(&all[i]).map(|(a, b)| a + b).collect());
        assert_ne!(fold, expected, "a left fold is another sum");
    }
}
