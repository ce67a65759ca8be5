//! OpenAI's API: chat, completions, responses, models, files and batches.

pub(crate) mod batches;
pub(crate) mod chat;
pub(crate) mod completions;
pub mod error;
pub(crate) mod files;
pub(crate) mod models;
mod page;
pub(crate) mod responses;

use axum::Router;
use axum::routing::{get, post};

use crate::app::App;

/// All routes of the API.
pub fn routes() -> Router<App> {
    Router::new()
        .merge(generation())
        .route("/v1/responses", post(responses::create))
        .route("/v1/files", get(files::list).post(files::upload))
        .route("/v1/files/{id}", get(files::retrieve).delete(files::delete))
        .route("/v1/files/{id}/content", get(files::content))
        .route("/v1/batches", get(batches::list).post(batches::create))
        .route("/v1/batches/{id}", get(batches::retrieve))
        .route("/v1/batches/{id}/cancel", post(batches::cancel))
}

/// Routes that a batch may call.
pub fn generation() -> Router<App> {
    Router::new()
        .route("/v1/completions", post(completions::create))
        .route("/v1/chat/completions", post(chat::create))
}
