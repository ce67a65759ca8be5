//! The metrics of a worker: name, labels and help of each. The engine's thread reports to an [`Observer`];
//! `GET /metrics` of the service reads them.

mod adapters;
mod observer;
mod phases;

use std::sync::OnceLock;

use skein_node::metrics::{
    Format, Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, buckets, total_of,
};
use skein_proto::info::WorkerInfo;
use skein_proto::totals::Total;

use self::adapters::AdapterMetrics;
use crate::adapters::Adapters;
use crate::draft::MOST_DRAFTED;

pub use observer::Observer;

/// The metrics of one worker.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    running: IntGauge,
    waiting: IntGauge,
    waiting_by_reason: IntGaugeVec,
    kv_usage: Gauge,
    kv_blocks: IntGauge,
    free_blocks: IntGauge,
    state_slots: IntGaugeVec,
    prefix_queries: IntCounter,
    prefix_hits: IntCounter,
    preemptions: IntCounter,
    drafts: IntCounter,
    draft_tokens: IntCounter,
    accepted_tokens: IntCounter,
    accepted_by_position: IntCounterVec,
    prompt_tokens: IntCounter,
    cached_tokens: IntCounter,
    prompt_by_source: IntCounterVec,
    cached_by_source: IntCounterVec,
    request_computed_tokens: Histogram,
    request_preemptions: Histogram,
    generation_tokens: IntCounter,
    success: IntCounterVec,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    iteration_tokens: Histogram,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    queue_time: Histogram,
    prefill_time: Histogram,
    decode_time: Histogram,
    inference_time: Histogram,
    e2e_latency: Histogram,
    steps: IntCounter,
    step_time: Histogram,
    streams: IntGauge,
    outcomes: IntCounterVec,
    adapters: OnceLock<AdapterMetrics>,
}

/// Values of the label `position`, for the longest draft.
const POSITIONS: [&str; MOST_DRAFTED] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18",
    "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30",
];

/// Values of `source` for prompt tokens: computed, found in the prefix cache.
const SOURCES: [&str; 2] = ["local_compute", "local_cache_hit"];
/// Value of `source` for cached prompt tokens: the memory that the model runs in.
const DEVICE: &str = "device";
/// Value of `reason` for waiting sequences: a place, blocks or tokens of a step.
const CAPACITY: &str = "capacity";

/// Values of `use` for slots of states: free, with a cached state, held by sequences.
const SLOT_USES: [&str; 3] = ["free", "cached", "held"];

/// Values of `outcome`, in the order of [`Counts`](crate::streams::Counts).
const OUTCOMES: [&str; 4] = ["completed", "errored", "cancelled", "handed_back"];

impl Metrics {
    /// The metrics of a worker that serves `model_name`, all of them zero.
    pub fn new(model_name: &str) -> Self {
        let registry = Registry::new(&[("model_name", model_name), ("engine", "0")]);
        registry.process();
        registry.traces();
        registry.certificates();
        let r = &registry;
        let phase = |name: &str, help: &str| r.histogram(name, help, buckets::REQUEST_LATENCY);
        let state_slots = r.gauges(
            "skein_worker_state_slots",
            "Slots for states of recurrent layers, by what is in them.",
            &["use"],
        );
        SLOT_USES.iter().for_each(|name| state_slots.with_label_values(&[name]).set(0));
        Self {
            running: r.gauge("vllm:num_requests_running", "Sequences that run."),
            waiting: r.gauge("vllm:num_requests_waiting", "Sequences that wait."),
            waiting_by_reason: r.gauges(
                "vllm:num_requests_waiting_by_reason",
                "Sequences that wait, by what they wait for.",
                &["reason"],
            ),
            kv_usage: r.ratio("vllm:kv_cache_usage_perc", "Used part of the KV cache, from 0 to 1."),
            kv_blocks: r.gauge("skein_worker_kv_blocks", "Blocks of the KV cache."),
            free_blocks: r.gauge("skein_worker_free_blocks", "Blocks that a new request could get."),
            state_slots,
            prefix_queries: r
                .counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."),
            prefix_hits: r
                .counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache."),
            preemptions: r.counter("vllm:num_preemptions_total", "Sequences preempted and recomputed."),
            drafts: r.counter("vllm:spec_decode_num_drafts_total", "Drafts verified."),
            draft_tokens: r.counter("vllm:spec_decode_num_draft_tokens_total", "Tokens of verified drafts."),
            accepted_tokens: r
                .counter("vllm:spec_decode_num_accepted_tokens_total", "Tokens of drafts that were right."),
            accepted_by_position: r.counters(
                "vllm:spec_decode_num_accepted_tokens_per_pos_total",
                "Tokens of drafts that were right, by position in the draft.",
                "position",
                &POSITIONS,
            ),
            prompt_tokens: r.counter("vllm:prompt_tokens_total", "Prompt tokens, cached ones included."),
            cached_tokens: r
                .counter("vllm:prompt_tokens_cached_total", "Prompt tokens found in the prefix cache."),
            prompt_by_source: r.counters(
                "vllm:prompt_tokens_by_source_total",
                "Prompt tokens by where their keys and values come from.",
                "source",
                &SOURCES,
            ),
            cached_by_source: r.counters(
                "vllm:prompt_tokens_cached_by_source_total",
                "Prompt tokens found in the prefix cache, by the memory that holds it.",
                "source",
                &[DEVICE],
            ),
            request_computed_tokens: r.histogram(
                "vllm:request_prefill_kv_computed_tokens",
                "Prompt tokens of a request that were not found in the prefix cache.",
                buckets::REQUEST_TOKENS,
            ),
            request_preemptions: r.histogram(
                "vllm:request_num_preemptions",
                "How often sequences of a request were preempted.",
                buckets::REQUEST_NUM_PREEMPTIONS,
            ),
            generation_tokens: r.counter("vllm:generation_tokens_total", "Output tokens."),
            success: r.counters(
                "vllm:request_success_total",
                "Samples by the reason why they ended.",
                "finished_reason",
                &["stop", "length", "abort"],
            ),
            request_prompt_tokens: r.histogram(
                "vllm:request_prompt_tokens",
                "Prompt tokens of a request.",
                buckets::REQUEST_TOKENS,
            ),
            request_generation_tokens: r.histogram(
                "vllm:request_generation_tokens",
                "Output tokens of a sample.",
                buckets::REQUEST_TOKENS,
            ),
            iteration_tokens: r.histogram(
                "vllm:iteration_tokens_total",
                "Tokens computed in an engine step.",
                buckets::ITERATION_TOKENS,
            ),
            time_to_first_token: r.histogram(
                "vllm:time_to_first_token_seconds",
                "From a request's arrival at this worker to its first output token.",
                buckets::TIME_TO_FIRST_TOKEN,
            ),
            inter_token_latency: r.histogram(
                "vllm:inter_token_latency_seconds",
                "Between two output tokens of a sample.",
                buckets::INTER_TOKEN_LATENCY,
            ),
            queue_time: phase(
                "vllm:request_queue_time_seconds",
                "From a request's arrival to the start of its first step.",
            ),
            prefill_time: phase(
                "vllm:request_prefill_time_seconds",
                "From the start of a request's first step to its first output token.",
            ),
            decode_time: phase(
                "vllm:request_decode_time_seconds",
                "From a request's first output token to its end.",
            ),
            inference_time: phase(
                "vllm:request_inference_time_seconds",
                "From the start of a request's first step to its end.",
            ),
            e2e_latency: phase("vllm:e2e_request_latency_seconds", "From a request's arrival to its end."),
            steps: r.counter("skein_engine_steps_total", "Engine steps."),
            step_time: r.histogram(
                "skein_engine_step_seconds",
                "From the plan of an engine step to its result.",
                buckets::STEP,
            ),
            streams: r.gauge("skein_worker_streams", "Requests in progress, waiting ones included."),
            outcomes: r.counters(
                "skein_worker_request_outcomes_total",
                "Requests by how they ended at this worker.",
                "outcome",
                &OUTCOMES,
            ),
            adapters: OnceLock::new(),
            registry,
        }
    }

    /// Sets what is known once the model is loaded. `adapters`: those served beside it.
    pub fn loaded(&self, info: &WorkerInfo, adapters: Option<&Adapters>) {
        self.kv_blocks.set(info.kv_blocks.into());
        let (block_size, blocks) = (info.block_size.to_string(), info.kv_blocks.to_string());
        self.registry.info(
            "vllm:cache_config_info",
            "Configuration of the KV cache.",
            &[("block_size", &block_size), ("num_gpu_blocks", &blocks)],
        );
        if let Some(adapters) = adapters {
            self.adapters.get_or_init(|| AdapterMetrics::new(&self.registry, adapters.clone()));
        }
    }

    /// The metrics in [`ENGINE`](skein_node::metrics::ENGINE), which routers add up over their workers.
    pub fn totals(&self) -> Vec<Total> {
        let histograms = [
            &self.queue_time,
            &self.prefill_time,
            &self.decode_time,
            &self.inference_time,
            &self.time_to_first_token,
            &self.inter_token_latency,
            &self.e2e_latency,
            &self.iteration_tokens,
            &self.request_preemptions,
            &self.step_time,
        ];
        let counters =
            [&self.preemptions, &self.steps, &self.drafts, &self.draft_tokens, &self.accepted_tokens];
        histograms.map(total_of).into_iter().chain(counters.map(total_of)).collect()
    }

    /// All of it in `format`.
    pub fn encode(&self, format: Format) -> String {
        if let Some(adapters) = self.adapters.get() {
            adapters.refresh();
        }
        self.registry.encode(format)
    }
}

#[cfg(test)]
mod tests {
    use skein_node::metrics::ENGINE;

    use super::*;

    #[test]
    fn routers_know_each_total_and_its_buckets() {
        let metrics = Metrics::new("m");
        metrics.preemptions.inc_by(3);
        metrics.queue_time.observe(0.4);
        let totals = metrics.totals();
        assert_eq!(totals.len(), ENGINE.len());
        for known in ENGINE {
            let total = totals.iter().find(|total| total.name == known.at_worker).expect(known.at_worker);
            assert!(known.fits(total), "{total:?}");
        }
        let named = |name: &str| totals.iter().find(|total| total.name == name).expect("it is there");
        assert_eq!(named("vllm:num_preemptions_total").count, 3);
        let queue = named("vllm:request_queue_time_seconds");
        assert_eq!((queue.sum, &queue.buckets[..3]), (0.4, &[0, 1, 0][..]));
        assert_eq!(queue.buckets.iter().sum::<u64>(), 1);
    }
}
