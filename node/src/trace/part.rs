//! Child spans of a request's server span, built once their times are known.

use std::time::Duration;

use opentelemetry::trace::{SpanId, SpanKind, TraceState};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData};
use smallvec::SmallVec;

use super::attribute::{Attribute, Pair};
use super::context::{Headers, Link};
use super::export::Exporting;
use crate::clock::Timestamp;

/// A finished child of the request's server span. With few attributes it needs no allocation, because most
/// requests are never exported.
#[derive(Debug)]
pub struct Part {
    name: &'static str,
    kind: SpanKind,
    own: Option<SpanId>,
    from: Timestamp,
    to: Timestamp,
    attributes: SmallVec<[Pair; 4]>,
    link: Option<Link>,
    error: Option<&'static str>,
}

/// Ids of a call to another process, drawn before it is sent.
#[derive(Debug, Clone)]
pub struct Attempt {
    own: Link,
    state: TraceState,
}

impl Attempt {
    pub(super) fn new(request: Link, state: &TraceState) -> Self {
        Self { own: Link { span: new_span_id(), ..request }, state: state.clone() }
    }

    /// Headers for the call.
    pub fn headers(&self) -> Headers {
        Headers { parent: self.own.traceparent(), state: self.state.header() }
    }

    /// Link to this call, for the call that continues it.
    pub fn link(&self) -> Link {
        self.own
    }
}

pub(super) fn new_span_id() -> SpanId {
    RandomIdGenerator::default().new_span_id()
}

impl Part {
    /// Span within this process. `name` must be low-cardinality.
    pub fn new(name: &'static str, from: Timestamp, to: Timestamp) -> Self {
        let (kind, own, attributes) = (SpanKind::Internal, None, SmallVec::new());
        Self { name, kind, own, from, to, attributes, link: None, error: None }
    }

    /// Span of a call to another process, whose server span becomes its child.
    pub fn call(name: &'static str, attempt: &Attempt, from: Timestamp, to: Timestamp) -> Self {
        let own = Some(attempt.own.span);
        Self { kind: SpanKind::Client, own, ..Self::new(name, from, to) }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Attribute>) -> Self {
        self.attributes.push((key, value.into()));
        self
    }

    /// Adds a count as an attribute.
    #[must_use]
    pub fn count(self, key: &'static str, count: impl Into<u64>) -> Self {
        self.with(key, i64::try_from(count.into()).unwrap_or(i64::MAX))
    }

    /// Adds a time in seconds as an attribute.
    #[must_use]
    pub fn seconds(self, key: &'static str, time: Duration) -> Self {
        self.with(key, time.as_secs_f64())
    }

    /// Links the span to another one.
    #[must_use]
    pub fn linked(mut self, to: Option<Link>) -> Self {
        self.link = to;
        self
    }

    /// Marks the span as failed; `kind` is a low-cardinality error type.
    #[must_use]
    pub fn failed(mut self, kind: &'static str) -> Self {
        self.error = Some(kind);
        self
    }

    pub(super) fn into_data(self, request: Link, exporting: &Exporting<'_>) -> SpanData {
        let own = Link { span: self.own.unwrap_or_else(new_span_id), ..request };
        let times = (self.from, self.to.max(self.from));
        let mut data = exporting.span(own, self.name.into(), self.kind, times, self.attributes);
        data.parent_span_id = request.span;
        exporting.link(&mut data, self.link);
        exporting.fail(&mut data, self.error.map(Attribute::Word));
        data
    }
}
