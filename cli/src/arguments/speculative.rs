//! Translates vLLM's `--speculative-config`, whole or by parts, to `--speculate`. Only the method matters:
//! the number of draft tokens follows from measurements.

use serde_json::Value;

const METHODS: &str = "drafts come from the text itself (ngram), from finished texts too (suffix), or there are none \
                       (off); draft models are not supported yet; see --speculate";
const MEASURED: &str = "how many tokens are drafted follows from measured chances and times";

/// Meaning of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// It sets `--speculate` to this value.
    Speculate(&'static str),
    /// It has no effect; the text says why.
    Nothing(&'static str),
}

/// Parses `value` of the flag `spelt`.
///
/// # Errors
/// If it is not supported; lists what is.
pub fn read(spelt: &str, value: &str) -> Result<Meaning, String> {
    match spelt.trim_start_matches('-').replace('_', "-").as_str() {
        "speculative-config" | "sc" => whole(value),
        "spec-method" => method(value).map(Meaning::Speculate),
        "spec-tokens" => Ok(Meaning::Nothing(MEASURED)),
        part => match part.split_once('.').map_or("model", |(_, key)| key) {
            "method" => method(value).map(Meaning::Speculate),
            key => of_key(key),
        },
    }
}

fn whole(value: &str) -> Result<Meaning, String> {
    let config: Value =
        serde_json::from_str(value).map_err(|error| format!("it is no JSON object ({error}); {METHODS}"))?;
    let Value::Object(config) = config else {
        return if config.is_null() { Ok(Meaning::Speculate("off")) } else { Err(METHODS.to_owned()) };
    };
    let Some(Value::String(named)) = config.get("method") else {
        return Err(format!("it names no method; {METHODS}"));
    };
    for key in config.keys().filter(|key| *key != "method") {
        of_key(&key.replace('_', "-"))?;
    }
    method(named).map(Meaning::Speculate)
}

fn method(name: &str) -> Result<&'static str, String> {
    match name {
        "ngram" | "ngram_gpu" | "ngram-gpu" => Ok("ngram"),
        "suffix" => Ok("suffix"),
        "off" | "none" => Ok("off"),
        _ => Err(format!("there is no method {name}; {METHODS}")),
    }
}

/// Parses a key of the configuration. Limits of drafts and matches have no effect; other keys are refused.
fn of_key(key: &str) -> Result<Meaning, String> {
    let is_bound = ["num-speculative-tokens", "prompt-lookup-", "suffix-decoding-", "disable-by-batch-size"]
        .iter()
        .any(|start| key.starts_with(start));
    if is_bound {
        Ok(Meaning::Nothing(MEASURED))
    } else {
        Err(format!("{key} has no counterpart; {METHODS}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_that_we_have_are_taken_and_others_are_refused() {
        let good = |spelt: &str, value: &str, expected: &'static str| {
            assert_eq!(read(spelt, value), Ok(Meaning::Speculate(expected)), "{spelt} {value}");
        };
        let all =
            r#"{"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4,"prompt_lookup_min":2}"#;
        good("--speculative-config", all, "ngram");
        good("-sc", r#"{"method": "suffix"}"#, "suffix");
        good("--speculative_config", "null", "off");
        good("--speculative-config.method", "ngram", "ngram");
        good("--spec-method", "suffix", "suffix");
        for (spelt, value) in [("--spec-tokens", "5"), ("--speculative-config.num_speculative_tokens", "3")] {
            assert_eq!(read(spelt, value), Ok(Meaning::Nothing(MEASURED)));
        }
        for (spelt, value, told) in [
            ("--speculative-config", "ngram", "no JSON object"),
            ("--speculative-config", r#"{"method":"eagle3","model":"x"}"#, "model has no counterpart"),
            ("--speculative-config", r#"{"method":"mtp"}"#, "no method mtp"),
            ("--speculative-config", r#"{"num_speculative_tokens":5}"#, "names no method"),
            ("--speculative-config.model", "x", "model has no counterpart"),
            ("--spec-model", "x", "model has no counterpart"),
        ] {
            let error = read(spelt, value).unwrap_err();
            assert!(error.contains(told) && error.contains("--speculate"), "{spelt} {value}: {error}");
        }
    }
}
