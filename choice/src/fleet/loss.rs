//! How a worker is lost.

/// Why a worker is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// There is no connection to it, for as long as a worker may be silent.
    Unreachable,
    /// It is connected, but reports nothing.
    Silent,
    /// It reports, but its engine makes no progress.
    Stuck,
}
