//! Weights of adapters that are served beside the model: their products are added to the model's, for the
//! rows of their sequences.

use std::sync::Arc;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::low_rank::{self, Changed, LowRank, LowRankShape, add_low_rank};

use crate::backend::LoadedAdapter;
use crate::model::LoadError;
use crate::model::adapter::{Adapter, Delta};
use crate::model::spec::Spec;
use crate::model::tensors::{self, Kind, Product, Role, Tensor};

/// Why a matrix cannot be changed while the model serves.
const NOT_BESIDE: &str = "changes a matrix that cannot be changed beside the model: served adapters change \
    attention (not latent), dense feed-forward networks and an untied head; one adapter may be merged \
    into the weights at load instead (--lora-modules without --enable-lora)";

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

/// Place of a matrix in a layer: its product, and which of the product's matrices it is.
fn place(tensor: &Tensor) -> Option<(usize, usize, usize)> {
    let Kind::Matrix(product, first) = tensor.kind else { return None };
    let nth = match tensor.role {
        Role::Query | Role::AttentionOutput | Role::Gate | Role::Down => 0,
        Role::Key | Role::Up => 1,
        Role::Value => 2,
        _ => return None,
    };
    let product = Product::OF_A_LAYER.iter().position(|of| *of == product)?;
    Some((product, nth, first))
}

/// Matrices that served adapters may change.
fn may_change<'a>(spec: &Spec, tensors: &'a [Tensor]) -> impl Iterator<Item = &'a Tensor> {
    let (is_latent, head) = (spec.attention.latent.is_some(), tensors::head(tensors));
    let is_head = move |tensor: &Tensor| tensor.role == head.role && head.role != Role::Embedding;
    tensors.iter().filter(move |tensor| {
        let of_attention = !matches!(tensor.role, Role::Gate | Role::Up | Role::Down);
        is_head(tensor) || place(tensor).is_some() && !(is_latent && of_attention)
    })
}

impl AdapterWeights {
    /// Checks `adapter` as [`new`](Self::new) does, without reading its weights.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn check(adapter: &Adapter, spec: &Spec, max_rank: usize) -> Result<(), LoadError> {
        Self::read(adapter, spec, max_rank, |_, _| ())
    }

    /// Reads the weights of `adapter` for the model of `spec`.
    ///
    /// # Errors
    /// If it is for another model, has a rank above `max_rank`, or changes other matrices than those of
    /// attention and dense feed-forward networks and the head.
    pub fn new(adapter: &Adapter, spec: &Spec, max_rank: usize) -> Result<Self, LoadError> {
        let mut weights = Self {
            layers: spec.layers.iter().map(|_| LayerChanges::default()).collect(),
            head: None,
            bytes: 0,
        };
        Self::read(adapter, spec, max_rank, |tensor, delta| {
            let low_rank = delta.low_rank(tensor);
            weights.bytes += low_rank.bytes() as u64;
            match (tensor.layer, place(tensor)) {
                (Some(layer), Some((product, nth, first))) => {
                    weights.layers[layer].0[product][nth] = Some((low_rank, first));
                }
                _ => weights.head = Some((low_rank, 0)),
            }
        })?;
        Ok(weights)
    }

    /// Calls `found` with each change of `adapter`.
    fn read(
        adapter: &Adapter,
        spec: &Spec,
        max_rank: usize,
        mut found: impl FnMut(&Tensor, &Delta),
    ) -> Result<(), LoadError> {
        let all = tensors::all(&spec.as_published());
        let matrices: Vec<&Tensor> = all.iter().filter(|it| matches!(it.kind, Kind::Matrix(..))).collect();
        let head = tensors::head(&all);
        let untied = (head.role != Role::Embedding).then_some(head);
        let known: Vec<&Tensor> = matrices.iter().copied().chain(untied).collect();
        adapter.check_is_used(&known)?;
        let allowed: Vec<&Tensor> = may_change(spec, &all).collect();
        for tensor in known {
            let Some(delta) = adapter.delta(tensor)? else { continue };
            if !allowed.iter().any(|it| it.name == tensor.name) {
                return Err(adapter.refused(&tensor.name, NOT_BESIDE));
            }
            let rank = delta.rank();
            if rank > max_rank.min(low_rank::MAX_RANK) {
                let reason = format!("has rank {rank} there, and --max-lora-rank is {max_rank}");
                return Err(adapter.refused(&tensor.name, &reason));
            }
            found(tensor, &delta);
        }
        Ok(())
    }

    /// Size in memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Size of the largest adapter of rank `max_rank`.
    pub fn most_bytes(spec: &Spec, max_rank: usize) -> u64 {
        let all = tensors::all(spec);
        let bytes = |tensor: &Tensor| {
            let shape = LowRankShape { rank: max_rank, inputs: tensor.cols, outputs: tensor.rows };
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
        let changes = adapter.weights.as_ref().map(|weights| weights.changes(at));
        Changed { rows, changes: changes.unwrap_or([None; 3]) }
    }

    /// Whether any of the rows has a change to this product.
    pub(super) fn change(&self, at: ChangedProduct) -> bool {
        (0..self.groups.len()).any(|group| self.group(group, at).changes.iter().any(Option::is_some))
    }

    /// Adds the changes of this product to `y`, `[rows, stride]`, from its input `x`.
    pub(super) fn add_to(
        &self,
        cpu: &mut Cpu,
        at: ChangedProduct,
        x: (&[f32], usize),
        y: (&mut [f32], usize),
    ) {
        add_low_rank(cpu, x, &|group| self.group(group, at), self.groups.len(), y);
    }
}
