//! Sums through the memory of other processes' devices, on the emulated device: bits, faults and ends. Each
//! test starts this binary once per rank. tests/cuda/planted runs the tests whose name contains `the_bits_of`
//! with bugs in the kernel.

#![allow(clippy::unwrap_used)] // helpers of tests panic like tests

mod common;

use std::sync::Arc;
use std::time::Duration;

use half::{bf16, f16};
use skein_kernels::collective::Shared;
use skein_kernels::cpu::philox::philox4x32_10;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::norm::{AddNorm, Formula, Norm};
use skein_kernels::cuda::ops::reduce::{OwnSums, PeerReduce, ThenNorm};
use skein_kernels::cuda::peer::{NoPeers, PeerOptions, Protocol};
use skein_kernels::cuda::{CudaError, Device, DeviceBuffer, DeviceSlice, Graph, Kernels, Peers, Stream};
use skein_kernels::leaves;
use skein_sys::shared_memory::SharedMemory;

use common::now;

/// Settings of a rank in the environment: the job, rank, number of ranks, and descriptor of shared memory.
const TOLD: &str = "TEST_PEER_RANK";
/// Time limit of waits for working ranks, and of a test.
const TIMEOUT: Duration = Duration::from_secs(40);
const ENDS_WITHIN: Duration = Duration::from_secs(50);
/// Time limit of a launch's waits for a rank that works.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit of waits that never end.
const SHORT_TIMEOUT: Duration = Duration::from_millis(400);
/// Bytes of host memory for exchanges at the start.
const CAPACITY: usize = 4096;
const EPS: f32 = 1e-5;
/// Sizes in rows and outputs: one vector, more rows than resident blocks, more values than threads.
const SIZES: [(usize, usize); 5] = [(1, 4), (5, 64), (3, 388), (19, 128), (2, 4128)];

/// Output of each rank for `job`, with `variables` set.
fn run(job: &str, ranks: usize, variables: &[(&str, &str)]) -> Option<Vec<String>> {
    if !skein_cuda_emulation::load() {
        return None;
    }
    let memory = SharedMemory::create(Shared::bytes(ranks, CAPACITY)).unwrap();
    Some(common::said(ranks, ENDS_WITHIN, |rank, command| {
        command.env(TOLD, format!("{job} {rank} {ranks} {}", memory.descriptor()));
        command.env("EMU_DEVICES", "8").env("EMU_MEMORY", (64 << 20).to_string());
        command.envs(variables.iter().copied());
    }))
}

/// Checks that the output of every rank contains `words`.
fn all_say(job: &str, ranks: usize, variables: &[(&str, &str)], words: &str) {
    for said in run(job, ranks, variables).into_iter().flatten() {
        assert!(said.contains(words), "{job} on {ranks} ranks {variables:?}: {said:?} has no {words:?}");
    }
}

#[test]
#[ignore = "a rank of another test"]
fn a_rank() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let told: Vec<&str> = told.split(' ').collect();
    let (rank, ranks) = (told[1].parse().unwrap(), told[2].parse().unwrap());
    let memory = SharedMemory::inherited(told[3].parse().unwrap()).unwrap();
    assert!(skein_cuda_emulation::load());
    std::thread::spawn(|| {
        std::thread::sleep(ENDS_WITHIN);
        std::process::exit(3);
    });
    let shared = Shared::new(memory, 0, (rank, ranks), CAPACITY, TIMEOUT);
    let said = match work(told[0], shared, rank) {
        Ok(said) => said,
        Err(error) => error.to_string(),
    };
    println!("said: {said}");
    // Does not wait for hanging work.
    std::process::exit(0);
}

fn work(job: &str, mut shared: Shared, rank: usize) -> Result<String, CudaError> {
    let device = Device::open(rank as u32).map_err(|error| CudaError::invalid(error.to_string()))?;
    let is_short = matches!(job, "silent" | "dies" | "abort");
    device.limit_waits(if is_short { 4 * SHORT_TIMEOUT } else { TIMEOUT });
    let kernels = Kernels::load(&device)?;
    let options = PeerOptions {
        small_bytes: 40 << 10,
        large_bytes: 160 << 10,
        checks: match job {
            "open" => 1000,
            "few" => 40,
            _ => 0,
        },
        checks_within: TIMEOUT,
        timeout: if is_short { SHORT_TIMEOUT } else { LAUNCH_TIMEOUT },
    };
    let peers = match Peers::open(&device, &kernels, &mut shared, &options) {
        Ok(peers) => Arc::new(peers),
        Err(NoPeers::Lost(lost)) => return Err(CudaError::invalid(lost.to_string())),
        Err(unusable) => return Ok(unusable.to_string()),
    };
    let of_waits = Arc::clone(&peers);
    device.check_during_waits(Box::new(move || of_waits.check()));
    match job {
        "bits" | "dies" | "silent" => {
            for round in 0..8 {
                if job == "dies" && round == 3 && rank == 1 {
                    std::process::exit(0);
                }
                Rank::<bf16>::new(&device, &kernels, &peers)?.check_sizes(round)?;
                Rank::<f16>::new(&device, &kernels, &peers)?.check_sizes(round)?;
            }
        }
        "abort" if rank == 0 => {
            let aborts = Arc::clone(&peers);
            std::thread::spawn(move || {
                std::thread::sleep(SHORT_TIMEOUT / 4);
                aborts.abort();
            });
            let began = now();
            let it = Rank::<bf16>::new(&device, &kernels, &peers)?;
            let own = OwnSums { sums: *it.own, bias: DeviceSlice::NONE, rows: 1, n: 64 };
            for protocol in [Protocol::Small, Protocol::Large] {
                it.kernels.sum(&it.stream, &peers, protocol, own, *it.out)?;
            }
            it.stream.synchronize()?;
            let took = began.elapsed();
            return Ok(if took < SHORT_TIMEOUT { "done".into() } else { format!("took {took:?}") });
        }
        _ => {}
    }
    Ok(format!("done, {} checked", peers.checked()))
}

/// Values of both signs and of magnitudes from 2^-12 to 2^12: another order of addition gives other bits.
fn values(round: usize, rank: usize, count: usize) -> Vec<f32> {
    let value = |i: usize| {
        let [mantissa, exponent, ..] = philox4x32_10([i as u32, round as u32, rank as u32, 9], [1, 2]);
        f32::from_bits((mantissa & 0x807f_ffff) | ((127 - 12 + exponent % 24) << 23))
    };
    (0..count).map(value).collect()
}

struct Rank<T: Activation> {
    device: Arc<Device>,
    peers: Arc<Peers>,
    kernels: PeerReduce<T>,
    norm: AddNorm<T>,
    stream: Stream,
    own: DeviceBuffer<f32>,
    out: DeviceBuffer<T>,
    residual: DeviceBuffer<f32>,
    other_out: DeviceBuffer<T>,
    other_residual: DeviceBuffer<f32>,
    delta: DeviceBuffer<T>,
    bias: DeviceBuffer<T>,
    weight: DeviceBuffer<f32>,
}

impl<T: Activation> Rank<T> {
    fn new(device: &Arc<Device>, kernels: &Kernels, peers: &Arc<Peers>) -> Result<Self, CudaError> {
        let most = SIZES.iter().map(|(rows, n)| rows * n).max().unwrap_or(0);
        let stream = Stream::new(device)?;
        let bias: Vec<T> = values(100, 0, most).into_iter().map(T::from_f32).collect();
        Ok(Self {
            device: Arc::clone(device),
            peers: Arc::clone(peers),
            kernels: PeerReduce::new(kernels)?,
            norm: AddNorm::new(kernels, Formula::Rms)?,
            own: DeviceBuffer::new(device, most)?,
            out: DeviceBuffer::new(device, most)?,
            residual: DeviceBuffer::new(device, most)?,
            other_out: DeviceBuffer::new(device, most)?,
            other_residual: DeviceBuffer::new(device, most)?,
            delta: DeviceBuffer::new(device, most)?,
            bias: DeviceBuffer::from_slice(device, &stream, &bias)?,
            weight: DeviceBuffer::from_slice(device, &stream, &values(101, 0, most))?,
            stream,
        })
    }

    /// All sizes by both protocols, queued in even rounds, replayed as graphs in odd ones.
    fn check_sizes(&self, round: usize) -> Result<(), CudaError> {
        for (number, &(rows, n)) in SIZES.iter().enumerate() {
            for protocol in [Protocol::Small, Protocol::Large] {
                let bias = if (round + number).is_multiple_of(3) {
                    DeviceSlice::NONE
                } else {
                    self.bias.slice(0..n)
                };
                self.check(round * 10 + number, protocol, (rows, n), bias)?;
            }
        }
        Ok(())
    }

    fn check(
        &self,
        seed: usize,
        protocol: Protocol,
        (rows, n): (usize, usize),
        bias: DeviceSlice<T>,
    ) -> Result<(), CudaError> {
        let (count, ranks, rank) = (rows * n, self.peers.ranks(), self.peers.rank());
        let mut sums: Vec<Vec<f32>> = (0..ranks).map(|rank| values(seed, rank, count)).collect();
        self.own.write(&self.stream, &sums[rank])?;
        leaves::join(&mut sums.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        let of_bias = if bias.is_empty() { vec![0.0; n] } else { values(100, 0, n) };
        let rounded = |i: usize| T::from_f32(sums[0][i] + T::from_f32(of_bias[i % n]).to_f32());
        let deltas: Vec<T> = (0..count).map(rounded).collect();
        let own = OwnSums { sums: self.own.slice(0..count), bias, rows, n };
        let (out, residual) = (self.out.slice(0..count), self.residual.slice(0..count));
        let bits = |values: Vec<T>| values.into_iter().map(T::to_bits).collect::<Vec<_>>();

        self.queue(seed, |stream| self.kernels.sum(stream, &self.peers, protocol, own, out))?;
        let got = bits(out.read(&self.stream)?);
        let what = format!("{rows} rows of {n} by {protocol:?} on {ranks} ranks, seed {seed}");
        if let Some(at) = got.iter().zip(bits(deltas.clone())).position(|(got, wanted)| *got != wanted) {
            return Err(CudaError::invalid(format!("sum {at} of {what} differs")));
        }

        let before = values(seed, 50, count);
        let (other_out, other) = (self.other_out.slice(0..count), self.other_residual.slice(0..count));
        for of in [residual, other] {
            of.write(&self.stream, &before)?;
        }
        self.delta.write(&self.stream, &deltas)?;
        let weight = self.weight.slice(0..n);
        let then = ThenNorm { out, residual, weight, eps: EPS };
        self.queue(seed, |stream| self.kernels.sum_and_normalise(stream, &self.peers, protocol, own, then))?;
        let norm = Norm {
            out: other_out,
            residual: other,
            delta: self.delta.slice(0..count),
            beside: DeviceSlice::NONE,
            delta_weight: DeviceSlice::NONE,
            weight,
            bias: DeviceSlice::NONE,
            rows,
            hidden: n,
            eps: EPS,
        };
        self.norm.launch(&self.stream, norm)?;
        let is_same = bits(out.read(&self.stream)?) == bits(other_out.read(&self.stream)?)
            && residual.read(&self.stream)? == other.read(&self.stream)?;
        if is_same { Ok(()) } else { Err(CudaError::invalid(format!("the norm of {what} differs"))) }
    }

    /// Runs `work` once: queued, or captured and replayed.
    fn queue(&self, seed: usize, work: impl Fn(&Stream) -> Result<(), CudaError>) -> Result<(), CudaError> {
        if (seed / 10).is_multiple_of(2) {
            return work(&self.stream);
        }
        let capturing = Stream::new(&self.device)?;
        let graph = Graph::capture(&capturing, || work(&capturing))?;
        graph.launch(&self.stream)?;
        self.stream.synchronize()
    }
}

#[test]
fn sums_have_the_bits_of_the_hosts_tree() {
    for ranks in [2, 4, 8] {
        all_say("bits", ranks, &[], "done");
    }
}

#[test]
fn sums_have_the_same_bits_in_any_order_of_threads_and_stores() {
    for (ranks, seed) in [(2, "1"), (4, "2"), (2, "3")] {
        all_say("bits", ranks, &[("EMU_SEED", seed)], "done");
    }
}

#[test]
fn a_start_compares_a_thousand_sums() {
    all_say("open", 2, &[], "done, 1000 checked");
    all_say("few", 8, &[], "done");
}

#[test]
fn memory_that_is_not_reached_is_not_used_on_any_rank() {
    all_say(
        "few",
        4,
        &[("EMU_PEER", "none")],
        "rank 0 does not reach the memory of rank 1's GPU: the driver",
    );
    all_say(
        "few",
        4,
        &[("EMU_PEER", "wrong")],
        "rank 0 finds other words in the inbox of rank 0 than rank 1",
    );
    all_say("few", 3, &[], "rank 0 has no memory for an inbox: 3 ranks are no power of two up to 8");
}

#[test]
fn a_rank_that_sends_nothing_ends_the_others_in_time() {
    let silent = run("silent", 2, &[("EMU_PEER", "silent:1:5")]);
    let dead = run("dies", 4, &[]);
    for said in silent.iter().chain(&dead) {
        // Whoever waits longest may miss a rank that has given up.
        for (rank, said) in said.iter().enumerate().filter(|(rank, _)| *rank != 1) {
            assert!(said.contains("did not send its sums within 400ms"), "rank {rank}: {said}");
        }
        assert!(said[0].contains("rank 1 did not send") || said.len() > 2, "{said:?}");
    }
}

#[test]
fn an_abort_ends_a_wait() {
    let said = run("abort", 2, &[]);
    assert!(said.is_none_or(|said| said[0] == "done"));
}
