//! A request that can be started: its body read, with what it continues.

use http::HeaderMap;
use serde_json::Value;
use skein_state::NewTurn;
use skein_text::PromptTooLong;

use super::asked::Asked;
use super::history;
use super::input::Parsed;
use super::output::{Items, Standing};
use crate::api::answer::single::request::SingleRequest;
use crate::api::fields::object::Fields;
use crate::app::App;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;

/// A request that can be started.
pub struct Ready {
    /// The request as for any single-prompt API.
    pub request: SingleRequest,
    /// Its answer, in which there is nothing yet.
    pub items: Items,
    /// What is stored of it, with no answer as yet; `None` = nothing.
    pub turn: Option<NewTurn>,
}

/// Reads a body and what it continues. `id` is new: that of a client may come twice, and a stored answer
/// would replace another one.
///
/// # Errors
/// All faults of the body in one refusal, or what the request continues is not stored.
pub async fn ready(
    mut fields: Fields,
    headers: &HeaderMap,
    id: &str,
    tenant: &Tenant,
    app: &App,
) -> Result<Ready, Refusal> {
    let mut asked = Asked::take(&mut fields, &app.config);
    let stored = app.config.responses.as_ref().map(|stored| (stored, stored.owner(tenant)));
    let stored = stored.as_ref().map(|(stored, owner)| (*stored, owner.as_str()));
    history::resolve(&mut asked.items, stored).await?;
    let earlier = match stored {
        Some((stored, owner)) => history::up_to(asked.previous.as_deref(), stored, owner).await?,
        None => Vec::new(),
    };
    let Parsed { request, echo, faces } = Parsed::of(fields, &asked, &earlier, headers, id, app)?;
    let Asked { is_stored, previous, is_background, items: input } = asked;
    let standing = Standing { is_stored, previous: previous.clone(), is_background };
    let scored = request.draft.sampling.logprobs.map(|_| app.text.tokenizer.bytes().clone());
    let model = app.shown_model(request.draft.model.as_deref());
    let own_id = request.draft.request_id.clone().filter(|_| !is_stored);
    let items = Items::new(own_id.as_deref().unwrap_or(id), &model, standing, echo, faces, scored);
    let turn = stored.filter(|_| is_stored).map(|(_, owner)| NewTurn {
        owner: owner.to_owned(),
        id: items.id().to_owned(),
        previous,
        input: Value::Array(input).to_string(),
        answer: String::new(),
        request: None,
    });
    Ok(Ready { request, items, turn })
}

/// `refusal` with this API's names of the fields that are checked under chat's.
pub fn in_own_words(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::OutputLength { max, prompt, output, .. } => {
            Refusal::OutputLength { field: "max_output_tokens", max, prompt, output }
        }
        Refusal::ContextLength { max, prompt, output, param } => {
            Refusal::ContextLength { max, prompt, output, param: own_name(param) }
        }
        Refusal::PromptTooLong(prompt) => {
            Refusal::PromptTooLong(PromptTooLong { param: own_name(prompt.param), ..prompt })
        }
        Refusal::Invalid { param, message } => Refusal::Invalid {
            param: param.map(own_name),
            message: message
                .replace("messages must hold at least one message", "input must hold at least one item")
                .replace("max_tokens", "max_output_tokens")
                .replace("response_format.json_schema", "text.format")
                .replace("response_format", "text.format"),
        },
        refusal => refusal,
    }
}

fn own_name(param: &'static str) -> &'static str {
    match param {
        "max_tokens" => "max_output_tokens",
        "messages" => "input",
        "response_format" => "text.format",
        param => param,
    }
}
