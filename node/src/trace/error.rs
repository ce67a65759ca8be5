//! What can keep traces from starting.

use super::options::Endpoint;

/// Why traces could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The exporter rejects its settings.
    #[error("the OTLP endpoint {url} cannot be used: {reason}")]
    Endpoint {
        /// The endpoint's URL.
        url: String,
        /// The exporter's message.
        reason: String,
    },
    /// The thread could not be started.
    #[error("cannot start the telemetry thread: {0}")]
    Thread(#[from] std::io::Error),
    /// Traces have already been started in this process.
    #[error("traces have already started in this process")]
    AlreadyStarted,
}

impl Endpoint {
    pub(super) fn unusable(&self, reason: impl std::fmt::Display) -> StartError {
        StartError::Endpoint { url: self.url.clone(), reason: reason.to_string() }
    }
}
