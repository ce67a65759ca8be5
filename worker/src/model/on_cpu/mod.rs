//! Models on the CPU: weights packed for its kernels, and the operations on them.

pub mod adapter;
pub mod caches;
pub(crate) mod capture;
mod exchange;
mod feed_forward;
mod latent;
mod layers;
pub mod pack;
pub mod packed_cache;
mod products;
pub mod profile;
mod step;

pub use step::{Activations, ForwardStep, Located};

use std::ops::Range;

use half::bf16;
use skein_kernels::collective::{Lost, Ranks};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::input::{Encoding, Input};
use skein_kernels::cpu::layer_norm::layer_norm_into;
use skein_kernels::cpu::matmul::{Linear, Write, matmul};
use skein_kernels::cpu::matrix::WeightMatrix;
use skein_kernels::cpu::norm::rms_norm_into;
use skein_kernels::cpu::packed::Packed;
use skein_kernels::cpu::rows::RowsMut;
use skein_kernels::cpu::softcap::softcap;

use self::adapter::{AdapterRows, ChangedProduct};
use self::caches::Caches;
use self::layers::{Layer, Norm, Parts};
use self::pack::{Matrix, Use};
use self::profile::Part;
use crate::model::LoadError;
use crate::model::adapter::changeable;
use crate::model::operations;
use crate::model::spec::{NormKind, Spec};
use crate::model::tensors::{self, Kind, Role, Tensor};
use crate::model::weight_source::WeightSource;
use crate::shard::Shard;

/// Weights and forward pass of a model, or one rank's part of them.
pub struct Model {
    /// Structure of the part on this rank.
    spec: Spec,
    shard: Shard,
    /// Embedding table, in the first stage.
    embedding: Option<WeightMatrix>,
    layers: Vec<Layer>,
    norm: Option<Norm>,
    /// Output projection, in the last stage.
    head: Option<Packed>,
    /// Whether activations are rounded to bfloat16 before products with bfloat16 weights.
    bf16: bool,
    /// Bytes of packed weights that a step of one token reads.
    weight_bytes: u64,
}

impl Model {
    /// Finds and validates every weight, and takes the part in `shard`. `pack` packs the matrices used in
    /// products, in this order: the layers', then the head. Embeddings are looked up as stored, even if the
    /// table is also the head. An adapter is merged into the matrices. `bf16`: round activations to bfloat16
    /// before products with bfloat16 weights.
    ///
    /// # Errors
    /// A weight that is missing or has the wrong shape, and errors of `pack`.
    pub fn load(
        spec: &Spec,
        shard: Shard,
        source: WeightSource<'_>,
        bf16: bool,
        pack: impl FnOnce(&[Matrix]) -> Result<Vec<Packed>, LoadError>,
    ) -> Result<Self, LoadError> {
        let tensors = tensors::all(spec);
        let (matrices, weights) = (matrices(spec, &shard, source)?, source.weights);
        let embedding = shard.is_first().then(|| tensors::embedding(spec).find(weights)).transpose()?;
        let embedding = embedding.map(|table| table.part(shard.vocabulary.clone(), 0..table.cols()));
        let mut parts = Parts::read(spec, &shard, &tensors, weights)?;
        let packed = pack(&matrices)?;
        assert_eq!(packed.len(), matrices.len(), "every matrix is packed");
        let packed = products::in_order(&matrices, packed);
        let weight_bytes = bytes_of_one_token(spec, &matrices, &packed);
        let head = tensors::head(&tensors).role;
        parts.add(matrices.iter().map(|matrix| &matrix.tensor), packed);
        Ok(Self {
            embedding,
            layers: shard.layers.clone().map(|layer| Layer::new(&mut parts, spec, layer)).collect(),
            norm: parts.norm(None, Role::LastNorm),
            head: shard.is_last().then(|| parts.matrix(None, head)),
            bf16,
            weight_bytes,
            spec: shard.spec(spec),
            shard,
        })
    }

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

    /// Allocates memory for steps of up to `rows` rows.
    pub fn activations(&self, rows: usize) -> Activations {
        let mut activations = Activations::default();
        activations.grow(&self.spec, rows);
        activations
    }

    /// Runs all layers on `step` and writes its keys and values to `caches`. Leaves the wanted rows for
    /// [`Model::logits`]. All ranks run the same step.
    ///
    /// # Errors
    /// If another rank is lost.
    pub fn forward(
        &self,
        cpu: &mut Cpu,
        step: &ForwardStep<'_>,
        caches: &mut Caches,
        activations: &mut Activations,
        ranks: &mut dyn Ranks,
    ) -> Result<(), Lost> {
        let mut running = step::Running::new(self, cpu, step, caches, activations, ranks);
        operations::forward(&self.spec, &mut running)
    }

    /// Logits of some wanted rows of the last step: `[rows, vocab]`, on every rank of the last stage.
    /// `adapters` has the wanted rows by adapter.
    ///
    /// # Errors
    /// If another rank is lost.
    ///
    /// # Panics
    /// In any other stage.
    pub fn logits(
        &self,
        cpu: &mut Cpu,
        rows: Range<usize>,
        adapters: &AdapterRows,
        activations: &mut Activations,
        ranks: &mut dyn Ranks,
        logits: &mut [f32],
    ) -> Result<(), Lost> {
        let Activations { x, input, exact, shared, profile, .. } = activations;
        let hidden = self.spec.hidden_size;
        let x = &x[rows.start * hidden..rows.end * hidden];
        let head = self.head.as_ref().unwrap_or_else(|| unreachable!("the last stage has the head"));
        let stack = [head.into()];
        profile.start();
        let encoding = self.encoding(&stack, input);
        self.normalise_into(cpu, x, self.norm.as_ref(), encoding, input);
        profile.mark(Part::Encode);
        let shard = &self.shard;
        if shard.ranks == 1 {
            matmul(cpu, input, &stack, logits, Write::Set);
            if adapters.change(ChangedProduct::Logits) {
                self.normalise_into(cpu, x, self.norm.as_ref(), Encoding::F32, exact);
                let of_part = adapters.part(rows.start as u32, rows.len() as u32);
                let y = RowsMut { values: &mut *logits, stride: self.spec.vocab_size as usize };
                of_part.add_to(cpu, ChangedProduct::Logits, exact.as_f32(), y);
            }
        } else {
            let is_changed = adapters.change(ChangedProduct::Logits);
            if is_changed {
                self.normalise_into(cpu, x, self.norm.as_ref(), Encoding::F32, exact);
            }
            shared.logits(ranks, shard, logits, |own| {
                matmul(cpu, input, &stack, own, Write::Set);
                if is_changed {
                    let of_part = adapters.part(rows.start as u32, rows.len() as u32);
                    let y = RowsMut { values: own, stride: shard.vocabulary.len() };
                    of_part.add_to(cpu, ChangedProduct::Logits, exact.as_f32(), y);
                }
            })?;
        }
        if let Some(cap) = self.spec.logits_softcap {
            softcap(cpu, logits, cap);
        }
        profile.mark(Part::Head);
        Ok(())
    }

    /// Factor of embedding rows; some models round it to bfloat16 together with activations.
    fn embedding_scale(&self) -> f32 {
        let scale = self.spec.embedding_scale;
        if self.bf16 && self.spec.rounds_embedding_scale { bf16::from_f32(scale).to_f32() } else { scale }
    }

    /// Encodes the rows of `x`, normalised if `norm` is given.
    fn normalise_into(
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

    /// Input encoding that all of `stack` accept. `input` adopts the order of their columns.
    fn encoding(&self, stack: &[Linear<'_>], input: &mut Input) -> Encoding {
        input.set_order(stack.first().and_then(|linear| linear.weights.order().cloned()));
        self.encoding_alone(stack)
    }

    /// Like [`Model::encoding`], for columns in any order.
    fn encoding_alone(&self, stack: &[Linear<'_>]) -> Encoding {
        let mut encodings = stack.iter().map(|linear| linear.weights.layout().encoding(self.bf16));
        let first = encodings.next().unwrap_or_default();
        // Integer formats are never mixed with others.
        if encodings.all(|encoding| encoding == first) { first } else { Encoding::F32 }
    }
}

/// This rank's part of all matrices used in products, with the adapter's changes: the layers', then the head.
/// Reads only the headers of the files.
///
/// # Errors
/// A weight that is missing, has the wrong shape, or has a form that its product does not support.
pub fn matrices(spec: &Spec, shard: &Shard, source: WeightSource<'_>) -> Result<Vec<Matrix>, LoadError> {
    let tensors = tensors::all(spec);
    let head = tensors::head(&tensors);
    let is_in_layer = |tensor: &&Tensor| matches!(tensor.kind, Kind::Matrix(..)) && tensor.role != head.role;
    if let Some(adapter) = source.adapter {
        adapter.check_is_used(&changeable(&tensors))?;
    }
    let multiplied = tensors.iter().filter(is_in_layer);
    let multiplied = multiplied.chain(shard.is_last().then_some(head));
    // With a short vocabulary, the last ranks have no rows of the head.
    let is_own = |tensor: &&Tensor| !shard.part(spec, tensor).is_empty() || tensor.role == head.role;
    let for_use = |tensor: &Tensor| match tensor.role {
        Role::Router | Role::SharedRouter => Use::Router,
        role if role == head.role => Use::Head,
        _ => Use::Layer,
    };
    let matrix = |tensor: &Tensor| Matrix::find(tensor, for_use(tensor), shard.part(spec, tensor), source);
    let matrices = multiplied.filter(is_own).map(matrix).collect::<Result<Vec<_>, LoadError>>()?;
    products::check(&matrices)?;
    Ok(matrices)
}

/// Bytes of `packed` read in a step of one token; of the experts, as many as one token uses.
fn bytes_of_one_token(spec: &Spec, matrices: &[Matrix], packed: &[Packed]) -> u64 {
    let is_used = |tensor: &Tensor| tensor.expert.is_none_or(|expert| expert < spec.experts().1);
    let used = matrices.iter().zip(packed).filter(|(matrix, _)| is_used(&matrix.tensor));
    used.map(|(_, packed)| packed.read_bytes() as u64).sum()
}
