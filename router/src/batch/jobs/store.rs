//! Directory of batch files and jobs.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use skein_node::clock;
use tokio::sync::Notify;
use uuid::Uuid;

use super::log::{Log, LogError, LogLine, State};
use super::record::{FileRecord, Job, NewJob, Purpose, Status};
use super::{MAX_FILE_BYTES, MAX_RECORDS};

/// Files and jobs of all tenants. Calls block briefly on the disk.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    inner: Mutex<(Log, State)>,
    /// Signals that a job was created or cancelled.
    changed: Notify,
}

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
    /// The directory is full.
    #[error(
        "{MAX_RECORDS} files and batches exist, which is the limit; delete files that are no longer needed"
    )]
    Full,
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

impl Store {
    /// Opens or creates `directory`.
    ///
    /// # Errors
    /// If it is not writable, another router uses it, or its log contains something else.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| StoreError::Io { path, error }
        };
        for part in ["files", "work"] {
            let path = directory.join(part);
            std::fs::create_dir_all(&path).map_err(failed(&path))?;
        }
        let path = directory.join("jobs.log");
        let (log, state) = Log::open(&path).map_err(|error| match error {
            LogError::Io(error) => StoreError::Io { path: path.clone(), error },
            LogError::InUse => StoreError::InUse(directory.to_owned()),
            LogError::Line { number, reason } => StoreError::NotALog { path: path.clone(), number, reason },
        })?;
        let store =
            Self { directory: directory.to_owned(), inner: Mutex::new((log, state)), changed: Notify::new() };
        store.remove_unknown_files();
        Ok(store)
    }

    /// Removes files left by interrupted uploads and deletions.
    fn remove_unknown_files(&self) {
        let inner = self.lock();
        let Ok(entries) = std::fs::read_dir(self.directory.join("files")) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if !name.to_str().is_some_and(|name| inner.1.files.contains_key(name)) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    // A poisoned lock is usable: the state changes only after the log, so a panic leaves both consistent.
    fn lock(&self) -> MutexGuard<'_, (Log, State)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, entry: LogLine) -> Result<(), StoreError> {
        let (log, state) = &mut *self.lock();
        let known = match &entry {
            LogLine::File(file) => state.files.contains_key(&file.id),
            LogLine::Job(job) => state.jobs.contains_key(&job.id),
            LogLine::Deleted(_) => true,
        };
        if !known && state.files.len() + state.jobs.len() >= MAX_RECORDS {
            return Err(StoreError::Full);
        }
        let path = || self.directory.join("jobs.log");
        log.append(&entry).map_err(|error| StoreError::Io { path: path(), error })?;
        state.apply(entry);
        Ok(())
    }

    /// Path of a file's content.
    pub fn content(&self, id: &str) -> PathBuf {
        self.directory.join("files").join(id)
    }

    /// Path of the answers of a running job.
    pub fn answers(&self, job: &str) -> PathBuf {
        self.directory.join("work").join(format!("{job}.jsonl"))
    }

    /// Starts a client's file. It becomes visible with [`Upload::finish`].
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn upload(&self) -> Result<Upload<'_>, StoreError> {
        self.write_file(format!("file-{}", drawn_id()))
    }

    /// Starts or replaces the file with this id.
    pub(super) fn write_file(&self, id: String) -> Result<Upload<'_>, StoreError> {
        let path = self.content(&id);
        let file = File::create(&path).map_err(|error| StoreError::Io { path: path.clone(), error })?;
        Ok(Upload { store: self, id, path, file, bytes: 0, finished: false })
    }

    /// File of a tenant.
    ///
    /// # Errors
    /// If the tenant has no file with this id.
    pub fn file(&self, tenant: &str, id: &str) -> Result<FileRecord, StoreError> {
        let inner = self.lock();
        let file = inner.1.files.get(id).filter(|file| file.tenant == tenant);
        file.cloned().ok_or_else(|| StoreError::Unknown { what: "file", id: id.to_owned() })
    }

    /// Files of a tenant, newest first.
    pub fn files(&self, tenant: &str) -> Vec<FileRecord> {
        let inner = self.lock();
        let mut files: Vec<_> =
            inner.1.files.values().filter(|file| file.tenant == tenant).cloned().collect();
        files.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        files
    }

    /// Deletes a file of a tenant.
    ///
    /// # Errors
    /// If the tenant has no file with this id, or a job still needs it.
    pub fn delete(&self, tenant: &str, id: &str) -> Result<(), StoreError> {
        self.file(tenant, id)?;
        let user = self
            .lock()
            .1
            .jobs
            .values()
            .find(|job| job.input_file_id == id && !job.status.is_final())
            .cloned();
        if let Some(job) = user {
            return Err(StoreError::FileInUse { file: id.to_owned(), job: job.id });
        }
        self.record(LogLine::Deleted(id.to_owned()))?;
        // The log is authoritative. If this fails, the next start removes the content.
        let _ = std::fs::remove_file(self.content(id));
        Ok(())
    }

    /// Accepts a new job.
    ///
    /// # Errors
    /// If its input does not exist or the directory is full.
    pub fn create(&self, tenant: &str, new: NewJob) -> Result<Job, StoreError> {
        self.file(tenant, &new.input_file_id)?;
        let id = format!("batch_{}", drawn_id());
        let job = Job::new(id, tenant.to_owned(), new, clock::unix_time().as_secs());
        self.save(&job)?;
        self.changed.notify_waiters();
        Ok(job)
    }

    /// Job of a tenant.
    ///
    /// # Errors
    /// If the tenant has no job with this id.
    pub fn job(&self, tenant: &str, id: &str) -> Result<Job, StoreError> {
        let inner = self.lock();
        let job = inner.1.jobs.get(id).filter(|job| job.tenant == tenant);
        job.cloned().ok_or_else(|| StoreError::Unknown { what: "batch", id: id.to_owned() })
    }

    /// Jobs of a tenant, newest first.
    pub fn jobs(&self, tenant: &str) -> Vec<Job> {
        let inner = self.lock();
        let mut jobs: Vec<_> = inner.1.jobs.values().filter(|job| job.tenant == tenant).cloned().collect();
        jobs.sort_by(|a, b| (b.created_at(), &b.id).cmp(&(a.created_at(), &a.id)));
        jobs
    }

    /// Cancels a job of a tenant, unless it has ended.
    ///
    /// # Errors
    /// If the tenant has no job with this id.
    pub fn cancel(&self, tenant: &str, id: &str) -> Result<Job, StoreError> {
        let mut job = self.job(tenant, id)?;
        if !job.status.is_final() && job.status != Status::Cancelling {
            job.enter(Status::Cancelling, clock::unix_time().as_secs());
            self.save(&job)?;
            self.changed.notify_waiters();
        }
        Ok(job)
    }

    /// Records the state of a job.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn save(&self, job: &Job) -> Result<(), StoreError> {
        self.record(LogLine::Job(Box::new(job.clone())))
    }

    /// Updates the visible progress. Not logged, because a restart counts the answers.
    pub(super) fn show(&self, id: &str, counts: super::Counts) {
        if let Some(job) = self.lock().1.jobs.get_mut(id) {
            job.counts = counts;
        }
    }

    /// Whether a job was cancelled but has not ended.
    pub(super) fn is_cancelling(&self, id: &str) -> bool {
        self.lock().1.jobs.get(id).is_some_and(|job| job.status == Status::Cancelling)
    }

    /// Oldest unfinished job.
    pub(super) fn next(&self) -> Option<Job> {
        let inner = self.lock();
        let open = inner.1.jobs.values().filter(|job| !job.status.is_final());
        open.min_by(|a, b| (a.created_at(), &a.id).cmp(&(b.created_at(), &b.id))).cloned()
    }

    /// Resolves when a job is next created or cancelled after this call.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}

fn drawn_id() -> String {
    Uuid::now_v7().simple().to_string()
}

/// File being written.
#[derive(Debug)]
pub struct Upload<'a> {
    store: &'a Store,
    id: String,
    path: PathBuf,
    file: File,
    bytes: u64,
    finished: bool,
}

impl Upload<'_> {
    /// Appends `bytes` to the file.
    ///
    /// # Errors
    /// If the disk fails, or an upload exceeds its size limit.
    pub fn write(&mut self, bytes: &[u8], purpose: Purpose) -> Result<(), StoreError> {
        self.bytes += bytes.len() as u64;
        if purpose == Purpose::Batch && self.bytes > MAX_FILE_BYTES {
            return Err(StoreError::TooLarge);
        }
        self.file.write_all(bytes).map_err(|error| StoreError::Io { path: self.path.clone(), error })
    }

    /// Completes the file and makes it visible.
    ///
    /// # Errors
    /// If the disk fails or the directory is full.
    pub fn finish(
        mut self,
        tenant: &str,
        filename: &str,
        purpose: Purpose,
    ) -> Result<FileRecord, StoreError> {
        self.file.sync_all().map_err(|error| StoreError::Io { path: self.path.clone(), error })?;
        let record = FileRecord {
            id: self.id.clone(),
            tenant: tenant.to_owned(),
            bytes: self.bytes,
            created_at: clock::unix_time().as_secs(),
            filename: filename.to_owned(),
            purpose,
        };
        self.store.record(LogLine::File(record.clone()))?;
        self.finished = true;
        Ok(record)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if !self.finished {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
