//! Detects ranks that have stopped sending heartbeats. Pure.

use std::time::Duration;

use skein_node::clock::Timestamp;

/// Interval between two heartbeats of a rank.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// A rank without a heartbeat for this long is lost.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);
/// If two checks are further apart, this process itself was paused, and its observations prove nothing.
const OWN_PAUSE: Duration = Duration::from_secs(1);

/// Last heartbeat seen from each watched rank.
#[derive(Debug)]
pub struct Heartbeats {
    last: Vec<(u32, Timestamp)>,
    checked: Timestamp,
}

impl Heartbeats {
    /// Starts to watch `ranks` ranks.
    pub fn new(ranks: usize, now: Timestamp) -> Self {
        Self { last: vec![(0, now); ranks], checked: now }
    }

    /// Compares the heartbeat counts; returns the index of a lost rank and how long it has been silent.
    pub fn overdue(&mut self, now: Timestamp, beats: impl Iterator<Item = u32>) -> Option<(usize, Duration)> {
        let was_stopped = now.since(self.checked) > OWN_PAUSE;
        self.checked = now;
        for ((last, at), beat) in self.last.iter_mut().zip(beats) {
            if *last != beat || was_stopped {
                (*last, *at) = (beat, now);
            }
        }
        let silent = self.last.iter().map(|(_, at)| now.since(*at)).enumerate();
        silent.max_by_key(|(_, silent)| *silent).filter(|(_, silent)| *silent > HEARTBEAT_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_start(Duration::from_millis(ms))
    }

    #[test]
    fn only_a_silent_rank_is_lost() {
        let mut heartbeats = Heartbeats::new(2, at(0));
        for beat in 1..=40 {
            assert_eq!(heartbeats.overdue(at(250 * u64::from(beat)), [beat, beat].into_iter()), None);
        }
        for beat in 41..=52 {
            assert_eq!(heartbeats.overdue(at(250 * u64::from(beat)), [beat, 40].into_iter()), None, "{beat}");
        }
        assert_eq!(
            heartbeats.overdue(at(250 * 53), [53, 40].into_iter()),
            Some((1, Duration::from_millis(3250)))
        );
    }

    #[test]
    fn a_process_that_was_paused_itself_reports_no_rank() {
        let mut heartbeats = Heartbeats::new(1, at(0));
        assert_eq!(heartbeats.overdue(at(60_000), [0].into_iter()), None);
        assert_eq!(heartbeats.overdue(at(60_900), [0].into_iter()), None);
        for ms in [61_500, 62_000, 62_500, 63_000] {
            assert_eq!(heartbeats.overdue(at(ms), [0].into_iter()), None);
        }
        assert!(heartbeats.overdue(at(63_250), [0].into_iter()).is_some());
    }
}
