//! Ranks on CPUs.

use std::path::Path;

use skein_model::LoadError;
use skein_model::config::ModelConfig;
use skein_model::on_cpu::packed_cache::PackedCache;
use skein_model::served_adapter::{AdapterForm, AdapterModel};
use skein_model::spec::Spec;

use super::group::{Agree, Work, lead};
use super::member::{follow, join, reader};
use super::model_files::{of_merged, stored};
use super::precision;
use super::shards::shard_of;
use crate::backend::cpu::{CpuBackend, CpuModel, CpuOptions};
use crate::backend::{Backend, BackendError};
use crate::config::{DeviceKind, WorkerConfig};
use crate::error::WorkerError;
use crate::group::{Member, RankAdapters, RankProcess, Topology};

/// Leads a group of CPU ranks; returns it with the adapters of the other ranks, and the bytes of weights that
/// this rank's steps read.
pub(super) fn lead_on_cpu(
    config: &WorkerConfig,
    spec: &Spec,
    topology: Topology,
    options: CpuOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(impl Backend + 'static, RankAdapters, u64), WorkerError> {
    let merged = config.merged_adapter.as_ref().map(|adapter| adapter.directory.as_path());
    let arithmetic = precision::cpu_arithmetic(&options.numbers) + &of_merged(merged)?;
    let group = lead(config, spec, topology, Work { arithmetic, cpu: options, device: DeviceKind::Cpu })?;
    let cache = packed_cache(config.cpu.packed_cache_dir.as_deref());
    let mut weight_bytes = 0;
    let load = |connections, _: &mut Agree<'_>| {
        let source = (&*config.model, merged);
        let model = CpuModel::load_rank(source, options, &cache, connections, progress)?;
        weight_bytes = model.weight_bytes();
        Ok(model)
    };
    let (leader, adapters) = group.load(load, |model| checked(model, &config.model))?;
    Ok((leader, adapters, weight_bytes))
}

pub(super) fn serve_on_cpu(process: &RankProcess) -> Result<(), String> {
    let welcome = &process.welcome;
    let config = &welcome.config;
    let (stored, quantised) = stored(&config.model)?;
    let model_config = ModelConfig::from_dir(&config.model).map_err(|error| error.to_string())?;
    let numbers = precision::on_cpu(config.precision, &stored, quantised, model_config.pooling.is_some());
    let numbers = numbers.map_err(|error| error.to_string())?;
    let merged = config.merged_adapter.as_ref().map(|adapter| adapter.directory.as_path());
    let of_merged = of_merged(merged).map_err(|error| error.to_string())?;
    let Member { connections, reports, .. } =
        join(process, &(precision::cpu_arithmetic(&numbers) + &of_merged))?;
    let options = CpuOptions {
        threads: welcome.threads,
        kv_blocks: welcome.kv_blocks,
        window_blocks: welcome.window_blocks,
        state_slots: welcome.state_slots,
        block_size: config.scheduler.block_size,
        max_rows: welcome.max_rows,
        numbers,
    };
    let cache = packed_cache(config.cpu.packed_cache_dir.as_deref());
    let source = (&*config.model, merged);
    let model = CpuModel::load_rank(source, options, &cache, connections, &mut |_, _| {});
    let model = model.map_err(|error| error.to_string())?;
    let spec = model_config.spec;
    let shard = shard_of(&spec, &welcome.plan.topology, welcome.rank).map_err(|error| error.to_string())?;
    let reader = reader(
        welcome,
        AdapterModel { spec, form: AdapterForm::Cpu(Box::new(shard)), dir: config.model.clone() },
    );
    follow(process, reports, reader, || checked(model, &config.model).map_err(|error| error.to_string()))
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
