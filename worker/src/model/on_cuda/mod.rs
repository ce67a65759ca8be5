//! The forward pass of [`super::on_cpu`] over CUDA operations: the same steps in the same order, queued on a stream.
//!
//! The residual stream is f32, all other activations are `T`. A projection's output waits in `delta` until the next
//! normalisation adds it to the residual stream: one pass over memory for both.

pub mod attention;
pub mod weights;

use skein_kernels::cuda::blaslt::{BlasElement, row_buckets};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::attention::StepKind;
use skein_kernels::cuda::ops::embed::{Embed, EmbedRows};
use skein_kernels::cuda::ops::gemv::MAX_ROWS;
use skein_kernels::cuda::ops::inputs::{Gather, GatherRows};
use skein_kernels::cuda::ops::kv::{KvElement, KvLayer, StepSequences};
use skein_kernels::cuda::ops::linear::Linear;
use skein_kernels::cuda::ops::norm::{AddRmsNorm, Norm};
use skein_kernels::cuda::ops::rope::{RopeKvWrite, RopeRows};
use skein_kernels::cuda::{CudaError, DeviceSlice, Stream};

use self::attention::{LayerRows, StepAttention};
use self::weights::LlamaWeights;
use crate::model::config::ModelConfig;
use skein_kernels::cuda::arena::Carver;

/// A model on a device: weights, cache, operations.
pub struct CudaLlama<T, K> {
    /// Sizes.
    pub config: ModelConfig,
    /// On the device.
    pub weights: LlamaWeights<T>,
    /// One for each layer.
    pub cache: Vec<KvLayer<K>>,
    /// `[positions, head_dim]`
    pub angles: DeviceSlice<f32>,
    /// Operations.
    pub ops: Ops<T, K>,
}

/// The operations it is made of.
pub struct Ops<T, K> {
    /// Token embedding.
    pub embed: Embed<T>,
    /// Residual addition and normalisation.
    pub norm: AddRmsNorm<T>,
    /// Rotation and KV write.
    pub rope: RopeKvWrite<T, K>,
    /// Paged attention.
    pub attention: StepAttention<T, K>,
    /// Projections.
    pub linear: Linear<T>,
    /// Rows whose logits are wanted.
    pub gather: GatherRows<T>,
}

/// A step's rows, in device memory; padding included.
#[derive(Debug, Clone, Copy)]
pub struct StepRows {
    /// `[rows]`
    pub tokens: DeviceSlice<u32>,
    /// `[rows]`
    pub positions: DeviceSlice<u32>,
    /// `[rows]`
    pub slots: DeviceSlice<u32>,
    /// The rows by sequence; `sequences.rows` is how many rows there are.
    pub sequences: StepSequences,
    /// Whether every sequence has at most one row.
    pub kind: StepKind,
}

/// Activations and the operations' own memory, for steps of a bounded number of rows.
#[derive(Debug, Clone, Copy)]
pub struct Activations<T> {
    /// `[rows, hidden]`
    residual: DeviceSlice<f32>,
    /// `[rows, hidden]`: normalised.
    h: DeviceSlice<T>,
    /// `[rows, q | k | v]`
    qkv: DeviceSlice<T>,
    /// `[rows, heads * head_dim]`
    attended: DeviceSlice<T>,
    /// `[rows, intermediate]`
    gated: DeviceSlice<T>,
    /// `[rows, hidden]`: the last projection's output, not yet in the residual stream.
    delta: DeviceSlice<T>,
    /// `[logit rows, hidden]`
    last: DeviceSlice<f32>,
    /// Of attention.
    attention: DeviceSlice<u8>,
    /// Of projections.
    linear: DeviceSlice<u8>,
}

/// Bytes of the operations' own memory.
#[derive(Debug, Clone, Copy)]
pub struct Workspace {
    /// Of attention.
    pub attention: usize,
    /// Of projections.
    pub linear: usize,
}

impl<T: Activation> Activations<T> {
    /// Takes memory for steps of up to `rows` rows, `logit_rows` of them with logits.
    pub fn place(
        c: &ModelConfig,
        rows: usize,
        logit_rows: usize,
        workspace: Workspace,
        memory: &mut Carver,
    ) -> Self {
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        Self {
            residual: memory.take(rows * c.hidden_size),
            h: memory.take(rows.max(logit_rows) * c.hidden_size),
            qkv: memory.take(rows * (q_width + 2 * kv_width)),
            attended: memory.take(rows * q_width),
            gated: memory.take(rows * c.intermediate_size),
            delta: memory.take(rows * c.hidden_size),
            last: memory.take(logit_rows * c.hidden_size),
            attention: memory.take(workspace.attention),
            linear: memory.take(workspace.linear),
        }
    }
}

impl<T: Activation + BlasElement, K: KvElement> CudaLlama<T, K> {
    /// Queues one product of each shape for each number of rows, up to `rows`, that cuBLASLt tells apart, over whatever
    /// the memory holds: its algorithms are chosen and their code is loaded before the first request. `logits` has
    /// room for `logit_rows` rows.
    pub fn warm_up(
        &self,
        stream: &Stream,
        rows: usize,
        logit_rows: usize,
        a: &Activations<T>,
        logits: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        let (linear, Some(layer)) = (&self.ops.linear, self.weights.layers.first()) else { return Ok(()) };
        if linear.blas().is_none() {
            return Ok(()); // our own kernels are there
        }
        for bucket in row_buckets(rows).filter(|bucket| *bucket > MAX_ROWS) {
            let rows = bucket.min(rows);
            linear.launch(stream, a.qkv, a.h, &layer.qkv, rows, a.linear)?;
            linear.launch(stream, a.delta, a.attended, &layer.o, rows, a.linear)?;
            linear.launch_gate_up(stream, a.gated, a.h, &layer.gate_up, rows, a.linear)?;
            linear.launch(stream, a.delta, a.gated, &layer.down, rows, a.linear)?;
            if rows <= logit_rows {
                let head = &self.weights.head;
                linear.launch_f32(stream, logits, a.h, DeviceSlice::NONE, head, rows, a.linear)?;
            }
        }
        Ok(())
    }

    /// Queues all layers over `step`, whose keys and values go to the cache.
    pub fn forward(&self, stream: &Stream, step: &StepRows, a: &Activations<T>) -> Result<(), CudaError> {
        let (c, ops, rows) = (&self.config, &self.ops, step.sequences.rows);
        let q_width = c.heads * c.head_dim;
        let embedding = EmbedRows {
            out: a.residual,
            table: self.weights.embedding,
            tokens: step.tokens,
            rows,
            hidden: c.hidden_size,
        };
        ops.embed.launch(stream, embedding)?;
        ops.attention.plan(stream, &step.sequences, step.kind, a.attention)?;
        let mut delta = DeviceSlice::NONE;
        for (index, (layer, &cache)) in self.weights.layers.iter().zip(&self.cache).enumerate() {
            self.normalise(stream, a.residual, delta, layer.attention_norm, rows, a)?;
            ops.linear.launch(stream, a.qkv, a.h, &layer.qkv, rows, a.linear)?;
            ops.rope.launch(
                stream,
                RopeRows {
                    qkv: a.qkv,
                    heads: c.heads,
                    q_norm: layer.q_norm,
                    k_norm: layer.k_norm,
                    norm_eps: c.rms_norm_eps,
                    angles: self.angles,
                    positions: step.positions,
                    slots: step.slots,
                    layer: cache,
                    rows,
                },
            )?;
            let queries = LayerRows {
                q: a.qkv,
                q_stride: q_width + 2 * c.kv_heads * c.head_dim,
                out: a.attended,
                index,
                cache,
                sequences: &step.sequences,
                workspace: a.attention,
                kind: step.kind,
            };
            ops.attention.launch(stream, queries)?;
            ops.linear.launch(stream, a.delta, a.attended, &layer.o, rows, a.linear)?;

            self.normalise(stream, a.residual, a.delta, layer.mlp_norm, rows, a)?;
            ops.linear.launch_gate_up(stream, a.gated, a.h, &layer.gate_up, rows, a.linear)?;
            ops.linear.launch(stream, a.delta, a.gated, &layer.down, rows, a.linear)?;
            delta = a.delta;
        }
        Ok(())
    }

    /// Queues the logits of some rows of the last step: `[wanted, vocab]`. `wanted` names them; `None` = the first
    /// `rows` of them as they are, which saves a pass.
    pub fn logits(
        &self,
        stream: &Stream,
        wanted: Option<DeviceSlice<u32>>,
        rows: usize,
        a: &Activations<T>,
        logits: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        let (residual, delta) = match wanted {
            None => (a.residual, a.delta),
            Some(wanted) => {
                let hidden = self.config.hidden_size;
                let wanted = wanted.slice(0..rows);
                let gather = Gather { out: a.last, residual: a.residual, delta: a.delta, wanted, hidden };
                self.ops.gather.launch(stream, gather)?;
                (a.last, DeviceSlice::NONE)
            }
        };
        self.normalise(stream, residual, delta, self.weights.norm, rows, a)?;
        self.ops.linear.launch_f32(stream, logits, a.h, DeviceSlice::NONE, &self.weights.head, rows, a.linear)
    }

    /// Into `a.h`.
    fn normalise(
        &self,
        stream: &Stream,
        residual: DeviceSlice<f32>,
        delta: DeviceSlice<T>,
        weight: DeviceSlice<f32>,
        rows: usize,
        a: &Activations<T>,
    ) -> Result<(), CudaError> {
        let eps = self.config.rms_norm_eps;
        self.ops.norm.launch(stream, Norm { out: a.h, residual, delta, weight, rows, eps })
    }
}
