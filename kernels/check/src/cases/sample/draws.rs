//! Random batches of samples, and each sample in the CPU's form.

use super::super::case::Bench;
use super::BatchShape;
use skein_kernels::cpu::sample::{Controls, Sampling};
use skein_kernels::cuda::ops::sample::{NONE, SampleParams};

/// A batch on the host.
pub(super) struct Draws {
    vocab: usize,
    stride: usize,
    pub(super) logits: Vec<f32>,
    pub(super) samples: Vec<SampleParams>,
    pub(super) bias_tokens: Vec<u32>,
    pub(super) bias_values: Vec<f32>,
    pub(super) forbidden: Vec<u32>,
    pub(super) history: Vec<u32>,
    pub(super) masks: Vec<u32>,
    pub(super) previous: Vec<u32>,
}

impl Draws {
    /// `count` samples over `rows` rows: every kind of logits, every parameter on and off.
    pub(super) fn random(bench: &mut Bench, shape: BatchShape) -> Self {
        let (vocab, stride, rows, count, _) = shape;
        let logits = (0..rows).flat_map(|_| row(bench, vocab, stride)).collect();
        let mut draws = Self::over(bench, logits, shape);
        for _ in 0..count {
            let sample = draws.sample(bench, rows);
            draws.samples.push(sample);
        }
        draws
    }

    /// Rounded logits, so that many tokens tie at the cut-off, and others above it are all kept. Top-k from 2
    /// to 50, alone and with top-p, and top-p alone.
    pub(super) fn tied(bench: &mut Bench, shape: BatchShape) -> Self {
        let (vocab, stride, rows, count, _) = shape;
        let logits = (0..rows).flat_map(|_| tied_row(bench, vocab, stride)).collect();
        let mut draws = Self::over(bench, logits, shape);
        for i in 0..count {
            let unit = bench.bits() as f32 / u32::MAX as f32;
            draws.samples.push(SampleParams {
                controls: Controls {
                    temperature: [1.0, 0.8, 4.0][bench.below(3) as usize],
                    top_k: if i % 4 == 3 { 0 } else { 2 + bench.below(49) },
                    top_p: if i % 2 == 0 { 1.0 } else { [unit, 0.5, 0.9][bench.below(3) as usize] },
                    ..Controls::GREEDY
                },
                seed_low: bench.bits(),
                seed_high: bench.bits(),
                position: bench.below(1 << 20),
                ..SampleParams::greedy(bench.below(rows as u32))
            });
        }
        draws
    }

    /// A batch without samples.
    fn over(bench: &mut Bench, logits: Vec<f32>, (vocab, stride, ..): BatchShape) -> Self {
        let masks = (0..4 * vocab.div_ceil(32)).map(|i| mask_word(bench, i / vocab.div_ceil(32))).collect();
        let previous = (0..8).map(|_| bench.below(vocab as u32)).collect();
        Self {
            vocab,
            stride,
            logits,
            samples: Vec::new(),
            // Device memory is never empty.
            bias_tokens: vec![0],
            bias_values: vec![0.0],
            forbidden: vec![0],
            history: vec![0],
            masks,
            previous,
        }
    }

    fn sample(&mut self, bench: &mut Bench, rows: usize) -> SampleParams {
        let vocab = self.vocab as u32;
        let unit = bench.bits() as f32 / u32::MAX as f32;
        let temperatures = [0.0, 1.0, 0.7, unit * 2.0, 1e-6, 1e-30, f32::MIN_POSITIVE / 8.0, 100.0];
        let top_ps = [1.0, 1.0, 0.9, 0.5, unit, 0.999, 1e-9, 0.0];
        let top_ks = [0, 0, 1, 5, 50, bench.below(vocab) + 1, vocab, vocab + 5];
        let min_ps = [0.0, 0.0, 0.0, 0.05, unit, 1.0, 1.5, 1e-20];
        let mut sample = SampleParams {
            controls: Controls {
                temperature: temperatures[bench.below(8) as usize],
                top_p: top_ps[bench.below(8) as usize],
                top_k: top_ks[bench.below(8) as usize],
                min_p: min_ps[bench.below(8) as usize],
                ..Controls::GREEDY
            },
            seed_low: bench.bits(),
            seed_high: bench.bits(),
            sample_index: bench.below(4),
            position: bench.below(1 << 20),
            ..SampleParams::greedy(bench.below(rows as u32))
        };
        if bench.below(3) == 0 {
            self.add_bias(bench, &mut sample);
        }
        if bench.below(3) == 0 {
            self.add_forbidden(bench, &mut sample);
        }
        if bench.below(3) == 0 {
            self.add_history(bench, &mut sample);
        }
        if bench.below(4) == 0 {
            sample.mask = bench.below(4);
        }
        sample
    }

    fn add_bias(&mut self, bench: &mut Bench, sample: &mut SampleParams) {
        sample.bias_start = self.bias_tokens.len() as u32;
        // Distinct tokens, some of them outside the vocabulary.
        let (first, step) = (bench.below(self.vocab as u32), 1 + bench.below(97));
        for i in 0..1 + bench.below(40) {
            self.bias_tokens.push(first + i * step);
            self.bias_values.push((bench.bits() as f32 / u32::MAX as f32 - 0.5) * 20.0);
        }
        sample.bias_len = self.bias_tokens.len() as u32 - sample.bias_start;
    }

    fn add_forbidden(&mut self, bench: &mut Bench, sample: &mut SampleParams) {
        sample.forbidden_start = self.forbidden.len() as u32;
        match bench.below(8) {
            0 => self.forbidden.extend(0..self.vocab as u32),
            _ => {
                let count = 1 + bench.below(30);
                let tokens = (0..count).map(|_| bench.below(self.vocab as u32 + 3));
                self.forbidden.extend(tokens);
            }
        }
        sample.forbidden_len = self.forbidden.len() as u32 - sample.forbidden_start;
    }

    fn add_history(&mut self, bench: &mut Bench, sample: &mut SampleParams) {
        let unit = |bench: &mut Bench| bench.bits() as f32 / u32::MAX as f32;
        sample.history_start = self.history.len() as u32;
        sample.history_len = bench.below(700);
        sample.prompt_len = bench.below(sample.history_len + 1);
        let range = 1 + bench.below(self.vocab as u32 + 2);
        self.history.extend((0..sample.history_len).map(|_| bench.below(range)));
        sample.controls.repetition_penalty = [1.0, 1.3, 0.5 + unit(bench), 1e-38][bench.below(4) as usize];
        sample.controls.presence_penalty = [0.0, 4.0 * unit(bench) - 2.0][bench.below(2) as usize];
        sample.controls.frequency_penalty = [0.0, 4.0 * unit(bench) - 2.0][bench.below(2) as usize];
        sample.carried = [NONE, bench.below(8)][bench.below(2) as usize];
    }

    /// The same samples in reverse order with other seeds and positions.
    pub(super) fn reseed(&mut self, bench: &mut Bench) {
        self.samples.reverse();
        for sample in &mut self.samples {
            (sample.seed_low, sample.position) = (bench.bits(), bench.bits() >> 8);
        }
    }

    /// The logits that sample `i` reads.
    pub(super) fn row(&self, i: usize) -> &[f32] {
        &self.logits[self.samples[i].row as usize * self.stride..][..self.vocab]
    }

    /// Calls `then` with sample `i` in the CPU's form.
    pub(super) fn with_sampling<R>(&self, i: usize, then: impl FnOnce(&Sampling<'_>) -> R) -> R {
        let sample = self.samples[i];
        let part = |start: u32, len: u32| start as usize..(start + len) as usize;
        let bias = part(sample.bias_start, sample.bias_len);
        let logit_bias: Vec<(u32, f32)> = self.bias_tokens[bias.clone()]
            .iter()
            .copied()
            .zip(self.bias_values[bias].iter().copied())
            .collect();
        let mut forbidden = self.forbidden[part(sample.forbidden_start, sample.forbidden_len)].to_vec();
        if sample.mask != NONE {
            let mask = &self.masks[sample.mask as usize * self.vocab.div_ceil(32)..];
            let is_allowed = |token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
            forbidden.extend((0..self.vocab as u32).filter(|token| !is_allowed(*token)));
        }
        let mut history = self.history[part(sample.history_start, sample.history_len)].to_vec();
        if sample.carried != NONE {
            history.push(self.previous[sample.carried as usize]);
        }
        then(&Sampling {
            controls: sample.controls,
            logit_bias: &logit_bias,
            allowed: &[],
            bad_words: &[],
            forbidden: &forbidden,
            history: &history,
            prompt_len: sample.prompt_len as usize,
            seed: u64::from(sample.seed_high) << 32 | u64::from(sample.seed_low),
            sample_index: sample.sample_index,
            position: sample.position,
        })
    }
}

/// Masks that allow most, half, few and none of the tokens.
fn mask_word(bench: &mut Bench, mask: usize) -> u32 {
    let (a, b, c) = (bench.bits(), bench.bits(), bench.bits());
    [a | b | c, a, a & b & c & bench.bits(), 0][mask.min(3)]
}

/// One row of logits on a grid of 1, 1/2, 1/4 or 1/64, within a few temperatures of each other.
fn tied_row(bench: &mut Bench, vocab: usize, stride: usize) -> Vec<f32> {
    let grid = [1.0, 2.0, 4.0, 64.0][bench.below(4) as usize];
    let mut logits: Vec<f32> =
        bench.normal(vocab).into_iter().map(|value| (value * grid).round() / grid).collect();
    logits.resize(stride, f32::NAN);
    logits
}

/// One row of logits of a random kind. The values between rows are NaN.
fn row(bench: &mut Bench, vocab: usize, stride: usize) -> Vec<f32> {
    let scale = [0.01, 1.0, 3.0, 10.0, 50.0][bench.below(5) as usize];
    let mut logits: Vec<f32> = bench.normal(vocab).into_iter().map(|value| value * scale).collect();
    let place = bench.below(vocab as u32) as usize;
    match bench.below(10) {
        // Many equal logits.
        0 | 8 => logits.iter_mut().for_each(|logit| *logit = (*logit * 2.0).round() / 2.0),
        1 => logits.fill(scale),
        // Zeros of both signs.
        2 => logits.iter_mut().for_each(|logit| *logit *= 0.0),
        // Tokens that are effectively excluded.
        3 => logits[place..].fill(-1e30),
        4 => logits.iter_mut().step_by(3).for_each(|logit| *logit = f32::NEG_INFINITY),
        // One dominant token.
        5 => logits[place] = 10.0 * scale,
        // Unusable values.
        6 => logits[place] = [f32::NAN, f32::INFINITY][bench.below(2) as usize],
        7 if bench.below(2) == 0 => logits.fill(f32::NEG_INFINITY),
        _ => {}
    }
    logits.resize(stride, f32::NAN);
    logits
}
