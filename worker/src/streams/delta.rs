//! Limits and faults of what readers get.

/// Most unread bytes for one reader: a million tokens, or some tens of thousands with log-probabilities.
pub const MAX_UNREAD_BYTES: usize = 4 * 1024 * 1024;

/// Why a stream ended before its samples did.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    /// The backend failed.
    #[error("the engine failed: {reason}; the request can be resumed on another worker")]
    Failed {
        /// The backend's error.
        reason: String,
    },
    /// The engine was told to stop.
    #[error("this worker has stopped; the request can be resumed on another worker")]
    Stopped,
    /// Its grammar exceeds a limit, or no token continues it. The same happens on every worker.
    #[error("{reason}; a simpler grammar or schema avoids it")]
    Unfollowable {
        /// Fault reported by the grammar library.
        reason: String,
    },
    /// The reader left too much unread.
    #[error(
        "{bytes} bytes of output are unread, the limit is {MAX_UNREAD_BYTES}; read faster or request less"
    )]
    SlowReader {
        /// Bytes left unread.
        bytes: usize,
    },
}
