//! Says when etcd goes away and when it is back: once each, not at every try.

use super::api::EtcdError;
use crate::clock::Timestamp;

/// What was said last.
#[derive(Debug)]
pub(super) struct Standing {
    /// Who speaks, and what goes on meanwhile.
    meanwhile: &'static str,
    away: Option<(Timestamp, EtcdError)>,
}

impl Standing {
    pub(super) fn new(meanwhile: &'static str) -> Self {
        Self { meanwhile, away: None }
    }

    /// A try failed. Another kind of failure is said again: after an outage comes perhaps a wrong password.
    pub(super) fn failed(&mut self, now: Timestamp, error: EtcdError) {
        let since = self.away.as_ref().map_or(now, |(since, _)| *since);
        let said = self.away.as_ref().map(|(_, said)| std::mem::discriminant(said));
        if said != Some(std::mem::discriminant(&error)) {
            tracing::warn!(%error, meanwhile = self.meanwhile, "etcd does not serve; trying on");
        }
        self.away = Some((since, error));
    }

    /// A try worked.
    pub(super) fn works(&mut self, now: Timestamp) {
        if let Some((since, _)) = self.away.take() {
            tracing::info!(away_s = now.since(since).as_secs_f32(), "etcd serves again");
        }
    }
}
