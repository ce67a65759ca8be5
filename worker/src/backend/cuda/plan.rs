//! Plans all device memory before any is allocated.

use skein_kernels::cuda::arena::{ArenaPlan, Carver, Phase};
use skein_kernels::cuda::{CudaError, DeviceSlice};

use super::error::CudaLoadError;
use crate::backend::{KvBlocks, KvTokenBytes};

/// Names of the regions.
pub(super) const WEIGHTS: &str = "weights";
pub(super) const KV: &str = "KV cache";
pub(super) const STAGING: &str = "weights on their way";
pub(super) const ADAPTERS: &str = "adapters";
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
    /// Slots of adapters.
    pub adapters: usize,
    /// Nodes of all graphs.
    pub graph_nodes: usize,
    /// Inbox for sums of other ranks, unless it is already allocated.
    pub inbox: usize,
    /// KV cache of a token.
    pub token: KvTokenBytes,
    /// Tokens in a block.
    pub block_size: u32,
    /// Value of `--max-model-len`.
    pub max_model_len: Option<u32>,
    /// Number of ranks that share the model.
    pub ranks: usize,
}

impl Needs {
    /// Bytes of a block of all layers.
    pub fn block_bytes(&self) -> u64 {
        self.token.all() * u64::from(self.block_size)
    }

    /// Bytes of these blocks.
    pub fn kv_bytes(&self, kv: KvBlocks) -> u64 {
        let KvTokenBytes { main, windowed } = self.token;
        let tokens = |blocks: u32| u64::from(blocks) * u64::from(self.block_size);
        let windows = kv.window.map_or(kv.blocks, |window| window.blocks);
        main * tokens(kv.blocks) + windowed * tokens(windows)
    }
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

/// Adds all regions to `plan` and returns the number of KV blocks. All ranks `agree` on the number of blocks
/// that fit if all layers share them, which `divide` then divides.
///
/// # Errors
/// If the cache would not hold one sequence of the configured length, or nothing at all.
pub(super) fn fill(
    plan: &mut ArenaPlan,
    device_bytes: u64,
    needs: &Needs,
    share: MemoryShare,
    agree: impl FnOnce(u32) -> Result<u32, CudaLoadError>,
    divide: impl Fn(u32) -> KvBlocks,
) -> Result<KvBlocks, CudaLoadError> {
    plan.add::<u8>(WEIGHTS, needs.weights, Phase::Always, "--quantization fp8 halves them");
    plan.add::<u8>(STEP, needs.step, Phase::Step, "lower --max-num-batched-tokens or --max-num-seqs");
    if needs.adapters > 0 {
        plan.add::<u8>(ADAPTERS, needs.adapters, Phase::Always, "lower --max-loras or --max-lora-rank");
    }
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
    if needs.inbox > 0 {
        let hint = "--disable-custom-all-reduce does without";
        plan.add::<u8>("inbox", needs.inbox, Phase::Reserved, hint);
    }
    let left = match share.sharers {
        0 | 1 => plan.left(share.utilization),
        sharers => {
            let own = device_bytes as f64 * share.utilization / f64::from(sharers);
            let own = (own as u64).saturating_sub(CONTEXT_BYTES.min(device_bytes / 64) + plan.total_bytes());
            own.min(plan.left(1.0))
        }
    };
    let blocks = share.kv_bytes.unwrap_or(left) / needs.block_bytes().max(1);
    // Slot numbers have 32 bits.
    let blocks = blocks.min(u64::from(i32::MAX as u32 / needs.block_size)) as u32;
    let longest = needs.max_model_len.unwrap_or(needs.block_size);
    let divided = divide(blocks).blocks;
    if divided < longest.div_ceil(needs.block_size) {
        return Err(CudaLoadError::TooSmall {
            tokens: u64::from(divided) * u64::from(needs.block_size),
            longest,
            bytes_per_token: needs.token.all(),
            plan: plan.to_string(),
        });
    }
    let kv = divide(agree(blocks)?);
    let shrink = match share.kv_bytes {
        Some(_) => "lower --kv-cache-memory-bytes",
        None => "lower --gpu-memory-utilization",
    };
    plan.add::<u8>(KV, needs.kv_bytes(kv) as usize, Phase::Always, shrink);
    Ok(kv)
}

/// Bytes that `place` takes. The pointers that it gets are not backed by memory and must not be used.
pub(super) fn count(place: impl FnOnce(&mut Carver) -> Result<(), CudaError>) -> Result<usize, CudaError> {
    let mut nowhere = Carver::new(DeviceSlice::from_raw(0, usize::MAX / 2));
    place(&mut nowhere)?;
    Ok(nowhere.used())
}
