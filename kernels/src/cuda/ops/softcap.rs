//! Softcapping of logits; `cu/softcap.cu`.

use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Threads per block.
const THREADS: usize = 256;
/// Values per thread if there are many.
const VALUES: usize = 8;

/// `values = cap * tanh(values / cap)`.
#[derive(Debug, Clone, Copy)]
pub struct Softcap {
    kernel: Kernel,
}

impl Softcap {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernels.get("softcap")? })
    }

    /// Queues the launch. At most 2^31 values.
    pub fn launch(&self, stream: &Stream, values: DeviceSlice<f32>, cap: f32) -> Result<(), CudaError> {
        let count = values.len();
        assert!(count <= 1 << 31, "{count} values are more than 2^31");
        assert!(cap > 0.0, "softcap {cap} is positive");
        if count == 0 {
            return Ok(());
        }
        let blocks = count.div_ceil(THREADS * VALUES) as u32;
        let args = Args::new().slice(values).u32(count as u32).f32(cap);
        self.kernel.launch(stream, Grid::new(blocks, THREADS as u32).overlapping(), &args)
    }
}
