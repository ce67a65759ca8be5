//! A request that was accepted, for metrics and the log.

use std::sync::Arc;

use skein_node::clock::{self, Timestamp};
use skein_router::metrics::Outcome;
use skein_router::tenants::Charge;

use super::shared::Shared;

/// Counts and logs one accepted request; cancelled if it is dropped before its end.
pub(super) struct Running {
    shared: Arc<Shared>,
    arrived: Timestamp,
    path: &'static str,
    worker: String,
    first_byte: Option<Timestamp>,
    moves: u32,
    ended: bool,
    /// Its share of the limits of its key.
    charge: Charge,
}

impl Running {
    /// A request that has begun.
    pub fn new(shared: Arc<Shared>, path: &'static str, arrived: Timestamp, charge: Charge) -> Self {
        Self {
            shared,
            arrived,
            path,
            worker: String::new(),
            first_byte: None,
            moves: 0,
            ended: false,
            charge,
        }
    }

    /// It is at this worker.
    pub fn at(&mut self, worker: &str) {
        worker.clone_into(&mut self.worker);
    }

    /// The first byte of its answer has arrived.
    pub fn began(&mut self) {
        if self.first_byte.is_none() {
            let now = clock::now();
            self.first_byte = Some(now);
            self.shared.metrics.first_byte.observe(now.since(self.arrived).as_secs_f64());
        }
    }

    /// It moves to another worker.
    pub fn moved(&mut self) {
        self.moves += 1;
    }

    /// Another worker continues it by its text.
    pub fn continued(&self) {
        self.shared.metrics.continued.inc();
    }

    /// It is answered.
    pub fn completed(&mut self) {
        self.end(Outcome::Completed);
    }

    /// It has failed.
    pub fn failed(&mut self) {
        self.end(Outcome::Failed);
    }

    fn end(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let outcome = outcome.label();
        let (metrics, total) = (&self.shared.metrics, clock::now().since(self.arrived));
        metrics.outcomes.with_label_values(&[outcome]).inc();
        metrics.latency.observe(total.as_secs_f64());
        metrics.moves.inc_by(self.moves.into());
        metrics.moved.inc_by((self.moves > 0).into());
        let key = self.charge.key().cloned();
        if let (Some(tenants), Some(key)) = (metrics.tenants(), &key) {
            tenants.answered(key, outcome);
        }
        // What the workers computed is not known here, so the estimate stands.
        self.charge.settle(self.charge.tokens(), clock::now());
        tracing::info!(
            tenant = key.as_ref().map(|key| &*key.tenant),
            key = key.as_ref().map(|key| &*key.id),
            path = self.path,
            outcome,
            worker = self.worker,
            moves = self.moves,
            first_byte_ms = self.first_byte.map(|first| first.since(self.arrived).as_millis() as u64),
            total_ms = total.as_millis() as u64,
            "request"
        );
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(Outcome::Cancelled);
    }
}
