//! Routing policy: picks a worker, by default the one with the shortest predicted time to first token, in
//! seconds. Pure.
//!
//! Cache hits, queues, full caches and busy batches all count in seconds, so there are no weights to tune: a
//! worker that holds the prefix is picked until its queue costs more than the prefill it saves; then another
//! worker is picked and holds the prefix as well. The other policies are for comparison, and for fleets whose
//! workers send no reports.

mod everybodys;
mod seconds;
#[cfg(test)]
mod tests;
mod view;

use std::sync::Arc;
use std::time::Duration;

use rand::{Rng, RngExt};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::receipt::{Considered, MAX_CANDIDATES, Receipt, Terms};
use super::worker_id::WorkerId;
use everybodys::Everybodys;
use seconds::{Rates, fallback_rates, predict, terms, uncached};
pub use view::{Demand, EXPECTED_OUTPUT_TOKENS, WorkerView};

/// Scores within this fraction of the best are equal: measurements are no more precise.
const TIE: f64 = 0.02;
/// Scores within this many seconds of the best are equal, too: on an idle cluster such differences are
/// rounding errors.
const TIE_SECONDS: f64 = 0.000_1;

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

impl Pick {
    /// The prediction without what other requests have taught, if that is less. A request with a deadline may
    /// be refused only by this: after one slow request all others would be refused, and teach nothing.
    pub fn first_token_not_before(&self) -> Duration {
        let alone = Duration::try_from_secs_f64(self.terms.first_token()).unwrap_or(Duration::MAX);
        self.first_token_after.min(alone)
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
    hits: Vec<u32>,
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
        let (scores, near, hits) = (&mut self.scores, &mut self.near, &mut self.hits);
        scores.clear();
        let own = |worker: &WorkerView| worker.hit_tokens;
        let chosen = match self.policy {
            Policy::FirstToken => {
                let everybodys = Everybodys::of(demand, fleet, hits);
                let best = predict(demand, fleet, fallback, |worker| everybodys.hit(worker), scores);
                least(fleet, scores, best, near, |worker| everybodys.hit(worker), rng)
            }
            Policy::Product => {
                scores.extend(fleet.iter().map(|worker| product(demand, worker)));
                let best = scores.iter().copied().fold(f64::INFINITY, f64::min);
                least(fleet, scores, best, near, own, rng)
            }
            Policy::LeastLoad => {
                let best = predict(demand, fleet, fallback, |_| 0, scores);
                least(fleet, scores, best, near, own, rng)
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
            first_token_after: duration(terms.first_token()),
            prefill_takes: duration(terms.prefill),
            hit_tokens: chosen.hit_tokens,
            candidates: fleet.len() as u32,
            terms,
        })
    }
}

/// Worker with the lowest score, which is `best`. Among near-equal ones, those with the longest hit remain,
/// and the less busy of two random ones wins. `near` is a reused buffer.
fn least<'a>(
    fleet: &'a [WorkerView],
    scores: &[f64],
    best: f64,
    near: &mut Vec<u32>,
    hit: impl Fn(&WorkerView) -> u32,
    rng: &mut impl Rng,
) -> Option<&'a WorkerView> {
    let most = best * (1.0 + TIE) + TIE_SECONDS;
    let mut longest = 0;
    near.clear();
    for (at, (worker, score)) in (0..).zip(fleet.iter().zip(scores)) {
        if *score > most {
            continue;
        }
        let hit = hit(worker);
        if hit > longest {
            longest = hit;
            near.clear();
        }
        if hit == longest {
            near.push(at);
        }
    }
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
