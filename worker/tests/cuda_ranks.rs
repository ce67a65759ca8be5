//! Groups of ranks on emulated GPUs, one process per rank: bit-identical log-probabilities on one, two, four
//! and eight ranks, in one to three stages, and a timely end if NCCL hangs.
//!
//! The tests start this binary again as a leader, which starts its ranks.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "cpu_model/made_adapters.rs"]
mod made_adapters;
#[path = "cuda_model/models.rs"]
#[allow(dead_code)]
mod models;
#[path = "cuda_model/runs.rs"]
#[allow(dead_code)]
mod runs;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use skein_kernels::cpu::packed::Format;
use skein_model::adapter::Adapter;
use skein_model::config::ModelConfig;
use skein_model::fingerprint::fingerprint;
use skein_model::served_adapter::AdapterForm;
use skein_model::shard::Shard;
use skein_node::clock;
use skein_proto::sampling::SamplingParams;
use skein_worker::backend::cuda::{self, CudaOptions, Fp8, RankLink, ServedAdapters};
use skein_worker::backend::{Backend, BackendError, Batch, LoadedAdapter, ScoreRow, StepHandle, Want};
use skein_worker::check::Sequence;
use skein_worker::config::{
    AdapterConfig, AdaptersConfig, CudaConfig, DeviceKind, KvCacheDtype, PeerConfig, Precision, Quantization,
    RankCommand, WorkerConfig,
};
use skein_worker::group::{
    self, GroupMemory, Leader, Member, NodePlan, Processes, RankAdapters, Terms, Topology, Welcome,
};

use models::{
    COHERE2, DEEPSEEK_V2, DEEPSEEK_V3_SHARED, GLM4_MOE, LLAMA, OLMO2, QWEN2, QWEN2_MOE, QWEN3, STARCODER2,
    Tiny,
};
use runs::{eager, limits, prompt, sample, sequence_of};

/// Environment variable with a leader's settings, separated by spaces:
///
/// 1. directory of the model
/// 2. ranks of a stage
/// 3. stages
/// 4. `fp8`, `int4` or `16`
/// 5. `eager` or `graphs`
/// 6. step timeout in milliseconds
///
/// and any of
///
/// - `windows`: layers with a window have blocks apart
/// - `nccl`: no sum goes through the ranks' memory
/// - `served`: the sequences have the adapters of [`GROUP_ADAPTERS`]
/// - `merged`: the first of these adapters is merged into the weights
const GROUP_SETUP: &str = "TEST_CUDA_GROUP";
/// Environment variable with the directories of adapters.
const GROUP_ADAPTERS: &str = "TEST_CUDA_ADAPTERS";
/// Slots of a device: fewer than the test has adapters. Their highest rank.
const SERVED: ServedAdapters = ServedAdapters { slots: 2, max_rank: 8 };
/// Eight leaves in both shared products, and KV heads shared by ranks.
const SHARED: Tiny = shared(LLAMA);

const fn shared(tiny: Tiny) -> Tiny {
    Tiny { heads: 8, head_dim: 32, inner: 256, layers: 2, ..tiny }
}

/// Steps of a few rows go as small messages, larger ones as large messages, the largest by NCCL.
const PEERS: PeerConfig =
    PeerConfig { is_disabled: false, small_bytes: 4 << 10, large_bytes: 12 << 10, checks: 20, timed: 0 };

struct GroupSetup {
    dir: PathBuf,
    topology: Topology,
    fp8: Fp8,
    rounded: Option<Format>,
    config: CudaConfig,
    window_blocks: bool,
    /// Directories of the adapters that sequences have.
    served: Vec<PathBuf>,
    merged: Option<PathBuf>,
}

/// The adapter of each sequence.
type Adapters = Vec<Option<Arc<LoadedAdapter>>>;

impl GroupSetup {
    fn read() -> Option<Self> {
        let text = std::env::var(GROUP_SETUP).ok()?;
        let words: Vec<&str> = text.split(' ').collect();
        let is_fp8 = words[3] == "fp8";
        let config = CudaConfig {
            batch_invariant: true,
            enforce_eager: words[4] == "eager",
            step_timeout: Duration::from_millis(words[5].parse().unwrap()),
            peers: PeerConfig { is_disabled: words.contains(&"nccl"), ..PEERS },
            ..eager()
        };
        let fp8 = Fp8 { weights: is_fp8, kv_cache: is_fp8 };
        let [tensor, stages] = [1, 2].map(|word| words[word].parse().unwrap());
        let topology = Topology::new(tensor, stages, 1).unwrap();
        let rounded = (words[3] == "int4").then_some(Format::INT4_ZERO);
        let window_blocks = words.contains(&"windows");
        let adapters = std::env::var(GROUP_ADAPTERS).unwrap_or_default();
        let adapters: Vec<PathBuf> = adapters.split_whitespace().map(PathBuf::from).collect();
        let merged = adapters.first().filter(|_| words.contains(&"merged")).cloned();
        let served = if words.contains(&"served") { adapters } else { Vec::new() };
        Some(Self { dir: words[0].into(), topology, fp8, rounded, config, window_blocks, served, merged })
    }

    fn options(&self) -> CudaOptions {
        let (fp8, rounded, cuda) = (self.fp8, self.rounded, self.config.clone());
        CudaOptions {
            cuda,
            fp8,
            rounded,
            limits: limits(),
            kv_cache_memory_bytes: Some(4 << 20),
            window_blocks: self.window_blocks,
            readers: 1,
            merged: self.merged.clone(),
            served: (!self.served.is_empty()).then_some(SERVED),
        }
    }

    /// The adapters, read on this rank and by `ranks` on the others.
    fn adapters(&self, shard: &Shard, opened: &cuda::OpenDevice, ranks: Option<&RankAdapters>) -> Adapters {
        let model = ModelConfig::from_dir(&self.dir).unwrap();
        let form = cuda::slot_form(
            cuda::ModelDir { dir: &self.dir, config: &model },
            shard,
            opened,
            &self.options(),
        )
        .unwrap();
        let Some(form) = form.map(|form| AdapterForm::Cuda(Arc::new(form))) else { return Vec::new() };
        let read = |directory: &PathBuf| {
            let adapter = Adapter::open(directory).unwrap();
            let (id, weights) = (adapter.id().unwrap(), form.read(&adapter, &model.spec, 8).unwrap());
            if let Some(ranks) = ranks {
                ranks.examine(id, directory).unwrap();
                ranks.load(id, directory, |_| true).unwrap();
            }
            Some(Arc::new(LoadedAdapter::new(id, Some(Arc::new(weights)), Arc::default())))
        };
        self.served.iter().map(read).collect()
    }

    /// The backend of one rank alone, or of a group that this process leads, and the sequences' adapters.
    fn backend(&self) -> (Box<dyn Backend>, Adapters) {
        let (model, options) = (ModelConfig::from_dir(&self.dir).unwrap(), self.options());
        let opened = cuda::open(0, &model, options.limits.block_size).unwrap();
        if self.topology.ranks() == 1 {
            let adapters = self.adapters(&Shard::whole(&model.spec), &opened, None);
            let backend = cuda::load(&self.dir, &model, opened, &options, &mut |_, _| {}).unwrap().0;
            return (Box::new(backend), adapters);
        }
        let topology = self.topology;
        let memory = GroupMemory::create(NodePlan::new(topology, 0, 0), self.config.step_timeout).unwrap();
        let welcome = self.welcome(&memory);
        let arguments = ["--exact", "a_rank", "--ignored", "--nocapture"].map(String::from).into();
        let command = RankCommand { binary: std::env::current_exe().unwrap(), arguments };
        let mut processes = Processes::start(&memory, &command, &welcome).unwrap();
        processes.joined().unwrap();
        let Member { connections, reports, .. } = group::connect(&memory, 0, None, None, None).unwrap();
        let watch = processes.watch().clone();
        let shard = Shard::new(&model.spec, 0, topology.tensor).unwrap();
        let shard = shard.of_stage(&model.spec, topology.stages - 1, topology.stages).unwrap();
        let mut agree = |own| {
            let blocks = processes.agree(own)?;
            processes.send_line(&blocks.to_string());
            Ok(blocks)
        };
        let ended = Box::new(move || watch.failure());
        let (own, device) = (shard.clone(), opened.clone());
        let link = RankLink { shard, connections, agree: &mut agree, ended };
        let loaded = cuda::load_rank(
            cuda::ModelDir { dir: &self.dir, config: &model },
            opened,
            &options,
            Some(link),
            &mut |_, _| {},
        );
        let loaded = loaded.unwrap_or_else(|error| panic!("{}", processes.fail(error.to_string())));
        let (watch, answers) = processes.loaded().unwrap();
        let start = || {
            loaded
                .start()
                .map_err(|error| BackendError::Stopped { backend: "cuda", reason: error.to_string() })
        };
        let exchanges = (reports.unwrap(), None);
        let leader = Leader::start(&memory, (welcome.epoch, watch.clone()), exchanges, start).unwrap();
        let places = (0..topology.ranks()).map(|rank| format!("rank {rank}")).collect();
        let ranks = RankAdapters::new(leader.frames(), watch, places, answers);
        let adapters = self.adapters(&own, &device, Some(&ranks));
        (Box::new(leader), adapters)
    }

    fn welcome(&self, memory: &GroupMemory) -> Welcome {
        let quantization = match self.rounded {
            Some(_) => Some(Quantization::Int4),
            None => self.fp8.weights.then_some(Quantization::Fp8),
        };
        let kv_cache_dtype = if self.fp8.kv_cache { KvCacheDtype::Fp8 } else { KvCacheDtype::Auto };
        Welcome {
            rank: 0,
            plan: memory.plan(),
            address: IpAddr::from([127, 0, 0, 1]),
            epoch: 9,
            leader: std::process::id(),
            memory: memory.descriptor(),
            timeout: memory.timeout(),
            terms: Terms {
                version: env!("CARGO_PKG_VERSION").into(),
                model: fingerprint(&self.dir).unwrap(),
                arithmetic: format!(
                    "cuda {:?} rounded {:?} invariant true{}",
                    self.fp8,
                    self.rounded,
                    self.merged.as_deref().map_or(String::new(), |directory| {
                        format!(" adapter {:016x}", Adapter::open(directory).unwrap().fingerprint().unwrap())
                    })
                ),
            },
            config: WorkerConfig {
                precision: Precision { quantization, kv_cache_dtype, ..Precision::default() },
                cuda: CudaConfig { window_blocks: self.window_blocks, ..self.config.clone() },
                scheduler: limits(),
                kv_cache_memory_bytes: Some(4 << 20),
                merged_adapter: self
                    .merged
                    .clone()
                    .map(|directory| AdapterConfig { name: "a".into(), directory }),
                adapters: AdaptersConfig {
                    is_enabled: !self.served.is_empty(),
                    max_loras: SERVED.slots,
                    max_lora_rank: SERVED.max_rank,
                    ..AdaptersConfig::default()
                },
                ..WorkerConfig::new(&self.dir, "m")
            },
            device: DeviceKind::Cuda,
            state_slots: 0,
            threads: 1,
            kv_blocks: 0,
            window_blocks: None,
            max_rows: 0,
        }
    }
}

#[test]
#[ignore = "a rank of another test"]
fn a_rank() {
    if std::env::var(GROUP_SETUP).is_err() || !skein_cuda_emulation::load() {
        return;
    }
    if let Err(error) = skein_worker::load::run_rank() {
        eprintln!("rank: {error}");
    }
    std::process::exit(0);
}

/// Prints the bits of a prompt's log-probabilities, with chunks of several lengths, and the tokens that
/// decode steps draw.
#[test]
#[ignore = "a leader of another test"]
fn a_leader() {
    let Some(setup) = GroupSetup::read() else { return };
    assert!(skein_cuda_emulation::load());
    let (mut backend, adapters) = setup.backend();
    match run(&mut *backend, &adapters) {
        Ok(bits) => println!("said: {}", bits.iter().map(|bits| format!("{bits:08x}")).collect::<String>()),
        Err(error) => println!("said: {error}"),
    }
    drop(backend);
    std::process::exit(0);
}

/// Launches `batch`, whose sequences have window blocks with the numbers of their blocks.
fn launch(backend: &mut dyn Backend, mut batch: Batch) -> Result<StepHandle, BackendError> {
    if backend.window_blocks().is_some() {
        (batch.window_slots, batch.window_tables) = (batch.slots.clone(), batch.block_tables.clone());
    }
    backend.launch(batch)
}

/// Adds the next `count` tokens of sequence `nth` to `batch`, with its adapter.
fn put(sequence: &mut Sequence, (nth, adapters): (usize, &Adapters), batch: &mut Batch, count: usize) {
    sequence.put(batch, count);
    batch.sequences.last_mut().unwrap().adapter = adapters.get(nth).cloned().flatten();
}

fn run(backend: &mut dyn Backend, adapters: &Adapters) -> Result<Vec<u32>, BackendError> {
    let mut bits = Vec::new();
    let mut sequences: Vec<Sequence> = (0..3).map(|i| sequence_of(prompt(i, 40 + i as usize), i)).collect();
    for count in [3, 17, 20] {
        let mut batch = Batch::default();
        let (sequence, first) = (&mut sequences[0], 0);
        let start = sequence.computed;
        put(sequence, (0, adapters), &mut batch, count);
        for row in first..count.min(sequence.tokens.len() - 1 - start) {
            let target = sequence.tokens[start + row + 1];
            batch.wants.push(Want::Score(ScoreRow { row: row as u32, target, top: 3 }));
        }
        let step = launch(backend, batch)?;
        for score in backend.collect(step)?.scores() {
            bits.push(score.logprob.to_bits());
            bits.extend(score.top.iter().flat_map(|(token, logprob)| [*token, logprob.to_bits()]));
        }
    }
    let params = Arc::new(SamplingParams {
        temperature: 0.8,
        seed: 5,
        logprobs: Some(2),
        ..SamplingParams::default()
    });
    // The other prompts, then steps that use tokens of steps still in flight.
    for (index, sequence) in sequences.iter_mut().enumerate().skip(1) {
        let mut batch = Batch::default();
        let count = sequence.tokens.len();
        put(sequence, (index, adapters), &mut batch, count);
        sample(sequence, &mut batch, &params, index as u32, None);
        let step = launch(backend, batch)?;
        let drawn: Vec<u32> = backend.collect(step)?.drawn().map(|sampled| sampled.token).collect();
        sequence.tokens.extend(&drawn);
        bits.extend(drawn);
    }
    let decode = |sequences: &mut [Sequence], carried: Option<u32>| {
        let mut batch = Batch::default();
        for (want, sequence) in sequences.iter_mut().enumerate() {
            sequence.put_carried(&mut batch, 1, carried.map(|first| first + want as u32));
            batch.sequences[want].adapter = adapters.get(want + 1).cloned().flatten();
            sample(sequence, &mut batch, &params, want as u32, None);
        }
        batch
    };
    let two = &mut sequences[1..];
    if backend.stages() > 1 {
        bits.extend(decode_in_stages(backend, two, adapters, &params)?);
        return Ok(bits);
    }
    let mut launched = launch(backend, decode(two, None))?;
    for _ in 0..4 {
        let next = launch(backend, decode(two, Some(0)))?;
        let output = backend.collect(launched)?;
        for (sequence, sampled) in two.iter_mut().zip(output.drawn()) {
            sequence.tokens.push(sampled.token);
            bits.extend([sampled.token, sampled.logprobs.as_ref().map_or(0, |it| it.logprob.to_bits())]);
        }
        launched = next;
    }
    backend.collect(launched)?;
    Ok(bits)
}

/// Decodes each of `sequences` in steps of its own, which are under way in different stages.
fn decode_in_stages(
    backend: &mut dyn Backend,
    sequences: &mut [Sequence],
    adapters: &Adapters,
    params: &Arc<SamplingParams>,
) -> Result<Vec<u32>, BackendError> {
    let decode = |sequence: &mut Sequence, want: usize| {
        let mut batch = Batch::default();
        put(sequence, (want + 1, adapters), &mut batch, 1);
        sample(sequence, &mut batch, params, want as u32, None);
        batch
    };
    let mut launched = VecDeque::new();
    for (want, sequence) in sequences.iter_mut().enumerate() {
        launched.push_back(backend.launch(decode(sequence, want))?);
    }
    let mut bits = Vec::new();
    for at in 0..4 * sequences.len() {
        let want = at % sequences.len();
        let Some(step) = launched.pop_front() else { unreachable!("each sequence has a step in flight") };
        for sampled in backend.collect(step)?.drawn() {
            sequences[want].tokens.push(sampled.token);
            bits.extend([sampled.token, sampled.logprobs.as_ref().map_or(0, |it| it.logprob.to_bits())]);
        }
        launched.push_back(backend.launch(decode(&mut sequences[want], want))?);
    }
    for step in launched {
        backend.collect(step)?;
    }
    Ok(bits)
}

/// Output of the leader of a group with the model in `dir`, of `tensor` ranks in each of `stages` stages.
fn lead(dir: &Path, (tensor, stages): (usize, usize), how: &str, variables: &[(&str, &str)]) -> String {
    let ranks = tensor * stages;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_leader", "--ignored", "--nocapture"]);
    command.env(GROUP_SETUP, format!("{} {tensor} {stages} {how}", dir.display()));
    command.env("EMU_DEVICES", ranks.to_string()).env("EMU_MEMORY", (64 << 20).to_string());
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout);
    let said = said.lines().find_map(|line| line.split_once("said: ").map(|(_, it)| it.to_owned()));
    said.unwrap_or_else(|| panic!("{ranks} ranks, {how}: {}\n{}", text(&output.stdout), text(&output.stderr)))
}

#[test]
fn logits_have_the_same_bits_on_any_number_of_ranks() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let qwen2 = Tiny { model_type: "qwen2", dtype: "F16", tied: true, kv_heads: 1, ..SHARED };
    let qwen3 = Tiny { model_type: "qwen3", vocab: 301, ..SHARED };
    assert_eq!((QWEN2.model_type, QWEN3.model_type), (qwen2.model_type, qwen3.model_type));
    let deep = |tiny| Tiny { layers: 3, ..tiny };
    for (tiny, how, shapes) in [
        (SHARED, "16 graphs 30000", &[(2, 1), (4, 1), (8, 1), (4, 2)][..]),
        // FP8 keys and values are for heads of at least 64 values.
        (Tiny { head_dim: 64, ..SHARED }, "fp8 eager 30000", &[(2, 1), (4, 1), (2, 2)]),
        (SHARED, "int4 eager 30000", &[(2, 1), (8, 1), (2, 2)]),
        (deep(SHARED), "16 graphs 30000", &[(1, 2), (1, 3), (2, 2), (2, 3)]),
        (qwen2, "16 eager 30000", &[(2, 1), (4, 1)]),
        (deep(qwen2), "16 eager 30000", &[(2, 3)]),
        (qwen3, "16 eager 30000", &[(4, 1)]),
        // Sums of squares that ranks exchange: KV heads on one rank each, and on several. Layers without a
        // norm of their inputs.
        (shared(OLMO2), "16 graphs 30000", &[(2, 1), (4, 1), (2, 2)]),
        (shared(STARCODER2), "16 eager 30000", &[(2, 1), (1, 2)]),
    ] {
        check_ranks(tiny, how, shapes);
    }
}

/// Checks that groups of these ranks and stages give the bits of one rank.
fn check_ranks(tiny: Tiny, how: &str, shapes: &[(usize, usize)]) {
    check_ranks_of((tiny.model_type, tiny.make(3).path()), how, shapes);
}

/// The same for the model in a directory.
fn check_ranks_of((name, dir): (&str, &Path), how: &str, shapes: &[(usize, usize)]) {
    let expected = lead(dir, (1, 1), how, &[]);
    assert!(expected.len() > 1000 && expected.chars().all(|it| it.is_ascii_hexdigit()), "{expected}");
    for &shape in shapes {
        for how in [how.to_owned(), format!("{how} nccl")] {
            let got = lead(dir, shape, &how, &[]);
            assert!(got == expected, "{name} {how}: {shape:?} ranks give other bits:\n{got}\n{expected}");
            if shape.0 == 1 || shape == (8, 1) {
                break; // no sums, or many processes
            }
        }
    }
}

/// Experts are whole on one rank: 12 or 8 of them, on up to eight ranks, in 16 bits, FP8 and codes.
#[test]
fn mixtures_of_experts_have_the_same_bits_on_any_number_of_ranks() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (tiny, how, shapes) in [
        (shared(QWEN2_MOE), "16 graphs 30000", &[(2, 1), (4, 1), (2, 2)][..]),
        (shared(GLM4_MOE), "16 eager 30000", &[(8, 1), (1, 2)]),
        (Tiny { head_dim: 64, ..shared(QWEN2_MOE) }, "fp8 eager 30000", &[(4, 1)]),
        (shared(GLM4_MOE), "int4 graphs 30000", &[(2, 1), (4, 1)]),
    ] {
        check_ranks(tiny, how, shapes);
    }
}

/// Heads are divided, and every rank has all latents: with queries from a vector and from the layer's input,
/// and with more heads than a small tile of attention has rows on one rank, but not on two. With codes,
/// heads' matrices are decoded, each on its rank.
#[test]
fn latents_have_the_same_bits_on_any_number_of_ranks() {
    if !skein_cuda_emulation::load() {
        return;
    }
    check_ranks(DEEPSEEK_V3_SHARED, "16 graphs 30000", &[(2, 1), (4, 1), (8, 1), (1, 2), (2, 2)]);
    check_ranks(DEEPSEEK_V2, "16 eager 30000", &[(2, 1)]);
    check_ranks(DEEPSEEK_V3_SHARED, "int4 eager 30000", &[(4, 1)]);
    check_ranks(DEEPSEEK_V3_SHARED, "fp8 eager 30000", &[(2, 1), (1, 2)]);
    let coded = skein_golden::path("quantised/fp8-block-latent");
    check_ranks_of(("fp8-block-latent", &coded), "16 eager 30000", &[(2, 1), (4, 1), (1, 2)]);
}

/// Adapters beside the model, more than there are slots, and merged into the weights.
#[test]
fn adapters_have_the_same_bits_on_any_number_of_ranks() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let qwen2 = Tiny { model_type: "qwen2", dtype: "F16", tied: true, kv_heads: 1, ..SHARED };
    for (tiny, how, shapes) in [
        (SHARED, "16 graphs 30000 served", &[(2, 1), (4, 1), (8, 1), (1, 2), (2, 2)][..]),
        (qwen2, "16 eager 30000 served", &[(2, 1), (4, 1)]),
        (Tiny { vocab: 301, ..shared(QWEN3) }, "16 eager 30000 served", &[(4, 1)]),
        (SHARED, "int4 eager 30000 served", &[(2, 1), (2, 2)]),
        (Tiny { head_dim: 64, ..SHARED }, "fp8 eager 30000 served", &[(2, 1)]),
        (shared(OLMO2), "16 graphs 30000 served", &[(2, 1)]),
        (shared(STARCODER2), "16 eager 30000 served", &[(4, 1), (1, 2)]),
        (shared(COHERE2), "16 eager 30000 served", &[(2, 1)]),
        (SHARED, "16 eager 30000 merged", &[(2, 1), (4, 1), (2, 2)]),
        (qwen2, "int4 eager 30000 merged", &[(2, 1)]),
    ] {
        let dir = tiny.make(3);
        let made = [(1, 8), (2, 3), (3, 5)].map(|(seed, rank)| made_adapters::make(dir.path(), seed, rank));
        let directories = made.each_ref().map(|directory| directory.path().display().to_string()).join(" ");
        let lead = |shape, how: &str| lead(dir.path(), shape, how, &[(GROUP_ADAPTERS, &directories)]);
        let expected = lead((1, 1), how);
        assert!(expected.len() > 1000 && expected.chars().all(|it| it.is_ascii_hexdigit()), "{expected}");
        let without = how.replace(" served", "").replace(" merged", "");
        assert_ne!(lead((1, 1), &without), expected, "{}: the adapters matter", tiny.model_type);
        for &shape in shapes {
            for how in [how.to_owned(), format!("{how} nccl")] {
                let got = lead(shape, &how);
                assert!(got == expected, "{} {how}: {shape:?} ranks:\n{got}\n{expected}", tiny.model_type);
                // Inner sums are exchanged by NCCL either way; the way of the model's sums matters once.
                if shape.0 == 1 || shape == (8, 1) || tiny.model_type != "llama" {
                    break; // no sums, or many processes
                }
            }
        }
    }
}

#[test]
fn window_blocks_have_the_same_bits_on_any_number_of_ranks() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = shared(COHERE2).make(3);
    let expected = lead(dir.path(), (1, 1), "16 eager 30000", &[]);
    assert!(expected.len() > 1000 && expected.chars().all(|it| it.is_ascii_hexdigit()), "{expected}");
    for (shape, how) in
        [((1, 1), "16 graphs 30000 windows"), ((2, 1), "16 eager 30000"), ((2, 1), "16 graphs 30000 windows")]
    {
        let got = lead(dir.path(), shape, how, &[]);
        assert!(got == expected, "{how}: {shape:?} ranks and stages give other bits:\n{got}\n{expected}");
    }
}

#[test]
fn a_group_ends_in_time_when_an_exchange_does_not() {
    if !skein_cuda_emulation::load() {
        return;
    }
    let dir = SHARED.make(4);
    // A step of one pass has 6 exchanges: the embedding, two in each layer, the logits.
    let nccl = "EMU_NCCL_FAULT";
    for (variable, fault, words) in [
        (nccl, "hang:1:30", &["did not end a step within 1s (--step-timeout)", "rank 1"][..]),
        (nccl, "error:0:30", &["an injected error (NCCL status 2)"]),
        // The start's sums are before; a rank gets there first.
        (
            "EMU_PEER",
            "silent:1:85",
            &["rank 1 did not send its sums within 750ms", "did not end a step within 1s"],
        ),
    ] {
        let began = clock::now();
        let how = if variable == nccl { "16 eager 1000 nccl" } else { "16 eager 1000" };
        let said = lead(dir.path(), (2, 1), how, &[(variable, fault)]);
        assert!(words.iter().any(|word| said.contains(word)), "{fault}: {said}");
        let took = clock::now().since(began);
        assert!(took < Duration::from_secs(10), "{fault} took {took:?}");
    }
}
