//! The modules of an adapter, by the names of its tensors. Pure.

use std::collections::BTreeMap;

/// Prefix of module names in PEFT's files.
pub(super) const PREFIX: &str = "base_model.model.";
/// Ends of the tensors of a pair.
const PAIR: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];
/// Names that the text model has in models that also take images, or that publishers gave it, and those that
/// it has alone.
const TEXT_MODELS: [(&str, &str); 5] = [
    ("backbone.", "model."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.", ""),
    ("model.text_model.", "model."),
];
/// Parts of models that only images pass.
const OF_IMAGES: [&str; 5] = ["vision_tower", "vision_model", "visual", "multi_modal_projector", "connector"];
/// Modules of which PEFT may store a copy of the model's own weights.
const COPIED: [&str; 2] = ["model.embed_tokens", "lm_head"];

/// The tensors of an adapter by their use.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Modules {
    /// Modules with a pair of matrices, by their name in a text model; their names in the file, without
    /// [`PREFIX`].
    pub pairs: BTreeMap<String, String>,
    /// Modules of which the file has the model's own weights; the names of these tensors.
    pub copies: BTreeMap<String, String>,
    /// First tensor that is none of these. Changes to what only images pass are left out: text never does.
    pub unknown: Option<String>,
}

impl Modules {
    /// Those of an adapter with these tensors.
    pub fn of<'a>(tensors: impl IntoIterator<Item = &'a str>) -> Self {
        let mut modules = Self::default();
        tensors.into_iter().for_each(|name| modules.add(name));
        modules
    }

    fn add(&mut self, tensor: &str) {
        let name = tensor.strip_prefix(PREFIX).unwrap_or_default();
        if let Some(module) = PAIR.iter().find_map(|end| name.strip_suffix(end)) {
            if is_of_images(module) {
                return;
            }
            let held = self.pairs.entry(of_text(module)).or_insert_with(|| module.to_owned());
            if held == module {
                return;
            }
        } else if let Some(module) = name.strip_suffix(".weight") {
            let module = of_text(module.strip_suffix(".base_layer").unwrap_or(module));
            if COPIED.contains(&&*module) {
                self.copies.insert(module, tensor.to_owned());
                return;
            }
        }
        self.unknown.get_or_insert_with(|| tensor.to_owned());
    }
}

/// Name in a text model of its module `module` of a larger one.
fn of_text(module: &str) -> String {
    let renamed = TEXT_MODELS.iter().find_map(|(prefix, to)| Some((module.strip_prefix(prefix)?, to)));
    renamed.map_or_else(|| module.to_owned(), |(rest, to)| format!("{to}{rest}"))
}

fn is_of_images(module: &str) -> bool {
    module.split('.').take(2).any(|part| OF_IMAGES.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_larger_models_are_those_of_their_text_model() {
        let check = |module: &str, expected: &[&str]| {
            let tensors = PAIR.map(|end| format!("{PREFIX}{module}{end}"));
            let modules = Modules::of(tensors.iter().map(String::as_str));
            assert_eq!(modules.pairs.keys().map(String::as_str).collect::<Vec<_>>(), expected, "{module}");
            assert_eq!(modules.unknown, None);
        };
        let query = "model.layers.0.self_attn.q_proj";
        check(query, &[query]);
        check("model.language_model.layers.0.self_attn.q_proj", &[query]);
        check("language_model.model.layers.0.self_attn.q_proj", &[query]);
        check("model.text_model.layers.0.self_attn.q_proj", &[query]);
        check("language_model.lm_head", &["lm_head"]);
        check("backbone.layers.0.mixer.q_proj", &["model.layers.0.mixer.q_proj"]);
        check("lm_head", &["lm_head"]);
        check("model.vision_tower.vision_model.encoder.layers.0.self_attn.q_proj", &[]);
        check("model.multi_modal_projector.linear_1", &[]);
        check("model.connector.modality_projection.proj", &[]);
    }

    #[test]
    fn other_tensors_are_told_apart() {
        let of = |names: &[&str]| Modules::of(names.iter().copied());
        let head = "base_model.model.lm_head.base_layer.weight";
        assert_eq!(of(&[head]).copies, BTreeMap::from([("lm_head".to_owned(), head.to_owned())]));
        let table = "base_model.model.model.language_model.embed_tokens.weight";
        assert_eq!(of(&[table]).copies.keys().collect::<Vec<_>>(), ["model.embed_tokens"]);
        for unknown in [
            "model.layers.0.self_attn.q_proj.lora_A.weight",
            "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias",
            "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
            "base_model.model.model.embed_tokens.lora_embedding_A",
            "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight",
        ] {
            assert_eq!(of(&[unknown]).unknown.as_deref(), Some(unknown));
        }
        let twice = ["model.", "model.language_model."]
            .map(|at| format!("{PREFIX}{at}layers.0.mlp.up_proj{}", PAIR[0]));
        assert_eq!(of(&[&twice[0], &twice[1]]).unknown, Some(twice[1].clone()), "two changes to one matrix");
    }
}
