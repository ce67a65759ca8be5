//! How far a slot is.

/// Where a slot is in one layer. Its memory is only valid for positions above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mark {
    /// Tokens in the state.
    pub(super) position: u32,
    /// Pending rows.
    pub(super) pending: u32,
}
