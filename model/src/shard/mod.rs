//! Divides a model among the ranks of a group. Pure: the result follows from the configuration, the rank and
//! the number of ranks.
//!
//! Queries, gate, up and the head are divided by their outputs. Attention output and down are divided by
//! their inputs, at [leaves](skein_kernels::leaves), so that sums have the same bits with any number of
//! ranks. A rank has the KV heads that its query heads read; ranks may have the same ones. Norms, and biases
//! added after the ranks' sums are joined, are on every rank. States are divided by their units: key heads
//! with the value heads of each, groups of heads, or channels. The latent of latent attention is computed and
//! cached on every rank; the matrices of a head are on the rank that has the head. Each expert is whole on
//! one rank, given by a table.
//!
//! A pipeline also divides the layers: each *stage* has consecutive layers, which its ranks divide.

mod error;
mod stages;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use error::Indivisible;
use skein_kernels::leaves;

use crate::spec::Spec;
use crate::state_spec::{DeltaSpec, KeyedDeltaSpec, SpaceSpec, StateSpec};
use crate::tensors::{self, Kind, Product, Role, Tensor};

/// Granularity of the vocabulary's division, in rows.
const VOCABULARY_UNIT: usize = 64;

/// Part of a model on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Number of this rank, from 0.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Query heads on this rank.
    pub heads: Range<usize>,
    /// KV heads that its query heads read.
    pub kv_heads: Range<usize>,
    /// Query heads per KV head in the whole model.
    pub group: usize,
    /// KV heads of the whole model.
    pub all_kv_heads: usize,
    /// Query heads per KV head in the layers with a window: `group` unless their attention has another shape.
    pub windowed_group: usize,
    /// Units of states on this rank; empty without states.
    pub state_units: Range<usize>,
    /// Rows of the embedding table and head on this rank; may be empty on the last ranks.
    pub vocabulary: Range<usize>,
    /// Rank of each expert of a layer, ascending.
    pub experts: Vec<usize>,
    /// Pipeline stage, from 0.
    pub stage: usize,
    /// Number of stages.
    pub stages: usize,
    /// Layers of its stage.
    pub layers: Range<usize>,
    /// Size of the whole vocabulary.
    vocab_size: usize,
}

/// Rows and columns of a tensor on a rank, and the leaves among its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Outputs of a matrix, or elements of a vector.
    pub rows: Range<usize>,
    /// Inputs of a matrix.
    pub cols: Range<usize>,
    /// Leaves in the rank's sums.
    pub leaves: usize,
}

impl Part {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.rows.len() * self.cols.len()
    }

    /// Whether the part has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Shard {
    /// The undivided model.
    pub fn whole(spec: &Spec) -> Self {
        Self::divided(spec, 0, 1)
    }

    /// Part of `rank`, one of `ranks`.
    ///
    /// # Errors
    /// If a product has fewer leaves than there are ranks, or their number is not a power of two, or if it
    /// does not divide the heads of states, or the file has those in an order that cannot be divided.
    ///
    /// # Panics
    /// If `rank` is not below `ranks`.
    pub fn new(spec: &Spec, rank: usize, ranks: usize) -> Result<Self, Indivisible> {
        assert!(rank < ranks, "rank {rank} of {ranks}");
        if let Some(state) = spec.state.filter(|state| !state.units().is_multiple_of(ranks)) {
            let (units, what) = (state.units(), state.unit_name());
            return Err(Indivisible::StateUnits { ranks, units, what });
        }
        if ranks > 1 && spec.state.is_some_and(|state| !state.is_divisible()) {
            return Err(Indivisible::TiledStates { ranks });
        }
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

    /// Part of this rank in `stage`, one of `stages`.
    ///
    /// # Errors
    /// If there are more stages than layers, or if a layer's inputs would be on another stage.
    ///
    /// # Panics
    /// If `stage` is not below `stages`.
    pub fn of_stage(self, spec: &Spec, stage: usize, stages: usize) -> Result<Self, Indivisible> {
        assert!(stage < stages, "stage {stage} of {stages}");
        let layers = spec.layers.len();
        let all = stages::divide(spec, stages).ok_or(Indivisible::Layers { stages, layers })?;
        if spec.layer_inputs.is_some() && stages > 1 {
            return Err(Indivisible::LayerInputs { stages });
        }
        for own in &all {
            let cut = |layer: &usize| spec.layers[*layer].cache_of.filter(|of| !own.contains(of));
            if let Some((layer, of)) = own.clone().find_map(|layer| Some((layer, cut(&layer)?))) {
                return Err(Indivisible::SharedCache { stages, layer, of });
            }
        }
        Ok(Self { stage, stages, layers: all[stage].clone(), ..self })
    }

    /// These layers of the model, without embeddings and head.
    pub fn of_layers(spec: &Spec, layers: Range<usize>) -> Self {
        Self { stage: 1, stages: 3, layers, ..Self::whole(spec) }
    }

    /// The embeddings alone.
    pub fn of_embeddings(spec: &Spec) -> Self {
        Self { stage: 0, stages: 3, layers: 0..0, ..Self::whole(spec) }
    }

    fn divided(spec: &Spec, rank: usize, ranks: usize) -> Self {
        let attention = &spec.attention;
        let group = attention.heads / attention.kv_heads;
        let heads = share(attention.heads, rank, ranks);
        let vocab_size = spec.vocab_size as usize;
        Self {
            rank,
            ranks,
            kv_heads: kv_heads_of(&heads, group),
            heads,
            group,
            all_kv_heads: attention.kv_heads,
            windowed_group: spec.windowed_attention.map_or(group, |it| it.heads / it.kv_heads),
            state_units: share(spec.state.map_or(0, |state| state.units()), rank, ranks),
            vocabulary: vocabulary_of(vocab_size, rank, ranks),
            vocab_size,
            experts: experts_of(spec.experts().0, ranks),
            stage: 0,
            stages: 1,
            layers: 0..spec.layers.len(),
        }
    }

    /// Experts on this rank of a layer that has `count`.
    pub fn own_experts(&self, count: usize) -> Range<usize> {
        let before = |rank: usize| self.experts[..count].iter().filter(|owner| **owner < rank).count();
        before(self.rank)..before(self.rank + 1)
    }

    /// Whether its stage looks up embeddings.
    pub fn is_first(&self) -> bool {
        self.stage == 0
    }

    /// Whether its stage computes logits.
    pub fn is_last(&self) -> bool {
        self.stage + 1 == self.stages
    }

    /// Whether its stage uses `tensor`.
    fn is_in_stage(&self, spec: &Spec, tensor: &Tensor) -> bool {
        match (tensor.layer, tensor.role) {
            (Some(layer), _) => self.layers.contains(&layer),
            (
                None,
                Role::Positions
                | Role::TokenTypes
                | Role::EmbeddingNorm
                | Role::LayerEmbedding
                | Role::LayerInput
                | Role::LayerInputNorm,
            ) => self.is_first(),
            (None, Role::Embedding) => {
                self.is_first() || (self.is_last() && spec.is_tied && spec.pooled.is_none())
            }
            (None, _) => self.is_last(),
        }
    }

    /// Part of `tensor` on this rank.
    pub fn part(&self, spec: &Spec, tensor: &Tensor) -> Part {
        let wide = |heads: &Range<usize>, dim: usize| heads.start * dim..heads.end * dim;
        let (mut rows, mut cols) = (0..tensor.rows, 0..tensor.cols);
        let mut leaves = tensor.leaves(spec);
        let is_elsewhere = tensor.expert.is_some_and(|expert| self.experts[expert] != self.rank)
            || tensor.head.is_some_and(|head| !self.heads.contains(&head));
        if !self.is_in_stage(spec, tensor) || is_elsewhere {
            return Part { rows: 0..0, cols, leaves };
        }
        if let Some(each) = spec.state.and_then(|state| rows_of_unit(&state, tensor.role)) {
            rows = wide(&self.state_units, each);
        }
        let attention = tensor.layer.map_or(&spec.attention, |layer| spec.attention_of(layer));
        match (tensor.kind, tensor.role) {
            // Looked up as stored, on every rank.
            (_, Role::LayerEmbedding | Role::Positions | Role::TokenTypes) => {}
            (Kind::Table, _) | (_, Role::Head) => rows = self.vocabulary.clone(),
            (_, Role::Query | Role::QueryUp) => rows = wide(&self.heads, attention.query_dim()),
            (_, Role::QueryGate) => rows = wide(&self.heads, attention.head_dim),
            (_, Role::Sinks) => rows = self.heads.clone(),
            (_, Role::Key | Role::Value) => {
                let kv_heads = kv_heads_of(&self.heads, attention.heads / attention.kv_heads);
                rows = wide(&kv_heads, attention.head_dim);
            }
            (_, Role::Gate | Role::Up) => rows = share(tensor.rows, self.rank, self.ranks),
            _ if is_divided_by_inputs(tensor) => {
                cols = share(tensor.cols, self.rank, self.ranks);
                leaves = leaves::of_rank(leaves, self.rank, self.ranks).len();
            }
            _ => {}
        }
        Part { rows, cols, leaves }
    }

    /// Structure of the rank's part: its layers, its heads, its part of feed-forward networks, and the whole
    /// vocabulary.
    pub fn spec(&self, spec: &Spec) -> Spec {
        let mut own = spec.clone();
        own.attention.heads = self.heads.len();
        own.attention.kv_heads = self.kv_heads.len();
        if let Some(windowed) = &mut own.windowed_attention {
            windowed.heads = self.heads.len();
            windowed.kv_heads = kv_heads_of(&self.heads, self.windowed_group).len();
        }
        if let Some(state) = &mut own.state {
            *state = state.with_units(self.state_units.len());
        }
        own.layers = spec.layers[self.layers.clone()].to_vec();
        for layer in &mut own.layers {
            layer.cache_of = layer.cache_of.and_then(|of| of.checked_sub(self.layers.start));
        }
        let dense = own.layers.iter_mut().filter(|layer| layer.feed_forward.experts.is_none());
        for layer in dense {
            let inner = &mut layer.feed_forward.inner_size;
            *inner = share(*inner, self.rank, self.ranks).len();
        }
        own
    }

    /// Query and KV heads of `rank`, with `all` query heads in total.
    pub fn heads_of(&self, rank: usize, all: usize) -> [Range<usize>; 2] {
        let heads = share(all, rank, self.ranks);
        let kv_heads = kv_heads_of(&heads, self.group);
        [heads, kv_heads]
    }

    /// Query heads of the rank's first KV head that are on the rank before.
    pub fn skipped_heads(&self) -> usize {
        self.heads.start % self.group
    }

    /// Query heads per KV head in layers with or without a window, and those of the rank's first KV head that
    /// are on the rank before.
    pub fn group_of(&self, has_window: bool) -> (usize, usize) {
        let group = if has_window { self.windowed_group } else { self.group };
        (group, self.heads.start % group)
    }

    /// Rank with the embedding row of `token`.
    pub fn owner(&self, token: usize) -> usize {
        token / self.widest_vocabulary()
    }

    /// Vocabulary rows on the first rank, which has the most.
    pub fn widest_vocabulary(&self) -> usize {
        rows_each(self.vocab_size, self.ranks)
    }

    /// Vocabulary rows of `rank`.
    pub fn vocabulary_of(&self, rank: usize) -> Range<usize> {
        vocabulary_of(self.vocab_size, rank, self.ranks)
    }

    /// Number of elements of all tensors on this rank. A tied head counts as part of the embedding table.
    pub fn values(&self, spec: &Spec) -> u64 {
        tensors::all(spec).iter().map(|tensor| self.part(spec, tensor).len() as u64).sum()
    }
}

/// KV heads that these query heads read, `group` of them each.
fn kv_heads_of(heads: &Range<usize>, group: usize) -> Range<usize> {
    heads.start / group..heads.end.div_ceil(group)
}

/// Rows of a state's tensor that belong to one unit; `None` if they belong to all, or it is no state's.
fn rows_of_unit(state: &StateSpec, role: Role) -> Option<usize> {
    match (state, role) {
        (_, Role::StateValue | Role::StateGate) => Some(state.output_unit()),
        (StateSpec::Delta(delta), role) => rows_of_key_head(delta, role),
        (StateSpec::KeyedDelta(delta), role) => rows_of_head(delta, role),
        (StateSpec::Space(space), role) => rows_of_group(space, role),
        (StateSpec::Convolution(_), Role::StateInputGate) => Some(1),
        (StateSpec::Convolution(_), _) => None,
    }
}

fn rows_of_key_head(delta: &DeltaSpec, role: Role) -> Option<usize> {
    match role {
        Role::StateQuery | Role::StateKey => Some(delta.key_dim),
        Role::StateBeta | Role::StateDecay | Role::StateDecayRate | Role::StateDecayBias => {
            Some(delta.group())
        }
        _ => None,
    }
}

fn rows_of_head(delta: &KeyedDeltaSpec, role: Role) -> Option<usize> {
    match role {
        Role::StateQuery | Role::StateKey | Role::StateDecay | Role::StateDecayBias => Some(delta.head_dim),
        Role::StateBeta | Role::StateDecayRate => Some(1),
        _ => None,
    }
}

fn rows_of_group(space: &SpaceSpec, role: Role) -> Option<usize> {
    match role {
        Role::StateQuery | Role::StateKey => Some(space.state_dim),
        Role::StateDecay | Role::StateDecayRate | Role::StateDecayBias | Role::StateSkip => {
            Some(space.heads_of_group())
        }
        Role::StateNorm => Some(space.heads_of_group() * space.head_dim),
        _ => None,
    }
}

/// Whether ranks divide a tensor by its inputs. An expert is whole on one rank, and a shared network on every
/// rank.
fn is_divided_by_inputs(tensor: &Tensor) -> bool {
    tensor.expert.is_none()
        && tensor.role != Role::SharedDown
        && matches!(tensor.kind, Kind::Matrix(Product::AttentionOutput | Product::Down, _))
}

/// Rank of each of `count` experts, in even runs.
fn experts_of(count: usize, ranks: usize) -> Vec<usize> {
    let of_rank = |rank| share(count, rank, ranks).map(move |_| rank);
    (0..ranks).flat_map(of_rank).collect()
}

/// An even part of `all`.
fn share(all: usize, rank: usize, ranks: usize) -> Range<usize> {
    all * rank / ranks..all * (rank + 1) / ranks
}

/// Vocabulary rows of every rank except the last ones.
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
