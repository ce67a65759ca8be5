//! Ids of answers.

/// What ids of answers begin with.
pub const PREFIX: &str = "resp_";
