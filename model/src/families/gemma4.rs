//! Text model of Gemma 4 (Google DeepMind 2026).
//!
//! Gemma 3 with attention of two shapes: layers without a window have heads of another size, perhaps fewer
//! KV heads, whose values may have the matrix of the keys, and rotate a part of each head. Values are
//! normalised. The last layers may read the keys and values of earlier ones, layers may have inputs of their
//! own, and experts beside the dense network.

use serde_json::{Map, Value};
use skein_kernels::cpu::experts::Routing;
use skein_kernels::cpu::rope::{RopeScaling, Rotation};
use skein_kernels::gate::Gate;

use super::decoder::{
    Choice, Defaults, ExpertFields, decoder, experts_in, in_groups, windowed, with_attention_bias,
};
use super::names;
use crate::LoadError;
use crate::fields::{Fields, MAX_POSITIONS};
use crate::rope::{RopeDefaults, object, read};
use crate::spec::{
    AttentionSpec, ExpertsSpec, HeadPairs, LayerInputSpec, NormPlace, NormSpec, QkNorm, SharedSpec, Spec,
};
use crate::tensors::Role;

// Defaults of transformers' `Gemma4TextConfig`.
const HEAD_DIM: usize = 256;
const GLOBAL_HEAD_DIM: usize = 512;
const SLIDING_WINDOW: usize = 512;
const SLIDING_WINDOW_PATTERN: usize = 6;
const GLOBAL_THETA: f64 = 1e6;
const GLOBAL_ROTATED: f64 = 0.25;
const LOCAL_THETA: f64 = 10_000.0;
const LAYER_INPUT: usize = 256;
/// Rows of the table of the layers' inputs.
const LAYER_INPUT_VOCAB: usize = 262_144;
/// Sizes that checkpoints of multimodal models omit.
pub const SIZES: &[(&str, u32)] = &[
    ("vocab_size", 262_144),
    ("hidden_size", 2304),
    ("intermediate_size", 9216),
    ("num_hidden_layers", 30),
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
    ("max_position_embeddings", 131_072),
];

/// Field of the sizes that differ by layer.
const BY_LAYER: &str = "per_layer_config";
/// Its fields for a layer.
const OF_A_LAYER: [&str; 2] = ["head_dim", "num_key_value_heads"];
const POSITIONS: &str = "max_position_embeddings";
/// Rotation index of layers without and with a window.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub fn gemma4(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    if fields.get("use_bidirectional_attention").and_then(Value::as_str) == Some("all") {
        let allowed = "null or vision: text is generated in one direction".into();
        return Err(fields.wrong("use_bidirectional_attention", allowed));
    }
    fields.one_of("hidden_activation", &["gelu_pytorch_tanh"], Some("gelu_pytorch_tanh"))?;
    let defaults = Defaults { head_dim: Some(HEAD_DIM), is_tied: true, ..Defaults::USUAL };
    let mut spec = with_attention_bias(fields, decoder(fields, defaults)?)?;
    let count = spec.layers.len();
    let mut is_local = windowed(fields, count, in_groups(SLIDING_WINDOW_PATTERN))?;
    is_local[count - 1] = false; // whatever the list says
    let (local, global) = attentions(fields, &spec.attention, &is_local)?;
    // A window beyond the longest sequence still tells the shape of attention.
    let window = fields.size("sliding_window", MAX_POSITIONS, Some(SLIDING_WINDOW))? as u32;
    let sources = cache_sources(fields, &is_local)?;
    let is_double = fields.flag("use_double_wide_mlp", false)?;
    let experts = mixture(fields)?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        (layer.window, layer.rotation) = if is_local[index] { (Some(window), LOCAL) } else { (None, GLOBAL) };
        layer.cache_of = sources[index];
        let network = &mut layer.feed_forward;
        network.activation = Gate::GeluTanh;
        network.inner_size *= if is_double && sources[index].is_some() { 2 } else { 1 };
        if let Some((experts, inner_size)) = experts {
            let shared = SharedSpec { inner_size: network.inner_size, is_weighted: false };
            network.experts = Some(ExpertsSpec { shared: Some(shared), ..experts });
            network.inner_size = inner_size;
        }
    }
    let cap = "final_logit_softcapping";
    let cap = if fields.is_absent(cap) { None } else { Some(fields.number(cap, 1e-3..=1e6, None)?) };
    Ok(Spec {
        embedding_scale: (spec.hidden_size as f32).sqrt(),
        rounds_embedding_scale: true,
        rotations: rotations(fields, global.head_dim, local.head_dim)?,
        attention: global,
        windowed_attention: is_local.contains(&true).then_some(local),
        norm: NormSpec { place: NormPlace::Both, ..spec.norm },
        layer_inputs: layer_inputs(fields, spec.vocab_size as usize)?,
        has_layer_scales: true,
        logits_softcap: cap.map(|cap| cap as f32),
        names,
        ..spec
    })
}

/// Heads of a layer: values of each, and KV heads.
type Heads = (usize, usize);

/// Attention of layers with and without a window.
fn attentions(
    fields: &Fields<'_>,
    usual: &AttentionSpec,
    is_local: &[bool],
) -> Result<(AttentionSpec, AttentionSpec), LoadError> {
    let has_keys_as_values = fields.flag("attention_k_eq_v", false)?;
    let is_layer = |key: &String| key.parse::<usize>().is_ok_and(|layer| layer < is_local.len());
    if let Some(key) = object(fields, BY_LAYER)?.and_then(|all| all.keys().find(|key| !is_layer(key))) {
        let last = is_local.len() - 1;
        return Err(fields.wrong(BY_LAYER, format!("layers from 0 to {last} as keys, not {key:?}")));
    }
    let mut found: [Option<Heads>; 2] = [None; 2];
    for (layer, is_local) in is_local.iter().enumerate() {
        let own = heads_of(fields, usual, layer, (*is_local, has_keys_as_values))?;
        if *found[usize::from(*is_local)].get_or_insert(own) != own {
            let allowed = "equal heads in all layers with a window, and in all without one".into();
            return Err(fields.wrong(BY_LAYER, allowed));
        }
    }
    let shape = |heads: Option<Heads>, has_keys_as_values| {
        let (head_dim, kv_heads) = heads.unwrap_or((usual.head_dim, usual.kv_heads));
        let field = |name| if fields.is_absent(BY_LAYER) { name } else { BY_LAYER };
        if !usual.heads.is_multiple_of(kv_heads) {
            let allowed = format!("KV heads that divide num_attention_heads, {}", usual.heads);
            return Err(fields.wrong(field("num_global_key_value_heads"), allowed));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(fields.wrong(field("global_head_dim"), "an even size of heads".into()));
        }
        Ok(AttentionSpec {
            head_dim,
            kv_heads,
            scale: 1.0,
            qk_norm: QkNorm::Heads,
            has_value_norm: true,
            has_keys_as_values,
            pairs: HeadPairs { rotated: head_dim, is_interleaved: false },
            ..*usual
        })
    };
    let [global, local] = found;
    Ok((shape(local, false)?, shape(global, has_keys_as_values)?))
}

/// Heads of a layer with or without a window. Version 5.23 of transformers writes those of each layer that
/// differs from the others; before, two fields were for all layers without a window.
fn heads_of(
    fields: &Fields<'_>,
    usual: &AttentionSpec,
    layer: usize,
    (is_local, has_keys_as_values): (bool, bool),
) -> Result<Heads, LoadError> {
    let Some(by_layer) = object(fields, BY_LAYER)? else {
        let kv_heads = |field| fields.size(field, usual.heads, Some(usual.kv_heads));
        return Ok(match (is_local, has_keys_as_values) {
            (true, _) => (usual.head_dim, usual.kv_heads),
            (false, shares) => (
                fields.size("global_head_dim", 4096, Some(GLOBAL_HEAD_DIM))?,
                if shares { kv_heads("num_global_key_value_heads")? } else { usual.kv_heads },
            ),
        });
    };
    let empty = Map::new();
    let own = match by_layer.get(&layer.to_string()) {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(own)) => own,
        Some(_) => return Err(fields.wrong(BY_LAYER, "an object for each layer".into())),
    };
    if let Some(unknown) = own.keys().find(|key| !OF_A_LAYER.contains(&key.as_str())) {
        let allowed = format!("{} for each layer, not {unknown:?}", OF_A_LAYER.join(" and "));
        return Err(fields.wrong(BY_LAYER, allowed));
    }
    let own = Fields { file: fields.file, object: own };
    let head_dim = own.size("head_dim", 4096, Some(usual.head_dim))?;
    Ok((head_dim, own.size("num_key_value_heads", usual.heads, Some(usual.kv_heads))?))
}

/// The layer whose keys and values each layer reads: the last of its kind before those that have none.
fn cache_sources(fields: &Fields<'_>, is_local: &[bool]) -> Result<Vec<Option<usize>>, LoadError> {
    const FIELD: &str = "num_kv_shared_layers";
    let count = is_local.len();
    let first = count - fields.count(FIELD, count, 0)?;
    let source = |layer: usize| {
        if layer < first {
            return Ok(None);
        }
        let last = (0..first).rev().find(|of| is_local[*of] == is_local[layer]);
        last.map(Some).ok_or_else(|| {
            fields.wrong(FIELD, "a number that leaves layers with and without a window before them".into())
        })
    };
    (0..count).map(source).collect()
}

/// The experts beside dense networks, and the outputs of each expert's gate.
fn mixture(fields: &Fields<'_>) -> Result<Option<(ExpertsSpec, usize)>, LoadError> {
    if !fields.flag("enable_moe_block", false)? {
        return Ok(None);
    }
    let count = fields.size("num_experts", 4096, None)?;
    let per_token = fields.size("top_k_experts", 4096, None)?;
    let names = ExpertFields { count: "num_experts", per_token: "top_k_experts" };
    let experts = experts_in(fields, names, Choice { count, per_token }, true)?;
    let routing = Routing::softmax(per_token, true);
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, None)?;
    Ok(Some((ExpertsSpec { routing, has_own_norms: true, ..experts }, inner_size)))
}

fn layer_inputs(fields: &Fields<'_>, vocab_size: usize) -> Result<Option<LayerInputSpec>, LoadError> {
    const VOCAB: &str = "vocab_size_per_layer_input";
    let width = fields.count("hidden_size_per_layer_input", 1 << 16, LAYER_INPUT)?;
    if width == 0 {
        return Ok(None);
    }
    let rows = fields.size(VOCAB, 1 << 24, Some(LAYER_INPUT_VOCAB))?;
    if rows < vocab_size {
        return Err(fields.wrong(VOCAB, format!("at least vocab_size, {vocab_size}")));
    }
    Ok(Some(LayerInputSpec { width, vocab_size: rows }))
}

/// Both rotations. Without `rope_parameters`, that of layers without a window is proportional.
fn rotations(fields: &Fields<'_>, global: usize, local: usize) -> Result<Vec<Rotation>, LoadError> {
    let (empty, all) = (Map::new(), object(fields, "rope_parameters")?);
    let nested = Fields { file: fields.file, object: all.unwrap_or(&empty) };
    let kinds = ["full_attention", "sliding_attention"];
    // Parameters are nested only, but for the longest sequence, which scalings need.
    let longest = fields.object.get_key_value(POSITIONS).map(|(field, value)| (field.clone(), value.clone()));
    let longest = longest.into_iter().collect();
    let outer = Fields { file: fields.file, object: &longest };
    if all.is_some_and(|all| kinds.iter().any(|kind| !all.contains_key(*kind))) {
        return Err(fields.wrong("rope_parameters", format!("an object with {}", kinds.join(" and "))));
    }
    let of = |kind, head_dim, theta| {
        let scaling = Fields { file: fields.file, object: object(&nested, kind)?.unwrap_or(&empty) };
        if scaling.get("rope_type").and_then(Value::as_str) == Some("proportional") {
            return proportional(&scaling, head_dim, RopeDefaults { theta, partial: 1.0 });
        }
        let (rotation, rotated) = read(&outer, &scaling, head_dim, RopeDefaults { theta, partial: 1.0 })?;
        if rotated != head_dim {
            let allowed = "1, or rope_type proportional".into();
            return Err(scaling.wrong("partial_rotary_factor", allowed));
        }
        Ok(rotation)
    };
    let usual = RopeDefaults { theta: GLOBAL_THETA, partial: GLOBAL_ROTATED };
    let of_global = match all {
        None => proportional(&nested, global, usual)?,
        Some(_) => of("full_attention", global, GLOBAL_THETA)?,
    };
    Ok(vec![of_global, of("sliding_attention", local, LOCAL_THETA)?])
}

/// Rotation of the first pairs of a head, with the frequencies that they have if all pairs rotate.
fn proportional(
    scaling: &Fields<'_>,
    head_dim: usize,
    defaults: RopeDefaults,
) -> Result<Rotation, LoadError> {
    let theta = scaling.number("rope_theta", 1.0..=1e15, Some(defaults.theta))?;
    let share = scaling.number("partial_rotary_factor", 0.0..=1.0, Some(defaults.partial))?;
    let factor = scaling.number("factor", 1.0..=1e6, Some(1.0))?;
    let mut rotation = Rotation::new(head_dim / 2, head_dim, theta, &RopeScaling::Linear(factor));
    rotation.frequencies[(share * head_dim as f64 / 2.0) as usize..].fill(0.0);
    Ok(rotation)
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::AttentionOutputNorm => &["post_attention_layernorm"],
        Role::FeedForwardNorm => &["pre_feedforward_layernorm"],
        Role::FeedForwardOutputNorm => &["post_feedforward_layernorm"],
        Role::LayerEmbedding => &["model.embed_tokens_per_layer"],
        Role::LayerInput => &["model.per_layer_model_projection"],
        Role::LayerInputNorm => &["model.per_layer_projection_norm"],
        Role::LayerInputGate => &["per_layer_input_gate"],
        Role::LayerInputOutput => &["per_layer_projection"],
        Role::LayerInputOutputNorm => &["post_per_layer_input_norm"],
        Role::LayerScale => &["layer_scalar"],
        Role::RouterScale => &["router.scale"],
        Role::ExpertScales => &["router.per_expert_scale"],
        Role::Router => &["router.proj"],
        Role::ExpertNorm => &["pre_feedforward_layernorm_2"],
        Role::ExpertOutputNorm => &["post_feedforward_layernorm_2"],
        Role::SharedOutputNorm => &["post_feedforward_layernorm_1"],
        Role::ExpertGate | Role::ExpertUp => &["experts.gate_up_proj"],
        Role::ExpertDown => &["experts.down_proj"],
        Role::SharedGate => &["mlp.gate_proj"],
        Role::SharedUp => &["mlp.up_proj"],
        Role::SharedDown => &["mlp.down_proj"],
        role => names::usual(role),
    }
}
