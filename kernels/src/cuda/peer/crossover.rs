//! Which protocol carries which size, measured at the start.

use std::time::Duration;

use half::bf16;

use super::agreement::{Budget, agree};
use super::{NoPeers, Peers, Protocol};
use crate::collective::Ranks;
use crate::cuda::ops::norm::{AddNorm, Formula, Norm};
use crate::cuda::ops::ranks::{JoinSums, RankKernels};
use crate::cuda::ops::reduce::{OwnSums, PeerReduce, ThenNorm};
use crate::cuda::{Communicator, CudaError, CudaEvent, DeviceBuffer, DeviceSlice, Kernels, Stream};

/// Sizes in rows: 1, then each this many times the last.
const STEP: usize = 2;
/// Time after which no larger size is begun.
const MOST_TIME: Duration = Duration::from_secs(2);
/// Ways to sum: [`Protocol::Small`], [`Protocol::Large`], NCCL with our own kernels.
const WAYS: usize = 3;

/// Mean microseconds of a sum with the norm that follows, on the slowest rank; infinite if it does not fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Bytes of a rank's sums.
    pub bytes: usize,
    /// By [`Protocol::Small`].
    pub small: f32,
    /// By [`Protocol::Large`].
    pub large: f32,
    /// By NCCL, with the sum and the norm as launches of their own.
    pub nccl: f32,
}

impl Peers {
    /// Measures sums of rows of `n` values, `times` launches of each size and way, and from then on uses the
    /// fastest. With `times` = 0 the limits stay at the inboxes' sizes. Returns what it measured.
    ///
    /// # Errors
    /// If the device fails, on all ranks. If the group is lost.
    pub fn measure(
        &mut self,
        kernels: &Kernels,
        communicator: &Communicator,
        ranks: &mut dyn Ranks,
        (n, times): (usize, usize),
    ) -> Result<Vec<Measured>, NoPeers> {
        if times == 0 {
            return Ok(Vec::new());
        }
        let sizes: Vec<usize> = std::iter::successors(Some(1), |rows| Some(rows * STEP))
            .take_while(|rows| self.protocol(*rows, n).is_some())
            .collect();
        let most = sizes.last().copied().unwrap_or(0);
        let timing = Timing::new(self, kernels, communicator, n, times, most);
        let timing = agree(ranks, timing.map_err(|error| format!("cannot measure: {error}")))?;
        let (budget, mut slowest) = (Budget::new(MOST_TIME), Vec::new());
        for rows in &sizes {
            if !budget.is_left(ranks)? {
                break; // larger sizes go by NCCL
            }
            let own = timing.all_ways(*rows).map_err(|error| format!("cannot measure: {error}"));
            let own = agree(ranks, own)?;
            let mut all = vec![0.0; WAYS * ranks.count()];
            ranks.gather_values(&own, &mut all)?;
            let of_way = |way: usize| all.iter().skip(way).step_by(WAYS).copied().fold(0.0, f32::max);
            slowest.push(std::array::from_fn(of_way));
        }
        drop(timing);
        let bytes = |sizes: &[usize]| sizes.last().map_or(0, |rows| rows * n * size_of::<f32>());
        let (small, large) = crossover(&slowest);
        (self.small_up_to, self.large_up_to) = (bytes(&sizes[..small]), bytes(&sizes[..large]));
        let measured = |(rows, micros): (&usize, &[f32; WAYS])| {
            let [small, large, nccl] = *micros;
            Measured { bytes: rows * n * size_of::<f32>(), small, large, nccl }
        };
        Ok(sizes.iter().zip(&slowest).map(measured).collect())
    }
}

/// Number of sizes, from the smallest, up to which small messages are the fastest, and up to which one of
/// both protocols is not slower than NCCL.
fn crossover(times: &[[f32; WAYS]]) -> (usize, usize) {
    let small = times.iter().take_while(|[small, large, nccl]| small <= large && small <= nccl).count();
    let large = times[small..].iter().take_while(|[_, large, nccl]| large <= nccl).count();
    (small, small + large)
}

/// Buffers of a measurement.
struct Timing<'a> {
    peers: &'a Peers,
    communicator: &'a Communicator,
    reduce: PeerReduce<bf16>,
    norm: AddNorm<bf16>,
    join: RankKernels<bf16>,
    n: usize,
    times: usize,
    stream: Stream,
    own: DeviceBuffer<f32>,
    all: DeviceBuffer<f32>,
    residual: DeviceBuffer<f32>,
    weight: DeviceBuffer<f32>,
    delta: DeviceBuffer<bf16>,
    out: DeviceBuffer<bf16>,
    events: (CudaEvent, CudaEvent),
}

impl<'a> Timing<'a> {
    fn new(
        peers: &'a Peers,
        kernels: &Kernels,
        communicator: &'a Communicator,
        n: usize,
        times: usize,
        rows: usize,
    ) -> Result<Self, CudaError> {
        let device = &peers.device;
        let stream = Stream::new(device)?;
        let zeros = |count: usize| -> Result<DeviceBuffer<f32>, CudaError> {
            let buffer = DeviceBuffer::new(device, count)?;
            buffer.fill_bytes(&stream, 0)?;
            Ok(buffer)
        };
        Ok(Self {
            peers,
            communicator,
            reduce: PeerReduce::new(kernels)?,
            norm: AddNorm::new(kernels, Formula::Rms)?,
            join: RankKernels::new(kernels)?,
            n,
            times,
            own: zeros(rows * n)?,
            all: zeros(peers.ranks() * rows * n)?,
            residual: zeros(rows * n)?,
            weight: zeros(n)?,
            delta: DeviceBuffer::new(device, rows * n)?,
            out: DeviceBuffer::new(device, rows * n)?,
            events: (CudaEvent::new(device)?, CudaEvent::new(device)?),
            stream,
        })
    }

    /// Mean microseconds of each way; infinite where a size does not fit.
    fn all_ways(&self, rows: usize) -> Result<[f32; WAYS], CudaError> {
        let mut micros = [f32::INFINITY; WAYS];
        for (way, protocol) in [Some(Protocol::Small), Some(Protocol::Large), None].into_iter().enumerate() {
            if protocol.is_none_or(|protocol| self.peers.fits(protocol, rows, self.n)) {
                micros[way] = self.time(rows, protocol)?;
            }
        }
        Ok(micros)
    }

    fn time(&self, rows: usize, protocol: Option<Protocol>) -> Result<f32, CudaError> {
        self.queue(rows, protocol)?; // loads code
        self.events.0.record(&self.stream)?;
        for _ in 0..self.times {
            self.queue(rows, protocol)?;
        }
        self.events.1.record(&self.stream)?;
        self.stream.synchronize()?;
        self.peers.check()?;
        Ok(self.events.1.since(&self.events.0)? * 1e3 / self.times as f32)
    }

    fn queue(&self, rows: usize, protocol: Option<Protocol>) -> Result<(), CudaError> {
        let (n, count, stream) = (self.n, rows * self.n, &self.stream);
        let (own, residual) = (self.own.slice(0..count), self.residual.slice(0..count));
        let (out, weight, bias, eps) = (self.out.slice(0..count), *self.weight, DeviceSlice::NONE, 1e-5);
        if let Some(protocol) = protocol {
            let (own, then) = (OwnSums { sums: own, bias, rows, n }, ThenNorm { out, residual, weight, eps });
            return self.reduce.sum_and_normalise(stream, self.peers, protocol, own, then);
        }
        let (ranks, delta) = (self.peers.ranks(), self.delta.slice(0..count));
        let sums = self.all.slice(0..ranks * count);
        self.communicator.gather(stream, own, sums)?;
        self.join.join_sums(stream, JoinSums { out: delta, sums, bias, ranks, rows, n })?;
        let (beside, delta_weight, no_bias) = (DeviceSlice::NONE, DeviceSlice::NONE, DeviceSlice::NONE);
        let norm =
            Norm { out, residual, delta, beside, delta_weight, weight, bias: no_bias, rows, hidden: n, eps };
        self.norm.launch(stream, norm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_goes_the_fastest_way_and_never_back() {
        let never = f32::INFINITY;
        for (times, expected) in [
            (vec![], (0, 0)),
            (vec![[1.0, 2.0, 9.0], [2.0, 3.0, 9.0], [5.0, 4.0, 9.0], [1.0, 4.0, 9.0]], (2, 4)),
            (vec![[1.0, 2.0, 9.0], [never, 10.0, 9.0], [never, 1.0, 9.0]], (1, 1)),
            (vec![[3.0, 4.0, 2.0], [1.0, 2.0, 9.0]], (0, 0)),
            (vec![[3.0, 1.0, 2.0], [1.0, 2.0, 1.0]], (0, 1)),
        ] {
            assert_eq!(crossover(&times), expected, "{times:?}");
        }
    }
}
