//! How a command fails: one sentence that says what to do, and an exit code for scripts.

use std::fmt;
use std::process::ExitCode;

use skein_node::supervisor::Failed;

/// Exit code: invalid flags or settings.
pub const USAGE: u8 = 2;
/// Exit code: the model cannot be served.
pub const MODEL: u8 = 3;
/// Exit code: the requested device cannot be used.
pub const DEVICE: u8 = 4;
/// Exit code: the address cannot be listened on.
pub const ADDRESS: u8 = 5;
/// Exit code: any other failure.
pub const OTHER: u8 = 1;

/// Exit code: the reader of standard output closed it. A shell reports the same code for a process that
/// SIGPIPE killed.
pub const PIPE_CLOSED: u8 = 141;

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit code of the process.
    pub code: u8,
    /// What went wrong and what to do.
    pub message: String,
}

impl Failure {
    /// A failure with one of the exit codes above.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A failure with exit code [`OTHER`].
    pub fn other(message: impl fmt::Display) -> Self {
        Self::new(OTHER, message.to_string())
    }

    /// The form in which a supervised worker reports the failure.
    pub fn for_supervisor(&self) -> Failed {
        let permanent = [USAGE, MODEL, DEVICE].contains(&self.code);
        Failed { code: self.code, message: self.message.clone(), permanent }
    }

    /// Converts a supervised worker's report.
    pub fn of_worker(Failed { code, message, .. }: Failed) -> Self {
        Self { code, message }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Prints a failure, if any, and returns the exit code.
pub fn code_of(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            errln!("error: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
