//! Ranks on GPUs of one machine or several, each with its own process and device.

use std::sync::Arc;

use skein_model::LoadError;
use skein_model::config::ModelConfig;
use skein_model::on_cuda::adapter::SlotForm;
use skein_model::served_adapter::{AdapterForm, AdapterModel};
use skein_model::shard::Shard;

use super::cuda_options::{cuda_options, open_cuda};
use super::group::{Agree, Work};
use super::model_files::of_merged;
use super::{group, member, shards};
use crate::backend::cpu::{CpuOptions, NumberTypes};
use crate::backend::cuda::{self, CudaLoadError, CudaOptions, DeviceBytes, LoadedRank, OpenDevice, RankLink};
use crate::backend::{Backend, Connections, KvBlocks};
use crate::config::{DeviceKind, WorkerConfig};
use crate::error::WorkerError;
use crate::group::{Member, RankAdapters, RankProcess, Topology};

/// A group of ranks on GPUs that this process leads.
pub(super) struct LedOnCuda {
    pub backend: Box<dyn Backend>,
    /// Describes everything except the weights that affects the bits of logits.
    pub arithmetic: String,
    /// Adapters of the other ranks, and how this one keeps its part of them; the form is `None` if none are
    /// served.
    pub adapters: (RankAdapters, Option<SlotForm>),
}

/// Leads a group of ranks on GPUs; rank 0 has `opened`.
pub(super) fn lead(
    config: &WorkerConfig,
    model: &ModelConfig,
    opened: OpenDevice,
    options: &CudaOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LedOnCuda, WorkerError> {
    check_settings(config, cuda::visible_gpus())?;
    let (topology, shards) = shards(config, model)?;
    let work = Work {
        arithmetic: arithmetic(options)?,
        cpu: CpuOptions {
            threads: shards::threads_each(config),
            kv_blocks: 0,
            window_blocks: None,
            state_slots: 0,
            block_size: options.limits.block_size,
            max_rows: cuda::most_rows(&options.limits),
            numbers: NumberTypes::STORED,
        },
        device: DeviceKind::Cuda,
    };
    let options = CudaOptions { readers: work.cpu.threads, ..options.clone() };
    let group = group::lead(config, &model.spec, topology, work)?;
    let (ended, shard) = (Box::new(group.ended()), shards[0].clone());
    let form =
        cuda::slot_form(cuda::ModelDir { dir: &config.model, config: model }, &shard, &opened, &options)?;
    let mut arithmetic = String::new();
    let load = |connections: Connections, agree: &mut Agree<'_>| {
        let link = RankLink { shard, connections, agree, ended };
        let loaded = cuda::load_rank(
            cuda::ModelDir { dir: &config.model, config: model },
            opened,
            &options,
            Some(link),
            progress,
        );
        let loaded = loaded.map_err(failed)?;
        arithmetic.clone_from(&loaded.arithmetic);
        Ok(loaded)
    };
    let (leader, adapters) = group.load(load, |loaded: LoadedRank<'_>| loaded.start().map_err(failed))?;
    Ok(LedOnCuda { backend: Box::new(leader), arithmetic, adapters: (adapters, form) })
}

/// Part of each rank, if the GPU kernels support all of them.
fn shards(config: &WorkerConfig, model: &ModelConfig) -> Result<(Topology, Vec<Shard>), WorkerError> {
    let (topology, shards) = shards::shards(config, &model.spec)?;
    let unsuitable = |why: cuda::NotUsable| WorkerError::Unsuitable(why.to_string());
    for shard in &shards {
        cuda::check_heads(shard).map_err(unsuitable)?;
    }
    Ok((topology, shards))
}

/// Memory plan of a model on GPUs.
pub(super) struct CudaPlan {
    pub model: ModelConfig,
    pub topology: Topology,
    /// Part of each rank.
    pub shards: Vec<Shard>,
    pub options: CudaOptions,
    /// Memory of each rank.
    pub planned: Vec<DeviceBytes>,
    pub kv_blocks: KvBlocks,
}

/// Plans the ranks of `config`, each on a GPU like the first one. The other GPUs need not exist.
pub(super) fn plan(config: &WorkerConfig) -> Result<CudaPlan, WorkerError> {
    check_settings(config, u32::MAX)?;
    let (model, options) = cuda_options(config)?;
    let opened = open_cuda(config)?.map_err(|why| WorkerError::Load(Box::new(why)))?;
    let (topology, shards) = shards(config, &model)?;
    let planned =
        cuda::plan_ranks(cuda::ModelDir { dir: &config.model, config: &model }, &opened, &options, &shards);
    let (planned, kv_blocks) = planned.map_err(failed)?;
    Ok(CudaPlan { model, topology, shards, options, planned, kv_blocks })
}

fn failed(error: CudaLoadError) -> WorkerError {
    WorkerError::Load(Box::new(error))
}

/// Description of the options that ranks must share, compared before they open their devices.
fn arithmetic(options: &CudaOptions) -> Result<String, LoadError> {
    let CudaOptions { fp8, rounded, cuda, merged, .. } = options;
    let of_merged = of_merged(merged.as_deref())?;
    Ok(format!("cuda {fp8:?} rounded {rounded:?} invariant {}{of_merged}", cuda.batch_invariant))
}

/// Refuses settings that ranks on GPUs do not support, and more ranks on this machine than `visible` devices.
fn check_settings(config: &WorkerConfig, visible: u32) -> Result<(), WorkerError> {
    let (each, first) = (config.ranks.on_node(), config.cuda.ordinal);
    let why = if config.cuda.sharers > 1 {
        format!(
            "{} workers share a GPU, and ranks of several GPUs do not; give --workers 1",
            config.cuda.sharers
        )
    } else if first.saturating_add(each) > visible {
        format!(
            "--tensor-parallel-size {} and --pipeline-parallel-size {} need the GPUs {first} to {} on each machine, and \
             this process sees {visible}; see nvidia-smi and CUDA_VISIBLE_DEVICES, whose order the ranks follow",
            config.ranks.tensor_parallel,
            config.ranks.pipeline_parallel,
            first.saturating_add(each) - 1
        )
    } else {
        return Ok(());
    };
    Err(WorkerError::Unsuitable(why))
}

/// Runs a rank other than the leader: opens its device, loads its part, and follows the leader.
pub(super) fn serve_rank(process: &RankProcess) -> Result<(), String> {
    let welcome = &process.welcome;
    let (config, rank) = (&welcome.config, welcome.rank);
    let (model, options) = cuda_options(config).map_err(|error| error.to_string())?;
    let options = CudaOptions { readers: welcome.threads, ..options };
    let own = arithmetic(&options).map_err(|error| error.to_string())?;
    let Member { connections, reports, .. } = member::join(process, &own)?;
    let topology = welcome.plan.topology;
    let ordinal = config.cuda.ordinal + (rank % topology.on_node()) as u32;
    let opened = cuda::open(ordinal, &model, options.limits.block_size);
    let opened = opened.map_err(|error| format!("cannot use GPU {ordinal}: {error}"))?;
    let shard = shards::shard_of(&model.spec, &topology, rank).map_err(|error| error.to_string())?;
    let form =
        cuda::slot_form(cuda::ModelDir { dir: &config.model, config: &model }, &shard, &opened, &options);
    let form = form.map_err(|error| error.to_string())?;
    let memory = process.memory.clone();
    let ended = move || memory.cause().map(|rank| format!("rank {rank} has ended"));
    let mut agree = |own| process.agree(own);
    let link = RankLink { shard, connections, agree: &mut agree, ended: Box::new(ended) };
    let loaded = cuda::load_rank(
        cuda::ModelDir { dir: &config.model, config: &model },
        opened,
        &options,
        Some(link),
        &mut |_, _| {},
    );
    let loaded = loaded.map_err(|error| error.to_string())?;
    let reader = form.and_then(|form| {
        member::reader(
            welcome,
            AdapterModel {
                spec: model.spec.clone(),
                form: AdapterForm::Cuda(Arc::new(form)),
                dir: config.model.clone(),
            },
        )
    });
    member::follow(process, reports, reader, || loaded.start().map_err(|error| error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gpus_cannot_share_is_refused_with_numbers() {
        let refused = |change: fn(&mut WorkerConfig), visible| {
            let mut config = WorkerConfig::new("model", "m");
            config.ranks.tensor_parallel = 4;
            change(&mut config);
            check_settings(&config, visible).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(refused(|_| (), 4), "");
        assert_eq!(refused(|config| config.cuda.ordinal = 2, 6), "");
        assert_eq!(refused(|config| config.ranks.nodes.count = 4, 1), "", "a GPU on each of four machines");
        for (said, expected) in [
            (refused(|_| (), 2), "need the GPUs 0 to 3 on each machine, and this process sees 2"),
            (refused(|config| config.cuda.ordinal = 1, 4), "need the GPUs 1 to 4"),
            (
                refused(|config| config.ranks.pipeline_parallel = 2, 7),
                "--tensor-parallel-size 4 and --pipeline-parallel-size 2 need the GPUs 0 to 7",
            ),
            (refused(|config| config.ranks.nodes.count = 2, 1), "need the GPUs 0 to 1 on each machine"),
            (refused(|config| config.cuda.sharers = 2, 8), "2 workers share a GPU"),
        ] {
            assert!(said.contains(expected), "{said}");
        }
    }
}
