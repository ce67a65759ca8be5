//! Weights of adapters that are served beside the model: their products are added to the model's, for the
//! rows of their sequences.

use std::sync::Arc;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::low_rank::{Changed, LowRank, LowRankShape, add_low_rank, add_outer, inner_low_rank};
use skein_kernels::cpu::rows::{Rows, RowsMut};

use crate::LoadError;
use crate::adapter::Adapter;
use crate::adapter_changes::{Place, first_on_rank, for_each_change, may_change};
use crate::served_adapter::HeldAdapter;
use crate::served_adapter::LoadedAdapter;
use crate::shard::Shard;
use crate::spec::Spec;
use crate::tensors::{self, Tensor};

/// Change to one matrix, with its first output in its product.
type Change = (LowRank, usize);

/// An adapter's weights, arranged for products.
pub struct AdapterWeights {
    layers: Vec<LayerChanges>,
    head: Option<Change>,
    bytes: u64,
}

impl std::fmt::Debug for AdapterWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdapterWeights").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Changes of a layer: up to three matrices for each of [`Product::OF_A_LAYER`].
#[derive(Default)]
struct LayerChanges([[Option<Change>; 3]; 4]);

impl AdapterWeights {
    /// Reads the part of `adapter`, for the model of `spec`, that is on the rank of `shard`: the rows of B of
    /// the outputs that the rank has, the columns of A of its inputs.
    ///
    /// # Errors
    /// As [`for_each_change`].
    pub fn new(adapter: &Adapter, spec: &Spec, shard: &Shard, max_rank: usize) -> Result<Self, LoadError> {
        let mut weights = Self {
            layers: shard.layers.clone().map(|_| LayerChanges::default()).collect(),
            head: None,
            bytes: 0,
        };
        let all = tensors::all(&spec.as_published());
        for_each_change(adapter, spec, max_rank, |tensor, place, delta| {
            let part = shard.part(spec, tensor);
            if part.is_empty() {
                return Ok(());
            }
            let low_rank = delta.low_rank(tensor, &part);
            weights.bytes += low_rank.bytes() as u64;
            let change = Some((low_rank, first_on_rank(&all, spec, shard, tensor)));
            match place.of_layer {
                Some((layer, product)) => {
                    weights.layers[layer - shard.layers.start].0[product][place.nth] = change;
                }
                None => weights.head = change,
            }
            Ok(())
        })?;
        Ok(weights)
    }

    /// An adapter that changes nothing.
    pub fn none() -> Self {
        Self { layers: Vec::new(), head: None, bytes: 0 }
    }

    /// Size in memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Size of the part of the largest adapter of rank `max_rank` on the rank of `shard`.
    pub fn most_bytes(spec: &Spec, shard: &Shard, max_rank: usize) -> u64 {
        let all = tensors::all(spec);
        let bytes = |(tensor, _): (&Tensor, Place)| {
            let part = shard.part(spec, tensor);
            if part.is_empty() {
                return 0;
            }
            let shape = LowRankShape { rank: max_rank, inputs: part.cols.len(), outputs: part.rows.len() };
            shape.bytes(size_of::<f32>()) as u64
        };
        may_change(spec, &all).map(bytes).sum()
    }

    fn changes<'a>(&'a self, at: ChangedProduct) -> [Option<(&'a LowRank, usize)>; 3] {
        let found = |change: &'a Option<Change>| change.as_ref().map(|(matrix, first)| (matrix, *first));
        match at {
            ChangedProduct::OfLayer(layer, product) => {
                self.layers[layer].0[product as usize].each_ref().map(found)
            }
            ChangedProduct::Logits => [found(&self.head), None, None],
        }
    }
}

/// A product that adapters may change.
#[derive(Debug, Clone, Copy)]
pub(super) enum ChangedProduct {
    /// By layer and its index in [`Product::OF_A_LAYER`].
    OfLayer(usize, LayerProduct),
    /// The product with the head.
    Logits,
}

/// Index in [`Product::OF_A_LAYER`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerProduct {
    Qkv,
    AttentionOutput,
    GateUp,
    Down,
}

/// Rows of a step by adapter.
#[derive(Debug, Default)]
pub struct AdapterRows {
    groups: Vec<(Arc<LoadedAdapter>, Vec<u32>)>,
}

impl AdapterRows {
    /// Adds the rows of a sequence with `adapter`.
    pub fn add(&mut self, adapter: &Arc<LoadedAdapter>, rows: impl Iterator<Item = u32>) {
        let at = self.groups.iter().position(|(of, _)| of.id == adapter.id).unwrap_or_else(|| {
            self.groups.push((adapter.clone(), Vec::new()));
            self.groups.len() - 1
        });
        self.groups[at].1.extend(rows);
    }

    /// Rows `first..` of these, `count` of them, renumbered from 0.
    pub(super) fn part(&self, first: u32, count: u32) -> Self {
        let part = |(adapter, rows): &(Arc<LoadedAdapter>, Vec<u32>)| {
            let rows = rows.iter().filter_map(|row| row.checked_sub(first).filter(|row| *row < count));
            (adapter.clone(), rows.collect())
        };
        Self { groups: self.groups.iter().map(part).collect() }
    }

    fn group(&self, group: usize, at: ChangedProduct) -> Changed<'_> {
        let (adapter, rows) = &self.groups[group];
        let changes = match adapter.weights.as_deref() {
            Some(HeldAdapter::Cpu(weights)) => weights.changes(at),
            Some(HeldAdapter::Cuda(_)) | None => [None; 3],
        };
        Changed { rows, changes }
    }

    /// Whether any of the rows has a change to this product.
    pub(super) fn change(&self, at: ChangedProduct) -> bool {
        (0..self.groups.len()).any(|group| self.group(group, at).changes.iter().any(Option::is_some))
    }

    /// Rows with an adapter, and most components of a change to this product, whose first matrix it is.
    pub(super) fn components(&self, at: ChangedProduct) -> (usize, usize) {
        let rows = self.groups.iter().map(|(_, rows)| rows.len()).sum();
        let rank = |group| self.group(group, at).changes[0].map_or(0, |(matrix, _)| matrix.rank());
        (rows, (0..self.groups.len()).map(rank).max().unwrap_or_default())
    }

    /// Sets `inner`, the components of each row with an adapter, to the products of this rank's inputs `x`
    /// with A.
    pub(super) fn inner(&self, cpu: &mut Cpu, at: ChangedProduct, x: Rows<'_>, inner: RowsMut<'_>) {
        inner_low_rank(cpu, x, &|group| self.group(group, at), self.groups.len(), inner);
    }

    /// Adds the changes of this product to `y`, from the products of all ranks' inputs with A.
    pub(super) fn add_outer(&self, cpu: &mut Cpu, at: ChangedProduct, inner: Rows<'_>, y: RowsMut<'_>) {
        add_outer(cpu, inner, &|group| self.group(group, at), self.groups.len(), y);
    }

    /// Adds the changes of this product to `y`, from its input `x`.
    pub(super) fn add_to(&self, cpu: &mut Cpu, at: ChangedProduct, x: Rows<'_>, y: RowsMut<'_>) {
        add_low_rank(cpu, x, &|group| self.group(group, at), self.groups.len(), y);
    }
}
