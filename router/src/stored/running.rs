//! Answers that are being made in the background, by owner and id, so that a client can end them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Most answers that are made in the background at once.
pub const MAX_RUNNING: usize = 64;
/// Most answers that wait for this, beside those that are made.
pub const MAX_WAITING: usize = 10_000;

type Key = (String, String);

/// The answers in progress.
#[derive(Debug, Clone)]
pub struct Running(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    all: Mutex<HashMap<Key, CancellationToken>>,
    permits: Semaphore,
}

/// The place of one answer. Dropping it gives the place to another one.
#[derive(Debug)]
pub struct Place {
    running: Running,
    key: Key,
    /// Cancelled when the client ends the answer.
    pub ended: CancellationToken,
}

impl Default for Running {
    fn default() -> Self {
        Self(Arc::new(Shared { all: Mutex::default(), permits: Semaphore::new(MAX_RUNNING) }))
    }
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, CancellationToken>> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for the answer `id` of `owner`; `None` if all are taken, or the answer has one.
    pub fn enter(&self, owner: &str, id: &str) -> Option<Place> {
        let key = (owner.to_owned(), id.to_owned());
        let ended = CancellationToken::new();
        let mut all = self.lock();
        if all.len() >= MAX_RUNNING + MAX_WAITING || all.contains_key(&key) {
            return None;
        }
        all.insert(key.clone(), ended.clone());
        drop(all);
        Some(Place { running: self.clone(), key, ended })
    }

    /// Ends the answer `id` of `owner`, if it is here.
    pub fn end(&self, owner: &str, id: &str) {
        if let Some(ended) = self.lock().get(&(owner.to_owned(), id.to_owned())) {
            ended.cancel();
        }
    }
}

impl Place {
    /// Waits until few enough answers are made for this one to begin, and then does `work`.
    pub async fn when_free<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let _permit = self.running.0.permits.acquire().await.ok()?;
        Some(work.await)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.running.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn an_answer_is_ended_by_its_owner_alone() {
        let running = Running::default();
        let place = running.enter("me", "a").unwrap();
        assert!(running.enter("me", "a").is_none(), "nobody makes it twice");
        running.end("you", "a");
        running.end("me", "b");
        assert!(!place.ended.is_cancelled());
        running.end("me", "a");
        assert!(place.ended.is_cancelled());
    }

    #[tokio::test]
    async fn few_run_many_wait_and_the_rest_is_refused() {
        let running = Running::default();
        let places: Vec<Place> =
            (0..MAX_RUNNING + MAX_WAITING).map(|at| running.enter("me", &at.to_string()).unwrap()).collect();
        assert!(running.enter("you", "more").is_none());
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = async || {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            now.fetch_sub(1, Ordering::Relaxed);
        };
        futures::future::join_all(places.iter().map(|place| place.when_free(work()))).await;
        assert_eq!((most.load(Ordering::Relaxed), now.load(Ordering::Relaxed)), (MAX_RUNNING, 0));
        drop(places);
        assert!(running.enter("you", "more").is_some());
    }
}
