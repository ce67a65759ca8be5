//! Sampling parameters as text, from flags at start and from `/set` in a chat. Types are checked here, ranges
//! by the validator that checks every request.

use serde_json::{Map, Value};
use skein_node::config::{Settings, text};
use skein_proto::sampling::SamplingOptions;

/// Names of the single-valued parameters.
pub const NAMES: [&str; 9] = [
    "temperature",
    "top-p",
    "top-k",
    "min-p",
    "repetition-penalty",
    "presence-penalty",
    "frequency-penalty",
    "seed",
    "max-tokens",
];

/// Reads the sampling flags; problems are recorded in `settings`.
pub fn read(settings: &mut Settings) -> SamplingOptions {
    let mut sampling = SamplingOptions {
        stop: settings.list("stop", |stop| Ok(stop.to_owned())),
        ..SamplingOptions::default()
    };
    for name in NAMES {
        // Parsed twice: once to record a problem, once to set the value.
        if let Some(value) = settings.value(name, |value| {
            set(&mut SamplingOptions::default(), name, value)?;
            text(value)
        }) {
            let known_good = set(&mut sampling, name, &value);
            debug_assert!(known_good.is_ok());
        }
    }
    sampling
}

/// The given parameters as fields of OpenAI's API.
pub fn to_json(sampling: &SamplingOptions) -> Map<String, Value> {
    let mut given = sampling.clone();
    let mut fields = Map::new();
    for name in NAMES.map(|name| name.replace('-', "_")) {
        let value = match name.as_str() {
            "top_k" => given.top_k.map(Value::from),
            "seed" => given.seed.map(Value::from),
            "max_tokens" => given.max_tokens.map(Value::from),
            _ => given.number_mut(&name).and_then(|number| *number).map(Value::from),
        };
        fields.extend(value.map(|value| (name, value)));
    }
    if !given.stop.is_empty() {
        fields.insert("stop".into(), given.stop.into());
    }
    fields
}

/// Sets one parameter from text. Names may use underscores instead of dashes.
///
/// # Errors
/// If there is no such parameter or the value has the wrong type.
pub fn set(sampling: &mut SamplingOptions, name: &str, value: &str) -> Result<(), String> {
    let float =
        || value.parse::<f64>().map(Some).map_err(|_| format!("`{value}` is not a number such as 0.7"));
    let whole =
        || value.parse::<i64>().map(Some).map_err(|_| format!("`{value}` is not an integer such as 40"));
    match name.replace('-', "_").as_str() {
        "top_k" => sampling.top_k = whole()?,
        "seed" => sampling.seed = whole()?,
        "max_tokens" => sampling.max_tokens = whole()?,
        field => match sampling.number_mut(field) {
            Some(number) => *number = float()?,
            None => return Err(format!("`{name}` is not one of {}", NAMES.join(", "))),
        },
    }
    Ok(())
}

/// Like [`set`], but also checks the range of the value. On error nothing changes.
///
/// # Errors
/// As for [`set`], and if the value is out of range.
pub fn set_checked(sampling: &mut SamplingOptions, name: &str, value: &str) -> Result<(), String> {
    let mut changed = sampling.clone();
    set(&mut changed, name, value)?;
    let mut refused = None;
    changed.numbers(&SamplingOptions::default(), |error| refused = Some(error.to_string()));
    if let Some(refused) = refused {
        return Err(refused);
    }
    if let Some(count @ ..=-2) = changed.top_k {
        return Err(format!("top_k must be -1 or 0 (off) or at least 1, got {count}."));
    }
    if let Some(count @ ..=0) = changed.max_tokens {
        return Err(format!("max_tokens must be at least 1, got {count}."));
    }
    *sampling = changed;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_out_of_range_is_told_when_it_is_typed_and_changes_nothing() {
        let mut sampling = SamplingOptions { temperature: Some(0.5), ..SamplingOptions::default() };
        for (name, value, expected) in [
            ("temperature", "9", "temperature must be in [0, 2], got 9"),
            ("top-p", "0", "top_p must be in (0, 1]"),
            ("top-k", "-7", "top_k must be -1 or 0"),
            ("max-tokens", "0", "max_tokens must be at least 1"),
            ("temperature", "warm", "`warm` is not a number"),
        ] {
            let said = set_checked(&mut sampling, name, value).expect_err(name);
            assert!(said.contains(expected), "{said}");
        }
        assert_eq!(sampling.temperature, Some(0.5));
        assert_eq!(set_checked(&mut sampling, "temperature", "0"), Ok(()));
        assert_eq!(sampling.temperature, Some(0.0));
    }

    #[test]
    fn a_server_gets_what_was_set_and_nothing_else() {
        let mut sampling = SamplingOptions::default();
        assert_eq!(to_json(&sampling), Map::new());
        for name in NAMES {
            assert_eq!(set(&mut sampling, name, "1"), Ok(()), "{name}");
        }
        sampling.stop = vec!["x".into()];
        let fields = to_json(&sampling);
        assert_eq!(
            (fields.len(), &fields["min_p"], &fields["seed"]),
            (10, &Value::from(1.0), &Value::from(1))
        );
        assert_eq!(fields["stop"], serde_json::json!(["x"]));
    }

    #[test]
    fn every_name_can_be_set_and_mistakes_are_explained() {
        let mut sampling = SamplingOptions::default();
        for name in NAMES {
            assert_eq!(set(&mut sampling, name, "1"), Ok(()), "{name}");
        }
        assert_eq!((sampling.top_p, sampling.top_k, sampling.max_tokens), (Some(1.0), Some(1), Some(1)));
        assert_eq!(set(&mut sampling, "top_k", "7"), Ok(()));
        assert!(set(&mut sampling, "top-k", "7.5").is_err_and(|reason| reason.contains("not an integer")));
        assert!(set(&mut sampling, "warmth", "1").is_err_and(|reason| reason.contains("temperature")));
    }
}
