//! Answers as tensors: whole, or a response for each delta.

use std::sync::Arc;

use serde_json::{Map, json};
use skein_proto::inference::infer_parameter::ParameterChoice;
use skein_proto::inference::{InferParameter, ModelInferResponse, ModelStreamInferResponse};
use skein_proto::logprobs::TokenLogprobs;
use skein_text::token_bytes::TokenBytes;

use super::call::Form;
use super::model::{Output, VERSION};
use super::tensors::Outputs;
use crate::app::{App, Started};
use crate::refusal::Refusal;
use crate::text::text_stream::TextDelta;

/// Parameter of a response: whether it is the last one of its request.
pub const FINAL: &str = "triton_final_response";
/// Parameter of a request's first response: names of parameters that have no effect.
const IGNORED: &str = "ignored_params";
/// Text of `finish_reason` while a sample runs, as Triton's vLLM backend writes it.
const RUNS: &str = "None";

/// The answer to one request.
pub struct Answer {
    started: Started,
    form: Form,
    model: Arc<str>,
    bytes: Arc<TokenBytes>,
    /// Sum of the log-probabilities of each sample.
    cumulative: Vec<f32>,
}

impl Answer {
    /// The answer of `started` in the form that its request asked for.
    pub fn new(app: &App, started: Started, form: Form) -> Self {
        Self {
            model: started.request.shown_model().clone(),
            bytes: app.text.tokenizer.bytes().clone(),
            cumulative: vec![0.0; started.request.n as usize],
            started,
            form,
        }
    }

    /// Whether the request asked for a response for each delta.
    pub fn streams(&self) -> bool {
        self.form.streams
    }

    /// The whole answer.
    ///
    /// # Errors
    /// If the request fails before its end.
    pub async fn whole(mut self) -> Result<ModelInferResponse, Refusal> {
        let part =
            |sample_index| TextDelta { sample_index, text: self.form.before.clone(), ..TextDelta::default() };
        let mut parts: Vec<TextDelta> = (0..self.started.request.n).map(part).collect();
        while let Some(delta) = self.started.stream.next().await {
            let delta = delta?;
            let part = parts.get_mut(delta.sample_index as usize).ok_or(Refusal::Internal)?;
            part.text.push_str(&delta.text);
            part.tokens.extend(delta.tokens);
            part.logprobs.extend(delta.logprobs);
            part.finish = delta.finish.or(part.finish.take());
        }
        Ok(self.response(&parts))
    }

    /// The next response of a stream; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<ModelStreamInferResponse, Refusal>> {
        loop {
            let delta = match self.started.stream.next().await? {
                Ok(delta) => delta,
                Err(refusal) => return Some(Err(refusal)),
            };
            let is_last = self.started.stream.is_done();
            if is_last || !self.is_quiet(&delta) {
                return Some(Ok(in_stream(self.response(&[delta]), is_last)));
            }
        }
    }

    /// Whether a delta shows nothing. Its tokens are shown only in tensors of tokens.
    fn is_quiet(&self, delta: &TextDelta) -> bool {
        let shows_tokens = self
            .form
            .outputs
            .iter()
            .any(|output| matches!(output, Output::NewIds | Output::NewTokens | Output::Logprobs));
        delta.text.is_empty() && delta.finish.is_none() && (delta.tokens.is_empty() || !shows_tokens)
    }

    /// Response with these parts of samples.
    fn response(&mut self, parts: &[TextDelta]) -> ModelInferResponse {
        for part in parts {
            if let Some(sum) = self.cumulative.get_mut(part.sample_index as usize) {
                *sum += part.logprobs.iter().map(|at| at.logprob).sum::<f32>();
            }
        }
        let ignored = self.form.ignored.take();
        let ignored = ignored.map(|names| (IGNORED.to_owned(), ParameterChoice::StringParam(names)));
        let response = ModelInferResponse {
            model_name: self.model.to_string(),
            model_version: VERSION.to_owned(),
            id: self.form.id.clone(),
            parameters: ignored.into_iter().map(|(name, choice)| (name, parameter(choice))).collect(),
            ..ModelInferResponse::default()
        };
        let mut tensors = Outputs::of(response, self.form.batched);
        for output in &self.form.outputs {
            let name = output.name();
            match output {
                Output::Text => tensors.texts(name, parts.iter().map(|part| part.text.as_str())),
                Output::FinishReason => {
                    let reason = |part: &TextDelta| part.finish.as_ref().map_or(RUNS, |end| end.reason());
                    tensors.texts(name, parts.iter().map(reason));
                }
                Output::CumulativeLogprob => {
                    let sum = |part: &TextDelta| self.cumulative.get(part.sample_index as usize).copied();
                    tensors.floats(name, parts.iter().filter_map(sum));
                }
                Output::Logprobs => {
                    let texts: Vec<String> = parts.iter().map(|part| self.logprobs(&part.logprobs)).collect();
                    tensors.texts(name, texts.iter().map(String::as_str));
                }
                Output::PromptTokens => {
                    tensors.integers(name, [self.started.stream.usage().prompt_tokens].into_iter());
                }
                Output::NewTokens => {
                    let count = |part: &TextDelta| u32::try_from(part.tokens.len()).unwrap_or(u32::MAX);
                    tensors.integers(name, parts.iter().map(count));
                }
                Output::NewIds => {
                    tensors.integers(name, parts.iter().flat_map(|part| part.tokens.iter().copied()));
                }
                Output::SequenceIndex => {
                    tensors.integers(name, parts.iter().map(|part| part.sample_index));
                }
            }
        }
        tensors.finish()
    }

    /// Log-probabilities in the form of Triton's vLLM backend: for each position an object by token id, the
    /// drawn token first.
    fn logprobs(&self, logprobs: &[TokenLogprobs]) -> String {
        let text = |token: u32| String::from_utf8_lossy(self.bytes.get(token)).into_owned();
        let at = |at: &TokenLogprobs| {
            let mut tokens = Map::new();
            let ranked = (1..).zip(&at.top).map(|(rank, (token, logprob))| (*token, *logprob, rank));
            for (token, logprob, rank) in [(at.token, at.logprob, at.rank)].into_iter().chain(ranked) {
                let entry = json!({"logprob": logprob, "rank": rank, "decoded_token": text(token)});
                tokens.entry(token.to_string()).or_insert(entry);
            }
            tokens
        };
        json!(logprobs.iter().map(at).collect::<Vec<_>>()).to_string()
    }
}

fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

/// Wraps a response for a stream.
pub fn in_stream(mut response: ModelInferResponse, is_last: bool) -> ModelStreamInferResponse {
    response.parameters.insert(FINAL.to_owned(), parameter(ParameterChoice::BoolParam(is_last)));
    ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
}

/// A request of a stream, as its responses name it.
#[derive(Debug, Clone)]
pub struct Named {
    /// The client's id of the request.
    pub id: String,
    /// The model's name in the request.
    pub model: String,
}

/// The end of a request in a stream whose other requests go on.
pub fn failed(request: Named, refusal: &Refusal) -> ModelStreamInferResponse {
    let Named { id, model: model_name } = request;
    let model_version = VERSION.to_owned();
    let response = ModelInferResponse { id, model_name, model_version, ..ModelInferResponse::default() };
    let response = in_stream(response, true);
    ModelStreamInferResponse { error_message: refusal.to_string(), ..response }
}
