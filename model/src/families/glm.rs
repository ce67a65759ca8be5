//! GLM-4 (GLM Team 2024), `glm`, and its successor `glm4` (2025), which also normalises outputs.
//!
//! Llama with biases of queries, keys and values, a fused gate, and rotation of half of each head in adjacent
//! pairs.

use super::decoder::{Defaults, silu_decoder};
use super::names;
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::RopeDefaults;
use crate::spec::{NormPlace, NormSpec, Spec};
use crate::tensors::Role;

// Defaults of transformers' `GlmConfig`.
const HEAD_DIM: usize = 128;
const EPS: f64 = 1.5625e-7;
const PARTIAL: f64 = 0.5;

pub fn glm(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = silu_decoder(
        fields,
        Defaults {
            head_dim: Some(HEAD_DIM),
            eps: EPS,
            rope: RopeDefaults { partial: PARTIAL, ..RopeDefaults::USUAL },
            is_interleaved: true,
            ..Defaults::USUAL
        },
    )?;
    spec.attention.has_bias = fields.flag("attention_bias", true)?;
    Ok(Spec { names, ..spec })
}

pub fn glm4(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let spec = glm(fields)?;
    Ok(Spec { norm: NormSpec { place: NormPlace::Both, ..spec.norm }, ..spec })
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Gate | Role::Up => &["mlp.gate_up_proj"],
        Role::AttentionOutputNorm => &["post_self_attn_layernorm"],
        Role::FeedForwardOutputNorm => &["post_mlp_layernorm"],
        role => names::usual(role),
    }
}
