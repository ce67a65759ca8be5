//! Prefill attention for Hopper (wgmma, TMA) over the paged KV cache; `cu/attention_sm90.cu`. Not yet run on
//! a GPU.
//!
//! Handles a step's sequences with many rows. Sequences with few rows, above all decoding ones, are left to
//! the attention kernels that divide contexts; [`PrefillSm90::plan`]'s `min_rows` is the threshold. A row's
//! bits do not depend on its chunk or the rest of its batch, but they differ from those of the other kernels.

use std::marker::PhantomData;

use super::Activation;
use super::attention::AttentionShape;
use super::kv::{KvLayer, StepSequences};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::tensor_map::Swizzle;
use crate::cuda::{CudaError, Device, DeviceSlice, Kernels, Stream, TensorMap};

/// Query rows times heads of a group in a tile.
const TILE_ROWS: usize = 128;
/// Positions in a KV tile.
const TILE_KV: usize = 128;
/// Values of a row that one copy moves: 128 bytes.
const SLAB: usize = 64;
/// One warpgroup copies and two multiply.
const THREADS: u32 = 384;
/// Words of the workspace before the planned tiles.
const HEADER_WORDS: usize = 4;

/// Whether `device` and these kernels support `shape`: compute capability 9.0, head dimension 64 or 128, no
/// latents, windows that slide. The caller has to check for batch invariance: chunk lengths decide which rows
/// come here.
pub fn is_supported(shape: &AttentionShape, device: &Device) -> bool {
    let has_heads = shape.latent.is_none() && matches!(shape.head_dim, 64 | 128);
    device.capability == (9, 0) && has_heads && !shape.is_chunked
}

/// Memory of one [`PrefillSm90`] launch. Rows of sequences that were not planned are left unchanged.
#[derive(Debug, Clone, Copy)]
pub struct PrefillRows<'a, T> {
    /// `[rows, q_stride]`; a row starts with its query heads.
    pub q: DeviceSlice<T>,
    /// Values from one row of `q` to the next, a multiple of 8.
    pub q_stride: usize,
    /// `[rows, heads * head_dim]`
    pub out: DeviceSlice<T>,
    /// `[heads]`: a logit that takes part in the softmax but has no value; or [`DeviceSlice::NONE`].
    pub sinks: DeviceSlice<f32>,
    /// Keys and values, including those of the step's rows.
    pub layer: &'a PrefillLayer<T>,
    /// The step's sequences, as passed to [`PrefillSm90::plan`].
    pub sequences: &'a StepSequences,
    /// The workspace passed to [`PrefillSm90::plan`].
    pub workspace: DeviceSlice<u32>,
}

/// One layer's keys and values with their tensor maps. Created once for each cache.
#[derive(Debug, Clone, Copy)]
pub struct PrefillLayer<T> {
    layer: KvLayer<T>,
    keys: TensorMap,
    values: TensorMap,
}

impl<T: Activation> PrefillLayer<T> {
    /// Creates the tensor maps of `layer`, whose memory it does not keep alive.
    pub fn new(layer: KvLayer<T>) -> Result<Self, CudaError> {
        let KvLayer { block_size, head_dim, .. } = layer;
        assert!(block_size.is_power_of_two() && (8..=256).contains(&block_size), "block size {block_size}");
        let map = |tensor| {
            let (dims, box_dims) = ([cache_rows(&layer), head_dim], [block_size.min(TILE_KV), SLAB]);
            TensorMap::new(tensor, &dims, &box_dims, Swizzle::Bytes128)
        };
        Ok(Self { keys: map(layer.keys)?, values: map(layer.values)?, layer })
    }
}

/// Rows of `head_dim` values in a layer's keys.
fn cache_rows<T>(layer: &KvLayer<T>) -> usize {
    layer.blocks * layer.kv_heads * layer.block_size
}

/// Prefill attention for long chunks: call [`Self::plan`] once per step and [`Self::launch`] once per layer.
#[derive(Debug, Clone, Copy)]
pub struct PrefillSm90<T> {
    plan: Kernel,
    prefill: Kernel,
    shape: AttentionShape,
    blocks: u32,
    of: PhantomData<T>,
}

impl<T: Activation> PrefillSm90<T> {
    /// Looks the kernels up. Check [`is_supported`] first.
    pub fn new(kernels: &Kernels, shape: AttentionShape) -> Result<Self, CudaError> {
        let AttentionShape { heads, kv_heads, head_dim, softcap, window, .. } = shape;
        if kv_heads == 0 || heads % kv_heads != 0 || heads == 0 || !is_supported(&shape, kernels.device()) {
            let (major, minor) = kernels.device().capability;
            return Err(CudaError::invalid(format!(
                "prefill attention with wgmma supports head dimensions 64 and 128 and sliding windows on compute \
                 capability 9.0, not {heads} heads over {kv_heads} of {head_dim} on {major}.{minor}; use the other \
                 attention"
            )));
        }
        assert!(softcap.is_none_or(|cap| cap > 0.0), "softcap {softcap:?} is positive");
        assert!(window.is_none_or(|window| (1..1 << 30).contains(&window)), "window {window:?} is 1 to 2^30");
        let prefill = kernels.get(match (T::SUFFIX, head_dim) {
            ("bf16", 64) => "attention_sm90_bf16_64",
            ("bf16", _) => "attention_sm90_bf16_128",
            (_, 64) => "attention_sm90_f16_64",
            _ => "attention_sm90_f16_128",
        })?;
        prefill.allow_shared(shared_bytes(head_dim))?;
        let blocks = kernels.device().multiprocessors;
        Ok(Self { plan: kernels.get("attention_sm90_plan")?, prefill, shape, blocks, of: PhantomData })
    }

    /// Words of the workspace for steps of up to `max_rows` rows and `max_sequences` sequences. A planned
    /// tile takes two.
    pub fn workspace_words(&self, max_rows: usize, max_sequences: usize) -> usize {
        HEADER_WORDS + 2 * (max_rows * self.shape.group() / TILE_ROWS + max_sequences)
    }

    /// Queues the plan of a step: the tiles of all sequences with at least `min_rows` rows, most expensive
    /// first.
    pub fn plan(
        &self,
        stream: &Stream,
        sequences: &StepSequences,
        min_rows: usize,
        workspace: DeviceSlice<u32>,
    ) -> Result<(), CudaError> {
        let capacity = sequences.capacity;
        let needed = self.workspace_words(sequences.rows, capacity);
        assert!(workspace.len() >= needed, "a workspace of {} words, {needed} needed", workspace.len());
        assert!(sequences.row_starts.len() > capacity && sequences.context_lens.len() >= capacity);
        let (count, items) = parts(workspace);
        let args = Args::new()
            .slice(items)
            .slice(count)
            .slice(sequences.row_starts)
            .slice(sequences.context_lens)
            .size(capacity)
            .size(self.shape.group())
            .i32(self.shape.window.unwrap_or(0) as i32)
            .size(min_rows)
            .size(items.len() / 2);
        self.plan.launch(stream, Grid::new(1, 256).overlapping(), &args)
    }

    /// Queues the attention of the planned rows in one layer.
    pub fn launch(&self, stream: &Stream, rows: PrefillRows<'_, T>) -> Result<(), CudaError> {
        let PrefillRows { q, q_stride, out, sinks, layer, sequences, workspace } = rows;
        let (shape, PrefillLayer { layer, keys, values }) = (&self.shape, layer);
        let KvLayer { kv_heads, block_size, head_dim, .. } = *layer;
        assert!(
            (kv_heads, head_dim) == (shape.kv_heads, shape.head_dim),
            "the layer has the shape of the attention"
        );
        let width = shape.heads * head_dim;
        let step_rows = sequences.rows;
        assert!(
            q_stride >= width && q_stride.is_multiple_of(8),
            "rows of {q_stride} values hold {width} of queries"
        );
        assert!(
            q.len() + q_stride >= step_rows * q_stride + width && out.len() >= step_rows * width,
            "{step_rows} rows do not fit"
        );
        assert!(
            sinks.is_empty() || sinks.len() >= shape.heads,
            "{} sinks for {} heads",
            sinks.len(),
            shape.heads
        );
        assert!(
            q.address().is_multiple_of(16) && out.address().is_multiple_of(16),
            "q and out are 16-byte aligned"
        );
        let (count, items) = parts(workspace);
        let args = Args::new()
            .slice(out)
            .slice(q)
            .bytes(keys.as_bytes())
            .bytes(values.as_bytes())
            .slice(sinks)
            .slice(sequences.row_starts)
            .slice(sequences.context_lens)
            .slice(sequences.block_tables)
            .slice(items)
            .slice(count)
            .size(q_stride)
            .size(sequences.table_stride)
            .size(kv_heads)
            .size(shape.group())
            .size(block_size)
            .size(cache_rows(layer)) // the row past the end, which reads as zeros
            .i32(shape.window.unwrap_or(0) as i32)
            .f32(shape.scale * layer.key_scale)
            .f32(shape.softcap.unwrap_or(0.0))
            .f32(layer.value_scale);
        let grid = Grid::new(self.blocks, THREADS).shared(shared_bytes(head_dim)).overlapping();
        self.prefill.launch(stream, grid, &args)
    }
}

/// Shared memory for two Q tiles of 64 rows, stages of K and V tiles, and barriers; `Buffers::BYTES` in
/// `cu/attention_sm90.cuh`.
fn shared_bytes(head_dim: usize) -> u32 {
    let stages = if head_dim == 64 { 4 } else { 2 };
    let row = head_dim * 2;
    (TILE_ROWS * row + 2 * stages * TILE_KV * row + (4 * stages + 1) * 8) as u32
}

/// The words for the number of planned tiles and for the tiles themselves.
fn parts(workspace: DeviceSlice<u32>) -> (DeviceSlice<u32>, DeviceSlice<u32>) {
    (workspace.slice(0..1), workspace.slice(HEADER_WORDS..workspace.len()))
}
