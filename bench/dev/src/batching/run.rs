//! Runs jobs on a batcher, in simulated time.

use std::time::Duration;

use skein_bench::load::metrics::percentile;

use super::batcher::{Batcher, Job, Next};
use super::kv_use::KvUse;
use super::step_time::StepTime;

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
        percentile(&seconds, percent)
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
