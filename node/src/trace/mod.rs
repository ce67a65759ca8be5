//! Traces: what happened to one request, as OpenTelemetry spans, exported by OTLP. Off unless an endpoint is
//! set; then nothing here allocates or reads a clock.
//!
//! Each process has one server span a request, [`Request`], which `tracing-opentelemetry` creates when the
//! request arrives: it fixes the ids, carries the parent's decision to sample, and collects warnings. The
//! spans below it are [`Part`]s, made from times that are known afterwards. They are kept in memory until the
//! request ends; only then is it known whether it failed or was slow, so that the trace is kept anyway.
//! Nothing that a client wrote or received may become an attribute.

mod context;
mod export;
mod gen_ai;
mod options;
mod part;
mod sampler;
mod start;

use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use opentelemetry::trace::{SpanContext, Status, TraceContextExt};
use opentelemetry::{KeyValue, Value};
use tracing_opentelemetry::OpenTelemetrySpanExt;

pub use context::{Remote, TRACEPARENT, TRACESTATE};
pub use export::{SPANS_DROPPED, SPANS_DROPPED_HELP, SPANS_EXPORTED, SPANS_EXPORTED_HELP};
pub use gen_ai::{GenAi, Observation};
pub use options::{Endpoint, Options, Protocol, Sampling};
pub use part::{Attempt, Part};
pub use start::{flush, slow_after};

pub(crate) use export::counters;
pub(crate) use start::layer;
pub use start::{StartError, start};

/// Names a span of this or another process, so that one can be linked to it.
pub type Link = SpanContext;

/// Several texts as one attribute.
pub fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Value {
    let texts = texts.into_iter().map(|text| text.to_owned().into()).collect();
    Value::Array(opentelemetry::Array::String(texts))
}

/// Most parts of one request; those beyond it are counted as dropped. A request with 128 samples and 64 moves
/// has fewer.
const MAX_PARTS: usize = 512;
/// Target of the server spans; a log filter does not apply to it.
pub(crate) const TARGET: &str = "skein::trace";
/// Attribute of a kept span whose trace is not sampled: why it is kept.
pub(crate) const KEPT: &str = "skein.kept";

/// Why the trace of a request that is not sampled is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It failed.
    Error,
    /// It was given to another worker.
    Moved,
    /// It waited longer for a token than [`Options::slow_after`].
    Slow,
}

impl Kept {
    fn label(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Moved => "moved",
            Self::Slow => "slow",
        }
    }
}

/// The server span of one request in this process. Clones share it; it ends when the last one is dropped.
/// The default is off: everything is then a no-op.
#[derive(Clone, Default)]
pub struct Request(Option<Arc<Live>>);

struct Live {
    /// Entered while the request runs, so that warnings are recorded in it.
    span: tracing::Span,
    context: opentelemetry::Context,
    own: SpanContext,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    name: Option<String>,
    attributes: Vec<KeyValue>,
    parts: Vec<Part>,
    links: Vec<Link>,
    kept: Option<Kept>,
    error: Option<String>,
}

impl State {
    /// The last value of a key counts.
    fn set(&mut self, key: &'static str, value: Value) {
        match self.attributes.iter_mut().find(|known| known.key.as_str() == key) {
            Some(known) => known.value = value,
            None => self.attributes.push(KeyValue::new(key, value)),
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.trace_id().unwrap_or_else(|| "untraced".to_owned()))
    }
}

impl Request {
    /// Begins the server span of a request that arrived with `remote` as its caller.
    pub fn begin(remote: Remote) -> Self {
        if !start::is_on() {
            return Self::default();
        }
        let span = tracing::info_span!(target: TARGET, parent: None, "request", otel.kind = "server");
        let parent = remote.into_context();
        if span.set_parent(parent).is_err() {
            return Self::default();
        }
        let context = span.context();
        let own = context.span().span_context().clone();
        Self(Some(Arc::new(Live { span, context, own, state: Mutex::default() })))
    }

    /// Whether it is recorded at all.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it is sampled, so that details worth their cost may be measured.
    pub fn is_sampled(&self) -> bool {
        self.0.as_ref().is_some_and(|live| live.own.is_sampled())
    }

    /// The id of its trace, 32 hexadecimal digits.
    pub fn trace_id(&self) -> Option<String> {
        self.0.as_ref().map(|live| live.own.trace_id().to_string())
    }

    /// The ids for log lines: trace and span.
    pub(crate) fn ids(&self) -> Option<(String, String)> {
        let live = self.0.as_ref()?;
        Some((live.own.trace_id().to_string(), live.own.span_id().to_string()))
    }

    /// The value of `traceparent` that names this span.
    pub fn traceparent(&self) -> Option<String> {
        self.0.as_ref().map(|live| context::traceparent(&live.own))
    }

    /// Names the span; the last name counts.
    pub fn name(&self, name: impl FnOnce() -> String) {
        self.change(|state| state.name = Some(name()));
    }

    /// Sets an attribute.
    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        self.change(|state| state.set(key, value.into()));
    }

    /// Sets the attributes that `attributes` makes.
    pub fn set_all<const N: usize>(&self, attributes: impl FnOnce() -> [(&'static str, Value); N]) {
        self.change(|state| attributes().into_iter().for_each(|(key, value)| state.set(key, value)));
    }

    /// Adds to a count: a call with several prompts has one span.
    pub fn sum(&self, key: &'static str, count: u64) {
        self.change(|state| {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            let sum = match state.attributes.iter().find(|known| known.key.as_str() == key) {
                Some(KeyValue { value: Value::I64(sum), .. }) => sum.saturating_add(count),
                _ => count,
            };
            state.set(key, sum.into());
        });
    }

    /// Links it to a span that it goes on from.
    pub fn link_to(&self, other: Link) {
        self.change(|state| state.links.push(other));
    }

    /// Exports its trace whether it is sampled or not; the first reason counts.
    pub fn keep(&self, why: Kept) {
        self.change(|state| {
            state.kept.get_or_insert(why);
        });
    }

    /// Marks it as failed, and keeps it. `kind` is a low-cardinality name, such as a code.
    pub fn fail(&self, kind: &str) {
        self.change(|state| {
            state.kept = Some(Kept::Error);
            state.error.get_or_insert_with(|| kind.to_owned());
        });
    }

    /// Adds a span below it, made by `part` if the request is traced.
    pub fn add(&self, part: impl FnOnce() -> Part) {
        self.change(|state| {
            if state.parts.len() < MAX_PARTS {
                state.parts.push(part());
            } else {
                export::dropped(export::Lost::TooMany, 1);
            }
        });
    }

    /// Draws the ids of a call to another process; `None` if it is off.
    pub fn attempt(&self) -> Option<Attempt> {
        self.0.as_ref().map(|live| Attempt::new(&live.own))
    }

    /// The link to this span, for a span of another request.
    pub fn link(&self) -> Option<SpanContext> {
        self.0.as_ref().map(|live| live.own.clone())
    }

    /// Makes it the current one until the guard is dropped: log lines carry its ids.
    pub fn enter(&self) -> Option<Entered<'_>> {
        let live = self.0.as_ref()?;
        let previous = CURRENT.replace(self.clone());
        // Only a sampled request records its warnings: entering a span at each poll costs more than the rest.
        let span = live.own.is_sampled().then(|| live.span.enter());
        Some(Entered { _span: span, previous })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        if let Some(live) = &self.0 {
            change(&mut live.state.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for Live {
    /// Decides whether the trace is exported, and makes its spans.
    fn drop(&mut self) {
        let state = std::mem::take(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner));
        if !self.own.is_sampled() && state.kept.is_none() {
            return;
        }
        let span = self.context.span();
        if let Some(name) = state.name {
            span.update_name(name);
        }
        span.set_attributes(state.attributes);
        state.links.into_iter().for_each(|link| self.span.add_link(link));
        if let (Some(kept), false) = (state.kept, self.own.is_sampled()) {
            span.set_attribute(KeyValue::new(KEPT, kept.label()));
        }
        if let Some(error) = state.error {
            span.set_attribute(KeyValue::new("error.type", error.clone()));
            span.set_status(Status::error(error));
        }
        // The span's end is the time of its last exit.
        drop(self.span.enter());
        part::export(state.parts, &self.own);
    }
}

thread_local! {
    static CURRENT: RefCell<Request> = const { RefCell::new(Request(None)) };
}

/// The request that this thread works on; off if there is none.
pub fn current() -> Request {
    CURRENT.with_borrow(Clone::clone)
}

/// Restores the previous current request when dropped.
pub struct Entered<'a> {
    previous: Request,
    _span: Option<tracing::span::Entered<'a>>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        CURRENT.set(std::mem::take(&mut self.previous));
    }
}

/// A future during which a request is the current one.
pub struct Within<F> {
    request: Request,
    future: Pin<Box<F>>,
}

/// Runs `future` with `request` as the current one.
pub fn within<F: Future>(request: Request, future: F) -> Within<F> {
    Within { request, future: Box::pin(future) }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let request = self.request.clone();
        let _entered = request.enter();
        self.future.as_mut().poll(context)
    }
}

/// Set once by [`start`].
static SLOW_AFTER: OnceLock<Duration> = OnceLock::new();
