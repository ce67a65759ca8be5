//! State of the workers: sums under vLLM's names, and each worker under our own.

use std::sync::{Mutex, PoisonError};

use skein_choice::fleet::WorkerStatus;
use skein_node::metrics::{Gauge, GaugeVec, IntGauge, IntGaugeVec, Registry};
use skein_proto::version::Version;

/// Gauges that are set at each scrape.
#[derive(Debug)]
pub(super) struct WorkerGauges {
    /// Held while they are set and read: two scrapes at once would mix.
    scrape: Mutex<()>,
    running: IntGauge,
    waiting: IntGauge,
    waiting_by_reason: IntGaugeVec,
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
    pressure: Gauge,
    worker_pressure: GaugeVec,
    version_workers: IntGaugeVec,
    version_current: IntGaugeVec,
}

impl WorkerGauges {
    pub fn new(r: &Registry) -> Self {
        let each = |name: &str, help: &str| r.gauges(name, help, &["worker"]);
        Self {
            scrape: Mutex::new(()),
            running: r.gauge("vllm:num_requests_running", "Sequences that run, at all workers together."),
            waiting: r.gauge("vllm:num_requests_waiting", "Sequences that wait, at all workers together."),
            waiting_by_reason: r.gauges(
                "vllm:num_requests_waiting_by_reason",
                "Sequences that wait, by what they wait for, at all workers together.",
                &["reason"],
            ),
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
            pressure: r.ratio(
                "skein_pressure",
                "Mean pressure of the ready workers; 0 is idle, 1 is full, more is too much.",
            ),
            worker_pressure: r.ratios(
                "skein_worker_pressure",
                "Highest utilisation of a worker's sequence slots, KV blocks and one second of prefill; 1 is full.",
                &["worker"],
            ),
            version_workers: r.gauges(
                "skein_model_version_workers",
                "Workers that take requests, by the version of the model that they serve.",
                &["version"],
            ),
            version_current: r.gauges(
                "skein_model_version_current",
                "Whether new requests go to this version of the model: 1 or 0.",
                &["version"],
            ),
        }
    }

    /// Sets them all, then calls `read`. New requests go to version `current`.
    pub fn set<T>(&self, workers: &[WorkerStatus], current: Version, read: impl FnOnce() -> T) -> T {
        let _scrape = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.running.set(workers.iter().map(|worker| i64::from(worker.reported.running)).sum());
        let waiting = workers.iter().map(|worker| i64::from(worker.reported.waiting)).sum();
        self.waiting.set(waiting);
        self.waiting_by_reason.with_label_values(&["capacity"]).set(waiting);
        self.kv_usage.set(kv_usage(workers));
        self.ready.set(count(workers.iter().filter(|worker| worker.is_ready()).count()));
        self.known.set(count(workers.len()));
        for gauges in self.of_each() {
            gauges.reset(); // a worker that has left is gone from the scrape, too
        }
        self.worker_pressure.reset();
        let ready = workers.iter().filter(|worker| worker.is_ready());
        let (sum, count_ready) =
            ready.fold((0.0, 0), |(sum, count), worker| (sum + pressure(worker), count + 1));
        self.pressure.set(if count_ready == 0 { 0.0 } else { sum / f64::from(count_ready) });
        for worker in workers {
            self.worker_pressure.with_label_values(&[&worker.id]).set(pressure(worker));
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
        self.set_versions(workers, current);
        read()
    }

    fn set_versions(&self, workers: &[WorkerStatus], current: Version) {
        self.version_workers.reset();
        self.version_current.reset();
        let served = |worker: &WorkerStatus| Some((worker.info.as_ref()?.model_version(), worker.is_ready()));
        for (version, is_ready) in workers.iter().filter_map(served).filter(|(version, _)| version.is_known())
        {
            let label = version.to_string();
            self.version_workers.with_label_values(&[&label]).add(is_ready.into());
            self.version_current.with_label_values(&[&label]).set((version == current).into());
        }
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

/// Highest utilisation of a worker's seats, KV blocks and one second of waiting prefill. Unlike
/// the number of waiting requests it rises from the first request on, and unlike a share of time it goes
/// beyond 1, so an autoscaler can compute from it how many workers are missing.
pub(crate) fn pressure(worker: &WorkerStatus) -> f64 {
    let Some(info) = &worker.info else { return 0.0 };
    let load = &worker.load;
    let part = |used: f64, all: f64| if all > 0.0 { used / all } else { 0.0 };
    let seats = part(load.sequences.into(), info.max_num_seqs.into());
    let blocks = part(info.kv_blocks.saturating_sub(load.free_blocks).into(), info.kv_blocks.into());
    // Without a measured rate nothing is known about prefill.
    let prefill = part(load.queued_uncached_tokens as f64, load.prefill_tokens_per_second.into());
    seats.max(blocks).max(prefill)
}

/// 0 while no worker has connected.
fn kv_usage(workers: &[WorkerStatus]) -> f64 {
    let connected = || workers.iter().filter_map(|worker| Some((worker, worker.info.as_ref()?)));
    let blocks: f64 = connected().map(|(_, info)| f64::from(info.kv_blocks)).sum();
    let free: f64 =
        connected().map(|(worker, info)| f64::from(worker.reported.free_blocks.min(info.kv_blocks))).sum();
    if blocks == 0.0 { 0.0 } else { 1.0 - free / blocks }
}

#[cfg(test)]
mod tests {
    use skein_choice::ledger::CurrentLoad;
    use skein_proto::info::WorkerInfo;
    use skein_proto::load::Load;

    use super::*;

    /// A worker with 8 seats, 100 blocks and 1,000 prefill tokens per second.
    fn worker(id: &str, sequences: u32, free_blocks: u32, queued_uncached_tokens: u64) -> WorkerStatus {
        let info = WorkerInfo {
            epoch: 1,
            model: "m".into(),
            max_model_len: 1000,
            vocab_size: 300,
            block_size: 16,
            kv_blocks: 100,
            max_num_seqs: 8,
            max_num_batched_tokens: 512,
            resume_exact: true,
            version: String::new(),
            backend: "fake".into(),
            fingerprint: 7,
            grammar_fingerprint: 0,
            tokenizer_fingerprint: 0,
            serving_since_ms: 0,
            pooled: None,
        };
        let load = CurrentLoad {
            queued_uncached_tokens,
            sequences,
            free_blocks,
            prefill_tokens_per_second: 1000.0,
            decode_tokens_per_second: 100.0,
        };
        WorkerStatus {
            id: id.to_owned(),
            address: String::new(),
            refuses: None,
            info: Some(info),
            load,
            reported: Load::default(),
            cached_blocks: 0,
        }
    }

    #[test]
    fn pressure_is_what_runs_out_first_and_has_no_ceiling() {
        let check = |sequences, free, queued, expected: f64| {
            let got = pressure(&worker("w", sequences, free, queued));
            assert!((got - expected).abs() < 1e-9, "{got} for {sequences}, {free}, {queued}");
        };
        check(0, 100, 0, 0.0);
        check(2, 90, 100, 0.25);
        check(2, 40, 100, 0.6);
        check(2, 90, 700, 0.7);
        check(24, 90, 0, 3.0);
        check(1, 100, 5_000, 5.0);
        let mut unmeasured = worker("w", 4, 100, 5_000);
        unmeasured.load.prefill_tokens_per_second = 0.0;
        assert_eq!(pressure(&unmeasured), 0.5);
        assert_eq!(pressure(&WorkerStatus { info: None, ..worker("w", 4, 0, 0) }), 0.0);
    }

    #[test]
    fn the_mean_is_over_ready_workers() {
        let registry = Registry::new(&[]);
        let gauges = WorkerGauges::new(&registry);
        let full =
            WorkerStatus { refuses: Some(skein_choice::fleet::NotReady::Draining), ..worker("c", 8, 0, 0) };
        let workers = [worker("a", 2, 100, 0), worker("b", 6, 100, 0), full];
        let text = gauges.set(&workers, Version(7), || registry.encode(skein_node::metrics::Format::Text));
        assert!(text.contains("\nskein_pressure 0.5\n"), "{text}");
        assert!(text.contains("\nskein_worker_pressure{worker=\"c\"} 1\n"), "{text}");
    }

    #[test]
    fn sixty_four_workers_have_a_bounded_number_of_series_and_those_that_left_have_none() {
        let registry = Registry::new(&[]);
        let gauges = WorkerGauges::new(&registry);
        let series = |workers: &[WorkerStatus]| {
            let text = gauges.set(workers, Version(7), || registry.encode(skein_node::metrics::Format::Text));
            text.lines().filter(|line| !line.starts_with('#')).count()
        };
        let none = series(&[]);
        for round in 0..100 {
            let workers: Vec<_> =
                (0..64).map(|at| worker(&format!("w{}", round * 64 + at), 1, 50, 0)).collect();
            // Eight of each worker, two of their version.
            assert_eq!(series(&workers), none + 64 * 8 + 2, "round {round}");
        }
        assert_eq!(series(&[]), none);
    }
}
