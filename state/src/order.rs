//! What the threads of a store are asked for.

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::error::StateError;
use crate::turn::NewTurn;

/// Seconds since 1970.
pub type Clock = fn() -> u64;

/// Reads with the connection of its thread.
pub type Read = Box<dyn FnOnce(&Connection) + Send>;

/// What a thread is asked for.
pub enum Order {
    /// Stores a turn.
    Add(Box<NewTurn>, oneshot::Sender<Result<(), StateError>>),
    /// Replaces the answer of a turn that is still to be answered.
    Answer {
        /// Whose it is.
        owner: String,
        /// Its id.
        id: String,
        /// The answer.
        answer: String,
        /// Whether it is then answered.
        is_last: bool,
        /// Whether there was such a turn.
        done: oneshot::Sender<Result<bool, StateError>>,
    },
    /// Deletes a turn.
    Delete {
        /// Whose it is.
        owner: String,
        /// Its id.
        id: String,
        /// Whether there was one.
        done: oneshot::Sender<Result<bool, StateError>>,
    },
    /// Reads.
    Read(Read),
}
