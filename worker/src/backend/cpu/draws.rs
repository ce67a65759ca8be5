//! Tokens and scores from logits, each on any thread, in memory that is kept between steps.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::sample;
use skein_proto::logprobs::TokenLogprobs;

use super::super::sampling::sampling;
use super::super::{BackendError, Batch, Sampled, ScoreRow, StepOutput};

/// What a step draws and scores, and the memory for it.
pub(super) struct Draws {
    /// Batch rows whose logits are read, rising.
    pub(super) rows: Vec<u32>,
    samples: Vec<OnceLock<Sampled>>,
    scores: Vec<OnceLock<TokenLogprobs>>,
    /// One for each thread.
    scratch: Vec<Mutex<sample::Scratch>>,
}

impl Draws {
    /// For draws on some threads, from a vocabulary.
    pub(super) fn new(threads: usize, vocab: usize) -> Self {
        let scratch = (0..threads).map(|_| Mutex::new(sample::Scratch::for_vocab(vocab))).collect();
        Self { rows: Vec::new(), samples: Vec::new(), scores: Vec::new(), scratch }
    }

    /// Makes ready for `batch`.
    pub(super) fn start(&mut self, batch: &Batch) {
        self.rows.clear();
        self.rows.extend(batch.samples.iter().map(|sample| sample.row));
        self.rows.extend(batch.scores.iter().map(|score| score.row));
        self.rows.sort_unstable();
        self.rows.dedup();
        self.samples.resize_with(batch.samples.len(), OnceLock::new);
        self.scores.resize_with(batch.scores.len(), OnceLock::new);
    }

    /// Draws and scores what reads the rows `self.rows[first..]` that `logits` `[any, vocab]` are of.
    pub(super) fn draw(
        &mut self,
        cpu: &mut Cpu,
        batch: &Batch,
        first: usize,
        logits: &[f32],
        vocab: usize,
    ) -> Result<(), BackendError> {
        let rows = &self.rows[first..first + logits.len() / vocab];
        let (isa, broken) = (cpu.isa, AtomicU32::new(u32::MAX));
        let usable = |row: u32| {
            let index = rows.binary_search(&row).ok()?;
            let logits = &logits[index * vocab..][..vocab];
            if !sample::is_usable(isa, logits) {
                broken.fetch_min(row, Ordering::Relaxed);
                return None;
            }
            Some(logits)
        };
        let (samples, scores, scratch) = (&self.samples, &self.scores, &self.scratch);
        cpu.threads.run(samples.len() + scores.len(), |task, participant| {
            let scratch = &mut scratch[participant].lock().unwrap_or_else(PoisonError::into_inner);
            let score = |logits, token, top: u32, scratch: &mut sample::Scratch| {
                logprobs(sample::score(isa, logits, token, top as usize, scratch), token)
            };
            if let Some(row) = batch.samples.get(task) {
                let Some(logits) = usable(row.row) else { return };
                let token = sample::draw(isa, logits, &sampling(batch, row), scratch);
                let logprobs = row.params.logprobs.map(|top| score(logits, token, top, scratch));
                let _ = samples[task].set(Sampled { token, logprobs });
                return;
            }
            let ScoreRow { row, target, top } = batch.scores[task - samples.len()];
            let Some(logits) = usable(row) else { return };
            let _ = scores[task - samples.len()].set(score(logits, target, top, scratch));
        });
        match broken.into_inner() {
            u32::MAX => Ok(()),
            row => Err(BackendError::NotFinite { row }),
        }
    }

    /// What was drawn and scored, every row having been in some [`Draws::draw`].
    pub(super) fn finish(&mut self) -> StepOutput {
        let mut output = StepOutput {
            samples: Vec::with_capacity(self.samples.len()),
            scores: Vec::with_capacity(self.scores.len()),
        };
        output.samples.extend(self.samples.iter_mut().filter_map(OnceLock::take));
        output.scores.extend(self.scores.iter_mut().filter_map(OnceLock::take));
        output
    }
}

fn logprobs(scored: sample::Scored, token: u32) -> TokenLogprobs {
    TokenLogprobs { token, logprob: scored.logprob, rank: scored.rank, top: scored.top }
}
