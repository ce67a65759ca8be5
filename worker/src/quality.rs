//! How well a model predicts given tokens, and how far its predictions are from those of a reference.

use std::path::Path;

use skein_model::LoadError;
use skein_model::checkpoint::Weights;
use skein_model::config::ModelConfig;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::spec::Spec;
use skein_model::tensors;

use crate::BlockId;
use crate::backend::cpu::{CpuModel, CpuOptions, NumberTypes};
use crate::backend::{Batch, BatchSequence, BatchState};
use crate::config::Precision;
use crate::error::WorkerError;
use crate::load::model_files::stored_form;
use crate::load::precision;

/// Slots of a block of the cache.
const BLOCK_SIZE: u32 = 16;
/// Tokens computed in one step; a window has several, so that the cache matters. Their logits are in memory
/// together: 39 MB for a vocabulary of 150k.
const CHUNK: usize = 64;

/// Number of the reference's most likely tokens whose log probabilities are compared.
const LIKELIEST: usize = 20;

/// Sums over scored tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Quality {
    /// Number of scored tokens.
    pub tokens: u64,
    /// Sum of their negative log probabilities, in nats.
    pub nats: f64,
    /// Sum of the Kullback-Leibler divergences from the reference's distributions, in nats.
    pub divergence: f64,
    /// Sum of the reference's negative log probabilities, in nats.
    pub reference_nats: f64,
    /// Tokens before which the reference has the same most likely token.
    pub same_top: u64,
    /// Sum of the mean absolute differences of the log probabilities of the reference's 20 most likely
    /// tokens, in nats.
    pub log_prob_error: f64,
}

/// Why windows cannot be scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unscorable {
    /// A token that the model does not have.
    #[error("the text has token {token}, and the model has {vocab}; use text or tokens of its own tokenizer")]
    Token {
        /// Id in the text.
        token: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// Models whose distributions cannot be compared.
    #[error("the model has {own} tokens and the reference {reference}; compare models of one vocabulary")]
    Vocabularies {
        /// Size of the model's vocabulary.
        own: u32,
        /// Size of the reference's.
        reference: u32,
    },
}

impl Quality {
    /// exp of the mean loss.
    pub fn perplexity(&self) -> f64 {
        (self.nats / self.tokens.max(1) as f64).exp()
    }

    /// Perplexity of the reference on the same tokens.
    pub fn reference_perplexity(&self) -> f64 {
        (self.reference_nats / self.tokens.max(1) as f64).exp()
    }

    /// Mean divergence per token, in nats.
    pub fn mean_divergence(&self) -> f64 {
        self.divergence / self.tokens.max(1) as f64
    }

    /// Mean absolute difference of the log probabilities of the reference's 20 most likely tokens, in nats.
    pub fn mean_log_prob_error(&self) -> f64 {
        self.log_prob_error / self.tokens.max(1) as f64
    }

    /// Share of the tokens before which both have the same most likely token.
    pub fn share_of_same_top(&self) -> f64 {
        self.same_top as f64 / self.tokens.max(1) as f64
    }
}

/// What a model is loaded for.
#[derive(Debug, Clone, Copy)]
pub struct ScoredSize {
    /// Most tokens of a window.
    pub window: usize,
    /// Compute threads.
    pub threads: usize,
}

/// A model whose logits can be read, on the CPU.
pub struct Scored {
    model: CpuModel,
    vocab: u32,
}

impl Scored {
    /// Loads the model in `dir` for windows of up to `size`, with the number types of a worker that
    /// was started with `precision`.
    ///
    /// # Errors
    /// If it cannot be served like that on the CPU.
    pub fn load(dir: &Path, precision: Precision, size: ScoredSize) -> Result<Self, WorkerError> {
        let spec = scorable(dir)?;
        let weights = Weights::open(dir)?;
        let embedding = tensors::embedding(&spec).find(&weights)?;
        let quantised = stored_form(&spec, &weights)?;
        let numbers = precision::on_cpu(precision, embedding.storage(), quantised, false)?;
        Ok(load(dir, &spec, numbers, size)?)
    }

    /// Loads the model in `dir` so that nothing is rounded: codes are decoded, and everything is computed in
    /// 32 bits.
    ///
    /// # Errors
    /// If it cannot be loaded.
    pub fn exact(dir: &Path, size: ScoredSize) -> Result<Self, LoadError> {
        load(dir, &scorable(dir)?, NumberTypes::EXACT, size)
    }
}

/// The spec of the model in `dir`, which generates tokens.
fn scorable(dir: &Path) -> Result<Spec, LoadError> {
    let model = ModelConfig::from_dir(dir)?;
    match model.pooling {
        None => Ok(model.spec),
        Some(_) => Err(LoadError::Pools { dir: dir.to_owned() }),
    }
}

fn load(
    dir: &Path,
    spec: &Spec,
    numbers: NumberTypes,
    ScoredSize { window, threads }: ScoredSize,
) -> Result<Scored, LoadError> {
    let kv_blocks = window.div_ceil(BLOCK_SIZE as usize) as u32;
    let options = CpuOptions {
        threads,
        kv_blocks,
        window_blocks: None,
        state_slots: 1,
        block_size: BLOCK_SIZE,
        max_rows: CHUNK as u32,
        numbers,
    };
    let model = CpuModel::load(dir, options, &PackedCache::none(), &mut |_, _| {})?;
    Ok(Scored { model, vocab: spec.vocab_size })
}

/// Scores every token of `windows` but each window's first, and the same tokens with `reference`. `progress`
/// receives the windows done.
///
/// # Errors
/// If a token is not the model's, or the vocabularies differ.
///
/// # Panics
/// If a window is longer than the models were loaded for.
pub fn measure(
    model: &mut Scored,
    mut reference: Option<&mut Scored>,
    windows: &[Vec<u32>],
    progress: &mut dyn FnMut(usize),
) -> Result<Quality, Unscorable> {
    let own = model.vocab;
    if let Some(reference) = reference.as_ref().map(|other| other.vocab).filter(|vocab| *vocab != own) {
        return Err(Unscorable::Vocabularies { own, reference });
    }
    if let Some(&token) = windows.iter().flatten().find(|token| **token >= own) {
        return Err(Unscorable::Token { token, vocab: own });
    }
    let mut sums = Quality::default();
    for (i, window) in windows.iter().enumerate() {
        progress(i);
        let scored = window.len().saturating_sub(1);
        for first in (0..scored).step_by(CHUNK) {
            let end = scored.min(first + CHUNK);
            let batch = |model: &Scored| chunk(window, first..end, model.model.kv_blocks());
            let rows: Vec<u32> = (0..(end - first) as u32).collect();
            let own = model.model.logits(&batch(model), &rows);
            let theirs = reference.as_mut().map(|other| other.model.logits(&batch(other), &rows));
            for (at, logits) in own.iter().enumerate() {
                let theirs = theirs.as_ref().map(|all| &all[at][..]);
                sums.add(logits, theirs, window[first + at + 1]);
            }
        }
    }
    Ok(sums)
}

impl Quality {
    fn add(&mut self, logits: &[f32], reference: Option<&[f32]>, target: u32) {
        let log_sum = log_sum(logits);
        self.tokens += 1;
        self.nats += log_sum - f64::from(logits[target as usize]);
        let Some(reference) = reference else { return };
        let of_reference = self::log_sum(reference);
        self.reference_nats += of_reference - f64::from(reference[target as usize]);
        self.divergence += reference
            .iter()
            .zip(logits)
            .map(|(theirs, own)| {
                let theirs = f64::from(*theirs) - of_reference;
                theirs.exp() * (theirs - (f64::from(*own) - log_sum))
            })
            .sum::<f64>();
        self.same_top += u64::from(top(logits) == top(reference));
        let likeliest = likeliest(reference);
        let error = |&token: &usize| {
            ((f64::from(logits[token]) - log_sum) - (f64::from(reference[token]) - of_reference)).abs()
        };
        self.log_prob_error += likeliest.iter().map(error).sum::<f64>() / likeliest.len().max(1) as f64;
    }
}

/// Logarithm of the sum of the exponentials.
fn log_sum(logits: &[f32]) -> f64 {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    most + logits.iter().map(|it| (f64::from(*it) - most).exp()).sum::<f64>().ln()
}

/// Index of the largest logit, the first of equals.
fn top(logits: &[f32]) -> Option<usize> {
    let indices = 0..logits.len();
    indices.reduce(|best, at| if logits[at] > logits[best] { at } else { best })
}

/// Indices of the [`LIKELIEST`] largest logits.
fn likeliest(logits: &[f32]) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..logits.len()).collect();
    if indices.len() > LIKELIEST {
        indices.select_nth_unstable_by(LIKELIEST, |a, b| logits[*b].total_cmp(&logits[*a]));
        indices.truncate(LIKELIEST);
    }
    indices
}

/// Tokens `rows` of a window.
fn chunk(window: &[u32], rows: std::ops::Range<usize>, blocks: u32) -> Batch {
    let positions: Vec<u32> = (rows.start as u32..rows.end as u32).collect();
    Batch {
        tokens: window[rows.clone()].to_vec(),
        slots: positions.clone(), // the blocks lie in order
        positions,
        sequences: vec![BatchSequence {
            rows: 0..rows.len() as u32,
            context_len: rows.end as u32,
            blocks: 0..blocks,
            adapter: None,
        }],
        block_tables: (0..blocks).map(BlockId).collect(),
        states: vec![BatchState::alone()],
        ..Batch::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likely_tokens_are_compared_by_their_probabilities() {
        let reference: Vec<f32> = (0..100_u8).map(|token| -f32::from(token) / 10.0).collect();
        let mut sums = Quality::default();
        // The same distribution, whatever is added to all logits.
        let shifted: Vec<f32> = reference.iter().map(|logit| logit + 3.0).collect();
        sums.add(&shifted, Some(&reference), 0);
        assert!(sums.mean_log_prob_error() < 1e-6 && sums.mean_divergence().abs() < 1e-6);
        // The twenty likeliest of the other one are a nat less likely than they were relative to the rest.
        let mut other = reference.clone();
        other[..20].iter_mut().for_each(|logit| *logit -= 1.0);
        let mut sums = Quality::default();
        sums.add(&other, Some(&reference), 0);
        let expected = log_sum(&other) - log_sum(&reference) + 1.0;
        assert!((sums.mean_log_prob_error() - expected).abs() < 1e-6, "{sums:?}");
    }
}
