//! The end of a process, asked for once and seen by everyone who waits for it.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Exit code of a process that was interrupted while it was already ending (128 + SIGINT).
const FORCED_EXIT_CODE: i32 = 130;

/// A request to end, shared by cloning.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Sender<bool>);

impl Default for Shutdown {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Shutdown {
    /// Requested by SIGINT or SIGTERM; a second SIGINT ends the process at once.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::spawn(watch_signals(shutdown.clone(), interrupt, terminate));
        Ok(shutdown)
    }

    /// Requested by [`Shutdown::request`] or by a second SIGTERM. SIGINT and the first SIGTERM are ignored: Ctrl-C,
    /// systemd and `timeout` signal the whole process group, and a supervised child ends when its supervisor says
    /// so, after the streams have drained.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn supervised() -> std::io::Result<Self> {
        let shutdown = Self::default();
        // Caught and never looked at, which is how it is ignored.
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::spawn(async move { while interrupt.recv().await.is_some() {} });
        tokio::spawn(request_at_second(shutdown.clone(), signal(SignalKind::terminate())?));
        Ok(shutdown)
    }

    /// Asks for the end.
    pub fn request(&self) {
        self.0.send_replace(true);
    }

    /// Whether the end has been asked for.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the end is asked for. Owns what it waits on, so that it can be handed to a server.
    pub fn requested(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut receiver = self.0.subscribe();
        let keep = self.clone();
        async move {
            // Cannot fail: `keep` holds the sender.
            let _ = receiver.wait_for(|requested| *requested).await;
            drop(keep);
        }
    }
}

/// The first one may have been meant for the whole group.
async fn request_at_second(shutdown: Shutdown, mut terminate: Signal) {
    terminate.recv().await;
    tracing::debug!("told to end: waiting for the supervisor's word");
    terminate.recv().await;
    shutdown.request();
}

async fn watch_signals(shutdown: Shutdown, mut interrupt: Signal, mut terminate: Signal) {
    loop {
        tokio::select! {
            _ = interrupt.recv() => {
                if shutdown.is_requested() {
                    tracing::warn!("interrupted again: ending now, running requests are lost");
                    std::process::exit(FORCED_EXIT_CODE);
                }
                shutdown.request();
            }
            _ = terminate.recv() => shutdown.request(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everyone_who_waits_sees_the_request_early_or_late() {
        let shutdown = Shutdown::default();
        let early = shutdown.requested();
        assert!(!shutdown.is_requested());
        shutdown.clone().request();
        early.await;
        shutdown.requested().await;
        assert!(shutdown.is_requested());
    }

    #[tokio::test]
    async fn a_signal_to_the_whole_group_does_not_end_a_supervised_worker_before_its_streams() {
        let shutdown = Shutdown::supervised().expect("handlers can be installed");
        let mut seen = signal(SignalKind::terminate()).expect("one more listener");
        let terminate_self = || {
            let pid = std::process::id().to_string();
            assert!(
                std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success()
            );
        };
        terminate_self();
        seen.recv().await;
        // Both listeners are told by the same event; the worker's runs while this one sleeps.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert!(!shutdown.is_requested(), "its supervisor drains first");
        terminate_self();
        shutdown.requested().await;
    }
}
