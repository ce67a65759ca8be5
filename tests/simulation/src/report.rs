//! The log of a run: one line per event, a hash of all lines, and the last lines in full.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use crate::executor;

/// Lines kept for the report of a failure.
const TAIL_LINES: usize = 400;

/// The log of one run.
#[derive(Default)]
pub struct Log(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    tail: VecDeque<String>,
    lines: u64,
    hash: Xxh3,
    violation: Option<String>,
    /// Times of the faults.
    disturbances: Vec<Duration>,
    /// Whether the network has lost, doubled or swapped a message.
    is_abused: bool,
    /// Draft tokens that were right.
    accepted: u64,
    /// Whether to print every line at once, for a replay.
    loud: bool,
}

impl Log {
    /// A log that also prints its lines.
    pub fn loud() -> Self {
        let log = Self::default();
        log.lock().loud = true;
        log
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs an event at `who`.
    pub fn say(&self, who: &str, what: std::fmt::Arguments<'_>) {
        let line = format!("{:>9.3} {who:<4} {what}", executor::elapsed().as_secs_f64());
        let inner = &mut *self.lock();
        inner.hash.update(line.as_bytes());
        inner.hash.update(b"\n");
        inner.lines += 1;
        if inner.loud {
            println!("{line}");
        }
        if inner.tail.len() == TAIL_LINES {
            inner.tail.pop_front();
        }
        inner.tail.push_back(line);
    }

    /// Logs a violated invariant. The first one ends the run.
    pub fn violated(&self, who: &str, what: std::fmt::Arguments<'_>) {
        self.say(who, format_args!("VIOLATED: {what}"));
        self.lock().violation.get_or_insert_with(|| format!("{who}: {what}"));
    }

    /// Counts a fault.
    pub fn disturbed(&self) {
        self.lock().disturbances.push(executor::elapsed());
    }

    /// Counts a message that was lost, doubled or swapped.
    pub fn abused(&self) {
        self.disturbed();
        self.lock().is_abused = true;
    }

    /// Whether the network has lost, doubled or swapped a message.
    pub fn is_abused(&self) -> bool {
        self.lock().is_abused
    }

    /// Number of faults at or after the time `since`.
    pub fn disturbances_since(&self, since: Duration) -> usize {
        let inner = self.lock();
        inner.disturbances.len() - inner.disturbances.partition_point(|&at| at < since)
    }

    /// Counts draft tokens that were right.
    pub fn accepted(&self, tokens: u64) {
        self.lock().accepted += tokens;
    }

    /// Draft tokens that were right.
    pub fn all_accepted(&self) -> u64 {
        self.lock().accepted
    }

    /// The first violated invariant, if any.
    pub fn violation(&self) -> Option<String> {
        self.lock().violation.clone()
    }

    /// Hash and number of all lines.
    pub fn digest(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.hash.digest(), inner.lines)
    }

    /// The last lines, oldest first.
    pub fn tail(&self) -> Vec<String> {
        self.lock().tail.iter().cloned().collect()
    }
}
