//! Tokens and scores from logits, each on any thread, in memory that is kept between steps.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::sample;
use skein_kernels::cpu::simd::Isa;
use skein_proto::logprobs::TokenLogprobs;

use super::super::sampling::sampling;
use super::super::{Answer, BackendError, Batch, Sampled, ScoreRow, StepOutput, Want};

/// What a step draws and scores, and the memory for it.
pub(super) struct Draws {
    /// Batch rows whose logits are read, rising.
    pub(super) rows: Vec<u32>,
    /// One for each sample, each row of a draft and each score, in the order of the wants.
    tasks: Vec<Task>,
    /// What became of the tasks.
    done: Vec<OnceLock<Answer>>,
    /// One for each thread.
    scratch: Vec<Mutex<sample::Scratch>>,
}

/// What one thread does.
struct Task {
    /// Batch row whose logits are read.
    row: u32,
    /// Which of the batch's wants.
    want: usize,
    /// Which of its draws.
    nth: u32,
}

impl Draws {
    /// For draws on some threads, from a vocabulary.
    pub(super) fn new(threads: usize, vocab: usize) -> Self {
        let scratch = (0..threads).map(|_| Mutex::new(sample::Scratch::for_vocab(vocab))).collect();
        Self { rows: Vec::new(), tasks: Vec::new(), done: Vec::new(), scratch }
    }

    /// Makes ready for `batch`.
    pub(super) fn start(&mut self, batch: &Batch) -> Result<(), BackendError> {
        self.tasks.clear();
        for (want, asked) in batch.wants.iter().enumerate() {
            let rows = match asked {
                Want::Sample(sample) => sample.row..sample.row + 1,
                Want::Verify(verify) => verify.rows.clone(),
                Want::Score(score) => score.row..score.row + 1,
                Want::Pool(_) => return Err(BackendError::Unsupported { backend: "cpu", want: "pool" }),
            };
            self.tasks.extend(rows.zip(0..).map(|(row, nth)| Task { row, want, nth }));
        }
        self.rows.clear();
        self.rows.extend(self.tasks.iter().map(|task| task.row));
        self.rows.sort_unstable();
        self.rows.dedup();
        self.done.resize_with(self.tasks.len(), OnceLock::new);
        Ok(())
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
        let (tasks, done, scratch) = (&self.tasks, &self.done, &self.scratch);
        cpu.threads.run(tasks.len(), |index, participant| {
            let task = &tasks[index];
            let Some(logits) = usable(task.row) else { return };
            let scratch = &mut scratch[participant].lock().unwrap_or_else(PoisonError::into_inner);
            let _ = done[index].set(answer(isa, batch, task, logits, scratch));
        });
        match broken.into_inner() {
            u32::MAX => Ok(()),
            row => Err(BackendError::NotFinite { row }),
        }
    }

    /// The answers to `batch`, every row having been in some [`Draws::draw`].
    pub(super) fn finish(&mut self, batch: &Batch) -> StepOutput {
        let mut done = self.done.iter_mut().filter_map(OnceLock::take);
        let mut answers = Vec::with_capacity(batch.wants.len());
        answers.extend(batch.wants.iter().filter_map(|want| match want {
            Want::Verify(verify) => {
                let drawn = done.by_ref().take(verify.rows.len());
                let drawn = drawn.flat_map(|answer| answer.drawn().first().cloned()).collect();
                Some(Answer::verified(batch.draft(verify), drawn))
            }
            Want::Sample(_) | Want::Score(_) | Want::Pool(_) => done.next(),
        }));
        StepOutput { answers }
    }
}

/// What `task` makes of its row's `logits`.
fn answer(isa: Isa, batch: &Batch, task: &Task, logits: &[f32], scratch: &mut sample::Scratch) -> Answer {
    let score = |token, top: u32, scratch: &mut sample::Scratch| {
        logprobs(sample::score(isa, logits, token, top as usize, scratch), token)
    };
    let draw = match &batch.wants[task.want] {
        Want::Sample(sample) => sample.draw(batch),
        Want::Verify(verify) => verify.draw(batch, task.nth),
        Want::Score(ScoreRow { target, top, .. }) => return Answer::Scored(score(*target, *top, scratch)),
        Want::Pool(_) => unreachable!("no task pools"),
    };
    let token = sample::draw(isa, logits, &sampling(&draw), scratch);
    let logprobs = draw.params.logprobs.map(|top| score(token, top, scratch));
    Answer::Sampled(Sampled { token, logprobs })
}

fn logprobs(scored: sample::Scored, token: u32) -> TokenLogprobs {
    TokenLogprobs { token, logprob: scored.logprob, rank: scored.rank, top: scored.top }
}
