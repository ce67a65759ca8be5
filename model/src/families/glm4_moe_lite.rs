//! GLM-4.7-Flash (GLM Team 2026): latent attention and experts as in DeepSeek-V3.

use super::decoder::Choice;
use super::deepseek::{Grouped, deepseek, grouped_experts, with_experts_by_type};
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::Spec;

// Defaults of transformers' `Glm4MoeLiteConfig`.
const EPS: f64 = 1e-5;
const EXPERTS: Grouped = Grouped {
    experts: Choice { count: 64, per_token: 4 },
    groups: Choice { count: 1, per_token: 1 },
    scale: 1.8,
    shared: 1,
};
const MOE_INTERMEDIATE_SIZE: usize = 1536;
const DENSE_LAYERS: usize = 1;
/// Sizes of latent attention, which differ from DeepSeek's.
pub const SIZES: &[(&str, u32)] = &[("q_lora_rank", 768), ("qk_nope_head_dim", 192), ("v_head_dim", 256)];

pub fn glm4_moe_lite(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    fields.one_of("topk_method", &["noaux_tc"], Some("noaux_tc"))?;
    fields.one_of("scoring_func", &["sigmoid"], Some("sigmoid"))?;
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, Some(MOE_INTERMEDIATE_SIZE))?;
    let experts = grouped_experts(fields, inner_size, EXPERTS)?;
    let is_interleaved = fields.flag("rope_interleave", true)?;
    let mut spec = deepseek(fields, is_interleaved, experts, inner_size, DENSE_LAYERS)?;
    spec.norm.eps = fields.number("rms_norm_eps", 0.0..=1.0, Some(EPS))? as f32;
    with_experts_by_type(fields, &mut spec, (experts, inner_size))?;
    Ok(spec)
}
