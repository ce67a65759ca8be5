//! Parts of a response as JSON values.

use serde_json::Value;
use skein_proto::inference::InferParameter;
use skein_proto::inference::infer_parameter::ParameterChoice;

/// A parameter of a response.
pub fn of_parameter(parameter: InferParameter) -> Value {
    match parameter.parameter_choice {
        None => Value::Null,
        Some(ParameterChoice::BoolParam(flag)) => flag.into(),
        Some(ParameterChoice::Int64Param(integer)) => integer.into(),
        Some(ParameterChoice::Uint64Param(integer)) => integer.into(),
        Some(ParameterChoice::DoubleParam(float)) => float.into(),
        Some(ParameterChoice::StringParam(text)) => text.into(),
    }
}
