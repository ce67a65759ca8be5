//! Residual addition and normalisation; `cu/norm.cu`.

use std::marker::PhantomData;

use super::{Activation, kernel_for};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Most threads per row.
const MAX_THREADS: usize = 1024;
/// Values per thread and iteration.
const VALUES: usize = 4;

/// Formula of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Formula {
    /// `x / rms(x) * weight`
    Rms,
    /// `(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`
    Layer,
}

/// `residual += delta + beside`, optionally normalising `delta`, then `out = norm(residual)`.
#[derive(Debug, Clone, Copy)]
pub struct AddNorm<T> {
    kernel: Kernel,
    formula: Formula,
    of: PhantomData<T>,
}

/// Memory of one [`AddNorm`] launch.
#[derive(Debug, Clone, Copy)]
pub struct Norm<T> {
    /// `[rows, hidden]`: the normalised residual.
    pub out: DeviceSlice<T>,
    /// `[rows, hidden]`: read; also written if there is a `delta`.
    pub residual: DeviceSlice<f32>,
    /// `[rows, hidden]`, or [`DeviceSlice::NONE`] to add nothing.
    pub delta: DeviceSlice<T>,
    /// `[rows, hidden]` to add after a `delta`, or [`DeviceSlice::NONE`].
    pub beside: DeviceSlice<T>,
    /// `[hidden]` to divide `delta` by its root mean square and multiply it by this before adding it, or
    /// [`DeviceSlice::NONE`].
    pub delta_weight: DeviceSlice<f32>,
    /// Weights of the norm, `[hidden]`; or [`DeviceSlice::NONE`] to round the residual without normalising
    /// it, which [`Formula::Layer`] does not support.
    pub weight: DeviceSlice<f32>,
    /// `[hidden]`, or [`DeviceSlice::NONE`]; only for [`Formula::Layer`].
    pub bias: DeviceSlice<f32>,
    /// Number of rows.
    pub rows: usize,
    /// Values per row, a multiple of 4.
    pub hidden: usize,
    /// Added to the mean square or to the variance.
    pub eps: f32,
}

impl<T: Activation> AddNorm<T> {
    /// Looks up the kernel of a formula.
    pub fn new(kernels: &Kernels, formula: Formula) -> Result<Self, CudaError> {
        let kernel = match formula {
            Formula::Rms => kernel_for!(kernels, T, "add_rms_norm")?,
            Formula::Layer => kernel_for!(kernels, T, "add_layer_norm")?,
        };
        Ok(Self { kernel, formula, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, norm: Norm<T>) -> Result<(), CudaError> {
        let Norm { out, residual, delta, beside, delta_weight, weight, bias, rows, hidden, eps } = norm;
        assert!(
            hidden > 0 && hidden.is_multiple_of(VALUES),
            "hidden size {hidden} is not a multiple of {VALUES}"
        );
        assert!(out.len() >= rows * hidden && residual.len() >= rows * hidden, "{rows} rows do not fit");
        for added in [delta, beside] {
            assert!(
                added.is_empty() || added.len() >= rows * hidden,
                "an addend is shorter than {rows} rows"
            );
        }
        let has_delta = !delta.is_empty();
        assert!(
            has_delta || (beside.is_empty() && delta_weight.is_empty()),
            "without delta nothing is added"
        );
        for vector in [delta_weight, weight, bias] {
            assert!(vector.is_empty() || vector.len() == hidden, "{} values of {hidden}", vector.len());
        }
        let is_layer = self.formula == Formula::Layer;
        assert!(if is_layer { !weight.is_empty() } else { bias.is_empty() }, "a weight or no bias");
        if rows == 0 {
            return Ok(());
        }
        let threads = (hidden / VALUES).next_multiple_of(32).min(MAX_THREADS) as u32;
        let args = Args::new().slice(out).slice(residual).slice(delta).slice(beside).slice(delta_weight);
        let args = args.slice(weight);
        let args = if is_layer { args.slice(bias) } else { args };
        let grid = Grid::new(rows as u32, threads).overlapping();
        self.kernel.launch(stream, grid, &args.size(hidden).f32(eps))
    }
}
