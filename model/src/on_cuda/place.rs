//! Takes device memory for matrices.

use std::ops::Range;

use skein_kernels::cuda::DeviceSlice;
use skein_kernels::cuda::arena::Carver;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::linear::{Granularity, LinearWeight, WeightValues};
use skein_kernels::cuda::ops::packed::{Form, PackedValues, Shape};

use crate::tensors::ProductShape;

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

/// Scales of layer matrices in e4m3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum E4m3Scales {
    /// One scale per output. If a product's inputs are split over ranks, each rank has its own.
    Output,
    /// The same, but one scale per leaf of such products, so that scales do not depend on the number of
    /// ranks.
    Leaf,
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
