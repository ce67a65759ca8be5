//! Why there are no peers.

use crate::collective::Lost;

/// Why a group does without peers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPeers {
    /// A rank cannot use them. All ranks get this.
    #[error("rank {rank} {why}")]
    Unusable {
        /// The first rank that cannot.
        rank: usize,
        /// Why, as a verb phrase.
        why: String,
        /// Whether a bit was wrong. Otherwise there is no access.
        is_wrong: bool,
    },
    /// The group is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}
