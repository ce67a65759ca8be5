//! Assembles a model from its weights.

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::packed::Packed;

use super::beside_embedding::BesideEmbedding;
use super::layers::{Layer, LayerInputTable, Parts};
use super::model::Model;
use super::pack::{Matrix, Use, check_finite};
use super::pooled::PooledWeights;
use super::products;
use crate::adapter::changeable;
use crate::shard::Shard;
use crate::spec::Spec;
use crate::tensors::{self, Kind, Role, Tensor};
use crate::weight_source::WeightSource;
use crate::{LoadError, contradictions};

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
        let unread = contradictions::unread(spec, &tensors, weights);
        if let Some(first) = unread.first().filter(|_| shard.is_first() && shard.rank == 0) {
            tracing::warn!(tensors = unread.len(), %first, "layers have tensors in the files that nothing reads");
        }
        let embedding = shard.is_first().then(|| tensors::embedding(spec).find(weights)).transpose()?;
        let embedding = embedding.map(|table| table.part(shard.vocabulary.clone(), 0..table.cols()));
        let table = tensors::layer_embedding(spec).filter(|_| shard.is_first());
        let table = table.map(|table| table.find(weights)).transpose()?;
        let mut parts = Parts::read(spec, &shard, &tensors, weights)?;
        let packed = pack(&matrices)?;
        assert_eq!(packed.len(), matrices.len(), "every matrix is packed");
        let packed = products::in_order(&matrices, packed);
        let weight_bytes = bytes_of_one_token(spec, &matrices, &packed);
        let head = tensors::logits_head(spec, &tensors).map(|head| head.role);
        let pooled = spec.pooled.as_ref().filter(|_| shard.is_last());
        let pooled = pooled.map(|pooled| PooledWeights::read(pooled, weights)).transpose()?;
        parts.add(matrices.iter().map(|matrix| &matrix.tensor), packed);
        let beside_embedding =
            if shard.is_first() { BesideEmbedding::read(spec, &tensors, weights, &mut parts)? } else { None };
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
            head: head.filter(|_| shard.is_last()).map(|head| parts.matrix(None, head)),
            beside_embedding,
            pooled,
            bf16,
            weight_bytes,
            spec: shard.spec(spec),
            shard,
        })
    }
}

/// Refuses embeddings that are NaN or infinite, of this rank's part of the vocabulary. A tied model's are
/// checked when they are packed as its head.
pub fn check_embeddings(cpu: &mut Cpu, model: &Model) -> Result<(), LoadError> {
    let is_head = model.spec.is_tied && model.shard.is_last() && model.spec.pooled.is_none();
    let Some(table) = model.embedding.as_ref().filter(|_| !is_head) else { return Ok(()) };
    let tensor = tensors::embedding(&model.spec);
    check_finite(cpu, &tensor, table, (model.shard.vocabulary.start, 0))
}

/// This rank's part of all matrices used in products, with the adapter's changes: the layers', then the head.
/// Reads only the headers of the files.
///
/// # Errors
/// A weight that is missing, has the wrong shape, or has a form that its product does not support.
pub fn matrices(spec: &Spec, shard: &Shard, source: WeightSource<'_>) -> Result<Vec<Matrix>, LoadError> {
    let tensors = tensors::all(spec);
    contradictions::check(spec, &tensors, source.weights)?;
    let head = tensors::logits_head(spec, &tensors);
    let is_head = |tensor: &Tensor| head.is_some_and(|head| head.role == tensor.role);
    let is_in_layer = |tensor: &&Tensor| matches!(tensor.kind, Kind::Matrix(..)) && !is_head(tensor);
    if let Some(adapter) = source.adapter {
        adapter.check_is_used(&changeable(&tensors))?;
        adapter.check_copies(source.weights)?;
    }
    let multiplied = tensors.iter().filter(is_in_layer);
    let multiplied = multiplied.chain(head.filter(|_| shard.is_last()));
    // With a short vocabulary, the last ranks have no rows of the head.
    let is_own = |tensor: &&Tensor| !shard.part(spec, tensor).is_empty() || is_head(tensor);
    let for_use = |tensor: &Tensor| match tensor.role {
        Role::Router | Role::SharedRouter => Use::Router,
        Role::StateBeta | Role::StateDecay | Role::StateDecayDown => Use::Rates,
        _ if is_head(tensor) => Use::Head,
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::super::pack::pack;
    use super::super::packed_cache::PackedCache;
    use super::*;
    use crate::checkpoint::Weights;
    use crate::config::ModelConfig;

    /// Loads the golden model `name` after `change` of its configuration and of its only file of weights.
    fn load(name: &str, change: impl FnOnce(&mut Value, &mut Vec<u8>)) -> Result<Model, LoadError> {
        let (from, to) = (skein_golden::path(format!("models/{name}")), tempfile::tempdir().unwrap());
        let read = |file: &str| std::fs::read(from.join(file)).unwrap();
        let mut config = serde_json::from_slice(&read("config.json")).unwrap();
        let mut weights = read("model.safetensors");
        change(&mut config, &mut weights);
        std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
        std::fs::write(to.path().join("model.safetensors"), weights).unwrap();
        load_in(to.path())
    }

    fn load_in(path: &Path) -> Result<Model, LoadError> {
        let (spec, weights) = (ModelConfig::from_dir(path)?.spec, Weights::open(path)?);
        let (cpu, cache) = (&mut Cpu::new(2), PackedCache::none());
        let model = Model::load(
            &spec,
            Shard::whole(&spec),
            WeightSource::without_adapter(&weights),
            false,
            |matrices| pack(cpu, matrices, None, &weights, &cache, 0, &mut |_, _| {}),
        )?;
        check_embeddings(cpu, &model)?;
        Ok(model)
    }

    /// Sets a value of a tensor in 16 bits.
    fn set(file: &mut [u8], tensor: &str, at: usize, word: u16) {
        let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&file[8..start]).unwrap();
        let first = start + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
        file[first + 2 * at..][..2].copy_from_slice(&word.to_le_bytes());
    }

    #[test]
    fn weights_that_are_not_finite_are_named_at_load() {
        const NAN: u16 = 0x7fc0;
        const INFINITY: u16 = 0xff80;
        assert!(load("granite-hybrid", |_, _| {}).is_ok());
        for (tensor, at, word, place) in [
            // The first step of a load looks up token 0, and chooses two experts.
            ("model.embed_tokens.weight", 77 * 64 + 3, NAN, "NaN in row 77, column 3"),
            (
                "model.layers.2.block_sparse_moe.input_linear.weight",
                3 * 96 * 64 + 65,
                INFINITY,
                "-inf in row 1, column 1",
            ),
            ("model.layers.1.self_attn.q_proj.weight", 5 * 64 + 9, NAN, "NaN in row 5, column 9"),
            ("model.layers.3.input_layernorm.weight", 11, INFINITY, "-inf in row 0, column 11"),
            ("model.layers.3.mamba.D", 2, NAN, "NaN in row 0, column 2"),
        ] {
            let error = load("granite-hybrid", |_, file| set(file, tensor, at, word)).map(drop).unwrap_err();
            let said = error.to_string();
            assert!(said.contains(tensor) && said.contains(&format!("has the value {place};")), "{said}");
        }
    }

    #[test]
    fn tensors_that_the_configuration_denies_are_named() {
        let refused = |name: &str, fields: Value, words: [&str; 2]| {
            let change = |config: &mut Value, _: &mut Vec<u8>| {
                config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            };
            let said = load(name, change).map(drop).unwrap_err().to_string();
            words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
        };
        let router = "model.layers.0.block_sparse_moe.router.layer.weight is in the files";
        refused("granite-hybrid", json!({"num_local_experts": 0}), [router, "has no experts"]);
        let value = "model.layers.1.self_attn.v_proj.weight is in the files";
        refused("gemma4-per-layer", json!({"attention_k_eq_v": true}), [value, "matrix of its keys"]);
    }
}
