//! Whether a model multiplies with its embedding table at the end, or with a head of its own.

use std::path::Path;

use serde_json::{Map, Value};

use super::checkpoint::SafetensorsFiles;
use super::fields::TEXT_CONFIG;
use super::spec::Spec;
use crate::tensors::Role;

/// Field that says so.
pub(super) const FIELD: &str = "tie_word_embeddings";
/// Names of a head's weights, as numbers or as codes.
const WEIGHTS: [&str; 3] = ["weight", "qweight", "weight_packed"];

/// Whether the model of `spec` in `dir` is tied. As in transformers, a head in the files that is not a copy
/// of the table counts, whatever `config` says. Without one, either of the nested configurations may say so.
pub(super) fn is_tied(dir: &Path, config: &Map<String, Value>, spec: &Spec) -> bool {
    let says_so = |config: &Map<String, Value>| config.get(FIELD) == Some(&Value::Bool(true));
    let text = config.get(TEXT_CONFIG).and_then(Value::as_object);
    if !spec.is_tied && !text.is_some_and(says_so) {
        return false;
    }
    // Damaged files are refused where the weights are read. Dummy weights have none.
    let Ok(files) = SafetensorsFiles::open(dir) else { return spec.is_tied };
    !has_own_head(&files, spec)
}

fn has_own_head(files: &SafetensorsFiles, spec: &Spec) -> bool {
    let name = |role: Role, end: &str| format!("{}.{end}", (spec.names)(role)[0]);
    let head = WEIGHTS.map(|end| name(Role::Head, end)).into_iter().find(|name| files.contains(name));
    head.is_some_and(|head| !files.are_equal(&head, &name(Role::Embedding, WEIGHTS[0])))
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::{Dtype, TensorView};
    use serde_json::json;

    use crate::config::ModelConfig;

    /// What transformers 5.24.0 does with a file of `embed_tokens` and perhaps `lm_head`, found by loading
    /// Mistral 3, Gemma 3, Llava, SmolVLM and Idefics3: a head of its own is used under all combinations of
    /// both fields.
    #[test]
    fn the_files_and_then_the_outer_configuration_say_whether_the_head_is_tied() {
        let own = Some([2u8; 2 * 16]);
        for (outer, inner, head, is_tied) in [
            (Some(false), Some(true), own, false),
            (Some(true), Some(false), own, false),
            (Some(true), Some(true), own, false),
            (None, Some(true), own, false),
            (Some(true), Some(false), None, true),
            (Some(true), None, None, true),
            (None, Some(true), None, true),
            (Some(false), None, own, false),
            // Llava ties then, and the others cannot be loaded.
            (Some(false), Some(true), None, true),
            // A copy needs no memory of its own.
            (Some(true), Some(true), Some([1; 2 * 16]), true),
        ] {
            let mut config = json!({
                "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
                "text_config": {"model_type": "mistral", "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1,
                    "num_attention_heads": 2, "vocab_size": 4, "max_position_embeddings": 64}});
            outer.inspect(|outer| config["tie_word_embeddings"] = json!(outer));
            inner.inspect(|inner| config["text_config"]["tie_word_embeddings"] = json!(inner));
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            let table = [1u8; 2 * 16];
            let view = |bytes| TensorView::new(Dtype::F16, vec![4, 4], bytes).unwrap();
            let head = head.as_ref().map(|head| ("language_model.lm_head.weight", view(&head[..])));
            let tensors =
                [("language_model.model.embed_tokens.weight", view(&table))].into_iter().chain(head);
            safetensors::serialize_to_file(tensors, None, &dir.path().join("model.safetensors")).unwrap();
            let spec = ModelConfig::from_dir(dir.path()).unwrap().spec;
            assert_eq!(spec.is_tied, is_tied, "outer {outer:?}, inner {inner:?}, is_tied {is_tied}");
        }
    }
}
