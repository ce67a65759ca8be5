//! OpenAI's newer API, `POST /v1/responses`, without state: nothing is stored, so a client sends the whole
//! conversation each time. [`input`] converts a request to a draft; [`output`] writes the items and events of
//! the answer.

mod input;
mod output;
mod tools;

use axum::extract::{Extension, Request, State};
use axum::response::Response;
use http::HeaderMap;

use self::input::Parsed;
use self::output::Items;
use crate::api::answer::single::output::answer;
use crate::api::fields::object::Fields;
use crate::api::http::request_id::RequestId;
use crate::api::openai::error::OpenAiError;
use crate::app::App;
use crate::refusal::Refusal;
use crate::request::Draft;
use crate::request::tenant::Tenant;

/// Converts a body into drafts.
pub fn drafts(fields: Fields, headers: &HeaderMap, id: &str, app: &App) -> Result<Vec<Draft>, Refusal> {
    Parsed::of(fields, headers, id, app).map(|parsed| vec![parsed.request.draft])
}

pub async fn create(
    State(app): State<App>,
    Extension(RequestId(id)): Extension<RequestId>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Response, OpenAiError> {
    let headers = request.headers().clone();
    let fields = Fields::read(request, &app).await.inspect_err(|refusal| refusal.log(&id))?;
    let parsed = Parsed::of(fields, &headers, &id, &app).map_err(in_own_words);
    let parsed = parsed.inspect_err(|refusal| refusal.log(&id))?;
    let Parsed { request, echo, faces } = parsed;
    let id = request.draft.request_id.clone().unwrap_or_default();
    let scored = request.draft.sampling.logprobs.map(|_| app.text.tokenizer.bytes().clone());
    let items = Items::new(&id, &app.shown_model(request.draft.model.as_deref()), echo, faces, scored);
    answer(&app, &tenant, request, true, items).await.map_err(|refusal| in_own_words(refusal).into())
}

/// `refusal` with this API's names of the fields that are checked under chat's.
fn in_own_words(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::OutputLength { max, prompt, output, .. } => {
            Refusal::OutputLength { field: "max_output_tokens", max, prompt, output }
        }
        Refusal::Invalid { param, message } => Refusal::Invalid {
            param: param.map(|param| match param {
                "max_tokens" => "max_output_tokens",
                "messages" => "input",
                "response_format" => "text.format",
                param => param,
            }),
            message: message
                .replace("max_tokens", "max_output_tokens")
                .replace("response_format.json_schema", "text.format")
                .replace("response_format", "text.format"),
        },
        refusal => refusal,
    }
}
