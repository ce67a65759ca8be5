//! How a directory's model pools: by its architecture, and by the files of sentence-transformers, whose
//! modules are Transformer, Pooling, Dense and Normalize for a vector, or Transformer and LogitScore for a
//! score (versions 2 to 6).

use std::path::Path;

use serde_json::{Map, Value};
use skein_proto::pooling::{Activation, PooledKind};

use super::LoadError;
use super::families::Family;
use super::fields::{Fields, MAX_POSITIONS, read_object};
use super::pooled_head::{HeadActivation, HeadLayer, HeadWeights, PooledHead};
use super::pooling::{PooledRows, PoolingSpec};
use super::sentence_modules::{Module, Modules};
use super::spec::Spec;
use crate::tensors::Role;

/// Most labels of a classifier.
const MAX_LABELS: usize = 1 << 16;
/// Labels of a classifier whose configuration does not say it, in transformers.
const LABELS: usize = 2;
/// File with the longest text.
const TRANSFORMER: &str = "sentence_bert_config.json";
/// File of the tokenizer with the longest text, if that file does not say it.
const TOKENIZER: &str = "tokenizer_config.json";
/// File with the activation of scores.
const SENTENCE_TRANSFORMERS: &str = "config_sentence_transformers.json";

/// What a model is for, by the end of its architecture's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// It draws tokens; an encoder whose configuration names no architecture embeds.
    Generate,
    /// It has no head.
    Embed,
    /// It has a head for labels.
    Classify,
}

impl Task {
    /// That of the configuration `fields`. `has_text_model`: the architecture is that of a model around it.
    ///
    /// # Errors
    /// If it is another one.
    pub fn of(fields: &Fields<'_>, has_text_model: bool) -> Result<Self, LoadError> {
        let architecture = fields.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        let Some(architecture) = architecture else { return Ok(Self::Generate) };
        let ends_with = |ends: &[&str]| ends.iter().any(|end| architecture.ends_with(end));
        if ends_with(&["ForCausalLM"]) || ends_with(&["ForConditionalGeneration"]) && has_text_model {
            return Ok(Self::Generate);
        }
        if ends_with(&["ForSequenceClassification"]) {
            return Ok(Self::Classify);
        }
        if ends_with(&["Model", "ForMaskedLM", "ForPreTraining"]) {
            return Ok(Self::Embed);
        }
        let allowed = "a causal language model (…ForCausalLM), a model without a head (…Model) or a classifier \
            (…ForSequenceClassification)";
        Err(fields.wrong("architectures", allowed.into()))
    }
}

/// How a model with this task pools, if it does, without the files of sentence-transformers. Sets its head.
///
/// # Errors
/// If a field has no allowed value, or an encoder would have to draw tokens.
pub(super) fn by_task(
    task: Task,
    fields: &Fields<'_>,
    family: &Family,
    spec: &mut Spec,
) -> Result<Option<PoolingSpec>, LoadError> {
    match task {
        Task::Classify => {
            let labels = labels(fields)?;
            let head = (family.classifier)(fields, spec.hidden_size, labels.len())?;
            let kind = PooledKind::Scores(activation(fields, labels.len())?);
            Ok(Some(set(spec, head, kind, labels)))
        }
        Task::Generate if !spec.is_bidirectional => Ok(None),
        Task::Generate if !fields.is_absent("architectures") => {
            let allowed =
                "an encoder's: a model without a head (…Model) or a classifier (…ForSequenceClassification)";
            Err(fields.wrong("architectures", allowed.into()))
        }
        // As sentence-transformers does without its own files.
        Task::Generate | Task::Embed => Ok(Some(embedding(spec, PooledRows::Mean, Vec::new(), false))),
    }
}

/// The parts of a configuration that sentence-transformers' files change.
pub(super) struct Pooled<'a> {
    /// What the model computes.
    pub spec: &'a mut Spec,
    /// How it pools, as far as its configuration says.
    pub pooling: &'a mut Option<PoolingSpec>,
    /// Longest sequence.
    pub longest: &'a mut u32,
}

/// Changes `model`, the one in `dir`, by the files of sentence-transformers there, if there are any.
///
/// # Errors
/// If they have a module or a setting that is not served; it is named.
pub(super) fn apply(dir: &Path, model: Pooled<'_>) -> Result<(), LoadError> {
    let Pooled { spec, pooling, longest } = model;
    if let Some(modules) = Modules::read(dir)? {
        let by_modules = by_modules(dir, &modules, spec)?;
        *pooling = by_modules.or(pooling.take());
    }
    if pooling.is_some() {
        limit_length(dir, longest)?;
    }
    Ok(())
}

/// How the model of a GGUF file pools by the number `kind` of llama.cpp. Vectors are divided by their length,
/// as its server does.
///
/// # Errors
/// If it is another way to pool. `file` is for the message.
pub(super) fn of_gguf(file: &'static str, kind: u64, spec: &mut Spec) -> Result<PoolingSpec, LoadError> {
    let rows = match kind {
        1 => PooledRows::Mean,
        2 => PooledRows::First,
        3 => PooledRows::Last,
        _ => {
            let allowed = "0 (none), 1 (mean), 2 (first) and 3 (last)".into();
            return Err(LoadError::Field {
                file,
                field: "pooling_type".into(),
                got: kind.to_string(),
                allowed,
            });
        }
    };
    Ok(embedding(spec, rows, Vec::new(), true))
}

/// How the modules say that the model pools; `None` if they have only the transformer.
fn by_modules(dir: &Path, modules: &Modules, spec: &mut Spec) -> Result<Option<PoolingSpec>, LoadError> {
    let hidden = spec.hidden_size;
    let rest: Vec<&Module> = modules.after_transformer()?.collect();
    let (mut layers, mut rows, mut is_normalised) = (Vec::new(), None, false);
    for module in &rest {
        match (&*module.kind, rows, is_normalised) {
            ("Pooling", None, false) => rows = Some(module.rows()?),
            ("Dense", Some(_), false) => {
                let inputs = layers.last().map_or(hidden, |layer: &HeadLayer| layer.outputs);
                layers.push(module.dense(inputs)?);
            }
            ("Normalize", Some(_), false) => is_normalised = true,
            ("LogitScore", None, false) if rest.len() == 1 => {
                return logit_score(dir, module, spec).map(Some);
            }
            _ => return Err(module.refused()),
        }
    }
    let Some(rows) = rows else { return Ok(None) };
    Ok(Some(embedding(spec, rows, layers, is_normalised)))
}

/// A model whose score is the logit of a token, perhaps without that of another one.
fn logit_score(dir: &Path, module: &Module, spec: &mut Spec) -> Result<PoolingSpec, LoadError> {
    let [token, without] = module.score_tokens(spec.vocab_size)?;
    let Some(token) = token else { return Err(module.refused()) };
    let name = |role| (spec.names)(role).iter().map(|name| format!("{name}.weight"));
    let names: Vec<String> = if spec.is_tied { name(Role::Embedding) } else { name(Role::Head) }.collect();
    let layer = HeadLayer {
        weights: HeadWeights::Logits { names, vocab_size: spec.vocab_size as usize, token, without },
        outputs: 1,
        inputs: spec.hidden_size,
        bias: None,
        activation: HeadActivation::Identity,
        norm: None,
    };
    // The norm before the head has the logits' factor.
    let (scale, cap) = (spec.logits_scale, spec.logits_softcap);
    if cap.is_some() {
        return Err(module.refused());
    }
    let file = dir.join(SENTENCE_TRANSFORMERS);
    let object = if file.exists() { read_object(&file)? } else { Map::new() };
    let fields = Fields { file: SENTENCE_TRANSFORMERS, object: &object };
    let activation = match fields.get("activation_fn").filter(|value| !value.is_null()) {
        None => Activation::Logistic,
        Some(_) => named_activation(&fields, "activation_fn", &fields)?,
    };
    let head = PooledHead { rows: PooledRows::Last, layers: vec![layer] };
    let pooling = set(spec, head, PooledKind::Scores(activation), Vec::new());
    spec.logits_scale = scale;
    Ok(pooling)
}

/// An embedding of `rows`, changed by `layers`.
fn embedding(spec: &mut Spec, rows: PooledRows, layers: Vec<HeadLayer>, is_normalised: bool) -> PoolingSpec {
    set(spec, PooledHead { rows, layers }, PooledKind::Embedding { is_normalised }, Vec::new())
}

/// Gives the model of `spec` the end `head` instead of logits.
fn set(spec: &mut Spec, head: PooledHead, kind: PooledKind, labels: Vec<String>) -> PoolingSpec {
    let width = head.width(spec.hidden_size) as u32;
    let pooling =
        PoolingSpec { rows: head.rows, is_bidirectional: spec.is_bidirectional, width, kind, labels };
    (spec.pooled, spec.logits_scale, spec.logits_softcap) = (Some(head), 1.0, None);
    pooling
}

/// Lowers the longest sequence to what sentence-transformers cuts texts to: its own `max_seq_length`, or else
/// the tokenizer's `model_max_length`, where its version 6 saves it.
fn limit_length(dir: &Path, longest: &mut u32) -> Result<(), LoadError> {
    let read = |name: &str| {
        let file = dir.join(name);
        if file.exists() { read_object(&file) } else { Ok(Map::new()) }
    };
    let own = read(TRANSFORMER)?;
    let fields = Fields { file: TRANSFORMER, object: &own };
    let most = if fields.is_absent("max_seq_length") {
        // Tokenizers without a limit say 1e30.
        let most = read(TOKENIZER)?.get("model_max_length").and_then(Value::as_u64).filter(|most| *most > 0);
        most.map_or(u32::MAX, |most| u32::try_from(most).unwrap_or(u32::MAX))
    } else {
        fields.size("max_seq_length", MAX_POSITIONS, None)? as u32
    };
    *longest = most.min(*longest);
    Ok(())
}

/// Names of a classifier's labels, in order.
fn labels(fields: &Fields<'_>) -> Result<Vec<String>, LoadError> {
    let Some(Value::Object(named)) = fields.get("id2label") else {
        let count = fields.size("num_labels", MAX_LABELS, Some(LABELS))?;
        return Ok((0..count).map(|label| format!("LABEL_{label}")).collect());
    };
    let name = |label: usize| named.get(&label.to_string()).and_then(Value::as_str).map(str::to_owned);
    let names: Option<Vec<String>> = (0..named.len()).map(name).collect();
    let names = names.filter(|names| (1..=MAX_LABELS).contains(&names.len()));
    names.ok_or_else(|| {
        fields.wrong("id2label", format!("names of the labels 0, 1 and so on, at most {MAX_LABELS}"))
    })
}

/// What makes scores of a classifier's logits: what sentence-transformers' CrossEncoder has stored, or else
/// the logistic function of one label or of labels that do not exclude each other, or the softmax of several.
fn activation(fields: &Fields<'_>, labels: usize) -> Result<Activation, LoadError> {
    const OLD: &str = "sbert_ce_default_activation_function";
    let stored = fields.get("sentence_transformers").and_then(Value::as_object);
    if let Some(object) = stored.filter(|object| object.get("activation_fn").is_some_and(Value::is_string)) {
        return named_activation(&Fields { file: fields.file, object }, "activation_fn", fields);
    }
    if fields.get(OLD).is_some_and(Value::is_string) {
        return named_activation(fields, OLD, fields);
    }
    let are_apart = fields.get("problem_type").is_some_and(|kind| kind == "multi_label_classification");
    Ok(if labels == 1 || are_apart { Activation::Logistic } else { Activation::Softmax })
}

/// The activation whose PyTorch module `field` of `object` names; `file` is for the message.
fn named_activation(
    object: &Fields<'_>,
    field: &'static str,
    file: &Fields<'_>,
) -> Result<Activation, LoadError> {
    let name = object.get(field).and_then(Value::as_str).unwrap_or_default();
    match name.rsplit('.').next() {
        Some("Identity") => Ok(Activation::Identity),
        Some("Sigmoid") => Ok(Activation::Logistic),
        Some("Softmax") => Ok(Activation::Softmax),
        _ => {
            let allowed = "torch.nn.modules.linear.Identity, torch.nn.modules.activation.Sigmoid or Softmax";
            Err(Fields { file: file.file, object: object.object }.wrong(field, allowed.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::ModelConfig;

    /// A directory with a decoder's or an encoder's configuration and these files.
    fn read(config: Value, files: &[(&str, Value)]) -> Result<ModelConfig, LoadError> {
        let mut whole = json!({
            "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 80,
            "num_hidden_layers": 2, "vocab_size": 256, "num_attention_heads": 4, "head_dim": 32,
            "max_position_embeddings": 256, "tie_word_embeddings": true,
        });
        whole.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), whole.to_string()).unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content.to_string()).unwrap();
        }
        ModelConfig::from_dir(dir.path())
    }

    /// modules.json of these classes, in directories of their own but for the first.
    fn modules(classes: &[&str]) -> (&'static str, Value) {
        let entry = |(i, class): (usize, &&str)| {
            let path = if i == 0 { String::new() } else { format!("{i}_{class}") };
            json!({"idx": i, "name": i.to_string(), "path": path, "type": format!("sentence_transformers.models.{class}")})
        };
        ("modules.json", classes.iter().enumerate().map(entry).collect())
    }

    fn pooling(config: Value, files: &[(&str, Value)]) -> Option<(PooledRows, PooledKind, u32)> {
        let pooling = read(config, files).unwrap().pooling?;
        Some((pooling.rows, pooling.kind, pooling.width))
    }

    #[test]
    fn a_gguf_file_pools_by_llama_cpps_numbers() {
        let spec = || read(json!({}), &[]).unwrap().spec;
        let of = |kind| of_gguf("the metadata", kind, &mut spec()).map(|it| (it.rows, it.kind));
        for (kind, rows) in [(1, PooledRows::Mean), (2, PooledRows::First), (3, PooledRows::Last)] {
            assert_eq!(of(kind).unwrap(), (rows, NORMALISED));
        }
        let rank = of(4).unwrap_err().to_string();
        assert!(rank.contains("pooling_type") && rank.contains('4') && rank.contains("3 (last)"), "{rank}");
    }

    #[test]
    fn the_longest_text_is_that_of_sentence_transformers_files() {
        let pooling = ("1_Pooling/config.json", json!({"pooling_mode": "mean"}));
        let longest = |files: &[(&str, Value)]| {
            let all = [modules(&["Transformer", "Pooling"]), pooling.clone()].into_iter();
            let all: Vec<_> = all.chain(files.iter().cloned()).collect();
            read(json!({}), &all).unwrap().max_position_embeddings
        };
        let tokenizer = |most: Value| ("tokenizer_config.json", json!({"model_max_length": most}));
        let own = ("sentence_bert_config.json", json!({"max_seq_length": 128}));
        assert_eq!(longest(&[]), 256);
        assert_eq!(longest(&[tokenizer(json!(40))]), 40, "as saved by its version 6");
        assert_eq!(longest(&[tokenizer(json!(1e30))]), 256);
        assert_eq!(longest(&[own, tokenizer(json!(40))]), 128);
        assert_eq!(longest(&[tokenizer(json!(9999))]), 256);
    }

    const NORMALISED: PooledKind = PooledKind::Embedding { is_normalised: true };
    const PLAIN: PooledKind = PooledKind::Embedding { is_normalised: false };

    #[test]
    fn a_decoder_pools_exactly_if_its_architecture_or_modules_say_so() {
        assert_eq!(pooling(json!({}), &[]), None);
        let model = json!({"architectures": ["Qwen3Model"]});
        assert_eq!(pooling(model, &[]), Some((PooledRows::Mean, PLAIN, 64)));
        let last = ("1_Pooling/config.json", json!({"pooling_mode": "lasttoken"}));
        let files = [modules(&["Transformer", "Pooling", "Normalize"]), last];
        assert_eq!(pooling(json!({}), &files), Some((PooledRows::Last, NORMALISED, 64)));
    }

    #[test]
    fn a_classifier_has_its_labels_and_its_activation() {
        let of = |more: Value| {
            let mut config = json!({"architectures": ["Qwen3ForSequenceClassification"]});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(config, &[])
        };
        let scores = |more| {
            let pooling = of(more).unwrap().pooling.unwrap();
            let PooledKind::Scores(activation) = pooling.kind else { panic!("{pooling:?}") };
            (pooling.labels.join(" "), activation)
        };
        assert_eq!(scores(json!({})), ("LABEL_0 LABEL_1".into(), Activation::Softmax));
        let one = json!({"id2label": {"0": "relevant"}});
        assert_eq!(scores(one), ("relevant".into(), Activation::Logistic));
        let apart = json!({"id2label": {"1": "b", "0": "a"}, "problem_type": "multi_label_classification"});
        assert_eq!(scores(apart), ("a b".into(), Activation::Logistic));
        let stored = json!({"id2label": {"0": "a"},
            "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}});
        assert_eq!(scores(stored).1, Activation::Identity);
        let unknown = json!({"sbert_ce_default_activation_function": "torch.nn.modules.activation.GELU"});
        assert!(of(unknown).unwrap_err().to_string().contains("activation.GELU"));
        let gap = of(json!({"id2label": {"0": "a", "2": "c"}})).unwrap_err().to_string();
        assert!(gap.contains("id2label"), "{gap}");
    }

    #[test]
    fn texts_are_cut_where_sentence_transformers_cuts_them() {
        let cut = ("sentence_bert_config.json", json!({"max_seq_length": 100, "do_lower_case": false}));
        let mean = ("1_Pooling/config.json", json!({"pooling_mode_mean_tokens": true}));
        let files = [modules(&["Transformer", "Pooling"]), mean, cut.clone()];
        assert_eq!(read(json!({}), &files).unwrap().max_position_embeddings, 100);
        assert_eq!(read(json!({}), &[cut]).unwrap().max_position_embeddings, 256, "it draws tokens");
    }

    #[test]
    fn a_module_or_a_setting_that_is_not_served_is_named() {
        let refused = |classes: &[&str], own: (&str, Value), words: &[&str]| {
            let error = read(json!({}), &[modules(classes), own]).unwrap_err().to_string();
            words.iter().for_each(|word| assert!(error.contains(word), "{error:?} says {word:?}"));
        };
        let mode = |mode: Value| ("1_Pooling/config.json", json!({"pooling_mode": mode}));
        let mean = || mode(json!("mean"));
        refused(
            &["Transformer", "Pooling", "LayerNorm"],
            mean(),
            &["modules.json", "LayerNorm in 2_LayerNorm"],
        );
        refused(&["Transformer", "Pooling", "Normalize", "Dense"], mean(), &["Dense"]);
        refused(&["CLIPModel"], mean(), &["CLIPModel"]);
        refused(&["Transformer", "Pooling"], mode(json!("max")), &["pooling_mode", "max", "lasttoken"]);
        refused(&["Transformer", "Pooling"], mode(json!(["cls", "mean"])), &["pooling_mode", "one way"]);
        let prompts = ("1_Pooling/config.json", json!({"pooling_mode": "mean", "include_prompt": false}));
        refused(&["Transformer", "Pooling"], prompts, &["include_prompt", "true"]);
        let outside = ("modules.json", json!([{"type": "a.Transformer", "path": "../other"}]));
        assert!(read(json!({}), &[outside]).unwrap_err().to_string().contains("leaves the directory"));
        let wide = [
            modules(&["Transformer", "Pooling", "Dense"]),
            mean(),
            ("2_Dense/config.json", json!({"in_features": 32, "out_features": 8})),
        ];
        assert!(read(json!({}), &wide).unwrap_err().to_string().contains("64, the values that it is given"));
    }
}
