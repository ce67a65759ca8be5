//! Picks among a few workers.

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;
use crate::ledger::CurrentLoad;

fn worker(id: u32, hit_tokens: u32, queued_uncached_tokens: u64, sequences: u32) -> WorkerView {
    let load = CurrentLoad {
        queued_uncached_tokens,
        sequences,
        free_blocks: 1000,
        prefill_tokens_per_second: 2000.0,
        decode_tokens_per_second: 200.0,
    };
    let name_hash = u64::from(id);
    WorkerView {
        id: WorkerId(id),
        name_hash,
        hit_tokens,
        load,
        max_num_seqs: 64,
        block_size: 16,
        reads_adapter: false,
    }
}

/// How often each worker is picked for a prompt of 1000 tokens, of 1000 draws.
fn picks(fleet: &[WorkerView]) -> Vec<usize> {
    picks_by(Policy::FirstToken, fleet)
}

/// Picks of another policy, each for a different prompt.
fn picks_by(policy: Policy, fleet: &[WorkerView]) -> Vec<usize> {
    let (mut rng, mut picker) = (StdRng::seed_from_u64(1), Picker::new(policy));
    let demand = Demand { prompt_tokens: 1000, expected_output_tokens: 100, sequences: 1 };
    let mut counts = vec![0; fleet.len()];
    for affinity in 0..1000 {
        let pick = picker.pick(&demand, affinity, fleet, &mut rng).expect("there are candidates");
        let index = fleet.iter().position(|worker| worker.id == pick.worker);
        counts[index.expect("a candidate is picked")] += 1;
    }
    counts
}

#[test]
fn a_repeated_prefix_goes_to_its_holder() {
    assert_eq!(picks(&[worker(1, 0, 0, 0), worker(2, 992, 0, 0)]), [0, 1000]);
    // Also if the holder is somewhat busier.
    assert_eq!(picks(&[worker(1, 0, 0, 0), worker(2, 992, 400, 8)]), [0, 1000]);
}

#[test]
fn a_cold_worker_wins_when_the_holders_queue_costs_more_than_the_hit_saves() {
    assert_eq!(picks(&[worker(1, 0, 0, 0), worker(2, 992, 2000, 0)]), [1000, 0]);
    let mut full = worker(2, 992, 0, 10);
    full.load.free_blocks = 0;
    assert_eq!(picks(&[worker(1, 0, 0, 0), full]), [1000, 0], "no blocks left");
    assert_eq!(picks(&[worker(1, 0, 0, 0), worker(2, 992, 0, 64)]), [1000, 0], "no seat left");
}

#[test]
fn equals_share_the_work_and_the_less_busy_gets_more() {
    let counts = picks(&[worker(1, 0, 0, 0), worker(2, 0, 0, 0)]);
    assert!(counts.iter().all(|&count| count > 400), "{counts:?}");
    // Within two per cent of each other: one runs fewer streams and wins whenever it is drawn.
    let mut busier = worker(2, 0, 0, 1);
    busier.load.decode_tokens_per_second = 2000.0;
    let counts = picks(&[worker(1, 0, 0, 0), busier]);
    assert!((700..800).contains(&counts[0]), "{counts:?}");
}

#[test]
fn a_slightly_higher_measured_rate_is_noise_and_a_much_higher_one_is_not() {
    let rated = |id, rate| {
        let mut worker = worker(id, 0, 0, 0);
        worker.load.prefill_tokens_per_second = rate;
        worker
    };
    let counts = picks(&[rated(1, 2000.0), rated(2, 1800.0), rated(3, 1700.0), rated(4, 1000.0)]);
    assert!(counts[..3].iter().all(|&count| count > 250) && counts[3] == 0, "{counts:?}");
    // A queue is no noise, nor is a cached prefix.
    let mut queued = rated(1, 2000.0);
    queued.load.queued_uncached_tokens = 300;
    assert_eq!(picks(&[queued, rated(2, 1800.0)]), [0, 1000]);
    let mut holder = rated(2, 1700.0);
    holder.hit_tokens = 100;
    assert_eq!(picks(&[rated(1, 2000.0), holder]), [0, 1000]);
}

#[test]
fn an_unmeasured_worker_is_judged_by_its_peers() {
    let mut cold = worker(1, 0, 0, 0);
    cold.load.prefill_tokens_per_second = 0.0;
    cold.load.decode_tokens_per_second = f32::NAN;
    assert_eq!(picks(&[cold, worker(2, 0, 500, 0)]), [1000, 0]);
    assert_eq!(picks(&[cold, worker(2, 500, 0, 0)]), [0, 1000]);
    assert_eq!(
        Picker::default().pick(
            &Demand { prompt_tokens: 1, expected_output_tokens: 1, sequences: 1 },
            0,
            &[],
            &mut StdRng::seed_from_u64(0)
        ),
        None
    );
}

#[test]
fn among_near_equals_the_longer_hit_wins() {
    // The hit saves 10 ms of 500 and the queue costs as much: a tie in time, but not in work.
    assert_eq!(picks(&[worker(1, 0, 0, 0), worker(2, 20, 20, 0)]), [0, 1000]);
}

/// All prompts of a trace begin with the same block. Before, a worker that lacked it got none of them
/// unless all others were busy.
#[test]
fn a_short_beginning_that_most_workers_cache_is_no_reason_to_avoid_the_others() {
    let counts = picks(&[worker(1, 90, 0, 0), worker(2, 90, 0, 0), worker(3, 0, 0, 0)]);
    assert!(counts.iter().all(|&count| count > 250), "{counts:?}");
    // A longer one is a reason, as is one that fewer workers cache, or what a worker caches of the rest.
    assert_eq!(picks(&[worker(1, 500, 0, 0), worker(2, 500, 0, 0), worker(3, 0, 0, 0)])[2], 0);
    assert_eq!(picks(&[worker(1, 90, 0, 0), worker(2, 0, 0, 0), worker(3, 0, 0, 0)]), [1000, 0, 0]);
    assert_eq!(picks(&[worker(1, 90, 0, 0), worker(2, 0, 0, 0)]), [1000, 0]);
    assert_eq!(picks(&[worker(1, 90, 0, 0), worker(2, 90, 0, 0), worker(3, 300, 0, 0)]), [0, 0, 1000]);
}

#[test]
fn each_policy_picks_by_its_rule() {
    let fleet = [worker(1, 992, 0, 9), worker(2, 0, 0, 0), worker(3, 0, 5000, 3)];
    let share = |policy| picks_by(policy, &fleet);
    assert_eq!(share(Policy::FirstToken), [1000, 0, 0]);
    assert_eq!(share(Policy::Product), [1000, 0, 0], "8 tokens by 10 sequences, 1000 by 1, 6000 by 4");
    assert_eq!(share(Policy::LeastLoad), [0, 1000, 0]);
    assert_eq!(share(Policy::RoundRobin), [334, 333, 333]);
    let two = share(Policy::PowerOfTwo);
    assert!(two[0] < 160 && two[1] > 500, "{two:?}");
    // Nine sequences exceed one and a quarter times the mean; the other workers share by hash.
    let hashed = share(Policy::ConsistentHash);
    assert!(hashed[0] == 0 && hashed[1] > 400 && hashed[2] > 400, "{hashed:?}");
}

#[test]
fn consistent_hashing_moves_only_the_prompts_of_a_worker_that_left() {
    let fleet: Vec<WorkerView> = (1..=8).map(|id| worker(id, 0, 0, 0)).collect();
    for affinity in 0..500 {
        let before = by_hash(affinity, &fleet).expect("there are candidates").id;
        let after = by_hash(affinity, &fleet[1..]).expect("there are candidates").id;
        assert!(before == after || before == WorkerId(1));
    }
}

#[test]
fn every_policy_has_a_name_and_needs_a_candidate() {
    for (name, policy) in Policy::ALL {
        let demand = Demand { prompt_tokens: 1, expected_output_tokens: 1, sequences: 1 };
        let none = Picker::new(policy).pick(&demand, 0, &[], &mut StdRng::seed_from_u64(0));
        assert_eq!(none, None, "{name}");
    }
}

/// The same choice, read off the definitions: worker by worker, with a list for each rule.
fn plainly(demand: &Demand, fleet: &[WorkerView], rng: &mut impl Rng) -> Option<WorkerId> {
    let mut longest_first: Vec<u32> = fleet.iter().map(|worker| worker.hit_tokens).collect();
    longest_first.sort_unstable_by_key(|hit| std::cmp::Reverse(*hit));
    let common = longest_first.get(fleet.len().div_ceil(2).max(2) - 1).copied().unwrap_or(0);
    let may_cost = ((f64::from(demand.prompt_tokens) - f64::from(common)) * 0.1) as u32;
    let hit = |worker: &WorkerView| {
        let lacks = common.saturating_sub(worker.hit_tokens);
        if lacks <= may_cost { worker.hit_tokens.max(common) } else { worker.hit_tokens }
    };
    let fallback = fallback_rates(fleet);
    let score = |worker: &WorkerView, rates| {
        terms(demand, &WorkerView { hit_tokens: hit(worker), ..*worker }, rates).sum()
    };
    let own = |worker: &WorkerView| score(worker, Rates::of(worker, fallback));
    let best = fleet.iter().min_by(|one, other| own(one).total_cmp(&own(other)))?;
    let shared = |worker: &WorkerView| {
        score(worker, Rates::of(worker, fallback).without_noise(Rates::of(best, fallback)))
    };
    let least = fleet.iter().map(shared).fold(f64::INFINITY, f64::min);
    let near: Vec<_> = fleet.iter().filter(|worker| shared(worker) <= least * 1.02 + 0.000_1).collect();
    let longest = near.iter().map(|worker| hit(worker)).max()?;
    let near: Vec<_> = near.into_iter().filter(|worker| hit(worker) == longest).collect();
    less_busy_of_two(near.len(), |nth| near[nth], rng).map(|worker| worker.id)
}

#[test]
fn the_quick_choice_is_the_plain_one() {
    let mut rng = StdRng::seed_from_u64(8);
    let mut picker = Picker::default();
    for seed in 0..20_000 {
        let count = rng.random_range(0..12);
        let fleet: Vec<WorkerView> = (0..count)
            .map(|id| {
                let hit = [0, 0, 64, 90, 400, 992][rng.random_range(0..6)];
                let queued = [0, 0, 0, 30, 800][rng.random_range(0..5)];
                let mut worker = worker(id, hit, queued, rng.random_range(0..70));
                worker.load.free_blocks = [1000, 1000, 40][rng.random_range(0..3)];
                worker.load.prefill_tokens_per_second = [0.0, 1500.0, 1900.0, 2000.0][rng.random_range(0..4)];
                worker.load.decode_tokens_per_second = [0.0, 180.0, 200.0, 900.0][rng.random_range(0..4)];
                worker.reads_adapter = rng.random_ratio(1, 10);
                worker
            })
            .collect();
        let prompt_tokens = rng.random_range(1..1500);
        let demand = Demand { prompt_tokens, expected_output_tokens: 100, sequences: 1 };
        let quick = picker.pick(&demand, 0, &fleet, &mut StdRng::seed_from_u64(seed));
        let plain = plainly(&demand, &fleet, &mut StdRng::seed_from_u64(seed));
        assert_eq!(quick.map(|pick| pick.worker), plain, "{demand:?} {fleet:?}");
    }
}
