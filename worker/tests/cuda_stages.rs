//! Pipelines of emulated GPUs: bit-identical answers on one, two, three and four stages, whatever the engine
//! does, and the planned memory. All stages are backends of this process, connected by links between threads.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "cpu_model/golden.rs"]
#[allow(dead_code)]
mod golden;
#[path = "cuda_model/models.rs"]
#[allow(dead_code)]
mod models;
#[path = "cuda_model/requests.rs"]
mod requests;
#[path = "cuda_model/runs.rs"]
#[allow(dead_code)]
mod runs;
#[path = "cuda_model/scores.rs"]
#[allow(dead_code)]
mod scores;

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use skein_kernels::collective::Alone;
use skein_kernels::collective::link::between_threads;
use skein_kernels::cuda::Device;
use skein_model::config::ModelConfig;
use skein_model::shard::Shard;
use skein_node::clock;
use skein_worker::backend::cuda::{self, CudaBackend, CudaOptions, DeviceBytes, Fp8, RankLink};
use skein_worker::backend::{
    Backend, BackendError, Batch, Connections, StepHandle, StepOutput, WindowBlocks,
};
use skein_worker::config::CudaConfig;
use skein_worker::draft::{Guesser, Speculate};
use skein_worker::scheduler::Drafts;

use models::{COHERE2, DEEPSEEK_V3, LLAMA, MISTRAL, QWEN2, Tiny};
use requests::{Output, SHORTEST, serve, served};
use runs::eager;
use scores::scores_of;

/// The device's free memory is measured, so tests run one at a time.
static ALONE: Mutex<()> = Mutex::new(());
/// Four layers, so that stages may have different numbers of them.
const DEEP: Tiny = Tiny { layers: 4, ..LLAMA };
/// Keys and values per token of a layer of the tiny model, in bytes: 2 heads of 64, bf16.
const LAYER_TOKEN_BYTES: u64 = 2 * 2 * 64 * 2;

/// Backends of all stages, the first stage first.
struct Pipeline(Vec<CudaBackend>);

impl Pipeline {
    fn last(&mut self) -> &mut CudaBackend {
        self.0.last_mut().unwrap()
    }
}

impl Backend for Pipeline {
    fn kv_blocks(&self) -> u32 {
        self.0[0].kv_blocks()
    }

    fn window_blocks(&self) -> Option<WindowBlocks> {
        let of_first = self.0[0].window_blocks();
        assert!(self.0.iter().all(|stage| stage.window_blocks() == of_first));
        of_first
    }

    fn steps_in_flight(&self) -> usize {
        self.0[0].steps_in_flight()
    }

    fn stages(&self) -> usize {
        self.0[0].stages()
    }

    fn verifies(&self) -> bool {
        self.0[0].verifies()
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        let is_pipeline = self.0.len() > 1;
        assert!(!is_pipeline || batch.carried.is_empty(), "no stage knows a token that another one draws");
        let launched = self.0.iter_mut().map(|stage| stage.launch(batch.clone()));
        launched.collect::<Result<Vec<_>, _>>().map(|mut all| all.remove(0))
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        let (last, others) = self.0.split_last_mut().unwrap();
        for stage in others {
            let output = stage.collect(StepHandle(step.0))?;
            assert!(output.answers.is_empty(), "only the last stage draws");
        }
        last.collect(step)
    }
}

fn options(cuda: CudaConfig, kv_bytes: u64) -> CudaOptions {
    CudaOptions {
        cuda,
        fp8: Fp8::default(),
        rounded: None,
        limits: served(),
        kv_cache_memory_bytes: Some(kv_bytes),
        window_blocks: true,
        readers: 1,
        merged: None,
        served: None,
    }
}

/// The model in `dir` in `stages` stages, and what each planned and allocated on the device, in bytes.
fn pipeline(dir: &Path, stages: usize, options: &CudaOptions) -> (Pipeline, Vec<(DeviceBytes, u64)>) {
    let model = ModelConfig::from_dir(dir).unwrap();
    let shard = |stage| Shard::whole(&model.spec).of_stage(&model.spec, stage, stages).unwrap();
    let shards: Vec<Shard> = (0..stages).map(shard).collect();
    let open = || cuda::open(0, &model, options.limits.block_size).unwrap();
    let (planned, kv_blocks) =
        cuda::plan_ranks(cuda::ModelDir { dir, config: &model }, &open(), options, &shards).unwrap();
    // Blocks of the stage with the largest ones, if all layers share them.
    let block_bytes =
        planned.iter().map(|bytes| bytes.token.all() * u64::from(options.limits.block_size)).max();
    let shared = (options.kv_cache_memory_bytes.unwrap() / block_bytes.unwrap()) as u32;
    let device = Device::open(0).unwrap();
    let free = || device.memory_info().unwrap().0;
    let (mut all, mut bytes, mut before) = (Vec::new(), Vec::new(), None);
    for (stage, shard) in shards.into_iter().enumerate() {
        let (after, next) = if stage + 1 < stages {
            let (outlet, inlet) = between_threads([stage, stage + 1], stages, options.cuda.step_timeout);
            (Some(Box::new(outlet) as _), Some(Box::new(inlet) as _))
        } else {
            (None, None)
        };
        let connections = Connections { stage, stages, before, after, ..Alone.into() };
        before = next;
        let mut agree = |fits: cuda::Fits| {
            assert!(fits.kv_blocks >= shared);
            Ok(shared)
        };
        let link = RankLink { shard, connections, agree: &mut agree, ended: Box::new(|| None) };
        let (opened, free_before) = (open(), free());
        let loaded = cuda::load_rank(
            cuda::ModelDir { dir, config: &model },
            opened,
            options,
            Some(link),
            &mut |_, _| {},
        );
        let backend = loaded.unwrap().start().unwrap();
        assert_eq!(backend.all_blocks(), kv_blocks, "stage {stage} of {stages}");
        all.push(backend);
        bytes.push((planned[stage], free_before - free()));
    }
    (Pipeline(all), bytes)
}

#[tokio::test]
#[allow(clippy::await_holding_lock)] // one test at a time
async fn stages_draw_the_tokens_of_one_whatever_the_engine_does() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let tied = Tiny { layers: 4, ..QWEN2 };
    // Windows in every second layer, and in all.
    let (some, every) = (Tiny { layers: 4, ..COHERE2 }, Tiny { layers: 4, ..MISTRAL });
    for (tiny, runs) in [
        // Room for two of the longest sequences: some are preempted.
        (DEEP, &[(2, 256, false), (3, 256, true), (4, 2048, true)][..]),
        (tied, &[(3, 2048, true)]),
        (some, &[(2, 256, false), (4, 2048, true)]),
        (every, &[(2, 256, true)]),
    ] {
        let dir = tiny.make(13);
        let run = async |stages: usize, kv_tokens: u64, enforce_eager: bool, speculate: bool| {
            let cuda = CudaConfig { batch_invariant: true, enforce_eager, ..eager() };
            let layers = tiny.layers.div_ceil(stages) as u64;
            let kv_bytes = kv_tokens * layers * LAYER_TOKEN_BYTES * tiny.kv_heads as u64 / 2;
            let (pipeline, _) = pipeline(dir.path(), stages, &options(cuda, kv_bytes));
            assert!(pipeline.steps_in_flight() == stages.max(2) && pipeline.stages() == stages);
            let drafts = speculate
                .then(|| Drafts::guessed(Guesser::new(Speculate::Auto, pipeline.verifies()).unwrap()));
            serve(Box::new(pipeline), drafts).await
        };
        let expected: Vec<Vec<Output>> = run(1, 2048, true, false).await;
        assert!(expected.iter().flatten().all(|(tokens, _)| tokens.len() >= SHORTEST as usize));
        for &(stages, kv_tokens, enforce_eager) in runs {
            let got = run(stages, kv_tokens, enforce_eager, false).await;
            assert_eq!(got, expected, "{} in {stages} stages, {kv_tokens} tokens", tiny.model_type);
        }
        assert_eq!(run(2, 2048, true, true).await, expected, "{} with drafts", tiny.model_type);
    }
}

/// Gemma 2 normalises the outputs of its layers, so a stage's last layer adds its own output. DeepSeek-V3
/// caches latents.
#[test]
fn models_that_normalise_outputs_or_cache_latents_have_the_same_bits_in_stages() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cuda = CudaConfig { batch_invariant: true, ..eager() };
    // Sequences run by hand have no window blocks.
    let options = CudaOptions { window_blocks: false, ..options(cuda, 4 << 20) };
    for (name, in_stages) in [("gemma2", &[2, 4][..]), ("deepseek-v3", &[2, 3])] {
        let dir = skein_golden::path(format!("models/{name}"));
        let golden = golden::Golden::read(&dir);
        let tokens = [&golden.prompt[..], &golden.greedy].concat();
        let scores =
            |stages| scores_of(&mut pipeline(&dir, stages, &options).0, &tokens, &[40, 1, 33, 30], false);
        let expected = scores(1);
        assert!(expected.len() > 60);
        for stages in in_stages {
            assert_eq!(scores(*stages), expected, "{name} in {stages} stages");
        }
    }
}

#[test]
fn the_plan_is_what_stages_allocate() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (tied, windowed) = (Tiny { layers: 4, ..QWEN2 }, Tiny { layers: 4, ..COHERE2 });
    let latents = [(DEEPSEEK_V3, 1), (DEEPSEEK_V3, 2)];
    let others = [(DEEP, 1), (DEEP, 2), (DEEP, 3), (tied, 3), (windowed, 2)];
    for (tiny, stages) in others.into_iter().chain(latents) {
        let dir = tiny.make(5);
        let (pipeline, bytes) = pipeline(dir.path(), stages, &options(eager(), 1 << 20));
        for (stage, (planned, allocated)) in bytes.iter().enumerate() {
            let DeviceBytes { weights, kv_cache, activations, logits, .. } = *planned;
            let total = weights + kv_cache + activations + logits;
            assert_eq!(total, *allocated, "stage {stage} of {stages}: {planned:?}");
            assert_eq!(logits > 0, stage + 1 == stages, "{planned:?}");
            assert!(weights > 0 && kv_cache > 0 && activations > 0, "{planned:?}");
        }
        drop(pipeline);
    }
}

#[test]
fn a_step_whose_rows_do_not_come_ends_in_time() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = DEEP.make(7);
    let cuda = CudaConfig { step_timeout: Duration::from_millis(300), ..eager() };
    let (mut pipeline, _) = pipeline(dir.path(), 2, &options(cuda, 1 << 20));
    let mut batch = Batch::default();
    runs::sequence_of(runs::prompt(1, 9), 0).put(&mut batch, 9);
    let began = clock::now();
    let step = pipeline.last().launch(batch).unwrap();
    let why = pipeline.last().collect(step).unwrap_err().to_string();
    assert!(why.contains("rank 0"), "{why}");
    assert!(clock::now().since(began) < Duration::from_secs(5), "{why}");
}
