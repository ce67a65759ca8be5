//! AWQ on a layer: scales that move from activations into weights, and clipping.
//!
//! An input's scale is divided out of what produces it: the norm before query, key and value, or before gate
//! and up; the rows of the value projection for the output projection; the rows of `up` for `down`. Where
//! that is not possible, inputs are not scaled.

use std::collections::HashMap;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};

use super::QuantizeError;
use super::encode::{Encoded, floats};
use super::layer::add_product;
use super::maths::awq;
use super::maths::grid::{Rule, ScaleType};
use super::original::{Original, Target};
use super::statistics::Statistics;
use crate::model::tensors::{Kind, Product, Role, Tensor};

/// Scales of a layer.
#[derive(Default)]
pub(super) struct Scales {
    /// Factors of the inputs of each product.
    inputs: HashMap<Product, Vec<f32>>,
    /// Divisors of a matrix's outputs, by stored name, each with its first row.
    outputs: HashMap<String, Vec<(usize, Vec<f32>)>>,
    /// Vectors that replace stored ones.
    pub vectors: Vec<Encoded>,
}

impl Scales {
    /// Multiplies `weights` of `target` by its scales.
    pub fn apply(&self, target: &Target, weights: &mut [f32]) {
        self.each(target, |factors, rows| {
            let cols = target.cols;
            for (row, factor) in rows {
                weights[row * cols..][..cols].iter_mut().for_each(|weight| *weight /= factor);
            }
            if let Some(factors) = factors {
                awq::multiply_columns(weights, factors);
            }
        });
    }

    /// Reverts [`Scales::apply`] on weights of `target`.
    pub fn undo(&self, target: &Target, weights: &mut [f32]) {
        self.each(target, |factors, rows| {
            let cols = target.cols;
            if let Some(factors) = factors {
                let inverse: Vec<f32> = factors.iter().map(|factor| 1.0 / factor).collect();
                awq::multiply_columns(weights, &inverse);
            }
            for (row, factor) in rows {
                weights[row * cols..][..cols].iter_mut().for_each(|weight| *weight *= factor);
            }
        });
    }

    fn each(&self, target: &Target, mut work: impl FnMut(Option<&[f32]>, Vec<(usize, f32)>)) {
        let none = Vec::new();
        let divided = self.outputs.get(&target.name).unwrap_or(&none).iter();
        let rows = divided.flat_map(|(first, by)| by.iter().enumerate().map(move |(i, by)| (first + i, *by)));
        work(self.inputs.get(&target.product).map(Vec::as_slice), rows.collect());
    }

    /// Factors of the inputs of `product`; `None` = 1.
    pub fn of_inputs(&self, product: Product) -> Option<&[f32]> {
        self.inputs.get(&product).map(Vec::as_slice)
    }
}

/// What the search for a layer's scales reads.
pub(super) struct Search<'a> {
    pub source: &'a Original,
    pub layer: usize,
    pub rule: Rule,
    pub group: usize,
    pub targets: &'a [Target],
    pub statistics: &'a HashMap<Product, Statistics>,
}

impl Search<'_> {
    /// Finds the scales of the layer.
    pub fn run(&self, cpu: &mut Cpu) -> Result<Scales, QuantizeError> {
        let mut scales = Scales::default();
        let spec = &self.source.spec;
        for (product, norm) in [(Product::Qkv, Role::AttentionNorm), (Product::GateUp, Role::FeedForwardNorm)]
        {
            let norm = self.source.tensor(self.layer, norm, |kind| kind == Kind::Norm);
            // A norm that both parts of a layer read would need the same scales for both.
            if let Some(norm) = norm.filter(|_| !spec.is_parallel) {
                let factors = self.best(cpu, product, None)?;
                let factors = self.divide_norm(norm, factors, &mut scales)?;
                scales.inputs.insert(product, factors);
            }
        }
        let value = self.source.tensor(self.layer, Role::Value, is_matrix);
        if let Some(value) = value.filter(|value| value.order.is_none()) {
            let factors = self.best(cpu, Product::AttentionOutput, Some(spec.attention.head_dim))?;
            let by = self.of_values(&factors);
            self.divide_rows(value, by, &mut scales)?;
            scales.inputs.insert(Product::AttentionOutput, factors);
        }
        let up = self.source.tensor(self.layer, Role::Up, is_matrix);
        // Without a gate, an activation lies between `up` and `down`.
        if let Some(up) = up.filter(|_| spec.layers[self.layer].feed_forward.is_gated) {
            let factors = self.best(cpu, Product::Down, None)?;
            self.divide_rows(up, factors.clone(), &mut scales)?;
            scales.inputs.insert(Product::Down, factors);
        }
        Ok(scales)
    }

    /// The best factors of the inputs of `product`. With `head_dim`, heads that share a value share factors.
    fn best(
        &self,
        cpu: &mut Cpu,
        product: Product,
        head_dim: Option<usize>,
    ) -> Result<Vec<f32>, QuantizeError> {
        let Some(statistics) = self.statistics.get(&product) else { return Ok(Vec::new()) };
        let mean = statistics.means();
        let share = |scales: &mut [f32]| {
            if let Some(head_dim) = head_dim {
                let attention = &self.source.spec.attention;
                share(scales, head_dim, attention.heads / attention.kv_heads);
            }
        };
        let reading = self.targets.iter().filter(|target| target.product == product);
        let weights = reading.map(|target| self.source.widen(target)).collect::<Result<Vec<_>, _>>()?;
        let matrices: Vec<&[f32]> = weights.iter().map(Vec::as_slice).collect();
        let (examples, cols) = (&statistics.examples, mean.len());
        let (factors, exponent) =
            awq::scales(&matrices, &mean, (self.rule, self.group), share, |_, change| {
                let mut errors = vec![0f32; examples.len() / cols * (change.len() / cols)];
                add_product(cpu, examples, change, cols, &mut errors);
                errors.iter().map(|error| f64::from(*error).powi(2)).sum()
            });
        tracing::debug!(layer = self.layer, ?product, exponent, "scales");
        Ok(factors)
    }

    /// Divides a norm by `factors`. Returns the factors that its rounded weights need.
    fn divide_norm(
        &self,
        norm: &Tensor,
        factors: Vec<f32>,
        scales: &mut Scales,
    ) -> Result<Vec<f32>, QuantizeError> {
        let offset = self.source.spec.norm.offset;
        let (name, before, kind) = self.vector(norm)?;
        let divided = before.iter().zip(&factors).map(|(weight, by)| (weight + offset) / by - offset);
        let (dtype, bytes) = floats(divided, kind);
        let after = read(&bytes, kind);
        let exact = before.iter().zip(&after).zip(&factors).map(|((before, after), by)| {
            let exact = (before + offset) / (after + offset);
            if exact.is_finite() && exact > 0.0 { exact } else { *by }
        });
        let exact: Vec<f32> = exact.collect();
        scales.vectors.push(Encoded { name, dtype, shape: vec![after.len()], bytes });
        if let Some(bias) = self.source.tensor(self.layer, norm.role, |kind| kind == Kind::NormBias) {
            self.divide_vector(bias, 0, &exact, scales)?;
        }
        Ok(exact)
    }

    /// Divides the outputs of `tensor`, and their biases.
    fn divide_rows(&self, tensor: &Tensor, by: Vec<f32>, scales: &mut Scales) -> Result<(), QuantizeError> {
        let is_bias = |kind| matches!(kind, Kind::Bias(..));
        if let Some(bias) = self.source.tensor(self.layer, tensor.role, is_bias) {
            let first = self.source.stored(bias).map_or(0, |stored| stored.first_row);
            self.divide_vector(bias, first, &by, scales)?;
        }
        if let Some(stored) = self.source.stored(tensor) {
            let name = self.source.files.stored_name(&stored.name).unwrap_or(&stored.name);
            scales.outputs.entry(name.to_owned()).or_default().push((stored.first_row, by));
        }
        Ok(())
    }

    /// Divides values `first..` of a stored vector.
    fn divide_vector(
        &self,
        tensor: &Tensor,
        first: usize,
        by: &[f32],
        scales: &mut Scales,
    ) -> Result<(), QuantizeError> {
        let (name, mut values, kind) = self.vector(tensor)?;
        values[first..].iter_mut().zip(by).for_each(|(value, by)| *value /= by);
        let shape = vec![values.len()];
        let (dtype, bytes) = floats(values.into_iter(), kind);
        scales.vectors.push(Encoded { name, dtype, shape, bytes });
        Ok(())
    }

    /// A whole stored vector: name, values, type.
    fn vector(&self, tensor: &Tensor) -> Result<(String, Vec<f32>, ScaleType), QuantizeError> {
        let stored = self.source.stored(tensor).unwrap_or(&tensor.stored[0]);
        let len = stored.shape[0];
        let storage = self.source.files.rows(&stored.name, &stored.shape, 0..len)?;
        let kind = match storage {
            Storage::F16(_) => ScaleType::F16,
            Storage::F32(_) => ScaleType::F32,
            Storage::Bf16(_) | Storage::Blocks(..) => ScaleType::Bf16,
        };
        let mut values = vec![0f32; len];
        WeightMatrix::new(storage, 1, len).widen_row(0, &mut values);
        let name = self.source.files.stored_name(&stored.name).unwrap_or(&stored.name);
        Ok((name.to_owned(), values, kind))
    }

    /// Divisors of the value projection's outputs for `factors` of the attention's outputs.
    fn of_values(&self, factors: &[f32]) -> Vec<f32> {
        let attention = &self.source.spec.attention;
        let (dim, group) = (attention.head_dim, attention.heads / attention.kv_heads);
        (0..attention.kv_heads * dim).map(|i| factors[i / dim * group * dim + i % dim]).collect()
    }
}

fn is_matrix(kind: Kind) -> bool {
    matches!(kind, Kind::Matrix(..))
}

fn read(bytes: &[u8], kind: ScaleType) -> Vec<f32> {
    let storage = match kind {
        ScaleType::F16 => Storage::F16(bytes.to_vec().into()),
        ScaleType::Bf16 => Storage::Bf16(bytes.to_vec().into()),
        ScaleType::F32 => Storage::F32(bytes.to_vec().into()),
    };
    let len = bytes.len() / storage.bytes_of(1);
    let mut values = vec![0f32; len];
    WeightMatrix::new(storage, 1, len).widen_row(0, &mut values);
    values
}

/// Replaces the scales of the `group` heads that read the same value by their average.
fn share(scales: &mut [f32], head_dim: usize, group: usize) {
    for heads in scales.chunks_mut(group * head_dim) {
        for i in 0..head_dim {
            let sum: f32 = heads.iter().skip(i).step_by(head_dim).sum();
            heads.iter_mut().skip(i).step_by(head_dim).for_each(|scale| *scale = sum / group as f32);
        }
    }
}
