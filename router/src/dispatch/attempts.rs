//! Spans of a request's calls to workers: each choice of a worker, each call, and its end. A call that
//! continues another is linked to it. No effect for an untraced request.

use std::sync::Arc;

use skein_choice::policy::Pick;
use skein_choice::receipt::Receipt;
use skein_node::clock::{self, Timestamp};
use skein_node::trace::{self, Kept, Link, Part};

use super::delivery::RequestEvent;
use crate::links::worker_client::CallError;

/// Attributes of a choice's terms, in the order of [`Terms::named`](skein_choice::receipt::Terms::named).
const TERMS: [&str; 7] = [
    "skein.route.queue",
    "skein.route.prefill",
    "skein.route.blocks",
    "skein.route.seats",
    "skein.route.step",
    "skein.route.slowdown",
    "skein.route.adapter",
];

/// How a call ended, for its span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// All samples finished.
    Completed,
    /// The client left, or the request's deadline passed.
    Cancelled,
    /// The worker is draining; another one continues.
    HandedBack,
    /// The worker has no such stream.
    NotAttached,
    /// The worker is full.
    Full,
    /// The worker or the connection to it failed.
    Fault,
    /// The worker rejected the request itself.
    Rejected,
}

impl Ended {
    fn label(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::HandedBack => "handed_back",
            Self::NotAttached => "not_attached",
            Self::Full => "full",
            Self::Fault => "fault",
            Self::Rejected => "rejected",
        }
    }

    fn is_error(self) -> bool {
        matches!(self, Self::Full | Self::Fault | Self::Rejected)
    }

    /// How `event` ends the open call; `None` if the call continues.
    pub fn of(event: &RequestEvent) -> Option<Self> {
        match event {
            RequestEvent::Ended(error) => Some(error.as_ref().map_or(Self::Fault, Self::by)),
            RequestEvent::NotOpened(_, error) => Some(Self::by(error)),
            RequestEvent::HandedBack => Some(Self::HandedBack),
            RequestEvent::Delta(sent) if sent.delta.hand_back => Some(Self::HandedBack),
            RequestEvent::Deadline => Some(Self::Cancelled),
            _ => None,
        }
    }

    fn by(error: &CallError) -> Self {
        match error {
            CallError::Fault(_) => Self::Fault,
            CallError::Backpressure { .. } => Self::Full,
            CallError::Rejected(_) | CallError::VersionGone => Self::Rejected,
        }
    }
}

/// Calls of one request.
pub(super) struct Attempts {
    trace: trace::Request,
    open: Option<Open>,
    /// Call that the next one continues.
    previous: Option<Link>,
    count: u64,
}

struct Open {
    ids: trace::Attempt,
    name: &'static str,
    worker: Option<Arc<str>>,
    since: Timestamp,
    tokens: u64,
}

impl Attempts {
    pub fn new(trace: trace::Request) -> Self {
        Self { trace, open: None, previous: None, count: 0 }
    }

    /// Records the choice of a worker, or that there was none; the choice began at `from`. With a receipt,
    /// each term is an attribute.
    pub fn routed(
        &self,
        from: Timestamp,
        pick: Option<&Pick>,
        receipt: Option<&Receipt>,
        worker: Option<Arc<str>>,
    ) {
        self.trace.add(|| {
            let part = Part::new("route", from, clock::now());
            let Some(pick) = pick else { return part.count("skein.route.candidates", 0_u32) };
            let part = part
                .count("skein.route.candidates", pick.candidates)
                .count("skein.route.overlap_tokens", pick.hit_tokens)
                .seconds("skein.route.predicted_ttft", pick.first_token_after);
            let terms =
                receipt.and_then(Receipt::chosen).map(|chosen| TERMS.iter().zip(chosen.terms.named()));
            let part =
                terms.into_iter().flatten().fold(part, |part, (key, (_, seconds))| part.with(key, seconds));
            match worker {
                Some(worker) => part.with("skein.worker", worker),
                None => part,
            }
        });
    }

    /// Starts a call; the headers identify its span. `name` is `generate` or `attach`.
    pub fn begin(&mut self, name: &'static str, worker: Option<Arc<str>>) -> Option<trace::Headers> {
        let ids = self.trace.attempt()?;
        let headers = ids.headers();
        self.count += 1;
        self.open = Some(Open { ids, name, worker, since: clock::now(), tokens: 0 });
        Some(headers)
    }

    /// Records tokens received by the open call.
    pub fn tokens(&mut self, count: usize) {
        if let Some(open) = &mut self.open {
            open.tokens += count as u64;
        }
    }

    /// Records that the request moves to another worker.
    pub fn moved(&self) {
        self.trace.keep(Kept::Moved);
    }

    /// Ends the open call, if any.
    pub fn end(&mut self, how: Ended) {
        let Some(open) = self.open.take() else { return };
        let (number, previous) = (self.count, self.previous.take());
        // The next call does not continue one that never had the stream.
        let goes_on = if how == Ended::NotAttached { previous } else { Some(open.ids.link()) };
        self.previous = goes_on;
        self.trace.add(|| {
            let part = Part::call(open.name, &open.ids, open.since, clock::now())
                .count("skein.attempt", number)
                .count("skein.tokens", open.tokens)
                .with("skein.outcome", how.label())
                .linked(previous);
            let part = match open.worker {
                Some(worker) => part.with("skein.worker", worker),
                None => part,
            };
            if how.is_error() { part.failed(how.label()) } else { part }
        });
    }
}

impl Drop for Attempts {
    fn drop(&mut self) {
        self.end(Ended::Cancelled);
    }
}
