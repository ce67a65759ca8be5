//! The directory of files and jobs.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use skein_node::clock;
use tokio::sync::Notify;
use uuid::Uuid;

use super::log::{Entry, Log, LogError, State};
use super::record::{FileRecord, Job, NewJob, Purpose, Status};
use super::{MAX_FILE_BYTES, MAX_RECORDS};

/// Files and jobs of all tenants. Calls block on the disk, briefly.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    inner: Mutex<(Log, State)>,
    /// A job was created or cancelled.
    changed: Notify,
}

/// Why the directory cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk failed.
    #[error("the batch directory {}: {error}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        #[source]
        error: io::Error,
    },
    /// Another router has it.
    #[error("the batch directory {} is in use by another router; give each router its own", .0.display())]
    InUse(PathBuf),
    /// Its log holds something else.
    #[error("line {number} of {} is not a record of batches: {reason}; give another directory", path.display())]
    NotALog {
        /// The log.
        path: PathBuf,
        /// The line's number, from 1.
        number: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Too many files and jobs.
    #[error(
        "{MAX_RECORDS} files and batches exist, which is the limit; delete files that are no longer needed"
    )]
    Full,
    /// Too many bytes in one file.
    #[error("the file is over {MAX_FILE_BYTES} bytes; split it")]
    TooLarge,
    /// No file or job of this tenant has the id.
    #[error("there is no {what} `{id}`")]
    Unknown {
        /// `file` or `batch`.
        what: &'static str,
        /// The id that was asked for.
        id: String,
    },
    /// A job that has not ended reads the file.
    #[error("file `{file}` is in use by batch `{job}`; cancel the batch first")]
    FileInUse {
        /// The file.
        file: String,
        /// The job.
        job: String,
    },
}

impl Store {
    /// Opens `directory`, which is created if needed.
    ///
    /// # Errors
    /// If it cannot be written, another router has it, or its log holds something else.
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

    /// Removes uploads that were cut, and files whose deletion was.
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

    // A panic elsewhere leaves log and state in step: the state changes after the log.
    fn lock(&self) -> MutexGuard<'_, (Log, State)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, entry: Entry) -> Result<(), StoreError> {
        let (log, state) = &mut *self.lock();
        let known = match &entry {
            Entry::File(file) => state.files.contains_key(&file.id),
            Entry::Job(job) => state.jobs.contains_key(&job.id),
            Entry::Deleted(_) => true,
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

    /// Path of the answers of a job that runs.
    pub fn answers(&self, job: &str) -> PathBuf {
        self.directory.join("work").join(format!("{job}.jsonl"))
    }

    /// Starts a client's file; it does not exist until [`Upload::finish`].
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn upload(&self) -> Result<Upload<'_>, StoreError> {
        self.write_file(format!("file-{}", drawn_id()))
    }

    /// Starts the file with this id, or replaces it.
    pub(super) fn write_file(&self, id: String) -> Result<Upload<'_>, StoreError> {
        let path = self.content(&id);
        let file = File::create(&path).map_err(|error| StoreError::Io { path: path.clone(), error })?;
        Ok(Upload { store: self, id, path, file, bytes: 0, finished: false })
    }

    /// A tenant's file.
    ///
    /// # Errors
    /// If there is none with this id.
    pub fn file(&self, tenant: &str, id: &str) -> Result<FileRecord, StoreError> {
        let inner = self.lock();
        let file = inner.1.files.get(id).filter(|file| file.tenant == tenant);
        file.cloned().ok_or_else(|| StoreError::Unknown { what: "file", id: id.to_owned() })
    }

    /// A tenant's files, newest first.
    pub fn files(&self, tenant: &str) -> Vec<FileRecord> {
        let inner = self.lock();
        let mut files: Vec<_> =
            inner.1.files.values().filter(|file| file.tenant == tenant).cloned().collect();
        files.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        files
    }

    /// Deletes a tenant's file.
    ///
    /// # Errors
    /// If there is none with this id, or a job still needs it.
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
        self.record(Entry::Deleted(id.to_owned()))?;
        // The record decides; what is left of the content goes at the next start.
        let _ = std::fs::remove_file(self.content(id));
        Ok(())
    }

    /// Accepts a job.
    ///
    /// # Errors
    /// If its input does not exist, or the directory is full.
    pub fn create(&self, tenant: &str, new: NewJob) -> Result<Job, StoreError> {
        self.file(tenant, &new.input_file_id)?;
        let id = format!("batch_{}", drawn_id());
        let job = Job::new(id, tenant.to_owned(), new, clock::unix_time().as_secs());
        self.save(&job)?;
        self.changed.notify_waiters();
        Ok(job)
    }

    /// A tenant's job.
    ///
    /// # Errors
    /// If there is none with this id.
    pub fn job(&self, tenant: &str, id: &str) -> Result<Job, StoreError> {
        let inner = self.lock();
        let job = inner.1.jobs.get(id).filter(|job| job.tenant == tenant);
        job.cloned().ok_or_else(|| StoreError::Unknown { what: "batch", id: id.to_owned() })
    }

    /// A tenant's jobs, newest first.
    pub fn jobs(&self, tenant: &str) -> Vec<Job> {
        let inner = self.lock();
        let mut jobs: Vec<_> = inner.1.jobs.values().filter(|job| job.tenant == tenant).cloned().collect();
        jobs.sort_by(|a, b| (b.created_at(), &b.id).cmp(&(a.created_at(), &a.id)));
        jobs
    }

    /// Cancels a tenant's job, unless it has ended.
    ///
    /// # Errors
    /// If there is none with this id.
    pub fn cancel(&self, tenant: &str, id: &str) -> Result<Job, StoreError> {
        let mut job = self.job(tenant, id)?;
        if !job.status.is_final() && job.status != Status::Cancelling {
            job.enter(Status::Cancelling, clock::unix_time().as_secs());
            self.save(&job)?;
            self.changed.notify_waiters();
        }
        Ok(job)
    }

    /// Records a job's state.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn save(&self, job: &Job) -> Result<(), StoreError> {
        self.record(Entry::Job(Box::new(job.clone())))
    }

    /// Shows progress; not recorded, because a restart counts the answers.
    pub(super) fn show(&self, id: &str, counts: super::Counts) {
        if let Some(job) = self.lock().1.jobs.get_mut(id) {
            job.counts = counts;
        }
    }

    /// Whether a job was cancelled and has not ended.
    pub(super) fn is_cancelling(&self, id: &str) -> bool {
        self.lock().1.jobs.get(id).is_some_and(|job| job.status == Status::Cancelling)
    }

    /// The oldest job that has not ended.
    pub(super) fn next(&self) -> Option<Job> {
        let inner = self.lock();
        let open = inner.1.jobs.values().filter(|job| !job.status.is_final());
        open.min_by(|a, b| (a.created_at(), &a.id).cmp(&(b.created_at(), &b.id))).cloned()
    }

    /// Resolves at the next job that is created or cancelled after the call.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}

fn drawn_id() -> String {
    Uuid::now_v7().simple().to_string()
}

/// A file that is being written.
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
    /// Appends `bytes`.
    ///
    /// # Errors
    /// If the disk fails, or a client's file becomes too large.
    pub fn write(&mut self, bytes: &[u8], purpose: Purpose) -> Result<(), StoreError> {
        self.bytes += bytes.len() as u64;
        if purpose == Purpose::Batch && self.bytes > MAX_FILE_BYTES {
            return Err(StoreError::TooLarge);
        }
        self.file.write_all(bytes).map_err(|error| StoreError::Io { path: self.path.clone(), error })
    }

    /// The whole file exists from now on.
    ///
    /// # Errors
    /// If the disk fails, or the directory is full.
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
        self.store.record(Entry::File(record.clone()))?;
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
