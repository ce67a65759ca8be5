//! The tokenizer class of a model, which says what its vocabulary's files do not: how text is split, and
//! which special tokens there are. Names and choice are those of `AutoTokenizer` in transformers 5.24
//! (models/auto/tokenization_auto.py).

use serde_json::{Map, Value, json};

/// A class of transformers, or what it takes for all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Follows the SentencePiece file; `TokenizersBackend` there.
    Generic,
    Llama,
    CodeLlama,
    Gemma,
    T5,
    Gpt2,
    GptNeoX,
    Qwen2,
    Qwen35,
    Roberta,
    Cohere,
}

/// What a model's files say about its class.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    /// `model_type` of config.json; empty if there is none.
    pub model_type: &'a str,
    /// `tokenizer_class` of tokenizer_config.json, or else of config.json.
    pub class: Option<&'a str>,
}

/// Names of each class in files, without `Fast`.
const NAMES: [(Class, &[&str]); 10] = [
    (Class::Llama, &["LlamaTokenizer"]),
    (Class::CodeLlama, &["CodeLlamaTokenizer"]),
    (Class::Gemma, &["GemmaTokenizer"]),
    (Class::T5, &["T5Tokenizer"]),
    (Class::Gpt2, &["GPT2Tokenizer", "CodeGenTokenizer"]),
    (Class::GptNeoX, &["GPTNeoXTokenizer"]),
    (Class::Qwen2, &["Qwen2Tokenizer"]),
    (Class::Qwen35, &["Qwen3_5Tokenizer"]),
    (Class::Roberta, &["RobertaTokenizer", "BartTokenizer"]),
    (Class::Cohere, &["CohereTokenizer"]),
];

/// Other classes that transformers converts in ways of their own.
const OTHERS: [&str; 22] = [
    "AlbertTokenizer",
    "BarthezTokenizer",
    "BertTokenizer",
    "BigBirdTokenizer",
    "BlenderbotTokenizer",
    "CLIPTokenizer",
    "CamembertTokenizer",
    "CpmTokenizer",
    "DebertaTokenizer",
    "DebertaV2Tokenizer",
    "FNetTokenizer",
    "GPTSw3Tokenizer",
    "HerbertTokenizer",
    "MBartTokenizer",
    "NllbTokenizer",
    "PegasusTokenizer",
    "ReformerTokenizer",
    "RemBertTokenizer",
    "SiglipTokenizer",
    "WhisperTokenizer",
    "XGLMTokenizer",
    "XLMRobertaTokenizer",
];

/// Model types with a class of their own, as transformers registers them.
const REGISTERED: [(Class, &[&str]); 10] = [
    (
        Class::Generic,
        &[
            "glm",
            "glm4",
            "glm4_moe",
            "glm4_moe_lite",
            "glm4v",
            "gpt_bigcode",
            "granite",
            "granitemoe",
            "granitemoehybrid",
            "granitemoeshared",
            "kimi_k25",
            "kimi_linear",
            "mimo_v2_flash",
            "ministral",
            "ministral3",
            "mistral",
            "mistral3",
            "mistral_large4",
            "mixtral",
            "olmo2",
            "olmo3",
            "flex_olmo",
            "persimmon",
            "pixtral",
            "stablelm",
            "voxtral",
            "umt5",
        ],
    ),
    (Class::CodeLlama, &["code_llama"]),
    (
        Class::Gemma,
        &[
            "gemma",
            "gemma2",
            "gemma3",
            "gemma3_text",
            "gemma3n",
            "gemma3n_text",
            "recurrent_gemma",
            "shieldgemma2",
            "t5gemma",
        ],
    ),
    (Class::T5, &["t5", "mt5", "switch_transformers"]),
    (
        Class::Gpt2,
        &["codegen", "dbrx", "emu3", "gpt2", "gpt_neo", "gptj", "jais2", "opt", "phi", "starcoder2"],
    ),
    (Class::GptNeoX, &["falcon_mamba", "gpt_neox", "mamba", "mamba2", "mpt", "olmo", "olmoe", "rwkv"]),
    (
        Class::Qwen2,
        &[
            "qwen2",
            "qwen2_5_omni",
            "qwen2_5_vl",
            "qwen2_audio",
            "qwen2_moe",
            "qwen2_vl",
            "qwen3",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_omni_moe",
            "qwen3_vl",
            "qwen3_vl_moe",
        ],
    ),
    (Class::Qwen35, &["qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"]),
    (Class::Roberta, &["bart", "roberta"]),
    (Class::Cohere, &["cohere", "cohere2"]),
];

/// Model types whose tokenizer_config.json names a wrong class: the registered one counts, or else the
/// generic one.
const WRONG: [&str; 24] = [
    "arctic",
    "ernie4_5",
    "ernie4_5_moe",
    "h2ovl_chat",
    "hyperclovax",
    "internlm2",
    "internlm3",
    "iquestcoder",
    "jamba",
    "llava",
    "llava_next",
    "minicpm3",
    "minimax_m2",
    "molmo",
    "nemotron",
    "phi3",
    "phi3_v",
    "phimoe",
    "qwen2",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "smolvlm",
    "step3_vl",
];

impl Class {
    /// The class of a model.
    ///
    /// # Errors
    /// The name of a class that is not supported.
    pub fn of(Said { model_type, class: named }: Said<'_>) -> Result<Self, String> {
        let is_wrong = WRONG.contains(&model_type);
        let types = REGISTERED.iter().find(|(_, types)| types.contains(&model_type));
        let registered = types.map(|(class, _)| *class).or(is_wrong.then_some(Self::Generic));
        match (registered, named) {
            (Some(Self::Generic), _) | (None, None) => Ok(Self::Generic),
            (Some(registered), Some(_)) if is_wrong => Ok(registered),
            (Some(registered), None) => Ok(registered),
            (_, Some(named)) => Self::named(named),
        }
    }

    /// The class with this name, which may end in `Fast`.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn named(name: &str) -> Result<Self, String> {
        let name = name.strip_suffix("Fast").unwrap_or(name);
        if OTHERS.contains(&name) {
            return Err(name.to_owned());
        }
        let known = NAMES.iter().find(|(_, names)| names.contains(&name));
        Ok(known.map_or(Self::Generic, |(class, _)| *class))
    }

    /// Whether its vocabulary is of bytes in GPT-2's alphabet.
    pub fn is_byte_level(self) -> bool {
        matches!(self, Self::Gpt2 | Self::GptNeoX | Self::Qwen2 | Self::Qwen35 | Self::Roberta | Self::Cohere)
    }

    /// Special tokens of a model whose configuration does not name them.
    fn defaults(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Generic => &[],
            Self::Llama => &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")],
            Self::CodeLlama => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("prefix_token", "▁<PRE>"),
                ("middle_token", "▁<MID>"),
                ("suffix_token", "▁<SUF>"),
                ("eot_token", "▁<EOT>"),
                ("fill_token", "<FILL_ME>"),
            ],
            Self::Gemma => &[
                ("bos_token", "<bos>"),
                ("eos_token", "<eos>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
            ],
            Self::T5 => &[("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")],
            Self::Gpt2 => &[
                ("bos_token", "<|endoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
            ],
            Self::GptNeoX => &[
                ("bos_token", "<|endoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|padding|>"),
            ],
            Self::Qwen2 | Self::Qwen35 => &[
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|endoftext|>"),
            ],
            Self::Roberta => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("sep_token", "</s>"),
                ("cls_token", "<s>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
            ],
            Self::Cohere => &[
                ("unk_token", "<UNK>"),
                ("bos_token", "<BOS_TOKEN>"),
                ("eos_token", "<|END_OF_TURN_TOKEN|>"),
                ("pad_token", "<PAD>"),
                ("cls_token", "<CLS>"),
                ("sep_token", "<SEP>"),
                ("mask_token", "<MASK_TOKEN>"),
            ],
        }
    }

    /// `config` with the special tokens that it does not mention; one that it sets to null stays so.
    pub fn with_defaults(self, config: &Value) -> Value {
        with_defaults(config, self.defaults().iter().map(|(name, token)| (*name, json!(token))))
    }
}

/// `config` with those of `defaults` that it does not have.
pub fn with_defaults<'a>(config: &Value, defaults: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let mut whole: Map<String, Value> = config.as_object().cloned().unwrap_or_default();
    for (name, value) in defaults {
        whole.entry(name).or_insert(value);
    }
    Value::Object(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_is_the_one_that_transformers_chooses() {
        for (model_type, named, expected) in [
            ("llama", Some("LlamaTokenizer"), Ok(Class::Llama)),
            ("llama", Some("LlamaTokenizerFast"), Ok(Class::Llama)),
            ("llama", Some("GPT2Tokenizer"), Ok(Class::Gpt2)),
            ("llama", Some("PreTrainedTokenizerFast"), Ok(Class::Generic)),
            ("llama", None, Ok(Class::Generic)),
            ("mistral", Some("LlamaTokenizer"), Ok(Class::Generic)),
            ("phi3", Some("LlamaTokenizer"), Ok(Class::Generic)),
            ("gemma3_text", Some("GemmaTokenizer"), Ok(Class::Gemma)),
            ("gemma", None, Ok(Class::Gemma)),
            ("qwen2", Some("LlamaTokenizer"), Ok(Class::Qwen2)),
            ("qwen3", Some("GPT2Tokenizer"), Ok(Class::Gpt2)),
            ("", Some("XLMRobertaTokenizerFast"), Err("XLMRobertaTokenizer".to_owned())),
        ] {
            assert_eq!(Class::of(Said { model_type, class: named }), expected, "{model_type} {named:?}");
        }
    }
}
