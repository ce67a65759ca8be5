//! JSON values as the parameters and tensors of a request.

use bytes::Bytes;
use serde_json::Value;
use skein_proto::inference::infer_parameter::ParameterChoice;
use skein_proto::inference::model_infer_request::InferInputTensor;
use skein_proto::inference::{InferParameter, ModelInferRequest};

use super::super::call::input_of;
use super::super::elements::{Encoder, shown};
use super::super::model::word;
use super::limits::MAX_DATA_DEPTH;
use crate::api::fields::field::Field;
use crate::refusal::Refusal;

/// A parameter. The protocol has no lists and objects: these become the text of their JSON.
pub fn parameter(value: Value) -> InferParameter {
    let choice = match value {
        Value::Null => None,
        Value::Bool(flag) => Some(ParameterChoice::BoolParam(flag)),
        Value::String(text) => Some(ParameterChoice::StringParam(text)),
        Value::Number(number) => Some(match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => ParameterChoice::Int64Param(integer),
            (None, Some(integer)) => ParameterChoice::Uint64Param(integer),
            (None, None) => ParameterChoice::DoubleParam(number.as_f64().unwrap_or(f64::NAN)),
        }),
        other => Some(ParameterChoice::StringParam(other.to_string())),
    };
    InferParameter { parameter_choice: choice }
}

/// Adds a named value to `request`: prompts and lists that the model takes as tensors, others as parameters.
///
/// # Errors
/// If the elements are not those that the tensor takes, or the name comes twice.
pub fn add(request: &mut ModelInferRequest, name: String, value: Field) -> Result<(), Refusal> {
    let is_list = !matches!(value, Field::Other(_));
    if let Some(input) = input_of(&name).filter(|input| is_list || input.is_prompt()) {
        let mut encoder = Encoder::new(word(input.datatype));
        encode(&mut encoder, value, MAX_DATA_DEPTH).map_err(|what| wrong(&name, &what))?;
        let (raw, count) = encoder.finish();
        let shape = vec![i64::try_from(count).unwrap_or(i64::MAX)];
        push(
            request,
            InferInputTensor { name, datatype: word(input.datatype).to_owned(), shape, ..Default::default() },
            raw,
        );
        return Ok(());
    }
    let twice = request.parameters.insert(name.clone(), parameter(value.into_value())).is_some();
    if twice { Err(wrong(&name, "is given twice")) } else { Ok(()) }
}

/// Adds a tensor with its raw elements.
pub fn push(request: &mut ModelInferRequest, tensor: InferInputTensor, raw: Bytes) {
    request.inputs.push(tensor);
    request.raw_input_contents.push(raw);
}

/// Encodes the elements of `data`, whose lists may be nested up to `depth`.
///
/// # Errors
/// What the tensor takes instead.
pub fn encode(encoder: &mut Encoder, data: Field, depth: usize) -> Result<(), String> {
    match data {
        Field::Integers(_) | Field::List(_) if depth == 0 => {
            Err(format!("has data of more than {MAX_DATA_DEPTH} nested lists"))
        }
        Field::Integers(integers) => {
            integers.into_iter().try_for_each(|integer| encoder.push(&integer.into()))
        }
        Field::List(items) => items.into_iter().try_for_each(|item| encode(encoder, item, depth - 1)),
        Field::Other(value) => encoder.push(&value),
    }
}

/// A refusal of the input `name`.
pub fn wrong(name: &str, what: &str) -> Refusal {
    Refusal::Invalid { param: None, message: format!("The input `{}` {what}.", shown(name)) }
}
