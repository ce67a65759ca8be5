//! Work over clients' text, off the async threads: so much at once and no more, and the memory that it took goes back to
//! the system. The tokenizer's library takes some two hundred bytes for each byte of text.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use skein_node::task;
use tokio::sync::Semaphore;

use crate::refusal::Refusal;

/// Work over up to this many bytes is done where the request runs: about a millisecond of tokenising.
const INLINE_BYTES: usize = 4096;
/// Bytes of text worked on at once, all requests together; more waits. One longer text is worked on alone.
const BYTES_AT_ONCE: usize = 4 * 1024 * 1024;
/// Work over at least this many bytes leaves memory behind that is worth giving back.
const LARGE_BYTES: usize = 128 * 1024;
/// From the end of large work to giving memory back: work that follows shares one walk over the heap.
const GIVE_BACK_AFTER: Duration = Duration::from_secs(1);

/// The bounds on text work; clones share them.
#[derive(Debug, Clone)]
pub struct TextWork {
    /// More at once would only share the processors.
    threads: Arc<Semaphore>,
    /// [`BYTES_AT_ONCE`].
    bytes: Arc<Semaphore>,
    /// Memory is about to be given back.
    giving_back: Arc<AtomicBool>,
}

impl Default for TextWork {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: Arc::new(Semaphore::new(processors)),
            bytes: Arc::new(Semaphore::new(BYTES_AT_ONCE)),
            giving_back: Arc::default(),
        }
    }
}

impl TextWork {
    /// Runs work over `bytes` of text, off the async threads if it may take long. Those who wait are let in as they came.
    ///
    /// # Errors
    /// What `work` says; [`Refusal::Internal`] when it panics.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        if bytes <= INLINE_BYTES {
            return work();
        }
        let thread = self.threads.clone().acquire_owned().await.map_err(|_| Refusal::Internal)?;
        let permits = u32::try_from(bytes.min(BYTES_AT_ONCE)).unwrap_or(u32::MAX);
        let room = self.bytes.clone().acquire_many_owned(permits).await.map_err(|_| Refusal::Internal)?;
        // Held by the work: it goes on, and takes memory, when its client has left.
        let done = tokio::task::spawn_blocking(move || {
            let _held = (thread, room);
            work()
        });
        let done = done.await.unwrap_or_else(|failed| {
            tracing::error!(%failed, "text work did not end");
            Err(Refusal::Internal)
        });
        if bytes >= LARGE_BYTES {
            self.give_back_soon();
        }
        done
    }

    /// Freed memory goes back to the system a moment from now, when the request has dropped its own, too.
    fn give_back_soon(&self) {
        if self.giving_back.swap(true, Ordering::Relaxed) {
            return;
        }
        let giving_back = self.giving_back.clone();
        task::spawn(async move {
            tokio::time::sleep(GIVE_BACK_AFTER).await;
            giving_back.store(false, Ordering::Relaxed);
            // It walks over the whole heap.
            drop(tokio::task::spawn_blocking(skein_sys::memory::give_back).await);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[tokio::test]
    async fn so_many_bytes_are_worked_on_at_once_and_no_more() {
        let work = TextWork { threads: Arc::new(Semaphore::new(64)), ..TextWork::default() };
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let bytes = BYTES_AT_ONCE / 4 + 1;
        let all = (0..24).map(|_| {
            let (now, most) = (now.clone(), most.clone());
            let work = work.clone();
            tokio::spawn(async move {
                let counted = move || {
                    most.fetch_max(now.fetch_add(bytes, Ordering::SeqCst) + bytes, Ordering::SeqCst);
                    std::thread::yield_now();
                    now.fetch_sub(bytes, Ordering::SeqCst);
                    Ok(())
                };
                work.run(bytes, counted).await
            })
        });
        for done in futures::future::join_all(all).await {
            done.unwrap().unwrap();
        }
        let most = most.load(Ordering::SeqCst);
        assert!((bytes..=BYTES_AT_ONCE).contains(&most), "{most} bytes at once");
        // One that is longer than all the room is not kept out.
        work.run(2 * BYTES_AT_ONCE, || Ok(())).await.unwrap();
    }

    #[tokio::test]
    async fn work_goes_on_holding_its_bytes_when_its_client_leaves() {
        let work = TextWork::default();
        let (started, begun) = std::sync::mpsc::sync_channel(1);
        let (end, ended) = std::sync::mpsc::sync_channel::<()>(1);
        let long = work.clone();
        let client = tokio::spawn(async move {
            let waiting = move || {
                started.send(()).unwrap();
                let _ = ended.recv();
                Ok(())
            };
            long.run(BYTES_AT_ONCE, waiting).await
        });
        tokio::task::spawn_blocking(move || begun.recv().unwrap()).await.unwrap();
        client.abort();
        assert!(client.await.is_err());
        assert_eq!(work.bytes.available_permits(), 0);
        drop(end);
        let waited = work.run(BYTES_AT_ONCE, || Ok(()));
        tokio::time::timeout(Duration::from_secs(20), waited).await.expect("the bytes come free").unwrap();
    }
}
