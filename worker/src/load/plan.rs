//! Computes the memory that a worker would need, rank by rank, with the functions that allocate it. Loads
//! nothing and starts no process.

use skein_model::shard::Shard;
use skein_model::spec::Spec;
use skein_proto::pooling::PooledKind;

use super::cpu::{CpuPlan, plan_cpu};
use super::cuda_ranks::CudaPlan;
use super::limits::check_settings;
use super::memory_plan::{WORKER_BYTES, size};
use super::served_adapters::adapter_bytes;
use super::{cuda_ranks, sizing};
use crate::backend::cpu::{Allocated, CpuModel, CpuOptions};
use crate::backend::cuda::{self, DeviceBytes};
use crate::backend::{KvBlocks, WindowBlocks};
use crate::config::{BackendKind, WorkerConfig};
use crate::error::WorkerError;
use crate::group::NodePlan;

/// Planned memory of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Plan of each rank, in order.
    pub ranks: Vec<RankPlan>,
    /// Memory shared by the ranks of each node, in bytes.
    pub shared: Vec<u64>,
    /// Number of blocks in each rank's KV cache.
    pub kv_blocks: u32,
    /// Blocks that layers with a window have apart; `None` = all layers share the same blocks.
    pub window_blocks: Option<WindowBlocks>,
    /// Slots for states of recurrent layers; `None` = the model has none.
    pub state_slots: Option<u32>,
    /// Tokens per block.
    pub block_size: u32,
    /// Longest sequence, in tokens.
    pub max_model_len: u32,
    /// What vectors the model gives; `None` = it generates.
    pub pooled: Option<PooledKind>,
}

/// Planned memory of a rank, and its part of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankPlan {
    /// Node of the rank, from 0.
    pub node: usize,
    /// Pipeline stage of the rank, from 0.
    pub stage: usize,
    /// Range of its layers.
    pub layers: std::ops::Range<usize>,
    /// Memory that it allocates.
    pub allocated: Allocated,
    /// KV cache of a token in blocks and in window blocks, in bytes.
    pub token_bytes: [u64; 2],
}

/// Plans the memory of the worker of `config`: on the CPU, or with `--device cuda` on GPUs like the first.
///
/// # Errors
/// If the model cannot be served with this configuration.
pub fn plan(config: &WorkerConfig) -> Result<MemoryPlan, WorkerError> {
    check_settings(&config.scheduler)?;
    match config.backend {
        BackendKind::Cpu | BackendKind::Auto => {}
        BackendKind::Cuda => return plan_cuda(config),
        BackendKind::Fake => {
            return Err(WorkerError::Unsuitable("--plan is for --device cpu and cuda".into()));
        }
    }
    let CpuPlan { model, topology, shards, options, draft_model, .. } = plan_cpu(config)?;
    let draft_bytes = draft_model.map_or(Ok(0), |draft| draft.bytes(&options))?;
    let rank = |(rank, shard): (usize, &Shard)| {
        Ok(RankPlan {
            node: topology.node_of(rank),
            stage: shard.stage,
            layers: shard.layers.clone(),
            allocated: Allocated {
                adapters: adapter_bytes(config, &model.spec, shard),
                draft_model: draft_bytes,
                ..CpuModel::plan(&config.model, &model.spec, shard, &options)?
            },
            token_bytes: token_bytes(&shard.spec(&model.spec), &options),
        })
    };
    let ranks = shards.iter().enumerate().map(rank).collect::<Result<_, WorkerError>>()?;
    let step_bytes = options.max_rows as usize * model.spec.hidden_size * size_of::<f32>();
    let shared = |node| match topology.ranks() {
        1 => 0,
        _ => NodePlan::new(topology, node, step_bytes).bytes() as u64,
    };
    Ok(MemoryPlan {
        ranks,
        shared: (0..topology.nodes).map(shared).collect(),
        kv_blocks: options.kv_blocks,
        window_blocks: options.window_blocks,
        state_slots: model.spec.state.map(|_| options.state_slots),
        pooled: model.pooling.as_ref().map(|pooling| pooling.kind),
        block_size: options.block_size,
        max_model_len: sizing::max_model_len(
            &config.scheduler,
            model.max_position_embeddings,
            options.kv_blocks,
        ),
    })
}

fn plan_cuda(config: &WorkerConfig) -> Result<MemoryPlan, WorkerError> {
    let CudaPlan { model, topology, shards, options, planned, kv_blocks } = cuda_ranks::plan(config)?;
    let rank = |((rank, shard), bytes): ((usize, &Shard), &DeviceBytes)| {
        let DeviceBytes { weights, kv_cache, activations, logits, adapters, token } = *bytes;
        // Without window blocks all layers are in the others.
        let of_token = match kv_blocks.window {
            None => [token.all(), 0],
            Some(_) => [token.main, token.windowed],
        };
        RankPlan {
            node: topology.node_of(rank),
            stage: shard.stage,
            layers: shard.layers.clone(),
            allocated: Allocated { weights, kv_cache, activations, logits, adapters, ..Allocated::default() },
            token_bytes: of_token,
        }
    };
    let step_bytes = cuda::most_rows(&options.limits) as usize * model.spec.hidden_size * size_of::<f32>();
    let shared = |node| match topology.ranks() {
        1 => 0,
        _ => NodePlan::new(topology, node, step_bytes).bytes() as u64,
    };
    let KvBlocks { blocks, window, .. } = kv_blocks;
    let max_model_len = sizing::max_model_len(&options.limits, model.max_position_embeddings, blocks);
    Ok(MemoryPlan {
        ranks: shards.iter().enumerate().zip(&planned).map(rank).collect(),
        shared: (0..topology.nodes).map(shared).collect(),
        kv_blocks: blocks,
        window_blocks: window,
        state_slots: None,
        pooled: None,
        block_size: options.limits.block_size,
        max_model_len,
    })
}

impl MemoryPlan {
    /// Number of sequences of maximum length that the KV cache holds.
    pub fn sequences(&self) -> u32 {
        let whole = self.max_model_len.div_ceil(self.block_size).max(1);
        let by_windows = |windows: WindowBlocks| windows.blocks / self.windows_of(windows, whole);
        let by_windows = self.window_blocks.map_or(u32::MAX, by_windows);
        (self.kv_blocks / whole).min(by_windows).min(self.state_slots.unwrap_or(u32::MAX))
    }

    /// KV cache that a sequence of `tokens` tokens holds on the rank that needs most, in bytes.
    pub fn sequence_bytes(&self, tokens: u32) -> u64 {
        let blocks = tokens.div_ceil(self.block_size);
        let windows = self.window_blocks.map_or(0, |windows| self.windows_of(windows, blocks));
        let of_rank = |rank: &RankPlan| {
            let [main, windowed] = rank.token_bytes;
            (main * u64::from(blocks) + windowed * u64::from(windows)) * u64::from(self.block_size)
        };
        self.ranks.iter().map(of_rank).max().unwrap_or(0)
    }

    /// Memory of `workers` such workers on one machine, in bytes. They map the same weights.
    pub fn bytes_of(&self, workers: u64) -> u64 {
        let all: u64 = self.ranks.iter().map(|rank| rank.allocated.total()).sum();
        let weights: u64 = self.ranks.iter().map(|rank| rank.allocated.weights).sum();
        let shared: u64 = self.shared.iter().sum();
        weights + workers * (all - weights + shared + WORKER_BYTES)
    }

    /// Window blocks of a sequence with `blocks` blocks.
    fn windows_of(&self, windows: WindowBlocks, blocks: u32) -> u32 {
        windows.of_sequence(self.block_size).min(blocks).max(1)
    }
}

impl std::fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = [
            "rank",
            "node",
            "stage",
            "layers",
            "weights",
            "KV cache",
            "states",
            "activations",
            "logits",
            "adapters",
            "draft model",
            "total",
        ];
        let row = |f: &mut std::fmt::Formatter<'_>, cells: &[String]| {
            let line = cells.iter().map(|cell| format!("{cell:>12}")).collect::<String>();
            writeln!(f, "{}", line.trim_end())
        };
        row(f, &columns.map(str::to_owned))?;
        for (rank, RankPlan { node, stage, layers, allocated, .. }) in self.ranks.iter().enumerate() {
            let Allocated { weights, kv_cache, states, activations, logits, adapters, draft_model } =
                *allocated;
            let parts = [weights, kv_cache, states, activations, logits, adapters, draft_model];
            let bytes = parts.into_iter().chain([allocated.total()]);
            let layers = format!("{}-{}", layers.start, layers.end.saturating_sub(1));
            let place = [rank, *node, *stage].map(|number| number.to_string()).into_iter().chain([layers]);
            let cells: Vec<String> = place.chain(bytes.map(size)).collect();
            row(f, &cells)?;
        }
        for (node, shared) in self.shared.iter().enumerate().filter(|(_, shared)| **shared > 0) {
            writeln!(
                f,
                "node {node}: {} shared by its ranks; only touched pages take memory",
                size(*shared)
            )?;
        }
        let all: u64 = self.ranks.iter().map(|rank| rank.allocated.total()).sum();
        writeln!(f, "all ranks: {} ({all} bytes)", size(all))?;
        let Self { kv_blocks, block_size, max_model_len, .. } = self;
        let tokens = u64::from(*kv_blocks) * u64::from(*block_size);
        writeln!(
            f,
            "each rank's KV cache: {kv_blocks} blocks, {tokens} tokens, {} sequence{} of {max_model_len} tokens",
            self.sequences(),
            if self.sequences() == 1 { "" } else { "s" }
        )?;
        if let Some(windows) = self.window_blocks {
            let WindowBlocks { window, blocks } = windows;
            let of_sequence = windows.of_sequence(*block_size);
            writeln!(
                f,
                "layers with a window of up to {window} tokens have {blocks} blocks apart; a sequence holds \
                 {of_sequence} of them"
            )?;
        }
        if let Some(slots) = self.state_slots {
            let of_rank = |rank: &RankPlan| rank.allocated.states / u64::from(slots.max(1));
            let bytes = self.ranks.iter().map(of_rank).max().unwrap_or(0);
            writeln!(
                f,
                "layers with a recurrent state have {slots} slots of {} ({bytes} bytes); a running sequence has one, \
                 the others keep states of cached prefixes",
                size(bytes)
            )?;
        }
        let bytes = self.sequence_bytes(*max_model_len);
        writeln!(f, "a sequence of {max_model_len} tokens holds {} ({bytes} bytes)", size(bytes))
    }
}

/// KV cache of a token of the rank with `spec`: in its main blocks, and in window blocks.
fn token_bytes(spec: &Spec, options: &CpuOptions) -> [u64; 2] {
    let kind = options.numbers.kv;
    let windowed = options.window_blocks.map_or(0, |_| spec.windowed_kv_bytes_per_token(kind));
    [spec.kv_bytes_per_token(kind) - windowed, windowed]
}

#[cfg(test)]
mod tests {
    use skein_kernels::collective::Threads;
    use skein_kernels::collective::link::between_threads;

    use super::*;
    use crate::backend::Connections;
    use crate::config::{CpuConfig, Precision, Quantization, RanksConfig, SchedulerConfig};
    use skein_model::on_cpu::packed_cache::PackedCache;

    /// Memory that `tensor` ranks in each of `stages` stages allocate, by rank.
    fn allocated(config: &WorkerConfig) -> Vec<Allocated> {
        let CpuPlan { topology, options, .. } = plan_cpu(config).unwrap();
        let timeout = std::time::Duration::from_secs(20);
        let mut all = vec![Allocated::default(); topology.ranks()];
        for stage in 0..topology.stages {
            for (slot, ranks) in Threads::new(topology.tensor, timeout).into_iter().enumerate() {
                let ends = |there: bool| there.then(|| between_threads([0, 0], 1, timeout));
                let (before, after) = (ends(stage > 0), ends(stage + 1 < topology.stages));
                let connections = Connections {
                    stage,
                    stages: topology.stages,
                    before: before.map(|(_, inlet)| Box::new(inlet) as _),
                    after: after.map(|(outlet, _)| Box::new(outlet) as _),
                    ..ranks.into()
                };
                let none = PackedCache::none();
                let model =
                    CpuModel::load_rank((&config.model, None), options, &none, connections, &mut |_, _| {});
                all[topology.rank_at(stage, slot)] = model.unwrap().allocated();
            }
        }
        all
    }

    #[test]
    fn a_length_beyond_what_attention_is_served_for_is_refused_with_the_reason() {
        let model = skein_golden::path("models/deepseek-v32").display().to_string();
        let of = |max_model_len| {
            let new = WorkerConfig::new(&model, "m");
            let scheduler = SchedulerConfig { max_model_len, ..new.scheduler.clone() };
            let (backend, kv_cache_memory_bytes) = (BackendKind::Cpu, Some(2 << 20));
            plan(&WorkerConfig { backend, scheduler, kv_cache_memory_bytes, ..new })
        };
        assert_eq!(of(None).unwrap().max_model_len, 128, "its index_topk");
        let said = of(Some(129)).unwrap_err().to_string();
        assert!(said.contains("129") && said.contains("up to 128 tokens, its index_topk"), "{said}");
    }

    #[test]
    fn the_plan_has_the_draft_model_and_one_for_other_tokens_is_refused() {
        let shipped = skein_golden::shipped().display().to_string();
        let of = |draft: Option<&str>| {
            let cpu = CpuConfig { draft_model: draft.map(Into::into), ..CpuConfig::default() };
            let kv_cache_memory_bytes = Some(2 << 20);
            let new = WorkerConfig::new(&shipped, "m");
            plan(&WorkerConfig { backend: BackendKind::Cpu, cpu, kv_cache_memory_bytes, ..new })
        };
        let (without, with) = (of(None).unwrap(), of(Some(&shipped)).unwrap());
        assert_eq!(without.ranks[0].allocated.draft_model, 0);
        assert_eq!(without.kv_blocks / 2, with.kv_blocks, "blocks hold the keys and values of both");
        let Allocated { weights, kv_cache, draft_model, .. } = with.ranks[0].allocated;
        assert!(draft_model > weights + kv_cache, "{draft_model} bytes for another of the same model");
        assert!(with.to_string().contains(&size(draft_model)));
        let other = tempfile::tempdir().unwrap();
        let read = |name: &str| std::fs::read_to_string(format!("{shipped}/{name}")).unwrap();
        std::fs::write(other.path().join("config.json"), read("config.json")).unwrap();
        std::fs::copy(format!("{shipped}/model.safetensors"), other.path().join("model.safetensors"))
            .unwrap();
        let mut tokenizer: serde_json::Value = serde_json::from_str(&read("tokenizer.json")).unwrap();
        let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        let pair = ["a", "b"].map(|token| vocab[token].clone());
        vocab.insert("a".into(), pair[1].clone());
        vocab.insert("b".into(), pair[0].clone());
        std::fs::write(other.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let error = of(other.path().to_str()).unwrap_err().to_string();
        assert!(
            error.contains("has other tokens") && error.contains("\"b\" there and \"a\" here"),
            "{error}"
        );
    }

    #[test]
    fn the_plan_is_what_ranks_allocate() {
        let shipped = skein_golden::shipped().display().to_string();
        let golden = |name| skein_golden::path(format!("models/{name}")).display().to_string();
        for (model, tensor_parallel, pipeline_parallel, quantization) in [
            (shipped.clone(), 1, 1, None),
            (shipped.clone(), 2, 1, None),
            (shipped.clone(), 2, 2, Some(Quantization::Int8)),
            (shipped.clone(), 1, 3, Some(Quantization::Int4)),
            (golden("olmoe"), 1, 2, None),
            (golden("gemma2"), 1, 1, None),
            (golden("starcoder2"), 1, 2, None),
            (golden("qwen3-5"), 1, 1, None),
            (golden("qwen3-next"), 1, 2, None),
            (golden("kimi-linear"), 1, 2, None),
        ] {
            let ranks = RanksConfig { tensor_parallel, pipeline_parallel, ..RanksConfig::default() };
            let config = WorkerConfig {
                backend: BackendKind::Cpu,
                ranks,
                threads: 1,
                precision: Precision { quantization, ..Precision::default() },
                kv_cache_memory_bytes: Some(2 << 20),
                ..WorkerConfig::new(&model, "m")
            };
            let plan = plan(&config).unwrap();
            let planned: Vec<Allocated> = plan.ranks.iter().map(|rank| rank.allocated).collect();
            assert_eq!(planned, allocated(&config), "{model}, {tensor_parallel} x {pipeline_parallel}");
            assert!(
                planned
                    .iter()
                    .all(|rank| rank.weights > 0 && rank.kv_cache + rank.states > 0 && rank.activations > 0)
            );
            assert_eq!(plan.shared[0] > 0, tensor_parallel * pipeline_parallel > 1);
            let text = plan.to_string();
            assert!(
                text.contains(&format!("{} blocks", plan.kv_blocks))
                    && text.contains(&format!("of {} tokens", plan.max_model_len)),
                "{text}"
            );
        }
    }
}
