//! What is expected of metrics.

/// Names are constants of this binary, so a wrong one is a bug.
pub(super) const VALID: &str = "names and labels of metrics are valid, and each is registered once";
