//! File of answers, which also records progress: a restarted run reads it, drops an incomplete last line, and
//! processes only the lines without an answer.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_128;

use super::Answer;
use super::input::Item;

/// Answers written so far.
#[derive(Debug)]
pub struct Output {
    file: File,
    path: PathBuf,
    /// For each answer of earlier runs, the hash of its `custom_id` and the digest of its input line. A run
    /// requests each line once, so its own answers are not kept.
    done: HashMap<u128, u128>,
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
        let failed = |error| OutputError::Io { path: path.to_owned(), error };
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let mut file = options.open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OutputError::InUse(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut done = HashMap::new();
        let (mut end, mut number) = (0_u64, 0);
        let mut reader = BufReader::new(&file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line).map_err(failed)?;
            // A line without an end was cut by a kill.
            if read == 0 || line.last() != Some(&b'\n') {
                break;
            }
            number += 1;
            let answered = answered(&line);
            let (custom_id, digest) = answered.map_err(|reason| OutputError::NotAnswers {
                path: path.to_owned(),
                number,
                reason,
            })?;
            done.insert(custom_id, digest);
            end += read as u64;
        }
        file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(failed)?;
        Ok(Self { file, path: path.to_owned(), done })
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
    /// If writing fails.
    pub fn append(
        &mut self,
        item: &Item,
        answer: Option<&Answer>,
        error: Option<&str>,
    ) -> Result<(), OutputError> {
        let mut line = line(item, answer, error).to_string();
        line.push('\n');
        let failed = |error| OutputError::Io { path: self.path.clone(), error };
        self.file.write_all(line.as_bytes()).map_err(failed)
    }
}

/// An output line in OpenAI's format.
fn line(item: &Item, answer: Option<&Answer>, error: Option<&str>) -> Value {
    let response = answer.map(|Answer { status, request_id, body, .. }| {
        json!({"status_code": status, "request_id": request_id, "body": body})
    });
    let refused = answer.filter(|answer| answer.status >= 400).map(|answer| {
        let message = answer.body["error"]["message"].as_str();
        json!({"code": answer.status.to_string(), "message": message.unwrap_or("the server refused the request")})
    });
    let error = error.map(|message| json!({"code": "invalid_request", "message": message})).or(refused);
    json!({"id": item.key(), "custom_id": item.custom_id, "response": response, "error": error})
}

/// Hash of the `custom_id` and digest of the request that an output line answers.
fn answered(line: &[u8]) -> Result<(u128, u128), String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let custom_id = value["custom_id"].as_str().ok_or("it has no custom_id")?;
    let digest = value["id"].as_str().and_then(|id| id.strip_prefix("batch_req_"));
    let digest = digest.and_then(|digest| u128::from_str_radix(digest, 16).ok());
    Ok((xxh3_128(custom_id.as_bytes()), digest.ok_or("its id was not written by skein run-batch")?))
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
        assert_eq!(refused["error"], json!({"code": "400", "message": "temperature is negative"}));
        assert_eq!(refused["response"]["status_code"], 400);
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
