//! A process's shutdown: requested once, seen by every task that waits for it.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::clock::{self, Timestamp};

/// Exit codes after a second signal during a shutdown: 128 + SIGINT, 128 + SIGTERM.
const INTERRUPTED_EXIT_CODE: i32 = 130;
const TERMINATED_EXIT_CODE: i32 = 143;
/// A second signal within this time is ignored: `timeout` signals its child and then the whole process group,
/// so the child gets the signal twice.
const SAME_SIGNAL_WITHIN: Duration = Duration::from_millis(100);
/// How long a forced shutdown waits for child processes to be killed.
const FORCED_GRACE: Duration = Duration::from_millis(100);

/// A shutdown request; clones share it.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Sender<Stage>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    /// Drain, then exit.
    Requested,
    /// Exit without a drain.
    Forced,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self(watch::Sender::new(Stage::Running))
    }
}

impl Shutdown {
    /// Shutdown on SIGINT or SIGTERM. A second signal of either kind exits immediately.
    ///
    /// # Errors
    /// If the signal handlers cannot be installed.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::spawn(watch_signals(shutdown.clone(), interrupt, terminate));
        Ok(shutdown)
    }

    /// Shutdown on [`Shutdown::request`] or a second SIGTERM. SIGINT, SIGHUP and the first SIGTERM are
    /// ignored: Ctrl-C, a closed terminal, systemd and `timeout` signal the whole process group, but a
    /// supervised worker must keep running until its supervisor has drained the streams and closes its input.
    ///
    /// # Errors
    /// If the signal handlers cannot be installed.
    pub fn supervised() -> std::io::Result<Self> {
        let shutdown = Self::default();
        // Catching the signal and ignoring it keeps it from ending the process.
        for kind in [SignalKind::interrupt(), SignalKind::hangup()] {
            let mut ignored = signal(kind)?;
            tokio::spawn(async move { while ignored.recv().await.is_some() {} });
        }
        tokio::spawn(request_at_second(shutdown.clone(), signal(SignalKind::terminate())?));
        Ok(shutdown)
    }

    /// Requests the shutdown.
    pub fn request(&self) {
        self.raise_to(Stage::Requested);
    }

    /// Requests an exit without a drain.
    pub fn force(&self) {
        self.raise_to(Stage::Forced);
    }

    fn raise_to(&self, stage: Stage) {
        self.0.send_modify(|now| *now = stage.max(*now));
    }

    /// Whether the shutdown has been requested.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow() >= Stage::Requested
    }

    /// Waits for the request. The future owns its state, so it can be passed to a server.
    pub fn requested(&self) -> impl Future<Output = ()> + Send + 'static {
        self.reaches(Stage::Requested)
    }

    /// Like [`Shutdown::requested`], for [`Shutdown::force`].
    pub fn forced(&self) -> impl Future<Output = ()> + Send + 'static {
        self.reaches(Stage::Forced)
    }

    fn reaches(&self, stage: Stage) -> impl Future<Output = ()> + Send + 'static {
        let mut receiver = self.0.subscribe();
        let keep = self.clone();
        async move {
            // Cannot fail: `keep` holds the sender.
            let _ = receiver.wait_for(|now| *now >= stage).await;
            drop(keep);
        }
    }
}

/// The first SIGTERM may have been meant for the whole process group.
async fn request_at_second(shutdown: Shutdown, mut terminate: Signal) {
    terminate.recv().await;
    tracing::debug!("SIGTERM received: waiting for the supervisor to close standard input");
    terminate.recv().await;
    shutdown.request();
}

async fn watch_signals(shutdown: Shutdown, mut interrupt: Signal, mut terminate: Signal) {
    let mut first: Option<Timestamp> = None;
    loop {
        let exit_code = tokio::select! {
            _ = interrupt.recv() => INTERRUPTED_EXIT_CODE,
            _ = terminate.recv() => TERMINATED_EXIT_CODE,
        };
        let now = clock::now();
        let is_same = first.is_some_and(|first| now.since(first) < SAME_SIGNAL_WITHIN);
        first.get_or_insert(now);
        if shutdown.is_requested() && !is_same {
            tracing::warn!("second signal: exiting now; running requests are lost");
            crate::telemetry::silence();
            shutdown.force();
            tokio::time::sleep(FORCED_GRACE).await;
            crate::telemetry::flush_lines();
            std::process::exit(exit_code);
        }
        shutdown.request();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_waiter_sees_the_request_early_or_late() {
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
        // Both listeners get the same signal; the worker's task runs while this one sleeps.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert!(!shutdown.is_requested(), "its supervisor drains first");
        terminate_self();
        shutdown.requested().await;
    }
}
