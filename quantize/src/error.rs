//! Why a model cannot be quantised.

use std::path::PathBuf;

use skein_model::LoadError;

/// Why a model cannot be quantised.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The model cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The model, the scheme or the output directory is unsuitable.
    #[error("{0}")]
    Refused(String),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
}
