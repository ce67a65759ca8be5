//! Notifies many listeners of a change, like tokio's `watch`, but wakes them in the order in which they
//! started to wait: a simulator needs that to replay a seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The sending side.
#[derive(Debug, Default)]
pub struct Signal(Arc<State>);

#[derive(Debug, Default)]
struct State {
    changes: AtomicU64,
    waiting: Notify,
}

impl Signal {
    /// Notifies all listeners.
    pub fn send(&self) {
        self.0.changes.fetch_add(1, Ordering::Release);
        self.0.waiting.notify_waiters();
    }

    /// A listener that has seen all changes so far.
    pub fn subscribe(&self) -> Listener {
        Listener { seen: self.0.changes.load(Ordering::Acquire), state: self.0.clone() }
    }
}

/// The receiving side. It may outlive its [`Signal`] and then waits forever.
#[derive(Debug, Clone)]
pub struct Listener {
    state: Arc<State>,
    seen: u64,
}

impl Listener {
    /// Waits for a change since the last call, or since [`mark_unchanged`](Self::mark_unchanged).
    pub async fn changed(&mut self) {
        loop {
            let mut notified = std::pin::pin!(self.state.waiting.notified());
            // Enabled before the check, so that a change between the two is not missed.
            notified.as_mut().enable();
            let changes = self.state.changes.load(Ordering::Acquire);
            if changes != self.seen {
                self.seen = changes;
                return;
            }
            notified.await;
        }
    }

    /// Treats all changes so far as seen.
    pub fn mark_unchanged(&mut self) {
        self.seen = self.state.changes.load(Ordering::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn every_listener_sees_a_change_once() {
        let signal = Signal::default();
        let mut listeners = [signal.subscribe(), signal.subscribe()];
        assert!(listeners[0].changed().now_or_never().is_none());
        signal.send();
        signal.send();
        for listener in &mut listeners {
            listener.changed().await;
            assert!(listener.changed().now_or_never().is_none());
        }
        signal.send();
        listeners[0].mark_unchanged();
        assert!(listeners[0].changed().now_or_never().is_none());
        listeners[1].changed().await;
    }
}
