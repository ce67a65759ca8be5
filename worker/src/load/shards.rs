//! Each rank's part of the model, its cache and its threads.

use skein_kernels::cpu::kv_cache::KvType;
use skein_model::shard::{Indivisible, Shard};
use skein_model::spec::Spec;

use super::sizing::KvTokenBytes;
use crate::config::{RanksConfig, WorkerConfig};
use crate::error::WorkerError;
use crate::group::Topology;

/// Part of each rank, in rank order.
pub(super) fn shards(config: &WorkerConfig, spec: &Spec) -> Result<(Topology, Vec<Shard>), WorkerError> {
    let RanksConfig { tensor_parallel, pipeline_parallel, nodes, .. } = &config.ranks;
    let (tensor, stages) = (*tensor_parallel as usize, *pipeline_parallel as usize);
    let topology = Topology::new(tensor, stages, nodes.count as usize).map_err(WorkerError::Unsuitable)?;
    let shards = (0..topology.ranks()).map(|rank| shard_of(spec, &topology, rank)).collect::<Result<_, _>>();
    let why = |why: Indivisible| {
        let flag = match &why {
            Indivisible::Leaves { ranks, .. }
            | Indivisible::StateUnits { ranks, .. }
            | Indivisible::TiledStates { ranks } => {
                format!("--tensor-parallel-size {ranks}")
            }
            Indivisible::Layers { stages, .. }
            | Indivisible::LayerInputs { stages }
            | Indivisible::SharedCache { stages, .. } => format!("--pipeline-parallel-size {stages}"),
        };
        WorkerError::Unsuitable(format!("{flag}: {why}"))
    };
    Ok((topology, shards.map_err(why)?))
}

/// Part of `rank`.
pub(super) fn shard_of(spec: &Spec, topology: &Topology, rank: usize) -> Result<Shard, Indivisible> {
    let shard = Shard::new(spec, topology.slot_of(rank), topology.tensor)?;
    shard.of_stage(spec, topology.stage_of(rank), topology.stages)
}

/// KV cache per token on each rank, in bytes.
pub(super) fn kv_bytes_per_token(spec: &Spec, shards: &[Shard], kv: KvType) -> Vec<KvTokenBytes> {
    let of_shard = |shard: &Shard| {
        let own = shard.spec(spec);
        let windowed = own.windowed_kv_bytes_per_token(kv);
        KvTokenBytes { main: own.kv_bytes_per_token(kv) - windowed, windowed }
    };
    shards.iter().map(of_shard).collect()
}

/// Compute threads per rank on this node: an even part of `--threads`, or of the machine's.
pub(super) fn threads_each(config: &WorkerConfig) -> usize {
    (threads(config) / config.ranks.on_node() as usize).max(1)
}

pub(super) fn threads(config: &WorkerConfig) -> usize {
    match config.threads {
        0 => skein_sys::threads::ThreadPlacement::of_this_machine(0).threads,
        given => given,
    }
}
