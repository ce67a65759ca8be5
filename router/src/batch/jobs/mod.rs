//! Batch jobs of a server (`/v1/files`, `/v1/batches`). Uploaded files and jobs share one directory, and an
//! append-only log records both. `record` defines the types, `log` the log file, `store` the directory,
//! `usage` what each tenant has of it; `work` runs jobs one at a time on idle capacity, after `check` has
//! read their input, and `results` writes their files.

mod check;
mod error;
mod limits;
mod log;
mod record;
mod results;
mod store;
#[cfg(test)]
mod tests;
mod upload;
mod usage;
mod work;

pub use error::StoreError;
pub use limits::{MAX_FILE_BYTES, MAX_RECORDS, MAX_REQUESTS, WINDOW_SECONDS};
pub use record::{Counts, FileRecord, Job, JobError, NewJob, Purpose, Status};
pub use store::Store;
pub use upload::Upload;
pub use work::work;
