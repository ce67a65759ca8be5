//! StarCoder 2 (Lozhkov et al. 2024): layer normalisation, biases throughout, and an ungated feed-forward
//! network.

use skein_kernels::gate::Gate;

use super::decoder::{Defaults, decoder, window};
use super::names;
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::{NormKind, Spec};
use crate::tensors::Role;

/// Default of transformers' `Starcoder2Config`.
const EPS: f64 = 1e-5;

pub fn starcoder2(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    fields.one_of("hidden_act", &["gelu_pytorch_tanh"], Some("gelu_pytorch_tanh"))?;
    let defaults = Defaults { eps_field: "norm_epsilon", eps: EPS, is_tied: true, ..Defaults::USUAL };
    let mut spec = decoder(fields, defaults)?;
    let (has_bias, window) = (fields.flag("use_bias", true)?, window(fields, None)?);
    (spec.attention.has_bias, spec.attention.has_output_bias) = (has_bias, has_bias);
    spec.norm.kind = NormKind::Layer { has_bias: true };
    for layer in &mut spec.layers {
        layer.window = window;
        layer.feed_forward.activation = Gate::GeluTanh;
        layer.feed_forward.is_gated = false;
        layer.feed_forward = layer.feed_forward.with_bias(has_bias);
    }
    Ok(Spec { names, ..spec })
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Up => &["mlp.c_fc"],
        Role::Down => &["mlp.c_proj"],
        role => names::usual(role),
    }
}
