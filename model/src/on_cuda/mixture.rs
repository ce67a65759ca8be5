//! The operations of a mixture of experts.

use super::activations::{Activations, StepRows};
use super::experts::{ExpertWeights, SharedWeights, pairs_of};
use super::model::Model;

use skein_kernels::cuda::blaslt::BlasElement;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::experts::{
    ExpertProduct, JoinExperts, Pairs, RouteRows, RouterRows, SortPairs, SortedPairs, Stage, Tile,
    WeighedInputs,
};
use skein_kernels::cuda::ops::kv::KvElement;
use skein_kernels::cuda::ops::linear::Gated;
use skein_kernels::cuda::{CudaError, DeviceSlice, Stream};

use crate::spec::ExpertsSpec;
use crate::tensors::Role;

/// The mixture of a layer.
#[derive(Clone, Copy)]
pub(super) struct Mixture<'a, T> {
    pub weights: &'a ExpertWeights<T>,
    pub experts: ExpertsSpec,
}

impl<T: Activation + BlasElement, K: KvElement> Model<T, K> {
    /// Queues the choice of experts for each row, and the sorting of the pairs of this rank's experts. The
    /// router reads the residual stream, because its input must not be rounded.
    pub(super) fn choose(
        &self,
        stream: &Stream,
        index: usize,
        mixture: Mixture<'_, T>,
        step: &StepRows,
        a: &Activations<T>,
    ) -> Result<SortedPairs, CudaError> {
        let Mixture { weights, experts } = mixture;
        let (ops, e, rows) = (&self.ops.experts, &a.experts, step.sequences.rows);
        let layer = &self.weights.layers[index];
        let (pairs, routing) = (pairs_of(experts, rows), experts.routing);
        let router = RouterRows {
            logits: e.logits,
            residual: a.residual,
            norm: layer.vector(Role::FeedForwardNorm),
            weight: weights.router,
            bias: weights.router_bias,
            rows,
            eps: self.spec.norm.eps,
        };
        ops.router.launch(stream, router)?;
        let route = RouteRows {
            chosen: e.chosen,
            weights: e.weights,
            logits: e.logits,
            stride: weights.router.len() / self.spec.hidden_size,
            correction: layer.vector(Role::RouterCorrection),
            slots: step.slots,
            pairs,
            routing,
        };
        ops.route.launch(stream, route)?;
        let tile = Tile::of(pairs);
        let tile_rows = tile.rows(weights.gate_up.storage()).min(tile.rows(weights.down.storage()));
        let own = Pairs { experts: weights.own.len(), ..pairs };
        let sorted = SortedPairs { sorted: e.sorted, tiles: e.tiles, pairs: own, tile, tile_rows };
        ops.sort.launch(stream, SortPairs { to: sorted, chosen: e.chosen, first: weights.own.start })?;
        Ok(sorted)
    }

    /// Queues a layer's mixture over the normalised rows in `a.h`, with its output in `a.delta`.
    pub(super) fn mixture(
        &self,
        stream: &Stream,
        index: usize,
        mixture: Mixture<'_, T>,
        step: &StepRows,
        a: &Activations<T>,
    ) -> Result<(), CudaError> {
        let Mixture { weights, experts } = mixture;
        let (ops, e, hidden, rows) =
            (&self.ops.experts, &a.experts, self.spec.hidden_size, step.sequences.rows);
        let (pairs, routing) = (pairs_of(experts, rows), experts.routing);
        let sorted = self.choose(stream, index, mixture, step, a)?;
        let (mut x, mut per_row) = (a.h, pairs.per_token);
        if routing.weighs_inputs {
            let weighed = WeighedInputs { out: e.inputs, x, weights: e.weights, pairs, hidden };
            ops.weigh.launch(stream, weighed)?;
            (x, per_row) = (e.inputs, 1);
        }
        let product = |out, x, weight, stage| {
            let (pairs, ordered) = (&sorted, e.ordered);
            ExpertProduct { out, x, weight, pairs, stage, ordered }
        };
        let by = self.spec.layers[index].feed_forward.activation;
        let gate_up = product(e.inner, x, &weights.gate_up, Stage::GateUp { by, per_row });
        ops.products.launch(stream, gate_up)?;
        let down = |out| ops.products.launch(stream, product(out, e.inner, &weights.down, Stage::Down));
        let outputs = match &self.exchange {
            None => down(e.outputs).map(|()| e.outputs)?,
            Some(exchange) => exchange.experts(stream, a.exchange, pairs.count() * hidden, down)?,
        };
        self.shared_network(stream, index, weights, rows, a)?;
        let is_weighted = experts.shared.is_some_and(|shared| shared.is_weighted);
        let stride = weights.router.len() / hidden;
        let join = JoinExperts {
            out: a.delta,
            outputs,
            ranks: self.weights.expert_ranks,
            weights: if routing.weighs_inputs { DeviceSlice::NONE } else { e.weights },
            chosen: e.chosen,
            shared: if weights.shared.is_some() { e.shared } else { DeviceSlice::NONE },
            shared_logits: if is_weighted {
                (e.logits.slice(experts.count..e.logits.len()), stride)
            } else {
                (DeviceSlice::NONE, stride)
            },
            pairs,
            hidden,
        };
        ops.join.launch(stream, join)
    }

    /// Queues the shared network of a layer, if it has one.
    pub(super) fn shared_network(
        &self,
        stream: &Stream,
        index: usize,
        weights: &ExpertWeights<T>,
        rows: usize,
        a: &Activations<T>,
    ) -> Result<(), CudaError> {
        let Some(SharedWeights { gate_up, down }) = &weights.shared else { return Ok(()) };
        let gated = Gated { by: self.spec.layers[index].feed_forward.activation, weight: gate_up };
        let linear = &self.ops.shared;
        linear.launch_gate_up(stream, a.gated, a.h, gated, rows, a.linear)?;
        linear.launch(stream, a.experts.shared, a.gated, down, rows, a.linear)
    }
}
