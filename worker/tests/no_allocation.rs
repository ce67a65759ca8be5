//! A warm step of the CPU model allocates only the vector of its results. A separate binary, because it
//! counts allocations of all threads.

#![allow(clippy::unwrap_used)] // a test may fail

#[path = "cpu_model/batches.rs"]
#[allow(dead_code)]
mod batches;

use std::sync::Arc;

use batches::{BLOCK_SIZE, load, sample, sequence_of};
use skein_proto::sampling::SamplingParams;
use skein_sys::allocations::Counting;
use skein_worker::backend::Batch;
use skein_worker::check::Sequence;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

const SEQUENCES: u32 = 12;
const PROMPT: usize = 30;

/// Allocations of a warm step: the vector of samples.
const ALLOWED: u64 = 1;
/// Steps that may allocate more, because a context grows into another block or a thread takes a new path.
const GROWING: usize = 6;
const STEPS: usize = 60;

/// Every sampling method without log-probabilities.
fn ways() -> Vec<Arc<SamplingParams>> {
    let greedy = SamplingParams::default();
    let warm = SamplingParams { temperature: 1.0, seed: 7, ..greedy.clone() };
    let ways = [
        greedy,
        warm.clone(),
        SamplingParams { top_k: 5, ..warm.clone() },
        SamplingParams { top_p: 0.5, ..warm.clone() },
        SamplingParams { top_k: 50, top_p: 0.9, min_p: 0.01, ..warm.clone() },
        SamplingParams { repetition_penalty: 1.2, ..warm },
    ];
    ways.into_iter().map(Arc::new).collect()
}

#[test]
fn a_warm_step_allocates_only_its_results() {
    let mut model = load("qwen2", 2, BLOCK_SIZE);
    let tokens = |i: u32| (0..100).map(|at| (at * at + 31 * at + i * 17) % 250 + 2).collect();
    let mut sequences: Vec<Sequence> =
        (0..SEQUENCES).map(|i| sequence_of(tokens(i), i, BLOCK_SIZE)).collect();
    let ways = ways();
    let mut counts = Vec::new();
    for step in 0..STEPS {
        let mut batch = Batch::default();
        for (i, sequence) in sequences.iter_mut().enumerate() {
            sequence.put(&mut batch, if step == 0 { PROMPT } else { 1 });
            sample(sequence, &mut batch, &ways[i % ways.len()], PROMPT as u32);
        }
        let before = ALLOCATOR.count();
        let output = model.run(&batch).unwrap();
        counts.push(ALLOCATOR.count() - before);
        assert_eq!(output.answers.len(), SEQUENCES as usize);
    }
    assert!(counts[0] > ALLOWED, "the first step grows its memory, and that is counted: {counts:?}");
    let growing = counts[STEPS / 4..].iter().filter(|count| **count > ALLOWED).count();
    assert!(growing <= GROWING, "allocations by step: {counts:?}");
}
