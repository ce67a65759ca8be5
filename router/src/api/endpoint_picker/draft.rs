//! Parses a request for the endpoint picker: the same fields and refusals as the handlers. Another process
//! will serve it.

use bytes::Bytes;
use http::HeaderMap;

use crate::api::anthropic;
use crate::api::fields::object::Fields;
use crate::api::openai::{chat, completions, responses};
use crate::app::App;
use crate::ids;
use crate::refusal::Refusal;
use crate::request::Draft;

pub use crate::api::fields::sampling::PICKED_WORKER;

/// The request in a body, or its first one if it has several prompts. `None` for paths that do not generate
/// and for unsupported formats.
///
/// # Errors
/// As the handler of that path.
pub async fn draft(
    app: &App,
    path: &str,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Option<Draft>, Refusal> {
    let path = path.split('?').next().unwrap_or_default();
    let path = path.strip_prefix(app.config.root_path.as_str()).unwrap_or(path);
    let drafts = match path {
        "/v1/chat/completions" => chat::drafts,
        "/v1/completions" => completions::drafts,
        "/v1/responses" => responses::drafts,
        "/v1/messages" => anthropic::drafts,
        _ => return Ok(None),
    };
    let fields = Fields::of_other(headers, body, app).await?;
    let drafts = drafts(fields, headers, &ids::drawn().to_string(), app)?;
    Ok(drafts.into_iter().next())
}
