//! `POST /v1/completions`: one or many prompts, as text or as token ids.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::response::Response;
use futures::Stream;
use http::{HeaderMap, HeaderValue};
use serde_json::{Map, Value, json};
use skein_node::clock;
use skein_proto::logprobs::TokenLogprobs;
use skein_proto::version::Version;
use skein_text::detokenizer::Detokenizer;

use super::error::{OpenAi, OpenAiError};
use crate::api::answer::call_stream::CallStream;
use crate::api::answer::events::{ResumableEvents, SseData, SseEvent};
use crate::api::answer::logprobs::{self, CompletionLogprobs, Echo, Names, ScoredToken};
use crate::api::answer::moves::MoveChunks;
use crate::api::answer::progress::Progress;
use crate::api::answer::response_id::response_id;
use crate::api::answer::shapes::{self, Gathered, Heading, TextChunks, json_response};
use crate::api::answer::written::{End, Shown, TextChoice, Written};
use crate::api::fields::listing::Kind;
use crate::api::fields::object::Fields;
use crate::api::fields::prompts::prompts;
use crate::api::fields::sampling::{self, Wants};
use crate::api::fields::unserved::take_unserved;
use crate::api::http::request_id::RequestId;
use crate::api::http::sse;
use crate::app::App;
use crate::config::RouterConfig;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::request::{Draft, Prompt, TokenRequest};
use crate::text::text_stream::{TextDelta, Usage};

pub async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let parse = |fields, headers: &_| GenerationCall::parse(fields, headers, &id, &app.config);
    let (call, drafts) = Fields::parsed(request, &id, &app, parse).await?;
    let (ignored, id, wants) = (call.ignored.clone(), call.id.clone(), call.wants.clone());
    let mut merged = CallStream::start(&app, &tenant, drafts).await?;
    let answer = Answer::new(app, call, &merged);
    let response = if wants.stream {
        let outgoing = ResumableEvents::new(&id, wants.resuming, answer.choices.len());
        let (mut seen, n) = (outgoing.clone(), answer.n);
        merged.wait_for(|at, delta| seen.is_new(at * n + delta.sample_index as usize, delta)).await?;
        sse::response::<OpenAi>(answer.chunks(merged, outgoing))
    } else {
        json_response(answer.whole(merged).await?)
    };
    Ok(shapes::finish_response(response, &id, ignored))
}

/// Converts a body into drafts, one per prompt.
pub fn drafts(fields: Fields, headers: &HeaderMap, id: &str, app: &App) -> Result<Vec<Draft>, Refusal> {
    GenerationCall::parse(fields, headers, id, &app.config).map(|(_, drafts)| drafts)
}

/// Request state that is not part of its drafts.
struct GenerationCall {
    id: Arc<str>,
    wants: Wants,
    echo: bool,
    /// `max_tokens: 0`: the worker generates one token, which is dropped.
    drop_output: bool,
    logprobs: bool,
    prompt_logprobs: bool,
    skip_special_tokens: bool,
    /// Text of each prompt that was sent as text, for `echo`.
    texts: Vec<Option<String>>,
    ignored: Option<HeaderValue>,
}

impl GenerationCall {
    fn parse(
        mut fields: Fields,
        headers: &HeaderMap,
        id: &str,
        config: &RouterConfig,
    ) -> Result<(Self, Vec<Draft>), Refusal> {
        let (mut base, resuming) = sampling::draft(&mut fields, headers, id, config)?;
        let mut sampling = sampling::sampling(&mut fields);
        let wants = sampling::wants(&mut fields, &sampling, headers, resuming);
        let prompt_logprobs = sampling.prompt_logprobs.is_some();
        let echo = fields.bool("echo");
        sampling.max_tokens = fields.i64("max_tokens");
        sampling.logprobs = fields.i64("logprobs");
        let drop_output = echo && sampling.max_tokens == Some(0);
        if drop_output {
            sampling.max_tokens = Some(1);
        }
        if echo && sampling.logprobs.is_some() {
            sampling.prompt_logprobs = sampling.prompt_logprobs.max(sampling.logprobs);
        }
        let field = fields.take_field("prompt", Kind::Shaped("Prompt"));
        let prompts = prompts("prompt", field, most_prompts(config));
        let prompts = fields.value_of(prompts);
        if !prompts.is_empty() {
            let choices = sampling::check_choices(wants.resuming.had.as_ref(), prompts.len(), sampling.n);
            fields.value_of(choices);
        }
        fields.value_of(check_count(prompts.len(), sampling.n, config.limits.choices));
        base.add_special_tokens = fields.optional_bool("add_special_tokens");
        take_unserved(&mut fields);

        let id = base.request_id.take().unwrap_or_default();
        let begun_on = begun_on(wants.resuming.had.as_ref(), prompts.len());
        let call = Self {
            wants,
            echo,
            drop_output,
            logprobs: sampling.logprobs.is_some(),
            prompt_logprobs,
            skip_special_tokens: sampling.skip_special_tokens.unwrap_or(true),
            // A truncated prompt is echoed from its tokens, because its text is not known.
            texts: if echo && base.truncation.is_none() {
                prompts.iter().map(text_of).collect()
            } else {
                Vec::new()
            },
            ignored: fields.finish(config.refuse_unknown_fields)?,
            id: id.clone(),
        };
        base.sampling = sampling;
        let count = prompts.len();
        let drafts = prompts.into_iter().enumerate().map(|(at, prompt)| {
            // Ids of running requests are unique, so each prompt of a call is numbered.
            let part = (count > 1).then_some(at);
            let version = begun_on.get(at).copied().unwrap_or_default();
            let base = if at + 1 == count { std::mem::take(&mut base) } else { base.clone() };
            Draft { prompt, part, version, request_id: Some(id.clone()), ..base }
        });
        Ok((call, drafts.collect()))
    }
}

/// Version of the model that the client's part of each prompt's answer is from.
fn begun_on(had: Option<&Progress>, prompts: usize) -> Vec<Version> {
    let Some(had) = had else { return Vec::new() };
    let n = had.versions.len() / prompts.max(1);
    (0..prompts).map(|at| had.version_of(at * n..(at + 1) * n)).collect()
}

/// Most prompts in one call. They are admitted together, so a call larger than the queue could never be
/// admitted.
fn most_prompts(config: &RouterConfig) -> usize {
    let at_once = usize::try_from(config.admission.max_num_queued_reqs).unwrap_or(usize::MAX);
    config.limits.prompts.min(at_once.max(1))
}

/// Limits the product of prompts and samples; each factor also has its own limit.
fn check_count(prompts: usize, n: Option<i64>, most: usize) -> Result<(), Refusal> {
    let choices = prompts.saturating_mul(n.and_then(|n| usize::try_from(n).ok()).unwrap_or(1));
    if prompts > 1 && choices > most {
        let message = format!("prompts times n must be at most {most}, got {choices}; send fewer prompts.");
        return Err(Refusal::invalid("n", message));
    }
    Ok(())
}

fn text_of(prompt: &Prompt) -> Option<String> {
    match prompt {
        Prompt::Text(text) => Some(text.clone()),
        Prompt::Tokens(_) | Prompt::Chat { .. } => None,
    }
}

/// Builds the JSON objects of an answer.
struct Answer {
    app: App,
    call: GenerationCall,
    heading: Heading,
    /// Samples of each prompt.
    n: usize,
    /// State of each choice, at index `prompt * n + sample`.
    choices: Vec<Choice>,
}

struct Choice {
    begun: bool,
    /// `None` if they are not shown.
    logprobs: Option<CompletionLogprobs>,
}

impl Answer {
    fn new(app: App, call: GenerationCall, merged: &CallStream) -> Self {
        let heading = Heading {
            id: response_id("cmpl-", &call.id),
            object: "text_completion",
            created: clock::unix_time().as_secs(),
            model: merged.shown_model(&app.text.name()),
        };
        let n = merged.prompts().first().map_or(1, |prompt| prompt.request.n as usize);
        let logprobs = || {
            let bytes = app.text.tokenizer.bytes().clone();
            CompletionLogprobs::new(Detokenizer::new(bytes, call.skip_special_tokens))
        };
        let choice = |_| Choice { begun: false, logprobs: call.logprobs.then(logprobs) };
        let choices = (0..merged.prompts().len() * n).map(choice).collect();
        Self { app, call, heading, n, choices }
    }

    /// The whole answer as JSON text.
    async fn whole(mut self, mut merged: CallStream) -> Result<String, Refusal> {
        let mut gathered: Vec<Gathered> = self.choices.iter().map(|_| Gathered::default()).collect();
        while let Some(item) = merged.next().await {
            let (at, delta) = item?;
            let delta = self.with_stop_token(self.shown(delta));
            if let Some(choice) = gathered.get_mut(at * self.n + delta.sample_index as usize) {
                choice.push(delta);
            }
        }
        if self.is_plain() {
            let choice = |(index, choice)| Self::plain_choice(index, choice);
            let choices: Vec<TextChoice<'_>> = gathered.iter().enumerate().map(choice).collect();
            let usage = Shown::As(self.counted(merged.usage()));
            let text_bytes = gathered.iter().map(|choice| choice.text.len()).sum();
            let answer =
                Written { heading: &self.heading, choices: &choices, usage, journey: merged.journey() };
            return Ok(answer.json(text_bytes));
        }
        let mut choices = Vec::new();
        for (index, choice) in gathered.into_iter().enumerate() {
            let delta = TextDelta {
                text: choice.text,
                tokens: choice.tokens,
                logprobs: choice.logprobs,
                finish: choice.finish,
                ..TextDelta::default()
            };
            choices.push(self.choice(index, delta, &merged)?);
        }
        let mut object = self.heading.object(choices);
        object.insert("usage".to_owned(), self.usage(merged.usage()));
        shapes::add_receipt(&mut object, merged.journey());
        Ok(Value::Object(object).to_string())
    }

    /// Whether choices show nothing but their text and their end.
    fn is_plain(&self) -> bool {
        let GenerationCall { echo, logprobs, prompt_logprobs, wants, .. } = &self.call;
        !(*echo || *logprobs || *prompt_logprobs || wants.return_token_ids)
    }

    fn plain_choice(index: usize, choice: &Gathered) -> TextChoice<'_> {
        TextChoice { index, text: &choice.text, end: End::of(choice.finish.as_ref()) }
    }

    fn chunks(
        mut self,
        mut merged: CallStream,
        mut outgoing: ResumableEvents,
    ) -> impl Stream<Item = Result<SseEvent, Refusal>> + Send {
        let text_chunks = self.text_chunks();
        let mut moves = MoveChunks::new(self.call.wants.moves);
        async_stream::try_stream! {
            for index in (0..self.choices.len()).filter(|index| outgoing.has_begun(*index)) {
                // The client already has the start of this choice; continue after it.
                self.choice(index, TextDelta::default(), &merged)?;
            }
            while let Some(item) = merged.next().await {
                let (at, delta) = item?;
                if let Some(object) = moves.next(&merged, at, &self.heading) {
                    yield outgoing.aside(object);
                }
                let index = at * self.n + delta.sample_index as usize;
                outgoing.is_from(index, merged.version_of(at));
                let (had, delta) = outgoing.part(index, self.shown(delta))?;
                let delta = self.with_stop_token(delta);
                self.skip_received(index, &had);
                if self.is_quiet(index, &delta) {
                    continue;
                }
                let finished = delta.finish.is_some();
                if let Some(chunks) = text_chunks.as_ref().filter(|_| !finished) {
                    self.choices.iter_mut().skip(index).take(1).for_each(|choice| choice.begun = true);
                    yield outgoing.event(index, false, chunks.chunk(index, &delta.text));
                    continue;
                }
                if text_chunks.is_some() {
                    let choice = [TextChoice { index, text: &delta.text, end: End::of(delta.finish.as_ref()) }];
                    let usage = if self.call.wants.include_usage { Shown::Null } else { Shown::No };
                    let journey = merged.journey();
                    let chunk = Written { heading: &self.heading, choices: &choice, usage, journey };
                    let json = chunk.json(delta.text.len());
                    yield outgoing.event(index, true, SseData::Written(json));
                    continue;
                }
                let choice = self.choice(index, delta, &merged)?;
                let mut object = self.chunk(choice, merged.usage_of(at, index - at * self.n));
                if finished {
                    shapes::add_receipt(&mut object, merged.journey());
                }
                yield outgoing.event(index, finished, object);
            }
            if self.call.wants.include_usage && !outgoing.has_usage() {
                let mut object = self.heading.object(Vec::new());
                object.insert("usage".to_owned(), self.usage(merged.usage()));
                shapes::add_receipt(&mut object, merged.journey());
                yield outgoing.usage(object.into());
            }
        }
    }

    /// Fast writer for chunks that carry only text; its output equals that of `choice`.
    fn text_chunks(&self) -> Option<TextChunks> {
        let Wants { continuous_usage, include_usage, .. } = self.call.wants;
        let after = ",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null";
        let chunks = || TextChunks::new(&self.heading, ",\"text\":", after, include_usage);
        (self.is_plain() && !continuous_usage).then(chunks)
    }

    /// A chunk with a choice, of whose output `usage` counts the tokens.
    fn chunk(&self, choice: Value, usage: Usage) -> Map<String, Value> {
        let mut object = self.heading.object(vec![choice]);
        if self.call.wants.continuous_usage {
            object.insert("usage".to_owned(), self.usage(usage));
        } else if self.call.wants.include_usage {
            object.insert("usage".to_owned(), Value::Null);
        }
        object
    }

    /// Part of a delta that is shown to the client.
    fn shown(&self, delta: TextDelta) -> TextDelta {
        if !self.call.drop_output {
            return delta;
        }
        TextDelta { sample_index: delta.sample_index, finish: delta.finish, ..TextDelta::default() }
    }

    /// The same, with the stop token if token ids are shown.
    fn with_stop_token(&self, delta: TextDelta) -> TextDelta {
        let shows = self.call.wants.return_token_ids && !self.call.drop_output;
        if shows { delta.with_stop_token() } else { delta }
    }

    /// Whether the delta shows nothing and its choice has already started.
    fn is_quiet(&self, index: usize, delta: &TextDelta) -> bool {
        let shows_tokens = self.call.logprobs || self.call.wants.return_token_ids;
        let silent = delta.text.is_empty() && delta.finish.is_none();
        let quiet = silent && (delta.tokens.is_empty() || !shows_tokens);
        quiet && self.choices.get(index).is_none_or(|choice| choice.begun)
    }

    /// Advances the text offsets over tokens that the client received on an earlier connection.
    fn skip_received(&mut self, index: usize, had: &TextDelta) {
        if self.call.logprobs
            && !had.tokens.is_empty()
            && let Some(choice) = self.choices.get_mut(index)
        {
            let names = names(&self.app, &self.call);
            choice
                .logprobs
                .as_mut()
                .map(|logprobs| logprobs.next(names, Echo::default(), &scored_output(had)));
        }
    }

    /// Choice object for `delta`. The first one of a choice starts with the echoed prompt.
    fn choice(&mut self, index: usize, delta: TextDelta, merged: &CallStream) -> Result<Value, Refusal> {
        let at = index / self.n;
        let prompt = merged.prompts().get(at).ok_or(Refusal::Internal)?;
        let first =
            self.choices.get_mut(index).is_some_and(|choice| !std::mem::replace(&mut choice.begun, true));
        let echo = first && self.call.echo;
        let mut text = if echo { self.prompt_text(at, &prompt.request)? } else { String::new() };
        let logprobs = self.call.logprobs.then(|| {
            let shown =
                if echo { scored_prompt(&prompt.request, &prompt.prompt_logprobs) } else { Vec::new() };
            let output = scored_output(&delta);
            let names = names(&self.app, &self.call);
            let echo = Echo { text: &text, tokens: &shown };
            let logprobs = self.choices.get_mut(index).and_then(|choice| choice.logprobs.as_mut());
            logprobs.map(|logprobs| logprobs.next(names, echo, &output))
        });
        text.push_str(&delta.text);
        let mut choice = json!({
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": shapes::finish_reason(delta.finish.as_ref()),
            "stop_reason": shapes::stop_reason(delta.finish.as_ref()),
        });
        if self.call.prompt_logprobs {
            choice["prompt_logprobs"] =
                logprobs::prompt(self.app.text.tokenizer.bytes(), &prompt.prompt_logprobs);
        }
        if self.call.wants.return_token_ids {
            choice["token_ids"] = delta.tokens.into();
            if first {
                choice["prompt_token_ids"] = prompt.request.prompt.to_vec().into();
            }
        }
        Ok(choice)
    }

    fn prompt_text(&self, at: usize, request: &TokenRequest) -> Result<String, Refusal> {
        match self.call.texts.get(at) {
            Some(Some(text)) => Ok(text.clone()),
            _ => Ok(self.app.text.tokenizer.decode(&request.prompt, self.call.skip_special_tokens)?),
        }
    }

    fn usage(&self, usage: Usage) -> Value {
        shapes::usage(self.counted(usage))
    }

    /// Counts without output that is dropped.
    fn counted(&self, usage: Usage) -> Usage {
        if self.call.drop_output { Usage { completion_tokens: 0, ..usage } } else { usage }
    }
}

fn names<'a>(app: &'a App, call: &GenerationCall) -> Names<'a> {
    Names { bytes: app.text.tokenizer.bytes(), as_ids: call.wants.tokens_as_ids }
}

fn scored_output(delta: &TextDelta) -> Vec<ScoredToken<'_>> {
    delta.tokens.iter().copied().zip(delta.logprobs.iter().map(Some)).collect()
}

/// The prompt's tokens with their log-probabilities. The first token has none because nothing precedes it.
fn scored_prompt<'a>(request: &TokenRequest, logprobs: &'a [TokenLogprobs]) -> Vec<ScoredToken<'a>> {
    let known = std::iter::once(None).chain(logprobs.iter().map(Some)).chain(std::iter::repeat(None));
    request.prompt.iter().copied().zip(known).collect()
}
