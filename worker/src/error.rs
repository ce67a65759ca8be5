//! Why a worker does not run.

use std::net::SocketAddr;

use skein_model::LoadError;

use crate::backend::BackendError;

/// Why a worker could not start, or ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The address is in use or not ours.
    #[error("cannot listen on {address}: {source}; choose another address or port")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The model cannot be served.
    #[error(transparent)]
    Load(Box<dyn std::error::Error + Send + Sync>),
    /// A setting is out of range.
    #[error("{setting} is {got}; allowed: {allowed}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The configured value.
        got: u64,
        /// The allowed range.
        allowed: String,
    },
    /// The device or the model does not support a setting.
    #[error("{0}")]
    Unsuitable(String),
    /// A thread could not be started.
    #[error("cannot start the {thread} thread: {source}")]
    Thread {
        /// Name of the thread.
        thread: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The backend failed while serving.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A thread of the worker panicked; its message is in the log.
    #[error("the {0} thread panicked; this is a bug, the log has its message")]
    Panicked(&'static str),
}

impl From<LoadError> for WorkerError {
    fn from(error: LoadError) -> Self {
        Self::Load(Box::new(error))
    }
}
