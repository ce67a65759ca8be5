//! The check at the start: peers are used only if every bit is right on these devices.

use half::bf16;

use super::agreement::{Budget, Reason, agree};
use super::{EMPTY, NoPeers, PeerOptions, Peers, Protocol};
use crate::collective::Ranks;
use crate::cpu::philox::philox4x32_10;
use crate::cuda::ops::norm::{AddNorm, Formula, Norm};
use crate::cuda::ops::reduce::{OwnSums, PeerReduce, ThenNorm};
use crate::cuda::{CudaError, DeviceBuffer, DeviceSlice, Kernels, Stream};
use crate::leaves;

/// Words that each rank writes to each other in the check of access.
const WORDS: usize = 64;
/// Random sums between two looks at the clock.
const BATCH: usize = 20;
/// Most values of a random sum.
const MOST_VALUES: usize = 1 << 14;
/// Most outputs of a row in it, and most launches in a row.
const MOST_OUTPUTS: usize = 1024;
const MOST_LAUNCHES: u32 = 3;
/// Values from which inputs are read at changing offsets.
const TABLE: usize = 1 << 16;
const KEY: [u32; 2] = [0x5ce1, 0x9ee7];
const EPS: f32 = 1e-5;

impl Peers {
    /// Writes to and reads from the memory of all other devices.
    pub(super) fn check_access(&self, ranks: &mut dyn Ranks) -> Result<(), NoPeers> {
        let written = self.write_to_all().map_err(|error| format!("cannot write to another GPU: {error}"));
        let stream = agree(ranks, written)?;
        let arrived = self.compare(&stream, self.rank, |from| (from, self.rank));
        agree(ranks, arrived)?;
        let others = || (0..self.ranks()).filter(|rank| *rank != self.rank);
        let read = others().try_for_each(|of| self.compare(&stream, of, |from| (from, of)));
        agree(ranks, read)?;
        let words = self.own_words(self.rank);
        let cleared = words.fill_words(&stream, EMPTY).and_then(|()| stream.synchronize());
        agree(ranks, cleared.map_err(|error| format!("cannot clear its inbox: {error}")))
    }

    fn write_to_all(&self) -> Result<Stream, CudaError> {
        let stream = Stream::new(&self.device)?;
        for to in (0..self.ranks()).filter(|rank| *rank != self.rank) {
            let place = self.inbox_of(to).slice(self.rank * WORDS..(self.rank + 1) * WORDS);
            place.write(&stream, &pattern(self.rank, to))?;
        }
        Ok(stream)
    }

    fn own_words(&self, of: usize) -> DeviceSlice<u32> {
        self.inbox_of(of).slice(0..self.ranks() * WORDS)
    }

    /// Compares what all ranks but its owner have written to the inbox of `of`.
    fn compare(
        &self,
        stream: &Stream,
        of: usize,
        pair: impl Fn(usize) -> (usize, usize),
    ) -> Result<(), Reason> {
        let words = self.own_words(of).read(stream);
        let words = words.map_err(|error| format!("cannot read the inbox of rank {of}: {error}"))?;
        for (from, words) in words.chunks_exact(WORDS).enumerate().filter(|(from, _)| *from != of) {
            let (writer, owner) = pair(from);
            if words != pattern(writer, owner) {
                let what = format!("finds other words in the inbox of rank {of} than rank {from} wrote");
                return Err(Reason::wrong(what));
            }
        }
        Ok(())
    }

    /// Compares random sums with the host's tree, and the norms that follow with the norm's kernel. Returns
    /// how many.
    pub(super) fn check_sums(
        &self,
        kernels: &Kernels,
        ranks: &mut dyn Ranks,
        options: &PeerOptions,
    ) -> Result<usize, NoPeers> {
        let sums = Sums::new(self, kernels).map_err(|error| format!("cannot check sums: {error}"));
        let sums = agree(ranks, sums)?;
        let (budget, mut done) = (Budget::new(options.checks_within), 0);
        while done < options.checks && budget.is_left(ranks)? {
            let batch = done..options.checks.min(done + BATCH);
            done = batch.end;
            let checked = batch.into_iter().try_for_each(|round| sums.check(round));
            agree(
                ranks,
                checked.map_err(|error| Reason::wrong(format!("does not sum as it should: {error}"))),
            )?;
        }
        Ok(done)
    }
}

fn pattern(from: usize, to: usize) -> [u32; WORDS] {
    std::array::from_fn(|i| philox4x32_10([i as u32, from as u32, to as u32, 1], KEY)[0])
}

/// Buffers of random sums.
struct Sums<'a> {
    peers: &'a Peers,
    reduce: PeerReduce<bf16>,
    norm: AddNorm<bf16>,
    stream: Stream,
    table: Vec<f32>,
    own: DeviceBuffer<f32>,
    delta: DeviceBuffer<bf16>,
    bias: DeviceBuffer<bf16>,
    weight: DeviceBuffer<f32>,
    out: DeviceBuffer<bf16>,
    residual: DeviceBuffer<f32>,
    expected: DeviceBuffer<bf16>,
    expected_residual: DeviceBuffer<f32>,
}

impl<'a> Sums<'a> {
    fn new(peers: &'a Peers, kernels: &Kernels) -> Result<Self, CudaError> {
        let device = &peers.device;
        // Values of both signs and of magnitudes from 2^-12 to 2^12: another order gives other bits.
        let value = |i: usize| {
            let [mantissa, exponent, ..] = philox4x32_10([i as u32, 0, 0, 2], KEY);
            f32::from_bits((mantissa & 0x807f_ffff) | ((127 - 12 + exponent % 24) << 23))
        };
        let table: Vec<f32> = (0..TABLE + MOST_VALUES).map(value).collect();
        let stream = Stream::new(device)?;
        let rounded: Vec<bf16> = table[..MOST_OUTPUTS].iter().copied().map(bf16::from_f32).collect();
        Ok(Self {
            peers,
            reduce: PeerReduce::new(kernels)?,
            norm: AddNorm::new(kernels, Formula::Rms)?,
            own: DeviceBuffer::new(device, MOST_VALUES)?,
            delta: DeviceBuffer::new(device, MOST_VALUES)?,
            bias: DeviceBuffer::from_slice(device, &stream, &rounded)?,
            weight: DeviceBuffer::from_slice(device, &stream, &table[7..7 + MOST_OUTPUTS])?,
            out: DeviceBuffer::new(device, MOST_VALUES)?,
            residual: DeviceBuffer::new(device, MOST_VALUES)?,
            expected: DeviceBuffer::new(device, MOST_VALUES)?,
            expected_residual: DeviceBuffer::new(device, MOST_VALUES)?,
            stream,
            table,
        })
    }

    fn values(&self, round: usize, rank: usize, count: usize) -> &[f32] {
        &self.table[(round * 7919 + rank * 10_007) % TABLE..][..count]
    }

    /// One random sum.
    fn check(&self, round: usize) -> Result<(), CudaError> {
        let [width, height, launches, form] = philox4x32_10([round as u32, 0, 0, 3], KEY);
        let n = 4 * (1 + width as usize % (MOST_OUTPUTS / 4));
        let protocol = if form & 1 == 0 { Protocol::Small } else { Protocol::Large };
        let Some(most) = (1..=MOST_VALUES / n).rev().find(|rows| self.peers.fits(protocol, *rows, n)) else {
            return Ok(());
        };
        let rows = 1 + height as usize % most;
        let (count, ranks) = (rows * n, self.peers.ranks());
        let has_bias = form & 2 == 0;
        let mut sums: Vec<f32> =
            (0..ranks).flat_map(|rank| self.values(round, rank, count)).copied().collect();
        self.own.write(&self.stream, &sums[self.peers.rank * count..][..count])?;
        leaves::join(&mut sums.chunks_exact_mut(count).collect::<Vec<_>>());
        let bias = |i: usize| if has_bias { bf16::from_f32(self.table[i % n]).to_f32() } else { 0.0 };
        let deltas: Vec<bf16> =
            sums[..count].iter().enumerate().map(|(i, sum)| bf16::from_f32(sum + bias(i))).collect();
        let own = OwnSums {
            sums: self.own.slice(0..count),
            bias: if has_bias { self.bias.slice(0..n) } else { DeviceSlice::NONE },
            rows,
            n,
        };
        for _ in 0..=launches % MOST_LAUNCHES {
            self.reduce.sum(&self.stream, self.peers, protocol, own, self.out.slice(0..count))?;
        }
        let bits = |values: &[bf16]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let is_same = bits(&self.out.slice(0..count).read(&self.stream)?) == bits(&deltas);
        let is_right = is_same && self.check_norm(round, protocol, own, &deltas)?;
        self.peers.check()?;
        let what = || format!("{rows} rows of {n} by {protocol:?} differ in sum {round}");
        if is_right { Ok(()) } else { Err(CudaError::invalid(what())) }
    }

    fn check_norm(
        &self,
        round: usize,
        protocol: Protocol,
        own: OwnSums<bf16>,
        deltas: &[bf16],
    ) -> Result<bool, CudaError> {
        let OwnSums { rows, n, .. } = own;
        let (stream, count) = (&self.stream, rows * n);
        let before = self.values(round, self.peers.ranks(), count);
        let part = |of: &DeviceBuffer<f32>| of.slice(0..count);
        part(&self.residual).write(stream, before)?;
        part(&self.expected_residual).write(stream, before)?;
        self.delta.write(stream, deltas)?;
        let weight = self.weight.slice(0..n);
        let out = self.out.slice(0..count);
        let then = ThenNorm { out, residual: part(&self.residual), weight, eps: EPS };
        self.reduce.sum_and_normalise(stream, self.peers, protocol, own, then)?;
        self.norm.launch(
            stream,
            Norm {
                out: self.expected.slice(0..count),
                residual: part(&self.expected_residual),
                delta: self.delta.slice(0..count),
                beside: DeviceSlice::NONE,
                delta_weight: DeviceSlice::NONE,
                weight,
                bias: DeviceSlice::NONE,
                rows,
                hidden: n,
                eps: EPS,
            },
        )?;
        let bits = |values: Vec<bf16>| values.into_iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let wide = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let expected = self.expected.slice(0..count).read(stream)?;
        let residuals = (part(&self.residual).read(stream)?, part(&self.expected_residual).read(stream)?);
        Ok(bits(out.read(stream)?) == bits(expected) && wide(residuals.0) == wide(residuals.1))
    }
}
