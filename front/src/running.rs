//! A request that was accepted, for metrics and the log.

use std::sync::Arc;

use http::{HeaderValue, StatusCode};
use skein_node::clock::{self, Timestamp};
use skein_router::metrics::{Outcome, TenantMetrics};
use skein_router::tenants::Charge;
use skein_router::tenants::usage_log::Usage;

use super::headers::X_REQUEST_ID;
use super::routes::Call;
use super::shared::Shared;
use super::tally::{Tally, Tokens};

/// Target of the line that each request leaves in the log.
const REQUEST_LINES: &str = "skein_front::request";

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
    bill: Option<Bill>,
}

/// What is known of a request's cost; only where somebody pays or reads it.
struct Bill {
    request: String,
    model: Arc<str>,
    /// Estimate of its prompt.
    prompt_tokens: u64,
    tally: Tally,
    /// Whether a server has refused it.
    is_refused: bool,
}

impl Running {
    /// A request that has begun.
    pub fn new(shared: Arc<Shared>, call: &Call, charge: Charge) -> Self {
        let is_wanted = shared
            .metrics
            .tenants()
            .is_some_and(|tenants| call.route.computes() && tenants.wants(charge.key().map(|key| &**key)));
        let request = |id: &HeaderValue| String::from_utf8_lossy(id.as_bytes()).into_owned();
        let bill = is_wanted.then(|| Bill {
            request: call.headers.get(X_REQUEST_ID).map(request).unwrap_or_default(),
            model: call.prompt.model.as_deref().unwrap_or_default().into(),
            prompt_tokens: call.prompt.tokens.into(),
            tally: Tally::default(),
            is_refused: false,
        });
        Self {
            shared,
            arrived: call.arrived,
            path: call.route.path,
            bill,
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
    pub fn continued(&mut self) {
        self.shared.metrics.continued.inc();
        self.tally(Tally::continued);
    }

    /// Its answer has this status.
    pub fn answered(&mut self, status: StatusCode) {
        if let Some(bill) = &mut self.bill {
            bill.is_refused = status.is_client_error() || status.is_server_error();
        }
    }

    /// Reads what counts of its answer.
    pub fn tally(&mut self, read: impl FnOnce(&mut Tally)) {
        if let Some(bill) = &mut self.bill {
            read(&mut bill.tally);
        }
    }

    /// It is answered.
    pub fn completed(&mut self) {
        self.end(Outcome::Completed);
    }

    /// It has failed.
    pub fn failed(&mut self) {
        self.end(Outcome::Failed);
    }

    /// What it has cost, and whether that is an estimate; `None` if only the estimate of its beginning is
    /// known, as when its client left before the answer.
    fn cost(&self, outcome: Outcome) -> Option<(Tokens, bool)> {
        let bill = self.bill.as_ref()?;
        let nothing = || {
            let has_failed = matches!(outcome, Outcome::Failed) || bill.is_refused;
            has_failed.then_some((Tokens::default(), false))
        };
        bill.tally.tokens(bill.prompt_tokens).or_else(nothing)
    }

    fn end(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let cost = self.cost(outcome);
        let outcome = outcome.label();
        let (metrics, total) = (&self.shared.metrics, clock::now().since(self.arrived));
        metrics.outcomes.with_label_values(&[outcome]).inc();
        metrics.latency.observe(total.as_secs_f64());
        metrics.moves.inc_by(self.moves.into());
        metrics.moved.inc_by((self.moves > 0).into());
        let key = self.charge.key().cloned();
        self.charge.settle(cost.map_or(self.charge.tokens(), |(tokens, _)| tokens.computed()), clock::now());
        if let (Some(tenants), Some(bill)) = (metrics.tenants(), self.bill.take()) {
            let key = key.as_deref();
            let (tokens, is_estimated) =
                cost.unwrap_or((Tokens { prompt: bill.prompt_tokens, ..Tokens::default() }, true));
            tenants.ended(Usage {
                prompt_tokens: tokens.prompt,
                cached_tokens: tokens.cached,
                output_tokens: tokens.output,
                is_estimated,
                outcome,
                duration: total,
                ..TenantMetrics::usage(bill.request, key, bill.model)
            });
        } else if let (Some(tenants), Some(key)) = (metrics.tenants(), &key) {
            tenants.answered(key, outcome);
        }
        tracing::info!(
            target: REQUEST_LINES,
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
