//! Reads config.json and generation_config.json, as Hugging Face transformers writes them (versions 4 and 5).

use std::path::Path;

use serde_json::{Map, Value};
use skein_kernels::cpu::rope::RopeScaling;

use super::fields::Fields;
use super::spec::{Rope, Spec};
use super::{LoadError, families};
use crate::TokenId;

/// Largest configuration or index file that is read.
pub(super) const MAX_JSON_BYTES: u64 = 64 << 20;
const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";

/// A model's configuration, as far as requests and the forward pass need it. All values are validated.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    /// Name of its family in config.json.
    pub model_type: &'static str,
    /// Longest sequence that the model was trained for.
    pub max_position_embeddings: u32,
    /// Tokens that end a sample.
    pub eos_token_ids: Vec<TokenId>,
    /// What it computes.
    pub spec: Spec,
}

impl ModelConfig {
    /// Reads and checks the configuration in `dir`.
    pub fn from_dir(dir: &Path) -> Result<Self, LoadError> {
        let config = read_object(&dir.join(CONFIG))?;
        let generation = dir.join(GENERATION);
        let generation = if generation.exists() { read_object(&generation)? } else { Map::new() };
        Self::parse(&config, &generation)
    }

    /// Validates the content of config.json and generation_config.json.
    pub fn parse(config: &Map<String, Value>, generation: &Map<String, Value>) -> Result<Self, LoadError> {
        let fields = Fields { file: CONFIG, object: config };
        let family = families::find(&fields)?;
        check_is_plain(&fields)?;
        let spec = (family.spec)(&fields)?;
        let generation = Fields { file: GENERATION, object: generation };
        Ok(Self {
            model_type: family.model_type,
            max_position_embeddings: fields.max_positions()?,
            eos_token_ids: eos(&fields, &generation, spec.vocab_size)?,
            spec,
        })
    }
}

pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>, LoadError> {
    let read_error = |source| LoadError::Read { path: path.to_owned(), source };
    let damaged = |reason| LoadError::Damaged { path: path.to_owned(), reason };
    let bytes = std::fs::metadata(path).map_err(read_error)?.len();
    if bytes > MAX_JSON_BYTES {
        return Err(damaged(format!("{bytes} bytes, at most {MAX_JSON_BYTES} are read")));
    }
    let text = std::fs::read(path).map_err(read_error)?;
    serde_json::from_slice(&text).map_err(|error| damaged(format!("not a JSON object: {error}")))
}

/// Refuses features that the forward pass lacks, so that none is ignored.
fn check_is_plain(fields: &Fields<'_>) -> Result<(), LoadError> {
    if let Some(architecture) =
        fields.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str)
        && !architecture.ends_with("ForCausalLM")
    {
        return Err(fields.wrong("architectures", "a causal language model (…ForCausalLM)".into()));
    }
    if !fields.is_absent("quantization_config") {
        return Err(fields.wrong("quantization_config", "absent: weights in bf16, f16 or f32".into()));
    }
    fields.number("partial_rotary_factor", 1.0..=1.0, Some(1.0)).map(drop)
}

/// Base and scaling of the rotary embedding. Version 5 has `rope_parameters`, version 4 has
/// `rope_theta` and `rope_scaling`.
pub(super) fn rope(fields: &Fields<'_>) -> Result<Rope, LoadError> {
    let empty = Map::new();
    let nested = |field: &'static str| match fields.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(_) => Err(fields.wrong(field, "an object or null".into())),
    };
    let scaling = match nested("rope_parameters")? {
        Some(object) => Some(object),
        None => nested("rope_scaling")?,
    };
    let scaling = Fields { file: fields.file, object: scaling.unwrap_or(&empty) };
    let theta = if scaling.is_absent("rope_theta") { fields } else { &scaling };
    let theta = theta.number("rope_theta", 1.0..=1e15, Some(10_000.0))?;
    scaling.number("partial_rotary_factor", 1.0..=1.0, Some(1.0))?;
    let kind = if scaling.is_absent("rope_type") { "type" } else { "rope_type" };
    let factor = || scaling.number("factor", 1.0..=1e6, None);
    let scaling = match scaling.one_of(kind, &["default", "linear", "llama3"], Some("default"))?.as_str() {
        "linear" => RopeScaling::Linear(factor()?),
        "llama3" => {
            let low_freq_factor = scaling.number("low_freq_factor", 1e-6..=1e6, None)?;
            let high_freq_factor = scaling.number("high_freq_factor", 1e-6..=1e6, None)?;
            if high_freq_factor <= low_freq_factor {
                return Err(scaling
                    .wrong("high_freq_factor", format!("more than low_freq_factor, {low_freq_factor}")));
            }
            RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor,
                high_freq_factor,
                original_context: scaling.number("original_max_position_embeddings", 1.0..=1e9, None)?,
            }
        }
        _ => RopeScaling::None,
    };
    Ok(Rope { theta, scaling })
}

/// End-of-sequence tokens, a number or a list; generation_config.json takes precedence.
fn eos(config: &Fields<'_>, generation: &Fields<'_>, vocab_size: u32) -> Result<Vec<TokenId>, LoadError> {
    let fields = if generation.is_absent("eos_token_id") { config } else { generation };
    let values = match fields.get("eos_token_id") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(values)) => values.as_slice(),
        Some(value) => std::slice::from_ref(value),
    };
    let token = |value: &Value| {
        value.as_u64().filter(|token| *token < u64::from(vocab_size)).map(|token| token as TokenId)
    };
    let tokens: Option<Vec<TokenId>> = values.iter().map(token).collect();
    tokens.ok_or_else(|| fields.wrong("eos_token_id", format!("token ids below vocab_size, {vocab_size}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skein_kernels::cpu::kv_cache::KvType;

    use super::*;

    fn base() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
            "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "eos_token_id": 1,
        })
    }

    fn parse(changes: Value, generation: Value) -> Result<ModelConfig, LoadError> {
        let mut config = base();
        for (field, value) in changes.as_object().unwrap() {
            config[field] = value.clone();
        }
        ModelConfig::parse(config.as_object().unwrap(), generation.as_object().unwrap())
    }

    /// Checks that the configuration with `changes` is refused with a message containing all of `words`.
    fn check_refused(changes: Value, words: &[&str]) {
        let message = parse(changes.clone(), json!({})).expect_err(&changes.to_string()).to_string();
        for word in words {
            assert!(message.contains(word), "{changes}: {message:?} says {word:?}");
        }
    }

    #[test]
    fn defaults_are_those_of_transformers() {
        let config = parse(json!({}), json!({})).unwrap();
        let attention = config.spec.attention;
        let rope = Rope { theta: 10_000.0, scaling: RopeScaling::None };
        assert_eq!((attention.kv_heads, attention.head_dim, attention.rope), (4, 16, rope));
        assert!(!config.spec.is_tied && !attention.has_bias);
        assert_eq!(config.eos_token_ids, [1]);
        let kv_bytes = [KvType::F32, KvType::Bf16, KvType::F16, KvType::Int8]
            .map(|kind| config.spec.kv_bytes_per_token(kind));
        assert_eq!(kv_bytes, [64, 32, 32, 20].map(|head_bytes| 2 * 2 * 4 * head_bytes));
    }

    #[test]
    fn keys_of_both_transformers_versions_are_read() {
        let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_theta": 500000.0});
        let rope = |changes| parse(changes, json!({})).unwrap().spec.attention.rope;
        let old = rope(json!({"rope_theta": 500000.0, "rope_scaling": llama3}));
        assert_eq!(old, rope(json!({"rope_parameters": llama3, "dtype": "bfloat16"})));
        let legacy = rope(json!({"rope_scaling": {"type": "linear", "factor": 4.0}}));
        assert_eq!(legacy.scaling, RopeScaling::Linear(4.0));
    }

    #[test]
    fn families_differ_where_they_do() {
        let attention = |changes| parse(changes, json!({})).unwrap().spec.attention;
        let qwen2 = attention(json!({"model_type": "qwen2"}));
        assert!(qwen2.has_bias && !qwen2.has_output_bias);
        let qwen3 = attention(json!({"model_type": "qwen3"}));
        assert!(qwen3.has_qk_norm && !qwen3.has_bias && qwen3.head_dim == 128);
        let biased = attention(json!({"model_type": "qwen3", "attention_bias": true}));
        assert!(biased.has_bias && biased.has_output_bias);
        let biased = parse(json!({"attention_bias": true, "mlp_bias": true}), json!({})).unwrap().spec;
        assert!(biased.attention.has_bias && biased.attention.has_output_bias);
        assert!(biased.layers.iter().all(|layer| layer.feed_forward.has_bias));
        let mistral = json!({"model_type": "mistral", "sliding_window": null, "head_dim": 32});
        assert_eq!(attention(mistral).head_dim, 32);
        let window = |changes| parse(changes, json!({})).unwrap().spec.layers[0].window;
        assert_eq!(window(json!({"model_type": "mistral", "sliding_window": 24})), Some(24));
        assert_eq!(
            window(json!({"model_type": "mistral", "sliding_window": 256})),
            None,
            "it covers the longest sequence"
        );
        let unsaid = json!({"model_type": "mistral", "max_position_embeddings": 8192});
        assert_eq!(window(unsaid), Some(4096));
    }

    #[test]
    fn generation_config_takes_precedence_for_eos_tokens() {
        assert_eq!(parse(json!({}), json!({"eos_token_id": [7, 9]})).unwrap().eos_token_ids, [7, 9]);
        assert_eq!(
            parse(json!({"eos_token_id": null}), json!({})).unwrap().eos_token_ids,
            Vec::<TokenId>::new()
        );
        assert!(
            parse(json!({}), json!({"eos_token_id": [256]}))
                .unwrap_err()
                .to_string()
                .contains("generation_config")
        );
    }

    #[test]
    fn an_unsupported_model_is_refused_with_field_value_and_remedy() {
        check_refused(json!({"model_type": "gpt_oss"}), &["model_type", "gpt_oss", "llama", "qwen3"]);
        check_refused(json!({"model_type": null}), &["model_type", "null"]);
        check_refused(
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            &["architectures", "CausalLM"],
        );
        check_refused(json!({"hidden_act": "gelu"}), &["hidden_act", "gelu", "silu"]);
        check_refused(
            json!({"quantization_config": {"quant_method": "gptq"}}),
            &["quantization_config", "gptq"],
        );
        check_refused(
            json!({"model_type": "mistral", "sliding_window": 0}),
            &["sliding_window", "0", "from 1"],
        );
        check_refused(json!({"model_type": "qwen2", "use_sliding_window": true}), &["use_sliding_window"]);
        check_refused(json!({"num_attention_heads": 0}), &["num_attention_heads", "0", "from 1"]);
        check_refused(json!({"num_attention_heads": 5}), &["hidden_size", "64", "multiple"]);
        check_refused(json!({"num_key_value_heads": 3}), &["num_key_value_heads", "3", "divisor"]);
        check_refused(json!({"hidden_size": 1u64 << 60}), &["hidden_size", "1152921504606846976"]);
        check_refused(json!({"hidden_size": -4}), &["hidden_size", "-4"]);
        check_refused(json!({"hidden_size": "64"}), &["hidden_size", "\"64\""]);
        check_refused(json!({"vocab_size": 1e30}), &["vocab_size"]);
        check_refused(json!({"head_dim": 15}), &["head_dim", "15", "even"]);
        check_refused(json!({"head_dim": 1}), &["head_dim", "even"]);
        check_refused(json!({"rms_norm_eps": -1.0}), &["rms_norm_eps", "-1"]);
        check_refused(json!({"eos_token_id": 256}), &["eos_token_id", "256"]);
        check_refused(
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
            &["rope_type", "yarn", "llama3"],
        );
        check_refused(json!({"rope_scaling": {"rope_type": "linear"}}), &["factor", "missing"]);
        check_refused(json!({"rope_scaling": {"rope_type": "linear", "factor": 0.0}}), &["factor", "0"]);
        check_refused(json!({"rope_parameters": 3}), &["rope_parameters", "3", "object"]);
        check_refused(json!({"partial_rotary_factor": 0.5}), &["partial_rotary_factor", "0.5"]);
        check_refused(json!({"tie_word_embeddings": "yes"}), &["tie_word_embeddings", "yes"]);
    }
}
