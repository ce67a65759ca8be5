//! Request traces as OpenTelemetry spans, exported by OTLP. Disabled unless an endpoint is set; then no
//! request allocates or reads a clock here.
//!
//! Each process has one server span per request, [`Request`]. Its ids are drawn when the request arrives, and
//! the sampling decision is taken from the caller or made here. Until the request ends, it is only a record:
//! attributes, and [`Part`]s, which are child spans added once their times are known. At the end it is known
//! whether the request failed, moved or was slow, and spans are built only if it is sampled or kept. Most
//! records are therefore freed without a span and must be cheap (`node/tests/trace_cost.rs`).
//! `tracing-opentelemetry` builds spans at their start, so it is used only for spans of the [`process`]
//! itself. Nothing that a client wrote or received may become an attribute.

mod attribute;
mod connection;
mod context;
mod current;
mod error;
mod export;
mod gen_ai;
mod options;
mod part;
mod process;
mod request;
mod sampling;
mod start;
mod warning;
mod warnings;

pub use attribute::Attribute;
pub use context::{Headers, Link, Remote, TRACEPARENT, TRACESTATE, Traceparent};
pub use current::{Entered, Within, current, enter, within};
pub use error::StartError;
pub use export::{SPANS_DROPPED, SPANS_DROPPED_HELP, SPANS_EXPORTED, SPANS_EXPORTED_HELP};
pub use gen_ai::{GenAi, Observation};
pub use options::{Endpoint, Options, Protocol, Sampling};
pub use part::{Attempt, Part};
pub use process::{Connecting, PROCESS, fail};
pub use request::Request;
pub use start::{flush, slow_after, start};

pub(crate) use current::current_link;
pub(crate) use export::counters;
pub(crate) use process::layer as process_layer;
pub(crate) use warnings::layer;

/// Attribute with the reason why an unsampled trace was kept.
const KEPT: &str = "skein.kept";

/// Why an unsampled trace is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The request failed.
    Error,
    /// It moved to another worker.
    Moved,
    /// It waited for a token for longer than [`Options::slow_after`].
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
