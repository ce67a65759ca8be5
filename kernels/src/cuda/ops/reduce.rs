//! Sums over ranks through peers' memory, alone or with the residual addition and norm that follow;
//! `cu/peer.cu`.

use std::marker::PhantomData;

use super::{Activation, kernel_for};
use crate::cuda::launch::{Args, Grid, Kernel};
use crate::cuda::peer::{Peers, Protocol};
use crate::cuda::{CudaError, DeviceSlice, Kernels, Stream};

/// Most threads of a block.
const MAX_THREADS: usize = 1024;
/// Values per thread and iteration.
const VALUES: usize = 4;

/// The kernels of both protocols.
#[derive(Debug, Clone, Copy)]
pub struct PeerReduce<T> {
    small: Kernel,
    small_norm: Kernel,
    large: Kernel,
    large_norm: Kernel,
    of: PhantomData<T>,
}

/// This rank's sums, which are added to those of all others.
#[derive(Debug, Clone, Copy)]
pub struct OwnSums<T> {
    /// `[rows, n]`
    pub sums: DeviceSlice<f32>,
    /// `[n]`, or [`DeviceSlice::NONE`]; added once.
    pub bias: DeviceSlice<T>,
    /// Number of rows.
    pub rows: usize,
    /// Outputs, a multiple of 4.
    pub n: usize,
}

/// What follows a sum: it is rounded and added to `residual`, whose norm by the root mean square is written.
#[derive(Debug, Clone, Copy)]
pub struct ThenNorm<T> {
    /// Result, `[rows, n]`.
    pub out: DeviceSlice<T>,
    /// `[rows, n]`, in and out.
    pub residual: DeviceSlice<f32>,
    /// Weights of the norm, `[n]`; or [`DeviceSlice::NONE`] to round the residual without normalising it.
    pub weight: DeviceSlice<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

impl<T: Activation> PeerReduce<T> {
    /// Looks up the kernels.
    pub fn new(kernels: &Kernels) -> Result<Self, CudaError> {
        Ok(Self {
            small: kernel_for!(kernels, T, "reduce_small")?,
            small_norm: kernel_for!(kernels, T, "reduce_small_norm")?,
            large: kernel_for!(kernels, T, "reduce_large")?,
            large_norm: kernel_for!(kernels, T, "reduce_large_norm")?,
            of: PhantomData,
        })
    }

    /// Queues the rounded sum, `[rows, n]`.
    ///
    /// # Panics
    /// If lengths do not fit, or the message does not fit an inbox.
    pub fn sum(
        &self,
        stream: &Stream,
        peers: &Peers,
        protocol: Protocol,
        own: OwnSums<T>,
        out: DeviceSlice<T>,
    ) -> Result<(), CudaError> {
        let view = peers.view();
        let args = with_sums(Args::new().slice(out), &own).bytes(&view);
        let kernel = if protocol == Protocol::Small { &self.small } else { &self.large };
        launch(kernel, stream, peers, protocol, own, out, &args)
    }

    /// Queues the sum, its addition to the residual stream and the norm.
    ///
    /// # Panics
    /// As for [`sum`](Self::sum).
    pub fn sum_and_normalise(
        &self,
        stream: &Stream,
        peers: &Peers,
        protocol: Protocol,
        own: OwnSums<T>,
        then: ThenNorm<T>,
    ) -> Result<(), CudaError> {
        let ThenNorm { out, residual, weight, eps } = then;
        assert!(residual.len() >= own.rows * own.n, "{} rows do not fit", own.rows);
        assert!(weight.is_empty() || weight.len() == own.n, "{} weights of {}", weight.len(), own.n);
        let view = peers.view();
        let args = Args::new().slice(out).slice(residual).slice(weight).f32(eps);
        let args = with_sums(args, &own).bytes(&view);
        let kernel = if protocol == Protocol::Small { &self.small_norm } else { &self.large_norm };
        launch(kernel, stream, peers, protocol, own, out, &args)
    }
}

fn with_sums<'a, T: Activation>(args: Args<'a>, own: &OwnSums<T>) -> Args<'a> {
    args.slice(own.sums).slice(own.bias).size(own.rows).size(own.n)
}

fn launch<T: Activation>(
    kernel: &Kernel,
    stream: &Stream,
    peers: &Peers,
    protocol: Protocol,
    own: OwnSums<T>,
    out: DeviceSlice<T>,
    args: &Args<'_>,
) -> Result<(), CudaError> {
    let OwnSums { sums, bias, rows, n } = own;
    assert!(n > 0 && n.is_multiple_of(VALUES), "{n} outputs are not a multiple of {VALUES}");
    assert!(rows > 0 && sums.len() >= rows * n && out.len() >= rows * n, "[{rows}, {n}] does not fit");
    assert!(bias.is_empty() || bias.len() >= n, "a bias of {} is too short for {n}", bias.len());
    assert!(peers.fits(protocol, rows, n), "[{rows}, {n}] does not fit a {protocol:?} inbox");
    // As many threads as `add_rms_norm` has, so that its sum of squares has the same order.
    let threads = (n / VALUES).next_multiple_of(32).min(MAX_THREADS) as u32;
    let blocks = (rows as u32).min(peers.blocks());
    kernel.launch(stream, Grid::new(blocks, threads).overlapping(), args)
}
