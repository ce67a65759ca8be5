//! Phi-3, Phi-4 and Phi-4-mini (Abdin et al. 2024).
//!
//! Llama with fused projections. Long-context models also use LongRoPE and rotate only part of each head.

use super::decoder::{Defaults, silu_decoder, window};
use super::names;
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::Spec;
use crate::tensors::Role;

/// Default of transformers' `Phi3Config`.
const EPS: f64 = 1e-5;

pub fn phi3(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = silu_decoder(fields, Defaults { eps: EPS, ..Defaults::USUAL })?;
    let window = window(fields, None)?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(Spec { names, ..spec })
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Query | Role::Key | Role::Value => &["self_attn.qkv_proj"],
        Role::Gate | Role::Up => &["mlp.gate_up_proj"],
        role => names::usual(role),
    }
}
