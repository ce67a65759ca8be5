//! MiniMax-M2 (MiniMax 2025): experts chosen by corrected sigmoids in every layer, one norm over all heads of
//! the queries and one over the keys, and rotation of a part of each head.

use serde_json::Value;
use skein_kernels::cpu::experts::{Routing, Score};

use super::decoder::{Choice, Defaults, experts, silu_decoder};
use super::mixtral;
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::RopeDefaults;
use crate::spec::{ExpertsSpec, QkNorm, Spec};
use crate::tensors::Role;

// Defaults of transformers' `MiniMaxM2Config`.
const HEAD_DIM: usize = 128;
const THETA: f64 = 5e6;
const EXPERTS: Choice = Choice { count: 256, per_token: 8 };

pub fn minimax_m2(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    check(fields)?;
    let head_dim = fields.size("head_dim", 4096, Some(HEAD_DIM))?;
    let rotated = fields.size("rotary_dim", head_dim, Some(head_dim))?;
    let rope = RopeDefaults { theta: THETA, partial: rotated as f64 / head_dim as f64 };
    let defaults = Defaults { head_dim: Some(HEAD_DIM), rope, ..Defaults::USUAL };
    let mut spec = silu_decoder(fields, defaults)?;
    if fields.flag("use_qk_norm", true)? {
        spec.attention.qk_norm = QkNorm::Row;
    }
    let plain = experts(fields, "num_local_experts", EXPERTS, true)?;
    let routing = Routing { score: Score::Sigmoid, ..plain.routing };
    let has_correction = fields.flag("use_routing_bias", true)?;
    let experts = ExpertsSpec { routing, has_correction, ..plain };
    spec.layers.iter_mut().for_each(|layer| layer.feed_forward.experts = Some(experts));
    Ok(Spec { names, ..spec })
}

/// Refuses what only other models of this design have.
fn check(fields: &Fields<'_>) -> Result<(), LoadError> {
    fields.one_of("scoring_func", &["sigmoid"], Some("sigmoid"))?;
    fields.one_of("qk_norm_type", &["per_layer"], Some("per_layer"))?;
    if fields.count("shared_intermediate_size", 1 << 20, 0)? > 0 {
        return Err(fields.wrong("shared_intermediate_size", "0".into()));
    }
    let is_full = |kind: &Value| kind.as_u64() == Some(1);
    let is_all_full = |kinds: &Value| kinds.as_array().is_some_and(|kinds| kinds.iter().all(is_full));
    if fields.get("attn_type_list").is_some_and(|kinds| !kinds.is_null() && !is_all_full(kinds)) {
        return Err(fields.wrong("attn_type_list", "a list of 1, full attention".into()));
    }
    Ok(())
}

/// Names in MiniMax's releases and in version 5 of transformers.
fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::RouterCorrection => {
            &["block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias"]
        }
        role => mixtral::names(role),
    }
}
