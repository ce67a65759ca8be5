//! Backends over one model, and prompts run through them in hand-made batches.

use std::time::Duration;

use skein_kernels::cpu::kv_cache::KvType;
use skein_model::config::ModelConfig;
use skein_node::random::SplitMix64;
use skein_proto::logprobs::TokenLogprobs;

use super::sequence::{BLOCK_SIZE, Sequence, prompt};
use super::subject::Subject;
use crate::backend::cpu::{CpuBackend, CpuOptions, NumberTypes};
use crate::backend::cuda::{self, CudaBackend, CudaOptions, Fp8};
use crate::backend::{Backend, Batch, ScoreRow, StepOutput, Want};
use crate::config::{CudaConfig, SchedulerConfig};

/// Sequences in a batch.
pub const SEQUENCES: u32 = 8;
/// Blocks of each sequence: enough for prompts of 512 tokens.
pub const BLOCKS_EACH: u32 = 32;
/// Most rows in a step.
pub const STEP_ROWS: usize = 512;
/// Last rows of each prompt that are scored.
const SCORED_ROWS: usize = 8;
/// Tokens scored in each of these rows.
pub const TARGETS: usize = 16;

/// The model on the CUDA backend with the options `cuda`.
pub fn on_cuda(subject: &Subject<'_>, cuda: CudaConfig) -> Result<CudaBackend, String> {
    let model = ModelConfig::from_dir(subject.dir).map_err(|error| error.to_string())?;
    let limits = SchedulerConfig {
        block_size: BLOCK_SIZE,
        max_model_len: Some(BLOCKS_EACH * BLOCK_SIZE),
        max_num_seqs: SEQUENCES,
        max_num_batched_tokens: STEP_ROWS as u32,
        ..SchedulerConfig::default()
    };
    let opened = cuda::open(subject.ordinal, &model, BLOCK_SIZE).map_err(|why| why.to_string())?;
    // Bytes that the CPU would use in f32: more than enough.
    let tokens = u64::from(SEQUENCES * BLOCKS_EACH * BLOCK_SIZE);
    let kv_bytes = Some(model.spec.kv_bytes_per_token(KvType::F32) * tokens);
    let cuda = CudaConfig { ordinal: subject.ordinal, step_timeout: Duration::from_secs(60), ..cuda };
    let options = CudaOptions {
        cuda,
        fp8: Fp8::default(),
        rounded: None,
        limits,
        kv_cache_memory_bytes: kv_bytes,
        window_blocks: false,
        readers: 0,
        merged: None,
        served: None,
    };
    let loaded = cuda::load(subject.dir, &model, opened, &options, &mut |_, _| {});
    loaded.map(|(backend, _)| backend).map_err(|error| error.to_string())
}

/// The model on the CPU backend, on all cores.
pub fn on_cpu(subject: &Subject<'_>) -> Result<CpuBackend, String> {
    let options = CpuOptions {
        threads: 0,
        kv_blocks: SEQUENCES * BLOCKS_EACH,
        window_blocks: None,
        state_slots: 1,
        block_size: BLOCK_SIZE,
        max_rows: STEP_ROWS as u32,
        numbers: NumberTypes::STORED,
    };
    CpuBackend::load(subject.dir, options, &mut |_, _| {}).map_err(|error| error.to_string())
}

/// Runs one step.
pub fn step(backend: &mut dyn Backend, batch: Batch) -> Result<StepOutput, String> {
    let step = backend.launch(batch).map_err(|error| error.to_string())?;
    backend.collect(step).map_err(|error| error.to_string())
}

/// Size of the model's vocabulary.
pub fn vocab(subject: &Subject<'_>) -> Result<u32, String> {
    ModelConfig::from_dir(subject.dir).map(|model| model.spec.vocab_size).map_err(|error| error.to_string())
}

/// How prompts are cut into steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Each prompt in one step, alone.
    Whole,
    /// Random chunks of random sequences, drawn from this seed.
    Random(u64),
}

/// Scores of the last rows of each prompt, sequence by sequence and row by row: [`TARGETS`] tokens each,
/// drawn from the row's position, with the two best tokens.
pub fn scores(
    backend: &mut dyn Backend,
    prompts: &[Vec<u32>],
    vocab: u32,
    cut: Cut,
) -> Result<Vec<Vec<TokenLogprobs>>, String> {
    let place =
        |(i, tokens): (usize, &Vec<u32>)| Sequence::new(tokens.clone(), i as u32, BLOCKS_EACH, BLOCK_SIZE);
    let mut sequences: Vec<Sequence> = prompts.iter().enumerate().map(place).collect();
    let mut found = vec![Vec::new(); prompts.len()];
    let mut random = SplitMix64::new(if let Cut::Random(seed) = cut { seed } else { 0 });
    while sequences.iter().any(|sequence| sequence.left() > 0) {
        let mut batch = Batch::default();
        let mut scored = Vec::new();
        for (i, sequence) in sequences.iter_mut().enumerate() {
            let room = STEP_ROWS - batch.tokens.len();
            let count = match cut {
                Cut::Whole if batch.tokens.is_empty() => sequence.left(),
                Cut::Whole => 0,
                Cut::Random(_) => chunk(&mut random, sequence.left(), room),
            };
            if count > 0 {
                add(&mut batch, sequence, count, vocab, || scored.push(i));
            }
        }
        let output = step(backend, batch)?;
        scored.into_iter().zip(output.scores()).for_each(|(i, score)| found[i].push(score.clone()));
    }
    let rows = found
        .into_iter()
        .flat_map(|all| all.chunks(TARGETS).map(<[TokenLogprobs]>::to_vec).collect::<Vec<_>>());
    Ok(rows.collect())
}

/// A chunk of no token, one, a few, or many.
fn chunk(random: &mut SplitMix64, left: usize, room: usize) -> usize {
    let most = [0, 1, 5, 40, 300][random.below(5)];
    let count = if most > 1 { 1 + random.below(most) } else { most };
    count.min(left).min(room)
}

fn add(batch: &mut Batch, sequence: &mut Sequence, count: usize, vocab: u32, mut on_score: impl FnMut()) {
    let (first, start, len) = (batch.tokens.len(), sequence.computed, sequence.tokens.len());
    sequence.put(batch, count);
    for position in (start..start + count).filter(|position| position + SCORED_ROWS >= len) {
        for target in prompt(position as u64, TARGETS, vocab) {
            let row = (first + position - start) as u32;
            batch.wants.push(Want::Score(ScoreRow { row, target, top: 2 }));
            on_score();
        }
    }
}
