//! Which tokenizers take time and memory in proportion to a text, whatever the text. A regular expression may
//! backtrack without end and a replacement may lengthen its input without end, so that all others are first
//! tried in a process of their own ([`probe`](super::probe)).

use serde_json::{Value, json};

use super::fast_bpe::Rule;
use super::tokenizer_file::{ModelFile, TokenizerFile};

/// Most bytes of all added tokens; the library builds automata of them.
const MAX_ADDED_BYTES: usize = 256 * 1024;
/// Most pieces of a post-processor's template, and most post-processors.
const MAX_PIECES: usize = 16;

/// Most characters of a word that WordPiece searches; it takes their square.
const MAX_WORD_CHARS: u64 = 200;

/// Whether every step of `file` is one of public models' whose cost is known.
pub fn are_known(file: &TokenizerFile) -> bool {
    let (pre_tokenizer, normalizer) = (file.member("pre_tokenizer"), file.member("normalizer"));
    let is_known_before = match &file.model {
        ModelFile::Bpe(_) => {
            is_known_normalizer(normalizer)
                && (pre_tokenizer.is_null() || Rule::from_json(pre_tokenizer).is_some())
        }
        // BERT's.
        ModelFile::Other(model, _) => {
            is_word_piece(model)
                && (normalizer.is_null() || normalizer["type"] == "BertNormalizer")
                && pre_tokenizer["type"] == "BertPreTokenizer"
        }
    };
    is_known_before
        && is_known_post_processor(file.member("post_processor"))
        && are_known_added_tokens(file.member("added_tokens"))
}

fn is_word_piece(model: &Value) -> bool {
    // The library's default.
    let most = model["max_input_chars_per_word"].as_u64().unwrap_or(100);
    model["type"] == "WordPiece" && most <= MAX_WORD_CHARS
}

/// Tokens that are found as they are. To strip white space around one, the library searches the whole text
/// before it.
fn are_known_added_tokens(tokens: &Value) -> bool {
    let is_plain =
        |token: &Value| ["lstrip", "rstrip", "single_word"].into_iter().all(|option| token[option] == false);
    tokens.as_array().into_iter().flatten().all(is_plain) && tokens.to_string().len() <= MAX_ADDED_BYTES
}

/// None, composition, or SentencePiece's marks for spaces.
fn is_known_normalizer(normalizer: &Value) -> bool {
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let both = json!({"type": "Sequence", "normalizers": [prepend, replace]});
    normalizer.is_null() || *normalizer == json!({"type": "NFC"}) || [replace, both].contains(normalizer)
}

/// None, or one that adds a few tokens around a text.
pub(super) fn is_known_post_processor(processor: &Value) -> bool {
    let list = |name: &str| processor[name].as_array().filter(|list| list.len() <= MAX_PIECES);
    match processor["type"].as_str() {
        None => processor.is_null(),
        Some("ByteLevel" | "BertProcessing" | "RobertaProcessing") => true,
        Some("TemplateProcessing") => list("single").is_some_and(|pieces| {
            let texts = pieces.iter().filter(|piece| !piece["Sequence"].is_null());
            let is_text = |piece: &Value| piece["Sequence"]["id"] == "A";
            // The library looks them up as it reads a text, and panics where one is missing.
            let is_defined = |piece: &Value| {
                let token = piece["SpecialToken"]["id"].as_str();
                token.is_none_or(|token| processor["special_tokens"].get(token).is_some())
            };
            pieces.iter().all(is_defined) && texts.clone().all(is_text) && texts.count() == 1
        }),
        Some("Sequence") => list("processors").is_some_and(|processors| {
            processors.iter().all(|inner| inner["type"] != "Sequence" && is_known_post_processor(inner))
        }),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_steps_need_no_trial_and_all_others_do() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m/tokenizer.json");
        let shipped: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let check = |expected: bool, change: &dyn Fn(&mut Value)| {
            let mut tree = shipped.clone();
            change(&mut tree);
            let json = tree.to_string();
            let file = TokenizerFile::parse(json.as_bytes()).unwrap();
            let shown: String = json.chars().take(300).collect();
            assert_eq!(are_known(&file), expected, "{shown}");
        };
        let set = |name: &'static str, value: Value| move |tree: &mut Value| tree[name] = value.clone();
        let template = |texts: usize| {
            let text = json!({"Sequence": {"id": "A", "type_id": 0}});
            let bos = json!({"SpecialToken": {"id": "<|bos|>", "type_id": 0}});
            let single = [vec![bos], vec![text; texts]].concat();
            let defined = json!({"<|bos|>": {"id": "<|bos|>", "ids": [0], "tokens": ["<|bos|>"]}});
            json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": defined})
        };
        let replace =
            |content: &str| json!({"type": "Replace", "pattern": {"String": " "}, "content": content});
        check(true, &|_| ());
        check(true, &set("normalizer", json!({"type": "NFC"})));
        check(true, &set("normalizer", replace("▁")));
        check(false, &set("normalizer", replace("▁▁▁▁▁▁▁▁▁▁")));
        check(false, &set("normalizer", json!({"type": "Sequence", "normalizers": vec![replace("▁"); 2]})));
        check(false, &set("normalizer", json!({"type": "NFKD"})));
        let split =
            json!({"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": false});
        check(false, &set("pre_tokenizer", split));
        check(true, &set("post_processor", template(1)));
        check(false, &set("post_processor", template(2)));
        check(true, &set("post_processor", json!({"type": "Sequence", "processors": [template(1)]})));
        check(false, &set("post_processor", json!({"type": "Sequence", "processors": [template(2)]})));
        let with = |pointer: &str, value: Value| {
            let mut template = template(1);
            *template.pointer_mut(pointer).unwrap() = value;
            template
        };
        // A template that names a token which it does not define was taken for known, and failed each prompt.
        check(false, &set("post_processor", with("/special_tokens", json!({}))));
        check(false, &set("post_processor", with("/single/1/Sequence/id", json!("B"))));
        check(false, &|tree| tree["model"]["dropout"] = json!(0.1));
        check(false, &|tree| tree["added_tokens"][0]["lstrip"] = true.into());
        check(false, &|tree| tree["added_tokens"][0]["content"] = "x".repeat(MAX_ADDED_BYTES).into());
        check(
            false,
            &set(
                "model",
                json!({"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]], "byte_fallback": false}),
            ),
        );
        let of_bert = |most: u64| {
            move |tree: &mut Value| {
                tree["model"] = json!({"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 0},
                    "continuing_subword_prefix": "##", "max_input_chars_per_word": most});
                tree["normalizer"] = json!({"type": "BertNormalizer", "lowercase": true, "clean_text": true,
                    "handle_chinese_chars": true, "strip_accents": null});
                tree["pre_tokenizer"] = json!({"type": "BertPreTokenizer"});
                tree["post_processor"] =
                    json!({"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]});
            }
        };
        check(true, &of_bert(100));
        check(false, &of_bert(1_000_000));
    }
}
