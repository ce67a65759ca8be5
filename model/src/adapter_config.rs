//! adapter_config.json: what refuses an adapter, and by how much its matrices count.

use regex::Regex;
use serde_json::{Map, Value};

use super::LoadError;
use super::fields::Fields;

/// Fields of unsupported features; they must be absent, null, false or empty.
const PLAIN: [&str; 15] = [
    "use_bdlora",
    "kasa_config",
    "arrow_config",
    "monteclora_config",
    "velora_config",
    "use_dora",
    "fan_in_fan_out",
    "lora_bias",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
    "use_qalora",
    "megatron_config",
];
const INITIALISATION: &str = "init_lora_weights";
/// Initialisations that leave the model's own weights as they are, besides true and false. Others (PiSSA,
/// OLoRA, CorDA, LoftQ, LoRA-GA) take the adapter's first product off them.
const PLAIN_INITIALISATIONS: [&str; 4] = ["gaussian", "eva", "orthogonal", "mica"];
const ALPHAS: &str = "alpha_pattern";
/// Most keys of `alpha_pattern`, and most bytes of one; an adapter may have one for each matrix.
const MAX_PATTERNS: usize = 1 << 13;
const MAX_PATTERN_BYTES: usize = 1 << 10;
/// Most bytes of a compiled key.
const MAX_COMPILED_BYTES: usize = 1 << 18;

/// Validated configuration of an adapter. Ranks follow from its tensors.
pub(super) struct AdapterConfig {
    alpha: f64,
    /// Alphas of modules whose names match, in the order of the file; the first counts.
    alphas: Vec<(Regex, f64)>,
    /// Whether the scale is `alpha / sqrt(rank)` (rsLoRA, arXiv 2312.03732) instead of `alpha / rank`.
    is_rank_stabilised: bool,
}

impl AdapterConfig {
    /// Validates the fields of adapter_config.json.
    ///
    /// # Errors
    /// If they are not of a LoRA adapter, or of features that cannot be merged.
    pub fn read(fields: &Fields<'_>) -> Result<Self, LoadError> {
        fields.one_of("peft_type", &["LORA"], None)?;
        fields.one_of("bias", &["none"], Some("none"))?;
        if let Some(field) = PLAIN.into_iter().find(|field| !fields.get(field).is_none_or(is_plain)) {
            return Err(fields.wrong(field, "absent: only plain pairs of matrices can be merged".into()));
        }
        check_initialisation(fields)?;
        Ok(Self {
            alpha: fields.number("lora_alpha", 0.0..=1e6, None)?,
            alphas: alphas(fields)?,
            is_rank_stabilised: fields.flag("use_rslora", false)?,
        })
    }

    /// Factor of the product of the matrices of `module`, as PEFT names it, with `rank` components.
    pub fn scale(&self, module: &str, rank: usize) -> f32 {
        let own = self.alphas.iter().find(|(pattern, _)| pattern.is_match(module));
        let alpha = own.map_or(self.alpha, |(_, alpha)| *alpha);
        let divisor = if self.is_rank_stabilised { (rank as f64).sqrt() } else { rank as f64 };
        (alpha / divisor) as f32
    }
}

fn is_plain(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Refuses an adapter that was trained on changed weights: PEFT changes the model's own weights when it loads
/// one.
fn check_initialisation(fields: &Fields<'_>) -> Result<(), LoadError> {
    let is_plain = match fields.get(INITIALISATION) {
        None | Some(Value::Null | Value::Bool(_)) => true,
        Some(Value::String(name)) => PLAIN_INITIALISATIONS.contains(&&*name.to_lowercase()),
        Some(_) => false,
    };
    if is_plain {
        return Ok(());
    }
    let allowed = format!(
        "true, false, {}; others change the model's own weights. Convert the adapter: load it with PEFT and save it with \
         path_initial_model_for_weight_conversion",
        PLAIN_INITIALISATIONS.join(", ")
    );
    Err(fields.wrong(INITIALISATION, allowed))
}

/// Reads `alpha_pattern`. Its keys are regular expressions for the end of a module's name, as PEFT's
/// `get_pattern_key` has it: all of the name, or what comes after a dot.
fn alphas(fields: &Fields<'_>) -> Result<Vec<(Regex, f64)>, LoadError> {
    let none = Map::new();
    let patterns = fields.get(ALPHAS).and_then(Value::as_object).unwrap_or(&none);
    if patterns.len() > MAX_PATTERNS {
        return Err(fields.wrong(ALPHAS, format!("at most {MAX_PATTERNS} names; it has {}", patterns.len())));
    }
    let read = |(key, value): (&String, &Value)| {
        let alpha = value.as_f64().filter(|alpha| (0.0..=1e6).contains(alpha));
        let alpha = alpha.ok_or_else(|| "has no number from 0 to 1e6".to_owned())?;
        Ok((pattern(key)?, alpha))
    };
    patterns
        .iter()
        .map(|entry| {
            let allowed =
                |why| format!("names of modules, or regular expressions, with numbers: {} {why}", entry.0);
            read(entry).map_err(|why: String| fields.wrong(ALPHAS, allowed(why)))
        })
        .collect()
}

fn pattern(key: &str) -> Result<Regex, String> {
    if key.len() > MAX_PATTERN_BYTES {
        return Err(format!("has {} bytes, at most {MAX_PATTERN_BYTES} are read", key.len()));
    }
    let whole =
        regex::RegexBuilder::new(&format!(r"\A(?:.*\.)?(?:{key})\z")).size_limit(MAX_COMPILED_BYTES).build();
    whole.map_err(|error| format!("cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(changes: Value) -> Result<AdapterConfig, LoadError> {
        let mut object = json!({"peft_type": "LORA", "lora_alpha": 8});
        for (field, value) in changes.as_object().unwrap() {
            object[field] = value.clone();
        }
        AdapterConfig::read(&Fields { file: "adapter_config.json", object: object.as_object().unwrap() })
    }

    #[test]
    fn keys_of_alpha_pattern_match_as_in_peft() {
        // `get_pattern_key` of PEFT 0.21.2; the alpha is 8 where no key matches.
        let check = |key: &str, module: &str, matches: bool| {
            let scale = read(json!({"alpha_pattern": {key: 3}})).unwrap().scale(module, 1);
            assert_eq!(scale, if matches { 3.0 } else { 8.0 }, "{key} {module}");
        };
        let query = "model.layers.10.self_attn.q_proj";
        check("q_proj", query, true);
        check("proj", query, false);
        check("self_attn.q_proj", query, true);
        check("self_attn", query, false);
        check("layers.0.self_attn.q_proj", query, false);
        check(query, query, true);
        check(r"layers\.\d+\.self_attn\.(q|v)_proj", query, true);
        check(r"layers\.[0-9]\.self_attn\.q_proj", query, false);
        check(".*_proj", query, true);
        check(".*attn.*", query, true);
        check("^model.layers.10.self_attn.q_proj", query, true);
        check("^layers.10.self_attn.q_proj", query, false);
        check("q_proj|k_proj", query, true);
        check("k_proj|model.*", query, true);
        check("(?:k|q)_proj$", query, true);
        let first = json!({"alpha_pattern": {"q_proj": 2, ".*_proj": 4}, "use_rslora": true});
        assert_eq!(read(first).unwrap().scale(query, 4), 1.0, "the first key counts");
    }

    #[test]
    fn what_is_not_a_plain_pair_of_matrices_is_refused_by_name() {
        let check = |field: &str, value: Value, words: &[&str]| {
            let said = read(json!({field: value})).err().unwrap_or_else(|| panic!("{field}")).to_string();
            [field]
                .iter()
                .chain(words)
                .for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
        };
        for init in ["pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga", "unheard-of"] {
            check(INITIALISATION, json!(init), &[init, "path_initial_model_for_weight_conversion"]);
        }
        check("use_dora", json!(true), &["absent"]);
        check("lora_bias", json!(true), &["absent"]);
        check("layer_replication", json!([[0, 2], [1, 3]]), &["absent"]);
        check("modules_to_save", json!(["lm_head"]), &["absent"]);
        check("trainable_token_indices", json!({"embed_tokens": [5]}), &["absent"]);
        check("monteclora_config", json!({"num_samples": 4}), &["absent"]);
        check(ALPHAS, json!({"q_proj": "high"}), &["q_proj has no number"]);
        check(ALPHAS, json!({"(?=q)": 3}), &["(?=q) cannot be read"]);
        check(ALPHAS, json!({"(a{1000}){1000}": 3}), &["cannot be read"]);
        check(ALPHAS, json!({"q".repeat(2000): 3}), &["2000 bytes"]);
        for plain in
            [json!(true), json!(false), json!(null), json!("gaussian"), json!("eva"), json!("orthogonal")]
        {
            assert!(read(json!({INITIALISATION: plain})).is_ok());
        }
    }
}
