//! Layers of every kind with random weights, and machines that run them.

use std::ops::Range;

use super::super::super::Cpu;
use super::super::super::simd::Isa;
use super::super::shape::Kind;
use super::super::*;

pub(super) const EPS: f32 = 1e-5;
/// Least and most time of a row of a state space.
pub(super) const LIMITS: (f32, f32) = (0.02, 2.5);

/// Kind, key heads, value heads, key and value dimensions, taps.
type Sizes = (Kind, usize, usize, usize, usize, usize);

const SIZES: [Sizes; 10] = [
    (Kind::Delta, 2, 4, 16, 32, 4),
    (Kind::Delta, 1, 4, 12, 48, 3),
    (Kind::Delta, 3, 3, 8, 16, 2),
    (Kind::Delta, 2, 2, 20, 65, 4),
    (Kind::Delta, 1, 2, 128, 128, 4),
    (Kind::KeyedDelta, 3, 3, 16, 48, 4),
    (Kind::KeyedDelta, 2, 2, 8, 16, 2),
    (Kind::StateSpace, 2, 8, 16, 16, 4),
    (Kind::StateSpace, 1, 3, 24, 50, 3),
    (Kind::Convolution, 0, 1, 0, 300, 3),
];

pub(super) fn shape_of((kind, key_heads, value_heads, key_dim, value_dim, taps): Sizes) -> StateShape {
    StateShape { kind, key_heads, value_heads, key_dim, value_dim, taps }
}

/// All shapes to test.
pub(super) fn shapes() -> impl Iterator<Item = StateShape> {
    SIZES.into_iter().map(shape_of)
}

/// A layer's weights, of all kinds.
#[derive(Clone)]
pub(super) struct TestLayer {
    pub(super) shape: StateShape,
    pub(super) taps: Vec<f32>,
    pub(super) bias: Vec<f32>,
    pub(super) decay_rate: Vec<f32>,
    pub(super) decay_bias: Vec<f32>,
    pub(super) skip: Vec<f32>,
    /// Scales of the normalisation.
    pub(super) norm: Vec<f32>,
}

/// Values within ±`size`, the same for the same seed.
fn values(count: usize, size: f32, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / 8_388_608.0 - 1.0) * size
    };
    (0..count).map(|_| next()).collect()
}

impl TestLayer {
    pub(super) fn new(shape: StateShape) -> Self {
        let is_space = shape.kind == Kind::StateSpace;
        let has_bias = is_space || shape.kind == Kind::Convolution;
        let heads = shape.value_heads;
        Self {
            shape,
            taps: values(shape.channels() * shape.taps, 0.8, 1),
            bias: values(if has_bias { shape.channels() } else { 0 }, 0.5, 6),
            decay_rate: values(heads, 1.0, 2).into_iter().map(f32::exp).collect(),
            decay_bias: values(heads * if is_keyed(&shape) { shape.key_dim } else { 1 }, 2.0, 3),
            skip: values(if is_space { heads } else { 0 }, 1.0, 7),
            norm: values(if is_space { shape.values() } else { shape.value_dim }, 1.0, 4),
        }
    }

    /// Values that are normalised together.
    pub(super) fn norm_width(&self) -> usize {
        let heads = if self.shape.kind == Kind::StateSpace { self.shape.group() } else { 1 };
        heads * self.shape.value_dim
    }

    /// Projected rows of a sequence.
    pub(super) fn rows(&self, count: usize, seed: u64) -> Vec<f32> {
        values(count * self.shape.width(), 2.0, seed)
    }

    /// The weights of one of several ranks, and the parts of a row that it has, in order.
    pub(super) fn rank(&self, rank: usize, ranks: usize) -> (Self, Vec<Range<usize>>) {
        let shape = self.shape;
        let part = |start: usize, len: usize| start + len / ranks * rank..start + len / ranks * (rank + 1);
        let keys = shape.key_heads * shape.key_dim;
        let (channels, values, heads) = (shape.channels(), shape.values(), shape.value_heads);
        let channel_parts = match shape.kind {
            Kind::StateSpace => vec![part(0, values), part(values, keys), part(values + keys, keys)],
            _ => vec![part(0, keys), part(keys, keys), part(2 * keys, values)],
        };
        let mut parts: Vec<Range<usize>> = channel_parts
            .iter()
            .map(|range| range.start + shape.first_channel()..range.end + shape.first_channel())
            .collect();
        let end = channels + values;
        match shape.kind {
            Kind::Delta => parts.extend([part(channels, values), part(end, heads), part(end + heads, heads)]),
            Kind::KeyedDelta => {
                let decays = heads * shape.key_dim;
                parts.extend([part(channels, values), part(end, heads), part(end + heads, decays)]);
            }
            Kind::StateSpace => {
                parts.insert(0, part(0, values));
                parts.push(part(end, heads));
            }
            Kind::Convolution => parts = (0..3).map(|i| part(i * values, values)).collect(),
        }
        let of_channels = |all: &[f32], per: usize| -> Vec<f32> {
            let all = |range: &Range<usize>| all[range.start * per..range.end * per].to_vec();
            channel_parts.iter().flat_map(all).collect()
        };
        let share = |all: &[f32]| all[part(0, all.len())].to_vec();
        let mut of_rank =
            StateShape { key_heads: shape.key_heads / ranks, value_heads: heads / ranks, ..shape };
        if shape.kind == Kind::Convolution {
            of_rank = StateShape { value_dim: values / ranks, ..shape };
        }
        let layer = Self {
            shape: of_rank,
            taps: of_channels(&self.taps, shape.taps),
            bias: if self.bias.is_empty() { Vec::new() } else { of_channels(&self.bias, 1) },
            decay_rate: share(&self.decay_rate),
            decay_bias: share(&self.decay_bias),
            skip: share(&self.skip),
            norm: if shape.kind == Kind::StateSpace { share(&self.norm) } else { self.norm.clone() },
        };
        (layer, parts)
    }
}

pub(super) fn is_keyed(shape: &StateShape) -> bool {
    shape.kind == Kind::KeyedDelta
}

/// Rows of one sequence for a step.
#[derive(Clone)]
pub(super) struct Part<'a> {
    pub(super) slot: u32,
    pub(super) position: usize,
    pub(super) rows: &'a [f32],
    pub(super) drafts: usize,
    /// Positions to save, and where.
    pub(super) saves: &'a [(u32, u32)],
}

/// A cache and what runs a layer on it.
pub(super) struct Machine {
    pub(super) layer: TestLayer,
    pub(super) cpu: Cpu,
    pub(super) cache: StateCache,
    scratch: Scratch,
}

/// Slots of a machine's cache.
const SLOTS: usize = 7;

impl Machine {
    pub(super) fn new(layer: &TestLayer, threads: usize, isa: Isa) -> Self {
        let cache = StateCache::new(layer.shape, 2, SLOTS).unwrap();
        Self { layer: layer.clone(), cpu: Cpu::with_isa(threads, isa), cache, scratch: Scratch::default() }
    }

    /// Runs layer 1 of a step; returns the bits of each part's outputs.
    pub(super) fn step(&mut self, parts: &[Part<'_>]) -> Vec<Vec<u32>> {
        let (width, values) = (self.layer.shape.width(), self.layer.shape.values());
        let (mut projected, mut sequences) = (Vec::new(), Vec::new());
        for Part { slot, position, rows, drafts, saves } in parts.iter().cloned() {
            let start = projected.len() / width;
            projected.extend_from_slice(rows);
            let rows = start..projected.len() / width;
            let saves = saves.iter().map(|&(position, slot)| StateSave { position, slot }).collect();
            sequences.push(StatefulRows { rows, slot, position: position as u32, drafts, saves });
        }
        let mut out = vec![f32::NAN; projected.len() / width * values];
        self.call(&projected, &sequences, &mut out);
        let bits = |s: &StatefulRows| {
            out[s.rows.start * values..s.rows.end * values].iter().map(|value| value.to_bits()).collect()
        };
        sequences.iter().map(bits).collect()
    }

    fn call(&mut self, projected: &[f32], sequences: &[StatefulRows], out: &mut [f32]) {
        let Self { layer, cpu, cache, scratch } = self;
        let layer = &*layer;
        let TestLayer { taps, bias, decay_rate, decay_bias, skip, norm, .. } = layer;
        let delta = DeltaWeights { taps, decay_rate, decay_bias, norm, eps: EPS };
        match layer.shape.kind {
            Kind::Delta => gated_delta(cpu, cache, 1, &delta, projected, sequences, out, scratch),
            Kind::KeyedDelta => keyed_delta(cpu, cache, 1, &delta, projected, sequences, out, scratch),
            Kind::StateSpace => {
                let weights = StateSpaceWeights {
                    taps,
                    bias,
                    decay_rate,
                    time_bias: decay_bias,
                    time_limits: LIMITS,
                    skip,
                    norm,
                    norm_width: layer.norm_width(),
                    eps: EPS,
                };
                state_space(cpu, cache, 1, &weights, projected, sequences, out, scratch);
            }
            Kind::Convolution => {
                let weights = ConvolutionWeights { taps, bias };
                short_convolution(cpu, cache, 1, &weights, projected, sequences, out, scratch);
            }
        }
    }

    /// Runs rows of one sequence.
    pub(super) fn run(&mut self, slot: u32, position: usize, rows: &[f32], drafts: usize) -> Vec<u32> {
        self.step(&[Part { slot, position, rows, drafts, saves: &[] }]).remove(0)
    }
}

/// Outputs of a sequence in one step, on one thread with the best instructions.
pub(super) fn whole(layer: &TestLayer, rows: &[f32]) -> Vec<u32> {
    Machine::new(layer, 1, Isa::best()).run(0, 0, rows, 0)
}
