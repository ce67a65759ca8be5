//! What clients speak, a room for each API: `openai`, `anthropic`, `ollama` over HTTP, `kserve` and `skein`,
//! our own, over HTTP and gRPC; `worker_face` for gateways, to which this router is one large worker, and
//! `endpoint_picker` for Envoy. Each translates between its messages and the router's own request types, and
//! brings its form of errors. `http` and `grpc` hold what those over the same transport share, `fields` and
//! `answer` what their requests and answers share. Policy, retries and checks of values are elsewhere
//! (`validate`).

pub(crate) mod answer;
mod anthropic;
pub(crate) mod direct;
mod endpoint_picker;
pub(crate) mod fields;
pub mod grpc;
pub mod http;
pub mod kserve;
mod models;
pub mod of_model;
mod ollama;
pub mod openai;
mod openapi;
mod page;
pub mod repository;
mod scores;
pub(crate) mod skein;
#[cfg(test)]
mod tests;
mod worker_face;

use ::http::Request;
use axum::Extension;
use axum::Router;
use axum::body::Body;
use axum::middleware::{from_fn, from_fn_with_state};

use self::anthropic::error::AnthropicError;
use self::http::error::Refuse;
use self::http::keys::ApiKeys;
use self::http::{around, cors, face, request_id};
use self::kserve::rest::error::KserveError;
use self::ollama::error::OllamaError;
use self::openai::error::OpenAiError;
use self::openapi::operation::Operation;
use self::openapi::room::Room;
use crate::app::App;
use crate::request::tenant::Tenant;

/// All HTTP routes, with the gRPC routes `guarded` and `open` merged in. When keys are set, everything except
/// the health routes, the page at `/` and `open` needs one.
pub fn router(app: App, guarded: Router, open: Router) -> Router {
    let keys = ApiKeys::of(&app.config);
    let root_path = app.config.root_path.clone();
    let cors = cors::layer(&app.config.allowed_origins);
    let (rooms, open_rooms) = (rooms(&app), open_rooms(&app));
    let about = openapi::room();
    let operations = operations(rooms.iter().chain(&open_rooms).map(|(room, _)| room).chain([&about]));
    let about = about.router.layer(openapi::serve(operations));
    let lock = |all: Router<App>, (room, refuse): (Room, Refuse)| {
        all.merge(face::guarded(room.router, &keys, refuse))
    };
    let guarded = rooms
        .into_iter()
        .fold(Router::new(), lock)
        .merge(face::guarded(about, &keys, OpenAiError::refuse))
        .merge(face::guarded(guarded.with_state(()), &keys, grpc::status::refuse))
        .fallback_service(unknown(&keys));
    let open = open_rooms.into_iter().fold(open.with_state(()), |all: Router<App>, (room, refuse)| {
        all.merge(face::known_methods(room.router, refuse))
    });
    let all = open.merge(guarded).with_state(app.clone()).layer(from_fn_with_state(app, around::layer));
    // Outside the key check: a browser's preflight carries no key.
    let all = match cors {
        Some(cors) => all.layer(cors),
        None => all,
    };
    below(&root_path, all)
}

/// What is served over HTTP, for the description.
fn operations<'a>(rooms: impl Iterator<Item = &'a Room>) -> Vec<Operation> {
    rooms.flat_map(|room| room.operations.clone()).collect()
}

/// The rooms that need a key, each with its form of refusals.
fn rooms(app: &App) -> [(Room, Refuse); 7] {
    [
        (openai::routes(&app.config), OpenAiError::refuse),
        (scores::routes(), OpenAiError::refuse),
        (models::routes(), models::refuse),
        (anthropic::routes(), AnthropicError::refuse),
        (ollama::routes(), OllamaError::refuse),
        (kserve::rest::routes(), KserveError::refuse),
        (skein::routes(app), OpenAiError::refuse),
    ]
}

/// The rooms that are open to all.
fn open_rooms(app: &App) -> [(Room, Refuse); 3] {
    [
        (skein::open_routes(app), OpenAiError::refuse),
        (page::routes(), OpenAiError::refuse),
        (kserve::rest::open_routes(), KserveError::refuse),
    ]
}

/// What is said of the routes of a model in the document.
pub(crate) fn described(app: &App) -> Vec<Operation> {
    let (rooms, open_rooms) = (rooms(app), open_rooms(app));
    operations(rooms.iter().chain(&open_rooms).map(|(room, _)| room))
}

/// What a port of its own for metrics and health serves.
pub fn metrics_port(app: App) -> Router {
    skein::metrics_routes().merge(skein::health_routes()).router.with_state(app)
}

/// Refuses the paths that no API has, also behind the keys. Those below `/api/` are Ollama's, those below
/// `/v2/` KServe's.
pub(crate) fn unknown(keys: &ApiKeys) -> Router {
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

/// Routes of generation, vectors and scores for one tenant without the key check, for requests from this
/// process.
pub fn completions_for(app: App, tenant: Tenant) -> Router {
    openai::generation()
        .merge(scores::routes())
        .router
        .with_state(app)
        .layer(Extension(tenant))
        .layer(from_fn(request_id::layer))
}

/// Makes the responses in the background that were owed when the process before this one ended.
pub async fn finish_responses(app: App) {
    openai::responses::background::resume(app).await;
}

/// Serves `all` at `/` and below `root_path`, because a proxy may pass its own path on.
fn below(root_path: &str, all: Router) -> Router {
    match root_path {
        "" => all,
        path => Router::new().nest(path, all.clone()).fallback_service(all),
    }
}
