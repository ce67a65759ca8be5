//! Tells many that something has changed, as tokio's `watch` does, but wakes those who wait in the order in which
//! they came: a simulator that replays a seed needs it so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Where changes are told.
#[derive(Debug, Default)]
pub struct Signal(Arc<State>);

#[derive(Debug, Default)]
struct State {
    changes: AtomicU64,
    waiting: Notify,
}

impl Signal {
    /// Something has changed.
    pub fn send(&self) {
        self.0.changes.fetch_add(1, Ordering::Release);
        self.0.waiting.notify_waiters();
    }

    /// A listener that has seen everything until now.
    pub fn subscribe(&self) -> Listener {
        Listener { seen: self.0.changes.load(Ordering::Acquire), state: self.0.clone() }
    }
}

/// Where changes are heard of. Outlives its [`Signal`]: then nothing changes any more.
#[derive(Debug, Clone)]
pub struct Listener {
    state: Arc<State>,
    seen: u64,
}

impl Listener {
    /// Waits for a change since the last call, or since [`mark_unchanged`](Self::mark_unchanged).
    pub async fn changed(&mut self) {
        loop {
            let mut told = std::pin::pin!(self.state.waiting.notified());
            // Before the look: a change between the two must not be slept through.
            told.as_mut().enable();
            let changes = self.state.changes.load(Ordering::Acquire);
            if changes != self.seen {
                self.seen = changes;
                return;
            }
            told.await;
        }
    }

    /// What has changed until now is not news.
    pub fn mark_unchanged(&mut self) {
        self.seen = self.state.changes.load(Ordering::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn every_listener_hears_of_a_change_once() {
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
