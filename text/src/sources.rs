//! The sources of a model's text files: the model's directory, and the operator's overrides.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
pub use skein_grammar::JsonForm;

use super::bounded_read::{MAX_CONFIG_BYTES, read, read_json};
use super::error::TextError;
use super::named_templates::NamedTemplates;

const GENERATION: &str = "generation_config.json";

/// The operator's overrides of the model's files.
#[derive(Debug, Clone, Default)]
pub struct TextSources {
    /// Directory of tokenizer.json, tokenizer_config.json and the chat templates.
    pub tokenizer: Option<PathBuf>,
    /// Path of a chat template, or the template itself.
    pub chat_template: Option<String>,
    /// Source of the default sampling parameters.
    pub generation: GenerationSource,
    /// Fields that replace those of generation_config.json.
    pub generation_overrides: Map<String, Value>,
    /// Default arguments of the chat template; a request's own override them.
    pub template_kwargs: Map<String, Value>,
    /// Form of all JSON under a schema.
    pub json_form: JsonForm,
    /// Tool-call parser by vLLM's name; `None` = detected from the template.
    pub call_parser: Option<String>,
    /// Reasoning parser by vLLM's name; `None` = detected from the template.
    pub reasoning_parser: Option<String>,
    /// Seed of requests without one; `None` = derived from the request's id.
    pub seed: Option<i64>,
}

/// Source of generation_config.json.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum GenerationSource {
    /// The model's directory.
    #[default]
    Model,
    /// No file: the API's defaults apply.
    None,
    /// A directory other than the model's.
    Directory(PathBuf),
}

impl TextSources {
    /// The directory of the tokenizer's files.
    pub(super) fn tokenizer_directory<'a>(&'a self, model: &'a Path) -> &'a Path {
        self.tokenizer.as_deref().unwrap_or(model)
    }

    /// The sources of chat templates outside of tokenizer_config.json.
    pub(super) fn templates(&self, model: &Path) -> Result<NamedTemplates, TextError> {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        match self.chat_template.as_deref() {
            Some(template) if template.contains("{{") || template.contains("{%") => {
                Ok(NamedTemplates::one(Some(template.to_owned())))
            }
            Some(file) => {
                let source = read(Path::new(file), MAX_CONFIG_BYTES).map(text)?;
                Ok(NamedTemplates::one(Some(source)))
            }
            None => NamedTemplates::read(self.tokenizer_directory(model)),
        }
    }

    /// generation_config.json with its overrides; null if there are neither.
    pub(super) fn generation(&self, model: &Path) -> Result<Value, TextError> {
        let mut config = match &self.generation {
            GenerationSource::Model => read_json(model, GENERATION)?,
            GenerationSource::None => Value::Null,
            // The operator named the directory, so the file must exist.
            GenerationSource::Directory(directory) => {
                read(&directory.join(GENERATION), MAX_CONFIG_BYTES)?;
                read_json(directory, GENERATION)?
            }
        };
        if !self.generation_overrides.is_empty() {
            let mut fields = config.as_object().cloned().unwrap_or_default();
            fields.extend(self.generation_overrides.clone());
            config = Value::Object(fields);
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::model_text::ModelText;
    use super::*;

    fn shipped() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m"))
    }

    fn load(sources: &TextSources) -> Result<ModelText, String> {
        ModelText::load_with(shipped(), &[], sources).map_err(|error| error.to_string())
    }

    #[test]
    fn a_given_template_replaces_the_models_as_a_file_or_as_text() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("t.jinja");
        std::fs::write(&file, "file {{ messages[0].content }}").unwrap();
        let from = |template: &str| TextSources {
            chat_template: Some(template.to_owned()),
            ..TextSources::default()
        };
        for (template, expected) in [
            (file.display().to_string(), "file hi"),
            ("text {{ messages[0].content }}".to_owned(), "text hi"),
        ] {
            let text = load(&from(&template)).unwrap();
            let template = text.chat_template.unwrap();
            let messages = json!([{"role": "user", "content": "hi"}]);
            assert_eq!(template.render(&messages, true, &Map::new()).unwrap(), expected);
        }
        assert!(load(&from("/nowhere.jinja")).unwrap_err().contains("cannot read /nowhere.jinja"));
    }

    #[test]
    fn defaults_of_sampling_come_from_where_the_operator_says() {
        let directory = tempfile::tempdir().unwrap();
        let elsewhere = GenerationSource::Directory(directory.path().to_owned());
        let overrides = json!({"temperature": 0.25}).as_object().cloned().unwrap();
        let sources =
            |generation: &GenerationSource, generation_overrides: &Map<String, Value>| TextSources {
                generation: generation.clone(),
                generation_overrides: generation_overrides.clone(),
                seed: Some(7),
                ..TextSources::default()
            };
        let none = load(&sources(&GenerationSource::None, &Map::new())).unwrap().defaults;
        assert_eq!((none.sampling.temperature, none.sampling.seed), (None, Some(7)));
        let changed = load(&sources(&GenerationSource::None, &overrides)).unwrap().defaults;
        assert_eq!(changed.sampling.temperature, Some(0.25));
        let missing = load(&sources(&elsewhere, &Map::new())).unwrap_err();
        assert!(missing.contains("generation_config.json"), "{missing}");
        std::fs::write(directory.path().join(GENERATION), r#"{"do_sample": true, "top_k": 5}"#).unwrap();
        let other = load(&sources(&elsewhere, &Map::new())).unwrap().defaults;
        assert_eq!(other.sampling.top_k, Some(5));
    }

    #[test]
    fn a_missing_tokenizer_is_reported_once_with_a_hint() {
        let directory = tempfile::tempdir().unwrap();
        let tokenizer = Some(directory.path().to_owned());
        let error = load(&TextSources { tokenizer, ..TextSources::default() }).unwrap_err();
        assert_eq!(error.matches(&directory.path().display().to_string()).count(), 1, "{error}");
        assert!(
            error.contains("has no tokenizer: none of tokenizer.json") && error.contains("--tokenizer DIR"),
            "{error}"
        );
    }

    #[test]
    fn a_tokenizer_of_another_model_is_refused_at_start() {
        let text = load(&TextSources::default()).unwrap();
        assert!(text.check_vocabulary(4096).is_ok());
        let error = text.check_vocabulary(4000).unwrap_err().to_string();
        assert!(error.contains("4095") && error.contains("4000") && error.contains("--tokenizer"), "{error}");
    }
}
