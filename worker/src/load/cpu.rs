//! Plans and loads a model on the CPU.

use skein_kernels::cpu::packed::Format;
use skein_model::checkpoint::Weights;
use skein_model::checkpoint::quantised::Scheme;
use skein_model::config::ModelConfig;
use skein_model::cost::{Product, StepCost};
use skein_model::fingerprint::{computed_with, fingerprint};
use skein_model::on_cpu::caches::state_slot_bytes;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::pooling::PoolingSpec;
use skein_model::served_adapter::{AdapterForm, AdapterModel};
use skein_model::shard::Shard;
use skein_model::tensors;
use skein_node::trace::PROCESS;
use tracing::info_span;

use super::draft_model::{self, DraftModelPlan};
use super::kv_blocks::kv_blocks;
use super::loaded_backend::LoadedBackend;
use super::model_files::{bits_per_weight, check_adapter, grammars, of_merged, stored_form};
use super::served_adapters::{adapter_bytes, adapters, on_ranks};
use super::shards::{kv_bytes_per_token, shards, threads_each};
use super::sizing::WindowRows;
use super::{cpu_ranks, precision};
use crate::backend::Backend;
use crate::backend::cpu::{CpuBackend, CpuOptions};
use crate::config::{DeviceKind, WorkerConfig};
use crate::error::WorkerError;
use crate::group::Topology;

/// Requirements of a model on the CPU, known before loading.
pub(super) struct CpuPlan {
    pub model: ModelConfig,
    pub topology: Topology,
    /// Part of each rank, in rank order.
    pub shards: Vec<Shard>,
    pub options: CpuOptions,
    /// Whether the weights are stored as codes that are multiplied as integers.
    pub multiplies_codes: bool,
    pub draft_model: Option<DraftModelPlan>,
}

/// Plans the computation of the model of `config` on the CPU, from its file headers and the free memory.
pub(super) fn plan_cpu(config: &WorkerConfig) -> Result<CpuPlan, WorkerError> {
    // The header comes first: the size of the KV cache depends on the weights' type.
    let model = ModelConfig::from_dir(&config.model)?;
    model.check_is_dense(config.scheduler.max_model_len)?;
    let weights = Weights::open(&config.model)?;
    let embedding = tensors::embedding(&model.spec).find(&weights)?;
    let quantised = stored_form(&model.spec, &weights)?;
    let numbers =
        precision::on_cpu(config.precision, embedding.storage(), quantised, model.pooling.is_some())?;
    let (topology, shards) = shards(config, &model.spec)?;
    check_pooled(config, &model, &topology)?;
    if config.merged_adapter.is_some() {
        check_adapter(config)?;
    }
    let is_in_integers = weights.scheme().map_or(quantised.is_some(), Scheme::is_of_integers);
    let multiplies_codes = is_in_integers && !numbers.decodes();
    let weight_bytes = match weights.scheme() {
        // Codes keep their size; their scales grow to single precision.
        Some(_) if !numbers.decodes() => weights.file_bytes() / 10 * 11,
        _ => model.spec.cpu_weight_bytes(bits_per_weight(&numbers, embedding.storage())),
    };
    let draft_model = config.cpu.draft_model.as_deref();
    let draft_model = draft_model.map(|path| draft_model::plan(config, path, &topology)).transpose()?;
    let state_bytes =
        shards.iter().map(|shard| state_slot_bytes(&shard.spec(&model.spec))).max().unwrap_or(0);
    let mut token_bytes = kv_bytes_per_token(&model.spec, &shards, numbers.kv);
    for bytes in &mut token_bytes {
        bytes.main += draft_model.as_ref().map_or(0, |draft| draft.kv_bytes_per_token);
    }
    let reads_whole = model.pooling.as_ref().is_some_and(PoolingSpec::reads_whole);
    let rows = config.scheduler.max_num_batched_tokens.saturating_mul(topology.stages as u32);
    let blocks = kv_blocks(
        config,
        // Each worker on the machine has its own copies.
        weight_bytes
            + draft_model.as_ref().map_or(0, |draft| draft.weight_bytes)
            + shards.iter().map(|shard| adapter_bytes(config, &model.spec, shard)).sum::<u64>()
                * u64::from(config.memory_sharers.max(1)),
        // Whole prompts leave nothing behind that a window could give back.
        WindowRows { window: model.spec.longest_window().filter(|_| !reads_whole), rows },
        &token_bytes,
        state_bytes,
        model.max_position_embeddings,
    )?;
    let options = CpuOptions {
        threads: if topology.ranks() > 1 { threads_each(config) } else { config.threads },
        kv_blocks: blocks.blocks,
        window_blocks: blocks.window,
        state_slots: blocks.states.unwrap_or(0),
        block_size: config.scheduler.block_size,
        max_rows: config.scheduler.max_num_batched_tokens,
        numbers,
    };
    Ok(CpuPlan { model, topology, shards, options, multiplies_codes, draft_model })
}

/// Refuses what a model that pools has no use for, or is not computed.
fn check_pooled(config: &WorkerConfig, model: &ModelConfig, topology: &Topology) -> Result<(), WorkerError> {
    if model.pooling.is_none() {
        return Ok(());
    }
    let refuse = |what: &str| Err(WorkerError::Unsuitable(what.to_owned()));
    if topology.ranks() > 1 {
        return refuse(
            "a model that computes vectors runs on one rank; leave out --tensor-parallel-size and \
             --pipeline-parallel-size, and start more workers for more speed",
        );
    }
    if config.cpu.draft_model.is_some() {
        return refuse("a model that computes vectors drafts no tokens; leave out --speculate");
    }
    Ok(())
}

pub(super) fn load_cpu(
    config: &WorkerConfig,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LoadedBackend, WorkerError> {
    let reading = info_span!(target: PROCESS, "read checkpoint").entered();
    let CpuPlan { model, topology, shards, options, multiplies_codes, draft_model } = plan_cpu(config)?;
    let numbers = options.numbers;
    let adapter = config.merged_adapter.as_ref().map(|adapter| adapter.directory.as_path());
    let arithmetic = precision::cpu_arithmetic(&numbers) + &of_merged(adapter)?;
    let fingerprint = computed_with(fingerprint(&config.model)?, &arithmetic);
    drop(reading);
    tracing::debug!(arithmetic, "part of the version");
    let activations = if numbers.bf16 { "bf16" } else { "f32" };
    let kv_cache = format!("{:?}", numbers.kv).to_lowercase();
    tracing::info!(
        activations,
        kv_cache,
        weights_as_stored = numbers.weights.is_none(),
        "computing on the CPU"
    );
    if let Some(most) = model.spec.dense_up_to {
        tracing::warn!(
            max_model_len = most,
            "sequences have at most {most} tokens: sparse attention is not computed"
        );
    }
    let form = AdapterForm::Cpu(Box::new(shards[0].clone()));
    let adapters =
        adapters(config, Some(AdapterModel { spec: model.spec.clone(), form, dir: config.model.clone() }))?;
    let (backend, ranks, weight_bytes): (Box<dyn Backend>, _, u64) = if topology.ranks() > 1 {
        let (group, adapters, weight_bytes) =
            cpu_ranks::lead_on_cpu(config, &model.spec, topology, options, progress)?;
        (Box::new(group), Some(adapters), weight_bytes)
    } else {
        let cache = config.cpu.packed_cache_dir.clone().map_or(PackedCache::none(), PackedCache::at);
        let backend = CpuBackend::load_with((&config.model, adapter), options, &cache, progress)?;
        let weight_bytes = backend.weight_bytes();
        (Box::new(backend), None, weight_bytes)
    };
    let adapters = on_ranks(adapters, ranks)?;
    let load = |plan: DraftModelPlan| plan.load(config, &options, model.spec.vocab_size);
    let draft_model = draft_model.map(load).transpose()?;
    Ok(LoadedBackend {
        cost: StepCost {
            product: Product::on_cpu(
                numbers.bf16,
                numbers.weights.is_some_and(Format::is_integer) || multiplies_codes,
            ),
            ..model.spec.cpu_cost(weight_bytes, numbers.kv)
        },
        fingerprint,
        backend,
        vocab_size: model.spec.vocab_size,
        model_len: model.max_position_embeddings,
        eos_token_ids: model.eos_token_ids,
        device: DeviceKind::Cpu,
        grammars: match model.pooling {
            Some(_) => None, // there are no answers to constrain
            None => grammars(&config.model, model.spec.vocab_size)?,
        },
        pooling: model.pooling,
        gaps: None,
        adapters,
        draft_model,
        resume_exact: true,
    })
}
