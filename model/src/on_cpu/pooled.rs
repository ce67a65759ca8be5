//! Vectors of prompts: rows after the last norm become one, which the layers of a head change. Everything is
//! in f32 and summed in one order, so that a vector does not depend on the other prompts of a step.

use std::ops::Range;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::layer_norm::{LayerNorm, layer_norm};
use skein_kernels::cpu::math::tanh;
use skein_kernels::cpu::matmul::{Linear, Write, matmul};
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cpu::mlp::activate;
use skein_kernels::cpu::packed::{Format, Packed};

use super::model::Model;
use super::profile::Part;
use super::step::Activations;
use super::widened::widened;
use crate::LoadError;
use crate::checkpoint::Weights;
use crate::pooled_head::{HeadActivation, HeadLayer, HeadWeights, PooledHead};
use crate::pooling::PooledRows;

/// The layers of a head.
pub(super) struct PooledWeights {
    layers: Vec<Layer>,
}

struct Layer {
    weights: Packed,
    bias: Option<Vec<f32>>,
    activation: HeadActivation,
    norm: Option<Norm>,
}

struct Norm {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    eps: f32,
}

/// Memory of a step's vectors.
#[derive(Default)]
pub(super) struct Vectors {
    /// `[vectors, width]`
    values: Aligned<f32>,
    /// The same after the next layer.
    next: Aligned<f32>,
    input: Input,
}

impl PooledWeights {
    /// Reads and packs the layers of `head`.
    ///
    /// # Errors
    /// If a tensor is missing, has the wrong shape, or is not finite.
    pub fn read(head: &PooledHead, weights: &Weights) -> Result<Self, LoadError> {
        let mut cpu = Cpu::new(1); // they are small
        let layers = head.layers.iter().map(|layer| Layer::read(&mut cpu, layer, weights));
        Ok(Self { layers: layers.collect::<Result<_, LoadError>>()? })
    }
}

impl Layer {
    fn read(cpu: &mut Cpu, of: &HeadLayer, weights: &Weights) -> Result<Self, LoadError> {
        let vector = |name: &String| numbers(weights, name, &[of.outputs], 0..of.outputs);
        let norm = of.norm.as_ref().map(|norm| -> Result<Norm, LoadError> {
            let bias = norm.bias.as_ref().map(vector).transpose()?;
            Ok(Norm { weight: vector(&norm.weight)?, bias, eps: norm.eps })
        });
        let (matrix, name) = matrix(of, weights)?;
        let bytes = matrix.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let matrix = WeightMatrix::new(Storage::F32(bytes.into()), of.outputs, of.inputs);
        let failed = |source| LoadError::UnpackedTensor { tensor: name, source };
        Ok(Self {
            weights: Packed::of(cpu, &matrix, Format::F32).map_err(failed)?,
            bias: of.bias.as_ref().map(vector).transpose()?,
            activation: of.activation,
            norm: norm.transpose()?,
        })
    }
}

/// The matrix of a layer, and the name of the tensor that it is of.
fn matrix(of: &HeadLayer, weights: &Weights) -> Result<(Vec<f32>, String), LoadError> {
    match &of.weights {
        HeadWeights::Matrix(name) => {
            Ok((numbers(weights, name, &[of.outputs, of.inputs], 0..of.outputs)?, name.clone()))
        }
        HeadWeights::Logits { names, vocab_size, token, without } => {
            let name = names.iter().find(|name| weights.contains(name)).unwrap_or(&names[0]);
            let row = |token: u32| {
                let row = token as usize;
                numbers(weights, name, &[*vocab_size, of.inputs], row..row + 1)
            };
            let mut values = row(*token)?;
            if let Some(without) = without {
                values.iter_mut().zip(row(*without)?).for_each(|(value, other)| *value -= other);
            }
            Ok((values, name.clone()))
        }
    }
}

/// Some rows of the tensor `name`, as f32.
fn numbers(
    weights: &Weights,
    name: &str,
    shape: &[usize],
    rows: Range<usize>,
) -> Result<Vec<f32>, LoadError> {
    let cols = shape.get(1).copied().unwrap_or(1);
    let stored = WeightMatrix::new(weights.rows(name, shape, rows.clone())?, rows.len(), cols);
    widened(&stored, name, rows.start)
}

impl PooledRows {
    /// Those of a prompt's `rows` that its vector is made of.
    pub fn of(self, rows: Range<u32>) -> Range<u32> {
        match self {
            Self::First => rows.start..rows.end.min(rows.start + 1),
            Self::Last => rows.end.saturating_sub(1).max(rows.start)..rows.end,
            Self::Mean => rows,
        }
    }
}

impl Model {
    /// Vectors of the last step, of these runs of its wanted rows: `[vectors, width]`.
    ///
    /// # Panics
    /// In any but the last stage of a model that pools, or if a run has no rows.
    pub fn pool<'a>(
        &self,
        cpu: &mut Cpu,
        runs: &[Range<usize>],
        activations: &'a mut Activations,
    ) -> &'a [f32] {
        let Activations { x, input, vectors, profile, .. } = activations;
        let pooled = self.pooled.as_ref().unwrap_or_else(|| unreachable!("the last stage pools"));
        let hidden = self.spec.hidden_size;
        profile.start();
        let rows = runs.iter().map(|run| run.end).max().unwrap_or_default();
        self.normalise_into(cpu, &x[..rows * hidden], self.norm.as_ref(), Encoding::F32, input);
        vectors.values.grow(runs.len() * hidden);
        let normalised = input.as_f32();
        for (run, to) in runs.iter().zip(vectors.values.chunks_exact_mut(hidden)) {
            let row = |row: usize| &normalised.values[row * normalised.stride..][..hidden];
            assert!(!run.is_empty(), "a vector is made of rows");
            to.copy_from_slice(row(run.start));
            for next in run.start + 1..run.end {
                to.iter_mut().zip(row(next)).for_each(|(sum, value)| *sum += value);
            }
            if run.len() > 1 {
                let count = run.len() as f32;
                to.iter_mut().for_each(|sum| *sum /= count);
            }
        }
        let mut width = hidden;
        for layer in &pooled.layers {
            vectors.run(cpu, layer, runs.len(), width);
            width = layer.weights.rows();
        }
        profile.mark(Part::Head);
        &vectors.values[..runs.len() * width]
    }
}

impl Vectors {
    /// Replaces the vectors of `width` values by what `layer` makes of them.
    fn run(&mut self, cpu: &mut Cpu, layer: &Layer, count: usize, width: usize) {
        let Self { values, next, input } = self;
        let outputs = layer.weights.rows();
        next.grow(count * outputs);
        input.set(cpu, Encoding::F32, &values[..count * width], width);
        let linear = Linear { weights: &layer.weights, bias: layer.bias.as_deref() };
        let to = &mut next[..count * outputs];
        matmul(cpu, input, &[linear], to, Write::Set);
        match layer.activation {
            HeadActivation::Identity => {}
            HeadActivation::Tanh => to.iter_mut().for_each(|value| *value = tanh(*value)),
            HeadActivation::Gate(gate) => activate(cpu, gate, to),
        }
        if let Some(Norm { weight, bias, eps }) = &layer.norm {
            layer_norm(cpu, to, LayerNorm { weight, bias: bias.as_deref(), eps: *eps });
        }
        std::mem::swap(values, next);
    }
}
