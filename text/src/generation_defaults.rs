//! generation_config.json: default sampling parameters from the model's authors. They are validated at start,
//! so that a bad value fails for the operator and not later for every client.

use serde_json::Value;
use skein_proto::sampling::{Range, SamplingOptions};

use super::error::TextError;
use crate::refused::TextRefused;
use crate::top_k::top_k;

const FILE: &str = "generation_config.json";

/// Defaults for fields that a request omits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// `temperature`, `top_p`, `top_k`, `min_p` and `repetition_penalty`, whatever `do_sample` is, as in vLLM
    /// 0.33: transformers would decode greedily without it.
    pub sampling: SamplingOptions,
    /// Most output tokens; `None` = as many as fit.
    pub max_new_tokens: Option<u32>,
}

impl GenerationDefaults {
    /// Parses the file's contents; null means that the file does not exist.
    pub fn from_json(config: &Value) -> Result<Self, TextError> {
        read(config, "do_sample", "true or false", Value::as_bool)?;
        let whole = |name| read(config, name, "a whole number", Value::as_i64);
        let real = |name| read(config, name, "a number", Value::as_f64);
        let in_range = |range: Range| {
            let value = real(range.name)?;
            let check =
                |value| range.check(value).map(|_| value).map_err(|error| malformed(error.to_string()));
            value.map(check).transpose()
        };
        let top_k = whole("top_k")?;
        let sampling = SamplingOptions {
            temperature: in_range(Range::TEMPERATURE)?,
            top_p: in_range(Range::TOP_P)?,
            top_k: top_k.map(|count| self::top_k(count, u32::MAX).map(|_| count)).transpose().map_err(bad)?,
            min_p: in_range(Range::MIN_P)?,
            repetition_penalty: in_range(Range::REPETITION_PENALTY)?,
            ..SamplingOptions::default()
        };
        Ok(Self { sampling, max_new_tokens: whole("max_new_tokens")?.map(max_new_tokens).transpose()? })
    }
}

fn max_new_tokens(count: i64) -> Result<u32, TextError> {
    match u32::try_from(count) {
        Ok(count @ 1..) => Ok(count),
        _ => Err(malformed(format!("max_new_tokens must be in [1, {}], got {count}.", u32::MAX))),
    }
}

fn read<'a, T>(
    config: &'a Value,
    name: &str,
    kind: &str,
    convert: impl Fn(&'a Value) -> Option<T>,
) -> Result<Option<T>, TextError> {
    match &config[name] {
        Value::Null => Ok(None),
        value => match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => {
                let shown: String = value.to_string().chars().take(80).collect();
                Err(malformed(format!("{name} must be {kind}, got {shown}.")))
            }
        },
    }
}

fn bad(refusal: TextRefused) -> TextError {
    malformed(refusal.to_string())
}

fn malformed(reason: String) -> TextError {
    TextError::Malformed { file: FILE, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_apply_whatever_do_sample_is() {
        for do_sample in [json!(null), json!(false), json!(true)] {
            let config = json!({"do_sample": do_sample, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": null,
                "max_new_tokens": 9});
            let defaults = GenerationDefaults::from_json(&config).unwrap();
            let expected = SamplingOptions {
                temperature: Some(0.7),
                top_p: Some(0.9),
                top_k: Some(20),
                ..SamplingOptions::default()
            };
            assert_eq!((defaults.sampling, defaults.max_new_tokens), (expected, Some(9)));
        }
        assert_eq!(GenerationDefaults::from_json(&json!(null)).unwrap(), GenerationDefaults::default());
    }

    #[test]
    fn a_bad_default_is_the_operators_error_at_start() {
        for (field, value, expected) in [
            ("temperature", json!(5.0), "temperature must be in [0, 2], got 5."),
            ("temperature", json!("hot"), "temperature must be a number, got \"hot\"."),
            ("top_k", json!(-5), "top_k must be -1 or 0 (off) or at least 1, got -5."),
            ("top_k", json!(2.5), "top_k must be a whole number, got 2.5."),
            ("top_p", json!(0.0), "top_p must be in (0, 1], got 0."),
            ("min_p", json!(1.5), "min_p must be in [0, 1], got 1.5."),
            ("repetition_penalty", json!(0), "repetition_penalty must be in (0, 10], got 0."),
            ("max_new_tokens", json!(0), "max_new_tokens must be in [1, 4294967295], got 0."),
            ("max_new_tokens", json!("all"), "max_new_tokens must be a whole number, got \"all\"."),
        ] {
            let config = json!({field: value});
            let error = GenerationDefaults::from_json(&config).unwrap_err().to_string();
            assert_eq!(error, format!("generation_config.json is malformed: {expected}"));
        }
        let error = GenerationDefaults::from_json(&json!({"do_sample": "yes"})).unwrap_err().to_string();
        assert!(error.contains("do_sample must be true or false"), "{error}");
    }
}
