//! Which form the texts of a pair have in a prompt. What the directory has decides, not the model's name.

use crate::chat_template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// Control tokens of the vocabulary of Qwen3's rerankers.
pub(super) const TURNS: [&str; 2] = ["<|im_start|>", "<|im_end|>"];
/// Added tokens that other vocabularies with those do not have.
pub(super) const THOUGHTS: [&str; 2] = ["<think>", "</think>"];

/// How pairs become prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PairForm {
    /// By the tokenizer's post-processor, as `[CLS] query [SEP] document [SEP]`.
    #[default]
    Tokenizer,
    /// By the chat template.
    Template,
    /// In a chat that asks whether the document answers the query.
    Judge,
}

impl PairForm {
    /// The form for a tokenizer and a template.
    pub(super) fn of(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> Self {
        if template.is_some_and(|template| ["query", "document"].iter().all(|role| names(template, role))) {
            return Self::Template;
        }
        let has = |token: &&str| tokenizer.id(token).is_some();
        let is_judge = tokenizer.added_tokens(true) == 0 && TURNS.iter().chain(&THOUGHTS).all(has);
        if is_judge { Self::Judge } else { Self::Tokenizer }
    }
}

/// Whether the source has `role` as a string.
fn names(template: &ChatTemplate, role: &str) -> bool {
    ["\"", "'"].iter().any(|quote| template.reads(&format!("{quote}{role}{quote}")))
}
