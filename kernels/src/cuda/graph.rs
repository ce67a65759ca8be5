//! CUDA graphs: work captured once and launched as a whole.

use std::sync::Arc;

use cudarc::driver::sys;

use super::error::check;
use super::{CudaError, Device, Stream};

/// Work captured from a stream, which can be launched any number of times. Kernel arguments are those of the
/// capture, so everything that changes between launches has to be in device memory. The graph keeps neither
/// that memory nor the kernels alive.
#[derive(Debug)]
pub struct Graph {
    exec: sys::CUgraphExec,
    device: Arc<Device>,
}

// SAFETY: the handle may be used from any thread that is bound to the device, one at a time.
unsafe impl Send for Graph {}

/// A capture in progress. If it is dropped without [`Capture::end`], because the work failed or panicked, it
/// ends and discards the captured work, so that the stream is usable again.
struct Capture<'a> {
    stream: &'a Stream,
}

impl<'a> Capture<'a> {
    /// Starts a thread-local capture: other threads may allocate and wait meanwhile, this one may not.
    fn begin(stream: &'a Stream) -> Result<Self, CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
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
        // returns null and an error whose cause has already been reported.
        let _ = unsafe { sys::cuStreamEndCapture(self.stream.raw(), &mut graph) };
        if !graph.is_null() {
            drop(Captured(graph));
        }
    }
}

/// A captured graph that has not been instantiated yet.
struct Captured(sys::CUgraph);

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: owned and destroyed once. Errors do not matter here.
        let _ = unsafe { sys::cuGraphDestroy(self.0) };
    }
}

impl Graph {
    /// Captures the work that `work` queues on `stream`, without running it. `work` may queue kernels, events
    /// and copies from and to page-locked memory; it must neither allocate nor wait. After an error the
    /// stream is as before.
    pub fn capture(stream: &Stream, work: impl FnOnce() -> Result<(), CudaError>) -> Result<Self, CudaError> {
        let capture = Capture::begin(stream)?;
        work()?;
        let captured = capture.end()?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the captured graph is alive during the call, which copies it; the out-pointer is valid.
        check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, captured.0, 0) })?;
        Ok(Self { exec, device: stream.device().clone() })
    }

    /// Copies the graph to the device ahead of its first launch.
    pub fn upload(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        check("cuGraphUpload", unsafe { sys::cuGraphUpload(self.exec, stream.raw()) })
    }

    /// Queues the graph on `stream`. Launches of the same graph run one after another.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.exec, stream.raw()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.is_abandoned() {
            return;
        }
        let _ = self.device.bind();
        // SAFETY: owned and destroyed once; a launch in progress still completes. Errors do not matter here.
        let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
    }
}
