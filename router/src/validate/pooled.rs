//! Checks a call for vectors or scores, and turns each of its inputs into a [`TokenRequest`].

use std::sync::Arc;

use skein_choice::fleet::KnownAdapters;
use skein_choice::limits::ModelLimits;
use skein_node::clock::Timestamp;
use skein_proto::TokenId;
use skein_proto::pooling::{PooledKind, PooledModel, Pooling};
use skein_proto::sampling::SamplingParams;
use skein_text::model_text::ModelText;
use skein_text::pairs::Pair;
use skein_text::pooled_ids::{PooledForm, PooledIds};

use super::faults::Faults;
use super::{
    MAX_ID_BYTES, check_bytes, check_known_to_model, check_model, check_priority, most_to_tokenize,
    request_id, timeout, token_id, truncate,
};
use crate::config::RequestLimits;
use crate::pooled::draft::{MAX_INPUTS, PairInput, PooledDraft, PooledInput, PooledTruncation};
use crate::refusal::Refusal;
use crate::request::{AdapterRef, Prompt, TokenRequest, Truncation};

/// Operations in OpenTelemetry's terms.
const EMBEDDINGS: &str = "embeddings";
/// It has no term for scores; this is the one of the APIs.
const RERANK: &str = "rerank";

/// A call whose fields are checked, without its inputs.
#[derive(Debug)]
pub struct CheckedCall {
    /// The call's id.
    pub id: Arc<str>,
    draft: PooledDraft,
    adapter: Option<AdapterRef>,
    cache_salt: Arc<str>,
    call: u64,
    priority: i32,
    deadline: Timestamp,
    is_one: bool,
    operation: &'static str,
}

/// Checks what all of a call's `inputs` share.
///
/// # Errors
/// All broken rules in one refusal.
pub fn check_call(
    mut draft: PooledDraft,
    inputs: usize,
    text: &ModelText,
    adapters: &KnownAdapters,
    limits: &RequestLimits,
    pooled: &PooledModel,
    now: Timestamp,
) -> Result<CheckedCall, Refusal> {
    let adapter = check_model(draft.model.as_deref(), text, adapters, &draft.tenant)?;
    let mut faults = Faults::default();
    let id = faults.value_of(request_id(draft.request_id.take()));
    let priority = faults.value_of(check_priority(draft.priority, &draft.tenant));
    faults.value_of(check_bytes("cache_salt", &draft.cache_salt, MAX_ID_BYTES));
    let deadline = now + faults.value_of(timeout(draft.timeout_ms, limits.request_timeout));
    let truncation =
        draft.truncation.map(|PooledTruncation { tokens, .. }| Truncation { tokens, keep_first: true });
    faults.value_of(truncate::check(truncation));
    faults.value_of(check_inputs(draft.param, inputs));
    faults.check()?;
    let operation = match pooled.kind {
        PooledKind::Embedding { .. } => EMBEDDINGS,
        PooledKind::Scores(_) => RERANK,
    };
    Ok(CheckedCall {
        call: draft.tenant.call(&id),
        cache_salt: draft.tenant.cache_salt(&draft.cache_salt),
        is_one: inputs == 1,
        id,
        draft,
        adapter,
        priority,
        deadline,
        operation,
    })
}

/// Refuses none and too many: APIs bound each of their fields, and a query of its own may stand beside each
/// of as many documents.
fn check_inputs(param: &'static str, inputs: usize) -> Result<(), Refusal> {
    match inputs {
        0 => Err(Refusal::invalid(param, format!("{param} must not be an empty list."))),
        inputs if inputs <= 2 * MAX_INPUTS => Ok(()),
        more => {
            let message =
                format!("{param} takes at most {MAX_INPUTS} entries, got {more}; send several requests.");
            Err(Refusal::invalid(param, message))
        }
    }
}

/// The request for the input at position `at` of `call`.
///
/// # Errors
/// If it has no tokens, more than the model takes, or one that the model does not know.
pub fn request_of(
    at: usize,
    input: &PooledInput,
    call: &CheckedCall,
    text: &ModelText,
    model: &ModelLimits,
) -> Result<TokenRequest, Refusal> {
    let param = call.draft.param;
    let ids = ids(input, call, text, model)
        .map_err(|refusal| of_param(refusal, param).beyond(model.max_model_len))?;
    let PooledIds { ids, second_from } = ids;
    let prompt = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    if prompt == 0 {
        let message = format!("{param}: entry {at} has no tokens; leave it out, or send a text.");
        return Err(Refusal::invalid(param, message));
    }
    if prompt > model.max_model_len {
        return Err(Refusal::ContextLength { max: model.max_model_len, prompt, output: 0, param });
    }
    check_known_to_model(&ids, param, text, model.vocab_size)?;
    let sampling =
        SamplingParams { max_tokens: 1, pooling: Some(Pooling { second_from }), ..SamplingParams::default() };
    let id = if call.is_one { call.id.clone() } else { format!("{}-{at}", call.id).into() };
    let request = TokenRequest::new(id, text.name(), ids, sampling);
    Ok(TokenRequest {
        adapter: call.adapter.clone(),
        tenant: call.draft.tenant.clone(),
        part: u32::try_from(at).unwrap_or(u32::MAX),
        call: call.call,
        cache_salt: call.cache_salt.clone(),
        priority: call.priority,
        deadline: Some(call.deadline),
        picked_worker: call.draft.picked_worker.clone(),
        operation: call.operation,
        ..request
    })
}

/// With the API's name of the texts.
fn of_param(refusal: Refusal, param: &'static str) -> Refusal {
    match refusal {
        Refusal::PromptTooLong(prompt) => {
            Refusal::PromptTooLong(skein_text::PromptTooLong { param, ..prompt })
        }
        Refusal::Invalid { param: Some("prompt"), message } => Refusal::invalid(param, message),
        other => other,
    }
}

fn ids(
    input: &PooledInput,
    call: &CheckedCall,
    text: &ModelText,
    model: &ModelLimits,
) -> Result<PooledIds, Refusal> {
    let form = form(call, text, model);
    let most = if form.most.is_some() { most_to_tokenize(model) } else { model.max_model_len };
    match input {
        PooledInput::One(Prompt::Text(one)) => {
            text.check_length(one, most)?;
            Ok(text.tokenizer.encode_pooled(one, None, form)?)
        }
        PooledInput::One(Prompt::Tokens(tokens)) => {
            let ids = given_ids(tokens, call.draft.param, form, model)?;
            Ok(PooledIds { ids, second_from: None })
        }
        PooledInput::One(prompt @ Prompt::Chat { .. }) => {
            let chat = prompt.as_chat().ok_or(Refusal::Internal)?;
            let ids = text.encode_chat(&chat.kept_in(&call.cache_salt), most)?;
            Ok(PooledIds { ids: cut(ids, form), second_from: None })
        }
        PooledInput::Pair(PairInput { first, second, instruction }) => {
            text.check_length(first, most)?;
            text.check_length(second, most)?;
            let pair = Pair { first, second, instruction: instruction.as_deref() };
            Ok(text.encode_pair(pair, form, &call.cache_salt)?)
        }
    }
}

fn form(call: &CheckedCall, text: &ModelText, model: &ModelLimits) -> PooledForm {
    let truncation = call.draft.truncation;
    let context = model.max_model_len as usize;
    PooledForm {
        add_special_tokens: call.draft.add_special_tokens.unwrap_or(true),
        most: truncation.map(|cut| usize::try_from(cut.tokens).map_or(context, |tokens| tokens.min(context))),
        keeps_end: truncation.and_then(|cut| cut.keeps_first).map_or(text.pooled.keeps_end, |first| !first),
    }
}

fn given_ids(
    tokens: &[i64],
    param: &'static str,
    form: PooledForm,
    model: &ModelLimits,
) -> Result<Vec<TokenId>, Refusal> {
    // Refused early: a million ids that do not fit need no check one by one.
    if form.most.is_none() && tokens.len() > model.max_model_len as usize {
        let prompt = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        return Err(Refusal::ContextLength { max: model.max_model_len, prompt, output: 0, param });
    }
    let ids: Result<Vec<TokenId>, Refusal> =
        tokens.iter().map(|token| token_id(param, *token, model.vocab_size)).collect();
    ids.map(|ids| cut(ids, form))
}

/// At most `form.most` of the ids.
fn cut(mut ids: Vec<TokenId>, form: PooledForm) -> Vec<TokenId> {
    match form.most {
        Some(most) if form.keeps_end => drop(ids.drain(..ids.len().saturating_sub(most))),
        Some(most) => ids.truncate(most),
        None => {}
    }
    ids
}
