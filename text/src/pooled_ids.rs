//! Token ids of one text or of a pair, for a model that makes a vector of them: with the tokens that the
//! tokenizer's post-processor puts around and between, cut if there are too many.

use std::panic::{AssertUnwindSafe, catch_unwind};

use skein_proto::TokenId;
use tokenizers::{Encoding, PostProcessor, Token};

use crate::refused::TextRefused;
use crate::tokenizer::Tokenizer;

/// Ids of a text or of a pair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PooledIds {
    /// The ids.
    pub ids: Vec<TokenId>,
    /// Where the ids of the second text begin, if the tokenizer gives them a type of their own.
    pub second_from: Option<u32>,
}

/// How texts become ids.
#[derive(Debug, Clone, Copy)]
pub struct PooledForm {
    /// Whether the post-processor adds its tokens.
    pub add_special_tokens: bool,
    /// Most ids, its tokens included; `None` = texts are not cut.
    pub most: Option<usize>,
    /// Whether a cut text keeps its end instead of its beginning.
    pub keeps_end: bool,
}

impl Tokenizer {
    /// Ids of `first`, or of the pair with `second`. If they are cut, the longer of the two loses tokens
    /// until both are as long, as in sentence-transformers.
    ///
    /// # Errors
    /// If the post-processor's tokens alone are more than `form.most`, or the tokenizer refuses a text.
    pub fn encode_pooled(
        &self,
        first: &str,
        second: Option<&str>,
        form: PooledForm,
    ) -> Result<PooledIds, TextRefused> {
        let first = self.encode(first, false)?;
        let second = second.map(|second| self.encode(second, false)).transpose()?;
        let (first, second) = match form.most {
            Some(most) => {
                let added = if form.add_special_tokens { self.added_tokens(second.is_some()) } else { 0 };
                let room = most.checked_sub(added).ok_or_else(|| no_room(most, added))?;
                cut(first, second, room, form.keeps_end)
            }
            None => (first, second),
        };
        self.post_process(first, second, form.add_special_tokens)
    }

    /// How many tokens the post-processor adds to a text, or to a pair.
    pub fn added_tokens(&self, is_pair: bool) -> usize {
        self.post_processor().map_or(0, |processor| processor.added_tokens(is_pair))
    }

    /// The beginning of `text` that has at most `most` tokens.
    ///
    /// # Errors
    /// If the tokenizer refuses it.
    pub fn beginning(&self, text: &str, most: usize) -> Result<String, TextRefused> {
        let ids = self.encode(text, false)?;
        if ids.len() <= most {
            return Ok(text.to_owned());
        }
        // The last token may end within a character.
        Ok(self.decode(&ids[..most], false)?.trim_end_matches('\u{FFFD}').to_owned())
    }

    fn post_process(
        &self,
        first: Vec<TokenId>,
        second: Option<Vec<TokenId>>,
        add_special_tokens: bool,
    ) -> Result<PooledIds, TextRefused> {
        let (first, second) = (encoding(first), second.map(encoding));
        // A malformed post-processor makes the library panic.
        let work = AssertUnwindSafe(|| self.library().post_process(first, second, add_special_tokens));
        let done = catch_unwind(work).map_err(|_| "a panic".to_owned());
        let done = done.and_then(|done| done.map_err(|error| error.to_string())).map_err(|error| {
            tracing::warn!(%error, "the tokenizer's post-processor failed");
            TextRefused::Internal
        })?;
        let second_from = done.get_type_ids().iter().position(|kind| *kind == 1).filter(|at| *at > 0);
        let second_from = second_from.and_then(|at| u32::try_from(at).ok());
        Ok(PooledIds { ids: done.get_ids().to_vec(), second_from })
    }
}

fn encoding(ids: Vec<TokenId>) -> Encoding {
    Encoding::from_tokens(ids.into_iter().map(|id| Token::new(id, String::new(), (0, 0))).collect(), 0)
}

fn no_room(most: usize, added: usize) -> TextRefused {
    let message = format!(
        "truncate_prompt_tokens leaves no room for a text: it is {most}, and the tokenizer adds {added} tokens of its own."
    );
    TextRefused::invalid("truncate_prompt_tokens", message)
}

/// Cuts one text or two to `room` ids in all.
fn cut(
    first: Vec<TokenId>,
    second: Option<Vec<TokenId>>,
    room: usize,
    keeps_end: bool,
) -> (Vec<TokenId>, Option<Vec<TokenId>>) {
    let lengths = longest_first(first.len(), second.as_ref().map_or(0, Vec::len), room);
    (part(first, lengths.0, keeps_end), second.map(|second| part(second, lengths.1, keeps_end)))
}

/// Lengths of two texts of `first` and `second` ids in `room`: the longer one is cut first. If both are, they
/// are as long, and an odd id belongs to the longer one.
fn longest_first(first: usize, second: usize, room: usize) -> (usize, usize) {
    if first + second <= room {
        return (first, second);
    }
    let shorter = first.min(second).min(room / 2);
    let longer = room - shorter;
    if first > second { (longer, shorter) } else { (shorter, longer) }
}

/// `length` of the ids, from the beginning or the end.
fn part(mut ids: Vec<TokenId>, length: usize, keeps_end: bool) -> Vec<TokenId> {
    if keeps_end {
        ids.drain(..ids.len().saturating_sub(length));
    } else {
        ids.truncate(length);
    }
    ids
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Words a to f as ids 3 to 8, in a form around them.
    fn tokenizer(post_processor: &Value) -> Tokenizer {
        let words = ["[PAD]", "[CLS]", "[SEP]", "a", "b", "c", "d", "e", "f"];
        let vocab: serde_json::Map<String, Value> =
            words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
        let special = |id: usize| {
            json!({"id": id, "content": words[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        };
        let json = json!({"version": "1.0", "added_tokens": [special(1), special(2)], "normalizer": null,
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
            "post_processor": post_processor, "model": {"type": "WordPiece", "unk_token": "[PAD]",
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab}});
        Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
    }

    fn bert() -> Tokenizer {
        tokenizer(&json!({"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}))
    }

    fn form(most: Option<usize>) -> PooledForm {
        PooledForm { add_special_tokens: true, most, keeps_end: false }
    }

    #[test]
    fn a_pair_has_the_tokens_and_types_of_the_post_processor() {
        let pair = bert().encode_pooled("a b", Some("c"), form(None)).unwrap();
        assert_eq!(pair, PooledIds { ids: vec![1, 3, 4, 2, 5, 2], second_from: Some(4) });
        let one = bert().encode_pooled("a b", None, form(None)).unwrap();
        assert_eq!(one, PooledIds { ids: vec![1, 3, 4, 2], second_from: None });
        // XLM-R has one type, and two tokens between the texts.
        let roberta = json!({"type": "RobertaProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1],
            "trim_offsets": true, "add_prefix_space": true});
        let pair = tokenizer(&roberta).encode_pooled("a b", Some("c"), form(None)).unwrap();
        assert_eq!(pair, PooledIds { ids: vec![1, 3, 4, 2, 2, 5, 2], second_from: None });
        let bare = PooledForm { add_special_tokens: false, ..form(None) };
        assert_eq!(bert().encode_pooled("a b", None, bare).unwrap().ids, [3, 4]);
    }

    #[test]
    fn a_template_says_where_the_second_text_begins() {
        let text = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
        let token = |id: &str, kind: u32| json!({"SpecialToken": {"id": id, "type_id": kind}});
        let defined = |id: &str, at: u32| json!({"id": id, "ids": [at], "tokens": [id]});
        let template = json!({"type": "TemplateProcessing",
            "single": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0)],
            "pair": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0), text("B", 1), token("[SEP]", 1)],
            "special_tokens": {"[CLS]": defined("[CLS]", 1), "[SEP]": defined("[SEP]", 2)}});
        let pair = tokenizer(&template).encode_pooled("a", Some("c d"), form(None)).unwrap();
        assert_eq!(pair, PooledIds { ids: vec![1, 3, 2, 5, 6, 2], second_from: Some(3) });
    }

    #[test]
    fn a_cut_text_keeps_the_tokens_around_it() {
        let cut = |most, keeps_end| {
            let form = PooledForm { keeps_end, ..form(Some(most)) };
            bert().encode_pooled("a b c d", None, form).unwrap().ids
        };
        assert_eq!(cut(4, false), [1, 3, 4, 2]);
        assert_eq!(cut(4, true), [1, 5, 6, 2]);
        assert_eq!(cut(6, false), [1, 3, 4, 5, 6, 2]);
        assert_eq!(cut(2, false), [1, 2]);
        let refusal = bert().encode_pooled("a", None, form(Some(1))).unwrap_err().to_string();
        assert!(refusal.contains("it is 1, and the tokenizer adds 2"), "{refusal}");
    }

    #[test]
    fn of_a_pair_the_longer_text_is_cut_first() {
        // As `truncate_encodings` of the tokenizers library has them.
        for (lengths, room, expected) in [
            ((2, 3), 5, (2, 3)),
            ((2, 9), 6, (2, 4)),
            ((9, 2), 6, (4, 2)),
            ((9, 8), 5, (3, 2)),
            ((8, 9), 5, (2, 3)),
            ((4, 4), 5, (2, 3)),
            ((3, 9), 0, (0, 0)),
            ((9, 0), 4, (4, 0)),
        ] {
            assert_eq!(longest_first(lengths.0, lengths.1, room), expected, "{lengths:?} in {room}");
        }
        let pair = bert().encode_pooled("a b c d", Some("e f"), form(Some(7))).unwrap();
        assert_eq!(pair.ids, [1, 3, 4, 2, 7, 8, 2]);
    }

    #[test]
    fn the_beginning_of_a_text_has_so_many_tokens() {
        assert_eq!(bert().beginning("a b c", 3).unwrap(), "a b c");
        assert_eq!(bert().beginning("a b c", 2).unwrap().trim(), "a b");
    }
}
