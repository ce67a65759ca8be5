//! Translates vLLM's `--structured-outputs-config`, whole or by parts, to our settings.

use serde_json::{Map, Value, json};

/// Why a setting without effect is accepted.
pub const ONE_LIBRARY: &str = "schemas and grammars work without it";

/// A setting of ours and its value.
pub type Setting = (&'static str, String);

/// Parses `value` of the flag `spelt`. Returns the settings that it changes.
///
/// # Errors
/// If a part has no counterpart.
pub fn read(spelt: &str, value: &str) -> Result<Vec<Setting>, String> {
    let parts = match spelt.split_once('.') {
        Some((_, key)) => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
            Map::from_iter([(key.replace('-', "_"), value)])
        }
        None => serde_json::from_str(value).map_err(|error| format!("it is no JSON object ({error})"))?,
    };
    let settings = parts.iter().map(|(key, value)| of_part(key, value));
    Ok(settings.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

fn of_part(key: &str, value: &Value) -> Result<Option<Setting>, String> {
    let is_neutral = value.is_null() || *value == false || *value == "";
    let off = |name| Ok(Some((name, "false".to_owned())));
    match (key, value) {
        ("backend" | "disable_fallback", _) => Ok(None),
        (_, _) if is_neutral => Ok(None),
        ("disable_any_whitespace", Value::Bool(true)) => off("structured-outputs-whitespace"),
        ("disable_additional_properties", Value::Bool(true)) => {
            off("structured-outputs-additional-properties")
        }
        ("reasoning_parser", Value::String(name)) => Ok(Some(("reasoning-parser", name.clone()))),
        _ => Err(format!("{key} {value} has no counterpart; leave it out")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_with_a_counterpart_are_settings_and_others_are_refused() {
        let all = r#"{"backend": "xgrammar", "disable_fallback": true, "disable_any_whitespace": true,
            "disable_additional_properties": true, "reasoning_parser": "qwen3", "enable_in_reasoning": false}"#;
        let expected = [
            ("structured-outputs-whitespace", "false".to_owned()),
            ("structured-outputs-additional-properties", "false".to_owned()),
            ("reasoning-parser", "qwen3".to_owned()),
        ];
        assert_eq!(read("--structured-outputs-config", all), Ok(expected.to_vec()));
        assert_eq!(read("--structured-outputs-config.backend", "guidance"), Ok(Vec::new()));
        assert_eq!(
            read("--structured-outputs-config.disable_any_whitespace", "true"),
            Ok(vec![expected[0].clone()])
        );
        for (spelt, value) in [
            ("--structured-outputs-config", "xgrammar"),
            ("--structured-outputs-config", r#"{"enable_in_reasoning": true}"#),
            ("--structured-outputs-config.reasoning_parser_plugin", "x.py"),
        ] {
            assert!(read(spelt, value).is_err(), "{spelt} {value}");
        }
    }
}
