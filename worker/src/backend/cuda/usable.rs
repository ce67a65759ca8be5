//! Whether a CUDA device is present and can run a model, and if not, why.

use std::sync::Arc;

use skein_kernels::cuda::{CudaError, Device, Kernels, Unavailable};
use skein_kernels::gate::Gate;

use skein_model::config::ModelConfig;
use skein_model::on_cuda::{experts, latent};
use skein_model::shard::Shard;
use skein_model::spec::Spec;
use skein_model::state_spec::Mixer;

/// Head dimensions for which there are attention kernels.
const HEAD_DIMS: [usize; 6] = [16, 32, 64, 96, 128, 256];
/// Matrix widths must be multiples of this: kernels load 16 bytes at a time.
const WIDTH: usize = 8;

/// Why a model cannot run on a CUDA device here.
#[derive(Debug, thiserror::Error)]
pub enum NotUsable {
    /// There is no working device.
    #[error(transparent)]
    Device(#[from] Unavailable),
    /// The kernels cannot be loaded.
    #[error(transparent)]
    Kernels(CudaError),
    /// A size of the model has no kernel.
    #[error("the CUDA kernels cannot run this model: {what} is {got}; allowed: {allowed}")]
    Model {
        /// Name of the size.
        what: &'static str,
        /// The model's value.
        got: usize,
        /// The allowed values.
        allowed: String,
    },
    /// No kernel for a part of the model.
    #[error("the CUDA kernels cannot run this model: {family} has {part}; serve it with --device cpu")]
    Part {
        /// Name of the model family.
        family: &'static str,
        /// Description of the part without a kernel.
        part: &'static str,
    },
    /// A rank's heads do not suit the kernels.
    #[error(
        "the CUDA kernels cannot run rank {rank} of {ranks}: its {heads} query heads would read {kv_heads} KV heads \
         unevenly; choose another --tensor-parallel-size"
    )]
    Heads {
        /// Rank without a valid part.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
        /// Query heads of its part.
        heads: usize,
        /// KV heads of its part.
        kv_heads: usize,
    },
    /// A setting that the kernels do not support.
    #[error("{setting} is {got}; allowed: {allowed}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The configured value.
        got: usize,
        /// The allowed values.
        allowed: String,
    },
}

impl NotUsable {
    /// Whether a supported device failed. The CPU does not replace it then, because the device may work at
    /// the next start.
    pub fn is_fault(&self) -> bool {
        match self {
            Self::Device(Unavailable::DriverFailed(_)) => true,
            Self::Device(_)
            | Self::Model { .. }
            | Self::Part { .. }
            | Self::Heads { .. }
            | Self::Setting { .. } => false,
            Self::Kernels(error) => !matches!(error, CudaError::NoCompiler { .. }),
        }
    }
}

/// A device with loaded kernels; the calling thread is bound to it.
#[derive(Debug, Clone)]
pub struct OpenDevice {
    pub(super) device: Arc<Device>,
    pub(super) kernels: Arc<Kernels>,
}

/// Opens device `ordinal` and checks that it can run `model`.
///
/// # Errors
/// No usable device, or an unsupported model; see [`NotUsable`].
pub fn open(ordinal: u32, model: &ModelConfig, block_size: u32) -> Result<OpenDevice, NotUsable> {
    let device = Device::open(ordinal)?;
    check_model(model, block_size)?;
    let kernels = Arc::new(Kernels::load(&device).map_err(NotUsable::Kernels)?);
    tracing::debug!(kernels = %kernels.kernel_source(), "CUDA kernels loaded");
    Ok(OpenDevice { device, kernels })
}

/// Checks that there are kernels for `model`.
///
/// # Errors
/// Names the part of the model or the setting without a kernel.
pub fn check_model(model: &ModelConfig, block_size: u32) -> Result<(), NotUsable> {
    let has_state = model.spec.state.is_some().then_some("layers with a recurrent state");
    let pools = model.spec.pooled.is_some().then_some("vectors of prompts instead of tokens");
    let has_gate = model.spec.attention.has_gate.then_some("gates on the outputs of attention");
    let part = pools.or(has_state).or(has_gate).or_else(|| part_beside_the_usual(&model.spec));
    if let Some(part) = part.or_else(|| experts::part_without_kernel(&model.spec)) {
        return Err(NotUsable::Part { family: model.model_type, part });
    }
    let refuse = |what, got, allowed: String| Err(NotUsable::Model { what, got, allowed });
    let spec = &model.spec;
    if let Some((what, got, allowed)) = latent::size_without_kernel(spec) {
        return refuse(what, got, allowed);
    }
    let head_dim = spec.attention.head_dim;
    if spec.attention.latent.is_none() && !HEAD_DIMS.contains(&head_dim) {
        return refuse("head_dim", head_dim, HEAD_DIMS.map(|dim| dim.to_string()).join(", "));
    }
    let inner = experts::inner_sizes(spec).map(|size| ("intermediate_size", size));
    for (what, got) in std::iter::once(("hidden_size", spec.hidden_size)).chain(inner) {
        if !got.is_multiple_of(WIDTH) {
            return refuse(what, got, format!("multiples of {WIDTH}"));
        }
    }
    if !block_size.is_power_of_two() || !(8..=256).contains(&block_size) {
        let allowed = "8, 16, 32, 64, 128 or 256 on a GPU".into();
        return Err(NotUsable::Setting { setting: "block_size", got: block_size as usize, allowed });
    }
    Ok(())
}

/// First part without a kernel that only newer models have.
fn part_beside_the_usual(spec: &Spec) -> Option<&'static str> {
    if spec.dense_up_to.is_some() {
        return Some("sparse attention");
    }
    if spec.layers.iter().any(|layer| layer.mixer == Mixer::None || !layer.feed_forward.exists()) {
        return Some("layers with only attention or only a feed-forward network");
    }
    if spec.layers.iter().any(|layer| layer.feed_forward.activation == Gate::SquaredRelu) {
        return Some("squared ReLU in feed-forward networks");
    }
    if spec.windowed_attention.is_some() {
        return Some("other heads in layers with a window than in those without");
    }
    if spec.layers.iter().any(|layer| layer.cache_of.is_some()) {
        return Some("layers that read the keys and values of others");
    }
    if spec.attention_shapes().any(|attention| attention.has_value_norm) {
        return Some("normalised values");
    }
    if spec.layers.iter().filter_map(|layer| layer.temperature).any(|temperature| temperature.shift != 1) {
        return Some("queries scaled by their position otherwise than in Llama 4");
    }
    let has_inputs = spec.layer_inputs.is_some() || spec.has_layer_scales;
    has_inputs.then_some("layers with inputs or factors of their own")
}

/// Checks that the attention kernels can run the heads of a rank: equally many query heads read each KV head.
///
/// # Errors
/// Names the rank and its heads.
pub fn check_heads(shard: &Shard) -> Result<(), NotUsable> {
    let (heads, kv_heads) = (shard.heads.len(), shard.kv_heads.len());
    if kv_heads == 1 || (shard.skipped_heads() == 0 && heads == kv_heads * shard.group) {
        return Ok(());
    }
    Err(NotUsable::Heads { rank: shard.rank, ranks: shard.ranks, heads, kv_heads })
}
