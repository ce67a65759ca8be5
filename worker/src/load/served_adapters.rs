//! The adapters that a worker serves beside its model, and the memory they may take.

use skein_model::on_cpu::adapter::AdapterWeights;
use skein_model::served_adapter::AdapterModel;
use skein_model::shard::Shard;
use skein_model::spec::Spec;

use crate::adapters::Adapters;
use crate::config::{AdaptersConfig, WorkerConfig};
use crate::error::WorkerError;
use crate::group::RankAdapters;

/// Memory that adapters may take on the rank of a shard, in bytes.
pub(super) fn adapter_bytes(config: &WorkerConfig, spec: &Spec, shard: &Shard) -> u64 {
    let AdaptersConfig { is_enabled, max_cpu_loras, max_lora_rank, .. } = config.adapters;
    let each = if is_enabled { AdapterWeights::most_bytes(spec, shard, max_lora_rank) } else { 0 };
    each.saturating_mul(max_cpu_loras as u64)
}

/// The adapters of `config` for a model, whose backend keeps them in a form; `None` if they are not enabled.
pub(super) fn adapters(
    config: &WorkerConfig,
    model: Option<AdapterModel>,
) -> Result<Option<Adapters>, WorkerError> {
    let name = &config.served_model_name;
    if config.adapters.modules.iter().any(|module| module.name == *name) {
        let what =
            format!("--lora-modules names an adapter `{name}`, which is the model's name; choose another");
        return Err(WorkerError::Unsuitable(what));
    }
    let of_config = || Adapters::new(&config.adapters, model);
    let adapters = config.adapters.is_enabled.then(of_config).transpose();
    adapters.map_err(|error| WorkerError::Load(Box::new(error)))
}

/// `adapters` on all ranks of a group.
pub(super) fn on_ranks(
    adapters: Option<Adapters>,
    ranks: Option<RankAdapters>,
) -> Result<Option<Adapters>, WorkerError> {
    if let (Some(adapters), Some(ranks)) = (&adapters, ranks) {
        adapters.follow_on(ranks).map_err(|error| WorkerError::Load(Box::new(error)))?;
    }
    Ok(adapters)
}
