//! Replacing the model at run time, by SGLang's route and by vLLM's. They exist only with
//! `--allow-runtime-model-updating`: whoever can call them makes workers read directories. They need the
//! admin key.

use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};

use crate::api::fields::object::Fields;
use crate::api::openai::error::OpenAiError;
use crate::app::App;
use crate::pause::Pauses;
use crate::refusal::Refusal;
use crate::swap::{Place, Swapped};

/// Longest path, bytes.
const MAX_PATH_BYTES: usize = 4096;

/// `POST /update_weights_from_disk`: serves the model in `model_path`, or reads the running one again.
/// Answers when new requests go to the new version.
pub async fn update(State(app): State<App>, request: Request) -> Result<Json<Value>, OpenAiError> {
    let path = path(Fields::read(request, &app).await?, &app)?;
    let swapped = swap(&app, path, Place::Beside).await?;
    let ends = format!("{} requests end on the version before.", swapped.running_on_old);
    Ok(answer(&app, &swapped, &format!("New requests go to version {}; {ends}", swapped.version)))
}

/// `POST /update_weights`: serves the model in a directory instead of the running one, while generation
/// stands still. Answers when its workers are ready.
pub async fn update_in_place(State(app): State<App>, request: Request) -> Result<Json<Value>, OpenAiError> {
    let path = path_in_update_info(Fields::read(request, &app).await?, &app)?;
    let swapped = swap(&app, Some(path), Place::Instead).await?;
    let message = format!("The weights are those of version {}; POST /resume.", swapped.version);
    Ok(answer(&app, &swapped, &message))
}

async fn swap(app: &App, path: Option<String>, place: Place) -> Result<Swapped, Refusal> {
    app.swaps.as_ref().ok_or(Refusal::Internal)?.swap(path, place).await
}

fn answer(app: &App, swapped: &Swapped, message: &str) -> Json<Value> {
    let Swapped { version, changed, .. } = swapped;
    let unchanged = format!("The files are those of the running version {version}; nothing has changed.");
    let message = if *changed { message } else { &unchanged };
    let standing = app.pauses.as_ref().map_or(0, Pauses::standing);
    Json(json!({
        "success": true, "message": message, "num_paused_requests": standing, "model_version": version.to_string(),
        "changed": changed,
    }))
}

/// Reads the directory of the new version; `None` = that of the running one.
pub fn path(mut fields: Fields, app: &App) -> Result<Option<String>, Refusal> {
    let path = fields.string("model_path").filter(|path| !path.is_empty());
    // SGLang's; requests that have begun always end on their version, with its cache.
    for field in ["abort_all_requests", "flush_cache", "is_async"] {
        let _ = fields.optional_bool(field);
    }
    let _ = fields.string("load_format");
    check_length(&mut fields, path.as_deref());
    fields.finish(app.config.refuse_unknown_fields)?;
    Ok(path)
}

/// Reads the directory of the new version in vLLM's `update_info`.
pub fn path_in_update_info(mut fields: Fields, app: &App) -> Result<String, Refusal> {
    let others = fields.spread("update_info", &["model_path"]);
    let path = fields.string("model_path").filter(|path| !path.is_empty());
    check_length(&mut fields, path.as_deref());
    if path.is_none() && !fields.has_fault("model_path") {
        let other =
            if others.is_empty() { "" } else { "; transfers over NCCL or CUDA IPC are not supported" };
        let message =
            format!("update_info.model_path is required: weights are read from a directory{other}.");
        fields.note(Refusal::invalid("model_path", message));
    }
    others.into_iter().for_each(|(name, _)| fields.leave(format!("update_info.{name}")));
    fields.finish(app.config.refuse_unknown_fields)?;
    Ok(path.unwrap_or_default())
}

fn check_length(fields: &mut Fields, path: Option<&str>) {
    if let Some(path) = path.filter(|path| path.len() > MAX_PATH_BYTES) {
        let message = format!("model_path has {} bytes; at most {MAX_PATH_BYTES} are allowed.", path.len());
        fields.note(Refusal::invalid("model_path", message));
    }
}
