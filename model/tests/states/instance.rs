//! A model, or one rank's part of it, with caches for a few sequences.

use std::ops::Range;
use std::path::Path;

use skein_kernels::collective::{Alone, Ranks};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::attention::SequenceRows;
use skein_kernels::cpu::kv_cache::{KvShape, KvType};
use skein_kernels::cpu::packed::Format;
use skein_kernels::cpu::recurrent::StatefulRows;
use skein_model::adapter::Adapter;
use skein_model::checkpoint::Weights;
use skein_model::config::ModelConfig;
use skein_model::on_cpu::adapter::AdapterRows;
use skein_model::on_cpu::caches::Caches;
use skein_model::on_cpu::pack::pack;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::on_cpu::{Activations, ForwardStep, Located, Model};
use skein_model::shard::Shard;
use skein_model::weight_source::WeightSource;

/// Slots of a block.
const BLOCK: usize = 16;
/// Blocks of a sequence.
const BLOCKS: usize = 24;
/// Sequences, each with a state's slot of the same number.
pub const SEQUENCES: usize = 4;

/// Tokens of one sequence in a step.
#[derive(Debug, Clone)]
pub struct Chunk<'a> {
    pub sequence: usize,
    pub position: usize,
    pub tokens: &'a [u32],
    /// How many of the last tokens are drafts.
    pub drafts: usize,
    /// Those whose logits are wanted.
    pub wanted: Range<usize>,
}

/// How a model computes.
#[derive(Debug, Clone, Copy)]
pub struct Numbers {
    pub bf16: bool,
    pub rounded: Option<Format>,
}

pub const EXACT: Numbers = Numbers { bf16: false, rounded: None };

pub struct Instance {
    pub cpu: Cpu,
    pub model: Model,
    pub caches: Caches,
    pub activations: Activations,
    pub ranks: Box<dyn Ranks>,
}

impl Instance {
    pub fn whole(directory: &Path, threads: usize, numbers: Numbers) -> Self {
        let spec = ModelConfig::from_dir(directory).unwrap().spec;
        Self::part(directory, Shard::whole(&spec), Box::new(Alone), threads, numbers)
    }

    pub fn part(
        directory: &Path,
        shard: Shard,
        ranks: Box<dyn Ranks>,
        threads: usize,
        numbers: Numbers,
    ) -> Self {
        Self::load(directory, shard, ranks, threads, numbers, None)
    }

    /// One with an adapter merged into its weights.
    pub fn with_adapter(
        directory: &Path,
        shard: Shard,
        ranks: Box<dyn Ranks>,
        adapter: Option<&Adapter>,
    ) -> Self {
        Self::load(directory, shard, ranks, 1, EXACT, adapter)
    }

    fn load(
        directory: &Path,
        shard: Shard,
        ranks: Box<dyn Ranks>,
        threads: usize,
        numbers: Numbers,
        adapter: Option<&Adapter>,
    ) -> Self {
        let spec = ModelConfig::from_dir(directory).unwrap().spec;
        let (weights, mut cpu) = (Weights::open(directory).unwrap(), Cpu::new(threads));
        let source = WeightSource { weights: &weights, adapter };
        let model = Model::load(&spec, shard, source, numbers.bf16, |matrices| {
            let cache = PackedCache::none();
            pack(&mut cpu, matrices, numbers.rounded, &weights, &cache, 0, &mut |_, _| {})
        });
        let model = model.unwrap();
        let own = model.spec();
        let shape = KvShape {
            layers: own.attention_layers(),
            kv_heads: own.attention.kv_heads,
            head_dim: own.attention.head_dim,
            latent: own.attention.latent.map(|latent| latent.rank),
            block_size: BLOCK,
            blocks: SEQUENCES * BLOCKS,
            kind: KvType::F32,
        };
        let caches = Caches::new(own, shape, None, SEQUENCES as u32).unwrap();
        let activations = model.activations(64);
        Self { cpu, model, caches, activations, ranks }
    }

    /// Runs a step of these chunks. `received` are the rows of the stage before.
    pub fn forward(&mut self, chunks: &[Chunk<'_>], received: Option<&[f32]>) {
        let first_block = |sequence: usize| (sequence * BLOCKS) as u32;
        let blocks: Vec<Vec<u32>> =
            (0..SEQUENCES).map(|it| (first_block(it)..first_block(it + 1)).collect()).collect();
        let (mut tokens, mut positions, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        let (mut wanted, mut sequences, mut wanted_sequences, mut states) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for Chunk { sequence, position, tokens: own, drafts, wanted: of_own } in chunks {
            let (start, first) = (tokens.len(), wanted.len());
            tokens.extend_from_slice(own);
            positions.extend((*position..position + own.len()).map(|position| position as u32));
            slots.extend(
                (*position..position + own.len()).map(|at| first_block(*sequence) * BLOCK as u32 + at as u32),
            );
            wanted.extend(of_own.clone().map(|row| (start + row) as u32));
            let rows = |rows: Range<usize>, position: usize| SequenceRows {
                end: position + rows.len(),
                rows,
                position,
                blocks: &blocks[*sequence],
            };
            sequences.push(rows(start..tokens.len(), *position));
            if !of_own.is_empty() {
                wanted_sequences.push(rows(first..wanted.len(), position + of_own.start));
            }
            states.push(StatefulRows {
                rows: start..tokens.len(),
                slot: *sequence as u32,
                position: *position as u32,
                drafts: *drafts,
                saves: Vec::new(),
            });
        }
        let none = AdapterRows::default();
        let step = ForwardStep {
            tokens: &tokens,
            positions: &positions,
            token_types: &[],
            located: Located { slots: &slots, sequences: &sequences, wanted_sequences: &wanted_sequences },
            located_in_windows: None,
            states: &states,
            wanted: &wanted,
            adapters: [&none; 2],
        };
        let Self { cpu, model, caches, activations, ranks } = self;
        if let Some(received) = received {
            activations.residual(model.spec(), tokens.len()).copy_from_slice(received);
        }
        model.forward(cpu, &step, caches, activations, &mut **ranks).unwrap();
    }

    /// Rows that go on to the next stage.
    pub fn rows(&mut self, count: usize) -> Vec<f32> {
        self.activations.residual(self.model.spec(), count).to_vec()
    }

    /// Logits of the wanted rows of the last step.
    pub fn logits(&mut self, rows: usize) -> Vec<Vec<f32>> {
        let vocab = self.model.spec().vocab_size as usize;
        let mut logits = vec![0.0; rows * vocab];
        let Self { cpu, model, activations, ranks, .. } = self;
        let none = AdapterRows::default();
        model.logits(cpu, 0..rows, &none, activations, &mut **ranks, &mut logits).unwrap();
        logits.chunks_exact(vocab).map(<[f32]>::to_vec).collect()
    }

    /// Runs a step and returns the logits of its wanted rows.
    pub fn run(&mut self, chunks: &[Chunk<'_>]) -> Vec<Vec<f32>> {
        self.forward(chunks, None);
        self.logits(chunks.iter().map(|chunk| chunk.wanted.len()).sum())
    }

    /// Logits of all `tokens` of a new sequence in slot `sequence`, in chunks of at most `most` tokens.
    pub fn prompt(&mut self, sequence: usize, tokens: &[u32], most: usize) -> Vec<Vec<f32>> {
        let mut all = Vec::new();
        for (i, tokens) in tokens.chunks(most).enumerate() {
            let wanted = 0..tokens.len();
            all.extend(self.run(&[Chunk { sequence, position: i * most, tokens, drafts: 0, wanted }]));
        }
        all
    }
}

pub fn bits(logits: &[Vec<f32>]) -> Vec<Vec<u32>> {
    logits.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

/// `count` tokens below 128.
pub fn tokens(count: usize, seed: u32) -> Vec<u32> {
    let hash = |i: u32| {
        (i ^ seed.rotate_left(16)).wrapping_mul(0x9E37_79B1).rotate_left(13).wrapping_mul(0x85EB_CA6B)
    };
    (0..count as u32).map(|i| hash(i) >> 25).collect()
}
