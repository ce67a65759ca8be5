//! How requests end, for metrics and logs.

/// How an accepted request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every sample reached its end.
    Completed,
    /// The client disconnected or cancelled the request.
    Cancelled,
    /// The request ended with an error.
    Failed,
}

impl Outcome {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Completed, Self::Cancelled, Self::Failed];

    /// Value of the metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}
