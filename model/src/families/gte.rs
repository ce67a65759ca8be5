//! GTE (Zhang et al. 2024) and other models of its architecture: BERT with rotary positions and gated
//! networks. Published checkpoints have the model type `new`, fused projections and BERT's names; those that
//! transformers saves have `gte`, and names like a decoder's.

use serde_json::Map;
use skein_kernels::cpu::rope::{RopeScaling, Rotation};

use super::encoder::{MAX_TOKEN_TYPES, activation, encoder};
use super::names;
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::{RopeDefaults, object, rope};
use crate::spec::Spec;
use crate::tensors::Role;

/// Default base of the rotation in transformers' `GteConfig`.
const THETA: f64 = 160_000.0;
/// The same in the configuration of published checkpoints.
const NEW_THETA: f64 = 10_000.0;
/// Longest sequence relative to that of the training, by which an `ntk` rotation is slowed.
const MAX_FACTOR: f64 = 1e6;

pub fn gte(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = gated(fields)?;
    let defaults = RopeDefaults { theta: THETA, partial: 1.0 };
    spec.rotations = vec![rope(fields, spec.attention.head_dim, defaults)?.0];
    spec.token_types = fields.count("type_vocab_size", MAX_TOKEN_TYPES, 1)?;
    Ok(Spec { names, ..spec })
}

pub fn new(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    fields.one_of("position_embedding_type", &["rope"], Some("rope"))?;
    fields.one_of("layer_norm_type", &["layer_norm"], Some("layer_norm"))?;
    for field in ["logn_attention_scale", "logn_attention_clip1"] {
        if fields.flag(field, false)? {
            return Err(fields.wrong(field, "false".into()));
        }
    }
    if !fields.flag("pack_qkv", true)? {
        return Err(fields.wrong("pack_qkv", "true".into()));
    }
    let mut spec = gated(fields)?;
    spec.rotations = vec![rotation(fields, spec.attention.head_dim)?];
    spec.token_types = fields.count("type_vocab_size", MAX_TOKEN_TYPES, 1)?;
    spec.layers.iter_mut().for_each(|layer| layer.feed_forward.is_up_first = true);
    Ok(Spec { names: names_of_new, ..spec })
}

/// The encoder with gates, which have no biases.
fn gated(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let empty = Map::new();
    let scaling = object(fields, "rope_scaling")?.unwrap_or(&empty);
    let is_ntk = scaling.get("type").is_some_and(|kind| kind == "ntk");
    // The encoder reads the rotation only to leave it out, and does not know this one.
    let mut plain = fields.object.clone();
    if is_ntk {
        plain.remove("rope_scaling");
    }
    let mut spec = encoder(&Fields { file: fields.file, object: &plain })?;
    let activation = activation(fields, "hidden_act")?;
    for layer in &mut spec.layers {
        let network = &mut layer.feed_forward;
        (network.activation, network.is_gated, network.has_bias) = (activation, true, false);
    }
    Ok(spec)
}

/// The rotation of a published checkpoint. `ntk` multiplies the base by a factor, and divides all frequencies
/// by its root of half the head's size, as their code does.
fn rotation(fields: &Fields<'_>, head_dim: usize) -> Result<Rotation, LoadError> {
    let empty = Map::new();
    let scaling = Fields { file: fields.file, object: object(fields, "rope_scaling")?.unwrap_or(&empty) };
    if !scaling.get("type").is_some_and(|kind| kind == "ntk") {
        return Ok(rope(fields, head_dim, RopeDefaults { theta: NEW_THETA, partial: 1.0 })?.0);
    }
    if !scaling.is_absent("mixed_b") {
        return Err(scaling.wrong("mixed_b", "null".into()));
    }
    let theta = fields.number("rope_theta", 1.0..=1e15, Some(NEW_THETA))?;
    let factor = scaling.number("factor", 1.0..=MAX_FACTOR, None)?;
    let slower = RopeScaling::Linear(factor.powf(2.0 / head_dim as f64));
    Ok(Rotation::new(head_dim / 2, head_dim, theta * factor, &slower))
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Embedding => &["model.embeddings.word_embeddings"],
        Role::TokenTypes => &["model.embeddings.token_type_embeddings"],
        Role::EmbeddingNorm => &["model.embeddings.LayerNorm"],
        Role::AttentionOutputNorm => &["post_attention_layernorm"],
        Role::FeedForwardOutputNorm => &["post_mlp_layernorm"],
        role => names::usual(role),
    }
}

fn names_of_new(role: Role) -> &'static [&'static str] {
    match role {
        Role::Query | Role::Key | Role::Value => &["attention.qkv_proj"],
        Role::AttentionOutput => &["attention.o_proj"],
        Role::AttentionOutputNorm => &["attn_ln"],
        Role::Gate | Role::Up => &["mlp.up_gate_proj"],
        Role::FeedForwardOutputNorm => &["mlp_ln"],
        role => names(role),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_ntk_rotation_is_slowed_as_published_checkpoints_do_it() {
        let config = json!({"rope_theta": 20000.0, "rope_scaling": {"type": "ntk", "factor": 8.0}});
        let fields = Fields { file: "config.json", object: config.as_object().unwrap() };
        let got = rotation(&fields, 64).unwrap().frequencies;
        for (pair, frequency) in got.iter().enumerate() {
            let plain = (20000.0f64 * 8.0).powf(-2.0 * pair as f64 / 64.0);
            let expected = plain / 8f64.powf(2.0 / 64.0);
            assert!((f64::from(*frequency) / expected - 1.0).abs() < 1e-6, "pair {pair}: {frequency}");
        }
        let mixed = json!({"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.6}});
        let fields = Fields { file: "config.json", object: mixed.as_object().unwrap() };
        assert!(rotation(&fields, 64).unwrap_err().to_string().contains("mixed_b"));
    }
}
