//! Connects a rank to the other ranks that share its model.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use skein_kernels::collective::Ranks;
use skein_kernels::cuda::nccl::{ID_BYTES, UniqueId};
use skein_kernels::cuda::{Communicator, CudaError, Device, Nccl};

use super::CudaLoadError;
use crate::shard::Shard;

/// What a rank needs to find the others.
pub struct RankLink {
    /// Its part of the model.
    pub shard: Shard,
    /// An exchange with them in host memory, used while the model is loaded.
    pub ranks: Box<dyn Ranks>,
    /// Returns why the group has ended, if it has; polled while the device works.
    pub ended: Ended,
}

/// Returns why a group has ended; `None` while it runs.
type Ended = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// A connected rank.
pub(super) struct Connected {
    pub communicator: Arc<Communicator>,
    ranks: Box<dyn Ranks>,
}

/// Size of the greeting that every rank sends before NCCL connects them: a proposed group id, of which rank
/// 0's is used, and the compute capability of its device.
const GREETING: usize = ID_BYTES + 2;

impl RankLink {
    /// Connects the devices of all ranks. From then on, a wait for `device` fails if the group ends or NCCL
    /// reports an error.
    pub(super) fn connect(
        mut self,
        device: &Arc<Device>,
        timeout: Duration,
    ) -> Result<Connected, CudaLoadError> {
        let nccl = Nccl::open()?;
        let own = Arc::<OnceLock<Weak<Communicator>>>::default();
        let (of_waits, ended) = (Arc::clone(&own), self.ended);
        device.check_during_waits(Box::new(move || match ended() {
            Some(why) => Err(CudaError::Ended { why }),
            None => of_waits.get().and_then(Weak::upgrade).map_or(Ok(()), |own| own.check()),
        }));
        let Shard { rank, ranks: count, .. } = self.shard;
        let mut mine = [0; GREETING];
        if rank == 0 {
            mine[..ID_BYTES].copy_from_slice(&nccl.unique_id()?.0);
        }
        mine[ID_BYTES..].copy_from_slice(&[device.capability.0 as u8, device.capability.1 as u8]);
        let mut all = vec![0; count * GREETING];
        self.ranks.gather(&mine, &mut all)?;
        let id = id_of(&all)?;
        let communicator = Communicator::join(&nccl, device, &id, (rank, count), timeout)?;
        let communicator = Arc::new(communicator);
        let _ = own.set(Arc::downgrade(&communicator)); // set once
        tracing::info!(rank, ranks = count, nccl = nccl.version(), "{count} ranks are connected");
        Ok(Connected { communicator, ranks: self.ranks })
    }
}

/// The group's id, if all devices have the same compute capability.
fn id_of(greetings: &[u8]) -> Result<UniqueId, CudaLoadError> {
    let (all, _) = greetings.as_chunks::<GREETING>();
    let capability = |greeting: &[u8; GREETING]| format!("{}.{}", greeting[ID_BYTES], greeting[ID_BYTES + 1]);
    let own = capability(&all[0]);
    match all.iter().position(|greeting| capability(greeting) != own) {
        Some(rank) => Err(CudaLoadError::Differs { rank, its: capability(&all[rank]), own }),
        None => {
            let mut id = [0; ID_BYTES];
            id.copy_from_slice(&all[0][..ID_BYTES]);
            Ok(UniqueId(id))
        }
    }
}

impl Connected {
    /// The smallest `value` of all ranks.
    pub fn least(&mut self, value: u32) -> Result<u32, CudaLoadError> {
        let mut all = vec![0; size_of::<u32>() * self.ranks.count()];
        self.ranks.gather(&value.to_le_bytes(), &mut all)?;
        let values = all.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        Ok(values.min().unwrap_or(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_other_devices_are_named() {
        let mut all = vec![0; 3 * GREETING];
        for (rank, greeting) in all.chunks_exact_mut(GREETING).enumerate() {
            greeting[0] = 7 + rank as u8;
            greeting[ID_BYTES] = 9;
        }
        assert_eq!(id_of(&all).unwrap().0[0], 7, "rank 0's counts");
        all[2 * GREETING + ID_BYTES] = 8;
        let why = id_of(&all).unwrap_err().to_string();
        assert!(why.starts_with("rank 2 has a GPU of compute capability 8.0, rank 0 one of 9.0"), "{why}");
    }
}
