//! Files and jobs, as the log keeps them and as the API shows them. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::WINDOW_SECONDS;
use crate::batch::Endpoint;

/// Why a file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Input of a batch, uploaded by a client.
    Batch,
    /// Answers or errors of a batch.
    BatchOutput,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileRecord {
    /// `file-` and 32 hexadecimal digits.
    pub id: String,
    /// Name of the tenant that owns it.
    pub tenant: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Seconds since 1970.
    pub created_at: u64,
    /// Name that the client gave.
    pub filename: String,
    /// What it is for.
    pub purpose: Purpose,
}

impl FileRecord {
    /// OpenAI's file object.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id, "object": "file", "bytes": self.bytes, "created_at": self.created_at,
            "filename": self.filename, "purpose": self.purpose, "status": "processed",
        })
    }
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its input is read and checked.
    Validating,
    /// Its input is wrong, or its answers could not be written.
    Failed,
    /// Its requests run.
    InProgress,
    /// Its output files are written.
    Finalizing,
    /// Every line has an answer or an error.
    Completed,
    /// The window closed first; what was answered is in the output.
    Expired,
    /// It was cancelled, and its running requests end.
    Cancelling,
    /// It was cancelled; what was answered is in the output.
    Cancelled,
}

impl Status {
    /// Whether nothing more happens to the job.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }
}

/// Lines of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests of the input.
    pub total: u64,
    /// Of these, those with a successful answer.
    pub completed: u64,
    /// Of these, those that were refused.
    pub failed: u64,
}

/// Something wrong with a job's input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobError {
    /// A word for programs.
    pub code: String,
    /// What is wrong, and what to do.
    pub message: String,
    /// Line of the input, from 1.
    pub line: Option<u64>,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// Every line's `url`.
    pub endpoint: Endpoint,
    /// The uploaded input.
    pub input_file_id: String,
    /// The client's own words, at most 16.
    pub metadata: Map<String, Value>,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// `batch_` and 32 hexadecimal digits.
    pub id: String,
    /// Name of the tenant that owns it.
    pub tenant: String,
    /// Path of its requests.
    pub endpoint: String,
    /// The input.
    pub input_file_id: String,
    /// Where it is.
    pub status: Status,
    /// Answers, once it has ended.
    pub output_file_id: Option<String>,
    /// Refused lines, once it has ended.
    pub error_file_id: Option<String>,
    /// What is wrong with the input.
    pub errors: Vec<JobError>,
    /// Lines so far.
    pub counts: Counts,
    /// The client's own words.
    pub metadata: Map<String, Value>,
    /// Seconds since 1970 of its creation, and of each status that it reached, by OpenAI's names.
    pub times: Map<String, Value>,
}

impl Job {
    /// A job that has just been accepted.
    pub fn new(id: String, tenant: String, new: NewJob, now: u64) -> Self {
        let mut times = Map::new();
        times.insert("created_at".into(), now.into());
        times.insert("expires_at".into(), (now + WINDOW_SECONDS).into());
        Self {
            id,
            tenant,
            endpoint: new.endpoint.path().to_owned(),
            input_file_id: new.input_file_id,
            status: Status::Validating,
            output_file_id: None,
            error_file_id: None,
            errors: Vec::new(),
            counts: Counts::default(),
            metadata: new.metadata,
            times,
        }
    }

    /// Moves it to `status` at `now`, seconds since 1970.
    pub fn enter(&mut self, status: Status, now: u64) {
        self.status = status;
        if let Ok(Value::String(name)) = serde_json::to_value(status) {
            self.times.insert(format!("{name}_at"), now.into());
        }
    }

    /// When its window closes, seconds since 1970.
    pub fn expires_at(&self) -> u64 {
        self.times["expires_at"].as_u64().unwrap_or(0)
    }

    /// When it was created, seconds since 1970.
    pub fn created_at(&self) -> u64 {
        self.times["created_at"].as_u64().unwrap_or(0)
    }

    /// OpenAI's batch object.
    pub fn to_json(&self) -> Value {
        let time = |status: &str| self.times.get(&format!("{status}_at")).cloned().unwrap_or(Value::Null);
        let errors = (!self.errors.is_empty()).then(|| {
            let one = |error: &JobError| {
                json!({"code": error.code, "message": error.message, "param": null, "line": error.line})
            };
            json!({"object": "list", "data": self.errors.iter().map(one).collect::<Vec<_>>()})
        });
        json!({
            "id": self.id, "object": "batch", "endpoint": self.endpoint, "errors": errors,
            "input_file_id": self.input_file_id, "completion_window": "24h", "status": self.status,
            "output_file_id": self.output_file_id, "error_file_id": self.error_file_id,
            "created_at": time("created"), "in_progress_at": time("in_progress"),
            "expires_at": time("expires"), "finalizing_at": time("finalizing"),
            "completed_at": time("completed"), "failed_at": time("failed"), "expired_at": time("expired"),
            "cancelling_at": time("cancelling"), "cancelled_at": time("cancelled"),
            "request_counts": self.counts, "metadata": self.metadata,
        })
    }
}
