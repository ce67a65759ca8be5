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

/// A bounded ring of moves.
#[derive(Debug, Default)]
pub(crate) struct Moves(Mutex<VecDeque<Arc<Move>>>);

impl Moves {
    pub fn add(&self, mut moved: Move) {
        if let Some((end, _)) = moved.reason.char_indices().nth(MAX_REASON) {
            moved.reason.truncate(end);
        }
        let mut moves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if moves.len() == MAX_MOVES {
            moves.pop_front();
        }
        moves.push_back(Arc::new(moved));
    }

    /// The latest ones, oldest first.
    pub fn latest(&self) -> Vec<Arc<Move>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
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
        let latest = moves.latest();
        assert_eq!((latest.len(), latest[0].tokens), (MAX_MOVES, 3));
        assert_eq!(latest[0].reason.chars().count(), MAX_REASON);
    }
}
