//! The model and device that are compared.

use std::path::Path;

/// Largest relative norm of the logits' difference, in bf16.
pub(super) const LOGITS_DIFFER: f64 = 1e-2;

/// What to check, and how thoroughly.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Name in reports.
    pub name: &'a str,
    /// Its model directory.
    pub dir: &'a Path,
    /// Index among the visible devices.
    pub ordinal: u32,
    /// Seed of prompts and batches.
    pub seed: u64,
    /// Lengths of the prompts, in tokens.
    pub lengths: &'a [usize],
    /// Random batches to try in batch-invariant mode; they must not change a bit.
    pub batchings: usize,
}
