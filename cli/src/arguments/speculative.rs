//! Translates vLLM's `--speculative-config`, whole or by parts, to `--speculate`. Only method and model
//! matter: the number of draft tokens follows from measurements.

use serde_json::Value;

const METHODS: &str = "drafts come from the text itself (ngram), from finished texts too (suffix), from a smaller model \
                       (draft_model), or there are none (off); see --speculate";
const MEASURED: &str = "how many tokens are drafted follows from measured chances and times";
const BY_MODEL: &str = "the draft model is named by --speculative-config.model";

/// Meaning of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// It sets `--speculate` to this value.
    Speculate(String),
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
        "spec-method" => method(value),
        "spec-tokens" => Ok(Meaning::Nothing(MEASURED)),
        part => match part.split_once('.').map_or("model", |(_, key)| key) {
            "method" => method(value),
            "model" => Ok(Meaning::Speculate(value.to_owned())),
            key => of_key(key),
        },
    }
}

fn whole(value: &str) -> Result<Meaning, String> {
    let config: Value =
        serde_json::from_str(value).map_err(|error| format!("it is no JSON object ({error}); {METHODS}"))?;
    let Value::Object(config) = config else {
        return if config.is_null() { Ok(Meaning::Speculate("off".into())) } else { Err(METHODS.to_owned()) };
    };
    for key in config.keys().filter(|key| !["method", "model"].contains(&key.as_str())) {
        of_key(&key.replace('_', "-"))?;
    }
    match (config.get("method").and_then(Value::as_str), config.get("model").and_then(Value::as_str)) {
        // Without a method, vLLM takes a model for a draft model.
        (None | Some("draft_model"), Some(model)) => Ok(Meaning::Speculate(model.to_owned())),
        (Some("draft_model"), None) => Err(format!("it names no model; {METHODS}")),
        (Some(named), _) => method(named),
        (None, None) => Err(format!("it names no method; {METHODS}")),
    }
}

fn method(name: &str) -> Result<Meaning, String> {
    let named = match name {
        "ngram" | "ngram_gpu" | "ngram-gpu" => "ngram",
        "suffix" => "suffix",
        "off" | "none" => "off",
        "draft_model" | "draft-model" => return Ok(Meaning::Nothing(BY_MODEL)),
        _ => return Err(format!("there is no method {name}; {METHODS}")),
    };
    Ok(Meaning::Speculate(named.to_owned()))
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
        let good = |spelt: &str, value: &str, expected: &str| {
            assert_eq!(read(spelt, value), Ok(Meaning::Speculate(expected.to_owned())), "{spelt} {value}");
        };
        let all =
            r#"{"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4,"prompt_lookup_min":2}"#;
        good("--speculative-config", all, "ngram");
        good("-sc", r#"{"method": "suffix"}"#, "suffix");
        good("--speculative_config", "null", "off");
        good("--speculative-config.method", "ngram", "ngram");
        good("--spec-method", "suffix", "suffix");
        good(
            "--speculative-config",
            r#"{"method":"draft_model","model":"small","num_speculative_tokens":5}"#,
            "small",
        );
        good("--speculative-config", r#"{"model":"small"}"#, "small");
        good("--speculative-config.model", "small", "small");
        good("--spec-model", "small", "small");
        assert_eq!(read("--spec-method", "draft_model"), Ok(Meaning::Nothing(BY_MODEL)));
        for (spelt, value) in [("--spec-tokens", "5"), ("--speculative-config.num_speculative_tokens", "3")] {
            assert_eq!(read(spelt, value), Ok(Meaning::Nothing(MEASURED)));
        }
        for (spelt, value, told) in [
            ("--speculative-config", "ngram", "no JSON object"),
            ("--speculative-config", r#"{"method":"eagle3","model":"x"}"#, "no method eagle3"),
            ("--speculative-config", r#"{"method":"draft_model"}"#, "names no model"),
            ("--speculative-config", r#"{"method":"mtp"}"#, "no method mtp"),
            ("--speculative-config", r#"{"num_speculative_tokens":5}"#, "names no method"),
            (
                "--speculative-config.draft_tensor_parallel_size",
                "2",
                "draft-tensor-parallel-size has no counterpart",
            ),
        ] {
            let error = read(spelt, value).unwrap_err();
            assert!(error.contains(told) && error.contains("--speculate"), "{spelt} {value}: {error}");
        }
    }
}
