//! What a supervised worker tells its supervisor: one JSON object a line on standard output. The other way there is
//! only one word: standard input closes, which means "drain and end", whether the supervisor wants it or is dead.

use std::io::{Read, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::shutdown::Shutdown;

/// After its input has closed, a worker that is still there after this time ends the hard way.
const LAST_RESORT: Duration = Duration::from_secs(8);
/// Exit code of the hard way.
const FORCED_EXIT_CODE: i32 = 1;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Lifecycle {
    /// Weights are loading.
    Progress {
        /// Bytes so far.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The first token can be served.
    Ready {
        /// `host:port` of the gRPC service.
        address: String,
    },
    /// It cannot work; the process is about to end.
    Failed(Failed),
}

/// Why a worker's process ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Its exit code.
    pub code: u8,
    /// What was wrong.
    pub message: String,
    /// Whether the same start would fail the same way.
    pub permanent: bool,
}

impl Lifecycle {
    /// Writes it to standard output. A supervisor that no longer reads is dead, and that shows on standard input.
    pub fn emit(&self) {
        if let Ok(line) = serde_json::to_string(self) {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    }

    /// Reads a line; `None` for anything else that found its way to standard output.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

/// Requests `shutdown` when standard input ends: nothing is ever written to it, and its end is the word to end.
///
/// # Errors
/// The thread that reads cannot be started.
pub fn end_with_supervisor(shutdown: Shutdown) -> std::io::Result<()> {
    let watch = move || {
        let mut ignored = [0; 64];
        while std::io::stdin().lock().read(&mut ignored).is_ok_and(|count| count > 0) {}
        shutdown.request();
        std::thread::sleep(LAST_RESORT);
        std::process::exit(FORCED_EXIT_CODE);
    };
    std::thread::Builder::new().name("leash".into()).spawn(watch).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back_and_noise_is_no_event() {
        let check = |event: Lifecycle, line: &str| {
            assert_eq!(serde_json::to_string(&event).expect("it serialises"), line);
            assert_eq!(Lifecycle::parse(line), Some(event));
        };
        check(Lifecycle::Progress { done: 1, total: 2 }, r#"{"event":"progress","done":1,"total":2}"#);
        check(
            Lifecycle::Ready { address: "127.0.0.1:5".into() },
            r#"{"event":"ready","address":"127.0.0.1:5"}"#,
        );
        check(
            Lifecycle::Failed(Failed { code: 3, message: "no model".into(), permanent: true }),
            r#"{"event":"failed","code":3,"message":"no model","permanent":true}"#,
        );
        assert_eq!(Lifecycle::parse("hello"), None);
    }
}
