//! What clients speak, a room for each API: `openai`, `anthropic`, `ollama` over HTTP, `kserve` and `skein`,
//! our own, over HTTP and gRPC; `worker_face` for gateways, to which this router is one large worker, and
//! `endpoint_picker` for Envoy. Each translates between its messages and the router's own request types, and
//! brings its form of errors. `http` and `grpc` hold what those over the same transport share, `fields` and
//! `answer` what their requests and answers share. Policy, retries and checks of values are elsewhere
//! (`validate`).

pub(crate) mod answer;
mod anthropic;
mod endpoint_picker;
pub(crate) mod fields;
pub mod grpc;
pub mod http;
pub mod kserve;
mod models;
mod ollama;
pub mod openai;
mod page;
mod skein;
#[cfg(test)]
mod tests;
mod worker_face;

use ::http::Request;
use axum::Extension;
use axum::Router;
use axum::body::Body;
use axum::middleware::{from_fn, from_fn_with_state};
use tower::ServiceBuilder;

use self::anthropic::error::AnthropicError;
use self::http::keys::ApiKeys;
use self::http::{cors, face, metrics, receipts, request_id, span};
use self::kserve::rest::error::KserveError;
use self::ollama::error::OllamaError;
use self::openai::error::OpenAiError;
use crate::app::App;
use crate::request::tenant::Tenant;

/// All HTTP routes, with the gRPC routes `guarded` and `open` merged in. When keys are set, everything except
/// the health routes, the page at `/` and `open` needs one.
pub fn router(app: App, guarded: Router, open: Router) -> Router {
    let keys = ApiKeys::of(&app.config);
    let root_path = app.config.root_path.clone();
    let cors = cors::layer(&app.config.allowed_origins);
    let guarded = Router::new()
        .merge(face::guarded(openai::routes(), &keys, OpenAiError::refuse))
        .merge(face::guarded(models::routes(), &keys, models::refuse))
        .merge(face::guarded(skein::routes(&app), &keys, OpenAiError::refuse))
        .merge(face::guarded(anthropic::routes(), &keys, AnthropicError::refuse))
        .merge(face::guarded(ollama::routes(), &keys, OllamaError::refuse))
        .merge(face::guarded(kserve::rest::routes(), &keys, KserveError::refuse))
        .merge(face::guarded(guarded.with_state(()), &keys, grpc::status::refuse))
        .fallback_service(unknown(&keys));
    let open = face::known_methods(skein::open_routes(&app), OpenAiError::refuse)
        .merge(face::known_methods(page::routes(), OpenAiError::refuse))
        .merge(face::known_methods(kserve::rest::open_routes(), KserveError::refuse))
        .merge(open.with_state(()));
    // One stack: a router wraps a route in boxes for each `layer`, and a request pays for all of them.
    let around = ServiceBuilder::new()
        .layer(from_fn(span::trace))
        .layer(from_fn(receipts::give))
        .layer(from_fn(request_id::name))
        .layer(from_fn_with_state(app.clone(), metrics::count));
    let all = open.merge(guarded).with_state(app).layer(around);
    // Outside the key check: a browser's preflight carries no key.
    let all = match cors {
        Some(cors) => all.layer(cors),
        None => all,
    };
    below(&root_path, all)
}

/// What a port of its own for metrics and health serves.
pub fn metrics_port(app: App) -> Router {
    skein::metrics_routes().merge(skein::health_routes()).with_state(app)
}

/// Refuses the paths that no API has, also behind the keys. Those below `/api/` are Ollama's, those below
/// `/v2/` KServe's.
fn unknown(keys: &ApiKeys) -> Router {
    let refuse = |request: &Request<Body>, refusal| {
        let is_anthropic = models::is_anthropic(request);
        if is_anthropic { models::refuse(request, refusal) } else { grpc::status::refuse(request, refusal) }
    };
    let unknown =
        Router::new().fallback(async move |request: Request<Body>| face::not_found(&request, refuse));
    face::guarded(unknown, keys, refuse)
        .merge(face::guarded(ollama::unknown(), keys, OllamaError::refuse))
        .merge(face::guarded(kserve::rest::unknown(), keys, KserveError::refuse))
}

/// Generation routes for one tenant without the key check, for requests from this process.
pub fn completions_for(app: App, tenant: Tenant) -> Router {
    openai::generation().with_state(app).layer(Extension(tenant)).layer(from_fn(request_id::name))
}

/// Serves `all` at `/` and below `root_path`, because a proxy may pass its own path on.
fn below(root_path: &str, all: Router) -> Router {
    match root_path {
        "" => all,
        path => Router::new().nest(path, all.clone()).fallback_service(all),
    }
}
