//! Batch jobs of a server (`/v1/files`, `/v1/batches`). Uploaded files and jobs share one directory, and an
//! append-only log records both. `record` defines the types, `log` the log file, `store` the directory;
//! `work` runs jobs one at a time on idle capacity.

mod log;
mod record;
mod store;
#[cfg(test)]
mod tests;
mod work;

pub use record::{Counts, FileRecord, Job, JobError, NewJob, Purpose, Status};
pub use store::{Store, StoreError, Upload};
pub use work::work;

/// Largest input file, in bytes; OpenAI's limit.
pub const MAX_FILE_BYTES: u64 = 200 << 20;
/// Most requests in a batch; OpenAI's limit.
pub const MAX_REQUESTS: u64 = 50_000;
/// Most files and jobs in the directory.
pub const MAX_RECORDS: usize = 10_000;
/// Time limit of a batch, in seconds: OpenAI's only completion window.
pub const WINDOW_SECONDS: u64 = 24 * 3600;
