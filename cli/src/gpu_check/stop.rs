//! Signals that ask the check to end: it then ends its processes and prints what it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::signal::unix::{SignalKind, signal};

/// Exit code that a shell reports for SIGTERM.
const ENDED: i32 = 143;

/// Whether the check was asked to end. From the time when this value is dropped on, a signal ends the process
/// at once.
#[derive(Debug, Default)]
pub(super) struct Stop {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    is_asked: AtomicBool,
    is_over: AtomicBool,
}

impl Stop {
    /// Watches for SIGTERM and SIGINT.
    pub(super) fn on_signals() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let (mut ended, mut interrupted) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        drop(entered);
        let stop = Self::default();
        let state = stop.state.clone();
        std::thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = ended.recv() => {}
                        _ = interrupted.recv() => {}
                    }
                    // The second signal does not wait for anything.
                    if state.is_over.load(Relaxed) || state.is_asked.swap(true, Relaxed) {
                        skein_sys::process::exit_without_handlers(ENDED);
                    }
                }
            });
        });
        Ok(stop)
    }

    /// Whether there was a signal.
    pub(super) fn is_asked(&self) -> bool {
        self.state.is_asked.load(Relaxed)
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.state.is_over.store(true, Relaxed);
    }
}
