//! The metrics of a router before OpenAI servers, by the names of the router for our own workers where they
//! mean the same, so that its dashboards work.

use std::sync::{Mutex, PoisonError};

use skein_node::metrics::{
    Format, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, buckets,
};
use skein_router::metrics::{Outcome, Refusals, TenantMetrics};
use skein_router::refusal::Refusal;
use skein_router::tenants::KeysFile;
use skein_router::tenants::usage_log::UsageLog;

use super::link::Link;
use super::servers::{Health, WorkerState};

/// The metrics of one process.
pub(super) struct UpstreamMetrics {
    registry: Registry,
    refused: Refusals,
    pub outcomes: IntCounterVec,
    pub moved: IntCounter,
    pub moves: IntCounter,
    pub continued: IntCounter,
    answers: IntCounterVec,
    pub first_byte: Histogram,
    pub latency: Histogram,
    in_flight: IntGauge,
    known: IntGauge,
    ready: IntGauge,
    of_worker: [IntGaugeVec; 4],
    /// If there is a keys file or a usage log.
    tenants: Option<TenantMetrics>,
    /// Held while gauges are set and read: two scrapes at once would mix.
    scrape: Mutex<()>,
}

impl UpstreamMetrics {
    /// All metrics, at zero.
    pub fn new(keys: Option<KeysFile>, usage: Option<UsageLog>) -> Self {
        let r = Registry::new(&[]);
        r.process();
        r.certificates();
        let each = |name: &str, help: &str| r.gauges(name, help, &["worker"]);
        Self {
            refused: Refusals::new(&r),
            outcomes: r.counters(
                "skein_request_outcomes_total",
                "Accepted requests by how they ended.",
                "outcome",
                &Outcome::ALL.map(Outcome::label),
            ),
            moved: r.counter(
                "skein_requests_moved_total",
                "Requests that moved to another worker at least once.",
            ),
            moves: r.counter("skein_request_moves_total", "Moves to another worker."),
            continued: r.counter(
                "skein_streams_continued_by_text_total",
                "Streams of lost workers that another one continued by their text.",
            ),
            answers: r.counter_vec(
                "http_requests_total",
                "HTTP answers by route, method and class of status; streams count when they begin.",
                &["handler", "method", "status"],
            ),
            first_byte: r.histogram(
                "vllm:time_to_first_token_seconds",
                "From a request's arrival to the first byte of its answer's body.",
                buckets::TIME_TO_FIRST_TOKEN,
            ),
            latency: r.histogram(
                "vllm:e2e_request_latency_seconds",
                "From a request's arrival to its end.",
                buckets::REQUEST_LATENCY,
            ),
            in_flight: r.gauge("skein_requests_in_flight", "Accepted requests that have not ended."),
            known: r.gauge("skein_workers", "Workers that were named."),
            ready: r.gauge("skein_workers_ready", "Workers that take requests."),
            of_worker: [
                each("skein_worker_ready", "Whether a worker takes requests: 1 or 0."),
                each("skein_worker_running", "Samples that this router has in flight at a worker."),
                each(
                    "skein_worker_queued_tokens",
                    "Estimated prompt tokens of a worker's requests whose answers have not begun.",
                ),
                each("skein_worker_breaker_open", "Whether a worker's breaker is open: 1 or 0."),
            ],
            tenants: TenantMetrics::new(&r, keys, usage),
            scrape: Mutex::new(()),
            registry: r,
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

    /// Counts an answer to a request of the route `handler`.
    pub fn answered(&self, handler: &str, method: &str, status: u16) {
        let class = match status / 100 {
            1 | 2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            _ => "5xx",
        };
        self.answers.with_label_values(&[handler, method, class]).inc();
    }

    /// All of it as of now, in `format`.
    pub fn encode(&self, format: Format, running: usize, links: &[Link], states: &[WorkerState]) -> String {
        let _scrape = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.in_flight.set(count(running));
        self.known.set(count(states.iter().filter(|state| state.health != Health::Absent).count()));
        self.ready.set(count(states.iter().filter(|state| state.health == Health::Up).count()));
        // Addresses of a name come and go.
        self.of_worker.iter().for_each(|gauges| gauges.reset());
        for (link, state) in links.iter().zip(states).filter(|(_, state)| state.health != Health::Absent) {
            let values = [
                i64::from(state.health == Health::Up),
                state.in_flight.into(),
                state.queued_tokens.try_into().unwrap_or(i64::MAX),
                i64::from(state.open),
            ];
            for (gauges, value) in self.of_worker.iter().zip(values) {
                gauges.with_label_values(&[&*link.name()]).set(value);
            }
        }
        self.tenants.iter().for_each(TenantMetrics::update);
        self.registry.encode(format)
    }
}
