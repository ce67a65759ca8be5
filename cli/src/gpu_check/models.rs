//! Checks whole models against the CPU backend.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use skein_bench::models::{Dtype, RandomWeights, SHAPES, make_model};
use skein_kernel_check::cases::Scale;
use skein_worker::check::{Finding, Subject, check};

use super::options::CheckOptions;
use crate::exit::{Failure, OTHER};

/// Shape, prompts and random batches of one model.
type Case = (&'static str, &'static [usize], usize);

/// Cases for the emulator.
const SMALL: &[Case] = &[("tiny-llama", &[5, 20], 1), ("tiny-qwen3", &[17], 0)];
/// Cases for a GPU. The last has the width of a real model.
const FULL: &[Case] = &[
    ("tiny-llama", &[1, 7, 64, 300, 511], 1000),
    ("tiny-qwen2", &[1, 33, 450], 20),
    ("tiny-qwen3", &[3, 130, 500], 20),
    ("qwen3-0.6b", &[7, 64, 300], 20),
];

/// A directory that is removed when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // If it cannot be removed, it stays in the system's temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes each model with random weights and compares it; returns the number of comparisons that failed.
pub(super) fn run(options: &CheckOptions, report: &mut Map<String, Value>) -> Result<usize, Failure> {
    let cases = if options.scale == Scale::Full { FULL } else { SMALL };
    let scratch = Scratch(std::env::temp_dir().join(format!("skein-gpu-check-{}", std::process::id())));
    let tokenizer = scratch.0.join("tokenizer");
    // The check reads no text, so it needs nothing but the binary.
    std::fs::create_dir_all(&tokenizer)
        .and_then(|()| std::fs::write(tokenizer.join("tokenizer.json"), "{}"))
        .map_err(Failure::other)?;
    let mut findings = Vec::new();
    for &(name, lengths, batchings) in cases.iter().filter(|(name, ..)| name.contains(&options.only)) {
        let dir = scratch.0.join(name);
        let shape = SHAPES.iter().find(|shape| shape.name == name);
        let shape = shape.ok_or_else(|| Failure::new(OTHER, format!("no shape is called {name}")))?;
        let random = RandomWeights { dtype: Dtype::Bf16, seed: options.seed, has_outliers: false };
        make_model(shape, random, &tokenizer, &dir, |_| {}).map_err(Failure::other)?;
        let (dir, ordinal, seed) = (dir.as_path(), options.ordinal, options.seed);
        let subject = Subject { name, dir, ordinal, seed, lengths, batchings };
        let show: fn(&Finding) = if options.as_json { |_| {} } else { show };
        findings.extend(check(&subject, show).map_err(Failure::other)?);
    }
    let failed = findings.iter().filter(|finding| !finding.passed()).count();
    if !options.as_json {
        outln!("\nmodels: {} of {} comparisons passed\n", findings.len() - failed, findings.len());
    }
    let values = findings.iter().map(|it| {
        json!({"name": it.name, "passed": it.passed(), "measured": it.measured, "allowed": it.allowed,
            "ms": it.took.as_secs_f64() * 1e3})
    });
    report.insert("models".into(), values.collect());
    Ok(failed + usize::from(findings.is_empty()))
}

fn show(finding: &Finding) {
    let failed = if finding.passed() { "" } else { "  FAILED" };
    let Finding { name, measured, allowed, took } = finding;
    outln!("{name:<80} {measured:>10.5} of {allowed:<6} {:>8.1} s{failed}", took.as_secs_f64());
}
