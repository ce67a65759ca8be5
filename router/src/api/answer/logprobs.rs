//! Log-probabilities in the API's two formats, and in vLLM's format for prompts.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use skein_proto::TokenId;
use skein_proto::logprobs::TokenLogprobs;

use skein_text::detokenizer::Detokenizer;
use skein_text::token_bytes::TokenBytes;

/// Stands for negative infinity, which JSON lacks. vLLM sends the same value.
const IMPOSSIBLE: f32 = -9999.0;

/// How log-probabilities name tokens.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// Bytes of each token.
    pub bytes: &'a Arc<TokenBytes>,
    /// Write `token_id:7` instead of the text (vLLM's `return_tokens_as_token_ids`).
    pub as_ids: bool,
}

impl Names<'_> {
    fn of(&self, token: TokenId) -> String {
        if self.as_ids { by_id(token) } else { spelling(self.bytes, token) }
    }

    /// Name where names must differ, because answers have nothing else: OpenAI's for a token that is no
    /// UTF-8.
    fn in_completions(&self, token: TokenId) -> String {
        let bytes = self.bytes.get(token);
        if self.as_ids || std::str::from_utf8(bytes).is_ok() {
            return self.of(token);
        }
        bytes.iter().fold("bytes:".to_owned(), |name, byte| name + &format!("\\x{byte:02x}"))
    }
}

/// `logprobs` of a chat choice.
pub fn chat(names: Names<'_>, logprobs: &[TokenLogprobs]) -> Value {
    json!({"content": list(names, logprobs), "refusal": null})
}

/// Tokens with their log-probabilities, as chat and Responses list them.
pub fn list(names: Names<'_>, logprobs: &[TokenLogprobs]) -> Vec<Value> {
    let entry = |token: TokenId, logprob: f32| json!({"token": names.of(token), "logprob": finite(logprob), "bytes": names.bytes.get(token)});
    let content = logprobs.iter().map(|at| {
        let mut chosen = entry(at.token, at.logprob);
        chosen["top_logprobs"] = at.top.iter().map(|(token, logprob)| entry(*token, *logprob)).collect();
        chosen
    });
    content.collect()
}

/// A token, and its log-probabilities if known.
pub type ScoredToken<'a> = (TokenId, Option<&'a TokenLogprobs>);

/// `logprobs` of a completions choice: four parallel lists, continued across the chunks of a stream.
#[derive(Debug, Clone)]
pub struct CompletionLogprobs {
    offset: usize,
    detokenizer: Detokenizer,
}

/// A prompt that a choice repeats before its output; empty = none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Echo<'a> {
    /// Text of the prompt.
    pub text: &'a str,
    /// Its tokens.
    pub tokens: &'a [ScoredToken<'a>],
}

impl CompletionLogprobs {
    /// Offsets count characters from the start of the choice's text. `detokenizer` decodes the output tokens.
    pub fn new(detokenizer: Detokenizer) -> Self {
        Self { offset: 0, detokenizer }
    }

    /// Lists for an echoed prompt followed by new output. A token without log-probabilities, such as the
    /// first of the prompt, gets null.
    pub fn next(&mut self, names: Names<'_>, echo: Echo<'_>, output: &[ScoredToken]) -> Value {
        let Echo { text, tokens: prompt } = echo;
        let mut offsets = offsets_in(text, prompt, names.bytes);
        self.offset += text.chars().count();
        for (token, _) in output {
            offsets.push(self.offset);
            let mut piece = String::new();
            self.detokenizer.push(*token, &mut piece);
            self.offset += piece.chars().count();
        }
        let all = || prompt.iter().chain(output);
        let list = |of: &dyn Fn(&ScoredToken) -> Value| all().map(of).collect::<Value>();
        json!({
            "tokens": list(&|(token, _)| names.in_completions(*token).into()),
            "token_logprobs": list(&|(_, logprobs)| logprobs.map(|at| finite(at.logprob)).into()),
            "top_logprobs": list(&|(_, logprobs)| logprobs.map(|at| top(names, at)).into()),
            "text_offset": offsets,
        })
    }
}

/// Offset in `text` of each prompt token. `text` is what the client sent, without the BOS that the tokenizer
/// adds and without SentencePiece's leading space, so an offset advances only over text that is present.
fn offsets_in(text: &str, prompt: &[ScoredToken], bytes: &Arc<TokenBytes>) -> Vec<usize> {
    let mut detokenizer = Detokenizer::new(bytes.clone(), false);
    let (mut rest, mut offset) = (text, 0);
    let mut begin = |token| {
        let begins = offset;
        let mut piece = String::new();
        detokenizer.push(token, &mut piece);
        let leading_space = piece.strip_prefix(' ').filter(|_| begins == 0);
        let after = rest.strip_prefix(&*piece).or_else(|| rest.strip_prefix(leading_space?));
        if let Some(after) = after {
            offset += rest[..rest.len() - after.len()].chars().count();
            rest = after;
        }
        begins
    };
    prompt.iter().map(|(token, _)| begin(*token)).collect()
}

/// vLLM's `prompt_logprobs`: for each prompt token an object keyed by token id; null for the first.
pub fn prompt(bytes: &TokenBytes, logprobs: &[TokenLogprobs]) -> Value {
    let of = |at: &TokenLogprobs| {
        let entry = |token: TokenId, logprob: f32, rank: u64| {
            let value =
                json!({"logprob": finite(logprob), "rank": rank, "decoded_token": spelling(bytes, token)});
            (token.to_string(), value)
        };
        let chosen = std::iter::once(entry(at.token, at.logprob, u64::from(at.rank)));
        let best = at.top.iter().zip(1..).map(|((token, logprob), rank)| entry(*token, *logprob, rank));
        Value::Object(chosen.chain(best).collect())
    };
    std::iter::once(Value::Null).chain(logprobs.iter().map(of)).collect()
}

/// Best tokens by their text, with the chosen one if it is not among them. Of tokens with the same text the
/// first has the name, the others go by id.
fn top(names: Names<'_>, at: &TokenLogprobs) -> Value {
    let is_among = at.top.iter().any(|(token, _)| *token == at.token);
    let chosen = [(at.token, at.logprob)];
    let mut map = Map::new();
    for (token, logprob) in at.top.iter().chain(if is_among { &[][..] } else { &chosen[..] }) {
        let name = names.in_completions(*token);
        let name = if map.contains_key(&name) { by_id(*token) } else { name };
        map.insert(name, finite(*logprob));
    }
    map.into()
}

fn by_id(token: TokenId) -> String {
    format!("token_id:{token}")
}

fn spelling(bytes: &TokenBytes, token: TokenId) -> String {
    String::from_utf8_lossy(bytes.get(token)).into_owned()
}

fn finite(logprob: f32) -> Value {
    f64::from(if logprob.is_finite() { logprob } else { IMPOSSIBLE }).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skein_text::token_bytes::TokenDecoder;

    #[test]
    fn every_one_of_the_best_tokens_has_an_entry_in_completions() {
        let fallback = TokenDecoder::from_json(&json!({"type": "ByteFallback"})).unwrap();
        let spellings = ["<0xC3>", "<0xE2>", "a", "<0x61>", "<0xFF>"];
        let spelling = |id: TokenId| Some(spellings[id as usize].to_owned());
        let bytes = Arc::new(TokenBytes::new(&fallback, 5, spelling, |_| false));
        let best = |token| TokenLogprobs {
            token,
            logprob: -0.5,
            rank: 1,
            top: vec![(0, -1.0), (1, -2.0), (2, -3.0), (3, -4.0)],
        };
        let names = Names { bytes: &bytes, as_ids: false };
        let expected = json!({"bytes:\\xc3": -1.0, "bytes:\\xe2": -2.0, "a": -3.0, "token_id:3": -4.0});
        assert_eq!(top(names, &best(2)), expected);
        assert_eq!(top(names, &best(4))["bytes:\\xff"], -0.5);
    }

    #[test]
    fn sentencepieces_leading_space_moves_no_offset() {
        let space = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let spellings = ["<s>", "▁Hi"];
        let spelling = |id: TokenId| Some(spellings[id as usize].to_owned());
        let bytes = TokenBytes::new(&TokenDecoder::from_json(&space).unwrap(), 2, spelling, |id| id == 0);
        let prompt = [(0, None), (1, None), (1, None), (1, None)];
        assert_eq!(offsets_in("Hi Hi Hi", &prompt, &Arc::new(bytes)), [0, 0, 2, 5]);
    }
}
