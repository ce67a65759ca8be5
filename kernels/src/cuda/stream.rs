//! Queues of device work, and marks in them.

use std::sync::Arc;

use cudarc::driver::sys;

use super::error::check;
use super::{CudaError, Device};

/// A queue of device work, done in order.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    device: Arc<Device>,
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
        Ok(Self { raw, device: device.clone() })
    }

    /// Waits for all its work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        self.raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: created in `new`, destroyed once; pending work still runs. Errors change nothing.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

/// A mark in a stream.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    device: Arc<Device>,
}

// SAFETY: events may be used from any thread that is bound to their device.
unsafe impl Send for Event {}

impl Event {
    /// An event that keeps time.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out-pointer is valid for the call.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, 0) })?;
        Ok(Self { raw, device: device.clone() })
    }

    /// Marks the work `stream` has now.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.raw, stream.raw()) })
    }

    /// Whether the marked work is done.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        // SAFETY: the event lives.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits for the marked work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// Milliseconds of device time since `earlier`; both are done.
    pub fn since(&self, earlier: &Event) -> Result<f32, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: the out-pointer is valid for the call, and both events live.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.raw, self.raw)
        })?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: created in `new`, destroyed once. Errors change nothing.
        let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}
