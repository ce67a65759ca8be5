//! Converts GGUF metadata, with the keys of llama.cpp's converters, to config.json.

use serde_json::{Map, Value as Json, json};

use crate::GgufError;
use crate::metadata::Value;
use crate::model::GgufModel;
use crate::tokenizer;

/// Supported values of `general.architecture`.
pub const SUPPORTED: [&str; 12] = [
    "llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma2", "gemma3", "granite", "olmo2", "olmoe",
    "phi3", "smollm3",
];
/// Architectures whose queries and keys rotate adjacent pairs. The converters permute their rows; other
/// architectures pair values half a head apart, as in safetensors.
pub const ROTATES_ADJACENT: [&str; 3] = ["llama", "granite", "smollm3"];

/// Layer count of the 27B models of Gemma 2 and 3, which scale scores differently. The files do not record
/// the scale; llama.cpp also recognises these models by their layers.
const GEMMA_27B_LAYERS: [(&str, u64); 2] = [("gemma2", 46), ("gemma3", 62)];
/// RoPE theta of Gemma 3's sliding-window layers, which files omit.
const GEMMA3_LOCAL_THETA: f64 = 10_000.0;
/// Every sixth layer of Gemma 3 attends without a window.
const GEMMA3_PATTERN: u64 = 6;

/// The model's `config.json`, as [`GgufModel::config`] returns it.
pub fn config(model: &GgufModel) -> Result<Map<String, Json>, GgufError> {
    let architecture = "general.architecture";
    let name = model.get(architecture).and_then(Value::as_str);
    let name = name.ok_or_else(|| model.wrong(architecture, "a text"))?;
    if !SUPPORTED.contains(&name) {
        let shown: String = name.chars().take(80).collect();
        let what =
            format!("the architecture {shown:?} is not supported; supported: {}", SUPPORTED.join(", "));
        return Err(model.unsupported(what));
    }
    let keys = Keys { model, name };
    let mut config = keys.sizes()?;
    keys.rope(&mut config)?;
    keys.biases(&mut config)?;
    match name {
        "llama" | "olmoe" | "qwen2moe" | "qwen3moe" => keys.experts(&mut config)?,
        "granite" => keys.factors_of_granite(&mut config)?,
        "gemma2" | "gemma3" => keys.gemma(&mut config)?,
        "phi3" => keys.window(&mut config)?,
        _ => {}
    }
    let eos = tokenizer::end_tokens(model);
    if !eos.is_empty() {
        config.insert("eos_token_id".into(), json!(eos));
    }
    Ok(config)
}

/// Metadata keys of an architecture.
struct Keys<'a> {
    model: &'a GgufModel,
    name: &'a str,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    fn get(&self, key: &str) -> Option<Value<'_>> {
        self.model.get(&self.key(key))
    }

    fn wrong(&self, key: &str, allowed: &str) -> GgufError {
        self.model.wrong(&self.key(key), allowed)
    }

    /// Reads an integer. Some files have a list with one value per layer; the values must be equal.
    fn whole(&self, key: &str) -> Result<Option<u64>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = match value.as_array() {
            None => value.as_u64(),
            Some(list) => list.values().and_then(|mut values| {
                let first = values.next()?.as_u64()?;
                values.all(|value| value.as_u64() == Some(first)).then_some(first)
            }),
        };
        number.map(Some).ok_or_else(|| self.wrong(key, "a whole number, equal for all layers"))
    }

    fn needed(&self, key: &str) -> Result<u64, GgufError> {
        self.whole(key)?.ok_or_else(|| self.wrong(key, "a whole number"))
    }

    fn real(&self, key: &str) -> Result<Option<f64>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.wrong(key, "a finite number"))
    }

    fn has(&self, tensor: &str) -> bool {
        self.model.tensor(tensor).is_some()
    }

    /// Sizes that every architecture has.
    fn sizes(&self) -> Result<Map<String, Json>, GgufError> {
        let (hidden, heads) = (self.needed("embedding_length")?, self.needed("attention.head_count")?);
        let head_dim = match self.whole("attention.key_length")? {
            Some(size) => size,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => return Err(self.wrong("attention.head_count", "a divisor of embedding_length")),
        };
        if self.whole("attention.value_length")?.is_some_and(|size| size != head_dim) {
            return Err(self.wrong("attention.value_length", "equal to attention.key_length"));
        }
        let vocabulary = self.model.tensor("token_embd.weight").and_then(|table| table.shape.first());
        let is_moe = self.whole("expert_count")?.is_some_and(|count| count > 0);
        let model_type = match self.name {
            "llama" if is_moe => "mixtral",
            "qwen2moe" => "qwen2_moe",
            "qwen3moe" => "qwen3_moe",
            "gemma3" => "gemma3_text",
            name => name,
        };
        let inner = match self.name {
            "qwen2moe" | "qwen3moe" => "expert_feed_forward_length",
            _ => "feed_forward_length",
        };
        let config = json!({
            "model_type": model_type,
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": self.needed(inner)?,
            "num_hidden_layers": self.needed("block_count")?,
            "num_attention_heads": heads,
            "num_key_value_heads": self.whole("attention.head_count_kv")?.unwrap_or(heads),
            "head_dim": head_dim,
            "rms_norm_eps": self.real("attention.layer_norm_rms_epsilon")?,
            "max_position_embeddings": self.needed("context_length")?,
            "tie_word_embeddings": !self.has("output.weight"),
        });
        Ok(config.as_object().cloned().unwrap_or_default())
    }

    fn rope(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        if let Some(theta) = self.real("rope.freq_base")? {
            config.insert("rope_theta".into(), json!(theta));
        }
        let (Some(head_dim), Some(context)) =
            (config["head_dim"].as_u64(), config["max_position_embeddings"].as_u64())
        else {
            return Ok(());
        };
        let rotated = self.whole("rope.dimension_count")?.unwrap_or(head_dim);
        if rotated != head_dim {
            config.insert("partial_rotary_factor".into(), json!(rotated as f64 / head_dim as f64));
        }
        let scaling = self.scaling(context)?;
        if !scaling.is_null() {
            config.insert("rope_scaling".into(), scaling);
        }
        Ok(())
    }

    /// Value of `rope_scaling`; null without scaling.
    fn scaling(&self, context: u64) -> Result<Json, GgufError> {
        let original = self.whole("rope.scaling.original_context_length")?;
        if self.has("rope_factors_long.weight") || self.has("rope_factors_short.weight") {
            return Ok(json!({
                "rope_type": "longrope",
                "long_factor": self.factors("rope_factors_long.weight")?,
                "short_factor": self.factors("rope_factors_short.weight")?,
                "attention_factor": self.real("rope.scaling.attn_factor")?,
                "original_max_position_embeddings": original.unwrap_or(context),
            }));
        }
        if self.has("rope_freqs.weight") {
            // The converters store Llama 3's scaling factors regardless of the context length.
            let factors = self.factors("rope_freqs.weight")?;
            return Ok(json!({
                "rope_type": "longrope", "long_factor": factors, "short_factor": factors,
                "attention_factor": 1.0, "original_max_position_embeddings": context,
            }));
        }
        let factor = match self.real("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.real("rope.scale_linear")?, // its name in old files
        };
        let kind = self.get("rope.scaling.type").map(|kind| kind.as_str().unwrap_or("?"));
        match (kind, factor) {
            (Some("none"), _) | (None, None) => Ok(Json::Null),
            (_, Some(1.0)) => Ok(Json::Null),
            (Some("linear") | None, Some(factor)) => Ok(json!({"rope_type": "linear", "factor": factor})),
            (Some("yarn"), Some(factor)) => Ok(json!({
                "rope_type": "yarn", "factor": factor,
                "attention_factor": self.real("rope.scaling.attn_factor")?,
                "original_max_position_embeddings": original.unwrap_or(context),
            })),
            _ => Err(self.wrong("rope.scaling.type", "none, linear or yarn, with rope.scaling.factor")),
        }
    }

    /// Reads the values of a small `f32` tensor.
    fn factors(&self, name: &str) -> Result<Vec<f64>, GgufError> {
        const MOST: usize = 4096;
        let unsupported =
            || self.model.unsupported(format!("tensor {name} is not a list of up to {MOST} F32 values"));
        let tensor = self.model.tensor(name).ok_or_else(unsupported)?;
        if tensor.kind.name != "F32" || tensor.shape.len() != 1 || tensor.shape[0] > MOST {
            return Err(unsupported());
        }
        let bytes = self.model.bytes(name, 0..tensor.bytes.len()).ok_or_else(unsupported)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|word| f64::from(f32::from_le_bytes(*word))).collect())
    }

    /// Sets the bias flags: a bias is enabled if the file contains its tensor.
    fn biases(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        let has = |tensor: &str| self.has(&format!("blk.0.{tensor}.bias"));
        let (inputs, output) = (has("attn_q") || has("attn_qkv"), has("attn_output"));
        let refuse = |what: &str| Err(self.model.unsupported(format!("{} with {what}", self.name)));
        match self.name {
            "qwen2" => {}
            "qwen2moe" if !output => drop(config.insert("qkv_bias".into(), json!(inputs))),
            "phi3" | "qwen2moe" if inputs || output => {
                return refuse("biases of some of its attention's matrices");
            }
            "phi3" => {}
            _ if inputs == output => drop(config.insert("attention_bias".into(), json!(inputs))),
            _ => return refuse("biases of some of its attention's matrices"),
        }
        let network = has("ffn_up");
        match self.name {
            "llama" | "granite" | "smollm3" => drop(config.insert("mlp_bias".into(), json!(network))),
            _ if network => return refuse("biases of its feed-forward network"),
            _ => {}
        }
        Ok(())
    }

    fn experts(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        let Some(count) = self.whole("expert_count")?.filter(|count| *count > 0) else { return Ok(()) };
        let name = if self.name == "llama" { "num_local_experts" } else { "num_experts" };
        config.insert(name.into(), json!(count));
        config.insert("num_experts_per_tok".into(), json!(self.needed("expert_used_count")?));
        // The files do not record whether the chosen experts' weights are normalised; llama.cpp goes by the
        // architecture, too.
        if self.name != "llama" {
            config.insert("norm_topk_prob".into(), json!(self.name == "qwen3moe"));
        }
        if matches!(self.name, "qwen2moe" | "qwen3moe") {
            config.insert("moe_intermediate_size".into(), config["intermediate_size"].clone());
        }
        if self.name == "qwen2moe" {
            let shared = json!(self.needed("expert_shared_feed_forward_length")?);
            config.insert("shared_expert_intermediate_size".into(), shared);
        }
        Ok(())
    }

    /// Granite's factors, of which a file has those that are not 1.
    fn factors_of_granite(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        for (key, field) in [
            ("attention.scale", "attention_multiplier"),
            ("embedding_scale", "embedding_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("logit_scale", "logits_scaling"),
        ] {
            if let Some(factor) = self.real(key)? {
                config.insert(field.into(), json!(factor));
            }
        }
        Ok(())
    }

    fn window(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        let window = self.whole("attention.sliding_window")?.filter(|window| *window > 0);
        config.insert("sliding_window".into(), json!(window));
        Ok(())
    }

    fn gemma(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        self.window(config)?;
        let of = |field: &str| config[field].as_u64().unwrap_or(1);
        let is_27b = GEMMA_27B_LAYERS.contains(&(self.name, of("num_hidden_layers")));
        let divided = of("hidden_size") as f64 / of("num_attention_heads").max(1) as f64;
        let scalar = match self.real("attention.scale")?.filter(|scale| *scale > 0.0) {
            Some(scale) => scale.powi(-2),
            None if is_27b => divided,
            None => of("head_dim") as f64,
        };
        config.insert("query_pre_attn_scalar".into(), json!(scalar));
        if self.name == "gemma2" {
            for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
                if let Some(cap) = self.real(key)? {
                    config.insert(key.into(), json!(cap));
                }
            }
            return Ok(());
        }
        let local = self.real("rope.freq_base_swa")?.unwrap_or(GEMMA3_LOCAL_THETA);
        config.insert("rope_local_base_freq".into(), json!(local));
        match self.get("attention.sliding_window_pattern").map(|pattern| (pattern, pattern.as_array())) {
            None => drop(config.insert("sliding_window_pattern".into(), json!(GEMMA3_PATTERN))),
            Some((pattern, None)) => {
                let pattern = pattern.as_u64();
                let allowed = "a whole number, or a list of booleans";
                let pattern =
                    pattern.ok_or_else(|| self.wrong("attention.sliding_window_pattern", allowed))?;
                config.insert("sliding_window_pattern".into(), json!(pattern));
            }
            Some((_, Some(list))) => {
                let kinds = list.values().map(|flags| {
                    let name = |flag: Value<'_>| match flag.as_bool() {
                        Some(true) => "sliding_attention",
                        _ => "full_attention",
                    };
                    flags.map(name).collect::<Vec<_>>()
                });
                config.insert("layer_types".into(), json!(kinds));
            }
        }
        Ok(())
    }
}
