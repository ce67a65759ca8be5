//! Why a text is refused.

/// Why a request's text cannot become tokens, or tokens cannot become text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextRefused {
    /// A field is malformed or out of range.
    #[error("{message}")]
    Invalid {
        /// The field's name in the API.
        param: &'static str,
        /// What is wrong, the value, the limit, what to do.
        message: String,
    },
    /// The prompt is far too long and was not fully tokenised.
    #[error(transparent)]
    PromptTooLong(#[from] PromptTooLong),
    /// A bug; the log has more.
    #[error("the text could not be processed; the log says why")]
    Internal,
}

/// A prompt that is far too long and was not fully tokenised. Clients match on this sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "This model's maximum context length is {max} tokens{}. However, your prompt of {bytes} bytes has far more. Please reduce the length of the prompt.",
    if most > max { format!(", and at most {most} are tokenized") } else { String::new() }
)]
pub struct PromptTooLong {
    /// Longest sequence of the model, tokens.
    pub max: u32,
    /// Most tokens of a text here; more than `max` where a prompt is only tokenised or is truncated.
    pub most: u32,
    /// Length of the prompt as passed to the tokenizer.
    pub bytes: usize,
    /// `messages` or `prompt`.
    pub param: &'static str,
}

impl TextRefused {
    /// A field `param` that is wrong as `message` says.
    pub fn invalid(param: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { param, message: message.into() }
    }

    /// The field at fault, if known.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::Invalid { param, .. } | Self::PromptTooLong(PromptTooLong { param, .. }) => Some(param),
            Self::Internal => None,
        }
    }
}
