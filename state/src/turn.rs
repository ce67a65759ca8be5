//! A turn: what a client sent, and the answer.

use crate::limits::TURN_BYTES;

/// A turn to store.
#[derive(Debug, Clone)]
pub struct NewTurn {
    /// Whose it is.
    pub owner: String,
    /// Id of its answer, new for this owner.
    pub id: String,
    /// Id of the answer that it continues.
    pub previous: Option<String>,
    /// Its input: a list in JSON.
    pub input: String,
    /// Its answer: an object in JSON.
    pub answer: String,
    /// What is needed to answer it, if that is still to be done.
    pub request: Option<String>,
}

impl NewTurn {
    /// Bytes that it counts for.
    pub(crate) fn bytes(&self) -> u64 {
        let request = self.request.as_ref().map_or(0, String::len);
        (self.input.len() + self.answer.len() + request) as u64 + TURN_BYTES
    }
}

/// A turn whose answer is still to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// Whose it is.
    pub owner: String,
    /// Id of its answer.
    pub id: String,
    /// What is needed to answer it.
    pub request: String,
}

/// A stored turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Id of its answer.
    pub id: String,
    /// Id of the answer that it continues.
    pub previous: Option<String>,
    /// Its input: a list in JSON.
    pub input: String,
    /// Its answer: an object in JSON.
    pub answer: String,
}
