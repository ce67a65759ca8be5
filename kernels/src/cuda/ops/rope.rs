//! Query and key norms, rotary embedding, and writing keys and values to the cache; `cu/rope.cu`.

use std::marker::PhantomData;

use super::kv::{KvElement, KvLayer};
use super::{Activation, kernel_for};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Most threads per row.
const MAX_THREADS: usize = 512;
/// Values per thread and iteration; half a head is a multiple of it.
const VALUES: usize = 4;

/// Rotates queries in place and writes rotated keys, and values, to their slots.
#[derive(Debug, Clone, Copy)]
pub struct RopeKvWrite<T, K> {
    kernel: Kernel,
    of: PhantomData<(T, K)>,
}

/// RMS norm of query and key heads before rotation.
#[derive(Debug, Clone, Copy)]
pub enum HeadNorm {
    /// Heads are not normalised.
    None,
    /// A norm per head.
    Heads {
        /// Weights of every query head, `[head_dim]`.
        q: DeviceSlice<f32>,
        /// Weights of every key head, `[head_dim]`.
        k: DeviceSlice<f32>,
    },
    /// A norm per head without weights.
    Unweighted,
    /// One norm over all query heads of a row, and one over all key heads, on all ranks.
    Row {
        /// Weights of this rank's query heads, `[heads * head_dim]`.
        q: DeviceSlice<f32>,
        /// Weights of this rank's key heads, `[kv_heads * head_dim]`.
        k: DeviceSlice<f32>,
        /// Sums of squares on all ranks.
        squares: RowSquares,
    },
}

/// Sums of squares of every head on all ranks, from [`HeadSquares`].
#[derive(Debug, Clone, Copy)]
pub struct RowSquares {
    /// `[ranks, rows, heads + kv_heads]`; every rank has as many heads.
    pub sums: DeviceSlice<f32>,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of consecutive ranks that have the same KV heads; divides the ranks.
    pub sharers: usize,
}

/// Factor of a row's queries, `1 + scale * ln(1 + floor((position + 1) / every))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryTemperature {
    /// Positions from one change to the next.
    pub every: u32,
    /// Factor of the logarithm.
    pub scale: f32,
}

/// Memory of one [`RopeKvWrite`] launch.
#[derive(Debug, Clone, Copy)]
pub struct RopeRows<T, K> {
    /// `[rows, (heads + 2 * kv_heads) * head_dim]`: query, key and value heads. Queries are rotated in place.
    pub qkv: DeviceSlice<T>,
    /// Number of query heads.
    pub heads: usize,
    /// Norm of query and key heads.
    pub norm: HeadNorm,
    /// Added to a norm's mean square.
    pub norm_eps: f32,
    /// Factor of the queries, if it depends on their position.
    pub temperature: Option<QueryTemperature>,
    /// `[positions, head_dim]`: cosines, then sines, of each pair's angle. Positions past the table use its
    /// last row.
    pub angles: DeviceSlice<f32>,
    /// Position of each row, `[rows]`.
    pub positions: DeviceSlice<u32>,
    /// `[rows]` slots; [`super::kv::NO_SLOT`] = write nothing.
    pub slots: DeviceSlice<u32>,
    /// Destination of keys and values. They are divided by their scale (multiplied by `1 / scale`) and
    /// rounded once; e4m3 saturates.
    pub layer: KvLayer<K>,
    /// Number of rows.
    pub rows: usize,
}

impl<T: Activation, K: KvElement> RopeKvWrite<T, K> {
    /// Looks up the kernel. Fails if the cache is bf16 and activations are f16, or the reverse.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        let name = match (T::SUFFIX, K::SUFFIX) {
            ("bf16", "bf16") => "rope_kv_write_bf16_bf16",
            ("bf16", "e4m3") => "rope_kv_write_bf16_e4m3",
            ("f16", "f16") => "rope_kv_write_f16_f16",
            ("f16", "e4m3") => "rope_kv_write_f16_e4m3",
            (activations, cache) => {
                return Err(CudaError::invalid(format!(
                    "a KV cache of {cache} does not work with activations of {activations}; use {activations} or e4m3"
                )));
            }
        };
        Ok(Self { kernel: kernels.get(name)?, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, rope: RopeRows<T, K>) -> Result<(), CudaError> {
        let RopeRows { qkv, heads, norm, norm_eps, temperature, angles, positions, slots, layer, rows } =
            rope;
        let KvLayer { kv_heads, head_dim, block_size, blocks, .. } = layer;
        let all = heads + 2 * kv_heads;
        check_head(head_dim);
        assert!(qkv.len() >= rows * all * head_dim, "{rows} rows of {all} heads of {head_dim} do not fit");
        assert!(positions.len() >= rows && slots.len() >= rows, "{rows} rows have no position or slot");
        assert!(block_size.is_power_of_two(), "block size {block_size} is not a power of two");
        let angle_rows = angles.len() / head_dim;
        assert!(angle_rows > 0, "the table of angles is empty");
        let (q_norm, k_norm, squares) = norm.parts();
        let [q_len, k_len] = if squares.sums.is_empty() {
            [head_dim; 2]
        } else {
            let RowSquares { sums, ranks, sharers } = squares;
            assert!(sharers > 0 && ranks.is_multiple_of(sharers), "{sharers} of {ranks} ranks share heads");
            assert!(sums.len() >= ranks * rows * (heads + kv_heads), "{} sums of {rows} rows", sums.len());
            [heads, kv_heads].map(|heads| heads * head_dim)
        };
        for (norm, len) in [(q_norm, q_len), (k_norm, k_len)] {
            assert!(norm.is_empty() || norm.len() == len, "a norm of {len} has {} weights", norm.len());
        }
        if rows == 0 {
            return Ok(());
        }
        let (every, temper) = temperature.map_or((0, 0.0), |by| (by.every, by.scale));
        let lanes = lanes(head_dim);
        let args = Args::new().slice(qkv).slice(layer.keys).slice(layer.values).slice(q_norm).slice(k_norm);
        let args = args.u32(u32::from(!matches!(norm, HeadNorm::None)));
        let args = args.slice(squares.sums).size(squares.ranks).size(squares.sharers);
        let args = args.slice(angles).slice(positions).slice(slots).size(heads).size(kv_heads).size(head_dim);
        let args =
            args.u32(block_size.trailing_zeros()).size(blocks * block_size).size(angle_rows).size(lanes);
        let args = args.f32(norm_eps).u32(every).f32(temper);
        let args = args.f32(1.0 / layer.key_scale).f32(1.0 / layer.value_scale);
        self.kernel.launch(stream, grid(rows, all * lanes), &args)
    }
}

impl HeadNorm {
    /// Weights of queries and keys, and the sums of rows.
    fn parts(self) -> (DeviceSlice<f32>, DeviceSlice<f32>, RowSquares) {
        let none = RowSquares { sums: DeviceSlice::NONE, ranks: 1, sharers: 1 };
        match self {
            Self::None | Self::Unweighted => (DeviceSlice::NONE, DeviceSlice::NONE, none),
            Self::Heads { q, k } => (q, k, none),
            Self::Row { q, k, squares } => (q, k, squares),
        }
    }
}

/// Sums of squares of query and key heads.
#[derive(Debug, Clone, Copy)]
pub struct HeadSquares<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

/// Memory of one [`HeadSquares`] launch.
#[derive(Debug, Clone, Copy)]
pub struct SquaresOfHeads<T> {
    /// Result, `[rows, heads + kv_heads]`.
    pub out: DeviceSlice<f32>,
    /// As in [`RopeRows`].
    pub qkv: DeviceSlice<T>,
    /// Number of query heads.
    pub heads: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Values per head, a multiple of 8.
    pub head_dim: usize,
    /// Number of rows.
    pub rows: usize,
}

impl<T: Activation> HeadSquares<T> {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernel_for!(kernels, T, "head_squares")?, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, squares: SquaresOfHeads<T>) -> Result<(), CudaError> {
        let SquaresOfHeads { out, qkv, heads, kv_heads, head_dim, rows } = squares;
        check_head(head_dim);
        let (all, stride) = (heads + kv_heads, (heads + 2 * kv_heads) * head_dim);
        assert!(qkv.len() >= rows * stride && out.len() >= rows * all, "{rows} rows do not fit");
        if rows == 0 {
            return Ok(());
        }
        let lanes = lanes(head_dim);
        let args = Args::new().slice(out).slice(qkv).size(heads).size(kv_heads).size(head_dim).size(lanes);
        self.kernel.launch(stream, grid(rows, all * lanes), &args)
    }
}

fn check_head(head_dim: usize) {
    let unit = 2 * VALUES;
    assert!(
        head_dim > 0 && head_dim.is_multiple_of(unit),
        "head size {head_dim} is not a multiple of {unit}"
    );
}

/// Threads that share a head.
fn lanes(head_dim: usize) -> usize {
    (head_dim / 2 / VALUES).next_power_of_two().clamp(8, 32)
}

/// A block per row of up to `threads` threads.
fn grid(rows: usize, threads: usize) -> Grid {
    Grid::new(rows as u32, threads.next_multiple_of(32).min(MAX_THREADS) as u32).overlapping()
}
