//! File of answers, which also records progress: a restarted run reads it, drops an incomplete last line, and
//! processes only the lines without an answer.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_128;

use super::Answer;
use super::disk::{self, Disk};
use super::input::Item;

/// Answers written so far.
#[derive(Debug)]
pub struct Output {
    file: File,
    path: PathBuf,
    disk: Arc<Disk>,
    /// Length of the whole lines, in bytes.
    end: u64,
    earlier: Earlier,
    /// For each answer of earlier runs, the hash of its `custom_id` and the digest of its input line. A run
    /// requests each line once, so its own answers are not kept.
    done: HashMap<u128, u128>,
}

/// Numbers of lines that earlier runs wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Earlier {
    /// Lines with a successful answer.
    pub answered: u64,
    /// Lines that could not be sent or were refused.
    pub refused: u64,
}

/// Whether an input line has an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// No answer yet.
    Open,
    /// Answered in the output.
    Done,
    /// The `custom_id` has an answer to a different request.
    Changed,
}

/// Why a file cannot store answers.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// Opening, reading or writing failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        error: io::Error,
    },
    /// Another process is writing to the file.
    #[error("{} is in use by another run; wait for it, or give another file", .0.display())]
    InUse(PathBuf),
    /// The file contains something else.
    #[error("line {number} of {} is not an answer of a batch: {reason}; give another file", path.display())]
    NotAnswers {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        number: u64,
        /// Fault in the line.
        reason: String,
    },
}

impl Output {
    /// Opens or creates `path` and reads the answers in it.
    ///
    /// # Errors
    /// If it cannot be opened, another run uses it, or it contains something else.
    pub fn open(path: &Path) -> Result<Self, OutputError> {
        Self::open_on(Arc::default(), path)
    }

    /// [`open`](Self::open) of a file on `disk`.
    pub(super) fn open_on(disk: Arc<Disk>, path: &Path) -> Result<Self, OutputError> {
        let failed = |error| OutputError::Io { path: path.to_owned(), error };
        let mut options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        if disk.is_private() {
            options.mode(0o600);
        }
        let mut file = options.open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OutputError::InUse(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut lines = Lines { reader: BufReader::new(&file), path, number: 0, end: 0 };
        let (mut done, mut earlier) = (HashMap::new(), Earlier::default());
        while let Some(line) = lines.next()? {
            earlier.add(&line);
            done.insert(line.custom_id, line.digest);
        }
        let end = lines.end;
        disk::cut(&mut file, end);
        Ok(Self { file, path: path.to_owned(), disk, end, earlier, done })
    }

    /// Numbers of lines that were there when the file was opened.
    pub fn earlier(&self) -> Earlier {
        self.earlier
    }

    /// Whether nothing was ever written to it.
    pub fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// Whether an earlier run answered `item`.
    pub fn known(&self, item: &Item) -> Known {
        match self.done.get(&xxh3_128(item.custom_id.as_bytes())) {
            None => Known::Open,
            Some(digest) if *digest == item.digest => Known::Done,
            Some(_) => Known::Changed,
        }
    }

    /// Appends the answer to `item`.
    ///
    /// # Errors
    /// If writing fails; the file then has no part of it.
    pub fn append(
        &mut self,
        item: &Item,
        answer: Option<&Answer>,
        error: Option<&str>,
    ) -> Result<(), OutputError> {
        let mut line = line(item, answer, error).to_string();
        line.push('\n');
        let failed = |error| OutputError::Io { path: self.path.clone(), error };
        self.disk.append(&mut self.file, &mut self.end, line.as_bytes()).map_err(failed)?;
        self.disk.note_room();
        Ok(())
    }
}

impl OutputError {
    /// Whether the disk has no room.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { error, .. } if disk::is_full(error))
    }
}

impl Earlier {
    fn add(&mut self, line: &Answered) {
        let count = if line.is_refused { &mut self.refused } else { &mut self.answered };
        *count += 1;
    }
}

/// Counts the lines in `path`, which another run may be writing.
///
/// # Errors
/// If it cannot be read.
pub(super) fn count(path: &Path) -> Result<Earlier, OutputError> {
    let file = File::open(path).map_err(|error| OutputError::Io { path: path.to_owned(), error })?;
    let mut lines = Lines { reader: BufReader::new(&file), path, number: 0, end: 0 };
    let mut earlier = Earlier::default();
    while let Some(line) = lines.next()? {
        earlier.add(&line);
    }
    Ok(earlier)
}

/// The whole lines of a file of answers.
struct Lines<'a> {
    reader: BufReader<&'a File>,
    path: &'a Path,
    number: u64,
    /// Length of the lines read so far, in bytes.
    end: u64,
}

impl Lines<'_> {
    /// The next line. One without an end was cut by a kill.
    fn next(&mut self) -> Result<Option<Answered>, OutputError> {
        let mut line = Vec::new();
        let read = self.reader.read_until(b'\n', &mut line);
        let read = read.map_err(|error| OutputError::Io { path: self.path.to_owned(), error })?;
        if line.last() != Some(&b'\n') {
            return Ok(None);
        }
        self.number += 1;
        let (path, number) = (self.path.to_owned(), self.number);
        let answered =
            Answered::parse(&line).map_err(|reason| OutputError::NotAnswers { path, number, reason })?;
        self.end += read as u64;
        Ok(Some(answered))
    }
}

/// An output line in OpenAI's format: `response` if the server answered, even with a refusal, else `error`.
fn line(item: &Item, answer: Option<&Answer>, error: Option<&str>) -> Value {
    let response = answer.map(|Answer { status, request_id, body, .. }| {
        json!({"status_code": status, "request_id": request_id, "body": body})
    });
    let error = error.map(|message| json!({"code": "invalid_request", "message": message}));
    json!({"id": item.key(), "custom_id": item.custom_id, "response": response, "error": error})
}

/// Whether an output line is that of a request that could not be sent or was refused. Both forms count:
/// `error`, and a response with such a status.
pub(super) fn is_refused(line: &Value) -> bool {
    !line["error"].is_null() || line["response"]["status_code"].as_u64().is_some_and(|status| status >= 400)
}

/// The request that an output line answers.
struct Answered {
    /// Hash of its `custom_id`.
    custom_id: u128,
    /// Digest of its input line.
    digest: u128,
    is_refused: bool,
}

impl Answered {
    fn parse(line: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let custom_id = value["custom_id"].as_str().ok_or("it has no custom_id")?;
        let digest = value["id"].as_str().and_then(|id| id.strip_prefix("batch_req_"));
        let digest = digest.and_then(|digest| u128::from_str_radix(digest, 16).ok());
        let digest = digest.ok_or("its id was not written by skein run-batch")?;
        Ok(Self { custom_id: xxh3_128(custom_id.as_bytes()), digest, is_refused: is_refused(&value) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(custom_id: &str, prompt: &str) -> Item {
        let line = json!({"custom_id": custom_id, "url": "/v1/completions", "body": {"prompt": prompt}});
        Item::parse(line.to_string().as_bytes()).unwrap()
    }

    fn answer(status: u16, body: Value) -> Answer {
        Answer { status, request_id: "r".to_owned(), retry_after: None, body }
    }

    #[test]
    fn a_reopened_output_knows_what_is_done_and_drops_a_cut_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.jsonl");
        let mut output = Output::open(&path).unwrap();
        output.append(&item("a", "x"), Some(&answer(200, json!({"text": "y"}))), None).unwrap();
        output.append(&item("b", "x"), None, Some("url must be")).unwrap();
        drop(output);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..20 {
            let mut bytes = whole.clone();
            bytes.extend_from_slice(&whole[..cut]);
            std::fs::write(&path, bytes).unwrap();
            let mut output = Output::open(&path).unwrap();
            assert_eq!(output.known(&item("b", "x")), Known::Done);
            assert_eq!(output.known(&item("a", "x")), Known::Done);
            assert_eq!(output.known(&item("a", "z")), Known::Changed);
            assert_eq!(output.known(&item("c", "x")), Known::Open);
            output.append(&item("c", "x"), None, Some("no")).unwrap();
            drop(output);
            let lines = std::fs::read_to_string(&path).unwrap();
            assert!(lines.starts_with(std::str::from_utf8(&whole).unwrap()) && lines.lines().count() == 3);
        }
    }

    #[test]
    fn a_line_carries_the_answer_or_the_error() {
        let ok = line(&item("a", "x"), Some(&answer(200, json!({"k": 1}))), None);
        assert_eq!((&ok["response"]["body"]["k"], &ok["error"]), (&json!(1), &Value::Null));
        let refused = answer(400, json!({"error": {"message": "temperature is negative"}}));
        let refused = line(&item("a", "x"), Some(&refused), None);
        assert_eq!((&refused["error"], is_refused(&refused)), (&Value::Null, true));
        let response = &refused["response"];
        assert_eq!(
            (&response["status_code"], &response["body"]["error"]["message"]),
            (&json!(400), &json!("temperature is negative"))
        );
        let unsent = line(&item("a", "x"), None, Some("url must be"));
        assert_eq!((&unsent["response"], &unsent["error"]["message"]), (&Value::Null, &json!("url must be")));
    }

    #[test]
    fn another_file_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes.txt");
        std::fs::write(&path, "{\"custom_id\": \"a\"}\nkeep me\n").unwrap();
        let error = Output::open(&path).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("another file"), "{error}");
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("keep me\n"));
    }

    #[test]
    fn two_runs_cannot_share_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.jsonl");
        let first = Output::open(&path).unwrap();
        assert!(matches!(Output::open(&path), Err(OutputError::InUse(_))));
        drop(first);
        Output::open(&path).unwrap();
    }
}
