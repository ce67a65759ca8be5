//! Llama (Touvron et al. 2023) and models of the same architecture: Falcon 3, SmolLM 2, and Mistral with its
//! window.
//!
//! A pre-norm decoder: grouped-query attention with rotary positions, then a SwiGLU network, each added to
//! the residual stream.

use super::decoder::{Defaults, silu_decoder, window, with_attention_bias, with_network_bias};
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::Spec;

/// Default window of transformers' `MistralConfig`; only an explicit null disables it.
const MISTRAL_DEFAULT_WINDOW: usize = 4096;

pub fn llama(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = silu_decoder(fields, Defaults::USUAL)?;
    let has_bias = fields.flag("mlp_bias", false)?;
    with_network_bias(&mut spec, has_bias);
    with_attention_bias(fields, spec)
}

pub fn mistral(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = silu_decoder(fields, Defaults::USUAL)?;
    let window = window(fields, Some(MISTRAL_DEFAULT_WINDOW))?;
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(spec)
}
