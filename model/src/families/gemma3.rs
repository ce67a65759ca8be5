//! Text model of Gemma 3 (Gemma Team 2025).
//!
//! Gemma 2 with normalised heads instead of caps. Five of six layers have a window and a separate rotation.
//! EmbeddingGemma (2025) is the same as an encoder.

use serde_json::{Map, Value};
use skein_kernels::cpu::rope::Rotation;

use super::decoder::{in_groups, window, windowed};
use super::gemma2;
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::{RopeDefaults, object, read};
use crate::spec::{QkNorm, Spec};

// Defaults of transformers' `Gemma3TextConfig`.
const SLIDING_WINDOW: usize = 4096;
const SLIDING_WINDOW_PATTERN: usize = 6;
const GLOBAL_THETA: f64 = 1e6;
const LOCAL_THETA: f64 = 10_000.0;
/// Sizes that checkpoints of multimodal models omit.
pub const SIZES: &[(&str, u32)] = &[
    ("vocab_size", 262_208),
    ("hidden_size", 2304),
    ("intermediate_size", 9216),
    ("num_hidden_layers", 26),
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
    ("max_position_embeddings", 131_072),
];

pub fn gemma3(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    for field in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if !fields.is_absent(field) {
            return Err(fields.wrong(field, "null".into()));
        }
    }
    let mut spec = gemma2::gemma(fields)?;
    spec.attention.qk_norm = QkNorm::Heads;
    let window = window(fields, Some(SLIDING_WINDOW))?;
    let pattern = fields.size("sliding_window_pattern", 4096, Some(SLIDING_WINDOW_PATTERN))?;
    let is_local = windowed(fields, spec.layers.len(), in_groups(pattern))?;
    for (layer, is_local) in spec.layers.iter_mut().zip(is_local) {
        (layer.window, layer.rotation) = if is_local { (window, LOCAL) } else { (None, GLOBAL) };
    }
    spec.rotations = rotations(fields, spec.attention.head_dim)?;
    spec.is_bidirectional = fields.flag("use_bidirectional_attention", false)?;
    if spec.is_bidirectional {
        // The field counts the positions on both sides then.
        spec.layers.iter_mut().for_each(|layer| layer.window = layer.window.map(|both| both / 2 + 1));
    }
    Ok(spec)
}

/// Rotation index of layers without and with a window.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

/// Both rotations. Version 5 of transformers nests them in `rope_parameters`; version 4 scales only the
/// global one.
fn rotations(fields: &Fields<'_>, head_dim: usize) -> Result<Vec<Rotation>, LoadError> {
    let empty = Map::new();
    let nested = object(fields, "rope_parameters")?.unwrap_or(&empty);
    let nested = Fields { file: fields.file, object: nested };
    let of = |kind, old: &Map<String, Value>, theta| {
        let scaling = object(&nested, kind)?.unwrap_or(old);
        let scaling = Fields { file: fields.file, object: scaling };
        read(&scaling, &scaling, head_dim, RopeDefaults { theta, partial: 1.0 })
    };
    let scaling = object(fields, "rope_scaling")?.unwrap_or(&empty);
    let global = fields.number("rope_theta", 1.0..=1e15, Some(GLOBAL_THETA))?;
    let local = fields.number("rope_local_base_freq", 1.0..=1e15, Some(LOCAL_THETA))?;
    Ok(vec![of("full_attention", scaling, global)?.0, of("sliding_attention", &empty, local)?.0])
}
