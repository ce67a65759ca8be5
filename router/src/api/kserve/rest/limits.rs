//! Limits of the REST paths, beside those of every API over HTTP.

/// Most nested lists of a tensor's `data`.
pub const MAX_DATA_DEPTH: usize = 8;
