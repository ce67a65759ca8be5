//! The CPU backend: runs the forward pass on its own thread and that thread's helpers.

mod draws;
mod pools;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use skein_kernels::collective::{Alone, Lost};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::attention::SequenceRows;
use skein_kernels::cpu::kv_cache::{KvShape, KvType};
use skein_kernels::cpu::packed::Format;
use skein_kernels::cpu::recurrent::{self, StatefulRows};
use skein_kernels::cpu::sample;
use skein_model::LoadError;
use skein_model::adapter::Adapter;
use skein_model::checkpoint::Weights;
use skein_model::config::ModelConfig;
use skein_model::fingerprint;
use skein_model::on_cpu::adapter::AdapterRows;
use skein_model::on_cpu::caches::{self, Caches};
use skein_model::on_cpu::pack::{self, pack};
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::on_cpu::profile::{Part, Profile};
use skein_model::on_cpu::{Activations, ForwardStep, Located, Model, check_embeddings, matrices};
use skein_model::shard::Shard;
use skein_model::spec::Spec;
use skein_model::weight_source::WeightSource;
use skein_node::trace::PROCESS;
use skein_sys::threads::ThreadPlacement;

use super::{
    Backend, BackendError, Batch, Connections, PoolRows, StateCopy, StateSave, StepHandle, StepOutput, Want,
    WindowBlocks,
};
use crate::{BlockId, TokenId};
use draws::Draws;
use pools::PooledRuns;

/// Most rows of logits in memory at a time: 32 rows of a vocabulary of 150k take 19 MB.
const LOGIT_ROWS: usize = 32;

/// Sizes and number types of a CPU backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuOptions {
    /// Compute threads; 0 = the default of [`ThreadPlacement::of_this_machine`].
    pub threads: usize,
    /// Blocks in the KV cache. A block takes memory once it is used.
    pub kv_blocks: u32,
    /// Blocks that layers with a window have apart; `None` = the same blocks hold all layers.
    pub window_blocks: Option<WindowBlocks>,
    /// Slots for the states of recurrent layers; without effect on models that have none.
    pub state_slots: u32,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// Rows in the largest expected step, for which memory is allocated at the start. Larger steps are
    /// possible.
    pub max_rows: u32,
    /// Number types to compute in.
    pub numbers: NumberTypes,
}

/// Number types of the CPU backend. A request's tokens depend on them: see
/// [`skein_model::fingerprint::computed_with`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NumberTypes {
    /// Whether activations are rounded to bfloat16 when multiplied by bfloat16 weights; otherwise
    /// they are `f32`.
    pub bf16: bool,
    /// Type of cached keys and values.
    pub kv: KvType,
    /// Format to which the layers' weights are converted at load; `None` = as stored, and codes are
    /// multiplied by activations that are rounded to 8 bits. [`Format::F32`] decodes codes and rounds
    /// nothing.
    pub weights: Option<Format>,
}

impl NumberTypes {
    /// Weights as they are stored, activations and cache in 32 bits.
    pub const STORED: Self = Self { bf16: false, kv: KvType::F32, weights: None };
    /// Nothing is rounded: codes are decoded to 32 bits, in which everything is computed. What other number
    /// types are compared with.
    pub const EXACT: Self = Self { weights: Some(Format::F32), ..Self::STORED };

    /// Whether codes are decoded.
    pub fn decodes(&self) -> bool {
        self.weights == Some(Format::F32)
    }
}

type Outcome = Result<StepOutput, BackendError>;

/// Runs batches on the CPU.
pub struct CpuBackend {
    kv_blocks: u32,
    window_blocks: Option<WindowBlocks>,
    state_slots: Option<u32>,
    weight_bytes: u64,
    stages: usize,
    launched: u64,
    /// Batches in and outputs out. `None` while dropping, which ends the thread after its current step.
    channels: Option<(SyncSender<Batch>, Receiver<Outcome>)>,
    thread: Option<JoinHandle<()>>,
}

impl CpuBackend {
    /// Loads the model in `model_dir`. `progress` gets (bytes done, total bytes) while weights are read.
    pub fn load(
        model_dir: &Path,
        options: CpuOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        Self::load_with((model_dir, None), options, &PackedCache::none(), progress)
    }

    /// Like [`load`](Self::load), with a cache for packed weights and an adapter's directory.
    pub fn load_with(
        (model_dir, adapter): (&Path, Option<&Path>),
        options: CpuOptions,
        cache: &PackedCache,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let mut model = CpuModel::load_rank((model_dir, adapter), options, cache, Alone.into(), progress)?;
        if !model.gives_finite_logits()? {
            return Err(LoadError::NotFinite { dir: model_dir.to_owned() });
        }
        Self::start(model).map_err(LoadError::Thread)
    }

    /// Bytes of weights that every step reads.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Starts the compute thread.
    pub fn start(mut model: CpuModel) -> std::io::Result<Self> {
        let (kv_blocks, weight_bytes) = (model.kv_blocks(), model.model.weight_bytes());
        let (stages, window_blocks) = (model.connections.stages, model.window_blocks);
        let state_slots = model.caches.states().map(|states| states.slots() as u32);
        // The engine keeps one step in flight per stage. On the CPU the device is the host, so a further step
        // would overlap only planning; it would waste a row after each stop token, and a new request would
        // wait for two steps. If one more is launched, it waits in this channel: this backend is the
        // specification, so it must define what a carried token means.
        let (steps, inbox) = sync_channel::<Batch>(stages);
        let (outbox, outputs) = sync_channel(stages);
        let thread = std::thread::Builder::new().name("skein-compute-0".into()).spawn(move || {
            let mut drawn = Vec::new();
            model.cpu.threads.place_caller();
            while let Ok(batch) = inbox.recv() {
                let output = catch_unwind(AssertUnwindSafe(|| model.run_after(batch, &mut drawn)));
                let output = output.unwrap_or_else(|panic| {
                    Err(BackendError::Stopped { backend: "cpu", reason: message(&*panic) })
                });
                // After a failed step there are no tokens to carry into the next one.
                let failed = output.is_err();
                if outbox.send(output).is_err() || failed {
                    return;
                }
            }
        })?;
        Ok(Self {
            kv_blocks,
            window_blocks,
            state_slots,
            weight_bytes,
            stages,
            launched: 0,
            channels: Some((steps, outputs)),
            thread: Some(thread),
        })
    }
}

/// The message of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("its thread panicked").to_owned()
}

fn gone() -> BackendError {
    BackendError::Stopped { backend: "cpu", reason: "its thread has ended".into() }
}

impl Backend for CpuBackend {
    fn kv_blocks(&self) -> u32 {
        self.kv_blocks
    }

    fn window_blocks(&self) -> Option<WindowBlocks> {
        self.window_blocks
    }

    fn state_slots(&self) -> Option<u32> {
        self.state_slots
    }

    fn steps_in_flight(&self) -> usize {
        self.stages
    }

    fn stages(&self) -> usize {
        self.stages
    }

    fn verifies(&self) -> bool {
        true
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        let (steps, _) = self.channels.as_ref().ok_or_else(gone)?;
        steps.send(batch).map_err(|_| gone())?;
        self.launched += 1;
        Ok(StepHandle(self.launched))
    }

    fn collect(&mut self, _step: StepHandle) -> Result<StepOutput, BackendError> {
        let (_, outputs) = self.channels.as_ref().ok_or_else(gone)?;
        outputs.recv().map_err(|_| gone())?
    }
}

impl Drop for CpuBackend {
    fn drop(&mut self) {
        drop(self.channels.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panics were caught
        }
    }
}

/// The model with everything needed to run a batch; owned by the backend's thread.
pub struct CpuModel {
    cpu: Cpu,
    connections: Connections,
    model: Model,
    caches: Caches,
    window_blocks: Option<WindowBlocks>,
    activations: Activations,
    /// Logits of one chunk: `[LOGIT_ROWS, vocab]`.
    logits: Aligned<f32>,
    draws: Draws,
    tables: Tables,
    window_tables: Tables,
    states: Vec<StatefulRows>,
    /// Kind of text of each row, if some have another than the first.
    token_types: Vec<u32>,
    /// Size of the packed weights, in bytes.
    packed_bytes: u64,
}

/// A step's block tables of one cache, its rows by sequence, and its wanted rows by sequence; kept to reuse
/// their allocations.
#[derive(Default)]
struct Tables {
    blocks: Vec<u32>,
    sequences: Vec<SequenceRows<'static>>,
    wanted: Vec<SequenceRows<'static>>,
}

impl Tables {
    /// Takes the tables of `batch` among `blocks`; the rows borrow the tables.
    fn fill<'a>(
        blocks: &'a mut Vec<u32>,
        [sequences, wanted]: [Vec<SequenceRows<'static>>; 2],
        (batch, tables): (&Batch, &[BlockId]),
        wanted_rows: &[u32],
    ) -> [Vec<SequenceRows<'a>>; 2] {
        blocks.clear();
        blocks.extend(tables.iter().map(|block| block.0));
        let (mut sequences, mut wanted) = (emptied(sequences), emptied(wanted));
        sequences.extend(batch.sequences.iter().map(|sequence| SequenceRows {
            rows: sequence.rows.start as usize..sequence.rows.end as usize,
            position: sequence.context_len as usize - sequence.rows.len(),
            end: sequence.context_len as usize,
            blocks: &blocks[sequence.blocks.start as usize..sequence.blocks.end as usize],
        }));
        let covered = sequences.iter().try_fold(0, |end, s| (s.rows.start == end).then_some(s.rows.end));
        assert_eq!(covered, Some(batch.tokens.len()), "the sequences' rows cover the batch without gaps");
        keep_wanted(&sequences, wanted_rows, &mut wanted);
        [sequences, wanted]
    }

    fn take_rows(&mut self) -> [Vec<SequenceRows<'static>>; 2] {
        [std::mem::take(&mut self.sequences), std::mem::take(&mut self.wanted)]
    }

    fn put_back(&mut self, [sequences, wanted]: [Vec<SequenceRows<'static>>; 2]) {
        (self.sequences, self.wanted) = (sequences, wanted);
    }
}

/// Memory that a rank allocates for its part of a model, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Packed weights, an upper bound; unused memory is returned.
    pub weights: u64,
    /// Keys and values of the rank's layers and heads.
    pub kv_cache: u64,
    /// States of recurrent layers, in all slots.
    pub states: u64,
    /// Activations of the largest expected step.
    pub activations: u64,
    /// Logits; only in the last stage.
    pub logits: u64,
    /// Adapters in memory, an upper bound.
    pub adapters: u64,
    /// A draft model with its keys and values, an upper bound.
    pub draft_model: u64,
}

impl Allocated {
    /// Sum of all parts.
    pub fn total(&self) -> u64 {
        self.weights
            + self.kv_cache
            + self.states
            + self.activations
            + self.logits
            + self.adapters
            + self.draft_model
    }
}

impl CpuModel {
    /// Loads the model in `model_dir`; see [`CpuBackend::load_with`].
    pub fn load(
        model_dir: &Path,
        options: CpuOptions,
        cache: &PackedCache,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        Self::load_rank((model_dir, None), options, cache, Alone.into(), progress)
    }

    /// Loads one rank's part of the model in `model_dir`, with an adapter's directory. Afterwards all ranks
    /// must make the same computing calls, in the same order and with the same batches.
    pub fn load_rank(
        (model_dir, adapter): (&Path, Option<&Path>),
        options: CpuOptions,
        cache: &PackedCache,
        connections: Connections,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let mut cpu = Cpu::on(&compute_on(options.threads));
        let spec = ModelConfig::from_dir(model_dir)?.spec;
        let shard = connections.shard(&spec)?;
        let weights = Weights::open(model_dir)?;
        let adapter = adapter.map(Adapter::open).transpose()?;
        let mut source = if cache.is_none() { 0 } else { fingerprint::source(model_dir, &weights)? };
        if let Some(adapter) = &adapter {
            source = fingerprint::computed_with(source, &format!("adapter {:x}", adapter.fingerprint()?));
        }
        let NumberTypes { bf16, weights: rounded, .. } = options.numbers;
        let mut packed_bytes = 0;
        let from = WeightSource { weights: &weights, adapter: adapter.as_ref() };
        let model = Model::load(&spec, shard, from, bf16, |matrices| {
            packed_bytes = pack::most_bytes(matrices, rounded);
            pack(&mut cpu, matrices, rounded, &weights, cache, source, progress)
        })?;
        check_embeddings(&mut cpu, &model)?;
        Ok(Self { packed_bytes, ..Self::new(model, cpu, connections, options)? })
    }

    /// Memory that the rank with `shard` allocates for the model in `model_dir`. Reads only file headers.
    ///
    /// # Errors
    /// If a weight is missing or has the wrong shape.
    pub fn plan(
        model_dir: &Path,
        spec: &Spec,
        shard: &Shard,
        options: &CpuOptions,
    ) -> Result<Allocated, LoadError> {
        let weights = Weights::open(model_dir)?;
        let matrices = matrices(spec, shard, WeightSource::without_adapter(&weights))?;
        let own = shard.spec(spec);
        Ok(Allocated {
            weights: pack::most_bytes(&matrices, options.numbers.weights),
            kv_cache: kv_bytes(&own, options),
            states: caches::state_slot_bytes(&own) * u64::from(options.state_slots),
            activations: Activations::planned_bytes(&own, options.max_rows as usize),
            logits: (logit_values(&own, shard.is_last()) * size_of::<f32>()) as u64,
            adapters: 0,
            draft_model: 0,
        })
    }

    /// Memory allocated by this rank.
    pub fn allocated(&self) -> Allocated {
        Allocated {
            weights: self.packed_bytes,
            kv_cache: self.caches.kv_bytes(),
            states: self.caches.state_bytes(),
            activations: self.activations.bytes(),
            logits: size_of_val(&*self.logits) as u64,
            adapters: 0,
            draft_model: 0,
        }
    }

    /// A model that runs on `cpu`, and with other ranks if it is one part.
    pub fn new(
        model: Model,
        cpu: Cpu,
        connections: Connections,
        options: CpuOptions,
    ) -> Result<Self, LoadError> {
        let (spec, vocab) = (model.spec(), model.spec().vocab_size as usize);
        let (shape, window_blocks) = (kv_shape(spec, &options), options.window_blocks);
        let caches = Caches::new(spec, shape, window_blocks, options.state_slots);
        let caches =
            caches.map_err(|source| LoadError::KvCache { bytes: kv_bytes(spec, &options), source })?;
        let activations = model.activations(options.max_rows as usize);
        let logits = Aligned::zeros(logit_values(spec, model.is_last()));
        let draws =
            Draws::new(cpu.threads.count(), if model.is_last() && spec.pooled.is_none() { vocab } else { 0 });
        let packed_bytes = 0;
        Ok(Self {
            cpu,
            connections,
            model,
            caches,
            window_blocks,
            activations,
            logits,
            draws,
            tables: Tables::default(),
            window_tables: Tables::default(),
            states: Vec::new(),
            token_types: Vec::new(),
            packed_bytes,
        })
    }

    /// Runs a step on token 0. If its logits are not finite, no request's would be.
    ///
    /// # Errors
    /// If another rank is lost.
    pub fn gives_finite_logits(&mut self) -> Result<bool, Lost> {
        let _first = tracing::info_span!(target: PROCESS, "first step").entered();
        let pools = self.model.spec().pooled.is_some();
        let want = Want::Pool(PoolRows { rows: 0..1, second_from: None });
        let mut batch = Batch::of_one_row(if pools { vec![want] } else { Vec::new() });
        if self.window_blocks.is_some() {
            (batch.window_slots, batch.window_tables) = (batch.slots.clone(), batch.block_tables.clone());
        }
        if pools {
            return match self.run(&batch) {
                Ok(_) => Ok(true),
                Err(BackendError::Lost(lost)) => Err(lost),
                Err(_) => Ok(false),
            };
        }
        let logits = self.try_logits(&batch, &[0])?;
        Ok(logits.iter().all(|row| sample::is_usable(self.cpu.isa, row)))
    }

    /// Blocks in the KV cache.
    pub fn kv_blocks(&self) -> u32 {
        self.caches.blocks()
    }

    /// Runs the step after the one that drew `drawn`, and replaces `drawn` with its own tokens.
    fn run_after(&mut self, mut batch: Batch, drawn: &mut Vec<TokenId>) -> Outcome {
        batch.fill_carried(drawn);
        let output = self.run(&batch)?;
        output.put_carried(drawn);
        Ok(output)
    }

    /// Runs one step without carried tokens.
    pub fn run(&mut self, batch: &Batch) -> Result<StepOutput, BackendError> {
        if !self.model.is_last() {
            self.forward(batch, &[])?;
            return Ok(StepOutput { answers: Vec::new() });
        }
        if self.model.spec().pooled.is_some() {
            let wanted = PooledRuns::of(self.model.spec(), batch)?;
            self.forward(batch, &wanted.rows)?;
            if wanted.runs.is_empty() {
                return Ok(StepOutput::default());
            }
            return wanted.answers(self.model.pool(&mut self.cpu, &wanted.runs, &mut self.activations));
        }
        self.draws.start(batch)?;
        let rows = std::mem::take(&mut self.draws.rows);
        let result = self.forward(batch, &rows);
        self.draws.rows = rows;
        let adapters = result?;
        let (vocab, mut first) = (self.model.spec().vocab_size as usize, 0);
        while first < self.draws.rows.len() {
            let count = LOGIT_ROWS.min(self.draws.rows.len() - first);
            let logits = &mut self.logits[..count * vocab];
            let ranks = &mut *self.connections.ranks;
            let rows = first..first + count;
            self.model.logits(&mut self.cpu, rows, &adapters, &mut self.activations, ranks, logits)?;
            self.draws.draw(&mut self.cpu, batch, first, logits, vocab)?;
            self.activations.profile.mark(Part::Sample);
            first += count;
        }
        Ok(self.draws.finish(batch))
    }

    /// Returns the profile so far and starts a new one.
    pub fn profile(&mut self) -> Profile {
        std::mem::replace(&mut self.activations.profile, Profile::measuring())
    }

    /// Runs a step and returns the logits of `rows` (ascending) instead of tokens, for tests and
    /// measurements. Empty unless this rank is in the last stage.
    ///
    /// # Panics
    /// If another rank is lost.
    pub fn logits(&mut self, batch: &Batch, rows: &[u32]) -> Vec<Vec<f32>> {
        self.try_logits(batch, rows).unwrap_or_else(|lost| panic!("{lost}"))
    }

    fn try_logits(&mut self, batch: &Batch, rows: &[u32]) -> Result<Vec<Vec<f32>>, Lost> {
        let adapters = self.forward(batch, rows)?;
        if !self.model.is_last() {
            return Ok(Vec::new());
        }
        let vocab = self.model.spec().vocab_size as usize;
        let mut all = Vec::new();
        for first in (0..rows.len()).step_by(LOGIT_ROWS) {
            let rows = first..rows.len().min(first + LOGIT_ROWS);
            let logits = &mut self.logits[..rows.len() * vocab];
            let ranks = &mut *self.connections.ranks;
            self.model.logits(&mut self.cpu, rows, &adapters, &mut self.activations, ranks, logits)?;
            all.extend(logits.chunks(vocab).map(<[f32]>::to_vec));
        }
        Ok(all)
    }

    /// Bytes of weights that this rank reads in every step.
    pub fn weight_bytes(&self) -> u64 {
        self.model.weight_bytes()
    }

    /// Size of the KV cache, which holds only this rank's KV heads, in bytes.
    pub fn kv_bytes(&self) -> u64 {
        self.caches.kv_bytes()
    }

    /// Runs all layers, and returns the wanted rows by adapter. In the last layer, rows that are not wanted
    /// end once their keys and values are cached.
    fn forward(&mut self, batch: &Batch, wanted: &[u32]) -> Result<AdapterRows, Lost> {
        for copy in &batch.copies {
            self.caches.copy_block(copy.from.0 as usize, copy.to.0 as usize);
        }
        for copy in &batch.window_copies {
            self.caches.copy_window_block(copy.from.0 as usize, copy.to.0 as usize);
        }
        pools::token_types(self.model.spec(), batch, &mut self.token_types);
        self.states.clear();
        if let Some(states) = self.caches.states() {
            for &StateCopy { from, to } in &batch.state_copies {
                states.copy(&mut self.cpu, from.0, to.0);
            }
            self.states.extend(stateful_rows(batch));
        }
        let [adapters, wanted_adapters] = adapter_rows(batch, wanted);
        let (rows, window_rows) = (self.tables.take_rows(), self.window_tables.take_rows());
        let located = Tables::fill(&mut self.tables.blocks, rows, (batch, &batch.block_tables), wanted);
        let in_windows = self.window_blocks.is_some().then(|| {
            let blocks = &mut self.window_tables.blocks;
            Tables::fill(blocks, window_rows, (batch, &batch.window_tables), wanted)
        });
        let step = ForwardStep {
            tokens: &batch.tokens,
            positions: &batch.positions,
            token_types: &self.token_types,
            located: in_cache(&batch.slots, &located),
            located_in_windows: in_windows.as_ref().map(|rows| in_cache(&batch.window_slots, rows)),
            states: &self.states,
            wanted,
            adapters: [&adapters, &wanted_adapters],
        };
        let Connections { ranks, before, after, .. } = &mut self.connections;
        let (caches, activations, spec) = (&mut self.caches, &mut self.activations, self.model.spec());
        let rows = step.tokens.len();
        let received =
            before.as_mut().map_or(Ok(()), |before| before.receive(activations.residual(spec, rows)));
        let result = received
            .and_then(|()| self.model.forward(&mut self.cpu, &step, caches, activations, &mut **ranks))
            .and_then(|()| {
                after.as_mut().map_or(Ok(()), |after| after.send(activations.residual(spec, rows)))
            });
        let (located, in_windows) = (located.map(emptied), in_windows.map(|rows| rows.map(emptied)));
        self.tables.put_back(located);
        in_windows.into_iter().for_each(|rows| self.window_tables.put_back(rows));
        result.map(|()| wanted_adapters)
    }
}

/// The rows of `batch` by adapter, and the wanted ones. They live no longer than the step: whatever holds an
/// adapter keeps its place from requests for others, also while the engine is idle.
fn adapter_rows(batch: &Batch, wanted: &[u32]) -> [AdapterRows; 2] {
    let [mut rows, mut of_wanted] = [AdapterRows::default(), AdapterRows::default()];
    for sequence in &batch.sequences {
        let Some(adapter) = &sequence.adapter else { continue };
        rows.add(adapter, sequence.rows.clone());
        let among = |row: &u32| wanted.partition_point(|wanted| wanted < row) as u32;
        of_wanted.add(adapter, among(&sequence.rows.start)..among(&sequence.rows.end));
    }
    [rows, of_wanted]
}

/// The rows of `batch` by sequence, with their states.
fn stateful_rows(batch: &Batch) -> impl Iterator<Item = StatefulRows> {
    assert_eq!(batch.states.len(), batch.sequences.len(), "every sequence has a state");
    let save = |save: &StateSave| recurrent::StateSave { position: save.position, slot: save.to.0 };
    batch.sequences.iter().zip(&batch.states).map(move |(sequence, state)| StatefulRows {
        rows: sequence.rows.start as usize..sequence.rows.end as usize,
        slot: state.slot.0,
        position: sequence.context_len - sequence.rows.len() as u32,
        drafts: state.drafts as usize,
        saves: state.saves.iter().map(save).collect(),
    })
}

/// Rows by sequence, and the wanted ones, with their `slots` in a cache.
fn in_cache<'a>(slots: &'a [u32], [sequences, wanted]: &'a [Vec<SequenceRows<'a>>; 2]) -> Located<'a> {
    Located { slots, sequences, wanted_sequences: wanted }
}

/// Shape of the KV cache for the layers and heads of `spec`.
fn kv_shape(spec: &Spec, options: &CpuOptions) -> KvShape {
    KvShape {
        layers: spec.attention_layers(),
        kv_heads: spec.attention.kv_heads,
        head_dim: spec.attention.head_dim,
        latent: spec.attention.latent.map(|latent| latent.rank),
        block_size: options.block_size as usize,
        blocks: options.kv_blocks as usize,
        kind: options.numbers.kv,
    }
}

/// Bytes of the KV cache for the layers and heads of `spec`.
fn kv_bytes(spec: &Spec, options: &CpuOptions) -> u64 {
    let (main, windowed) = caches::shapes(spec, kv_shape(spec, options), options.window_blocks);
    let bytes = |shape: KvShape| shape.bytes().unwrap_or(u64::MAX);
    bytes(main).saturating_add(windowed.map_or(0, bytes))
}

/// Number of logits held at a time.
fn logit_values(spec: &Spec, is_last: bool) -> usize {
    if is_last && spec.pooled.is_none() { LOGIT_ROWS * spec.vocab_size as usize } else { 0 }
}

/// Appends to `to` the parts of `sequences` whose rows are in `wanted` (ascending), as runs of consecutive
/// rows. Their row numbers count wanted rows only.
fn keep_wanted<'a>(sequences: &[SequenceRows<'a>], wanted: &[u32], to: &mut Vec<SequenceRows<'a>>) {
    let mut left = wanted.iter().map(|row| *row as usize).enumerate().peekable();
    for sequence in sequences {
        while let Some((first, row)) = left.next_if(|(_, row)| sequence.rows.contains(row)) {
            let mut end = first + 1;
            let follows =
                |end: usize, next: usize| next == row + end - first && sequence.rows.contains(&next);
            while left.next_if(|(_, next)| follows(end, *next)).is_some() {
                end += 1;
            }
            to.push(SequenceRows {
                rows: first..end,
                position: sequence.position + row - sequence.rows.start,
                ..*sequence
            });
        }
    }
    assert!(left.next().is_none(), "wanted rows are ascending and within the batch");
}

/// Chooses the threads and logs the choice.
fn compute_on(threads: usize) -> ThreadPlacement {
    let placement = ThreadPlacement::of_this_machine(threads);
    let ThreadPlacement { threads, cores, nodes, limit, keep_to, .. } = &placement;
    let kept = keep_to.as_ref().map_or(String::new(), |processors| {
        format!(", kept to the {} processors of one memory node; --threads takes more", processors.len())
    });
    tracing::info!(threads, cores, memory_nodes = nodes, limit, "compute threads{kept}");
    placement
}

/// Reuses a list's allocation for elements of another lifetime.
fn emptied<'a>(mut rows: Vec<SequenceRows<'_>>) -> Vec<SequenceRows<'a>> {
    rows.clear();
    // Collects in place; `tests/no_allocation.rs` would notice if not.
    rows.into_iter().map(|_| unreachable!("it is empty")).collect()
}
