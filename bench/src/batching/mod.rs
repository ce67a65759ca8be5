//! `skein bench batching`: compares the real scheduler with textbook batchers, using the same model of step
//! times and the same arrivals. It shows the cost of each batching rule and of each way to reserve KV memory.
//! Simulated: no model runs, and the result of a run depends only on its seed. The step time is that of a
//! published machine, or of a worker in this process, which `measured` measures first.
//!
//! - `padded`: batches that start and end together, as on a server without in-flight batching
//! - `orca`: iteration-level batching over contiguous reservations (Orca, Yu et al. 2022)
//! - `paged`: Skein's scheduler with its paged KV cache

mod contiguous;
mod fit;
mod jobs;
mod kv_use;
mod measured;
mod orca;
mod padded;
mod paged;
mod step_time;
mod sweep;

use std::time::Duration;

pub use contiguous::Contiguous;
pub use fit::{Timed, fit};
pub use jobs::{Arrival, Lengths};
pub use kv_use::{Held, KvUse};
pub use measured::{Limits, Measured, RUNS_OF_A_SIZE, measure};
pub use orca::{Orca, Reserve};
pub use padded::Padded;
pub use paged::Paged;
pub use step_time::{StepTime, Work};
pub use sweep::{Point, Rule, Setup, Statistic, Sweep};

/// A request that arrives, needs `prompt` tokens of KV cache for its prompt, and ends after `output` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Time of arrival since the start.
    pub at: Duration,
    /// Prompt tokens, at least 1.
    pub prompt: u32,
    /// Output tokens, at least 1. Only the oracle reads it before the job ends.
    pub output: u32,
}

impl Job {
    /// Tokens of prompt and output together.
    pub fn tokens(&self) -> u32 {
        self.prompt + self.output
    }
}

/// Next action of a batcher.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Next {
    /// Runs a step of this size.
    Step(Work),
    /// Idles until this time or the next arrival, whichever comes first; `None` = until an arrival.
    Wait(Option<Duration>),
}

/// A batching rule with its KV memory. Jobs are identified by their index in the arrivals.
pub trait Batcher {
    /// Queues a job that has arrived.
    fn submit(&mut self, id: usize, job: Job);
    /// Plans the next step at `now`. `more`: further jobs will arrive.
    fn plan(&mut self, now: Duration, more: bool) -> Next;
    /// Accounts for the planned step, which ended at `now`; adds the finished jobs to `ended`.
    fn finish(&mut self, now: Duration, ended: &mut Vec<usize>);
    /// Current use of KV memory, in tokens.
    fn held(&self) -> Held;
    /// Total KV memory, in tokens.
    fn capacity(&self) -> u32;
}

/// Result of a run.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// Normalised latency of each job, as in the paper: time from arrival to end, divided by its output
    /// tokens.
    pub normalised: Vec<Duration>,
    /// Time from the start to the end of the last job.
    pub duration: Duration,
    /// Total duration of all steps.
    pub busy: Duration,
    /// Number of steps.
    pub steps: u64,
    /// Use of KV memory over time, weighted by the duration of each step.
    pub kv: KvUse,
}

impl Run {
    /// Percentile of the normalised latency, in seconds; `percent` is 0 to 100.
    pub fn percentile(&self, percent: f64) -> f64 {
        let mut seconds: Vec<f64> = self.normalised.iter().map(Duration::as_secs_f64).collect();
        seconds.sort_unstable_by(f64::total_cmp);
        crate::load::metrics::percentile(&seconds, percent)
    }

    /// Mean of the normalised latency, in seconds.
    pub fn mean(&self) -> f64 {
        let total: Duration = self.normalised.iter().sum();
        total.as_secs_f64() / self.normalised.len().max(1) as f64
    }

    /// Jobs per second, from the first arrival to the last end.
    pub fn requests_per_second(&self) -> f64 {
        self.normalised.len() as f64 / self.duration.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Fraction of the run without a running step, 0 to 1.
    pub fn idle_share(&self) -> f64 {
        1.0 - self.busy.as_secs_f64() / self.duration.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Runs `jobs`, sorted by arrival, on `batcher`.
pub fn run(batcher: &mut dyn Batcher, jobs: &[Job], step_time: &StepTime) -> Run {
    let mut result = Run { normalised: vec![Duration::ZERO; jobs.len()], ..Run::default() };
    let (mut now, mut arrived, mut ended) = (Duration::ZERO, 0, Vec::new());
    loop {
        while let Some(job) = jobs.get(arrived).filter(|job| job.at <= now) {
            batcher.submit(arrived, *job);
            arrived += 1;
        }
        match batcher.plan(now, arrived < jobs.len()) {
            Next::Step(work) => {
                let took = step_time.of(work);
                now += took;
                result.busy += took;
                result.steps += 1;
                result.kv.add(batcher.held(), took);
                batcher.finish(now, &mut ended);
                for id in ended.drain(..) {
                    result.normalised[id] = (now - jobs[id].at) / jobs[id].output;
                    result.duration = now;
                }
            }
            Next::Wait(until) => {
                let arrival = jobs.get(arrived).map(|job| job.at);
                let Some(next) = until.into_iter().chain(arrival).min() else { return result };
                assert!(next > now, "a batcher waits for something in the future");
                now = next;
            }
        }
    }
}

#[cfg(test)]
mod tests;
