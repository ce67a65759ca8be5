//! Where traces and metrics go, and which traces.

use std::time::Duration;

/// OTLP settings of a process.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Where spans go; `None` = traces are off.
    pub traces: Option<Endpoint>,
    /// Where the `gen_ai.*` metrics go; `None` = they are off.
    pub metrics: Option<Endpoint>,
    /// Which requests are sampled.
    pub sampling: Sampling,
    /// A request that waits longer than this for a token is exported even if it is not sampled.
    pub slow_after: Duration,
    /// `service.name` of this process unless `OTEL_SERVICE_NAME` names it.
    pub service: &'static str,
    /// `service.instance.id`: the process's name in its log; empty = its host name and process id.
    pub instance: String,
}

/// Where one signal goes, by which protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// An `http://` URL; for [`Protocol::Http`] with the path of the signal.
    pub url: String,
    /// gRPC or HTTP.
    pub protocol: Protocol,
}

/// The supported protocols of OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC, usually on port 4317.
    Grpc,
    /// Protobuf over HTTP/1.1, usually on port 4318.
    Http,
}

/// Which requests are sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Whether a caller that sends a trace context decides.
    pub follows_parent: bool,
    /// The sampled part of the others, 0 to 1.
    pub ratio: f64,
}
