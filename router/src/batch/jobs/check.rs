//! Checks a job's input before its first request is sent.

use std::collections::HashSet;
use std::io::ErrorKind;

use tokio::io::BufReader;
use xxhash_rust::xxh3::xxh3_128;

use super::error::StoreError;
use super::limits::MAX_REQUESTS;
use super::record::{Job, JobError};
use super::store::Store;
use crate::batch::input::{InputError, Item, Lines};

/// Most faults reported for an input.
const MOST_FAULTS: usize = 20;

/// Reads the whole input; returns its number of requests, or its faults.
///
/// # Errors
/// If the disk fails.
pub(super) async fn check(store: &Store, job: &Job) -> Result<Result<u64, Vec<JobError>>, StoreError> {
    let path = store.content(&job.input_file_id);
    let one =
        |code: &str, message: String, line| Ok(Err(vec![JobError { code: code.into(), message, line }]));
    let input = match tokio::fs::File::open(&path).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return one("invalid_file", "the input was deleted".to_owned(), None);
        }
        other => other.map_err(|error| StoreError::Io { path: path.clone(), error })?,
    };
    let mut lines = Lines::new(BufReader::new(input));
    let (mut names, mut faults) = (HashSet::new(), Vec::new());
    loop {
        let (number, item) = match lines.next().await {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err(InputError::Unreadable(error)) => return Err(StoreError::Io { path, error }),
            Err(error) => {
                let line = if let InputError::Line { number, .. } = &error { Some(*number) } else { None };
                return one("invalid_json_line", error.to_string(), line);
            }
        };
        let is_new = names.insert(xxh3_128(item.custom_id.as_bytes()));
        let found = of_line(job, &item, is_new).into_iter();
        faults.extend(found.map(|(code, message)| JobError {
            code: code.into(),
            message,
            line: Some(number),
        }));
        if names.len() as u64 > MAX_REQUESTS {
            let message = format!("the input has more than {MAX_REQUESTS} requests; split it");
            return one("too_many_requests", message, Some(number));
        }
        if faults.len() >= MOST_FAULTS {
            break;
        }
    }
    match (faults.is_empty(), names.len()) {
        (true, 0) => one("empty_file", "the input has no request".into(), None),
        (true, total) => Ok(Ok(total as u64)),
        (false, _) => Ok(Err(faults)),
    }
}

/// Codes and messages of the faults of a line.
fn of_line(job: &Job, item: &Item, is_new: bool) -> Vec<(&'static str, String)> {
    let mut faults = Vec::new();
    if !is_new {
        faults.push(("duplicate_custom_id", format!("the custom_id `{}` is used twice", item.custom_id)));
    }
    if let Ok(call) = &item.call
        && call.endpoint.path() != job.endpoint
    {
        let message = format!("url is {}, but the batch is for {}", call.endpoint.path(), job.endpoint);
        faults.push(("mismatched_endpoint", message));
    }
    faults
}
