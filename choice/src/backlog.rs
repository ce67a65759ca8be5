//! Prompt tokens that a worker has still to compute, between two of its reports. Pure.
//!
//! A report counts them exactly, and is soon old: the worker computes on, and requests arrive from this
//! router and from others. So the count is continued: what arrives is added when it arrives, and while
//! there is any, it shrinks at the worker's measured rate. A first token says more: what its request waited
//! for is computed.

use std::time::Duration;

use skein_node::clock::Timestamp;

/// How long after a report the worker is assumed to compute. Then it may be stuck.
const COMPUTES_FOR: Duration = Duration::from_secs(1);

/// Tokens since the last report.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Backlog {
    /// Tokens of the report, and those that were added since.
    total: u64,
    /// Of these, the number known to be computed.
    known: u64,
    /// Of these, the estimated number of computed ones at the time `at`.
    computed: f64,
    at: Timestamp,
    /// From this time on no more of them is assumed to be computed.
    until: Timestamp,
    /// Tokens a second; 0 = unknown.
    rate: f64,
}

impl Backlog {
    /// Starts from a report of `tokens`, at the rate that it has. `unseen` tokens were not on the worker when
    /// it was written.
    pub fn report(&mut self, now: Timestamp, tokens: u64, unseen: u64, rate: f32) {
        let rate = if rate.is_finite() { f64::from(rate.max(0.0)) } else { 0.0 };
        *self = Self {
            total: tokens + unseen,
            known: 0,
            computed: 0.0,
            at: now,
            until: now + COMPUTES_FOR,
            rate,
        };
    }

    /// Adds the tokens of a request that arrives at the worker now.
    pub fn add(&mut self, now: Timestamp, tokens: u64) {
        self.computed = self.computed_at(now);
        self.at = now;
        self.total += tokens;
    }

    /// Records that `tokens` of them are computed.
    pub fn done(&mut self, now: Timestamp, tokens: u64) {
        self.known = (self.known + tokens).min(self.total);
        self.computed = self.computed_at(now).max(self.known as f64);
        self.at = now;
    }

    /// Removes tokens that will not be computed.
    pub fn withdraw(&mut self, tokens: u64) {
        self.total = self.total.saturating_sub(tokens);
        self.known = self.known.min(self.total);
    }

    /// Tokens that are left, as far as known for certain.
    pub fn most_left(&self) -> u64 {
        self.total - self.known
    }

    /// Tokens that are probably left.
    #[inline]
    pub fn left(&self, now: Timestamp) -> u64 {
        if self.total == self.known { 0 } else { self.total - (self.computed_at(now) as u64).min(self.total) }
    }

    #[inline]
    fn computed_at(&self, now: Timestamp) -> f64 {
        let time = now.min(self.until).since(self.at).as_secs_f64();
        (self.computed + time * self.rate).min(self.total as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_start(Duration::from_millis(ms))
    }

    /// 1000 tokens reported at time 0 by a worker that computes 1000 a second.
    fn reported() -> Backlog {
        let mut backlog = Backlog::default();
        backlog.report(at(0), 1000, 0, 1000.0);
        backlog
    }

    #[test]
    fn it_shrinks_at_the_measured_rate_and_not_below_nothing() {
        let mut backlog = reported();
        assert_eq!((backlog.left(at(0)), backlog.left(at(300)), backlog.most_left()), (1000, 700, 1000));
        backlog.report(at(0), 500, 0, 1000.0);
        assert_eq!(backlog.left(at(900)), 0);
        // What arrives at an idle worker begins only then.
        backlog.add(at(900), 90);
        assert_eq!((backlog.left(at(900)), backlog.left(at(930))), (90, 60));
    }

    #[test]
    fn without_reports_or_a_rate_it_stays() {
        let mut backlog = Backlog::default();
        backlog.report(at(0), 5000, 10, 1000.0);
        assert_eq!((backlog.left(at(1000)), backlog.left(at(9000))), (4010, 4010));
        for rate in [0.0, f32::NAN, -1.0, f32::INFINITY] {
            backlog.report(at(0), 500, 0, rate);
            assert_eq!(backlog.left(at(900)), 500, "{rate}");
        }
    }

    #[test]
    fn a_first_token_says_more_than_the_time() {
        let mut backlog = reported();
        backlog.done(at(100), 400);
        assert_eq!((backlog.left(at(100)), backlog.left(at(200)), backlog.most_left()), (600, 500, 600));
        // It computed less than its rate said: what is known for certain is not counted twice.
        let mut backlog = reported();
        backlog.done(at(600), 400);
        assert_eq!((backlog.left(at(600)), backlog.most_left()), (400, 600));
        backlog.done(at(600), 5000);
        assert_eq!((backlog.left(at(600)), backlog.most_left()), (0, 0));
    }

    #[test]
    fn what_was_cancelled_is_not_waited_for() {
        let mut backlog = reported();
        backlog.add(at(0), 500);
        backlog.withdraw(500);
        assert_eq!(backlog.left(at(500)), 500);
        backlog.done(at(500), 300);
        backlog.withdraw(900);
        assert_eq!((backlog.left(at(500)), backlog.most_left()), (0, 0));
    }
}
