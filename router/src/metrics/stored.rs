//! Metrics of stored responses, of the process: of several models, all store in one place.

use skein_node::metrics::{IntCounter, IntCounterVec, IntGauge, Registry};
use skein_state::Counts;

use crate::stored::StoredResponses;

/// Values of `reason` for responses that were removed.
const REASONS: [&str; 3] = ["deleted", "expired", "room"];

/// What is stored, and what became of it.
#[derive(Debug)]
pub struct StoredMetrics {
    stored: StoredResponses,
    now: IntGauge,
    bytes: IntGauge,
    added: IntCounter,
    not_stored: IntCounter,
    removed: IntCounterVec,
}

impl StoredMetrics {
    /// Those of `stored`.
    pub fn new(r: &Registry, stored: StoredResponses) -> Self {
        let limit = r.gauge("skein_stored_responses_limit_bytes", "Most bytes of stored responses.");
        limit.set(i64::try_from(stored.limit()).unwrap_or(i64::MAX));
        Self {
            now: r.gauge("skein_stored_responses", "Stored responses."),
            bytes: r.gauge("skein_stored_responses_bytes", "Bytes of stored responses."),
            added: r.counter("skein_responses_stored_total", "Responses that were stored."),
            not_stored: r.counter(
                "skein_responses_not_stored_total",
                "Responses that were not stored, because the disk failed or was full, or a conversation has no room.",
            ),
            removed: r.counters(
                "skein_responses_removed_total",
                "Stored responses that were removed: deleted by their client, expired, or to make room for others.",
                "reason",
                &REASONS,
            ),
            stored,
        }
    }

    /// Updates what is read at each scrape.
    pub fn update(&self) {
        let Counts { turns, bytes, stored, not_stored, expired, evicted, deleted } = self.stored.counts();
        self.now.set(i64::try_from(turns).unwrap_or(i64::MAX));
        self.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        let to = |counter: &IntCounter, total: u64| counter.inc_by(total.saturating_sub(counter.get()));
        to(&self.added, stored);
        to(&self.not_stored, not_stored);
        for (reason, total) in REASONS.iter().zip([deleted, expired, evicted]) {
            to(&self.removed.with_label_values(&[reason]), total);
        }
    }
}
