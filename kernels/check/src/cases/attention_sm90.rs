//! Cases of [`skein_kernels::cuda::ops::attention_sm90`].

use half::{bf16, f16};

use super::Scale;
use super::attention::reference::Reference;
use super::case::{Bench, Tolerance};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::attention::AttentionShape;
use skein_kernels::cuda::ops::attention_sm90::{PrefillLayer, PrefillRows, PrefillSm90, is_supported};
use skein_kernels::cuda::ops::kv::{KvElement, KvLayer, StepSequences};
use skein_kernels::cuda::tensor_map::MapElement;
use skein_kernels::cuda::{CudaError, DeviceSlice};

/// Rows and context of each sequence of a step.
type Lengths = &'static [(usize, usize)];

#[derive(Clone, Copy)]
struct Case {
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    block_size: usize,
    lengths: Lengths,
    window: Option<u32>,
    softcap: Option<f32>,
    sinks: bool,
    min_rows: usize,
}

const PLAIN: Case = Case {
    kv_heads: 1,
    group: 4,
    head_dim: 128,
    block_size: 16,
    lengths: &[(40, 150)],
    window: None,
    softcap: None,
    sinks: false,
    min_rows: 2,
};

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let device = bench.kernels.device().clone();
    if !is_supported(&shape_of(&PLAIN), &device) {
        return Ok(()); // made for one architecture only
    }
    for case in cases(bench.scale) {
        check::<bf16>(bench, case)?;
    }
    for head_dim in [64, 128] {
        check::<f16>(bench, Case { head_dim, ..PLAIN })?;
    }
    rows_do_not_depend_on_their_chunk::<bf16>(bench)?;
    rows_do_not_depend_on_their_chunk::<f16>(bench)
}

fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = vec![
        PLAIN,
        Case {
            head_dim: 64,
            kv_heads: 2,
            group: 1,
            lengths: &[(2, 2), (0, 0), (130, 130), (1, 33)],
            ..PLAIN
        },
        Case { head_dim: 64, group: 7, block_size: 8, lengths: &[(19, 300), (3, 128)], ..PLAIN },
        Case { group: 2, block_size: 32, lengths: &[(70, 257), (5, 5)], min_rows: 1, ..PLAIN },
        Case { head_dim: 64, group: 8, block_size: 256, lengths: &[(20, 290)], ..PLAIN },
        Case { group: 1, block_size: 128, lengths: &[(129, 384)], window: Some(64), ..PLAIN },
        Case { group: 1, head_dim: 64, lengths: &[(64, 464)], window: Some(200), ..PLAIN },
        Case {
            head_dim: 64,
            group: 4,
            lengths: &[(34, 310), (64, 64)],
            window: Some(9),
            sinks: true,
            ..PLAIN
        },
        Case { head_dim: 64, group: 2, lengths: &[(65, 130)], softcap: Some(2.5), ..PLAIN },
        Case { lengths: &[(50, 777)], ..PLAIN },
        Case { head_dim: 64, kv_heads: 3, lengths: &[(70, 140), (33, 90)], ..PLAIN },
        Case { lengths: &[(9, 200)], sinks: true, softcap: Some(30.0), ..PLAIN },
    ];
    if scale == Scale::Full {
        cases.extend([
            Case { kv_heads: 2, lengths: &[(2048, 2048), (511, 1337), (1, 900), (37, 37)], ..PLAIN },
            Case { kv_heads: 2, group: 7, head_dim: 64, lengths: &[(1000, 3000), (77, 2048)], ..PLAIN },
            Case {
                kv_heads: 2,
                group: 8,
                block_size: 64,
                lengths: &[(513, 4000)],
                window: Some(1024),
                ..PLAIN
            },
        ]);
    }
    cases
}

fn shape_of(case: &Case) -> AttentionShape {
    let &Case { kv_heads, group, head_dim, window, softcap, .. } = case;
    let (heads, batch_invariant) = (kv_heads * group, false);
    let (scale, is_chunked) = (0.11, false);
    AttentionShape {
        heads,
        kv_heads,
        head_dim,
        latent: None,
        scale,
        window,
        is_chunked,
        softcap,
        batch_invariant,
    }
}

/// Inputs of one step, on the host.
struct PrefillInputs<T> {
    q: Vec<T>,
    keys: Vec<T>,
    values: Vec<T>,
    sinks: Vec<f32>,
    row_starts: Vec<u32>,
    context_lens: Vec<u32>,
    block_tables: Vec<u32>,
    table_stride: usize,
    blocks: usize,
}

impl<T: Activation> PrefillInputs<T> {
    /// Blocks are in random order with unused ones between them. Slots beyond every context hold NaN.
    fn draw(bench: &mut Bench, case: &Case) -> Self {
        let &Case { kv_heads, group, head_dim, block_size, lengths, .. } = case;
        let table_stride =
            lengths.iter().map(|(_, context)| context.div_ceil(block_size)).max().unwrap_or(0) + 1;
        let blocks = lengths.len() * table_stride + 2;
        let mut order: Vec<u32> = (0..blocks as u32).collect();
        for i in (1..blocks).rev() {
            order.swap(i, bench.below(i as u32 + 1) as usize);
        }
        let rows: usize = lengths.iter().map(|(rows, _)| rows).sum();
        let draw = |bench: &mut Bench, len| bench.normal_as(len, T::from_f32);
        let mut step = Self {
            q: draw(bench, rows * stride(case)),
            keys: draw(bench, blocks * kv_heads * block_size * head_dim),
            values: draw(bench, blocks * kv_heads * block_size * head_dim),
            sinks: bench.normal(kv_heads * group),
            row_starts: vec![0],
            context_lens: Vec::new(),
            block_tables: order[..lengths.len() * table_stride].to_vec(),
            table_stride,
            blocks,
        };
        for (rows, context) in lengths {
            step.row_starts.push(step.row_starts[step.row_starts.len() - 1] + *rows as u32);
            step.context_lens.push(*context as u32);
        }
        step.poison_unused(case);
        step
    }

    fn poison_unused(&mut self, case: &Case) {
        let mut used = vec![false; self.blocks * case.block_size];
        for (sequence, (_, context)) in case.lengths.iter().enumerate() {
            for position in 0..*context {
                let (block, offset) = self.slot(case, sequence, position);
                used[block * case.block_size + offset] = true;
            }
        }
        let nan = T::from_f32(f32::NAN);
        for (i, (key, value)) in self.keys.iter_mut().zip(&mut self.values).enumerate() {
            let row = i / case.head_dim;
            let block = row / case.block_size / case.kv_heads;
            if !used[block * case.block_size + row % case.block_size] {
                (*key, *value) = (nan, nan);
            }
        }
    }

    fn slot(&self, case: &Case, sequence: usize, position: usize) -> (usize, usize) {
        let table = &self.block_tables[sequence * self.table_stride..];
        (table[position / case.block_size] as usize, position % case.block_size)
    }

    /// The expected output; NaN for rows that the kernel must not write.
    fn reference(&self, case: &Case) -> Vec<f32> {
        let AttentionShape { heads, kv_heads, head_dim, scale, window, softcap, .. } = shape_of(case);
        let sinks = case.sinks.then_some(&self.sinks[..]);
        let (group, is_chunked) = (case.group, false);
        let reference = Reference { kv_heads, group, head_dim, scale, window, is_chunked, softcap, sinks };
        let mut out = Vec::new();
        for (sequence, &(rows, context)) in case.lengths.iter().enumerate() {
            if rows < case.min_rows {
                out.extend(vec![f32::NAN; rows * heads * head_dim]);
                continue;
            }
            let first = self.row_starts[sequence] as usize;
            let queries =
                (first..first + rows).flat_map(|row| &self.q[row * stride(case)..][..heads * head_dim]);
            let queries: Vec<f32> = queries.map(|q| q.to_f32()).collect();
            let kv: Vec<f32> = (0..context).flat_map(|position| self.kv(case, sequence, position)).collect();
            out.extend(reference.attend(&queries, &kv));
        }
        out
    }

    /// All heads' keys and then values of a position.
    fn kv(&self, case: &Case, sequence: usize, position: usize) -> impl Iterator<Item = f32> {
        let (block, offset) = self.slot(case, sequence, position);
        [&self.keys, &self.values].into_iter().flat_map(move |values| {
            (0..case.kv_heads).flat_map(move |head| {
                let row = (block * case.kv_heads + head) * case.block_size + offset;
                values[row * case.head_dim..][..case.head_dim].iter().map(|value| value.to_f32())
            })
        })
    }
}

/// Query, key and value heads of a row are adjacent, as after the projection.
fn stride(case: &Case) -> usize {
    (case.group + 2) * case.kv_heads * case.head_dim
}

fn compute<T: Activation + KvElement + MapElement>(
    bench: &Bench,
    case: &Case,
    step: &PrefillInputs<T>,
) -> Result<Vec<f32>, CudaError> {
    let shape = shape_of(case);
    let (rows, capacity) = (step.q.len() / stride(case), case.lengths.len());
    let (q, keys, values) = (bench.upload(&step.q)?, bench.upload(&step.keys)?, bench.upload(&step.values)?);
    let (sinks, row_starts) = (bench.upload(&step.sinks)?, bench.upload(&step.row_starts)?);
    let (context_lens, tables) = (bench.upload(&step.context_lens)?, bench.upload(&step.block_tables)?);
    let sequences = StepSequences {
        row_starts: *row_starts,
        context_lens: *context_lens,
        block_tables: *tables,
        table_stride: step.table_stride,
        capacity,
        rows,
    };
    let attention = PrefillSm90::<T>::new(&bench.kernels, shape)?;
    let workspace = bench.output(attention.workspace_words(rows, capacity))?;
    let out = bench.output::<T>(rows * shape.heads * case.head_dim)?;
    let layer = KvLayer {
        keys: *keys,
        values: *values,
        blocks: step.blocks,
        kv_heads: case.kv_heads,
        block_size: case.block_size,
        head_dim: case.head_dim,
        key_scale: 1.0,
        value_scale: 1.0,
    };
    layer.check()?;
    let layer = &PrefillLayer::new(layer)?;
    attention.plan(&bench.stream, &sequences, case.min_rows, *workspace)?;
    let sinks = if case.sinks { *sinks } else { DeviceSlice::NONE };
    let q_stride = stride(case);
    let launch = PrefillRows {
        q: *q,
        q_stride,
        out: *out,
        sinks,
        layer,
        sequences: &sequences,
        workspace: *workspace,
    };
    attention.launch(&bench.stream, launch)?;
    Ok(out.read(&bench.stream)?.into_iter().map(T::to_f32).collect())
}

fn check<T: Activation + KvElement + MapElement>(bench: &mut Bench, case: Case) -> Result<(), CudaError> {
    let Case { kv_heads, group, head_dim, block_size, lengths, window, softcap, sinks, .. } = case;
    let name = format!(
        "attention_sm90_{}_{head_dim} {kv_heads}x{group} block {block_size} {lengths:?} window {} cap {} sinks {sinks}",
        <T as Activation>::SUFFIX,
        window.unwrap_or(0),
        softcap.unwrap_or(0.0),
    );
    if !bench.wants(&name) {
        return Ok(());
    }
    let step = PrefillInputs::<T>::draw(bench, &case);
    let got = compute(bench, &case, &step)?;
    let reference = step.reference(&case);
    // Rows that were not planned must keep their poison; the others are compared.
    let kept = reference.iter().zip(&got).filter(|(reference, _)| reference.is_nan());
    let untouched = kept.filter(|(_, got)| !got.is_nan()).count() == 0;
    bench.compare_exact(&format!("{name}, rows left alone"), &[untouched], &[true]);
    let written: Vec<(f32, f32)> =
        got.into_iter().zip(reference).filter(|(_, reference)| !reference.is_nan()).collect();
    let (got, reference): (Vec<f32>, Vec<f32>) = written.into_iter().unzip();
    bench.compare(&name, &got, &reference, Tolerance { absolute: 4e-3, relative: 1.6e-2 });
    Ok(())
}

/// A row has the same bits whether its sequence comes in one chunk or several, alone or beside others.
fn rows_do_not_depend_on_their_chunk<T: Activation + KvElement + MapElement>(
    bench: &mut Bench,
) -> Result<(), CudaError> {
    let name = format!("attention_sm90_{}_64 chunks", <T as Activation>::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let whole = Case { head_dim: 64, kv_heads: 2, lengths: &[(260, 260)], min_rows: 1, ..PLAIN };
    let mut step = PrefillInputs::<T>::draw(bench, &whole);
    // All scores are equally far from 0, so that one rescaling more or less changes the rounding of a sum.
    step.q.iter_mut().step_by(64).for_each(|q| *q = T::from_f32(16.0));
    step.keys.iter_mut().step_by(64).for_each(|key| *key = T::from_f32(4.0));
    let expected = compute(bench, &whole, &step)?;
    let mut got = Vec::new();
    // Tiles of 32 tokens, of which the last sees a KV tile that the others do not.
    let chunks: [Lengths; 4] = [&[(1, 1)], &[(96, 97)], &[(100, 197)], &[(63, 260)]];
    for lengths in chunks {
        let (rows, context) = lengths[0];
        let q = step.q[(context - rows) * stride(&whole)..context * stride(&whole)].to_vec();
        let part = PrefillInputs {
            q,
            keys: step.keys.clone(),
            values: step.values.clone(),
            sinks: step.sinks.clone(),
            row_starts: vec![0, rows as u32],
            context_lens: vec![context as u32],
            block_tables: step.block_tables.clone(),
            table_stride: step.table_stride,
            blocks: step.blocks,
        };
        got.extend(compute(bench, &Case { lengths, ..whole }, &part)?);
    }
    bench.compare_exact(&name, &got, &expected);
    Ok(())
}
