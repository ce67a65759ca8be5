//! Weights of a model on a device, and the mapping from the checkpoint's tensors.

use std::ops::Range;

use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cuda::DeviceSlice;
use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::linear::{Granularity, LinearWeight, WeightValues};

use crate::model::LoadError;
use crate::model::checkpoint::Weights;
use crate::model::spec::Spec;
use crate::model::tensors::{self, Kind, Product, ProductShape, Role, Tensor};

/// All weights. Matrices are `[outputs, inputs]` as in the checkpoint; matrices with the same input are
/// stacked.
pub struct DeviceWeights<T> {
    /// `[vocab, hidden]`: the embedding table.
    pub embedding: DeviceSlice<T>,
    /// Layers in order.
    pub layers: Vec<LayerWeights<T>>,
    /// `[hidden]`: the last normalisation.
    pub norm: DeviceSlice<f32>,
    /// `[vocab, hidden]`: the embedding table if they are tied.
    pub head: LinearWeight<T>,
}

/// One layer's weights.
pub struct LayerWeights<T> {
    /// Indexed by [`Product`].
    products: [LinearWeight<T>; Product::OF_A_LAYER.len()],
    /// Indexed by [`Role`]; [`DeviceSlice::NONE`] if the model lacks it.
    norms: [DeviceSlice<f32>; Role::COUNT],
}

impl<T> LayerWeights<T> {
    /// The stacked matrices of a product.
    pub fn product(&self, product: Product) -> &LinearWeight<T> {
        &self.products[product as usize]
    }

    /// A normalisation's weights, or [`DeviceSlice::NONE`].
    pub fn norm(&self, role: Role) -> DeviceSlice<f32> {
        self.norms[role as usize]
    }

    /// All products, in the order of a step.
    pub fn products(&self) -> &[LinearWeight<T>] {
        &self.products
    }

    /// All normalisations' weights.
    pub fn norms(&self) -> impl Iterator<Item = DeviceSlice<f32>> {
        self.norms.iter().copied().filter(|norm| !norm.is_empty())
    }
}

/// A checkpoint tensor and its destination on the device.
pub struct TensorCopy<T> {
    /// Tensor in the file, or values of a norm.
    pub from: WeightMatrix,
    /// Destination of its rows.
    pub to: Place<T>,
}

/// A place on the device.
#[derive(Debug, Clone, Copy)]
pub enum Place<T> {
    /// Values of the activations' type: matrices and biases.
    Values(DeviceSlice<T>),
    /// f32 values of a norm.
    Wide(DeviceSlice<f32>),
    /// Matrix quantised row by row during upload.
    Quantised {
        /// The quantised rows.
        values: DeviceSlice<E4m3>,
        /// A scale for each row.
        scales: DeviceSlice<f32>,
    },
}

/// Shapes `[n, k]` of the layers' matrices. Excludes the head, which writes to the logits.
pub fn shapes(spec: &Spec) -> Vec<(usize, usize)> {
    let tensors = tensors::all(spec);
    let products = tensors::products(&tensors).into_iter();
    products.filter(|((layer, _), _)| layer.is_some()).map(|(_, shape)| (shape.rows, shape.cols)).collect()
}

impl<T: Activation> DeviceWeights<T> {
    /// Allocates all weights. `quantised`: the layers' matrices are e4m3 with a scale per output.
    pub fn place(spec: &Spec, quantised: bool, memory: &mut Carver) -> Self {
        let tensors = tensors::all(spec);
        let head = tensors::head(&tensors);
        let embedding = memory.take(tensors::embedding(spec).len());
        let values = if head.role == Role::Embedding { embedding } else { memory.take(head.len()) };
        let values = WeightValues::Same(values);
        let head = LinearWeight { n: head.rows, k: head.cols, bias: DeviceSlice::NONE, values };
        let products = tensors::products(&tensors);
        let mut place = |layer| LayerWeights {
            products: Product::OF_A_LAYER
                .map(|product| place_product(products[&(Some(layer), product)], quantised, memory)),
            norms: [DeviceSlice::NONE; Role::COUNT],
        };
        let mut layers: Vec<_> = (0..spec.layers.len()).map(&mut place).collect();
        for tensor in tensors.iter().filter(|tensor| tensor.kind == Kind::Norm) {
            if let Some(layer) = tensor.layer {
                layers[layer].norms[tensor.role as usize] = memory.take(tensor.rows);
            }
        }
        Self { embedding, layers, norm: memory.take(spec.hidden_size), head }
    }

    /// Finds and validates every tensor of the checkpoint, with its destination.
    ///
    /// # Errors
    /// A tensor that is missing or has the wrong type or shape.
    pub fn sources(&self, spec: &Spec, weights: &Weights) -> Result<Vec<TensorCopy<T>>, LoadError> {
        let source = |tensor: &Tensor| {
            let from = if tensor.kind == Kind::Norm {
                norm(tensor, spec, weights)?
            } else {
                tensor.find(weights)?
            };
            Ok(TensorCopy { from, to: self.place_of(tensor) })
        };
        tensors::all(spec).iter().map(source).collect()
    }

    /// Destination of `tensor`.
    fn place_of(&self, tensor: &Tensor) -> Place<T> {
        let layer = tensor.layer.map(|layer| &self.layers[layer]);
        let weight = |product| layer.map_or(&self.head, |layer| layer.product(product));
        let rows = |first| first..first + tensor.rows;
        match tensor.kind {
            Kind::Table => Place::Values(self.embedding),
            Kind::NormBias => unreachable!("models with layer normalisation are refused"),
            Kind::Values => unreachable!("models with experts are refused"),
            Kind::Norm => Place::Wide(layer.map_or(self.norm, |layer| layer.norm(tensor.role))),
            Kind::Bias(product, first) => Place::Values(weight(product).bias.slice(rows(first))),
            Kind::Matrix(product, first) => place_of_rows(weight(product), rows(first)),
        }
    }
}

/// Weights of a norm as they are applied.
fn norm(tensor: &Tensor, spec: &Spec, weights: &Weights) -> Result<WeightMatrix, LoadError> {
    let values: Vec<u8> = tensor.read(spec, weights)?.into_iter().flat_map(f32::to_le_bytes).collect();
    Ok(WeightMatrix::new(Storage::F32(values.into()), 1, tensor.rows))
}

/// Takes memory for a product's matrices.
fn place_product<T: Activation>(
    shape: ProductShape,
    quantised: bool,
    memory: &mut Carver,
) -> LinearWeight<T> {
    let ProductShape { rows: n, cols: k, has_bias } = shape;
    LinearWeight {
        n,
        k,
        bias: if has_bias { memory.take(n) } else { DeviceSlice::NONE },
        values: if quantised {
            let (values, scales) = (memory.take(n * k), memory.take(n));
            WeightValues::E4m3 { values, scales, granularity: Granularity::Channel }
        } else {
            WeightValues::Same(memory.take(n * k))
        },
    }
}

/// Destination of a range of rows in a product's matrices.
fn place_of_rows<T: Activation>(weight: &LinearWeight<T>, rows: Range<usize>) -> Place<T> {
    let inside = rows.start * weight.k..rows.end * weight.k;
    match weight.values {
        WeightValues::Same(values) => Place::Values(values.slice(inside)),
        WeightValues::E4m3 { values, scales, .. } => {
            Place::Quantised { values: values.slice(inside), scales: scales.slice(rows) }
        }
    }
}
