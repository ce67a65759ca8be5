//! Cases of [`skein_kernels::cuda::ops::inputs`]: layout and padding of messages, carried tokens, wanted
//! rows.

use super::Scale;
use super::case::Bench;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::inputs::{
    CARRIED, ExpandInputs, Gather, GatherRows, Inputs, Message, WindowTables,
};
use skein_kernels::cuda::ops::kv::{NO_SLOT, StepSequences};
use skein_kernels::cuda::{CudaError, DeviceSlice};

/// Initial value of every output, kept where nothing is written.
const POISON: u32 = u32::MAX;

/// Room for the longest message: two tables of 256 sequences with 8192 blocks each, and more.
const MESSAGE_WORDS: usize = 1 << 23;

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[InputsShape] = match bench.scale {
        Scale::Small => &[
            InputsShape { rows: 1, sequences: 1, samples: 1, row_capacity: 1, capacity: 1, stride: 1 },
            InputsShape { rows: 13, sequences: 3, samples: 2, row_capacity: 64, capacity: 8, stride: 5 },
            InputsShape { rows: 300, sequences: 20, samples: 9, row_capacity: 300, capacity: 20, stride: 40 },
            InputsShape { rows: 0, sequences: 0, samples: 7, row_capacity: 0, capacity: 0, stride: 0 },
        ],
        Scale::Full => &[
            InputsShape {
                rows: 256,
                sequences: 256,
                samples: 256,
                row_capacity: 256,
                capacity: 256,
                stride: 8192,
            },
            InputsShape {
                rows: 8192,
                sequences: 300,
                samples: 300,
                row_capacity: 8192,
                capacity: 512,
                stride: 999,
            },
        ],
    };
    for shape in shapes {
        case(bench, shape, false)?;
        case(bench, shape, true)?;
    }
    gather_case::<half::bf16>(bench, (7, 5, 132), true)?;
    gather_case::<half::bf16>(bench, (7, 5, 132), false)?;
    gather_case::<half::f16>(bench, (3, 9, 2052), true)
}

fn gather_case<T: Activation>(
    bench: &mut Bench,
    (rows, wanted, hidden): (usize, usize, usize),
    with_delta: bool,
) -> Result<(), CudaError> {
    let name = format!("gather_rows_{} {wanted} of {rows}x{hidden} delta {with_delta}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let residual = bench.normal(rows * hidden);
    let drawn = bench.normal(rows * hidden);
    let delta: Vec<T> = drawn.iter().map(|x| T::from_f32(if with_delta { *x } else { 0.0 })).collect();
    let which: Vec<u32> = (0..wanted).map(|_| bench.below(rows as u32)).collect();
    let out = bench.output::<f32>(wanted * hidden)?;
    let (residuals, deltas, on_device) =
        (bench.upload(&residual)?, bench.upload(&delta)?, bench.upload(&which)?);
    let delta_rows = if with_delta { *deltas } else { DeviceSlice::NONE };
    let gather = Gather { out: *out, residual: *residuals, delta: delta_rows, wanted: *on_device, hidden };
    GatherRows::<T>::new(&bench.kernels)?.launch(&bench.stream, gather)?;
    let of = |row: &u32| (*row as usize * hidden)..(*row as usize + 1) * hidden;
    let reference: Vec<f32> = which.iter().flat_map(of).map(|i| residual[i] + delta[i].to_f32()).collect();
    bench.compare_exact(&name, &out.read(&bench.stream)?, &reference);
    Ok(())
}

#[derive(Debug)]
struct InputsShape {
    rows: usize,
    sequences: usize,
    samples: usize,
    row_capacity: usize,
    capacity: usize,
    stride: usize,
}

/// Random inputs, on the host.
struct StepInputs {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    /// Slots in window blocks.
    window_slots: Vec<u32>,
    starts: Vec<u32>,
    context_lens: Vec<u32>,
    tables: Vec<Vec<u32>>,
    /// Window blocks of the tables' blocks.
    window_tables: Vec<Vec<u32>>,
    logit_rows: Vec<u32>,
    sampled: Vec<u32>,
}

fn case(bench: &mut Bench, shape: &InputsShape, has_windows: bool) -> Result<(), CudaError> {
    let InputsShape { rows, sequences, samples, row_capacity, capacity, .. } = shape;
    let name = format!(
        "expand_inputs {rows} rows in {row_capacity}, {sequences} sequences in {capacity}, {samples} samples, \
         windows {has_windows}"
    );
    if !bench.wants(&name) {
        return Ok(());
    }
    let step = draw(bench, shape);
    let mut words = vec![POISON; MESSAGE_WORDS];
    let used = pack(&step, has_windows, &mut words);
    let packed = bench.upload(&words[..used])?;
    let sampled = bench.upload(&step.sampled)?;
    let output = |len: usize| bench.output::<u32>(len);
    let (row_capacity, capacity, stride) = (shape.row_capacity, shape.capacity, shape.stride);
    let [tokens, positions, slots] = [output(row_capacity)?, output(row_capacity)?, output(row_capacity)?];
    let (row_starts, context_lens) = (output(capacity + 1)?, output(capacity)?);
    let (block_tables, logit_rows) = (output(capacity * stride)?, output(shape.samples + 3)?);
    let previous = output(step.sampled.len())?;
    let (window_slots, window_tables) = (output(row_capacity)?, output(capacity * stride)?);
    let windows = WindowTables { slots: *window_slots, block_tables: *window_tables };
    let inputs = Inputs {
        packed: *packed,
        sampled: *sampled,
        previous: if shape.rows > 0 { *previous } else { DeviceSlice::NONE },
        tokens: *tokens,
        positions: *positions,
        slots: *slots,
        sequences: StepSequences {
            row_starts: *row_starts,
            context_lens: *context_lens,
            block_tables: *block_tables,
            table_stride: stride,
            capacity,
            rows: row_capacity,
        },
        windows: has_windows.then_some(windows),
        logit_rows: *logit_rows,
    };
    ExpandInputs::new(&bench.kernels)?.launch(&bench.stream, inputs)?;

    let mut got = Vec::new();
    for output in [&tokens, &positions, &slots, &row_starts, &context_lens, &block_tables] {
        got.extend(output.read(&bench.stream)?);
    }
    got.extend(logit_rows.read(&bench.stream)?);
    got.extend(previous.read(&bench.stream)?);
    if has_windows {
        got.extend(window_slots.read(&bench.stream)?);
        got.extend(window_tables.read(&bench.stream)?);
    }
    bench.compare_exact(&name, &got, &reference(&step, shape, has_windows));
    Ok(())
}

fn draw(bench: &mut Bench, shape: &InputsShape) -> StepInputs {
    let &InputsShape { rows, sequences, samples, stride, .. } = shape;
    let words = |bench: &mut Bench, len: usize| (0..len).map(|_| bench.bits() >> 1).collect::<Vec<u32>>();
    let sampled = words(bench, 11);
    let token = |bench: &mut Bench| match bench.below(2) {
        0 => bench.bits() & !CARRIED,
        _ => CARRIED | bench.below(11),
    };
    let tables: Vec<Vec<u32>> = (0..sequences)
        .map(|_| bench.below(stride as u32 + 1) as usize)
        .collect::<Vec<_>>()
        .into_iter()
        .map(|len| words(bench, len))
        .collect();
    StepInputs {
        tokens: (0..rows).map(|_| token(bench)).collect(),
        positions: words(bench, rows),
        slots: words(bench, rows),
        window_slots: words(bench, rows),
        starts: (0..sequences).map(|s| (s * rows / sequences) as u32).collect(),
        context_lens: words(bench, sequences),
        window_tables: tables.iter().map(|table| words(bench, table.len())).collect(),
        tables,
        logit_rows: words(bench, samples),
        sampled,
    }
}

fn pack(step: &StepInputs, has_windows: bool, words: &mut [u32]) -> usize {
    let mut message = Message::new(words);
    if !step.tokens.is_empty() {
        message.rows(step.tokens.iter().copied(), &step.positions, &step.slots);
        let sequences = step.tables.iter().enumerate();
        message.sequences(
            sequences.map(|(s, table)| (step.starts[s], step.context_lens[s], table.iter().copied())),
        );
        if has_windows {
            message.windows(&step.window_slots, step.window_tables.iter().flatten().copied());
        }
    }
    message.logit_rows(&step.logit_rows);
    message.len()
}

/// All expected outputs in sequence, per the kernel's contract.
fn reference(step: &StepInputs, shape: &InputsShape, has_windows: bool) -> Vec<u32> {
    let padded = |values: &[u32], len: usize, pad: u32| {
        let mut values = values.to_vec();
        values.resize(len, pad);
        values
    };
    let found =
        step.tokens.iter().map(|&t| if t < CARRIED { t } else { step.sampled[(t - CARRIED) as usize] });
    let found: Vec<u32> = found.collect();
    let starts_len = if shape.capacity > 0 { shape.capacity + 1 } else { 0 };
    let mut all = padded(&found, shape.row_capacity, 0);
    all.extend(padded(&step.positions, shape.row_capacity, 0));
    all.extend(padded(&step.slots, shape.row_capacity, NO_SLOT));
    all.extend(padded(&step.starts, starts_len, shape.rows as u32));
    all.extend((shape.capacity == 0).then_some(POISON));
    all.extend(padded(&step.context_lens, shape.capacity, 0));
    let tables = |of: &[Vec<u32>]| -> Vec<u32> {
        let table = |sequence: usize| of.get(sequence).map_or(&[][..], |table: &Vec<u32>| table);
        (0..shape.capacity).flat_map(|sequence| padded(table(sequence), shape.stride, POISON)).collect()
    };
    all.extend(tables(&step.tables));
    all.extend(padded(&step.logit_rows, shape.samples + 3, 0));
    all.extend(if shape.rows > 0 { step.sampled.clone() } else { vec![POISON; step.sampled.len()] });
    if has_windows {
        all.extend(padded(&step.window_slots, shape.row_capacity, NO_SLOT));
        all.extend(tables(&step.window_tables));
    }
    all
}
