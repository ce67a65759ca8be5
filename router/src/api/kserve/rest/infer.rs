//! `infer`: tensors as JSON, or as JSON with binary elements behind it.

use std::collections::{BTreeMap, HashMap};

use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use skein_proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use skein_proto::inference::{InferParameter, ModelInferRequest, ModelInferResponse};

use super::super::elements::{Encoder, check_count, elements};
use super::body::{HEADER_LENGTH, Parts};
use super::limits::MAX_DATA_DEPTH;
use super::parameters::{encode, parameter, push, wrong};
use super::values::of_parameter;
use crate::api::fields::field::Field;
use crate::refusal::Refusal;

/// Bytes of an input's elements, in its parameters.
const BINARY_SIZE: &str = "binary_data_size";
/// Whether all outputs are binary, in a request's parameters.
const BINARY_OUTPUT: &str = "binary_data_output";
/// The same for one output, in its parameters.
const BINARY: &str = "binary_data";

/// A request's JSON.
#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    parameters: Option<Map<String, Value>>,
    inputs: Vec<Input>,
    #[serde(default)]
    outputs: Option<Vec<Requested>>,
    #[serde(flatten)]
    unknown: BTreeMap<String, IgnoredAny>,
}

#[derive(Deserialize)]
struct Input {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    #[serde(default)]
    parameters: Option<Map<String, Value>>,
    #[serde(default)]
    data: Option<Field>,
}

#[derive(Deserialize)]
struct Requested {
    name: String,
    #[serde(default)]
    parameters: Option<Map<String, Value>>,
}

/// Which outputs are binary.
#[derive(Debug, Default, PartialEq)]
pub struct Binary {
    all: bool,
    by_name: HashMap<String, bool>,
}

/// A request, and the form of its answer.
#[derive(Debug)]
pub struct Asked {
    /// As over gRPC, without the model's name.
    pub request: ModelInferRequest,
    /// Which outputs are binary.
    pub binary: Binary,
    /// Members of the body that nothing reads.
    pub unknown: Vec<String>,
}

impl Asked {
    /// A request without binary outputs.
    pub fn of(request: ModelInferRequest) -> Self {
        Self { request, binary: Binary::default(), unknown: Vec::new() }
    }
}

/// Reads a request.
///
/// # Errors
/// If the JSON or a tensor is malformed, or sizes do not add up.
pub fn parse(parts: Parts) -> Result<Asked, Refusal> {
    let Parts { json, mut binary } = parts;
    let body: Body = serde_json::from_slice(&json).map_err(|error| {
        let message: String = error.to_string().chars().take(200).collect();
        Refusal::InvalidJson(format!("The body is not an inference request: {message}."))
    })?;
    let mut request = ModelInferRequest { id: body.id.unwrap_or_default(), ..ModelInferRequest::default() };
    for input in body.inputs {
        let (tensor, raw) = input.read(&mut binary)?;
        push(&mut request, tensor, raw);
    }
    if !binary.is_empty() {
        let left = binary.len();
        let message =
            format!("The body has {left} bytes behind its JSON that no input's {BINARY_SIZE} accounts for.");
        return Err(Refusal::InvalidJson(message));
    }
    let mut form = Binary::default();
    let mut given = body.parameters.unwrap_or_default();
    form.all = flag(&mut given, BINARY_OUTPUT)?.unwrap_or(false);
    request.parameters = parameters(given);
    for Requested { name, parameters: given } in body.outputs.unwrap_or_default() {
        let mut given = given.unwrap_or_default();
        if let Some(is_binary) = flag(&mut given, BINARY)? {
            form.by_name.insert(name.clone(), is_binary);
        }
        request.outputs.push(InferRequestedOutputTensor { name, parameters: parameters(given) });
    }
    Ok(Asked { request, binary: form, unknown: body.unknown.into_keys().collect() })
}

impl Input {
    /// The tensor and its raw elements, which are the next of `binary` if it gives a size.
    fn read(self, binary: &mut Bytes) -> Result<(InferInputTensor, Bytes), Refusal> {
        let Self { name, shape, datatype, parameters: given, data } = self;
        let mut given = given.unwrap_or_default();
        let raw = match (given.shift_remove(BINARY_SIZE), data) {
            (Some(_), Some(_)) => {
                return Err(wrong(&name, "has data and a binary_data_size; send one of them"));
            }
            (Some(size), None) => {
                let got = binary.len();
                let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
                let size = size.filter(|size| *size <= got).ok_or_else(|| {
                    wrong(
                        &name,
                        &format!(
                            "has a binary_data_size that is not one of the {got} bytes left in the body"
                        ),
                    )
                })?;
                binary.split_to(size)
            }
            (None, Some(data)) => {
                let mut encoder = Encoder::new(&datatype);
                encode(&mut encoder, data, MAX_DATA_DEPTH).map_err(|what| wrong(&name, &what))?;
                let (raw, count) = encoder.finish();
                check_count(&shape, count).map_err(|what| wrong(&name, &format!("is malformed: {what}")))?;
                raw
            }
            // Refused later for what it has instead, such as shared memory.
            (None, None) if !given.is_empty() => Bytes::new(),
            (None, None) => return Err(wrong(&name, "has neither data nor a binary_data_size")),
        };
        let parameters = parameters(given);
        Ok((InferInputTensor { name, datatype, shape, parameters, contents: None }, raw))
    }
}

fn flag(parameters: &mut Map<String, Value>, name: &'static str) -> Result<Option<bool>, Refusal> {
    match parameters.shift_remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(flag)),
        Some(_) => Err(Refusal::invalid(name, format!("{name} must be true or false."))),
    }
}

fn parameters(given: Map<String, Value>) -> HashMap<String, InferParameter> {
    given.into_iter().map(|(name, value)| (name, parameter(value))).collect()
}

/// Writes the answer to a request that asked for `binary` outputs.
///
/// # Errors
/// If the response's tensors are malformed: a fault of ours.
pub fn written(response: ModelInferResponse, binary: &Binary) -> Result<Response, Refusal> {
    let mut behind = Vec::new();
    let mut has_binary = false;
    let mut outputs = Vec::new();
    for (output, raw) in response.outputs.iter().zip(&response.raw_output_contents) {
        let mut object = json!({"name": output.name, "datatype": output.datatype, "shape": output.shape});
        if *binary.by_name.get(&output.name).unwrap_or(&binary.all) {
            object["parameters"] = json!({BINARY_SIZE: raw.len()});
            behind.extend_from_slice(raw);
            has_binary = true;
        } else {
            let read = elements(&output.datatype, &output.shape, None, Some(raw));
            let values = read.map_err(|_| Refusal::Internal)?.values().map_err(|_| Refusal::Internal)?;
            object["data"] = values.into();
        }
        outputs.push(object);
    }
    let mut object = Map::new();
    if !response.id.is_empty() {
        object.insert("id".to_owned(), response.id.into());
    }
    object.insert("model_name".to_owned(), response.model_name.into());
    object.insert("model_version".to_owned(), response.model_version.into());
    if !response.parameters.is_empty() {
        let named = response.parameters.into_iter().map(|(name, value)| (name, of_parameter(value)));
        object.insert("parameters".to_owned(), named.collect::<Map<_, _>>().into());
    }
    object.insert("outputs".to_owned(), outputs.into());
    let object = Value::from(object);
    if !has_binary {
        return Ok(Json(object).into_response());
    }
    let mut body = object.to_string().into_bytes();
    let headers =
        [(HEADER_LENGTH, body.len().to_string()), (CONTENT_TYPE, "application/octet-stream".to_owned())];
    body.append(&mut behind);
    Ok((headers, body).into_response())
}
