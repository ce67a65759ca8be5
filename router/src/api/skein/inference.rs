//! The service skein.v1.Inference.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use skein_proto::TokenId;
use skein_proto::v1;
use skein_proto::v1::inference_server::Inference;
use tonic::{Request, Response, Status};

use super::convert;
use crate::api::answer::choices::{CallIds, Choices};
use crate::api::grpc::status::status;
use crate::app::{App, work_bytes};
use crate::metrics::ParsedApi;
use crate::refusal::Refusal;
use crate::repository::served::{Held, Served};
use crate::request::tenant::Tenant;
use crate::request::{Draft, Prompt};
use crate::text::remainder::{Received, Remainder};
use crate::text::text_stream::{TextDelta, TextStream};
use crate::validate::{most_to_tokenize, token_id};

/// skein.v1.Inference over one model or several.
pub struct InferenceService {
    served: Served,
}

impl InferenceService {
    /// Serves requests with `served`.
    pub fn new(served: Served) -> Self {
        Self { served }
    }
}

/// The tenant that the key check found.
fn tenant_of<T>(request: &Request<T>) -> Tenant {
    request.extensions().get::<Tenant>().cloned().unwrap_or_default()
}

type Responses = Pin<Box<dyn Stream<Item = Result<v1::GenerateResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Inference for InferenceService {
    type GenerateStream = Responses;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Result<Response<Responses>, Status> {
        let timeout = request.metadata().get("grpc-timeout").and_then(|value| value.to_str().ok());
        let timeout = timeout.and_then(convert::timeout);
        let tenant = tenant_of(&request);
        let request = request.into_inner();
        let responses = self.generated(request, tenant, timeout).await.map_err(|refusal| status(&refusal))?;
        Ok(Response::new(responses))
    }

    async fn list_models(
        &self,
        request: Request<v1::ListModelsRequest>,
    ) -> Result<Response<v1::ListModelsResponse>, Status> {
        let models = self.listed(&tenant_of(&request)).map_err(|refusal| status(&refusal))?;
        Ok(Response::new(v1::ListModelsResponse { models }))
    }

    async fn tokenize(
        &self,
        request: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeResponse>, Status> {
        let tenant = tenant_of(&request);
        let answered = self.tokenized(request.into_inner(), &tenant).await;
        answered.map(Response::new).map_err(|refusal| status(&refusal))
    }

    async fn detokenize(
        &self,
        request: Request<v1::DetokenizeRequest>,
    ) -> Result<Response<v1::DetokenizeResponse>, Status> {
        let tenant = tenant_of(&request);
        let answered = self.detokenized(request.into_inner(), &tenant).await;
        answered.map(Response::new).map_err(|refusal| status(&refusal))
    }
}

/// The names of a model and of its adapters.
fn names_of(app: &App, tenant: &Tenant) -> Result<Vec<v1::Model>, Refusal> {
    let limits = app.fleet.model_limits()?;
    let model =
        |(name, _): (Arc<str>, bool)| v1::Model { id: name.to_string(), max_model_len: limits.max_model_len };
    Ok(app.names(tenant).into_iter().map(model).collect())
}

impl InferenceService {
    /// The models. The length of one that is not in memory is the planned one.
    fn listed(&self, tenant: &Tenant) -> Result<Vec<v1::Model>, Refusal> {
        match &self.served {
            Served::One(app) => names_of(app, tenant),
            Served::Several(models) => Ok(models.listed(|app, entry, _| {
                let of_entry = || {
                    let names = entry.names.iter().filter(|name| tenant.may_use(name.as_ref()));
                    let model = |name: &Arc<str>| v1::Model {
                        id: name.to_string(),
                        max_model_len: entry.max_model_len,
                    };
                    names.map(model).collect()
                };
                app.and_then(|app| names_of(app, tenant).ok()).unwrap_or_else(of_entry)
            })),
        }
    }

    async fn generated(
        &self,
        request: v1::GenerateRequest,
        tenant: Tenant,
        timeout: Option<Duration>,
    ) -> Result<Responses, Refusal> {
        let n = request.sampling.as_ref().and_then(|sampling| sampling.n).unwrap_or(1);
        // Clamped here; the validator refuses an n out of range.
        let had = convert::received(&request, n.clamp(1, self.served.config().limits.n))?;
        if had.iter().all(|had| had.finished) {
            return Ok(Box::pin(futures::stream::empty()));
        }
        let return_token_ids = request.return_token_ids;
        let resumed = !request.resume_from.is_empty();
        let model = convert::given(request.model.clone());
        let app = self.served.held(model.as_deref(), &tenant, timeout).await?;
        let draft = Draft { tenant, ..convert::draft(request, app.time_left)? };
        let started = app.start(draft).await?;
        let plan = started.split.as_ref();
        // Without known formats there is only text, which every response carries.
        let counts = || app.metrics.parsed(ParsedApi::Other, true);
        let samples = started.request.n as usize;
        let split = plan.map(|plan| Choices::new(Some(plan), samples, true).counted(Some(plan), counts));
        let ids = CallIds::new(&started.request, plan);
        let id = started.request.id.to_string();
        let shown = Shown { app, id, return_token_ids, split, ids };
        Ok(Box::pin(responses(shown, started.stream, had, resumed)))
    }

    async fn tokenized(
        &self,
        request: v1::TokenizeRequest,
        tenant: &Tenant,
    ) -> Result<v1::TokenizeResponse, Refusal> {
        let model = convert::given(request.model);
        let app = self.served.held(model.as_deref(), tenant, None).await?;
        app.check_model(model.as_deref(), tenant)?;
        let limits = app.fleet.model_limits()?;
        let add_special_tokens = request.add_special_tokens.unwrap_or(true);
        let prompt = match request.input {
            None => return Err(Refusal::invalid("input", "input is required: text or chat.")),
            Some(v1::tokenize_request::Input::Text(text)) => Prompt::Text(text),
            Some(v1::tokenize_request::Input::Chat(chat)) => convert::chat(chat)?.0,
        };
        let (bytes, text) = (work_bytes(&prompt), app.text.clone());
        let most = most_to_tokenize(&limits);
        let work = move || match (&prompt, prompt.as_chat()) {
            (Prompt::Text(prompt), _) => Ok(text.encode_text(prompt, add_special_tokens, most)?),
            (_, Some(chat)) => Ok(text.encode_chat(&chat, most)?),
            _ => Err(Refusal::Internal),
        };
        let token_ids = app.text_work(bytes, work).await?;
        Ok(v1::TokenizeResponse { token_ids, max_model_len: limits.max_model_len })
    }

    async fn detokenized(
        &self,
        request: v1::DetokenizeRequest,
        tenant: &Tenant,
    ) -> Result<v1::DetokenizeResponse, Refusal> {
        let model = convert::given(request.model);
        let app = self.served.held(model.as_deref(), tenant, None).await?;
        app.check_model(model.as_deref(), tenant)?;
        let text = app.text.clone();
        let vocab_size = text.tokenizer.bytes().vocab_size();
        let tokens: Result<Vec<TokenId>, Refusal> = request
            .token_ids
            .iter()
            .map(|token| token_id("token_ids", i64::from(*token), vocab_size))
            .collect();
        let tokens = tokens?;
        let text =
            app.text_work(tokens.len() * 4, move || Ok(text.tokenizer.decode(&tokens, false)?)).await?;
        Ok(v1::DetokenizeResponse { text })
    }
}

/// What every response of a stream needs.
struct Shown {
    app: Held,
    id: String,
    return_token_ids: bool,
    split: Option<Choices>,
    ids: CallIds,
}

fn responses(
    mut shown: Shown,
    mut stream: TextStream,
    had: Vec<Received>,
    resumed: bool,
) -> impl Stream<Item = Result<v1::GenerateResponse, Status>> + Send {
    let mut rests: Vec<Remainder> = had.into_iter().map(Remainder::after).collect();
    async_stream::try_stream! {
        // The first response carries the prompt's log-probabilities; a resuming client already has them.
        let mut first = !resumed;
        while let Some(delta) = stream.next().await {
            let delta = delta.map_err(|refusal| status(&refusal))?;
            let rest = rests.get_mut(delta.sample_index as usize).ok_or_else(|| status(&Refusal::Internal))?;
            let (had, delta) = rest.part(delta).map_err(|refusal| status(&refusal))?;
            let seen = rest.seen();
            let parts = shown.parts(&had, &delta);
            if !first && !stream.is_done() && shown.is_quiet(&delta) {
                continue;
            }
            yield v1::GenerateResponse { parts, ..shown.response(delta, seen, &stream, std::mem::take(&mut first)) };
        }
    }
}

impl Shown {
    fn is_quiet(&self, delta: &TextDelta) -> bool {
        let tokens = if self.return_token_ids { delta.tokens.len() } else { 0 };
        delta.text.is_empty() && delta.finish.is_none() && delta.logprobs.is_empty() && tokens == 0
    }

    /// Parts in a delta's new text.
    fn parts(&mut self, had: &TextDelta, delta: &TextDelta) -> Vec<v1::Part> {
        let Some(split) = &mut self.split else { return Vec::new() };
        let sample = delta.sample_index as usize;
        split.skip(sample, &had.text, &had.control_at);
        let mut pieces = split.push(sample, delta.text.clone(), &delta.control_at);
        if delta.finish.is_some() {
            pieces.extend(split.finish(sample));
        }
        convert::parts(pieces, sample, &self.ids)
    }

    fn response(
        &self,
        delta: TextDelta,
        seen: Received,
        stream: &TextStream,
        first: bool,
    ) -> v1::GenerateResponse {
        let bytes = self.app.text.tokenizer.bytes();
        let prompt_logprobs = if first { stream.prompt_logprobs() } else { &[] };
        let Received { tokens, text_bytes, finished } = seen;
        let sample_index = delta.sample_index;
        let has_calls = self.split.as_ref().is_some_and(|split| split.has_calls(sample_index as usize));
        v1::GenerateResponse {
            request_id: self.id.clone(),
            sample_index,
            text: delta.text,
            token_ids: if self.return_token_ids { delta.tokens } else { Vec::new() },
            from_position: delta.from_position,
            logprobs: convert::logprobs(bytes, &delta.logprobs),
            finish: delta.finish.as_ref().map(|finish| convert::finish(finish, has_calls)),
            usage: stream.is_done().then(|| convert::usage(stream.usage())),
            prompt_logprobs: convert::logprobs(bytes, prompt_logprobs),
            received: Some(v1::Received {
                sample_index,
                tokens,
                text_bytes,
                finished,
                model_version: stream.journey().version.0,
            }),
            receipt: stream.is_done().then(|| convert::receipt(stream.journey())),
            parts: Vec::new(),
        }
    }
}
