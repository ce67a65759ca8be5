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

    /// Requested by SIGTERM or by [`Shutdown::request`]. SIGINT is ignored: a terminal's Ctrl-C reaches the whole
    /// process group, and a supervised child ends when its supervisor says so, after the streams have drained.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn supervised() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let asked = shutdown.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => asked.request(),
                }
            }
        });
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
}
