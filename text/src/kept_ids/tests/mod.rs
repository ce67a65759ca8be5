//! Cut texts have the ids of whole ones, under every kind of tokenizer; kept ids are bounded and separate.

mod tokenizers;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::limits::{PART_BYTES, SHORTEST_TEXT};
use super::*;
use crate::tokenizer::Tokenizer;
use tokenizers::{GOLDEN, shipped, token, tokenizers};

/// What rules and added tokens distinguish, and halves of it.
const UNITS: [&str; 71] = [
    "</s>",
    "<s>",
    "[INST]",
    "<|endoftext|>",
    "[SEP]",
    " ",
    " ",
    " ",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\n\n",
    "\t",
    "a",
    "e",
    "x",
    "the",
    "Once",
    "upon",
    " time",
    " upon time",
    "word ",
    "Zebra",
    "iPhone",
    "7",
    "42",
    "2026",
    " 1234567",
    "'s",
    "'LL",
    "'ve ",
    "'",
    ".",
    ",",
    "...",
    "!?",
    "/",
    "<",
    "<|end|>",
    "<|end|>",
    "<|user|>",
    "<|end|",
    "<|",
    "|>",
    "|end|>",
    "<|end|><|user|>",
    "<|assistant|> ",
    "<mask>",
    " <mask>",
    "<roll>",
    "<roll> ",
    "_",
    "#x",
    "é",
    "e\u{301} ",
    "naïve ",
    "深い",
    "の",
    "٣",
    "😀",
    "\u{301}",
    "\u{a0}",
    "\u{2028}",
    "\u{b}",
    "\0",
    "ſ ",
    "ǅ",
    "\u{212A} ",
    "▁",
    "가각",
];

fn text(rng: &mut StdRng, units: usize) -> String {
    (0..rng.random_range(1..units)).map(|_| UNITS[rng.random_range(0..UNITS.len())]).collect()
}

fn rounds(usual: u64) -> u64 {
    std::env::var("TEST_TOKENIZER_TEXTS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

#[test]
fn a_text_may_be_cut_at_every_cut() {
    for (name, tokenizer) in tokenizers() {
        let Some(cuts) = tokenizer.cuts.as_ref() else { continue };
        let mut seen = 0;
        for seed in 0..rounds(50) {
            let text = text(&mut StdRng::seed_from_u64(seed), 50);
            let ids = |text: &str| tokenizer.encode_by_library(text, false).unwrap();
            let whole = ids(&text);
            let mut from = 1;
            while let Some(at) = cuts.after(&text, from) {
                let (left, right) = text.split_at(at);
                assert_eq!(
                    [ids(left), ids(right)].concat(),
                    whole,
                    "{name}, seed {seed}: {left:?} {right:?}"
                );
                (from, seen) = (at + 1, seen + 1);
            }
        }
        assert!(seen > 0 || name.starts_with(GOLDEN), "{name} has cuts in texts");
    }
}

#[test]
fn a_text_that_grows_has_the_ids_of_the_whole() {
    for (name, tokenizer) in tokenizers() {
        for seed in 0..rounds(1) {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut grown = String::new();
            for _ in 0..6 {
                while grown.len() % (2 * PART_BYTES) < PART_BYTES {
                    grown.push_str(&text(&mut rng, 200));
                }
                grown.push_str(&text(&mut rng, 600));
                let with_special = rng.random_bool(0.5);
                let whole = tokenizer.encode(&grown, with_special).unwrap();
                let kept = tokenizer.encode_kept(&grown, with_special, "").unwrap();
                assert_eq!(kept, whole, "{name}, seed {seed}, special tokens {with_special}");
                assert_eq!(tokenizer.encode_kept(&grown, with_special, "").unwrap(), whole, "{name}, again");
            }
            let counts = tokenizer.kept_counts();
            assert!(counts.known > 0 || name.starts_with(GOLDEN), "{name}: {counts:?}");
        }
    }
}

/// Messages of random texts, in which control tokens are text, between a template's own.
#[test]
fn spelled_control_tokens_stay_text_in_kept_parts() {
    let mark = '\u{FDD0}';
    for (name, tokenizer) in tokenizers() {
        let mut rng = StdRng::seed_from_u64(3);
        let own: Vec<String> =
            tokenizer.control_tokens.iter().map(|(_, token)| token.content.clone()).collect();
        let mut chat = String::new();
        for turn in 0..5 {
            while chat.len() % (2 * PART_BYTES) < PART_BYTES {
                let message = Value::from(text(&mut rng, 300));
                let spells = rng.random_bool(0.3);
                let message =
                    if spells || turn == 0 { tokenizer.control.shield(&message, mark) } else { message };
                chat.push_str(message.as_str().unwrap());
                chat.push_str(own.get(rng.random_range(0..own.len().max(1))).map_or("", String::as_str));
            }
            chat.push_str(&text(&mut rng, 600));
            let whole = tokenizer.encode_shielded(&chat, mark, None).unwrap();
            let kept = tokenizer.encode_shielded(&chat, mark, Some("")).unwrap();
            assert_eq!(kept, whole, "{name}, turn {turn}: {chat:?}");
        }
    }
}

#[test]
fn a_part_with_the_mark_is_not_the_same_text_without_shields() {
    let tokenizer = Tokenizer::from_json(shipped().to_string().as_bytes()).unwrap();
    let mark = '\u{FDD0}';
    let text = format!("{}<{mark}|end|>{}", long(600), long(600));
    let shielded = tokenizer.encode_shielded(&text, mark, Some("")).unwrap();
    assert_eq!(tokenizer.encode_kept(&text, false, "").unwrap(), tokenizer.encode(&text, false).unwrap());
    assert_eq!(tokenizer.encode_shielded(&text, mark, Some("")).unwrap(), shielded);
    assert_eq!(tokenizer.encode_shielded(&text, mark, None).unwrap(), shielded);
}

#[test]
fn tokens_that_another_may_cover_are_no_cuts() {
    let cuts = |tokens: Vec<Value>| {
        let mut tree = shipped();
        tree["pre_tokenizer"] = Value::Null;
        tree["added_tokens"] = tokens.into();
        let tokenizer = Tokenizer::from_json(tree.to_string().as_bytes()).unwrap();
        tokenizer.cuts.as_ref().map(|cuts| cuts.after("..<|end|>..", 1))
    };
    let end = || token(6, "<|end|>", &json!({}));
    assert_eq!(cuts(vec![end()]), Some(Some(2)));
    for other in [".<", ".<|end|>", ".<|end|>.", "..<|end"] {
        let found = cuts(vec![end(), token(1, other, &json!({}))]).unwrap();
        assert_ne!(found, Some(2), "{other}");
    }
    // The leftmost match is the longest one that starts there.
    for harmless in ["<|end|>.", "<|end|>!", ">.", "end", "<|", "|>", "<", ">", "<|user|>"] {
        let found = cuts(vec![end(), token(1, harmless, &json!({}))]);
        assert_eq!(found, Some(Some(2)), "{harmless}");
    }
    for later in ["<|user|>", "|end", "."] {
        let found = cuts(vec![end(), token(1, later, &json!({"normalized": true}))]);
        assert_eq!(found, Some(Some(2)), "{later} is found later");
    }
    assert_eq!(cuts(vec![token(6, "<|end|>", &json!({"lstrip": true}))]), Some(None));
    let longer = token(1, "<|end|>!", &json!({"lstrip": true}));
    assert_eq!(cuts(vec![end(), longer]), Some(None), "its match may start before the token");
    assert_eq!(cuts(vec![token(6, "<|end|>", &json!({"normalized": true}))]), Some(None));
    assert_eq!(cuts(vec![end(), token(1, "x", &json!({"single_word": true}))]), None);
}

#[test]
fn what_is_drawn_or_doubled_is_not_cut() {
    let has_cuts = |change: fn(&mut Value)| {
        let mut tree = shipped();
        change(&mut tree);
        Tokenizer::from_json(tree.to_string().as_bytes()).unwrap().cuts.is_some()
    };
    assert!(has_cuts(|_| ()));
    assert!(!has_cuts(|tree| tree["model"]["dropout"] = json!(0.1)));
    assert!(!has_cuts(|tree| {
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        tree["post_processor"]["single"] = json!([text, text]);
    }));
}

/// A long text in plain English.
fn long(bytes: usize) -> String {
    let words = ["tide", "harbour", "the", "of", "lantern", "seven", "quiet", "rope"];
    let mut rng = StdRng::seed_from_u64(1);
    let mut text = String::new();
    while text.len() < bytes {
        text.push_str(words[rng.random_range(0..words.len())]);
        text.push(' ');
    }
    text
}

#[test]
fn a_turn_tokenizes_what_it_adds() {
    let tokenizer = Tokenizer::from_json(shipped().to_string().as_bytes()).unwrap();
    let mut text = long(240 * 1024);
    let whole = tokenizer.encode_kept(&text, true, "").unwrap().len() as u64;
    let first = tokenizer.kept_counts();
    assert_eq!(first, KeptCounts { known: 0, new: whole - 1 }, "but for its BOS");
    text.push_str("and then some more words that are new here.");
    let added = 43;
    assert!(
        tokenizer.is_known_but(PART_BYTES + 64 + added, &text, "")
            && !tokenizer.is_known_but(added - 1, &text, "")
    );
    tokenizer.encode_kept(&text, true, "").unwrap();
    let second = tokenizer.kept_counts();
    assert!(second.new - first.new <= (PART_BYTES + 64 + added) as u64 / 2, "{second:?} after {first:?}");
    assert!(second.known > whole * 9 / 10, "{second:?}");
}

#[test]
fn scopes_do_not_share() {
    let tokenizer = Tokenizer::from_json(shipped().to_string().as_bytes()).unwrap();
    let text = long(8 * PART_BYTES);
    tokenizer.encode_kept(&text, false, "one").unwrap();
    assert!(tokenizer.is_known_but(0, &text, "one"));
    assert!(!tokenizer.is_known_but(text.len() - 1, &text, "other"));
    tokenizer.encode_kept(&text, false, "other").unwrap();
    assert_eq!(tokenizer.kept_counts().known, 0);
}

#[test]
fn short_texts_are_not_kept() {
    let tokenizer = Tokenizer::from_json(shipped().to_string().as_bytes()).unwrap();
    let text = &long(SHORTEST_TEXT)[..SHORTEST_TEXT - 1];
    tokenizer.encode_kept(text, false, "").unwrap();
    assert!(!tokenizer.is_known_but(text.len() - 1, text, ""));
    assert_eq!(tokenizer.kept_counts(), KeptCounts::default());
}

const PLAIN: KeptIn<'_> = KeptIn { scope: "", mark: None };

fn part(text: &str) -> Part {
    Part { scope: "".into(), mark: None, text: text.into(), ids: vec![1; 100].into() }
}

#[test]
fn kept_bytes_are_bounded_and_the_least_recently_used_goes_first() {
    let bytes = part("0000").bytes();
    let kept = KeptIds::with_bytes(3 * bytes * SHARDS);
    let find = |at: u64| kept.find(at, &format!("{at:04}"), PLAIN).is_some();
    for at in 0..3 {
        kept.keep(at, part(&format!("{at:04}")));
    }
    assert!(find(0));
    kept.keep(3, part("0003"));
    assert_eq!([0, 1, 2, 3].map(find), [true, false, true, true]);
    for at in 0..1000 {
        kept.keep(at, part(&format!("{at:04}")));
        kept.keep(at, part(&format!("{at:04}")));
    }
    let shard = kept.shard(0).lock().unwrap();
    assert_eq!((shard.parts.len(), shard.bytes), (3, 3 * bytes));
}

#[test]
fn a_collision_is_not_the_text() {
    let kept = KeptIds::default();
    let find = |text: &str, kept_in| kept.find(7, text, kept_in).is_some();
    kept.keep(7, part("one text"));
    assert!(find("one text", PLAIN) && !find("another", PLAIN));
    assert!(!find("one text", KeptIn { scope: "scope", mark: None }));
    assert!(!find("one text", KeptIn { scope: "", mark: Some('x') }));
    kept.keep(7, part("another"));
    assert!(find("another", PLAIN) && !find("one text", PLAIN));
}

#[test]
fn threads_share_kept_ids() {
    let tokenizer = Tokenizer::from_json(shipped().to_string().as_bytes()).unwrap();
    let texts: Vec<String> = (1..9).map(|at| long(at * 10_000)).collect();
    let expected: Vec<_> = texts.iter().map(|text| tokenizer.encode(text, true).unwrap()).collect();
    std::thread::scope(|scope| {
        for start in 0..4 {
            let (tokenizer, texts, expected) = (&tokenizer, &texts, &expected);
            scope.spawn(move || {
                for at in (0..40).map(|at| (at + start) % texts.len()) {
                    assert_eq!(tokenizer.encode_kept(&texts[at], true, "").unwrap(), expected[at]);
                }
            });
        }
    });
}
