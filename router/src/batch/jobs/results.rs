//! The files that a job leaves: its answers, and its refused lines.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::PathBuf;

use skein_node::clock;

use super::error::StoreError;
use super::record::{Counts, Job, Status};
use super::store::Store;
use super::upload::Upload;
use crate::batch::output::is_refused;

/// Writes answers and refused lines to one file each and ends the job. The file ids derive from the job's id,
/// so a repetition after a kill replaces the same files.
///
/// # Errors
/// If the disk fails. The answers stay, and a repetition writes them.
pub(super) fn finalize(store: &Store, job: &Job, end: Status) -> Result<(), StoreError> {
    let path = store.answers(&job.id);
    let hex = job.id.trim_start_matches("batch_");
    let mut output = store.results(job, format!("file-{hex}-output"))?;
    let mut errors = store.results(job, format!("file-{hex}-errors"))?;
    let counts = divide(&path, &mut output, &mut errors)?;
    let Counts { completed, failed, .. } = counts;
    let finish = |file: Upload<'_>, kind: &str, lines: u64| match lines {
        0 => Ok(None),
        _ => file.finish(&format!("{}_{kind}.jsonl", job.id)).map(|record| Some(record.id)),
    };
    let output = finish(output, "output", completed)?;
    let errors = finish(errors, "error", failed)?;
    store.update(&job.id, |job| {
        (job.output_file_id, job.error_file_id) = (output, errors);
        job.counts = Counts { total: job.counts.total, ..counts };
        job.enter(end, clock::unix_time().as_secs());
    })?;
    tracing::info!(batch = job.id, status = ?end, completed, failed, "batch ended");
    let _ = std::fs::remove_file(path);
    Ok(())
}

/// Copies each line of `answers` to one of the two files; returns the numbers of lines.
fn divide(answers: &PathBuf, output: &mut Upload<'_>, errors: &mut Upload<'_>) -> Result<Counts, StoreError> {
    let failed = |error| StoreError::Io { path: answers.clone(), error };
    let mut counts = Counts::default();
    let mut reader = match File::open(answers) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(counts),
        other => BufReader::new(other.map_err(failed)?),
    };
    let mut line = Vec::new();
    loop {
        line.clear();
        reader.read_until(b'\n', &mut line).map_err(failed)?;
        if line.last() != Some(&b'\n') {
            return Ok(counts);
        }
        if is_refused(&serde_json::from_slice(&line).unwrap_or_default()) {
            counts.failed += 1;
            errors.write(&line)?;
        } else {
            counts.completed += 1;
            output.write(&line)?;
        }
    }
}
