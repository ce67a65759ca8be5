//! Streams of device work, and events in them.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys;

use super::error::check;
use super::{CudaError, Device};

/// A queue of device work, executed in order.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    device: Arc<Device>,
    overlaps: Cell<bool>,
}

// SAFETY: streams may be used from any thread that is bound to their device.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream that does not wait for the default one.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the out-pointer is valid for the call.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        Ok(Self { raw, device: device.clone(), overlaps: Cell::new(true) })
    }

    /// Launches kernels from now on only after the end of the previous one (no programmatic dependent
    /// launch), for drivers that do not capture such launches.
    pub fn forbid_overlaps(&self) {
        self.overlaps.set(false);
    }

    /// Whether kernels may be launched before the end of the previous one.
    pub fn overlaps(&self) -> bool {
        self.overlaps.get()
    }

    /// Waits for all work of the stream, as long as [`Device::limit_waits`] allows.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        if self.device.wait_limit().is_some() {
            let end = CudaEvent::untimed(&self.device)?;
            end.record(self)?;
            return end.synchronize();
        }
        // SAFETY: the stream is alive.
        let outcome = check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) });
        outcome.inspect_err(|error| self.device.note(error))
    }

    /// Makes work that is queued from now on wait for `event`; the host does not wait.
    pub fn wait_for(&self, event: &CudaEvent) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) })
    }

    /// The device of the stream.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        self.raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.is_abandoned() {
            return;
        }
        let _ = self.device.bind();
        // SAFETY: created in `new` and destroyed once; pending work still runs. Errors do not matter here.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

/// A point in a stream's work that can be waited for.
#[derive(Debug)]
pub struct CudaEvent {
    raw: sys::CUevent,
    device: Arc<Device>,
}

// SAFETY: events may be used from any thread that is bound to their device.
unsafe impl Send for CudaEvent {}
// SAFETY: the driver API's functions on events are thread-safe.
unsafe impl Sync for CudaEvent {}

/// Result of a wait with a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// The marked work is done.
    Done,
    /// It is not done: the device is stuck, or the timeout was too short.
    TimedOut,
}

/// How long a wait polls before it sleeps, so that short waits cost no sleep.
const SPIN: Duration = Duration::from_micros(20);
/// Limits of the sleeps that follow, each a sixteenth of the time waited: late by a few percent, but mostly
/// asleep.
const SLEEP: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

impl CudaEvent {
    /// An event that records the time.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        Self::with_flags(device, 0)
    }

    /// An event without time, which is cheaper to record; for ordering only.
    pub fn untimed(device: &Arc<Device>) -> Result<Self, CudaError> {
        Self::with_flags(device, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    fn with_flags(device: &Arc<Device>, flags: u32) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out-pointer is valid for the call.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, flags) })?;
        Ok(Self { raw, device: device.clone() })
    }

    /// Waits at most `timeout` for the event, so that a stuck device cannot block the caller.
    pub fn wait(&self, timeout: Duration) -> Result<Waited, CudaError> {
        let start = now();
        loop {
            if self.is_done()? {
                // Work that ends may have given up waiting for another rank.
                self.device.check_wait()?;
                return Ok(Waited::Done);
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return Ok(Waited::TimedOut);
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else {
                self.device.check_wait()?;
                std::thread::sleep((waited / 16).clamp(SLEEP.0, SLEEP.1).min(timeout - waited));
            }
        }
    }

    /// Records the event after all work that `stream` has now.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.raw, stream.raw()) })
    }

    /// Whether the work before the event is done.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true).inspect_err(|error| self.device.note(error)),
        }
    }

    /// Waits for the event, as long as [`Device::limit_waits`] allows.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        if let Some(within) = self.device.wait_limit() {
            return match self.wait(within)? {
                Waited::Done => Ok(()),
                Waited::TimedOut => {
                    self.device.abandon();
                    Err(CudaError::Stuck { within })
                }
            };
        }
        // SAFETY: the event is alive.
        let outcome = check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) });
        outcome.inspect_err(|error| self.device.note(error))
    }

    /// Milliseconds of device time since `earlier`. Both events must be done.
    pub fn since(&self, earlier: &CudaEvent) -> Result<f32, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: the out-pointer is valid for the call, and both events are alive.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.raw, self.raw)
        })?;
        Ok(milliseconds)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if self.device.is_abandoned() {
            return;
        }
        let _ = self.device.bind();
        // SAFETY: created in `new` and destroyed once. Errors do not matter here.
        let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}

#[allow(clippy::disallowed_methods)] // the device's watchdog measures real time, also in simulations
fn now() -> Instant {
    Instant::now()
}
