//! Why a store failed.

use std::io;
use std::path::PathBuf;

use rusqlite::ErrorCode;

/// Why a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file or directory cannot be made or read.
    #[error("the directory of stored responses {}: {error}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        error: io::Error,
    },
    /// Another process uses the directory.
    #[error(
        "the directory of stored responses {} is in use by another router; give each router its own", .0.display()
    )]
    InUse(PathBuf),
    /// The file is something else.
    #[error("{} is no store of responses: {reason}; give another directory", path.display())]
    NotAStore {
        /// Its path.
        path: PathBuf,
        /// What it is.
        reason: String,
    },
    /// The database failed.
    #[error("stored responses: {0}")]
    Database(#[from] rusqlite::Error),
    /// The store is full, and of the owner with the most bytes only this conversation is left.
    #[error("the turns of this conversation have {bytes} bytes, and all that are stored may have {limit}")]
    TooLarge {
        /// Their bytes.
        bytes: u64,
        /// Most bytes of the store.
        limit: u64,
    },
    /// The owner has no turn with this id.
    #[error("there is no response `{0}`")]
    Unknown(String),
    /// A turn that this one continues has been deleted.
    #[error("response `{id}` continues `{missing}`, which is not stored any more")]
    Broken {
        /// The id that was asked for.
        id: String,
        /// The one that is missing.
        missing: String,
    },
    /// The turns are too many, or too long.
    #[error("response `{id}` continues more than {limit}")]
    TooLong {
        /// The id that was asked for.
        id: String,
        /// The limit, with its unit.
        limit: String,
    },
    /// The disk does not keep up.
    #[error("stored responses: too many reads and writes wait for the disk")]
    Busy,
    /// The thread of the store has ended.
    #[error("stored responses: the store has ended")]
    Ended,
}

impl StateError {
    /// Whether the disk has no room.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Io { error, .. } => {
                matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Database(error) => error.sqlite_error_code() == Some(ErrorCode::DiskFull),
            _ => false,
        }
    }
}
