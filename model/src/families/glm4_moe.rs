//! GLM-4.5 and 4.6 (GLM Team 2025). Experts are chosen as in DeepSeek-V3 (DeepSeek-AI 2024), by corrected
//! sigmoids within the best groups, and a shared network runs beside them. Half of each head is rotated.

use super::decoder::{Choice, Defaults, silu_decoder};
use super::deepseek::{Grouped, grouped_experts};
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::RopeDefaults;
use crate::spec::{QkNorm, Spec};

// Defaults of transformers' `Glm4MoeConfig`.
const EPS: f64 = 1e-5;
const PARTIAL: f64 = 0.5;
const EXPERTS: Grouped = Grouped {
    experts: Choice { count: 128, per_token: 8 },
    groups: Choice { count: 1, per_token: 1 },
    scale: 1.0,
    shared: 1,
};
const MOE_INTERMEDIATE_SIZE: usize = 1408;
const DENSE_LAYERS: usize = 1;

pub fn glm4_moe(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let rope = RopeDefaults { partial: PARTIAL, ..RopeDefaults::USUAL };
    let mut spec = silu_decoder(fields, Defaults { eps: EPS, rope, ..Defaults::USUAL })?;
    spec.attention.has_bias = fields.flag("attention_bias", false)?;
    if fields.flag("use_qk_norm", false)? {
        spec.attention.qk_norm = QkNorm::Heads;
    }
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, Some(MOE_INTERMEDIATE_SIZE))?;
    let experts = grouped_experts(fields, inner_size, EXPERTS)?;
    let dense = fields.count("first_k_dense_replace", 4096, DENSE_LAYERS)?;
    for layer in spec.layers.iter_mut().skip(dense) {
        (layer.feed_forward.experts, layer.feed_forward.inner_size) = (Some(experts), inner_size);
    }
    Ok(spec)
}
