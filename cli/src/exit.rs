//! How a command ends when it cannot go on: one sentence that says what to do, and a code that scripts can tell apart.

use std::fmt;
use std::process::ExitCode;

use skein_node::supervisor::Failed;

/// Wrong flags or settings.
pub const USAGE: u8 = 2;
/// The model directory.
pub const MODEL: u8 = 3;
/// The device that was asked for.
pub const DEVICE: u8 = 4;
/// The address to listen on.
pub const ADDRESS: u8 = 5;
/// Anything else.
pub const OTHER: u8 = 1;

/// Why a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit code of the process.
    pub code: u8,
    /// What was wrong and what to do next.
    pub message: String,
}

impl Failure {
    /// A failure with one of the codes above.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A failure without a code of its own.
    pub fn other(message: impl fmt::Display) -> Self {
        Self::new(OTHER, message.to_string())
    }

    /// What a supervised worker tells its supervisor.
    pub fn for_supervisor(&self) -> Failed {
        let permanent = [USAGE, MODEL, DEVICE].contains(&self.code);
        Failed { code: self.code, message: self.message.clone(), permanent }
    }

    /// What a supervised worker told.
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

/// Prints a failure, if it is one, and gives the process its code.
pub fn code_of(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
