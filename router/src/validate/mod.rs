//! The one validator: turns a request from either API into a checked [`TokenRequest`], or a refusal that
//! names the field, the limit and the value. Pure, except that it draws a request id if none is given.

mod answer_form;
pub(crate) mod bounds;
pub(crate) mod faults;
pub(crate) mod pooled;
pub(crate) mod ranges;
mod truncate;
mod words;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use skein_choice::fleet::KnownAdapters;
use skein_choice::limits::ModelLimits;
use skein_node::clock::Timestamp;
use skein_node::trace;
use skein_proto::TokenId;
use skein_proto::sampling::{SamplingOptions, SamplingParams};
use skein_text::formats::Opening;
use skein_text::model_text::{GenerationDefaults, ModelText};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::RequestLimits;
use crate::ids;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::request::{AdapterRef, Draft, Prompt, TokenRequest};
use crate::text::text_stream::TextOptions;
use faults::Faults;
pub use ranges::token_id;
use ranges::{check_bytes, check_count, whole};

/// Longest `request_id` and `cache_salt`, bytes.
const MAX_ID_BYTES: usize = 128;
/// Most tokens of a text for `/tokenize`, unless the model's limit is higher.
const TOKENIZE_TOKENS: u32 = 128 * 1024;
/// Temperatures below this are greedy: dividing logits by them would overflow.
const GREEDY_BELOW: f64 = 1e-5;
/// `logit_bias` values are clamped to ±this.
const MAX_BIAS: f64 = 100.0;
/// Bounds of `priority`; lower values run first.
const HIGHEST_PRIORITY: i32 = -100;
const LOWEST_PRIORITY: i32 = 100;
/// Most adapters that an error names.
const MAX_TOLD_ADAPTERS: usize = 20;

/// What the workers offer to new requests.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// Limits of the model.
    pub model: &'a ModelLimits,
    /// Adapters of the model.
    pub adapters: &'a KnownAdapters,
}

/// Checks `draft` against the model and the limits and turns its prompt into tokens.
///
/// # Errors
/// All broken rules among the cheap ones, which are checked before tokenisation; then the first broken rule.
pub fn validate(
    mut draft: Draft,
    text: &ModelText,
    offer: Offer<'_>,
    limits: &RequestLimits,
    now: Timestamp,
) -> Result<(TokenRequest, TextOptions), Refusal> {
    let Offer { model, adapters } = offer;
    let adapter = check_model(draft.model.as_deref(), text, adapters, &draft.tenant)?;
    let Checked { id, call, priority, deadline, n, mut sampling, arguments, stop } =
        check_fields(&mut draft, text, model, limits, now)?;
    sampling.bad_words = words::bad_words(&draft.sampling.bad_words, &text.tokenizer, model.vocab_size)?;

    let cache_salt = draft.tenant.cache_salt(&draft.cache_salt);
    let tokens = prompt_tokens(&draft, text, model, &cache_salt);
    let (prompt, opening) = tokens.map_err(|refusal| refusal.beyond(model.max_model_len))?;
    let split = opening.and_then(|opening| answer_form::split(&draft, opening, text));
    let room = room(&draft, prompt.len(), model)?;
    sampling.max_tokens = match draft.sampling.max_tokens {
        Some(_) => sampling.max_tokens.min(room),
        None => text.defaults.max_new_tokens.filter(|count| *count > 0).map_or(room, |count| count.min(room)),
    };
    sampling.grammar = answer_form::grammar(&draft, opening, &arguments, sampling.max_tokens, text)?;
    sampling.min_tokens =
        whole("min_tokens", draft.sampling.min_tokens, 0, i64::from(sampling.max_tokens))?.unwrap_or(0);

    let request = TokenRequest {
        id,
        model: text.name(),
        adapter,
        prompt: prompt.into(),
        sampling: Arc::new(sampling),
        n,
        cache_salt,
        tenant: draft.tenant,
        part: draft.part.map_or(0, |part| u32::try_from(part).unwrap_or(u32::MAX)),
        call,
        priority,
        arrived: None,
        deadline: Some(deadline),
        stream_key: None,
        waits_for_worker: true,
        resume: None,
        is_resumed: draft.is_resumed,
        version: draft.version,
        picked_worker: draft.picked_worker,
        operation: operation(&draft.prompt),
        trace: trace::Request::default(),
        receipts: None,
    };
    let options = TextOptions {
        stop,
        include_stop_str_in_output: draft.sampling.include_stop_str_in_output,
        skip_special_tokens: draft.sampling.skip_special_tokens.unwrap_or(true),
        split,
    };
    Ok((own_stream(request, &options), options))
}

/// Values of a draft whose checks need no tokens.
struct Checked {
    id: Arc<str>,
    call: u64,
    priority: i32,
    deadline: Timestamp,
    n: u32,
    /// Without what depends on the prompt's length and on the tokenizer.
    sampling: SamplingParams,
    arguments: Vec<String>,
    stop: Vec<String>,
}

/// The cheap checks; one refusal lists all broken rules.
fn check_fields(
    draft: &mut Draft,
    text: &ModelText,
    model: &ModelLimits,
    limits: &RequestLimits,
    now: Timestamp,
) -> Result<Checked, Refusal> {
    let mut faults = Faults::default();
    let own_id = faults.value_of(request_id(draft.request_id.take()));
    let call = draft.tenant.call(&own_id);
    let id = match draft.part {
        Some(part) => format!("{own_id}-{part}").into(),
        None => own_id,
    };
    let priority = faults.value_of(check_priority(draft.priority, &draft.tenant));
    faults.value_of(check_bytes("cache_salt", &draft.cache_salt, MAX_ID_BYTES));
    let deadline = now + faults.value_of(timeout(draft.timeout_ms, limits.request_timeout));
    let n = faults.value_of(samples(draft.sampling.n, limits.n, model.max_num_seqs)).unwrap_or(1);
    let sampling = sampling(&draft.sampling, n, &id, &text.defaults, model, limits, &mut faults);
    faults.value_of(answer_form::effort(draft, text));
    let arguments = faults.value_of(answer_form::arguments(&draft.tools, draft.constraint.is_some(), text));
    let constraint = draft.constraint.as_mut();
    faults.value_of(constraint.map_or(Ok(()), |one| answer_form::compile(one, text)));
    let stop = faults.value_of(stop_strings(&draft.sampling.stop, limits));
    faults.value_of(truncate::check(draft.truncation));
    faults.value_of(words::check_bad_words(&draft.sampling.bad_words));
    faults.check()?;
    Ok(Checked { id, call, priority, deadline, n, sampling, arguments, stop })
}

/// Gives a request with stop strings a stream of its own: a stop string ends the stream for every reader, so
/// requests with other stop strings must not share it.
fn own_stream(mut request: TokenRequest, options: &TextOptions) -> TokenRequest {
    if !options.stop.is_empty() {
        let key = request.own_stream_key().ended_by(&options.stop, options.skip_special_tokens);
        request.stream_key = Some(key);
    }
    request
}

/// OpenTelemetry's operation name for a prompt.
fn operation(prompt: &Prompt) -> &'static str {
    match prompt {
        Prompt::Text(_) | Prompt::Tokens(_) => "text_completion",
        Prompt::Chat { .. } => "chat",
    }
}

/// Names that a request of `tenant` may use, as an error lists them.
fn served_names(text: &ModelText, adapters: &KnownAdapters, tenant: &Tenant) -> Arc<str> {
    let mut names: Vec<&Arc<str>> =
        adapters.by_name.keys().filter(|name| tenant.may_use(name.as_ref())).collect();
    names.sort_unstable();
    names.truncate(MAX_TOLD_ADAPTERS);
    let model = text.served_names.iter().find(|name| tenant.may_use(name.as_ref()));
    let names: Vec<String> = model.into_iter().chain(names).map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none that this key may use".into() } else { names.join(", ").into() }
}

/// The adapter that `model` names; `None` if it is the model alone, as without a name. What the key of
/// `tenant` may not use does not exist for it.
///
/// # Errors
/// If no model or adapter has this name.
pub fn check_model(
    model: Option<&str>,
    text: &ModelText,
    adapters: &KnownAdapters,
    tenant: &Tenant,
) -> Result<Option<AdapterRef>, Refusal> {
    let is_model =
        |asked: &str| text.served_names.iter().any(|served| **served == *asked && tenant.may_use(asked));
    let named = match model {
        Some(asked) => is_model(asked),
        None => text.served_names.iter().any(|served| tenant.may_use(served.as_ref())),
    };
    if named {
        return Ok(None);
    }
    let found = model.and_then(|asked| adapters.by_name.get_key_value(asked));
    let found = found.filter(|(name, _)| tenant.may_use(name.as_ref()));
    let found = found.map(|(name, id)| Some(AdapterRef { name: name.clone(), id: *id }));
    found.ok_or_else(|| Refusal::ModelNotFound {
        // The name of a model that the key may not use is not told either.
        asked: model.unwrap_or("default").chars().take(200).collect(),
        served: served_names(text, adapters, tenant),
    })
}

/// Converts any kind of prompt to token ids: at least one, all within the vocabulary. A chat also returns the
/// state in which it leaves the model. Ids are kept for requests of the same `cache_salt`, which share a
/// worker's cache as well.
fn prompt_tokens(
    draft: &Draft,
    text: &ModelText,
    model: &ModelLimits,
    cache_salt: &str,
) -> Result<(Vec<TokenId>, Option<Opening>), Refusal> {
    let prompt = &draft.prompt;
    // A prompt to be truncated may be longer than the context.
    let most = if draft.truncation.is_some() { most_to_tokenize(model) } else { model.max_model_len };
    let mut opening = None;
    let tokens = match prompt {
        Prompt::Text(prompt) => {
            text.encode_text_kept(prompt, draft.add_special_tokens.unwrap_or(true), most, cache_salt)?
        }
        Prompt::Tokens(tokens) => {
            // Refuse early: a million ids that do not fit need no check one by one.
            if draft.truncation.is_none() {
                fits(u32::try_from(tokens.len()).unwrap_or(u32::MAX), 1, "prompt", model)?;
            }
            let checked: Result<_, _> =
                tokens.iter().map(|token| token_id("prompt", *token, model.vocab_size)).collect();
            checked?
        }
        Prompt::Chat { .. } => match prompt.as_chat() {
            Some(chat) => {
                let (tokens, opened) = text.open_chat(&chat.kept_in(cache_salt), most)?;
                opening = Some(opened);
                tokens
            }
            None => Vec::new(),
        },
    };
    if tokens.is_empty() {
        return Err(Refusal::invalid(prompt_param(prompt), "The prompt is empty; send at least one token."));
    }
    let tokens = truncate::truncate(tokens, draft, text, model)?;
    check_known_to_model(&tokens, prompt_param(prompt), text, model.vocab_size)?;
    Ok((tokens, opening))
}

/// Approximate limit of a text that is only tokenised, tokens.
pub fn most_to_tokenize(model: &ModelLimits) -> u32 {
    model.max_model_len.max(TOKENIZE_TOKENS)
}

/// Checks `tokens` against the model's vocabulary, which may be smaller than the tokenizer's.
fn check_known_to_model(
    tokens: &[TokenId],
    param: &'static str,
    text: &ModelText,
    vocab_size: u32,
) -> Result<(), Refusal> {
    let Some(token) = tokens.iter().copied().find(|token| *token >= vocab_size) else { return Ok(()) };
    let spelling = text.tokenizer.spelling(token).unwrap_or_default();
    let message = format!(
        "{param}: the text contains `{spelling}`, token id {token}, which is outside the model's vocabulary (0..{vocab_size})."
    );
    Err(Refusal::invalid(param, message))
}

/// Checks the number of best tokens to report. `name` is the field's name in the API.
pub fn check_logprobs(
    name: &'static str,
    value: Option<i64>,
    limits: &RequestLimits,
) -> Result<Option<u32>, Refusal> {
    whole(name, value, 0, i64::from(limits.logprobs))
}

/// Whether `id` can name a request: 1 to 128 printable ASCII bytes without spaces.
pub fn is_request_id(id: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Output tokens that fit after the prompt; an error if fewer fit than the draft must have, or none.
fn room(draft: &Draft, prompt: usize, model: &ModelLimits) -> Result<u32, Refusal> {
    let prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
    let asked = draft.sampling.max_tokens.filter(|_| !draft.cuts_max_tokens);
    let output = asked.and_then(|count| u32::try_from(count).ok()).unwrap_or(1);
    fits(prompt, output, prompt_param(&draft.prompt), model)?;
    Ok(model.max_model_len - prompt)
}

fn fits(prompt: u32, output: u32, param: &'static str, model: &ModelLimits) -> Result<(), Refusal> {
    let max = model.max_model_len;
    if prompt >= max {
        return Err(Refusal::ContextLength { max, prompt, output, param });
    }
    if u64::from(prompt) + u64::from(output) > u64::from(max) {
        return Err(Refusal::OutputLength { field: "max_tokens", max, prompt, output });
    }
    Ok(())
}

fn prompt_param(prompt: &Prompt) -> &'static str {
    match prompt {
        Prompt::Text(_) | Prompt::Tokens(_) => "prompt",
        Prompt::Chat { .. } => "messages",
    }
}

/// The length limit applies to what the client sent; the prompt's number is appended after it.
fn request_id(id: Option<Arc<str>>) -> Result<Arc<str>, Refusal> {
    let id = id.unwrap_or_else(|| ids::drawn().to_string().into());
    if !is_request_id(&id) {
        let got = match id.len() {
            1..=MAX_ID_BYTES => format!("`{}`", id.escape_default()),
            bytes => format!("{bytes} bytes"),
        };
        let message = format!(
            "request_id must be 1 to {MAX_ID_BYTES} printable ASCII bytes without spaces, got {got}."
        );
        return Err(Refusal::invalid("request_id", message));
    }
    Ok(id)
}

/// Samples of a request: as many as the configuration allows and as a worker runs at once.
fn samples(n: Option<i64>, most: u32, max_num_seqs: u32) -> Result<Option<u32>, Refusal> {
    match n {
        Some(n) if n > i64::from(max_num_seqs) && max_num_seqs < most => {
            let message = format!(
                "n must be in [1, {max_num_seqs}], got {n}: a worker runs at most {max_num_seqs} sequences at once, by \
                 --max-num-seqs or for lack of memory (see --plan)."
            );
            Err(Refusal::invalid("n", message))
        }
        n => whole("n", n, 1, i64::from(most.min(max_num_seqs))),
    }
}

/// A key may have a narrower range, and a default in it.
fn check_priority(priority: Option<i64>, tenant: &Tenant) -> Result<i32, Refusal> {
    let rights = tenant.key().map(|key| &key.rights);
    let Some(priority) = priority else { return Ok(rights.map_or(0, |rights| rights.priority)) };
    let highest = rights.map_or(HIGHEST_PRIORITY, |rights| rights.highest_priority);
    match i32::try_from(priority) {
        Ok(priority) if (highest..=LOWEST_PRIORITY).contains(&priority) => Ok(priority),
        _ => {
            let of_key = if highest > HIGHEST_PRIORITY { " with this key" } else { "" };
            let message =
                format!("priority must be in [{highest}, {LOWEST_PRIORITY}]{of_key}, got {priority}.");
            Err(Refusal::invalid("priority", message))
        }
    }
}

fn timeout(timeout_ms: Option<u64>, most: Duration) -> Result<Duration, Refusal> {
    match timeout_ms {
        Some(0) => Err(Refusal::invalid("timeout_ms", "timeout_ms must be at least 1, got 0.")),
        Some(timeout_ms) => Ok(Duration::from_millis(timeout_ms).min(most)),
        None => Ok(most),
    }
}

fn sampling(
    draft: &SamplingOptions,
    n: u32,
    id: &str,
    defaults: &GenerationDefaults,
    model: &ModelLimits,
    limits: &RequestLimits,
    faults: &mut Faults,
) -> SamplingParams {
    let numbers = draft.numbers(&defaults.sampling, |fault| faults.note(fault));
    let greedy = f64::from(numbers.temperature) < GREEDY_BELOW;
    let temperature = if greedy { 0.0 } else { numbers.temperature };
    if let Some(best_of) = draft.best_of
        && best_of != i64::from(n)
    {
        let message = format!(
            "best_of must equal n ({n}), got {best_of}; choosing the best of more samples is not supported."
        );
        faults.note(Refusal::invalid("best_of", message));
    }
    let top_k = skein_text::top_k(draft.top_k.or(defaults.sampling.top_k).unwrap_or(0), model.vocab_size)
        .map_err(Refusal::from);
    // A valid count that does not fit the context is refused later, with the prompt's length.
    let is_count = draft.max_tokens.is_some_and(|count| count > 0 && u32::try_from(count).is_ok());
    let most = if is_count { u32::MAX } else { model.max_model_len };
    let max_tokens = whole("max_tokens", draft.max_tokens, 1, i64::from(most));
    SamplingParams {
        temperature,
        top_k: faults.value_of(top_k),
        seed: draft.seed.or(defaults.sampling.seed).map_or_else(|| seed_of(id), i64::cast_unsigned),
        logit_bias: faults.value_of(logit_bias(&draft.logit_bias, model.vocab_size, limits)),
        max_tokens: faults.value_of(max_tokens).unwrap_or(1),
        min_tokens: 0,
        stop_token_ids: faults.value_of(stop_token_ids(&draft.stop_token_ids, model.vocab_size, limits)),
        ignore_eos: draft.ignore_eos,
        logprobs: faults.value_of(check_logprobs("logprobs", draft.logprobs, limits)),
        prompt_logprobs: faults.value_of(check_logprobs("prompt_logprobs", draft.prompt_logprobs, limits)),
        allowed_token_ids: faults
            .value_of(words::allowed_token_ids(draft.allowed_token_ids.as_deref(), model.vocab_size)),
        ..numbers
    }
}

fn logit_bias(
    biases: &[(i64, f64)],
    vocab_size: u32,
    limits: &RequestLimits,
) -> Result<Vec<(TokenId, f32)>, Refusal> {
    check_count("logit_bias", biases.len(), limits.logit_bias)?;
    let mut seen = HashSet::new();
    if let Some((token, _)) = biases.iter().find(|(token, _)| !seen.insert(token)) {
        return Err(Refusal::invalid(
            "logit_bias",
            format!("logit_bias names token {token} more than once."),
        ));
    }
    let check = |(token, bias): &(i64, f64)| {
        if bias.is_nan() {
            return Err(Refusal::invalid(
                "logit_bias",
                format!("logit_bias of token {token} must be a number."),
            ));
        }
        Ok((token_id("logit_bias", *token, vocab_size)?, bias.clamp(-MAX_BIAS, MAX_BIAS) as f32))
    };
    biases.iter().map(check).collect()
}

fn stop_token_ids(tokens: &[i64], vocab_size: u32, limits: &RequestLimits) -> Result<Vec<TokenId>, Refusal> {
    check_count("stop_token_ids", tokens.len(), limits.stop_token_ids)?;
    tokens.iter().map(|token| token_id("stop_token_ids", *token, vocab_size)).collect()
}

fn stop_strings(stop: &[String], limits: &RequestLimits) -> Result<Vec<String>, Refusal> {
    check_count("stop", stop.len(), limits.stop_strings)?;
    for text in stop {
        if text.is_empty() {
            return Err(Refusal::invalid("stop", "stop strings must not be empty."));
        }
        check_bytes("stop", text, limits.stop_string_bytes)?;
    }
    Ok(stop.to_vec())
}

/// The seed of a request that brings none, unless `--seed` sets one for all:
/// XXH3-64 of its id. A request repeated under its id gets the same
/// tokens, from any router and after any crash; generated ids are random, so answers still vary. Frozen:
/// releases that run side by side must agree.
fn seed_of(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

#[cfg(test)]
mod tests;
