//! Compares words' tokens with the library's, for random models.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::de::DeserializeSeed;
use serde_json::{Map, Value, json};
use tokenizers::{Model, ModelWrapper};

use super::*;

const LETTERS: [&str; 9] = ["a", "b", "c", "é", "深", "▁", "Ġ", "😀", " "];

/// A model of some letters and of random merges of its tokens.
fn model(rng: &mut StdRng) -> Value {
    let mut vocab = Map::new();
    let add = |vocab: &mut Map<String, Value>, text: &str| {
        let id = vocab.len() * 3;
        vocab.entry(text).or_insert(id.into());
    };
    LETTERS.iter().filter(|_| rng.random_range(0..6) > 0).for_each(|letter| add(&mut vocab, letter));
    let bytes = rng.random_range(0..3);
    for byte in (0..256).filter(|byte| bytes == 2 || (bytes == 1 && byte % 2 == 0)) {
        add(&mut vocab, &format!("<0x{byte:02X}>"));
    }
    add(&mut vocab, "<unk>");
    let mut merges = Vec::new();
    for _ in 0..rng.random_range(0..60) {
        let short: Vec<&String> = vocab.keys().filter(|token| token.len() < 24).collect();
        let mut one = || short[rng.random_range(0..short.len())].clone();
        let (left, right) = (one(), one());
        add(&mut vocab, &format!("{left}{right}"));
        merges.push(json!([left, right]));
    }
    let mut flag = || rng.random_range(0..2) == 0;
    json!({"type": "BPE", "dropout": null, "unk_token": if flag() { Some("<unk>") } else { None },
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": flag(), "byte_fallback": flag(),
        "ignore_merges": flag(), "vocab": vocab, "merges": merges})
}

#[test]
fn words_have_the_tokens_of_the_library() {
    let (mut unknown, mut merged) = (0, 0);
    for seed in 0..400 {
        let mut rng = StdRng::seed_from_u64(seed);
        let tree = model(&mut rng);
        let json = tree.to_string();
        let ours =
            BpeSeed { max_id: 10_000 }.deserialize(&mut serde_json::Deserializer::from_str(&json)).unwrap();
        let library: ModelWrapper = serde_json::from_str(&json).unwrap();
        let tokens: Vec<&String> = tree["vocab"].as_object().unwrap().keys().collect();
        for _ in 0..60 {
            let longest = [3, 40, 400][rng.random_range(0..3)];
            let word: String = (0..rng.random_range(0..longest))
                .map(|_| match rng.random_range(0..3) {
                    0 => tokens[rng.random_range(0..tokens.len())].as_str(),
                    1 => LETTERS[rng.random_range(0..2)],
                    _ => LETTERS[rng.random_range(0..LETTERS.len())],
                })
                .collect();
            let expected: Vec<TokenId> =
                library.tokenize(&word).unwrap().iter().map(|token| token.id).collect();
            assert_eq!(ours.encode(&word), expected, "seed {seed}: {word:?}");
            unknown += usize::from(expected.contains(&ours.id_of("<unk>").unwrap()));
            merged += usize::from(expected.len() < word.chars().count() && expected.len() > 64);
        }
        for (token, id) in ours.tokens() {
            assert_eq!((library.token_to_id(token), ours.text_of(id)), (Some(id), Some(token)));
        }
    }
    assert!(unknown > 1000 && merged > 1000, "{unknown} with unknown characters, {merged} long ones");
}

#[test]
fn of_a_token_with_two_ids_the_last_one_counts() {
    let json = r#"{"type": "BPE", "vocab": {"a": 1, "b": 2, "a": 4}, "merges": []}"#;
    let bpe = BpeSeed { max_id: 9 }.deserialize(&mut serde_json::Deserializer::from_str(json)).unwrap();
    assert_eq!((bpe.id_of("a"), bpe.text_of(4), bpe.vocab_size()), (Some(4), Some("a"), 2));
    assert_eq!((bpe.text_of(3), bpe.text_of(5), bpe.largest_id()), (None, None, Some(4)));
    let texts: BTreeSet<&str> = bpe.tokens().map(|(text, _)| text).collect();
    assert_eq!(texts, BTreeSet::from(["a", "b"]));
}
