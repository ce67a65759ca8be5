//! Block maxima of the logits. One pass over the vocabulary computes them; after that, finding the best
//! tokens takes a look at a few blocks.

use super::super::simd::{Isa, Kernel, LANES, Simd};

/// Tokens per block: four cache lines of logits.
const BLOCK: usize = 64;

/// Block maxima of logits; the memory is reused between draws.
#[derive(Default)]
pub(super) struct Peaks {
    /// `[vocab / BLOCK]`, rounded up.
    maxima: Vec<f32>,
    /// Scratch: the maxima, partly sorted.
    sorted: Vec<f32>,
}

impl Peaks {
    /// Computes the block maxima of `logits`. Returns the highest logit, ignoring NaN; -∞ if there is none.
    pub(super) fn survey(&mut self, isa: Isa, logits: &[f32]) -> f32 {
        self.maxima.resize(logits.len().div_ceil(BLOCK), f32::NEG_INFINITY);
        isa.run(Maxima { logits, out: &mut self.maxima })
    }

    /// The first token with logit `highest`, which [`Peaks::survey`] returned for these `logits`.
    pub(super) fn first_of(&self, logits: &[f32], highest: f32) -> u32 {
        let block = self.maxima.iter().position(|max| *max == highest).unwrap_or(0);
        let from = (block * BLOCK).min(logits.len());
        logits[from..].iter().position(|logit| *logit == highest).map_or(0, |at| from + at) as u32
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.maxima.len()
    }

    /// A logit that at least `count` tokens reach; -∞ if there are fewer than `count` blocks.
    pub(super) fn floor(&mut self, count: usize) -> f32 {
        if count == 0 || count > self.maxima.len() {
            return f32::NEG_INFINITY;
        }
        self.sorted.clear();
        self.sorted.extend_from_slice(&self.maxima);
        let (_, floor, _) = self.sorted.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
        *floor
    }

    /// Sets `tokens` to all tokens with a logit of at least `floor`, ascending.
    pub(super) fn reaching(&self, logits: &[f32], floor: f32, tokens: &mut Vec<u32>) {
        tokens.clear();
        for (block, max) in self.maxima.iter().enumerate() {
            if *max >= floor {
                let first = block * BLOCK;
                let part = &logits[first..logits.len().min(first + BLOCK)];
                let reach = |(at, logit): (usize, &f32)| (*logit >= floor).then_some((first + at) as u32);
                tokens.extend(part.iter().enumerate().filter_map(reach));
            }
        }
    }
}

struct Maxima<'a> {
    logits: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Maxima<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f32 {
        let mut highest = f32::NEG_INFINITY;
        for (out, block) in self.out.iter_mut().zip(self.logits.chunks(BLOCK)) {
            let mut lanes = [f32::NEG_INFINITY; LANES];
            let (whole, rest) = block.as_chunks::<LANES>();
            for chunk in whole {
                for i in 0..LANES {
                    lanes[i] = higher(chunk[i], lanes[i]);
                }
            }
            for (lane, value) in lanes.iter_mut().zip(rest) {
                *lane = higher(*value, *lane);
            }
            for half in [8, 4, 2, 1] {
                for i in 0..half {
                    lanes[i] = higher(lanes[i + half], lanes[i]);
                }
            }
            *out = lanes[0];
            highest = higher(lanes[0], highest);
        }
        highest
    }
}

/// Maximum that returns `than` if `value` is NaN. One instruction, unlike `f32::max`.
#[inline(always)]
fn higher(value: f32, than: f32) -> f32 {
    if value > than { value } else { than }
}
