//! Work on clients' text, off the async threads. The amount in progress is bounded, and the memory that it
//! used is returned to the system: the tokenizer's library uses about two hundred bytes per byte of text.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, Either, Ready, ready};
use tokio::sync::Semaphore;

use crate::give_back::GiveBack;
use crate::refusal::Refusal;

/// Work on up to this many bytes is done inline: about a millisecond of tokenising.
pub const INLINE_BYTES: usize = 4096;
/// Longest text of which at most [`INLINE_BYTES`] need to be new for it to be done inline. To look up what is
/// kept of it takes a tenth of a millisecond.
pub const INLINE_KEPT_BYTES: usize = 256 * 1024;
/// Bytes of text in progress at once over all requests; more waits. A longer text is processed alone.
const BYTES_AT_ONCE: usize = 4 * 1024 * 1024;
/// Work on at least this many bytes frees enough memory to return some to the system.
const LARGE_BYTES: usize = 128 * 1024;

/// Work that is done, or runs elsewhere.
pub type Running<T> = Either<Ready<T>, BoxFuture<'static, T>>;

/// The limits of text work. Clones share them.
#[derive(Debug, Clone)]
pub struct TextWork {
    /// One permit per processor: more work at once would only share them.
    threads: Arc<Semaphore>,
    /// One permit per byte of [`BYTES_AT_ONCE`].
    bytes: Arc<Semaphore>,
    giving_back: GiveBack,
}

impl Default for TextWork {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: Arc::new(Semaphore::new(processors)),
            bytes: Arc::new(Semaphore::new(BYTES_AT_ONCE)),
            giving_back: GiveBack::default(),
        }
    }
}

impl TextWork {
    /// Runs `work` on `bytes` of text: here if it is short, else off the async threads. Waiting work starts
    /// in order of arrival. What is returned has room for the result, and not for what `work` holds.
    ///
    /// # Errors
    /// The error of `work`, or [`Refusal::Internal`] if it panics.
    pub fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Running<Result<T, Refusal>> {
        if bytes <= INLINE_BYTES {
            Either::Left(ready(work()))
        } else {
            Either::Right(self.clone().run_elsewhere(bytes, work).boxed())
        }
    }

    async fn run_elsewhere<T: Send + 'static>(
        self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let thread = self.threads.clone().acquire_owned().await.map_err(|_| Refusal::Internal)?;
        let permits = u32::try_from(bytes.min(BYTES_AT_ONCE)).unwrap_or(u32::MAX);
        let room = self.bytes.clone().acquire_many_owned(permits).await.map_err(|_| Refusal::Internal)?;
        // Held by the work, because it continues and uses memory even if its client has left.
        let done = tokio::task::spawn_blocking(move || {
            let _held = (thread, room);
            work()
        });
        let done = done.await.unwrap_or_else(|failed| {
            tracing::error!(%failed, "tokenisation panicked");
            Err(Refusal::Internal)
        });
        if bytes >= LARGE_BYTES {
            self.giving_back.schedule();
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[tokio::test]
    async fn bytes_in_progress_are_bounded() {
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
        // A text longer than the limit still runs.
        work.run(2 * BYTES_AT_ONCE, || Ok(())).await.unwrap();
    }

    #[tokio::test]
    async fn work_holds_its_bytes_after_its_client_leaves() {
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
