//! ERNIE 4.5 (Baidu 2025) with experts: chosen by corrected probabilities, beside a shared network.

use serde_json::Value;
use skein_kernels::cpu::experts::Routing;

use super::decoder::{Choice, ExpertFields, experts_in};
use super::ernie4_5::ernie;
use super::names;
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::{ExpertsSpec, SharedSpec, Spec};
use crate::tensors::Role;

// Defaults of transformers' `Ernie4_5_MoeConfig`.
const FIELDS: ExpertFields = ExpertFields { count: "moe_num_experts", per_token: "moe_k" };
const EXPERTS: Choice = Choice { count: 64, per_token: 6 };
const MOE_INTERMEDIATE_SIZE: usize = 1536;
const SHARED: usize = 2;
const FIRST_LAYER: usize = 1;
const FLOOR: f64 = 1e-12;

pub fn ernie4_5_moe(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    if fields.flag("use_bias", false)? {
        // The experts have biases then in version 4 of transformers, and none in version 5.
        return Err(fields.wrong("use_bias", "false: biases beside experts are not supported".into()));
    }
    let mut spec = ernie(fields, None)?;
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, Some(MOE_INTERMEDIATE_SIZE))?;
    let experts = mixture(fields, inner_size)?;
    let interval = fields.size("moe_layer_interval", 4096, Some(1))?;
    let first = fields.count("moe_layer_start_index", 4096, FIRST_LAYER)?;
    let last = last_layer(fields)?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if (index + 1).is_multiple_of(interval) && (first..=last).contains(&index) {
            (layer.feed_forward.experts, layer.feed_forward.inner_size) = (Some(experts), inner_size);
        }
    }
    Ok(Spec { names, ..spec })
}

fn mixture(fields: &Fields<'_>, inner_size: usize) -> Result<ExpertsSpec, LoadError> {
    let plain = experts_in(fields, FIELDS, EXPERTS, true)?;
    let floor = fields.number("moe_norm_min", 0.0..=1.0, Some(FLOOR))? as f32;
    let routing = Routing { floor, ..plain.routing };
    let shared = fields.count("moe_num_shared_experts", 1024, SHARED)?;
    let shared = SharedSpec { inner_size: shared * inner_size, is_weighted: false };
    let shared = (shared.inner_size > 0).then_some(shared);
    Ok(ExpertsSpec { routing, has_correction: true, shared, ..plain })
}

/// Last layer that may have experts; -1 stands for the model's last.
fn last_layer(fields: &Fields<'_>) -> Result<usize, LoadError> {
    const FIELD: &str = "moe_layer_end_index";
    if fields.is_absent(FIELD) || fields.get(FIELD).and_then(Value::as_i64) == Some(-1) {
        return Ok(usize::MAX);
    }
    fields.count(FIELD, 4096, 0)
}

/// Names in Baidu's releases and in transformers.
fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::RouterCorrection => {
            &["mlp.moe_statics.e_score_correction_bias", "mlp.gate.moe_statics.e_score_correction_bias"]
        }
        role => names::usual(role),
    }
}
