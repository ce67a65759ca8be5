//! The latest requests, for people who look at the cluster: nothing of what their clients wrote but the id.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use skein_choice::receipt::Receipts;

use crate::request::tenant::Tenant;

/// Most requests that are kept; the oldest goes first.
const MAX_REQUESTS: usize = 128;

/// One request that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// When it arrived, since 1970.
    pub arrived: Duration,
    /// Its id.
    pub id: String,
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
    watchers: Arc<AtomicUsize>,
}

/// Someone looks at the cluster until this is dropped.
#[derive(Debug)]
pub struct Watcher(Arc<AtomicUsize>);

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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

    /// Counts a watcher; `None` if there are `most` already.
    pub fn watch(&self, most: usize) -> Option<Watcher> {
        let more = |watchers: usize| (watchers < most).then_some(watchers + 1);
        self.watchers.try_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Watcher(self.watchers.clone()))
    }

    /// Whether someone watches, so that receipts are worth their cost.
    pub fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchers_are_bounded_and_counted() {
        let recent = Recent::default();
        assert!(!recent.is_watched());
        let first = recent.watch(2).unwrap();
        let second = recent.watch(2).unwrap();
        assert!(recent.watch(2).is_none() && recent.is_watched());
        drop(first);
        assert!(recent.watch(2).is_some());
        drop(second);
        assert!(!recent.is_watched());
    }
}
