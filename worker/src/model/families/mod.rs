//! Model families. Each converts its config.json to a [`Spec`], and consists of a file here and a line in
//! [`FAMILIES`].

mod cohere;
mod deepseek;
mod gemma2;
mod gemma3;
mod glm;
mod glm4_moe;
mod gpt_oss;
mod granite;
mod llama;
mod llama4;
mod mixtral;
mod olmo2;
mod olmoe;
mod phi3;
mod qwen;
mod qwen2_moe;
mod qwen3_moe;
mod smollm3;
mod starcoder2;

use serde_json::Value;
use skein_kernels::cpu::experts::Routing;
use skein_kernels::gate::Gate;

use super::LoadError;
use super::fields::{Fields, MAX_POSITIONS};
use super::rope::{RopeDefaults, rope};
use super::spec::{
    AttentionSpec, ExpertsSpec, FeedForwardSpec, Fused, HeadPairs, LayerSpec, NormKind, NormPlace, NormSpec,
    QkNorm, Spec,
};

/// A family of models.
#[derive(Debug)]
pub struct Family {
    /// `model_type` in config.json.
    pub model_type: &'static str,
    /// Reads and validates the family's fields.
    pub spec: fn(&Fields<'_>) -> Result<Spec, LoadError>,
    /// Sizes that its configurations may omit.
    pub sizes: &'static [(&'static str, u32)],
}

impl Family {
    const fn new(model_type: &'static str, spec: fn(&Fields<'_>) -> Result<Spec, LoadError>) -> Self {
        Self { model_type, spec, sizes: &[] }
    }
}

/// All supported families.
pub const FAMILIES: &[Family] = &[
    Family::new("cohere", cohere::cohere),
    Family::new("cohere2", cohere::cohere2),
    Family::new("deepseek_v2", deepseek::deepseek_v2),
    Family::new("deepseek_v3", deepseek::deepseek_v3),
    Family::new("gemma2", gemma2::gemma2),
    Family { sizes: gemma3::SIZES, ..Family::new("gemma3_text", gemma3::gemma3) },
    Family::new("glm", glm::glm),
    Family::new("glm4", glm::glm4),
    Family::new("glm4_moe", glm4_moe::glm4_moe),
    Family::new("gpt_oss", gpt_oss::gpt_oss),
    Family::new("granite", granite::granite),
    Family::new("granitemoe", granite::granitemoe),
    Family::new("llama", llama::llama),
    Family::new("llama4_text", llama4::llama4),
    Family::new("mistral", llama::mistral),
    Family::new("mixtral", mixtral::mixtral),
    Family::new("olmo2", olmo2::olmo2),
    Family::new("olmoe", olmoe::olmoe),
    Family::new("phi3", phi3::phi3),
    Family::new("qwen2", qwen::qwen2),
    Family::new("qwen2_moe", qwen2_moe::qwen2_moe),
    Family::new("qwen3", qwen::qwen3),
    Family::new("qwen3_moe", qwen3_moe::qwen3_moe),
    Family::new("smollm3", smollm3::smollm3),
    Family::new("starcoder2", starcoder2::starcoder2),
];

/// Most experts in a layer.
const MAX_EXPERTS: usize = 4096;
/// Fewest leading letters that a name must share with another to be suggested.
const NEAR_LETTERS: usize = 3;

/// The family named by `model_type`.
///
/// # Errors
/// If no family has that name.
pub fn find(fields: &Fields<'_>) -> Result<&'static Family, LoadError> {
    let name = fields.get("model_type").and_then(Value::as_str);
    let name = name.ok_or_else(|| fields.wrong("model_type", supported()))?;
    FAMILIES.iter().find(|family| family.model_type == name).ok_or_else(|| {
        let architecture = fields.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        let architecture = architecture.map_or(String::new(), |architecture| format!(", {architecture}"));
        let shown: String = format!("{name}{architecture}").chars().take(200).collect();
        LoadError::Architecture {
            file: fields.file,
            model_type: shown,
            near: near(name),
            supported: supported(),
        }
    })
}

/// Names of all families, for messages.
fn supported() -> String {
    FAMILIES.iter().map(|family| family.model_type).collect::<Vec<_>>().join(", ")
}

/// Family whose name shares the longest prefix with `name`.
fn near(name: &str) -> Option<&'static str> {
    let shared = |family: &&Family| {
        let same = family.model_type.chars().zip(name.chars()).take_while(|(known, letter)| known == letter);
        same.filter(|(letter, _)| letter.is_alphanumeric()).count()
    };
    // Among equally near names, the shortest: it has no variant suffix.
    let nearest = FAMILIES.iter().max_by_key(|family| (shared(family), usize::MAX - family.model_type.len()));
    nearest.filter(|family| shared(family) >= NEAR_LETTERS).map(|family| family.model_type)
}

/// Defaults of a family for absent fields.
#[derive(Clone, Copy)]
struct Defaults {
    /// `None` = the hidden size divided by the heads.
    head_dim: Option<usize>,
    /// Field that holds the normalisations' eps.
    eps_field: &'static str,
    eps: f64,
    is_tied: bool,
    rope: RopeDefaults,
    is_interleaved: bool,
}

impl Defaults {
    const USUAL: Self = Self {
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
fn decoder(fields: &Fields<'_>, defaults: Defaults) -> Result<Spec, LoadError> {
    let hidden_size = fields.size("hidden_size", 1 << 17, None)?;
    let (heads, kv_heads, head_dim) = heads(fields, hidden_size, defaults.head_dim)?;
    let (rotation, rotated) = rope(fields, head_dim, defaults.rope)?;
    let feed_forward = FeedForwardSpec {
        activation: Gate::Silu,
        is_gated: true,
        inner_size: fields.size("intermediate_size", 1 << 20, None)?,
        has_bias: false,
        experts: None,
    };
    let layer = LayerSpec { window: None, is_chunked: false, temperature: None, rotation: 0, feed_forward };
    Ok(Spec {
        vocab_size: fields.size("vocab_size", 1 << 24, None)? as u32,
        hidden_size,
        embedding_scale: 1.0,
        rounds_embedding_scale: false,
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
            pairs: HeadPairs { rotated, is_interleaved: defaults.is_interleaved },
            has_sinks: false,
        },
        rotations: vec![rotation],
        layers: vec![layer; fields.size("num_hidden_layers", 4096, None)?],
        norm: NormSpec {
            kind: NormKind::Rms,
            eps: fields.number(defaults.eps_field, 0.0..=1.0, Some(defaults.eps))? as f32,
            offset: 0.0,
            place: NormPlace::Inputs,
        },
        is_parallel: false,
        is_tied: fields.flag("tie_word_embeddings", defaults.is_tied)?,
        logits_scale: 1.0,
        logits_softcap: None,
        names: llama::names,
        published: None,
    })
}

/// A [`decoder`] with SiLU as its gate.
fn silu_decoder(fields: &Fields<'_>, defaults: Defaults) -> Result<Spec, LoadError> {
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

/// Adds attention biases if the configuration enables them.
fn with_attention_bias(fields: &Fields<'_>, spec: Spec) -> Result<Spec, LoadError> {
    let has_bias = fields.flag("attention_bias", false)?;
    let attention = AttentionSpec { has_bias, has_output_bias: has_bias, ..spec.attention };
    Ok(Spec { attention, ..spec })
}

/// Window in `sliding_window`; `None` if null, or at least as long as the longest sequence.
fn window(fields: &Fields<'_>, default: Option<usize>) -> Result<Option<u32>, LoadError> {
    if fields.is_absent("sliding_window") && (default.is_none() || fields.get("sliding_window").is_some()) {
        return Ok(None);
    }
    let window = fields.size("sliding_window", MAX_POSITIONS, default)? as u32;
    let longest = fields.max_positions()?;
    Ok(Some(window).filter(|window| *window < longest))
}

/// Which of `layers` have a window: those in `layer_types`, or without that field those for which `or` holds.
fn windowed(fields: &Fields<'_>, layers: usize, or: impl Fn(usize) -> bool) -> Result<Vec<bool>, LoadError> {
    of_type(fields, layers, "sliding_attention", or)
}

/// Which of `layers` have a window of this type.
fn of_type(
    fields: &Fields<'_>,
    layers: usize,
    kind: &str,
    or: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, LoadError> {
    if fields.is_absent("layer_types") {
        return Ok((0..layers).map(or).collect());
    }
    let wrong = || fields.wrong("layer_types", format!("{kind} or full_attention for each layer"));
    let types = fields.get("layer_types").and_then(Value::as_array).ok_or_else(wrong)?;
    let has_window = |layer: usize| match types.get(layer).and_then(Value::as_str) {
        Some(of_layer) if of_layer == kind => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(wrong()),
    };
    (0..layers).map(has_window).collect()
}

/// Whether a layer is not the last of its group of `interval` layers.
fn in_groups(interval: usize) -> impl Fn(usize) -> bool {
    move |layer| !(layer + 1).is_multiple_of(interval)
}

/// Reads the fields of a mixture of experts.
fn experts(
    fields: &Fields<'_>,
    count_field: &str,
    default: (usize, usize),
    renormalises: bool,
) -> Result<ExpertsSpec, LoadError> {
    let count = fields.size(count_field, MAX_EXPERTS, Some(default.0))?;
    let per_token = fields.size("num_experts_per_tok", MAX_EXPERTS, Some(default.1))?;
    if per_token > count {
        return Err(fields.wrong("num_experts_per_tok", format!("at most {count_field}, {count}")));
    }
    let routing = Routing::softmax(per_token, renormalises);
    let fused = Fused::Outputs;
    Ok(ExpertsSpec { count, routing, has_correction: false, has_bias: false, fused, shared: None })
}
