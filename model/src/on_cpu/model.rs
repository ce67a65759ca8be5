//! A rank's part of a model, in the form in which steps read it.

use half::bf16;
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::layer_norm::{layer_norm, layer_norm_into};
use skein_kernels::cpu::matmul::Linear;
use skein_kernels::cpu::matrix::WeightMatrix;
use skein_kernels::cpu::norm::{rms_norm_heads, rms_norm_into};
use skein_kernels::cpu::packed::Packed;

use super::beside_embedding::BesideEmbedding;
use super::layers::{Layer, LayerInputTable, Norm};
use super::pooled::PooledWeights;
use crate::shard::Shard;
use crate::spec::{NormKind, Spec};

/// Weights and forward pass of a model, or one rank's part of them.
pub struct Model {
    /// Structure of the part on this rank.
    pub(super) spec: Spec,
    pub(super) shard: Shard,
    /// Embedding table, in the first stage.
    pub(super) embedding: Option<WeightMatrix>,
    /// What is added to the embeddings, and their norm; in the first stage.
    pub(super) beside_embedding: Option<BesideEmbedding>,
    /// What makes the layers' own inputs, if they have any; in the first stage.
    pub(super) layer_inputs: Option<LayerInputTable>,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Option<Norm>,
    /// Output projection, in the last stage.
    pub(super) head: Option<Packed>,
    /// What makes vectors instead of logits, in the last stage of a model that pools.
    pub(super) pooled: Option<PooledWeights>,
    /// Whether activations are rounded to bfloat16 before products with bfloat16 weights.
    pub(super) bf16: bool,
    /// Bytes of packed weights that a step of one token reads.
    pub(super) weight_bytes: u64,
}

impl Model {
    /// Bytes of weights read in every step; for mixtures of experts, in a step of one token.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Structure of the part on this rank.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Whether this rank's stage computes logits.
    pub fn is_last(&self) -> bool {
        self.shard.is_last()
    }

    /// Whether this rank's stage starts from tokens; other stages start from the previous stage's rows.
    pub fn is_first(&self) -> bool {
        self.shard.is_first()
    }

    /// Factor of embedding rows; some models round it to bfloat16 together with activations.
    pub(super) fn embedding_scale(&self) -> f32 {
        let scale = self.spec.embedding_scale;
        if self.bf16 && self.spec.rounds_embedding_scale { bf16::from_f32(scale).to_f32() } else { scale }
    }

    /// Encodes the rows of `x`, normalised if `norm` is given.
    pub(super) fn normalise_into(
        &self,
        cpu: &mut Cpu,
        x: &[f32],
        norm: Option<&Norm>,
        encoding: Encoding,
        out: &mut Input,
    ) {
        let eps = self.spec.norm.eps;
        match (norm, self.spec.norm.kind) {
            (None, _) => out.set(cpu, encoding, x, self.spec.hidden_size),
            (Some(norm), NormKind::Rms) => rms_norm_into(cpu, x, &norm.weight, eps, encoding, out),
            (Some(norm), NormKind::Layer { .. }) => {
                layer_norm_into(cpu, x, norm.as_layer_norm(eps), encoding, out);
            }
        }
    }

    /// Normalises the rows of `x`.
    pub(super) fn normalise(&self, cpu: &mut Cpu, x: &mut [f32], norm: &Norm) {
        let eps = self.spec.norm.eps;
        match self.spec.norm.kind {
            NormKind::Rms => rms_norm_heads(cpu, x, norm.weight.len(), 0..1, &norm.weight, eps),
            NormKind::Layer { .. } => layer_norm(cpu, x, norm.as_layer_norm(eps)),
        }
    }

    /// Input encoding that all of `stack` accept. `input` adopts the order of their columns.
    pub(super) fn encoding(&self, stack: &[Linear<'_>], input: &mut Input) -> Encoding {
        input.set_order(stack.first().and_then(|linear| linear.weights.order().cloned()));
        self.encoding_alone(stack)
    }

    /// Like [`Model::encoding`], for columns in any order.
    pub(super) fn encoding_alone(&self, stack: &[Linear<'_>]) -> Encoding {
        let mut encodings = stack.iter().map(|linear| linear.weights.layout().encoding(self.bf16));
        let first = encodings.next().unwrap_or_default();
        // Integer formats are never mixed with others.
        if encodings.all(|encoding| encoding == first) { first } else { Encoding::F32 }
    }
}
