//! Logs the start and end of an etcd outage, but not every attempt, and traces the reconnection.

use super::api::EtcdError;
use crate::clock::Timestamp;
use crate::trace::Connecting;

/// The current outage, if any.
#[derive(Debug)]
pub(super) struct OutageLog {
    /// Logged with the failure: what continues to work during the outage.
    meanwhile: &'static str,
    away: Option<(Timestamp, EtcdError)>,
    connecting: Connecting,
}

impl OutageLog {
    /// Log for the key that is read or written.
    pub(super) fn new(meanwhile: &'static str, key: &str) -> Self {
        Self { meanwhile, away: None, connecting: Connecting::begin("etcd", key) }
    }

    /// Records a failed attempt. A new kind of failure is logged again: after an outage the password may be
    /// wrong.
    pub(super) fn failed(&mut self, now: Timestamp, error: EtcdError) {
        self.connecting.failed();
        let since = self.away.as_ref().map_or(now, |(since, _)| *since);
        let said = self.away.as_ref().map(|(_, said)| std::mem::discriminant(said));
        if said != Some(std::mem::discriminant(&error)) {
            tracing::warn!(%error, meanwhile = self.meanwhile, "etcd does not serve; retrying");
        }
        self.away = Some((since, error));
    }

    /// Records a successful attempt.
    pub(super) fn works(&mut self, now: Timestamp) {
        self.connecting.works();
        if let Some((since, _)) = self.away.take() {
            tracing::info!(away_s = now.since(since).as_secs_f32(), "etcd serves again");
        }
    }
}
