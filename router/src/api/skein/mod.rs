//! Skein's own API: the gRPC service skein.v1, and over HTTP what other APIs lack: tokenisation, health and
//! version, loading of adapters and of another version of the model. Where vLLM or SGLang has such a route,
//! it has their form.

mod adapters;
pub mod cluster;
pub mod convert;
pub mod generate;
pub mod health;
pub mod inference;
mod pauses;
mod swaps;
#[cfg(test)]
pub mod tests;
mod tokenize;
pub mod welcome;

use axum::middleware::map_request_with_state;
use axum::routing::{get, post};
use http::HeaderMap;

use crate::api::http::error::Refuse;
use crate::api::http::keys::require_admin;
use crate::api::http::metrics;
use crate::api::openai::error::OpenAiError;
use crate::api::openapi::operation::{self as describe, Access, EVENTS, GENERATION, Part, REFUSALS, TEXT};
use crate::api::openapi::room::Room;
use crate::app::App;

static PART: Part = Part {
    name: "Skein",
    about: "What no other API has, in the forms of vLLM and SGLang where these have it.",
    errors: "OpenAiError",
};

static ABOUT: Part =
    Part { name: "About", about: "What this server is, and whether it is well.", errors: "OpenAiError" };

/// Refusals of a small body.
const OF_BODY: [u16; 3] = [400, 413, 415];

/// Routes that need a key.
pub fn routes(app: &App) -> Room {
    let tokenize = describe::post("tokenize", "Token ids of a text or a conversation.")
        .reads("TokenizeRequest", |fields, app| drop(tokenize::to_tokenize(fields, app)))
        .like(r#"{"prompt": "Once upon a time"}"#)
        .gives("Tokens")
        .refuses(&OF_BODY)
        .refuses(&[404, 429, 500, 503]);
    let detokenize = describe::post("detokenize", "The text of token ids.")
        .reads("DetokenizeRequest", |fields, app| drop(tokenize::to_detokenize(fields, app)))
        .like(r#"{"tokens": [5, 6]}"#)
        .gives("Detokenized")
        .refuses(&OF_BODY)
        .refuses(&[404, 429, 500]);
    let version = describe::get("version", "The release.").gives("Version");
    let now = describe::get("cluster", "The workers, the last moves and the last requests.").gives("Cluster");
    let events = describe::get("clusterEvents", "The same each second, as events `snapshot`.");
    let events = events.streams(EVENTS, "Cluster").refuses(&[429]);
    let generate = describe::post("generate", "Continues token ids with token ids.")
        .with(&GENERATION)
        .reads("GenerateRequest", |fields, app| {
            drop(generate::draft(fields, &HeaderMap::new(), "", app));
        })
        .like(r#"{"token_ids": [5, 6], "sampling_params": {"max_tokens": 4, "logprobs": 1}}"#)
        .gives("Generated")
        .streams_until_done("GeneratedEvent")
        .refuses(&REFUSALS);
    Room::new(&PART)
        .route("/inference/v1/generate", post(generate::create), [generate])
        .route("/tokenize", post(tokenize::tokenize), [tokenize])
        .route("/detokenize", post(tokenize::detokenize), [detokenize])
        .route("/version", get(health::version), [version])
        .route("/v1/cluster", get(cluster::now), [now])
        .route("/v1/cluster/events", get(cluster::events), [events])
        .merge(admin_routes(app))
}

/// Routes that change what is served, which exist only if the operator allows it and need the admin key.
fn admin_routes(app: &App) -> Room {
    let mut routes = Room::new(&PART);
    if app.config.has_operator() {
        let drain = describe::post("drainWorker", "Has a worker take no new requests, or take them again.")
            .reads("DrainRequest", |fields, app| drop(cluster::on(fields, app)))
            .like(r#"{"on": true}"#)
            .gives("Drained")
            .refuses(&OF_BODY)
            .refuses(&[404, 409, 500, 503]);
        routes = routes.route("/v1/cluster/workers/{worker}/drain", post(cluster::drain), [drain]);
    }
    if app.config.runtime_adapters {
        let load = describe::post("loadAdapter", "Serves an adapter under a new name.")
            .reads("LoadAdapterRequest", |fields, app| drop(adapters::loaded(fields, app)))
            .like(r#"{"lora_name": "mine", "lora_path": "/adapters/mine"}"#)
            .answers(200, TEXT, None)
            .refuses(&OF_BODY)
            .refuses(&[404, 409, 429, 500, 503, 504]);
        let unload = describe::post("unloadAdapter", "Ends an adapter; its streams go on.")
            .reads("UnloadAdapterRequest", |fields, app| drop(adapters::unloaded(fields, app)))
            .like(r#"{"lora_name": "mine"}"#)
            .answers(200, TEXT, None)
            .refuses(&OF_BODY)
            .refuses(&[404, 409, 429, 500, 503, 504]);
        routes = routes.route("/v1/load_lora_adapter", post(adapters::load), [load]).route(
            "/v1/unload_lora_adapter",
            post(adapters::unload),
            [unload],
        );
    }
    if app.config.runtime_swaps && app.swaps.is_some() {
        let swap = describe::post(
            "updateWeights",
            "Replaces the model; answers when new requests go to the new version.",
        )
        .reads("SwapRequest", |fields, app| drop(swaps::path(fields, app)))
        .like(r#"{}"#)
        .gives("Swapped")
        .refuses(&OF_BODY)
        .refuses(&[409, 500, 503]);
        let in_place = describe::post(
            "updateWeightsInPlace",
            "Replaces the model by one in a directory while generation stands still.",
        )
        .reads("WeightsRequest", |fields, app| drop(swaps::path_in_update_info(fields, app)))
        .like(r#"{"update_info": {"model_path": "/models/next"}}"#)
        .gives("Swapped")
        .refuses(&OF_BODY)
        .refuses(&[409, 500, 503]);
        routes = routes.route("/update_weights_from_disk", post(swaps::update), [swap]).route(
            "/update_weights",
            post(swaps::update_in_place),
            [in_place],
        );
    }
    if app.pauses.is_some() {
        routes = routes.merge(pause_routes());
    }
    let refuse: Refuse = OpenAiError::refuse;
    routes.access(Access::Admin).with(|routes| routes.layer(map_request_with_state(refuse, require_admin)))
}

/// Routes that have generation stand still.
fn pause_routes() -> Room {
    let pause = describe::post("pause", "Has generation stand still; new requests wait.")
        .with(&["PauseMode"])
        .reads("PauseRequest", |fields, _| drop(pauses::mode(fields)))
        .or_nothing()
        .like(r#"{"mode": "keep"}"#)
        .gives("PauseStatus")
        .refuses(&[400, 409, 413, 500]);
    let resume = describe::post("resume", "Has generation go on.").gives("PauseStatus").refuses(&[409, 500]);
    let is_paused =
        describe::get("isPaused", "Whether generation stands still.").gives("IsPaused").refuses(&[500]);
    let abort = describe::post("abortRequests", "Ends requests with what they have.")
        .reads("AbortRequest", |fields, _| drop(pauses::ids(fields)))
        .like(r#"{"request_ids": ["a"]}"#)
        .gives("AbortedRequests")
        .refuses(&OF_BODY)
        .refuses(&[500]);
    Room::new(&PART)
        .route("/pause", post(pauses::pause), [pause])
        .route("/resume", post(pauses::resume), [resume])
        .route("/is_paused", get(pauses::is_paused), [is_paused])
        .route("/abort_requests", post(pauses::abort), [abort])
}

/// Routes that answer without a key. Metrics are among them unless they have a port of their own.
pub fn open_routes(app: &App) -> Room {
    let welcome = describe::get("welcome", "A page of links.").answers(200, "text/html", None);
    let open = Room::new(&ABOUT).route("/", get(welcome::page), [welcome]).merge(health_routes());
    let open = if app.config.metrics.is_some() { open } else { open.merge(metrics_routes()) };
    open.access(Access::Open)
}

/// Health, for load balancers and probes.
pub fn health_routes() -> Room {
    let ready =
        |id| describe::get(id, "Whether a request would be accepted.").gives("Health").refuses(&[503]);
    let live = describe::get("livez", "Whether the process responds.").gives("Health");
    Room::new(&ABOUT)
        .route("/health", get(health::ready), [ready("health")])
        .route("/readyz", get(health::ready), [ready("readyz")])
        .route("/livez", get(health::live), [live])
}

/// Metrics, for Prometheus.
pub fn metrics_routes() -> Room {
    let metrics = describe::get("metrics", "Metrics, in Prometheus' text format or OpenMetrics.")
        .answers(200, TEXT, None)
        .answers(200, "application/openmetrics-text", None);
    Room::new(&ABOUT).route("/metrics", get(metrics::scrape), [metrics])
}
