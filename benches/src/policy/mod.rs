//! `skein bench policy`: replays a recorded trace over simulated workers with each policy and with an oracle.

mod simulation;
pub mod trace;
mod worker;

pub use simulation::{Placer, Replay, Served, replay};
pub use worker::Machine;

use trace::Recorded;

/// Statistics of a replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Fraction of the prompt tokens that were cached.
    pub hit: f64,
    /// Mean time to first token, in seconds.
    pub mean: f64,
    /// Median time to first token, in seconds.
    pub p50: f64,
    /// 99th percentile of the time to first token, in seconds.
    pub p99: f64,
    /// Most requests on one worker, relative to the mean.
    pub most_over_mean: f64,
    /// Median time of a routing decision on this machine, in seconds.
    pub decision_p50: f64,
    /// 99th percentile of the time of a routing decision, in seconds.
    pub decision_p99: f64,
}

impl Figures {
    /// Statistics of `replay` over `workers` workers.
    pub fn of(replay: &Replay, trace: &[Recorded], workers: usize) -> Self {
        let prompt_tokens: u64 = trace.iter().map(|request| u64::from(request.prompt_tokens)).sum();
        let cached: u64 = replay.served.iter().map(|served| served.cached_tokens).sum();
        let mut times: Vec<f64> =
            replay.served.iter().map(|served| served.first_token as f64 / 1e9).collect();
        let mut decisions = replay.decisions.clone();
        let mut requests = vec![0_usize; workers];
        replay.served.iter().for_each(|served| requests[served.worker] += 1);
        let most = requests.iter().max().copied().unwrap_or(0) as f64;
        Self {
            hit: cached as f64 / prompt_tokens.max(1) as f64,
            mean: times.iter().sum::<f64>() / times.len().max(1) as f64,
            p50: percentile(&mut times, 0.5),
            p99: percentile(&mut times, 0.99),
            most_over_mean: most * workers as f64 / trace.len().max(1) as f64,
            decision_p50: percentile(&mut decisions, 0.5),
            decision_p99: percentile(&mut decisions, 0.99),
        }
    }
}

fn percentile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * part) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use skein_router::fleet::Policy;

    use super::*;

    const MACHINE: Machine =
        Machine { prefill_ns: 40_000, token_ns: 5_000_000, blocks: 2000, block_size: 16, seats: 64 };

    /// Interleaved multi-turn conversations.
    fn conversations() -> Vec<Recorded> {
        let turn = |index: u64| {
            let (who, turn) = (index % 39, index / 39);
            let blocks: Vec<u64> = (0..(turn + 1) * 20).map(|block| 1 + who * 1000 + block).collect();
            Recorded {
                at: index * 12_000_000,
                prompt_tokens: blocks.len() as u32 * 16,
                output_tokens: 20,
                blocks,
            }
        };
        (0..195).map(turn).collect()
    }

    #[test]
    fn cache_aware_policies_beat_others_and_none_beats_the_oracle_by_much() {
        let trace = conversations();
        let figures = |placer| Figures::of(&replay(&trace, 1.0, 4, MACHINE, placer), &trace, 4);
        let [oracle, aware, blind] =
            [Placer::Oracle, Placer::Router(Policy::FirstToken), Placer::Router(Policy::RoundRobin)]
                .map(figures);
        assert!(aware.hit > 0.5 && aware.hit > blind.hit, "{aware:?} {blind:?}");
        assert!(aware.mean < blind.mean, "{aware:?} {blind:?}");
        assert!(oracle.mean < aware.mean * 1.1, "{oracle:?} {aware:?}");
        assert!(blind.most_over_mean < 1.1, "{blind:?}");
    }

    #[test]
    fn every_policy_serves_every_request() {
        let trace = conversations();
        for (name, policy) in Policy::ALL {
            let replay = replay(&trace, 2.0, 3, MACHINE, Placer::Router(policy));
            assert!(replay.served.iter().all(|served| served.first_token > 0), "{name}");
        }
    }
}
