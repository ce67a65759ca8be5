//! `skein bench policy`: replays a recorded trace over simulated workers with each policy and with an oracle.

mod simulation;
pub mod trace;
mod worker;

pub use simulation::{Cluster, Placer, Replay, Served, replay};
pub use worker::Machine;

use std::collections::HashSet;

use trace::Recorded;

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
            most_over_mean: most * workers as f64 / trace.len().max(1) as f64,
            load_cov: variation(&requests),
            decision_p50: percentile(&mut decisions, 0.5),
            decision_p99: percentile(&mut decisions, 0.99),
        }
    }
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

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use skein_router::fleet::Policy;

    use super::*;

    const MACHINE: Machine =
        Machine { prefill_ns: 40_000, token_ns: 5_000_000, blocks: 2000, block_size: 16, seats: 64 };

    const CLUSTER: Cluster = Cluster { workers: 3, routers: 1, machine: MACHINE, rate_noise: 0.0 };

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
        let cluster = Cluster { workers: 4, ..CLUSTER };
        let figures = |placer| Figures::of(&replay(&trace, 1.0, cluster, placer), &trace, &cluster);
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
            let replay = replay(&trace, 2.0, CLUSTER, Placer::Router(policy));
            assert!(replay.served.iter().all(|served| served.first_token > 0), "{name}");
        }
    }

    /// Dynamo #589, smg #1652: routers that do not know each other all chose the idle worker with the highest
    /// measured rate.
    #[test]
    fn eight_routers_spread_conversations_over_equal_workers_and_find_them_again() {
        let (conversations, turns) = (6000, 4);
        let mut rng = StdRng::seed_from_u64(3);
        let mut trace: Vec<Recorded> = (0..conversations)
            .flat_map(|who: u64| {
                let begins = rng.random_range(0..600_000_000_000);
                (0..turns).map(move |turn: u64| Recorded {
                    at: begins + turn * 5_000_000_000,
                    prompt_tokens: (turn as u32 + 1) * 160,
                    output_tokens: 20,
                    blocks: (0..(turn + 1) * 10).map(|block| 1 + who * 100 + block).collect(),
                })
            })
            .collect();
        trace.sort_by_key(|request| request.at);
        let machine = Machine { blocks: 100_000, ..MACHINE };
        let cluster = Cluster { workers: 8, routers: 8, machine, rate_noise: 0.1 };
        let figures = |cluster| {
            let placer = Placer::Router(Policy::FirstToken);
            Figures::of(&replay(&trace, 1.0, cluster, placer), &trace, &cluster)
        };
        let spread = figures(cluster);
        assert!(spread.follow_up_hit >= 0.95 && spread.load_cov <= 0.06, "{spread:?}");
        // One router that is told the actual rates is no better.
        let known = figures(Cluster { routers: 1, rate_noise: 0.0, ..cluster });
        assert!(spread.mean < known.mean * 1.1, "{spread:?} {known:?}");
    }
}
