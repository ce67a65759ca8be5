//! The disk of a batch directory: files that only this user may read, and writes that leave nothing half done
//! when there is no room.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A disk that may become full.
#[derive(Debug, Default)]
pub struct Disk {
    /// The batch directory; `None` = a file of the user, whose faults end the run and are not logged.
    directory: Option<PathBuf>,
    is_full: AtomicBool,
    /// Bytes that still fit; `None` = what the system says.
    #[cfg(test)]
    pub(crate) room: std::sync::Mutex<Option<usize>>,
}

/// Whether `error` says that there is no room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

impl Disk {
    /// The disk that has `directory`. A change from or to having no room is logged once.
    pub fn of(directory: &Path) -> Self {
        Self { directory: Some(directory.to_owned()), ..Self::default() }
    }

    /// Whether its files are only for this user.
    pub(super) fn is_private(&self) -> bool {
        self.directory.is_some()
    }

    /// Creates or empties a file that only this user may read.
    ///
    /// # Errors
    /// As the system says.
    pub fn create(&self, path: &Path) -> io::Result<File> {
        let options = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).clone();
        self.noted(options.open(path))
    }

    /// Appends `bytes` to `file`, which has `end` bytes. On an error it has no more.
    ///
    /// # Errors
    /// As the system says.
    pub fn append(&self, file: &mut File, end: &mut u64, bytes: &[u8]) -> io::Result<()> {
        let written = self.write(file, bytes);
        match written {
            Ok(()) => *end += bytes.len() as u64,
            // A part of the bytes may be in the file.
            Err(_) => cut(file, *end),
        }
        self.noted(written)
    }

    #[cfg(not(test))]
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    #[cfg(test)]
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        let mut room = self.room.lock().expect("no test panicked with it");
        let Some(left) = room.as_mut() else { return file.write_all(bytes) };
        let fits = bytes.len().min(*left);
        *left -= fits;
        file.write_all(&bytes[..fits])?;
        if fits < bytes.len() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    /// Waits until what was written to `file` is on the disk.
    ///
    /// # Errors
    /// As the system says; some disks tell only now that they are full.
    pub fn sync(&self, file: &File) -> io::Result<()> {
        self.noted(file.sync_data())
    }

    /// Logs that there is room again.
    pub fn note_room(&self) {
        if self.is_full.swap(false, Ordering::Relaxed)
            && let Some(directory) = &self.directory
        {
            tracing::info!(directory = %directory.display(), "the batch directory's disk has room again");
        }
    }

    fn noted<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && is_full(error)
            && !self.is_full.swap(true, Ordering::Relaxed)
            && let Some(directory) = &self.directory
        {
            tracing::error!(
                directory = %directory.display(),
                "the batch directory's disk is full: uploads get 507, and batches wait for room"
            );
        }
        result
    }
}

/// Shortens `file` to `end` bytes. If even this fails, the next reader drops the incomplete line.
pub fn cut(file: &mut File, end: u64) {
    let _ = file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end)));
}

/// Creates a directory that only this user may enter. One that exists is left as it is.
///
/// # Errors
/// As the system says.
pub fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Lets only this user read `path`, a directory or a file of ours. A disk without permissions keeps it as it
/// is.
pub fn make_private(path: &Path) {
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    let _ = std::fs::set_permissions(path, Permissions::from_mode(mode));
}
