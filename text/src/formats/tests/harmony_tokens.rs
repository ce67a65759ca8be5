//! GPT-OSS's channels with a tokenizer that has their markers as control tokens: what OpenAI's library reads
//! in the same tokens (`tests/golden/harmony.py`).

use skein_grammar::token_bytes::{TokenBytes, TokenDecoder};
use skein_proto::TokenId;

use super::super::harmony::MARKERS;
use super::*;
use crate::detokenizer::Detokenizer;

/// 256 bytes, then the markers.
fn detokenizer() -> Detokenizer {
    let decoder = TokenDecoder::from_json(&json!({"type": "ByteFallback"})).unwrap();
    let spelling = |id: TokenId| match id as usize {
        byte @ 0..256 => Some(format!("<0x{byte:02X}>")),
        id => MARKERS.get(id - 256).map(|marker| (*marker).to_owned()),
    };
    let size = 256 + MARKERS.len() as u32;
    let table = Arc::new(TokenBytes::new(&decoder, size, spelling, |id| id >= 256));
    Detokenizer::new(table, true).keeping((256..size).collect())
}

fn tokens_of(parts: &Value) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    for part in parts.as_array().unwrap() {
        match part {
            Value::String(text) => tokens.extend(text.bytes().map(TokenId::from)),
            marker => {
                let at = MARKERS.iter().position(|known| marker[0] == **known).unwrap();
                tokens.push(256 + at as TokenId);
            }
        }
    }
    tokens
}

/// Content, reasoning and calls in what the library reads, by the rules of vLLM 0.33's `HarmonyParser`.
fn expected(messages: &Value) -> Parts {
    let mut parts = Parts::default();
    for message in messages.as_array().unwrap() {
        let [role, channel, recipient, text] =
            [0, 1, 2, 3].map(|at| message[at].as_str().unwrap_or_default());
        let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
        match (role, channel) {
            ("assistant", _) if functions().iter().any(|function| function.name == name) => {
                parts.ended.push(parts.calls.len() as u32);
                parts.calls.push((name.to_owned(), text.to_owned()));
            }
            ("assistant", "analysis") => parts.reasoning += text,
            ("assistant", _) => parts.content += text,
            _ => {}
        }
    }
    parts
}

#[test]
fn channels_are_read_from_control_tokens_as_openais_library_reads_them() {
    let goldens: Value = serde_json::from_str(include_str!("../../../../tests/golden/harmony.json")).unwrap();
    let with_tokens =
        Arc::new(Plan { token_markers: MARKERS.into(), ..(*plan("openai", None, Opening::Fresh)).clone() });
    for golden in goldens.as_array().unwrap() {
        let (tokens, expected) = (tokens_of(&golden["parts"]), expected(&golden["messages"]));
        for size in [1, 2, 3, 7, tokens.len()] {
            let (mut splitter, mut parts) = (Splitter::new(with_tokens.clone()), Parts::default());
            let mut detokenizer = detokenizer();
            for tokens in tokens.chunks(size) {
                let (mut text, mut control_at) = (String::new(), Vec::new());
                for token in tokens {
                    control_at.extend(detokenizer.push(*token, &mut text));
                }
                // The client may have received any part of the text before it connected again.
                let cut = text.len() / 2;
                let (had, new): (Vec<usize>, Vec<usize>) = control_at.iter().partition(|at| **at < cut);
                let new: Vec<usize> = new.iter().map(|at| at - cut).collect();
                parts.add(splitter.push(&text[..cut], &had));
                parts.add(splitter.push(&text[cut..], &new));
            }
            parts.add(splitter.finish());
            assert_eq!(parts, expected, "{}, {size} tokens at a time", golden["name"]);
        }
    }
}

/// A model whose tokenizer has no such tokens, served with this parser.
#[test]
fn without_control_tokens_the_text_of_a_marker_is_the_marker() {
    check(
        "openai",
        "<|channel|>final<|message|>A <|end|><|start|>assistant<|channel|>final<|message|>B",
        "A B",
        &[],
    );
    check("openai", "<|channel|>final<|message|>x<|end|><|start|>user<|message|>y", "x", &[]);
    let bare = "<|channel|>commentary to=now json<|message|>{}<|call|>";
    check("openai", bare, "", &[("now", json!({}))]);
    check("openai", "<|channel|>commentary to=other json<|message|>{}", "{}", &[]);
    check("openai", "<|channel|>final<|message|>x<|end|><|start|>assist", "x", &[]);
}
