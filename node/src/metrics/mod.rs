//! Metrics of a process: a registry, the two text formats that Prometheus reads, and the buckets of vLLM's
//! histograms, so that dashboards made for vLLM work here. Each process lists its metrics in one file,
//! `metrics/mod.rs` of its crate.

pub mod buckets;
mod encode;
mod process;
mod totals;
mod valid;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use prometheus::core::Collector;
use prometheus::{HistogramOpts, Opts};

pub use encode::{Format, encode};
pub use prometheus::proto::MetricFamily;
pub use prometheus::{Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
pub use totals::{ENGINE, EngineMetric, EngineSums, total_of};
use valid::VALID;

/// The metrics of one process; in tests several registries share one. Metrics are registered at start, so
/// that a scrape shows each before its first event.
#[derive(Debug, Clone)]
pub struct Registry(prometheus::Registry);

impl Registry {
    /// An empty registry; `labels` go with every metric.
    pub fn new(labels: &[(&str, &str)]) -> Self {
        let labels: HashMap<String, String> =
            labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self(prometheus::Registry::new_custom(None, Some(labels)).expect(VALID))
    }

    fn register<T: Collector + Clone + 'static>(&self, metric: T) -> T {
        self.0.register(Box::new(metric.clone())).expect(VALID);
        metric
    }

    /// A count that only grows; its name ends in `_total`.
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        debug_assert!(name.ends_with("_total"), "{name}");
        self.register(IntCounter::new(name, help).expect(VALID))
    }

    /// A counter for each of `values` of `label`.
    pub fn counters(&self, name: &str, help: &str, label: &str, values: &[&str]) -> IntCounterVec {
        let counters = self.counter_vec(name, help, &[label]);
        for value in values {
            counters.with_label_values(&[value]);
        }
        counters
    }

    /// Counters by several labels, each made when it first counts.
    pub fn counter_vec(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        debug_assert!(name.ends_with("_total"), "{name}");
        self.register(IntCounterVec::new(Opts::new(name, help), labels).expect(VALID))
    }

    /// A number that goes up and down.
    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.register(IntGauge::new(name, help).expect(VALID))
    }

    /// A gauge of fractions.
    pub fn ratio(&self, name: &str, help: &str) -> Gauge {
        self.register(Gauge::new(name, help).expect(VALID))
    }

    /// A gauge for each combination of labels; those that are gone must be [reset](IntGaugeVec::reset).
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels).expect(VALID))
    }

    /// Gauges of fractions, one per combination of labels; otherwise like [`gauges`](Self::gauges).
    pub fn ratios(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.register(GaugeVec::new(Opts::new(name, help), labels).expect(VALID))
    }

    /// A gauge that is always 1; its labels are the message.
    pub fn info(&self, name: &str, help: &str, labels: &[(&str, &str)]) {
        let (names, values): (Vec<&str>, Vec<&str>) = labels.iter().copied().unzip();
        self.gauges(name, help, &names).with_label_values(&values).set(1);
    }

    /// A histogram with these upper bounds, ascending; `+Inf` is added.
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register(Histogram::with_opts(opts).expect(VALID))
    }

    /// Version, memory, processor time, open files and start time of this process, under the names that
    /// Prometheus' client libraries use.
    pub fn process(&self) {
        self.info("skein_build_info", "Version of this process.", &[("version", env!("CARGO_PKG_VERSION"))]);
        self.0.register(Box::new(process::ProcessCollector::new())).expect(VALID);
    }

    /// Sums over workers, served by a router.
    pub fn engine_sums(&self) -> EngineSums {
        self.register(EngineSums::new())
    }

    /// Counters of spans that this process exported and lost.
    pub fn traces(&self) {
        let counters = crate::trace::counters();
        self.register(counters.dropped.clone());
        self.register(counters.exported.clone());
    }

    /// When the certificates of this process expire.
    pub fn certificates(&self) {
        self.register(crate::certificates::gauge().clone());
    }

    /// Everything as of now, ordered by name.
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.0.gather()
    }

    /// [`gather`](Self::gather) in a text format.
    pub fn encode(&self, format: Format) -> String {
        encode(&self.gather(), format)
    }
}

/// The metrics of several registries as those of one, ordered by name. Metrics of the same name must have
/// different labels.
pub fn merged(registries: impl IntoIterator<Item = Vec<MetricFamily>>) -> Vec<MetricFamily> {
    let mut by_name: BTreeMap<String, MetricFamily> = BTreeMap::new();
    for mut family in registries.into_iter().flatten() {
        match by_name.entry(family.name().to_owned()) {
            Entry::Vacant(entry) => drop(entry.insert(family)),
            Entry::Occupied(mut entry) => entry.get_mut().mut_metric().extend(family.take_metric()),
        }
    }
    by_name.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One metric of each kind.
    fn registry() -> Registry {
        let registry = Registry::new(&[("model_name", "a \"quoted\" \\ name\n")]);
        registry.counter("requests_total", "Requests.").inc_by(3);
        registry
            .counters("ends_total", "Ends.", "reason", &["stop", "length"])
            .with_label_values(&["stop"])
            .inc();
        registry.gauge("running", "Running\nnow.").set(-2);
        registry.ratio("usage", "From 0 to 1.").set(0.25);
        let histogram = registry.histogram("wait_seconds", "Waits.", &[0.1, 1.0]);
        [0.1, 0.5, 7.0].into_iter().for_each(|seconds| histogram.observe(seconds));
        registry
    }

    #[test]
    fn every_kind_of_metric_in_the_text_format() {
        let expected = r#"# HELP ends_total Ends.
# TYPE ends_total counter
ends_total{model_name="a \"quoted\" \\ name\n",reason="length"} 0
ends_total{model_name="a \"quoted\" \\ name\n",reason="stop"} 1
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{model_name="a \"quoted\" \\ name\n"} 3
# HELP running Running\nnow.
# TYPE running gauge
running{model_name="a \"quoted\" \\ name\n"} -2
# HELP usage From 0 to 1.
# TYPE usage gauge
usage{model_name="a \"quoted\" \\ name\n"} 0.25
# HELP wait_seconds Waits.
# TYPE wait_seconds histogram
wait_seconds_bucket{model_name="a \"quoted\" \\ name\n",le="0.1"} 1
wait_seconds_bucket{model_name="a \"quoted\" \\ name\n",le="1"} 2
wait_seconds_bucket{model_name="a \"quoted\" \\ name\n",le="+Inf"} 3
wait_seconds_sum{model_name="a \"quoted\" \\ name\n"} 7.6
wait_seconds_count{model_name="a \"quoted\" \\ name\n"} 3
"#;
        assert_eq!(registry().encode(Format::Text), expected);
    }

    #[test]
    fn open_metrics_names_a_counter_without_its_suffix_and_says_where_it_ends() {
        let text = registry().encode(Format::OpenMetrics);
        assert!(text.contains("# TYPE requests counter\n"), "{text}");
        assert!(text.contains("\nrequests_total{"), "{text}");
        assert!(text.contains("# TYPE wait_seconds histogram\n# UNIT wait_seconds seconds\n"), "{text}");
        assert!(text.contains(",le=\"1.0\"} 2\n"), "bounds are floats: {text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn the_format_is_what_the_scraper_accepts() {
        let check =
            |accept: Option<&str>, expected| assert_eq!(Format::accepted(accept), expected, "{accept:?}");
        check(None, Format::Text);
        check(Some("*/*"), Format::Text);
        check(Some("text/plain;version=0.0.4;q=0.5,*/*;q=0.1"), Format::Text);
        check(Some("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4"), Format::OpenMetrics);
    }

    #[test]
    fn a_process_tells_its_memory_and_its_files() {
        let registry = Registry::new(&[]);
        registry.process();
        let text = registry.encode(Format::Text);
        for name in ["skein_build_info", "process_cpu_seconds_total", "process_start_time_seconds"] {
            assert!(text.contains(&format!("# TYPE {name} ")), "{name}: {text}");
        }
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
            line.split_once(' ').unwrap().1.parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") >= 1.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
    }
}
