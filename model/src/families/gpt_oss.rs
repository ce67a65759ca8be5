//! GPT-OSS (OpenAI 2025): experts with clamped gates and biases, attention sinks, and a window in every
//! second layer. Checkpoints store the experts in MXFP4, or as numbers with their inputs as rows.

use skein_kernels::gate::Gate;

use super::decoder::{Choice, Defaults, experts, silu_decoder, window, windowed};
use super::names;
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::RopeDefaults;
use crate::spec::{Fused, Spec};
use crate::tensors::Role;

// Defaults of transformers' `GptOssConfig`.
const HEAD_DIM: usize = 64;
const EPS: f64 = 1e-5;
const THETA: f64 = 150_000.0;
const SLIDING_WINDOW: usize = 128;
const EXPERTS: Choice = Choice { count: 128, per_token: 4 };
const ALPHA: f64 = 1.702;
const LIMIT: f64 = 7.0;

pub fn gpt_oss(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    if fields.is_absent("rope_parameters") && fields.is_absent("rope_scaling") {
        // transformers takes yarn for granted then; a configuration should say so.
        return Err(
            fields.wrong("rope_scaling", "the scaling of the rotary embedding, or rope_parameters".into())
        );
    }
    let rope = RopeDefaults { theta: THETA, ..RopeDefaults::USUAL };
    let defaults = Defaults { head_dim: Some(HEAD_DIM), eps: EPS, rope, ..Defaults::USUAL };
    let mut spec = silu_decoder(fields, defaults)?;
    let has_bias = fields.flag("attention_bias", true)?;
    (spec.attention.has_bias, spec.attention.has_output_bias) = (has_bias, has_bias);
    spec.attention.has_sinks = true;
    let mut experts = experts(fields, "num_local_experts", EXPERTS, true)?;
    (experts.has_bias, experts.fused) = (true, Fused::Alternating);
    let activation = Gate::Clamped {
        alpha: fields.number("swiglu_alpha", 0.0..=1e3, Some(ALPHA))? as f32,
        limit: fields.number("swiglu_limit", 1e-3..=1e6, Some(LIMIT))? as f32,
    };
    let window = window(fields, Some(SLIDING_WINDOW))?;
    let windowed = windowed(fields, spec.layers.len(), |layer| layer.is_multiple_of(2))?;
    for (layer, has_window) in spec.layers.iter_mut().zip(windowed) {
        layer.window = window.filter(|_| has_window);
        (layer.feed_forward.experts, layer.feed_forward.activation) = (Some(experts), activation);
    }
    Ok(Spec { names, ..spec })
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Router => &["mlp.router"],
        Role::ExpertGate | Role::ExpertUp => &["mlp.experts.gate_up_proj"],
        Role::ExpertDown => &["mlp.experts.down_proj"],
        _ => names::usual(role),
    }
}
