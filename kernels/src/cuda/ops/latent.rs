//! Latent attention between its products: norms, rotation, and writing keys to the cache; `cu/latent.cu`.

use std::marker::PhantomData;

use super::Activation;
use super::kernel_for;
use super::kv::{KvElement, KvLayer};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Widths are multiples of this.
const UNIT: usize = 8;
/// Threads per row that write keys.
const KEY_THREADS: u32 = 128;
/// Threads per row that rotate queries.
const QUERY_THREADS: u32 = 256;

/// Values of a latent in 8 bits that share a scale.
pub const NARROW_GROUP: usize = 128;
/// Bytes of the scales of a key in 8 bits.
pub const NARROW_SCALES_BYTES: usize = 16;
/// Widths of latents in 8 bits are multiples of this.
pub const NARROW_UNIT: usize = 16;

/// Bytes of a token's key in a cache of `K`: all values, or for e4m3 the latent's codes, their scales, and
/// the rotated part in 16 bits; `cu/latent_key.cuh`.
pub fn key_bytes<K: KvElement>(rank: usize, rotated: usize) -> usize {
    if is_narrow::<K>() {
        rank + NARROW_SCALES_BYTES + rotated * size_of::<u16>()
    } else {
        (rank + rotated) * size_of::<K>()
    }
}

fn is_narrow<K: KvElement>() -> bool {
    size_of::<K>() == 1
}

/// Normalises latents, rotates the rest of the keys, and writes both to their slots. Also normalises the
/// vectors from which queries are projected.
#[derive(Debug, Clone, Copy)]
pub struct LatentKvWrite<T, K> {
    kernel: Kernel,
    of: PhantomData<(T, K)>,
}

/// Memory of one [`LatentKvWrite`] launch.
#[derive(Debug, Clone, Copy)]
pub struct LatentRows<T, K> {
    /// `[rows, stride]`: latent, rotated part, and vector or queries. Not changed.
    pub projected: DeviceSlice<T>,
    /// Values from one row to the next, a multiple of 8.
    pub stride: usize,
    /// Weights of the latent's norm, `[rank]`.
    pub norm: DeviceSlice<f32>,
    /// `[rows, query_rank]`: the normalised vectors, or [`DeviceSlice::NONE`].
    pub vector: DeviceSlice<T>,
    /// Weights of the vectors' norm, `[query_rank]`, or [`DeviceSlice::NONE`].
    pub vector_norm: DeviceSlice<f32>,
    /// Added to both norms' mean squares.
    pub eps: f32,
    /// `[positions, rotated]`: cosines, then sines. Positions past the table use its last row.
    pub angles: DeviceSlice<f32>,
    /// Position of each row, `[rows]`.
    pub positions: DeviceSlice<u32>,
    /// `[rows]` slots; [`super::kv::NO_SLOT`] = write nothing.
    pub slots: DeviceSlice<u32>,
    /// Destination of the keys; it has one KV head, of `rank + rotated` values in [`key_bytes`].
    pub layer: KvLayer<K>,
    /// Number of rows.
    pub rows: usize,
}

impl<T: Activation, K: KvElement> LatentKvWrite<T, K> {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        let kernel = match (is_narrow::<K>(), <T as Activation>::SUFFIX) {
            (false, _) => kernel_for!(kernels, T, "latent_kv_write")?,
            (true, "bf16") => kernels.get("latent_kv_write_bf16_e4m3")?,
            (true, _) => kernels.get("latent_kv_write_f16_e4m3")?,
        };
        Ok(Self { kernel, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, latents: LatentRows<T, K>) -> Result<(), CudaError> {
        let LatentRows {
            projected,
            stride,
            norm,
            vector,
            vector_norm,
            eps,
            angles,
            positions,
            slots,
            layer,
            rows,
        } = latents;
        let KvLayer { kv_heads, head_dim, block_size, blocks, .. } = layer;
        let (rank, query_rank) = (norm.len(), vector_norm.len());
        assert!(kv_heads == 1 && rank < head_dim, "{kv_heads} KV heads, a latent of {rank} of {head_dim}");
        let rotated = head_dim - rank;
        for width in [stride, rank, rotated, query_rank] {
            assert!(width.is_multiple_of(UNIT), "{width} is not a multiple of {UNIT}");
        }
        assert!(
            head_dim + query_rank <= stride && projected.len() >= rows * stride,
            "{rows} rows of {stride}"
        );
        assert!(vector.len() >= rows * query_rank, "{rows} vectors of {query_rank} do not fit");
        assert!(positions.len() >= rows && slots.len() >= rows, "{rows} rows have no position or slot");
        let (slot_count, angle_rows) = (blocks * block_size, angles.len() / rotated);
        let bytes = slot_count * key_bytes::<K>(rank, rotated);
        assert!(layer.keys.len() * size_of::<K>() >= bytes && angle_rows > 0, "a cache and angles");
        let is_possible = rank.is_multiple_of(NARROW_UNIT) && rank <= NARROW_SCALES_BYTES / 4 * NARROW_GROUP;
        assert!(!is_narrow::<K>() || is_possible, "a latent of {rank} values in 8 bits");
        if rows == 0 {
            return Ok(());
        }
        let args =
            Args::new().slice(vector).slice(projected).slice(layer.keys).slice(norm).slice(vector_norm);
        let args = args.slice(angles).slice(positions).slice(slots).size(stride).size(rank).size(rotated);
        let args = args.size(query_rank).size(slot_count).size(angle_rows).f32(eps);
        self.kernel.launch(stream, Grid::new(rows as u32, KEY_THREADS).overlapping(), &args)
    }
}

/// Rotates the last part of each query head and writes it behind the head's query of the latent.
#[derive(Debug, Clone, Copy)]
pub struct RotateQueries<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

/// Memory of one [`RotateQueries`] launch.
#[derive(Debug, Clone, Copy)]
pub struct QueryRows<T> {
    /// `[rows, heads, rank + rotated]`: the last `rotated` values of each head are written.
    pub out: DeviceSlice<T>,
    /// Rows of `stride` values that start with their heads.
    pub queries: DeviceSlice<T>,
    /// Values from one row of queries to the next.
    pub stride: usize,
    /// Number of heads.
    pub heads: usize,
    /// Values of a head in `queries`, of which the last `rotated` are rotated.
    pub query_dim: usize,
    /// Width of the latent.
    pub rank: usize,
    /// Rotated values of a head, an even number.
    pub rotated: usize,
    /// As in [`LatentRows`].
    pub angles: DeviceSlice<f32>,
    /// Position of each row, `[rows]`.
    pub positions: DeviceSlice<u32>,
    /// Number of rows.
    pub rows: usize,
}

impl<T: Activation> RotateQueries<T> {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernel_for!(kernels, T, "latent_rotate")?, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, queries: QueryRows<T>) -> Result<(), CudaError> {
        let QueryRows { out, queries, stride, heads, query_dim, rank, rotated, angles, positions, rows } =
            queries;
        assert!(rotated > 0 && rotated.is_multiple_of(2) && rotated <= query_dim, "{rotated} of {query_dim}");
        let (width, angle_rows) = (heads * query_dim, angles.len() / rotated);
        assert!(
            width <= stride && angle_rows > 0,
            "rows of {stride} values hold {width}; {angle_rows} angles"
        );
        if rows == 0 {
            return Ok(());
        }
        assert!(queries.len() >= (rows - 1) * stride + width, "{rows} rows of queries");
        assert!(out.len() >= rows * heads * (rank + rotated), "{rows} rows do not fit");
        assert!(positions.len() >= rows, "{rows} rows have no position");
        let args = Args::new().slice(out).slice(queries).slice(angles).slice(positions).size(stride);
        let args = args.size(heads).size(query_dim).size(rank).size(rotated).size(angle_rows);
        self.kernel.launch(stream, Grid::new(rows as u32, QUERY_THREADS).overlapping(), &args)
    }
}
