//! The predicted time to the first token at one worker, in seconds. Pure.

use super::view::{Demand, EXPECTED_OUTPUT_TOKENS, WorkerView};
use crate::receipt::Terms;

/// Prefill rate, tokens a second, assumed until some worker has measured its own: a modest CPU's.
const UNMEASURED_PREFILL_RATE: f64 = 1000.0;
/// Decode rate, tokens a second, assumed until then.
const UNMEASURED_DECODE_RATE: f64 = 50.0;
/// Rates within this fraction of the best worker's count as equal to its rate. A rate is an average over the
/// prompts that a worker happened to get; differences between equal machines would otherwise send the
/// requests of all routers to the same one.
const RATE_NOISE: f64 = 0.2;
/// How much the slowdown of running streams counts, for a full batch, as a fraction of the prefill time.
const SLOWDOWN_WEIGHT: f64 = 0.5;
/// Time to read an adapter into memory, seconds: tens of megabytes, arranged for products.
const ADAPTER_SECONDS: f64 = 0.1;

/// Rates in tokens a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rates {
    prefill: f64,
    decode: f64,
}

impl Rates {
    /// Measured rates of a worker; those it has not measured are `fallback`'s.
    #[inline]
    pub fn of(worker: &WorkerView, fallback: Self) -> Self {
        Self {
            prefill: measured(worker.load.prefill_tokens_per_second).unwrap_or(fallback.prefill),
            decode: measured(worker.load.decode_tokens_per_second).unwrap_or(fallback.decode),
        }
    }

    /// These rates; those that differ from `best`'s by noise are `best`'s.
    #[inline]
    pub fn without_noise(self, best: Self) -> Self {
        let shared = |own: f64, best: f64| {
            if (own - best).abs() <= best * RATE_NOISE { best } else { own }
        };
        Self { prefill: shared(self.prefill, best.prefill), decode: shared(self.decode, best.decode) }
    }
}

/// Writes the predicted time to the first token of each worker, with `hit` cached tokens, to `scores`. A
/// worker whose rates differ from the best one's by noise is compared at the best one's rates. Returns the
/// least score.
pub(super) fn predict(
    demand: &Demand,
    fleet: &[WorkerView],
    fallback: Rates,
    hit: impl Fn(&WorkerView) -> u32,
    scores: &mut Vec<f64>,
) -> f64 {
    let seconds = |worker: &WorkerView, rates| {
        terms(demand, &WorkerView { hit_tokens: hit(worker), ..*worker }, rates).sum()
    };
    let mut best = (f64::INFINITY, fallback);
    scores.extend(fleet.iter().map(|worker| {
        let own = Rates::of(worker, fallback);
        let score = seconds(worker, own);
        if score < best.0 {
            best = (score, own);
        }
        score
    }));
    let mut least = f64::INFINITY;
    for (worker, score) in fleet.iter().zip(scores) {
        let own = Rates::of(worker, fallback);
        let shared = own.without_noise(best.1);
        if shared != own {
            *score = seconds(worker, shared);
        }
        least = least.min(*score);
    }
    least
}

#[inline]
pub(super) fn terms(demand: &Demand, worker: &WorkerView, rates: Rates) -> Terms {
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
pub(super) fn uncached(demand: &Demand, worker: &WorkerView) -> f64 {
    f64::from(demand.prompt_tokens.saturating_sub(worker.hit_tokens))
}

#[inline]
fn measured(rate: f32) -> Option<f64> {
    (rate.is_finite() && rate > 0.0).then_some(f64::from(rate))
}

/// Mean measured rates, for a worker without its own.
pub(super) fn fallback_rates(fleet: &[WorkerView]) -> Rates {
    let (mut prefill, mut decode) = (Mean::default(), Mean::default());
    for WorkerView { load, .. } in fleet {
        prefill.add(load.prefill_tokens_per_second);
        decode.add(load.decode_tokens_per_second);
    }
    Rates { prefill: prefill.or(UNMEASURED_PREFILL_RATE), decode: decode.or(UNMEASURED_DECODE_RATE) }
}

/// Mean of the measured ones among some rates.
#[derive(Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    #[inline]
    fn add(&mut self, rate: f32) {
        if let Some(rate) = measured(rate) {
            (self.sum, self.count) = (self.sum + rate, self.count + 1.0);
        }
    }

    fn or(self, unmeasured: f64) -> f64 {
        if self.count > 0.0 { self.sum / self.count } else { unmeasured }
    }
}
