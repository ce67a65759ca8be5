//! Stores an answer when it has ended, before its client learns of the end.

use serde_json::Value;
use skein_state::NewTurn;

use crate::stored::StoredResponses;

/// A turn that waits for its answer.
#[derive(Debug)]
pub struct Keep {
    /// Where it is stored.
    pub stored: StoredResponses,
    /// The turn, with no answer as yet.
    pub turn: NewTurn,
}

impl Keep {
    /// Stores the turn with `answer`; returns whether it is stored. A client gets its answer in any case, and
    /// reads there whether it can come back to it.
    pub async fn add(self, answer: &Value) -> bool {
        let turn = NewTurn { answer: answer.to_string(), ..self.turn };
        let added = self.stored.store().add(turn).await;
        added.inspect_err(|error| tracing::debug!(%error, "a response was not stored")).is_ok()
    }
}
