//! Qwen3-Next (Qwen Team 2025): as Qwen3.5, with experts in some or all layers, and with the inputs of a
//! state in two tensors, key head by key head.

use super::decoder::Choice;
use super::names;
use super::qwen3_5::{hybrid, shared_experts};
use super::qwen3_moe::with_experts;
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::Spec;
use crate::state_spec::StateSpec;
use crate::tensors::Role;

// Defaults of transformers' `Qwen3NextConfig`.
const EXPERTS: Choice = Choice { count: 512, per_token: 10 };

pub fn qwen3_next(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let renormalises = fields.flag("norm_topk_prob", true)?;
    let (mut spec, (experts, inner_size)) = (hybrid(fields)?, shared_experts(fields, EXPERTS, renormalises)?);
    if let Some(StateSpec::Delta(delta)) = &mut spec.state {
        (delta.stored.has_grouped_inputs, delta.stored.has_grouped_rates) = (true, true);
    }
    with_experts(fields, Spec { names, ..spec }, experts, inner_size)
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::StateQuery | Role::StateKey | Role::StateValue | Role::StateGate => {
            &["linear_attn.in_proj_qkvz"]
        }
        Role::StateBeta | Role::StateDecay => &["linear_attn.in_proj_ba"],
        role => names::usual(role),
    }
}
