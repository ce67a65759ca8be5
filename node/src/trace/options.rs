//! Destinations of traces and metrics, and sampling.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skein_tls::ClientFiles;

/// OTLP settings of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Destination of spans; `None` = traces are disabled.
    pub traces: Option<Endpoint>,
    /// Destination of the `gen_ai.*` metrics; `None` = disabled.
    pub metrics: Option<Endpoint>,
    /// Sampling of requests.
    pub sampling: Sampling,
    /// A request that waits longer than this for a token is exported even if it is not sampled.
    pub slow_after: Duration,
    /// `service.name` of this process, unless `OTEL_SERVICE_NAME` overrides it.
    pub service: Cow<'static, str>,
    /// `service.instance.id`: the process's name in its log; empty = host name and process id.
    pub instance: String,
}

/// Destination of one signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// URL with `http://` or `https://`; for [`Protocol::Http`] it includes the signal's path.
    pub url: String,
    /// With `https://`: what is trusted and shown.
    #[serde(default)]
    pub tls: ClientFiles,
    /// Protocol of the endpoint.
    pub protocol: Protocol,
}

impl Endpoint {
    /// Whether exports are encrypted.
    pub fn is_https(&self) -> bool {
        self.url.starts_with("https://")
    }
}

/// Supported OTLP protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// gRPC, usually on port 4317.
    Grpc,
    /// Protobuf over HTTP/1.1, usually on port 4318.
    Http,
}

/// Sampling of requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Whether the decision in a caller's trace context is followed.
    pub follows_parent: bool,
    /// Sampled fraction of the other requests, 0 to 1.
    pub ratio: f64,
}
