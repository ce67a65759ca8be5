//! A model's chat templates by name. transformers chooses between two of them: `tool_use` for a chat with
//! tools,
//! `default` for all others.

use std::path::Path;

use serde_json::{Map, Value};

use super::bounded_read::{MAX_CONFIG_BYTES, read_if_there};
use super::chat_template::ChatTemplate;
use super::error::TextError;

/// Directory of the files of templates other than the default.
const NAMED: &str = "additional_chat_templates";
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// In place of a missing default.
const ONLY_TOOLS: &str =
    "{{ raise_exception('this model has a chat template for chats with tools only; give tools') }}";

/// Sources of the two templates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedTemplates {
    /// For all chats, or for those without tools.
    pub default: Option<String>,
    /// For chats with tools.
    pub tool_use: Option<String>,
}

impl NamedTemplates {
    /// One template for all chats.
    pub fn one(source: Option<String>) -> Self {
        Self { default: source, tool_use: None }
    }

    /// The files of the tokenizer's `directory`: chat_template.jinja and
    /// additional_chat_templates/tool_use.jinja.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn read(directory: &Path) -> Result<Self, TextError> {
        let text = |file: &Path| {
            let bytes = read_if_there(file, MAX_CONFIG_BYTES)?;
            Ok::<_, TextError>(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        };
        Ok(Self {
            default: text(&directory.join("chat_template.jinja"))?,
            tool_use: text(&directory.join(NAMED).join(format!("{TOOL_USE}.jinja")))?,
        })
    }

    /// These; if there is none, those of tokenizer_config.json: a string, or a list of named templates.
    pub fn or_of_config(self, config: &Value) -> Self {
        if self != Self::default() {
            return self;
        }
        let value = &config["chat_template"];
        let named = |name: &str| {
            let entry = value.as_array()?.iter().find(|entry| entry["name"] == name)?;
            entry["template"].as_str().map(str::to_owned)
        };
        let default = value.as_str().map(str::to_owned).or_else(|| named(DEFAULT));
        Self { default, tool_use: named(TOOL_USE) }
    }

    /// Compiles them; `own` holds the model's variables. `None` = there is no template.
    ///
    /// # Errors
    /// If one does not compile.
    pub fn compile(self, own: &[(String, String)]) -> Result<Option<ChatTemplate>, TextError> {
        let compile =
            |source: &str| ChatTemplate::compile(source, own.to_vec(), skein_node::clock::unix_time);
        match self {
            Self { default: None, tool_use: None } => Ok(None),
            Self { default: Some(source), tool_use: None } => compile(&source).map(Some),
            Self { default, tool_use: Some(with_tools) } => {
                let default = compile(default.as_deref().unwrap_or(ONLY_TOOLS))?;
                Ok(Some(default.with_tool_use(compile(&with_tools)?)))
            }
        }
    }
}

/// `bos_token`, `eos_token` and so on, each a string or `{"content": …}`, and the model's own ones.
pub fn special_strings(config: &Value) -> Vec<(String, String)> {
    let empty = Map::new();
    let fields = config.as_object().unwrap_or(&empty);
    let more = config["extra_special_tokens"].as_object().unwrap_or(&empty);
    let spelling = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    let own = fields.iter().filter(|(name, _)| name.ends_with("_token"));
    own.chain(more).filter_map(|(name, value)| Some((name.clone(), spelling(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skein_vocab::with_special_tokens;

    use super::*;

    const TOOLS: &str = "T{{ tools|length }}";

    /// What transformers renders without tools, with an empty list, and with one tool; `None` = it refuses.
    fn check(templates: NamedTemplates, config: &Value, expected: [Option<&str>; 3]) {
        let template = templates.or_of_config(config).compile(&[]).unwrap().unwrap();
        let arguments = [json!({}), json!({"tools": []}), json!({"tools": [{"type": "function"}]})];
        let texts =
            arguments.map(|arguments| template.render(&json!([]), true, arguments.as_object().unwrap()).ok());
        assert_eq!(texts.each_ref().map(Option::as_deref), expected);
    }

    #[test]
    fn a_chat_with_tools_takes_the_template_for_it() {
        let file = |default: Option<&str>, tool_use: Option<&str>| NamedTemplates {
            default: default.map(str::to_owned),
            tool_use: tool_use.map(str::to_owned),
        };
        let none = NamedTemplates::default();
        let list = json!({"chat_template": [{"name": "tool_use", "template": TOOLS}, {"name": "default", "template": "D"}]});
        let only = json!({"chat_template": [{"name": "tool_use", "template": TOOLS}]});
        check(none.clone(), &json!({"chat_template": "D"}), [Some("D"); 3]);
        check(none.clone(), &list, [Some("D"), Some("T0"), Some("T1")]);
        check(none, &only, [None, Some("T0"), Some("T1")]);
        check(file(Some("F"), None), &list, [Some("F"); 3]);
        check(file(Some("F"), Some(TOOLS)), &list, [Some("F"), Some("T0"), Some("T1")]);
        check(file(None, Some(TOOLS)), &list, [None, Some("T0"), Some("T1")]);
        let none = NamedTemplates::default().or_of_config(&json!({"chat_template": []}));
        assert!(none.compile(&[]).unwrap().is_none());
    }

    #[test]
    fn a_chat_without_tools_is_refused_with_the_reason() {
        let only = NamedTemplates { default: None, tool_use: Some(TOOLS.to_owned()) };
        let refusal = only.compile(&[]).unwrap().unwrap().render(&json!([]), true, &Map::new()).unwrap_err();
        assert!(refusal.to_string().contains("for chats with tools only; give tools"), "{refusal}");
    }

    #[test]
    fn templates_for_tools_are_read_from_their_directory() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(NamedTemplates::read(directory.path()).unwrap(), NamedTemplates::default());
        std::fs::create_dir(directory.path().join(NAMED)).unwrap();
        std::fs::write(directory.path().join(NAMED).join("tool_use.jinja"), TOOLS).unwrap();
        assert_eq!(NamedTemplates::read(directory.path()).unwrap().tool_use.as_deref(), Some(TOOLS));
    }

    #[test]
    fn special_strings_come_from_two_files() {
        let check = |config: Value, special: Value, expected: &[(&str, &str)]| {
            let found = special_strings(&with_special_tokens(config, special));
            let found: Vec<_> = found.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
            assert_eq!(found, expected);
        };
        let special = || json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}});
        let both = [("bos_token", "<s>"), ("eos_token", "</s>")];
        check(Value::Null, special(), &both);
        check(json!({"bos_token": "A", "eos_token": null, "add_bos_token": true}), special(), &both);
        check(json!({"added_tokens_decoder": {}, "bos_token": "A"}), special(), &[("bos_token", "A")]);
        check(
            json!({"bos_token": {"content": "<s>"}, "pad_token": null}),
            Value::Null,
            &[("bos_token", "<s>")],
        );
        let own = json!({"image_token": "<img>", "extra_special_tokens": {"my_token": "<my>"}});
        check(own, Value::Null, &[("image_token", "<img>"), ("my_token", "<my>")]);
    }
}
