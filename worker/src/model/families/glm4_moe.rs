//! GLM-4.5 and 4.6 (GLM Team 2025). Experts are chosen as in DeepSeek-V3 (DeepSeek-AI 2024), by corrected
//! sigmoids within the best groups, and a shared network runs beside them. Half of each head is rotated.

use skein_kernels::cpu::experts::{Groups, Routing, Score};

use super::{Defaults, experts, silu_decoder};
use crate::model::LoadError;
use crate::model::fields::Fields;
use crate::model::rope::RopeDefaults;
use crate::model::spec::{ExpertsSpec, QkNorm, SharedSpec, Spec};

// Defaults of transformers' `Glm4MoeConfig`.
const EPS: f64 = 1e-5;
const PARTIAL: f64 = 0.5;
const EXPERTS: (usize, usize) = (128, 8);
const MOE_INTERMEDIATE_SIZE: usize = 1408;
const DENSE_LAYERS: usize = 1;
/// A group ranks by the sum of this many best experts.
const BY_BEST: usize = 2;

pub fn glm4_moe(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let rope = RopeDefaults { partial: PARTIAL, ..RopeDefaults::USUAL };
    let mut spec = silu_decoder(fields, Defaults { eps: EPS, rope, ..Defaults::USUAL })?;
    spec.attention.has_bias = fields.flag("attention_bias", false)?;
    if fields.flag("use_qk_norm", false)? {
        spec.attention.qk_norm = QkNorm::Heads;
    }
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, Some(MOE_INTERMEDIATE_SIZE))?;
    let experts = grouped_experts(fields, inner_size)?;
    let dense = fields.count("first_k_dense_replace", 4096, DENSE_LAYERS)?;
    for layer in spec.layers.iter_mut().skip(dense) {
        (layer.feed_forward.experts, layer.feed_forward.inner_size) = (Some(experts), inner_size);
    }
    Ok(spec)
}

/// Reads a mixture of experts from DeepSeek-V3's fields. `inner_size` is that of one expert.
fn grouped_experts(fields: &Fields<'_>, inner_size: usize) -> Result<ExpertsSpec, LoadError> {
    let plain = experts(fields, "n_routed_experts", EXPERTS, fields.flag("norm_topk_prob", true)?)?;
    let (count, per_token) = (plain.count, plain.routing.per_token);
    let groups = fields.size("n_group", count, Some(1))?;
    if !count.is_multiple_of(groups) {
        return Err(fields.wrong("n_group", format!("a divisor of n_routed_experts, {count}")));
    }
    let kept = fields.size("topk_group", groups, Some(1))?;
    if kept * (count / groups) < per_token {
        let allowed = format!("at least {per_token} experts in topk_group groups of {}", count / groups);
        return Err(fields.wrong("topk_group", allowed));
    }
    let routing = Routing {
        score: Score::Sigmoid,
        scale: fields.number("routed_scaling_factor", 0.0..=1e6, Some(1.0))? as f32,
        groups: (groups > 1).then_some(Groups { count: groups, kept, by_best: BY_BEST }),
        ..plain.routing
    };
    let shared = fields.count("n_shared_experts", 1024, 1)?;
    let shared = (shared > 0).then_some(SharedSpec { inner_size: shared * inner_size, is_weighted: false });
    Ok(ExpertsSpec { routing, has_correction: true, shared, ..plain })
}
