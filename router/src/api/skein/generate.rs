//! `POST /inference/v1/generate`: token ids in, token ids out, in vLLM's form. Training code uses it: what is
//! trained on is what was drawn, without a tokenizer in between.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::response::Response;
use futures::Stream;
use http::{HeaderMap, HeaderValue};
use serde_json::{Map, Value, json};

use crate::api::answer::call_stream::{CallStream, Prompted};
use crate::api::answer::events::{ResumableEvents, SseEvent};
use crate::api::answer::logprobs::{self, Names};
use crate::api::answer::shapes::{self, Gathered, json_response};
use crate::api::fields::object::Fields;
use crate::api::fields::sampling::{self, Wants};
use crate::api::fields::unserved::take_unserved;
use crate::api::http::request_id::RequestId;
use crate::api::http::sse;
use crate::api::openai::error::{OpenAi, OpenAiError};
use crate::app::App;
use crate::config::RouterConfig;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::request::{Draft, Prompt};
use crate::text::text_stream::TextDelta;

/// Members of `sampling_params` that are read as fields of the body of a completion.
const SAMPLING: [&str; 24] = [
    "max_tokens",
    "min_tokens",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "logprobs",
    "prompt_logprobs",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "structured_outputs",
    "truncate_prompt_tokens",
];
/// Members of `sampling_params` that change no token of an answer.
const WITHOUT_EFFECT: [&str; 3] = ["detokenize", "output_kind", "skip_clone"];

pub async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let parse = |fields, headers: &_| Call::parse(fields, headers, &id, &app.config);
    let (call, draft) = Fields::parsed(request, &id, &app, parse).await?;
    let (id, ignored, wants) = (call.id.clone(), call.ignored.clone(), call.wants.clone());
    let mut merged = CallStream::start(&app, &tenant, vec![draft]).await.map_err(of_token_ids)?;
    let answer = Answer { app, call };
    let response = if wants.stream {
        let samples = merged.prompts().first().map_or(1, |prompt| prompt.request.n as usize);
        let outgoing = ResumableEvents::new(&id, wants.resuming, samples);
        let mut seen = outgoing.clone();
        merged.wait_for(|_, delta| seen.is_new(delta.sample_index as usize, delta)).await?;
        sse::response::<OpenAi>(answer.chunks(merged, outgoing))
    } else {
        json_response(answer.whole(merged).await?)
    };
    Ok(shapes::finish_response(response, &id, ignored))
}

/// Converts a body into a draft.
pub fn draft(fields: Fields, headers: &HeaderMap, id: &str, app: &App) -> Result<Draft, Refusal> {
    Call::parse(fields, headers, id, &app.config).map(|(_, draft)| draft)
}

/// A refusal of the prompt, by the field that holds it here.
fn of_token_ids(refusal: Refusal) -> Refusal {
    const NAMES: (&str, &str) = ("prompt", "token_ids");
    match refusal {
        Refusal::Invalid { param: Some(param), message } if param == NAMES.0 => {
            Refusal::invalid(NAMES.1, message.replacen(NAMES.0, NAMES.1, 1))
        }
        Refusal::ContextLength { max, prompt, output, .. } => {
            Refusal::ContextLength { max, prompt, output, param: NAMES.1 }
        }
        other => other,
    }
}

/// Request state that is not part of its draft.
struct Call {
    id: Arc<str>,
    wants: Wants,
    logprobs: bool,
    prompt_logprobs: bool,
    ignored: Option<HeaderValue>,
}

impl Call {
    fn parse(
        mut fields: Fields,
        headers: &HeaderMap,
        id: &str,
        config: &RouterConfig,
    ) -> Result<(Self, Draft), Refusal> {
        let others = fields.spread("sampling_params", &SAMPLING);
        for (name, value) in others.into_iter().filter(|(name, _)| !WITHOUT_EFFECT.contains(&name.as_str())) {
            // Those that are not served are refused, whatever holds them.
            fields.put(&name, value);
        }
        let (mut draft, resuming) = sampling::draft(&mut fields, headers, id, config)?;
        let mut sampling = sampling::sampling(&mut fields);
        let wants = sampling::wants(&mut fields, &sampling, headers, resuming);
        sampling.max_tokens = fields.i64("max_tokens");
        sampling.logprobs = fields.i64("logprobs");
        let token_ids = fields.integers("token_ids");
        if token_ids.as_ref().is_none_or(Vec::is_empty) && !fields.has_fault("token_ids") {
            let message = "token_ids is required: a list of the prompt's token ids, at least one.";
            fields.note(Refusal::invalid("token_ids", message));
        }
        let choices = sampling::check_choices(wants.resuming.had.as_ref(), 1, sampling.n);
        fields.value_of(choices);
        take_unserved(&mut fields);
        let had = wants.resuming.had.as_ref();
        let call = Self {
            id: draft.request_id.clone().unwrap_or_default(),
            logprobs: sampling.logprobs.is_some(),
            prompt_logprobs: sampling.prompt_logprobs.is_some(),
            ignored: fields.finish(config.refuse_unknown_fields)?,
            wants: wants.clone(),
        };
        draft.version = had.map(|had| had.version_of(0..had.versions.len())).unwrap_or_default();
        draft.prompt = Prompt::Tokens(token_ids.unwrap_or_default());
        draft.sampling = sampling;
        Ok((call, draft))
    }
}

/// Builds the JSON objects of an answer.
struct Answer {
    app: App,
    call: Call,
}

impl Answer {
    /// The whole answer as JSON text.
    async fn whole(self, mut merged: CallStream) -> Result<String, Refusal> {
        let samples = merged.prompts().first().map_or(1, |prompt| prompt.request.n as usize);
        let mut gathered: Vec<Gathered> = (0..samples).map(|_| Gathered::default()).collect();
        while let Some(item) = merged.next().await {
            let (_, delta) = item?;
            if let Some(choice) = gathered.get_mut(delta.sample_index as usize) {
                choice.push(delta.with_stop_token());
            }
        }
        let choice = |(index, choice): (usize, Gathered)| {
            let delta = TextDelta {
                tokens: choice.tokens,
                logprobs: choice.logprobs,
                finish: choice.finish,
                ..TextDelta::default()
            };
            self.choice(index, delta)
        };
        let choices = gathered.into_iter().enumerate().map(choice).collect();
        let mut object = self.object(choices);
        let prompt = merged.prompts().first();
        // Of an answer that was ended early there may be a part.
        let are_known = |prompt: &&Prompted| {
            self.call.prompt_logprobs && prompt.prompt_logprobs.len() + 1 == prompt.request.prompt.len()
        };
        let bytes = self.app.text.tokenizer.bytes();
        let prompt_logprobs =
            prompt.filter(are_known).map(|prompt| logprobs::prompt(bytes, &prompt.prompt_logprobs));
        object.insert("prompt_logprobs".to_owned(), prompt_logprobs.into());
        object.insert("usage".to_owned(), shapes::usage(merged.usage()));
        self.add_version(&mut object, &merged);
        shapes::add_receipt(&mut object, merged.journey());
        Ok(Value::Object(object).to_string())
    }

    fn chunks(
        self,
        mut merged: CallStream,
        mut outgoing: ResumableEvents,
    ) -> impl Stream<Item = Result<SseEvent, Refusal>> + Send {
        async_stream::try_stream! {
            while let Some(item) = merged.next().await {
                let (at, delta) = item?;
                let index = delta.sample_index as usize;
                outgoing.is_from(index, merged.version_of(at));
                let (_, delta) = outgoing.part(index, delta)?;
                let delta = delta.with_stop_token();
                let finished = delta.finish.is_some();
                if delta.tokens.is_empty() && !finished {
                    continue;
                }
                let mut object = self.object(vec![self.choice(index, delta)]);
                if finished {
                    self.add_version(&mut object, &merged);
                    shapes::add_receipt(&mut object, merged.journey());
                }
                if self.call.wants.continuous_usage {
                    object.insert("usage".to_owned(), shapes::usage(merged.usage_of(at, index)));
                }
                yield outgoing.event(index, finished, object);
            }
            if self.call.wants.include_usage && !outgoing.has_usage() {
                let mut object = self.object(Vec::new());
                object.insert("usage".to_owned(), shapes::usage(merged.usage()));
                yield outgoing.usage(object.into());
            }
        }
    }

    fn object(&self, choices: Vec<Value>) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("request_id".to_owned(), (*self.call.id).into());
        object.insert("choices".to_owned(), choices.into());
        object
    }

    /// The version of the model that the whole answer is from.
    fn add_version(&self, object: &mut Map<String, Value>, merged: &CallStream) {
        let version = merged.version_of(0);
        let version = version.is_known().then(|| version.to_string());
        object.insert("model_version".to_owned(), version.into());
    }

    fn choice(&self, index: usize, delta: TextDelta) -> Value {
        let names = Names { bytes: self.app.text.tokenizer.bytes(), as_ids: true };
        json!({
            "index": index,
            "logprobs": self.call.logprobs.then(|| logprobs::chat(names, &delta.logprobs)),
            "finish_reason": shapes::finish_reason(delta.finish.as_ref()),
            "stop_reason": shapes::stop_reason(delta.finish.as_ref()),
            "token_ids": delta.tokens,
        })
    }
}
