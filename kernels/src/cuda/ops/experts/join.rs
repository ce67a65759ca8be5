//! The weighted sum of the outputs of a row's experts, and weighted inputs; `cu/experts_join.cu`.

use std::marker::PhantomData;

use super::super::{Activation, kernel_for};
use super::Pairs;
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Most threads per row.
const MAX_THREADS: usize = 256;
/// Values per thread and iteration.
const VALUES: usize = 8;

/// Adds the weighted outputs of a row's experts, in the order of its choice, and that of the shared network.
#[derive(Debug, Clone, Copy)]
pub struct Join<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

/// Memory of one [`Join`] launch.
#[derive(Debug, Clone, Copy)]
pub struct JoinExperts<T> {
    /// Result, `[rows, hidden]`; zero in padding rows.
    pub out: DeviceSlice<T>,
    /// Outputs of the experts, `[ranks, pairs, hidden]`; each pair's is that of its expert's rank.
    pub outputs: DeviceSlice<T>,
    /// `[experts]`: rank of each expert, below the number of ranks in `outputs`; or [`DeviceSlice::NONE`] on
    /// a single rank.
    pub ranks: DeviceSlice<u32>,
    /// `[pairs]`, or [`DeviceSlice::NONE`] if inputs are weighted instead.
    pub weights: DeviceSlice<f32>,
    /// `[pairs]`: experts of each row.
    pub chosen: DeviceSlice<u32>,
    /// Output of the shared network, `[rows, hidden]`, or [`DeviceSlice::NONE`].
    pub shared: DeviceSlice<T>,
    /// The first of each row's logits, whose sigmoid is the shared network's weight; with the distance to the
    /// next row's. [`DeviceSlice::NONE`]: the weight is 1.
    pub shared_logits: (DeviceSlice<f32>, usize),
    /// Sizes of the step.
    pub pairs: Pairs,
    /// Values per row of `out`, a multiple of 8.
    pub hidden: usize,
}

/// Multiplies the inputs of experts by their weights.
#[derive(Debug, Clone, Copy)]
pub struct WeighInputs<T> {
    kernel: Kernel,
    of: PhantomData<T>,
}

/// Memory of one [`WeighInputs`] launch.
#[derive(Debug, Clone, Copy)]
pub struct WeighedInputs<T> {
    /// Result, `[pairs, hidden]`.
    pub out: DeviceSlice<T>,
    /// `[rows, hidden]`
    pub x: DeviceSlice<T>,
    /// `[pairs]`
    pub weights: DeviceSlice<f32>,
    /// Sizes of the step.
    pub pairs: Pairs,
    /// Values per row, a multiple of 8.
    pub hidden: usize,
}

fn threads(hidden: usize) -> u32 {
    assert!(hidden > 0 && hidden.is_multiple_of(VALUES), "{hidden} values are not a multiple of {VALUES}");
    (hidden / VALUES).next_multiple_of(32).min(MAX_THREADS) as u32
}

impl<T: Activation> Join<T> {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernel_for!(kernels, T, "join_experts")?, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, join: JoinExperts<T>) -> Result<(), CudaError> {
        let JoinExperts { out, outputs, ranks, weights, chosen, shared, shared_logits, pairs, hidden } = join;
        let (threads, rows, count, (logits, stride)) =
            (threads(hidden), pairs.rows, pairs.count(), shared_logits);
        assert!(
            out.len() >= rows * hidden && outputs.len() >= count * hidden && chosen.len() >= count,
            "{pairs:?} do not fit"
        );
        assert!(ranks.is_empty() || ranks.len() >= pairs.experts, "a rank for each expert");
        assert!(weights.is_empty() || weights.len() >= count, "a weight for each pair");
        assert!(shared.is_empty() || shared.len() >= rows * hidden, "shared outputs of {rows} rows");
        let fits = logits.is_empty() || rows == 0 || logits.len() > (rows - 1) * stride;
        assert!(fits && (logits.is_empty() || !shared.is_empty()), "a logit for each shared output");
        if rows == 0 {
            return Ok(());
        }
        let args = Args::new()
            .slice(out)
            .slice(outputs)
            .slice(ranks)
            .slice(weights)
            .slice(chosen)
            .slice(shared)
            .slice(logits)
            .size(pairs.per_token)
            .size(hidden)
            .size(stride);
        self.kernel.launch(stream, Grid::new(rows as u32, threads).overlapping(), &args)
    }
}

impl<T: Activation> WeighInputs<T> {
    /// Looks up the kernel.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self { kernel: kernel_for!(kernels, T, "weigh_inputs")?, of: PhantomData })
    }

    /// Queues the launch.
    pub fn launch(&self, stream: &Stream, weighed: WeighedInputs<T>) -> Result<(), CudaError> {
        let WeighedInputs { out, x, weights, pairs, hidden } = weighed;
        let (threads, count) = (threads(hidden), pairs.count());
        let fits = out.len() >= count * hidden && x.len() >= pairs.rows * hidden && weights.len() >= count;
        assert!(fits, "{pairs:?} do not fit");
        if count == 0 {
            return Ok(());
        }
        let args = Args::new().slice(out).slice(x).slice(weights).size(pairs.per_token).size(hidden);
        self.kernel.launch(stream, Grid::new(count as u32, threads).overlapping(), &args)
    }
}
