//! Text model of Llama 4 (Meta 2025): most layers attend within chunks and rotate, the others attend to all
//! positions without rotation. Some or all layers have experts, whose weights multiply their inputs, beside a
//! shared network.

use serde_json::Value;
use skein_kernels::cpu::experts::{Routing, Score};
use skein_kernels::cpu::rope::{Rotation, Temperature};

use super::decoder::{Choice, Defaults, experts, of_type, silu_decoder, with_attention_bias};
use super::names;
use super::smollm3::rotates;
use crate::LoadError;
use crate::fields::{Fields, MAX_POSITIONS};
use crate::rope::RopeDefaults;
use crate::spec::{ExpertsSpec, Fused, QkNorm, SharedSpec, Spec};
use crate::tensors::Role;

// Defaults of transformers' `Llama4TextConfig`.
const HEAD_DIM: usize = 128;
const EPS: f64 = 1e-5;
const THETA: f64 = 500_000.0;
const INNER_SIZE: usize = 8192;
const DENSE_INNER_SIZE: usize = 16_384;
const EXPERTS: Choice = Choice { count: 16, per_token: 1 };
const CHUNK: usize = 8192;
const FLOOR_SCALE: usize = 8192;
const ATTENTION_SCALE: f64 = 0.1;

pub fn llama4(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let rope = RopeDefaults { theta: THETA, ..RopeDefaults::USUAL };
    let defaults =
        Defaults { head_dim: Some(HEAD_DIM), eps: EPS, rope, is_interleaved: true, ..Defaults::USUAL };
    let mut spec = with_attention_bias(fields, silu_decoder(fields, defaults)?)?;
    if fields.flag("use_qk_norm", true)? {
        spec.attention.qk_norm = QkNorm::Unweighted;
    }
    if spec.rotations[0].amplitude != 1.0 {
        // Heads are normalised after the rotation, which then has to keep their length.
        return Err(
            fields.wrong("rope_scaling", "a scaling that keeps the length of heads, such as llama3".into())
        );
    }
    spec.rotations.push(Rotation::none(spec.attention.head_dim));
    let rotates = rotates(fields, spec.layers.len())?;
    let chunked = of_type(fields, spec.layers.len(), "chunked_attention", |layer| rotates[layer])?;
    let (chunk, temperature) = (chunk(fields)?, temperature(fields)?);
    let (experts, inner_size, with_experts) = experts_of(fields, spec.layers.len())?;
    let dense_size = fields.size("intermediate_size_mlp", 1 << 20, Some(DENSE_INNER_SIZE))?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        layer.rotation = usize::from(!rotates[index]);
        layer.window = chunk.filter(|_| chunked[index]);
        layer.is_chunked = true;
        layer.temperature = temperature.filter(|_| !rotates[index]);
        layer.feed_forward.inner_size = dense_size;
        if with_experts.contains(&index) {
            (layer.feed_forward.experts, layer.feed_forward.inner_size) = (Some(experts), inner_size);
        }
    }
    Ok(Spec { names, ..spec })
}

/// Length of chunks; `None` if it covers the longest sequence.
fn chunk(fields: &Fields<'_>) -> Result<Option<u32>, LoadError> {
    let read = || fields.size("attention_chunk_size", MAX_POSITIONS, Some(CHUNK));
    let longest = fields.max_positions()?;
    Ok(fields.unless_null("attention_chunk_size", read)?.map(|chunk| chunk as u32).filter(|it| *it < longest))
}

fn temperature(fields: &Fields<'_>) -> Result<Option<Temperature>, LoadError> {
    // Some configurations have a number here, of which only zero has a meaning.
    let is_number = fields.get("attn_temperature_tuning").is_some_and(Value::is_number);
    let is_tuned = if is_number {
        fields.number("attn_temperature_tuning", 0.0..=1e6, None)? != 0.0
    } else {
        fields.flag("attn_temperature_tuning", true)?
    };
    let every = fields.size("floor_scale", MAX_POSITIONS, Some(FLOOR_SCALE))? as u32;
    let scale = fields.number("attn_scale", 0.0..=1e3, Some(ATTENTION_SCALE))? as f32;
    Ok(is_tuned.then_some(Temperature { every, shift: 1, scale }))
}

/// The experts, their size, and the layers that have them.
fn experts_of(fields: &Fields<'_>, layers: usize) -> Result<(ExpertsSpec, usize, Vec<usize>), LoadError> {
    let inner_size = fields.size("intermediate_size", 1 << 20, Some(INNER_SIZE))?;
    let plain = experts(fields, "num_local_experts", EXPERTS, false)?;
    let routing = Routing { score: Score::Sigmoid, weighs_inputs: true, ..plain.routing };
    let shared = Some(SharedSpec { inner_size, is_weighted: false });
    let experts = ExpertsSpec { routing, fused: Fused::Inputs, shared, ..plain };
    let step = fields.size("interleave_moe_layer_step", 4096, Some(1))?;
    if fields.is_absent("moe_layers") {
        return Ok((experts, inner_size, (step - 1..layers).step_by(step).collect()));
    }
    let index = |value: &Value| value.as_u64().and_then(|index| usize::try_from(index).ok());
    let list = fields.get("moe_layers").and_then(Value::as_array);
    let list = list.and_then(|list| list.iter().map(index).collect());
    let list = list.ok_or_else(|| fields.wrong("moe_layers", "a list of layers".into()))?;
    Ok((experts, inner_size, list))
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Router => &["feed_forward.router"],
        Role::Gate => &["feed_forward.gate_proj"],
        Role::Up => &["feed_forward.up_proj"],
        Role::Down => &["feed_forward.down_proj"],
        Role::ExpertGate | Role::ExpertUp => &["feed_forward.experts.gate_up_proj"],
        Role::ExpertDown => &["feed_forward.experts.down_proj"],
        Role::SharedGate => &["feed_forward.shared_expert.gate_proj"],
        Role::SharedUp => &["feed_forward.shared_expert.up_proj"],
        Role::SharedDown => &["feed_forward.shared_expert.down_proj"],
        _ => names::usual(role),
    }
}
