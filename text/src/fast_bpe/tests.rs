//! Compares the fast path with the library on random texts under every rule.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::*;
use crate::tokenizer::Tokenizer;
use crate::tokenizer_file::TokenizerFile;

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Building blocks of texts: characters that rules distinguish, and some for the library.
const UNITS: [&str; 44] = [
    " ",
    " ",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "a",
    "the",
    "Once",
    "upon",
    " time",
    "Zebra",
    "7",
    "42",
    "2026",
    "'s",
    "'LL",
    "'ve",
    "'",
    ".",
    ",",
    "...",
    "!?",
    "<",
    "<|end|>",
    "<|user|>",
    "<|",
    "|>",
    "_",
    "#x",
    "é",
    "naïve",
    "深い",
    "٣",
    "😀",
    "\u{301}",
    "\u{a0}",
    "\u{2028}",
    "\u{b}",
    "\0",
    "ſ",
    "ǅ",
    "antidisestablishmentarianismantidisestablishmentarianism-",
];

fn shipped() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m/tokenizer.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn fast(tree: &Value, id_of: &dyn Fn(&str) -> Option<TokenId>) -> Option<FastBpe> {
    let file = TokenizerFile::parse(tree.to_string().as_bytes()).unwrap();
    FastBpe::new(&file, id_of)
}

fn split(pattern: &str) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})
}

/// The shipped vocabulary with each rule.
fn tokenizers() -> Vec<(&'static str, Value)> {
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let digits = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true}, byte_level.clone()]});
    let mut all = Vec::new();
    for (name, pre_tokenizer) in
        [("gpt2", byte_level), ("digits", digits), ("llama3", split(LLAMA_3)), ("qwen2", split(QWEN_2))]
    {
        let mut tree = shipped();
        tree["pre_tokenizer"] = pre_tokenizer;
        all.push((name, tree.clone()));
        if name == "llama3" {
            tree["model"]["ignore_merges"] = true.into();
            all.push(("llama3, whole words first", tree.clone()));
        }
        if name == "qwen2" {
            tree["normalizer"] = json!({"type": "NFC"});
            all.push(("qwen2, composed", tree.clone()));
        }
        if name == "gpt2" {
            let extra = |id: u32, content: &str, normalized: bool| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": normalized, "special": false})
            };
            let added = tree["added_tokens"].as_array_mut().unwrap();
            added.extend([extra(4096, "  ", true), extra(4097, "upon time", true), extra(4098, "#", false)]);
            all.push(("gpt2, added words", tree.clone()));
        }
    }
    all
}

fn text(rng: &mut StdRng) -> String {
    (0..rng.random_range(0..60)).map(|_| UNITS[rng.random_range(0..UNITS.len())]).collect()
}

#[test]
fn it_agrees_with_the_library_on_random_texts() {
    let rounds =
        std::env::var("TEST_TOKENIZER_TEXTS").ok().and_then(|count| count.parse().ok()).unwrap_or(1500);
    for (name, tree) in tokenizers() {
        let json = tree.to_string();
        let tokenizer = Tokenizer::from_json(json.as_bytes()).unwrap();
        let fast =
            fast(&tree, &|text| tokenizer.id_of(text)).unwrap_or_else(|| panic!("{name} is supported"));
        let mut by_library = 0;
        for seed in 0..rounds {
            let text = text(&mut StdRng::seed_from_u64(seed));
            let expected = tokenizer.encode_by_library(&text, false).unwrap();
            let got = fast.encode(&text, &mut |span| {
                by_library += span.len();
                tokenizer.encode_by_library(span, false)
            });
            assert_eq!(got.unwrap(), expected, "{name}, seed {seed}: {text:?}");
            let expected = tokenizer.encode_by_library(&text, true).unwrap();
            assert_eq!(tokenizer.encode(&text, true).unwrap(), expected, "{name}, seed {seed}: {text:?}");
        }
        assert!(by_library > 0, "{name}: some characters are not plain");
    }
}

#[test]
fn plain_text_needs_no_library() {
    let fast = fast(&shipped(), &|_| Some(0)).unwrap();
    let text = "Once upon a time, there was a fox.\n\tIt's 42 years old -- isn't it?\r\n".repeat(50);
    fast.encode(&text, &mut |span| panic!("the library was asked for {span:?}")).unwrap();
    let mut spans = Vec::new();
    let text = "all plain words here but naïve ones and other plain words at the end of this text, with no more of them than needed";
    let mut library = |span: &str| {
        spans.push(span.to_owned());
        Ok(Vec::new())
    };
    fast.encode(text, &mut library).unwrap();
    assert_eq!(spans, [" naïve"]);
}

#[test]
fn what_it_does_not_know_is_left_to_the_library() {
    let check = |change: fn(&mut Value)| {
        let mut tree = shipped();
        change(&mut tree);
        assert!(fast(&tree, &|_| Some(0)).is_none());
    };
    check(|tree| tree["normalizer"] = json!({"type": "Lowercase"}));
    check(|tree| tree["pre_tokenizer"]["add_prefix_space"] = true.into());
    check(|tree| tree["pre_tokenizer"] = json!({"type": "Metaspace"}));
    check(|tree| tree["pre_tokenizer"] = split(r"\w+"));
    check(|tree| tree["model"]["dropout"] = json!(0.1));
    check(|tree| tree["model"]["type"] = "Unigram".into());
    check(|tree| tree["added_tokens"][0]["lstrip"] = true.into());
    check(|tree| {
        tree["normalizer"] = json!({"type": "NFC"});
        tree["added_tokens"][0]["normalized"] = true.into();
    });
    check(|tree| drop(tree["model"]["vocab"].as_object_mut().unwrap().remove("Q")));
}
