//! Files and jobs, in the log's and the API's form. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::limits::WINDOW_SECONDS;
use crate::batch::Endpoint;
use crate::tenants::Rights;

/// Purpose of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Input of a batch, uploaded by a client.
    Batch,
    /// Output of a batch: answers or errors.
    BatchOutput,
}

/// Record of a stored file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Id: `file-` and 32 hexadecimal digits.
    pub id: String,
    /// Name of the tenant that owns it.
    pub tenant: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Creation time, seconds since 1970.
    pub created_at: u64,
    /// File name given by the client.
    pub filename: String,
    /// Use of the file.
    pub purpose: Purpose,
}

impl FileRecord {
    /// The file object of OpenAI's API.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id, "object": "file", "bytes": self.bytes, "created_at": self.created_at,
            "filename": self.filename, "purpose": self.purpose, "status": "processed",
        })
    }
}

/// Status of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The input is being checked.
    Validating,
    /// The input is invalid, or the answers could not be written.
    Failed,
    /// Requests are running.
    InProgress,
    /// Output files are being written.
    Finalizing,
    /// Every line has an answer or an error.
    Completed,
    /// The time limit passed; the output holds the answers up to then.
    Expired,
    /// Cancelled; running requests are still ending.
    Cancelling,
    /// Cancelled; the output holds the answers up to then.
    Cancelled,
}

impl Status {
    /// Whether the job has ended.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }
}

/// Numbers of requests in a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests in the input.
    pub total: u64,
    /// Requests with a successful answer.
    pub completed: u64,
    /// Requests that were refused.
    pub failed: u64,
}

/// Fault in a job's input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobError {
    /// Machine-readable code, as in OpenAI's API.
    pub code: String,
    /// Fault and remedy.
    pub message: String,
    /// Number of the input line, from 1.
    pub line: Option<u64>,
}

/// Client's request to create a job.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// Endpoint of every line.
    pub endpoint: Endpoint,
    /// Id of the uploaded input.
    pub input_file_id: String,
    /// The client's key-value pairs, at most 16.
    pub metadata: Map<String, Value>,
    /// What its requests may ask for; `None` = anything.
    pub rights: Option<Rights>,
}

/// Record of a batch job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Id: `batch_` and 32 hexadecimal digits.
    pub id: String,
    /// Name of the tenant that owns it.
    pub tenant: String,
    /// URL path of its requests.
    pub endpoint: String,
    /// Uploaded file of requests.
    pub input_file_id: String,
    /// Current status of the job.
    pub status: Status,
    /// File of answers, once the job has ended.
    pub output_file_id: Option<String>,
    /// File of refused lines, once the job has ended.
    pub error_file_id: Option<String>,
    /// Faults in the input.
    pub errors: Vec<JobError>,
    /// Numbers of requests so far.
    pub counts: Counts,
    /// The client's key-value pairs.
    pub metadata: Map<String, Value>,
    /// What the key that created it could ask for; `None` = anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rights: Option<Rights>,
    /// Time of creation and of each status reached, seconds since 1970, under OpenAI's names.
    pub times: Map<String, Value>,
}

impl Job {
    /// Record of a newly accepted job.
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
            rights: new.rights,
            times,
        }
    }

    /// Sets the status at time `now`, seconds since 1970.
    pub fn enter(&mut self, status: Status, now: u64) {
        self.status = status;
        if let Ok(Value::String(name)) = serde_json::to_value(status) {
            self.times.insert(format!("{name}_at"), now.into());
        }
    }

    /// Time limit, seconds since 1970.
    pub fn expires_at(&self) -> u64 {
        self.times["expires_at"].as_u64().unwrap_or(0)
    }

    /// Creation time, seconds since 1970.
    pub fn created_at(&self) -> u64 {
        self.times["created_at"].as_u64().unwrap_or(0)
    }

    /// The batch object of OpenAI's API.
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
