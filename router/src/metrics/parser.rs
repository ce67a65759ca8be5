//! Counts what the tool parser finds, under vLLM's labels.

use skein_node::metrics::IntCounter;

/// Values of vLLM's label `request_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParsedApi {
    /// Chat, and Messages, which vLLM serves as chat.
    Chat,
    /// Responses.
    Responses,
    /// APIs that vLLM does not have.
    Other,
}

impl ParsedApi {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Chat, Self::Responses, Self::Other];

    /// Value of the label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Chat => "chat_completions",
            Self::Responses => "responses",
            Self::Other => "other",
        }
    }
}

/// Counters for one request.
#[derive(Debug, Clone)]
pub struct ParserCounts {
    pub(super) is_streaming: bool,
    pub(super) tool_call: IntCounter,
    pub(super) no_tool_call: IntCounter,
}

impl ParserCounts {
    /// Counts a part of a choice in a stream.
    pub fn part(&self, has_call: bool) {
        if self.is_streaming {
            self.count(has_call);
        }
    }

    /// Counts a choice of a whole answer.
    pub fn choice(&self, has_calls: bool) {
        if !self.is_streaming {
            self.count(has_calls);
        }
    }

    fn count(&self, has_call: bool) {
        if has_call { &self.tool_call } else { &self.no_tool_call }.inc();
    }
}
