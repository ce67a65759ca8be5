//! How often a stream may move to another worker, and how long it waits before it does. Pure.

use std::time::Duration;

/// A stream moves this many times the limit for moves without progress, however much each worker says.
const TOTAL_OF_LIMIT: u32 = 8;
/// The second move waits this long, each later one as much more.
const PAUSE_STEP: Duration = Duration::from_millis(50);
/// Longest pause before a move.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Moves of one stream.
#[derive(Debug)]
pub struct Moves {
    limit: u32,
    /// Since the last progress.
    in_vain: u32,
    total: u32,
}

impl Moves {
    /// No move yet; at most `limit` without progress between them.
    pub fn new(limit: u32) -> Self {
        Self { limit, in_vain: 0, total: 0 }
    }

    /// The client got more of the answer.
    pub fn progressed(&mut self) {
        self.in_vain = 0;
    }

    /// Counts a move; returns how long it waits, or `None` if the stream may not move again.
    pub fn again(&mut self) -> Option<Duration> {
        if self.in_vain >= self.limit || self.total >= self.limit.saturating_mul(TOTAL_OF_LIMIT) {
            return None;
        }
        let pause = PAUSE_STEP.saturating_mul(self.total).min(MAX_PAUSE);
        self.in_vain += 1;
        self.total += 1;
        Some(pause)
    }

    /// Moves so far.
    pub fn total(&self) -> u32 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_end_however_much_progress_is_made_between_them() {
        for (limit, progresses, expected) in
            [(3, false, 3), (3, true, 24), (1, true, 8), (0, true, 0), (u32::MAX, false, 1000)]
        {
            let (mut moves, mut pauses) = (Moves::new(limit), Vec::new());
            while pauses.len() < 1000
                && let Some(pause) = moves.again()
            {
                pauses.push(pause);
                if progresses {
                    moves.progressed();
                }
            }
            assert_eq!((pauses.len(), moves.total()), (expected, expected as u32), "{limit} {progresses}");
            assert!(pauses.iter().take(1).all(Duration::is_zero), "the first move is at once");
            assert!(pauses.iter().skip(1).all(|pause| (PAUSE_STEP..=MAX_PAUSE).contains(pause)));
        }
    }
}
