//! Spans below a request's server span, made from times that are known afterwards.

use std::time::Duration;

use opentelemetry::trace::{SpanId, SpanKind, TraceState};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData};
use smallvec::SmallVec;

use super::attribute::{Attribute, Pair};
use super::context::{Headers, Link};
use super::export::Exporting;
use crate::clock::Timestamp;

/// A span with known times. Its parent is the request's server span. It allocates nothing as long as it has
/// few attributes, so that it can be kept for a request that most likely is not exported.
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

/// The ids of a call to another process, drawn before it is sent.
#[derive(Debug, Clone)]
pub struct Attempt {
    own: Link,
    state: TraceState,
}

impl Attempt {
    pub(super) fn new(request: Link, state: &TraceState) -> Self {
        Self { own: Link { span: new_span_id(), ..request }, state: state.clone() }
    }

    /// The headers for the call.
    pub fn headers(&self) -> Headers {
        Headers { parent: self.own.traceparent(), state: self.state.header() }
    }

    /// The link to this call, for a later one that goes on where it stopped.
    pub fn link(&self) -> Link {
        self.own
    }
}

pub(super) fn new_span_id() -> SpanId {
    RandomIdGenerator::default().new_span_id()
}

impl Part {
    /// A span of this process. `name` is one of a few.
    pub fn new(name: &'static str, from: Timestamp, to: Timestamp) -> Self {
        let (kind, own, attributes) = (SpanKind::Internal, None, SmallVec::new());
        Self { name, kind, own, from, to, attributes, link: None, error: None }
    }

    /// A call to another process, whose server span is below it.
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
    pub fn linked(mut self, to: Option<Link>) -> Self {
        self.link = to;
        self
    }

    /// Marks it as failed; `kind` is a low-cardinality name.
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
