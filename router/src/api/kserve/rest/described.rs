//! What the API's description says of the paths below `/v2/models/`, from the tables of verbs and of inputs.

use serde_json::{Map, Value, json};
use skein_proto::inference::DataType;

use super::super::model::{INPUTS, Input, SAMPLING_PARAMETERS};
use super::target::Verb;
use crate::api::openapi::operation::{self as describe, EVENTS, Operation, REFUSALS, UNRESUMED};

/// The operations of each verb, with and without a version in the path.
pub fn operations() -> Vec<Operation> {
    Verb::ALL
        .into_iter()
        .flat_map(|verb| {
            let path = verb.route();
            let with_version = path.replacen("{model}", "{model}/versions/{version}", 1);
            let operation = operation(verb);
            let other = operation.also_at(with_version, "OfVersion");
            [operation.at(path), other]
        })
        .collect()
}

fn operation(verb: Verb) -> Operation {
    let generating = |id, about| describe::post(id, about).with(&UNRESUMED).refuses(&REFUSALS);
    match verb {
        Verb::Metadata => {
            describe::get("kserveMetadata", "The tensors of a model; its name may have slashes.")
                .gives("KserveMetadata")
                .refuses(&[404])
        }
        Verb::Ready => describe::get("kserveModelReady", "Whether a model is ready.")
            .gives("KserveReady")
            .refuses(&[404, 503]),
        Verb::Config => describe::get("kserveConfig", "A model's configuration, in Triton's form.")
            .gives("KserveConfig")
            .refuses(&[404]),
        Verb::Infer => generating("kserveInfer", "One answer, as tensors.")
            .takes(describe::JSON, "KserveRequest").like(r#"{"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Once upon a time"]}], "parameters": {"max_tokens": 32}}"#)
            .with(&["HeaderLength"])
            .gives("KserveAnswer")
            .answers(200, "application/octet-stream", None),
        Verb::Generate => generating("kserveGenerate", "One answer, as a JSON object.")
            .takes_made("KserveGenerateRequest", generate_request).like(r#"{"text_input": "Once upon a time", "parameters": {"max_tokens": 32}}"#)
            .gives("KserveGenerated"),
        Verb::GenerateStream => generating("kserveGenerateStream", "The same as events.")
            .takes_made("KserveGenerateRequest", generate_request).like(r#"{"text_input": "Once upon a time", "parameters": {"max_tokens": 32}}"#)
            .streams(EVENTS, "KserveEvent"),
    }
}

/// Schema of a body of `generate`, from the table of inputs.
pub fn generate_request() -> Value {
    let mut properties = Map::new();
    properties.insert("id".to_owned(), json!({"type": ["string", "null"]}));
    properties.insert("parameters".to_owned(), json!({"$ref": "#/components/schemas/KserveParameters"}));
    properties.extend(INPUTS.iter().map(|input| (input.name.to_owned(), schema(input))));
    json!({"type": "object", "properties": properties, "description": "Inputs and parameters by name; `text_input` or `input_ids` is required. \
        Numbers and truth values may be sent as text."})
}

fn schema(input: &Input) -> Value {
    let kind = match input.datatype {
        DataType::TypeBool => "boolean",
        DataType::TypeString => "string",
        DataType::TypeFp32 => "number",
        _ => "integer",
    };
    let mut kinds = vec![kind];
    kinds.extend(["string"].into_iter().filter(|text| *text != kind));
    if input.is_list || input.is_prompt() {
        kinds.push("array");
    }
    if input.name == SAMPLING_PARAMETERS {
        kinds.push("object");
    }
    kinds.push("null");
    json!({"type": kinds})
}
