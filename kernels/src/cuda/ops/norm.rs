//! Residual addition and RMS normalisation; `cu/norm.cu`.

use std::marker::PhantomData;

use super::{Activation, kernel_for};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Most threads that share a row.
const MAX_THREADS: usize = 1024;
/// Values a thread takes at a time.
const VALUES: usize = 4;

/// `residual += delta`, then `out = residual / rms(residual) * weight`.
#[derive(Debug, Clone, Copy)]
pub struct AddRmsNorm<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

impl<T: Activation> AddRmsNorm<T> {
    /// Finds the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernel_for!(kernels, T, "add_rms_norm")?, of: PhantomData })
    }

    /// `out` and `residual` `[rows, hidden]`, `delta` the same or [`DeviceSlice::NONE`], `weight` `[hidden]`.
    /// `hidden` is a multiple of 4.
    pub fn launch(
        &self,
        stream: &Stream,
        out: DeviceSlice<T>,
        residual: DeviceSlice<f32>,
        delta: DeviceSlice<T>,
        weight: DeviceSlice<f32>,
        rows: usize,
        eps: f32,
    ) -> Result<(), CudaError> {
        let hidden = weight.len();
        assert!(
            hidden > 0 && hidden.is_multiple_of(VALUES),
            "hidden size {hidden} is not a multiple of {VALUES}"
        );
        assert!(out.len() >= rows * hidden && residual.len() >= rows * hidden, "rows do not fit");
        assert!(delta.is_empty() || delta.len() >= rows * hidden, "delta is shorter than {rows} rows");
        if rows == 0 {
            return Ok(());
        }
        let threads = (hidden / VALUES).next_multiple_of(32).min(MAX_THREADS) as u32;
        let args = Args::new().slice(out).slice(residual).slice(delta).slice(weight).size(hidden).f32(eps);
        self.kernel.launch(stream, Grid::new(rows as u32, threads).overlapping(), &args)
    }
}
