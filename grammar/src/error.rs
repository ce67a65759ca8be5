//! Why a constraint cannot be used.

/// Why a constraint is refused. The request is at fault, and every worker would refuse it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A keyword of JSON Schema that cannot be enforced.
    #[error("the schema has `{keyword}` at {pointer:?}: {reason}")]
    Keyword {
        /// JSON pointer to the schema that has the keyword; empty at the root.
        pointer: String,
        /// The keyword.
        keyword: String,
        /// What is not supported, and what to write instead.
        reason: String,
    },
    /// The constraint is too large.
    #[error("the {what} has {got} {unit}, the limit is {limit}; make it smaller")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        got: usize,
        /// What the size counts.
        unit: &'static str,
        /// The largest allowed size.
        limit: usize,
    },
    /// The constraint is malformed, contradicts itself or is too complex.
    #[error("the {what} is not usable: {reason}")]
    Unusable {
        /// Kind of the constraint.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// This process cannot constrain any answer.
    #[error("answers of this model cannot be held to a format: {reason}")]
    Unavailable {
        /// Why not.
        reason: String,
    },
}

/// A matcher cannot continue. The answer ends with this error, as it would on any other worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the answer's grammar cannot be followed further: {reason}")]
pub struct Stuck {
    /// The library's reason, or the token that does not fit.
    pub reason: String,
}

/// Checks a size.
///
/// # Errors
/// [`Refused::TooLarge`] above `limit`.
pub(crate) fn check_size(
    what: &'static str,
    got: usize,
    unit: &'static str,
    limit: usize,
) -> Result<(), Refused> {
    if got > limit { Err(Refused::TooLarge { what, got, unit, limit }) } else { Ok(()) }
}
