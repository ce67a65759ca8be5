//! The directory of a store: files that only this user may read, in use by one process.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::StateError;

/// The file that a router locks while it uses `directory`.
pub fn lock_file(directory: &Path) -> PathBuf {
    directory.join("responses.lock")
}

/// The database in `directory`.
pub fn database(directory: &Path) -> PathBuf {
    directory.join("responses.db")
}

/// Makes `directory` if need be and locks it; returns the path of the database and the lock.
///
/// # Errors
/// If it cannot be made or written, or another process has it.
pub fn prepare(directory: &Path) -> Result<(PathBuf, File), StateError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| StateError::Io { path, error }
    };
    if std::fs::metadata(directory).is_ok_and(|found| !found.is_dir()) {
        return Err(failed(directory)(io::ErrorKind::NotADirectory.into()));
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed(directory))?;
    let private = || OpenOptions::new().read(true).append(true).create(true).mode(0o600).clone();
    let path = lock_file(directory);
    let lock = private().open(&path).map_err(failed(&path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(StateError::InUse(directory.to_owned())),
        Err(TryLockError::Error(error)) => return Err(failed(&path)(error)),
    }
    let path = database(directory);
    // Opening a named pipe would wait for a writer.
    if std::fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        return Err(StateError::NotAStore { path, reason: "it is not a regular file".to_owned() });
    }
    // SQLite gives its log and its index the rights of this file.
    private().open(&path).map_err(failed(&path))?;
    Ok((path, lock))
}
