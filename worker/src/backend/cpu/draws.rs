//! Draws tokens and scores from logits, on all threads, in memory that is reused between steps.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::sample;
use skein_kernels::cpu::simd::Isa;
use skein_proto::logprobs::TokenLogprobs;

use super::super::sampling::sampling;
use super::super::{Answer, BackendError, Batch, MaskSlot, Sampled, ScoreRow, StepOutput, Want};

/// A step's draws and scores, and the memory for them.
pub(super) struct Draws {
    /// Batch rows whose logits are read, ascending.
    pub(super) rows: Vec<u32>,
    /// One for each sample, each row of a draft and each score, in the order of the wants.
    tasks: Vec<Task>,
    /// Result of each task.
    done: Vec<OnceLock<Answer>>,
    /// One for each thread.
    scratch: Vec<Mutex<Scratch>>,
}

/// Working memory of one thread.
struct Scratch {
    sample: sample::Scratch,
    /// Logits with a grammar's mask applied; allocated on first use.
    masked: Vec<f32>,
}

/// One draw or score.
struct Task {
    /// Batch row whose logits are read.
    row: u32,
    /// Index into the batch's wants.
    want: usize,
    /// Index of the row within the want.
    nth: u32,
}

impl Draws {
    /// Memory for draws on `threads` threads from `vocab` logits.
    pub(super) fn new(threads: usize, vocab: usize) -> Self {
        let of_thread =
            |_| Mutex::new(Scratch { sample: sample::Scratch::for_vocab(vocab), masked: Vec::new() });
        let scratch = (0..threads).map(of_thread).collect();
        Self { rows: Vec::new(), tasks: Vec::new(), done: Vec::new(), scratch }
    }

    /// Collects the tasks of `batch`.
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

    /// Runs the tasks of rows `self.rows[first..]`, whose logits are `logits` `[any, vocab]`.
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

    /// The answers for `batch`, once [`Draws::draw`] has covered every row.
    pub(super) fn finish(&mut self, batch: &Batch) -> StepOutput {
        let mut done = self.done.iter_mut().filter_map(OnceLock::take);
        let mut answers = Vec::with_capacity(batch.wants.len());
        answers.extend(batch.wants.iter().filter_map(|want| match want {
            Want::Verify(verify) => {
                // Takes the answers of all rows, including those after a wrong token.
                let answers: Vec<Answer> = done.by_ref().take(verify.rows.len()).collect();
                let drawn = answers.iter().map_while(|answer| answer.drawn().first().cloned());
                Some(Answer::verified(batch.draft(verify), drawn.collect()))
            }
            Want::Sample(_) | Want::Score(_) | Want::Pool(_) => done.next(),
        }));
        StepOutput { answers }
    }
}

/// The result of `task` on its row's `logits`.
fn answer(isa: Isa, batch: &Batch, task: &Task, logits: &[f32], scratch: &mut Scratch) -> Answer {
    let Scratch { sample: scratch, masked } = scratch;
    let score = |token, top: u32, scratch: &mut sample::Scratch| {
        logprobs(sample::score(isa, logits, token, top as usize, scratch), token)
    };
    let draw = match &batch.wants[task.want] {
        Want::Sample(sample) => sample.draw(batch),
        Want::Verify(verify) => verify.draw(batch, task.nth),
        Want::Score(ScoreRow { target, top, .. }) => return Answer::Scored(score(*target, *top, scratch)),
        Want::Pool(_) => unreachable!("no task pools"),
    };
    // The mask is applied before anything else that changes logits, so that nothing can undo it.
    // Log-probabilities are the model's.
    let allowed = draw.mask.map(MaskSlot::wait);
    let drawn_from = match &allowed {
        None => logits,
        Some(allowed) => match allowed.mask_logits(logits, masked) {
            Some(masked) => masked,
            None => return Answer::Undrawn,
        },
    };
    let token = sample::draw(isa, drawn_from, &sampling(&draw), scratch);
    let logprobs = draw.params.logprobs.map(|top| score(token, top, scratch));
    Answer::Sampled(Sampled { token, logprobs })
}

fn logprobs(scored: sample::Scored, token: u32) -> TokenLogprobs {
    TokenLogprobs { token, logprob: scored.logprob, rank: scored.rank, top: scored.top }
}
