//! Qwen3 (Qwen Team 2025) with mixtures of experts in some or all layers.

use serde_json::Value;

use super::decoder::{Choice, Defaults, experts, silu_decoder, window, with_attention_bias};
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::{ExpertsSpec, QkNorm, Spec};

// Defaults of transformers' `Qwen3MoeConfig`.
const EXPERTS: Choice = Choice { count: 128, per_token: 8 };
const MOE_INTERMEDIATE_SIZE: usize = 768;
const SLIDING_WINDOW: usize = 4096;

pub fn qwen3_moe(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = with_attention_bias(fields, silu_decoder(fields, Defaults::USUAL)?)?;
    spec.attention.qk_norm = QkNorm::Heads;
    let has_windows = fields.flag("use_sliding_window", false)?;
    let window = if has_windows { window(fields, Some(SLIDING_WINDOW))? } else { None };
    let experts = experts(fields, "num_experts", EXPERTS, fields.flag("norm_topk_prob", false)?)?;
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, Some(MOE_INTERMEDIATE_SIZE))?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    with_experts(fields, spec, experts, inner_size)
}

/// Adds `experts` to the layers that have them.
pub fn with_experts(
    fields: &Fields<'_>,
    mut spec: Spec,
    experts: ExpertsSpec,
    inner_size: usize,
) -> Result<Spec, LoadError> {
    let step = fields.size("decoder_sparse_step", 4096, Some(1))?;
    let dense = dense_layers(fields)?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if (index + 1).is_multiple_of(step) && !dense.contains(&(index as u64)) {
            (layer.feed_forward.experts, layer.feed_forward.inner_size) = (Some(experts), inner_size);
        }
    }
    Ok(spec)
}

/// Layers without experts, from `mlp_only_layers`.
fn dense_layers(fields: &Fields<'_>) -> Result<Vec<u64>, LoadError> {
    if fields.is_absent("mlp_only_layers") {
        return Ok(Vec::new());
    }
    let list = fields.get("mlp_only_layers").and_then(Value::as_array);
    let layers = list.and_then(|list| list.iter().map(Value::as_u64).collect());
    layers.ok_or_else(|| fields.wrong("mlp_only_layers", "a list of layers".into()))
}
