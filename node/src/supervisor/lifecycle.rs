//! Reports of a supervised worker to its supervisor: one JSON object per line on standard output. In the
//! other direction, the first line is the worker's [`Secret`](super::Secret), the second its settings. After
//! them, closing standard input is the only signal: it means "drain and exit", whether the supervisor
//! requests that or has died.

use std::io::{Read, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::shutdown::Shutdown;

/// How long a worker may take to exit after its input closes; then it forces its own exit.
const LAST_RESORT: Duration = Duration::from_secs(8);
/// Interval between two reports of a worker that is not ready.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
const FORCED_EXIT_CODE: i32 = 1;

/// One line of standard output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Lifecycle {
    /// Weights are loading.
    Progress {
        /// Bytes loaded so far.
        done: u64,
        /// Bytes to load.
        total: u64,
    },
    /// The worker is alive but not ready yet.
    Alive,
    /// The worker is ready to serve.
    Ready {
        /// `host:port` of the gRPC service.
        address: String,
    },
    /// The worker cannot run; its process is about to exit.
    Failed(Failed),
}

/// Why a worker's process exits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Its exit code.
    pub code: u8,
    /// What went wrong.
    pub message: String,
    /// Whether the same start would fail the same way.
    pub permanent: bool,
}

impl Lifecycle {
    /// Writes the line to standard output. Errors are ignored: if the supervisor is dead, standard input
    /// closes.
    pub fn emit(&self) {
        if let Ok(line) = serde_json::to_string(self) {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    }

    /// Parses a line; `None` for other output.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

/// Reports that this worker is alive, until the returned task is aborted: a supervisor replaces a worker that
/// is silent before it is ready. The report comes from the runtime's threads, which loading does not block,
/// so silence means a frozen process, not a slow disk.
pub fn report_alive() -> tokio::task::JoinHandle<()> {
    tokio::spawn(async {
        loop {
            Lifecycle::Alive.emit();
            tokio::time::sleep(ALIVE_EVERY).await;
        }
    })
}

/// Requests `shutdown` when standard input closes. Nothing is written to it after the settings.
///
/// # Errors
/// If the reader thread cannot be started.
pub fn end_with_supervisor(shutdown: Shutdown) -> std::io::Result<()> {
    let watch = move || {
        let mut ignored = [0; 64];
        while std::io::stdin().lock().read(&mut ignored).is_ok_and(|count| count > 0) {}
        shutdown.request();
        std::thread::sleep(LAST_RESORT);
        crate::telemetry::flush_lines();
        std::process::exit(FORCED_EXIT_CODE);
    };
    std::thread::Builder::new().name("lifeline".into()).spawn(watch).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_round_trip_and_other_output_is_ignored() {
        let check = |event: Lifecycle, line: &str| {
            assert_eq!(serde_json::to_string(&event).expect("it serialises"), line);
            assert_eq!(Lifecycle::parse(line), Some(event));
        };
        check(Lifecycle::Progress { done: 1, total: 2 }, r#"{"event":"progress","done":1,"total":2}"#);
        check(
            Lifecycle::Ready { address: "127.0.0.1:5".into() },
            r#"{"event":"ready","address":"127.0.0.1:5"}"#,
        );
        check(Lifecycle::Alive, r#"{"event":"alive"}"#);
        check(
            Lifecycle::Failed(Failed { code: 3, message: "no model".into(), permanent: true }),
            r#"{"event":"failed","code":3,"message":"no model","permanent":true}"#,
        );
        assert_eq!(Lifecycle::parse("hello"), None);
    }
}
