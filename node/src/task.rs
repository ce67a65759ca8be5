//! Spawns tasks. In production these are tokio's. A simulator runs many processes in one thread: there a task
//! belongs to the process whose task spawned it, pauses while that process is stopped, and ends with it.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// A simulated process that owns tasks.
pub trait Owner: Send + Sync {
    /// Called before each poll of one of its tasks.
    fn gate(&self, context: &mut Context<'_>) -> Gate;

    /// Called when one of its tasks is spawned; the process aborts it when it ends.
    fn spawned(&self, task: AbortHandle);
}

/// Whether a task may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// It may run.
    Open,
    /// It must wait; the context's waker is called when it may run.
    Shut,
    /// Its process has ended: the task is dropped.
    Gone,
}

thread_local! {
    static OWNER: RefCell<Option<Arc<dyn Owner>>> = const { RefCell::new(None) };
}

/// [`tokio::spawn`] in the current process.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let Some(owner) = owner() else { return tokio::spawn(future) };
    let handle = tokio::spawn(owned(owner.clone(), future));
    owner.spawned(handle.abort_handle());
    handle
}

/// [`JoinSet::spawn`] in the current process.
pub fn spawn_in<F, T>(set: &mut JoinSet<T>, future: F) -> AbortHandle
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let Some(owner) = owner() else { return set.spawn(future) };
    let handle = set.spawn(owned(owner.clone(), future));
    owner.spawned(handle.clone());
    handle
}

async fn owned<F: Future>(owner: Arc<dyn Owner>, future: F) -> F::Output {
    match Owned::new(owner, future).await {
        Some(output) => output,
        // The process is exiting. Only its own tasks could wait for this result, and they have ended with it.
        None => std::future::pending().await,
    }
}

/// Runs `work` as part of `owner`: the tasks it spawns belong to that process.
pub fn within<T>(owner: &Arc<dyn Owner>, work: impl FnOnce() -> T) -> T {
    let _restored = Entered(OWNER.replace(Some(owner.clone())));
    work()
}

fn owner() -> Option<Arc<dyn Owner>> {
    OWNER.with_borrow(Clone::clone)
}

/// Restores the thread's previous owner when dropped.
struct Entered(Option<Arc<dyn Owner>>);

impl Drop for Entered {
    fn drop(&mut self) {
        OWNER.set(self.0.take());
    }
}

/// A future that belongs to a simulated process. Resolves to `None` if the process ends first.
pub struct Owned<F> {
    owner: Arc<dyn Owner>,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Owned<F> {
    /// Makes `future` part of `owner`.
    pub fn new(owner: Arc<dyn Owner>, future: F) -> Self {
        Self { owner, future: Some(Box::pin(future)) }
    }
}

impl<F: Future> Future for Owned<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.owner.gate(context) {
            Gate::Shut => Poll::Pending,
            Gate::Gone => {
                drop_within(&self.owner.clone(), self.future.take());
                Poll::Ready(None)
            }
            Gate::Open => {
                let owner = self.owner.clone();
                let Some(future) = &mut self.future else { return Poll::Ready(None) };
                within(&owner, || future.as_mut().poll(context)).map(Some)
            }
        }
    }
}

impl<F> Drop for Owned<F> {
    /// Drops the future within its process, so that tasks spawned by destructors belong to it.
    fn drop(&mut self) {
        drop_within(&self.owner, self.future.take());
    }
}

fn drop_within<T>(owner: &Arc<dyn Owner>, it: T) {
    within(owner, || drop(it));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[derive(Default)]
    struct Process(AtomicBool);

    impl Owner for Process {
        fn gate(&self, _: &mut Context<'_>) -> Gate {
            if self.0.load(Ordering::Relaxed) { Gate::Gone } else { Gate::Open }
        }

        fn spawned(&self, _: AbortHandle) {}
    }

    #[tokio::test]
    async fn nested_tasks_end_with_their_process() {
        let process = Arc::new(Process::default());
        let owner: Arc<dyn Owner> = process.clone();
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
        within(&owner, || {
            spawn(async move {
                // The nested task holds the sender.
                spawn(async move {
                    loop {
                        sender.send(()).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                });
            })
        });
        assert!(owner_is_none(), "the thread has no owner any more");
        assert_eq!(receiver.recv().await, Some(()));
        process.0.store(true, Ordering::Relaxed);
        while receiver.recv().await.is_some() {}
    }

    fn owner_is_none() -> bool {
        owner().is_none()
    }
}
