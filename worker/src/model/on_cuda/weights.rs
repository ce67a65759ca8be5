//! A Llama's weights on a device: where they lie, and what of the checkpoint goes there.

use skein_kernels::cpu::matrix::WeightMatrix;
use skein_kernels::cuda::DeviceSlice;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::linear::{Granularity, LinearWeight, WeightValues};

use crate::model::LoadError;
use crate::model::checkpoint::Weights;
use crate::model::config::ModelConfig;
use skein_kernels::cuda::arena::Carver;

/// All weights. Matrices are `[outputs, inputs]` as in the checkpoint, those that read the same input stacked into one.
pub struct LlamaWeights<T> {
    /// `[vocab, hidden]`
    pub embedding: DeviceSlice<T>,
    /// In order.
    pub layers: Vec<LayerWeights<T>>,
    /// `[hidden]`: of the last normalisation.
    pub norm: DeviceSlice<f32>,
    /// `[vocab, hidden]`: the embedding table if they are tied.
    pub head: LinearWeight<T>,
}

/// One layer's weights.
pub struct LayerWeights<T> {
    /// `[hidden]`
    pub attention_norm: DeviceSlice<f32>,
    /// `[q | k | v, hidden]`
    pub qkv: LinearWeight<T>,
    /// `[head_dim]`: normalises each query head; none in most models.
    pub q_norm: DeviceSlice<f32>,
    /// The same of key heads.
    pub k_norm: DeviceSlice<f32>,
    /// `[hidden, heads * head_dim]`
    pub o: LinearWeight<T>,
    /// `[hidden]`
    pub mlp_norm: DeviceSlice<f32>,
    /// `[gate | up, hidden]`
    pub gate_up: LinearWeight<T>,
    /// `[hidden, intermediate]`
    pub down: LinearWeight<T>,
}

/// A tensor of the checkpoint, and its place on the device.
pub struct Source<T> {
    /// In the file.
    pub from: WeightMatrix,
    /// All its rows.
    pub to: Place<T>,
}

/// A place on the device.
#[derive(Debug, Clone, Copy)]
pub enum Place<T> {
    /// Values of the activations' type: matrices and biases.
    Values(DeviceSlice<T>),
    /// Norms.
    Wide(DeviceSlice<f32>),
    /// A matrix that is quantised on its way, row by row.
    Quantised {
        /// Its rows.
        values: DeviceSlice<E4m3>,
        /// A scale for each row.
        scales: DeviceSlice<f32>,
    },
}

impl<T: Activation> LlamaWeights<T> {
    /// Takes memory for all of them. `quantised`: the layers' matrices are e4m3 with a scale for each output.
    pub fn place(c: &ModelConfig, quantised: bool, memory: &mut Carver) -> Self {
        let (vocab, hidden) = (c.vocab_size as usize, c.hidden_size);
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let embedding = memory.take(vocab * hidden);
        let head = match c.tie_word_embeddings {
            true => embedding,
            false => memory.take(vocab * hidden),
        };
        let mut linear = |n: usize, k: usize, has_bias: bool| LinearWeight {
            n,
            k,
            bias: if has_bias { memory.take(n) } else { DeviceSlice::NONE },
            values: match quantised {
                false => WeightValues::Same(memory.take(n * k)),
                true => WeightValues::E4m3 {
                    values: memory.take(n * k),
                    scales: memory.take(n),
                    granularity: Granularity::Channel,
                },
            },
        };
        let mut layers: Vec<_> = (0..c.layers)
            .map(|_| LayerWeights {
                attention_norm: DeviceSlice::NONE,
                qkv: linear(q_width + 2 * kv_width, hidden, c.qkv_bias),
                q_norm: DeviceSlice::NONE,
                k_norm: DeviceSlice::NONE,
                o: linear(hidden, q_width, c.o_bias),
                mlp_norm: DeviceSlice::NONE,
                gate_up: linear(2 * c.intermediate_size, hidden, c.mlp_bias),
                down: linear(hidden, c.intermediate_size, c.mlp_bias),
            })
            .collect();
        for layer in &mut layers {
            (layer.attention_norm, layer.mlp_norm) = (memory.take(hidden), memory.take(hidden));
            if c.qk_norm {
                (layer.q_norm, layer.k_norm) = (memory.take(c.head_dim), memory.take(c.head_dim));
            }
        }
        let head =
            LinearWeight { n: vocab, k: hidden, bias: DeviceSlice::NONE, values: WeightValues::Same(head) };
        Self { embedding, layers, norm: memory.take(hidden), head }
    }

    /// Finds and checks every tensor of the checkpoint; says where it goes.
    ///
    /// # Errors
    /// A tensor that is missing, or of another type or shape than the configuration says.
    pub fn sources(&self, c: &ModelConfig, weights: &Weights) -> Result<Vec<Source<T>>, LoadError> {
        let (vocab, hidden, inner) = (c.vocab_size as usize, c.hidden_size, c.intermediate_size);
        let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let mut found = Found { weights, sources: Vec::new() };
        let embedding = weights.matrix("model.embed_tokens.weight", vocab, hidden)?;
        found.sources.push(Source { from: embedding, to: Place::Values(self.embedding) });
        if !c.tie_word_embeddings {
            found.stacked("", &self.head, &[("lm_head", vocab)])?;
        }
        found.norm("model.norm", self.norm)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let prefix = format!("model.layers.{i}.");
            found.norm(&format!("{prefix}input_layernorm"), layer.attention_norm)?;
            found.norm(&format!("{prefix}post_attention_layernorm"), layer.mlp_norm)?;
            if c.qk_norm {
                found.norm(&format!("{prefix}self_attn.q_norm"), layer.q_norm)?;
                found.norm(&format!("{prefix}self_attn.k_norm"), layer.k_norm)?;
            }
            let qkv = [
                ("self_attn.q_proj", q_width),
                ("self_attn.k_proj", kv_width),
                ("self_attn.v_proj", kv_width),
            ];
            found.stacked(&prefix, &layer.qkv, &qkv)?;
            found.stacked(&prefix, &layer.o, &[("self_attn.o_proj", hidden)])?;
            found.stacked(&prefix, &layer.gate_up, &[("mlp.gate_proj", inner), ("mlp.up_proj", inner)])?;
            found.stacked(&prefix, &layer.down, &[("mlp.down_proj", hidden)])?;
        }
        Ok(found.sources)
    }
}

/// What was found so far.
struct Found<'a, T> {
    weights: &'a Weights,
    sources: Vec<Source<T>>,
}

impl<T: Activation> Found<'_, T> {
    fn norm(&mut self, name: &str, to: DeviceSlice<f32>) -> Result<(), LoadError> {
        let from = self.weights.row(&format!("{name}.weight"), to.len())?;
        self.sources.push(Source { from, to: Place::Wide(to) });
        Ok(())
    }

    /// Tensors of `rows` outputs each, one under the other, with their biases.
    fn stacked(
        &mut self,
        prefix: &str,
        weight: &LinearWeight<T>,
        parts: &[(&str, usize)],
    ) -> Result<(), LoadError> {
        let mut first_row = 0;
        for &(name, rows) in parts {
            let from = self.weights.matrix(&format!("{prefix}{name}.weight"), rows, weight.k)?;
            let range = first_row..first_row + rows;
            let inside = range.start * weight.k..range.end * weight.k;
            let to = match weight.values {
                WeightValues::Same(values) => Place::Values(values.slice(inside)),
                WeightValues::E4m3 { values, scales, .. } => {
                    Place::Quantised { values: values.slice(inside), scales: scales.slice(range.clone()) }
                }
            };
            self.sources.push(Source { from, to });
            if !weight.bias.is_empty() {
                let from = self.weights.row(&format!("{prefix}{name}.bias"), rows)?;
                let to = Place::Values(weight.bias.slice(range));
                self.sources.push(Source { from, to });
            }
            first_row += rows;
        }
        assert_eq!(first_row, weight.n, "the parts of {prefix}{} fill it", parts[0].0);
        Ok(())
    }
}
