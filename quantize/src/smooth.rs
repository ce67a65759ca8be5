//! AWQ on a layer: scales that move from activations into weights, and clipping.
//!
//! An input's scale is divided out of what produces it: the norm before query, key and value, or before gate
//! and up; the rows of the value projection for the output projection; the rows of `up` for `down`. Where
//! that is not possible, inputs are not scaled.
//!
//! The experts of a layer share the scales of their input, as in AutoAWQ, with the network beside them; each
//! has its own before `down`. Their router reads the same norm: its weights are multiplied, too. So that it
//! chooses the same experts, those scales are powers of two, which no rounding changes.

use std::collections::HashMap;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_model::on_cpu::capture::{Network, Reader};
use skein_model::tensors::{Kind, Product, Role, Tensor};

use super::QuantizeError;
use super::encode::{Encoded, floats};
use super::layer::add_product;
use super::maths::awq::{self, Candidate, RelativeWeights};
use super::maths::grid::{Rule, ScaleType};
use super::original::{Original, Target, Written};
use super::statistics::Statistics;

/// Scales of a layer.
#[derive(Default)]
pub(super) struct Scales {
    /// Factors of the inputs of each product.
    inputs: HashMap<Reader, Vec<f32>>,
    /// Divisors of a matrix's outputs, by the name under which it is written, each with its first row.
    outputs: HashMap<String, Vec<(usize, Vec<f32>)>>,
    /// Vectors and routers that replace stored ones.
    pub replaced: Vec<Encoded>,
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
        work(self.of_inputs(target.reader), rows.collect());
    }

    /// Factors of the inputs of `reader`; `None` = 1.
    pub fn of_inputs(&self, reader: Reader) -> Option<&[f32]> {
        self.inputs.get(&reader).map(Vec::as_slice)
    }
}

/// What the search for a layer's scales reads.
pub(super) struct Search<'a> {
    pub source: &'a Original,
    pub layer: usize,
    pub rule: Rule,
    pub group: usize,
    pub targets: &'a [Target],
    pub statistics: &'a HashMap<Reader, Statistics>,
}

impl Search<'_> {
    /// Finds the scales of the layer.
    pub fn run(&self, cpu: &mut Cpu) -> Result<Scales, QuantizeError> {
        let mut scales = Scales::default();
        // A norm that both parts of a layer read would need the same scales for both.
        if !self.source.spec.is_parallel {
            self.behind_norm(cpu, Product::Qkv, Role::AttentionNorm, &mut scales)?;
            self.behind_norm(cpu, Product::GateUp, Role::FeedForwardNorm, &mut scales)?;
        }
        let value = self.source.tensor(self.layer, Role::Value, None, is_matrix);
        let reader = Reader::of_layer(Product::AttentionOutput);
        if let Some(value) = value.filter(|value| value.order.is_none())
            && let Some(factors) = self.best(cpu, &[reader], reader, |scales| self.share(scales))?
        {
            self.divide_rows(value, self.of_values(&factors), &mut scales)?;
            scales.inputs.insert(reader, factors);
        }
        // Without a gate, an activation lies between `up` and `down`.
        if self.source.spec.layers[self.layer].feed_forward.is_gated {
            for reader in self.readers(Product::Down) {
                let (role, expert) = match reader.network {
                    Network::Layer => (Role::Up, None),
                    Network::Expert(expert) => (Role::ExpertUp, Some(expert)),
                    Network::Shared => (Role::SharedUp, None),
                };
                let up = self.source.tensor(self.layer, role, expert, is_matrix);
                if let Some(up) = up
                    && let Some(factors) = self.best(cpu, &[reader], reader, |_| {})?
                {
                    self.divide_rows(up, factors.clone(), &mut scales)?;
                    scales.inputs.insert(reader, factors);
                }
            }
        }
        Ok(scales)
    }

    /// Scales the inputs of `product`, which are the outputs of a norm.
    fn behind_norm(
        &self,
        cpu: &mut Cpu,
        product: Product,
        norm: Role,
        scales: &mut Scales,
    ) -> Result<(), QuantizeError> {
        let Some(norm) = self.source.tensor(self.layer, norm, None, |kind| kind == Kind::Norm) else {
            return Ok(());
        };
        let readers = self.readers(product);
        let is_mixture = readers.iter().any(|reader| reader.network != Network::Layer);
        let measured = Reader::of_layer(if is_mixture { Product::Router } else { product });
        let round = |scales: &mut [f32]| {
            if is_mixture {
                scales.iter_mut().for_each(|scale| *scale = scale.log2().round().exp2());
            }
        };
        let Some(factors) = self.best(cpu, &readers, measured, round)? else { return Ok(()) };
        let factors = self.divide_norm(norm, factors, scales)?;
        if is_mixture {
            for role in [Role::Router, Role::SharedRouter] {
                if let Some(router) = self.source.tensor(self.layer, role, None, is_matrix) {
                    self.multiply_router(router, &factors, scales)?;
                }
            }
        }
        for reader in readers {
            scales.inputs.insert(reader, factors.clone());
        }
        Ok(())
    }

    /// What reads the inputs of `product`, in the order of the targets.
    fn readers(&self, product: Product) -> Vec<Reader> {
        let mut readers: Vec<Reader> = self.targets.iter().map(|target| target.reader).collect();
        readers.dedup();
        readers.retain(|reader| reader.product == product);
        readers
    }

    /// The best factors of the inputs of `readers`; the inputs of `measured` have the mean magnitudes. `None`
    /// if no row was measured.
    fn best(
        &self,
        cpu: &mut Cpu,
        readers: &[Reader],
        measured: Reader,
        share: impl Fn(&mut [f32]),
    ) -> Result<Option<Vec<f32>>, QuantizeError> {
        let Some(measured) = self.statistics.get(&measured) else { return Ok(None) };
        let (mean, rule) = (measured.means(), self.rule);
        let (cols, group) = (mean.len(), self.group.min(mean.len()));
        let matrices = || self.targets.iter().filter(move |target| readers.contains(&target.reader));
        let mut relative = RelativeWeights::new(cols, group);
        for target in matrices() {
            relative.add(&self.source.widen(target)?);
        }
        let mut candidates = awq::candidates(&mean, &relative.means(), share);
        for target in matrices() {
            let Some(Statistics { examples, .. }) = self.statistics.get(&target.reader) else { continue };
            let weights = self.source.widen(target)?;
            for candidate in &mut candidates {
                let change = awq::change(&weights, cols, &candidate.scales, rule, group);
                let mut errors = vec![0f32; examples.len() / cols * target.rows];
                add_product(cpu, examples, &change, cols, &mut errors);
                candidate.error += errors.iter().map(|error| f64::from(*error).powi(2)).sum::<f64>();
            }
        }
        let Some(Candidate { scales, exponent, .. }) = awq::best(candidates) else { return Ok(None) };
        tracing::debug!(layer = self.layer, ?readers, exponent, "scales");
        Ok(Some(scales))
    }

    /// Multiplies a router's weights by the factors of its inputs.
    fn multiply_router(
        &self,
        router: &Tensor,
        factors: &[f32],
        scales: &mut Scales,
    ) -> Result<(), QuantizeError> {
        let Some(Written { name, .. }) = self.source.written(router) else { return Ok(()) };
        let stored = router.find_stored(&self.source.weights)?;
        let mut values = vec![0f32; router.len()];
        for (row, to) in values.chunks_exact_mut(router.cols).enumerate() {
            stored.widen_row(row, to);
        }
        awq::multiply_columns(&mut values, factors);
        let (dtype, bytes) = floats(values.into_iter(), kind_of(stored.storage()));
        scales.replaced.push(Encoded { name, dtype, shape: vec![router.rows, router.cols], bytes });
        Ok(())
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
        scales.replaced.push(Encoded { name, dtype, shape: vec![after.len()], bytes });
        if let Some(bias) = self.source.tensor(self.layer, norm.role, None, |kind| kind == Kind::NormBias) {
            self.divide_vector(bias, 0, &exact, scales)?;
        }
        Ok(exact)
    }

    /// Divides the outputs of `tensor`, and their biases.
    fn divide_rows(&self, tensor: &Tensor, by: Vec<f32>, scales: &mut Scales) -> Result<(), QuantizeError> {
        let is_bias = |kind| matches!(kind, Kind::Bias(..));
        if let Some(bias) = self.source.tensor(self.layer, tensor.role, tensor.expert, is_bias) {
            let first = self.source.stored(bias).map_or(0, |stored| stored.first_row);
            self.divide_vector(bias, first, &by, scales)?;
        }
        if let Some(Written { name, first_row, .. }) = self.source.written(tensor) {
            scales.outputs.entry(name).or_default().push((first_row, by));
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
        scales.replaced.push(Encoded { name, dtype, shape, bytes });
        Ok(())
    }

    /// A whole stored vector: name, values, type.
    fn vector(&self, tensor: &Tensor) -> Result<(String, Vec<f32>, ScaleType), QuantizeError> {
        let stored = self.source.stored(tensor).unwrap_or(&tensor.stored[0]);
        let len = stored.shape[0];
        let storage = self.source.files.rows(&stored.name, &stored.shape, 0..len)?;
        let kind = kind_of(&storage);
        let mut values = vec![0f32; len];
        WeightMatrix::new(storage, 1, len).widen_row(0, &mut values);
        let name = self.source.files.stored_name(&stored.name).unwrap_or(&stored.name);
        Ok((name.to_owned(), values, kind))
    }

    /// Makes the scales equal of the heads that read the same value.
    fn share(&self, scales: &mut [f32]) {
        let attention = &self.source.spec.attention;
        share(scales, attention.head_dim, attention.heads / attention.kv_heads);
    }

    /// Divisors of the value projection's outputs for `factors` of the attention's outputs.
    fn of_values(&self, factors: &[f32]) -> Vec<f32> {
        let attention = &self.source.spec.attention;
        let (dim, group) = (attention.head_dim, attention.heads / attention.kv_heads);
        (0..attention.kv_heads * dim).map(|i| factors[i / dim * group * dim + i % dim]).collect()
    }
}

fn kind_of(storage: &Storage) -> ScaleType {
    match storage {
        Storage::F16(_) => ScaleType::F16,
        Storage::F32(_) => ScaleType::F32,
        Storage::Bf16(_) | Storage::Blocks(..) => ScaleType::Bf16,
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
