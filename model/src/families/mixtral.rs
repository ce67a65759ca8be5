//! Mixtral (Jiang et al. 2024): Mistral with a mixture of experts.

use super::decoder::{Choice, Defaults, experts, silu_decoder, window};
use super::names;
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::RopeDefaults;
use crate::spec::Spec;
use crate::tensors::Role;

// Defaults of transformers' `MixtralConfig`.
const EPS: f64 = 1e-5;
const THETA: f64 = 1e6;
const EXPERTS: Choice = Choice { count: 8, per_token: 2 };

pub fn mixtral(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let rope = RopeDefaults { theta: THETA, partial: 1.0 };
    let mut spec = silu_decoder(fields, Defaults { eps: EPS, rope, ..Defaults::USUAL })?;
    let (window, experts) = (window(fields, None)?, experts(fields, "num_local_experts", EXPERTS, true)?);
    for layer in &mut spec.layers {
        layer.window = window;
        layer.feed_forward.experts = Some(experts);
    }
    Ok(Spec { names, ..spec })
}

/// Names in Mistral AI's release and in version 5 of transformers.
pub(super) fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Router => &["block_sparse_moe.gate", "mlp.gate"],
        Role::ExpertGate => &["block_sparse_moe.experts.{}.w1", "mlp.experts.gate_up_proj"],
        Role::ExpertUp => &["block_sparse_moe.experts.{}.w3", "mlp.experts.gate_up_proj"],
        Role::ExpertDown => &["block_sparse_moe.experts.{}.w2", "mlp.experts.down_proj"],
        role => names::usual(role),
    }
}
