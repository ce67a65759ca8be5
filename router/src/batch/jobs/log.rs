//! Append-only log of a batch directory: one JSON object per line; the last line for an id counts. Each line
//! is synced to disk before a client can observe its effect.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::record::{FileRecord, Job};
use crate::batch::disk::{self, Disk};

/// One log line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LogLine {
    /// A file exists.
    File(FileRecord),
    /// The file with this id was deleted.
    Deleted(String),
    /// Latest state of a job.
    Job(Box<Job>),
    /// The ended job with this id made room for another.
    Forgotten(String),
}

/// Current files and jobs by id.
#[derive(Debug, Default)]
pub(super) struct State {
    pub files: BTreeMap<String, FileRecord>,
    pub jobs: BTreeMap<String, Job>,
}

impl State {
    pub fn apply(&mut self, entry: LogLine) {
        match entry {
            LogLine::File(file) => drop(self.files.insert(file.id.clone(), file)),
            LogLine::Deleted(id) => drop(self.files.remove(&id)),
            LogLine::Job(job) => drop(self.jobs.insert(job.id.clone(), *job)),
            LogLine::Forgotten(id) => drop(self.jobs.remove(&id)),
        }
    }

    /// What is recorded now, line by line.
    fn entries(&self) -> impl Iterator<Item = LogLine> + '_ {
        let files = self.files.values().cloned().map(LogLine::File);
        files.chain(self.jobs.values().cloned().map(|job| LogLine::Job(Box::new(job))))
    }
}

/// Log locked by this process and open for appending.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    /// Length of the whole lines, in bytes.
    end: u64,
    disk: Arc<Disk>,
    /// Locked until it is dropped.
    _lock: File,
}

/// Why a log cannot be opened.
#[derive(Debug)]
pub(super) enum LogError {
    Io(io::Error),
    InUse,
    Line { number: u64, reason: String },
}

impl From<io::Error> for LogError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Locked by the process that has the log at `path`.
pub(super) fn lock_file(path: &Path) -> PathBuf {
    path.with_extension("lock")
}

impl Log {
    /// Opens or creates the log at `path` and replays it. An incomplete last line is dropped: a kill cut it
    /// before a client could observe its effect.
    pub fn open(path: &Path, disk: Arc<Disk>) -> Result<(Self, State), LogError> {
        let lock = options().open(lock_file(path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LogError::InUse),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        // Opening a named pipe would wait for a writer.
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file").into());
        }
        let mut file = options().open(path)?;
        let mut state = State::default();
        let end = replay(&file, &mut state)?;
        disk::cut(&mut file, end);
        Ok((Self { file, end, disk, _lock: lock }, state))
    }

    /// Replaces the log at `path` by a line for each id in `state`. A full disk keeps it as it is.
    pub fn compact(&mut self, path: &Path, state: &State) -> io::Result<()> {
        let draft: PathBuf = path.with_extension("new");
        let written = self.write_all(&draft, state).and_then(|end| {
            std::fs::rename(&draft, path)?;
            Ok(end)
        });
        match written {
            Ok(end) => {
                (self.file, self.end) = (options().open(path)?, end);
                Ok(())
            }
            Err(error) => {
                let _ = std::fs::remove_file(&draft);
                if disk::is_full(&error) { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Writes `state` to a new file; returns its length in bytes.
    fn write_all(&self, path: &Path, state: &State) -> io::Result<u64> {
        let (mut file, mut end) = (self.disk.create(path)?, 0);
        for entry in state.entries() {
            self.disk.append(&mut file, &mut end, line(&entry).as_bytes())?;
        }
        self.disk.sync(&file)?;
        Ok(end)
    }

    /// Appends `entry` and syncs it to disk. If this fails, the log ends as before.
    pub fn append(&mut self, entry: &LogLine) -> io::Result<()> {
        let before = self.end;
        self.disk.append(&mut self.file, &mut self.end, line(entry).as_bytes())?;
        self.disk.sync(&self.file).inspect_err(|_| {
            disk::cut(&mut self.file, before);
            self.end = before;
        })
    }
}

fn options() -> OpenOptions {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).clone()
}

/// Applies the lines of `file` to `state`; returns the length of the whole lines, in bytes.
fn replay(file: &File, state: &mut State) -> Result<u64, LogError> {
    let mut reader = BufReader::new(file);
    let (mut text, mut number, mut end) = (Vec::new(), 0, 0);
    loop {
        text.clear();
        reader.read_until(b'\n', &mut text)?;
        if text.last() != Some(&b'\n') {
            return Ok(end);
        }
        number += 1;
        let entry = serde_json::from_slice(&text);
        state.apply(entry.map_err(|error| LogError::Line { number, reason: error.to_string() })?);
        end += text.len() as u64;
    }
}

fn line(entry: &LogLine) -> String {
    // Strings, numbers and maps with string keys always serialise.
    serde_json::to_string(entry).unwrap_or_default() + "\n"
}
