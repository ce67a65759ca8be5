//! How a command fails: one sentence that says what to do, and an exit code for scripts.

use std::fmt;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Invalid flags, or a file that they name is not usable.
    #[error("{0}")]
    Usage(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
    /// `skein` failed with this exit code, and has said why.
    #[error("skein failed")]
    Skein(u8),
    /// The reader of standard output closed it.
    #[error("standard output is closed")]
    OutputClosed,
}

impl Failure {
    /// [`Failure::Other`] with the text of `error`.
    pub fn other(error: impl fmt::Display) -> Self {
        Self::Other(error.to_string())
    }

    /// Exit code, as `skein` has it for the same failure.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Other(_) => 1,
            Self::Skein(code) => *code,
            Self::OutputClosed => 141,
        }
    }

    /// Whether it needs no message.
    pub fn is_quiet(&self) -> bool {
        matches!(self, Self::Skein(_) | Self::OutputClosed)
    }
}
