//! Settings of a model's text: tokenizer, chat template, defaults of sampling parameters.

use serde_json::{Map, Value};
use skein_node::config::{Settings, text};
use skein_text::formats::Formats;
use skein_text::sources::{GenerationSource, JsonForm, TextSources};

/// Reads the settings; problems are recorded in `settings`. `seed` is left to the caller, because only
/// servers have a default seed.
pub fn text_sources(settings: &mut Settings) -> TextSources {
    let generation = settings.value("generation-config", text);
    TextSources {
        tokenizer: settings.value("tokenizer", directory).map(Into::into),
        chat_template: settings.value("chat-template", text),
        generation: match generation.as_deref() {
            None | Some("auto") => GenerationSource::Model,
            Some("none") => GenerationSource::None,
            Some(directory) => GenerationSource::Directory(directory.into()),
        },
        generation_overrides: settings.value("override-generation-config", object).unwrap_or_default(),
        template_kwargs: settings.value("default-chat-template-kwargs", object).unwrap_or_default(),
        json_form: JsonForm {
            is_compact: !settings.switch("structured-outputs-whitespace"),
            is_closed: !settings.switch("structured-outputs-additional-properties"),
        },
        call_parser: settings.value("tool-call-parser", Formats::check_call_parser),
        reasoning_parser: settings.value("reasoning-parser", Formats::check_reasoning_parser),
        seed: None,
    }
}

fn directory(given: &str) -> Result<String, String> {
    let given = text(given)?;
    if std::path::Path::new(&given).is_dir() {
        Ok(given)
    } else {
        Err(format!("`{given}` is not a directory; give the one that has the tokenizer"))
    }
}

/// Parses a JSON object.
fn object(given: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(given).map_err(|error| format!("`{given}` is not a JSON object: {error}"))
}

/// Parses a path under which the API is served.
pub fn root_path(given: &str) -> Result<String, String> {
    let path = given.trim().trim_end_matches('/');
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/-_.~".contains(letter);
    match path {
        "" => Ok(String::new()),
        path if path.starts_with('/') && path.chars().all(plain) && !path.contains("//") => {
            Ok(path.to_owned())
        }
        _ => Err(format!("`{given}` is not a path; write it like /llm")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_paths_are_plain_and_begin_with_a_slash() {
        for (given, expected) in
            [("/llm/v2/", Some("/llm/v2")), ("/", Some("")), ("llm", None), ("/{x}", None)]
        {
            assert_eq!(root_path(given).ok().as_deref(), expected, "{given}");
        }
    }

    #[test]
    fn objects_are_json_and_errors_quote_what_was_given() {
        assert_eq!(object(r#"{"a": 1}"#).map(|fields| fields.len()), Ok(1));
        assert!(object("[1]").is_err_and(|reason| reason.starts_with("`[1]` is not a JSON object")));
    }
}
