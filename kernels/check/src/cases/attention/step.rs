//! The inputs of one step, and its actual and expected results.

use half::{bf16, f16};

use super::reference::Reference;
use crate::cases::case::Bench;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::attention::{Attention, AttentionRows, AttentionShape, StepKind};
use skein_kernels::cuda::ops::kv::{KvElement, KvLayer, StepSequences};
use skein_kernels::cuda::{CudaError, DeviceSlice};

/// Number of values between the queries of two rows.
const GAP: usize = 24;

#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) kv_heads: usize,
    pub(super) group: usize,
    pub(super) head_dim: usize,
    /// Width of the latent, with which keys start; values are read from there.
    pub(super) latent: Option<usize>,
    pub(super) block_size: usize,
    /// Rows and context length of each sequence.
    pub(super) lengths: &'static [(usize, usize)],
    pub(super) window: Option<u32>,
    pub(super) is_chunked: bool,
    pub(super) softcap: Option<f32>,
    pub(super) sinks: bool,
    pub(super) batch_invariant: bool,
    pub(super) kind: StepKind,
}

pub(super) const PLAIN: Case = Case {
    kv_heads: 1,
    group: 4,
    head_dim: 64,
    latent: None,
    block_size: 16,
    lengths: &[],
    window: None,
    is_chunked: false,
    softcap: None,
    sinks: false,
    batch_invariant: false,
    kind: StepKind::Mixed,
};

impl Case {
    pub(super) fn shape(&self) -> AttentionShape {
        let &Self { kv_heads, group, head_dim, latent, window, is_chunked, softcap, batch_invariant, .. } =
            self;
        AttentionShape {
            heads: kv_heads * group,
            kv_heads,
            head_dim,
            latent,
            scale: 0.11,
            window,
            is_chunked,
            softcap,
            batch_invariant,
        }
    }

    fn stride(&self) -> usize {
        self.kv_heads * self.group * self.head_dim + GAP
    }

    fn rows(&self) -> usize {
        self.lengths.iter().map(|(rows, _)| rows).sum()
    }
}

/// Types of queries, keys and values.
pub(super) trait Stored: KvElement {
    const NAME: &'static str;
    /// Scale of stored values.
    const SCALE: f32;
    /// Value of slots that must not be read: NaN, or the largest value of e4m3, because the kernels assume
    /// that e4m3 holds no NaN.
    fn poison() -> Self;
    fn round(value: f32) -> Self;
    fn widen(self) -> f32;
    /// Its bytes in memory.
    fn bytes(self) -> Vec<u8>;
}

macro_rules! stored {
    ($type:ty, $name:literal, $scale:literal, $poison:expr, $bytes:expr) => {
        impl Stored for $type {
            const NAME: &'static str = $name;
            const SCALE: f32 = $scale;
            fn poison() -> Self {
                $poison
            }
            fn round(value: f32) -> Self {
                Self::from_f32(value / $scale)
            }
            fn widen(self) -> f32 {
                self.to_f32() * $scale
            }
            fn bytes(self) -> Vec<u8> {
                ($bytes)(self)
            }
        }
    };
}
stored!(bf16, "bf16", 1.0, bf16::NAN, |it: Self| it.to_le_bytes().to_vec());
stored!(f16, "f16", 1.0, f16::NAN, |it: Self| it.to_le_bytes().to_vec());
stored!(E4m3, "e4m3", 0.25, E4m3(0x7e), |it: Self| vec![it.0]);

/// The inputs, on the host.
#[derive(Clone)]
pub(super) struct AttentionStep<T, K> {
    q: Vec<T>,
    keys: Vec<K>,
    values: Vec<K>,
    sinks: Vec<f32>,
    row_starts: Vec<u32>,
    context_lens: Vec<u32>,
    block_tables: Vec<u32>,
    table_stride: usize,
    blocks: usize,
}

impl<T: Stored, K: Stored> AttentionStep<T, K> {
    /// Blocks are in random order with unused ones between them. Slots that no row sees are poisoned.
    pub(super) fn draw(bench: &mut Bench, case: &Case) -> Self {
        let &Case { kv_heads, group, head_dim, block_size, lengths, .. } = case;
        let longest = lengths.iter().map(|(_, context)| context.div_ceil(block_size)).max();
        let table_stride = longest.unwrap_or(0) + 1;
        let blocks = lengths.len() * table_stride + 2;
        let mut order: Vec<u32> = (0..blocks as u32).collect();
        for i in (1..blocks).rev() {
            order.swap(i, bench.below(i as u32 + 1) as usize);
        }
        order.truncate(lengths.len() * table_stride);
        let len = blocks * kv_heads * block_size * head_dim;
        let mut step = Self {
            q: bench.normal_as(case.rows() * case.stride(), T::round),
            keys: bench.normal_as(len, K::round),
            values: bench.normal_as(len, K::round),
            sinks: bench.normal(kv_heads * group),
            row_starts: Vec::new(),
            context_lens: Vec::new(),
            block_tables: order,
            table_stride,
            blocks,
        };
        if let Some(latent) = case.latent {
            step.values = step.keys.clone();
            let rotated = step.values.chunks_exact_mut(head_dim).flat_map(|key| &mut key[latent..]);
            rotated.for_each(|value| *value = K::round(0.0));
        }
        step.set_lengths(case.lengths);
        step.poison_unused(case);
        step
    }

    fn set_lengths(&mut self, lengths: &[(usize, usize)]) {
        (self.row_starts, self.context_lens) = (vec![0], Vec::new());
        let mut end = 0;
        for (rows, context) in lengths {
            end += *rows as u32;
            self.row_starts.push(end);
            self.context_lens.push(*context as u32);
        }
    }

    /// This step with its only sequence split into `case.lengths` sequences that share its blocks.
    pub(super) fn split(&self, case: &Case) -> Self {
        let mut split = self.clone();
        split.set_lengths(case.lengths);
        split.block_tables = self.block_tables[..self.table_stride].repeat(case.lengths.len());
        split
    }

    /// One row of the step's only sequence.
    pub(super) fn row(&self, case: &Case, row: usize) -> Self {
        let mut alone = self.split(case);
        alone.q = self.q[row * case.stride()..][..case.stride()].to_vec();
        alone
    }

    fn poison_unused(&mut self, case: &Case) {
        let mut used = vec![false; self.blocks * case.block_size];
        for (sequence, (rows, context)) in case.lengths.iter().enumerate() {
            let first = first_seen(case, context - rows);
            for position in if *rows == 0 { 0..0 } else { first..*context } {
                let (block, offset) = self.slot(case, sequence, position);
                used[block * case.block_size + offset] = true;
            }
        }
        for (i, (key, value)) in self.keys.iter_mut().zip(&mut self.values).enumerate() {
            let row = i / case.head_dim;
            let block = row / case.block_size / case.kv_heads;
            if !used[block * case.block_size + row % case.block_size] {
                (*key, *value) = (K::poison(), K::poison());
            }
        }
    }

    fn slot(&self, case: &Case, sequence: usize, position: usize) -> (usize, usize) {
        let table = &self.block_tables[sequence * self.table_stride..];
        (table[position / case.block_size] as usize, position % case.block_size)
    }

    /// Replaces latents by the values that `narrow` gives for a key and the width of its latent, and returns
    /// the bytes of all keys that it also gives.
    pub(super) fn narrow(
        &mut self,
        case: &Case,
        narrow: impl Fn(&[K], usize) -> (Vec<u8>, Vec<K>),
    ) -> Vec<E4m3> {
        let rank = case.latent.unwrap_or(case.head_dim);
        let mut all = Vec::new();
        let keys = self.keys.chunks_exact_mut(case.head_dim);
        for (key, value) in keys.zip(self.values.chunks_exact_mut(case.head_dim)) {
            let (bytes, values) = narrow(key, rank);
            key.copy_from_slice(&values);
            value[..rank].copy_from_slice(&values[..rank]);
            all.extend(bytes.into_iter().map(E4m3));
        }
        all
    }

    /// All queries, in f32.
    pub(super) fn queries(&self) -> impl Iterator<Item = f32> {
        self.q.iter().map(|q| q.widen())
    }

    /// The same step with one large number added to every score, so that a different number of rescalings
    /// changes how a sum is rounded.
    pub(super) fn shifted(mut self, case: &Case) -> Self {
        self.keys.iter_mut().step_by(case.head_dim).for_each(|key| *key = K::round(4.0));
        for row in (0..self.q.len()).step_by(case.stride()) {
            (0..case.shape().heads).for_each(|head| self.q[row + head * case.head_dim] = T::round(16.0));
        }
        self
    }

    /// The expected output.
    pub(super) fn reference(&self, case: &Case) -> Vec<f32> {
        let AttentionShape { kv_heads, head_dim, scale, window, is_chunked, softcap, .. } = case.shape();
        let sinks = case.sinks.then_some(&self.sinks[..]);
        let group = case.group;
        let reference = Reference { kv_heads, group, head_dim, scale, window, is_chunked, softcap, sinks };
        let mut out = Vec::new();
        for (sequence, &(_, context)) in case.lengths.iter().enumerate() {
            let rows = self.row_starts[sequence] as usize..self.row_starts[sequence + 1] as usize;
            let queries = rows.flat_map(|row| &self.q[row * case.stride()..][..case.stride() - GAP]);
            let queries: Vec<f32> = queries.map(|q| q.widen()).collect();
            let kv: Vec<f32> = (0..context).flat_map(|position| self.kv(case, sequence, position)).collect();
            out.extend(reference.attend(&queries, &kv));
        }
        match case.latent {
            None => out,
            Some(latent) => {
                out.chunks_exact(case.head_dim).flat_map(|head| &head[..latent]).copied().collect()
            }
        }
    }

    /// All heads' keys and then values of a position.
    fn kv(&self, case: &Case, sequence: usize, position: usize) -> impl Iterator<Item = f32> {
        let (block, offset) = self.slot(case, sequence, position);
        [&self.keys, &self.values].into_iter().flat_map(move |values| {
            (0..case.kv_heads).flat_map(move |head| {
                let row = (block * case.kv_heads + head) * case.block_size + offset;
                values[row * case.head_dim..][..case.head_dim].iter().map(|value| value.widen())
            })
        })
    }
}

fn first_seen(case: &Case, position: usize) -> usize {
    match case.window {
        None => 0,
        Some(window) if case.is_chunked => position / window as usize * window as usize,
        Some(window) => (position + 1).saturating_sub(window as usize),
    }
}

/// Plans once and runs two layers. The first result is discarded: the second layer must find everything
/// unchanged.
pub(super) fn compute<T: Stored, K: Stored>(
    bench: &mut Bench,
    case: &Case,
    step: &AttentionStep<T, K>,
) -> Result<Vec<f32>, CudaError> {
    let kv = (&step.keys[..], &step.values[..]);
    match T::NAME {
        "f16" => launch_over(bench, case, step.queries().map(f16::from_f32).collect(), kv, step),
        _ => launch_over(bench, case, step.queries().map(bf16::from_f32).collect(), kv, step),
    }
}

/// Runs a step over other keys and values than its own.
pub(super) fn launch_over<A: Activation, K: Stored>(
    bench: &mut Bench,
    case: &Case,
    queries: Vec<A>,
    (keys, values): (&[K], &[K]),
    step: &AttentionStep<impl Stored, impl Stored>,
) -> Result<Vec<f32>, CudaError> {
    let shape = case.shape();
    let attention = Attention::<A, K>::new(&bench.kernels, shape)?;
    let (rows, capacity) = (case.rows(), case.lengths.len());
    let len = rows * shape.heads * shape.value_dim();
    let (q, keys, values) = (bench.upload(&queries)?, bench.upload(keys)?, bench.upload(values)?);
    let (sinks, tables) = (bench.upload(&step.sinks)?, bench.upload(&step.block_tables)?);
    let (row_starts, context_lens) = (bench.upload(&step.row_starts)?, bench.upload(&step.context_lens)?);
    let workspace = bench.output::<u8>(attention.workspace_bytes(rows, capacity, 4096))?;
    let (first, second) = (bench.output::<A>(len)?, bench.output::<A>(len)?);
    let sequences = StepSequences {
        row_starts: *row_starts,
        context_lens: *context_lens,
        block_tables: *tables,
        table_stride: step.table_stride,
        capacity,
        rows,
    };
    let layer = KvLayer {
        keys: *keys,
        values: *values,
        blocks: step.blocks,
        kv_heads: case.kv_heads,
        block_size: case.block_size,
        head_dim: case.head_dim,
        // Latents have scales of their own.
        key_scale: if case.latent.is_some() { 1.0 } else { K::SCALE },
        value_scale: if case.latent.is_some() { 1.0 } else { K::SCALE },
    };
    layer.check()?;
    attention.plan(&bench.stream, &sequences, 0, *workspace)?;
    for out in [&first, &second] {
        let rows = AttentionRows {
            q: *q,
            q_stride: case.stride(),
            out: **out,
            sinks: if case.sinks { *sinks } else { DeviceSlice::NONE },
            layer,
            sequences: &sequences,
            workspace: *workspace,
            kind: case.kind,
        };
        attention.launch(&bench.stream, rows)?;
    }
    Ok(second.read(&bench.stream)?.into_iter().map(A::to_f32).collect())
}
