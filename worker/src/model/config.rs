//! config.json and generation_config.json, as Hugging Face transformers writes them (versions 4 and 5).

use std::path::Path;

use serde_json::{Map, Value};
use skein_kernels::cpu::kv_cache::KvType;
use skein_kernels::cpu::rope::RopeScaling;

use super::LoadError;
use crate::TokenId;

/// Model types that can be served, as `model_type` names them.
pub const SUPPORTED: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

/// Largest configuration or index file that is read.
pub(super) const MAX_JSON_BYTES: u64 = 64 << 20;
const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";

/// What the forward pass and requests need to know of a model. All values are checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// One of [`SUPPORTED`].
    pub model_type: String,
    /// Rows of the embedding table; token ids are below.
    pub vocab_size: u32,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the feed-forward network.
    pub intermediate_size: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values of a head; even.
    pub head_dim: usize,
    /// Longest sequence the model was made for.
    pub max_position_embeddings: u32,
    /// Added to the mean square in normalisations.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How they are stretched.
    pub rope_scaling: RopeScaling,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output has one.
    pub o_bias: bool,
    /// Whether the feed-forward network has them.
    pub mlp_bias: bool,
    /// Whether each head's query and key are normalised before they are rotated (Qwen3).
    pub qk_norm: bool,
    /// Whether the head is the embedding table.
    pub tie_word_embeddings: bool,
    /// Tokens that end a sample.
    pub eos_token_ids: Vec<TokenId>,
}

impl ModelConfig {
    /// Reads and checks the configuration in `dir`.
    pub fn from_dir(dir: &Path) -> Result<Self, LoadError> {
        let config = read_object(&dir.join(CONFIG))?;
        let generation = dir.join(GENERATION);
        let generation = if generation.exists() { read_object(&generation)? } else { Map::new() };
        Self::parse(&config, &generation)
    }

    /// Bytes one token takes in the CPU backend's KV cache.
    pub fn kv_bytes_per_token(&self, kind: KvType) -> u64 {
        (2 * self.layers * self.kv_heads * kind.head_bytes(self.head_dim)) as u64
    }

    fn parse(config: &Map<String, Value>, generation: &Map<String, Value>) -> Result<Self, LoadError> {
        let fields = Fields { file: CONFIG, object: config };
        let model_type = fields.one_of("model_type", &SUPPORTED, None)?;
        check_is_plain(&fields)?;
        let hidden_size = fields.size("hidden_size", 1 << 17, None)?;
        let heads = fields.size("num_attention_heads", 4096, None)?;
        let kv_heads = fields.size("num_key_value_heads", heads, Some(heads))?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(
                fields.wrong("num_key_value_heads", format!("a divisor of num_attention_heads, {heads}"))
            );
        }
        if fields.is_absent("head_dim") && model_type != "qwen3" && !hidden_size.is_multiple_of(heads) {
            return Err(fields.wrong(
                "hidden_size",
                format!("a multiple of num_attention_heads, {heads}, or head_dim given"),
            ));
        }
        // transformers' Qwen3Config says 128 where the field is missing, whatever the hidden size.
        let default_head_dim = if model_type == "qwen3" { QWEN3_HEAD_DIM } else { hidden_size / heads };
        let head_dim = fields.size("head_dim", 4096, Some(default_head_dim))?;
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(
                fields.wrong("head_dim", format!("an even number from 2; {head_dim} cannot be rotated"))
            );
        }
        // Positions are exact in f32, which rotary angles are computed in.
        let max_position_embeddings = fields.size("max_position_embeddings", 1 << 24, None)? as u32;
        check_window(&fields, &model_type, max_position_embeddings)?;
        let vocab_size = fields.size("vocab_size", 1 << 24, None)? as u32;
        let (rope_theta, rope_scaling) = rope(&fields)?;
        let is_llama = model_type == "llama";
        let has_flag = is_llama || model_type == "qwen3";
        let attention_bias = has_flag && fields.flag("attention_bias", false)?;
        Ok(Self {
            vocab_size,
            hidden_size,
            intermediate_size: fields.size("intermediate_size", 1 << 20, None)?,
            layers: fields.size("num_hidden_layers", 4096, None)?,
            heads,
            kv_heads,
            head_dim,
            max_position_embeddings,
            rms_norm_eps: fields.number("rms_norm_eps", 0.0..=1.0, Some(1e-6))? as f32,
            rope_theta,
            rope_scaling,
            qkv_bias: attention_bias || model_type == "qwen2",
            o_bias: attention_bias,
            mlp_bias: is_llama && fields.flag("mlp_bias", false)?,
            qk_norm: model_type == "qwen3",
            tie_word_embeddings: fields.flag("tie_word_embeddings", false)?,
            eos_token_ids: eos(&fields, &Fields { file: GENERATION, object: generation }, vocab_size)?,
            model_type,
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

/// Refuses what the forward pass does not do, rather than doing something else.
fn check_is_plain(fields: &Fields<'_>) -> Result<(), LoadError> {
    if let Some(architecture) =
        fields.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str)
        && !architecture.ends_with("ForCausalLM")
    {
        return Err(fields.wrong("architectures", "a causal language model (…ForCausalLM)".into()));
    }
    fields.one_of("hidden_act", &["silu"], Some("silu"))?;
    if !fields.is_absent("quantization_config") {
        return Err(fields.wrong("quantization_config", "absent: weights in bf16, f16 or f32".into()));
    }
    fields.number("partial_rotary_factor", 1.0..=1.0, Some(1.0)).map(drop)
}

/// Values of a head of a Qwen3 model that does not say.
const QWEN3_HEAD_DIM: usize = 128;

/// What transformers' `MistralConfig` takes where the field is missing; only an explicit null means none.
const MISTRAL_DEFAULT_WINDOW: u32 = 4096;

/// Refuses windows narrower than the context: attention here is always full.
fn check_window(fields: &Fields<'_>, model_type: &str, longest: u32) -> Result<(), LoadError> {
    let is_full = |field| match fields.get(field) {
        None => longest <= MISTRAL_DEFAULT_WINDOW,
        Some(Value::Null) => true,
        Some(window) => window.as_u64().is_some_and(|window| window >= u64::from(longest)),
    };
    match model_type {
        "mistral" if !is_full("sliding_window") => {
            Err(fields
                .wrong("sliding_window", format!("null, or at least max_position_embeddings ({longest})")))
        }
        "qwen2" | "qwen3" if fields.flag("use_sliding_window", false)? => {
            Err(fields.wrong("use_sliding_window", "false".into()))
        }
        _ => Ok(()),
    }
}

/// Base and scaling of the rotary embedding. Version 5 has `rope_parameters`; version 4 had `rope_theta` and `rope_scaling`.
fn rope(fields: &Fields<'_>) -> Result<(f64, RopeScaling), LoadError> {
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
    Ok((theta, scaling))
}

/// End-of-sequence tokens: a number or a list, generation_config.json first.
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

/// A JSON object whose fields are read with a check. A null counts as absent.
struct Fields<'a> {
    file: &'static str,
    object: &'a Map<String, Value>,
}

impl Fields<'_> {
    fn get(&self, field: &str) -> Option<&Value> {
        self.object.get(field)
    }

    fn is_absent(&self, field: &str) -> bool {
        self.get(field).is_none_or(Value::is_null)
    }

    fn wrong(&self, field: &str, allowed: String) -> LoadError {
        let mut got = self.get(field).map_or("missing".to_owned(), Value::to_string);
        if let Some((cut, _)) = got.char_indices().nth(200) {
            got.truncate(cut);
            got.push('…');
        }
        LoadError::Field { file: self.file, field: field.to_owned(), got, allowed }
    }

    /// A number from 1 to `most`.
    fn size(&self, field: &str, most: usize, default: Option<usize>) -> Result<usize, LoadError> {
        let value = match (self.is_absent(field), default) {
            (true, Some(default)) => return Ok(default),
            _ => self.get(field).and_then(Value::as_u64).and_then(|value| usize::try_from(value).ok()),
        };
        let value = value.filter(|value| (1..=most).contains(value));
        value.ok_or_else(|| self.wrong(field, format!("a whole number from 1 to {most}")))
    }

    fn number(
        &self,
        field: &str,
        range: std::ops::RangeInclusive<f64>,
        default: Option<f64>,
    ) -> Result<f64, LoadError> {
        let value = match (self.is_absent(field), default) {
            (true, Some(default)) => return Ok(default),
            _ => self.get(field).and_then(Value::as_f64).filter(|value| range.contains(value)),
        };
        value.ok_or_else(|| self.wrong(field, format!("a number from {} to {}", range.start(), range.end())))
    }

    fn flag(&self, field: &str, default: bool) -> Result<bool, LoadError> {
        if self.is_absent(field) {
            return Ok(default);
        }
        self.get(field).and_then(Value::as_bool).ok_or_else(|| self.wrong(field, "true or false".into()))
    }

    fn one_of(&self, field: &str, allowed: &[&str], default: Option<&str>) -> Result<String, LoadError> {
        let value = match (self.is_absent(field), default) {
            (true, Some(default)) => Some(default),
            _ => self.get(field).and_then(Value::as_str).filter(|value| allowed.contains(value)),
        };
        value.map(str::to_owned).ok_or_else(|| self.wrong(field, allowed.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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

    /// The configuration with `changes` is refused, and the message has all of `words`.
    fn check_refused(changes: Value, words: &[&str]) {
        let message = parse(changes.clone(), json!({})).expect_err(&changes.to_string()).to_string();
        for word in words {
            assert!(message.contains(word), "{changes}: {message:?} says {word:?}");
        }
    }

    #[test]
    fn defaults_are_those_of_transformers() {
        let config = parse(json!({}), json!({})).unwrap();
        assert_eq!((config.kv_heads, config.head_dim, config.rope_theta), (4, 16, 10_000.0));
        assert_eq!(
            (config.tie_word_embeddings, config.qkv_bias, config.rope_scaling),
            (false, false, RopeScaling::None)
        );
        assert_eq!(config.eos_token_ids, [1]);
        let kv_bytes = [KvType::F32, KvType::Bf16, KvType::F16, KvType::Int8]
            .map(|kind| config.kv_bytes_per_token(kind));
        assert_eq!(kv_bytes, [64, 32, 32, 20].map(|head_bytes| 2 * 2 * 4 * head_bytes));
    }

    #[test]
    fn both_generations_of_keys_are_read() {
        let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_theta": 500000.0});
        let old = parse(json!({"rope_theta": 500000.0, "rope_scaling": llama3}), json!({})).unwrap();
        let new = parse(json!({"rope_parameters": llama3, "dtype": "bfloat16"}), json!({})).unwrap();
        assert_eq!((old.rope_theta, old.rope_scaling), (new.rope_theta, new.rope_scaling));
        let legacy = parse(json!({"rope_scaling": {"type": "linear", "factor": 4.0}}), json!({})).unwrap();
        assert_eq!(legacy.rope_scaling, RopeScaling::Linear(4.0));
    }

    #[test]
    fn families_differ_where_they_do() {
        assert!(parse(json!({"model_type": "qwen2"}), json!({})).is_ok_and(|c| c.qkv_bias && !c.o_bias));
        assert!(parse(json!({"model_type": "qwen3"}), json!({})).is_ok_and(|c| c.qk_norm && !c.qkv_bias));
        let biased = parse(json!({"model_type": "qwen3", "attention_bias": true}), json!({}));
        assert!(biased.is_ok_and(|c| c.qkv_bias && c.o_bias && c.head_dim == QWEN3_HEAD_DIM));
        let biased = parse(json!({"attention_bias": true, "mlp_bias": true}), json!({})).unwrap();
        assert!(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
        let mistral = json!({"model_type": "mistral", "sliding_window": null, "head_dim": 32});
        assert_eq!(parse(mistral, json!({})).unwrap().head_dim, 32);
        assert!(parse(json!({"model_type": "mistral", "sliding_window": 256}), json!({})).is_ok());
        let unsaid = json!({"model_type": "mistral", "max_position_embeddings": 8192});
        assert!(parse(unsaid, json!({})).is_err(), "a missing window is one of 4096");
    }

    #[test]
    fn generation_config_says_first_what_ends_a_sample() {
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
    fn what_cannot_be_served_is_refused_with_field_value_and_remedy() {
        check_refused(
            json!({"model_type": "gpt_oss"}),
            &["model_type", "gpt_oss", "llama, mistral, qwen2, qwen3"],
        );
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
            json!({"model_type": "mistral", "sliding_window": 24}),
            &["sliding_window", "24", "256"],
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
