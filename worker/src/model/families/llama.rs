//! Llama (Touvron et al. 2023) and models of the same architecture: Falcon 3, SmolLM 2, and Mistral with its
//! window.
//!
//! A pre-norm decoder: grouped-query attention with rotary positions, then a SwiGLU network, each added to
//! the residual stream.

use super::{Defaults, silu_decoder, window, with_attention_bias};
use crate::model::LoadError;
use crate::model::fields::Fields;
use crate::model::spec::Spec;
use crate::model::tensors::Role;

/// Default window of transformers' `MistralConfig`; only an explicit null disables it.
const MISTRAL_DEFAULT_WINDOW: usize = 4096;

pub fn llama(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = silu_decoder(fields, Defaults::USUAL)?;
    let has_bias = fields.flag("mlp_bias", false)?;
    spec.layers.iter_mut().for_each(|layer| layer.feed_forward.has_bias = has_bias);
    with_attention_bias(fields, spec)
}

pub fn mistral(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = silu_decoder(fields, Defaults::USUAL)?;
    let window = window(fields, Some(MISTRAL_DEFAULT_WINDOW))?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(spec)
}

/// Tensor names in checkpoints.
pub fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Embedding => &["model.embed_tokens"],
        Role::AttentionNorm => &["input_layernorm"],
        Role::Query => &["self_attn.q_proj"],
        Role::Key => &["self_attn.k_proj"],
        Role::Value => &["self_attn.v_proj"],
        Role::QueryNorm => &["self_attn.q_norm"],
        Role::KeyNorm => &["self_attn.k_norm"],
        Role::QueryDown
        | Role::QueryUp
        | Role::Latent
        | Role::LatentNorm
        | Role::HeadKey
        | Role::HeadValue => {
            unreachable!("attention is not latent")
        }
        Role::Sinks => &["self_attn.sinks"],
        Role::AttentionOutput => &["self_attn.o_proj"],
        Role::FeedForwardNorm => &["post_attention_layernorm"],
        Role::Router => &["mlp.gate"],
        Role::Gate => &["mlp.gate_proj"],
        Role::Up => &["mlp.up_proj"],
        Role::Down => &["mlp.down_proj"],
        Role::LastNorm => &["model.norm"],
        Role::Head => &["lm_head"],
        Role::AttentionOutputNorm | Role::FeedForwardOutputNorm => {
            unreachable!("what is added is not normalised")
        }
        Role::ExpertGate => &["mlp.experts.{}.gate_proj", "mlp.experts.gate_up_proj"],
        Role::ExpertUp => &["mlp.experts.{}.up_proj", "mlp.experts.gate_up_proj"],
        Role::ExpertDown => &["mlp.experts.{}.down_proj", "mlp.experts.down_proj"],
        Role::RouterCorrection => &["mlp.gate.e_score_correction_bias"],
        Role::SharedGate => &["mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj"],
        Role::SharedUp => &["mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj"],
        Role::SharedDown => &["mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj"],
        Role::SharedRouter => &["mlp.shared_expert_gate"],
    }
}
