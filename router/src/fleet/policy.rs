//! Routing policy: picks the worker with the shortest predicted time to first token, in seconds. Pure.
//!
//! Cache hits, queues, full caches and busy batches all count in seconds, so there are no weights to tune: a
//! worker that holds the prefix wins until its queue costs more than the prefill it saves; then the next
//! worker wins and holds the prefix, too.

use std::time::Duration;

use rand::{Rng, RngExt};

use super::ledger::CurrentLoad;
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
/// How much the slowdown of running streams counts, for a full batch, as a fraction of the prefill time.
const SLOWDOWN_WEIGHT: f64 = 0.5;

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

/// A worker that may be picked.
#[derive(Debug, Clone, Copy)]
pub struct WorkerView {
    /// Id of the worker.
    pub id: WorkerId,
    /// Prompt tokens that it caches or is about to cache.
    pub hit_tokens: u32,
    /// Its estimated load now.
    pub load: CurrentLoad,
    /// Most sequences that it runs at once.
    pub max_num_seqs: u32,
    /// Tokens in a KV block.
    pub block_size: u32,
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
    /// Number of workers that it was chosen from.
    pub candidates: u32,
}

/// Rates in tokens a second, for workers that have not measured their own.
#[derive(Debug, Clone, Copy)]
struct Rates {
    prefill: f64,
    decode: f64,
}

/// Picks the worker with the least predicted time to first token; `None` if there are no candidates.
///
/// Ties are broken by power of two choices on running sequences, using `rng`, so that routers with the same
/// state do not all pick the same worker.
pub fn pick(demand: &Demand, fleet: &[WorkerView], rng: &mut impl Rng) -> Option<Pick> {
    let fallback = fallback_rates(fleet);
    let seconds = |worker: &WorkerView| seconds_to_first_token(demand, worker, fallback);
    let best = fleet.iter().map(seconds).min_by(f64::total_cmp)?;
    let tied = |worker: &&WorkerView| seconds(worker) <= best * (1.0 + TIE) + TIE_SECONDS;
    let ties = fleet.iter().filter(tied).count();
    let mut draw = || fleet.iter().filter(tied).nth(rng.random_range(0..ties));
    let (one, other) = (draw()?, draw()?);
    let chosen = if other.load.sequences < one.load.sequences { other } else { one };
    let duration = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    Some(Pick {
        worker: chosen.id,
        first_token_after: duration(seconds(chosen)),
        prefill_takes: duration(uncached(demand, chosen) / prefill_rate(chosen, fallback)),
        hit_tokens: chosen.hit_tokens,
        candidates: fleet.len() as u32,
    })
}

fn seconds_to_first_token(demand: &Demand, worker: &WorkerView, fallback: Rates) -> f64 {
    let load = &worker.load;
    let prefill_rate = prefill_rate(worker, fallback);
    let decode_rate = measured(load.decode_tokens_per_second).unwrap_or(fallback.decode);
    let uncached = uncached(demand, worker);
    let prefill = (load.queued_uncached_tokens as f64 + uncached) / prefill_rate;

    // Blocks are freed about as fast as running streams end, which is at least as fast as they generate
    // tokens.
    let new_tokens = uncached as u64 + u64::from(demand.expected_output_tokens);
    let missing_blocks =
        new_tokens.div_ceil(u64::from(worker.block_size.max(1))).saturating_sub(u64::from(load.free_blocks));
    let block_wait = (missing_blocks * u64::from(worker.block_size)) as f64 / decode_rate;

    // A full batch frees one seat each time a sequence ends.
    let seats = worker.max_num_seqs.max(1);
    let without_seat = (load.sequences + demand.sequences).saturating_sub(seats);
    let seat_wait = f64::from(without_seat) * f64::from(EXPECTED_OUTPUT_TOKENS) / decode_rate;

    // The running step must end first; and while this prompt is prefilled, the other streams wait.
    let running = f64::from(load.sequences.min(seats));
    let step = running / decode_rate;
    let slowdown = SLOWDOWN_WEIGHT * (running / f64::from(seats)) * uncached / prefill_rate;
    prefill + block_wait + seat_wait + step + slowdown
}

fn uncached(demand: &Demand, worker: &WorkerView) -> f64 {
    f64::from(demand.prompt_tokens.saturating_sub(worker.hit_tokens))
}

fn prefill_rate(worker: &WorkerView, fallback: Rates) -> f64 {
    measured(worker.load.prefill_tokens_per_second).unwrap_or(fallback.prefill)
}

fn measured(rate: f32) -> Option<f64> {
    (rate.is_finite() && rate > 0.0).then_some(f64::from(rate))
}

fn fallback_rates(fleet: &[WorkerView]) -> Rates {
    let mean = |rate: fn(&CurrentLoad) -> f32, unmeasured: f64| {
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
        WorkerView { id: WorkerId(id), hit_tokens, load, max_num_seqs: 64, block_size: 16 }
    }

    /// How often each worker is picked for a prompt of 1000 tokens, of 1000 draws.
    fn picks(fleet: &[WorkerView]) -> Vec<usize> {
        let mut rng = StdRng::seed_from_u64(1);
        let demand = Demand { prompt_tokens: 1000, expected_output_tokens: 100, sequences: 1 };
        let mut counts = vec![0; fleet.len()];
        for _ in 0..1000 {
            let pick = pick(&demand, fleet, &mut rng).expect("there are candidates");
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
    fn an_unmeasured_worker_is_judged_by_its_peers() {
        let mut cold = worker(1, 0, 0, 0);
        cold.load.prefill_tokens_per_second = 0.0;
        cold.load.decode_tokens_per_second = f32::NAN;
        assert_eq!(picks(&[cold, worker(2, 0, 500, 0)]), [1000, 0]);
        assert_eq!(picks(&[cold, worker(2, 500, 0, 0)]), [0, 1000]);
        assert_eq!(
            pick(
                &Demand { prompt_tokens: 1, expected_output_tokens: 1, sequences: 1 },
                &[],
                &mut StdRng::seed_from_u64(0)
            ),
            None
        );
    }
}
