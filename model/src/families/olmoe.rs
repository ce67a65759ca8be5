//! OLMoE (Muennighoff et al. 2024): Llama with a mixture of experts, one norm over all heads of the queries,
//! and one over the keys.

use super::decoder::{Choice, Defaults, experts, silu_decoder, with_attention_bias};
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::{QkNorm, Spec};

// Defaults of transformers' `OlmoeConfig`.
const EPS: f64 = 1e-5;
const EXPERTS: Choice = Choice { count: 64, per_token: 8 };

pub fn olmoe(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    if !fields.is_absent("clip_qkv") {
        return Err(fields.wrong("clip_qkv", "null: clipped queries and keys are not supported".into()));
    }
    let spec = silu_decoder(fields, Defaults { eps: EPS, ..Defaults::USUAL })?;
    let mut spec = with_attention_bias(fields, spec)?;
    spec.attention.qk_norm = QkNorm::Row;
    let experts = experts(fields, "num_experts", EXPERTS, fields.flag("norm_topk_prob", false)?)?;
    spec.layers.iter_mut().for_each(|layer| layer.feed_forward.experts = Some(experts));
    Ok(spec)
}
