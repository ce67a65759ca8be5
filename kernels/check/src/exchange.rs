//! Exchanges between the GPUs of a group: an all-gather by NCCL and the sum over ranks by our kernel,
//! compared with the host's tree bit by bit, then timed. Each rank is a process that calls [`run`].

use std::sync::Arc;

use half::bf16;
use skein_kernels::cpu::philox::philox4x32_10;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::ranks::{JoinSums, RankKernels};
use skein_kernels::cuda::{
    Communicator, CudaError, CudaEvent, Device, DeviceBuffer, DeviceSlice, Graph, Kernels, Stream,
};
use skein_kernels::leaves;

use crate::cases::Scale;

/// Outputs of a row.
const OUTPUTS: usize = 1024;
/// Rows of each size: 4 KiB to 4 MiB of sums a rank.
const ROWS: [usize; 6] = [1, 4, 16, 64, 256, 1024];
/// Rows that get [`rounds`] rounds; larger sizes get as many bytes.
const MOST_ROUNDS_ROWS: usize = 4;
/// Table of values from which inputs are read at changing offsets.
const TABLE: usize = 1 << 20;
/// Timed replays of a graph.
const TIMED: usize = 200;

/// Exchanges of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exchanged {
    /// Bytes of each rank's sums.
    pub bytes: usize,
    /// Exchanges compared with the host.
    pub rounds: usize,
    /// Those of them in which a bit differed.
    pub differing: usize,
    /// Mean time of an exchange and its sum in replayed graphs, in microseconds.
    pub micros: f64,
}

/// Most rounds of a size.
fn rounds(scale: Scale) -> usize {
    match scale {
        Scale::Small => 40,
        Scale::Full => 100_000,
    }
}

/// Exchanges values drawn by `seed` in all sizes, in turn queued and replayed as a graph, and reports each
/// size to `each`. All ranks must have the same scale and seed.
///
/// # Errors
/// If an exchange fails. A wrong result is no error.
pub fn run(
    device: &Arc<Device>,
    communicator: &Communicator,
    (scale, seed): (Scale, u64),
    mut each: impl FnMut(Exchanged),
) -> Result<(), CudaError> {
    let kernels = RankKernels::<bf16>::new(&Kernels::load(device)?)?;
    let table = table(seed);
    let sizes = if scale == Scale::Small { &ROWS[..4] } else { &ROWS };
    for &rows in sizes {
        let rounds = rounds(scale) * MOST_ROUNDS_ROWS / rows.max(MOST_ROUNDS_ROWS);
        each(Exchange::new(device, communicator, &kernels, rows)?.check(&table, rounds)?);
    }
    Ok(())
}

/// Values of both signs and of magnitudes from 2^-12 to 2^12: another order of addition gives other bits.
fn table(seed: u64) -> Vec<f32> {
    let key = [seed as u32, (seed >> 32) as u32];
    let value = |i: usize| {
        let [mantissa, exponent, ..] = philox4x32_10([i as u32, 0, 3, 0], key);
        f32::from_bits((mantissa & 0x807f_ffff) | ((127 - 12 + exponent % 24) << 23))
    };
    (0..TABLE + ROWS[ROWS.len() - 1] * OUTPUTS).map(value).collect()
}

/// Buffers and graph of one size.
struct Exchange<'a> {
    communicator: &'a Communicator,
    kernels: &'a RankKernels<bf16>,
    rows: usize,
    stream: Stream,
    own: DeviceBuffer<f32>,
    all: DeviceBuffer<f32>,
    out: DeviceBuffer<bf16>,
    graph: Graph,
    started: CudaEvent,
    ended: CudaEvent,
}

impl<'a> Exchange<'a> {
    fn new(
        device: &Arc<Device>,
        communicator: &'a Communicator,
        kernels: &'a RankKernels<bf16>,
        rows: usize,
    ) -> Result<Self, CudaError> {
        let count = rows * OUTPUTS;
        let own = DeviceBuffer::new(device, count)?;
        let all = DeviceBuffer::new(device, communicator.ranks() * count)?;
        let out = DeviceBuffer::new(device, count)?;
        let stream = Stream::new(device)?;
        let graph = Graph::capture(&stream, || queue(communicator, kernels, &stream, (*own, *all, *out)))?;
        let (started, ended) = (CudaEvent::new(device)?, CudaEvent::new(device)?);
        Ok(Self { communicator, kernels, rows, stream, own, all, out, graph, started, ended })
    }

    fn check(&self, table: &[f32], rounds: usize) -> Result<Exchanged, CudaError> {
        let (count, ranks) = (self.rows * OUTPUTS, self.communicator.ranks());
        let mut differing = 0;
        let mut sums = vec![0.0; ranks * count];
        for round in 0..rounds {
            for (rank, sum) in sums.chunks_exact_mut(count).enumerate() {
                sum.copy_from_slice(&table[offset(round, rank)..][..count]);
            }
            let of_rank = self.communicator.rank() * count;
            self.own.write(&self.stream, &sums[of_rank..of_rank + count])?;
            if round % 2 == 0 {
                let buffers = (*self.own, *self.all, *self.out);
                queue(self.communicator, self.kernels, &self.stream, buffers)?;
            } else {
                self.graph.launch(&self.stream)?;
            }
            let (all, out) = (self.all.read(&self.stream)?, self.out.read(&self.stream)?);
            let same_bytes = all.iter().zip(&sums).all(|(got, given)| got.to_bits() == given.to_bits());
            leaves::join(&mut sums.chunks_exact_mut(count).collect::<Vec<_>>());
            let is_right = |(got, sum): (&bf16, &f32)| got.to_bits() == bf16::from_f32(*sum).to_bits();
            differing += usize::from(!(same_bytes && out.iter().zip(&sums).all(is_right)));
        }
        Ok(Exchanged { bytes: count * size_of::<f32>(), rounds, differing, micros: self.time()? })
    }

    /// Mean time of a replay, in microseconds.
    fn time(&self) -> Result<f64, CudaError> {
        self.graph.launch(&self.stream)?;
        self.started.record(&self.stream)?;
        for _ in 0..TIMED {
            self.graph.launch(&self.stream)?;
        }
        self.ended.record(&self.stream)?;
        self.ended.synchronize()?;
        Ok(f64::from(self.ended.since(&self.started)?) * 1e3 / TIMED as f64)
    }
}

/// Where a rank's values of a round begin in the table.
fn offset(round: usize, rank: usize) -> usize {
    (round * 7919 + rank * 104_729) % TABLE
}

fn queue<T: Activation>(
    communicator: &Communicator,
    kernels: &RankKernels<T>,
    stream: &Stream,
    (own, all, out): (DeviceSlice<f32>, DeviceSlice<f32>, DeviceSlice<T>),
) -> Result<(), CudaError> {
    communicator.gather(stream, own, all)?;
    let (ranks, rows) = (communicator.ranks(), own.len() / OUTPUTS);
    let bias = DeviceSlice::NONE;
    kernels.join_sums(stream, JoinSums { out, sums: all, bias, ranks, rows, n: OUTPUTS })
}
