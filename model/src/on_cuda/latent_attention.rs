//! The operations of latent attention.

use super::activations::{Activations, StepRows};
use super::latent::LatentOps;
use super::model::Model;
use skein_kernels::cuda::blaslt::BlasElement;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::heads::{HeadProduct, OfHeads};
use skein_kernels::cuda::ops::kv::KvElement;
use skein_kernels::cuda::ops::latent::{LatentRows, QueryRows};
use skein_kernels::cuda::ops::linear::{LinearWeight, WeightValues};
use skein_kernels::cuda::{CudaError, DeviceSlice, Stream};

use crate::spec::LatentSpec;
use crate::tensors::{Product, Role};

/// Latent attention of the model, and its operations.
#[derive(Clone, Copy)]
pub(super) struct Latent<'a, T, K> {
    pub spec: &'a LatentSpec,
    pub ops: &'a LatentOps<T, K>,
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
        latent: Latent<'_, T, K>,
        step: &StepRows,
        slots: DeviceSlice<u32>,
        a: &Activations<T>,
    ) -> Result<(), CudaError> {
        let Latent { spec: latent, ops } = latent;
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
        latent: Latent<'_, T, K>,
        rows: usize,
        a: &Activations<T>,
    ) -> Result<(), CudaError> {
        let Latent { spec: latent, ops } = latent;
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
