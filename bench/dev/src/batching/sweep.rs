//! Finds the highest rate at which a rule meets a latency target, and its latency at each rate.

use std::fmt;
use std::time::Duration;

use skein_worker::config::SchedulerConfig;

use super::batcher::Batcher;
use super::jobs::{Arrival, Lengths, jobs};
use super::orca::{Orca, Reserve};
use super::padded::Padded;
use super::paged::Paged;
use super::run::{Run, run};
use super::step_time::StepTime;

/// Batching rule to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Padded batches, started as soon as the device is free.
    Static,
    /// Padded batches, started when full or after a delay.
    Dynamic {
        /// Most jobs per batch.
        most: usize,
        /// Longest wait for a full batch.
        delay: Duration,
    },
    /// Iteration-level batching that reserves the model's context length.
    OrcaMax,
    /// Iteration-level batching that reserves the output length rounded up to a power of two.
    OrcaPowerOfTwo,
    /// Iteration-level batching with known output lengths.
    OrcaOracle,
    /// Skein's scheduler over its paged KV cache.
    Skein,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => f.write_str("static"),
            Self::Dynamic { most, delay } => write!(f, "dynamic:{most}:{}ms", delay.as_millis()),
            Self::OrcaMax => f.write_str("orca-max"),
            Self::OrcaPowerOfTwo => f.write_str("orca-pow2"),
            Self::OrcaOracle => f.write_str("orca-oracle"),
            Self::Skein => f.write_str("skein"),
        }
    }
}

/// Model, device and jobs, common to all rules.
#[derive(Debug, Clone)]
pub struct Setup {
    /// KV memory, in tokens.
    pub capacity: u32,
    /// Longest sequence, in tokens.
    pub context: u32,
    /// Most concurrent jobs, unless memory allows fewer.
    pub most: u32,
    /// Model of step durations.
    pub step_time: StepTime,
    /// Distribution of the jobs' lengths.
    pub lengths: Lengths,
    /// Number of jobs per run.
    pub count: usize,
    /// Seed of lengths and arrivals.
    pub seed: u64,
    /// Limits of Skein's scheduler.
    pub scheduler: SchedulerConfig,
}

/// Result of a rule under one load.
#[derive(Debug, Clone)]
pub struct Point {
    /// Arrival rate in requests per second; `None` = all at the start.
    pub rate: Option<f64>,
    /// Measurements of the run.
    pub run: Run,
}

/// Statistic of the normalised latency that must meet the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistic {
    /// The mean, as in the PagedAttention paper.
    Mean,
    /// The 99th percentile.
    P99,
}

impl Statistic {
    /// Value of the statistic in `run`, in seconds.
    pub fn of(self, run: &Run) -> f64 {
        match self {
            Self::Mean => run.mean(),
            Self::P99 => run.percentile(99.0),
        }
    }
}

/// Ratio of two rates at which the search stops.
const PRECISION: f64 = 1.005;
/// Highest rate that the search tries, in requests per second.
const HIGHEST_RATE: f64 = 1e5;

/// Runs rules under a common setup.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// Setup of all runs.
    pub setup: Setup,
}

impl Sweep {
    /// Runs `rule` at `rate` requests per second, or with all requests at the start.
    pub fn at(&self, rule: Rule, rate: Option<f64>) -> Point {
        let setup = &self.setup;
        let arrival = rate.map_or(Arrival::AtOnce, Arrival::Rate);
        let jobs = jobs(setup.count, &setup.lengths, arrival, setup.seed);
        let run = run(&mut *self.batcher(rule), &jobs, &setup.step_time);
        Point { rate, run }
    }

    /// Run with the highest rate at which `statistic` is at most `bound` seconds; `None` if it exceeds that
    /// even at `lowest` requests per second.
    pub fn highest(&self, rule: Rule, statistic: Statistic, bound: f64, lowest: f64) -> Option<Point> {
        let keeps = |point: &Point| statistic.of(&point.run) <= bound;
        let mut best = Some(self.at(rule, Some(lowest))).filter(keeps)?;
        let (mut low, mut high) = (lowest, lowest * 2.0);
        while high < HIGHEST_RATE {
            let point = self.at(rule, Some(high));
            if !keeps(&point) {
                break;
            }
            (best, low, high) = (point, high, high * 2.0);
        }
        while high / low > PRECISION {
            let middle = (low * high).sqrt();
            let point = self.at(rule, Some(middle));
            if keeps(&point) {
                (best, low) = (point, middle);
            } else {
                high = middle;
            }
        }
        Some(best)
    }

    fn batcher(&self, rule: Rule) -> Box<dyn Batcher> {
        let Setup { capacity, context, most, scheduler, .. } = &self.setup;
        let (capacity, context, most) = (*capacity, *context, *most as usize);
        let orca = |reserve| Box::new(Orca::new(capacity, reserve, most));
        match rule {
            Rule::Static => Box::new(Padded::new(capacity, context, most, Duration::ZERO)),
            Rule::Dynamic { most, delay } => Box::new(Padded::new(capacity, context, most, delay)),
            Rule::OrcaMax => orca(Reserve::Max(context)),
            Rule::OrcaPowerOfTwo => orca(Reserve::PowerOfTwo),
            Rule::OrcaOracle => orca(Reserve::Oracle),
            Rule::Skein => {
                let config = SchedulerConfig { max_num_seqs: most as u32, ..scheduler.clone() };
                Box::new(Paged::new(capacity, context, &config))
            }
        }
    }
}
