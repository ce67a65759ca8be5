//! A rank's part of each tensor, and an adapter's change to it.

use std::collections::HashMap;
use std::sync::Arc;

use skein_kernels::cpu::matrix::WeightMatrix;

use super::network::Network;
use crate::adapter::Delta;
use crate::shard::{Part, Shard};
use crate::spec::{QkNorm, Spec};
use crate::tensors::{self, Kind, Role, Tensor};

/// An adapter's change to a rank's part of a matrix, merged into it row by row when the rows are copied.
#[derive(Clone)]
pub struct MergedChange(Arc<ChangeOf>);

struct ChangeOf {
    delta: Delta,
    tensor: Tensor,
    /// First row and column of the rank's part.
    first: (usize, usize),
}

impl MergedChange {
    /// The change `delta` to the matrix of `held`.
    pub(super) fn new(delta: Delta, held: &RankTensor) -> Self {
        let RankTensor { whole, part, .. } = held;
        Self(Arc::new(ChangeOf { delta, tensor: whole.clone(), first: (part.rows.start, part.cols.start) }))
    }

    /// `rows` of the part, from row `from` on, with the change.
    pub fn merged(&self, rows: &WeightMatrix, from: usize) -> WeightMatrix {
        let ChangeOf { delta, tensor, first } = &*self.0;
        delta.merged_rows(rows, &|row| tensor.stored_row(first.0 + from + row), first.1)
    }
}

/// A tensor of the checkpoint and a rank's part of it.
pub(super) struct RankTensor {
    /// The whole tensor.
    pub whole: Tensor,
    /// The rank's part, placed among the rank's parts of the other matrices of its product.
    pub own: Tensor,
    pub part: Part,
    /// Inputs per leaf of its sums; 0 without leaves.
    pub leaf: usize,
}

/// Each tensor of the stage of `shard` with the part of its rank. Layers are numbered within the stage.
pub(super) fn rank_tensors(spec: &Spec, shard: &Shard) -> Vec<RankTensor> {
    let mut outputs = HashMap::new();
    let mut first = 0;
    let hold = |whole: Tensor| {
        let part = part_of(spec, shard, &whole);
        let (rows, cols) = (part.rows.len(), part.cols.len());
        let kind = match whole.kind {
            Kind::Matrix(product, _) => {
                let outputs = outputs.entry((whole.layer, product, Network::of(&whole))).or_insert(0);
                first = *outputs;
                *outputs += rows;
                Kind::Matrix(product, first)
            }
            // A bias is split like its matrix.
            Kind::Bias(product, _) => Kind::Bias(product, first),
            other => other,
        };
        // Others are whole on one rank.
        let has_leaves = Network::of(&whole) == Network::Layer && whole.leaves(spec) > 1;
        let leaf = if has_leaves { cols / part.leaves } else { 0 };
        let layer = whole.layer.map(|layer| layer - shard.layers.start);
        RankTensor { own: Tensor { layer, kind, rows, cols, ..whole.clone() }, whole, part, leaf }
    };
    let all = tensors::all(spec).into_iter();
    all.filter(|tensor| tensor.layer.is_none_or(|layer| shard.layers.contains(&layer))).map(hold).collect()
}

/// The part of a tensor on the rank of `shard`. The CPU normalises whole rows on every rank, a device only
/// its own heads.
fn part_of(spec: &Spec, shard: &Shard, whole: &Tensor) -> Part {
    let (part, head_dim) = (shard.part(spec, whole), spec.attention.head_dim);
    let heads = match whole.role {
        Role::QueryNorm => &shard.heads,
        Role::KeyNorm => &shard.kv_heads,
        _ => return part,
    };
    if spec.attention.qk_norm != QkNorm::Row {
        return part;
    }
    Part { rows: heads.start * head_dim..heads.end * head_dim, ..part }
}
