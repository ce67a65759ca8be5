//! Common parts of the requests of Responses and Messages: everything except some field names and the form of
//! conversation and tools.

use http::{HeaderMap, HeaderValue};
use serde_json::{Map, Value};

use crate::api::fields::conversation::Conversation;
use crate::api::fields::object::Fields;
use crate::api::fields::sampling;
use crate::api::fields::tools::Offered;
use crate::api::fields::unserved::take_unserved;
use crate::config::RouterConfig;
use crate::refusal::Refusal;
use crate::request::Draft;

/// A parsed request for one answer.
pub struct SingleRequest {
    /// The request itself.
    pub draft: Draft,
    /// Whether to stream the answer.
    pub stream: bool,
    /// Fields that were ignored.
    pub ignored: Option<HeaderValue>,
}

/// Takes the fields that these APIs share with the others. `max_tokens` is the API's name for the most
/// tokens of an answer.
///
/// # Errors
/// If the request id is invalid.
pub fn draft(
    fields: &mut Fields,
    headers: &HeaderMap,
    id: &str,
    config: &RouterConfig,
    max_tokens: &'static str,
) -> Result<Draft, Refusal> {
    let (mut draft, resuming) = sampling::draft(fields, headers, id, config)?;
    sampling::refuse_resume(fields, resuming.had.as_ref());
    draft.sampling = sampling::sampling(fields);
    draft.sampling.max_tokens = fields.i64(max_tokens);
    Ok(draft)
}

/// Adds each of `items` to `conversation` and notes faults.
pub fn converse(
    fields: &mut Fields,
    conversation: &mut Conversation,
    items: &[Value],
    add: impl Fn(&mut Conversation, usize, &Value) -> Result<(), Refusal>,
) {
    for (at, item) in items.iter().enumerate() {
        if let Err(refusal) = add(conversation, at, item) {
            fields.note(refusal);
        }
    }
}

impl SingleRequest {
    /// Completes `draft` with its prompt and tools, and takes the remaining fields. `variables` are for the
    /// template.
    ///
    /// # Errors
    /// If the body has faults; one refusal lists all of them.
    pub fn new(
        mut draft: Draft,
        mut fields: Fields,
        conversation: Conversation,
        offered: Offered,
        mut variables: Map<String, Value>,
        config: &RouterConfig,
    ) -> Result<Self, Refusal> {
        draft.tools = offered.tools;
        if !offered.shown.is_empty() {
            variables.insert("tools".to_owned(), offered.shown.into());
        }
        draft.prompt = conversation.prompt(variables);
        let stream = fields.bool("stream");
        take_unserved(&mut fields);
        Ok(Self { draft, stream, ignored: fields.finish(config.refuse_unknown_fields)? })
    }
}
