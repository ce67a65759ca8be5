//! Granite 4 (IBM 2025): Granite with Mamba-2 layers among those that attend, usually without rotation, and a
//! shared network in each layer, alone or beside experts.

use serde_json::Value;
use skein_kernels::cpu::rope::Rotation;

use super::decoder::{experts, taps};
use super::granite::{self, EXPERTS};
use super::state_space;
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::{SharedSpec, Spec};
use crate::state_spec::{Mixer, SpaceSpec, StateSpec};
use crate::tensors::Role;

// Defaults of transformers' `GraniteMoeHybridConfig`.
const SHARED_INTERMEDIATE_SIZE: usize = 1024;
const EPS: f64 = 1e-6;
const HEADS: usize = 128;
const GROUPS: usize = 1;
const STATE_DIM: usize = 256;
const EXPAND: usize = 2;
const TAPS: usize = 4;
const CHUNK: usize = 256;

pub fn granitemoehybrid(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    let mut spec = Spec { names, ..granite::granite(fields)? };
    if fields.one_of("position_embedding_type", &["rope", "nope"], Some("nope"))? == "nope" {
        spec.rotations = vec![Rotation::none(spec.attention.head_dim)];
    }
    let shared = fields.size("shared_intermediate_size", 1 << 20, Some(SHARED_INTERMEDIATE_SIZE))?;
    let has_experts = fields.count("num_local_experts", 4096, EXPERTS.count)? > 0;
    let experts = has_experts.then(|| experts(fields, "num_local_experts", EXPERTS, true)).transpose()?;
    let with_state = with_state(fields, spec.layers.len())?;
    for (layer, has_state) in spec.layers.iter_mut().zip(with_state) {
        layer.mixer = if has_state { Mixer::State } else { Mixer::Attention };
        match experts {
            None => layer.feed_forward.inner_size = shared,
            Some(mut experts) => {
                experts.shared = Some(SharedSpec { inner_size: shared, is_weighted: false });
                layer.feed_forward.experts = Some(experts);
            }
        }
    }
    spec.state = (spec.state_layers() > 0).then(|| space(fields, spec.hidden_size)).transpose()?;
    Ok(spec)
}

/// Which layers have a state: those of type `mamba` in releases, or `linear_attention`; all by default.
fn with_state(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>, LoadError> {
    let given = ["layer_types", "layers_block_type"].into_iter().find(|field| !fields.is_absent(field));
    let Some(field) = given else { return Ok(vec![true; layers]) };
    let wrong = || fields.wrong(field, format!("{layers} entries, mamba or attention for each layer"));
    let types = fields.get(field).and_then(Value::as_array).filter(|types| types.len() == layers);
    let types = types.ok_or_else(wrong)?;
    let has_state = |layer: usize| match types.get(layer).and_then(Value::as_str) {
        Some("mamba" | "linear_attention") => Ok(true),
        Some("attention" | "full_attention") => Ok(false),
        _ => Err(wrong()),
    };
    (0..layers).map(has_state).collect()
}

fn space(fields: &Fields<'_>, hidden: usize) -> Result<StateSpec, LoadError> {
    if fields.flag("mamba_proj_bias", false)? {
        return Err(fields.wrong("mamba_proj_bias", "false".into()));
    }
    state_space::check_time(fields, "time_step_limit")?;
    // How many positions other programs compute at once; the results are the same.
    fields.size("mamba_chunk_size", 1 << 20, Some(CHUNK))?;
    let heads = fields.size("mamba_n_heads", state_space::MAX_HEADS, Some(HEADS))?;
    let groups = state_space::groups(fields, "mamba_n_groups", GROUPS, heads, "mamba_n_heads")?;
    let values = fields.size("mamba_expand", 64, Some(EXPAND))? * hidden;
    if !values.is_multiple_of(heads) {
        let allowed = format!("a divisor of {values}, mamba_expand times hidden_size");
        return Err(fields.wrong("mamba_n_heads", allowed));
    }
    let is_auto = fields.get("mamba_d_head").is_some_and(|value| value == "auto");
    let head_dim = values / heads;
    if !is_auto && fields.size("mamba_d_head", 4096, Some(head_dim))? != head_dim {
        return Err(fields.wrong("mamba_d_head", format!("{head_dim}, so that heads have all values")));
    }
    Ok(StateSpec::Space(SpaceSpec {
        groups,
        heads,
        state_dim: state_space::state_dim(fields, "mamba_d_state", STATE_DIM)?,
        head_dim,
        taps: taps(fields, "mamba_d_conv", TAPS)?,
        has_taps_bias: fields.flag("mamba_conv_bias", true)?,
        time_limits: (0.0, f32::INFINITY),
        eps: fields.number("rms_norm_eps", 0.0..=1.0, Some(EPS))? as f32,
        has_negative_rates: false,
    }))
}

/// Names in IBM's releases and in version 5 of transformers.
fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::StateQuery | Role::StateKey | Role::StateValue | Role::StateGate | Role::StateDecay => {
            &["mamba.in_proj"]
        }
        Role::StateTaps => &["mamba.conv1d.weight"],
        Role::StateTapsBias => &["mamba.conv1d.bias"],
        Role::StateDecayRate => &["mamba.A_log"],
        Role::StateDecayBias => &["mamba.dt_bias"],
        Role::StateSkip => &["mamba.D"],
        Role::StateNorm => &["mamba.norm"],
        Role::StateOutput => &["mamba.out_proj"],
        Role::Gate | Role::Up | Role::SharedGate | Role::SharedUp => &["shared_mlp.input_linear"],
        Role::Down | Role::SharedDown => &["shared_mlp.output_linear"],
        role => granite::names(role),
    }
}
