//! LFM2 (Liquid AI 2025, arXiv 2511.23404), dense and with experts: most layers are gated short convolutions,
//! and the others attend with normalised heads.

use serde_json::Value;
use skein_kernels::cpu::experts::{Routing, Score};

use super::decoder::{Choice, Defaults, decoder, experts, of_type, taps};
use super::names;
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::RopeDefaults;
use crate::spec::{ExpertsSpec, QkNorm, Spec};
use crate::state_spec::{ConvolutionSpec, Mixer, StateSpec};
use crate::tensors::Role;

// Defaults of transformers' `Lfm2Config` and `Lfm2MoeConfig`.
const EPS: f64 = 1e-5;
const THETA: f64 = 1e6;
const TAPS: usize = 3;
const MULTIPLE_OF: usize = 256;
const EXPERTS: Choice = Choice { count: 32, per_token: 4 };
const MOE_INTERMEDIATE_SIZE: usize = 1792;
const DENSE_LAYERS: usize = 2;
/// Size that configurations omit if they have `block_ff_dim`.
pub const SIZES: &[(&str, u32)] = &[("intermediate_size", 12_288)];
/// What transformers adds to the sum of the chosen experts' weights.
const ADDED: f32 = 1e-6;

pub fn lfm2(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let (mut spec, inner_size) = (hybrid(fields)?, inner_size(fields)?);
    spec.layers.iter_mut().for_each(|layer| layer.feed_forward.inner_size = inner_size);
    Ok(spec)
}

pub fn lfm2_moe(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = hybrid(fields)?;
    let plain = experts(fields, "num_experts", EXPERTS, fields.flag("norm_topk_prob", true)?)?;
    let routing = Routing {
        score: Score::Sigmoid,
        scale: fields.number("routed_scaling_factor", 0.0..=1e6, Some(1.0))? as f32,
        added: ADDED,
        ..plain.routing
    };
    let has_correction = fields.flag("use_expert_bias", true)?;
    let experts = ExpertsSpec { routing, has_correction, ..plain };
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, Some(MOE_INTERMEDIATE_SIZE))?;
    let dense = fields.count("num_dense_layers", 4096, DENSE_LAYERS)?;
    for layer in spec.layers.iter_mut().skip(dense) {
        (layer.feed_forward.experts, layer.feed_forward.inner_size) = (Some(experts), inner_size);
    }
    Ok(spec)
}

/// What both have in common.
fn hybrid(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let rope = RopeDefaults { theta: THETA, partial: 1.0 };
    let defaults = Defaults { eps_field: "norm_eps", eps: EPS, is_tied: true, rope, ..Defaults::USUAL };
    let mut spec = Spec { names, ..decoder(fields, defaults)? };
    spec.is_tied = fields.flag("tie_embedding", spec.is_tied)?;
    spec.attention.qk_norm = QkNorm::Heads;
    check_channels(fields, spec.hidden_size)?;
    let attending = attending(fields, spec.layers.len())?;
    let with_state = of_type(fields, spec.layers.len(), "conv", |layer| !attending.contains(&layer))?;
    for (layer, has_state) in spec.layers.iter_mut().zip(with_state) {
        layer.mixer = if has_state { Mixer::State } else { Mixer::Attention };
    }
    let convolution = ConvolutionSpec {
        channels: spec.hidden_size,
        taps: taps(fields, "conv_L_cache", TAPS)?,
        has_bias: fields.flag("conv_bias", false)?,
    };
    spec.state = (spec.state_layers() > 0).then_some(StateSpec::Convolution(convolution));
    Ok(spec)
}

/// Refuses another number of channels than transformers reads, which is the hidden size.
fn check_channels(fields: &Fields<'_>, hidden: usize) -> Result<(), LoadError> {
    for field in ["conv_dim", "conv_dim_out"] {
        if fields.size(field, 1 << 17, Some(hidden))? != hidden {
            return Err(fields.wrong(field, format!("hidden_size, {hidden}")));
        }
    }
    Ok(())
}

/// Layers that attend, from `full_attn_idxs`; all without that field.
fn attending(fields: &Fields<'_>, layers: usize) -> Result<Vec<usize>, LoadError> {
    if fields.is_absent("full_attn_idxs") {
        return Ok((0..layers).collect());
    }
    let index = |value: &Value| value.as_u64().and_then(|index| usize::try_from(index).ok());
    let list = fields.get("full_attn_idxs").and_then(Value::as_array);
    let list: Option<Vec<usize>> = list.and_then(|list| list.iter().map(index).collect());
    let list = list.filter(|list| list.iter().all(|layer| *layer < layers));
    list.ok_or_else(|| fields.wrong("full_attn_idxs", format!("a list of layers, from 0 to {}", layers - 1)))
}

/// Outputs of the gate of a dense network: two thirds of the size in the configuration, times a factor, and
/// rounded up, unless it says not to.
fn inner_size(fields: &Fields<'_>) -> Result<usize, LoadError> {
    let field = if fields.is_absent("block_ff_dim") { "intermediate_size" } else { "block_ff_dim" };
    let said = fields.size(field, 1 << 20, None)?;
    if !fields.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(said);
    }
    let size = 2 * said / 3;
    let factor = "block_ffn_dim_multiplier";
    let adjusted = match fields.unless_null(factor, || fields.number(factor, 0.0..=64.0, Some(1.0)))? {
        None => size,
        Some(factor) => {
            let multiple = fields.size("block_multiple_of", 1 << 20, Some(MULTIPLE_OF))?;
            ((factor * size as f64) as usize).next_multiple_of(multiple)
        }
    };
    if adjusted == 0 {
        return Err(fields.wrong(field, "a size that leaves outputs when it is adjusted".into()));
    }
    Ok(adjusted)
}

/// Names in Liquid AI's releases and in version 5 of transformers.
fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::AttentionNorm => &["operator_norm"],
        Role::QueryNorm => &["self_attn.q_layernorm"],
        Role::KeyNorm => &["self_attn.k_layernorm"],
        Role::AttentionOutput => &["self_attn.out_proj"],
        Role::StateInputGate | Role::StateGate | Role::StateValue => &["conv.in_proj"],
        Role::StateTaps => &["conv.conv.weight"],
        Role::StateTapsBias => &["conv.conv.bias"],
        Role::StateOutput => &["conv.out_proj"],
        Role::FeedForwardNorm => &["ffn_norm"],
        Role::Gate => &["feed_forward.w1"],
        Role::Up => &["feed_forward.w3"],
        Role::Down => &["feed_forward.w2"],
        Role::Router => &["feed_forward.gate"],
        Role::RouterCorrection => &["feed_forward.expert_bias"],
        Role::ExpertGate => &["feed_forward.experts.{}.w1", "feed_forward.experts.gate_up_proj"],
        Role::ExpertUp => &["feed_forward.experts.{}.w3", "feed_forward.experts.gate_up_proj"],
        Role::ExpertDown => &["feed_forward.experts.{}.w2", "feed_forward.experts.down_proj"],
        Role::LastNorm => &["model.embedding_norm"],
        role => names::usual(role),
    }
}
