//! `POST /v1/chat/completions`: one conversation.

use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::response::Response;
use futures::Stream;
use http::{HeaderMap, HeaderValue};
use serde_json::{Map, Value, json};
use skein_node::clock;
use skein_proto::version::Version;
use skein_text::formats::Piece;
use skein_text::formats::tools::ToolUse;
use skein_text::model_text::ModelText;

use super::error::{OpenAi, OpenAiError};
use crate::api::answer::call_stream::CallStream;
use crate::api::answer::choices::{CallIds, Choices, Message, chat_delta};
use crate::api::answer::events::{ResumableEvents, SseEvent};
use crate::api::answer::logprobs::{self, Names};
use crate::api::answer::moves::MoveChunks;
use crate::api::answer::response_id::response_id;
use crate::api::answer::shapes::{self, Gathered, Heading, TextChunks, json_response};
use crate::api::answer::written::{End, MessageChoice, Shown, Written};
use crate::api::fields::effort;
use crate::api::fields::listing::Kind;
use crate::api::fields::object::{Fields, wrong};
use crate::api::fields::sampling::{self, Wants};
use crate::api::fields::tools::{self, Offered};
use crate::api::fields::unserved::take_unserved;
use crate::api::http::request_id::RequestId;
use crate::api::http::sse;
use crate::app::App;
use crate::config::RequestLimits;
use crate::metrics::ParsedApi;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::request::{Draft, Prompt};
use crate::text::text_stream::{TextDelta, TextFinish, Usage};
use crate::validate::check_logprobs;

pub async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let parse = |fields, headers: &_| GenerationCall::parse(fields, headers, &id, &app);
    let (call, draft) = Fields::parsed(request, &id, &app, parse).await?;
    let (ignored, id, wants) = (call.ignored.clone(), call.id.clone(), call.wants.clone());
    let mut merged = CallStream::start(&app, &tenant, vec![draft]).await?;
    let answer = Answer::new(app, call, &merged);
    let response = if wants.stream {
        let outgoing = ResumableEvents::new(&id, wants.resuming, answer.choices(&merged));
        let mut seen = outgoing.clone();
        merged.wait_for(|_, delta| seen.is_new(delta.sample_index as usize, delta)).await?;
        sse::response::<OpenAi>(answer.chunks(merged, outgoing))
    } else {
        json_response(answer.whole(merged).await?)
    };
    Ok(shapes::finish_response(response, &id, ignored))
}

/// Converts a body into drafts.
pub fn drafts(fields: Fields, headers: &HeaderMap, id: &str, app: &App) -> Result<Vec<Draft>, Refusal> {
    GenerationCall::parse(fields, headers, id, app).map(|(_, draft)| vec![draft])
}

/// Takes `messages`, the tools, the documents, and the fields that control how the chat template of `text`
/// renders them.
pub fn chat_prompt(fields: &mut Fields, text: &ModelText) -> (Prompt, ToolUse) {
    let messages = match fields.take("messages", Kind::ListOf("ChatMessage")) {
        Some(Value::Array(messages)) => Ok(messages),
        Some(other) => Err(wrong("messages", "a list of messages", &other)),
        None => Err(Refusal::invalid("messages", "messages is required: a list of messages.")),
    };
    let messages = fields.value_of(messages);
    if fields.bool("add_special_tokens") {
        let message = "add_special_tokens must be false for messages: the chat template writes them itself.";
        fields.note(Refusal::invalid("add_special_tokens", message));
    }
    let continue_final_message = fields.bool("continue_final_message");
    let add_generation_prompt = fields.optional_bool("add_generation_prompt");
    if continue_final_message && add_generation_prompt == Some(true) {
        let message = "continue_final_message and add_generation_prompt cannot both be true.";
        fields.note(Refusal::invalid("continue_final_message", message));
    }
    if continue_final_message {
        check_final_message(fields, messages.last());
    }
    let Offered { tools, shown } = tools::tools(fields);
    let mut template_kwargs = fields.object("chat_template_kwargs").unwrap_or_default();
    if !shown.is_empty() {
        template_kwargs.insert("tools".to_owned(), shown.into());
    }
    if let Some(documents) = documents(fields, text) {
        template_kwargs.insert("documents".to_owned(), documents);
    }
    let prompt = Prompt::Chat {
        messages,
        add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        template_kwargs,
    };
    (prompt, tools)
}

/// Takes `documents`, which a template for retrieval reads. For another one they are listed as ignored.
fn documents(fields: &mut Fields, text: &ModelText) -> Option<Value> {
    let expected = "a list of objects of text";
    let documents = fields
        .list("documents", Kind::ListOf("Document"), expected)
        .filter(|documents| !documents.is_empty())?;
    let is_document = |one: &Value| {
        one.as_object().is_some_and(|document| document.values().all(|value| value.is_string()))
    };
    if let Some(other) = documents.iter().find(|one| !is_document(one)) {
        fields.note(wrong("documents", expected, other));
        return None;
    }
    if !text.chat_template.as_ref().is_some_and(|template| template.reads("documents")) {
        fields.leave("documents".to_owned());
        return None;
    }
    Some(documents.into())
}

/// Refuses `continue_final_message` unless the last message is the assistant's.
fn check_final_message(fields: &mut Fields, last: Option<&Value>) {
    let role = last.and_then(|message| message["role"].as_str());
    if let Some(role) = role.filter(|role| *role != "assistant") {
        let role: String = role.escape_default().take(40).collect();
        let message = format!(
            "continue_final_message requires the last message to be the assistant's, got role `{role}`."
        );
        fields.note(Refusal::invalid("continue_final_message", message));
    }
}

/// Request state that is not part of its `Draft`.
struct GenerationCall {
    id: Arc<str>,
    wants: Wants,
    logprobs: bool,
    prompt_logprobs: bool,
    /// Whether to show the rendered prompt.
    prompt_text: bool,
    include_reasoning: bool,
    ignored: Option<HeaderValue>,
}

impl GenerationCall {
    fn parse(mut fields: Fields, headers: &HeaderMap, id: &str, app: &App) -> Result<(Self, Draft), Refusal> {
        let config = &app.config;
        let (mut draft, resuming) = sampling::draft(&mut fields, headers, id, config)?;
        draft.sampling = sampling::sampling(&mut fields);
        let choices = sampling::check_choices(resuming.had.as_ref(), 1, draft.sampling.n);
        fields.value_of(choices);
        let version = resuming.had.as_ref().map(|had| had.version_of(0..had.versions.len()));
        draft.version = version.unwrap_or(Version::UNKNOWN);
        let wants = sampling::wants(&mut fields, &draft.sampling, headers, resuming);
        let older = fields.i64("max_tokens");
        draft.sampling.max_tokens = fields.i64("max_completion_tokens").or(older);
        draft.sampling.logprobs = logprobs_wanted(&mut fields, &config.limits);
        (draft.prompt, draft.tools) = chat_prompt(&mut fields, &app.text);
        let effort = fields.string("reasoning_effort");
        draft.reasoning_effort = effort::readable(&mut fields, &app.text, "reasoning_effort", effort);
        let include_reasoning = fields.optional_bool("include_reasoning").unwrap_or(true);
        let prompt_text = fields.bool("return_prompt_text");
        take_unserved(&mut fields);
        let call = Self {
            id: draft.request_id.clone().unwrap_or_default(),
            wants,
            logprobs: draft.sampling.logprobs.is_some(),
            prompt_logprobs: draft.sampling.prompt_logprobs.is_some(),
            prompt_text,
            include_reasoning,
            ignored: fields.finish(config.refuse_unknown_fields)?,
        };
        Ok((call, draft))
    }
}

fn logprobs_wanted(fields: &mut Fields, limits: &RequestLimits) -> Option<i64> {
    let wanted = fields.bool("logprobs");
    let top = fields.i64("top_logprobs");
    fields.value_of(check_logprobs("top_logprobs", top, limits));
    if !wanted && top.is_some_and(|top| top > 0) {
        fields.note(Refusal::invalid("top_logprobs", "top_logprobs is allowed only with logprobs: true."));
    }
    wanted.then(|| top.unwrap_or(0))
}

/// Builds the JSON objects of an answer.
struct Answer {
    app: App,
    call: GenerationCall,
    heading: Heading,
}

impl Answer {
    fn new(app: App, call: GenerationCall, merged: &CallStream) -> Self {
        let heading = Heading {
            id: response_id("chatcmpl-", &call.id),
            object: if call.wants.stream { "chat.completion.chunk" } else { "chat.completion" },
            created: clock::unix_time().as_secs(),
            model: merged.shown_model(&app.text.name()),
        };
        Self { app, call, heading }
    }

    /// The whole answer as JSON text.
    async fn whole(self, mut merged: CallStream) -> Result<String, Refusal> {
        let mut gathered: Vec<Gathered> = (0..self.choices(&merged)).map(|_| Gathered::default()).collect();
        while let Some(item) = merged.next().await {
            let (_, delta) = item?;
            let with_stop = self.call.wants.return_token_ids;
            let delta = if with_stop { delta.with_stop_token() } else { delta };
            if let Some(choice) = gathered.get_mut(delta.sample_index as usize) {
                choice.push(delta);
            }
        }
        let messages = self.messages(&merged, &mut gathered);
        if self.is_plain() && messages.iter().all(Message::is_content) {
            let text_bytes = messages.iter().map(|message| message.content.len()).sum();
            let all = messages.iter().zip(&gathered).enumerate();
            let choices: Vec<MessageChoice<'_>> = all
                .map(|(index, (message, gathered))| Self::plain_choice(index, message, gathered))
                .collect();
            let (usage, journey) = (Shown::As(merged.usage()), merged.journey());
            let answer = Written { heading: &self.heading, choices: &choices, usage, journey };
            return Ok(answer.json(text_bytes));
        }
        let ids = Self::call_ids(&merged);
        let choice = |(index, (message, gathered))| self.choice(index, gathered, message, &ids);
        let choices = messages.into_iter().zip(gathered).enumerate().map(choice).collect();
        let mut object = self.heading.object(choices);
        object.insert("usage".to_owned(), shapes::usage(merged.usage()));
        shapes::add_receipt(&mut object, merged.journey());
        if let Some(prompt) = merged.prompts().first() {
            if self.call.prompt_logprobs {
                let logprobs = logprobs::prompt(self.app.text.tokenizer.bytes(), &prompt.prompt_logprobs);
                object.insert("prompt_logprobs".to_owned(), logprobs);
            }
            if self.call.wants.return_token_ids {
                object.insert("prompt_token_ids".to_owned(), prompt.request.prompt.to_vec().into());
            }
        }
        self.add_prompt_text(&mut object, &merged)?;
        Ok(Value::Object(object).to_string())
    }

    /// Whether an answer shows nothing but its messages.
    fn is_plain(&self) -> bool {
        let GenerationCall { logprobs, prompt_logprobs, prompt_text, wants, .. } = &self.call;
        !(*logprobs || *prompt_logprobs || *prompt_text || wants.return_token_ids)
    }

    fn plain_choice<'a>(index: usize, message: &'a Message, gathered: &Gathered) -> MessageChoice<'a> {
        MessageChoice { index, content: &message.content, end: End::of(gathered.finish.as_ref()) }
    }

    /// Adds the rendered prompt, if requested. It is read from the tokens, so a truncated one is shown as the
    /// model gets it.
    fn add_prompt_text(&self, object: &mut Map<String, Value>, merged: &CallStream) -> Result<(), Refusal> {
        if let Some(prompt) = merged.prompts().first().filter(|_| self.call.prompt_text) {
            let text = self.app.text.tokenizer.decode(&prompt.request.prompt, false)?;
            object.insert("prompt_text".to_owned(), text.into());
        }
        Ok(())
    }

    /// The message of each choice; takes their text.
    fn messages(&self, merged: &CallStream, gathered: &mut [Gathered]) -> Vec<Message> {
        let mut split = self.split(merged);
        let message = |(index, gathered): (usize, &mut Gathered)| {
            let mut message = Message::default();
            let text = std::mem::take(&mut gathered.text);
            message.extend(split.push(index, text, &gathered.control_at));
            message.extend(split.finish(index));
            message
        };
        gathered.iter_mut().enumerate().map(message).collect()
    }

    /// Splitters of the choices.
    fn split(&self, merged: &CallStream) -> Choices {
        let plan = merged.prompts().first().and_then(|prompt| prompt.split.as_ref());
        let counts = || self.app.metrics.parsed(ParsedApi::Chat, self.call.wants.stream);
        Choices::new(plan, self.choices(merged), self.call.include_reasoning).counted(plan, counts)
    }

    /// Ids of the calls in the choices.
    fn call_ids(merged: &CallStream) -> CallIds {
        let prompt = merged.prompts().first();
        prompt.map_or_else(CallIds::default, |prompt| CallIds::new(&prompt.request, prompt.split.as_ref()))
    }

    fn choice(&self, index: usize, gathered: Gathered, message: Message, ids: &CallIds) -> Value {
        let logprobs = self.call.logprobs.then(|| logprobs::chat(self.names(), &gathered.logprobs));
        let finish_reason = finish_reason(gathered.finish.as_ref(), !message.calls.is_empty());
        let mut choice = json!({
            "index": index,
            "message": message.chat(index, ids),
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": shapes::stop_reason(gathered.finish.as_ref()),
        });
        if self.call.wants.return_token_ids {
            choice["token_ids"] = gathered.tokens.into();
        }
        choice
    }

    fn names(&self) -> Names<'_> {
        Names { bytes: self.app.text.tokenizer.bytes(), as_ids: self.call.wants.tokens_as_ids }
    }

    fn choices(&self, merged: &CallStream) -> usize {
        merged.prompts().first().map_or(1, |prompt| prompt.request.n as usize)
    }

    fn chunks(
        self,
        mut merged: CallStream,
        mut outgoing: ResumableEvents,
    ) -> impl Stream<Item = Result<SseEvent, Refusal>> + Send {
        let text_chunks = self.text_chunks();
        let mut moves = MoveChunks::new(self.call.wants.moves);
        let (mut split, ids) = (self.split(&merged), Self::call_ids(&merged));
        async_stream::try_stream! {
            for index in 0..self.choices(&merged) {
                if !outgoing.has_begun(index) {
                    let object = self.opening(index, &merged)?;
                    yield outgoing.event(index, false, object);
                }
            }
            while let Some(item) = merged.next().await {
                let (at, delta) = item?;
                if let Some(object) = moves.next(&merged, at, &self.heading) {
                    yield outgoing.aside(object);
                }
                let index = delta.sample_index as usize;
                outgoing.is_from(index, merged.version_of(at));
                let (had, mut delta) = outgoing.part(index, delta)?;
                split.skip(index, &had.text, &had.control_at);
                let pieces = split.push(index, std::mem::take(&mut delta.text), &delta.control_at);
                if let (Some(chunks), [Piece::Content(text)]) = (&text_chunks, &pieces[..]) {
                    yield outgoing.event(index, false, chunks.chunk(index, text));
                } else if let Some(choice) = self.content(&delta, chat_delta(pieces, index, &ids)) {
                    yield outgoing.event(index, false, self.chunk(choice, merged.usage_of(at, index)));
                }
                if delta.finish.is_some() {
                    // The held-back text goes out with the finish, so the client has both or neither.
                    let rest = chat_delta(split.finish(index), index, &ids);
                    let choice = self.end(&delta, rest, split.has_calls(index));
                    let mut object = self.chunk(choice, merged.usage_of(at, index));
                    shapes::add_receipt(&mut object, merged.journey());
                    yield outgoing.event(index, true, object);
                }
            }
            if self.call.wants.include_usage && !outgoing.has_usage() {
                let mut object = self.heading.object(Vec::new());
                object.insert("usage".to_owned(), shapes::usage(merged.usage()));
                shapes::add_receipt(&mut object, merged.journey());
                yield outgoing.usage(object.into());
            }
        }
    }

    /// The first chunk of a choice: the role, no content.
    fn opening(&self, index: usize, merged: &CallStream) -> Result<Value, Refusal> {
        let choice = json!({
            "index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
            "finish_reason": null,
        });
        let usage = merged.usage_of(0, index);
        let reasoning_tokens = usage.reasoning_tokens.map(|_| 0);
        let mut object = self.chunk(choice, Usage { completion_tokens: 0, reasoning_tokens, ..usage });
        if let (true, Some(prompt)) =
            (self.call.wants.return_token_ids && index == 0, merged.prompts().first())
        {
            object.insert("prompt_token_ids".to_owned(), prompt.request.prompt.to_vec().into());
        }
        self.add_prompt_text(&mut object, merged)?;
        Ok(object.into())
    }

    /// Fast writer for chunks that carry only text; its output equals that of `content`.
    fn text_chunks(&self) -> Option<TextChunks> {
        let Wants { return_token_ids, continuous_usage, include_usage, .. } = self.call.wants;
        let after = "},\"logprobs\":null,\"finish_reason\":null";
        let chunks = || TextChunks::new(&self.heading, ",\"delta\":{\"content\":", after, include_usage);
        (!self.call.logprobs && !return_token_ids && !continuous_usage).then(chunks)
    }

    /// Choice object for the parts of a delta; `None` if it would show nothing.
    fn content(&self, delta: &TextDelta, mut parts: Map<String, Value>) -> Option<Value> {
        let shows_tokens = self.call.logprobs || self.call.wants.return_token_ids;
        if parts.is_empty() {
            if delta.tokens.is_empty() || !shows_tokens {
                return None;
            }
            parts.insert("content".to_owned(), "".into());
        }
        let logprobs = self.call.logprobs.then(|| logprobs::chat(self.names(), &delta.logprobs));
        let mut choice = json!({
            "index": delta.sample_index, "delta": parts, "logprobs": logprobs,
            "finish_reason": null,
        });
        if self.call.wants.return_token_ids {
            choice["token_ids"] = delta.tokens.clone().into();
        }
        Some(choice)
    }

    /// Choice object in the last chunk of a sample.
    fn end(&self, delta: &TextDelta, rest: Map<String, Value>, has_calls: bool) -> Value {
        let mut choice = json!({
            "index": delta.sample_index, "delta": rest, "logprobs": null,
            "finish_reason": finish_reason(delta.finish.as_ref(), has_calls),
            "stop_reason": shapes::stop_reason(delta.finish.as_ref()),
        });
        let stop = delta.only_stop_token();
        if self.call.wants.return_token_ids && !stop.tokens.is_empty() {
            // Not with the tokens before it: whoever has this chunk has the end.
            choice["logprobs"] =
                self.call.logprobs.then(|| logprobs::chat(self.names(), &stop.logprobs)).into();
            choice["token_ids"] = stop.tokens.into();
        }
        choice
    }

    /// A chunk with a choice, of whose output `usage` counts the tokens.
    fn chunk(&self, choice: Value, usage: Usage) -> Map<String, Value> {
        let mut object = self.heading.object(vec![choice]);
        if self.call.wants.continuous_usage {
            object.insert("usage".to_owned(), shapes::usage(usage));
        } else if self.call.wants.include_usage {
            object.insert("usage".to_owned(), Value::Null);
        }
        object
    }
}

/// Value of `finish_reason`. An answer that stopped after calls reports `tool_calls`.
fn finish_reason(finish: Option<&TextFinish>, has_calls: bool) -> Value {
    match finish {
        Some(TextFinish::Stop(_)) if has_calls => "tool_calls".into(),
        finish => shapes::finish_reason(finish),
    }
}
