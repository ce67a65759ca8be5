//! Errors of constraints.

/// Why a constraint is refused. The request is at fault, and every worker would refuse it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A JSON Schema keyword that cannot be enforced.
    #[error("the schema has `{keyword}` at {pointer:?}: {reason}")]
    Keyword {
        /// JSON pointer to the schema that contains the keyword; empty at the root.
        pointer: String,
        /// Name of the keyword.
        keyword: String,
        /// Why it is not supported, and what to write instead.
        reason: String,
    },
    /// A size exceeds its limit.
    #[error("the {what} has {got} {unit}, the limit is {limit}; make it smaller")]
    TooLarge {
        /// What was measured, for example "grammar".
        what: &'static str,
        /// Measured size, in `unit`.
        got: usize,
        /// Unit of the size.
        unit: &'static str,
        /// Largest allowed size, in `unit`.
        limit: usize,
    },
    /// The constraint is malformed, contradicts itself or is too complex.
    #[error("the {what} is not usable: {reason}")]
    Unusable {
        /// Kind of constraint.
        what: &'static str,
        /// Fault in the constraint.
        reason: String,
    },
    /// This process cannot constrain answers.
    #[error("this model's answers cannot be constrained: {reason}")]
    Unavailable {
        /// What the tokenizer or the build lacks.
        reason: String,
    },
}

/// A matcher cannot continue. The answer ends with this error, as it would on every worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the answer cannot continue under its grammar: {reason}")]
pub struct Stuck {
    /// The library's message, or the token that does not match.
    pub reason: String,
}

/// Checks a size against its limit.
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
