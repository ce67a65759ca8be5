//! Responses of tensors as a completion of the OpenAI API. Pure.

use serde_json::{Map, Value, json};
use skein_proto::inference::ModelInferResponse;
use skein_proto::inference::infer_parameter::ParameterChoice;
use skein_router::api::kserve::elements::elements;

/// Most samples of a completion.
const MAX_SAMPLES: usize = 128;

/// A completion as it arrives.
pub struct Completion {
    /// Whether the client wants events.
    pub streams: bool,
    id: String,
    created: u64,
    model: String,
    /// Whether events end with the number of tokens.
    include_usage: bool,
    max_tokens: Option<u64>,
    samples: Vec<Sample>,
    prompt_tokens: Option<u64>,
}

#[derive(Default)]
struct Sample {
    text: String,
    /// Output tokens, if the server counts them.
    tokens: Option<u64>,
    finish: Option<String>,
}

/// A part of a sample in one response.
struct Part {
    index: usize,
    text: String,
}

impl Completion {
    /// A completion of `model` under `id`, for the fields of a body.
    pub fn new(id: &str, created: u64, model: &str, fields: &Map<String, Value>) -> Self {
        let usage = fields.get("stream_options").and_then(|options| options.get("include_usage"));
        Self {
            streams: fields.get("stream").is_some_and(|stream| *stream == true),
            id: format!("cmpl-{id}"),
            created,
            model: model.to_owned(),
            include_usage: usage.is_some_and(|usage| *usage == true),
            max_tokens: fields.get("max_tokens").and_then(Value::as_u64),
            samples: Vec::new(),
            prompt_tokens: None,
        }
    }

    /// Adds a response; returns whether it is the last.
    ///
    /// # Errors
    /// If it has no text.
    pub fn gather(&mut self, response: ModelInferResponse) -> Result<bool, String> {
        let (parts, ended) = self.take(&response)?;
        for part in parts {
            self.samples[part.index].text.push_str(&part.text);
        }
        Ok(ended)
    }

    /// The events of a response, and whether it is the last.
    ///
    /// # Errors
    /// If it has no text.
    pub fn events(&mut self, response: ModelInferResponse) -> Result<(String, bool), String> {
        let (parts, ended) = self.take(&response)?;
        let mut events = String::new();
        let mut event = |object: Value| events.push_str(&format!("data: {object}\n\n"));
        for part in parts.iter().filter(|part| !part.text.is_empty()) {
            event(self.object(vec![choice(part.index, &part.text, None)]));
        }
        if ended {
            for (index, sample) in self.samples.iter().enumerate() {
                event(self.object(vec![choice(index, "", Some(self.finish(sample)))]));
            }
            if self.include_usage
                && let Some(usage) = self.usage()
            {
                let mut object = self.object(Vec::new());
                object["usage"] = usage;
                event(object);
            }
            events.push_str("data: [DONE]\n\n");
        }
        Ok((events, ended))
    }

    /// The whole completion.
    pub fn whole(&self) -> Value {
        let choices = self.samples.iter().enumerate();
        let choices = choices.map(|(index, sample)| choice(index, &sample.text, Some(self.finish(sample))));
        let mut object = self.object(choices.collect());
        if let Some(usage) = self.usage() {
            object["usage"] = usage;
        }
        object
    }

    fn object(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
            "choices": choices,
        })
    }

    /// Why a sample ended. A server that does not say has stopped, unless it reached the limit.
    fn finish<'a>(&self, sample: &'a Sample) -> &'a str {
        let is_full = self.max_tokens.is_some_and(|most| sample.tokens.is_some_and(|tokens| tokens >= most));
        sample.finish.as_deref().unwrap_or(if is_full { "length" } else { "stop" })
    }

    /// Token counts, if the server tells them.
    fn usage(&self) -> Option<Value> {
        let prompt = self.prompt_tokens?;
        // A server may count what it likes.
        let add = |sum: u64, sample: &Sample| Some(sum.saturating_add(sample.tokens?));
        let completion = self.samples.iter().try_fold(0, add)?;
        let total = prompt.saturating_add(completion);
        Some(json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}))
    }

    fn take(&mut self, response: &ModelInferResponse) -> Result<(Vec<Part>, bool), String> {
        let flag = response.parameters.get("triton_final_response");
        let flag = flag.and_then(|flag| flag.parameter_choice.as_ref());
        let ended = match flag {
            Some(ParameterChoice::BoolParam(is_last)) => *is_last,
            // A server without the flag has one response.
            _ => !self.streams,
        };
        let texts = values(response, "text_output")?;
        if texts.is_empty() && !ended {
            return Err("a response without text_output".to_owned());
        }
        let whole = |name| {
            let values = values(response, name)?;
            Ok::<_, String>(values.iter().map(|value| value.as_u64().unwrap_or(0)).collect::<Vec<_>>())
        };
        let indices = whole("sequence_index")?;
        let (counts, prompt) = (whole("num_output_tokens")?, whole("num_input_tokens")?);
        let reasons = values(response, "finish_reason")?;
        self.prompt_tokens = prompt.first().copied().or(self.prompt_tokens);
        let mut parts = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            let index = indices.get(at).map_or(at, |index| usize::try_from(*index).unwrap_or(MAX_SAMPLES));
            if index >= MAX_SAMPLES {
                return Err(format!("a response with sample {index}"));
            }
            if self.samples.len() <= index {
                self.samples.resize_with(index + 1, Sample::default);
            }
            let sample = &mut self.samples[index];
            if let Some(count) = counts.get(at) {
                sample.tokens = Some(sample.tokens.unwrap_or(0).saturating_add(*count));
            }
            if let Some(reason) = reasons.get(at).and_then(Value::as_str).filter(|reason| *reason != "None") {
                sample.finish = Some(reason.to_owned());
            }
            parts.push(Part { index, text: text.as_str().unwrap_or_default().to_owned() });
        }
        Ok((parts, ended))
    }
}

fn choice(index: usize, text: &str, finish: Option<&str>) -> Value {
    json!({"index": index, "text": text, "logprobs": null, "finish_reason": finish})
}

/// Elements of the output `name`; none if it is absent.
fn values(response: &ModelInferResponse, name: &str) -> Result<Vec<Value>, String> {
    let Some(at) = response.outputs.iter().position(|output| output.name == name) else {
        return Ok(Vec::new());
    };
    let output = &response.outputs[at];
    let raw = response.raw_output_contents.get(at);
    let contents = output.contents.clone().filter(|_| raw.is_none());
    let read = elements(&output.datatype, &output.shape, contents, raw);
    let read = read.map_err(|error| format!("the output {name}: {error}"))?;
    read.values().map_err(|what| format!("the output {name} is {what}"))
}

#[cfg(test)]
mod tests {
    use skein_proto::inference::InferParameter;
    use skein_proto::inference::model_infer_response::InferOutputTensor;
    use skein_router::api::kserve::elements::encoded;

    use super::*;

    fn response(outputs: &Value, is_last: Option<bool>) -> ModelInferResponse {
        let mut response = ModelInferResponse::default();
        for (name, values) in outputs.as_object().unwrap() {
            let values = values.as_array().unwrap();
            let datatype = if values.iter().all(Value::is_string) { "BYTES" } else { "UINT32" };
            response.outputs.push(InferOutputTensor {
                name: name.clone(),
                datatype: datatype.to_owned(),
                shape: vec![1, values.len() as i64],
                ..InferOutputTensor::default()
            });
            response.raw_output_contents.push(encoded(datatype, values).unwrap());
        }
        if let Some(is_last) = is_last {
            let parameter_choice = Some(ParameterChoice::BoolParam(is_last));
            let flag = InferParameter { parameter_choice };
            response.parameters.insert("triton_final_response".to_owned(), flag);
        }
        response
    }

    fn completion(fields: &Value) -> Completion {
        Completion::new("7", 9, "m", fields.as_object().unwrap())
    }

    #[test]
    fn counts_beyond_all_numbers_are_told_as_the_largest() {
        let outputs = json!({"text_output": ["a"], "num_output_tokens": [1], "num_input_tokens": [1]});
        let mut most = response(&outputs, Some(true));
        for (output, raw) in most.outputs.iter_mut().zip(&mut most.raw_output_contents) {
            if output.name.ends_with("tokens") {
                output.datatype = "UINT64".to_owned();
                *raw = encoded("UINT64", &[u64::MAX.into()]).unwrap();
            }
        }
        let mut all = completion(&json!({}));
        for response in [most.clone(), most] {
            all.gather(response).unwrap();
        }
        assert_eq!(all.whole()["usage"]["total_tokens"], u64::MAX);
    }

    #[test]
    fn a_stream_becomes_events_up_to_the_final_response() {
        let mut all = completion(&json!({"stream": true, "stream_options": {"include_usage": true}}));
        let parts = [
            (
                json!({"text_output": ["a"], "finish_reason": ["None"], "num_output_tokens": [1], "num_input_tokens": [3]}),
                false,
            ),
            (json!({"text_output": [""], "finish_reason": ["None"], "num_output_tokens": [1]}), false),
            (json!({"text_output": ["b"], "finish_reason": ["length"], "num_output_tokens": [1]}), true),
        ];
        let mut events = String::new();
        for (outputs, is_last) in parts {
            let (more, ended) = all.events(response(&outputs, Some(is_last))).unwrap();
            assert_eq!(ended, is_last);
            events += &more;
        }
        let lines: Vec<&str> = events.split("\n\n").filter(|line| !line.is_empty()).collect();
        let event =
            |at: usize| serde_json::from_str::<Value>(lines[at].strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(lines.len(), 5, "{events}");
        assert_eq!(
            event(0)["choices"][0],
            json!({"index": 0, "text": "a", "logprobs": null, "finish_reason": null})
        );
        assert_eq!(
            (event(1)["choices"][0]["text"].as_str(), event(2)["choices"][0]["finish_reason"].as_str()),
            (Some("b"), Some("length"))
        );
        assert_eq!(event(3)["usage"], json!({"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}));
        assert_eq!((event(0)["id"].as_str(), lines[4]), (Some("cmpl-7"), "data: [DONE]"));
    }

    #[test]
    fn samples_come_by_position_or_by_index() {
        let mut together = completion(&json!({"max_tokens": 2}));
        let outputs = json!({"text_output": ["a", "b"], "num_output_tokens": [2, 1]});
        assert!(together.gather(response(&outputs, None)).unwrap(), "one response without the flag");
        let whole = together.whole();
        let reason = |at: usize| whole["choices"][at]["finish_reason"].as_str();
        assert_eq!((reason(0), reason(1), whole.get("usage")), (Some("length"), Some("stop"), None));
        let mut apart = completion(&json!({"stream": false}));
        for (text, index, is_last) in [("a", 1, false), ("b", 0, false), ("c", 1, true)] {
            let outputs = json!({"text_output": [text], "sequence_index": [index]});
            assert_eq!(apart.gather(response(&outputs, Some(is_last))).unwrap(), is_last);
        }
        assert_eq!(
            (&apart.whole()["choices"][0]["text"], &apart.whole()["choices"][1]["text"]),
            (&json!("b"), &json!("ac"))
        );
    }

    #[test]
    fn broken_responses_are_faults() {
        let mut all = completion(&json!({"stream": true}));
        assert!(all.events(response(&json!({}), Some(false))).is_err());
        assert!(all.events(response(&json!({"text_output": ["a"], "sequence_index": [128]}), None)).is_err());
        let mut broken = response(&json!({"text_output": ["a"]}), Some(false));
        broken.outputs[0].shape = vec![2];
        assert!(all.events(broken).is_err());
        let (events, ended) = all.events(response(&json!({}), Some(true))).unwrap();
        assert!(ended && events == "data: [DONE]\n\n", "an empty final response: {events}");
    }
}
