//! Spans below a request's server span, made from times that are known afterwards.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanLinks};

use super::context::traceparent;
use super::export;
use crate::clock::{self, Timestamp};

/// A span with known times. Its parent is the request's server span.
#[derive(Debug)]
pub struct Part {
    name: &'static str,
    kind: SpanKind,
    own: Option<SpanId>,
    from: Timestamp,
    to: Timestamp,
    attributes: Vec<KeyValue>,
    links: Vec<Link>,
    error: Option<String>,
}

/// The ids of a call to another process, drawn before it is sent.
#[derive(Debug, Clone)]
pub struct Attempt {
    context: SpanContext,
}

impl Attempt {
    pub(super) fn new(request: &SpanContext) -> Self {
        let span_id = RandomIdGenerator::default().new_span_id();
        let state = request.trace_state().clone();
        Self { context: SpanContext::new(request.trace_id(), span_id, request.trace_flags(), false, state) }
    }

    /// The values of `traceparent` and `tracestate` for the call; the latter may be empty.
    pub fn headers(&self) -> (String, String) {
        (traceparent(&self.context), self.context.trace_state().header())
    }

    /// The link to this call, for a later one that goes on where it stopped.
    pub fn link(&self) -> SpanContext {
        self.context.clone()
    }
}

impl Part {
    /// A span of this process. `name` is one of a few.
    pub fn new(name: &'static str, from: Timestamp, to: Timestamp) -> Self {
        Self {
            name,
            kind: SpanKind::Internal,
            own: None,
            from,
            to,
            attributes: Vec::new(),
            links: Vec::new(),
            error: None,
        }
    }

    /// A call to another process, whose server span is below it.
    pub fn call(name: &'static str, attempt: &Attempt, from: Timestamp, to: Timestamp) -> Self {
        let own = Some(attempt.context.span_id());
        Self { kind: SpanKind::Client, own, ..Self::new(name, from, to) }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push(KeyValue::new(key, value));
        self
    }

    /// Adds a count.
    #[must_use]
    pub fn count(self, key: &'static str, count: impl Into<u64>) -> Self {
        self.with(key, i64::try_from(count.into()).unwrap_or(i64::MAX))
    }

    /// Adds a time in seconds.
    #[must_use]
    pub fn seconds(self, key: &'static str, time: Duration) -> Self {
        self.with(key, time.as_secs_f64())
    }

    /// Links it to another span.
    #[must_use]
    pub fn linked(mut self, to: Option<SpanContext>) -> Self {
        self.links.extend(to.map(Link::with_context));
        self
    }

    /// Marks it as failed; `kind` is a low-cardinality name.
    #[must_use]
    pub fn failed(mut self, kind: impl Into<String>) -> Self {
        self.error = Some(kind.into());
        self
    }

    fn into_data(mut self, request: &SpanContext, wall: &Wall, scope: &InstrumentationScope) -> SpanData {
        let own = self.own.unwrap_or_else(|| RandomIdGenerator::default().new_span_id());
        let status = self.error.take().map_or(Status::Unset, |error| {
            self.attributes.push(KeyValue::new("error.type", error.clone()));
            Status::error(error)
        });
        let mut links = SpanLinks::default();
        links.links = self.links;
        SpanData {
            span_context: SpanContext::new(
                request.trace_id(),
                own,
                request.trace_flags().with_sampled(true),
                false,
                request.trace_state().clone(),
            ),
            parent_span_id: request.span_id(),
            parent_span_is_remote: false,
            span_kind: self.kind,
            name: self.name.into(),
            start_time: wall.at(self.from),
            end_time: wall.at(self.to.max(self.from)),
            attributes: self.attributes,
            dropped_attributes_count: 0,
            events: Default::default(),
            links,
            status,
            instrumentation_scope: scope.clone(),
        }
    }
}

/// Converts the process's clock to the time of day, as of one moment.
struct Wall {
    now: Timestamp,
    unix: Duration,
}

impl Wall {
    fn at(&self, time: Timestamp) -> SystemTime {
        UNIX_EPOCH + self.unix.saturating_sub(self.now.since(time))
    }
}

/// Queues `parts` of `request` for export.
pub(super) fn export(parts: Vec<Part>, request: &SpanContext) {
    let wall = Wall { now: clock::now(), unix: clock::unix_time() };
    let scope = export::scope();
    for part in parts {
        export::push(part.into_data(request, &wall, &scope));
    }
}
