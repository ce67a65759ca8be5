//! WordPiece, the tokenizer of BERT, as llama.cpp's converter writes it: a token that begins a word has a
//! mark before it, one that continues a word has lost its `##`, and tokens in brackets are as they were.

use serde_json::{Value as Json, json};

use crate::model::GgufModel;
use crate::special_tokens::{spelling, token_id};
use crate::tokenizer_json::{Model, TokenizerJson, Tokens, WordPiece};

/// What begins a word in the file.
const BEGINS: char = '▁';
/// What continues one in a tokenizer.json.
const CONTINUES: &str = "##";

/// The token as a tokenizer.json spells it.
pub fn token(stored: &str) -> String {
    match stored.strip_prefix(BEGINS) {
        Some(word) => word.to_owned(),
        None if stored.starts_with('[') && stored.ends_with(']') => stored.to_owned(),
        None => format!("{CONTINUES}{stored}"),
    }
}

/// The tokenizer of `tokens`, which are spelled as in a tokenizer.json. It lowers the case and drops accents,
/// as llama.cpp does with every such file.
pub fn tokenizer<'a>(
    model: &'a GgufModel,
    tokens: &'a [String],
    added_tokens: Vec<Json>,
) -> TokenizerJson<'a> {
    let unknown = spelling(model, "unknown").unwrap_or("[UNK]");
    let vocab = Tokens(tokens.iter().map(String::as_str).zip(0..).collect());
    TokenizerJson {
        added_tokens,
        normalizer: json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true}),
        pre_tokenizer: json!({"type": "BertPreTokenizer"}),
        post_processor: post_processor(model),
        decoder: json!({"type": "WordPiece", "prefix": CONTINUES, "cleanup": true}),
        ..TokenizerJson::new(Model::WordPiece(WordPiece::new(vocab, unknown, CONTINUES)))
    }
}

/// `[CLS] A [SEP]`, and `[CLS] A [SEP] B [SEP]` with the second type from B on. The key of the separator is
/// misspelled in files, too.
fn post_processor(model: &GgufModel) -> Json {
    let named =
        |names: &[&str]| names.iter().find_map(|name| token_id(model, name).zip(spelling(model, name)));
    let (Some((cls_id, cls)), Some((sep_id, sep))) =
        (named(&["cls", "bos"]), named(&["seperator", "separator", "eos"]))
    else {
        return Json::Null;
    };
    let special = |token: &str, kind: u32| json!({"SpecialToken": {"id": token, "type_id": kind}});
    let text = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
    let defined = |token: &str, id: u64| json!({"id": token, "ids": [id], "tokens": [token]});
    let single = vec![special(cls, 0), text("A", 0), special(sep, 0)];
    let pair = [single.clone(), vec![text("B", 1), special(sep, 1)]].concat();
    json!({"type": "TemplateProcessing", "single": single, "pair": pair,
        "special_tokens": {cls: defined(cls, cls_id), sep: defined(sep, sep_id)}})
}
