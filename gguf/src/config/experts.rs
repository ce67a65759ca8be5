//! Mixtures of experts.

use serde_json::{Map, Value as Json, json};

use super::{GEMMA4, Keys, LATENT};
use crate::GgufError;

/// `expert_gating_func` of experts chosen by the softmax of their scores.
const SOFTMAX: u64 = 1;
/// The same for sigmoids.
const SIGMOID: u64 = 2;

impl Keys<'_> {
    /// Whether experts are chosen by the sigmoid of their scores.
    pub(super) fn is_sigmoid(&self) -> Result<bool, GgufError> {
        match self.whole("expert_gating_func")? {
            None | Some(SOFTMAX) => Ok(false),
            Some(SIGMOID) => Ok(true),
            Some(_) => Err(self.wrong("expert_gating_func", "1 (softmax) or 2 (sigmoid)")),
        }
    }

    /// Sets how many experts there are and how they are chosen.
    pub(super) fn experts(&self, config: &mut Map<String, Json>) -> Result<(), GgufError> {
        let Some(count) = self.whole("expert_count")?.filter(|count| *count > 0) else {
            if self.name == "granitehybrid" {
                config.insert("num_local_experts".into(), json!(0)); // not the default
            }
            return Ok(());
        };
        let mut insert = |field: &str, value: Json| drop(config.insert(field.into(), value));
        insert("num_experts_per_tok", json!(self.needed("expert_used_count")?));
        match self.name {
            LATENT | "glm4moe" => {
                insert("n_routed_experts", json!(count));
                insert("n_shared_experts", json!(self.whole("expert_shared_count")?.unwrap_or(0)));
                insert("moe_intermediate_size", json!(self.needed("expert_feed_forward_length")?));
                insert("first_k_dense_replace", json!(self.whole("leading_dense_block_count")?.unwrap_or(0)));
                insert("routed_scaling_factor", json!(self.real("expert_weights_scale")?.unwrap_or(1.0)));
                insert("norm_topk_prob", json!(self.flag("expert_weights_norm")?));
                // Files of old converters do not record groups; llama.cpp chooses among all experts then.
                let groups = self.whole("expert_group_count")?.unwrap_or(1);
                insert("n_group", json!(groups));
                insert("topk_group", json!(self.whole("expert_group_used_count")?.unwrap_or(groups)));
                if self.name == LATENT && !self.is_sigmoid()? && groups > 1 {
                    insert("topk_method", json!("group_limited_greedy"));
                }
            }
            "ernie4_5-moe" if self.is_sigmoid()? => {
                return Err(self.wrong("expert_gating_func", "1 (softmax)"));
            }
            "ernie4_5-moe" => {
                insert("moe_num_experts", json!(count));
                insert("moe_num_shared_experts", json!(self.whole("expert_shared_count")?.unwrap_or(0)));
                insert("moe_intermediate_size", json!(self.needed("expert_feed_forward_length")?));
                insert("moe_layer_start_index", json!(self.whole("leading_dense_block_count")?.unwrap_or(0)));
                insert("moe_layer_interval", json!(self.whole("interleave_moe_layer_step")?.unwrap_or(1)));
            }
            "minimax-m2" if self.whole("expert_gating_func")?.is_some_and(|kind| kind != SIGMOID) => {
                return Err(self.wrong("expert_gating_func", "2 (sigmoid)"));
            }
            "llama" | "gpt-oss" | "granitemoe" | "granitehybrid" | "minimax-m2" => {
                insert("num_local_experts", json!(count))
            }
            GEMMA4 => {
                insert("enable_moe_block", json!(true));
                insert("num_experts", json!(count));
                insert("top_k_experts", json!(self.needed("expert_used_count")?));
                insert("moe_intermediate_size", json!(self.needed("expert_feed_forward_length")?));
            }
            "olmoe" | "qwen2moe" | "qwen3moe" | "qwen3next" | "qwen35moe" => {
                insert("num_experts", json!(count));
                // The files do not record whether the chosen experts' weights are normalised; llama.cpp
                // goes by the architecture, too.
                insert("norm_topk_prob", json!(!matches!(self.name, "olmoe" | "qwen2moe")));
            }
            "lfm2moe" if self.whole("expert_gating_func")?.is_some_and(|kind| kind != SIGMOID) => {
                return Err(self.wrong("expert_gating_func", "2 (sigmoid)"));
            }
            "lfm2moe" => {
                let dense = self.whole("leading_dense_block_count")?.unwrap_or(0);
                insert("num_experts", json!(count));
                insert("num_dense_layers", json!(dense));
                insert("moe_intermediate_size", json!(self.needed("expert_feed_forward_length")?));
                // The files record neither this nor whether weights are normalised, as they are.
                insert("use_expert_bias", json!(self.has(&format!("blk.{dense}.exp_probs_b.bias"))));
            }
            _ => return Err(self.model.unsupported(format!("{} with a mixture of experts", self.name))),
        }
        if matches!(self.name, "qwen2moe" | "qwen3moe" | "qwen3next" | "qwen35moe") {
            config.insert("moe_intermediate_size".into(), config["intermediate_size"].clone());
        }
        if matches!(self.name, "qwen2moe" | "qwen3next" | "qwen35moe") {
            let shared = json!(self.needed("expert_shared_feed_forward_length")?);
            config.insert("shared_expert_intermediate_size".into(), shared);
        }
        Ok(())
    }
}
