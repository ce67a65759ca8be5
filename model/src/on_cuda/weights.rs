//! A model's weights on a device, or one rank's part of them, and the mapping from tensors of the checkpoint.

use std::collections::HashMap;
use std::ops::Range;

use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cpu::packed::Format;
use skein_kernels::cuda::DeviceSlice;
use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::linear::{LinearWeight, WeightValues};

use super::dummy::DummyCodes;
use super::experts::ExpertWeights;
use super::network::Network;
use super::origin::Origin;
use super::packed::{self, Forms, FromFiles, Matrix, PackedCopy, Source};
use super::place::{E4m3Scales, Place, place_in, place_of_rows};
use super::rank_tensor::{MergedChange, RankTensor, rank_tensors};
use crate::LoadError;
use crate::adapter::changeable;
use crate::checkpoint::Weights;
use crate::rank_matrix::RankMatrix;
use crate::shard::Shard;
use crate::spec::Spec;
use crate::tensors::{self, Kind, Product, ProductShape, Role, Tensor};
use crate::weight_source::WeightSource;

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

/// A checkpoint tensor and its destination on the device.
pub struct TensorCopy<T> {
    /// Values of the rank's part.
    pub from: Origin,
    /// Change by an adapter.
    pub change: Option<MergedChange>,
    /// Destination of its rows.
    pub to: Place<T>,
}

/// A rank's parts of all tensors.
fn owned(held: &[RankTensor]) -> Vec<Tensor> {
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
    let products = products(&owned(&rank_tensors(spec, shard))).into_iter();
    let is_linear = |(layer, product): &(Option<usize>, Product)| layer.is_some() && !product.is_of_heads();
    products.filter(|(of, _)| is_linear(of)).map(|(_, shape)| (shape.rows, shape.cols)).collect()
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
    source: WeightSource<'_>,
    rounded: Option<Format>,
) -> Result<Forms, LoadError> {
    if let Some(adapter) = source.adapter {
        adapter.check_is_used(&changeable(&tensors::all(spec)))?;
        adapter.check_copies(source.weights)?;
    }
    let codes = FromFiles { source, rounded };
    packed::forms::<T>(&rank_tensors(spec, shard), shard.ranks, &codes)
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
    packed::forms::<T>(&rank_tensors(spec, shard), shard.ranks, codes)
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
        let held = rank_tensors(spec, shard);
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
            let is_of = |held: &&RankTensor| {
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
                &spec.layers[shard.layers.start + layer].feed_forward,
                shard,
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
        source: WeightSource<'_>,
    ) -> Result<Vec<TensorCopy<T>>, LoadError> {
        let weights = source.weights;
        let copy = |held: &RankTensor| {
            let RankTensor { whole, own, part, .. } = held;
            let (from, change) = match whole.kind {
                Kind::Norm | Kind::NormBias | Kind::Values => {
                    (Origin::Numbers(vector(whole, &part.rows, spec, weights)?), None)
                }
                Kind::Bias(..) => (Origin::Numbers(whole.find(weights)?.part(0..1, part.rows.clone())), None),
                Kind::Table => (Origin::of_matrix(whole, part, whole.find_matrix(weights)?)?, None),
                Kind::Matrix(..) => {
                    let found = RankMatrix::find(whole, part, source)?;
                    let change = found.delta.map(|delta| MergedChange::new(delta, held));
                    (Origin::of_matrix(whole, part, found.whole)?, change)
                }
            };
            Ok(TensorCopy { from, change, to: self.place_of(own) })
        };
        let is_copied = |held: &&RankTensor| {
            !held.part.is_empty() && Matrix::of(&held.own).is_none_or(|matrix| !self.is_packed(matrix))
        };
        rank_tensors(spec, shard).iter().filter(is_copied).map(copy).collect()
    }

    /// Finds the rows of every packed matrix of the rank of `shard`. `rounded`: as for [`forms`].
    ///
    /// # Errors
    /// As for [`forms`].
    pub fn packed_sources(
        &self,
        spec: &Spec,
        shard: &Shard,
        source: WeightSource<'_>,
        rounded: Option<Format>,
    ) -> Result<Vec<PackedCopy<T>>, LoadError> {
        let mut copies: Vec<(Matrix, PackedCopy<T>)> = Vec::new();
        for held in rank_tensors(spec, shard).iter().filter(|held| !held.part.is_empty()) {
            let Some(matrix) = Matrix::of(&held.own).filter(|matrix| self.is_packed(*matrix)) else {
                continue;
            };
            let Some(found) = Source::find(held, source, rounded)? else {
                unreachable!("the form of {} was made from it", held.whole.name)
            };
            let first = if let Kind::Matrix(_, first) = held.own.kind { first } else { 0 };
            match copies.iter_mut().find(|(of, _)| *of == matrix) {
                Some((_, copy)) => copy.from.push((first, found)),
                None => copies
                    .push((matrix, PackedCopy { to: *self.weight_of(matrix), from: vec![(first, found)] })),
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
