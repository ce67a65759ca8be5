//! Batches as jobs of a server (`/v1/files`, `/v1/batches`): uploaded files and jobs in one directory, with an
//! append-only log as the record of both. `record` has the types, `log` the file, `store` the directory, and
//! `work` runs jobs one after another into idle capacity.

mod log;
mod record;
mod store;
#[cfg(test)]
mod tests;
mod work;

pub use record::{Counts, FileRecord, Job, JobError, NewJob, Purpose, Status};
pub use store::{Store, StoreError, Upload};
pub use work::work;

/// Largest input file, bytes; OpenAI's limit.
pub const MAX_FILE_BYTES: u64 = 200 << 20;
/// Most requests in a batch; OpenAI's limit.
pub const MAX_REQUESTS: u64 = 50_000;
/// Most files and jobs that the directory keeps.
pub const MAX_RECORDS: usize = 10_000;
/// Longest life of a batch, seconds: OpenAI's only completion window.
pub const WINDOW_SECONDS: u64 = 24 * 3600;
