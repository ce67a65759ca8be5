//! Steps recorded once and launched as one.

use std::sync::Arc;

use cudarc::driver::sys;

use super::error::check;
use super::{CudaError, Device, Stream};

/// Work that was captured from a stream, ready to be launched any number of times. Kernel arguments are those
/// of the capture: what changes from launch to launch lies in device memory. It does not keep that memory,
/// nor the kernels.
#[derive(Debug)]
pub struct Graph {
    exec: sys::CUgraphExec,
    device: Arc<Device>,
}

// SAFETY: the handle may be used from any thread that is bound to the device, one at a time.
unsafe impl Send for Graph {}

/// A capture that has begun. Dropped without [`Capture::end`] (the work failed, or panicked) it ends and
/// throws away what it has, so that the stream works again.
struct Capture<'a> {
    stream: &'a Stream,
}

impl<'a> Capture<'a> {
    /// Thread-local: other threads may allocate and wait meanwhile, this one may not.
    fn begin(stream: &'a Stream) -> Result<Self, CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) })?;
        Ok(Self { stream })
    }

    fn end(self) -> Result<Captured, CudaError> {
        let mut graph = std::ptr::null_mut();
        let raw = self.stream.raw();
        std::mem::forget(self);
        // SAFETY: the stream is capturing; the out-pointer is valid for the call.
        check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(raw, &mut graph) })?;
        Ok(Captured(graph))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is capturing; the out-pointer is valid for the call. An invalidated capture
        // answers with an error and null: the reason is known already.
        let _ = unsafe { sys::cuStreamEndCapture(self.stream.raw(), &mut graph) };
        if !graph.is_null() {
            drop(Captured(graph));
        }
    }
}

/// What was captured, until it is made launchable.
struct Captured(sys::CUgraph);

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: owned, destroyed once. Errors change nothing.
        let _ = unsafe { sys::cuGraphDestroy(self.0) };
    }
}

impl Graph {
    /// Captures what `work` queues on `stream`; nothing of it runs. `work` may queue kernels, copies from and
    /// to page-locked memory and events, and neither allocates nor waits. On an error the stream is as
    /// before.
    pub fn capture(stream: &Stream, work: impl FnOnce() -> Result<(), CudaError>) -> Result<Self, CudaError> {
        let capture = Capture::begin(stream)?;
        work()?;
        let captured = capture.end()?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the captured graph lives during the call, which copies it; the out-pointer is valid.
        check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, captured.0, 0) })?;
        Ok(Self { exec, device: stream.device().clone() })
    }

    /// Brings the graph to the device, which its first launch would do otherwise.
    pub fn upload(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live.
        check("cuGraphUpload", unsafe { sys::cuGraphUpload(self.exec, stream.raw()) })
    }

    /// Queues all of it on `stream`. Launches of the same graph run one after the other.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.exec, stream.raw()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.is_abandoned() {
            return;
        }
        let _ = self.device.bind();
        // SAFETY: owned, destroyed once; a launch under way still ends. Errors change nothing.
        let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
    }
}
