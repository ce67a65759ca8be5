//! The decoder that most families start from, and the fields that they share.

use serde_json::Value;
use skein_kernels::cpu::experts::Routing;
use skein_kernels::gate::Gate;

use super::names;
use crate::LoadError;
use crate::fields::{Fields, MAX_POSITIONS};
use crate::rope::{RopeDefaults, rope};
use crate::spec::{
    AttentionSpec, ExpertsSpec, FeedForwardSpec, Fused, HeadPairs, LayerSpec, NormKind, NormPlace, NormSpec,
    QkNorm, Spec,
};
use crate::state_spec::Mixer;

/// Most experts in a layer.
const MAX_EXPERTS: usize = 4096;
/// Longest convolution of a state.
const MOST_TAPS: usize = 4;
/// Usual field of the experts per token.
const PER_TOKEN: &str = "num_experts_per_tok";

/// How many there are to choose from, and how many a token chooses.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub count: usize,
    pub per_token: usize,
}

/// Defaults of a family for absent fields.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    /// `None` = the hidden size divided by the heads.
    pub head_dim: Option<usize>,
    /// Field that holds the normalisations' eps.
    pub eps_field: &'static str,
    pub eps: f64,
    pub is_tied: bool,
    pub rope: RopeDefaults,
    pub is_interleaved: bool,
}

impl Defaults {
    pub const USUAL: Self = Self {
        head_dim: None,
        eps_field: "rms_norm_eps",
        eps: 1e-6,
        is_tied: false,
        rope: RopeDefaults::USUAL,
        is_interleaved: false,
    };
}

/// Pre-norm decoder with the properties common to most families: full attention, no biases. Families override
/// the rest.
pub(super) fn decoder(fields: &Fields<'_>, defaults: Defaults) -> Result<Spec, LoadError> {
    decoder_of(fields, defaults, fields.size("num_hidden_layers", 4096, None)?)
}

/// A [`decoder`] with so many layers.
pub(super) fn decoder_of(fields: &Fields<'_>, defaults: Defaults, layers: usize) -> Result<Spec, LoadError> {
    let hidden_size = fields.size("hidden_size", 1 << 17, None)?;
    let (heads, kv_heads, head_dim) = heads(fields, hidden_size, defaults.head_dim)?;
    let (rotation, rotated) = rope(fields, head_dim, defaults.rope)?;
    let feed_forward = FeedForwardSpec {
        activation: Gate::Silu,
        is_gated: true,
        inner_size: fields.size("intermediate_size", 1 << 20, None)?,
        has_bias: false,
        has_output_bias: false,
        is_up_first: false,
        experts: None,
    };
    let layer = LayerSpec {
        has_attention_norm: true,
        mixer: Mixer::Attention,
        window: None,
        is_chunked: false,
        temperature: None,
        rotation: 0,
        cache_of: None,
        feed_forward,
    };
    Ok(Spec {
        vocab_size: fields.size("vocab_size", 1 << 24, None)? as u32,
        hidden_size,
        embedding_scale: 1.0,
        rounds_embedding_scale: false,
        position_table: None,
        token_types: 0,
        has_embedding_norm: false,
        is_bidirectional: false,
        attention: AttentionSpec {
            heads,
            kv_heads,
            head_dim,
            latent: None,
            scale: 1.0 / (head_dim as f32).sqrt(),
            softcap: None,
            has_bias: false,
            has_output_bias: false,
            qk_norm: QkNorm::None,
            has_value_norm: false,
            has_keys_as_values: false,
            pairs: HeadPairs { rotated, is_interleaved: defaults.is_interleaved },
            has_sinks: false,
            has_gate: false,
        },
        windowed_attention: None,
        dense_up_to: None,
        state: None,
        rotations: vec![rotation],
        layers: vec![layer; layers],
        norm: NormSpec {
            kind: NormKind::Rms,
            eps: fields.number(defaults.eps_field, 0.0..=1.0, Some(defaults.eps))? as f32,
            offset: 0.0,
            place: NormPlace::Inputs,
        },
        is_parallel: false,
        layer_inputs: None,
        has_layer_scales: false,
        is_tied: fields.flag("tie_word_embeddings", defaults.is_tied)?,
        logits_scale: 1.0,
        logits_softcap: None,
        pooled: None,
        names: names::usual,
        published: None,
    })
}

/// A [`decoder`] with SiLU as its gate.
pub(super) fn silu_decoder(fields: &Fields<'_>, defaults: Defaults) -> Result<Spec, LoadError> {
    fields.one_of("hidden_act", &["silu"], Some("silu"))?;
    decoder(fields, defaults)
}

/// Numbers of query heads and KV heads, and values per head.
fn heads(
    fields: &Fields<'_>,
    hidden_size: usize,
    head_dim: Option<usize>,
) -> Result<(usize, usize, usize), LoadError> {
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
    Ok((heads, kv_heads, head_dim))
}

/// Default of `head_dim` in families where null stands for the hidden size divided by the heads.
pub(super) fn head_dim_unless_null(fields: &Fields<'_>, default: usize) -> Option<usize> {
    (!fields.get("head_dim").is_some_and(Value::is_null)).then_some(default)
}

/// Adds attention biases if the configuration enables them.
pub(super) fn with_attention_bias(fields: &Fields<'_>, spec: Spec) -> Result<Spec, LoadError> {
    let has_bias = fields.flag("attention_bias", false)?;
    let attention = AttentionSpec { has_bias, has_output_bias: has_bias, ..spec.attention };
    Ok(Spec { attention, ..spec })
}

/// Sets whether the feed-forward networks have biases.
pub(super) fn with_network_bias(spec: &mut Spec, has_bias: bool) {
    spec.layers.iter_mut().for_each(|layer| layer.feed_forward = layer.feed_forward.with_bias(has_bias));
}

/// Window in `sliding_window`; `None` if null, or at least as long as the longest sequence.
pub(super) fn window(fields: &Fields<'_>, default: Option<usize>) -> Result<Option<u32>, LoadError> {
    if fields.is_absent("sliding_window") && (default.is_none() || fields.get("sliding_window").is_some()) {
        return Ok(None);
    }
    let window = fields.size("sliding_window", MAX_POSITIONS, default)? as u32;
    let longest = fields.max_positions()?;
    Ok(Some(window).filter(|window| *window < longest))
}

/// Which of `layers` have a window: those in `layer_types`, or without that field those for which `or` holds.
pub(super) fn windowed(
    fields: &Fields<'_>,
    layers: usize,
    or: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, LoadError> {
    of_type(fields, layers, "sliding_attention", or)
}

/// Which of `layers` have a window of this type.
pub(super) fn of_type(
    fields: &Fields<'_>,
    layers: usize,
    kind: &str,
    or: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, LoadError> {
    if fields.is_absent("layer_types") {
        return Ok((0..layers).map(or).collect());
    }
    let allowed = format!("{layers} entries, {kind} or full_attention for each layer");
    let wrong = || fields.wrong("layer_types", allowed.clone());
    let types = fields.get("layer_types").and_then(Value::as_array).filter(|types| types.len() == layers);
    let types = types.ok_or_else(wrong)?;
    let has_window = |layer: usize| match types.get(layer).and_then(Value::as_str) {
        Some(of_layer) if of_layer == kind => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(wrong()),
    };
    (0..layers).map(has_window).collect()
}

/// Whether a layer is not the last of its group of `interval` layers.
pub(super) fn in_groups(interval: usize) -> impl Fn(usize) -> bool {
    move |layer| !(layer + 1).is_multiple_of(interval)
}

/// Positions that the convolution of a state sees, as many as the kernels know.
pub(super) fn taps(fields: &Fields<'_>, field: &str, default: usize) -> Result<usize, LoadError> {
    let taps = fields.size(field, MOST_TAPS, Some(default))?;
    let is_allowed = taps > 1;
    is_allowed
        .then_some(taps)
        .ok_or_else(|| fields.wrong(field, format!("a whole number from 2 to {MOST_TAPS}")))
}

/// Fields with the numbers of [`Choice`].
#[derive(Clone, Copy)]
pub(super) struct ExpertFields {
    pub count: &'static str,
    pub per_token: &'static str,
}

/// Reads the fields of a mixture of experts.
pub(super) fn experts(
    fields: &Fields<'_>,
    count: &'static str,
    default: Choice,
    renormalises: bool,
) -> Result<ExpertsSpec, LoadError> {
    experts_in(fields, ExpertFields { count, per_token: PER_TOKEN }, default, renormalises)
}

/// Like [`experts`], for families with other names of both numbers.
pub(super) fn experts_in(
    fields: &Fields<'_>,
    names: ExpertFields,
    default: Choice,
    renormalises: bool,
) -> Result<ExpertsSpec, LoadError> {
    // transformers reads the count under other names, too, and version 5 writes another one for some
    // families.
    let given = |names: &[&'static str]| {
        names.iter().copied().find(|field| !fields.is_absent(field)).unwrap_or(names[0])
    };
    let count_field = given(&[names.count, "num_local_experts", "num_experts"]);
    let per_token_field = given(&[names.per_token, PER_TOKEN]);
    let count = fields.size(count_field, MAX_EXPERTS, Some(default.count))?;
    let per_token = fields.size(per_token_field, MAX_EXPERTS, Some(default.per_token))?;
    if per_token > count {
        return Err(fields.wrong(per_token_field, format!("at most {count_field}, {count}")));
    }
    let routing = Routing::softmax(per_token, renormalises);
    let fused = Fused::Outputs;
    Ok(ExpertsSpec {
        count,
        routing,
        has_correction: false,
        has_bias: false,
        fused,
        shared: None,
        latent: None,
        has_own_norms: false,
    })
}
