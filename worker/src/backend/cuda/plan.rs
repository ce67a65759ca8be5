//! Plans all device memory before any is allocated.

use skein_kernels::cuda::arena::{ArenaPlan, Carver, Phase};
use skein_kernels::cuda::{CudaError, DeviceSlice};

use super::error::CudaLoadError;

/// Names of the regions.
pub(super) const WEIGHTS: &str = "weights";
pub(super) const KV: &str = "KV cache";
pub(super) const STAGING: &str = "weights on their way";
pub(super) const STEP: &str = "activations, logits, inputs";

/// Kept free for the driver (code, launches, local memory) and for cuBLASLt.
const DRIVER_BYTES: usize = 192 << 20;
/// Kept free for NCCL's buffers, if ranks exchange with it. An estimate, not yet measured on a GPU.
const NCCL_BYTES: usize = 256 << 20;
/// Device bytes of each node of a captured graph, for its parameters.
const GRAPH_BYTES_PER_NODE: usize = 2 << 10;
/// Bytes of one process's context, assumed if they cannot be told apart from those of other processes.
const CONTEXT_BYTES: u64 = 512 << 20;

/// Sizes to plan for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    pub weights: usize,
    pub step: usize,
    /// Nodes of all graphs.
    pub graph_nodes: usize,
    /// Bytes of a KV block, all layers.
    pub block_bytes: usize,
    /// Tokens in a block.
    pub block_size: u32,
    /// Value of `--max-model-len`.
    pub max_model_len: Option<u32>,
    /// Number of ranks that share the model.
    pub ranks: usize,
}

/// This worker's part of the device's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryShare {
    /// Fraction of the device's memory that all its workers use together.
    pub utilization: f64,
    /// Workers on the device.
    pub sharers: u32,
    /// KV cache bytes, if configured.
    pub kv_bytes: Option<u64>,
}

/// Adds all regions to `plan` and returns the number of KV blocks, on which all ranks `agree`.
///
/// # Errors
/// If the cache would not hold one sequence of the configured length, or nothing at all.
pub(super) fn fill(
    plan: &mut ArenaPlan,
    device_bytes: u64,
    needs: &Needs,
    share: MemoryShare,
    agree: impl FnOnce(u32) -> Result<u32, CudaLoadError>,
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
    if needs.ranks > 1 {
        let bytes = NCCL_BYTES.min(device_bytes as usize / 64);
        plan.add::<u8>("NCCL", bytes, Phase::Reserved, "kept free for its buffers");
    }
    let left = match share.sharers {
        0 | 1 => plan.left(share.utilization),
        sharers => {
            let own = device_bytes as f64 * share.utilization / f64::from(sharers);
            let own = (own as u64).saturating_sub(CONTEXT_BYTES.min(device_bytes / 64) + plan.total_bytes());
            own.min(plan.left(1.0))
        }
    };
    let blocks = share.kv_bytes.unwrap_or(left) / needs.block_bytes.max(1) as u64;
    // Slot numbers have 32 bits.
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
    let blocks = agree(blocks)?;
    let shrink = match share.kv_bytes {
        Some(_) => "lower --kv-cache-memory-bytes",
        None => "lower --gpu-memory-utilization",
    };
    plan.add::<u8>(KV, blocks as usize * needs.block_bytes, Phase::Always, shrink);
    Ok(blocks)
}

/// Bytes that `place` takes. The pointers that it gets are not backed by memory and must not be used.
pub(super) fn count(place: impl FnOnce(&mut Carver) -> Result<(), CudaError>) -> Result<usize, CudaError> {
    let mut nowhere = Carver::new(DeviceSlice::from_raw(0, usize::MAX / 2));
    place(&mut nowhere)?;
    Ok(nowhere.used())
}
