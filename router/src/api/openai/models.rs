//! `GET /v1/models`.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::error::OpenAiError;
use crate::app::App;
use crate::refusal::Refusal;

pub async fn list(State(app): State<App>) -> Json<Value> {
    let mut data: Vec<Value> = app.text.served_names.iter().map(|name| model(&app, name, false)).collect();
    data.extend(app.adapters.known().by_name.keys().map(|name| model(&app, name, true)));
    Json(json!({"object": "list", "data": data}))
}

/// `GET /v1/models/{id}`. The id may contain slashes.
pub async fn retrieve(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, OpenAiError> {
    let Path(id) = id.map_err(|_| Refusal::invalid("model", "The model's name in the path is not UTF-8."))?;
    let adapter = app.check_model(Some(&id))?;
    Ok(Json(model(&app, &id, adapter.is_some())))
}

/// A model in vLLM's format. `max_model_len` and `version` come from the workers and are null while none is
/// ready; new requests go to this version.
fn model(app: &App, name: &str, is_adapter: bool) -> Value {
    let max_model_len = app.fleet.model_limits().ok().map(|limits| limits.max_model_len);
    let version = Some(app.fleet.version()).filter(|version| version.is_known());
    let parent = is_adapter.then(|| app.text.name().to_string());
    json!({
        "id": name, "object": "model", "created": app.created, "owned_by": "skein", "root": name, "parent": parent,
        "max_model_len": max_model_len, "version": version.map(|version| version.to_string()),
    })
}
