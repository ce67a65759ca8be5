//! Connects a rank to the other ranks that share its model.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skein_kernels::cuda::nccl::{ID_BYTES, UniqueId};
use skein_kernels::cuda::{Communicator, CudaError, Device, Nccl};

use super::CudaLoadError;
use super::stage::Neighbours;
use crate::backend::Connections;
use crate::shard::Shard;

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
    /// Links to other stages.
    pub neighbours: Neighbours,
    agree: &'a mut dyn FnMut(Fits) -> Result<u32, CudaLoadError>,
    capability: (u32, u32),
}

impl<'a> RankLink<'a> {
    /// Connects the devices of the stage's ranks. From then on, a wait for `device` fails if the group ends
    /// or NCCL reports an error.
    pub(super) fn connect(
        mut self,
        device: &Arc<Device>,
        timeout: Duration,
    ) -> Result<Connected<'a>, CudaLoadError> {
        let own = Arc::<OnceLock<Weak<Communicator>>>::default();
        let (of_waits, ended) = (Arc::clone(&own), self.ended);
        device.check_during_waits(Box::new(move || match ended() {
            Some(why) => Err(CudaError::Ended { why }),
            None => of_waits.get().and_then(Weak::upgrade).map_or(Ok(()), |own| own.check()),
        }));
        let Shard { rank, ranks, stage, stages, .. } = self.shard;
        let communicator = match ranks {
            1 => None,
            _ => Some(join(&mut self.connections, device, (rank, ranks), timeout)?),
        };
        if let Some(communicator) = &communicator {
            let _ = own.set(Arc::downgrade(communicator)); // set once
        }
        tracing::info!(rank, ranks, stage, stages, "the ranks of a stage are connected");
        let neighbours = Neighbours::of(&mut self.connections);
        Ok(Connected { communicator, neighbours, agree: self.agree, capability: device.capability })
    }
}

/// Joins the ranks of a stage: rank 0 among them sends the id.
fn join(
    connections: &mut Connections,
    device: &Arc<Device>,
    (rank, ranks): (usize, usize),
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
