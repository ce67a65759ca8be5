//! Activations of feed-forward networks, with and without a gate; `cu/activation.cu`.

use std::marker::PhantomData;

use super::{Activation, kernel_for};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};
use crate::gate::Gate;

/// Threads per block.
const THREADS: usize = 256;
/// Most blocks of a launch without rows; each then takes several values per thread.
const MAX_BLOCKS: usize = 4096;
/// Values per thread and iteration.
const VALUES: usize = 8;

/// `out = activation(gate) * up`.
#[derive(Debug, Clone, Copy)]
pub struct Glu<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

/// Memory of one [`Glu`] launch.
#[derive(Debug, Clone, Copy)]
pub struct GateUp<T> {
    /// Result, `[rows, inner]`.
    pub out: DeviceSlice<T>,
    /// `[rows, 2 * inner]`: in each row the gate, then the up projection.
    pub gate_up: DeviceSlice<T>,
    /// Activation of the gate.
    pub by: Gate,
    /// Number of rows.
    pub rows: usize,
    /// Values per row of `out`, a multiple of 8.
    pub inner: usize,
}

impl<T: Activation> Glu<T> {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernel_for!(kernels, T, "glu")?, of: PhantomData })
    }

    /// Queues the launch. At most 65,535 rows.
    pub fn launch(&self, stream: &Stream, gate_up: GateUp<T>) -> Result<(), CudaError> {
        let GateUp { out, gate_up, by, rows, inner } = gate_up;
        assert!(inner > 0 && inner.is_multiple_of(VALUES), "{inner} values are not a multiple of {VALUES}");
        assert!(
            out.len() >= rows * inner && gate_up.len() >= 2 * rows * inner,
            "{rows} rows of {inner} do not fit into {} from {}",
            out.len(),
            gate_up.len()
        );
        if rows == 0 {
            return Ok(());
        }
        let parts = (inner / VALUES).div_ceil(THREADS) as u32;
        let args = Args::new().slice(out).slice(gate_up).size(inner).u32(by.on_cuda());
        self.kernel.launch(stream, Grid::of([parts, rows as u32, 1], THREADS as u32).overlapping(), &args)
    }
}

/// `x = activation(x)`, in place.
#[derive(Debug, Clone, Copy)]
pub struct Activate<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

impl<T: Activation> Activate<T> {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernel_for!(kernels, T, "activate")?, of: PhantomData })
    }

    /// Queues the launch over all values of `x`, whose number is a multiple of 8.
    pub fn launch(&self, stream: &Stream, x: DeviceSlice<T>, by: Gate) -> Result<(), CudaError> {
        assert!(x.len().is_multiple_of(VALUES), "{} values are not a multiple of {VALUES}", x.len());
        if x.is_empty() {
            return Ok(());
        }
        let blocks = x.len().div_ceil(VALUES * THREADS).min(MAX_BLOCKS) as u32;
        let args = Args::new().slice(x).size(x.len()).u32(by.on_cuda());
        self.kernel.launch(stream, Grid::new(blocks, THREADS as u32).overlapping(), &args)
    }
}
