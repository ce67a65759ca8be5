//! Gemma 2 (Gemma Team 2024).
//!
//! Inputs and outputs of attention and the feed-forward network are normalised. Every other layer has a
//! window, scores and logits are capped, embeddings are scaled by the square root of their width, and the
//! gate is GELU.

use skein_kernels::gate::Gate;

use super::decoder::{Defaults, decoder, window, windowed, with_attention_bias};
use super::names;
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::{AttentionSpec, NormPlace, NormSpec, Spec};
use crate::tensors::Role;

// Defaults of transformers' `Gemma2Config`.
const HEAD_DIM: usize = 256;
const QUERY_PRE_ATTN_SCALAR: f64 = 256.0;
const SLIDING_WINDOW: usize = 4096;
const ATTN_LOGIT_SOFTCAPPING: f64 = 50.0;
const FINAL_LOGIT_SOFTCAPPING: f64 = 30.0;

pub fn gemma2(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let cap = |field, default| fields.unless_null(field, || fields.number(field, 1e-3..=1e6, Some(default)));
    let scores_cap = cap("attn_logit_softcapping", ATTN_LOGIT_SOFTCAPPING)?;
    let logits_cap = cap("final_logit_softcapping", FINAL_LOGIT_SOFTCAPPING)?;
    let mut spec = gemma(fields)?;
    spec.attention.softcap = scores_cap.map(|cap| cap as f32);
    spec.logits_softcap = logits_cap.map(|cap| cap as f32);
    let window = window(fields, Some(SLIDING_WINDOW))?;
    let windowed = windowed(fields, spec.layers.len(), |layer| layer.is_multiple_of(2))?;
    for (layer, has_window) in spec.layers.iter_mut().zip(windowed) {
        layer.window = window.filter(|_| has_window);
    }
    Ok(spec)
}

/// Common parts of Gemma 2 and 3.
pub fn gemma(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    fields.one_of("hidden_activation", &["gelu_pytorch_tanh"], Some("gelu_pytorch_tanh"))?;
    let defaults = Defaults { head_dim: Some(HEAD_DIM), is_tied: true, ..Defaults::USUAL };
    let mut spec = with_attention_bias(fields, decoder(fields, defaults)?)?;
    spec.layers.iter_mut().for_each(|layer| layer.feed_forward.activation = Gate::GeluTanh);
    let scalar = fields.number("query_pre_attn_scalar", 1e-6..=1e6, Some(QUERY_PRE_ATTN_SCALAR))?;
    Ok(Spec {
        embedding_scale: (spec.hidden_size as f32).sqrt(),
        rounds_embedding_scale: true,
        attention: AttentionSpec { scale: scalar.powf(-0.5) as f32, ..spec.attention },
        norm: NormSpec { offset: 1.0, place: NormPlace::Both, ..spec.norm },
        names,
        ..spec
    })
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::AttentionOutputNorm => &["post_attention_layernorm"],
        Role::FeedForwardNorm => &["pre_feedforward_layernorm"],
        Role::FeedForwardOutputNorm => &["post_feedforward_layernorm"],
        role => names::usual(role),
    }
}
