//! Which tokens of a file end an answer, and which are control tokens whatever type the file gives them: many
//! files mistype them or name one end of several, so both are decided by text. The rules are those of
//! llama.cpp, as in llama-cpp-python 0.3.36.

use crate::metadata::{Array, Value};
use crate::model::GgufModel;

pub const MODEL: &str = "tokenizer.ggml.model";
pub const TOKENS: &str = "tokenizer.ggml.tokens";

/// Token types in the metadata.
pub const NORMAL: u64 = 1;
pub const UNKNOWN: u64 = 2;
pub const CONTROL: u64 = 3;
pub const USER_DEFINED: u64 = 4;

/// Tokens that end an answer, by text; Cohere's is not in llama.cpp's list.
const ENDS: [&str; 23] = [
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<turn|>",
    "<|end|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|return|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|tool_response>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
];

/// Token for filling in code. The file may name its id; otherwise the first text that is in the vocabulary
/// counts.
struct FillIn {
    key: &'static str,
    texts: &'static [&'static str],
    ends: bool,
}

/// The last three end an answer: after them a model begins with another file.
const FILL_IN: [FillIn; 6] = [
    FillIn {
        key: "fim_pre",
        texts: &[
            "<|fim_prefix|>",
            "<fim_prefix>",
            "<fim-prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        ends: false,
    },
    FillIn {
        key: "fim_mid",
        texts: &[
            "<|fim_middle|>",
            "<fim_middle>",
            "<fim-middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        ends: false,
    },
    FillIn {
        key: "fim_suf",
        texts: &[
            "<|fim_suffix|>",
            "<fim_suffix>",
            "<fim-suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        ends: false,
    },
    FillIn {
        key: "fim_pad",
        texts: &["<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<PAD>", "[PAD]"],
        ends: true,
    },
    FillIn {
        key: "fim_rep",
        texts: &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
        ends: true,
    },
    FillIn { key: "fim_sep", texts: &["<|file_sep|>"], ends: true },
];

/// Ids of a SentencePiece model that a file need not name.
const SENTENCE_PIECE: [(&str, u64); 3] = [("unknown", 0), ("bos", 1), ("eos", 2)];

/// Id in `tokenizer.ggml.<name>_token_id`, if the vocabulary has it.
pub fn token_id(model: &GgufModel, name: &str) -> Option<u64> {
    let count = tokens(model)?.len() as u64;
    let named = model.get(&format!("tokenizer.ggml.{name}_token_id")).and_then(Value::as_u64);
    let is_sentence_piece = model.get(MODEL).and_then(Value::as_str) == Some("llama");
    let default = SENTENCE_PIECE.iter().find(|(default, _)| is_sentence_piece && *default == name);
    named.filter(|id| *id < count).or(default.map(|(_, id)| *id)).filter(|id| *id < count)
}

/// Text of the token in `tokenizer.ggml.<name>_token_id`.
pub fn spelling<'a>(model: &'a GgufModel, name: &str) -> Option<&'a str> {
    tokens(model)?.text(usize::try_from(token_id(model, name)?).ok()?)
}

fn tokens(model: &GgufModel) -> Option<Array<'_>> {
    model.get(TOKENS)?.as_array()
}

/// Ids of tokens that are special by their text.
#[derive(Default)]
pub struct SpecialTokens {
    /// Tokens that end an answer, ascending.
    pub ends: Vec<u64>,
    control: Vec<u64>,
    plain: Vec<u64>,
}

impl SpecialTokens {
    /// Finds them in the file's vocabulary, without decoding the others: this is called for every
    /// configuration.
    pub fn of(model: &GgufModel) -> Self {
        let texts: Vec<&str> = FILL_IN.iter().flat_map(|role| role.texts).chain(&ENDS).copied().collect();
        let found = Found(tokens(model).map_or_else(Vec::new, |tokens| tokens.find(&texts)));
        let mut special = Self::default();
        ENDS.iter().for_each(|text| special.ends.extend(found.ids(text)));
        special.control.clone_from(&special.ends);
        for role in FILL_IN {
            special.add(&role, token_id(model, role.key), &found);
        }
        special.ends.extend(["eos", "eot", "eom"].iter().filter_map(|name| token_id(model, name)));
        if found.has_channels() {
            special.exclude(found.ids("<|end|>"));
        }
        if found.has("<|tool_response>") {
            special.plain.extend(found.ids("</s>"));
            special.exclude(found.ids("</s>"));
        }
        special.ends.sort_unstable();
        special.ends.dedup();
        special
    }

    fn add(&mut self, role: &FillIn, named: Option<u64>, found: &Found<'_>) {
        let by_text = || {
            let text = role.texts.iter().find(|text| found.has(text))?;
            found.ids(text).next()
        };
        self.control.extend(if named.is_none() { by_text() } else { None });
        self.ends.extend(named.or_else(by_text).filter(|_| role.ends));
    }

    fn exclude(&mut self, ids: impl Iterator<Item = u64>) {
        ids.for_each(|excluded| self.ends.retain(|id| *id != excluded));
    }

    /// Corrects the types that the file gives.
    pub fn correct(&self, types: &mut [u64]) {
        let mut set = |ids: &[u64], kind: u64| {
            ids.iter().for_each(|id| types.iter_mut().skip(*id as usize).take(1).for_each(|at| *at = kind));
        };
        set(&self.control, CONTROL);
        set(&self.plain, NORMAL);
    }
}

/// Tokens that have one of the texts above.
struct Found<'a>(Vec<(usize, &'a str)>);

impl Found<'_> {
    fn has(&self, text: &str) -> bool {
        self.0.iter().any(|(_, found)| *found == text)
    }

    fn ids(&self, text: &str) -> impl Iterator<Item = u64> {
        self.0.iter().filter(move |(_, found)| *found == text).map(|(id, _)| *id as u64)
    }

    /// Whether an answer has several messages, of which `<|end|>` ends each: GPT-OSS, Solar Open.
    fn has_channels(&self) -> bool {
        let calls = self.has("<|call|>") || self.has("<|calls|>");
        calls && (self.has("<|return|>") || self.has("<|flush|>"))
    }
}

/// Whether white space after special tokens is dropped, as for Phi-3, whose files do not say so.
pub fn strips_after(model: &GgufModel) -> bool {
    let name = model.get("general.name").and_then(Value::as_str).unwrap_or_default().to_lowercase();
    ["phi-3", "phi3"].iter().any(|part| name.contains(part))
}

/// Phi-3's special tokens that keep the white space after them.
pub const KEEPS_SPACE: [&str; 3] = ["<s>", "<unk>", "<|endoftext|>"];
