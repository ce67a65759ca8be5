//! Log-probabilities in the two shapes of the API and in vLLM's shape for prompts.

use serde_json::{Map, Value, json};

use crate::request::{TokenId, TokenLogprobs};
use crate::text::detokenizer::Detokenizer;
use crate::text::token_bytes::TokenBytes;

/// JSON has no infinity; vLLM says this instead.
const IMPOSSIBLE: f32 = -9999.0;

/// Chat: `logprobs.content`.
pub fn chat(bytes: &TokenBytes, logprobs: &[TokenLogprobs]) -> Value {
    let entry = |token: TokenId, logprob: f32| json!({"token": spelling(bytes, token), "logprob": finite(logprob), "bytes": bytes.get(token)});
    let content = logprobs.iter().map(|at| {
        let mut chosen = entry(at.token, at.logprob);
        chosen["top_logprobs"] = at.top.iter().map(|(token, logprob)| entry(*token, *logprob)).collect();
        chosen
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

/// Completions: four lists beside each other, continued over the chunks of a stream.
#[derive(Debug, Clone)]
pub struct CompletionLogprobs {
    offset: usize,
    detokenizer: Detokenizer,
}

impl CompletionLogprobs {
    /// Offsets count the chars of the text that `detokenizer` gives, from the start of the choice's text.
    pub fn new(detokenizer: Detokenizer) -> Self {
        Self { offset: 0, detokenizer }
    }

    /// The lists for these tokens; one without log-probabilities (the prompt's first) has null.
    pub fn next(&mut self, bytes: &TokenBytes, tokens: &[(TokenId, Option<&TokenLogprobs>)]) -> Value {
        let (mut spellings, mut of_tokens) = (Vec::<Value>::new(), Vec::<Value>::new());
        let (mut tops, mut offsets) = (Vec::<Value>::new(), Vec::<Value>::new());
        for (token, logprobs) in tokens {
            spellings.push(spelling(bytes, *token).into());
            offsets.push(self.offset.into());
            let mut piece = String::new();
            self.detokenizer.push(*token, &mut piece);
            self.offset += piece.chars().count();
            of_tokens.push(logprobs.map(|at| finite(at.logprob)).into());
            tops.push(logprobs.map(|at| top(bytes, at)).into());
        }
        json!({"tokens": spellings, "token_logprobs": of_tokens, "top_logprobs": tops, "text_offset": offsets})
    }
}

/// vLLM's `prompt_logprobs`: for each prompt token an object by token id; null for the first.
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

/// The best tokens by their spelling, and the chosen one if it is not among them.
fn top(bytes: &TokenBytes, at: &TokenLogprobs) -> Value {
    let mut map = Map::new();
    for (token, logprob) in at.top.iter().chain([&(at.token, at.logprob)]) {
        // Two tokens that are broken bytes may look alike; the better one stays.
        map.entry(spelling(bytes, *token)).or_insert_with(|| finite(*logprob));
    }
    map.into()
}

fn spelling(bytes: &TokenBytes, token: TokenId) -> String {
    String::from_utf8_lossy(bytes.get(token)).into_owned()
}

fn finite(logprob: f32) -> Value {
    f64::from(if logprob.is_finite() { logprob } else { IMPOSSIBLE }).into()
}
