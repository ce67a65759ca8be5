//! The OpenAI API over HTTP: translates JSON and SSE to and from the router's request types. It knows field
//! names and answer formats. Policy, retries and checks of values are elsewhere (`validate`).

mod adapters;
mod auth;
mod batches;
mod chat;
mod completions;
pub(crate) mod constraint_fields;
mod conversation;
pub(crate) mod cors;
mod field;
pub(crate) mod fields;
mod files;
mod known_fields;
mod logprobs;
mod merged;
mod messages;
mod metrics;
mod models;
mod ollama;
mod outgoing;
pub mod picked;
mod progress;
mod refused;
mod request_id;
mod responses;
pub(crate) mod sampling_fields;
mod shapes;
mod single;
pub(crate) mod split;
mod sse;
#[cfg(test)]
mod tests;
mod tokenize;
pub(crate) mod tool_fields;
mod traced;
mod welcome;

use axum::Extension;
use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};

use crate::app::App;
use crate::receipt;
use crate::refusal::Refusal;
use crate::tenant::Tenant;
pub use auth::ApiKeys;
pub use fields::BODY_TIMEOUT;
pub(crate) use fields::{check_content_length, read_body};
use refused::Refused;
pub use refused::{error_object, headers as refusal_headers};

/// All HTTP routes, with the gRPC routes `guarded` and `open` merged in. When keys are set, everything except
/// the health routes, the page at `/` and `open` needs one.
pub fn router(app: App, guarded: Router, open: Router) -> Router {
    let keys = ApiKeys::new(&app.config.api_keys);
    let root_path = app.config.root_path.clone();
    let cors = cors::layer(&app.config.allowed_origins);
    let runtime_adapters = Router::new()
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload));
    let runtime_adapters = if app.config.runtime_adapters { runtime_adapters } else { Router::new() };
    let api = Router::new()
        .merge(runtime_adapters)
        .route("/v1/models", get(models::list))
        .route("/v1/models/", get(models::list))
        .route("/v1/models/{*id}", get(models::retrieve))
        .route("/v1/completions", post(completions::create))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/version", get(models::version))
        .route("/v1/files", get(files::list).post(files::upload))
        .route("/v1/files/{id}", get(files::retrieve).delete(files::delete))
        .route("/v1/files/{id}/content", get(files::content))
        .route("/v1/batches", get(batches::list).post(batches::create))
        .route("/v1/batches/{id}", get(batches::retrieve))
        .route("/v1/batches/{id}/cancel", post(batches::cancel))
        .merge(ollama::routes())
        .with_state(app.clone())
        .merge(guarded)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(keys, auth::require_key));
    let health = Router::new()
        .route("/", get(welcome::page))
        .route("/health", get(models::ready))
        .route("/readyz", get(models::ready))
        .route("/livez", get(models::live))
        .route("/metrics", get(metrics::scrape))
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app.clone())
        .merge(open);
    let all =
        health.merge(api).layer(from_fn_with_state(app, metrics::count)).layer(from_fn(request_id::name));
    let all = all.layer(from_fn(receipt::give)).layer(from_fn(traced::trace));
    // Outside the key check: a browser's preflight carries no key.
    let all = match cors {
        Some(cors) => all.layer(cors),
        None => all,
    };
    below(&root_path, all)
}

/// Generation routes for one tenant without the key check, for requests from this process.
pub fn completions_for(app: App, tenant: Tenant) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::create))
        .route("/v1/chat/completions", post(chat::create))
        .with_state(app)
        .layer(Extension(tenant))
        .layer(from_fn(request_id::name))
}

/// Serves `all` at `/` and below `root_path`, because a proxy may pass its own path on.
fn below(root_path: &str, all: Router) -> Router {
    match root_path {
        "" => all,
        path => Router::new().nest(path, all.clone()).fallback_service(all),
    }
}

async fn not_found(request: Request) -> Refused {
    let path: String = request.uri().path().chars().take(200).collect();
    Refused::to(&request, Refusal::NotFound(format!("There is no path `{path}` here.")))
}

async fn method_not_allowed(request: Request) -> Refused {
    let path: String = request.uri().path().chars().take(200).collect();
    let message = format!("{} is not allowed on `{path}`.", request.method());
    Refused::to(&request, Refusal::MethodNotAllowed(message))
}
