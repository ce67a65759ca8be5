//! Seed-OSS (ByteDance 2025): Llama with biases of queries, keys and values, and heads of their own size.

use super::decoder::{Defaults, head_dim_unless_null, silu_decoder, with_network_bias};
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::Spec;

/// Default of transformers' `SeedOssConfig`.
const HEAD_DIM: usize = 128;

pub fn seed_oss(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let head_dim = head_dim_unless_null(fields, HEAD_DIM);
    let mut spec = silu_decoder(fields, Defaults { head_dim, ..Defaults::USUAL })?;
    spec.attention.has_bias = fields.flag("attention_bias", true)?;
    spec.attention.has_output_bias = fields.flag("attention_out_bias", false)?;
    let has_bias = fields.flag("mlp_bias", false)?;
    with_network_bias(&mut spec, has_bias);
    Ok(spec)
}
