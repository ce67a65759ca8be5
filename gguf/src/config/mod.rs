//! Converts GGUF metadata, with the keys of llama.cpp's converters, to config.json.

mod experts;
mod families;
mod gemma4;
mod nemotron_h;
mod rope;

use serde_json::{Map, Value as Json, json};

use crate::GgufError;
use crate::metadata::Value;
use crate::model::GgufModel;
use crate::special_tokens::SpecialTokens;

/// Supported values of `general.architecture`.
pub const SUPPORTED: [&str; 37] = [
    "llama",
    "mistral3",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "qwen3next",
    "qwen35",
    "qwen35moe",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "nemotron_h_moe",
    "gemma2",
    "gemma3",
    "gemma4",
    "gpt-oss",
    "deepseek2",
    "kimi-linear",
    "chatglm",
    "glm4",
    "glm4moe",
    "granite",
    "granitemoe",
    "granitehybrid",
    "olmo2",
    "olmoe",
    "phi3",
    "smollm3",
    "starcoder2",
    "command-r",
    "cohere2",
    "seed_oss",
    "exaone4",
    "ernie4_5",
    "ernie4_5-moe",
    "minimax-m2",
];
/// Architectures whose queries and keys rotate adjacent pairs. The converters permute the rows of those
/// models that pair values half a head apart in safetensors, as all other architectures do. Those of
/// Nemotron-H are permuted, too, and do not rotate.
pub const ROTATES_ADJACENT: [&str; 15] = [
    "llama",
    "mistral3",
    "granite",
    "granitemoe",
    "granitehybrid",
    "smollm3",
    "deepseek2",
    "chatglm",
    "glm4",
    "command-r",
    "cohere2",
    "ernie4_5",
    "ernie4_5-moe",
    "nemotron_h",
    "nemotron_h_moe",
];

/// Architectures whose files say layer by layer how many KV heads it has and how wide its network is.
const BY_LAYER: [&str; 2] = ["nemotron_h", "nemotron_h_moe"];

/// Architecture of models with latent attention.
const LATENT: &str = "deepseek2";
/// The same beside states.
const KIMI_LINEAR: &str = "kimi-linear";
/// Most layers of a model.
const MAX_LAYERS: u64 = 4096;
/// Architecture of Gemma 4.
const GEMMA4: &str = "gemma4";

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
    if name != GEMMA4 {
        keys.rope(&mut config)?;
    }
    keys.biases(&mut config)?;
    keys.experts(&mut config)?;
    keys.family(&mut config)?;
    let eos = SpecialTokens::of(model).ends;
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

    fn flag(&self, key: &str) -> Result<bool, GgufError> {
        let Some(value) = self.get(key) else { return Ok(false) };
        value.as_bool().ok_or_else(|| self.wrong(key, "a boolean"))
    }

    fn has(&self, tensor: &str) -> bool {
        self.model.tensor(tensor).is_some()
    }

    /// Sizes that every architecture has.
    fn sizes(&self) -> Result<Map<String, Json>, GgufError> {
        let (hidden, heads) = (self.needed("embedding_length")?, self.needed("attention.head_count")?);
        let vocabulary = self.model.tensor("token_embd.weight").and_then(|table| table.shape.first());
        let is_by_layer = BY_LAYER.contains(&self.name);
        let inner = match self.name {
            "gpt-oss" | "qwen2moe" | "qwen3moe" | "qwen3next" | "qwen35moe" => "expert_feed_forward_length",
            _ => "feed_forward_length",
        };
        // Layers that predict further tokens come last and are not used.
        let unused = self.whole("nextn_predict_layers")?.unwrap_or(0);
        let layers = self.needed("block_count")?.checked_sub(unused);
        let layers = layers.ok_or_else(|| self.wrong("nextn_predict_layers", "at most block_count"))?;
        let config = json!({
            "model_type": self.model_type()?,
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": match self.name {
                _ if is_by_layer => Json::Null,
                GEMMA4 => json!(self.gemma4_inner_size()?),
                _ => json!(self.needed(inner)?),
            },
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "max_position_embeddings": self.needed("context_length")?,
            "tie_word_embeddings": !self.has("output.weight"),
        });
        let mut config = config.as_object().cloned().unwrap_or_default();
        let (eps, key) = match self.name {
            "command-r" | "cohere2" => ("layer_norm_eps", "attention.layer_norm_epsilon"),
            "lfm2" | "lfm2moe" => ("norm_eps", "attention.layer_norm_rms_epsilon"),
            _ if is_by_layer => ("layer_norm_epsilon", "attention.layer_norm_rms_epsilon"),
            "starcoder2" => ("norm_epsilon", "attention.layer_norm_epsilon"),
            _ => ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        };
        config.insert(eps.into(), json!(self.real(key)?));
        if self.name == KIMI_LINEAR {
            self.attending_by_type(&mut config, layers, ["full_attention", "linear_attention"])?;
        } else if self.name != LATENT {
            config.insert("head_dim".into(), json!(self.head_dim(hidden, heads)?));
            let kv_heads = match self.name {
                "lfm2" | "lfm2moe" => self.attending(&mut config)?,
                "granitehybrid" => self.attending_by_type(&mut config, layers, ["attention", "mamba"])?,
                _ if is_by_layer => self.kinds(layers, &mut config)?.unwrap_or(heads),
                GEMMA4 => self.gemma4_kv_heads()?,
                _ => self.whole("attention.head_count_kv")?.unwrap_or(heads),
            };
            config.insert("num_key_value_heads".into(), json!(kv_heads));
        }
        Ok(config)
    }

    fn model_type(&self) -> Result<&str, GgufError> {
        Ok(match self.name {
            "llama" if self.whole("expert_count")?.is_some_and(|count| count > 0) => "mixtral",
            "qwen2moe" => "qwen2_moe",
            "qwen3moe" => "qwen3_moe",
            "qwen3next" => "qwen3_next",
            "qwen35" => "qwen3_5_text",
            "qwen35moe" => "qwen3_5_moe_text",
            "mistral3" => "ministral3",
            "lfm2moe" => "lfm2_moe",
            "nemotron_h_moe" => "nemotron_h",
            KIMI_LINEAR => "kimi_linear",
            "gemma3" => "gemma3_text",
            GEMMA4 => "gemma4_text",
            "granitehybrid" => "granitemoehybrid",
            "gpt-oss" => "gpt_oss",
            "chatglm" => "glm",
            "glm4moe" => "glm4_moe",
            "command-r" => "cohere",
            "olmo2" if self.has_windows()? => "olmo3",
            "ernie4_5-moe" => "ernie4_5_moe",
            "minimax-m2" => "minimax_m2",
            LATENT if self.is_sigmoid()? => "deepseek_v3",
            LATENT => "deepseek_v2",
            name => name,
        })
    }

    fn head_dim(&self, hidden: u64, heads: u64) -> Result<u64, GgufError> {
        let head_dim = match self.whole("attention.key_length")? {
            Some(size) => size,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => return Err(self.wrong("attention.head_count", "a divisor of embedding_length")),
        };
        if self.whole("attention.value_length")?.is_some_and(|size| size != head_dim) {
            return Err(self.wrong("attention.value_length", "equal to attention.key_length"));
        }
        Ok(head_dim)
    }

    /// Sets the bias flags: a bias is enabled if the file contains its tensor.
    fn biases(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        // Not every layer attends.
        let layers = self.needed("block_count")?.min(MAX_LAYERS);
        let has = |tensor: &str| (0..layers).any(|layer| self.has(&format!("blk.{layer}.{tensor}.bias")));
        let (inputs, output) = (has("attn_q") || has("attn_qkv"), has("attn_output"));
        let refuse = |what: &str| Err(self.model.unsupported(format!("{} with {what}", self.name)));
        match self.name {
            "qwen2" | "starcoder2" | "nemotron_h" | "nemotron_h_moe" => {}
            "chatglm" | "glm4" | "glm4moe" if !output => {
                config.insert("attention_bias".into(), json!(inputs));
            }
            "qwen2moe" if !output => drop(config.insert("qkv_bias".into(), json!(inputs))),
            "phi3" | "qwen2moe" | "exaone4" | "ernie4_5-moe" | "minimax-m2" if inputs || output => {
                return refuse("biases of some of its attention's matrices");
            }
            "phi3" | "exaone4" | "ernie4_5" | "ernie4_5-moe" | "minimax-m2" => {}
            "seed_oss" => {
                config.insert("attention_bias".into(), json!(inputs));
                config.insert("attention_out_bias".into(), json!(output));
            }
            _ if inputs == output => drop(config.insert("attention_bias".into(), json!(inputs))),
            _ => return refuse("biases of some of its attention's matrices"),
        }
        let network = has("ffn_up");
        match self.name {
            "starcoder2" | "ernie4_5" if [inputs, output, network].iter().all(|has| *has == inputs) => {
                config.insert("use_bias".into(), json!(inputs));
            }
            "starcoder2" | "ernie4_5" => return refuse("biases of some of its matrices"),
            "llama" | "granite" | "smollm3" | "seed_oss" => {
                drop(config.insert("mlp_bias".into(), json!(network)))
            }
            _ if network => return refuse("biases of its feed-forward network"),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
