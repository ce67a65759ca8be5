//! Model families: each reads its config.json into a [`Spec`]. A family is a file here and a
//! line of [`FAMILIES`].

mod gemma2;
mod llama;

use skein_kernels::gate::Gate;

use super::LoadError;
use super::config::rope;
use super::fields::Fields;
use super::spec::{AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec, Spec};

/// A family of models.
#[derive(Debug)]
pub struct Family {
    /// Its `model_type` in config.json.
    pub model_type: &'static str,
    /// Reads and validates its fields.
    pub spec: fn(&Fields<'_>) -> Result<Spec, LoadError>,
}

/// All supported families.
pub const FAMILIES: &[Family] = &[
    Family { model_type: "gemma2", spec: gemma2::gemma2 },
    Family { model_type: "llama", spec: llama::llama },
    Family { model_type: "mistral", spec: llama::mistral },
    Family { model_type: "qwen2", spec: llama::qwen2 },
    Family { model_type: "qwen3", spec: llama::qwen3 },
];

/// The family named by `model_type`.
///
/// # Errors
/// If no family has that name.
pub fn find(fields: &Fields<'_>) -> Result<&'static Family, LoadError> {
    let known: Vec<_> = FAMILIES.iter().map(|family| family.model_type).collect();
    let named = fields.one_of("model_type", &known, None)?;
    let family = FAMILIES.iter().find(|family| family.model_type == named);
    Ok(family.unwrap_or_else(|| unreachable!("it is one of the known")))
}

/// A pre-norm decoder with the properties that most families share: full attention, no biases. Families
/// change what differs. `head_dim` is the default for a missing field; `None` = the hidden size divided
/// by the heads.
fn decoder(fields: &Fields<'_>, head_dim: Option<usize>) -> Result<Spec, LoadError> {
    let hidden_size = fields.size("hidden_size", 1 << 17, None)?;
    let attention = attention(fields, hidden_size, head_dim)?;
    let layers = fields.size("num_hidden_layers", 4096, None)?;
    let feed_forward = FeedForwardSpec {
        activation: Gate::Silu,
        inner_size: fields.size("intermediate_size", 1 << 20, None)?,
        has_bias: false,
    };
    Ok(Spec {
        vocab_size: fields.size("vocab_size", 1 << 24, None)? as u32,
        hidden_size,
        embedding_scale: 1.0,
        attention,
        layers: vec![LayerSpec { window: None, feed_forward }; layers],
        norm: NormSpec {
            eps: fields.number("rms_norm_eps", 0.0..=1.0, Some(1e-6))? as f32,
            offset: 0.0,
            is_sandwich: false,
        },
        is_tied: fields.flag("tie_word_embeddings", false)?,
        logits_softcap: None,
        name: llama::name,
    })
}

fn attention(
    fields: &Fields<'_>,
    hidden_size: usize,
    head_dim: Option<usize>,
) -> Result<AttentionSpec, LoadError> {
    let heads = fields.size("num_attention_heads", 4096, None)?;
    let kv_heads = fields.size("num_key_value_heads", heads, Some(heads))?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(fields.wrong("num_key_value_heads", format!("a divisor of num_attention_heads, {heads}")));
    }
    if fields.is_absent("head_dim") && head_dim.is_none() && !hidden_size.is_multiple_of(heads) {
        return Err(fields
            .wrong("hidden_size", format!("a multiple of num_attention_heads, {heads}, or head_dim given")));
    }
    let head_dim = fields.size("head_dim", 4096, Some(head_dim.unwrap_or(hidden_size / heads)))?;
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(fields.wrong("head_dim", format!("an even number from 2; {head_dim} cannot be rotated")));
    }
    Ok(AttentionSpec {
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        softcap: None,
        has_bias: false,
        has_output_bias: false,
        has_qk_norm: false,
        rope: rope(fields)?,
    })
}

/// Adds attention biases if the configuration has them.
fn with_attention_bias(fields: &Fields<'_>, spec: Spec) -> Result<Spec, LoadError> {
    let has_bias = fields.flag("attention_bias", false)?;
    let attention = AttentionSpec { has_bias, has_output_bias: has_bias, ..spec.attention };
    Ok(Spec { attention, ..spec })
}
