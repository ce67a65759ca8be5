//! Why an operation on a batch directory failed.

use std::io;
use std::path::PathBuf;

use super::limits::MAX_FILE_BYTES;
use crate::batch::disk;

/// Why an operation on the directory failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk operation failed.
    #[error("the batch directory {}: {error}", path.display())]
    Io {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        error: io::Error,
    },
    /// Another router uses the directory.
    #[error("the batch directory {} is in use by another router; give each router its own", .0.display())]
    InUse(PathBuf),
    /// The log contains something else.
    #[error("line {number} of {} is not a record of batches: {reason}; give another directory", path.display())]
    NotALog {
        /// Path of the log.
        path: PathBuf,
        /// Number of the line, from 1.
        number: u64,
        /// Fault in the line.
        reason: String,
    },
    /// The files and jobs of all keys are at their limit.
    #[error("the server has no room for more files and batches; delete files that are no longer needed")]
    Full,
    /// The tenant has as many files as it may.
    #[error("{0} files are stored for this key, which is the limit; delete files that are no longer needed")]
    TooManyFiles(u64),
    /// The tenant's files are as large as they may be.
    #[error(
        "this key's files would have over {0} bytes, which is the limit; delete files that are no longer needed"
    )]
    TooManyBytes(u64),
    /// The tenant has as many unfinished jobs as it may.
    #[error("{0} batches of this key have not ended, which is the limit; wait for them, or cancel some")]
    TooManyJobs(u64),
    /// The file exceeds its size limit.
    #[error("the file is over {MAX_FILE_BYTES} bytes; split it")]
    TooLarge,
    /// The tenant has no file or job with this id.
    #[error("there is no {what} `{id}`")]
    Unknown {
        /// Kind of object: `file` or `batch`.
        what: &'static str,
        /// The id in the request.
        id: String,
    },
    /// An unfinished job uses the file.
    #[error("file `{file}` is in use by batch `{job}`; cancel the batch first")]
    FileInUse {
        /// Id of the file.
        file: String,
        /// Id of the job.
        job: String,
    },
}

impl StoreError {
    /// Whether the disk has no room.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { error, .. } if disk::is_full(error))
    }
}
