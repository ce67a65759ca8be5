//! Batches that start and end together. Prompts are padded to the longest one, every row is computed until
//! the longest output ends, and each job reserves the model's whole context. Servers without in-flight
//! batching run generative models this way.
//!
//! Two rules determine when a batch starts. *Static*: as soon as the device is free, with all waiting jobs.
//! *Dynamic* (Triton's dynamic batcher, Ray Serve's `@serve.batch`): once the batch is full, or once its
//! oldest job has waited for the maximum delay.

use std::collections::VecDeque;
use std::time::Duration;

use skein_bench::engine::steps::Work;

use super::batcher::{Batcher, Job, Next};
use super::kv_use::Held;

/// Batcher whose batches start and end together.
#[derive(Debug)]
pub struct Padded {
    /// Tokens reserved per job.
    context: u32,
    most: usize,
    delay: Duration,
    waiting: VecDeque<(usize, Job)>,
    batch: Vec<(usize, Job)>,
    /// Steps of the running batch so far; the first computes the prompts and the first tokens.
    steps: u32,
}

impl Padded {
    /// Batches of up to `most` jobs in `capacity` tokens of memory, `context` per job. `delay` is how long a
    /// job waits for the batch to fill while the device is idle; zero makes the rule static.
    pub fn new(capacity: u32, context: u32, most: usize, delay: Duration) -> Self {
        let fit = (capacity / context).max(1) as usize;
        Self {
            context,
            most: most.clamp(1, fit),
            delay,
            waiting: VecDeque::new(),
            batch: Vec::new(),
            steps: 0,
        }
    }

    fn longest(&self, of: impl Fn(&Job) -> u32) -> u32 {
        self.batch.iter().map(|(_, job)| of(job)).max().unwrap_or(0)
    }

    fn work(&self) -> Work {
        let (jobs, prompt) = (self.batch.len() as u32, self.longest(|job| job.prompt));
        let rows = if self.steps == 0 { jobs * prompt } else { jobs };
        Work { rows, context: u64::from(jobs) * u64::from(prompt + self.steps) }
    }
}

impl Batcher for Padded {
    fn submit(&mut self, id: usize, job: Job) {
        self.waiting.push_back((id, job));
    }

    fn plan(&mut self, now: Duration, more: bool) -> Next {
        if self.batch.is_empty() {
            let Some((_, oldest)) = self.waiting.front() else { return Next::Wait(None) };
            let start = oldest.at + self.delay;
            if more && self.waiting.len() < self.most && now < start {
                return Next::Wait(Some(start));
            }
            let count = self.waiting.len().min(self.most);
            self.batch = self.waiting.drain(..count).collect();
            self.steps = 0;
        }
        Next::Step(self.work())
    }

    fn finish(&mut self, _now: Duration, ended: &mut Vec<usize>) {
        self.steps += 1;
        if self.steps == self.longest(|job| job.output) {
            ended.extend(self.batch.drain(..).map(|(id, _)| id));
        }
    }

    fn held(&self) -> Held {
        let mut held = Held::default();
        for (_, job) in &self.batch {
            let live = job.prompt + self.steps.min(job.output);
            held.live += u64::from(live);
            held.reserved += u64::from(job.tokens() - live);
            held.internal += u64::from(self.context.saturating_sub(job.tokens()));
        }
        held
    }
}
