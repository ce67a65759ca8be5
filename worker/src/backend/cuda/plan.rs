//! All device memory, planned before any of it is taken.

use skein_kernels::cuda::arena::{ArenaPlan, Carver, Phase};
use skein_kernels::cuda::{CudaError, DeviceSlice};

use super::error::CudaLoadError;

/// Names of the regions.
pub(super) const WEIGHTS: &str = "weights";
pub(super) const KV: &str = "KV cache";
pub(super) const STAGING: &str = "weights on their way";
pub(super) const STEP: &str = "activations, logits, inputs";

/// Left to the driver for code, launches and local memory, and to cuBLASLt for its own.
const DRIVER_BYTES: usize = 192 << 20;
/// Of a captured graph: its nodes' parameters on the device.
const GRAPH_BYTES_PER_NODE: usize = 2 << 10;
/// A process's context, where its own cannot be told from those of others.
const CONTEXT_BYTES: u64 = 512 << 20;

/// What is to be planned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    pub weights: usize,
    pub step: usize,
    /// Of all graphs.
    pub graph_nodes: usize,
    /// Bytes of a KV block, all layers.
    pub block_bytes: usize,
    /// Tokens of a block.
    pub block_size: u32,
    /// Asked for by `--max-model-len`.
    pub max_model_len: Option<u32>,
}

/// Who gets how much.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    /// Of the device's memory.
    pub utilization: f64,
    /// Workers on the device.
    pub sharers: u32,
    /// KV cache, where somebody chose.
    pub kv_bytes: Option<u64>,
}

/// Adds everything to `plan`; returns how many KV blocks there are.
///
/// # Errors
/// When the cache would hold less than one sequence of the length that was asked for, or nothing.
pub(super) fn fill(
    plan: &mut ArenaPlan,
    device_bytes: u64,
    needs: &Needs,
    share: Share,
) -> Result<u32, CudaLoadError> {
    plan.add::<u8>(WEIGHTS, needs.weights, Phase::Always, "--quantization fp8 halves them");
    plan.add::<u8>(STEP, needs.step, Phase::Step, "lower --max-num-batched-tokens or --max-num-seqs");
    let graphs = needs.graph_nodes * GRAPH_BYTES_PER_NODE;
    plan.add::<u8>("graphs", graphs, Phase::Reserved, "--enforce-eager does without");
    plan.add::<u8>(
        "driver, cuBLASLt",
        DRIVER_BYTES.min(device_bytes as usize / 64),
        Phase::Reserved,
        "kept free for them",
    );
    let left = match share.sharers {
        0 | 1 => plan.left(share.utilization),
        sharers => {
            let own = device_bytes as f64 * share.utilization / f64::from(sharers);
            let own = (own as u64).saturating_sub(CONTEXT_BYTES.min(device_bytes / 64) + plan.total_bytes());
            own.min(plan.left(1.0))
        }
    };
    let blocks = share.kv_bytes.unwrap_or(left) / needs.block_bytes.max(1) as u64;
    // Slots are numbered in 32 bits.
    let blocks = blocks.min(u64::from(i32::MAX as u32 / needs.block_size)) as u32;
    let longest = needs.max_model_len.unwrap_or(needs.block_size);
    if blocks < longest.div_ceil(needs.block_size) {
        return Err(CudaLoadError::TooSmall {
            tokens: u64::from(blocks) * u64::from(needs.block_size),
            longest,
            bytes_per_token: needs.block_bytes as u64 / u64::from(needs.block_size),
            plan: plan.to_string(),
        });
    }
    let shrink = match share.kv_bytes {
        Some(_) => "lower --kv-cache-memory-bytes",
        None => "lower --gpu-memory-utilization",
    };
    plan.add::<u8>(KV, blocks as usize * needs.block_bytes, Phase::Always, shrink);
    Ok(blocks)
}

/// Bytes that `place` takes. What it places lies nowhere and must not be used.
pub(super) fn count(place: impl FnOnce(&mut Carver) -> Result<(), CudaError>) -> Result<usize, CudaError> {
    let mut nowhere = Carver::new(DeviceSlice::from_raw(0, usize::MAX / 2));
    place(&mut nowhere)?;
    Ok(nowhere.used())
}
