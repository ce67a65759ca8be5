//! Background requests, such as those of a batch: they use idle capacity and hardly delay other requests.
//!
//! While a prompt of another request is being computed, background requests get no rows. If there was another
//! request recently, they get few rows per step, so that a new request waits at most for a slightly longer
//! step. Otherwise they get all rows.

use std::time::Duration;

use skein_node::clock::Timestamp;

use super::Scheduler;
use super::class::Class;
use super::step::Plan;
use super::step_time::Work;

/// How long after the last other request background requests get only few rows.
const OTHERS_LATELY: Duration = Duration::from_secs(10);
/// During that time, they lengthen a step by at most this fraction (1 / n) of its fixed cost, or by
/// [`LEAST_EXTRA`] if that is more.
const EXTRA_SHARE: u32 = 3;
const LEAST_EXTRA: Duration = Duration::from_micros(500);
/// Rows of background requests during that time, while step times are unknown.
const ROWS_AT_FIRST: u32 = 4;

impl Scheduler {
    /// Most rows of background requests in `plan`, which already contains all other rows. Must be called for
    /// each plan, because it also records the time of the last other request.
    pub(super) fn background_rows(&mut self, plan: &Plan, now: Timestamp) -> u32 {
        if self.queues.all().any(|sequence| Class::Foreground.has(sequence.rank)) {
            self.others_seen = Some(now);
        }
        if plan.step.prompt_rows() > 0 {
            return 0;
        }
        match self.others_seen {
            Some(seen) if now.since(seen) < OTHERS_LATELY => self.rows_of_little_time(),
            _ => u32::MAX,
        }
    }

    fn rows_of_little_time(&self) -> u32 {
        let fixed = self.pace.step_time.fixed();
        let extra = (fixed / EXTRA_SHARE).max(LEAST_EXTRA);
        let rows = self.pace.step_time.tokens_within(fixed + extra, Work::default(), 0);
        rows.unwrap_or(ROWS_AT_FIRST).max(1)
    }

    /// Whether there is a background request.
    pub(super) fn has_background(&self) -> bool {
        let last_waiting = self.queues.waiting.last_key_value().map(|(rank, _)| *rank);
        let last_running = self.queues.running.last().map(|sequence| sequence.rank);
        last_waiting.into_iter().chain(last_running).any(|rank| Class::Background.has(rank))
    }
}
