//! Locks between processes, on the same files that Hugging Face's tools lock. The system releases them when
//! the holder ends, even if killed.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

use crate::error::HubError;

/// Interval between attempts to take a lock.
const TRY_EVERY: Duration = Duration::from_millis(200);
/// Longest wait for a lock's holder that makes no progress.
const HOLDER_STALLED: Duration = Duration::from_secs(600);

/// Held lock, released on drop.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] File);

/// Takes the lock `path`; `None` if another process holds it.
pub fn try_lock(path: &Path) -> Result<Option<Lock>, HubError> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(HubError::disk(directory))?;
    }
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(HubError::disk(path))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        // Some network file systems have no locks; renames keep contents consistent there as well.
        Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
            tracing::warn!(path = %path.display(), "the file system has no locks; download a model once at a time");
            Ok(Some(Lock(file)))
        }
        Err(TryLockError::Error(error)) => Err(HubError::Disk { path: path.to_owned(), error }),
    }
}

/// Takes the lock `path`, waiting while another process holds it. Fails if `progress` stops changing.
pub async fn lock(path: &Path, progress: impl Fn() -> u64) -> Result<Lock, HubError> {
    let (mut seen, mut stalled) = (progress(), Duration::ZERO);
    let mut is_told = false;
    loop {
        if let Some(lock) = try_lock(path)? {
            return Ok(lock);
        }
        if !is_told {
            tracing::warn!(lock = %path.display(), "another process is downloading this; waiting for it");
            is_told = true;
        }
        tokio::time::sleep(TRY_EVERY).await;
        let now = progress();
        stalled = if now == seen { stalled + TRY_EVERY } else { Duration::ZERO };
        seen = now;
        if stalled >= HOLDER_STALLED {
            return Err(HubError::Locked { lock: path.to_owned(), waited: stalled });
        }
    }
}
