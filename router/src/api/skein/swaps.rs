//! Replacing the model at run time, by SGLang's route. It exists only with `--allow-runtime-model-updating`:
//! whoever can call it makes workers read directories. It needs the admin key.

use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};

use crate::api::fields::object::Fields;
use crate::api::openai::error::OpenAiError;
use crate::app::App;
use crate::refusal::Refusal;
use crate::swap::Swapped;

/// Longest path, bytes.
const MAX_PATH_BYTES: usize = 4096;

/// `POST /update_weights_from_disk`: serves the model in `model_path`, or reads the running one again.
/// Answers when new requests go to the new version.
pub async fn update(State(app): State<App>, request: Request) -> Result<Json<Value>, OpenAiError> {
    let path = path(Fields::read(request, &app).await?, &app)?;
    let swaps = app.swaps.as_ref().ok_or(Refusal::Internal)?;
    let Swapped { version, changed, running_on_old } = swaps.swap(path).await?;
    let message = if changed {
        format!("New requests go to version {version}; {running_on_old} requests end on the version before.")
    } else {
        format!("The files are those of the running version {version}; nothing has changed.")
    };
    let version = version.to_string();
    Ok(Json(json!({
        "success": true, "message": message, "num_paused_requests": 0, "model_version": version, "changed": changed,
    })))
}

/// Reads the directory of the new version; `None` = that of the running one.
pub fn path(mut fields: Fields, app: &App) -> Result<Option<String>, Refusal> {
    let path = fields.string("model_path").filter(|path| !path.is_empty());
    // SGLang's; requests that have begun always end on their version, with its cache.
    for field in ["abort_all_requests", "flush_cache", "is_async"] {
        let _ = fields.optional_bool(field);
    }
    let _ = fields.string("load_format");
    if let Some(path) = path.as_deref().filter(|path| path.len() > MAX_PATH_BYTES) {
        let message = format!("model_path has {} bytes; at most {MAX_PATH_BYTES} are allowed.", path.len());
        fields.note(Refusal::invalid("model_path", message));
    }
    fields.finish(app.config.refuse_unknown_fields)?;
    Ok(path)
}
