//! One forward step: its rows, activations and operations.

use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::blaslt::BlasElement;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::attention::StepKind;
use skein_kernels::cuda::ops::embed::EmbedRows;
use skein_kernels::cuda::ops::kv::{KvElement, StepSequences};
use skein_kernels::cuda::ops::linear::Gated;
use skein_kernels::cuda::ops::rope::RopeRows;
use skein_kernels::cuda::{CudaError, DeviceSlice, Stream};

use super::attention::LayerRows;
use super::exchange::{Lookup, Sum};
use super::weights::LayerWeights;
use super::{Model, without_bias};
use crate::model::operations::Operations;
use crate::model::spec::Spec;
use crate::model::tensors::{Product, Role};

/// A step's rows in device memory, including padding.
#[derive(Debug, Clone, Copy)]
pub struct StepRows {
    /// Token ids: `[rows]`.
    pub tokens: DeviceSlice<u32>,
    /// Absolute positions: `[rows]`.
    pub positions: DeviceSlice<u32>,
    /// Slot mapping: `[rows]`.
    pub slots: DeviceSlice<u32>,
    /// The rows by sequence; `sequences.rows` is the number of rows.
    pub sequences: StepSequences,
    /// Whether every sequence has at most one row.
    pub kind: StepKind,
}

/// Activations and workspaces for steps up to a fixed number of rows.
#[derive(Debug, Clone, Copy)]
pub struct Activations<T> {
    /// `[rows, hidden]`: the residual stream.
    pub(super) residual: DeviceSlice<f32>,
    /// `[rows, hidden]`: normalised.
    pub(super) h: DeviceSlice<T>,
    /// `[rows, q | k | v]`
    pub(super) qkv: DeviceSlice<T>,
    /// `[rows, q]`: the output of attention.
    pub(super) attended: DeviceSlice<T>,
    /// `[rows, inner]`: the gated activations.
    pub(super) gated: DeviceSlice<T>,
    /// `[rows, hidden]`: the last projection's output, not yet added to the residual stream.
    pub(super) delta: DeviceSlice<T>,
    /// `[logit rows, hidden]`
    pub(super) last: DeviceSlice<f32>,
    /// Workspace of attention.
    attention: DeviceSlice<u8>,
    /// Workspace of projections.
    pub(super) linear: DeviceSlice<u8>,
    /// Memory for exchanges; empty on a single rank.
    pub(super) exchange: DeviceSlice<u8>,
}

/// Sizes of the workspaces, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Workspace {
    /// Workspace of attention.
    pub attention: usize,
    /// Workspace of projections.
    pub linear: usize,
    /// Bytes for exchanges.
    pub exchange: usize,
}

impl<T: Activation> Activations<T> {
    /// Takes memory for steps of up to `rows` rows, `logit_rows` of them with logits.
    pub fn place(
        spec: &Spec,
        rows: usize,
        logit_rows: usize,
        workspace: Workspace,
        memory: &mut Carver,
    ) -> Self {
        let (attention, hidden) = (&spec.attention, spec.hidden_size);
        Self {
            residual: memory.take(rows * hidden),
            h: memory.take(rows.max(logit_rows) * hidden),
            qkv: memory.take(rows * attention.qkv_width()),
            attended: memory.take(rows * attention.q_width()),
            gated: memory.take(rows * spec.inner_size()),
            delta: memory.take(rows * hidden),
            last: memory.take(logit_rows * hidden),
            attention: memory.take(workspace.attention),
            linear: memory.take(workspace.linear),
            exchange: memory.take(workspace.exchange),
        }
    }
}

/// A step in progress.
pub(super) struct Running<'a, T, K> {
    model: &'a Model<T, K>,
    stream: &'a Stream,
    step: &'a StepRows,
    a: &'a Activations<T>,
    /// Output for the next norm to add to the residual stream.
    delta: Delta<T>,
}

/// Output to add to the residual stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delta<T> {
    /// `[rows, hidden]`, or [`DeviceSlice::NONE`].
    pub values: DeviceSlice<T>,
    /// Weights of a norm to apply first, `[hidden]`, or [`DeviceSlice::NONE`].
    pub weight: DeviceSlice<f32>,
}

impl<T: Activation> Delta<T> {
    const NONE: Self = Self { values: DeviceSlice::NONE, weight: DeviceSlice::NONE };
}

impl<'a, T: Activation + BlasElement, K: KvElement> Running<'a, T, K> {
    pub fn new(
        model: &'a Model<T, K>,
        stream: &'a Stream,
        step: &'a StepRows,
        a: &'a Activations<T>,
    ) -> Self {
        Self { model, stream, step, a, delta: Delta::NONE }
    }

    fn rows(&self) -> usize {
        self.step.sequences.rows
    }

    fn layer(&self, index: usize) -> &'a LayerWeights<T> {
        &self.model.weights.layers[index]
    }

    /// Adds the delta to the residual stream and normalises the sum into `h`.
    fn normalise(&mut self, weight: DeviceSlice<f32>) -> Result<(), CudaError> {
        let delta = std::mem::replace(&mut self.delta, Delta::NONE);
        self.model.normalise(self.stream, self.a.residual, delta, weight, self.rows(), self.a)
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

    /// Multiplies by a matrix whose inputs are split over ranks.
    fn multiply_shared(
        &self,
        layer: usize,
        product: Product,
        out: DeviceSlice<T>,
        x: DeviceSlice<T>,
    ) -> Result<(), CudaError> {
        let Some(exchange) = &self.model.exchange else { return self.multiply(layer, product, out, x) };
        let (weight, rows) = (self.layer(layer).product(product), self.rows());
        let sum = Sum { bias: weight.bias, rows, n: weight.n, out };
        exchange.sum(self.stream, self.a.exchange, sum, |own| {
            let (linear, own_part) = (&self.model.ops.linear, without_bias(weight));
            linear.launch_f32(self.stream, own, x, &own_part, rows, self.a.linear)
        })
    }
}

impl<T: Activation + BlasElement, K: KvElement> Operations for Running<'_, T, K> {
    type Error = CudaError;

    fn embed(&mut self) -> Result<(), CudaError> {
        let Self { model, stream, step, a, .. } = *self;
        let scale = model.spec.embedding_scale;
        let scale = if model.spec.rounds_embedding_scale { T::from_f32(scale).to_f32() } else { scale };
        let (table, tokens, rows) = (model.weights.embedding, step.tokens, self.rows());
        let (out, hidden) = (a.residual, model.spec.hidden_size);
        match &model.exchange {
            None => model.ops.embed.launch(stream, EmbedRows { out, table, tokens, rows, hidden, scale })?,
            Some(exchange) => {
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
        let rows = RopeRows {
            qkv: a.qkv,
            heads: model.spec.attention.heads,
            q_norm: layer.norm(Role::QueryNorm),
            k_norm: layer.norm(Role::KeyNorm),
            norm_eps: model.spec.norm.eps,
            angles: model.angles[model.spec.layers[index].rotation],
            positions: step.positions,
            slots: step.slots,
            layer: model.cache[index],
            rows: self.rows(),
        };
        model.ops.rope.launch(stream, rows)
    }

    fn attend(&mut self, index: usize) -> Result<(), CudaError> {
        let Self { model, stream, step, a, .. } = *self;
        let queries = LayerRows {
            q: a.qkv,
            q_stride: model.spec.attention.qkv_width(),
            out: a.attended,
            index,
            cache: model.cache[index],
            sequences: &step.sequences,
            workspace: a.attention,
            kind: step.kind,
        };
        model.ops.attention.launch(stream, queries)
    }

    fn attention_output(&mut self, layer: usize) -> Result<(), CudaError> {
        self.multiply_shared(layer, Product::AttentionOutput, self.a.delta, self.a.attended)?;
        let weight = self.layer(layer).norm(Role::AttentionOutputNorm);
        self.delta = Delta { values: self.a.delta, weight };
        Ok(())
    }

    fn feed_forward(&mut self, layer: usize) -> Result<(), CudaError> {
        let Self { model, stream, a, .. } = *self;
        let weights = self.layer(layer);
        self.normalise(weights.norm(Role::FeedForwardNorm))?;
        let by = model.spec.layers[layer].feed_forward.activation;
        let gated = Gated { by, weight: weights.product(Product::GateUp) };
        model.ops.linear.launch_gate_up(stream, a.gated, a.h, gated, self.rows(), a.linear)?;
        self.multiply_shared(layer, Product::Down, a.delta, a.gated)?;
        self.delta = Delta { values: a.delta, weight: weights.norm(Role::FeedForwardOutputNorm) };
        // Logits need only a few rows, and gathering adds the delta without a norm. Models that normalise
        // outputs therefore add it here.
        if layer + 1 == model.spec.layers.len() && model.spec.norm.place.has_outputs() {
            self.normalise(model.weights.norm)?;
        }
        Ok(())
    }
}
