//! Settings of single architectures.

use serde_json::{Map, Value as Json, json};

use super::{GEMMA4, Keys, LATENT};
use crate::GgufError;
use crate::metadata::Value;

/// Layer count of the 27B models of Gemma 2 and 3, which scale scores differently. The files do not record
/// the scale; llama.cpp also recognises these models by their layers.
const GEMMA_27B_LAYERS: [(&str, u64); 2] = [("gemma2", 46), ("gemma3", 62)];
/// RoPE theta of Gemma 3's sliding-window layers, which files omit.
const GEMMA3_LOCAL_THETA: f64 = 10_000.0;
/// Every sixth layer of Gemma 3 attends without a window.
const GEMMA3_PATTERN: u64 = 6;
/// Every fourth layer of Command R7B and A attends without a window.
const COHERE2_PATTERN: u64 = 4;
/// The same for OLMo 3 and EXAONE 4; of hybrids, every fourth layer attends.
const EVERY_FOURTH: u64 = 4;

impl Keys<'_> {
    /// Sets what only this architecture has.
    pub(super) fn family(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        match self.name {
            "granite" => self.factors_of_granite(config),
            "granitemoe" if self.whole("expert_shared_feed_forward_length")?.is_some() => {
                Err(self.model.unsupported("granitemoe with a shared network beside its experts".into()))
            }
            "granitemoe" => self.factors_of_granite(config),
            "gemma2" | "gemma3" => self.gemma(config),
            GEMMA4 => self.gemma4(config),
            "granitehybrid" => {
                self.factors_of_granite(config)?;
                self.state_space(config)
            }
            "phi3" | "gpt-oss" | "starcoder2" => {
                self.window(config)?;
                self.gate_limit(config)
            }
            "glm4moe" => {
                config.insert("use_qk_norm".into(), json!(self.has("blk.0.attn_q_norm.weight")));
                Ok(())
            }
            "command-r" => {
                config.insert("use_qk_norm".into(), json!(self.has("blk.0.attn_q_norm.weight")));
                self.scaled_logits(config)
            }
            "cohere2" => {
                self.window(config)?;
                self.scaled_logits(config)?;
                self.windowed_layers(config, COHERE2_PATTERN)
            }
            "olmo2" if !self.has_windows()? => Ok(()),
            "olmo2" | "exaone4" => {
                self.window(config)?;
                self.windowed_layers(config, EVERY_FOURTH)
            }
            "minimax-m2" => {
                config.insert("use_qk_norm".into(), json!(self.has("blk.0.attn_q_norm.weight")));
                config.insert("use_routing_bias".into(), json!(self.has("blk.0.exp_probs_b.bias")));
                Ok(())
            }
            "qwen3next" | "qwen35" | "qwen35moe" => self.states(config),
            "lfm2" | "lfm2moe" => {
                config.insert("conv_L_cache".into(), json!(self.needed("shortconv.l_cache")?));
                config.insert("block_auto_adjust_ff_dim".into(), json!(false));
                Ok(())
            }
            LATENT => self.latent(config),
            _ => Ok(()),
        }
    }

    /// Sizes of layers with a state, which are in the fields of state space models.
    fn states(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        let (heads, all) = (self.needed("ssm.time_step_rank")?, self.needed("ssm.inner_size")?);
        if heads == 0 || !all.is_multiple_of(heads) {
            return Err(self.wrong("ssm.inner_size", "a multiple of ssm.time_step_rank"));
        }
        for (field, size) in [
            ("linear_conv_kernel_dim", self.needed("ssm.conv_kernel")?),
            ("linear_key_head_dim", self.needed("ssm.state_size")?),
            ("linear_num_key_heads", self.needed("ssm.group_count")?),
            ("linear_num_value_heads", heads),
            ("linear_value_head_dim", all / heads),
            ("full_attention_interval", self.whole("full_attention_interval")?.unwrap_or(EVERY_FOURTH)),
        ] {
            config.insert(field.into(), json!(size));
        }
        Ok(())
    }

    /// Sets which layers attend: those with KV heads in a list of all layers. Returns how many these have.
    pub(super) fn attending(&self, config: &mut Map<String, Json>) -> Result<u64, GgufError> {
        let key = "attention.head_count_kv";
        let wrong = || self.wrong(key, "a list with one number for the layers that attend, and 0 for others");
        let list = self.get(key).and_then(|value| value.as_array()?.values()).ok_or_else(wrong)?;
        let heads: Vec<u64> = list.map(|heads| heads.as_u64()).collect::<Option<_>>().ok_or_else(wrong)?;
        let some = heads.iter().copied().find(|heads| *heads > 0).ok_or_else(wrong)?;
        if heads.iter().any(|heads| *heads != 0 && *heads != some) {
            return Err(wrong());
        }
        if self.name == "granitehybrid" {
            let kind = |heads: &u64| if *heads > 0 { "attention" } else { "mamba" };
            let kinds: Vec<_> = heads.iter().map(kind).collect();
            config.insert("layer_types".into(), json!(kinds));
        } else {
            let layers: Vec<usize> = (0..heads.len()).filter(|layer| heads[*layer] > 0).collect();
            config.insert("full_attn_idxs".into(), json!(layers));
        }
        Ok(some)
    }

    /// Sizes of Granite's layers with a state, and of the network that every layer has.
    fn state_space(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        let (heads, all) = (self.needed("ssm.time_step_rank")?, self.needed("ssm.inner_size")?);
        let hidden = self.needed("embedding_length")?;
        if hidden == 0 || all == 0 || !all.is_multiple_of(hidden) {
            return Err(self.wrong("ssm.inner_size", "a multiple of embedding_length"));
        }
        if heads == 0 || !all.is_multiple_of(heads) {
            return Err(self.wrong("ssm.time_step_rank", "a divisor of ssm.inner_size"));
        }
        let network = match self.whole("expert_shared_feed_forward_length")? {
            Some(size) => size,
            None => self.needed("feed_forward_length")?,
        };
        let first = (0..)
            .map(|layer| format!("blk.{layer}"))
            .take_while(|layer| self.has(&format!("{layer}.attn_norm.weight")))
            .find(|layer| self.has(&format!("{layer}.ssm_a")));
        let has_bias = first.is_some_and(|layer| self.has(&format!("{layer}.ssm_conv1d.bias")));
        let rotates = self.flag("rope.scaling.finetuned")?;
        for (field, value) in [
            ("mamba_n_heads", json!(heads)),
            ("mamba_d_head", json!(all / heads)),
            ("mamba_expand", json!(all / hidden)),
            ("mamba_n_groups", json!(self.needed("ssm.group_count")?)),
            ("mamba_d_state", json!(self.needed("ssm.state_size")?)),
            ("mamba_d_conv", json!(self.needed("ssm.conv_kernel")?)),
            ("mamba_conv_bias", json!(has_bias)),
            ("shared_intermediate_size", json!(network)),
            ("position_embedding_type", json!(if rotates { "rope" } else { "nope" })),
        ] {
            config.insert(field.into(), value);
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

    /// Whether some layers have a window, which tells OLMo 3 from OLMo 2.
    pub(super) fn has_windows(&self) -> Result<bool, GgufError> {
        Ok(self.whole("attention.sliding_window")?.is_some_and(|window| window > 0))
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
        self.windowed_layers(config, GEMMA3_PATTERN)
    }

    /// Sets which layers have a window. Without the key, every layer but each `pattern`th has one.
    fn windowed_layers(&self, config: &mut Map<String, Json>, pattern: u64) -> Result<(), GgufError> {
        const KEY: &str = "attention.sliding_window_pattern";
        let allowed = "a whole number, or a list of booleans";
        match self.get(KEY).map(|value| (value, value.as_array())) {
            None => drop(config.insert("sliding_window_pattern".into(), json!(pattern))),
            Some((value, None)) => {
                let pattern = value.as_u64().ok_or_else(|| self.wrong(KEY, allowed))?;
                config.insert("sliding_window_pattern".into(), json!(pattern));
            }
            Some((_, Some(list))) => {
                let name = |flag: Value<'_>| {
                    let is_windowed = flag.as_bool()?;
                    Some(if is_windowed { "sliding_attention" } else { "full_attention" })
                };
                let kinds: Option<Vec<_>> = list.values().and_then(|flags| flags.map(name).collect());
                let kinds = kinds.ok_or_else(|| self.wrong(KEY, allowed))?;
                config.insert("layer_types".into(), json!(kinds));
            }
        }
        Ok(())
    }

    /// Limit of GPT-OSS's gates, which most files omit; those that have it have one for each layer.
    fn gate_limit(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        const KEY: &str = "swiglu_clamp_exp";
        let Some(value) = self.get(KEY) else { return Ok(()) };
        let limits = match value.as_array() {
            None => value.as_f64().map(|limit| vec![limit]),
            Some(list) => list.values().and_then(|limits| limits.map(Value::as_f64).collect()),
        };
        let first = limits.as_ref().and_then(|limits| limits.first());
        match (first, &limits) {
            (Some(first), Some(limits)) if limits.iter().all(|limit| limit == first) => {
                config.insert("swiglu_limit".into(), json!(first));
                Ok(())
            }
            _ => Err(self.wrong(KEY, "a number, equal for all layers")),
        }
    }

    fn scaled_logits(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        config.insert("logit_scale".into(), json!(self.real("logit_scale")?));
        Ok(())
    }

    /// Sizes of latent attention. In files of old converters, keys and values have the heads' own lengths,
    /// and one matrix expands latents to both.
    fn latent(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        let rotated = self.needed("rope.dimension_count")?;
        let (keys, values) = match self.whole("attention.key_length_mla")? {
            Some(keys) => (keys, self.needed("attention.value_length_mla")?),
            None => (self.needed("attention.key_length")?, self.needed("attention.value_length")?),
        };
        let plain = keys.checked_sub(rotated).filter(|plain| *plain > 0);
        let plain = plain.ok_or_else(|| self.wrong("rope.dimension_count", "less than a key's length"))?;
        config.insert("qk_rope_head_dim".into(), json!(rotated));
        config.insert("qk_nope_head_dim".into(), json!(plain));
        config.insert("v_head_dim".into(), json!(values));
        config.insert("kv_lora_rank".into(), json!(self.needed("attention.kv_lora_rank")?));
        config.insert("q_lora_rank".into(), json!(self.whole("attention.q_lora_rank")?));
        if !config.contains_key("n_routed_experts") {
            config.insert("first_k_dense_replace".into(), config["num_hidden_layers"].clone());
        }
        Ok(())
    }
}
