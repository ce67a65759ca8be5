//! Joins a tile's sums over leaves as a balanced tree; see [`leaves`](crate::leaves).

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::mem::MaybeUninit;

use super::super::simd::Simd;
use crate::leaves::{MAX_LEAVES, MAX_LEVELS};

/// Sums of `MR` rows by `NR` panels that wait for their right-hand sibling, at most one per level. They stay
/// in the L1 cache while a leaf is summed.
pub(in crate::cpu) struct Tree<S: Simd, const MR: usize, const NR: usize> {
    /// Number of the next leaf.
    leaf: usize,
    leaves: usize,
    waiting: [MaybeUninit<[[S::V; NR]; MR]>; MAX_LEVELS],
}

impl<S: Simd, const MR: usize, const NR: usize> Tree<S, MR, NR> {
    /// Tree with `leaves` leaves.
    ///
    /// # Panics
    /// If `leaves` is not a power of two up to [`MAX_LEAVES`].
    #[inline(always)]
    pub(in crate::cpu) fn new(leaves: usize) -> Self {
        assert!(leaves.is_power_of_two() && leaves <= MAX_LEAVES, "a balanced tree");
        Self { leaf: 0, leaves, waiting: [const { MaybeUninit::uninit() }; MAX_LEVELS] }
    }

    /// Number of the next leaf.
    #[inline(always)]
    pub(in crate::cpu) fn leaf(&self) -> usize {
        self.leaf
    }

    /// Adds the sums of the next leaf; returns the total after the last one.
    #[inline(always)]
    pub(in crate::cpu) fn put(&mut self, s: S, mut sums: [[S::V; NR]; MR]) -> Option<[[S::V; NR]; MR]> {
        let (mut level, mut before) = (0, self.leaf);
        self.leaf += 1;
        while before & 1 == 1 {
            // SAFETY: leaf numbers count in binary. A bit of the leaf's number is set if and only if a
            // completed subtree of that level is waiting.
            let left = unsafe { self.waiting[level].assume_init_ref() };
            for m in 0..MR {
                for n in 0..NR {
                    sums[m][n] = s.add(left[m][n], sums[m][n]);
                }
            }
            (level, before) = (level + 1, before >> 1);
        }
        if self.leaf == self.leaves {
            return Some(sums);
        }
        self.waiting[level].write(sums);
        None
    }
}
