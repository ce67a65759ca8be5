//! Granite 3 (Granite Team 2024), dense or with a mixture of experts: Llama with factors for embeddings,
//! scores, outputs and logits.

use super::decoder::{Choice, experts};
use super::llama;
use super::names;
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::Spec;
use crate::tensors::Role;

/// Default numbers of experts per layer and per token.
pub(super) const EXPERTS: Choice = Choice { count: 8, per_token: 2 };
/// Allowed range of a factor.
const FACTORS: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

pub fn granite(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let factor = |field| fields.number(field, FACTORS, Some(1.0));
    let residual = factor("residual_multiplier")?;
    let mut spec = llama::llama(fields)?;
    // Instead of scaling each output, scale the residual stream by the inverse. Normalisation cancels it if
    // eps is scaled as well.
    spec.embedding_scale = (factor("embedding_multiplier")? / residual) as f32;
    spec.norm.eps = (f64::from(spec.norm.eps) / (residual * residual)) as f32;
    spec.attention.scale = factor("attention_multiplier")? as f32;
    spec.logits_scale = (1.0 / factor("logits_scaling")?) as f32;
    Ok(spec)
}

pub fn granitemoe(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = granite(fields)?;
    // A softmax over the chosen experts equals the softmax over all, divided by the sum of the chosen.
    let experts = experts(fields, "num_local_experts", EXPERTS, true)?;
    spec.layers.iter_mut().for_each(|layer| layer.feed_forward.experts = Some(experts));
    Ok(Spec { names, ..spec })
}

/// Names in IBM's release and in version 5 of transformers.
pub(super) fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Router => &["block_sparse_moe.router.layer", "block_sparse_moe.router"],
        Role::ExpertGate | Role::ExpertUp => {
            &["block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj"]
        }
        Role::ExpertDown => &["block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.down_proj"],
        role => names::usual(role),
    }
}
