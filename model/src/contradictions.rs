//! Tensors in the files that a configuration denies or nothing reads: another model would be computed without
//! a word.

use crate::LoadError;
use crate::checkpoint::Weights;
use crate::spec::Spec;
use crate::tensors::{Role, Tensor};

/// Checks that no layer has tensors of a part that `spec` says it lacks, and no layer of a GGUF file others
/// than `tensors`. Reads only the headers of the files.
///
/// # Errors
/// Names such a tensor.
pub fn check(spec: &Spec, tensors: &[Tensor], weights: &Weights) -> Result<(), LoadError> {
    for (index, layer) in spec.layers.iter().enumerate() {
        let found = |role: Role| {
            let names = (spec.names)(role).iter();
            names
                .map(|name| format!("model.layers.{index}.{name}.weight"))
                .find(|name| weights.contains(name))
        };
        let contradicts = |tensor, what| Err(LoadError::DeniedTensor { tensor, what });
        if layer.feed_forward.experts.is_none()
            && let Some(tensor) = found(Role::Router)
        {
            return contradicts(tensor, "the layer has no experts");
        }
        let has_keys_as_values = spec.attention_of(index).has_keys_as_values && layer.cache_of.is_none();
        if has_keys_as_values && let Some(tensor) = found(Role::Value) {
            return contradicts(tensor, "the layer's values have the matrix of its keys");
        }
    }
    let is_of_layer = |name: &&str| {
        let layer = name.split('.').nth(1).and_then(|layer| layer.parse::<usize>().ok());
        layer.is_some_and(|layer| layer < spec.layers.len())
    };
    let unread = if weights.is_gguf() { unread(spec, tensors, weights) } else { Vec::new() };
    match unread.into_iter().find(is_of_layer) {
        Some(tensor) => Err(LoadError::UnreadTensor { tensor: tensor.to_owned() }),
        None => Ok(()),
    }
}

/// Names in the files of tensors of layers that are none of `tensors`, sorted. Layers that read the cache of
/// another one may have keys and values of their own, which transformers ignores in Gemma 4's files, too.
pub fn unread<'a>(spec: &Spec, tensors: &[Tensor], weights: &'a Weights) -> Vec<&'a str> {
    let sharing = (0..spec.layers.len()).filter(|layer| spec.layers[*layer].cache_of.is_some());
    let unused = sharing.flat_map(|layer| {
        let names = [Role::Key, Role::Value, Role::KeyNorm].into_iter().flat_map(spec.names);
        names.map(move |name| format!("model.layers.{layer}.{name}.weight"))
    });
    let unused: Vec<String> = unused.collect();
    let stored = tensors.iter().flat_map(|tensor| &tensor.stored).map(|stored| &stored.name);
    weights.others_of_layers(stored.chain(&unused).map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use crate::tensors;

    /// The spec, tensors and weights of a golden model.
    fn golden(path: &std::path::Path) -> (Spec, Vec<Tensor>, Weights) {
        let spec = ModelConfig::from_dir(path).unwrap().spec;
        let tensors = tensors::all(&spec);
        (spec, tensors, Weights::open(path).unwrap())
    }

    #[test]
    fn tensors_that_nothing_reads_are_named() {
        let without_gate = |tensors: &[Tensor]| -> Vec<Tensor> {
            let is_kept = |tensor: &&Tensor| (tensor.role, tensor.layer) != (Role::Gate, Some(1));
            tensors.iter().filter(is_kept).cloned().collect()
        };
        let (spec, tensors, weights) = golden(&skein_golden::gguf("llama-gqa"));
        assert!(check(&spec, &tensors, &weights).is_ok());
        let error = check(&spec, &without_gate(&tensors), &weights).unwrap_err().to_string();
        assert!(error.contains("blk.1.ffn_gate.weight is in the GGUF file"), "{error}");

        let mut sharing = spec.clone();
        sharing.layers[1].cache_of = Some(0);
        let of_keys = |tensor: &&Tensor| matches!(tensor.role, Role::Key | Role::Value);
        let without_keys: Vec<Tensor> =
            tensors.iter().filter(|tensor| !of_keys(tensor) || tensor.layer != Some(1)).cloned().collect();
        assert!(check(&sharing, &without_keys, &weights).is_ok());
        assert!(check(&spec, &without_keys, &weights).is_err());

        let (spec, tensors, weights) = golden(&skein_golden::path("models/llama-gqa"));
        let fewer = without_gate(&tensors);
        assert_eq!(unread(&spec, &tensors, &weights), [""; 0]);
        assert_eq!(unread(&spec, &fewer, &weights), ["model.layers.1.mlp.gate_proj.weight"]);
        assert!(check(&spec, &fewer, &weights).is_ok(), "transformers ignores them, too");
    }
}
