//! The latest requests, for people who look at the cluster: nothing of what their clients wrote but the id.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use skein_choice::receipt::Receipts;

use crate::request::tenant::Tenant;

/// Most requests that are kept; the oldest goes first.
const MAX_REQUESTS: usize = 128;
/// Most clients that watch at once.
const MAX_WATCHERS: usize = 64;
/// Of them, places that only administrators get.
const KEPT_FOR_ADMINS: usize = 8;
/// Most clients of one tenant that watch at once.
const MAX_WATCHERS_OF_TENANT: usize = 16;

/// One request that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// When it arrived, since 1970.
    pub arrived: Duration,
    /// Its id.
    pub id: Arc<str>,
    /// Who sent it.
    pub tenant: Tenant,
    /// Model or adapter that answered.
    pub model: Arc<str>,
    /// HTTP status, as in the log.
    pub status: u16,
    /// `completed`, `cancelled` or `failed`.
    pub outcome: &'static str,
    /// Code of the error that ended it.
    pub code: Option<&'static str>,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Those of them that were cached.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u64,
    /// From its arrival until it was placed.
    pub placed: Option<Duration>,
    /// From its arrival to its first token.
    pub first_token: Option<Duration>,
    /// From its arrival to its end.
    pub total: Duration,
    /// Worker that generated last.
    pub worker: Option<Arc<str>>,
    /// Moves between workers.
    pub moves: u32,
    /// Why its workers were chosen, if someone watched when it arrived.
    pub receipts: Option<Receipts>,
}

/// A bounded ring of requests, and who looks at it.
#[derive(Debug, Default)]
pub struct Recent {
    requests: Mutex<VecDeque<Arc<Ended>>>,
    watchers: Arc<Watchers>,
}

/// Who looks at the cluster, by tenant.
#[derive(Debug, Default)]
struct Watchers {
    /// The sum, which each request reads without the lock.
    all: AtomicUsize,
    of_tenants: Mutex<HashMap<String, usize>>,
}

/// Someone looks at the cluster until this is dropped.
#[derive(Debug)]
pub struct Watcher {
    watchers: Arc<Watchers>,
    tenant: String,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut of_tenants = self.watchers.of_tenants.lock().unwrap_or_else(PoisonError::into_inner);
        self.watchers.all.fetch_sub(1, Ordering::Relaxed);
        if let Some(own) = of_tenants.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                of_tenants.remove(&self.tenant);
            }
        }
    }
}

impl Recent {
    /// Adds a request.
    pub fn add(&self, ended: Ended) {
        let ended = Arc::new(ended);
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = if requests.len() == MAX_REQUESTS { requests.pop_front() } else { None };
        requests.push_back(ended);
        drop(requests);
        // Freed outside the lock.
        drop(oldest);
    }

    /// The latest ones, oldest first.
    pub fn latest(&self) -> Vec<Arc<Ended>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Counts a watcher. An administrator has room when clients have none, and a tenant's clients have a
    /// share.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn watch(&self, tenant: &Tenant, is_admin: bool) -> Result<Watcher, String> {
        let mut of_tenants = self.watchers.of_tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.watchers.all.load(Ordering::Relaxed);
        let most = if is_admin { MAX_WATCHERS } else { MAX_WATCHERS - KEPT_FOR_ADMINS };
        if all >= most {
            return Err(format!("{all} clients watch the cluster, and at most {most} may"));
        }
        let tenant = tenant.name().to_owned();
        let own = of_tenants.entry(tenant.clone()).or_default();
        if !is_admin && *own >= MAX_WATCHERS_OF_TENANT {
            return Err(format!("{own} clients of this tenant watch the cluster, which is the limit"));
        }
        *own += 1;
        self.watchers.all.fetch_add(1, Ordering::Relaxed);
        Ok(Watcher { watchers: self.watchers.clone(), tenant })
    }

    /// Whether someone watches, so that receipts are worth their cost.
    pub fn is_watched(&self) -> bool {
        self.watchers.all.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchers_are_bounded_by_tenant_and_leave_room_for_administrators() {
        let recent = Recent::default();
        assert!(!recent.is_watched());
        let tenants: Vec<Tenant> = (0..4).map(|nth| Tenant::named(&nth.to_string())).collect();
        let mut watchers = Vec::new();
        for tenant in &tenants {
            watchers.extend((0..MAX_WATCHERS).map_while(|_| recent.watch(tenant, false).ok()));
        }
        assert_eq!(watchers.len(), MAX_WATCHERS - KEPT_FOR_ADMINS);
        let own = |tenant: &Tenant| watchers.iter().filter(|watcher| watcher.tenant == tenant.name()).count();
        assert_eq!((own(&tenants[0]), own(&tenants[3])), (MAX_WATCHERS_OF_TENANT, KEPT_FOR_ADMINS));
        let refused = recent.watch(&tenants[3], false).unwrap_err();
        assert!(refused.contains("at most 56"), "{refused}");
        watchers.extend((0..KEPT_FOR_ADMINS).map(|_| recent.watch(&tenants[0], true).unwrap()));
        assert!(recent.watch(&tenants[0], true).is_err() && recent.is_watched());
        drop(watchers);
        assert!(!recent.is_watched());
        assert!(recent.watch(&tenants[0], false).is_ok());
    }
}
