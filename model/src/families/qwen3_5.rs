//! Text model of Qwen3.5 (Qwen Team 2026), dense and with experts: three of four layers have a state instead
//! of keys and values, and attention has a gate on its output and rotates a quarter of each head.

use super::decoder::{Choice, Defaults, experts, of_type, silu_decoder, taps, with_attention_bias};
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::RopeDefaults;
use crate::spec::{ExpertsSpec, QkNorm, SharedSpec, Spec};
use crate::state_spec::{DeltaSpec, Mixer, StateSpec, StoredState};

// Defaults of transformers' `Qwen3_5TextConfig`, `Qwen3_5MoeTextConfig` and `Qwen3NextConfig`.
const HEAD_DIM: usize = 256;
const ROTATED: f64 = 0.25;
const FULL_ATTENTION_INTERVAL: usize = 4;
const KEY_HEADS: usize = 16;
const VALUE_HEADS: usize = 32;
const STATE_HEAD_DIM: usize = 128;
const TAPS: usize = 4;
const EXPERTS: Choice = Choice { count: 256, per_token: 8 };
const MOE_INTERMEDIATE_SIZE: usize = 512;
/// Sizes that checkpoints of models with images omit.
pub const SIZES: &[(&str, u32)] = &[
    ("vocab_size", 248_320),
    ("hidden_size", 4096),
    ("intermediate_size", 12_288),
    ("num_hidden_layers", 32),
    ("num_attention_heads", 16),
    ("num_key_value_heads", 4),
];
/// The same with experts. No layer has a dense network, so its size is never used.
pub const MOE_SIZES: &[(&str, u32)] = &[
    ("vocab_size", 248_320),
    ("hidden_size", 2048),
    ("intermediate_size", 512),
    ("num_hidden_layers", 40),
    ("num_attention_heads", 16),
    ("num_key_value_heads", 2),
];

pub fn qwen3_5(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    hybrid(fields)
}

pub fn qwen3_5_moe(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let (mut spec, (experts, inner_size)) = (hybrid(fields)?, shared_experts(fields, EXPERTS, true)?);
    for layer in &mut spec.layers {
        (layer.feed_forward.experts, layer.feed_forward.inner_size) = (Some(experts), inner_size);
    }
    Ok(spec)
}

/// The decoder that Qwen3.5 and Qwen3-Next have in common.
pub(super) fn hybrid(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    if !fields.flag("attn_output_gate", true)? {
        return Err(fields.wrong("attn_output_gate", "true".into()));
    }
    let rope = RopeDefaults { partial: ROTATED, ..RopeDefaults::USUAL };
    let defaults = Defaults { head_dim: Some(HEAD_DIM), rope, ..Defaults::USUAL };
    let mut spec = with_attention_bias(fields, silu_decoder(fields, defaults)?)?;
    (spec.attention.qk_norm, spec.attention.has_gate) = (QkNorm::Heads, true);
    spec.norm.offset = 1.0;
    let interval = fields.size("full_attention_interval", 4096, Some(FULL_ATTENTION_INTERVAL))?;
    let is_of_state = |layer: usize| !(layer + 1).is_multiple_of(interval);
    let with_state = of_type(fields, spec.layers.len(), "linear_attention", is_of_state)?;
    for (layer, has_state) in spec.layers.iter_mut().zip(with_state) {
        layer.mixer = if has_state { Mixer::State } else { Mixer::Attention };
    }
    spec.state = (spec.state_layers() > 0).then(|| state(fields)).transpose()?;
    Ok(spec)
}

fn state(fields: &Fields<'_>) -> Result<StateSpec, LoadError> {
    let key_heads = fields.size("linear_num_key_heads", 4096, Some(KEY_HEADS))?;
    let value_heads = fields.size("linear_num_value_heads", 4096, Some(VALUE_HEADS))?;
    if !value_heads.is_multiple_of(key_heads) {
        let allowed = format!("a multiple of linear_num_key_heads, {key_heads}");
        return Err(fields.wrong("linear_num_value_heads", allowed));
    }
    let key_dim = fields.size("linear_key_head_dim", 1024, Some(STATE_HEAD_DIM))?;
    if !key_dim.is_multiple_of(4) {
        return Err(fields.wrong("linear_key_head_dim", "a multiple of 4".into()));
    }
    let taps = taps(fields, "linear_conv_kernel_dim", TAPS)?;
    let value_dim = fields.size("linear_value_head_dim", 1024, Some(STATE_HEAD_DIM))?;
    let stored = StoredState::default();
    Ok(StateSpec::Delta(DeltaSpec { key_heads, value_heads, key_dim, value_dim, taps, stored }))
}

/// Experts beside a weighted shared network, and the outputs of each expert's gate.
pub(super) fn shared_experts(
    fields: &Fields<'_>,
    default: Choice,
    renormalises: bool,
) -> Result<(ExpertsSpec, usize), LoadError> {
    let size = |field| fields.size(field, 1 << 20, Some(MOE_INTERMEDIATE_SIZE));
    let mut experts = experts(fields, "num_experts", default, renormalises)?;
    let inner_size = size("shared_expert_intermediate_size")?;
    experts.shared = Some(SharedSpec { inner_size, is_weighted: true });
    Ok((experts, size("moe_intermediate_size")?))
}
