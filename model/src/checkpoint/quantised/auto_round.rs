//! AutoRound (arXiv 2309.05516): another way to choose the codes. Checkpoints have the tensors of GPTQ or
//! AWQ; `packing_format` says which.

use serde_json::{Map, Value};

use crate::LoadError;
use crate::fields::Fields;

/// Where some modules have parameters of their own.
const OVERRIDES: &str = "extra_config";
/// Packings with GPTQ's tensors whose zero points are stored less one, as `auto-round` names them.
const GPTQ: [&str; 3] = ["auto_round:auto_gptq", "auto_round:gptq", "auto"];
/// The same with zero points as they are.
const GPTQ_V2: [&str; 2] = ["auto_round", "auto_round:gptqmodel"];
/// Packings with AWQ's tensors.
const AWQ: [&str; 2] = ["auto_round:auto_awq", "auto_round:awq"];

/// Whose tensors a checkpoint has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tensors {
    Gptq,
    GptqV2,
    Awq,
}

/// What AutoRound's fields add to those that its tensors' own format has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AutoRound {
    pub tensors: Tensors,
    /// Whether some modules override the parameters.
    pub has_overrides: bool,
}

impl AutoRound {
    /// Reads and validates `quantization_config`.
    ///
    /// # Errors
    /// If the tensors are packed otherwise, activations are quantised, or weights are rotated.
    pub fn read(fields: &Fields<'_>) -> Result<Self, LoadError> {
        let allowed = [&GPTQ[..], &GPTQ_V2, &AWQ].concat();
        let packing = fields.one_of("packing_format", &allowed, Some(GPTQ[0]))?;
        fields.one_of("data_type", &["int"], Some("int"))?;
        if fields.size("act_bits", 32, Some(16))? < 16 {
            return Err(fields.wrong("act_bits", "absent, or 16: activations are not quantised".into()));
        }
        if !fields.is_absent("rotation_config") {
            let allowed = "absent: rotated weights would also need rotated inputs";
            return Err(fields.wrong("rotation_config", allowed.into()));
        }
        let tensors = match packing.as_str() {
            packing if AWQ.contains(&packing) => Tensors::Awq,
            packing if GPTQ_V2.contains(&packing) => Tensors::GptqV2,
            _ => Tensors::Gptq,
        };
        Ok(Self { tensors, has_overrides: overrides(fields, tensors == Tensors::Awq)? })
    }
}

/// Whether modules have parameters of their own. Bits and groups follow from the shapes of their tensors.
fn overrides(fields: &Fields<'_>, is_awq: bool) -> Result<bool, LoadError> {
    let none = Map::new();
    let modules = match fields.get(OVERRIDES) {
        None | Some(Value::Null) => &none,
        Some(value) => value.as_object().ok_or_else(|| fields.wrong(OVERRIDES, "an object".into()))?,
    };
    for (module, parameters) in modules {
        let wrong = |field: &str, allowed: &str| {
            fields.wrong(OVERRIDES, format!("for {module}, {field} of {allowed}"))
        };
        let of = |field: &str| parameters.get(field).filter(|value| !value.is_null());
        let bits = of("bits").map_or(Some(4), Value::as_u64);
        if is_awq && !matches!(bits, Some(4 | 16..)) {
            return Err(wrong("bits", "4 or 16"));
        }
        if of("data_type").is_some_and(|kind| !matches!(kind.as_str(), Some("int" | "fp" | "float"))) {
            return Err(wrong("data_type", "int"));
        }
        if of("act_bits").is_some_and(|bits| bits.as_u64().is_none_or(|bits| bits < 16)) {
            return Err(wrong("act_bits", "16"));
        }
    }
    Ok(!modules.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(changes: Value) -> Result<AutoRound, LoadError> {
        // As auto-round 0.16.1 writes it by default.
        let mut object = json!({"bits": 4, "data_type": "int", "group_size": 128, "sym": true, "autoround_version": "0.16.1",
            "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "block_name_to_quantize": "model.layers"});
        for (field, value) in changes.as_object().unwrap() {
            object[field] = value.clone();
        }
        AutoRound::read(&Fields { file: "config.json", object: object.as_object().unwrap() })
    }

    #[test]
    fn the_packing_says_whose_tensors_they_are() {
        let check = |changes: Value, tensors, has_overrides| {
            assert_eq!(parse(changes).unwrap(), AutoRound { tensors, has_overrides });
        };
        check(json!({}), Tensors::Gptq, false);
        check(json!({"packing_format": null}), Tensors::Gptq, false);
        check(json!({"packing_format": "auto_round:gptqmodel", "sym": false}), Tensors::GptqV2, false);
        let mixed =
            json!({"model.layers.0.mlp.up_proj": {"bits": 8}, "lm_head": {"bits": 16, "data_type": "fp"}});
        check(json!({"extra_config": mixed}), Tensors::Gptq, true);
        let groups = json!({"lm_head": {"group_size": 32}});
        check(json!({"packing_format": "auto_round:auto_awq", "extra_config": groups}), Tensors::Awq, true);
    }

    #[test]
    fn other_forms_are_refused_by_name() {
        let check = |changes: Value, words: &[&str]| {
            let said = parse(changes.clone()).expect_err(&changes.to_string()).to_string();
            words.iter().for_each(|word| assert!(said.contains(word), "{said:?} says {word:?}"));
        };
        check(
            json!({"packing_format": "auto_round:llm_compressor"}),
            &["packing_format", "auto_round:auto_awq"],
        );
        check(json!({"data_type": "mx_fp"}), &["data_type", "mx_fp", "int"]);
        check(json!({"act_bits": 8}), &["act_bits", "8"]);
        check(json!({"rotation_config": {"hadamard_type": "hadamard"}}), &["rotation_config"]);
        check(json!({"extra_config": 3}), &["extra_config", "3", "object"]);
        check(
            json!({"extra_config": {"lm_head": {"data_type": "mx_fp"}}}),
            &["extra_config", "lm_head", "int"],
        );
        check(
            json!({"packing_format": "auto_round:auto_awq", "extra_config": {"lm_head": {"bits": 8}}}),
            &["lm_head", "bits of 4 or 16"],
        );
    }
}
