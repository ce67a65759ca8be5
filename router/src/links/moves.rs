//! The latest moves of requests between workers, for people who look at the cluster.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::request::tenant::Tenant;

/// Most moves that are kept; the oldest goes first.
const MAX_MOVES: usize = 256;
/// Longest reason, in characters.
const MAX_REASON: usize = 200;

/// One move of a request to another worker, or back to the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// When another worker continued, since 1970.
    pub at: Duration,
    /// From the end of the old stream to that time.
    pub gap: Duration,
    /// Id of the request.
    pub request: String,
    /// Tenant of the request.
    pub tenant: Tenant,
    /// Worker before; `None` if it is unknown.
    pub from: Option<Arc<str>>,
    /// Worker that continues.
    pub to: Option<Arc<str>>,
    /// Why it moved.
    pub reason: String,
    /// Output tokens that the client had.
    pub tokens: u64,
}

/// The latest moves, and how many there were.
#[derive(Debug, Clone, Default)]
pub struct LatestMoves {
    /// Moves since the start.
    pub total: u64,
    /// At most [`MAX_MOVES`], oldest first.
    pub latest: Vec<Arc<Move>>,
}

/// A bounded ring of moves.
#[derive(Debug, Default)]
pub(crate) struct Moves(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    total: u64,
    latest: VecDeque<Arc<Move>>,
}

impl Moves {
    pub fn add(&self, mut moved: Move) {
        if let Some((end, _)) = moved.reason.char_indices().nth(MAX_REASON) {
            moved.reason.truncate(end);
        }
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.total += 1;
        if ring.latest.len() == MAX_MOVES {
            ring.latest.pop_front();
        }
        ring.latest.push_back(Arc::new(moved));
    }

    pub fn latest(&self) -> LatestMoves {
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        LatestMoves { total: ring.total, latest: ring.latest.iter().cloned().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_moves_are_kept() {
        let moves = Moves::default();
        for nth in 0..MAX_MOVES as u64 + 3 {
            moves.add(Move {
                at: Duration::from_secs(nth),
                gap: Duration::ZERO,
                request: nth.to_string(),
                tenant: Tenant::default(),
                from: None,
                to: None,
                reason: "\u{e9}".repeat(1000),
                tokens: nth,
            });
        }
        let LatestMoves { total, latest } = moves.latest();
        assert_eq!((total, latest.len(), latest[0].tokens), (MAX_MOVES as u64 + 3, MAX_MOVES, 3));
        assert_eq!(latest[0].reason.chars().count(), MAX_REASON);
    }
}
