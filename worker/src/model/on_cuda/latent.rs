//! Latent attention on a device: activations, and the operations before and after attention.
//!
//! As on the CPU, queries are multiplied by the heads' key matrices and what they attend to by the heads'
//! value matrices, so the cache holds one latent and one rotated part a token, for all heads.

use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::blaslt::BlasElement;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::heads::{HeadProduct, HeadProducts, OfHeads};
use skein_kernels::cuda::ops::kv::KvElement;
use skein_kernels::cuda::ops::latent::{LatentKvWrite, LatentRows, QueryRows, RotateQueries};
use skein_kernels::cuda::ops::linear::{LinearWeight, WeightValues};
use skein_kernels::cuda::{CudaError, DeviceSlice, Kernels, Stream};

use super::{Activations, Model, StepRows};
use crate::model::spec::{LatentSpec, Spec};
use crate::model::tensors::{Product, Role};

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
    write: LatentKvWrite<T, K>,
    rotate: RotateQueries<T>,
    heads: HeadProducts<T>,
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
    vectors: DeviceSlice<T>,
    /// `[rows, heads, plain | rotated]`: queries projected from the vectors.
    projected: DeviceSlice<T>,
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

impl<T: Activation + BlasElement, K: KvElement> Model<T, K> {
    /// Queues the product that projects queries from vectors, if the model has it, over whatever `a` holds.
    pub(super) fn project_queries(
        &self,
        stream: &Stream,
        index: usize,
        rows: usize,
        a: &Activations<T>,
    ) -> Result<(), CudaError> {
        let weight = self.weights.layers[index].product(Product::QueryUp);
        if weight.n == 0 {
            return Ok(());
        }
        let l = &a.latent;
        self.ops.linear.launch(stream, l.projected, l.vectors, weight, rows, a.linear)
    }

    /// Queues what comes between a layer's projections, in `a.qkv`, and attention: keys go to their `slots`,
    /// queries of keys to `a.latent.queries`.
    pub(super) fn latent_input(
        &self,
        stream: &Stream,
        index: usize,
        (latent, ops): (&LatentSpec, &LatentOps<T, K>),
        (step, slots): (&StepRows, DeviceSlice<u32>),
        a: &Activations<T>,
    ) -> Result<(), CudaError> {
        let LatentSpec { query_rank, rank, plain, rotated, eps, .. } = *latent;
        let (l, layer, rows) = (&a.latent, &self.weights.layers[index], step.sequences.rows);
        let (heads, query_dim) = (self.spec.attention.heads, latent.query_dim());
        let (angles, positions) = (self.angles[self.spec.layers[index].rotation], step.positions);
        let stride = self.spec.attention.qkv_width();
        let write = LatentRows {
            projected: a.qkv,
            stride,
            norm: layer.vector(Role::LatentNorm),
            vector: l.vectors,
            vector_norm: layer.vector(Role::QueryNorm),
            eps,
            angles,
            positions,
            slots,
            layer: self.cache[index],
            rows,
        };
        ops.write.launch(stream, write)?;
        self.project_queries(stream, index, rows, a)?;
        let (queries, stride) = match query_rank {
            Some(_) => (l.projected, heads * query_dim),
            None => (a.qkv.slice(rank + rotated..a.qkv.len()), stride),
        };
        let of_latent = HeadProduct {
            out: OfHeads { values: l.queries, stride: heads * (rank + rotated), each: rank + rotated },
            x: OfHeads { values: queries, stride, each: query_dim },
            weight: of_heads(layer.product(Product::HeadKey)),
            heads,
            n: rank,
            k: plain,
            rows,
        };
        ops.heads.launch(stream, of_latent)?;
        let rotation = QueryRows {
            out: l.queries,
            queries,
            stride,
            heads,
            query_dim,
            rank,
            rotated,
            angles,
            positions,
            rows,
        };
        ops.rotate.launch(stream, rotation)
    }

    /// Queues the products of what the queries attended to and the heads' value matrices, to `a.attended`.
    pub(super) fn latent_output(
        &self,
        stream: &Stream,
        index: usize,
        (latent, ops): (&LatentSpec, &LatentOps<T, K>),
        rows: usize,
        a: &Activations<T>,
    ) -> Result<(), CudaError> {
        let LatentSpec { rank, value_dim, .. } = *latent;
        let heads = self.spec.attention.heads;
        let values = HeadProduct {
            out: OfHeads { values: a.attended, stride: heads * value_dim, each: value_dim },
            x: OfHeads { values: a.latent.attended, stride: heads * rank, each: rank },
            weight: of_heads(self.weights.layers[index].product(Product::HeadValue)),
            heads,
            n: value_dim,
            k: rank,
            rows,
        };
        ops.heads.launch(stream, values)
    }
}

/// The heads' matrices, stacked.
fn of_heads<T: Activation>(weight: &LinearWeight<T>) -> DeviceSlice<T> {
    match weight.values {
        WeightValues::Same(values) => values,
        _ => unreachable!("the heads' matrices are loaded in 16 bits"),
    }
}
