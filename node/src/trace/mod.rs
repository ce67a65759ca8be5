//! Traces: what happened to one request, as OpenTelemetry spans, exported by OTLP. Off unless an endpoint is
//! set; then nothing here allocates or reads a clock.
//!
//! Each process has one server span a request, [`Request`]. When the request arrives, its ids are drawn and
//! the decision to sample is taken from its caller or made. From then on it is a record: attributes, and
//! [`Part`]s, the spans below it, made from times that are known afterwards. When the request ends, it is
//! known whether it failed, moved or was slow. Only then, and only for a sampled or kept request, do spans
//! exist: the record of any other request is freed, which is why it must be cheap
//! (`node/tests/trace_cost.rs`). That is also why `tracing-opentelemetry` is not used: it makes its spans when
//! a request begins. Nothing that a client wrote or received may become an attribute.

mod attribute;
mod context;
mod current;
mod export;
mod gen_ai;
mod options;
mod part;
mod request;
mod sampling;
mod start;
mod warnings;

pub use attribute::Attribute;
pub use context::{Headers, Link, Remote, TRACEPARENT, TRACESTATE, Traceparent};
pub use current::{Entered, Within, current, enter, within};
pub use export::{SPANS_DROPPED, SPANS_DROPPED_HELP, SPANS_EXPORTED, SPANS_EXPORTED_HELP};
pub use gen_ai::{GenAi, Observation};
pub use options::{Endpoint, Options, Protocol, Sampling};
pub use part::{Attempt, Part};
pub use request::Request;
pub use start::{StartError, flush, slow_after, start};

pub(crate) use current::current_link;
pub(crate) use export::counters;
pub(crate) use warnings::layer;

/// Attribute of a kept span whose trace is not sampled: why it is kept.
const KEPT: &str = "skein.kept";

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
