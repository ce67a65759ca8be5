//! A model's weights on a device, or one rank's part of them, and the mapping from tensors of the checkpoint.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cpu::packed::Format;
use skein_kernels::cuda::DeviceSlice;
use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::linear::{Granularity, LinearWeight, WeightValues};
use skein_kernels::cuda::ops::packed::{Form, PackedValues, Shape};

use super::dummy::DummyCodes;
use super::experts::{ExpertWeights, Network};
use super::origin::Origin;
use super::packed::{self, Forms, FromFiles, Matrix, PackedCopy, Source};
use crate::model::LoadError;
use crate::model::adapter::{Adapter, Delta, changeable};
use crate::model::checkpoint::Weights;
use crate::model::spec::{QkNorm, Spec};
use crate::model::tensors::{self, Kind, Product, ProductShape, Role, Tensor};
use crate::shard::{Part, Shard};

/// All weights of a rank. Matrices are `[outputs, inputs]` as in the checkpoint; those with the same input
/// are stacked.
pub struct DeviceWeights<T> {
    /// `[vocab, hidden]`: the rank's rows of the embedding table.
    pub embedding: LinearWeight<T>,
    /// Layers in order.
    pub layers: Vec<LayerWeights<T>>,
    /// `[hidden]`: the last normalisation; empty unless the rank is in the last stage.
    pub norm: NormWeights,
    /// `[vocab, hidden]`: the rank's rows; those of the embedding table if they are tied.
    pub head: LinearWeight<T>,
    /// `[experts]`: rank of each expert of a layer; [`DeviceSlice::NONE`] on a single rank.
    pub expert_ranks: DeviceSlice<u32>,
}

/// One layer's weights.
pub struct LayerWeights<T> {
    /// Indexed by [`Product`].
    products: [LinearWeight<T>; Product::WITH_LATENT.len()],
    /// Mixture of experts. Products of the feed-forward network are empty then.
    pub experts: Option<ExpertWeights<T>>,
    /// Norms and other vectors, indexed by [`Role`].
    vectors: [NormWeights; Role::COUNT],
}

/// Weights and bias of a norm; [`DeviceSlice::NONE`] if the model lacks them.
#[derive(Debug, Clone, Copy)]
pub struct NormWeights {
    /// Weights, as applied.
    pub weight: DeviceSlice<f32>,
    /// Bias; only layer normalisation may have one.
    pub bias: DeviceSlice<f32>,
}

impl NormWeights {
    const NONE: Self = Self { weight: DeviceSlice::NONE, bias: DeviceSlice::NONE };
}

impl<T> LayerWeights<T> {
    /// The stacked matrices of a product.
    pub fn product(&self, product: Product) -> &LinearWeight<T> {
        &self.products[product as usize]
    }

    /// A normalisation's weights and bias.
    pub fn norm(&self, role: Role) -> NormWeights {
        self.vectors[role as usize]
    }

    /// The rank's part of a vector, or [`DeviceSlice::NONE`].
    pub fn vector(&self, role: Role) -> DeviceSlice<f32> {
        self.vectors[role as usize].weight
    }

    /// All products, in the order of a step.
    pub fn products(&self) -> &[LinearWeight<T>] {
        &self.products
    }

    /// All vectors.
    pub fn vectors(&self) -> impl Iterator<Item = NormWeights> {
        self.vectors.iter().copied()
    }
}

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
    /// The change of `adapter` to the matrix of `held`, if it has one.
    ///
    /// # Errors
    /// If the adapter's matrices do not fit it.
    pub(super) fn find(adapter: Option<&Adapter>, held: &Held) -> Result<Option<Self>, LoadError> {
        let Held { whole, part, .. } = held;
        if !matches!(whole.kind, Kind::Matrix(..)) {
            return Ok(None);
        }
        let delta = adapter.map_or(Ok(None), |adapter| adapter.delta(whole))?;
        let first = (part.rows.start, part.cols.start);
        Ok(delta.map(|delta| Self(Arc::new(ChangeOf { delta, tensor: whole.clone(), first }))))
    }

    /// `rows` of the part, from row `from` on, with the change.
    pub fn merged(&self, rows: &WeightMatrix, from: usize) -> WeightMatrix {
        let ChangeOf { delta, tensor, first } = &*self.0;
        delta.merged_rows(rows, &|row| tensor.stored_row(first.0 + from + row), first.1)
    }
}

/// A checkpoint tensor and its destination on the device.
pub struct TensorCopy<T> {
    /// Values of the rank's part.
    pub from: Origin,
    /// Change by an adapter.
    pub change: Option<MergedChange>,
    /// Destination of its rows.
    pub to: Place<T>,
}

/// A place on the device.
#[derive(Debug, Clone, Copy)]
pub enum Place<T> {
    /// Values of the activations' type: matrices and biases.
    Values(DeviceSlice<T>),
    /// f32 values of a vector or of a router.
    Wide(DeviceSlice<f32>),
    /// Matrix quantised row by row during upload.
    Quantised {
        /// The quantised rows.
        values: DeviceSlice<E4m3>,
        /// The same number of scales for each row.
        scales: DeviceSlice<f32>,
    },
}

/// A tensor of the checkpoint and a rank's part of it.
pub(super) struct Held {
    /// The whole tensor.
    pub whole: Tensor,
    /// The rank's part, placed among the rank's parts of the other matrices of its product.
    pub own: Tensor,
    pub part: Part,
    /// Inputs per leaf of its sums; 0 without leaves.
    pub leaf: usize,
}

/// Each tensor of the stage of `shard` with the part of its rank. Layers are numbered within the stage.
fn held(spec: &Spec, shard: &Shard) -> Vec<Held> {
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
        Held { own: Tensor { layer, kind, rows, cols, ..whole.clone() }, whole, part, leaf }
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

/// A rank's parts of all tensors.
fn owned(held: &[Held]) -> Vec<Tensor> {
    held.iter().map(|held| held.own.clone()).collect()
}

/// The products of a rank without those of mixtures of experts, by layer.
fn products(tensors: &[Tensor]) -> HashMap<(Option<usize>, Product), ProductShape> {
    let is_of_layer = |tensor: &&Tensor| Network::of(tensor) == Network::Layer;
    tensors::products(&tensors.iter().filter(is_of_layer).cloned().collect::<Vec<_>>())
}

/// `[n, k]` of a rank's layer matrices that [`skein_kernels::cuda::ops::linear`] multiplies, without those of
/// mixtures of experts. The head is not included because it writes to the logits.
pub fn shapes(spec: &Spec, shard: &Shard) -> Vec<(usize, usize)> {
    let products = products(&owned(&held(spec, shard))).into_iter();
    let is_linear = |(layer, product): &(Option<usize>, Product)| layer.is_some() && !product.is_of_heads();
    products.filter(|(of, _)| is_linear(of)).map(|(_, shape)| (shape.rows, shape.cols)).collect()
}

/// Scales of layer matrices in e4m3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum E4m3Scales {
    /// One scale per output. If a product's inputs are split over ranks, each rank has its own.
    Output,
    /// The same, but one scale per leaf of such products, so that scales do not depend on the number of
    /// ranks.
    Leaf,
}

/// Forms of the packed matrices of the rank of `shard`; those of layers in 16 or 32 bits are quantised to
/// `rounded`.
///
/// # Errors
/// If a tensor is missing or unusable, if the matrices of a product have no common form, or if the rank
/// cannot have its part.
pub fn forms<T: Activation>(
    spec: &Spec,
    shard: &Shard,
    (weights, adapter): (&Weights, Option<&Adapter>),
    rounded: Option<Format>,
) -> Result<Forms, LoadError> {
    if let Some(adapter) = adapter {
        adapter.check_is_used(&changeable(&tensors::all(spec)))?;
    }
    let codes = FromFiles { weights: (weights, adapter), rounded };
    packed::forms::<T>(&held(spec, shard), shard.ranks, &codes)
}

/// The same for weights without files.
///
/// # Errors
/// If a matrix cannot have `codes`, or the rank cannot have its part.
pub fn forms_of_dummies<T: Activation>(
    spec: &Spec,
    shard: &Shard,
    codes: &DummyCodes,
) -> Result<Forms, LoadError> {
    packed::forms::<T>(&held(spec, shard), shard.ranks, codes)
}

impl<T: Activation> DeviceWeights<T> {
    /// Allocates all weights of the rank of `shard`. Matrices with a form are packed; `quantised`: the other
    /// layer matrices are e4m3.
    pub fn place(
        spec: &Spec,
        shard: &Shard,
        forms: &Forms,
        quantised: Option<E4m3Scales>,
        memory: &mut Carver,
    ) -> Self {
        let held = held(spec, shard);
        let tensors = owned(&held);
        let mut unstacked = |tensor: &Tensor, matrix: Matrix| {
            let shape = ProductShape { rows: tensor.rows, cols: tensor.cols, has_bias: false };
            place_in(forms.get(matrix), shape, 0, None, memory)
        };
        let table = tensors.iter().find(|tensor| tensor.kind == Kind::Table);
        let embedding = table
            .map_or_else(|| unreachable!("a model embeds tokens"), |table| unstacked(table, Matrix::Table));
        let head = tensors::head(&tensors);
        let head = match head.role {
            Role::Embedding => embedding,
            _ => unstacked(head, Matrix::Product(None, Network::Layer, Product::Logits)),
        };
        let products = products(&tensors);
        let leaf = |layer, product| {
            let is_of = |held: &&Held| {
                held.own.layer == Some(layer) && matches!(held.own.kind, Kind::Matrix(of, _) if of == product)
            };
            held.iter().find(is_of).map_or(0, |held| held.leaf)
        };
        let mut place = |layer| LayerWeights {
            products: Product::WITH_LATENT.map(|product| {
                let shape = products.get(&(Some(layer), product)).copied().unwrap_or_default();
                let leaf = leaf(layer, product);
                let quantised = quantised.filter(|_| !product.is_of_heads());
                let form = forms.get(Matrix::Product(Some(layer), Network::Layer, product));
                place_in(form, shape, leaf, quantised, memory)
            }),
            experts: ExpertWeights::place(
                (&spec.layers[shard.layers.start + layer].feed_forward, shard),
                spec.hidden_size,
                |network, product| forms.get(Matrix::Product(Some(layer), network, product)),
                quantised,
                memory,
            ),
            vectors: [NormWeights::NONE; Role::COUNT],
        };
        let mut layers: Vec<_> = (0..shard.layers.len()).map(&mut place).collect();
        let mut norm = NormWeights::NONE;
        for tensor in &tensors {
            let vector = match tensor.layer {
                Some(layer) => &mut layers[layer].vectors[tensor.role as usize],
                None if shard.is_last() => &mut norm,
                None => continue,
            };
            match tensor.kind {
                Kind::Norm | Kind::Values => vector.weight = memory.take(tensor.rows),
                Kind::NormBias => vector.bias = memory.take(tensor.rows),
                Kind::Table | Kind::Matrix(..) | Kind::Bias(..) => {}
            }
        }
        let has_ranks = shard.ranks > 1 && !shard.experts.is_empty();
        let expert_ranks = if has_ranks { memory.take(shard.experts.len()) } else { DeviceSlice::NONE };
        Self { embedding, layers, norm, head, expert_ranks }
    }

    /// Finds and validates every tensor of the checkpoint that is not packed, and pairs the part of the rank
    /// of `shard` with its place.
    ///
    /// # Errors
    /// If a tensor is missing, or its type or shape differs from the configuration.
    pub fn sources(
        &self,
        spec: &Spec,
        shard: &Shard,
        (weights, adapter): (&Weights, Option<&Adapter>),
    ) -> Result<Vec<TensorCopy<T>>, LoadError> {
        let source = |held: &Held| {
            let Held { whole, own, part, .. } = held;
            let from = match whole.kind {
                Kind::Norm | Kind::NormBias | Kind::Values => {
                    Origin::Numbers(vector(whole, &part.rows, spec, weights)?)
                }
                Kind::Bias(..) => Origin::Numbers(whole.find(weights)?.part(0..1, part.rows.clone())),
                Kind::Table | Kind::Matrix(..) => Origin::of_matrix(whole, part, weights)?,
            };
            let change = MergedChange::find(adapter, held)?;
            if let (Some(_), Some(reason)) = (&change, from.why_unchangeable()) {
                return Err(packed::refused(&whole.name, reason.into()));
            }
            Ok(TensorCopy { from, change, to: self.place_of(own) })
        };
        let is_copied = |held: &&Held| {
            !held.part.is_empty() && Matrix::of(&held.own).is_none_or(|matrix| !self.is_packed(matrix))
        };
        held(spec, shard).iter().filter(is_copied).map(source).collect()
    }

    /// Finds the rows of every packed matrix of the rank of `shard`. `rounded`: as for [`forms`].
    ///
    /// # Errors
    /// As for [`forms`].
    pub fn packed_sources(
        &self,
        spec: &Spec,
        shard: &Shard,
        (weights, adapter): (&Weights, Option<&Adapter>),
        rounded: Option<Format>,
    ) -> Result<Vec<PackedCopy<T>>, LoadError> {
        let mut copies: Vec<(Matrix, PackedCopy<T>)> = Vec::new();
        for held in held(spec, shard).iter().filter(|held| !held.part.is_empty()) {
            let Some(matrix) = Matrix::of(&held.own).filter(|matrix| self.is_packed(*matrix)) else {
                continue;
            };
            let Some(source) = Source::find(held, (weights, adapter), rounded)? else {
                unreachable!("the form of {} was made from it", held.whole.name)
            };
            let first = if let Kind::Matrix(_, first) = held.own.kind { first } else { 0 };
            match copies.iter_mut().find(|(of, _)| *of == matrix) {
                Some((_, copy)) => copy.from.push((first, source)),
                None => copies
                    .push((matrix, PackedCopy { to: *self.weight_of(matrix), from: vec![(first, source)] })),
            }
        }
        Ok(copies.into_iter().map(|(_, copy)| copy).collect())
    }

    fn weight_of(&self, matrix: Matrix) -> &LinearWeight<T> {
        match matrix {
            Matrix::Table => &self.embedding,
            Matrix::Product(None, ..) => &self.head,
            Matrix::Product(Some(layer), network, product) => {
                let LayerWeights { experts, .. } = &self.layers[layer];
                let of_mixture = experts.as_ref().and_then(|experts| experts.matrix(network, product));
                of_mixture.unwrap_or_else(|| self.layers[layer].product(product))
            }
        }
    }

    fn is_packed(&self, matrix: Matrix) -> bool {
        matches!(self.weight_of(matrix).values, WeightValues::Packed(_))
    }

    /// The place of a rank's part of a tensor.
    fn place_of(&self, tensor: &Tensor) -> Place<T> {
        let layer = tensor.layer.map(|layer| &self.layers[layer]);
        let experts = layer.and_then(|layer| layer.experts.as_ref());
        if let Some(place) = experts.and_then(|experts| experts.place_of(tensor)) {
            return place;
        }
        let weight = |product| layer.map_or(&self.head, |layer| layer.product(product));
        let rows = |first| first..first + tensor.rows;
        let vector = layer.map_or(self.norm, |layer| layer.norm(tensor.role));
        match tensor.kind {
            Kind::Table => place_of_rows(&self.embedding, rows(0)),
            Kind::Norm | Kind::Values => Place::Wide(vector.weight),
            Kind::NormBias => Place::Wide(vector.bias),
            Kind::Bias(product, first) => Place::Values(weight(product).bias.slice(rows(first))),
            Kind::Matrix(product, first) => place_of_rows(weight(product), rows(first)),
        }
    }
}

/// Some values of a vector as they are applied.
fn vector(
    tensor: &Tensor,
    part: &Range<usize>,
    spec: &Spec,
    weights: &Weights,
) -> Result<WeightMatrix, LoadError> {
    let values = &tensor.read(spec, weights)?[part.clone()];
    let bytes: Vec<u8> = values.iter().copied().flat_map(f32::to_le_bytes).collect();
    Ok(WeightMatrix::new(Storage::F32(bytes.into()), 1, part.len()))
}

/// Takes memory for a product's matrices, in codes if they have a form.
pub(super) fn place_in<T: Activation>(
    form: Option<Form>,
    shape: ProductShape,
    leaf: usize,
    quantised: Option<E4m3Scales>,
    memory: &mut Carver,
) -> LinearWeight<T> {
    match form {
        Some(form) => place_packed(shape, leaf, form, memory),
        None => place_product(shape, leaf, quantised, memory),
    }
}

/// Takes memory for a product's matrices in `form`.
fn place_packed<T: Activation>(
    shape: ProductShape,
    leaf: usize,
    form: Form,
    memory: &mut Carver,
) -> LinearWeight<T> {
    let ProductShape { rows: n, cols: k, has_bias } = shape;
    // The inputs of a leaf are consecutive, and those of a matrix with an order of its own are not.
    let leaf = if form.orders > 0 { 0 } else { leaf };
    let bias = if has_bias { memory.take(n) } else { DeviceSlice::NONE };
    let memory = memory.take(Shape { form, n, k, leaf }.bytes());
    LinearWeight { n, k, bias, values: WeightValues::Packed(PackedValues { form, memory }), leaf }
}

/// Takes memory for a product's matrices, in 16 bits or FP8.
fn place_product<T: Activation>(
    shape: ProductShape,
    leaf: usize,
    quantised: Option<E4m3Scales>,
    memory: &mut Carver,
) -> LinearWeight<T> {
    let ProductShape { rows: n, cols: k, has_bias } = shape;
    let bias = if has_bias { memory.take(n) } else { DeviceSlice::NONE };
    let values = match quantised {
        None => WeightValues::Same(memory.take(n * k)),
        Some(scales) => {
            let by_leaf = scales == E4m3Scales::Leaf && leaf > 0;
            let granularity = if by_leaf { Granularity::Leaf } else { Granularity::Channel };
            let count = if by_leaf { n * (k / leaf) } else { n };
            WeightValues::E4m3 { values: memory.take(n * k), scales: memory.take(count), granularity }
        }
    };
    LinearWeight { n, k, bias, values, leaf }
}

/// Destination of a range of rows in a product's matrices.
pub(super) fn place_of_rows<T: Activation>(weight: &LinearWeight<T>, rows: Range<usize>) -> Place<T> {
    let inside = rows.start * weight.k..rows.end * weight.k;
    match weight.values {
        WeightValues::Same(values) => Place::Values(values.slice(inside)),
        WeightValues::E4m3 { values, scales, .. } => {
            let each = scales.len() / weight.n;
            let scales = scales.slice(rows.start * each..rows.end * each);
            Place::Quantised { values: values.slice(inside), scales }
        }
        WeightValues::Packed(_) => unreachable!("rows of packed matrices are not copied one by one"),
    }
}
