//! Metrics of adapters, computed at each scrape.

use skein_node::clock;
use skein_node::metrics::{IntCounter, IntGauge, IntGaugeVec, Registry};

use crate::adapters::{AdapterUse, Adapters};

/// Metrics of the adapters that a worker serves. Without adapters they are not registered.
#[derive(Debug)]
pub(super) struct AdapterMetrics {
    adapters: Adapters,
    requests: IntGaugeVec,
    known: IntGauge,
    in_memory: IntGauge,
    loads: IntCounter,
}

impl AdapterMetrics {
    pub fn new(registry: &Registry, adapters: Adapters) -> Self {
        Self {
            requests: registry.gauges(
                "vllm:lora_requests_info",
                "Time of this scrape; the labels are the adapters of requests that run and that wait.",
                &["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
            ),
            known: registry.gauge("skein_worker_adapters", "Adapters that requests can name."),
            in_memory: registry.gauge("skein_worker_adapters_in_memory", "Adapters in memory."),
            loads: registry
                .counter("skein_worker_adapter_loads_total", "Reads of an adapter from its files."),
            adapters,
        }
    }

    pub fn refresh(&self) {
        let AdapterUse { known, in_memory, running, waiting, max_in_use, loads } = self.adapters.usage();
        self.requests.reset();
        let labels = [max_in_use.to_string(), running.join(","), waiting.join(",")];
        let now = clock::unix_time().as_secs() as i64;
        self.requests.with_label_values(&labels.each_ref().map(String::as_str)).set(now);
        self.known.set(known as i64);
        self.in_memory.set(in_memory as i64);
        self.loads.inc_by(loads.saturating_sub(self.loads.get()));
    }
}
