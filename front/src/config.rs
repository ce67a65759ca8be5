//! Settings of a router before OpenAI servers.

use std::time::Duration;

use http::HeaderValue;
use skein_router::config::RouterConfig;
use skein_tls::ClientTls;

use super::WorkerUrl;

/// What OpenAI servers are offered by ALPN.
pub(super) const HTTP_1: &[&[u8]] = &[b"http/1.1"];

/// Largest body of a request. Larger than for tokens: images are sent as text.
const BODY_BYTES: usize = 32 << 20;
/// Default of [`UpstreamConfig::first_byte_timeout`].
pub const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(300);
/// Default of [`UpstreamConfig::stall_timeout`].
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Settings of one process.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    /// Settings shared with the router for our own workers; those about text and tokens are not used.
    pub router: RouterConfig,
    /// The servers that requests go to.
    pub workers: Vec<WorkerUrl>,
    /// `Authorization` for the workers; `None` = the client's is passed on, unless this router has keys.
    pub authorization: Option<HeaderValue>,
    /// Certificates that workers with `https` URLs must have; `None` = the system's.
    pub(super) tls: Option<ClientTls>,
    /// A worker that has not begun to answer a streaming request by then has failed it.
    pub first_byte_timeout: Duration,
    /// A stream that is silent for this long has failed.
    pub stall_timeout: Duration,
    /// Whether streams of lost workers continue on other workers by text, unless a request forbids it.
    pub resume_by_text: bool,
}

impl UpstreamConfig {
    /// Defaults for `workers`.
    pub fn new(router: RouterConfig, workers: Vec<WorkerUrl>) -> Self {
        let limits = skein_router::config::RequestLimits { body_bytes: BODY_BYTES, ..router.limits };
        Self {
            router: RouterConfig { limits, ..router },
            workers,
            authorization: None,
            tls: None,
            first_byte_timeout: FIRST_BYTE_TIMEOUT,
            stall_timeout: STALL_TIMEOUT,
            resume_by_text: false,
        }
    }

    /// Sends `key` to the workers instead of the client's.
    ///
    /// # Errors
    /// If the key cannot be sent in a header.
    pub fn use_worker_key(&mut self, key: &str) -> Result<(), &'static str> {
        let value = HeaderValue::from_str(&format!("Bearer {key}"));
        let mut value = value.map_err(|_| "the key must be printable ASCII")?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(())
    }

    /// Speaks to workers with `https` URLs by `tls`; by default it trusts the system's certificates. A
    /// worker's certificate must be valid for the host in its URL, also if that name has several addresses.
    pub fn use_worker_tls(&mut self, tls: ClientTls) {
        self.tls = Some(tls.offering(HTTP_1));
    }

    /// Pause between two health checks of a worker, and half of the time that a check may take: two missed
    /// checks last at most `worker_timeout`.
    pub fn check_interval(&self) -> Duration {
        self.router.recovery.worker_timeout / 5
    }
}
