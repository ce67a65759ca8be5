//! The W3C trace context: `traceparent` and `tracestate`, as HTTP headers and as gRPC metadata.

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::SpanContext;
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// Name of the header with the caller's ids and flags.
pub const TRACEPARENT: &str = "traceparent";
/// Name of the header with vendors' own data, which is passed on unchanged.
pub const TRACESTATE: &str = "tracestate";
/// Longest `tracestate` that is passed on, bytes; the specification asks for at least 512.
const MAX_STATE_BYTES: usize = 512;

/// The caller's context, as it arrived. A malformed one counts as absent, as the specification says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remote {
    parent: Option<String>,
    state: Option<String>,
}

impl Remote {
    /// Reads the two headers; `header` returns the value of a header by its name.
    pub fn read<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Self {
        let state = header(TRACESTATE).filter(|state| state.len() <= MAX_STATE_BYTES);
        Self { parent: header(TRACEPARENT).map(str::to_owned), state: state.map(str::to_owned) }
    }

    pub(super) fn into_context(self) -> opentelemetry::Context {
        // An empty context, so that no span of this thread becomes the parent.
        TraceContextPropagator::new().extract_with_context(&opentelemetry::Context::new(), &self)
    }
}

impl Extractor for Remote {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            TRACEPARENT => self.parent.as_deref(),
            TRACESTATE => self.state.as_deref(),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT, TRACESTATE]
    }
}

/// The value of `traceparent` that names `span`.
pub(super) fn traceparent(span: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), u8::from(span.is_sampled()))
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TraceContextExt;

    use super::*;

    /// What arrived, as the span context of the caller.
    fn parse(remote: Remote) -> Option<SpanContext> {
        let parsed = remote.into_context().span().span_context().clone();
        parsed.is_valid().then_some(parsed)
    }

    fn remote(parent: &str, state: &str) -> Remote {
        Remote::read(|name| match name {
            TRACEPARENT => Some(parent),
            TRACESTATE => Some(state).filter(|state| !state.is_empty()),
            _ => None,
        })
    }

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_passed_on_as_it_came() {
        for parent in [GOOD, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"] {
            let parsed = parse(remote(parent, "vendor=1,other=2")).expect("it is valid");
            assert_eq!(traceparent(&parsed), parent);
            assert_eq!(parsed.trace_state().header(), "vendor=1,other=2");
            assert!(parsed.is_remote());
        }
    }

    #[test]
    fn a_malformed_traceparent_counts_as_absent() {
        let zero_trace = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        let zero_span = "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01";
        for parent in ["", "00", "ff-x", &GOOD[..50], &GOOD.to_uppercase(), zero_trace, zero_span] {
            assert_eq!(parse(remote(parent, "")), None, "{parent}");
        }
        assert_eq!(parse(Remote::default()), None);
    }

    #[test]
    fn a_long_tracestate_is_left_out() {
        let long = format!("vendor={}", "x".repeat(MAX_STATE_BYTES));
        let parsed = parse(remote(GOOD, &long)).expect("the parent is valid");
        assert_eq!(parsed.trace_state().header(), "");
    }
}
