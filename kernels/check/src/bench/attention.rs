//! Attention over the paged cache: decode rows over long contexts, and whole prompts by either kernel.

use half::bf16;

use super::Model;
use super::time::{Rig, Work};
use skein_kernels::cuda::memory::Element;
use skein_kernels::cuda::ops::attention::{Attention, AttentionRows, AttentionShape, StepKind};
use skein_kernels::cuda::ops::attention_sm90::{PrefillLayer, PrefillRows, PrefillSm90, is_supported};
use skein_kernels::cuda::ops::kv::{KvLayer, StepSequences};
use skein_kernels::cuda::{CudaError, DeviceBuffer, DeviceSlice};

/// Tokens per cache block.
const BLOCK: usize = 16;

/// Sequences of equal length with a cache: several copies of one layer.
pub(super) struct Cached {
    keys: DeviceBuffer<bf16>,
    values: DeviceBuffer<bf16>,
    tables: DeviceBuffer<u32>,
    row_starts: DeviceBuffer<u32>,
    context_lens: DeviceBuffer<u32>,
    blocks: usize,
    table_stride: usize,
    model: Model,
    rows: usize,
    /// Number of copies; launches use them in turn, so that none is read from L2.
    pub copies: usize,
}

impl Cached {
    /// `batch` sequences of `rows` rows each, which attend to `context` tokens.
    pub fn new(
        rig: &mut Rig<'_>,
        model: &Model,
        batch: usize,
        rows: usize,
        context: usize,
    ) -> Result<Self, CudaError> {
        let table_stride = context.div_ceil(BLOCK);
        let blocks = batch * table_stride;
        let len = blocks * BLOCK * model.kv_heads * model.head_dim;
        let copies = rig.copies(2 * len * size_of::<bf16>());
        // Consecutive blocks of a sequence are not adjacent in memory, as after some time of serving.
        let tables: Vec<u32> =
            (0..blocks).map(|i| (i % table_stride * batch + i / table_stride) as u32).collect();
        let starts: Vec<u32> = (0..=batch).map(|i| (i * rows) as u32).collect();
        Ok(Self {
            keys: rig.random(copies * len)?,
            values: rig.random(copies * len)?,
            tables: rig.upload(&tables)?,
            row_starts: rig.upload(&starts)?,
            context_lens: rig.upload(&vec![context as u32; batch])?,
            blocks,
            table_stride,
            model: *model,
            rows: batch * rows,
            copies,
        })
    }

    /// Bytes of the caches of all copies.
    pub fn bytes(rig: &Rig<'_>, model: &Model, batch: usize, context: usize) -> usize {
        let one = kv_bytes(model, batch * context.next_multiple_of(BLOCK));
        one * rig.copies(one)
    }

    pub fn layer(&self, copy: usize) -> KvLayer<bf16> {
        let Model { kv_heads, head_dim, .. } = self.model;
        let len = self.blocks * BLOCK * kv_heads * head_dim;
        let part = |all: &DeviceBuffer<bf16>| all.slice(copy * len..(copy + 1) * len);
        KvLayer {
            keys: part(&self.keys),
            values: part(&self.values),
            blocks: self.blocks,
            kv_heads,
            block_size: BLOCK,
            head_dim,
            key_scale: 1.0,
            value_scale: 1.0,
        }
    }

    pub fn sequences(&self) -> StepSequences {
        StepSequences {
            row_starts: *self.row_starts,
            context_lens: *self.context_lens,
            block_tables: *self.tables,
            table_stride: self.table_stride,
            capacity: self.context_lens.len(),
            rows: self.rows,
        }
    }
}

/// Bytes of the keys and values of `tokens` tokens in one layer.
fn kv_bytes(model: &Model, tokens: usize) -> usize {
    2 * tokens * model.kv_heads * model.head_dim * size_of::<bf16>()
}

pub(super) fn shape(model: &Model) -> AttentionShape {
    let Model { heads, kv_heads, head_dim, .. } = *model;
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionShape {
        heads,
        kv_heads,
        head_dim,
        latent: None,
        scale,
        window: None,
        is_chunked: false,
        softcap: None,
        batch_invariant: false,
    }
}

/// One row for each of `batch` sequences over `context` tokens.
pub(super) fn decode(
    rig: &mut Rig<'_>,
    model: &Model,
    batch: usize,
    context: usize,
) -> Result<(), CudaError> {
    let name = format!("attention {} decode, {batch} rows over {context}", model.name);
    if !rig.wants(&name, Cached::bytes(rig, model, batch, context))? {
        return Ok(());
    }
    let cached = Cached::new(rig, model, batch, 1, context)?;
    over_cache(rig, &name, &cached, StepKind::Decode, decode_work(model, batch, context))?;
    let invariant = AttentionShape { batch_invariant: true, ..shape(model) };
    let name = format!("{name}, batch-invariant");
    by_tiles(rig, &name, &cached, invariant, StepKind::Decode, decode_work(model, batch, context))
}

pub(super) fn decode_work(model: &Model, batch: usize, context: usize) -> Work {
    let operations = 4.0 * (batch * context * model.q_width()) as f64;
    Work { bytes: kv_bytes(model, batch * context) + 4 * batch * model.q_width(), operations }
}

/// A prompt of `rows` tokens with mma.sync, and with wgmma if the device has it.
pub(super) fn prefill(rig: &mut Rig<'_>, model: &Model, rows: usize) -> Result<(), CudaError> {
    let name = format!("attention {} prefill of {rows}", model.name);
    if !rig.wants(&name, Cached::bytes(rig, model, 1, rows))? {
        return Ok(());
    }
    let cached = Cached::new(rig, model, 1, rows, rows)?;
    let work = prefill_work(model, rows);
    over_cache(rig, &format!("{name}, mma.sync"), &cached, StepKind::Mixed, work)?;
    by_hopper(rig, &format!("{name}, wgmma"), &cached, work)
}

/// Each row attends to half of the prompt on average.
fn prefill_work(model: &Model, rows: usize) -> Work {
    let operations = 2.0 * (rows as f64) * (rows as f64 + 1.0) * model.q_width() as f64;
    Work { bytes: kv_bytes(model, rows) + 4 * rows * model.q_width(), operations }
}

/// The attention kernel that the backend launches.
pub(super) fn over_cache(
    rig: &mut Rig<'_>,
    name: &str,
    cached: &Cached,
    kind: StepKind,
    work: Work,
) -> Result<(), CudaError> {
    by_tiles(rig, name, cached, shape(&cached.model), kind, work)
}

fn by_tiles(
    rig: &mut Rig<'_>,
    name: &str,
    cached: &Cached,
    shape: AttentionShape,
    kind: StepKind,
    work: Work,
) -> Result<(), CudaError> {
    let attention = Attention::<bf16, bf16>::new(rig.kernels(), shape)?;
    let (q, out, q_stride) = queries(rig, cached)?;
    let sequences = cached.sequences();
    let context = cached.table_stride * BLOCK;
    let workspace =
        rig.zeros::<u8>(attention.workspace_bytes(sequences.rows, sequences.capacity, context))?;
    attention.plan(rig.stream(), &sequences, 0, *workspace)?;
    rig.measure(name, work, cached.copies, |stream, copy| {
        let rows = AttentionRows {
            q: *q,
            q_stride,
            out: *out,
            sinks: DeviceSlice::NONE,
            layer: cached.layer(copy),
            sequences: &sequences,
            workspace: *workspace,
            kind,
        };
        attention.launch(stream, rows)
    })
}

fn by_hopper(rig: &mut Rig<'_>, name: &str, cached: &Cached, work: Work) -> Result<(), CudaError> {
    let shape = shape(&cached.model);
    if !is_supported(&shape, rig.kernels().device()) {
        return Ok(());
    }
    let attention = PrefillSm90::<bf16>::new(rig.kernels(), shape)?;
    let (q, out, q_stride) = queries(rig, cached)?;
    let sequences = cached.sequences();
    let workspace = rig.zeros::<u32>(attention.workspace_words(sequences.rows, sequences.capacity))?;
    attention.plan(rig.stream(), &sequences, 1, *workspace)?;
    let layers: Vec<_> =
        (0..cached.copies).map(|copy| PrefillLayer::new(cached.layer(copy))).collect::<Result<_, _>>()?;
    rig.measure(name, work, cached.copies, |stream, copy| {
        let rows = PrefillRows {
            q: *q,
            q_stride,
            out: *out,
            sinks: DeviceSlice::NONE,
            layer: &layers[copy],
            sequences: &sequences,
            workspace: *workspace,
        };
        attention.launch(stream, rows)
    })
}

/// Queries laid out as in the stacked projection, memory for results, and the stride between rows.
fn queries<T: Element + skein_kernels::cuda::ops::random::Randomised>(
    rig: &mut Rig<'_>,
    cached: &Cached,
) -> Result<(DeviceBuffer<T>, DeviceBuffer<T>, usize), CudaError> {
    let stride = cached.model.qkv_width();
    Ok((rig.random(cached.rows * stride)?, rig.zeros(cached.rows * cached.model.q_width())?, stride))
}
