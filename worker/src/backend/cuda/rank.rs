//! Connects a rank to the other ranks that share its model.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skein_kernels::cuda::nccl::{ID_BYTES, UniqueId};
use skein_kernels::cuda::peer::{NoPeers, PeerOptions, Peers};
use skein_kernels::cuda::{Communicator, CudaError, Device, Nccl};
use skein_model::shard::Shard;

use super::memory::most_rows;
use super::stage::Neighbours;
use super::{CudaLoadError, CudaOptions, OpenDevice};
use crate::backend::Connections;
use crate::config::{CudaConfig, PeerConfig};

/// Time after which a start compares no more sums between GPUs; a device that needs it is an emulated one.
const CHECKS_WITHIN: Duration = Duration::from_secs(2);

/// What a rank needs to find the others.
pub struct RankLink<'a> {
    /// Its part of the model.
    pub shard: Shard,
    /// Connections in host memory. The exchange with its stage is used while the model is loaded, the links
    /// to other stages in every step.
    pub connections: Connections,
    /// Tells the leader what fits this rank; returns the KV blocks on which all ranks agree.
    pub agree: &'a mut dyn FnMut(Fits) -> Result<u32, CudaLoadError>,
    /// Returns why the group has ended, if it has; polled while the device works.
    pub ended: Ended,
}

/// What fits a rank's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fits {
    /// KV blocks that fit beside its part of the weights.
    pub kv_blocks: u32,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
}

impl Fits {
    /// The KV blocks that fit all ranks, listed from rank 0.
    ///
    /// # Errors
    /// If a device computes differently than rank 0's; names the rank.
    pub fn all(ranks: &[Self]) -> Result<u32, CudaLoadError> {
        let text = |fits: &Self| format!("{}.{}", fits.capability.0, fits.capability.1);
        let own = ranks.first().map(text).unwrap_or_default();
        match ranks.iter().map(text).enumerate().find(|(_, its)| *its != own) {
            Some((rank, its)) => Err(CudaLoadError::Differs { rank, its, own }),
            None => Ok(ranks.iter().map(|fits| fits.kv_blocks).min().unwrap_or(0)),
        }
    }
}

/// Returns why a group has ended; `None` while it runs.
type Ended = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// A connected rank.
pub(super) struct Connected<'a> {
    /// Exchange on the device with the ranks of its stage; `None` if it is alone there.
    pub communicator: Option<Arc<Communicator>>,
    /// Memory of the stage's devices that all its ranks reach, if they do.
    pub peers: Option<Arc<Peers>>,
    /// Links to other stages.
    pub neighbours: Neighbours,
    agree: &'a mut dyn FnMut(Fits) -> Result<u32, CudaLoadError>,
    capability: (u32, u32),
}

impl<'a> RankLink<'a> {
    /// Connects the devices of the stage's ranks, which exchange up to `shape` at once. From then on, a wait
    /// for the device fails if the group ends, NCCL reports an error or a rank sends no sums.
    pub(super) fn connect(
        mut self,
        opened: &OpenDevice,
        config: &CudaConfig,
        shape: StepShape,
    ) -> Result<Connected<'a>, CudaLoadError> {
        let (device, timeout) = (&opened.device, config.step_timeout);
        let own = Arc::<OnceLock<Weak<Communicator>>>::default();
        let own_peers = Arc::<OnceLock<Weak<Peers>>>::default();
        let (of_waits, peers_of_waits, ended) = (Arc::clone(&own), Arc::clone(&own_peers), self.ended);
        device.check_during_waits(Box::new(move || {
            let peers = peers_of_waits.get().and_then(Weak::upgrade);
            let ended = ended().map_or(Ok(()), |why| Err(CudaError::Ended { why }));
            ended
                .and_then(|()| peers.as_ref().map_or(Ok(()), |peers| peers.check()))
                .and_then(|()| of_waits.get().and_then(Weak::upgrade).map_or(Ok(()), |own| own.check()))
                .inspect_err(|_| peers.iter().for_each(|peers| peers.abort()))
        }));
        let Shard { rank, ranks, stage, stages, .. } = self.shard;
        let communicator = match ranks {
            1 => None,
            _ => Some(join(&mut self.connections, device, rank, ranks, timeout)?),
        };
        if let Some(communicator) = &communicator {
            let _ = own.set(Arc::downgrade(communicator)); // set once
        }
        let peers = match &communicator {
            Some(communicator) => {
                open_peers(&mut self.connections, opened, communicator, config, shape)?.map(Arc::new)
            }
            None => None,
        };
        if let Some(peers) = &peers {
            let _ = own_peers.set(Arc::downgrade(peers)); // set once
        }
        tracing::info!(rank, ranks, stage, stages, "the ranks of a stage are connected");
        let neighbours = Neighbours::of(&mut self.connections);
        Ok(Connected { communicator, peers, neighbours, agree: self.agree, capability: device.capability })
    }
}

/// Joins the ranks of a stage: rank 0 among them sends the id.
fn join(
    connections: &mut Connections,
    device: &Arc<Device>,
    rank: usize,
    ranks: usize,
    timeout: Duration,
) -> Result<Arc<Communicator>, CudaLoadError> {
    let nccl = Nccl::open()?;
    let mine = if rank == 0 { nccl.unique_id()?.0 } else { [0; ID_BYTES] };
    let mut all = vec![0; ranks * ID_BYTES];
    connections.ranks.gather(&mine, &mut all)?;
    let mut id = UniqueId([0; ID_BYTES]);
    id.0.copy_from_slice(&all[..ID_BYTES]);
    let communicator = Communicator::join(&nccl, device, &id, (rank, ranks), timeout)?;
    tracing::debug!(rank, ranks, nccl = nccl.version(), "NCCL connects {ranks} ranks");
    Ok(Arc::new(communicator))
}

/// The largest step: its rows, and the values of a row of the residual stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepShape {
    pub rows: usize,
    pub hidden: usize,
}

/// Options of sums through memory, for steps of up to `shape`; `None` = disabled.
pub(super) fn peer_options(config: &CudaConfig, shape: StepShape) -> Option<PeerOptions> {
    let PeerConfig { is_disabled, small_bytes, large_bytes, checks, .. } = config.peers;
    // No inbox is larger than the largest step.
    let [small_bytes, large_bytes] =
        [small_bytes, large_bytes].map(|bytes| bytes.min(shape.rows * shape.hidden * size_of::<f32>()));
    // Shorter than the host's own wait, whose error could not name the rank that is missing.
    let (checks_within, timeout) = (CHECKS_WITHIN, config.step_timeout * 3 / 4);
    (!is_disabled).then_some(PeerOptions { small_bytes, large_bytes, checks, checks_within, timeout })
}

/// Bytes of the inbox of one of `ranks` of a stage.
pub(super) fn inbox_bytes(opened: &OpenDevice, options: &CudaOptions, ranks: usize, hidden: usize) -> usize {
    let shape = StepShape { rows: most_rows(&options.limits) as usize, hidden };
    let options = peer_options(&options.cuda, shape).filter(|_| ranks > 1);
    options.map_or(0, |options| Peers::planned_bytes(&opened.device, ranks, &options))
}

/// The memory of the stage's devices, if all its ranks reach it and sum in it without a wrong bit. What
/// cannot be used is logged, and NCCL carries everything.
fn open_peers(
    connections: &mut Connections,
    opened: &OpenDevice,
    communicator: &Communicator,
    config: &CudaConfig,
    shape: StepShape,
) -> Result<Option<Peers>, CudaLoadError> {
    let Some(options) = peer_options(config, shape) else {
        tracing::info!("sums between GPUs go by NCCL (--disable-custom-all-reduce)");
        return Ok(None);
    };
    let (ranks, kernels) = (&mut *connections.ranks, &opened.kernels);
    let peers = Peers::open(&opened.device, kernels, ranks, &options).and_then(|mut peers| {
        peers.measure(kernels, communicator, ranks, (shape.hidden, config.peers.timed))?;
        Ok(peers)
    });
    match peers {
        Ok(peers) => {
            let (small_up_to, large_up_to) = peers.limits();
            let checked = peers.checked();
            tracing::info!(small_up_to, large_up_to, checked, "sums between GPUs go through their memory");
            Ok(Some(peers))
        }
        Err(NoPeers::Lost(lost)) => Err(lost.into()),
        Err(why @ NoPeers::Unusable { .. }) => {
            tracing::warn!(%why, "sums between GPUs go by NCCL, not through their memory");
            Ok(None)
        }
    }
}

impl Connected<'_> {
    /// The KV blocks on which all ranks agree if `kv_blocks` fit this one.
    pub fn agree(&mut self, kv_blocks: u32) -> Result<u32, CudaLoadError> {
        (self.agree)(Fits { kv_blocks, capability: self.capability })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_rank_decides_and_other_devices_are_named() {
        let fits = |kv_blocks, minor| Fits { kv_blocks, capability: (9, minor) };
        assert_eq!(Fits::all(&[fits(9, 0), fits(7, 0), fits(8, 0)]).unwrap(), 7);
        let why = Fits::all(&[fits(9, 0), fits(9, 0), fits(9, 2)]).unwrap_err().to_string();
        assert!(why.starts_with("rank 2 has a GPU of compute capability 9.2, rank 0 one of 9.0"), "{why}");
    }
}
