//! Qwen2 and Qwen2.5 (Qwen Team 2024): Llama with biases of queries, keys and values. Qwen3 (2025) has
//! normalised heads instead.

use super::decoder::{Defaults, silu_decoder, window, windowed, with_attention_bias};
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::{QkNorm, Spec};

// Defaults of transformers' `Qwen2Config` and `Qwen3Config`.
const QWEN3_HEAD_DIM: usize = 128; // independent of the hidden size
const SLIDING_WINDOW: usize = 4096;
const MAX_WINDOW_LAYERS: usize = 28;

pub fn qwen2(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = with_windows(fields, silu_decoder(fields, Defaults::USUAL)?)?;
    spec.attention.has_bias = true;
    Ok(spec)
}

pub fn qwen3(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let defaults = Defaults { head_dim: Some(QWEN3_HEAD_DIM), ..Defaults::USUAL };
    let mut spec = with_windows(fields, silu_decoder(fields, defaults)?)?;
    spec.attention.qk_norm = QkNorm::Heads;
    with_attention_bias(fields, spec)
}

/// Adds a window to the layers from `max_window_layers` on, if enabled.
fn with_windows(fields: &Fields<'_>, mut spec: Spec) -> Result<Spec, LoadError> {
    if !fields.flag("use_sliding_window", false)? {
        return Ok(spec);
    }
    let window = window(fields, Some(SLIDING_WINDOW))?;
    let first = match fields.get("max_window_layers").and_then(serde_json::Value::as_u64) {
        Some(0) => 0, // all layers
        _ => fields.size("max_window_layers", 4096, Some(MAX_WINDOW_LAYERS))?,
    };
    let windowed = windowed(fields, spec.layers.len(), |layer| layer >= first)?;
    for (layer, has_window) in spec.layers.iter_mut().zip(windowed) {
        layer.window = window.filter(|_| has_window);
    }
    Ok(spec)
}
