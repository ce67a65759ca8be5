//! What each rank of a group holds of a model. Pure: it follows from the configuration, the rank and the
//! number of ranks.
//!
//! Queries, gate, up and the head are divided by their outputs. Attention output and down are divided by
//! their inputs, at [leaves](skein_kernels::leaves), so that their sums have the same bits on any number of
//! ranks. A rank has the KV heads that its query heads read; ranks may share one. Norms, and biases that are
//! added after ranks' sums are joined, are on every rank. Experts are whole, each on the rank that a table
//! names.
//!
//! A pipeline divides the layers as well: each *stage* has a run of them, and its ranks divide those.

mod stages;
#[cfg(test)]
mod tests;

use std::ops::Range;

use skein_kernels::leaves;

use crate::model::spec::Spec;
use crate::model::tensors::{self, Kind, Product, Role, Tensor};

/// Rows of the vocabulary are divided in multiples of this.
const VOCABULARY_UNIT: usize = 64;

/// One rank's part of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// This rank, from 0.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Its query heads.
    pub heads: Range<usize>,
    /// The KV heads that its query heads read.
    pub kv_heads: Range<usize>,
    /// Query heads per KV head in the whole model.
    pub group: usize,
    /// KV heads of the whole model.
    pub all_kv_heads: usize,
    /// Its rows of the embedding table and of the head; may be empty on the last ranks.
    pub vocabulary: Range<usize>,
    /// The rank that has each expert of a layer.
    pub experts: Vec<usize>,
    /// Its stage of the pipeline, from 0.
    pub stage: usize,
    /// Number of stages.
    pub stages: usize,
    /// The layers of its stage.
    pub layers: Range<usize>,
    /// Rows of the vocabulary in all of the model.
    vocab_size: usize,
}

/// A rank's rows and columns of a tensor, and the leaves among the columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Outputs of a matrix, or values of a vector.
    pub rows: Range<usize>,
    /// Inputs of a matrix.
    pub cols: Range<usize>,
    /// Leaves of the rank's sums.
    pub leaves: usize,
}

impl Part {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.rows.len() * self.cols.len()
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a model cannot be divided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Indivisible {
    /// Its products have fewer leaves than there are ranks.
    #[error(
        "{ranks} ranks cannot share this model: {tensor} sums {inputs} inputs in {leaves} leaves, so it can have 1 to \
         {leaves} ranks, a power of two"
    )]
    Leaves {
        /// Number of ranks.
        ranks: usize,
        /// The product with the fewest leaves.
        tensor: String,
        /// Its inputs.
        inputs: usize,
        /// Its leaves.
        leaves: usize,
    },
    /// It has fewer layers than there are stages.
    #[error("{stages} stages cannot share this model: it has {layers} layers, and a stage has at least one")]
    Layers {
        /// Number of stages.
        stages: usize,
        /// Layers of the model.
        layers: usize,
    },
}

impl Shard {
    /// All of a model.
    pub fn whole(spec: &Spec) -> Self {
        Self::divided(spec, 0, 1)
    }

    /// The part of `rank`, one of `ranks`.
    ///
    /// # Errors
    /// If the model's products have fewer leaves than there are ranks, or their number is not a power of two.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn new(spec: &Spec, rank: usize, ranks: usize) -> Result<Self, Indivisible> {
        assert!(rank < ranks, "rank {rank} of {ranks}");
        if ranks > 1 {
            let all = tensors::all(spec);
            let by_inputs = all.iter().filter(|tensor| is_divided_by_inputs(tensor));
            let fewest = by_inputs.min_by_key(|tensor| tensor.leaves(spec));
            if let Some(tensor) = fewest.filter(|tensor| !tensor.leaves(spec).is_multiple_of(ranks)) {
                let (tensor, inputs, leaves) = (tensor.name.clone(), tensor.cols, tensor.leaves(spec));
                return Err(Indivisible::Leaves { ranks, tensor, inputs, leaves });
            }
        }
        Ok(Self::divided(spec, rank, ranks))
    }

    /// The part of this rank in `stage`, one of `stages`.
    ///
    /// # Errors
    /// If there are more stages than layers.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn of_stage(self, spec: &Spec, stage: usize, stages: usize) -> Result<Self, Indivisible> {
        assert!(stage < stages, "stage {stage} of {stages}");
        let layers = spec.layers.len();
        let all = stages::divide(spec, stages).ok_or(Indivisible::Layers { stages, layers })?;
        Ok(Self { stage, stages, layers: all[stage].clone(), ..self })
    }

    fn divided(spec: &Spec, rank: usize, ranks: usize) -> Self {
        let attention = &spec.attention;
        let group = attention.heads / attention.kv_heads;
        let heads = share(attention.heads, rank, ranks);
        let vocab_size = spec.vocab_size as usize;
        Self {
            rank,
            ranks,
            kv_heads: heads.start / group..heads.end.div_ceil(group),
            heads,
            group,
            all_kv_heads: attention.kv_heads,
            vocabulary: vocabulary_of(vocab_size, rank, ranks),
            vocab_size,
            experts: experts_of(spec.experts().0, ranks),
            stage: 0,
            stages: 1,
            layers: 0..spec.layers.len(),
        }
    }

    /// Whether embedding rows are looked up in its stage.
    pub fn is_first(&self) -> bool {
        self.stage == 0
    }

    /// Whether its stage gives logits.
    pub fn is_last(&self) -> bool {
        self.stage + 1 == self.stages
    }

    /// Whether its stage uses `tensor`.
    fn is_in_stage(&self, spec: &Spec, tensor: &Tensor) -> bool {
        match (tensor.layer, tensor.role) {
            (Some(layer), _) => self.layers.contains(&layer),
            (None, Role::Embedding) => self.is_first() || (self.is_last() && spec.is_tied),
            (None, _) => self.is_last(),
        }
    }

    /// The rank's part of `tensor`.
    pub fn part(&self, spec: &Spec, tensor: &Tensor) -> Part {
        let head_dim = spec.attention.head_dim;
        let wide = |heads: &Range<usize>| heads.start * head_dim..heads.end * head_dim;
        let (mut rows, mut cols) = (0..tensor.rows, 0..tensor.cols);
        let mut leaves = tensor.leaves(spec);
        let is_elsewhere = |expert: usize| self.experts[expert] != self.rank;
        if !self.is_in_stage(spec, tensor) || tensor.expert.is_some_and(is_elsewhere) {
            return Part { rows: 0..0, cols, leaves };
        }
        match (tensor.kind, tensor.role) {
            (Kind::Table, _) | (_, Role::Head) => rows = self.vocabulary.clone(),
            (_, Role::Query) => rows = wide(&self.heads),
            (_, Role::Key | Role::Value) => rows = wide(&self.kv_heads),
            (_, Role::Gate | Role::Up) => rows = share(tensor.rows, self.rank, self.ranks),
            _ if is_divided_by_inputs(tensor) => {
                cols = share(tensor.cols, self.rank, self.ranks);
                leaves = leaves::of_rank(leaves, self.rank, self.ranks).len();
            }
            _ => {}
        }
        Part { rows, cols, leaves }
    }

    /// What the rank computes: its layers, its heads, its part of feed-forward networks, all of the
    /// vocabulary.
    pub fn spec(&self, spec: &Spec) -> Spec {
        let mut own = spec.clone();
        own.attention.heads = self.heads.len();
        own.attention.kv_heads = self.kv_heads.len();
        own.layers = spec.layers[self.layers.clone()].to_vec();
        let dense = own.layers.iter_mut().filter(|layer| layer.feed_forward.experts.is_none());
        for layer in dense {
            let inner = &mut layer.feed_forward.inner_size;
            *inner = share(*inner, self.rank, self.ranks).len();
        }
        own
    }

    /// Query and KV heads of `rank`, of `all` query heads.
    pub fn heads_of(&self, rank: usize, all: usize) -> [Range<usize>; 2] {
        let heads = share(all, rank, self.ranks);
        let kv_heads = heads.start / self.group..heads.end.div_ceil(self.group);
        [heads, kv_heads]
    }

    /// Query heads of the rank's first KV head that the rank before it has.
    pub fn skipped_heads(&self) -> usize {
        self.heads.start % self.group
    }

    /// The rank with the row of `token`.
    pub fn owner(&self, token: usize) -> usize {
        token / self.widest_vocabulary()
    }

    /// Rows of the vocabulary of the first rank, which has the most.
    pub fn widest_vocabulary(&self) -> usize {
        rows_each(self.vocab_size, self.ranks)
    }

    /// Rows of the vocabulary of `rank`.
    pub fn vocabulary_of(&self, rank: usize) -> Range<usize> {
        vocabulary_of(self.vocab_size, rank, self.ranks)
    }

    /// Values of all tensors that the rank holds. A tied head is its part of the embedding table.
    pub fn values(&self, spec: &Spec) -> u64 {
        tensors::all(spec).iter().map(|tensor| self.part(spec, tensor).len() as u64).sum()
    }
}

/// Whether ranks share a tensor by its inputs. Experts are whole on one rank, the network that all rows share
/// on every rank.
fn is_divided_by_inputs(tensor: &Tensor) -> bool {
    tensor.expert.is_none()
        && tensor.role != Role::SharedDown
        && matches!(tensor.kind, Kind::Matrix(Product::AttentionOutput | Product::Down, _))
}

/// The rank of each of `count` experts: even runs of them.
fn experts_of(count: usize, ranks: usize) -> Vec<usize> {
    let of_rank = |rank| share(count, rank, ranks).map(move |_| rank);
    (0..ranks).flat_map(of_rank).collect()
}

/// An even part of `all`, which the ranks divide.
fn share(all: usize, rank: usize, ranks: usize) -> Range<usize> {
    all * rank / ranks..all * (rank + 1) / ranks
}

/// Rows of the vocabulary of every rank but the last ones.
fn rows_each(vocab_size: usize, ranks: usize) -> usize {
    match ranks {
        1 => vocab_size,
        _ => vocab_size.div_ceil(VOCABULARY_UNIT).div_ceil(ranks) * VOCABULARY_UNIT,
    }
}

fn vocabulary_of(vocab_size: usize, rank: usize, ranks: usize) -> Range<usize> {
    let bound = |rank: usize| (rank * rows_each(vocab_size, ranks)).min(vocab_size);
    bound(rank)..bound(rank + 1)
}
