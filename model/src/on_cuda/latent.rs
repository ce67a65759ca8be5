//! Latent attention on a device: activations, and the operations before and after attention.
//!
//! As on the CPU, queries are multiplied by the heads' key matrices and what they attend to by the heads'
//! value matrices, so the cache holds one latent and one rotated part a token, for all heads.

use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::heads::HeadProducts;
use skein_kernels::cuda::ops::kv::KvElement;
use skein_kernels::cuda::ops::latent::{LatentKvWrite, RotateQueries};
use skein_kernels::cuda::{CudaError, DeviceSlice, Kernels};

use crate::spec::{LatentSpec, Spec};

/// Most kernel launches of a layer besides those of other attention: a second projection of queries, which
/// may quantise its input before; a second rotation; two products of the heads.
pub(super) const LAUNCHES: usize = 2 + 1 + 2;

/// Widths are multiples of this: kernels load 16 bytes at a time.
const WIDTH: usize = 8;
/// Most values of a latent, and of the rotated part of a key.
const MOST: (usize, usize) = (512, 64);

/// A size for which there is no kernel: its name in configurations, its value, and the allowed ones.
pub fn size_without_kernel(spec: &Spec) -> Option<(&'static str, usize, String)> {
    let LatentSpec { query_rank, rank, plain, rotated, value_dim, .. } = spec.attention.latent?;
    let up_to = |most| (most, format!("multiples of {WIDTH} up to {most}"));
    let any = (usize::MAX, format!("multiples of {WIDTH}"));
    let outputs = spec.attention.heads * value_dim;
    let sizes = [
        ("kv_lora_rank", rank, up_to(MOST.0)),
        ("qk_rope_head_dim", rotated, up_to(MOST.1)),
        ("qk_nope_head_dim", plain, any.clone()),
        ("q_lora_rank", query_rank.unwrap_or(WIDTH), any.clone()),
        ("v_head_dim times num_attention_heads", outputs, any),
    ];
    let is_odd =
        |(_, size, (most, _)): &(_, usize, (usize, String))| !size.is_multiple_of(WIDTH) || size > most;
    sizes.into_iter().find(is_odd).map(|(what, size, (_, allowed))| (what, size, allowed))
}

/// Kernels of latent attention besides attention itself.
pub struct LatentOps<T, K> {
    pub(super) write: LatentKvWrite<T, K>,
    pub(super) rotate: RotateQueries<T>,
    pub(super) heads: HeadProducts<T>,
}

impl<T: Activation, K: KvElement> LatentOps<T, K> {
    /// Looks the kernels up.
    ///
    /// # Errors
    /// If a kernel is missing.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        let (write, rotate) = (LatentKvWrite::new(kernels)?, RotateQueries::new(kernels)?);
        Ok(Self { write, rotate, heads: HeadProducts::new(kernels)? })
    }
}

/// Activations for steps of up to a number of rows; empty in models without latents.
#[derive(Debug, Clone, Copy)]
pub struct LatentActivations<T> {
    /// `[rows, query_rank]`: the normalised vectors from which queries are projected, if there are any.
    pub(super) vectors: DeviceSlice<T>,
    /// `[rows, heads, plain | rotated]`: queries projected from the vectors.
    pub(super) projected: DeviceSlice<T>,
    /// `[rows, heads, rank | rotated]`: queries of the cached keys.
    pub(super) queries: DeviceSlice<T>,
    /// `[rows, heads, rank]`: what the queries attend to.
    pub(super) attended: DeviceSlice<T>,
}

impl<T: Activation> LatentActivations<T> {
    /// Takes memory for steps of up to `rows` rows.
    pub(super) fn place(spec: &Spec, rows: usize, memory: &mut Carver) -> Self {
        let heads = spec.attention.heads;
        let of = |latent: LatentSpec| {
            let LatentSpec { query_rank, rank, rotated, .. } = latent;
            let projected = query_rank.map_or(0, |_| heads * latent.query_dim());
            [query_rank.unwrap_or(0), projected, heads * (rank + rotated), heads * rank]
        };
        let [vectors, projected, queries, attended] = spec.attention.latent.map_or([0; 4], of);
        Self {
            vectors: memory.take(rows * vectors),
            projected: memory.take(rows * projected),
            queries: memory.take(rows * queries),
            attended: memory.take(rows * attended),
        }
    }
}
