//! Nemotron-H and Nemotron 3 (NVIDIA 2025, arXiv 2504.03624 and 2512.20848): each layer has a Mamba-2 mixer,
//! attention without rotation, an ungated network, or ungated experts chosen as in DeepSeek-V3, and one norm.

use serde_json::Value;
use skein_kernels::cpu::rope::Rotation;
use skein_kernels::gate::Gate;

use super::decoder::{Choice, Defaults, decoder_of, taps};
use super::deepseek::{Grouped, grouped_experts};
use super::{names, state_space};
use crate::LoadError;
use crate::fields::Fields;
use crate::spec::{ExpertsSpec, FeedForwardSpec, HeadPairs, LayerSpec, SharedSpec, Spec};
use crate::state_spec::{Mixer, SpaceSpec, StateSpec};
use crate::tensors::Role;

// Defaults of transformers' `NemotronHConfig`.
pub const SIZES: &[(&str, u32)] = &[
    ("vocab_size", 131_072),
    ("hidden_size", 4096),
    ("intermediate_size", 21_504),
    ("num_attention_heads", 32),
    ("num_key_value_heads", 8),
];
const HEAD_DIM: usize = 128;
const EPS: f64 = 1e-5;
const HEADS: usize = 128;
const STATE_HEAD_DIM: usize = 64;
const GROUPS: usize = 8;
const STATE_DIM: usize = 128;
const TAPS: usize = 4;
const EXPERT_INTERMEDIATE_SIZE: usize = 7688;
const EXPERTS: Grouped = Grouped {
    experts: Choice { count: 8, per_token: 2 },
    groups: Choice { count: 1, per_token: 1 },
    scale: 1.0,
    shared: 1,
};

/// Most layers.
const MAX_LAYERS: usize = 4096;
/// Fields with a list of the layers' kinds.
const LISTS: [&str; 2] = ["layers_block_type", "layer_types"];
/// Field with a letter for each layer.
const LETTERS: &str = "hybrid_override_pattern";

/// What a layer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Space,
    Attention,
    Dense,
    Experts,
}

impl Kind {
    fn of_name(name: &str) -> Option<Self> {
        match name {
            "mamba" | "linear_attention" => Some(Self::Space),
            "attention" | "full_attention" => Some(Self::Attention),
            "mlp" => Some(Self::Dense),
            "moe" => Some(Self::Experts),
            _ => None,
        }
    }

    fn of_letter(letter: char) -> Option<Self> {
        match letter {
            'M' => Some(Self::Space),
            '*' => Some(Self::Attention),
            '-' => Some(Self::Dense),
            'E' => Some(Self::Experts),
            _ => None,
        }
    }
}

pub fn nemotron_h(fields: &Fields<'_>) -> Result<Spec, LoadError> {
    fields.one_of("mlp_hidden_act", &["relu2"], Some("relu2"))?;
    for field in ["attention_bias", "use_bias", "mamba_proj_bias"] {
        if fields.flag(field, false)? {
            return Err(fields.wrong(field, "false".into()));
        }
    }
    if !fields.is_absent("sliding_window") {
        return Err(fields.wrong("sliding_window", "null: all tokens before are attended to".into()));
    }
    let kinds = kinds(fields)?;
    // The first releases call it so.
    let head_dim = fields.size("attention_head_dim", 4096, Some(HEAD_DIM))?;
    let defaults =
        Defaults { head_dim: Some(head_dim), eps_field: "layer_norm_epsilon", eps: EPS, ..Defaults::USUAL };
    let mut spec = decoder_of(fields, defaults, kinds.len())?;
    spec.rotations = vec![Rotation::none(spec.attention.head_dim)];
    spec.attention.pairs = HeadPairs { rotated: spec.attention.head_dim, is_interleaved: false };
    let has = |kind| kinds.contains(&kind);
    spec.state = has(Kind::Space).then(|| space(fields)).transpose()?;
    let dense = FeedForwardSpec {
        activation: Gate::SquaredRelu,
        is_gated: false,
        ..spec.layers[0].feed_forward.with_bias(fields.flag("mlp_bias", false)?)
    };
    if dense.has_bias && has(Kind::Experts) {
        return Err(fields.wrong("mlp_bias", "false in a model with experts".into()));
    }
    let experts = has(Kind::Experts).then(|| experts(fields, dense)).transpose()?.unwrap_or(dense);
    for (layer, kind) in spec.layers.iter_mut().zip(kinds) {
        let (mixer, feed_forward) = match kind {
            Kind::Space => (Mixer::State, FeedForwardSpec::NONE),
            Kind::Attention => (Mixer::Attention, FeedForwardSpec::NONE),
            Kind::Dense => (Mixer::None, dense),
            Kind::Experts => (Mixer::None, experts),
        };
        *layer = LayerSpec { mixer, feed_forward, ..*layer };
    }
    Ok(Spec { names, ..spec })
}

/// What the layers are, by a list or by letters, which must say the same.
fn kinds(fields: &Fields<'_>) -> Result<Vec<Kind>, LoadError> {
    let list = LISTS.into_iter().find(|field| !fields.is_absent(field));
    let listed = list.map(|field| {
        let types = fields.get(field).and_then(Value::as_array);
        let kinds = types.and_then(|types| types.iter().map(|it| Kind::of_name(it.as_str()?)).collect());
        let allowed = || "a list of linear_attention, full_attention, mlp and moe".into();
        kinds.ok_or_else(|| fields.wrong(field, allowed()))
    });
    let listed: Option<Vec<Kind>> = listed.transpose()?;
    let letters = (!fields.is_absent(LETTERS)).then(|| {
        let letters = fields.get(LETTERS).and_then(Value::as_str);
        let kinds = letters.and_then(|letters| letters.chars().map(Kind::of_letter).collect());
        kinds.ok_or_else(|| fields.wrong(LETTERS, "M, *, - or E for each layer".into()))
    });
    let letters: Option<Vec<Kind>> = letters.transpose()?;
    if let (Some(field), Some(letters)) = (list, &letters)
        && listed.as_ref() != Some(letters)
    {
        return Err(fields.wrong(LETTERS, format!("the same layers as {field}")));
    }
    let field = list.unwrap_or(LETTERS);
    let Some(kinds) = listed.or(letters) else {
        let allowed = format!("a list of the layers' kinds, or {LETTERS} instead");
        return Err(fields.wrong(LISTS[0], allowed));
    };
    if kinds.len() > MAX_LAYERS || !kinds.contains(&Kind::Attention) {
        return Err(fields.wrong(field, format!("1 to {MAX_LAYERS} layers, one of which attends")));
    }
    // Newer configurations leave it out.
    if fields.size("num_hidden_layers", MAX_LAYERS, Some(kinds.len()))? != kinds.len() {
        return Err(fields.wrong("num_hidden_layers", format!("{}, as many as {field} has", kinds.len())));
    }
    Ok(kinds)
}

fn experts(fields: &Fields<'_>, dense: FeedForwardSpec) -> Result<FeedForwardSpec, LoadError> {
    // The width of the shared network is that of all of its parts, or of each, by the implementation.
    if fields.count("n_shared_experts", 1024, 1)? != 1 {
        return Err(fields.wrong("n_shared_experts", "1".into()));
    }
    let latent = "moe_latent_size";
    let latent = (!fields.is_absent(latent)).then(|| fields.size(latent, 1 << 17, None)).transpose()?;
    let inner_size = fields.size("moe_intermediate_size", 1 << 20, Some(EXPERT_INTERMEDIATE_SIZE))?;
    let shared = "moe_shared_expert_intermediate_size";
    let shared = fields.size(shared, 1 << 20, Some(EXPERT_INTERMEDIATE_SIZE))?;
    let experts = ExpertsSpec {
        shared: Some(SharedSpec { inner_size: shared, is_weighted: false }),
        latent,
        ..grouped_experts(fields, inner_size, EXPERTS)?
    };
    Ok(FeedForwardSpec { inner_size, experts: Some(experts), ..dense })
}

fn space(fields: &Fields<'_>) -> Result<StateSpec, LoadError> {
    fields.one_of("mamba_hidden_act", &["silu"], Some("silu"))?;
    // Some configurations have the names of other families.
    let field = |name: &'static str, other: &'static str| if fields.is_absent(other) { name } else { other };
    state_space::check_time(fields, field("time_step_limit", "mamba_dt_limit"))?;
    let heads = fields.size("mamba_num_heads", state_space::MAX_HEADS, Some(HEADS))?;
    let groups = field("n_groups", "mamba_n_groups");
    Ok(StateSpec::Space(SpaceSpec {
        groups: state_space::groups(fields, groups, GROUPS, heads, "mamba_num_heads")?,
        heads,
        state_dim: state_space::state_dim(fields, "ssm_state_size", STATE_DIM)?,
        head_dim: fields.size("mamba_head_dim", 4096, Some(STATE_HEAD_DIM))?,
        taps: taps(fields, field("conv_kernel", "mamba_d_conv"), TAPS)?,
        has_taps_bias: fields.flag(field("use_conv_bias", "mamba_conv_bias"), true)?,
        has_negative_rates: false,
        time_limits: (0.0, f32::INFINITY),
        eps: fields.number("layer_norm_epsilon", 0.0..=1.0, Some(EPS))? as f32,
    }))
}

fn names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Embedding => &["model.embeddings"],
        Role::AttentionNorm | Role::FeedForwardNorm => &["norm"],
        Role::Query => &["mixer.q_proj"],
        Role::Key => &["mixer.k_proj"],
        Role::Value => &["mixer.v_proj"],
        Role::AttentionOutput => &["mixer.o_proj"],
        Role::StateQuery | Role::StateKey | Role::StateValue | Role::StateGate | Role::StateDecay => {
            &["mixer.in_proj"]
        }
        Role::StateTaps => &["mixer.conv1d.weight"],
        Role::StateTapsBias => &["mixer.conv1d.bias"],
        Role::StateDecayRate => &["mixer.A_log"],
        Role::StateDecayBias => &["mixer.dt_bias"],
        Role::StateSkip => &["mixer.D"],
        Role::StateNorm => &["mixer.norm"],
        Role::StateOutput => &["mixer.out_proj"],
        Role::Up => &["mixer.up_proj"],
        Role::Down => &["mixer.down_proj"],
        Role::Router => &["mixer.gate"],
        Role::RouterCorrection => &["mixer.gate.e_score_correction_bias"],
        Role::ExpertLatent => &["mixer.fc1_latent_proj"],
        Role::ExpertLatentOutput => &["mixer.fc2_latent_proj"],
        Role::ExpertUp => &["mixer.experts.{}.up_proj", "mixer.experts.up_proj"],
        Role::ExpertDown => &["mixer.experts.{}.down_proj", "mixer.experts.down_proj"],
        Role::SharedUp => &["mixer.shared_experts.up_proj"],
        Role::SharedDown => &["mixer.shared_experts.down_proj"],
        Role::LastNorm => &["model.norm_f"],
        role => names::usual(role),
    }
}
