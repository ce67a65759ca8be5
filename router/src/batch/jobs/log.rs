//! Append-only log of a batch directory: one JSON object per line; the last line for an id counts. Each line
//! is synced to disk before a client can observe its effect.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::{FileRecord, Job};

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
        }
    }
}

/// Log locked by this process and open for appending.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
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

impl Log {
    /// Opens or creates the log at `path`, replays it, and compacts it to one line per id. An incomplete last
    /// line is dropped: a kill cut it before a client could observe its effect.
    pub fn open(path: &Path) -> Result<(Self, State), LogError> {
        let options = OpenOptions::new().read(true).append(true).create(true).clone();
        let lock = options.open(path.with_extension("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LogError::InUse),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        // Hold the lock until the process ends; dropping the file would release it.
        std::mem::forget(lock);
        let state = replay(path, &options)?;
        let compact: PathBuf = path.with_extension("new");
        let mut file = File::create(&compact)?;
        for entry in entries(&state) {
            file.write_all(line(&entry).as_bytes())?;
        }
        file.sync_all()?;
        std::fs::rename(&compact, path)?;
        Ok((Self { file: options.open(path)? }, state))
    }

    /// Appends `entry` and syncs it to disk.
    pub fn append(&mut self, entry: &LogLine) -> io::Result<()> {
        self.file.write_all(line(entry).as_bytes())?;
        self.file.sync_data()
    }
}

fn replay(path: &Path, options: &OpenOptions) -> Result<State, LogError> {
    let mut state = State::default();
    let mut reader = BufReader::new(options.open(path)?);
    let (mut text, mut number) = (Vec::new(), 0);
    loop {
        text.clear();
        reader.read_until(b'\n', &mut text)?;
        if text.last() != Some(&b'\n') {
            return Ok(state);
        }
        number += 1;
        let entry = serde_json::from_slice(&text);
        state.apply(entry.map_err(|error| LogError::Line { number, reason: error.to_string() })?);
    }
}

fn entries(state: &State) -> impl Iterator<Item = LogLine> + '_ {
    let files = state.files.values().cloned().map(LogLine::File);
    files.chain(state.jobs.values().cloned().map(|job| LogLine::Job(Box::new(job))))
}

fn line(entry: &LogLine) -> String {
    // Strings, numbers and maps with string keys always serialise.
    serde_json::to_string(entry).unwrap_or_default() + "\n"
}
