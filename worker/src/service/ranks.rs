//! A CPU model that several ranks share: how the leader starts its group, and what the other ranks do.

use std::path::Path;

use skein_kernels::cpu::kv_cache::KvType;
use skein_kernels::cpu::matrix::Storage;

use super::{WorkerError, precision};
use crate::backend::cpu::{CpuBackend, CpuModel, CpuOptions};
use crate::backend::{Backend, BackendError};
use crate::config::WorkerConfig;
use crate::group::{self, Answer, GroupMemory, Leader, Processes, RankError, Terms, Welcome};
use crate::model::LoadError;
use crate::model::checkpoint::Weights;
use crate::model::checkpoint::quantised::Scheme;
use crate::model::config::ModelConfig;
use crate::model::fingerprint::fingerprint;
use crate::model::on_cpu::packed_cache::PackedCache;
use crate::model::spec::Spec;
use crate::model::tensors;
use crate::shard::Shard;

/// Bytes of KV cache for a token on the rank with the most KV heads.
pub(super) fn kv_bytes_per_token(config: &WorkerConfig, spec: &Spec, kv: KvType) -> Result<u64, WorkerError> {
    let ranks = config.ranks.tensor_parallel as usize;
    let of_rank = |rank| Shard::new(spec, rank, ranks).map(|shard| shard.spec(spec).kv_bytes_per_token(kv));
    let each = (0..ranks).map(of_rank).collect::<Result<Vec<_>, _>>();
    let each =
        each.map_err(|why| WorkerError::Unsuitable(format!("--tensor-parallel-size {ranks}: {why}")))?;
    Ok(each.into_iter().max().unwrap_or(0))
}

/// Compute threads of each rank: an even part of `--threads`, or of this machine's.
pub(super) fn threads_each(config: &WorkerConfig) -> usize {
    let ranks = config.ranks.tensor_parallel as usize;
    let all = match config.threads {
        0 => skein_sys::threads::ThreadPlacement::of_this_machine(0).threads,
        given => given,
    };
    (all / ranks).max(1)
}

/// Starts the other ranks, loads the leader's part, and returns the group with the bytes of weights that this
/// rank's steps read.
pub(super) fn lead(
    config: &WorkerConfig,
    options: CpuOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(impl Backend + 'static, u64), WorkerError> {
    let ranks = config.ranks.tensor_parallel as usize;
    let Some(command) = &config.ranks.command else {
        return Err(WorkerError::Unsuitable(
            "--tensor-parallel-size needs processes, which this command does not start; use skein worker or \
             skein serve"
                .into(),
        ));
    };
    let cannot = |error: std::io::Error| stopped(format!("cannot start {ranks} ranks: {error}"));
    let patience = config.cuda.step_timeout;
    let memory = GroupMemory::create(ranks, patience).map_err(cannot)?;
    let epoch = super::serve::draw_epoch();
    let terms = terms(&config.model, &precision::cpu_arithmetic(&options.numbers))?;
    let processes = Processes::start(&memory, command, |rank| Welcome {
        rank,
        ranks,
        epoch,
        leader: std::process::id(),
        memory: memory.descriptor(),
        patience,
        terms: terms.clone(),
        model: config.model.clone(),
        threads: options.threads,
        kv_blocks: options.kv_blocks,
        block_size: options.block_size,
        max_rows: options.max_rows,
        precision: config.precision,
        packed_cache_dir: config.cpu.packed_cache_dir.clone(),
    });
    let processes = processes.map_err(cannot)?;
    processes.joined().map_err(stopped)?;
    tracing::info!(ranks, threads = options.threads, "{ranks} ranks have joined, loading");
    let cache = packed_cache(config.cpu.packed_cache_dir.as_deref());
    let loaded =
        CpuModel::load_rank((&config.model, None), options, &cache, Box::new(memory.exchange(0)), progress);
    let model = loaded.map_err(|error| {
        processes.fail(error.to_string());
        WorkerError::from(error)
    })?;
    let weight_bytes = model.weight_bytes();
    let watch = processes.loaded().map_err(stopped)?;
    let watching = watch.clone();
    let leader = Leader::start(&memory, epoch, watch, || checked(model, &config.model));
    let leader = leader.inspect_err(|error| {
        watching.fail(error.to_string());
    })?;
    Ok((leader, weight_bytes))
}

/// What a process that was started as a rank does: joins, loads its part, and obeys the leader until told to
/// stop.
///
/// # Errors
/// Whatever ends it early; the leader knows by then.
pub fn run_rank() -> Result<(), String> {
    let (welcome, memory) = group::join()?;
    let outcome = obey(&welcome, &memory);
    if let Err(reason) = &outcome {
        Answer::Failed { reason: reason.clone() }.emit();
    }
    outcome
}

fn obey(welcome: &Welcome, memory: &GroupMemory) -> Result<(), String> {
    let said = |error: WorkerError| error.to_string();
    let (stored, scheme) = stored(&welcome.model)?;
    let numbers = precision::on_cpu(welcome.precision, &stored, scheme.as_ref()).map_err(said)?;
    let own = terms(&welcome.model, &precision::cpu_arithmetic(&numbers)).map_err(said)?;
    Answer::Joined(own.clone()).emit();
    if let Some(why) = own.differ(welcome.rank, &welcome.terms) {
        return Err(why);
    }
    let options = CpuOptions {
        threads: welcome.threads,
        kv_blocks: welcome.kv_blocks,
        block_size: welcome.block_size,
        max_rows: welcome.max_rows,
        numbers,
    };
    let exchange = Box::new(memory.exchange(welcome.rank));
    let cache = packed_cache(welcome.packed_cache_dir.as_deref());
    let model = CpuModel::load_rank((&welcome.model, None), options, &cache, exchange, &mut |_, _| {});
    let model = model.map_err(|error| error.to_string())?;
    Answer::Loaded.emit();
    let check = || checked(model, &welcome.model).map_err(|error| error.to_string());
    let ended = group::follow(memory, (welcome.rank, welcome.epoch), check);
    ended.map_err(|error: RankError| error.to_string())
}

/// Checks the model together with all ranks, and starts its compute thread.
fn checked(mut model: CpuModel, dir: &Path) -> Result<CpuBackend, WorkerError> {
    let is_finite = model.gives_finite_logits().map_err(BackendError::Lost)?;
    if !is_finite {
        return Err(LoadError::NotFinite { dir: dir.to_owned() }.into());
    }
    Ok(CpuBackend::start(model).map_err(LoadError::Thread)?)
}

fn packed_cache(directory: Option<&Path>) -> PackedCache {
    directory.map_or(PackedCache::none(), |directory| PackedCache::at(directory.to_owned()))
}

fn terms(model: &Path, arithmetic: &str) -> Result<Terms, WorkerError> {
    Ok(Terms {
        version: env!("CARGO_PKG_VERSION").into(),
        model: fingerprint(model)?,
        arithmetic: arithmetic.into(),
    })
}

/// How the model's weights are stored.
fn stored(model: &Path) -> Result<(Storage, Option<Scheme>), String> {
    let read = || {
        let config = ModelConfig::from_dir(model)?;
        let weights = Weights::open(model)?;
        let embedding = tensors::embedding(&config.spec).find(&weights)?;
        Ok((embedding.storage().clone(), weights.scheme().cloned()))
    };
    read().map_err(|error: LoadError| error.to_string())
}

fn stopped(reason: String) -> WorkerError {
    WorkerError::Backend(BackendError::Stopped { backend: "group", reason })
}
