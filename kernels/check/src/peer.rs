//! Sums through the memory of a group's GPUs, as a worker checks them at its start: compared with the host's
//! tree bit by bit, then timed against NCCL. Each rank is a process that calls [`run`].

use std::sync::Arc;
use std::time::Duration;

use skein_kernels::collective::{Exchange, How, Lost, Ranks};
use skein_kernels::cuda::peer::{Measured, NoPeers, PeerOptions, Peers};
use skein_kernels::cuda::{Communicator, CudaError, Device, DeviceBuffer, Kernels, Stream};

use crate::cases::Scale;

/// Outputs of a timed row: the hidden size of an 8B model.
const OUTPUTS: usize = 4096;
/// Sizes of a worker's inboxes.
const SMALL_BYTES: usize = 256 << 10;
const LARGE_BYTES: usize = 8 << 20;
/// Longest wait of a launch.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What a group's GPUs can do.
#[derive(Debug, Clone, PartialEq)]
pub struct Summed {
    /// Random sums that had the host's bits.
    pub checked: usize,
    /// Most bytes of a rank's sums by small and by large messages: beyond, NCCL is faster.
    pub up_to: (usize, usize),
    /// Times of each size.
    pub sizes: Vec<Measured>,
}

/// Opens the memory of all GPUs, compares sums and measures them. All ranks must have the same scale.
///
/// # Errors
/// If the memory is not reached, or a bit is wrong: then on all ranks.
pub fn run(device: &Arc<Device>, communicator: &Communicator, scale: Scale) -> Result<Summed, NoPeers> {
    let mut ranks = OverNccl { device, communicator, number: 0 };
    let kernels = Kernels::load(device).map_err(|error| ranks.lost(0, &error))?;
    let (checks, seconds, times) = match scale {
        Scale::Small => (60, 10, 2),
        Scale::Full => (100_000, 120, 200),
    };
    let options = PeerOptions {
        small_bytes: SMALL_BYTES,
        large_bytes: LARGE_BYTES,
        checks,
        checks_within: Duration::from_secs(seconds),
        timeout: TIMEOUT,
    };
    let mut peers = Peers::open(device, &kernels, &mut ranks, &options)?;
    let sizes = peers.measure(&kernels, communicator, &mut ranks, (OUTPUTS, times))?;
    Ok(Summed { checked: peers.checked(), up_to: peers.limits(), sizes })
}

/// Exchange of bytes in host memory, by way of the GPUs.
struct OverNccl<'a> {
    device: &'a Arc<Device>,
    communicator: &'a Communicator,
    number: u64,
}

impl OverNccl<'_> {
    fn lost(&self, bytes: usize, error: &CudaError) -> Lost {
        eprintln!("rank {}: {error}", self.rank());
        let doing = Exchange { number: self.number, bytes };
        Lost { rank: self.rank(), how: How::Ended, doing, after: Duration::ZERO }
    }

    fn exchange(&self, mine: &[u8], all: &mut [u8]) -> Result<(), CudaError> {
        // NCCL gathers whole words.
        let length = mine.len().next_multiple_of(4);
        let mut padded = mine.to_vec();
        padded.resize(length, 0);
        let stream = Stream::new(self.device)?;
        let own = DeviceBuffer::from_slice(self.device, &stream, &padded)?;
        let gathered = DeviceBuffer::new(self.device, length * self.count())?;
        self.communicator.gather(&stream, *own, *gathered)?;
        let gathered = gathered.read(&stream)?;
        for (to, from) in all.chunks_exact_mut(mine.len()).zip(gathered.chunks_exact(length)) {
            to.copy_from_slice(&from[..mine.len()]);
        }
        Ok(())
    }
}

impl Ranks for OverNccl<'_> {
    fn rank(&self) -> usize {
        self.communicator.rank()
    }

    fn count(&self) -> usize {
        self.communicator.ranks()
    }

    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), Lost> {
        self.number += 1;
        self.exchange(mine, all).map_err(|error| self.lost(mine.len(), &error))
    }
}
