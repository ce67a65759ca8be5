//! Spans of the process itself: start, connections, end. They are rare, so all are sampled, and
//! `tracing-opentelemetry` builds them from `tracing` spans with the target [`PROCESS`]. Log filters do not
//! apply to them, and requests never use them.

use std::fmt;
use std::time::Duration;

use opentelemetry::trace::{Status, TracerProvider};
use opentelemetry::{Context, InstrumentationScope};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, Span as SdkSpan, SpanData, SpanProcessor};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::registry::LookupSpan;

use super::{export, start};

/// Target of process spans: `tracing::info_span!(target: PROCESS, "load")`.
pub const PROCESS: &str = "skein::process";
/// Instrumentation scope that distinguishes them from request spans.
const SCOPE: &str = "skein.process";

/// Layer that exports process spans; `None` if traces are disabled.
pub(crate) fn layer<S>() -> Option<impl Layer<S>>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    start::is_on().then(|| exporting(Queued))
}

fn exporting<S>(processor: impl SpanProcessor + 'static) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let scope = InstrumentationScope::builder(SCOPE).with_version(env!("CARGO_PKG_VERSION")).build();
    let provider =
        SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOn).with_span_processor(processor).build();
    let ours = filter_fn(|metadata| metadata.is_span() && metadata.target() == PROCESS);
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer_with_scope(scope))
        .with_context_activation(false)
        .with_tracked_inactivity(false)
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_filter(ours.with_max_level_hint(LevelFilter::INFO))
}

/// Passes process spans to the common queue.
#[derive(Debug)]
struct Queued;

impl SpanProcessor for Queued {
    fn on_start(&self, _: &mut SdkSpan, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        export::push(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Marks a process span as failed.
pub fn fail(span: &Span, why: &dyn fmt::Display) {
    if !span.is_disabled() {
        span.set_status(Status::error(why.to_string()));
    }
}

/// The span `connect`: from the first attempt, or from the moment the connection broke, until it works. It
/// fails if that never happens.
#[derive(Debug)]
pub struct Connecting {
    peer: &'static str,
    name: String,
    worked: bool,
    failures: u64,
    /// `None` while the connection works.
    span: Option<Span>,
}

impl Connecting {
    /// Starts connecting to `name`; `peer` is the kind of service.
    pub fn begin(peer: &'static str, name: &str) -> Self {
        let mut connecting = Self { peer, name: name.to_owned(), worked: false, failures: 0, span: None };
        connecting.open();
        connecting
    }

    /// Records a failed attempt or a broken connection.
    pub fn failed(&mut self) {
        self.failures += 1;
        if self.span.is_none() {
            self.failures = 0;
            self.open();
        }
    }

    /// Records that the connection works. Idempotent.
    pub fn works(&mut self) {
        if let Some(span) = self.span.take() {
            span.record("skein.failed_attempts", self.failures);
            self.worked = true;
        }
    }

    fn open(&mut self) {
        self.span = Some(tracing::info_span!(
            target: PROCESS,
            parent: None,
            "connect",
            skein.peer = self.peer,
            skein.address = self.name,
            skein.reconnects = self.worked,
            skein.failed_attempts = tracing::field::Empty,
        ));
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(span) = &self.span {
            span.record("skein.failed_attempts", self.failures);
            fail(span, &"abandoned before it connected");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use opentelemetry::trace::SpanId;
    use tracing::info_span;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::registry::Registry;

    use super::*;

    #[derive(Debug, Clone, Default)]
    struct Kept(Arc<Mutex<Vec<SpanData>>>);

    impl SpanProcessor for Kept {
        fn on_start(&self, _: &mut SdkSpan, _: &Context) {}

        fn on_end(&self, span: SpanData) {
            self.0.lock().expect("no test panics with it").push(span);
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    /// Spans that `work` creates.
    fn spans(work: impl FnOnce()) -> Vec<SpanData> {
        let kept = Kept::default();
        tracing::subscriber::with_default(Registry::default().with(exporting(kept.clone())), work);
        let mut spans = kept.0.lock().expect("no test panics with it");
        std::mem::take(&mut spans)
    }

    fn attribute(span: &SpanData, key: &str) -> Option<String> {
        let pair = span.attributes.iter().find(|pair| pair.key.as_str() == key);
        pair.map(|pair| pair.value.to_string())
    }

    #[test]
    fn only_spans_of_the_process_are_exported_below_each_other() {
        let spans = spans(|| {
            let start = info_span!(target: PROCESS, "start");
            let _other = info_span!("a library's span").entered();
            start.in_scope(|| {
                info_span!("another one").in_scope(|| info_span!(target: PROCESS, "load", bytes = 7));
                tracing::error!(target: PROCESS, "an event is none");
            });
            fail(&start, &"no room");
        });
        let [load, start] = &spans[..] else { panic!("two spans: {spans:?}") };
        assert_eq!((load.name.as_ref(), start.name.as_ref()), ("load", "start"));
        assert_eq!(load.parent_span_id, start.span_context.span_id());
        assert_eq!(start.parent_span_id, SpanId::INVALID);
        assert_eq!(load.span_context.trace_id(), start.span_context.trace_id());
        assert!(load.span_context.is_sampled(), "whatever the ratio");
        assert_eq!(attribute(load, "bytes").as_deref(), Some("7"));
        assert_eq!(start.status, Status::error("no room"));
        assert!(start.events.is_empty());
    }

    #[test]
    fn connecting_lasts_until_it_works_and_again_from_when_it_broke() {
        let spans = spans(|| {
            let mut connecting = Connecting::begin("worker", "a:1");
            connecting.failed();
            connecting.failed();
            connecting.works();
            connecting.works();
            connecting.failed();
            connecting.failed();
            connecting.works();
            connecting.failed();
        });
        let seen = |span: &SpanData| {
            let [again, failures] = ["skein.reconnects", "skein.failed_attempts"]
                .map(|key| attribute(span, key).expect("it is set"));
            format!("{again} {failures} {:?}", span.status)
        };
        let failed = format!("true 0 {:?}", Status::error("abandoned before it connected"));
        assert_eq!(
            spans.iter().map(seen).collect::<Vec<_>>(),
            ["false 2 Unset".to_owned(), "true 1 Unset".to_owned(), failed]
        );
    }
}
