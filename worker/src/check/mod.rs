//! Whole models on a CUDA device against the CPU backend, which is the specification: for
//! `skein gpu-check models`, and for tests on the emulated device.
//!
//! Compares log-probabilities of a random part of the vocabulary. Minus each row's mean they equal the
//! logits, up to the same shift.

mod compare;
mod run;
mod sequence;
mod subject;

use std::time::Duration;

use skein_kernels::cuda::Device;

pub use sequence::{BLOCK_SIZE, Draw, Sequence, prompt};
pub use subject::Subject;

/// Result of one comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Names of model and comparison.
    pub name: String,
    /// A relative norm, or the number of differing values.
    pub measured: f64,
    /// Largest value that passes.
    pub allowed: f64,
    /// Wall time of the comparison.
    pub took: Duration,
}

impl Finding {
    /// Whether it passed; NaN does not.
    pub fn passed(&self) -> bool {
        self.measured <= self.allowed
    }
}

/// Runs all comparisons on `subject` and calls `on_finding` after each.
///
/// # Errors
/// A device or a model that cannot be used.
pub fn check(subject: &Subject<'_>, on_finding: fn(&Finding)) -> Result<Vec<Finding>, String> {
    // A clearer error than from loading, which opens the kernels first.
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
