//! Exchange between ranks on GPUs. NCCL only moves bytes. Our kernels compute the sums
//! ([`super::ops::ranks`]), so all ranks have the same bits, whatever algorithm NCCL chooses.
//!
//! Every wait is bounded. Calls do not block, waits have a limit, and a lost communicator is aborted on a
//! detached thread, because an abort can hang like the operation that it ends.
//!
//! Not yet run on a GPU: tested on `skein-cuda-emulation`.

mod library;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::nccl::sys::ncclComm_t;

pub use library::{ID_BYTES, Nccl, UniqueId};

use super::memory::Element;
use super::{CudaError, Device, DeviceSlice, Stream};
use library::IN_PROGRESS;

/// Interval between two checks of a call in progress.
const POLL: Duration = Duration::from_millis(1);

/// One rank of a group; each has its own device. Only one thread may call it at a time, and all ranks must
/// make the same calls in the same order.
#[derive(Debug)]
pub struct Communicator {
    raw: Raw,
    nccl: Arc<Nccl>,
    device: Arc<Device>,
    rank: usize,
    ranks: usize,
    /// Longest wait for a call.
    timeout: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Raw(ncclComm_t);

// SAFETY: a communicator may be used from any thread that is bound to its device, by one at a time.
unsafe impl Send for Raw {}
// SAFETY: its state may be queried from any thread; nothing else takes `&self` from several threads.
unsafe impl Sync for Raw {}

impl Communicator {
    /// Joins the group `id` with `device`, to which the calling thread must be bound. This and later calls
    /// wait at most `timeout` for the other ranks.
    ///
    /// # Errors
    /// If a rank does not join in time, or NCCL cannot connect them.
    pub fn join(
        nccl: &Arc<Nccl>,
        device: &Arc<Device>,
        id: &UniqueId,
        (rank, ranks): (usize, usize),
        timeout: Duration,
    ) -> Result<Self, CudaError> {
        let raw = Raw(nccl.begin(id, rank, ranks)?);
        let joined = Self { raw, nccl: nccl.clone(), device: device.clone(), rank, ranks, timeout };
        joined.settle("ncclCommInitRankConfig", &format!("not all of {ranks} ranks have joined"))?;
        Ok(joined)
    }

    /// Number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Queues an all-gather: sends `own`, and writes the values of all ranks to `all`, in rank order.
    ///
    /// # Errors
    /// If NCCL reports an error. The device is then abandoned, because work that is already queued may never
    /// end, and freeing its memory would wait for it.
    ///
    /// # Panics
    /// If the length of `all` does not fit all ranks' values, or they are not whole words of 4 bytes.
    pub fn gather<T: Element>(
        &self,
        stream: &Stream,
        own: DeviceSlice<T>,
        all: DeviceSlice<T>,
    ) -> Result<(), CudaError> {
        let bytes = own.bytes();
        assert!(bytes.is_multiple_of(4), "{bytes} bytes are no whole words");
        assert_eq!(all.len(), self.ranks * own.len(), "{} ranks give {} values each", self.ranks, own.len());
        // SAFETY: both are device memory of the checked size; like all memory of a step it stays until the
        // device is abandoned or done.
        let queued = unsafe {
            self.nccl.all_gather(own.address(), all.address(), bytes / 4, self.raw.0, stream.raw())
        };
        let settled = queued.and_then(|()| self.settle("ncclAllGather", "the call has not returned"));
        settled.inspect_err(|error| self.device.note(error))
    }

    /// Checks that the communicator is intact. Cheap, and allowed from any thread.
    ///
    /// # Errors
    /// If NCCL reports an error.
    pub fn check(&self) -> Result<(), CudaError> {
        self.nccl.state(self.raw.0).map(drop)
    }

    /// Waits until a call is no longer in progress.
    fn settle(&self, call: &'static str, what: &str) -> Result<(), CudaError> {
        let began = now();
        while self.nccl.state(self.raw.0)? == IN_PROGRESS {
            if began.elapsed() >= self.timeout {
                let text = format!("{what} within {:?}", self.timeout);
                return Err(CudaError::Nccl { call, code: IN_PROGRESS, text });
            }
            self.device.check_wait()?;
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.device.is_abandoned() {
            return; // its memory is released when the process ends
        }
        let (raw, nccl, device) = (self.raw, self.nccl.clone(), self.device.clone());
        let abort = move || {
            let Raw(raw) = { raw };
            if device.bind().is_ok() {
                nccl.abort(raw);
            }
        };
        // Detached. If no thread can be started, the process's end releases everything.
        let _ = std::thread::Builder::new().name("skein-nccl-abort".into()).spawn(abort);
    }
}

#[allow(clippy::disallowed_methods)] // deadlines of waits for other processes
fn now() -> Instant {
    Instant::now()
}
