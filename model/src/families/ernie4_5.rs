//! ERNIE 4.5 (Baidu 2025), dense: Llama that rotates adjacent pairs.

use super::decoder::{Defaults, head_dim_unless_null, silu_decoder, with_network_bias};
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::RopeDefaults;
use crate::spec::Spec;

// Defaults of transformers' `Ernie4_5Config`.
const HEAD_DIM: usize = 128;
const EPS: f64 = 1e-5;
const THETA: f64 = 500_000.0;

pub fn ernie4_5(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = ernie(fields, head_dim_unless_null(fields, HEAD_DIM))?;
    let has_bias = spec.attention.has_bias;
    with_network_bias(&mut spec, has_bias);
    Ok(spec)
}

/// The parts that models with and without experts share. `head_dim`: the default.
pub(super) fn ernie(fields: &Fields<'_>, head_dim: Option<usize>) -> Result<Spec, LoadError> {
    let mut spec = silu_decoder(
        fields,
        Defaults {
            head_dim,
            eps: EPS,
            is_tied: true,
            rope: RopeDefaults { theta: THETA, partial: 1.0 },
            is_interleaved: true,
            ..Defaults::USUAL
        },
    )?;
    let has_bias = fields.flag("use_bias", false)?;
    (spec.attention.has_bias, spec.attention.has_output_bias) = (has_bias, has_bias);
    Ok(spec)
}
