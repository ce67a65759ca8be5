//! One key: whose it is, and what a request with it may do.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use skein_node::clock::Timestamp;

use super::date::DateTime;
use super::meter::{Ask, Limit, Limits, Meter, Over, Quotas, check, take};
use crate::refusal::Refusal;

/// A key of the file, without its hash.
pub struct Key {
    /// Name of the key, for logs and lists.
    pub id: Arc<str>,
    /// Tenant to which it belongs.
    pub tenant: Arc<str>,
    /// From when on it opens nothing.
    pub expires: Option<DateTime>,
    /// Whether it may change the server for all clients.
    pub is_admin: bool,
    /// Whether it is a gateway's, which names its clients' tenants itself.
    pub is_gateway: bool,
    /// What its requests may ask for.
    pub rights: Rights,
    /// Its own limits.
    pub limits: Limits,
    /// Limits that the keys of its tenant share.
    pub shared: Limits,
    pub(super) meter: Arc<Meter>,
    pub(super) tenant_meter: Arc<Meter>,
}

/// What requests with a key may ask for. A batch keeps those of the key that created it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// Id of the key.
    pub key: String,
    /// Names of models and adapters; `None` = all.
    pub models: Option<Vec<String>>,
    /// Priority of a request that names none.
    pub priority: i32,
    /// Most urgent priority of a request: lower values run first.
    pub highest_priority: i32,
}

impl Rights {
    /// Whether a request may name this model or adapter.
    pub fn allows(&self, model: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.iter().any(|allowed| allowed == model))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

impl Key {
    /// The limits for its client to see; for each the tighter one of the key and the tenant.
    pub fn quotas(&self, now: Timestamp) -> Quotas {
        self.meter.quotas(&self.limits, now).tighter(self.tenant_meter.quotas(&self.shared, now))
    }

    /// The key under which a batch of its tenant runs: without limits, because batches only use idle workers.
    pub(super) fn for_batch(tenant: &Arc<str>, rights: Rights) -> Self {
        Self {
            id: rights.key.as_str().into(),
            tenant: tenant.clone(),
            expires: None,
            is_admin: false,
            is_gateway: false,
            rights,
            limits: Limits::default(),
            shared: Limits::default(),
            meter: Arc::default(),
            tenant_meter: Arc::default(),
        }
    }

    /// Checks a call whose `prompts` run at once.
    ///
    /// # Errors
    /// If they are more than the key or its tenant may ever run at once, so that waiting does not help.
    pub fn check_prompts(&self, prompts: usize) -> Result<(), Refusal> {
        for (limits, is_tenants) in [(&self.limits, false), (&self.shared, true)] {
            if let Some(most) = limits.concurrent.filter(|most| prompts > *most as usize) {
                let message = format!(
                    "prompt has {prompts} prompts, which run at once, but {} has a limit of {}; send at most {most} in a \
                     call.",
                    self.whose(is_tenants),
                    counted(most.into(), "at once"),
                );
                return Err(Refusal::invalid("prompt", message));
            }
        }
        Ok(())
    }

    /// Most requests that may run at once, by the limits of the key and of its tenant; `None` = no limit.
    pub fn most_at_once(&self) -> Option<u32> {
        [self.limits.concurrent, self.shared.concurrent].into_iter().flatten().min()
    }

    /// Fails if the smallest request would be refused now; takes nothing.
    ///
    /// # Errors
    /// [`Refusal::RateLimited`].
    pub fn check(&self, now: Timestamp) -> Result<(), Refusal> {
        let (key, tenant) = ((&self.limits, &*self.meter), (&self.shared, &*self.tenant_meter));
        let smallest = Ask { requests: 1, tokens: 1 };
        check(key, tenant, smallest, now).map_err(|(over, is_tenants)| self.refusal(over, is_tenants))
    }

    /// Takes what a request needs from the limits.
    pub(super) fn take(&self, ask: Ask, now: Timestamp) -> Result<(), Refusal> {
        let (key, tenant) = ((&self.limits, &*self.meter), (&self.shared, &*self.tenant_meter));
        take(key, tenant, ask, now).map_err(|(over, is_tenants)| self.refusal(over, is_tenants))
    }

    /// Returns what a request took and did not use.
    pub(super) fn give(&self, unused: Ask) {
        self.meter.give(&self.limits, unused);
        self.tenant_meter.give(&self.shared, unused);
    }

    /// Takes tokens of an answer that was longer than expected.
    pub(super) fn take_more(&self, tokens: u64, now: Timestamp) {
        self.meter.take_more(&self.limits, tokens, now);
        self.tenant_meter.take_more(&self.shared, tokens, now);
    }

    fn refusal(&self, over: Over, is_tenants: bool) -> Refusal {
        let whose = self.whose(is_tenants);
        let (kind, limit) = match over.limit {
            Limit::Requests(limit) => ("requests", counted(limit, "a minute")),
            Limit::Tokens(1) => ("tokens", "1 token a minute".to_owned()),
            Limit::Tokens(limit) => ("tokens", format!("{limit} tokens a minute")),
            Limit::Concurrent(limit) => ("requests", counted(limit.into(), "at once")),
        };
        let message = format!(
            "Rate limit reached for {whose}: {limit}; retry after {} ms.",
            over.retry_after.as_millis().max(1)
        );
        Refusal::RateLimited { kind, message, retry_after: over.retry_after }
    }

    fn whose(&self, is_tenants: bool) -> String {
        if is_tenants { format!("tenant `{}`", self.tenant) } else { format!("key `{}`", self.id) }
    }
}

fn counted(requests: u64, when: &str) -> String {
    let noun = if requests == 1 { "request" } else { "requests" };
    format!("{requests} {noun} {when}")
}
