//! Assembles a model from its weights.

use skein_kernels::cpu::packed::Packed;

use super::layers::{Layer, LayerInputTable, Parts};
use super::model::Model;
use super::pack::{Matrix, Use};
use super::products;
use crate::LoadError;
use crate::adapter::changeable;
use crate::shard::Shard;
use crate::spec::Spec;
use crate::tensors::{self, Kind, Role, Tensor};
use crate::weight_source::WeightSource;

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
        let table = tensors::layer_embedding(spec).filter(|_| shard.is_first());
        let table = table.map(|table| table.find(weights)).transpose()?;
        let mut parts = Parts::read(spec, &shard, &tensors, weights)?;
        let packed = pack(&matrices)?;
        assert_eq!(packed.len(), matrices.len(), "every matrix is packed");
        let packed = products::in_order(&matrices, packed);
        let weight_bytes = bytes_of_one_token(spec, &matrices, &packed);
        let head = tensors::head(&tensors).role;
        parts.add(matrices.iter().map(|matrix| &matrix.tensor), packed);
        let layer_inputs = table.map(|table| LayerInputTable {
            table,
            projection: parts.outer_projection(Role::LayerInput),
            norm: parts.norm(None, Role::LayerInputNorm).map(|norm| norm.weight).unwrap_or_default(),
        });
        Ok(Self {
            embedding,
            layer_inputs,
            layers: shard.layers.clone().map(|layer| Layer::new(&mut parts, spec, &shard, layer)).collect(),
            norm: parts.norm(None, Role::LastNorm),
            head: shard.is_last().then(|| parts.matrix(None, head)),
            bf16,
            weight_bytes,
            spec: shard.spec(spec),
            shard,
        })
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
        adapter.check_copies(source.weights)?;
    }
    let multiplied = tensors.iter().filter(is_in_layer);
    let multiplied = multiplied.chain(shard.is_last().then_some(head));
    // With a short vocabulary, the last ranks have no rows of the head.
    let is_own = |tensor: &&Tensor| !shard.part(spec, tensor).is_empty() || tensor.role == head.role;
    let for_use = |tensor: &Tensor| match tensor.role {
        Role::Router | Role::SharedRouter => Use::Router,
        Role::StateBeta | Role::StateDecay | Role::StateDecayDown => Use::Rates,
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
