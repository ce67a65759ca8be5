//! Why models and adapters could not be written.

use std::path::PathBuf;

use skein_model::LoadError;

/// Why a model could not be created.
#[derive(Debug, thiserror::Error)]
pub enum MakeModelError {
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The directory already contains a model.
    #[error("{0} holds a model already; give another --out, or --force to replace it")]
    Occupied(PathBuf),
    /// The worker would refuse the model.
    #[error("no such model can be served: {0}")]
    Shape(#[source] LoadError),
    /// The directory to take the tokenizer from has none.
    #[error("{0} has no tokenizer.json; name a model directory that has one with --tokenizer")]
    NoTokenizer(PathBuf),
}

/// Why adapters were not made.
#[derive(Debug, thiserror::Error)]
pub enum MakeAdaptersError {
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
}
