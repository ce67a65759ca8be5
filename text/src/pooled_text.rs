//! What a directory says of the texts of a model that makes vectors of them, in the files of
//! sentence-transformers beside the tokenizer: prompts that are put before texts, and lower case.

use std::path::Path;

use serde_json::{Map, Value};
use skein_gguf::is_gguf;

use crate::bounded_read::read_json;
use crate::error::TextError;

/// Prompts, by name, and the one of texts without.
const PROMPTS: &str = "config_sentence_transformers.json";
/// How texts are read.
const READING: &str = "sentence_bert_config.json";
/// Most prompts.
const MAX_PROMPTS: usize = 1024;
/// Longest prompt, in bytes.
const MAX_PROMPT_BYTES: usize = 64 * 1024;

/// How a directory wants texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PooledText {
    /// Prompts by name, in the order of the file.
    prompts: Vec<(String, String)>,
    /// Prompt of texts for which none is named.
    default_prompt: Option<String>,
    /// Whether texts are put into lower case before they are tokenised.
    pub lowers_case: bool,
    /// Whether a cut text keeps its end instead of its beginning.
    pub keeps_end: bool,
    /// Arguments of the chat template that writes a pair.
    pub template_kwargs: Map<String, Value>,
}

impl PooledText {
    /// Reads the files in `directory`; a GGUF file has none. `config` is tokenizer_config.json.
    ///
    /// # Errors
    /// If a file cannot be read or is malformed.
    pub(super) fn read(directory: &Path, config: &Value) -> Result<Self, TextError> {
        let keeps_end = config["truncation_side"] == "left";
        if is_gguf(directory) {
            return Ok(Self { keeps_end, ..Self::default() });
        }
        let (prompts, reading) = (read_json(directory, PROMPTS)?, read_json(directory, READING)?);
        let lowers_case = reading["do_lower_case"] == true;
        let template_kwargs = reading["processing_kwargs"]["chat_template"].as_object().cloned();
        let template_kwargs = template_kwargs.unwrap_or_default();
        Ok(Self { lowers_case, keeps_end, template_kwargs, ..Self::of_prompts(&prompts)? })
    }

    /// The prompts of `config`, which may be null.
    fn of_prompts(config: &Value) -> Result<Self, TextError> {
        let malformed = |reason: String| TextError::Malformed { file: PROMPTS, reason };
        let mut prompts = Vec::new();
        for (name, prompt) in config["prompts"].as_object().into_iter().flatten() {
            let prompt =
                prompt.as_str().ok_or_else(|| malformed(format!("the prompt {name:?} is no text")))?;
            if prompt.len() > MAX_PROMPT_BYTES || prompts.len() == MAX_PROMPTS {
                let reason = format!(
                    "it has more than {MAX_PROMPTS} prompts, or one of over {MAX_PROMPT_BYTES} bytes: {name:?}"
                );
                return Err(malformed(reason));
            }
            prompts.push((name.clone(), prompt.to_owned()));
        }
        let default_prompt = match config["default_prompt_name"].as_str() {
            None => None,
            Some(name) => match prompts.iter().find(|(known, _)| known == name) {
                Some((_, prompt)) => Some(prompt.clone()),
                None => return Err(malformed(format!("it has no prompt {name:?}, its default_prompt_name"))),
            },
        };
        Ok(Self { prompts, default_prompt, ..Self::default() })
    }

    /// The prompt of this name.
    pub fn prompt(&self, name: &str) -> Option<&str> {
        self.prompts.iter().find(|(known, _)| known == name).map(|(_, prompt)| prompt.as_str())
    }

    /// The prompt of texts for which none is named; empty = none.
    pub fn default_prompt(&self) -> &str {
        self.default_prompt.as_deref().unwrap_or_default()
    }

    /// Names of the prompts.
    pub fn prompt_names(&self) -> impl Iterator<Item = &str> {
        self.prompts.iter().map(|(name, _)| name.as_str())
    }

    /// `text` as the tokenizer gets it.
    pub fn prepared(&self, text: String) -> String {
        if self.lowers_case { text.to_lowercase() } else { text }
    }

    /// With these prompts and the name of the default one, for tests.
    #[must_use]
    pub fn with_prompts(mut self, prompts: &[(&str, &str)], default: Option<&str>) -> Self {
        self.prompts = prompts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        self.default_prompt = default.and_then(|name| self.prompt(name)).map(str::to_owned);
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(files: &[(&str, Value)], config: &Value) -> Result<PooledText, String> {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(directory.path().join(name), content.to_string()).unwrap();
        }
        PooledText::read(directory.path(), config).map_err(|error| error.to_string())
    }

    #[test]
    fn prompts_come_from_sentence_transformers_files() {
        let prompts =
            json!({"prompts": {"query": "Query: ", "document": ""}, "default_prompt_name": "query"});
        let read = of(&[(PROMPTS, prompts)], &Value::Null).unwrap();
        assert_eq!(
            (read.prompt("query"), read.prompt("document"), read.prompt("x")),
            (Some("Query: "), Some(""), None)
        );
        assert_eq!(read.default_prompt(), "Query: ");
        assert_eq!(read.prompt_names().collect::<Vec<_>>(), ["query", "document"]);
        let none =
            of(&[(PROMPTS, json!({"prompts": {}, "default_prompt_name": null}))], &Value::Null).unwrap();
        assert_eq!((none.default_prompt(), none.prompt_names().count()), ("", 0));
        assert_eq!(of(&[], &Value::Null).unwrap(), PooledText::default());
    }

    #[test]
    fn a_malformed_file_says_what_is_wrong() {
        let said = |content: Value| of(&[(PROMPTS, content)], &Value::Null).unwrap_err();
        assert!(said(json!({"prompts": {"a": 1}})).contains("the prompt \"a\" is no text"));
        assert!(said(json!({"default_prompt_name": "q"})).contains("no prompt \"q\""));
        assert!(
            said(json!({"prompts": {"a": "x".repeat(MAX_PROMPT_BYTES + 1)}})).contains("over 65536 bytes")
        );
    }

    #[test]
    fn case_and_the_side_that_is_cut_are_read() {
        let read = of(
            &[(
                READING,
                json!({"max_seq_length": 128, "do_lower_case": true,
            "processing_kwargs": {"chat_template": {"add_generation_prompt": true}}}),
            )],
            &Value::Null,
        )
        .unwrap();
        assert_eq!(read.prepared("ÄB".to_owned()), "äb");
        assert_eq!(read.template_kwargs["add_generation_prompt"], true);
        let read = of(&[], &json!({"truncation_side": "left"})).unwrap();
        assert!(read.keeps_end && !read.lowers_case);
    }
}
