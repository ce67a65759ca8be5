//! A model on a device: its operations, weights and ends.

use skein_kernels::cuda::blaslt::{BlasElement, row_buckets};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::activation::Activate;
use skein_kernels::cuda::ops::embed::Embed;
use skein_kernels::cuda::ops::gemv::MAX_ROWS;
use skein_kernels::cuda::ops::inputs::{Gather, GatherRows};
use skein_kernels::cuda::ops::kv::{KvElement, KvLayer};
use skein_kernels::cuda::ops::linear::{Gated, Linear, LinearWeight};
use skein_kernels::cuda::ops::norm::{AddNorm, Norm};
use skein_kernels::cuda::ops::packed::EmbedPacked;
use skein_kernels::cuda::ops::rope::{HeadSquares, RopeKvWrite};
use skein_kernels::cuda::ops::softcap::Softcap;
use skein_kernels::cuda::{CudaError, DeviceSlice, Stream};

use super::activations::{Activations, StepRows};
use super::adapter::{self, DeviceAdapters, ProductRows, StepTiles};
use super::attention::Windows;
use super::exchange::{self, Exchange};
use super::experts::{self, ExpertOps};
use super::latent::{self, LatentOps};
use super::stage::StageEnds;
use super::step::{Delta, Running};
use super::weights::{DeviceWeights, LayerWeights, NormWeights};
use crate::operations;
use crate::spec::{FeedForwardSpec, Spec};
use crate::tensors::Product;

/// Most kernel launches of a layer: two norms; four products, each of which may quantise its input before;
/// sums of squares; rotation; three of attention; and the activation after gate and up. The plan of each
/// window comes before them.
const LAUNCHES_PER_LAYER: usize = 2 + 2 * 4 + 1 + 1 + 3 + 1;

/// Most kernel launches of a forward pass's layers, which is the number of nodes in a graph. With several
/// ranks, two products of each layer are shared, and sums of squares are exchanged.
pub fn launches(spec: &Spec, ranks: usize) -> usize {
    let of_exchanges = if ranks > 1 { 2 * exchange::LAUNCHES_OF_A_SUM + 1 } else { 0 };
    let mixtures = spec.layers.iter().filter(|layer| layer.feed_forward.experts.is_some()).count();
    let of_latents = spec.attention.latent.map_or(0, |_| latent::LAUNCHES);
    spec.layers.len() * (LAUNCHES_PER_LAYER + of_latents + of_exchanges) + mixtures * experts::LAUNCHES
}

/// Most kernel launches and exchanges of a forward pass's changes by adapters.
pub fn launches_of_adapters(spec: &Spec, ranks: usize) -> usize {
    let exchanges = if ranks > 1 { adapter::EXCHANGES } else { 0 };
    spec.layers.len() * (adapter::LAUNCHES + exchanges)
}

/// A model on a device, or one rank's part of it: weights, cache, operations.
pub struct Model<T, K> {
    /// This rank's part of the model.
    pub spec: Spec,
    /// The weights on the device.
    pub weights: DeviceWeights<T>,
    /// The cache of each layer.
    pub cache: Vec<KvLayer<K>>,
    /// Angles of each rotation: `[positions, values that are rotated]`.
    pub angles: Vec<DeviceSlice<f32>>,
    /// Kernels of the operations.
    pub ops: Ops<T, K>,
    /// Exchanges with the other ranks of its stage, if there are any.
    pub exchange: Option<Exchange<T>>,
    /// Which ends of the model it has.
    pub ends: StageEnds,
    /// Slots for adapters, if they are served beside the model.
    pub adapters: Option<DeviceAdapters<T>>,
}

/// Operations of the forward pass.
pub struct Ops<T, K> {
    /// Looks up token embeddings.
    pub embed: Embed<T>,
    /// The same in a packed table.
    pub embed_packed: EmbedPacked<T>,
    /// Residual addition and normalisation.
    pub norm: AddNorm<T>,
    /// Sums of squares for norms over all heads of a row.
    pub squares: HeadSquares<T>,
    /// Head norms, rotation and KV write.
    pub rope: RopeKvWrite<T, K>,
    /// Paged attention, for each window size.
    pub attention: Windows<T, K>,
    /// What latent attention needs besides, if the model has it.
    pub latent: Option<LatentOps<T, K>>,
    /// Matrix products of projections.
    pub linear: Linear<T>,
    /// The same for the shared networks of mixtures, which every rank has: without cuBLASLt on several ranks,
    /// because its algorithms may differ between them, and all ranks must choose the same experts.
    pub shared: Linear<T>,
    /// Activation of feed-forward networks without a gate.
    pub activate: Activate<T>,
    /// Mixtures of experts.
    pub experts: ExpertOps<T>,
    /// Gathers the rows whose logits are wanted.
    pub gather: GatherRows<T>,
    /// Caps the logits.
    pub softcap: Softcap,
}

/// Rows of a step whose logits are computed.
#[derive(Clone, Copy)]
pub struct LogitRows {
    /// Lists them; `None` = the first rows, which saves gathering them.
    pub wanted: Option<DeviceSlice<u32>>,
    /// Tiles of the rows that have an adapter.
    pub tiles: Option<StepTiles>,
    /// How many they are.
    pub rows: usize,
}

impl<T: Activation + BlasElement, K: KvElement> Model<T, K> {
    /// Queues one product per shape and per row count up to `rows` that cuBLASLt distinguishes, on arbitrary
    /// memory contents. This selects the algorithms and loads their code before the first request. `logits`
    /// holds `logit_rows` rows.
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
            return Ok(()); // our own kernels need no warm-up
        }
        for bucket in row_buckets(rows).filter(|bucket| *bucket > MAX_ROWS) {
            let rows = bucket.min(rows);
            let weight = |product| layer.product(product);
            linear.launch(stream, a.qkv, a.h, weight(Product::Qkv), rows, a.linear)?;
            self.project_queries(stream, 0, rows, a)?;
            let sum = |out, x, weight: &LinearWeight<T>| match &self.exchange {
                None => linear.launch(stream, out, x, weight, rows, a.linear),
                Some(exchange) => {
                    let own = exchange.scratch(a.exchange, rows * weight.n);
                    linear.launch_f32(stream, own, x, &without_bias(weight), rows, a.linear)
                }
            };
            sum(a.delta, a.attended, weight(Product::AttentionOutput))?;
            let is_dense = |layer: &LayerWeights<T>| layer.experts.is_none();
            if let Some(dense) = self.weights.layers.iter().position(is_dense) {
                let (layer, network) = (&self.weights.layers[dense], &self.spec.layers[dense].feed_forward);
                self.inner(stream, network, layer.product(Product::GateUp), rows, a)?;
                sum(a.delta, a.gated, layer.product(Product::Down))?;
            }
            let mut mixtures = self.weights.layers.iter().map(|layer| layer.experts.as_ref()).enumerate();
            if let Some((index, Some(experts))) = mixtures.find(|(_, experts)| experts.is_some()) {
                self.shared_network(stream, index, experts, rows, a)?;
            }
            let head = &self.weights.head;
            if rows <= logit_rows && head.n > 0 && self.ends.is_last {
                linear.launch_f32(stream, logits, a.h, head, rows, a.linear)?;
            }
        }
        Ok(())
    }

    /// Queues all layers over `step`, whose keys and values go to the cache. Except in the last stage, the
    /// residual stream is complete afterwards.
    pub fn forward(&self, stream: &Stream, step: &StepRows, a: &Activations<T>) -> Result<(), CudaError> {
        operations::forward(&self.spec, &mut Running::new(self, stream, step, a))?;
        if self.ends.is_last { Ok(()) } else { self.complete_residual(stream, step.sequences.rows, a) }
    }

    /// Queues the logits of some rows of the last step: `[rows, vocab]`.
    pub fn logits(
        &self,
        stream: &Stream,
        of: LogitRows,
        a: &Activations<T>,
        logits: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        let LogitRows { wanted, tiles, rows } = of;
        let mut delta = if self.adds_at_the_end() { DeviceSlice::NONE } else { a.delta };
        let mut residual = a.residual;
        if let Some(wanted) = wanted {
            let (hidden, wanted) = (self.spec.hidden_size, wanted.slice(0..rows));
            let gather = Gather { out: a.last, residual, delta, wanted, hidden };
            self.ops.gather.launch(stream, gather)?;
            (residual, delta) = (a.last, DeviceSlice::NONE);
        }
        let added = Delta { values: delta, ..Delta::NONE };
        self.normalise(stream, residual, added, self.weights.norm, rows, a)?;
        let head = &self.weights.head;
        let multiply = |out: DeviceSlice<f32>| {
            self.ops.linear.launch_f32(stream, out, a.h, head, rows, a.linear)?;
            match self.adapters.as_ref().zip(tiles) {
                None => Ok(()),
                Some((adapters, tiles)) => adapters.logits(stream, tiles, ProductRows { x: a.h, out, rows }),
            }
        };
        match &self.exchange {
            None => multiply(logits)?,
            Some(exchange) => exchange.logits(stream, a.exchange, logits, rows, |own| {
                // The last ranks may have no rows of a small vocabulary.
                if head.n == 0 { Ok(()) } else { multiply(own) }
            })?,
        }
        match self.spec.logits_softcap {
            None => Ok(()),
            Some(cap) => {
                let vocab = self.spec.vocab_size as usize;
                self.ops.softcap.launch(stream, logits.slice(0..rows * vocab), cap)
            }
        }
    }

    /// Sets `a.gated` to the input of a feed-forward network's down projection.
    pub(super) fn inner(
        &self,
        stream: &Stream,
        network: &FeedForwardSpec,
        weight: &LinearWeight<T>,
        rows: usize,
        a: &Activations<T>,
    ) -> Result<(), CudaError> {
        let (linear, by) = (&self.ops.linear, network.activation);
        if network.is_gated {
            return linear.launch_gate_up(stream, a.gated, a.h, Gated { by, weight }, rows, a.linear);
        }
        linear.launch(stream, a.gated, a.h, weight, rows, a.linear)?;
        self.ops.activate.launch(stream, a.gated.slice(0..rows * weight.n), by)
    }

    /// Normalises into `a.h`.
    pub(super) fn normalise(
        &self,
        stream: &Stream,
        residual: DeviceSlice<f32>,
        delta: Delta<T>,
        by: NormWeights,
        rows: usize,
        a: &Activations<T>,
    ) -> Result<(), CudaError> {
        let Delta { values: delta, weight: delta_weight, beside } = delta;
        let NormWeights { weight, bias } = by;
        let (hidden, eps) = (self.spec.hidden_size, self.spec.norm.eps);
        let out = a.h;
        let norm = Norm { out, residual, delta, beside, delta_weight, weight, bias, rows, hidden, eps };
        self.ops.norm.launch(stream, norm)
    }

    /// Whether the last layer adds its output itself. Logits need only a few rows, and gathering them adds
    /// one output without a norm.
    pub(super) fn adds_at_the_end(&self) -> bool {
        self.spec.norm.place.has_outputs() || self.spec.is_parallel
    }
}

/// The weight without its bias, which is added after ranks' sums are joined.
pub(super) fn without_bias<T: Activation>(weight: &LinearWeight<T>) -> LinearWeight<T> {
    LinearWeight { bias: DeviceSlice::NONE, ..*weight }
}
