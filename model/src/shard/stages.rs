//! Divides layers among the stages of a pipeline.

use std::ops::Range;

use crate::spec::Spec;
use crate::tensors::{self, Kind};

/// Divides the layers among `stages` stages so that the largest stage has as few multiplied weights as
/// possible; the head counts for the last stage. `None` if there are fewer layers than stages.
pub(super) fn divide(spec: &Spec, stages: usize) -> Option<Vec<Range<usize>>> {
    let layers = spec.layers.len();
    if stages == 0 || stages > layers {
        return None;
    }
    let before = weights_before(spec);
    let of = |range: Range<usize>| before[range.end] - before[range.start];
    // least[s][n]: multiplied weights in the largest stage, with the last n layers and the head divided
    // optimally among s stages.
    let head = tensors::logits_head(spec, &tensors::all(spec)).map_or(0, |head| head.len());
    let mut least = vec![vec![usize::MAX; layers + 1]; stages + 1];
    for (n, least) in least[1].iter_mut().enumerate().skip(1) {
        *least = of(layers - n..layers) + head;
    }
    for s in 2..=stages {
        for n in s..=layers {
            let first = layers - n;
            let most = |taken: usize| of(first..first + taken).max(least[s - 1][n - taken]);
            least[s][n] = (1..=n + 1 - s).map(most).min().unwrap_or(usize::MAX);
        }
    }
    let mut first = 0;
    let stage = |s: usize| {
        let n = layers - first;
        let fits = |taken: &usize| of(first..first + taken).max(least[s - 1][n - taken]) <= least[s][n];
        let taken = if s == 1 { n } else { (1..=n + 1 - s).find(fits).unwrap_or(1) };
        first += taken;
        first - taken..first
    };
    Some((1..=stages).rev().map(stage).collect())
}

/// Multiplied weights before each layer, and in total.
fn weights_before(spec: &Spec) -> Vec<usize> {
    let mut of_layer = vec![0; spec.layers.len()];
    for tensor in tensors::all(spec) {
        if let (Some(layer), Kind::Matrix(..)) = (tensor.layer, tensor.kind) {
            of_layer[layer] += tensor.len();
        }
    }
    let mut sum = 0;
    let sums = of_layer.into_iter().map(|weights| {
        sum += weights;
        sum
    });
    std::iter::once(0).chain(sums).collect()
}
