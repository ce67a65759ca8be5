//! Counts the tokens of a sample's reasoning.

use std::sync::Arc;

use skein_text::formats::{Piece, Plan, Splitter};

/// Counts as the tokens come. A marker of several tokens is no reasoning, so tokens that may begin one count
/// once they are known to be none.
pub struct ReasoningCount {
    /// `None` once the answer can have no more reasoning.
    splitter: Option<Splitter>,
    tokens: u32,
    /// Tokens that may belong to the marker that ends the reasoning.
    held: u32,
}

impl ReasoningCount {
    /// A count for an answer that is split by `plan`; `None` if its format has no reasoning.
    pub fn of(plan: &Arc<Plan>) -> Option<Self> {
        let splitter = || Splitter::new(plan.clone());
        plan.has_reasoning().then(|| Self { splitter: Some(splitter()), tokens: 0, held: 0 })
    }

    /// The next token added `text`. `control_at`: where in it control tokens begin.
    pub fn push(&mut self, text: &str, control_at: &[usize]) {
        let Some(splitter) = &mut self.splitter else { return };
        let before = splitter.is_in_reasoning();
        let shows = splitter.push(text, control_at).iter().any(|piece| matches!(piece, Piece::Reasoning(_)));
        let (after, holds) = (splitter.is_in_reasoning(), splitter.holds_back());
        if shows || (before && after && !holds) {
            self.tokens += 1 + std::mem::take(&mut self.held);
        } else if before && after {
            self.held += 1;
        } else {
            self.held = 0;
        }
        if splitter.has_reasoned() {
            self.splitter = None;
        }
    }

    /// The sample has ended: what was held back is its last text.
    pub fn finish(&mut self) {
        self.tokens += std::mem::take(&mut self.held);
    }

    /// Tokens that are known to be reasoning.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }
}

#[cfg(test)]
mod tests {
    use skein_text::formats::{Formats, Opening};

    use super::*;

    fn count(plan: &Plan, tokens: &[&str]) -> u32 {
        let mut count = ReasoningCount::of(&Arc::new(plan.clone())).unwrap();
        tokens.iter().for_each(|token| count.push(token, &[]));
        count.finish();
        count.tokens()
    }

    fn plan(parser: &str, opening: Opening) -> Plan {
        let Formats { reasoning, harmony, .. } = Formats::default().with(None, Some(parser)).unwrap();
        Plan {
            calls: None,
            reasoning,
            opening,
            harmony,
            token_markers: Arc::new([]),
            held: false,
            functions: Arc::new([]),
        }
    }

    #[test]
    fn tokens_between_the_markers_count_however_the_markers_are_cut() {
        let fresh = plan("qwen3", Opening::Fresh);
        assert_eq!(count(&fresh, &["<think>", "\n", "Hm", " é", "\n", "</think>", "Well", "."]), 4);
        assert_eq!(count(&fresh, &["<", "think", ">", "Hm", "</", "think", ">", "Well"]), 1);
        assert_eq!(count(&fresh, &["<think>", "a", " <", "/", "b", "</think>", "c"]), 4, "no marker");
        assert_eq!(count(&fresh, &["<think>", "a", "</"]), 2, "cut within the marker");
        assert_eq!(count(&fresh, &["<think>", "", "\u{1f600}", "b.</think>"]), 3, "parts of a character");
        assert_eq!(count(&fresh, &["Well", " <think>", "a"]), 0, "content has begun");
        assert_eq!(count(&plan("qwen3", Opening::Closed), &["<think>", "a"]), 0);
        assert_eq!(count(&plan("qwen3", Opening::InReasoning), &["a", "b", "</think>", "c"]), 2);
    }

    #[test]
    fn channels_count_their_analysis() {
        let analysis = ["<|channel|>", "analysis", "<|message|>", "So", " so", "<|end|>"];
        let last = ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "Yes"];
        assert_eq!(count(&plan("openai_gptoss", Opening::Fresh), &[&analysis[..], &last[..]].concat()), 2);
    }
}
