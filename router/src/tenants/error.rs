//! Why a file of keys cannot be used. None of it repeats a value of the file: it may be a key.

use std::io;
use std::path::PathBuf;

/// Why a file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file cannot be read or written.
    #[error("the keys file {}: {error}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        error: io::Error,
    },
    /// The file is not TOML of this form.
    #[error("the keys file {}, line {line}: {message}", path.display())]
    Syntax {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Fault and remedy.
        message: String,
    },
    /// Entries are wrong.
    #[error("the keys file {}: {}", path.display(), problems.join("; "))]
    Entries {
        /// Path of the file.
        path: PathBuf,
        /// One sentence for each fault.
        problems: Vec<String>,
    },
}
