//! The exchanges with one worker, one for each shard. A shard's first call opens its exchange, and so does
//! the first one after it has ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, TryFutureExt};
use skein_exchange::client::Exchange;
use skein_node::task;
use tonic::{Code, Status};

use crate::shard;

type Opening = Shared<BoxFuture<'static, Result<Arc<Exchange>, Status>>>;

/// The exchanges with a worker.
#[derive(Debug, Default)]
pub struct Exchanges {
    /// By shard.
    slots: Mutex<Vec<Option<Slot>>>,
    /// The worker has none.
    is_unknown: AtomicBool,
}

#[derive(Debug, Clone)]
enum Slot {
    Opening(Opening),
    Open(Arc<Exchange>),
}

impl Slot {
    /// Whether the exchange has ended or was not opened. The call that began to open it may have been
    /// dropped, so that nobody has looked at what became of it.
    fn is_over(&self) -> bool {
        match self {
            Self::Open(exchange) => !exchange.is_open(),
            Self::Opening(opening) => match opening.peek() {
                Some(Ok(exchange)) => !exchange.is_open(),
                Some(Err(_)) => true,
                None => false,
            },
        }
    }
}

impl Exchanges {
    /// This shard's exchange, which `open` opens unless it is open already. `None` if the worker is of a
    /// release without exchanges.
    ///
    /// # Errors
    /// If it cannot be opened. All calls that wait for it get the error, and the next one tries again.
    pub async fn current(
        &self,
        open: impl FnOnce() -> BoxFuture<'static, Result<Exchange, Status>>,
    ) -> Result<Option<Arc<Exchange>>, Status> {
        if self.is_unknown.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let shard = shard::current();
        let opening = match self.slot(shard, open) {
            Slot::Open(exchange) => return Ok(Some(exchange)),
            Slot::Opening(opening) => opening,
        };
        let opened = opening.clone().await;
        self.opened(shard, &opening, opened.as_ref().ok());
        match opened {
            Ok(exchange) => Ok(Some(exchange)),
            Err(status) if status.code() == Code::Unimplemented => {
                self.is_unknown.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(status) => Err(status),
        }
    }

    fn slot(
        &self,
        shard: usize,
        open: impl FnOnce() -> BoxFuture<'static, Result<Exchange, Status>>,
    ) -> Slot {
        let slots = &mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() <= shard {
            slots.resize(shard + 1, None);
        }
        let slot = &mut slots[shard];
        if slot.as_ref().is_some_and(Slot::is_over) {
            *slot = None;
        }
        let opening = || {
            // On a task of its own, so that it goes on if the call that began it is dropped.
            let opened = task::spawn(open().map_ok(Arc::new));
            let opened = async move {
                opened.await.unwrap_or_else(|_| Err(Status::unavailable("this router is exiting")))
            };
            Slot::Opening(opened.boxed().shared())
        };
        slot.get_or_insert_with(opening).clone()
    }

    /// Keeps what was opened, unless another call did.
    fn opened(&self, shard: usize, opening: &Opening, opened: Option<&Arc<Exchange>>) {
        let slots = &mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(&slots[shard], Some(Slot::Opening(current)) if current.ptr_eq(opening)) {
            slots[shard] = opened.cloned().map(Slot::Open);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::{StreamExt, future, stream};
    use skein_exchange::client::exchange;
    use skein_exchange::limits::CREDIT;

    use super::*;

    /// Opens exchanges with a worker that ends them when `until` is dropped or sent to.
    fn opened(until: tokio::sync::oneshot::Receiver<()>) -> Result<Exchange, Status> {
        let (exchange, frames, answers) = exchange(CREDIT);
        tokio::spawn(async move {
            let _sent = frames;
            let ended = stream::once(async move { until.await.ok() }).filter_map(|_| future::ready(None));
            answers.read(Box::pin(ended)).await
        });
        Ok(exchange)
    }

    #[tokio::test]
    async fn calls_share_an_exchange_and_the_next_one_opens_another_after_its_end() {
        let (exchanges, openings) = (Exchanges::default(), AtomicUsize::new(0));
        let current = |until| {
            let open = || {
                openings.fetch_add(1, Ordering::Relaxed);
                async move { opened(until) }.boxed()
            };
            exchanges.current(open)
        };
        let (ends, until) = tokio::sync::oneshot::channel();
        let (_unused, other) = tokio::sync::oneshot::channel();
        let (first, second) = tokio::join!(current(until), current(other));
        let [first, second] = [first, second].map(|exchange| exchange.unwrap().unwrap());
        assert!(Arc::ptr_eq(&first, &second));
        ends.send(()).unwrap();
        while first.is_open() {
            tokio::task::yield_now().await;
        }
        let (_unused, until) = tokio::sync::oneshot::channel();
        let third = current(until).await.unwrap().unwrap();
        assert!(third.is_open() && !Arc::ptr_eq(&first, &third));
        assert_eq!(openings.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_failure_is_told_to_all_that_wait_and_the_next_call_tries_again() {
        let exchanges = Exchanges::default();
        let fails = || async { Err(Status::unavailable("refused")) }.boxed();
        let (one, other) = tokio::join!(exchanges.current(fails), exchanges.current(fails));
        assert_eq!([one, other].map(|it| it.unwrap_err().code()), [Code::Unavailable; 2]);
        let (_unused, until) = tokio::sync::oneshot::channel();
        let opens = || async move { opened(until) }.boxed();
        assert!(exchanges.current(opens).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_worker_of_a_release_without_exchanges_is_asked_once() {
        let (exchanges, asked) = (Exchanges::default(), AtomicUsize::new(0));
        for _ in 0..3 {
            let unknown = || {
                asked.fetch_add(1, Ordering::Relaxed);
                async { Err(Status::unimplemented("no such call")) }.boxed()
            };
            assert!(exchanges.current(unknown).await.unwrap().is_none());
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn an_opening_goes_on_without_the_call_that_began_it() {
        let exchanges = Exchanges::default();
        let (begun, goes_on) = tokio::sync::oneshot::channel::<()>();
        let (_ends, until) = tokio::sync::oneshot::channel();
        let open = || {
            async move { goes_on.await.map_or_else(|_| Err(Status::unknown("")), |()| opened(until)) }.boxed()
        };
        assert!(exchanges.current(open).now_or_never().is_none());
        begun.send(()).unwrap();
        let never =
            || -> BoxFuture<'static, Result<Exchange, Status>> { unreachable!("one is being opened") };
        assert!(exchanges.current(never).await.unwrap().is_some());
    }
}
