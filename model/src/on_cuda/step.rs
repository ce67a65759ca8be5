//! One forward step: its rows, activations and operations.

use skein_kernels::cuda::blaslt::BlasElement;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::embed::EmbedRows;
use skein_kernels::cuda::ops::inputs::WindowTables;
use skein_kernels::cuda::ops::kv::{KvElement, StepSequences};
use skein_kernels::cuda::ops::linear::{GateUpSums, Gated, WeightValues};
use skein_kernels::cuda::ops::packed::EmbedPackedRows;
use skein_kernels::cuda::ops::reduce::ThenNorm;
use skein_kernels::cuda::ops::rope::{HeadNorm, QueryTemperature, RopeRows, RowSquares, SquaresOfHeads};
use skein_kernels::cuda::{CudaError, DeviceSlice, Stream};

use super::activations::{Activations, StepRows};
use super::adapter::{ChangedProduct, ProductRows};
use super::attention::LayerRows;
use super::exchange::{Lookup, Sum, Unjoined};
use super::latent_attention::Latent;
use super::mixture::Mixture;
use super::model::{Model, without_bias};
use super::weights::{LayerWeights, NormWeights};
use crate::operations::Operations;
use crate::spec::QkNorm;
use crate::tensors::{Product, Role};

/// A step in progress.
pub(super) struct Running<'a, T, K> {
    pub(super) model: &'a Model<T, K>,
    pub(super) stream: &'a Stream,
    pub(super) step: &'a StepRows,
    pub(super) a: &'a Activations<T>,
    /// Output for the next norm to add to the residual stream.
    pub(super) delta: Delta<T>,
    /// This rank's sums of an output, for the next norm to exchange and add instead of the delta.
    pub(super) unjoined: Option<Unjoined<T>>,
}

/// Output to add to the residual stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delta<T> {
    /// `[rows, hidden]`, or [`DeviceSlice::NONE`].
    pub values: DeviceSlice<T>,
    /// Weights of a norm to apply first, `[hidden]`, or [`DeviceSlice::NONE`].
    pub weight: DeviceSlice<f32>,
    /// `[rows, hidden]` to add as well, or [`DeviceSlice::NONE`].
    pub beside: DeviceSlice<T>,
}

impl<T: Activation> Delta<T> {
    pub const NONE: Self =
        Self { values: DeviceSlice::NONE, weight: DeviceSlice::NONE, beside: DeviceSlice::NONE };
}

impl<'a, T: Activation + BlasElement, K: KvElement> Running<'a, T, K> {
    pub fn new(
        model: &'a Model<T, K>,
        stream: &'a Stream,
        step: &'a StepRows,
        a: &'a Activations<T>,
    ) -> Self {
        Self { model, stream, step, a, delta: Delta::NONE, unjoined: None }
    }

    fn rows(&self) -> usize {
        self.step.sequences.rows
    }

    /// Slots and sequences in the cache of a layer.
    fn located(&self, index: usize) -> (DeviceSlice<u32>, StepSequences) {
        let StepRows { slots, sequences, windows, .. } = *self.step;
        match windows.filter(|_| self.model.spec.layers[index].window.is_some()) {
            None => (slots, sequences),
            Some(WindowTables { slots, block_tables }) => {
                (slots, StepSequences { block_tables, ..sequences })
            }
        }
    }

    /// The latents of the model, if it has any.
    fn latent(&self) -> Option<Latent<'a, T, K>> {
        let both = self.model.spec.attention.latent.as_ref().zip(self.model.ops.latent.as_ref());
        both.map(|(spec, ops)| Latent { spec, ops })
    }

    fn layer(&self, index: usize) -> &'a LayerWeights<T> {
        &self.model.weights.layers[index]
    }

    /// Adds the delta to the residual stream and normalises the sum into `h`.
    fn normalise(&mut self, by: NormWeights) -> Result<(), CudaError> {
        let delta = std::mem::replace(&mut self.delta, Delta::NONE);
        if let (Some(unjoined), Some(exchange)) = (self.unjoined.take(), &self.model.exchange) {
            let (a, eps) = (self.a, self.model.spec.norm.eps);
            let then = ThenNorm { out: a.h, residual: a.residual, weight: by.weight, eps };
            return exchange.join_and_normalise(self.stream, unjoined, then);
        }
        self.model.normalise(self.stream, self.a.residual, delta, by, self.rows(), self.a)
    }

    /// Adds the delta of the last layer if [`Model::logits`] does not.
    fn end(&mut self, layer: usize) -> Result<(), CudaError> {
        if layer + 1 < self.model.spec.layers.len() || !self.model.adds_at_the_end() {
            return Ok(());
        }
        self.normalise(self.model.end_norm())
    }

    /// Norm of a layer's query and key heads. Queues what it needs.
    fn head_norm(&self, index: usize) -> Result<HeadNorm, CudaError> {
        let (spec, layer) = (&self.model.spec, self.layer(index));
        let (q, k) = (layer.vector(Role::QueryNorm), layer.vector(Role::KeyNorm));
        Ok(match spec.attention.qk_norm {
            QkNorm::None => HeadNorm::None,
            QkNorm::Heads => HeadNorm::Heads { q, k },
            QkNorm::Unweighted if spec.rotations[spec.layers[index].rotation].is_any() => {
                HeadNorm::Unweighted
            }
            QkNorm::Unweighted => HeadNorm::None,
            QkNorm::Row => HeadNorm::Row { q, k, squares: self.row_squares()? },
        })
    }

    /// Queues the sums of squares of all heads of all ranks.
    fn row_squares(&self) -> Result<RowSquares, CudaError> {
        let Self { model, stream, a, .. } = *self;
        let attention = &model.spec.attention;
        let (heads, kv_heads, head_dim) = (attention.heads, attention.kv_heads, attention.head_dim);
        let (qkv, rows) = (a.qkv, self.rows());
        let write = |out| {
            let squares = SquaresOfHeads { out, qkv, heads, kv_heads, head_dim, rows };
            model.ops.squares.launch(stream, squares)
        };
        match &model.exchange {
            None => write(a.squares).map(|()| RowSquares { sums: a.squares, ranks: 1, sharers: 1 }),
            Some(exchange) => exchange.squares(stream, a.exchange, rows * (heads + kv_heads), write),
        }
    }

    fn multiply(
        &self,
        layer: usize,
        product: Product,
        out: DeviceSlice<T>,
        x: DeviceSlice<T>,
    ) -> Result<(), CudaError> {
        let weight = self.layer(layer).product(product);
        self.model.ops.linear.launch(self.stream, out, x, weight, self.rows(), self.a.linear)
    }

    /// Adds the changes of adapters to a product. Sums over ranks have been joined.
    fn change(
        &self,
        layer: usize,
        product: Product,
        out: DeviceSlice<T>,
        x: DeviceSlice<T>,
    ) -> Result<(), CudaError> {
        let Some((adapters, tiles)) = self.model.adapters.as_ref().zip(self.step.adapters) else {
            return Ok(());
        };
        let shared = self.model.exchange.as_ref().map(|exchange| (exchange, self.a.exchange));
        let values = ProductRows { x, out, rows: self.rows() };
        adapters.add(self.stream, tiles, ChangedProduct::OfLayer(layer, product), shared, values)
    }

    /// Whether adapters of this step may change a product.
    fn is_changed(&self, layer: usize, product: Product) -> bool {
        let adapters = self.model.adapters.as_ref().filter(|_| self.step.adapters.is_some());
        adapters.is_some_and(|adapters| adapters.changes(layer, product))
    }

    /// Sets `a.gated` to the input of a dense network's down projection.
    fn inner(&self, index: usize) -> Result<(), CudaError> {
        let Self { model, stream, step, a, .. } = *self;
        let (network, weight) =
            (&model.spec.layers[index].feed_forward, self.layer(index).product(Product::GateUp));
        let (rows, by) = (self.rows(), network.activation);
        let Some((adapters, tiles)) = model.adapters.as_ref().zip(step.adapters) else {
            return model.inner(stream, network, weight, rows, a);
        };
        let x = a.h.slice(0..rows * weight.k);
        let Some(change) = adapters.gate_up(stream, tiles, index, x)? else {
            return model.inner(stream, network, weight, rows, a);
        };
        let linear = &model.ops.linear;
        if network.is_gated {
            let memory = (a.linear, adapters.wide, &adapters.kernel);
            let gated = Gated { by, weight };
            let add = |sums| change.add(stream, sums);
            return linear.launch_gate_up_changed(stream, (a.gated, x), gated, rows, memory, add);
        }
        let out = a.gated.slice(0..rows * weight.n);
        linear.launch(stream, out, x, weight, rows, a.linear)?;
        change.add(stream, GateUpSums::Rounded(out))?;
        model.ops.activate.launch(stream, out, by)
    }

    /// Multiplies by a matrix whose inputs are split over ranks. If a norm of the same stage follows, the
    /// output may be left unjoined for it, unless adapters change it before.
    fn multiply_shared(
        &mut self,
        layer: usize,
        product: Product,
        out: DeviceSlice<T>,
        x: DeviceSlice<T>,
    ) -> Result<(), CudaError> {
        let Some(exchange) = &self.model.exchange else { return self.multiply(layer, product, out, x) };
        let (weight, rows) = (self.layer(layer).product(product), self.rows());
        let sum = Sum { bias: weight.bias, rows, n: weight.n, out };
        let compute = |own| {
            let (linear, own_part) = (&self.model.ops.linear, without_bias(weight));
            linear.launch_f32(self.stream, own, x, &own_part, rows, self.a.linear)
        };
        // After the last layer, rows are gathered for logits or sent to the next stage instead.
        let is_last = product == Product::Down && layer + 1 == self.model.spec.layers.len();
        let waits = !is_last && !self.is_changed(layer, product);
        if waits && let Some(unjoined) = exchange.sum_later(self.a.exchange, sum, compute)? {
            self.unjoined = Some(unjoined);
            return Ok(());
        }
        exchange.sum(self.stream, self.a.exchange, sum, compute)
    }
}

impl<T: Activation + BlasElement, K: KvElement> Operations for Running<'_, T, K> {
    type Error = CudaError;

    fn embed(&mut self) -> Result<(), CudaError> {
        let Self { model, stream, step, a, .. } = *self;
        if !model.ends.is_first {
            // The previous stage's residual stream is in place.
            return model.ops.attention.plan(stream, &step.sequences, step.kind, a.attention);
        }
        let scale = model.spec.embedding_scale;
        let scale = if model.spec.rounds_embedding_scale { T::from_f32(scale).to_f32() } else { scale };
        let (table, tokens, rows) = (&model.weights.embedding, step.tokens, self.rows());
        let (out, hidden) = (a.residual, model.spec.hidden_size);
        match (table.values, &model.exchange) {
            (WeightValues::Packed(_), _) => {
                let rows = EmbedPackedRows { out, table, tokens, rows, scale };
                model.ops.embed_packed.launch(stream, rows)?;
            }
            (WeightValues::E4m3 { .. }, _) => unreachable!("embeddings are not quantised at load"),
            (WeightValues::Same(table), None) => {
                model.ops.embed.launch(stream, EmbedRows { out, table, tokens, rows, hidden, scale })?;
            }
            (WeightValues::Same(table), Some(exchange)) => {
                let lookup = Lookup { table, tokens, rows, hidden, scale, out };
                exchange.embed(stream, a.exchange, lookup)?;
            }
        }
        model.ops.attention.plan(stream, &step.sequences, step.kind, a.attention)
    }

    fn attention_input(&mut self, index: usize) -> Result<(), CudaError> {
        let Self { model, stream, step, a, .. } = *self;
        let layer = self.layer(index);
        self.normalise(layer.norm(Role::AttentionNorm))?;
        self.multiply(index, Product::Qkv, a.qkv, a.h)?;
        if let Some(latent) = self.latent() {
            return model.latent_input(stream, index, latent, step, self.located(index).0, a);
        }
        self.change(index, Product::Qkv, a.qkv, a.h)?;
        let temperature = model.spec.layers[index].temperature;
        let rows = RopeRows {
            qkv: a.qkv,
            heads: model.spec.attention.heads,
            norm: self.head_norm(index)?,
            norm_eps: model.spec.norm.eps,
            temperature: temperature.map(|by| QueryTemperature { every: by.every, scale: by.scale }),
            angles: model.angles[model.spec.layers[index].rotation],
            positions: step.positions,
            slots: self.located(index).0,
            layer: model.cache[index],
            rows: self.rows(),
        };
        model.ops.rope.launch(stream, rows)
    }

    fn attend(&mut self, index: usize) -> Result<(), CudaError> {
        let Self { model, stream, step, a, .. } = *self;
        let attention = &model.spec.attention;
        let latent = self.latent();
        let (q, q_stride, out) = match latent {
            None => (a.qkv, attention.qkv_width(), a.attended),
            Some(_) => (a.latent.queries, attention.q_width(), a.latent.attended),
        };
        let queries = LayerRows {
            q,
            q_stride,
            out,
            sinks: self.layer(index).vector(Role::Sinks),
            index,
            cache: model.cache[index],
            sequences: &self.located(index).1,
            workspace: a.attention,
            kind: step.kind,
        };
        model.ops.attention.launch(stream, queries)?;
        match latent {
            None => Ok(()),
            Some(latent) => model.latent_output(stream, index, latent, self.rows(), a),
        }
    }

    fn attention_output(&mut self, layer: usize) -> Result<(), CudaError> {
        self.multiply_shared(layer, Product::AttentionOutput, self.a.delta, self.a.attended)?;
        self.change(layer, Product::AttentionOutput, self.a.delta, self.a.attended)?;
        let weight = self.layer(layer).vector(Role::AttentionOutputNorm);
        if self.model.spec.is_parallel {
            self.delta = Delta { values: self.a.delta, weight, beside: self.a.beside };
            return self.end(layer);
        }
        self.delta = Delta { values: self.a.delta, weight, ..Delta::NONE };
        Ok(())
    }

    fn feed_forward(&mut self, layer: usize) -> Result<(), CudaError> {
        let Self { model, stream, a, .. } = *self;
        let (weights, network) = (self.layer(layer), &model.spec.layers[layer].feed_forward);
        let is_parallel = model.spec.is_parallel;
        if !is_parallel {
            self.normalise(weights.norm(Role::FeedForwardNorm))?;
        }
        if let Some((weights, experts)) = weights.experts.as_ref().zip(network.experts) {
            let mixture = Mixture { weights, experts };
            model.mixture(stream, layer, mixture, self.step, a)?;
        } else {
            self.inner(layer)?;
            let out = if is_parallel { a.beside } else { a.delta };
            self.multiply_shared(layer, Product::Down, out, a.gated)?;
            self.change(layer, Product::Down, out, a.gated)?;
        }
        if is_parallel {
            return Ok(()); // attention's output is added together with this one
        }
        let weight = weights.vector(Role::FeedForwardOutputNorm);
        self.delta = Delta { values: a.delta, weight, ..Delta::NONE };
        self.end(layer)
    }
}
