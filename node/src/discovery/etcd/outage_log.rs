//! Logs the start and the end of an outage of etcd once each, not every attempt.

use super::api::EtcdError;
use crate::clock::Timestamp;

/// The current outage, if any.
#[derive(Debug)]
pub(super) struct OutageLog {
    /// Logged with the failure: what continues to work during the outage.
    meanwhile: &'static str,
    away: Option<(Timestamp, EtcdError)>,
}

impl OutageLog {
    pub(super) fn new(meanwhile: &'static str) -> Self {
        Self { meanwhile, away: None }
    }

    /// Records a failed attempt. A new kind of failure is logged again: after an outage the password may be
    /// wrong.
    pub(super) fn failed(&mut self, now: Timestamp, error: EtcdError) {
        let since = self.away.as_ref().map_or(now, |(since, _)| *since);
        let said = self.away.as_ref().map(|(_, said)| std::mem::discriminant(said));
        if said != Some(std::mem::discriminant(&error)) {
            tracing::warn!(%error, meanwhile = self.meanwhile, "etcd does not serve; retrying");
        }
        self.away = Some((since, error));
    }

    /// Records a successful attempt.
    pub(super) fn works(&mut self, now: Timestamp) {
        if let Some((since, _)) = self.away.take() {
            tracing::info!(away_s = now.since(since).as_secs_f32(), "etcd serves again");
        }
    }
}
