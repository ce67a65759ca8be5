//! Ministral 3 (Mistral AI 2025): Mistral with queries that are scaled by their position.

use serde_json::{Value, json};
use skein_kernels::cpu::rope::Temperature;

use super::decoder::{Defaults, silu_decoder, window};
use crate::LoadError;
use crate::fields::{Fields, MAX_POSITIONS};
use crate::rope::object;
use crate::spec::Spec;

// Defaults of transformers' `Ministral3Config`.
const HEAD_DIM: usize = 128;
const EPS: f64 = 1e-5;
const ROPE: &str = "rope_parameters";
const ORIGINAL: &str = "original_max_position_embeddings";
const BETA: &str = "llama_4_scaling_beta";

pub fn ministral3(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut with_rope = fields.object.clone();
    if [ROPE, "rope_scaling", "rope_theta"].iter().all(|field| fields.is_absent(field)) {
        with_rope.insert(ROPE.into(), default_rope());
    }
    let fields = &Fields { file: fields.file, object: &with_rope };
    let head_dim = (!fields.get("head_dim").is_some_and(Value::is_null)).then_some(HEAD_DIM);
    let mut spec = silu_decoder(fields, Defaults { head_dim, eps: EPS, ..Defaults::USUAL })?;
    let (window, temperature) = (window(fields, None)?, temperature(fields)?);
    for layer in &mut spec.layers {
        (layer.window, layer.temperature) = (window, temperature);
    }
    Ok(spec)
}

fn default_rope() -> Value {
    json!({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, ORIGINAL: 16_384, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale": 1.0, "mscale_all_dim": 1.0, BETA: 0.1})
}

/// Scale of queries, which lies among the fields of the rotation.
fn temperature(fields: &Fields<'_>) -> Result<Option<Temperature>, LoadError> {
    let rope = match object(fields, ROPE)? {
        Some(rope) => Some(rope),
        None => object(fields, "rope_scaling")?,
    };
    let rope = rope.map(|object| Fields { file: fields.file, object });
    let Some(rope) = rope.filter(|rope| !rope.is_absent(BETA)) else { return Ok(None) };
    let scale = rope.number(BETA, 0.0..=1e3, None)? as f32;
    Ok(Some(Temperature { every: rope.size(ORIGINAL, MAX_POSITIONS, None)? as u32, shift: 0, scale }))
}
