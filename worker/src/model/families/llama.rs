//! Llama (Touvron et al. 2023) and its relatives: Mistral, Qwen2 with its biases, Qwen3 with
//! its normalised heads.
//!
//! A pre-norm decoder: grouped-query attention with rotary positions, then a SwiGLU network, each added to
//! the residual stream.

use super::{decoder, with_attention_bias};
use crate::model::LoadError;
use crate::model::fields::{Fields, MAX_POSITIONS};
use crate::model::spec::Spec;
use crate::model::tensors::Role;

/// Default head dimension of Qwen3: transformers' `Qwen3Config` has 128, whatever the hidden size.
const QWEN3_HEAD_DIM: usize = 128;

/// Default window of transformers' `MistralConfig` if the field is missing; only an explicit null means none.
const MISTRAL_DEFAULT_WINDOW: usize = 4096;

pub fn llama(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = silu_decoder(fields, None)?;
    let has_bias = fields.flag("mlp_bias", false)?;
    spec.layers.iter_mut().for_each(|layer| layer.feed_forward.has_bias = has_bias);
    with_attention_bias(fields, spec)
}

pub fn mistral(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = silu_decoder(fields, None)?;
    let window = || fields.size("sliding_window", MAX_POSITIONS, Some(MISTRAL_DEFAULT_WINDOW));
    let window = fields.unless_null("sliding_window", window)?.map(|window| window as u32);
    let longest = fields.max_positions()?;
    let window = window.filter(|window| *window < longest);
    spec.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(spec)
}

pub fn qwen2(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    check_full_attention(fields)?;
    let mut spec = silu_decoder(fields, None)?;
    spec.attention.has_bias = true;
    Ok(spec)
}

pub fn qwen3(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    check_full_attention(fields)?;
    let mut spec = silu_decoder(fields, Some(QWEN3_HEAD_DIM))?;
    spec.attention.has_qk_norm = true;
    with_attention_bias(fields, spec)
}

/// Names of tensors in the checkpoint.
pub fn name(role: Role) -> &'static str {
    match role {
        Role::Embedding => "model.embed_tokens",
        Role::AttentionNorm => "input_layernorm",
        Role::Query => "self_attn.q_proj",
        Role::Key => "self_attn.k_proj",
        Role::Value => "self_attn.v_proj",
        Role::QueryNorm => "self_attn.q_norm",
        Role::KeyNorm => "self_attn.k_norm",
        Role::AttentionOutput => "self_attn.o_proj",
        Role::FeedForwardNorm => "post_attention_layernorm",
        Role::Gate => "mlp.gate_proj",
        Role::Up => "mlp.up_proj",
        Role::Down => "mlp.down_proj",
        Role::LastNorm => "model.norm",
        Role::Head => "lm_head",
        Role::AttentionOutputNorm | Role::FeedForwardOutputNorm => {
            unreachable!("what is added is not normalised")
        }
    }
}

fn silu_decoder(fields: &Fields<'_>, head_dim: Option<usize>) -> Result<Spec, LoadError> {
    fields.one_of("hidden_act", &["silu"], Some("silu"))?;
    decoder(fields, head_dim)
}

/// Refuses windows, which Qwen models have in some layers only if configured.
fn check_full_attention(fields: &Fields<'_>) -> Result<(), LoadError> {
    if fields.flag("use_sliding_window", false)? {
        return Err(fields.wrong("use_sliding_window", "false".into()));
    }
    Ok(())
}
