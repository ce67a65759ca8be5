//! Circuit breaker: keeps requests away from a worker that keeps failing. Pure.
//!
//! Only one of three classes of outcome counts against a worker: a *fault* (broken stream, refused
//! connection, gap, frozen engine). *Backpressure* does not, because a full worker is healthy, nor do
//! *neutral* outcomes (client errors, cancellations, deadlines).

use std::time::Duration;

use skein_node::clock::Timestamp;

/// Consecutive faults that open the breaker.
const FAULTS_TO_OPEN: u32 = 3;
/// How long the breaker stays open at first; doubles with each failed probe.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A probe without an outcome by then is given up, so that a lost probe cannot exclude a worker forever.
const PROBE_FOR: Duration = Duration::from_secs(10);

/// The outcome of a dispatch, as far as the worker is responsible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The worker sent tokens.
    Success,
    /// The worker failed.
    Fault,
    /// The worker reported that it is full.
    Backpressure,
    /// An outcome that says nothing about the worker.
    Neutral,
}

/// One worker's breaker.
#[derive(Debug, Clone, Default)]
pub struct Breaker {
    faults: u32,
    pause: Duration,
    open_until: Option<Timestamp>,
    probe_until: Option<Timestamp>,
}

impl Breaker {
    /// Whether the worker may get a request: always while closed, one at a time while half open.
    pub fn allows(&self, now: Timestamp) -> bool {
        self.open_until.is_none_or(|until| now >= until && self.probe_until.is_none_or(|probe| now >= probe))
    }

    /// Earliest known time at which it lets a request through; zero while closed.
    pub fn open_at(&self) -> Timestamp {
        self.open_until.map_or(Timestamp::ZERO, |until| until.max(self.probe_until.unwrap_or_default()))
    }

    /// Records that a request goes to the worker; while half open, it is the probe.
    pub fn dispatched(&mut self, now: Timestamp) {
        if self.open_until.is_some() {
            self.probe_until = Some(now + PROBE_FOR);
        }
    }

    /// Records the outcome of a request.
    pub fn record(&mut self, now: Timestamp, outcome: Outcome) {
        match outcome {
            Outcome::Success => *self = Self::default(),
            Outcome::Backpressure | Outcome::Neutral => self.probe_until = None,
            Outcome::Fault => {
                self.faults += 1;
                // Ignore faults of requests that were sent before it opened.
                let waiting = self.open_until.is_some_and(|until| now < until);
                if self.faults >= FAULTS_TO_OPEN && !waiting {
                    let longer = (self.pause * 2).min(LONGEST_PAUSE);
                    self.pause = if self.pause.is_zero() { FIRST_PAUSE } else { longer };
                    self.open_until = Some(now + self.pause);
                    self.probe_until = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_start(Duration::from_millis(ms))
    }

    /// Replays (time in ms, outcome) and checks at each of `probes` (ms) whether a request is allowed.
    fn check(history: &[(u64, Outcome)], probes: &[(u64, bool)]) {
        let mut breaker = Breaker::default();
        for &(ms, outcome) in history {
            if breaker.allows(at(ms)) {
                breaker.dispatched(at(ms));
            }
            breaker.record(at(ms), outcome);
        }
        for &(ms, allowed) in probes {
            assert_eq!(breaker.allows(at(ms)), allowed, "at {ms} ms after {history:?}");
        }
    }

    #[test]
    fn only_consecutive_faults_open_it() {
        use Outcome::{Backpressure, Fault, Neutral, Success};
        check(&[(0, Fault), (1, Fault)], &[(2, true)]);
        check(&[(0, Fault), (1, Fault), (2, Success), (3, Fault), (4, Fault)], &[(5, true)]);
        check(&[(0, Backpressure); 50], &[(5, true)]);
        check(&[(0, Neutral); 50], &[(5, true)]);
        check(
            &[(0, Fault), (0, Neutral), (0, Fault), (0, Backpressure), (0, Fault)],
            &[(999, false), (1000, true)],
        );
    }

    #[test]
    fn a_failed_probe_doubles_the_pause_and_a_good_one_closes_it() {
        use Outcome::{Fault, Success};
        let opened = [(0, Fault), (0, Fault), (0, Fault)];
        check(&[&opened[..], &[(1000, Fault)]].concat(), &[(2999, false), (3000, true)]);
        check(&[&opened[..], &[(500, Fault)]].concat(), &[(999, false), (1000, true)]);
        check(&[&opened[..], &[(1000, Success)]].concat(), &[(1001, true)]);
    }

    #[test]
    fn half_open_lets_one_request_through_at_a_time() {
        let mut breaker = Breaker::default();
        (0..3).for_each(|_| breaker.record(at(0), Outcome::Fault));
        assert!(breaker.allows(at(1000)));
        breaker.dispatched(at(1000));
        assert!(!breaker.allows(at(1500)));
        assert!(breaker.allows(at(11_000)), "a lost probe is given up");
    }

    #[test]
    fn healthy_hours_never_open_it() {
        use Outcome::{Backpressure, Neutral, Success};
        const HOUR_MS: u64 = 3_600_000;
        let mut breaker = Breaker::default();
        // Ten thousand streams start within a second; each sends its first token and then runs for an hour.
        // They finish, are cancelled or reach their deadlines, all of which is neutral.
        for stream in 0..10_000 {
            let began = at(stream / 10);
            assert!(breaker.allows(began), "stream {stream}");
            breaker.dispatched(began);
            breaker.record(began, if stream % 5 == 0 { Backpressure } else { Success });
        }
        for stream in 0..10_000 {
            breaker.record(at(HOUR_MS + stream / 10), Neutral);
            assert!(breaker.allows(at(HOUR_MS + stream / 10)), "stream {stream}");
        }
    }

    #[test]
    fn a_dead_worker_gets_three_requests_and_then_only_probes() {
        let mut breaker = Breaker::default();
        let mut sent = Vec::new();
        for ms in (0..60_000).step_by(10) {
            if breaker.allows(at(ms)) {
                breaker.dispatched(at(ms));
                breaker.record(at(ms), Outcome::Fault);
                sent.push(ms);
            }
        }
        assert_eq!(sent, [0, 10, 20, 1020, 3020, 7020, 15_020, 31_020]);
    }
}
