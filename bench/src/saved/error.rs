//! Why a saved result cannot be used.

use std::path::PathBuf;

/// Why a file is no result.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// It cannot be read, or is not JSON.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The I/O or JSON error.
        reason: String,
    },
    /// It is JSON of something else.
    #[error("{}: no result of `{command}`", path.display())]
    NoResult {
        /// Path of the file.
        path: PathBuf,
        /// The command that writes such results.
        command: &'static str,
    },
}
