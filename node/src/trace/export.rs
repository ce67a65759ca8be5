//! Sends spans to the collector from a separate thread. Nothing waits for it: spans that do not fit in the
//! queue or that the collector rejects are dropped and counted.

use std::borrow::Cow;
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{Link as SpanLink, SpanId, SpanKind, Status, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanExporter, SpanLinks};
use prometheus::{IntCounter, IntCounterVec, Opts};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::attribute::{Attribute, Pair};
use super::context::Link;
use crate::clock::{self, Timestamp};

/// Spans queued for the exporter: a few seconds of a busy process, at about a kilobyte each.
const QUEUE_SPANS: usize = 16_384;
/// Most spans in one message.
pub(super) const BATCH_SPANS: usize = 512;
/// Longest wait of a span for its message to fill. A killed process loses the waiting spans.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Time limit of a message, including retries.
pub(super) const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay after a failed message, so that a rejecting collector is not called in a loop.
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// Minimum interval between log lines about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Name of the counter of lost spans; its label is `reason`.
pub const SPANS_DROPPED: &str = "skein_trace_spans_dropped_total";
/// Help text of [`SPANS_DROPPED`].
pub const SPANS_DROPPED_HELP: &str = "Spans that were not exported, by reason.";
/// Name of the counter of exported spans.
pub const SPANS_EXPORTED: &str = "skein_trace_spans_exported_total";
/// Help text of [`SPANS_EXPORTED`].
pub const SPANS_EXPORTED_HELP: &str = "Spans that the collector accepted.";

/// Why a span was lost.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lost {
    /// The queue was full: spans arrive faster than the collector accepts them.
    QueueFull,
    /// The collector was unreachable, rejected the message, or did not answer in time.
    Export,
    /// The request has too many spans.
    TooMany,
}

impl Lost {
    const ALL: [Self; 3] = [Self::QueueFull, Self::Export, Self::TooMany];

    fn label(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Export => "export_failed",
            Self::TooMany => "too_many",
        }
    }
}

/// Counters of this process, added to each of its registries.
pub(crate) struct Counters {
    pub dropped: IntCounterVec,
    pub exported: IntCounter,
}

/// The counters; zero while traces are off.
pub(crate) fn counters() -> &'static Counters {
    const VALID: &str = "the names are valid";
    static COUNTERS: LazyLock<Counters> = LazyLock::new(|| {
        let opts = Opts::new(SPANS_DROPPED, SPANS_DROPPED_HELP);
        let dropped = IntCounterVec::new(opts, &["reason"]).expect(VALID);
        for lost in Lost::ALL {
            dropped.with_label_values(&[lost.label()]);
        }
        Counters { dropped, exported: IntCounter::new(SPANS_EXPORTED, SPANS_EXPORTED_HELP).expect(VALID) }
    });
    &COUNTERS
}

pub(super) fn dropped(why: Lost, count: usize) {
    counters().dropped.with_label_values(&[why.label()]).inc_by(count as u64);
}

/// Queue to the telemetry thread; set once.
static QUEUE: OnceLock<mpsc::Sender<SpanData>> = OnceLock::new();
/// Wakes the thread when a batch is full. Single spans do not wake it, because a thread switch costs more
/// than a span.
static BATCH_FULL: Notify = Notify::const_new();
static FLUSHES: OnceLock<mpsc::Sender<oneshot::Sender<()>>> = OnceLock::new();

/// Instrumentation scope of all our spans and metrics.
pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope::builder("skein").with_version(env!("CARGO_PKG_VERSION")).build()
}

/// Queues a span; if the queue is full, drops and counts it.
pub(super) fn push(span: SpanData) {
    let Some(queue) = QUEUE.get() else { return };
    if queue.try_send(span).is_err() {
        dropped(Lost::QueueFull, 1);
    }
    if queue.max_capacity() - queue.capacity() == BATCH_SPANS {
        BATCH_FULL.notify_one();
    }
}

/// State shared by the spans of one request while they are built.
pub(super) struct Exporting<'a> {
    state: &'a TraceState,
    scope: InstrumentationScope,
    /// The process's clock and the time of day at the same moment, for conversion.
    now: Timestamp,
    unix: Duration,
}

impl<'a> Exporting<'a> {
    pub fn new(state: &'a TraceState) -> Self {
        /// Two clock readings further apart than this are repeated, because the thread was preempted in
        /// between.
        const APART: Duration = Duration::from_micros(50);
        const TRIES: usize = 4;
        let read = || (clock::now(), clock::unix_time());
        let mut read_at = read();
        for _ in 1..TRIES {
            if clock::now().since(read_at.0) < APART {
                break;
            }
            read_at = read();
        }
        Self { state, scope: scope(), now: read_at.0, unix: read_at.1 }
    }

    /// Time at which this value was created.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Time of day at `time`.
    pub fn at(&self, time: Timestamp) -> SystemTime {
        UNIX_EPOCH + self.unix.saturating_sub(self.now.since(time))
    }

    pub fn pairs(&self, attributes: impl IntoIterator<Item = Pair>) -> Vec<KeyValue> {
        attributes.into_iter().map(|(key, value)| KeyValue::new(key, value)).collect()
    }

    /// A span without parent, links or status.
    pub fn span(
        &self,
        own: Link,
        name: Cow<'static, str>,
        span_kind: SpanKind,
        (from, to): (Timestamp, Timestamp),
        attributes: impl IntoIterator<Item = Pair>,
    ) -> SpanData {
        SpanData {
            span_context: own.exported(self.state),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind,
            name,
            start_time: self.at(from),
            end_time: self.at(to),
            attributes: self.pairs(attributes),
            dropped_attributes_count: 0,
            events: Default::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }

    pub fn set(&self, span: &mut SpanData, key: &'static str, value: Attribute) {
        span.attributes.push(KeyValue::new(key, value));
    }

    pub fn link(&self, span: &mut SpanData, to: Option<Link>) {
        span.links.links.extend(to.map(|to| SpanLink::with_context(to.exported(self.state))));
    }

    /// Marks the span as failed if there is an error.
    pub fn fail(&self, span: &mut SpanData, error: Option<Attribute>) {
        if let Some(error) = error {
            span.status = Status::error(error.to_string());
            self.set(span, "error.type", error);
        }
    }
}

/// Waits until every span queued so far is sent or dropped.
pub(super) async fn flush() {
    let Some(flushes) = FLUSHES.get() else { return };
    let (done, flushed) = oneshot::channel();
    if flushes.send(done).await.is_ok() {
        // An error means that the thread has ended.
        let _ = flushed.await;
    }
}

/// Receiving end of the queue, on the telemetry thread.
pub(super) struct Sending<E> {
    exporter: E,
    spans: mpsc::Receiver<SpanData>,
    flushes: mpsc::Receiver<oneshot::Sender<()>>,
    trouble: Trouble,
}

impl<E: SpanExporter> Sending<E> {
    /// Opens the queue to `exporter`; `None` if it is already open.
    pub fn open(exporter: E) -> Option<Self> {
        let (sender, spans) = mpsc::channel(QUEUE_SPANS);
        let (flush, flushes) = mpsc::channel(1);
        QUEUE.set(sender).ok()?;
        FLUSHES.set(flush).ok()?;
        Some(Self { exporter, spans, flushes, trouble: Trouble::default() })
    }

    /// Sends until the process ends.
    pub async fn run(mut self) {
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                count = self.spans.recv_many(&mut batch, BATCH_SPANS) => {
                    if count == 0 {
                        return;
                    }
                    let flush = self.gather(&mut batch).await;
                    self.send(batch).await;
                    if let Some(done) = flush {
                        self.drain(done).await;
                    }
                }
                Some(done) = self.flushes.recv() => self.drain(done).await,
            }
        }
    }

    /// Fills `batch` for up to [`BATCH_DELAY`]; returns the flush request that interrupted it, if any.
    async fn gather(&mut self, batch: &mut Vec<SpanData>) -> Option<oneshot::Sender<()>> {
        let until = Instant::now() + BATCH_DELAY;
        let mut flush = None;
        while flush.is_none() && batch.len() + self.spans.len() < BATCH_SPANS && Instant::now() < until {
            tokio::select! {
                () = BATCH_FULL.notified() => {}
                Some(done) = self.flushes.recv() => flush = Some(done),
                () = tokio::time::sleep_until(until) => {}
            }
        }
        while batch.len() < BATCH_SPANS
            && let Ok(span) = self.spans.try_recv()
        {
            batch.push(span);
        }
        flush
    }

    async fn drain(&mut self, done: oneshot::Sender<()>) {
        let mut left = self.spans.len();
        while left > 0 {
            let mut batch = Vec::new();
            let count = self.spans.recv_many(&mut batch, left.min(BATCH_SPANS)).await;
            left -= count.min(left);
            self.send(batch).await;
        }
        // An error means that the caller has stopped waiting.
        let _ = done.send(());
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let count = batch.len();
        let sent = tokio::time::timeout(EXPORT_TIMEOUT, self.exporter.export(batch)).await;
        let failure = match sent {
            Ok(Ok(())) => {
                counters().exported.inc_by(count as u64);
                return self.trouble.over();
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", EXPORT_TIMEOUT.as_secs()),
        };
        dropped(Lost::Export, count);
        self.trouble.failed(count, &failure);
        tokio::time::sleep(FAILED_PAUSE).await;
    }
}

/// Failures since they were last logged.
#[derive(Debug, Default)]
struct Trouble {
    said: Option<Instant>,
    unsaid: usize,
}

impl Trouble {
    fn failed(&mut self, spans: usize, error: &str) {
        self.unsaid += spans;
        if self.said.is_some_and(|at| at.elapsed() < LOG_INTERVAL) {
            return;
        }
        tracing::warn!(
            spans = self.unsaid,
            error,
            "the OTLP collector did not accept spans; they are dropped"
        );
        *self = Self { said: Some(Instant::now()), unsaid: 0 };
    }

    /// Logs once that the collector accepts spans again.
    fn over(&mut self) {
        if self.said.is_some() {
            tracing::info!(dropped_since = self.unsaid, "the OTLP collector accepts spans again");
            *self = Self::default();
        }
    }
}
