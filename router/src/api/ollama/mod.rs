//! Ollama's API, for tools written for it: `/api/chat`, `/api/generate`, `/api/tags`, `/api/ps`, `/api/show`
//! and `/api/version`. Translates to and from the same draft as the OpenAI API; answers stream as JSON lines.

pub mod error;
mod generate;
mod input;
mod lines;
mod messages;
mod models;
mod options;

use axum::extract::Request;
use axum::routing::{any, get, post};
use axum::{Json, Router};
use serde_json::json;

use self::error::OllamaError;
use super::http::face;
use crate::app::App;

/// Version of Ollama's API implemented here. Clients compare it with the version that they require.
const API_VERSION: &str = "0.9.0";

/// The routes below `/api`.
pub fn routes() -> Router<App> {
    Router::new()
        .route("/api/chat", post(generate::chat))
        .route("/api/generate", post(generate::generate))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::ps))
        .route("/api/show", post(models::show))
        .route("/api/version", get(async || Json(json!({"version": API_VERSION}))))
}

/// The other paths below `/api`.
pub fn unknown() -> Router {
    let refuse = any(async |request: Request| face::not_found(&request, OllamaError::refuse));
    Router::new().route("/api/", refuse.clone()).route("/api/{*path}", refuse)
}
