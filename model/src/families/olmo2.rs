//! OLMo 2 (OLMo Team 2024): Llama with normalised outputs instead of inputs of attention and feed-forward
//! network, and with one norm over all heads of the queries and one over the keys.

use super::decoder::{Defaults, silu_decoder, with_attention_bias};
use super::names;
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::{NormPlace, QkNorm, Spec};
use crate::tensors::Role;

/// Default of transformers' `Olmo2Config`.
const EPS: f64 = 1e-5;

pub fn olmo2(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let spec = silu_decoder(fields, Defaults { eps: EPS, ..Defaults::USUAL })?;
    let mut spec = with_attention_bias(fields, spec)?;
    spec.attention.qk_norm = QkNorm::Row;
    spec.norm.place = NormPlace::Outputs;
    Ok(Spec { names, ..spec })
}

pub(super) fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::AttentionOutputNorm => &["post_attention_layernorm"],
        Role::FeedForwardOutputNorm => &["post_feedforward_layernorm"],
        role => names::usual(role),
    }
}
