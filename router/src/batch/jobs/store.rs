//! Directory of batch files and jobs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skein_node::clock;
use tokio::sync::Notify;
use uuid::Uuid;

use super::error::StoreError;
use super::limits::MAX_RECORDS;
use super::log::{self, Log, LogError, LogLine, State};
use super::record::{Counts, FileRecord, Job, NewJob, Purpose, Status};
use super::usage::Usage;
use crate::batch::disk::{self, Disk};
use crate::batch::output;
use crate::config::BatchLimits;
use crate::tenants::owners::Owners;

/// Name of the log in its directory.
const LOG: &str = "jobs.log";

/// Files and jobs of all tenants. Calls block briefly on the disk.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    limits: BatchLimits,
    disk: Arc<Disk>,
    owners: Owners,
    inner: Mutex<Inner>,
    /// Signals that a job was created or cancelled.
    changed: Notify,
}

#[derive(Debug)]
struct Inner {
    log: Log,
    state: State,
    usage: Usage,
}

impl Store {
    /// Opens or creates `directory`. A full disk is no error if it exists.
    ///
    /// # Errors
    /// If it is not writable, another router uses it, or its log contains something else.
    pub fn open(directory: &Path, limits: BatchLimits) -> Result<Self, StoreError> {
        Self::open_on(Disk::of(directory), directory, limits)
    }

    /// The file that a router locks while it uses `directory`.
    pub fn lock_file(directory: &Path) -> PathBuf {
        log::lock_file(&directory.join(LOG))
    }

    /// [`open`](Self::open) on this disk.
    pub(super) fn open_on(disk: Disk, directory: &Path, limits: BatchLimits) -> Result<Self, StoreError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| StoreError::Io { path, error }
        };
        for part in ["files", "work"] {
            let path = directory.join(part);
            disk::create_directory(&path).map_err(failed(&path))?;
            disk::make_private(&path);
        }
        let (disk, path) = (Arc::new(disk), directory.join(LOG));
        let (mut log, mut state) = Log::open(&path, disk.clone()).map_err(|error| match error {
            LogError::Io(error) => StoreError::Io { path: path.clone(), error },
            LogError::InUse => StoreError::InUse(directory.to_owned()),
            LogError::Line { number, reason } => StoreError::NotALog { path: path.clone(), number, reason },
        })?;
        let owners = Owners::open(directory, &disk).map_err(failed(directory))?;
        repair(directory, &mut state, &owners);
        log.compact(&path, &state).map_err(failed(&path))?;
        disk::make_private(&path);
        let mut usage = Usage::default();
        state.files.values().for_each(|file| usage.add(file));
        remove_unknown_files(directory, &state);
        let inner = Mutex::new(Inner { log, state, usage });
        Ok(Self { directory: directory.to_owned(), limits, disk, owners, inner, changed: Notify::new() })
    }

    // A poisoned lock is usable: the state changes only after the log, so a panic leaves both consistent.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Name in this directory of the tenant `name`. All other calls take this one.
    pub fn owner(&self, name: &str) -> String {
        self.owners.name(name)
    }

    pub(super) fn record(&self, entry: LogLine) -> Result<(), StoreError> {
        self.append(&mut self.lock(), entry)
    }

    /// Logs `entry` and applies it.
    fn append(&self, inner: &mut Inner, entry: LogLine) -> Result<(), StoreError> {
        let path = || self.directory.join("jobs.log");
        inner.log.append(&entry).map_err(|error| StoreError::Io { path: path(), error })?;
        if let LogLine::File(file) = &entry
            && file.purpose == Purpose::BatchOutput
        {
            // After a kill, a job writes its results again.
            inner.state.files.get(&file.id).into_iter().for_each(|before| inner.usage.remove(before));
            inner.usage.add(file);
        }
        inner.state.apply(entry);
        Ok(())
    }

    /// Path of a file's content.
    pub fn content(&self, id: &str) -> PathBuf {
        self.directory.join("files").join(id)
    }

    /// Path of the answers of a running job.
    pub fn answers(&self, job: &str) -> PathBuf {
        answers(&self.directory, job)
    }

    /// Takes a new file of `tenant` into account.
    pub(super) fn reserve_file(&self, tenant: &str) -> Result<(), StoreError> {
        let inner = &mut *self.lock();
        check_records(&inner.state)?;
        inner.usage.reserve_file(tenant, &self.limits)
    }

    pub(super) fn reserve_bytes(&self, tenant: &str, bytes: u64) -> Result<(), StoreError> {
        self.lock().usage.reserve_bytes(tenant, bytes, &self.limits)
    }

    /// Takes back what an unfinished upload reserved.
    pub(super) fn release(&self, tenant: &str, bytes: u64) {
        self.lock().usage.release(tenant, 1, bytes);
    }

    /// File of a tenant.
    ///
    /// # Errors
    /// If the tenant has no file with this id.
    pub fn file(&self, tenant: &str, id: &str) -> Result<FileRecord, StoreError> {
        self.lock().state.file(tenant, id).cloned()
    }

    /// Files of a tenant, newest first.
    pub fn files(&self, tenant: &str) -> Vec<FileRecord> {
        let inner = self.lock();
        let mut files: Vec<_> =
            inner.state.files.values().filter(|file| file.tenant == tenant).cloned().collect();
        files.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        files
    }

    /// Deletes a file of a tenant, also on a full disk.
    ///
    /// # Errors
    /// If the tenant has no file with this id, or a job still needs it.
    pub fn delete(&self, tenant: &str, id: &str) -> Result<(), StoreError> {
        let inner = &mut *self.lock();
        let file = inner.state.file(tenant, id)?.clone();
        let needs = |job: &&Job| job.input_file_id == id && !job.status.is_final();
        if let Some(job) = inner.state.jobs.values().find(needs) {
            return Err(StoreError::FileInUse { file: id.to_owned(), job: job.id.clone() });
        }
        // The content goes first, so that there is room for the line. The next start drops a record without
        // content.
        let path = self.content(id);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(StoreError::Io { path, error }),
            _ => {}
        }
        inner.usage.remove(&file);
        match self.append(inner, LogLine::Deleted(id.to_owned())) {
            Err(error) if error.is_disk_full() => inner.state.apply(LogLine::Deleted(id.to_owned())),
            other => other?,
        }
        Ok(())
    }

    /// Accepts a new job. The tenant's oldest ended one makes room for it if need be.
    ///
    /// # Errors
    /// If its input does not exist, or the tenant or the directory is at its limit.
    pub fn create(&self, tenant: &str, new: NewJob) -> Result<Job, StoreError> {
        let inner = &mut *self.lock();
        inner.state.file(tenant, &new.input_file_id)?;
        check_records(&inner.state)?;
        let own = || inner.state.jobs.values().filter(|job| job.tenant == tenant);
        if own().count() as u64 >= self.limits.batches_per_key {
            let ended = own().filter(|job| job.status.is_final());
            let oldest = ended.min_by_key(|job| (job.created_at(), &job.id)).map(|job| job.id.clone());
            let oldest = oldest.ok_or(StoreError::TooManyJobs(self.limits.batches_per_key))?;
            self.append(inner, LogLine::Forgotten(oldest))?;
        }
        let id = format!("batch_{}", Uuid::now_v7().simple());
        let job = Job::new(id, tenant.to_owned(), new, clock::unix_time().as_secs());
        self.append(inner, LogLine::Job(Box::new(job.clone())))?;
        self.changed.notify_waiters();
        Ok(job)
    }

    /// Job of a tenant.
    ///
    /// # Errors
    /// If the tenant has no job with this id.
    pub fn job(&self, tenant: &str, id: &str) -> Result<Job, StoreError> {
        self.lock().state.job(tenant, id).cloned()
    }

    /// Jobs of a tenant, newest first.
    pub fn jobs(&self, tenant: &str) -> Vec<Job> {
        let inner = self.lock();
        let mut jobs: Vec<_> =
            inner.state.jobs.values().filter(|job| job.tenant == tenant).cloned().collect();
        jobs.sort_by(|a, b| (b.created_at(), &b.id).cmp(&(a.created_at(), &a.id)));
        jobs
    }

    /// Cancels a job of a tenant, unless it has ended.
    ///
    /// # Errors
    /// If the tenant has no job with this id, or the disk fails.
    pub fn cancel(&self, tenant: &str, id: &str) -> Result<Job, StoreError> {
        self.job(tenant, id)?;
        let job = self.update(id, |job| {
            if !job.status.is_final() && job.status != Status::Cancelling {
                job.enter(Status::Cancelling, clock::unix_time().as_secs());
            }
        })?;
        self.changed.notify_waiters();
        Ok(job)
    }

    /// Changes a job in its latest state, which another call may have changed, and records it.
    ///
    /// # Errors
    /// If there is no such job, or the disk fails; then it has not changed.
    pub(super) fn update(&self, id: &str, change: impl FnOnce(&mut Job)) -> Result<Job, StoreError> {
        let inner = &mut *self.lock();
        let before = inner.state.jobs.get(id).ok_or_else(|| unknown("batch", id))?;
        let mut job = before.clone();
        change(&mut job);
        if job != *before {
            self.append(inner, LogLine::Job(Box::new(job.clone())))?;
        }
        Ok(job)
    }

    /// Updates the visible progress. Not logged, because a restart counts the answers.
    pub(super) fn show(&self, id: &str, counts: Counts) {
        if let Some(job) = self.lock().state.jobs.get_mut(id) {
            job.counts = counts;
        }
    }

    /// Whether a job was cancelled but has not ended.
    pub(super) fn is_cancelling(&self, id: &str) -> bool {
        self.lock().state.jobs.get(id).is_some_and(|job| job.status == Status::Cancelling)
    }

    /// Oldest unfinished job.
    pub(super) fn next(&self) -> Option<Job> {
        let inner = self.lock();
        let open = inner.state.jobs.values().filter(|job| !job.status.is_final());
        open.min_by(|a, b| (a.created_at(), &a.id).cmp(&(b.created_at(), &b.id))).cloned()
    }

    /// Resolves when a job is next created or cancelled after this call.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}

impl State {
    fn file(&self, tenant: &str, id: &str) -> Result<&FileRecord, StoreError> {
        self.files.get(id).filter(|file| file.tenant == tenant).ok_or_else(|| unknown("file", id))
    }

    fn job(&self, tenant: &str, id: &str) -> Result<&Job, StoreError> {
        self.jobs.get(id).filter(|job| job.tenant == tenant).ok_or_else(|| unknown("batch", id))
    }
}

fn unknown(what: &'static str, id: &str) -> StoreError {
    StoreError::Unknown { what, id: id.to_owned() }
}

fn check_records(state: &State) -> Result<(), StoreError> {
    if state.files.len() + state.jobs.len() < MAX_RECORDS { Ok(()) } else { Err(StoreError::Full) }
}

fn answers(directory: &Path, job: &str) -> PathBuf {
    directory.join("work").join(format!("{job}.jsonl"))
}

/// Gives tenants their names, drops records without content, and counts the answers of running jobs.
fn repair(directory: &Path, state: &mut State, owners: &Owners) {
    let is_gone = |id: &str| directory.join("files").join(id).try_exists().is_ok_and(|exists| !exists);
    state.files.retain(|id, _| !is_gone(id));
    state.files.values_mut().for_each(|file| file.tenant = owners.name(&file.tenant));
    for job in state.jobs.values_mut() {
        job.tenant = owners.name(&job.tenant);
        if !job.status.is_final()
            && let Ok(earlier) = output::count(&answers(directory, &job.id))
        {
            job.counts = Counts { completed: earlier.answered, failed: earlier.refused, ..job.counts };
        }
    }
}

/// Removes files left by interrupted uploads and deletions.
fn remove_unknown_files(directory: &Path, state: &State) {
    let Ok(entries) = std::fs::read_dir(directory.join("files")) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_str().is_some_and(|name| state.files.contains_key(name)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
