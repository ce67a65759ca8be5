//! A file that is being written.

use std::fs::File;
use std::path::PathBuf;

use skein_node::clock;
use uuid::Uuid;

use super::error::StoreError;
use super::limits::MAX_FILE_BYTES;
use super::log::LogLine;
use super::record::{FileRecord, Job, Purpose};
use super::store::Store;

/// File being written. It goes when it is dropped unfinished.
#[derive(Debug)]
pub struct Upload<'a> {
    store: &'a Store,
    id: String,
    tenant: String,
    purpose: Purpose,
    path: PathBuf,
    file: File,
    bytes: u64,
    finished: bool,
}

impl Store {
    /// Starts a file of `tenant`. It becomes visible with [`Upload::finish`].
    ///
    /// # Errors
    /// If the file cannot be created, or the tenant or the directory is at its limit.
    pub fn upload(&self, tenant: &str) -> Result<Upload<'_>, StoreError> {
        self.reserve_file(tenant)?;
        let id = format!("file-{}", Uuid::now_v7().simple());
        self.write_file(id, tenant, Purpose::Batch).inspect_err(|_| self.release(tenant, 0))
    }

    /// Starts or replaces the file `id` with results of `job`.
    pub(super) fn results(&self, job: &Job, id: String) -> Result<Upload<'_>, StoreError> {
        self.write_file(id, &job.tenant, Purpose::BatchOutput)
    }

    fn write_file(&self, id: String, tenant: &str, purpose: Purpose) -> Result<Upload<'_>, StoreError> {
        let path = self.content(&id);
        let file = self.disk().create(&path).map_err(|error| StoreError::Io { path: path.clone(), error })?;
        Ok(Upload {
            store: self,
            id,
            tenant: tenant.to_owned(),
            purpose,
            path,
            file,
            bytes: 0,
            finished: false,
        })
    }
}

impl Upload<'_> {
    /// Appends `bytes` to the file.
    ///
    /// # Errors
    /// If the disk fails, or an upload exceeds a limit.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let count = bytes.len() as u64;
        if self.purpose == Purpose::Batch {
            if self.bytes + count > MAX_FILE_BYTES {
                return Err(StoreError::TooLarge);
            }
            self.store.reserve_bytes(&self.tenant, count)?;
        }
        let mut end = self.bytes;
        let written = self.store.disk().append(&mut self.file, &mut end, bytes);
        // Counted in any case: what was reserved is released with the file.
        self.bytes += count;
        written.map_err(|error| StoreError::Io { path: self.path.clone(), error })
    }

    /// Completes the file and makes it visible as `filename`.
    ///
    /// # Errors
    /// If the disk fails or the directory is full.
    pub fn finish(mut self, filename: &str) -> Result<FileRecord, StoreError> {
        self.store
            .disk()
            .sync(&self.file)
            .map_err(|error| StoreError::Io { path: self.path.clone(), error })?;
        let record = FileRecord {
            id: self.id.clone(),
            tenant: self.tenant.clone(),
            bytes: self.bytes,
            created_at: clock::unix_time().as_secs(),
            filename: filename.to_owned(),
            purpose: self.purpose,
        };
        self.store.record(LogLine::File(record.clone()))?;
        self.finished = true;
        self.store.disk().note_room();
        Ok(record)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let _ = std::fs::remove_file(&self.path);
        if self.purpose == Purpose::Batch {
            self.store.release(&self.tenant, self.bytes);
        }
    }
}
