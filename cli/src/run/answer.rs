//! An answer, or why there is none.

use std::fmt;
use std::time::Duration;

use skein_router::refusal::Refusal;

/// An answer, already printed.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// The whole text.
    pub text: String,
    /// Number of output tokens.
    pub tokens: u32,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens found in the cache from earlier turns.
    pub cached_tokens: u32,
    /// Time from the request to the first text.
    pub first: Duration,
    /// Time from the first text to the end.
    pub rest: Duration,
}

impl Answer {
    /// Token counts and speed in one line.
    pub fn stats(&self) -> String {
        let Self { tokens, prompt_tokens, cached_tokens, first, .. } = self;
        let rate = f64::from(tokens.saturating_sub(1)) / self.rest.as_secs_f64().max(1e-9);
        let rate = if *tokens > 1 { format!(", {rate:.1} tokens/s") } else { String::new() };
        let first = first.as_millis();
        let unit = if *tokens == 1 { "token" } else { "tokens" };
        format!(
            "[{tokens} {unit}{rate}, first after {first} ms; prompt {prompt_tokens}, {cached_tokens} cached]"
        )
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Unanswered {
    /// The router in this process refused the request.
    Refused(Refusal),
    /// The server's error message, or why the server could not be reached.
    Server(String),
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Server(message) => f.write_str(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_read_well_for_short_answers_too() {
        let answer = Answer {
            tokens: 21,
            prompt_tokens: 9,
            first: Duration::from_millis(12),
            rest: Duration::from_millis(100),
            ..Answer::default()
        };
        assert_eq!(answer.stats(), "[21 tokens, 200.0 tokens/s, first after 12 ms; prompt 9, 0 cached]");
        let short = Answer { tokens: 1, ..answer };
        assert_eq!(short.stats(), "[1 token, first after 12 ms; prompt 9, 0 cached]");
    }
}
