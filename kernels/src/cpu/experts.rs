//! Routing of rows to experts (Shazeer et al. 2017), and the sum of the experts' outputs.
//!
//! A row's choice depends only on its own logits, and its experts' outputs are added in the order of its
//! choice. A row's result therefore has the same bits in any batch.

use std::ops::Range;

use super::disjoint::DisjointMut;
use super::math::exp;
use super::simd::{Kernel, Simd};
use super::{Cpu, for_each_row_of};

/// Selection and weighting of a row's experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// Experts per row.
    pub per_token: usize,
    /// Function from logits to an expert's weight.
    pub score: Score,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub renormalises: bool,
    /// Least sum by which they are divided.
    pub floor: f32,
    /// What is added to the sum, if it has no least value.
    pub added: f32,
    /// Factor for the weights, applied last.
    pub scale: f32,
    /// Whether the weights multiply the experts' inputs instead of their outputs.
    pub weighs_inputs: bool,
    /// Restricts the selection to some groups of experts.
    pub groups: Option<Groups>,
}

/// Weight of an expert before division by a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// Softmax over the logits of all experts.
    Softmax,
    /// Sigmoid of the expert's logit (DeepSeek-AI 2024).
    Sigmoid,
}

/// Equal-sized groups of experts, of which each row uses some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups.
    pub count: usize,
    /// Groups from which a row's experts are chosen.
    pub kept: usize,
    /// A group ranks by the sum of this many best scores.
    pub by_best: usize,
}

impl Routing {
    /// Softmax over all experts, without groups.
    pub const fn softmax(per_token: usize, renormalises: bool) -> Self {
        Self {
            per_token,
            score: Score::Softmax,
            renormalises,
            floor: 0.0,
            added: 0.0,
            scale: 1.0,
            weighs_inputs: false,
            groups: None,
        }
    }
}

/// Experts of each row in a step, and rows of each expert. Reused between steps.
///
/// A pair is a row and one of its experts. Pairs are numbered by expert, then by row, so that the rows of an
/// expert are adjacent in its input and output.
#[derive(Debug, Default)]
pub struct Choices {
    per_token: usize,
    /// Chosen experts, `[rows, per_token]`, best first.
    experts: Vec<u32>,
    /// Weights of the chosen experts, `[rows, per_token]`.
    weights: Vec<f32>,
    /// Selection scores, `[rows, experts]`, if they differ from the logits.
    keys: Vec<f32>,
    /// Number of each pair of row and chosen expert, `[rows, per_token]`. Pairs are numbered by expert.
    numbers: Vec<u32>,
    /// Row of each pair, `[pairs]`.
    rows: Vec<u32>,
    /// Factor of each pair's input, `[pairs]`; empty if there are none.
    factors: Vec<f32>,
    /// First pair of each expert, `[experts + 1]`.
    starts: Vec<u32>,
}

impl Choices {
    /// Chooses experts for each row of `logits`, `[rows, experts]`. Ties go to the lower expert. `correction`
    /// is added to the scores for the selection only, not to the weights.
    ///
    /// # Panics
    /// If there are fewer experts than each row needs, or `logits` are not whole rows.
    pub fn route(
        &mut self,
        cpu: &mut Cpu,
        logits: &[f32],
        experts: usize,
        routing: Routing,
        correction: Option<&[f32]>,
    ) {
        let per_token = routing.per_token;
        assert!(logits.len().is_multiple_of(experts), "logits are [rows, experts]");
        assert!((1..=experts).contains(&per_token), "{per_token} of {experts} experts are chosen");
        let rows = logits.len() / experts;
        self.per_token = per_token;
        self.experts.resize(rows * per_token, 0);
        self.weights.resize(rows * per_token, 0.0);
        // Without keys, sorts by logits: they have the order of the scores, without ties from rounding.
        let has_keys = correction.is_some() || routing.groups.is_some();
        self.keys.resize(if has_keys { logits.len() } else { 0 }, 0.0);
        let (chosen, weights) = (DisjointMut::new(&mut self.experts), DisjointMut::new(&mut self.weights));
        let keys = DisjointMut::new(&mut self.keys);
        for_each_row_of(cpu, rows, experts, |row, _| {
            // SAFETY: each row is in one task.
            let (chosen, weights) = unsafe {
                (chosen.part(row * per_token, per_token), weights.part(row * per_token, per_token))
            };
            let logits = &logits[row * experts..][..experts];
            if has_keys {
                // SAFETY: each row is in one task.
                let keys = unsafe { keys.part(row * experts, experts) };
                rank(logits, routing, correction, keys);
                choose(keys, chosen);
            } else {
                choose(logits, chosen);
            }
            weigh(logits, chosen, routing, weights);
        });
        self.sort(experts);
        self.factors.clear();
        if routing.weighs_inputs {
            self.factors.resize(self.weights.len(), 1.0);
            for (number, weight) in self.numbers.iter().zip(&mut self.weights) {
                self.factors[*number as usize] = std::mem::replace(weight, 1.0);
            }
        }
    }

    /// Multiplies the weight of each chosen expert by its factor in `scales`, `[experts]`.
    pub fn scale(&mut self, scales: &[f32]) {
        for (weight, expert) in self.weights.iter_mut().zip(&self.experts) {
            *weight *= scales[*expert as usize];
        }
    }

    /// Numbers the pairs by expert.
    fn sort(&mut self, experts: usize) {
        self.starts.clear();
        self.starts.resize(experts + 1, 0);
        self.experts.iter().for_each(|expert| self.starts[*expert as usize + 1] += 1);
        for expert in 0..experts {
            self.starts[expert + 1] += self.starts[expert];
        }
        self.numbers.resize(self.experts.len(), 0);
        self.rows.resize(self.experts.len(), 0);
        for (pair, expert) in self.experts.iter().enumerate() {
            let next = &mut self.starts[*expert as usize];
            self.numbers[pair] = *next;
            self.rows[*next as usize] = (pair / self.per_token) as u32;
            *next += 1;
        }
        // Each start has moved to the next expert's start.
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }

    /// Number of pairs: rows times experts per row.
    pub fn pairs(&self) -> usize {
        self.rows.len()
    }

    /// Experts chosen by at least one row, ascending, with their pairs.
    pub fn chosen(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let pairs = self.starts.windows(2).map(|ends| ends[0] as usize..ends[1] as usize);
        pairs.enumerate().filter(|(_, pairs)| !pairs.is_empty())
    }

    /// Experts of a row, best first, and their weights.
    pub fn of_row(&self, row: usize) -> (&[u32], &[f32]) {
        let of_row = row * self.per_token..(row + 1) * self.per_token;
        (&self.experts[of_row.clone()], &self.weights[of_row])
    }

    /// Factor of the input of pair number `pair`.
    pub fn factor(&self, pair: usize) -> f32 {
        self.factors.get(pair).copied().unwrap_or(1.0)
    }

    /// Rows of a range of pairs.
    pub fn rows(&self, pairs: Range<usize>) -> &[u32] {
        &self.rows[pairs]
    }

    /// Adds each row's expert outputs, weighted, to `x`, `[rows, width]`, in the order in which the row
    /// ranked its experts. `outputs` is `[pairs, width]`.
    ///
    /// # Panics
    /// If the shapes disagree.
    pub fn add_outputs(&self, cpu: &mut Cpu, outputs: &[f32], width: usize, x: &mut [f32]) {
        let (per_token, rows) = (self.per_token, x.len() / width);
        assert!(x.len() == rows * width && rows * per_token == self.pairs(), "x is [rows, width]");
        assert!(outputs.len() == self.pairs() * width, "outputs are [pairs, width]");
        let (isa, x) = (cpu.isa, DisjointMut::new(x));
        for_each_row_of(cpu, rows, width * per_token, |row, _| {
            let of_row = row * per_token..(row + 1) * per_token;
            // SAFETY: each row is in one task.
            let x = unsafe { x.part(row * width, width) };
            let (numbers, weights) = (&self.numbers[of_row.clone()], &self.weights[of_row]);
            isa.run(AddRow { outputs, numbers, weights, x });
        });
    }
}

/// Adds the output of the shared network, times the sigmoid of a logit, to each row of `x`, `[rows, width]`.
///
/// # Panics
/// If the shapes disagree.
pub fn add_shared(cpu: &mut Cpu, outputs: &[f32], logits: &[f32], width: usize, x: &mut [f32]) {
    let rows = logits.len();
    assert!(x.len() == rows * width && outputs.len() == x.len(), "outputs and x are [rows, width]");
    let (isa, x) = (cpu.isa, DisjointMut::new(x));
    for_each_row_of(cpu, rows, width, |row, _| {
        // SAFETY: each row is in one task.
        let x = unsafe { x.part(row * width, width) };
        let outputs = &outputs[row * width..][..width];
        isa.run(AddRow { outputs, numbers: &[0], weights: &[sigmoid(logits[row])], x });
    });
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Sets `keys` to the corrected scores of a row's experts, and to minus infinity in groups that it does not
/// use.
fn rank(logits: &[f32], routing: Routing, correction: Option<&[f32]>, keys: &mut [f32]) {
    match routing.score {
        Score::Sigmoid => keys.iter_mut().zip(logits).for_each(|(key, logit)| *key = sigmoid(*logit)),
        Score::Softmax => softmax(logits, keys),
    }
    for (key, correction) in keys.iter_mut().zip(correction.unwrap_or_default()) {
        *key += correction;
    }
    let Some(Groups { count, kept, by_best }) = routing.groups else { return };
    let size = logits.len() / count;
    let scores: Vec<f32> = keys.chunks(size).map(|group| sum_of_best(group, by_best)).collect();
    let mut used = vec![0; kept];
    choose(&scores, &mut used);
    for (group, keys) in keys.chunks_mut(size).enumerate() {
        if !used.contains(&(group as u32)) {
            keys.fill(f32::NEG_INFINITY);
        }
    }
}

/// Sum of the `count` highest values of `keys`.
fn sum_of_best(keys: &[f32], count: usize) -> f32 {
    let mut best = vec![0; count.min(keys.len())];
    choose(keys, &mut best);
    best.into_iter().map(|at| keys[at as usize]).sum()
}

fn softmax(logits: &[f32], to: &mut [f32]) {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    to.iter_mut().zip(logits).for_each(|(to, logit)| *to = exp(logit - highest));
    let sum: f32 = to.iter().sum();
    to.iter_mut().for_each(|to| *to /= sum);
}

/// Writes the experts with the highest keys to `chosen`, best first.
fn choose(keys: &[f32], chosen: &mut [u32]) {
    for slot in 0..chosen.len() {
        let (before, rest) = chosen.split_at_mut(slot);
        let mut best: Option<usize> = None;
        for (expert, key) in keys.iter().enumerate() {
            let is_better = best.is_none_or(|best| key.total_cmp(&keys[best]).is_gt());
            if is_better && !before.contains(&(expert as u32)) {
                best = Some(expert);
            }
        }
        rest[0] = best.unwrap_or_else(|| unreachable!("there are as many experts as slots")) as u32;
    }
}

/// Computes the weights of the `chosen` experts.
fn weigh(logits: &[f32], chosen: &[u32], routing: Routing, weights: &mut [f32]) {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let of = |logit: f32| match routing.score {
        Score::Softmax => exp(logit - highest),
        Score::Sigmoid => sigmoid(logit),
    };
    for (weight, expert) in weights.iter_mut().zip(chosen) {
        *weight = of(logits[*expert as usize]);
    }
    let all = || logits.iter().map(|logit| of(*logit)).sum::<f32>();
    let sum: f32 = match (routing.renormalises, routing.score) {
        // All sigmoids may be zero.
        (true, _) if routing.floor == 0.0 => {
            weights.iter().sum::<f32>() + routing.added.max(f32::MIN_POSITIVE)
        }
        (true, Score::Softmax) => weights.iter().sum::<f32>().max(routing.floor * all()),
        (true, Score::Sigmoid) => weights.iter().sum::<f32>().max(routing.floor),
        (false, Score::Softmax) => all(),
        (false, Score::Sigmoid) => 1.0,
    };
    weights.iter_mut().for_each(|weight| *weight = *weight / sum * routing.scale);
}

struct AddRow<'a> {
    outputs: &'a [f32],
    numbers: &'a [u32],
    weights: &'a [f32],
    x: &'a mut [f32],
}

impl Kernel for AddRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        const STRIP: usize = 64; // columns kept in registers while experts are added
        let Self { outputs, numbers, weights, x } = self;
        let width = x.len();
        for (strip, x) in x.chunks_mut(STRIP).enumerate() {
            let mut sums = [0.0f32; STRIP];
            for (number, weight) in numbers.iter().zip(weights) {
                let output = &outputs[*number as usize * width + strip * STRIP..][..x.len()];
                sums.iter_mut().zip(output).for_each(|(sum, output)| *sum += weight * output);
            }
            x.iter_mut().zip(sums).for_each(|(x, sum)| *x += sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::Isa;

    const EXPERTS: usize = 6;

    fn logits(rows: usize) -> Vec<f32> {
        (0..rows * EXPERTS).map(|i| ((i * 71 % 97) as f32 - 48.0) * 0.05).collect()
    }

    fn routed(logits: &[f32], routing: Routing) -> Choices {
        let mut choices = Choices::default();
        choices.route(&mut Cpu::new(2), logits, EXPERTS, routing, None);
        choices
    }

    #[test]
    fn the_best_experts_are_chosen_and_of_equal_ones_the_lower() {
        let routing = Routing::softmax(3, true);
        let choices = routed(&[0.5, 2.0, 0.5, 2.0, -1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], routing);
        assert_eq!(choices.experts, [1, 3, 0, 0, 1, 2]);
        assert_eq!(choices.weights[3..], [1.0f32 / 3.0; 3]);
        let sum: f32 = choices.weights[..3].iter().sum();
        assert!((sum - 1.0).abs() < 1e-6 && choices.weights[0] == choices.weights[1]);
    }

    #[test]
    fn weights_are_those_of_a_softmax_over_all_experts() {
        let logits = logits(5);
        for per_token in [1, 2, EXPERTS] {
            let kept = routed(&logits, Routing::softmax(per_token, false));
            let divided = routed(&logits, Routing::softmax(per_token, true));
            for (row, logits) in logits.chunks(EXPERTS).enumerate() {
                let all: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
                let of_row = row * per_token..(row + 1) * per_token;
                let probability = |expert: &u32| f64::from(logits[*expert as usize]).exp() / all;
                let chosen: f64 = kept.experts[of_row.clone()].iter().map(probability).sum();
                for pair in of_row {
                    let probability = probability(&kept.experts[pair]);
                    assert!((f64::from(kept.weights[pair]) - probability).abs() < 1e-6);
                    assert!((f64::from(divided.weights[pair]) - probability / chosen).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn only_the_best_groups_take_part_and_corrections_change_no_weight() {
        // Groups rank by the sum of two scores. The correction lifts the last group above the first.
        let groups = Some(Groups { count: 3, kept: 1, by_best: 2 });
        let routing = Routing { score: Score::Sigmoid, scale: 2.5, groups, ..Routing::softmax(2, true) };
        let logits = [1.0, 1.5, 3.0, -9.0, 0.5, 0.25];
        let check = |correction: Option<&[f32]>, expected: [u32; 2]| {
            let mut choices = Choices::default();
            choices.route(&mut Cpu::new(1), &logits, EXPERTS, routing, correction);
            assert_eq!(choices.experts, expected);
            let sigmoids = expected.map(|expert| 1.0 / (1.0 + (-f64::from(logits[expert as usize])).exp()));
            for (weight, score) in choices.weights.iter().zip(sigmoids) {
                let exact = 2.5 * score / (sigmoids[0] + sigmoids[1]);
                assert!((f64::from(*weight) - exact).abs() < 1e-6, "{weight} for {exact}");
            }
        };
        check(None, [1, 0]);
        check(Some(&[0.0, 0.0, 0.0, 0.0, 0.1, 0.5]), [5, 4]);
    }

    #[test]
    fn weights_are_divided_by_no_less_than_the_floor() {
        // The correction chooses two experts whose probabilities are far below the floor, or above it.
        let logits = [20.0f32, 0.0, -1.0, -2.0, 1.0, 0.5];
        let all: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let check = |routing: Routing, score: &dyn Fn(f64) -> f64| {
            let mut choices = Choices::default();
            let correction = [0.0, 0.0, 0.0, 0.0, 3.0, 2.0];
            choices.route(&mut Cpu::new(1), &logits, EXPERTS, routing, Some(&correction));
            assert_eq!(choices.experts, [4, 5]);
            let scores = [1.0, 0.5].map(score);
            let sum = (scores[0] + scores[1]).max(f64::from(routing.floor));
            for (weight, score) in choices.weights.iter().zip(scores) {
                let exact = score / sum;
                assert!((f64::from(*weight) - exact).abs() < 1e-6 * exact, "{weight} for {exact}");
            }
        };
        for floor in [0.0, 1e-12, 1e-3, 0.5, 2.0] {
            let softmax = Routing { floor, ..Routing::softmax(2, true) };
            check(softmax, &|logit| logit.exp() / all);
            check(Routing { score: Score::Sigmoid, ..softmax }, &|logit| 1.0 / (1.0 + (-logit).exp()));
        }
    }

    #[test]
    fn weights_of_inputs_are_those_of_outputs_otherwise() {
        let (logits, outputs) = (logits(9), Routing { score: Score::Sigmoid, ..Routing::softmax(2, false) });
        let of_outputs = routed(&logits, outputs);
        let of_inputs = routed(&logits, Routing { weighs_inputs: true, ..outputs });
        for (at, number) in of_inputs.numbers.iter().enumerate() {
            let number = *number as usize;
            assert_eq!((of_inputs.factor(number), of_inputs.weights[at]), (of_outputs.weights[at], 1.0));
            assert_eq!(of_outputs.factor(number), 1.0);
        }
    }

    #[test]
    fn every_pair_is_numbered_once_and_the_rows_of_an_expert_are_adjacent() {
        let (rows, per_token) = (40, 2);
        let choices = routed(&logits(rows), Routing::softmax(per_token, true));
        let mut seen = 0;
        for (expert, pairs) in choices.chosen() {
            assert_eq!(pairs.start, seen);
            seen = pairs.end;
            let of_expert = choices.rows(pairs.clone());
            assert!(of_expert.is_sorted());
            for (number, row) in pairs.zip(of_expert) {
                let of_row = *row as usize * per_token..(*row as usize + 1) * per_token;
                let slot =
                    choices.numbers[of_row.clone()].iter().position(|of_slot| *of_slot as usize == number);
                assert_eq!(choices.experts[of_row][slot.unwrap()] as usize, expert);
            }
        }
        assert_eq!((seen, choices.pairs()), (rows * per_token, rows * per_token));
    }

    #[test]
    fn a_rows_sum_has_the_same_bits_alone_and_in_any_batch() {
        let (rows, width, routing) = (23, 100, Routing::softmax(3, false));
        let logits = logits(rows);
        // The output depends on the row and the expert.
        let output = |row: usize, expert: usize, column: usize| {
            ((row * 31 + expert * 17 + column * 7) % 101) as f32 * 0.013 - 0.6
        };
        let run = |isa, first: usize, count: usize| {
            let cpu = &mut Cpu::with_isa(2, isa);
            let mut choices = Choices::default();
            choices.route(cpu, &logits[first * EXPERTS..][..count * EXPERTS], EXPERTS, routing, None);
            let mut outputs = vec![0.0; choices.pairs() * width];
            for (expert, pairs) in choices.chosen() {
                for (number, row) in pairs.clone().zip(choices.rows(pairs)) {
                    let to = &mut outputs[number * width..][..width];
                    let row = first + *row as usize;
                    to.iter_mut().enumerate().for_each(|(column, to)| *to = output(row, expert, column));
                }
            }
            let mut x = vec![1.0; count * width];
            choices.add_outputs(cpu, &outputs, width, &mut x);
            x
        };
        let whole = run(Isa::best(), 0, rows);
        for isa in Isa::available() {
            assert_eq!(run(isa, 0, rows), whole, "{}", isa.name());
            for (row, expected) in whole.chunks(width).enumerate() {
                assert_eq!(run(isa, row, 1), expected, "row {row} alone on {}", isa.name());
            }
        }
    }
}
