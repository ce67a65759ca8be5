//! Tensors in the files that a configuration denies: another model would be computed without a word.

use crate::LoadError;
use crate::checkpoint::Weights;
use crate::spec::Spec;
use crate::tensors::Role;

/// Checks that no layer has tensors of a part that `spec` says it lacks. Reads only the headers of the files.
///
/// # Errors
/// Names such a tensor.
pub fn check(spec: &Spec, weights: &Weights) -> Result<(), LoadError> {
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
    Ok(())
}
