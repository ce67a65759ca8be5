//! Whole models on a CUDA device against the CPU backend, which is the specification: `skein gpu-check models`, and the
//! tests on the emulated device.
//!
//! What is compared are log-probabilities of a random part of the vocabulary. With the mean of that part taken off each
//! row they are the logits, up to the same shift.

mod compare;
mod run;
mod sequence;

use std::path::Path;
use std::time::Duration;

use skein_kernels::cuda::Device;

pub use sequence::{BLOCK_SIZE, Draw, Sequence, prompt};

/// Largest relative norm of the logits' difference, in bf16.
const LOGITS_DIFFER: f64 = 1e-2;

/// What is checked, and how thoroughly.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// In reports.
    pub name: &'a str,
    /// Its model directory.
    pub dir: &'a Path,
    /// Which of the visible devices.
    pub ordinal: u32,
    /// Of prompts and batches.
    pub seed: u64,
    /// Tokens of the prompts.
    pub lengths: &'a [usize],
    /// Random batches that must not change a bit in batch-invariant mode.
    pub batchings: usize,
}

/// What one comparison found.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Model and comparison.
    pub name: String,
    /// What was measured: a relative norm, or how many values differ.
    pub measured: f64,
    /// The most that passes.
    pub allowed: f64,
    /// Wall time.
    pub took: Duration,
}

impl Finding {
    /// Whether it passed; what is no number did not.
    pub fn passed(&self) -> bool {
        self.measured <= self.allowed
    }
}

/// Compares everything about `subject`; `on_finding` hears of each comparison as it ends.
///
/// # Errors
/// A device or a model that cannot be used, in words.
pub fn check(subject: &Subject<'_>, on_finding: fn(&Finding)) -> Result<Vec<Finding>, String> {
    // Loading reports better, but opens the kernels first.
    Device::open(subject.ordinal).map_err(|why| why.to_string())?;
    let mut findings = Vec::new();
    for comparison in compare::ALL {
        let start = skein_node::clock::now();
        for (what, measured, allowed) in comparison(subject)? {
            let took = skein_node::clock::now().since(start);
            let finding = Finding { name: format!("{}: {what}", subject.name), measured, allowed, took };
            on_finding(&finding);
            findings.push(finding);
        }
    }
    Ok(findings)
}
