//! A request of the protocol as a [`Draft`] and the form of its answer. Sampling parameters may come as
//! tensors, as request parameters and as the JSON of `sampling_parameters`; all become the fields of the
//! OpenAI API, so that one reader checks them.

use std::time::Duration;

use serde_json::{Map, Number, Value};
use skein_proto::inference::infer_parameter::ParameterChoice;
use skein_proto::inference::{DataType, ModelInferRequest};

use super::elements::{Elements, shown};
use super::model::{ALIASES, INPUTS, Input, Output, SAMPLING_PARAMETERS, VERSION};
use super::names::{INPUT_IDS, TEXT_INPUT};
use super::tensors::{self, Tensor};
use crate::api::fields::listing::Kind;
use crate::api::fields::object::Fields;
use crate::api::fields::{constraint, sampling};
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::request::{Draft, Prompt};

/// Inputs of TensorRT-LLM that have only one value here, each with it. `None` = any value, without effect.
const FIXED: [(&str, Option<&str>); 8] = [
    ("pad_id", None),
    ("length_penalty", None),
    ("early_stopping", None),
    ("beam_width", Some("1")),
    ("return_log_probs", Some("false")),
    ("return_context_logits", Some("false")),
    ("return_generation_logits", Some("false")),
    ("return_kv_cache_reuse_stats", Some("false")),
];
/// Input of TensorRT-LLM that names one more stop token.
const END_ID: &str = "end_id";
/// Parameters whose text may be the JSON of an object or a list.
const JSON_TEXTS: [&str; 4] = ["logit_bias", "response_format", "structured_outputs", "guided_choice"];

/// A request, parsed.
pub struct Call {
    /// The request for the validator.
    pub draft: Draft,
    /// What the answer looks like.
    pub form: Form,
}

/// What an answer looks like.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Form {
    /// The client's id.
    pub id: String,
    /// Whether every delta is a response.
    pub streams: bool,
    /// Text before each sample: the prompt, if it is to be repeated.
    pub before: String,
    /// Whether tensors have a batch dimension.
    pub batched: bool,
    /// The requested tensors; empty = the default.
    pub outputs: Vec<Output>,
    /// Names of parameters that have no effect.
    pub ignored: Option<String>,
}

impl Call {
    /// Parses `request`, which `tenant` sent and whose client waits for `timeout`. `unknown` are names of
    /// further members that nothing reads.
    ///
    /// # Errors
    /// All malformed parameters in one refusal, or the first malformed tensor.
    pub fn parse(
        mut request: ModelInferRequest,
        unknown: Vec<String>,
        tenant: Tenant,
        timeout: Option<Duration>,
        refuse_unknown: bool,
    ) -> Result<Self, Refusal> {
        check_version(&request.model_name, &request.model_version)?;
        let tensors = tensors::take(&mut request)?;
        let mut given = Given { unknown, ..Given::default() };
        let mut prompt = None;
        let mut batched = false;
        for tensor in tensors {
            match tensor.name.as_str() {
                TEXT_INPUT | INPUT_IDS if prompt.is_some() => {
                    let message = "The inputs text_input and input_ids are both given; send one of them.";
                    return Err(Refusal::invalid(TEXT_INPUT, message));
                }
                TEXT_INPUT => (prompt, batched) = (Some(text(&tensor)?), tensor.batched),
                INPUT_IDS => (prompt, batched) = (Some(tokens(&tensor)?), tensor.batched),
                _ => given.tensor(&tensor)?,
            }
        }
        let prompt = prompt.ok_or_else(|| {
            Refusal::invalid(TEXT_INPUT, "The input text_input is required, or input_ids for tokens.")
        })?;
        let mut timeout_ms =
            timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1));
        for (name, parameter) in std::mem::take(&mut request.parameters) {
            let value = parameter.parameter_choice.map_or(Ok(Value::Null), |choice| value(&name, choice))?;
            match name.as_str() {
                "timeout" => timeout_ms = Some(limit(&value)?.min(timeout_ms.unwrap_or(u64::MAX))),
                // The last response of a stream always has the flag.
                "triton_enable_empty_final_response" => {}
                _ => given.put(&name, value)?,
            }
        }
        let outputs = outputs(&request)?;
        let mut call = given.finish(request, prompt, outputs, batched, refuse_unknown)?;
        (call.draft.tenant, call.draft.timeout_ms) = (tenant, timeout_ms);
        Ok(call)
    }
}

/// Parameters by the names of the OpenAI API.
#[derive(Default)]
struct Given {
    fields: Map<String, Value>,
    end_id: Option<Value>,
    unknown: Vec<String>,
}

impl Given {
    fn tensor(&mut self, tensor: &Tensor) -> Result<(), Refusal> {
        let refuse = |what: &str| Refusal::Invalid {
            param: None,
            message: format!("The input `{}` {what}.", shown(&tensor.name)),
        };
        let mut values =
            tensor.elements.values().map_err(|what| refuse(&format!("has an element that is {what}")))?;
        let name = field_of(&tensor.name);
        if FIXED.iter().any(|(fixed, _)| *fixed == name) || name == END_ID {
            let [value] = &mut values[..] else { return Err(refuse("takes one element")) };
            return self.put(name, value.take());
        }
        let Some(input) = input_of(name) else {
            return Err(refuse("is not one of this model; ModelMetadata lists them"));
        };
        if !takes(input, &tensor.elements) {
            let (takes, got) = (super::model::word(input.datatype), tensor.elements.kind());
            return Err(refuse(&format!("takes {takes}, got {got}")));
        }
        if input.is_list {
            // TensorRT-LLM's clients send an empty word for none.
            values.retain(|value| value != "");
            return self.put(name, values.into());
        }
        let [value] = &mut values[..] else {
            return Err(refuse(&format!("takes one element, got {}", values.len())));
        };
        self.put(name, value.take())
    }

    /// Adds a parameter; text is read as what the parameter takes.
    fn put(&mut self, name: &str, value: Value) -> Result<(), Refusal> {
        let name = field_of(name);
        let refuse = |message: String| Refusal::Invalid { param: None, message };
        if let Some((_, only)) = FIXED.iter().find(|(fixed, _)| *fixed == name) {
            let given = value.as_str().map_or_else(|| value.to_string(), str::to_ascii_lowercase);
            return match only {
                Some(only) if !value.is_null() && given != *only => {
                    Err(refuse(format!("{name} must be {only}, got {}.", shown(&given))))
                }
                _ => Ok(()),
            };
        }
        if name == END_ID {
            self.end_id = Some(value);
            return Ok(());
        }
        if name == SAMPLING_PARAMETERS {
            let text = value.as_str().unwrap_or_default();
            let object: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
                let message = format!("sampling_parameters must be a JSON object: {error}.");
                Refusal::invalid(SAMPLING_PARAMETERS, message)
            })?;
            return object.into_iter().try_for_each(|(name, value)| {
                if name == SAMPLING_PARAMETERS {
                    return Err(refuse("sampling_parameters must not contain itself.".to_owned()));
                }
                self.put(&name, value)
            });
        }
        let value = match value {
            Value::String(text) => meant(name, text),
            // Seeds of 64 bits are unsigned here and signed in the OpenAI API.
            Value::Number(number) if name == "seed" => number
                .as_u64()
                .map_or_else(|| Value::Number(number.clone()), |seed| seed.cast_signed().into()),
            other => other,
        };
        if self.fields.contains_key(name) {
            let name = shown(name);
            return Err(refuse(format!(
                "`{name}` is given twice, as a tensor and as a parameter, or by two names."
            )));
        }
        self.fields.insert(name.to_owned(), value);
        Ok(())
    }

    fn finish(
        self,
        request: ModelInferRequest,
        prompt: Prompt,
        mut outputs: Vec<Output>,
        batched: bool,
        refuse_unknown: bool,
    ) -> Result<Call, Refusal> {
        let mut fields = Fields::of(self.fields);
        if let Some(end_id) = self.end_id {
            let mut stops =
                fields.list("stop_token_ids", Kind::Integers, "a list of integers").unwrap_or_default();
            stops.push(end_id);
            fields.put("stop_token_ids", stops.into());
        }
        let mut sampling = sampling::sampling(&mut fields);
        sampling.max_tokens = fields.i64("max_tokens");
        sampling.logprobs = fields.i64("logprobs");
        let streams = fields.bool("stream");
        // Without the field, whole answers begin with the prompt and streams do not.
        let excluded = fields.optional_bool("exclude_input_in_output");
        if streams && excluded == Some(false) {
            let message = "exclude_input_in_output must not be false with stream: true.";
            fields.note(Refusal::invalid("exclude_input_in_output", message));
        }
        let flagged = Output::ALL.map(|output| output.flag().is_some_and(|flag| fields.bool(flag)));
        if outputs.is_empty() {
            outputs.push(Output::Text);
            let flagged = Output::ALL.into_iter().zip(flagged).filter(|(_, flag)| *flag);
            outputs.extend(flagged.map(|(output, _)| output));
            if streams && sampling.n.is_some_and(|n| n > 1) {
                outputs.push(Output::SequenceIndex);
            }
        }
        if outputs.iter().any(|output| matches!(output, Output::Logprobs | Output::CumulativeLogprob)) {
            sampling.logprobs = sampling.logprobs.or(Some(0));
        }
        let before = match &prompt {
            Prompt::Text(text) if !streams && excluded != Some(true) => text.clone(),
            _ => String::new(),
        };
        let name = Some(request.model_name).filter(|name| !name.is_empty());
        let draft = Draft {
            model: fields.string("lora_name").or(name),
            prompt,
            sampling,
            add_special_tokens: fields.optional_bool("add_special_tokens"),
            constraint: constraint::constraint(&mut fields),
            truncation: sampling::truncation(&mut fields),
            cache_salt: fields.string("cache_salt").unwrap_or_default(),
            priority: fields.i64("priority"),
            ..Draft::default()
        };
        self.unknown.into_iter().for_each(|name| fields.leave(name));
        let ignored = fields.finish(refuse_unknown)?;
        let ignored = ignored.and_then(|names| names.to_str().ok().map(str::to_owned));
        let form = Form { id: request.id, streams, before, batched, outputs, ignored };
        Ok(Call { draft, form })
    }
}

/// Fails for a version that no model has.
///
/// # Errors
/// [`Refusal::NotFound`].
pub fn check_version(model: &str, version: &str) -> Result<(), Refusal> {
    if ["", VERSION].contains(&version) {
        return Ok(());
    }
    let (model, version) = (shown(model), shown(version));
    Err(Refusal::NotFound(format!("The model `{model}` has no version {version}, only {VERSION}.")))
}

/// The prompt as text.
fn text(tensor: &Tensor) -> Result<Prompt, Refusal> {
    let Elements::Texts(texts) = &tensor.elements else {
        let got = tensor.elements.kind();
        return Err(Refusal::invalid(TEXT_INPUT, format!("The input text_input takes BYTES, got {got}.")));
    };
    let [text] = &texts[..] else {
        let got = texts.len();
        let message = format!("The input text_input takes one prompt, got {got}; send a request for each.");
        return Err(Refusal::invalid(TEXT_INPUT, message));
    };
    let text = std::str::from_utf8(text).map_err(|error| {
        let at = error.valid_up_to();
        Refusal::invalid(
            TEXT_INPUT,
            format!("The input text_input is not valid UTF-8; the first bad byte is byte {at}."),
        )
    })?;
    Ok(Prompt::Text(text.to_owned()))
}

/// The prompt as tokens.
fn tokens(tensor: &Tensor) -> Result<Prompt, Refusal> {
    match &tensor.elements {
        Elements::Signed(tokens) => Ok(Prompt::Tokens(tokens.clone())),
        // One beyond 63 bits is as unknown as the largest.
        Elements::Unsigned(tokens) => {
            let token = |token: &u64| i64::try_from(*token).unwrap_or(i64::MAX);
            Ok(Prompt::Tokens(tokens.iter().map(token).collect()))
        }
        other => {
            let message = format!("The input input_ids takes integers, got {}.", other.kind());
            Err(Refusal::invalid(INPUT_IDS, message))
        }
    }
}

/// The input that a tensor or parameter `name` is.
pub fn input_of(name: &str) -> Option<&'static Input> {
    let name = field_of(name);
    INPUTS.iter().find(|input| input.name == name)
}

fn field_of(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, field)| field)
}

/// Whether an input takes these elements: any width of its kind, and integers as numbers.
fn takes(input: &Input, elements: &Elements) -> bool {
    match elements {
        Elements::Flags(_) => input.datatype == DataType::TypeBool,
        Elements::Texts(_) => input.datatype == DataType::TypeString,
        Elements::Floats(_) => input.datatype == DataType::TypeFp32,
        Elements::Signed(_) | Elements::Unsigned(_) => {
            !matches!(input.datatype, DataType::TypeBool | DataType::TypeString)
        }
    }
}

/// What a parameter's text means: Triton's clients write numbers and truth values as text. Text that has no
/// such meaning stays text, for the reader to refuse.
fn meant(name: &str, text: String) -> Value {
    let trimmed = text.trim();
    let json = || serde_json::from_str::<Value>(trimmed).ok();
    let number = || {
        let whole = trimmed.parse::<i64>().ok().map(Value::from);
        whole.or_else(|| Number::from_f64(trimmed.parse().ok()?).map(Value::Number))
    };
    let meaning = match input_of(name) {
        Some(input) if input.datatype == DataType::TypeString => None,
        Some(Input { is_list: true, .. }) => json(),
        Some(Input { datatype: DataType::TypeBool, .. }) => {
            trimmed.to_ascii_lowercase().parse::<bool>().ok().map(Value::from)
        }
        Some(_) => number(),
        None if JSON_TEXTS.contains(&name) => json(),
        None => None,
    };
    meaning.unwrap_or(Value::String(text))
}

/// The JSON value of a parameter.
pub(super) fn value(name: &str, choice: ParameterChoice) -> Result<Value, Refusal> {
    Ok(match choice {
        ParameterChoice::BoolParam(flag) => flag.into(),
        ParameterChoice::Int64Param(integer) => integer.into(),
        ParameterChoice::Uint64Param(integer) => integer.into(),
        ParameterChoice::StringParam(text) => text.into(),
        ParameterChoice::DoubleParam(float) => {
            Number::from_f64(float).map(Value::Number).ok_or_else(|| {
                let message = format!("The parameter `{}` must be finite, got {float}.", shown(name));
                Refusal::Invalid { param: None, message }
            })?
        }
    })
}

/// Triton's `timeout` is in microseconds; milliseconds, at least one.
fn limit(value: &Value) -> Result<u64, Refusal> {
    let micros = value.as_u64().filter(|micros| *micros > 0).ok_or_else(|| {
        let got = shown(&value.to_string());
        Refusal::invalid("timeout", format!("timeout must be microseconds, at least 1, got {got}."))
    })?;
    Ok(micros.div_ceil(1000))
}

fn outputs(request: &ModelInferRequest) -> Result<Vec<Output>, Refusal> {
    let mut outputs = Vec::new();
    for requested in &request.outputs {
        let name = &requested.name;
        let output = Output::ALL.into_iter().find(|output| output.name() == name);
        let refuse = |what: &str| {
            Err(Refusal::Invalid { param: None, message: format!("The output `{}` {what}.", shown(name)) })
        };
        let asked = |what: &str| requested.parameters.keys().any(|key| key.starts_with(what));
        match output {
            None => return refuse("is not one of this model; ModelMetadata lists them"),
            Some(_) if asked("shared_memory") => return refuse("cannot be put into shared memory"),
            Some(_) if asked("classification") => return refuse("has no classes"),
            Some(output) if outputs.contains(&output) => return refuse("is requested twice"),
            Some(output) => outputs.push(output),
        }
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skein_proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
    use skein_proto::inference::{InferParameter, InferTensorContents};

    use super::*;

    /// An input tensor by its name, with the datatype of the JSON value.
    fn input(name: &str, value: &Value) -> InferInputTensor {
        let items = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        let mut contents = InferTensorContents::default();
        let mut datatype = "INT64";
        for item in &items {
            match item {
                Value::Bool(flag) => (datatype, contents.bool_contents) = ("BOOL", vec![*flag]),
                Value::String(text) => {
                    datatype = "BYTES";
                    contents.bytes_contents.push(text.clone().into());
                }
                Value::Number(number) if number.is_f64() => {
                    datatype = "FP64";
                    contents.fp64_contents.push(number.as_f64().unwrap());
                }
                number => contents.int64_contents.push(number.as_i64().unwrap()),
            }
        }
        InferInputTensor {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: vec![items.len() as i64],
            contents: Some(contents),
            ..InferInputTensor::default()
        }
    }

    fn parameter(value: &Value) -> InferParameter {
        let choice = match value {
            Value::Bool(flag) => ParameterChoice::BoolParam(*flag),
            Value::String(text) => ParameterChoice::StringParam(text.clone()),
            Value::Number(number) if number.is_f64() => {
                ParameterChoice::DoubleParam(number.as_f64().unwrap())
            }
            number => ParameterChoice::Int64Param(number.as_i64().unwrap()),
        };
        InferParameter { parameter_choice: Some(choice) }
    }

    /// A request with these inputs and parameters, each a JSON object.
    fn request(inputs: &Value, parameters: &Value) -> ModelInferRequest {
        let inputs = inputs.as_object().unwrap().iter().map(|(name, value)| input(name, value));
        let parameters = parameters.as_object().unwrap().iter();
        ModelInferRequest {
            model_name: "test".to_owned(),
            id: "any text".to_owned(),
            inputs: inputs.collect(),
            parameters: parameters.map(|(name, value)| (name.clone(), parameter(value))).collect(),
            ..ModelInferRequest::default()
        }
    }

    fn parse(inputs: &Value, parameters: &Value) -> Result<Call, String> {
        let call = Call::parse(request(inputs, parameters), Vec::new(), Tenant::default(), None, false);
        call.map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn sampling_parameters_mean_the_same_in_every_form() {
        let expected = json!({
            "max_tokens": 5, "temperature": 0.5, "seed": 7, "ignore_eos": true, "stop": ["END"], "stop_token_ids": [3],
        });
        let mut inputs = json!({"text_input": "hi"});
        inputs.as_object_mut().unwrap().extend(expected.as_object().unwrap().clone());
        let as_tensors = parse(&inputs, &json!({})).unwrap();
        let text = json!({"text_input": "hi", "sampling_parameters": expected.to_string()});
        let as_json = parse(&text, &json!({})).unwrap();
        let written = json!({
            "max_tokens": "5", "temperature": "0.5", "seed": 7, "ignore_eos": "True", "stop": "END",
            "stop_token_ids": "[3]",
        });
        let as_parameters = parse(&json!({"text_input": "hi"}), &written).unwrap();
        let tensorrt = json!({
            "text_input": "hi", "request_output_len": 5, "temperature": 0.5, "random_seed": 7, "ignore_eos": true,
            "stop_words": ["END", ""], "bad_words": [""], "end_id": 3, "pad_id": 0, "beam_width": 1,
            "return_context_logits": false,
        });
        let as_tensorrt = parse(&tensorrt, &json!({})).unwrap();
        for call in [&as_tensors, &as_json, &as_parameters, &as_tensorrt] {
            assert_eq!(call.draft.sampling, as_tensors.draft.sampling);
            assert_eq!(call.form.ignored, None);
        }
        let sampling = &as_tensors.draft.sampling;
        assert_eq!((sampling.max_tokens, sampling.temperature, sampling.seed), (Some(5), Some(0.5), Some(7)));
        assert_eq!(
            (sampling.stop.clone(), sampling.stop_token_ids.clone()),
            (vec!["END".to_owned()], vec![3])
        );
    }

    #[test]
    fn whole_answers_begin_with_the_prompt_and_streams_do_not() {
        let before = |fields: Value| {
            let mut inputs = json!({"text_input": "hi"});
            inputs.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            parse(&inputs, &json!({})).map(|call| call.form.before)
        };
        assert_eq!(before(json!({})).unwrap(), "hi");
        assert_eq!(before(json!({"exclude_input_in_output": true})).unwrap(), "");
        assert_eq!(before(json!({"stream": true})).unwrap(), "");
        assert_eq!(before(json!({"streaming": true, "exclude_input_in_output": true})).unwrap(), "");
        assert!(before(json!({"stream": true, "exclude_input_in_output": false})).is_err());
        assert_eq!(parse(&json!({"input_ids": [5, 6]}), &json!({})).unwrap().form.before, "");
    }

    #[test]
    fn outputs_are_those_listed_or_flagged() {
        let flagged =
            json!({"text_input": "hi", "return_finish_reason": true, "return_num_input_tokens": false});
        let call = parse(&flagged, &json!({})).unwrap();
        assert_eq!(call.form.outputs, [Output::Text, Output::FinishReason]);
        let two = json!({"text_input": "hi", "n": 2, "stream": true, "return_cumulative_logprob": true});
        let call = parse(&two, &json!({})).unwrap();
        assert_eq!(call.form.outputs, [Output::Text, Output::CumulativeLogprob, Output::SequenceIndex]);
        assert_eq!(call.draft.sampling.logprobs, Some(0));
        let listed = |names: &[&str]| {
            let output =
                |name: &&str| InferRequestedOutputTensor { name: (*name).to_owned(), ..Default::default() };
            let outputs = names.iter().map(output).collect();
            let request = ModelInferRequest { outputs, ..request(&json!({"text_input": "hi"}), &json!({})) };
            Call::parse(request, Vec::new(), Tenant::default(), None, false).map(|call| call.form.outputs)
        };
        assert_eq!(listed(&["output_ids", "text_output"]).unwrap(), [Output::NewIds, Output::Text]);
        for names in [&["logits"][..], &["text_output", "text_output"]] {
            assert!(matches!(listed(names), Err(Refusal::Invalid { .. })), "{names:?}");
        }
    }

    #[test]
    fn models_adapters_limits_and_unknown_parameters() {
        let parameters =
            json!({"timeout": 1_500, "priority": 3, "lora_name": "sql", "early_stopping": true, "foo": 1});
        let call = parse(&json!({"text_input": "hi"}), &parameters).unwrap();
        assert_eq!(call.draft.model.as_deref(), Some("sql"));
        assert_eq!((call.draft.timeout_ms, call.draft.priority), (Some(2), Some(3)));
        assert_eq!((call.form.ignored.as_deref(), call.form.id.as_str()), (Some("foo"), "any text"));
        assert_eq!(call.draft.request_id, None, "ids of the protocol need not be unique");
        let tokens = parse(&json!({"input_ids": [5, 6]}), &json!({})).unwrap();
        assert!(matches!(tokens.draft.prompt, Prompt::Tokens(tokens) if tokens == [5, 6]));
        let seed = u64::MAX - 1;
        let mut largest = request(&json!({"text_input": "hi"}), &json!({}));
        let choice = Some(ParameterChoice::Uint64Param(seed));
        largest.parameters.insert("seed".to_owned(), InferParameter { parameter_choice: choice });
        let call =
            Call::parse(largest, Vec::new(), Tenant::default(), Some(Duration::from_secs(1)), false).unwrap();
        assert_eq!(call.draft.sampling.seed.map(i64::cast_unsigned), Some(seed));
        assert_eq!(call.draft.timeout_ms, Some(1000));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let check = |inputs: Value, parameters: Value, expected: &str| {
            let message = parse(&inputs, &parameters).err().unwrap_or_default();
            assert!(message.contains(expected), "{inputs} {parameters}: {message:?} has no {expected:?}");
        };
        let hi = || json!({"text_input": "hi"});
        check(json!({}), json!({}), "text_input is required");
        check(json!({"text_input": ["a", "b"]}), json!({}), "takes one prompt, got 2");
        check(json!({"text_input": 3}), json!({}), "takes BYTES, got integers");
        check(json!({"text_input": "a", "input_ids": [1]}), json!({}), "both given");
        check(json!({"input_ids": ["a"]}), json!({}), "takes integers, got BYTES");
        check(json!({"text_input": "a", "image": "x"}), json!({}), "`image` is not one of this model");
        check(json!({"text_input": "a", "max_tokens": [1, 2]}), json!({}), "takes one element, got 2");
        check(json!({"text_input": "a", "max_tokens": 1.5}), json!({}), "takes INT32, got floats");
        check(json!({"text_input": "a", "stream": 1}), json!({}), "takes BOOL, got integers");
        check(json!({"text_input": "a", "beam_width": 4}), json!({}), "beam_width must be 1, got 4");
        check(json!({"text_input": "a", "top_k": 4}), json!({"top_k": 4}), "`top_k` is given twice");
        check(json!({"text_input": "a", "n": 1, "num_return_sequences": 1}), json!({}), "`n` is given twice");
        check(json!({"text_input": "a", "sampling_parameters": "["}), json!({}), "must be a JSON object");
        check(hi(), json!({"sampling_parameters": r#"{"sampling_parameters": "{}"}"#}), "itself");
        check(hi(), json!({"max_tokens": "many"}), "max_tokens must be a 64-bit integer, got a string");
        check(hi(), json!({"timeout": -1}), "timeout must be microseconds");
        let nan = ModelInferRequest {
            parameters: [("top_p".to_owned(), parameter(&json!(1)))].into(),
            ..request(&hi(), &json!({}))
        };
        let mut nan = nan;
        nan.parameters.get_mut("top_p").unwrap().parameter_choice =
            Some(ParameterChoice::DoubleParam(f64::NAN));
        let refused = |request| {
            Call::parse(request, Vec::new(), Tenant::default(), None, true).err().unwrap().to_string()
        };
        assert!(refused(nan).contains("`top_p` must be finite"));
        assert!(refused(request(&hi(), &json!({"foo": 1}))).contains("`foo` is not a field"));
        let other = ModelInferRequest { model_version: "7".to_owned(), ..request(&hi(), &json!({})) };
        assert!(refused(other).contains("no version 7"));
    }
}
