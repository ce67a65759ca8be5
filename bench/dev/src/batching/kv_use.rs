//! Usage of KV memory in the categories of the PagedAttention paper (Kwon et al. 2023, figure 2).

use std::time::Duration;

/// KV memory at one moment, in tokens. The rest is free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Holds the keys and values of a running job's tokens.
    pub live: u64,
    /// Reserved for future tokens of a running job.
    pub reserved: u64,
    /// Allocated but never used: reserved beyond the job's end, or padding.
    pub internal: u64,
    /// Free, but in pieces too small for the first queued job, although their sum would suffice.
    pub external: u64,
}

/// [`Held`] integrated over time, in token-seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KvUse {
    live: f64,
    reserved: f64,
    internal: f64,
    external: f64,
}

impl KvUse {
    /// Adds `held` over the duration `took`.
    pub fn add(&mut self, held: Held, took: Duration) {
        let seconds = took.as_secs_f64();
        self.live += held.live as f64 * seconds;
        self.reserved += held.reserved as f64 * seconds;
        self.internal += held.internal as f64 * seconds;
        self.external += held.external as f64 * seconds;
    }

    /// Fractions of live, reserved, internal and external memory, summing to 1.
    pub fn shares(&self) -> [f64; 4] {
        let total = (self.live + self.reserved + self.internal + self.external).max(f64::MIN_POSITIVE);
        [self.live, self.reserved, self.internal, self.external].map(|part| part / total)
    }
}
