//! Engine metrics that a router serves as sums over its workers, so that one scrape covers the cluster.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Counter, Histogram, Metric, MetricFamily, MetricType};
use skein_proto::totals::Total;

use super::buckets;
use super::valid::VALID;

/// A metric counted by workers and summed by routers.
#[derive(Debug, Clone, Copy)]
pub struct EngineMetric {
    /// Name at a worker.
    pub at_worker: &'static str,
    /// Name at a router. It differs if the router also measures the quantity itself.
    pub at_router: &'static str,
    /// Help text at a router.
    pub help: &'static str,
    /// Upper bounds of a histogram without `+Inf`; empty for a counter.
    pub buckets: &'static [f64],
}

const fn metric(
    at_worker: &'static str,
    at_router: &'static str,
    help: &'static str,
    buckets: &'static [f64],
) -> EngineMetric {
    EngineMetric { at_worker, at_router, help, buckets }
}

/// All summed metrics.
pub const ENGINE: [EngineMetric; 15] = [
    metric(
        "vllm:request_queue_time_seconds",
        "vllm:request_queue_time_seconds",
        "From a request's arrival at a worker to the start of its first step, at all workers together.",
        buckets::REQUEST_LATENCY,
    ),
    metric(
        "vllm:request_prefill_time_seconds",
        "vllm:request_prefill_time_seconds",
        "From the start of a request's first step to its first output token, at all workers together.",
        buckets::REQUEST_LATENCY,
    ),
    metric(
        "vllm:request_decode_time_seconds",
        "vllm:request_decode_time_seconds",
        "From a request's first output token to its end at a worker, at all workers together.",
        buckets::REQUEST_LATENCY,
    ),
    metric(
        "vllm:request_inference_time_seconds",
        "vllm:request_inference_time_seconds",
        "From the start of a request's first step to its end at a worker, at all workers together.",
        buckets::REQUEST_LATENCY,
    ),
    metric(
        "vllm:iteration_tokens_total",
        "vllm:iteration_tokens_total",
        "Tokens computed in an engine step, at all workers together.",
        buckets::ITERATION_TOKENS,
    ),
    metric(
        "vllm:num_preemptions_total",
        "vllm:num_preemptions_total",
        "Sequences preempted and recomputed, at all workers together.",
        &[],
    ),
    metric(
        "vllm:request_num_preemptions",
        "vllm:request_num_preemptions",
        "How often sequences of a request were preempted at a worker, at all workers together.",
        buckets::REQUEST_NUM_PREEMPTIONS,
    ),
    metric(
        "vllm:time_to_first_token_seconds",
        "skein_engine_time_to_first_token_seconds",
        "From a request's arrival at a worker to its first output token, at all workers together.",
        buckets::TIME_TO_FIRST_TOKEN,
    ),
    metric(
        "vllm:inter_token_latency_seconds",
        "skein_engine_inter_token_latency_seconds",
        "Between two output tokens of a sample in an engine, at all workers together.",
        buckets::INTER_TOKEN_LATENCY,
    ),
    metric(
        "vllm:e2e_request_latency_seconds",
        "skein_engine_request_seconds",
        "From a request's arrival at a worker to its end there, at all workers together.",
        buckets::REQUEST_LATENCY,
    ),
    metric(
        "skein_engine_steps_total",
        "skein_engine_steps_total",
        "Engine steps, at all workers together.",
        &[],
    ),
    metric(
        "skein_engine_step_seconds",
        "skein_engine_step_seconds",
        "From the plan of an engine step to its result, at all workers together.",
        buckets::STEP,
    ),
    metric(
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_drafts_total",
        "Drafts verified, at all workers together.",
        &[],
    ),
    metric(
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "Tokens of verified drafts, at all workers together.",
        &[],
    ),
    metric(
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
        "Tokens of drafts that were right, at all workers together.",
        &[],
    ),
];

impl EngineMetric {
    /// Whether `total` has the right kind and number of buckets: a worker of another release may differ.
    pub fn fits(&self, total: &Total) -> bool {
        match self.buckets.len() {
            0 => total.buckets.is_empty(),
            bounds => total.buckets.len() == bounds + 1,
        }
    }

    /// The sum over no workers.
    pub fn zero(&self) -> Total {
        let buckets = if self.buckets.is_empty() { 0 } else { self.buckets.len() + 1 };
        Total { name: self.at_worker.to_owned(), buckets: vec![0; buckets], ..Total::default() }
    }

    fn family(&self, total: &Total) -> MetricFamily {
        let mut metric = Metric::default();
        let mut family = MetricFamily::default();
        family.set_name(self.at_router.to_owned());
        family.set_help(self.help.to_owned());
        if self.buckets.is_empty() {
            let mut counter = Counter::default();
            counter.set_value(total.count as f64);
            metric.set_counter(counter);
            family.set_field_type(MetricType::COUNTER);
        } else {
            metric.set_histogram(histogram(self.buckets, total));
            family.set_field_type(MetricType::HISTOGRAM);
        }
        family.set_metric(vec![metric]);
        family
    }
}

fn histogram(bounds: &[f64], total: &Total) -> Histogram {
    let mut histogram = Histogram::default();
    let mut cumulative = 0;
    let bucket = |(&bound, &count): (&f64, &u64)| {
        cumulative += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(cumulative);
        bucket
    };
    histogram.set_bucket(bounds.iter().zip(&total.buckets).map(bucket).collect());
    histogram.set_sample_count(total.buckets.iter().sum());
    histogram.set_sample_sum(total.sum);
    histogram
}

/// Value of a counter or histogram, for sending to a router.
pub fn total_of(metric: &impl Collector) -> Total {
    let mut total = Total::default();
    for family in metric.collect() {
        total.name = family.name().to_owned();
        for metric in family.get_metric() {
            if family.get_field_type() == MetricType::HISTOGRAM {
                let histogram = metric.get_histogram();
                let cumulative = histogram.get_bucket().iter().map(|bucket| bucket.cumulative_count());
                total.sum = histogram.get_sample_sum();
                total.buckets = differences(cumulative.chain([histogram.get_sample_count()]));
            } else {
                total.count = metric.get_counter().get_value() as u64;
            }
        }
    }
    total
}

fn differences(cumulative: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut before = 0;
    cumulative.map(|count| count.saturating_sub(std::mem::replace(&mut before, count))).collect()
}

/// Sums over workers in a router's registry. A sum that was never set is omitted from the scrape.
#[derive(Debug, Clone)]
pub struct EngineSums {
    sums: Arc<Mutex<Vec<Total>>>,
    described: Vec<Desc>,
}

impl EngineSums {
    pub(super) fn new() -> Self {
        let described = ENGINE.iter().map(|metric| {
            let (name, help) = (metric.at_router.to_owned(), metric.help.to_owned());
            Desc::new(name, help, Vec::new(), Default::default()).expect(VALID)
        });
        Self { sums: Arc::default(), described: described.collect() }
    }

    /// Replaces the sums, which are named as at a worker.
    pub fn set(&self, sums: Vec<Total>) {
        *self.sums.lock().unwrap_or_else(PoisonError::into_inner) = sums;
    }
}

impl Collector for EngineSums {
    fn desc(&self) -> Vec<&Desc> {
        self.described.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let family = |metric: &EngineMetric| {
            Some(metric.family(sums.iter().find(|sum| sum.name == metric.at_worker)?))
        };
        ENGINE.iter().filter_map(family).collect()
    }
}
