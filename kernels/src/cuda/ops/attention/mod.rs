//! Attention over the paged KV cache for any mix of decode rows and prefill chunks; `cu/attention_*.cu`. Not
//! yet run on a GPU.
//!
//! [`Attention::plan`] lists the step's work on the device, and [`Attention::launch`] computes it for one
//! layer. The launches depend only on the capacities for rows and sequences, so one captured graph serves any
//! content.

use std::marker::PhantomData;

use super::kv::{KvElement, KvLayer, StepSequences};
use super::{Activation, kernel_for};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

mod instance;
mod shape;
mod workspace;

pub use shape::AttentionShape;

use instance::{Instance, Size};
use workspace::{Tiles, Workspace};

/// Threads per block of the plan and merge kernels.
const THREADS: u32 = 256;
/// Blocks of the merge kernel per multiprocessor.
const MERGE_BLOCKS: u32 = 2;
/// Positions per part in batch-invariant mode: few enough that one sequence of 2,000 tokens occupies 64
/// multiprocessors.
const FIXED_PART: u32 = 256;

/// The rows that a step may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// At most one row per sequence.
    Decode,
    /// Any number of rows per sequence.
    Mixed,
}

/// Memory of one [`Attention::launch`].
#[derive(Debug, Clone, Copy)]
pub struct AttentionRows<'a, T, K> {
    /// `[rows, q_stride]`, 16-byte aligned; a row starts with its query heads.
    pub q: DeviceSlice<T>,
    /// Values from one row of `q` to the next, a multiple of 8.
    pub q_stride: usize,
    /// `[rows, heads * value_dim]`; rows that are in no planned sequence are left unchanged.
    pub out: DeviceSlice<T>,
    /// `[heads]`: a logit that takes part in the softmax but has no value; or [`DeviceSlice::NONE`], which it
    /// is with latents.
    pub sinks: DeviceSlice<f32>,
    /// Keys and values, including those of the step's rows. As e4m3 they must not contain NaN. With latents
    /// there are only keys.
    pub layer: KvLayer<K>,
    /// The step's sequences, as passed to [`Attention::plan`].
    pub sequences: &'a StepSequences,
    /// The workspace passed to [`Attention::plan`].
    pub workspace: DeviceSlice<u8>,
    /// The rows that the step may have.
    pub kind: StepKind,
}

/// Paged attention: call [`Self::plan`] once per step and [`Self::launch`] once per layer.
#[derive(Debug, Clone, Copy)]
pub struct Attention<T, K> {
    plan: Kernel,
    merge: Kernel,
    shape: AttentionShape,
    small: Family,
    large: Family,
    /// Values of a head's output that the kernels have space for.
    held_values: usize,
    merge_blocks: u32,
    of: PhantomData<(T, K)>,
}

/// The kernel for one tile size.
#[derive(Debug, Clone, Copy)]
struct Family {
    kernel: Kernel,
    tiles: Tiles,
    threads: u32,
    shared_bytes: u32,
}

impl<T: Activation, K: KvElement> Attention<T, K> {
    /// Looks the kernels up. Fails if there is none for the shape.
    pub fn new(kernels: &Kernels, shape: AttentionShape) -> Result<Self, CudaError> {
        shape.check()?;
        let instance = Instance::of::<T, K>(&shape)?;
        let multiprocessors = kernels.device().multiprocessors;
        let merge = kernel_for!(kernels, T, "attention_merge")?;
        merge.prefer_shared()?; // as the attention before it
        Ok(Self {
            plan: kernels.get("attention_plan")?,
            merge,
            small: Family::new(kernels, &instance, 0)?,
            large: Family::new(kernels, &instance, 1)?,
            held_values: instance.held_values,
            shape,
            merge_blocks: multiprocessors * MERGE_BLOCKS,
            of: PhantomData,
        })
    }

    /// Bytes of the workspace for steps of up to `max_rows` rows and `max_sequences` sequences with contexts
    /// of up to `max_context` tokens. The context length is checked but does not affect the size: the
    /// device's width bounds the number of partial results.
    pub fn workspace_bytes(&self, max_rows: usize, max_sequences: usize, max_context: usize) -> usize {
        let least = self.small.tiles.least_part as usize;
        assert!(
            max_context.div_ceil(least) < 1 << 16,
            "a context of {max_context} tokens has too many parts"
        );
        self.parts(max_rows, max_sequences).bytes
    }

    fn parts(&self, rows: usize, sequences: usize) -> Workspace {
        let shape = &self.shape;
        let tiles = [self.small.tiles, self.large.tiles];
        Workspace::new(tiles, shape, self.held_values, rows, sequences)
    }

    /// Queues the plan of a step. Skips sequences of `max_rows` rows and more, leaving their rows of `out`
    /// unchanged: they are for [`super::attention_sm90::PrefillSm90`]. 0 = skip none.
    pub fn plan(
        &self,
        stream: &Stream,
        sequences: &StepSequences,
        max_rows: usize,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        let capacity = sequences.capacity;
        let parts = self.parts(sequences.rows, capacity);
        parts.check(workspace);
        assert!(
            sequences.row_starts.len() > capacity && sequences.context_lens.len() >= capacity,
            "{} starts and {} contexts for {capacity} sequences",
            sequences.row_starts.len(),
            sequences.context_lens.len()
        );
        let (small, large) = (&self.small.tiles, &self.large.tiles);
        let args = Args::new()
            .slice(parts.header(workspace))
            .slice(parts.items(workspace, 0))
            .slice(parts.items(workspace, 1))
            .slice(parts.groups(workspace, 0))
            .slice(parts.groups(workspace, 1))
            .slice(sequences.row_starts)
            .slice(sequences.context_lens)
            .size(capacity)
            .size(self.shape.kv_heads)
            .size(self.shape.group())
            .u32(self.shape.window.unwrap_or(0))
            .u32(u32::from(self.shape.is_chunked))
            .u32(self.fixed_part())
            .u32(small.least_part)
            .u32(large.least_part)
            .u32(small.wanted)
            .u32(large.wanted)
            .u32(small.slots)
            .u32(large.slots)
            .size(max_rows);
        self.plan.launch(stream, Grid::new(1, THREADS).overlapping(), &args)
    }

    /// Queues the attention of the step's rows in one layer.
    pub fn launch(&self, stream: &Stream, rows: AttentionRows<'_, T, K>) -> Result<(), CudaError> {
        self.check(&rows);
        let parts = self.parts(rows.sequences.rows, rows.sequences.capacity);
        parts.check(rows.workspace);
        let decodes_in_small = self.shape.group() <= self.small.tiles.rows as usize;
        if rows.kind == StepKind::Mixed || !decodes_in_small {
            self.launch_tiles(stream, &rows, &parts, 1)?;
        }
        if decodes_in_small {
            self.launch_tiles(stream, &rows, &parts, 0)?;
        }
        self.launch_merge(stream, &rows, &parts)
    }

    fn check(&self, rows: &AttentionRows<'_, T, K>) {
        let (shape, layer, sequences) = (&self.shape, &rows.layer, rows.sequences);
        let (width, stride, count) = (shape.heads * shape.head_dim, rows.q_stride, sequences.rows);
        let outputs = shape.heads * shape.value_dim();
        assert_eq!((layer.kv_heads, layer.head_dim), (shape.kv_heads, shape.head_dim), "the layer's heads");
        let block_size = layer.block_size;
        assert!(block_size.is_power_of_two() && (8..=256).contains(&block_size), "block size {block_size}");
        assert!(
            stride >= width && stride.is_multiple_of(8),
            "rows of {stride} values hold {width} of queries"
        );
        assert!(rows.q.len() + stride >= count * stride + width, "{count} rows are not in q");
        assert!(rows.out.len() >= count * outputs, "{count} rows do not fit in out");
        let sinks = rows.sinks.len();
        assert!(sinks == 0 || (sinks >= shape.heads && shape.latent.is_none()), "{sinks} sinks");
        let aligned = rows.q.address().is_multiple_of(16) && rows.out.address().is_multiple_of(16);
        assert!(aligned, "q and out are 16-byte aligned");
        let tables = sequences.block_tables.len();
        assert!(tables >= sequences.capacity * sequences.table_stride, "block tables of {tables} entries");
    }

    fn launch_tiles(
        &self,
        stream: &Stream,
        rows: &AttentionRows<'_, T, K>,
        parts: &Workspace,
        large: usize,
    ) -> Result<(), CudaError> {
        let (shape, layer, sequences) = (&self.shape, &rows.layer, rows.sequences);
        let family = if large == 1 { &self.large } else { &self.small };
        let args = Args::new().slice(rows.out).slice(rows.q).slice(layer.keys);
        let args = if shape.latent.is_none() { args.slice(layer.values).slice(rows.sinks) } else { args };
        let args = args
            .slice(sequences.row_starts)
            .slice(sequences.context_lens)
            .slice(sequences.block_tables)
            .slice(parts.header(rows.workspace))
            .slice(parts.items(rows.workspace, large))
            .slice(parts.sums(rows.workspace, large))
            .slice(parts.partials(rows.workspace, large))
            .slice(parts.folded(rows.workspace, large))
            .size(rows.q_stride)
            .size(sequences.table_stride);
        let (block_shift, scale) = (layer.block_size.trailing_zeros(), shape.scale * layer.key_scale);
        let args = match shape.latent {
            Some(rank) => args
                .size(shape.heads)
                .u32(block_shift)
                .u32(self.fixed_part())
                .size(rank)
                .size(shape.head_dim - rank)
                .f32(scale),
            None => args
                .size(shape.kv_heads)
                .size(shape.group())
                .u32(block_shift)
                .u32(shape.window.unwrap_or(0))
                .u32(u32::from(shape.is_chunked))
                .u32(self.fixed_part())
                .f32(scale)
                .f32(shape.softcap.unwrap_or(0.0))
                .f32(layer.value_scale),
        };
        let grid = Grid::new(family.tiles.blocks, family.threads).shared(family.shared_bytes);
        family.kernel.launch(stream, grid.overlapping(), &args)
    }

    fn launch_merge(
        &self,
        stream: &Stream,
        rows: &AttentionRows<'_, T, K>,
        parts: &Workspace,
    ) -> Result<(), CudaError> {
        let (shape, workspace) = (&self.shape, rows.workspace);
        let args = Args::new()
            .slice(rows.out)
            .slice(parts.header(workspace))
            .slice(parts.groups(workspace, 0))
            .slice(parts.groups(workspace, 1))
            .slice(parts.sums(workspace, 0))
            .slice(parts.sums(workspace, 1))
            .slice(parts.partials(workspace, 0))
            .slice(parts.partials(workspace, 1))
            .slice(rows.sinks)
            .slice(rows.sequences.row_starts)
            .slice(rows.sequences.context_lens)
            .size(shape.kv_heads)
            .size(shape.group())
            .size(shape.value_dim())
            .f32(rows.layer.value_scale);
        self.merge.launch(stream, Grid::new(self.merge_blocks, THREADS).overlapping(), &args)
    }

    fn fixed_part(&self) -> u32 {
        if self.shape.batch_invariant { FIXED_PART } else { 0 }
    }
}

impl Family {
    /// The kernel for small (0) or large (1) tiles.
    fn new(kernels: &Kernels, instance: &Instance, large: usize) -> Result<Self, CudaError> {
        let device = kernels.device();
        let (name, size) = (instance.names[large], instance.sizes[large]);
        let Size { threads, shared_bytes, blocks: by_registers, .. } = size;
        if shared_bytes > device.shared_bytes_per_block {
            return Err(CudaError::invalid(format!(
                "{name} needs {shared_bytes} bytes of shared memory, {} gives {}",
                device.name, device.shared_bytes_per_block
            )));
        }
        let kernel = kernels.get(name)?;
        kernel.allow_shared(shared_bytes)?;
        // A block takes 1 KiB more than it requests, and a multiprocessor has 1 KiB more than one block may
        // use.
        let by_shared = (device.shared_bytes_per_block + 1024) / (shared_bytes + 1024);
        let blocks = device.multiprocessors * by_shared.min(by_registers);
        Ok(Self { kernel, tiles: Tiles::new(large == 1, size.rows, blocks), threads, shared_bytes })
    }
}
