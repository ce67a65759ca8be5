//! Command R (Cohere 2024), and Command R7B and A (2025), where only windowed layers use rotary positions.
//!
//! Attention and the feed-forward network read the same normalised rows. Uses layer normalisation without
//! biases and scaled logits.

use skein_kernels::cpu::rope::Rotation;

use super::decoder::{Defaults, in_groups, silu_decoder, window, windowed, with_attention_bias};
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::RopeDefaults;
use crate::spec::{NormKind, NormSpec, Spec};

// Defaults of transformers' `CohereConfig` and `Cohere2Config`.
const EPS: f64 = 1e-5;
const COHERE_THETA: f64 = 500_000.0;
const LOGIT_SCALE: f64 = 0.0625;
const SLIDING_WINDOW: usize = 4096;
const SLIDING_WINDOW_PATTERN: usize = 4;

pub fn cohere(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    if fields.flag("use_qk_norm", false)? {
        return Err(
            fields.wrong("use_qk_norm", "false: layer normalisation of heads is not supported".into())
        );
    }
    parallel_decoder(fields, COHERE_THETA)
}

pub fn cohere2(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = parallel_decoder(fields, RopeDefaults::USUAL.theta)?;
    spec.rotations.push(Rotation::none(spec.attention.head_dim));
    let window = window(fields, Some(SLIDING_WINDOW))?;
    let pattern = fields.size("sliding_window_pattern", 4096, Some(SLIDING_WINDOW_PATTERN))?;
    let windowed = windowed(fields, spec.layers.len(), in_groups(pattern))?;
    for (layer, has_window) in spec.layers.iter_mut().zip(windowed) {
        (layer.window, layer.rotation) = (window.filter(|_| has_window), usize::from(!has_window));
    }
    Ok(spec)
}

fn parallel_decoder(fields: &Fields<'_>, theta: f64) -> Result<Spec, LoadError> {
    let spec = silu_decoder(
        fields,
        Defaults {
            eps_field: "layer_norm_eps",
            eps: EPS,
            is_tied: true,
            rope: RopeDefaults { theta, partial: 1.0 },
            is_interleaved: true,
            ..Defaults::USUAL
        },
    )?;
    let spec = with_attention_bias(fields, spec)?;
    let logits_scale = fields.number("logit_scale", 1e-6..=1e6, Some(LOGIT_SCALE))? as f32;
    let norm = NormSpec { kind: NormKind::Layer { has_bias: false }, ..spec.norm };
    Ok(Spec { is_parallel: true, logits_scale, norm, ..spec })
}
