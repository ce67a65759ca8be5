//! Models on the CPU: weights packed for its kernels, and the operations over them.

mod exchange;
mod layers;
pub mod pack;
pub mod packed_cache;
pub mod profile;
mod step;

pub use step::{Activations, ForwardStep};

use std::ops::Range;

use half::bf16;
use skein_kernels::collective::{Lost, Ranks};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::input::Encoding;
use skein_kernels::cpu::kv_cache::KvCache;
use skein_kernels::cpu::matmul::{Linear, Write, matmul};
use skein_kernels::cpu::matrix::WeightMatrix;
use skein_kernels::cpu::norm::rms_norm_into;
use skein_kernels::cpu::packed::Packed;
use skein_kernels::cpu::rope::inverse_frequencies;
use skein_kernels::cpu::softcap::softcap;

use self::layers::{Layer, Parts};
use self::pack::Matrix;
use self::profile::Part;
use crate::model::LoadError;
use crate::model::checkpoint::Weights;
use crate::model::operations;
use crate::model::spec::Spec;
use crate::model::tensors::{self, Kind, Role};
use crate::shard::Shard;

/// A model's weights and its forward pass, or one rank's part of them.
pub struct Model {
    /// What this rank computes.
    spec: Spec,
    shard: Shard,
    embedding: WeightMatrix,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Packed,
    /// Whether activations are rounded to bfloat16 before products with bfloat16 weights.
    bf16: bool,
    /// Rotary angle of each pair of values, per position.
    frequencies: Vec<f32>,
    /// Bytes of packed weights that a step reads.
    weight_bytes: u64,
}

impl Model {
    /// Finds and validates every weight, and takes the part of `shard`. `pack` packs the matrices that steps
    /// multiply with, in this order: the layers', then the head. The embedding is used as stored for lookups,
    /// even if it is also the head. `bf16`: activations are rounded to bfloat16 before products with bfloat16
    /// weights.
    ///
    /// # Errors
    /// A weight that is missing or has another shape, and the errors of `pack`.
    pub fn load(
        spec: &Spec,
        shard: Shard,
        weights: &Weights,
        bf16: bool,
        pack: impl FnOnce(&[Matrix]) -> Result<Vec<Packed>, LoadError>,
    ) -> Result<Self, LoadError> {
        let tensors = tensors::all(spec);
        let head = tensors::head(&tensors);
        let is_multiplied =
            |tensor: &&tensors::Tensor| matches!(tensor.kind, Kind::Matrix(..)) && tensor.role != head.role;
        let multiplied: Vec<_> = tensors.iter().filter(is_multiplied).chain([head]).collect();
        let matrix = |tensor: &&tensors::Tensor| {
            let (whole, part) = (tensor.find(weights)?, shard.part(spec, tensor));
            let part_at = (part.len() < tensor.len()).then_some((part.rows.start, part.cols.start));
            let (weights, leaves) = (whole.part(part.rows, part.cols), part.leaves);
            let (tensor, is_head) = (tensor.name.clone(), tensor.role == head.role);
            Ok(Matrix { tensor, weights, part_at, is_head, leaves })
        };
        let matrices = multiplied.iter().map(matrix).collect::<Result<Vec<_>, LoadError>>()?;
        let embedding = tensors::embedding(spec).find(weights)?;
        let embedding = embedding.part(shard.vocabulary.clone(), 0..embedding.cols());
        let mut parts = Parts::read(spec, &shard, &tensors, weights)?;
        let packed = pack(&matrices)?;
        assert_eq!(packed.len(), matrices.len(), "every matrix is packed");
        let weight_bytes = packed.iter().map(|packed| packed.read_bytes() as u64).sum();
        parts.add(&multiplied, packed);
        let layers = (0..spec.layers.len()).map(|layer| Layer::new(&mut parts, layer)).collect();
        let rope = spec.attention.rope;
        Ok(Self {
            embedding,
            layers,
            norm: parts.norm(None, Role::LastNorm),
            head: parts.matrix(None, head.role),
            bf16,
            frequencies: inverse_frequencies(spec.attention.head_dim, rope.theta, rope.scaling),
            weight_bytes,
            spec: shard.spec(spec),
            shard,
        })
    }

    /// Bytes of weights that every step reads.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// What the model computes, on this rank.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Allocates memory for steps of up to `rows` rows.
    pub fn activations(&self, rows: usize) -> Activations {
        let mut activations = Activations::default();
        activations.grow(&self.spec, rows);
        activations
    }

    /// Runs all layers over `step` and writes its keys and values to `cache`. Leaves the wanted
    /// rows for [`Model::logits`]. All ranks run the same step.
    ///
    /// # Errors
    /// If another rank is lost.
    pub fn forward(
        &self,
        cpu: &mut Cpu,
        step: &ForwardStep<'_>,
        cache: &mut KvCache,
        activations: &mut Activations,
        ranks: &mut dyn Ranks,
    ) -> Result<(), Lost> {
        let mut running = step::Running::new(self, cpu, step, cache, activations, ranks);
        operations::forward(&self.spec, &mut running)
    }

    /// Logits of some of the last step's wanted rows: `[rows, vocab]`, on every rank.
    ///
    /// # Errors
    /// If another rank is lost.
    pub fn logits(
        &self,
        cpu: &mut Cpu,
        rows: Range<usize>,
        activations: &mut Activations,
        ranks: &mut dyn Ranks,
        logits: &mut [f32],
    ) -> Result<(), Lost> {
        let Activations { x, input, shared, profile, .. } = activations;
        let hidden = self.spec.hidden_size;
        let x = &x[rows.start * hidden..rows.end * hidden];
        let stack = [(&self.head).into()];
        profile.start();
        rms_norm_into(cpu, x, &self.norm, self.spec.norm.eps, self.encoding(&stack), input);
        profile.mark(Part::Encode);
        let shard = &self.shard;
        if shard.ranks == 1 {
            matmul(cpu, input, &stack, logits, Write::Set);
        } else {
            shared.logits(ranks, shard, logits, |own| matmul(cpu, input, &stack, own, Write::Set))?;
        }
        if let Some(cap) = self.spec.logits_softcap {
            softcap(cpu, logits, cap);
        }
        profile.mark(Part::Head);
        Ok(())
    }

    /// Factor for embedding rows, rounded to bfloat16 if activations are.
    fn embedding_scale(&self) -> f32 {
        let scale = self.spec.embedding_scale;
        if self.bf16 { bf16::from_f32(scale).to_f32() } else { scale }
    }

    /// The input encoding that all of `stack` accept.
    fn encoding(&self, stack: &[Linear<'_>]) -> Encoding {
        let mut encodings = stack.iter().map(|linear| linear.weights.layout().encoding(self.bf16));
        let first = encodings.next().unwrap_or_default();
        // Integer formats are never mixed with others.
        if encodings.all(|encoding| encoding == first) { first } else { Encoding::F32 }
    }
}
