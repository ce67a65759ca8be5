//! Selects the attention kernel for each row of a step.
//!
//! | rows of a sequence | device | by |
//! |---|---|---|
//! | a full tile or more | sm_90, cache in the activations' type, `head_dim` 64 or 128 | [`PrefillSm90`] |
//! | otherwise | any | [`Attention`] |
//!
//! Both see all sequences of a step, and each skips the other's rows. A row's kernel depends on its chunk,
//! and the kernels round differently, so batch-invariant mode uses only [`Attention`]. So do layers with
//! attention within chunks.

use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::attention::{Attention, AttentionRows, AttentionShape, StepKind};
use skein_kernels::cuda::ops::attention_sm90::{PrefillLayer, PrefillRows, PrefillSm90, is_supported};
use skein_kernels::cuda::ops::kv::{KvElement, KvLayer, StepSequences};
use skein_kernels::cuda::{CudaError, DeviceSlice, Kernels, Stream};

use crate::spec::LayerSpec;

/// Query rows times heads per group from which [`PrefillSm90`] is faster: its tile. With fewer, part of each
/// product is idle, and one tile processes the whole context alone while [`Attention`] splits it.
const FULL_TILE: usize = 128;
/// Parts of the workspace start at multiples of this.
const ALIGNMENT: usize = 256;

/// Paged attention of all layers: one [`StepAttention`] for each kind of window, because the plan depends on
/// it.
pub struct Windows<T, K> {
    kinds: Vec<StepAttention<T, K>>,
    /// Index into `kinds` for each layer.
    of_layers: Vec<usize>,
}

impl<T: Activation, K: KvElement> Windows<T, K> {
    /// Looks the kernels up. All `layers` have `shape`, except for their windows.
    pub fn new(kernels: &Kernels, shape: AttentionShape, layers: &[LayerSpec]) -> Result<Self, CudaError> {
        let mut distinct = Vec::new();
        let kind = |layer: &LayerSpec| {
            let is_chunked = layer.is_chunked && layer.window.is_some();
            let of_layer = AttentionShape { window: layer.window, is_chunked, ..shape };
            distinct.iter().position(|known| *known == of_layer).unwrap_or_else(|| {
                distinct.push(of_layer);
                distinct.len() - 1
            })
        };
        let of_layers = layers.iter().map(kind).collect();
        let kinds = distinct.into_iter().map(|shape| StepAttention::new(kernels, shape));
        Ok(Self { kinds: kinds.collect::<Result<_, _>>()?, of_layers })
    }

    /// Name of the kernel for long chunks, for logs.
    pub fn prefill_name(&self) -> &'static str {
        self.kinds.first().map_or("none", StepAttention::prefill_name)
    }

    /// Bytes of the workspace; see [`StepAttention::workspace_bytes`].
    pub fn workspace_bytes(&self, max_rows: usize, max_sequences: usize, max_context: usize) -> usize {
        let bytes = |kind: &StepAttention<T, K>| kind.workspace_bytes(max_rows, max_sequences, max_context);
        let most = self.kinds.iter().map(bytes).max().unwrap_or_default();
        self.kinds.len() * most.next_multiple_of(ALIGNMENT)
    }

    /// Part of the workspace for one kind of window.
    fn part(&self, workspace: DeviceSlice<u8>, kind: usize) -> DeviceSlice<u8> {
        let bytes = workspace.len() / self.kinds.len();
        workspace.slice(kind * bytes..(kind + 1) * bytes)
    }

    /// Sets the cache. Call it before any launch.
    pub fn set_cache(&mut self, cache: &[KvLayer<K>]) -> Result<(), CudaError> {
        self.kinds.iter_mut().try_for_each(|kind| kind.set_cache(cache))
    }

    /// Queues the plans of a step.
    pub fn plan(
        &self,
        stream: &Stream,
        sequences: &StepSequences,
        kind: StepKind,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        let plan = |(i, of): (usize, &StepAttention<T, K>)| {
            of.plan(stream, sequences, kind, self.part(workspace, i))
        };
        self.kinds.iter().enumerate().try_for_each(plan)
    }

    /// Queues the attention of the step's rows in one layer.
    pub fn launch(&self, stream: &Stream, rows: LayerRows<'_, T, K>) -> Result<(), CudaError> {
        let kind = self.of_layers[rows.index];
        let workspace = self.part(rows.workspace, kind);
        self.kinds[kind].launch(stream, LayerRows { workspace, ..rows })
    }
}

/// Paged attention of any step, with one window.
pub struct StepAttention<T, K> {
    general: Attention<T, K>,
    prefill: Option<Prefill<T>>,
}

/// The kernel for long chunks.
struct Prefill<T> {
    kernel: PrefillSm90<T>,
    /// Fewest rows of a sequence for this kernel.
    min_rows: usize,
    /// Filled by [`StepAttention::set_cache`].
    layers: Vec<PrefillLayer<T>>,
}

/// One layer's part of a step.
#[derive(Debug, Clone, Copy)]
pub struct LayerRows<'a, T, K> {
    /// `[rows, q_stride]`: the query heads start each row.
    pub q: DeviceSlice<T>,
    /// Values between two rows of `q`.
    pub q_stride: usize,
    /// `[rows, heads * value_dim]`
    pub out: DeviceSlice<T>,
    /// `[heads]`: a logit that takes part in the softmax but has no value; or [`DeviceSlice::NONE`].
    pub sinks: DeviceSlice<f32>,
    /// Index of the layer.
    pub index: usize,
    /// Keys and values of the layer, including those of the step's rows.
    pub cache: KvLayer<K>,
    /// Sequences as passed to the plan.
    pub sequences: &'a StepSequences,
    /// Workspace as passed to the plan.
    pub workspace: DeviceSlice<u8>,
    /// Step kind as passed to the plan.
    pub kind: StepKind,
}

impl<T: Activation, K: KvElement> StepAttention<T, K> {
    /// Finds the kernels.
    pub fn new(kernels: &Kernels, shape: AttentionShape) -> Result<Self, CudaError> {
        let general = Attention::new(kernels, shape)?;
        let has_prefill = !shape.batch_invariant
            && <T as Activation>::SUFFIX == K::SUFFIX
            && is_supported(&shape, kernels.device());
        let prefill = if has_prefill {
            let min_rows = FULL_TILE.div_ceil(shape.heads / shape.kv_heads);
            Some(Prefill { kernel: PrefillSm90::new(kernels, shape)?, min_rows, layers: Vec::new() })
        } else {
            None
        };
        Ok(Self { general, prefill })
    }

    /// Name of the kernel for long chunks, for logs.
    pub fn prefill_name(&self) -> &'static str {
        if self.prefill.is_some() { "wgmma" } else { "mma.sync" }
    }

    /// Fewest rows of a sequence for the long-chunk kernel; `None` if it is not used.
    pub fn prefill_rows(&self) -> Option<usize> {
        self.prefill.as_ref().map(|prefill| prefill.min_rows)
    }

    /// Bytes of the workspace for steps of up to `max_rows` rows and `max_sequences` sequences, with contexts
    /// of up to `max_context` tokens.
    pub fn workspace_bytes(&self, max_rows: usize, max_sequences: usize, max_context: usize) -> usize {
        let general = self.general.workspace_bytes(max_rows, max_sequences, max_context);
        match &self.prefill {
            None => general,
            Some(prefill) => {
                let words = prefill.kernel.workspace_words(max_rows, max_sequences);
                (words * size_of::<u32>()).next_multiple_of(ALIGNMENT) + general
            }
        }
    }

    /// Sets the cache. Call it before any launch.
    pub fn set_cache(&mut self, cache: &[KvLayer<K>]) -> Result<(), CudaError> {
        let Some(prefill) = &mut self.prefill else { return Ok(()) };
        // K is T.
        prefill.layers =
            cache.iter().map(|layer| PrefillLayer::new(layer.cast())).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Queues the plan of a step.
    pub fn plan(
        &self,
        stream: &Stream,
        sequences: &StepSequences,
        kind: StepKind,
        workspace: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        let Some(prefill) = self.prefill_of(kind) else {
            return self.general.plan(stream, sequences, 0, workspace);
        };
        let (own, rest) = prefill.split(sequences, workspace);
        prefill.kernel.plan(stream, sequences, prefill.min_rows, own)?;
        self.general.plan(stream, sequences, prefill.min_rows, rest)
    }

    /// Queues the attention of the step's rows in one layer.
    pub fn launch(&self, stream: &Stream, rows: LayerRows<'_, T, K>) -> Result<(), CudaError> {
        let LayerRows { q, q_stride, out, sinks, index, cache, sequences, mut workspace, kind } = rows;
        if let Some(prefill) = self.prefill_of(kind) {
            let (own, rest) = prefill.split(sequences, workspace);
            let layer = &prefill.layers[index];
            let rows = PrefillRows { q, q_stride, out, sinks, layer, sequences, workspace: own };
            prefill.kernel.launch(stream, rows)?;
            workspace = rest;
        }
        let rows = AttentionRows { q, q_stride, out, sinks, layer: cache, sequences, workspace, kind };
        self.general.launch(stream, rows)
    }

    /// Kernel for long chunks, if the step may contain some.
    fn prefill_of(&self, kind: StepKind) -> Option<&Prefill<T>> {
        self.prefill.as_ref().filter(|_| kind == StepKind::Mixed)
    }
}

impl<T: Activation> Prefill<T> {
    /// Its part of the workspace, and the rest.
    fn split(
        &self,
        sequences: &StepSequences,
        workspace: DeviceSlice<u8>,
    ) -> (DeviceSlice<u32>, DeviceSlice<u8>) {
        let words = self.kernel.workspace_words(sequences.rows, sequences.capacity);
        let end = (words * size_of::<u32>()).next_multiple_of(ALIGNMENT);
        (workspace.slice(0..end).cast(), workspace.slice(end..workspace.len()))
    }
}
