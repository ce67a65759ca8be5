//! Routing policy: picks a worker, by default the one with the shortest predicted time to first token, in
//! seconds. Pure.
//!
//! Cache hits, queues, full caches and busy batches all count in seconds, so there are no weights to tune: a
//! worker that holds the prefix is picked until its queue costs more than the prefill it saves; then another
//! worker is picked and holds the prefix as well. The other policies are for comparison, and for fleets whose
//! workers send no reports.

use std::sync::Arc;
use std::time::Duration;

use rand::{Rng, RngExt};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ledger::CurrentLoad;
use super::receipt::{Considered, MAX_CANDIDATES, Receipt, Terms};
use super::worker_id::WorkerId;

/// Output tokens assumed per sequence; fewer if its limit is lower.
pub const EXPECTED_OUTPUT_TOKENS: u32 = 256;
/// Prefill rate, tokens a second, assumed until some worker has measured its own: a modest CPU's.
const UNMEASURED_PREFILL_RATE: f64 = 1000.0;
/// Decode rate, tokens a second, assumed until then.
const UNMEASURED_DECODE_RATE: f64 = 50.0;
/// Scores within this fraction of the best are equal: measurements are no more precise.
const TIE: f64 = 0.02;
/// Scores within this many seconds of the best are equal, too: on an idle cluster such differences are
/// rounding errors.
const TIE_SECONDS: f64 = 0.000_1;
/// Rates within this fraction of the best worker's count as equal to its rate. A rate is an average over the
/// prompts that a worker happened to get; differences between equal machines would otherwise send the
/// requests of all routers to the same one.
const RATE_NOISE: f64 = 0.2;
/// How much the slowdown of running streams counts, for a full batch, as a fraction of the prefill time.
const SLOWDOWN_WEIGHT: f64 = 0.5;

/// Time to read an adapter into memory, seconds: tens of megabytes, arranged for products.
const ADAPTER_SECONDS: f64 = 0.1;

/// Under consistent hashing, a worker with more than this multiple of the mean number of running sequences
/// gets no more (Mirrokni et al., Consistent Hashing with Bounded Loads, 2016).
const BOUNDED_LOAD: f64 = 1.25;

/// How to pick a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// Shortest predicted time to the first token.
    #[default]
    FirstToken,
    /// Smallest product of tokens to prefill and sequences (LMetric): no rates, no weights.
    Product,
    /// Shortest queue, regardless of caches.
    LeastLoad,
    /// The less busy of two random workers.
    PowerOfTwo,
    /// Each worker in turn.
    RoundRobin,
    /// The same worker for prompts with the same beginning, unless it is much busier than the others.
    ConsistentHash,
}

impl Policy {
    /// All policies, with their names in settings.
    pub const ALL: [(&'static str, Self); 6] = [
        ("first_token", Self::FirstToken),
        ("product", Self::Product),
        ("least_load", Self::LeastLoad),
        ("power_of_two", Self::PowerOfTwo),
        ("round_robin", Self::RoundRobin),
        ("consistent_hash", Self::ConsistentHash),
    ];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, policy)| *policy == self).map_or("", |(name, _)| name)
    }
}

/// A request's cost at any worker.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Tokens to process, or find in the cache, before the first new one.
    pub prompt_tokens: u32,
    /// Tokens it will probably generate, over all samples.
    pub expected_output_tokens: u32,
    /// Samples that run at once.
    pub sequences: u32,
}

impl Demand {
    /// For a request with `prompt_tokens` to prefill and at most `output_tokens_left` for each of its
    /// sequences.
    pub fn new(prompt_tokens: usize, output_tokens_left: u32, sequences: u32) -> Self {
        let each = output_tokens_left.min(EXPECTED_OUTPUT_TOKENS);
        Self {
            prompt_tokens: prompt_tokens as u32,
            expected_output_tokens: each.saturating_mul(sequences),
            sequences,
        }
    }
}

/// State of a worker that may be picked.
#[derive(Debug, Clone, Copy)]
pub struct WorkerView {
    /// Id of the worker.
    pub id: WorkerId,
    /// Hash of the worker's name, equal in every router.
    pub name_hash: u64,
    /// Prompt tokens that it caches or is about to cache.
    pub hit_tokens: u32,
    /// Its estimated load now.
    pub load: CurrentLoad,
    /// Most sequences that it runs at once.
    pub max_num_seqs: u32,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// Whether it must read the request's adapter from disk first.
    pub reads_adapter: bool,
}

/// The chosen worker, and the prediction behind the choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pick {
    /// The chosen worker.
    pub worker: WorkerId,
    /// Predicted time to the first token.
    pub first_token_after: Duration,
    /// Predicted time of the prefill alone, on an idle worker.
    pub prefill_takes: Duration,
    /// Prompt tokens expected in its cache.
    pub hit_tokens: u32,
    /// Number of candidates.
    pub candidates: u32,
    /// Components of the prediction.
    pub terms: Terms,
}

/// Rates in tokens a second.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rates {
    prefill: f64,
    decode: f64,
}

impl Rates {
    /// Measured rates of a worker; those it has not measured are `fallback`'s.
    #[inline]
    fn of(worker: &WorkerView, fallback: Self) -> Self {
        Self {
            prefill: measured(worker.load.prefill_tokens_per_second).unwrap_or(fallback.prefill),
            decode: measured(worker.load.decode_tokens_per_second).unwrap_or(fallback.decode),
        }
    }

    /// These rates; those that differ from `best`'s by noise are `best`'s.
    #[inline]
    fn without_noise(self, best: Self) -> Self {
        let shared = |own: f64, best: f64| {
            if (own - best).abs() <= best * RATE_NOISE { best } else { own }
        };
        Self { prefill: shared(self.prefill, best.prefill), decode: shared(self.decode, best.decode) }
    }
}

/// Picks workers by a policy.
#[derive(Debug, Default)]
pub struct Picker {
    policy: Policy,
    /// Last pick of [`Policy::RoundRobin`].
    last: Option<WorkerId>,
    /// Buffers reused between picks.
    scores: Vec<f64>,
    near: Vec<u32>,
}

impl Picker {
    /// Picker with the policy `policy`.
    pub fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Explains a pick from `fleet`: the candidates with the shortest predictions, at most
    /// [`MAX_CANDIDATES`], always with the chosen one.
    pub fn explain(
        &self,
        demand: &Demand,
        pick: &Pick,
        fleet: &[WorkerView],
        name: impl Fn(WorkerId) -> Option<Arc<str>>,
    ) -> Receipt {
        let fallback = fallback_rates(fleet);
        let own = |worker: &WorkerView| terms(demand, worker, Rates::of(worker, fallback));
        let mut all: Vec<_> = fleet.iter().map(|worker| (own(worker), worker)).collect();
        let is_chosen = |worker: &WorkerView| worker.id == pick.worker;
        all.sort_by(|(a, _), (b, _)| a.sum().total_cmp(&b.sum()));
        let at = all.iter().position(|(_, worker)| is_chosen(worker)).unwrap_or(0);
        if at >= MAX_CANDIDATES {
            all.swap(MAX_CANDIDATES - 1, at);
        }
        let best = all.into_iter().take(MAX_CANDIDATES).map(|(terms, worker)| Considered {
            worker: name(worker.id).unwrap_or_default(),
            chosen: is_chosen(worker),
            overlap_tokens: worker.hit_tokens,
            terms,
        });
        Receipt {
            policy: self.policy.name(),
            candidates: pick.candidates,
            prompt_tokens: demand.prompt_tokens,
            best: best.collect(),
        }
    }

    /// Picks a worker; `None` without candidates. `affinity` is a hash of the prompt's beginning.
    ///
    /// Ties are broken by `rng`, so that routers with the same state do not all pick the same worker.
    pub fn pick(
        &mut self,
        demand: &Demand,
        affinity: u64,
        fleet: &[WorkerView],
        rng: &mut impl Rng,
    ) -> Option<Pick> {
        let fallback = fallback_rates(fleet);
        let (scores, near) = (&mut self.scores, &mut self.near);
        scores.clear();
        let chosen = match self.policy {
            Policy::FirstToken => {
                predict(demand, fleet, fallback, |worker| *worker, scores);
                least(fleet, scores, near, rng)
            }
            Policy::Product => {
                scores.extend(fleet.iter().map(|worker| product(demand, worker)));
                least(fleet, scores, near, rng)
            }
            Policy::LeastLoad => {
                let cold = |worker: &WorkerView| WorkerView { hit_tokens: 0, ..*worker };
                predict(demand, fleet, fallback, cold, scores);
                least(fleet, scores, near, rng)
            }
            Policy::PowerOfTwo => less_busy_of_two(fleet.len(), |nth| &fleet[nth], rng),
            Policy::RoundRobin => {
                let after = |worker: &&WorkerView| self.last.is_some_and(|last| worker.id > last);
                fleet.iter().find(after).or_else(|| fleet.first())
            }
            Policy::ConsistentHash => by_hash(affinity, fleet),
        }?;
        self.last = Some(chosen.id);
        let terms = terms(demand, chosen, Rates::of(chosen, fallback));
        let duration = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Some(Pick {
            worker: chosen.id,
            first_token_after: duration(terms.sum()),
            prefill_takes: duration(terms.prefill),
            hit_tokens: chosen.hit_tokens,
            candidates: fleet.len() as u32,
            terms,
        })
    }
}

/// Writes the predicted time to the first token of each worker, as seen by `view`, to `scores`. A worker
/// whose rates differ from the best one's by noise is compared at the best one's rates.
fn predict(
    demand: &Demand,
    fleet: &[WorkerView],
    fallback: Rates,
    view: impl Fn(&WorkerView) -> WorkerView,
    scores: &mut Vec<f64>,
) {
    let seconds = |worker: &WorkerView, rates| terms(demand, &view(worker), rates).sum();
    scores.extend(fleet.iter().map(|worker| seconds(worker, Rates::of(worker, fallback))));
    let best = fleet.iter().zip(&*scores).min_by(|(_, one), (_, other)| one.total_cmp(other));
    let Some(best) = best.map(|(worker, _)| Rates::of(worker, fallback)) else { return };
    for (worker, score) in fleet.iter().zip(scores) {
        let own = Rates::of(worker, fallback);
        let shared = own.without_noise(best);
        if shared != own {
            *score = seconds(worker, shared);
        }
    }
}

/// Worker with the lowest score. Among near-equal ones, those with the longest hit remain, and the less busy
/// of two random ones wins. `near` is a reused buffer.
fn least<'a>(
    fleet: &'a [WorkerView],
    scores: &[f64],
    near: &mut Vec<u32>,
    rng: &mut impl Rng,
) -> Option<&'a WorkerView> {
    let best = scores.iter().copied().fold(f64::INFINITY, f64::min);
    let most = best * (1.0 + TIE) + TIE_SECONDS;
    near.clear();
    near.extend((0..).zip(scores).filter(|(_, score)| **score <= most).map(|(at, _): (u32, _)| at));
    let hit = |at: &u32| fleet[*at as usize].hit_tokens;
    let longest = near.iter().map(hit).max()?;
    near.retain(|at| hit(at) == longest);
    less_busy_of_two(near.len(), |nth| &fleet[near[nth] as usize], rng)
}

/// Draws two of `count` workers and returns the one with fewer sequences.
fn less_busy_of_two<'a>(
    count: usize,
    worker: impl Fn(usize) -> &'a WorkerView,
    rng: &mut impl Rng,
) -> Option<&'a WorkerView> {
    if count == 0 {
        return None;
    }
    let mut draw = || worker(rng.random_range(0..count));
    let (one, other) = (draw(), draw());
    Some(if other.load.sequences < one.load.sequences { other } else { one })
}

/// Rendezvous hashing with bounded loads: among workers that are not much busier than the mean, the one with
/// the highest hash of its name and the prompt's beginning.
fn by_hash(affinity: u64, fleet: &[WorkerView]) -> Option<&WorkerView> {
    let all: f64 = fleet.iter().map(|worker| f64::from(worker.load.sequences)).sum();
    let most = (BOUNDED_LOAD * (all + 1.0) / fleet.len().max(1) as f64).ceil();
    let weight = |worker: &&WorkerView| xxh3_64_with_seed(&worker.name_hash.to_le_bytes(), affinity);
    fleet.iter().filter(|worker| f64::from(worker.load.sequences) < most).max_by_key(weight)
}

/// Tokens to prefill times sequences, including this one.
#[inline]
fn product(demand: &Demand, worker: &WorkerView) -> f64 {
    let tokens = worker.load.queued_uncached_tokens as f64 + uncached(demand, worker);
    tokens * f64::from(worker.load.sequences + demand.sequences)
}

#[inline]
fn terms(demand: &Demand, worker: &WorkerView, rates: Rates) -> Terms {
    let load = &worker.load;
    // Seconds per token. Division is slow, and this runs for every worker.
    let each_prefill = 1.0 / rates.prefill;
    let each_decode = 1.0 / rates.decode;
    let uncached = uncached(demand, worker);

    // Blocks are freed about as fast as running streams end, which is at least as fast as they generate
    // tokens.
    let new_tokens = uncached as u64 + u64::from(demand.expected_output_tokens);
    let free_tokens = u64::from(load.free_blocks) * u64::from(worker.block_size);
    let missing_tokens = new_tokens.saturating_sub(free_tokens);

    // A full batch frees a seat each time a sequence ends.
    let seats = worker.max_num_seqs.max(1);
    let without_seat = (load.sequences + demand.sequences).saturating_sub(seats);

    // The running step must end first; and while this prompt is prefilled, the other streams wait.
    let running = f64::from(load.sequences.min(seats));
    Terms {
        queue: load.queued_uncached_tokens as f64 * each_prefill,
        prefill: uncached * each_prefill,
        blocks: missing_tokens as f64 * each_decode,
        seats: f64::from(without_seat) * f64::from(EXPECTED_OUTPUT_TOKENS) * each_decode,
        step: running * each_decode,
        slowdown: SLOWDOWN_WEIGHT * (running / f64::from(seats)) * uncached * each_prefill,
        adapter: if worker.reads_adapter { ADAPTER_SECONDS } else { 0.0 },
    }
}

#[inline]
fn uncached(demand: &Demand, worker: &WorkerView) -> f64 {
    f64::from(demand.prompt_tokens.saturating_sub(worker.hit_tokens))
}

#[inline]
fn measured(rate: f32) -> Option<f64> {
    (rate.is_finite() && rate > 0.0).then_some(f64::from(rate))
}

/// Mean measured rates, if a worker without its own needs them.
fn fallback_rates(fleet: &[WorkerView]) -> Rates {
    let mean = |rate: fn(&CurrentLoad) -> f32, unmeasured: f64| {
        if fleet.iter().all(|worker| measured(rate(&worker.load)).is_some()) {
            return unmeasured;
        }
        let (sum, count) = fleet
            .iter()
            .filter_map(|worker| measured(rate(&worker.load)))
            .fold((0.0, 0.0), |(sum, count), rate| (sum + rate, count + 1.0));
        if count > 0.0 { sum / count } else { unmeasured }
    };
    Rates {
        prefill: mean(|load| load.prefill_tokens_per_second, UNMEASURED_PREFILL_RATE),
        decode: mean(|load| load.decode_tokens_per_second, UNMEASURED_DECODE_RATE),
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

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
}
