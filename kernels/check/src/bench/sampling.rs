//! Sampling of tokens from logits.

use super::time::{Rig, Work};
use skein_kernels::cpu::sample::Controls;
use skein_kernels::cuda::ops::sample::{SampleBatch, SampleParams, Sampler, Stages};
use skein_kernels::cuda::{CudaError, DeviceSlice};

/// Name, parameters of a row, and the launches that they need.
type Kind = (&'static str, fn(u32) -> SampleParams, Stages);

fn warm(row: u32) -> SampleParams {
    let controls = Controls { temperature: 0.8, ..Controls::GREEDY };
    SampleParams { controls, ..SampleParams::greedy(row) }
}

fn cut(row: u32) -> SampleParams {
    let warm = warm(row);
    SampleParams { controls: Controls { top_k: 50, top_p: 0.95, ..warm.controls }, ..warm }
}

/// Greedy, with temperature, and with top-k and top-p, from `rows` rows.
pub(super) fn run(rig: &mut Rig<'_>, vocab: usize, rows: usize) -> Result<(), CudaError> {
    let kinds: [Kind; 3] = [
        ("greedy", SampleParams::greedy, Stages::Greedy),
        ("temperature", warm, Stages::Uncut),
        ("top-k and top-p", cut, Stages::All),
    ];
    for (kind, params, stages) in kinds {
        let name = format!("sample {kind}, {rows} rows of {vocab}");
        let bytes = rows * vocab * size_of::<f32>();
        if rig.wants(&name, 4 * bytes)? {
            let samples: Vec<SampleParams> = (0..rows as u32).map(params).collect();
            draw(rig, &name, vocab, &samples, stages)?;
        }
    }
    Ok(())
}

fn draw(
    rig: &mut Rig<'_>,
    name: &str,
    vocab: usize,
    samples: &[SampleParams],
    stages: Stages,
) -> Result<(), CudaError> {
    let rows = samples.len();
    let copies = rig.copies(rows * vocab * size_of::<f32>());
    let logits = rig.random::<f32>(copies * rows * vocab)?;
    let workspace = rig.zeros::<u8>(Sampler::workspace_bytes(rows, vocab))?;
    let (samples, count) = (rig.upload(samples)?, rig.upload(&[rows as u32])?);
    let (tokens, status) = (rig.zeros::<u32>(rows)?, rig.zeros::<u32>(rows)?);
    let sampler = Sampler::new(rig.kernels())?;
    let work = Work { bytes: rows * vocab * size_of::<f32>(), operations: 0.0 };
    rig.measure(name, work, copies, |stream, copy| {
        let batch = SampleBatch {
            logits: logits.slice(copy * rows * vocab..(copy + 1) * rows * vocab),
            stride: vocab,
            vocab,
            samples: *samples,
            count: *count,
            bias_tokens: DeviceSlice::NONE,
            bias_values: DeviceSlice::NONE,
            forbidden: DeviceSlice::NONE,
            history: DeviceSlice::NONE,
            masks: DeviceSlice::NONE,
            previous: DeviceSlice::NONE,
            tokens: *tokens,
            status: *status,
            workspace: *workspace,
            stages,
        };
        sampler.launch(stream, batch)
    })
}
