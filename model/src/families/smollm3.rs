//! SmolLM 3 (Bakouch et al. 2025): Llama with no rotary positions in every fourth layer.

use serde_json::Value;
use skein_kernels::cpu::rope::Rotation;

use super::decoder::{Defaults, in_groups, silu_decoder, window, windowed, with_attention_bias};
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::RopeDefaults;
use crate::spec::Spec;

// Defaults of transformers' `SmolLM3Config`.
const NO_ROPE_LAYER_INTERVAL: usize = 4;
const THETA: f64 = 2e6;

pub fn smollm3(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let defaults =
        Defaults { is_tied: true, rope: RopeDefaults { theta: THETA, partial: 1.0 }, ..Defaults::USUAL };
    let mut spec = with_attention_bias(fields, silu_decoder(fields, defaults)?)?;
    spec.rotations.push(Rotation::none(spec.attention.head_dim));
    let rotates = rotates(fields, spec.layers.len())?;
    let has_windows = fields.flag("use_sliding_window", false)?;
    let window = if has_windows { window(fields, None)? } else { None };
    let windowed = windowed(fields, spec.layers.len(), |layer| !rotates[layer])?;
    let has_bias = fields.flag("mlp_bias", false)?;
    for ((layer, rotates), has_window) in spec.layers.iter_mut().zip(&rotates).zip(windowed) {
        layer.rotation = usize::from(!rotates);
        layer.window = window.filter(|_| has_window);
        layer.feed_forward = layer.feed_forward.with_bias(has_bias);
    }
    Ok(spec)
}

/// Whether each layer rotates: 1 in `no_rope_layers`, despite its name. An empty list says nothing.
pub(super) fn rotates(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>, LoadError> {
    let interval = fields.size("no_rope_layer_interval", 4096, Some(NO_ROPE_LAYER_INTERVAL))?;
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    if fields.is_absent("no_rope_layers") || fields.get("no_rope_layers").is_some_and(is_empty) {
        return Ok((0..layers).map(in_groups(interval)).collect());
    }
    let list = fields.get("no_rope_layers").and_then(Value::as_array).filter(|list| list.len() >= layers);
    let flag = |value: &Value| value.as_u64().filter(|flag| *flag <= 1).map(|flag| flag == 1);
    let flags = list.and_then(|list| list[..layers].iter().map(flag).collect());
    flags.ok_or_else(|| {
        fields.wrong("no_rope_layers", format!("a list of 0 or 1 for each of {layers} layers"))
    })
}
