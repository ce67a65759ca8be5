//! DeepSeek-V2, V3 and R1 (DeepSeek-AI 2024), and Kimi K2: latent attention, and experts in groups beside a
//! shared network. The layer that predicts further tokens, after the last one, is not used.

use serde_json::Value;
use skein_kernels::cpu::experts::{Groups, Routing, Score};
use skein_kernels::cpu::rope::Rotation;

use super::decoder::{Choice, Defaults, decoder, experts};
use super::names;
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::{RopeDefaults, object, rope};
use crate::spec::{AttentionSpec, ExpertsSpec, HeadPairs, LatentSpec, SharedSpec, Spec};
use crate::tensors::Role;

// Defaults of transformers' `DeepseekV2Config` and `DeepseekV3Config`.
const QUERY_RANK: usize = 1536;
const RANK: usize = 512;
const PLAIN: usize = 128;
const ROTATED: usize = 64;
const VALUE_DIM: usize = 128;
/// Eps of the norms of latents, which no field changes.
const LATENT_EPS: f32 = 1e-6;
const V2_EXPERTS: Choice = Choice { count: 64, per_token: 6 };
const V2_INNER: usize = 1407;
const V2_SHARED: usize = 2;
const V3_EXPERTS: Grouped = Grouped {
    experts: Choice { count: 256, per_token: 8 },
    groups: Choice { count: 8, per_token: 4 },
    scale: 2.5,
    shared: 1,
};
pub(super) const V3_INNER: usize = 2048;
const V3_DENSE_LAYERS: usize = 3;
/// In V3, a group ranks by the sum of this many best experts.
const BY_BEST: usize = 2;

pub fn deepseek_v2(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    fields.one_of("scoring_func", &["softmax"], Some("softmax"))?;
    // DeepSeek's code and transformers disagree about what it does here, and no published model sets it.
    if fields.flag("norm_topk_prob", false)? {
        return Err(fields.wrong("norm_topk_prob", "false".into()));
    }
    let method = fields.one_of("topk_method", &["greedy", "group_limited_greedy"], Some("greedy"))?;
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, Some(V2_INNER))?;
    let plain = experts(fields, "n_routed_experts", V2_EXPERTS, false)?;
    let groups =
        if method == "greedy" { None } else { groups(fields, plain, Choice { count: 1, per_token: 1 }, 1)? };
    let scale = fields.number("routed_scaling_factor", 0.0..=1e6, Some(1.0))? as f32;
    let routing = Routing { scale, groups, ..plain.routing };
    let shared = shared(fields, inner_size, V2_SHARED)?;
    deepseek(fields, true, ExpertsSpec { routing, shared, ..plain }, inner_size, 0)
}

pub fn deepseek_v3(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    fields.one_of("scoring_func", &["sigmoid"], Some("sigmoid"))?;
    fields.one_of("topk_method", &["noaux_tc"], Some("noaux_tc"))?;
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, Some(V3_INNER))?;
    let experts = grouped_experts_of_v3(fields, inner_size)?;
    let is_interleaved = fields.flag("rope_interleave", true)?;
    deepseek(fields, is_interleaved, experts, inner_size, V3_DENSE_LAYERS)
}

/// V3's mixture of experts of this size.
pub(super) fn grouped_experts_of_v3(
    fields: &Fields<'_>,
    inner_size: usize,
) -> Result<ExpertsSpec, LoadError> {
    grouped_experts(fields, inner_size, V3_EXPERTS)
}

/// The parts that V2, V3 and their successors share. `dense`: layers without experts by default.
pub(super) fn deepseek(
    fields: &Fields<'_>,
    is_interleaved: bool,
    experts: ExpertsSpec,
    inner_size: usize,
    dense: usize,
) -> Result<Spec, LoadError> {
    fields.one_of("hidden_act", &["silu"], Some("silu"))?;
    for field in ["attention_bias", "mlp_bias"] {
        if fields.flag(field, false)? {
            return Err(fields.wrong(field, "false".into()));
        }
    }
    if fields.size("moe_layer_freq", 4096, Some(1))? != 1 {
        return Err(fields.wrong("moe_layer_freq", "1".into()));
    }
    let rotated = fields.size("qk_rope_head_dim", 4096, Some(ROTATED))?;
    if !rotated.is_multiple_of(2)
        || !(fields.is_absent("head_dim") || fields.size("head_dim", 4096, None)? == rotated)
    {
        return Err(
            fields.wrong("qk_rope_head_dim", "an even number, and that in head_dim if there is one".into())
        );
    }
    let mut spec = decoder(fields, Defaults { head_dim: Some(rotated), ..Defaults::USUAL })?;
    if spec.attention.kv_heads != spec.attention.heads {
        let allowed = format!(
            "absent, or num_attention_heads, {}: latent attention has no groups",
            spec.attention.heads
        );
        return Err(fields.wrong("num_key_value_heads", allowed));
    }
    (spec.attention, spec.rotations) = latent_attention(fields, spec.attention, rotated, is_interleaved)?;
    let dense = fields.count("first_k_dense_replace", 4096, dense)?;
    for layer in spec.layers.iter_mut().skip(dense) {
        (layer.feed_forward.experts, layer.feed_forward.inner_size) = (Some(experts), inner_size);
    }
    Ok(Spec { names, ..spec })
}

/// Attention whose only cached key is the latent with the rotated part, and its rotation.
fn latent_attention(
    fields: &Fields<'_>,
    attention: AttentionSpec,
    rotated: usize,
    is_interleaved: bool,
) -> Result<(AttentionSpec, Vec<Rotation>), LoadError> {
    let query_rank =
        fields.unless_null("q_lora_rank", || fields.size("q_lora_rank", 1 << 16, Some(QUERY_RANK)))?;
    let latent = LatentSpec {
        query_rank,
        rank: fields.size("kv_lora_rank", 1 << 16, Some(RANK))?,
        plain: fields.size("qk_nope_head_dim", 4096, Some(PLAIN))?,
        rotated,
        value_dim: fields.size("v_head_dim", 4096, Some(VALUE_DIM))?,
        eps: LATENT_EPS,
    };
    let (rotation, of_head) = rope(fields, rotated, RopeDefaults::USUAL)?;
    if of_head != rotated {
        return Err(
            fields.wrong("partial_rotary_factor", "absent: qk_rope_head_dim says how much is rotated".into())
        );
    }
    let attention = AttentionSpec {
        kv_heads: 1,
        head_dim: latent.rank + rotated,
        scale: (scale_of_yarn(fields)? / (latent.query_dim() as f64).sqrt()) as f32,
        pairs: HeadPairs { rotated, is_interleaved },
        latent: Some(latent),
        ..attention
    };
    Ok((attention, vec![rotation]))
}

/// Factor of the scores: the square of the amplitude that `mscale_all_dim` asks for.
fn scale_of_yarn(fields: &Fields<'_>) -> Result<f64, LoadError> {
    let scaling = match object(fields, "rope_parameters")? {
        Some(object) => Some(object),
        None => object(fields, "rope_scaling")?,
    };
    let Some(scaling) = scaling else { return Ok(1.0) };
    let scaling = Fields { file: fields.file, object: scaling };
    let kind = if scaling.is_absent("rope_type") { "type" } else { "rope_type" };
    let is_scaled = scaling.get(kind).is_some_and(|kind| kind != "default");
    let all_dim = scaling.number("mscale_all_dim", 0.0..=1e3, Some(0.0))?;
    if !is_scaled || all_dim == 0.0 {
        return Ok(1.0);
    }
    let amplitude = 0.1 * all_dim * scaling.number("factor", 1.0..=1e6, None)?.ln() + 1.0;
    Ok(amplitude * amplitude)
}

/// Defaults of [`grouped_experts`].
pub(super) struct Grouped {
    pub experts: Choice,
    pub groups: Choice,
    /// Factor of the weights.
    pub scale: f64,
    /// Experts that make up the shared network.
    pub shared: usize,
}

/// Reads a mixture of experts from V3's fields. `inner_size` is that of one expert.
pub(super) fn grouped_experts(
    fields: &Fields<'_>,
    inner_size: usize,
    defaults: Grouped,
) -> Result<ExpertsSpec, LoadError> {
    let plain = experts(fields, "n_routed_experts", defaults.experts, fields.flag("norm_topk_prob", true)?)?;
    let routing = Routing {
        score: Score::Sigmoid,
        scale: fields.number("routed_scaling_factor", 0.0..=1e6, Some(defaults.scale))? as f32,
        groups: groups(fields, plain, defaults.groups, BY_BEST)?,
        ..plain.routing
    };
    let shared = shared(fields, inner_size, defaults.shared)?;
    Ok(ExpertsSpec { routing, has_correction: true, shared, ..plain })
}

/// Groups of experts; `None` if there is one.
fn groups(
    fields: &Fields<'_>,
    experts: ExpertsSpec,
    default: Choice,
    by_best: usize,
) -> Result<Option<Groups>, LoadError> {
    let (count, per_token) = (experts.count, experts.routing.per_token);
    let groups = fields.size("n_group", count, Some(default.count))?;
    if !count.is_multiple_of(groups) {
        return Err(fields.wrong("n_group", format!("a divisor of n_routed_experts, {count}")));
    }
    let kept = fields.size("topk_group", groups, Some(default.per_token))?;
    if kept * (count / groups) < per_token {
        let allowed = format!("at least {per_token} experts in topk_group groups of {}", count / groups);
        return Err(fields.wrong("topk_group", allowed));
    }
    Ok((groups > 1).then_some(Groups { count: groups, kept, by_best }))
}

/// The network beside the experts.
fn shared(fields: &Fields<'_>, inner_size: usize, default: usize) -> Result<Option<SharedSpec>, LoadError> {
    let shared = fields.count("n_shared_experts", 1024, default)?;
    Ok((shared > 0).then_some(SharedSpec { inner_size: shared * inner_size, is_weighted: false }))
}

/// Gives the layers that `mlp_layer_types` says these experts, of this size, and the others a dense network.
pub(super) fn with_experts_by_type(
    fields: &Fields<'_>,
    spec: &mut Spec,
    (experts, inner_size): (ExpertsSpec, usize),
) -> Result<(), LoadError> {
    if fields.is_absent("mlp_layer_types") {
        return Ok(());
    }
    let dense_size = fields.size("intermediate_size", 1 << 20, None)?;
    for (layer, is_sparse) in spec.layers.iter_mut().zip(sparse(fields)?) {
        let network = &mut layer.feed_forward;
        (network.experts, network.inner_size) =
            if is_sparse { (Some(experts), inner_size) } else { (None, dense_size) };
    }
    Ok(())
}

/// Whether each layer has experts, from `mlp_layer_types`.
fn sparse(fields: &Fields<'_>) -> Result<Vec<bool>, LoadError> {
    const FIELD: &str = "mlp_layer_types";
    let layers = fields.size("num_hidden_layers", 4096, None)?;
    let wrong = || fields.wrong(FIELD, format!("dense or sparse for each of {layers} layers"));
    let kinds = fields.get(FIELD).and_then(Value::as_array).filter(|kinds| kinds.len() >= layers);
    let is_sparse = |kind: &Value| match kind.as_str() {
        Some("sparse") => Ok(true),
        Some("dense") => Ok(false),
        _ => Err(wrong()),
    };
    kinds.ok_or_else(wrong)?[..layers].iter().map(is_sparse).collect()
}

pub(super) fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::QueryDown => &["self_attn.q_a_proj"],
        Role::QueryNorm => &["self_attn.q_a_layernorm"],
        Role::QueryUp => &["self_attn.q_b_proj"],
        Role::Latent => &["self_attn.kv_a_proj_with_mqa"],
        Role::LatentNorm => &["self_attn.kv_a_layernorm"],
        Role::HeadKey | Role::HeadValue => &["self_attn.kv_b_proj"],
        _ => names::usual(role),
    }
}
