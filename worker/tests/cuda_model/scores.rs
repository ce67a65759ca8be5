//! Log-probabilities of a prompt, and how near they are to others.

use skein_proto::logprobs::TokenLogprobs;
use skein_worker::backend::{Backend, Batch, ScoreRow, Want};

use crate::runs::{prompt, sequence_of, step};

/// Log-probabilities agree within this: bf16 keeps three digits, and the models' logits are a few units wide.
pub const TOLERANCE: f32 = 0.06;

/// [`scores_of`] a prompt of 40 tokens.
pub fn scores(backend: &mut dyn Backend, chunks: &[usize], others: bool) -> Vec<TokenLogprobs> {
    scores_of(backend, &prompt(1, 40), chunks, others)
}

/// Log-probability and best tokens for all `tokens` except the first, computed in chunks, optionally beside
/// another sequence.
pub fn scores_of(
    backend: &mut dyn Backend,
    tokens: &[u32],
    chunks: &[usize],
    others: bool,
) -> Vec<TokenLogprobs> {
    let mut sequence = sequence_of(tokens.to_vec(), 0);
    let mut other = sequence_of(prompt(2, 60), 1);
    let mut all = Vec::new();
    for (i, &count) in chunks.iter().enumerate() {
        let mut batch = Batch::default();
        if others {
            other.put(&mut batch, 1 + i % 3 * 4);
        }
        let first = batch.tokens.len() as u32;
        let start = sequence.computed;
        sequence.put(&mut batch, count);
        for position in start..(start + count).min(tokens.len() - 1) {
            let row = first + (position - start) as u32;
            batch.wants.push(Want::Score(ScoreRow { row, target: tokens[position + 1], top: 5 }));
        }
        all.extend(step(backend, batch).scores().cloned());
    }
    all
}

/// Largest difference of log-probabilities, and that the best tokens are the same where they stand apart.
pub fn compare(name: &str, got: &[TokenLogprobs], expected: &[TokenLogprobs], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{name}");
    let mut largest = 0f32;
    for (position, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.token, expected.token, "{name}");
        let difference = (got.logprob - expected.logprob).abs();
        assert!(difference <= tolerance, "{name}: position {position}: {got:?} is not {expected:?}");
        largest = largest.max(difference);
        if expected.top[0].1 - expected.top[1].1 > 2.0 * tolerance {
            assert_eq!(got.top[0].0, expected.top[0].0, "{name}: position {position}: the best token");
        }
        assert_eq!(got.top.len(), 5);
    }
    println!("{name}: log-probabilities differ by at most {largest:.4}");
}
