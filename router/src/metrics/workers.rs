//! State of the workers: sums under vLLM's names, and each worker under our own.

use std::sync::{Mutex, PoisonError};

use skein_node::metrics::{Gauge, IntGauge, IntGaugeVec, Registry};

use crate::fleet::WorkerStatus;

/// Gauges that are set at each scrape.
#[derive(Debug)]
pub(super) struct WorkerGauges {
    /// Held while they are set and read: two scrapes at once would mix.
    scrape: Mutex<()>,
    running: IntGauge,
    waiting: IntGauge,
    kv_usage: Gauge,
    ready: IntGauge,
    known: IntGauge,
    worker_ready: IntGaugeVec,
    worker_running: IntGaugeVec,
    worker_waiting: IntGaugeVec,
    worker_queued_tokens: IntGaugeVec,
    worker_free_blocks: IntGaugeVec,
    worker_kv_blocks: IntGaugeVec,
    worker_indexed_blocks: IntGaugeVec,
}

impl WorkerGauges {
    pub fn new(r: &Registry) -> Self {
        let each = |name: &str, help: &str| r.gauges(name, help, &["worker"]);
        Self {
            scrape: Mutex::new(()),
            running: r.gauge("vllm:num_requests_running", "Sequences that run, at all workers together."),
            waiting: r.gauge("vllm:num_requests_waiting", "Sequences that wait, at all workers together."),
            kv_usage: r
                .ratio("vllm:kv_cache_usage_perc", "Used part of all KV caches together, from 0 to 1."),
            ready: r.gauge("skein_workers_ready", "Workers that take requests."),
            known: r.gauge("skein_workers", "Workers that discovery names."),
            worker_ready: each("skein_worker_ready", "Whether a worker takes requests: 1 or 0."),
            worker_running: each("skein_worker_running", "Sequences that run at a worker."),
            worker_waiting: each("skein_worker_waiting", "Sequences that wait at a worker."),
            worker_queued_tokens: each(
                "skein_worker_queued_tokens",
                "Uncached prompt tokens that a worker has still to prefill, with those sent since its last report.",
            ),
            worker_free_blocks: each("skein_worker_free_blocks", "KV blocks that a new request could get."),
            worker_kv_blocks: each("skein_worker_kv_blocks", "KV blocks of a worker."),
            worker_indexed_blocks: each(
                "skein_worker_indexed_blocks",
                "Blocks of a worker's prefix cache that this router's index knows.",
            ),
        }
    }

    /// Sets them all, then calls `encode`.
    pub fn encode(&self, workers: &[WorkerStatus], encode: impl FnOnce() -> String) -> String {
        let _scrape = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.running.set(workers.iter().map(|worker| i64::from(worker.reported.running)).sum());
        self.waiting.set(workers.iter().map(|worker| i64::from(worker.reported.waiting)).sum());
        self.kv_usage.set(kv_usage(workers));
        self.ready.set(count(workers.iter().filter(|worker| worker.is_ready()).count()));
        self.known.set(count(workers.len()));
        for gauges in self.of_each() {
            gauges.reset(); // a worker that has left is gone from the scrape, too
        }
        for worker in workers {
            let set = |gauges: &IntGaugeVec, value: i64| gauges.with_label_values(&[&worker.id]).set(value);
            set(&self.worker_ready, i64::from(worker.is_ready()));
            set(&self.worker_running, worker.reported.running.into());
            set(&self.worker_waiting, worker.reported.waiting.into());
            set(
                &self.worker_queued_tokens,
                worker.load.queued_uncached_tokens.try_into().unwrap_or(i64::MAX),
            );
            set(&self.worker_free_blocks, worker.load.free_blocks.into());
            set(&self.worker_kv_blocks, worker.info.as_ref().map_or(0, |info| info.kv_blocks.into()));
            set(&self.worker_indexed_blocks, count(worker.cached_blocks));
        }
        encode()
    }

    fn of_each(&self) -> [&IntGaugeVec; 7] {
        [
            &self.worker_ready,
            &self.worker_running,
            &self.worker_waiting,
            &self.worker_queued_tokens,
            &self.worker_free_blocks,
            &self.worker_kv_blocks,
            &self.worker_indexed_blocks,
        ]
    }
}

/// 0 while no worker has connected.
fn kv_usage(workers: &[WorkerStatus]) -> f64 {
    let connected = || workers.iter().filter_map(|worker| Some((worker, worker.info.as_ref()?)));
    let blocks: f64 = connected().map(|(_, info)| f64::from(info.kv_blocks)).sum();
    let free: f64 =
        connected().map(|(worker, info)| f64::from(worker.reported.free_blocks.min(info.kv_blocks))).sum();
    if blocks == 0.0 { 0.0 } else { 1.0 - free / blocks }
}
