//! Gemma 2 (Gemma Team 2024).
//!
//! The outputs of attention and feed-forward network are normalised, as are their inputs. Every other layer
//! has a window; scores and logits are capped; embeddings are scaled by the square root of their width; the
//! gate is GELU.

use serde_json::Value;
use skein_kernels::gate::Gate;

use super::{decoder, llama, with_attention_bias};
use crate::model::LoadError;
use crate::model::fields::Fields;
use crate::model::spec::{AttentionSpec, LayerSpec, NormSpec, Spec};
use crate::model::tensors::Role;

// Defaults of transformers' `Gemma2Config` for missing fields.
const HEAD_DIM: usize = 256;
const QUERY_PRE_ATTN_SCALAR: f64 = 256.0;
const SLIDING_WINDOW: usize = 4096;
const ATTN_LOGIT_SOFTCAPPING: f64 = 50.0;
const FINAL_LOGIT_SOFTCAPPING: f64 = 30.0;

pub fn gemma2(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    fields.one_of("hidden_activation", &["gelu_pytorch_tanh"], Some("gelu_pytorch_tanh"))?;
    let spec = with_attention_bias(fields, decoder(fields, Some(HEAD_DIM))?)?;
    let scalar = fields.number("query_pre_attn_scalar", 1e-6..=1e6, Some(QUERY_PRE_ATTN_SCALAR))?;
    let cap = |field, default| fields.unless_null(field, || fields.number(field, 1e-3..=1e6, Some(default)));
    let scores_cap = cap("attn_logit_softcapping", ATTN_LOGIT_SOFTCAPPING)?;
    let logits_cap = cap("final_logit_softcapping", FINAL_LOGIT_SOFTCAPPING)?;
    Ok(Spec {
        embedding_scale: (spec.hidden_size as f32).sqrt(),
        attention: AttentionSpec {
            scale: scalar.powf(-0.5) as f32,
            softcap: scores_cap.map(|cap| cap as f32),
            ..spec.attention
        },
        layers: layers(fields, &spec)?,
        norm: NormSpec { offset: 1.0, is_sandwich: true, ..spec.norm },
        logits_softcap: logits_cap.map(|cap| cap as f32),
        is_tied: fields.flag("tie_word_embeddings", true)?,
        name,
        ..spec
    })
}

/// Windows in the layers that `layer_types` names, or in every other layer starting with the first.
fn layers(fields: &Fields<'_>, spec: &Spec) -> Result<Vec<LayerSpec>, LoadError> {
    let window = fields.size("sliding_window", 1 << 24, Some(SLIDING_WINDOW))? as u32;
    let types = fields.get("layer_types").and_then(Value::as_array);
    let has_window = |layer: usize| match types.map(|types| types.get(layer).and_then(Value::as_str)) {
        None => Ok(layer.is_multiple_of(2)),
        Some(Some("sliding_attention")) => Ok(true),
        Some(Some("full_attention")) => Ok(false),
        Some(_) => {
            Err(fields.wrong("layer_types", "sliding_attention or full_attention for each layer".into()))
        }
    };
    let layer = |(index, layer): (usize, &LayerSpec)| {
        let mut layer = LayerSpec { window: has_window(index)?.then_some(window), ..*layer };
        layer.feed_forward.activation = Gate::GeluTanh;
        Ok(layer)
    };
    spec.layers.iter().enumerate().map(layer).collect()
}

fn name(role: Role) -> &'static str {
    match role {
        Role::AttentionOutputNorm => "post_attention_layernorm",
        Role::FeedForwardNorm => "pre_feedforward_layernorm",
        Role::FeedForwardOutputNorm => "post_feedforward_layernorm",
        role => llama::name(role),
    }
}
