//! A limit of units a minute. Pure.

use std::time::Duration;

use skein_node::clock::Timestamp;

/// Time in which an empty bucket fills, and so the longest burst.
const MINUTE: Duration = Duration::from_secs(60);

/// A bucket that holds a minute's units and fills steadily: the generic cell rate algorithm (ITU-T I.371).
///
/// The only state is when it will be full, so that a limit may change under it: the bucket then stays as full
/// as it was. It can be in debt, which the following minutes pay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    full_at: Timestamp,
}

impl Bucket {
    /// How long to wait until `units` can be taken; zero = they can be taken now. More units than the limit
    /// can be taken from a full bucket, because they could never be taken otherwise.
    pub fn wait(&self, units: u64, limit: u64, now: Timestamp) -> Duration {
        let after = self.until_full(now) + time(units.min(limit), limit);
        after.saturating_sub(MINUTE)
    }

    /// Takes `units`, whether they are there or not.
    pub fn take(&mut self, units: u64, limit: u64, now: Timestamp) {
        self.full_at = self.full_at.max(now) + time(units, limit);
    }

    /// Gives back `units` that were taken.
    pub fn give(&mut self, units: u64, limit: u64) {
        let full_at = self.full_at.since_start().saturating_sub(time(units, limit));
        self.full_at = Timestamp::from_start(full_at);
    }

    /// Units that can be taken now.
    pub fn remaining(&self, limit: u64, now: Timestamp) -> u64 {
        let room = MINUTE.saturating_sub(self.until_full(now));
        let units = room.as_nanos() * u128::from(limit) / MINUTE.as_nanos();
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// How long until it is full.
    pub fn until_full(&self, now: Timestamp) -> Duration {
        self.full_at.since(now)
    }
}

/// Time in which `units` flow in.
fn time(units: u64, limit: u64) -> Duration {
    let nanos = u128::from(units) * MINUTE.as_nanos() / u128::from(limit.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_start(Duration::from_secs_f64(1000.0 + seconds))
    }

    #[test]
    fn a_minutes_units_can_be_taken_at_once_and_then_as_they_flow_in() {
        let mut bucket = Bucket::default();
        for _ in 0..60 {
            assert_eq!(bucket.wait(1, 60, at(0.0)), Duration::ZERO);
            bucket.take(1, 60, at(0.0));
        }
        assert_eq!((bucket.remaining(60, at(0.0)), bucket.until_full(at(0.0)).as_secs()), (0, 60));
        assert_eq!(bucket.wait(1, 60, at(0.0)), Duration::from_secs(1));
        assert_eq!(bucket.wait(1, 60, at(1.0)), Duration::ZERO);
        assert_eq!(bucket.wait(10, 60, at(1.0)), Duration::from_secs(9));
        assert_eq!(bucket.remaining(60, at(30.0)), 30);
        assert_eq!(bucket.remaining(60, at(1000.0)), 60, "it holds no more than a minute's units");
    }

    #[test]
    fn over_any_minute_after_the_first_burst_no_more_than_the_limit_flows() {
        let (mut bucket, mut taken) = (Bucket::default(), Vec::new());
        for step in 0..6000 {
            let now = at(f64::from(step) / 10.0);
            if bucket.wait(7, 100, now).is_zero() {
                bucket.take(7, 100, now);
                taken.push(step);
            }
        }
        let later = taken.iter().filter(|step| (1200..1800).contains(*step)).count() * 7;
        assert!((93..=107).contains(&later), "{later}");
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_and_debts_are_paid_first() {
        let mut bucket = Bucket::default();
        bucket.take(1000, 1000, at(0.0));
        bucket.give(400, 1000);
        assert_eq!(bucket.remaining(1000, at(0.0)), 400);
        bucket.take(1400, 1000, at(0.0));
        assert_eq!(bucket.remaining(1000, at(60.0)), 0, "a debt of a minute");
        assert_eq!(bucket.wait(1, 1000, at(60.0)), Duration::from_millis(60));
        bucket.give(u64::MAX, 1000);
        assert_eq!(bucket.remaining(1000, at(60.0)), 1000);
    }

    #[test]
    fn more_than_the_limit_is_taken_from_a_full_bucket_only() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.wait(5000, 1000, at(0.0)), Duration::ZERO);
        bucket.take(5000, 1000, at(0.0));
        assert_eq!(bucket.wait(5000, 1000, at(0.0)), Duration::from_secs(300));
        assert_eq!(bucket.wait(1, 1000, at(299.0)), Duration::ZERO);
    }

    #[test]
    fn a_new_limit_finds_the_bucket_as_full_as_it_was() {
        let mut bucket = Bucket::default();
        bucket.take(50, 100, at(0.0));
        assert_eq!(bucket.remaining(100, at(0.0)), 50);
        assert_eq!(bucket.remaining(1000, at(0.0)), 500);
    }
}
