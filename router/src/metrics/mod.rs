//! The metrics of a router: name, labels and help of each. [`Metered`] observes requests between the edges
//! and the cluster; the state of the workers is read at each scrape. No label holds anything that a client
//! sent.

mod kept_text;
mod metered;
pub mod models;
mod outcome;
mod parser;
pub mod recent;
mod span;
mod stored;
mod tenants;
mod workers;

use skein_node::metrics::{
    EngineSums, Format, Histogram, IntCounter, IntCounterVec, IntGauge, MetricFamily, Registry, buckets,
    encode,
};
use skein_node::trace::GenAi;
use skein_text::kept_ids::KeptCounts;

pub use metered::Metered;
pub use outcome::Outcome;
pub use parser::{ParsedApi, ParserCounts};
pub use tenants::TenantMetrics;
pub(crate) use workers::pressure;

use crate::admission::Rejections;
use crate::config::RouterConfig;
use crate::generator::FleetView;
use crate::links::picks::Picked;
use crate::refusal::Refusal;
use kept_text::KeptText;
use recent::Recent;
use stored::StoredMetrics;
use workers::WorkerGauges;

/// The metrics of one router or gateway.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: IntCounter,
    refused: Refusals,
    outcomes: IntCounterVec,
    lost: IntCounter,
    picks: IntCounterVec,
    swaps: IntCounterVec,
    resumed: IntCounter,
    moved: IntCounter,
    moves: IntCounter,
    success: IntCounterVec,
    tokens: TokenCounts,
    kept_text: KeptText,
    params: Params,
    rejections: IntCounterVec,
    parsed: IntCounterVec,
    latencies: Latencies,
    answers: IntCounterVec,
    in_flight: IntGauge,
    in_flight_tokens: IntGauge,
    workers: WorkerGauges,
    engines: EngineSums,
    /// By OTLP, if that is on.
    gen_ai: Option<GenAi>,
    /// The latest requests.
    pub recent: Recent,
    /// If there is a keys file or a usage log.
    tenants: Option<TenantMetrics>,
    /// If responses are stored, unless other models share them.
    stored: Option<StoredMetrics>,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sums {
    /// Accepted requests.
    pub requests: u64,
    /// Tokens of prompts whose answer has begun.
    pub prompt_tokens: u64,
    /// Those of them that were cached.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
}

/// Tokens of prompts and outputs.
#[derive(Debug)]
struct TokenCounts {
    prompt_tokens: IntCounter,
    cached_tokens: IntCounter,
    prefix_queries: IntCounter,
    prefix_hits: IntCounter,
    prompt_by_source: IntCounterVec,
    cached_by_source: IntCounterVec,
    generation_tokens: IntCounter,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    request_most_generation_tokens: Histogram,
    request_computed_tokens: Histogram,
}

/// Values of `source` for prompt tokens: computed, found in a prefix cache.
const SOURCES: [&str; 2] = ["local_compute", "local_cache_hit"];
/// Value of `source` for cached prompt tokens: the memory that the model runs in.
const DEVICE: &str = "device";

/// What requests ask for.
#[derive(Debug)]
struct Params {
    n: Histogram,
    max_tokens: Histogram,
}

impl Params {
    fn new(r: &Registry) -> Self {
        Self {
            n: r.histogram("vllm:request_params_n", "Samples of a request.", buckets::REQUEST_PARAMS_N),
            max_tokens: r.histogram(
                "vllm:request_params_max_tokens",
                "Most output tokens of a sample, as requested or by default.",
                buckets::REQUEST_TOKENS,
            ),
        }
    }
}

impl TokenCounts {
    fn new(r: &Registry) -> Self {
        Self {
            prompt_tokens: r.counter("vllm:prompt_tokens_total", "Prompt tokens, cached ones included."),
            cached_tokens: r
                .counter("vllm:prompt_tokens_cached_total", "Prompt tokens found in a prefix cache."),
            prefix_queries: r
                .counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in a prefix cache."),
            prefix_hits: r.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in a prefix cache."),
            prompt_by_source: r.counters(
                "vllm:prompt_tokens_by_source_total",
                "Prompt tokens by where their keys and values come from.",
                "source",
                &SOURCES,
            ),
            cached_by_source: r.counters(
                "vllm:prompt_tokens_cached_by_source_total",
                "Prompt tokens found in a prefix cache, by the memory that holds it.",
                "source",
                &[DEVICE],
            ),
            generation_tokens: r.counter("vllm:generation_tokens_total", "Output tokens."),
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
            request_most_generation_tokens: r.histogram(
                "vllm:request_max_num_generation_tokens",
                "Output tokens of a request's longest sample.",
                buckets::REQUEST_TOKENS,
            ),
            request_computed_tokens: r.histogram(
                "vllm:request_prefill_kv_computed_tokens",
                "Prompt tokens of a request that were not found in a prefix cache.",
                buckets::REQUEST_TOKENS,
            ),
        }
    }
}

/// Times that a client sees, in seconds.
#[derive(Debug)]
struct Latencies {
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    time_per_output_token: Histogram,
    e2e_latency: Histogram,
}

impl Latencies {
    fn new(r: &Registry) -> Self {
        Self {
            time_to_first_token: r.histogram(
                "vllm:time_to_first_token_seconds",
                "From a request's arrival to its first output token, tokenisation and queues included.",
                buckets::TIME_TO_FIRST_TOKEN,
            ),
            inter_token_latency: r.histogram(
                "vllm:inter_token_latency_seconds",
                "Between two output tokens of a sample; tokens that come together share the time.",
                buckets::INTER_TOKEN_LATENCY,
            ),
            time_per_output_token: r.histogram(
                "vllm:request_time_per_output_token_seconds",
                "Mean time between the output tokens of a sample.",
                buckets::INTER_TOKEN_LATENCY,
            ),
            e2e_latency: r.histogram(
                "vllm:e2e_request_latency_seconds",
                "From a request's arrival to its end.",
                buckets::REQUEST_LATENCY,
            ),
        }
    }
}

/// Requests refused before they began, by error code. A router has it whatever its workers speak.
#[derive(Debug)]
pub struct Refusals(IntCounterVec);

impl Refusals {
    /// None yet, in `registry`.
    pub fn new(registry: &Registry) -> Self {
        Self(registry.counters(
            "skein_requests_refused_total",
            "Requests refused before they began, by error code.",
            "code",
            &["invalid_request", "queue_full", "no_ready_worker"],
        ))
    }

    /// Counts `refusal` by its code.
    pub fn count(&self, refusal: &Refusal) {
        self.0.with_label_values(&[refusal.http().code.unwrap_or("invalid_request")]).inc();
    }
}

/// The class of a status, as a label.
fn class_of(status: u16) -> &'static str {
    match status / 100 {
        1 | 2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}

/// What became of a proxy's request for a pick.
const PICKS: [&str; 2] = ["picked", "refused"];

/// How a request to replace the model ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapOutcome {
    /// New requests go to the new version.
    Swapped,
    /// The files are those of the running version.
    Unchanged,
    /// The model cannot be served.
    Refused,
}

impl SwapOutcome {
    const ALL: [Self; 3] = [Self::Swapped, Self::Unchanged, Self::Refused];

    fn label(self) -> &'static str {
        match self {
            Self::Swapped => "swapped",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
        }
    }
}

/// Values of vLLM's label `finished_reason` that are in use.
const FINISHED: [&str; 4] = ["stop", "length", "abort", "error"];

/// Values of vLLM's label `reason` for [`Rejections`].
const REJECTIONS: [&str; 2] = ["max_num_queued_reqs", "max_num_queued_tokens"];

impl Metrics {
    /// The metrics of a router for `model_name` with these settings, all of them zero.
    pub fn of_router(model_name: &str, config: &RouterConfig) -> Self {
        let mut metrics = Self::with(model_name, !config.is_one_of_several);
        metrics.tenants =
            TenantMetrics::new(&metrics.registry, config.keys_file.clone(), config.usage_log.clone());
        let stored = config.responses.clone().filter(|_| !config.is_one_of_several);
        metrics.stored = stored.map(|stored| StoredMetrics::new(&metrics.registry, stored));
        metrics
    }

    /// The metrics of a router for `model_name`, all of them zero.
    pub fn new(model_name: &str) -> Self {
        Self::with(model_name, true)
    }

    /// [`new`](Self::new), with or without those of the process.
    fn with(model_name: &str, of_process: bool) -> Self {
        // vLLM's labels; a cluster is one engine to its clients.
        let r = Registry::new(&[("model_name", model_name), ("engine", "0")]);
        if of_process {
            r.process();
            r.traces();
            r.certificates();
        }
        let metrics = Self {
            requests: r.counter("skein_requests_total", "Requests accepted."),
            refused: Refusals::new(&r),
            outcomes: r.counters(
                "skein_request_outcomes_total",
                "Accepted requests by how they ended.",
                "outcome",
                &Outcome::ALL.map(Outcome::label),
            ),
            lost: r.counter(
                "skein_requests_lost_total",
                "Accepted requests that ended because no worker could finish them. Anything but 0 deserves an alert.",
            ),
            picks: r.counters(
                "skein_picks_total",
                "Requests of a proxy for which an endpoint was picked or that were refused.",
                "outcome",
                &PICKS,
            ),
            swaps: r.counters(
                "skein_model_swaps_total",
                "Requests to replace the model, by outcome.",
                "outcome",
                &SwapOutcome::ALL.map(SwapOutcome::label),
            ),
            resumed: r.counter(
                "skein_requests_resumed_total",
                "Requests that continue an answer that the client has a part of.",
            ),
            moved: r.counter("skein_requests_moved_total", "Requests that moved to another worker at least once."),
            moves: r.counter("skein_request_moves_total", "Moves to another worker, counted as requests end."),
            success: r.counters(
                "vllm:request_success_total",
                "Samples by the reason why they ended.",
                "finished_reason",
                &FINISHED,
            ),
            tokens: TokenCounts::new(&r),
            kept_text: KeptText::new(&r),
            params: Params::new(&r),
            rejections: r.counters(
                "vllm:admission_rejections_total",
                "Requests refused by a limit of the queue, by the limit.",
                "reason",
                &REJECTIONS,
            ),
            parsed: r.counter_vec(
                "vllm:tool_call_parser_invocations_total",
                "Answers that were searched for tool calls: once for each choice, in streams for each part of its text.",
                &["mode", "outcome", "request_type"],
            ),
            latencies: Latencies::new(&r),
            answers: r.counter_vec(
                "http_requests_total",
                "HTTP answers by route, method and class of status; streams count when they begin.",
                &["handler", "method", "status"],
            ),
            in_flight: r.gauge("skein_requests_in_flight", "Accepted requests that have not ended."),
            in_flight_tokens: r.gauge(
                "skein_admitted_tokens",
                "Uncached prompt tokens and expected output tokens of the requests in flight.",
            ),
            workers: WorkerGauges::new(&r),
            engines: r.engine_sums(),
            gen_ai: GenAi::new(model_name),
            recent: Recent::default(),
            tenants: None,
            stored: None,
            registry: r,
        };
        // A counter that exists from the start shows its first increase.
        for api in ParsedApi::ALL {
            metrics.parsed(api, false);
            metrics.parsed(api, true);
        }
        metrics
    }

    /// Counts since the start that people look at.
    pub fn sums(&self) -> Sums {
        Sums {
            requests: self.requests.get(),
            prompt_tokens: self.tokens.prompt_tokens.get(),
            cached_tokens: self.tokens.cached_tokens.get(),
            output_tokens: self.tokens.generation_tokens.get(),
        }
    }

    /// Counts a request that was refused before it began.
    pub fn refused(&self, refusal: &Refusal) {
        self.refused.count(refusal);
    }

    /// Those of tenants.
    pub fn tenants(&self) -> Option<&TenantMetrics> {
        self.tenants.as_ref()
    }

    /// Counts a pick for a proxy.
    pub fn picked(&self, picked: &Result<Picked, Refusal>) {
        let [is_picked, is_refused] = PICKS;
        let outcome = if picked.is_ok() { is_picked } else { is_refused };
        self.picks.with_label_values(&[outcome]).inc();
    }

    /// Counts an HTTP answer; `handler` is the pattern of a route.
    pub fn answered(&self, handler: &str, method: &str, status: u16) {
        self.answers.with_label_values(&[handler, method, class_of(status)]).inc();
    }

    /// Counts of what the tool parser finds in the answers to a request.
    pub fn parsed(&self, api: ParsedApi, is_streaming: bool) -> ParserCounts {
        let mode = if is_streaming { "streaming" } else { "non_streaming" };
        let count = |outcome| self.parsed.with_label_values(&[mode, outcome, api.label()]);
        ParserCounts { is_streaming, tool_call: count("tool_call"), no_tool_call: count("no_tool_call") }
    }

    /// Counts a request to replace the model.
    pub fn swapped(&self, outcome: SwapOutcome) {
        self.swaps.with_label_values(&[outcome.label()]).inc();
    }

    /// All of it as of now, in `format`. `kept` is what the text has counted.
    pub fn encode(&self, format: Format, fleet: &dyn FleetView, kept: KeptCounts) -> String {
        encode(&self.gather(fleet, kept), format)
    }

    /// All of it as of now. `kept` is what the text has counted.
    pub fn gather(&self, fleet: &dyn FleetView, kept: KeptCounts) -> Vec<MetricFamily> {
        self.kept_text.update(kept);
        let running = fleet.running();
        self.in_flight.set(running.requests.into());
        self.in_flight_tokens.set(running.tokens.try_into().unwrap_or(i64::MAX));
        self.engines.set(fleet.totals());
        let Rejections { by_requests, by_tokens } = fleet.rejections();
        for (reason, total) in REJECTIONS.iter().zip([by_requests, by_tokens]) {
            let counter = self.rejections.with_label_values(&[reason]);
            counter.inc_by(total.saturating_sub(counter.get()));
        }
        self.tenants.iter().for_each(TenantMetrics::update);
        self.stored.iter().for_each(StoredMetrics::update);
        self.workers.set(&fleet.workers(), fleet.version(), || self.registry.gather())
    }
}
