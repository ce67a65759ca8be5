//! Timing of launches over memory that is not in the L2 cache.

use super::Ceilings;
use crate::cases::Scale;
use skein_kernels::cuda::memory::Element;
use skein_kernels::cuda::ops::random::{FillNormal, Randomised};
use skein_kernels::cuda::roofline::median_seconds;
use skein_kernels::cuda::{CudaError, DeviceBuffer, Graph, Kernels, Stream};

/// Inputs are copied until they are this many times the size of the L2 cache.
const L2_TIMES: u64 = 3;
/// Most copies of an input.
const MAX_COPIES: usize = 64;
/// Approximate duration of a graph, in seconds.
const GRAPH_SECONDS: f64 = 2e-3;
/// Most launches in a graph.
const MAX_LAUNCHES: usize = 512;
/// Timed replays; the result is their median.
const ROUNDS: usize = 11;
/// A measurement takes at most this fraction (1 / n) of free memory.
const MEMORY_SHARE: u64 = 2;

/// The time of one operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Operation, model and shape.
    pub name: String,
    /// Median time of one launch.
    pub seconds: f64,
    /// Bytes it must move: each input read once, each output written once.
    pub bytes: f64,
    /// Multiplications and additions of its products; 0 if there are none.
    pub operations: f64,
}

/// The minimum of work that an operation has to do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Bytes of one run, as in [`Measured::bytes`].
    pub bytes: usize,
    /// Operations of one run, as in [`Measured::operations`].
    pub operations: f64,
}

/// Times operations on one stream.
#[derive(Debug)]
pub struct Rig<'a> {
    kernels: &'a Kernels,
    stream: Stream,
    scale: Scale,
    filter: String,
    drawn: u64,
    measured: Vec<Measured>,
    ceilings: Ceilings,
    on_measured: fn(Ceilings, &Measured),
}

impl<'a> Rig<'a> {
    pub(super) fn new(
        kernels: &'a Kernels,
        stream: Stream,
        (scale, ceilings): (Scale, Ceilings),
        filter: &str,
        on_measured: fn(Ceilings, &Measured),
    ) -> Self {
        let (filter, measured) = (filter.to_owned(), Vec::new());
        Self { kernels, stream, scale, filter, drawn: 0, measured, ceilings, on_measured }
    }

    /// The kernels of the device.
    pub fn kernels(&self) -> &'a Kernels {
        self.kernels
    }

    /// The stream of all work.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether to measure the operation `name`, which needs `bytes` of memory.
    pub(super) fn wants(&self, name: &str, bytes: usize) -> Result<bool, CudaError> {
        let (free, _) = self.kernels.device().memory_info()?;
        Ok(name.contains(&self.filter) && bytes as u64 <= free / MEMORY_SHARE)
    }

    /// Number of copies of `bytes` to read in turn. At full scale there are enough that none is still in L2
    /// when it is read again, up to [`MAX_COPIES`].
    pub(super) fn copies(&self, bytes: usize) -> usize {
        let wanted = (L2_TIMES * self.kernels.device().l2_bytes) as usize;
        match self.scale {
            Scale::Small => 2,
            Scale::Full => wanted.div_ceil(bytes.max(1)).clamp(1, MAX_COPIES),
        }
    }

    /// Random values; hardware may move and multiply zeros faster.
    pub(super) fn random<T: Randomised>(&mut self, len: usize) -> Result<DeviceBuffer<T>, CudaError> {
        let buffer = DeviceBuffer::new(self.kernels.device(), len)?;
        self.drawn += 1;
        FillNormal::<T>::new(self.kernels)?.launch(&self.stream, *buffer, self.drawn, 0.5)?;
        Ok(buffer)
    }

    /// Memory filled with zeros.
    pub(super) fn zeros<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>, CudaError> {
        let buffer = DeviceBuffer::new(self.kernels.device(), len)?;
        buffer.fill_bytes(&self.stream, 0)?;
        Ok(buffer)
    }

    /// Copies `values` to the device.
    pub(super) fn upload<T: Element>(&self, values: &[T]) -> Result<DeviceBuffer<T>, CudaError> {
        DeviceBuffer::from_slice(self.kernels.device(), &self.stream, values)
    }

    /// Times an operation. `launch` queues it once; its argument, below `copies`, is the copy of the inputs
    /// to use.
    pub(super) fn measure(
        &mut self,
        name: &str,
        work: Work,
        copies: usize,
        launch: impl Fn(&Stream, usize) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let seconds = self.seconds(copies, launch)?;
        let Work { bytes, operations } = work;
        let measured = Measured { name: name.to_owned(), seconds, bytes: bytes as f64, operations };
        (self.on_measured)(self.ceilings, &measured);
        self.measured.push(measured);
        Ok(())
    }

    fn seconds(
        &self,
        copies: usize,
        launch: impl Fn(&Stream, usize) -> Result<(), CudaError>,
    ) -> Result<f64, CudaError> {
        let stream = &self.stream;
        let all = || (0..copies).try_for_each(|copy| launch(stream, copy));
        // The first call also loads code and chooses algorithms, which is not allowed during capture.
        let once = median_seconds(stream, 1, all)? / copies as f64;
        let (launches, rounds) = match self.scale {
            Scale::Small => (copies, 1),
            Scale::Full => ((GRAPH_SECONDS / once) as usize, ROUNDS),
        };
        let launches = launches.clamp(1, MAX_LAUNCHES).next_multiple_of(copies);
        let graph = Graph::capture(stream, || (0..launches).try_for_each(|i| launch(stream, i % copies)))?;
        graph.upload(stream)?;
        Ok(median_seconds(stream, rounds, || graph.launch(stream))? / launches as f64)
    }

    /// The measurements, in the order in which they were taken.
    pub(super) fn finish(self) -> Vec<Measured> {
        self.measured
    }
}
