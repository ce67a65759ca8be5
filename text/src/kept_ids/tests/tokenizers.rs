//! Tokenizers of every kind, over small vocabularies.

use serde_json::{Value, json};

use super::super::cuts;
use crate::tokenizer::Tokenizer;
use crate::vocabulary_tests;

/// Marks tokenizers of golden files, some of which have no cuts.
pub const GOLDEN: &str = "golden ";

pub fn shipped() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m/tokenizer.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn splits(patterns: &[&str]) -> Value {
    let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let steps: Vec<Value> = patterns.iter().map(split).chain([byte_level(false)]).collect();
    json!({"type": "Sequence", "pretokenizers": steps})
}

/// An added token with the fields of `more`.
pub fn token(id: u32, content: &str, more: &Value) -> Value {
    let mut token = json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    token.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    token
}

/// Each pre-tokenizer and normalizer of public tokenizers, over the shipped vocabulary.
fn rules() -> Vec<(String, Value)> {
    const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    /// Joins words across spaces, so that no space ends a word.
    const JOINING: &str = r"\p{L}+(?: \p{L}+)*|\s+|[^\s\p{L}]+";
    let digits = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true}, byte_level(true)]});
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let spaced = json!({"type": "Sequence", "normalizers": [prepend, replace.clone()]});
    let mut prefixed = byte_level(true);
    prefixed["add_prefix_space"] = true.into();
    let none = Value::Null;
    let mut all = vec![
        ("gpt2".to_owned(), none.clone(), byte_level(true)),
        ("smollm2".to_owned(), none.clone(), digits),
        ("llama3".to_owned(), none.clone(), splits(&[LLAMA_3])),
        ("qwen2".to_owned(), json!({"type": "NFC"}), splits(&[QWEN_2])),
        ("joining".to_owned(), none.clone(), splits(&[JOINING])),
        ("prefix space".to_owned(), none.clone(), prefixed),
        ("llama2, older".to_owned(), spaced, none.clone()),
        ("gemma".to_owned(), replace, none.clone()),
        ("metaspace, first".to_owned(), none.clone(), metaspace("first")),
        ("metaspace, always".to_owned(), none.clone(), metaspace("always")),
        (
            "strip".to_owned(),
            json!({"type": "Strip", "strip_left": true, "strip_right": true}),
            byte_level(true),
        ),
        (
            "lower".to_owned(),
            json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]}),
            byte_level(true),
        ),
        (
            "bert".to_owned(),
            json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true}),
            json!({"type": "BertPreTokenizer"}),
        ),
    ];
    all.extend(
        cuts::WORDS
            .iter()
            .enumerate()
            .map(|(at, words)| (format!("words {at}"), none.clone(), splits(words))),
    );
    let with = |(name, normalizer, pre_tokenizer)| {
        let mut tree = shipped();
        tree["normalizer"] = normalizer;
        tree["pre_tokenizer"] = pre_tokenizer;
        (name, tree)
    };
    all.into_iter().map(with).collect()
}

/// Each rule with each set of added tokens, models of other kinds, and the golden vocabularies.
pub fn tokenizers() -> Vec<(String, Tokenizer)> {
    let added: [(&str, Vec<Value>); 4] = [
        ("", vec![]),
        (
            "overlapping",
            vec![
                token(4096, "<|end|><|user|>", &json!({})),
                token(4097, "|>Once", &json!({})),
                token(4098, "he", &json!({})),
                token(4099, "aa", &json!({"normalized": true})),
            ],
        ),
        (
            "stripping",
            vec![
                token(4096, "<mask>", &json!({"lstrip": true})),
                token(4097, "<roll>", &json!({"rstrip": true})),
            ],
        ),
        (
            "across",
            vec![
                token(4096, "upon time", &json!({"normalized": true})),
                token(4097, "K ", &json!({"normalized": true})),
                token(4098, "  ", &json!({})),
            ],
        ),
    ];
    let mut all = Vec::new();
    for (name, tree) in rules() {
        for (kind, tokens) in &added {
            let mut tree = tree.clone();
            tree["added_tokens"].as_array_mut().unwrap().extend(tokens.clone());
            for (variant, option) in
                [("", "version"), ("whole words", "ignore_merges"), ("bytes", "byte_fallback")]
            {
                if kind.is_empty() || variant.is_empty() {
                    let mut tree = tree.clone();
                    if !variant.is_empty() {
                        tree["model"][option] = true.into();
                    }
                    let tokenizer = Tokenizer::from_json(tree.to_string().as_bytes()).unwrap();
                    all.push((format!("{name}, {kind} {variant}"), tokenizer));
                }
            }
        }
    }
    let vocabulary = json!([
        ["<unk>", 0.0],
        ["▁", -2.0],
        ["a", -3.0],
        ["▁a", -3.5],
        ["the", -4.0],
        ["e", -4.0],
        ["▁▁", -4.5]
    ]);
    let mut unigram = shipped();
    unigram["model"] = json!({"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": false});
    let mut word_piece = shipped();
    let control =
        word_piece["added_tokens"].as_array().unwrap().iter().map(|token| token["content"].as_str().unwrap());
    let words = control.chain(["[UNK]", "a", "the", "##e", "once", "##x"]).enumerate();
    let words: Value =
        words.map(|(id, word)| (word.to_owned(), Value::from(id))).collect::<serde_json::Map<_, _>>().into();
    word_piece["model"] = json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": words});
    for (name, mut tree, steps) in [
        (
            "unigram",
            unigram,
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true}),
        ),
        ("word piece", word_piece, json!({"type": "BertPreTokenizer"})),
    ] {
        tree["pre_tokenizer"] = steps;
        all.push((name.to_owned(), Tokenizer::from_json(tree.to_string().as_bytes()).unwrap()));
    }
    let golden = vocabulary_tests::golden_tokenizers().into_iter();
    all.extend(golden.map(|(name, tokenizer)| (format!("{GOLDEN}{name}"), tokenizer)));
    all
}
