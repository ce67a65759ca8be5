//! Tokens of prompts' texts: those whose ids were kept, and those made anew.

use std::sync::{Mutex, PoisonError};

use skein_node::metrics::{IntCounterVec, Registry};
use skein_text::kept_ids::KeptCounts;

/// Values of `source`.
const SOURCES: [&str; 2] = ["kept", "tokenized"];

/// The counter, which goes on when another version of the model begins to count from zero.
#[derive(Debug)]
pub struct KeptText {
    tokens: IntCounterVec,
    last: Mutex<KeptCounts>,
}

impl KeptText {
    /// None yet, in `registry`.
    pub fn new(registry: &Registry) -> Self {
        let tokens = registry.counters(
            "skein_prompt_text_tokens_total",
            "Tokens of prompts that came as long texts or chats, by whether their ids were kept or tokenized.",
            "source",
            &SOURCES,
        );
        Self { tokens, last: Mutex::default() }
    }

    /// Adds what is new in `now`.
    pub fn update(&self, now: KeptCounts) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let same_model = now.known >= last.known && now.new >= last.new;
        let before = if same_model { *last } else { KeptCounts::default() };
        for (source, added) in SOURCES.iter().zip([now.known - before.known, now.new - before.new]) {
            self.tokens.with_label_values(&[source]).inc_by(added);
        }
        *last = now;
    }
}

#[cfg(test)]
mod tests {
    use skein_node::metrics::Format;

    use super::*;

    #[test]
    fn another_version_of_the_model_adds_to_the_counts() {
        let registry = Registry::new(&[]);
        let kept = KeptText::new(&registry);
        for (known, new) in [(0, 7), (5, 9), (5, 9), (1, 2)] {
            kept.update(KeptCounts { known, new });
        }
        let text = registry.encode(Format::Text);
        for expected in ["source=\"kept\"} 6", "source=\"tokenized\"} 11"] {
            assert!(text.contains(expected), "{text}");
        }
    }
}
