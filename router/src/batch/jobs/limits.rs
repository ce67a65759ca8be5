//! Limits of a batch directory.

/// Largest input file, in bytes; OpenAI's limit.
pub const MAX_FILE_BYTES: u64 = 200 << 20;
/// Most requests in a batch; OpenAI's limit.
pub const MAX_REQUESTS: u64 = 50_000;
/// Most files and jobs in the directory; a record takes up to about 10 kB of memory.
pub const MAX_RECORDS: usize = 100_000;
/// Time limit of a batch, in seconds: OpenAI's only completion window.
pub const WINDOW_SECONDS: u64 = 24 * 3600;
