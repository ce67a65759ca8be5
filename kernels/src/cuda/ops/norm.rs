//! Residual addition and RMS normalisation; `cu/norm.cu`.

use std::marker::PhantomData;

use super::{Activation, kernel_for};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Most threads per row.
const MAX_THREADS: usize = 1024;
/// Values per thread and iteration.
const VALUES: usize = 4;

/// `residual += delta`, optionally normalising `delta`, then `out = residual / rms(residual) * weight`.
#[derive(Debug, Clone, Copy)]
pub struct AddRmsNorm<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

/// Memory of one [`AddRmsNorm`] launch. The hidden size is `weight`'s length, a multiple of 4.
#[derive(Debug, Clone, Copy)]
pub struct Norm<T> {
    /// `[rows, hidden]`: the normalised residual.
    pub out: DeviceSlice<T>,
    /// `[rows, hidden]`: read; also written if there is a `delta`.
    pub residual: DeviceSlice<f32>,
    /// `[rows, hidden]`, or [`DeviceSlice::NONE`] to add nothing.
    pub delta: DeviceSlice<T>,
    /// `[hidden]` to normalise `delta` before adding it, or [`DeviceSlice::NONE`].
    pub delta_weight: DeviceSlice<f32>,
    /// Weights of the norm, `[hidden]`.
    pub weight: DeviceSlice<f32>,
    /// Number of rows.
    pub rows: usize,
    /// Added to the mean square.
    pub eps: f32,
}

impl<T: Activation> AddRmsNorm<T> {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernel_for!(kernels, T, "add_rms_norm")?, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, norm: Norm<T>) -> Result<(), CudaError> {
        let Norm { out, residual, delta, delta_weight, weight, rows, eps } = norm;
        let hidden = weight.len();
        assert!(
            hidden > 0 && hidden.is_multiple_of(VALUES),
            "hidden size {hidden} is not a multiple of {VALUES}"
        );
        assert!(out.len() >= rows * hidden && residual.len() >= rows * hidden, "{rows} rows do not fit");
        assert!(delta.is_empty() || delta.len() >= rows * hidden, "delta is shorter than {rows} rows");
        let has_delta = !delta.is_empty() && delta_weight.len() == hidden;
        assert!(delta_weight.is_empty() || has_delta, "{} weights for delta", delta_weight.len());
        if rows == 0 {
            return Ok(());
        }
        let threads = (hidden / VALUES).next_multiple_of(32).min(MAX_THREADS) as u32;
        let args = Args::new()
            .slice(out)
            .slice(residual)
            .slice(delta)
            .slice(delta_weight)
            .slice(weight)
            .size(hidden)
            .f32(eps);
        self.kernel.launch(stream, Grid::new(rows as u32, threads).overlapping(), &args)
    }
}
