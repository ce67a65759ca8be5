//! Metrics of a server of several models that are not those of one model.

use std::sync::Arc;
use std::time::Duration;

use skein_node::metrics::{Histogram, IntCounterVec, IntGauge, MetricFamily, Registry, buckets};

use super::stored::StoredMetrics;
use crate::stored::StoredResponses;

/// How a load ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadOutcome {
    /// The model is in memory.
    Loaded,
    /// It could not be loaded.
    Failed,
}

impl LoadOutcome {
    const ALL: [Self; 2] = [Self::Loaded, Self::Failed];

    fn label(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Failed => "failed",
        }
    }
}

/// The process, its loads of models, and their memory.
#[derive(Debug)]
pub struct ModelsMetrics {
    registry: Registry,
    names: Vec<Arc<str>>,
    loads: IntCounterVec,
    load_seconds: Histogram,
    memory: IntGauge,
    answers: IntCounterVec,
    stored: Option<StoredMetrics>,
}

impl ModelsMetrics {
    /// All of them zero, of models with these names and at most `budget` bytes in memory, which store their
    /// responses in `stored`.
    pub fn new(
        names: impl IntoIterator<Item = Arc<str>>,
        budget: u64,
        stored: Option<StoredResponses>,
    ) -> Self {
        let r = Registry::new(&[]);
        r.process();
        r.traces();
        r.certificates();
        let names: Vec<Arc<str>> = names.into_iter().collect();
        let loads = r.counter_vec(
            "skein_model_loads_total",
            "Loads of a model into memory, by how they ended.",
            &["model_name", "outcome"],
        );
        for name in &names {
            for outcome in LoadOutcome::ALL {
                loads.with_label_values(&[&**name, outcome.label()]);
            }
        }
        let limit =
            r.gauge("skein_models_memory_limit_bytes", "Most memory that models may take by their plans.");
        limit.set(i64::try_from(budget).unwrap_or(i64::MAX));
        Self {
            loads,
            load_seconds: r.histogram(
                "skein_model_load_seconds",
                "From the start of a model's workers until the first one can serve.",
                buckets::REQUEST_LATENCY,
            ),
            memory: r.gauge("skein_models_memory_bytes", "Memory of the models in memory, by their plans."),
            answers: r.counter_vec(
                "http_requests_total",
                "HTTP answers by route, method and class of status; streams count when they begin.",
                &["handler", "method", "status"],
            ),
            stored: stored.map(|stored| StoredMetrics::new(&r, stored)),
            names,
            registry: r,
        }
    }

    /// Counts a load of the model of this number.
    pub fn loaded(&self, model: usize, outcome: LoadOutcome, took: Duration) {
        let name = self.names.get(model).map_or("", |name| &**name);
        self.loads.with_label_values(&[name, outcome.label()]).inc();
        if outcome == LoadOutcome::Loaded {
            self.load_seconds.observe(took.as_secs_f64());
        }
    }

    /// Sets the memory that models take by their plans, in bytes.
    pub fn set_memory(&self, bytes: u64) {
        self.memory.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Counts an answer of no model's; `handler` is the pattern of a route.
    pub fn answered(&self, handler: &str, method: &str, status: u16) {
        self.answers.with_label_values(&[handler, method, super::class_of(status)]).inc();
    }

    /// All of them as of now.
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.stored.iter().for_each(StoredMetrics::update);
        self.registry.gather()
    }
}
