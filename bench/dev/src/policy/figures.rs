//! Statistics of a replay.

use std::collections::HashSet;

use super::simulation::{Cluster, Replay, Served};
use super::trace::Recorded;

/// Statistics of a replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Fraction of the prompt tokens that were cached.
    pub hit: f64,
    /// Fraction of those prompt tokens that were cached, that an earlier request had begun with.
    pub follow_up_hit: f64,
    /// Mean time to first token, in seconds.
    pub mean: f64,
    /// Median time to first token, in seconds.
    pub p50: f64,
    /// 99th percentile of the time to first token, in seconds.
    pub p99: f64,
    /// Median of how far the predicted time to the first token was from the actual one, as a fraction of it.
    pub error_p50: f64,
    /// 90th percentile of the same.
    pub error_p90: f64,
    /// Most requests on one worker, relative to the mean.
    pub most_over_mean: f64,
    /// Coefficient of variation of the requests on each worker.
    pub load_cov: f64,
    /// Median time of a routing decision on this machine, in seconds.
    pub decision_p50: f64,
    /// 99th percentile of the time of a routing decision, in seconds.
    pub decision_p99: f64,
}

impl Figures {
    /// Statistics of `replay`, which was that of `trace` over `cluster`.
    pub fn of(replay: &Replay, trace: &[Recorded], cluster: &Cluster) -> Self {
        let workers = cluster.workers;
        let prompt_tokens: u64 = trace.iter().map(|request| u64::from(request.prompt_tokens)).sum();
        let cached: u64 = replay.served.iter().map(|served| served.cached_tokens).sum();
        let mut times: Vec<f64> =
            replay.served.iter().map(|served| served.first_token as f64 / 1e9).collect();
        let mut errors: Vec<f64> = replay.served.iter().map(error).collect();
        let mut decisions = replay.decisions.clone();
        let mut requests = vec![0_usize; workers];
        replay.served.iter().for_each(|served| requests[served.worker] += 1);
        let most = requests.iter().max().copied().unwrap_or(0) as f64;
        Self {
            hit: cached as f64 / prompt_tokens.max(1) as f64,
            follow_up_hit: cached as f64 / repeated_tokens(trace, cluster.machine.block_size).max(1) as f64,
            mean: times.iter().sum::<f64>() / times.len().max(1) as f64,
            p50: percentile(&mut times, 0.5),
            p99: percentile(&mut times, 0.99),
            error_p50: percentile(&mut errors, 0.5),
            error_p90: percentile(&mut errors, 0.9),
            most_over_mean: most * workers as f64 / trace.len().max(1) as f64,
            load_cov: variation(&requests),
            decision_p50: percentile(&mut decisions, 0.5),
            decision_p99: percentile(&mut decisions, 0.99),
        }
    }
}

/// How far the prediction was from the actual time, as a fraction of it.
fn error(served: &Served) -> f64 {
    (served.predicted as f64 - served.first_token as f64).abs() / (served.first_token as f64).max(1.0)
}

/// Prompt tokens in whole blocks that an earlier request of the trace began with.
fn repeated_tokens(trace: &[Recorded], block_size: u32) -> u64 {
    let mut known: HashSet<u64> = HashSet::new();
    let repeated = |request: &Recorded| {
        let blocks = request.blocks.iter().take_while(|block| known.contains(*block)).count();
        known.extend(&request.blocks);
        blocks as u64 * u64::from(block_size)
    };
    trace.iter().map(repeated).sum()
}

/// Standard deviation over mean.
fn variation(counts: &[usize]) -> f64 {
    let count = counts.len().max(1) as f64;
    let mean = counts.iter().sum::<usize>() as f64 / count;
    let variance = counts.iter().map(|&each| (each as f64 - mean).powi(2)).sum::<f64>() / count;
    if mean > 0.0 { variance.sqrt() / mean } else { 0.0 }
}

fn percentile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * part) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(0.0)
}
