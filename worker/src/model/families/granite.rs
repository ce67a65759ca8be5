//! Granite 3 (Granite Team 2024): Llama with factors for embeddings, scores, outputs and logits.

use super::llama;
use crate::model::LoadError;
use crate::model::fields::Fields;
use crate::model::spec::Spec;

/// Values that a factor may have.
const FACTORS: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

pub fn granite(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let factor = |field| fields.number(field, FACTORS, Some(1.0));
    let residual = factor("residual_multiplier")?;
    let mut spec = llama::llama(fields)?;
    // Instead of each output, the residual stream is scaled, by the inverse. Normalisation undoes that if its
    // eps is scaled, too.
    spec.embedding_scale = (factor("embedding_multiplier")? / residual) as f32;
    spec.norm.eps = (f64::from(spec.norm.eps) / (residual * residual)) as f32;
    spec.attention.scale = factor("attention_multiplier")? as f32;
    spec.logits_scale = (1.0 / factor("logits_scaling")?) as f32;
    Ok(spec)
}
