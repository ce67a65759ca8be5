//! ModernBERT (Warner et al. 2024): a pre-norm encoder with rotary positions of two bases and gated networks.
//! Two of three layers have a window on both sides, and the first has no norm before attention.

use serde_json::{Map, Value};
use skein_kernels::cpu::rope::Rotation;

use super::decoder::{Defaults, decoder_of, of_type};
use super::encoder::activation;
use super::names;
use crate::LoadError;
use crate::fields::{Fields, MAX_POSITIONS};
use crate::pooled_head::{HeadActivation, HeadLayer, HeadNorm, PooledHead};
use crate::pooling::PooledRows;
use crate::rope::{RopeDefaults, object, read};
use crate::spec::{NormKind, Spec};
use crate::tensors::Role;

// Defaults of transformers' `ModernBertConfig`.
const EPS: f64 = 1e-5;
const GLOBAL_THETA: f64 = 160_000.0;
const LOCAL_THETA: f64 = 10_000.0;
const LOCAL_ATTENTION: usize = 128;
const GLOBAL_EVERY: usize = 3;

/// Rotation index of layers without and with a window.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub fn modernbert(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    // Its rotations are nested by kind of layer, which the decoder does not know.
    let is_not_nested = |field: &str| !["rope_parameters", "rope_scaling"].contains(&field);
    let plain = fields.object.iter().filter(|(field, _)| is_not_nested(field));
    let plain: Map<String, Value> = plain.map(|(field, value)| (field.clone(), value.clone())).collect();
    let defaults = Defaults { eps_field: "norm_eps", eps: EPS, ..Defaults::USUAL };
    let layers = fields.size("num_hidden_layers", 4096, None)?;
    let mut spec = decoder_of(&Fields { file: fields.file, object: &plain }, defaults, layers)?;
    let (activation, has_network_bias) =
        (activation(fields, "hidden_activation")?, fields.flag("mlp_bias", false)?);
    let has_bias = fields.flag("attention_bias", false)?;
    (spec.attention.has_bias, spec.attention.has_output_bias) = (has_bias, has_bias);
    spec.norm.kind = NormKind::Layer { has_bias: fields.flag("norm_bias", false)? };
    let every = fields.size("global_attn_every_n_layers", 4096, Some(GLOBAL_EVERY))?;
    let is_local = of_type(fields, layers, "sliding_attention", |layer| !layer.is_multiple_of(every))?;
    let window = fields.size("local_attention", MAX_POSITIONS, Some(LOCAL_ATTENTION))? as u32 / 2 + 1;
    for (index, (layer, is_local)) in spec.layers.iter_mut().zip(is_local).enumerate() {
        layer.feed_forward = layer.feed_forward.with_bias(has_network_bias);
        layer.feed_forward.activation = activation;
        (layer.window, layer.rotation) = if is_local { (Some(window), LOCAL) } else { (None, GLOBAL) };
        layer.has_attention_norm = index > 0;
    }
    spec.rotations = rotations(fields, spec.attention.head_dim)?;
    (spec.has_embedding_norm, spec.is_bidirectional, spec.is_tied) = (true, true, true);
    Ok(Spec { names, ..spec })
}

/// Both rotations. Version 5 of transformers nests them in `rope_parameters`.
fn rotations(fields: &Fields<'_>, head_dim: usize) -> Result<Vec<Rotation>, LoadError> {
    let empty = Map::new();
    let nested = Fields { file: fields.file, object: object(fields, "rope_parameters")?.unwrap_or(&empty) };
    let old = object(fields, "rope_scaling")?.unwrap_or(&empty);
    let of = |kind, field: &'static str, default| {
        let theta = fields.number(field, 1.0..=1e15, Some(default))?;
        let scaling = Fields { file: fields.file, object: object(&nested, kind)?.unwrap_or(old) };
        Ok::<_, LoadError>(read(&scaling, &scaling, head_dim, RopeDefaults { theta, partial: 1.0 })?.0)
    };
    Ok(vec![
        of("full_attention", "global_rope_theta", GLOBAL_THETA)?,
        of("sliding_attention", "local_rope_theta", LOCAL_THETA)?,
    ])
}

/// End of `ModernBertForSequenceClassification`.
pub fn classifier(fields: &Fields<'_>, hidden: usize, labels: usize) -> Result<PooledHead, LoadError> {
    let rows = match &*fields.one_of("classifier_pooling", &["cls", "mean"], Some("cls"))? {
        "mean" => PooledRows::Mean,
        _ => PooledRows::First,
    };
    let activation =
        fields.one_of("classifier_activation", &["gelu", "relu", "silu", "tanh"], Some("gelu"))?;
    let norm = HeadNorm {
        weight: "head.norm.weight".into(),
        bias: fields.flag("norm_bias", false)?.then(|| "head.norm.bias".into()),
        eps: fields.number("norm_eps", 0.0..=1.0, Some(EPS))? as f32,
    };
    let dense = HeadLayer::linear("head.dense", hidden, hidden, fields.flag("classifier_bias", false)?);
    let dense = dense.then(HeadActivation::named(&activation).unwrap_or(HeadActivation::Identity));
    let classifier = HeadLayer::linear("classifier", hidden, labels, true);
    Ok(PooledHead { rows, layers: vec![HeadLayer { norm: Some(norm), ..dense }, classifier] })
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Embedding => &["model.embeddings.tok_embeddings"],
        Role::EmbeddingNorm => &["model.embeddings.norm"],
        Role::AttentionNorm => &["attn_norm"],
        Role::Query | Role::Key | Role::Value => &["attn.Wqkv"],
        Role::AttentionOutput => &["attn.Wo"],
        Role::FeedForwardNorm => &["mlp_norm"],
        Role::Gate | Role::Up => &["mlp.Wi"],
        Role::Down => &["mlp.Wo"],
        Role::LastNorm => &["model.final_norm"],
        role => names::usual(role),
    }
}
