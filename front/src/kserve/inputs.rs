//! The body of a completion as a request of tensors. Pure.
//!
//! A model with the input `sampling_parameters`, as Triton's vLLM backend has it, gets the parameters as
//! JSON. Any other model, such as TensorRT-LLM's ensemble, gets a tensor for each, of the datatype that its
//! metadata lists. A parameter that the model does not list is refused: it would be lost in silence.

use serde_json::{Map, Value};
use skein_proto::inference::model_infer_request::InferInputTensor;
use skein_proto::inference::model_metadata_response::TensorMetadata;
use skein_proto::inference::{ModelInferRequest, ModelMetadataResponse};
use skein_router::api::kserve::elements::{encoded, shown};

/// Other names of parameters, in TensorRT-LLM's ensemble.
const ALIASES: [(&str, &str); 5] = [
    ("stop", "stop_words"),
    ("seed", "random_seed"),
    ("min_tokens", "min_length"),
    ("max_tokens", "request_output_len"),
    ("n", "num_return_sequences"),
];
/// Fields that are not parameters of the model.
const OWN: [&str; 6] = ["model", "prompt", "stream", "stream_options", "user", "request_id"];
/// Fields that tensors cannot answer, each with the value that changes nothing.
const NOT_SERVED: [(&str, Value); 4] = [
    ("echo", Value::Bool(false)),
    ("suffix", Value::Null),
    ("logprobs", Value::Null),
    ("best_of", Value::Null),
];
/// Inputs that ask for more outputs, or for the output alone; sent to models that list them.
const FLAGS: [&str; 4] = [
    "exclude_input_in_output",
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
];

/// Inputs of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    name: String,
    inputs: Vec<TensorMetadata>,
}

impl Model {
    /// The model with this metadata.
    pub fn of(metadata: ModelMetadataResponse) -> Self {
        Self { name: metadata.name, inputs: metadata.inputs }
    }

    fn input(&self, name: &str) -> Option<&TensorMetadata> {
        self.inputs.iter().find(|input| input.name == name)
    }
}

/// A request to `model` under `id`, from the fields of a body.
///
/// # Errors
/// Which field the model cannot take, and why.
pub fn request(mut fields: Map<String, Value>, model: &Model, id: &str) -> Result<ModelInferRequest, String> {
    let mut tensors = Tensors { model, request: ModelInferRequest::default() };
    let (name, prompt) = prompt(fields.get("prompt"))?;
    tensors.add(name, name, &prompt)?;
    let streams = fields.get("stream").is_some_and(|stream| *stream == true);
    if model.input("stream").is_some() {
        tensors.add("stream", "stream", &[streams.into()])?;
    } else if streams {
        return Err(format!("The model `{}` has no input `stream`; send stream: false.", shown(&model.name)));
    }
    for flag in FLAGS.into_iter().filter(|flag| model.input(flag).is_some()) {
        tensors.add(flag, flag, &[true.into()])?;
    }
    for (field, neutral) in NOT_SERVED {
        if fields.remove(field).is_some_and(|value| !value.is_null() && value != neutral) {
            return Err(format!("{field} is not available at these workers; leave it out."));
        }
    }
    fields.retain(|name, value| !value.is_null() && !OWN.contains(&name.as_str()));
    if model.input("sampling_parameters").is_some() {
        let json = Value::from(Value::from(fields).to_string());
        tensors.add("sampling_parameters", "sampling_parameters", &[json])?;
    } else {
        for (field, value) in fields {
            let alias = ALIASES.iter().find(|(name, _)| *name == field).map(|(_, alias)| *alias);
            let names = [Some(field.as_str()), alias];
            let listed = names.into_iter().flatten().find(|name| model.input(name).is_some());
            let values = if let Value::Array(values) = value { values } else { vec![value] };
            tensors.add(listed.unwrap_or(&field), &field, &values)?;
        }
    }
    let request = tensors.request;
    Ok(ModelInferRequest { model_name: model.name.clone(), id: id.to_owned(), ..request })
}

struct Tensors<'a> {
    model: &'a Model,
    request: ModelInferRequest,
}

impl Tensors<'_> {
    /// Adds the input `name`, which `field` of the body gives.
    fn add(&mut self, name: &str, field: &str, values: &[Value]) -> Result<(), String> {
        let Some(input) = self.model.input(name) else {
            let (model, field) = (shown(&self.model.name), shown(field));
            return Err(format!("The model `{model}` has no input for `{field}`; leave it out."));
        };
        let raw = encoded(&input.datatype, values)
            .map_err(|takes| format!("{}: the model's input `{name}` {takes}.", shown(field)))?;
        // A batch dimension, if there is one, comes first.
        let mut shape = vec![1; input.shape.len().max(1)];
        if let Some(last) = shape.last_mut() {
            *last = i64::try_from(values.len()).unwrap_or(i64::MAX);
        }
        self.request.inputs.push(InferInputTensor {
            name: name.to_owned(),
            datatype: input.datatype.clone(),
            shape,
            ..InferInputTensor::default()
        });
        self.request.raw_input_contents.push(raw);
        Ok(())
    }
}

/// Name and elements of the prompt's tensor.
fn prompt(prompt: Option<&Value>) -> Result<(&'static str, Vec<Value>), String> {
    let several = "These workers take one prompt in a request; send a request for each.";
    match prompt {
        Some(text @ Value::String(_)) => Ok(("text_input", vec![text.clone()])),
        Some(Value::Array(items)) => match &items[..] {
            [inner @ (Value::String(_) | Value::Array(_))] => self::prompt(Some(inner)),
            [Value::Number(_), ..] => Ok(("input_ids", items.clone())),
            _ => Err(several.to_owned()),
        },
        _ => Err("prompt is required: a string or a list of token ids.".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skein_router::api::kserve::elements::elements;

    use super::*;

    fn model(inputs: &[(&str, &str, &[i64])]) -> Model {
        let input = |(name, datatype, shape): &(&str, &str, &[i64])| TensorMetadata {
            name: (*name).to_owned(),
            datatype: (*datatype).to_owned(),
            shape: shape.to_vec(),
        };
        Model { name: "m".to_owned(), inputs: inputs.iter().map(input).collect() }
    }

    fn vllm() -> Model {
        model(&[
            ("text_input", "BYTES", &[1]),
            ("stream", "BOOL", &[1]),
            ("sampling_parameters", "BYTES", &[1]),
            ("exclude_input_in_output", "BOOL", &[1]),
            ("return_finish_reason", "BOOL", &[1]),
        ])
    }

    fn tensorrt() -> Model {
        model(&[
            ("text_input", "BYTES", &[-1, 1]),
            ("max_tokens", "INT32", &[-1, 1]),
            ("stop_words", "BYTES", &[-1, -1]),
            ("temperature", "FP32", &[-1, 1]),
            ("random_seed", "UINT64", &[-1, 1]),
            ("stream", "BOOL", &[-1, 1]),
        ])
    }

    /// Each tensor as its shape and elements.
    fn sent(body: &Value, model: &Model) -> Result<Value, String> {
        let request = request(body.as_object().unwrap().clone(), model, "r1")?;
        assert_eq!((request.model_name.as_str(), request.id.as_str()), ("m", "r1"));
        let tensors = request.inputs.iter().zip(&request.raw_input_contents).map(|(input, raw)| {
            let read = elements(&input.datatype, &input.shape, None, Some(raw)).unwrap().values().unwrap();
            (input.name.clone(), json!([input.shape, read]))
        });
        Ok(tensors.collect::<Map<String, Value>>().into())
    }

    #[test]
    fn parameters_go_as_json_or_as_tensors_by_the_models_inputs() {
        let body = json!({
            "model": "m", "prompt": "hi", "stream": true, "max_tokens": 5, "temperature": 0.5, "stop": ["a", "b"],
            "seed": 7, "user": "u", "echo": false, "suffix": null,
        });
        let by_json = sent(&body, &vllm()).unwrap();
        let parameters: Value =
            serde_json::from_str(by_json["sampling_parameters"][1][0].as_str().unwrap()).unwrap();
        assert_eq!(parameters, json!({"max_tokens": 5, "temperature": 0.5, "stop": ["a", "b"], "seed": 7}));
        assert_eq!(by_json["text_input"], json!([[1], ["hi"]]));
        assert_eq!(
            (&by_json["stream"], &by_json["exclude_input_in_output"]),
            (&json!([[1], [true]]), &json!([[1], [true]]))
        );
        let by_tensors = sent(&body, &tensorrt()).unwrap();
        let expected = json!({
            "text_input": [[1, 1], ["hi"]], "stream": [[1, 1], [true]], "max_tokens": [[1, 1], [5]],
            "temperature": [[1, 1], [0.5]], "stop_words": [[1, 2], ["a", "b"]], "random_seed": [[1, 1], [7]],
        });
        assert_eq!(by_tensors, expected);
    }

    #[test]
    fn what_a_model_cannot_take_is_refused() {
        let check = |body: Value, model: &Model, expected: &str| {
            let message = sent(&body, model).unwrap_err();
            assert!(message.contains(expected), "{body}: {message}");
        };
        check(json!({}), &vllm(), "prompt is required");
        check(json!({"prompt": ["a", "b"]}), &vllm(), "one prompt");
        check(json!({"prompt": [[1], [2]]}), &vllm(), "one prompt");
        check(json!({"prompt": [1, 2]}), &vllm(), "no input for `input_ids`");
        check(json!({"prompt": "a", "echo": true}), &vllm(), "echo is not available");
        check(json!({"prompt": "a", "logprobs": 1}), &vllm(), "logprobs is not available");
        check(json!({"prompt": "a", "top_k": 1}), &tensorrt(), "no input for `top_k`");
        check(json!({"prompt": "a", "max_tokens": "x"}), &tensorrt(), "`max_tokens` takes integers");
        let whole = model(&[("text_input", "BYTES", &[1])]);
        check(json!({"prompt": "a", "stream": true}), &whole, "no input `stream`");
        assert_eq!(
            sent(&json!({"prompt": ["a"], "stream": false}), &whole).unwrap(),
            json!({"text_input": [[1], ["a"]]})
        );
    }
}
