//! Qwen1.5 and Qwen2 with mixtures of experts (Qwen Team 2024): Qwen2 with experts in some or all layers, and
//! a shared network weighted by the sigmoid of a logit.

use super::decoder::{Choice, Defaults, experts, silu_decoder, window, windowed};
use super::qwen3_moe::with_experts;
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::{SharedSpec, Spec};

// Defaults of transformers' `Qwen2MoeConfig`.
const EXPERTS: Choice = Choice { count: 60, per_token: 4 };
const MOE_INTERMEDIATE_SIZE: usize = 1408;
const SHARED_INTERMEDIATE_SIZE: usize = 5632;
const SLIDING_WINDOW: usize = 4096;
const MAX_WINDOW_LAYERS: usize = 28;

pub fn qwen2_moe(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = silu_decoder(fields, Defaults::USUAL)?;
    spec.attention.has_bias = fields.flag("qkv_bias", true)?;
    if fields.flag("use_sliding_window", false)? {
        let window = window(fields, Some(SLIDING_WINDOW))?;
        let most = fields.size("max_window_layers", 4096, Some(MAX_WINDOW_LAYERS))?;
        // Every second layer before `max_window_layers`.
        let windowed = windowed(fields, spec.layers.len(), |layer| layer.is_multiple_of(2) && layer < most)?;
        for (layer, has_window) in spec.layers.iter_mut().zip(windowed) {
            layer.window = window.filter(|_| has_window);
        }
    }
    let mut experts = experts(fields, "num_experts", EXPERTS, fields.flag("norm_topk_prob", false)?)?;
    let shared = fields.size("shared_expert_intermediate_size", 1 << 20, Some(SHARED_INTERMEDIATE_SIZE))?;
    experts.shared = Some(SharedSpec { inner_size: shared, is_weighted: true });
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, Some(MOE_INTERMEDIATE_SIZE))?;
    with_experts(fields, spec, experts, inner_size)
}
