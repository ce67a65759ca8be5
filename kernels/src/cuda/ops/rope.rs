//! Query and key norms, rotary embedding, and writing keys and values to the cache; `cu/rope.cu`.

use std::marker::PhantomData;

use super::Activation;
use super::kv::{KvElement, KvLayer};
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

/// Memory of one [`RopeKvWrite`] launch.
#[derive(Debug, Clone, Copy)]
pub struct RopeRows<T, K> {
    /// `[rows, (heads + 2 * kv_heads) * head_dim]`: query, key and value heads. Queries are rotated in place.
    pub qkv: DeviceSlice<T>,
    /// Number of query heads.
    pub heads: usize,
    /// `[head_dim]` weights of an RMS norm of each query head before rotation, or [`DeviceSlice::NONE`].
    pub q_norm: DeviceSlice<f32>,
    /// As `q_norm`, for key heads.
    pub k_norm: DeviceSlice<f32>,
    /// Added to a norm's mean square.
    pub norm_eps: f32,
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
        let RopeRows { qkv, heads, q_norm, k_norm, norm_eps, angles, positions, slots, layer, rows } = rope;
        let KvLayer { kv_heads, head_dim, block_size, blocks, .. } = layer;
        let all = heads + 2 * kv_heads;
        assert!(
            head_dim > 0 && head_dim.is_multiple_of(2 * VALUES),
            "head size {head_dim} is not a multiple of {}",
            2 * VALUES
        );
        assert!(qkv.len() >= rows * all * head_dim, "{rows} rows of {all} heads of {head_dim} do not fit");
        assert!(positions.len() >= rows && slots.len() >= rows, "{rows} rows have no position or slot");
        assert!(block_size.is_power_of_two(), "block size {block_size} is not a power of two");
        let angle_rows = angles.len() / head_dim;
        assert!(angle_rows > 0, "the table of angles is empty");
        for norm in [q_norm, k_norm] {
            assert!(norm.is_empty() || norm.len() == head_dim, "a head norm has {} weights", norm.len());
        }
        if rows == 0 {
            return Ok(());
        }
        let lanes = (head_dim / 2 / VALUES).next_power_of_two().clamp(8, 32);
        let threads = (all * lanes).next_multiple_of(32).min(MAX_THREADS) as u32;
        let args = Args::new().slice(qkv).slice(layer.keys).slice(layer.values).slice(q_norm).slice(k_norm);
        let args = args.slice(angles).slice(positions).slice(slots).size(heads).size(kv_heads).size(head_dim);
        let args =
            args.u32(block_size.trailing_zeros()).size(blocks * block_size).size(angle_rows).size(lanes);
        let args = args.f32(norm_eps).f32(1.0 / layer.key_scale).f32(1.0 / layer.value_scale);
        self.kernel.launch(stream, Grid::new(rows as u32, threads).overlapping(), &args)
    }
}
