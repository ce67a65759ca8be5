//! Kimi Linear (Kimi Team 2025, arXiv 2510.26692): most layers have the state of Kimi Delta Attention, the
//! others latent attention without rotation. Experts as in DeepSeek-V3, behind dense layers.

use serde_json::{Map, Value, json};
use skein_kernels::cpu::rope::Rotation;

use super::decoder::{Choice, of_type, taps};
use super::deepseek::{self, Grouped, deepseek, grouped_experts, with_experts_by_type};
use crate::LoadError;
use crate::fields::Fields;
use crate::rope::object;
use crate::spec::Spec;
use crate::state_spec::{KeyedDeltaSpec, Mixer, StateSpec};
use crate::tensors::Role;

// Defaults of transformers' `KimiLinearConfig`.
const EPS: f64 = 1e-5;
const EXPERTS: Grouped = Grouped {
    experts: Choice { count: 256, per_token: 8 },
    groups: Choice { count: 1, per_token: 1 },
    scale: 2.446,
    shared: 1,
};
const MOE_INTERMEDIATE_SIZE: usize = 1024;
const DENSE_LAYERS: usize = 1;
const STATE_HEADS: usize = 32;
const STATE_HEAD_DIM: usize = 128;
const TAPS: usize = 4;
const FULL_ATTENTION_INTERVAL: usize = 4;
/// Names of its fields, in published files and in those that transformers saves.
pub const OWN_NAMES: &[(&str, &str)] = &[
    ("max_position_embeddings", "model_max_length"),
    ("n_group", "num_expert_group"),
    ("n_routed_experts", "num_experts"),
    ("n_shared_experts", "num_shared_experts"),
    ("norm_topk_prob", "moe_renormalize"),
    ("num_experts_per_tok", "num_experts_per_token"),
    ("scoring_func", "moe_router_activation_func"),
];
/// Sizes of states in published files, whose other sizes are outside.
const OF_STATES: &str = "linear_attn_config";

pub fn kimi_linear(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    fields.one_of("scoring_func", &["sigmoid"], Some("sigmoid"))?;
    if !fields.flag("mla_use_nope", true)? {
        return Err(fields.wrong("mla_use_nope", "true".into()));
    }
    let usual = without_rotation(fields.object);
    let fields = &Fields { file: fields.file, object: &usual };
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, Some(MOE_INTERMEDIATE_SIZE))?;
    let experts = grouped_experts(fields, inner_size, EXPERTS)?;
    let mut spec = deepseek(fields, false, experts, inner_size, DENSE_LAYERS)?;
    with_experts_by_type(fields, &mut spec, (experts, inner_size))?;
    if let Some(latent) = &spec.attention.latent {
        spec.rotations = vec![Rotation::none(latent.rotated)];
    }
    let none = Map::new();
    let of_states = Fields { file: fields.file, object: object(fields, OF_STATES)?.unwrap_or(&none) };
    let with_state = with_state(fields, &of_states, spec.layers.len())?;
    for (layer, has_state) in spec.layers.iter_mut().zip(with_state) {
        layer.mixer = if has_state { Mixer::State } else { Mixer::Attention };
    }
    spec.state = (spec.state_layers() > 0).then(|| state(fields, &of_states)).transpose()?;
    Ok(Spec { names, ..spec })
}

/// The configuration without the fields of rotations, which are written but not used, and with this family's
/// defaults. `head_dim` is of no layer: heads have the sizes of latent attention or of states.
fn without_rotation(config: &Map<String, Value>) -> Map<String, Value> {
    let mut usual = config.clone();
    for unused in ["head_dim", "rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"] {
        usual.remove(unused);
    }
    usual.entry("q_lora_rank").or_insert(Value::Null);
    if usual.get("rms_norm_eps").is_none_or(Value::is_null) {
        usual.insert("rms_norm_eps".into(), json!(EPS));
    }
    usual
}

/// Which layers have a state.
fn with_state(fields: &Fields<'_>, of_states: &Fields<'_>, layers: usize) -> Result<Vec<bool>, LoadError> {
    const LISTS: [&str; 2] = ["kda_layers", "full_attn_layers"];
    let is_listed = LISTS.iter().all(|field| !of_states.is_absent(field));
    if !fields.is_absent("layer_types") || !is_listed {
        let attends = |layer: usize| layer > 0 && layer.is_multiple_of(FULL_ATTENTION_INTERVAL);
        return of_type(fields, layers, "linear_attention", |layer| !attends(layer));
    }
    // Both lists count from 1.
    let mut has_state = vec![None; layers];
    for (field, is_of_state) in LISTS.into_iter().zip([true, false]) {
        let wrong = || {
            let other = if is_of_state { LISTS[1] } else { LISTS[0] };
            of_states.wrong(field, format!("numbers from 1 to {layers}, each here or in {other}"))
        };
        for number in of_states.get(field).and_then(Value::as_array).ok_or_else(wrong)? {
            let number = number.as_u64().and_then(|number| usize::try_from(number).ok());
            let place = number.and_then(|number| has_state.get_mut(number.checked_sub(1)?));
            let place = place.filter(|place| place.is_none()).ok_or_else(wrong)?;
            *place = Some(is_of_state);
        }
    }
    let all: Option<Vec<bool>> = has_state.into_iter().collect();
    all.ok_or_else(|| of_states.wrong(LISTS[0], format!("with {}, all of 1 to {layers}", LISTS[1])))
}

fn state(fields: &Fields<'_>, of_states: &Fields<'_>) -> Result<StateSpec, LoadError> {
    let place = |own: &'static str, outside: &'static str| {
        if of_states.is_absent(own) { (fields, outside) } else { (of_states, own) }
    };
    let (from, field) = place("num_heads", "linear_num_heads");
    let heads = from.size(field, 4096, Some(STATE_HEADS))?;
    let (from, field) = place("head_dim", "linear_head_dim");
    let head_dim = from.size(field, 1024, Some(STATE_HEAD_DIM))?;
    if !head_dim.is_multiple_of(4) {
        return Err(from.wrong(field, "a multiple of 4".into()));
    }
    let (from, field) = place("short_conv_kernel_size", "linear_conv_kernel_dim");
    let taps = taps(from, field, TAPS)?;
    Ok(StateSpec::KeyedDelta(KeyedDeltaSpec { heads, head_dim, taps, has_negative_rates: false }))
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::StateQuery => &["self_attn.q_proj"],
        Role::StateKey => &["self_attn.k_proj"],
        Role::StateValue => &["self_attn.v_proj"],
        Role::StateGateDown => &["self_attn.g_a_proj"],
        Role::StateGate => &["self_attn.g_b_proj"],
        Role::StateBeta => &["self_attn.b_proj"],
        Role::StateDecayDown => &["self_attn.f_a_proj"],
        Role::StateDecay => &["self_attn.f_b_proj"],
        Role::StateQueryTaps => &["self_attn.q_conv1d.weight"],
        Role::StateKeyTaps => &["self_attn.k_conv1d.weight"],
        Role::StateValueTaps => &["self_attn.v_conv1d.weight"],
        Role::StateDecayRate => &["self_attn.A_log"],
        Role::StateDecayBias => &["self_attn.dt_bias"],
        Role::StateNorm => &["self_attn.o_norm"],
        Role::StateOutput => &["self_attn.o_proj"],
        Role::Router => &["block_sparse_moe.gate"],
        Role::RouterCorrection => &["block_sparse_moe.gate.e_score_correction_bias"],
        Role::ExpertGate => &["block_sparse_moe.experts.{}.w1"],
        Role::ExpertUp => &["block_sparse_moe.experts.{}.w3"],
        Role::ExpertDown => &["block_sparse_moe.experts.{}.w2"],
        Role::SharedGate => &["block_sparse_moe.shared_experts.gate_proj"],
        Role::SharedUp => &["block_sparse_moe.shared_experts.up_proj"],
        Role::SharedDown => &["block_sparse_moe.shared_experts.down_proj"],
        // transformers renames dense networks like those with experts when it saves.
        Role::Gate => &["mlp.gate_proj", "block_sparse_moe.gate_proj"],
        Role::Up => &["mlp.up_proj", "block_sparse_moe.up_proj"],
        Role::Down => &["mlp.down_proj", "block_sparse_moe.down_proj"],
        _ => deepseek::names(role),
    }
}
