//! SIGHUP: a request to read the model again, or the end of the terminal.

use std::fs::File;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::shutdown::Shutdown;

/// The terminal of this process. Opening it fails once it is gone.
const TERMINAL: &str = "/dev/tty";
/// Number of SIGHUP.
const HANGUP: u32 = 1;

/// The SIGHUPs of this process that mean "read the model again".
///
/// A terminal that closes sends the same signal. A process that was started from that terminal then shuts
/// down, as it would without a handler, unless it ignored the signal from its start, as under `nohup`.
#[derive(Debug)]
pub struct Hangups {
    signals: Signal,
    /// Whether the end of the terminal ends the process.
    follows_terminal: bool,
}

impl Hangups {
    /// Receives the signals from now on.
    ///
    /// # Errors
    /// If the signal handler cannot be installed.
    pub fn receive() -> std::io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let follows_terminal = has_terminal() && !ignores(&status, HANGUP);
        Ok(Self { signals: signal(SignalKind::hangup())?, follows_terminal })
    }

    /// Waits for the next request to read the model again. Requests `shutdown` when the terminal closes.
    pub async fn next(&mut self, shutdown: &Shutdown) {
        loop {
            if self.signals.recv().await.is_none() {
                return std::future::pending().await;
            }
            if !self.follows_terminal || has_terminal() {
                return;
            }
            tracing::info!("the terminal has closed: shutting down");
            shutdown.request();
        }
    }
}

fn has_terminal() -> bool {
    File::open(TERMINAL).is_ok()
}

/// Whether a process with this `/proc/PID/status` ignores a signal.
fn ignores(status: &str, number: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_processes_status() {
        let status =
            |mask: &str| format!("Name:\tskein\nSigBlk:\t0000000000000000\nSigIgn:\t{mask}\nSigCgt:\t0\n");
        for (mask, expected) in [("0000000000000001", true), ("0000000000001000", false), ("x", false)] {
            assert_eq!(ignores(&status(mask), HANGUP), expected, "{mask}");
        }
        assert!(!ignores("", HANGUP));
        assert!(ignores(&status("0000000000001000"), 13), "SIGPIPE, as in every Rust program");
    }

    #[tokio::test]
    async fn a_hangup_without_a_closed_terminal_is_a_request() {
        let (shutdown, mut hangups) = (Shutdown::default(), Hangups::receive().expect("a handler"));
        // The test may or may not have a terminal; it does not close.
        let pid = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args(["-HUP", &pid]).status().expect("kill").success());
        hangups.next(&shutdown).await;
        assert!(!shutdown.is_requested());
    }
}
