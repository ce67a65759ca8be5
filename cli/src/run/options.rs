//! What the flags say of every answer.

use skein_proto::sampling::SamplingOptions;

/// Options for every answer.
#[derive(Debug, Clone)]
pub struct AnswerOptions {
    /// Sampling parameters of every request.
    pub sampling: SamplingOptions,
    /// System message, if any.
    pub system: Option<String>,
    /// Whether to leave out the chat template.
    pub raw: bool,
}
