//! What KV memory is used for, in the terms of the PagedAttention paper (Kwon et al. 2023, figure 2).

use std::time::Duration;

/// KV memory at one moment, in tokens. What none of the fields counts is free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Holds keys and values of a token of a running job.
    pub live: u64,
    /// Held for tokens that a running job will have later.
    pub reserved: u64,
    /// Held by a job that will never use it: what it reserved beyond its end, or padding.
    pub internal: u64,
    /// Free, but in pieces too small for the job at the head of the queue, which all of them together would
    /// hold.
    pub external: u64,
}

/// [`Held`] over time, in token-seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KvUse {
    live: f64,
    reserved: f64,
    internal: f64,
    external: f64,
}

impl KvUse {
    /// Adds `held` for the duration `took`.
    pub fn add(&mut self, held: Held, took: Duration) {
        let seconds = took.as_secs_f64();
        self.live += held.live as f64 * seconds;
        self.reserved += held.reserved as f64 * seconds;
        self.internal += held.internal as f64 * seconds;
        self.external += held.external as f64 * seconds;
    }

    /// Shares of live, reserved, internal and external memory in their sum, each 0 to 1.
    pub fn shares(&self) -> [f64; 4] {
        let total = (self.live + self.reserved + self.internal + self.external).max(f64::MIN_POSITIVE);
        [self.live, self.reserved, self.internal, self.external].map(|part| part / total)
    }
}
