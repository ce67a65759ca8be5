//! Version and health routes.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::api::openai::error::OpenAiError;
use crate::app::App;

/// `GET /version`, in vLLM's form.
pub async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// `GET /livez`: succeeds while the process responds. It checks nothing else, so an outage elsewhere causes
/// no restart.
pub async fn live() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// `GET /health` and `GET /readyz`: succeeds if a request would be accepted.
pub async fn ready(State(app): State<App>) -> Result<Json<Value>, OpenAiError> {
    app.ready()?;
    Ok(Json(json!({"status": "ok"})))
}
